"""The continuous Boltzmann machine: the paper's appendix A, a Gaussian."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import MultivariateNormal

from rtbm.common import TWO_PI
from rtbm.distributions.arguments import check_natural
from rtbm.parameters import Lattice, continuous_limit, dense_hidden, inverse, lattice_to_natural, solve, symmetric
from rtbm.validation import as_real, as_shape, check_positive_definite, check_vectors


class ContinuousBoltzmannMachine(MultivariateNormal):
    """A Boltzmann machine with real visible and real hidden units, energy ½vᵀTv + ½hᵀQh + vᵀWh + b_vᵀv + b_hᵀh::

        v ~ N(−(T − WQ⁻¹Wᵀ)⁻¹(b_v − WQ⁻¹b_h), (T − WQ⁻¹Wᵀ)⁻¹)

    An RTBM tends to it when its lattice of hidden states becomes fine. All methods of
    `torch.distributions.MultivariateNormal` are available.

    Parameters
    ----------
    T : (Nv, Nv)
        Symmetric, positive definite.
    W : (Nv, Nh)
        Real, such that T − WQ⁻¹Wᵀ is positive definite.
    Q : (Nh, Nh) or (Nh,)
        Symmetric, positive definite; a vector is the diagonal of a diagonal matrix.
    b_v, b_h : (Nv,), (Nh,)
        The biases.

    Examples
    --------
    >>> machine = ContinuousBoltzmannMachine([[2.0]], [[1.0]], [[1.0]], [1.0], [0.0])
    >>> machine.mean, machine.covariance_matrix
    (tensor([-1.], dtype=torch.float64), tensor([[1.]], dtype=torch.float64))
    """

    T: Tensor
    W: Tensor
    b_v: Tensor
    b_h: Tensor
    Q: Tensor

    def __init__(self, T: Any, W: Any, Q: Any, b_v: Any, b_h: Any):
        natural, dtype = check_natural(T, W, Q, b_v, b_h, "I")
        self.T, self.W, _, self.b_v, self.b_h = (part.to(dtype) for part in natural[:-1])
        self.Q = dense_hidden(natural).to(dtype)
        couplings = solve(self.Q, self.W.mT)  # Q⁻¹Wᵀ
        precision = check_positive_definite(symmetric(self.T - self.W @ couplings), "T − WQ⁻¹Wᵀ")
        mean = -solve(precision, (self.b_v - couplings.mT @ self.b_h)[:, None])[:, 0]
        super().__init__(mean, precision_matrix=precision, validate_args=False)

    @classmethod
    def _from_lattice(cls, lattice: Lattice) -> "ContinuousBoltzmannMachine":
        """The machine with h ~ N(−A⁻¹a, A⁻¹) and v given h ~ N(mean + Fh, covariance), from checked parameters."""
        machine = cls.__new__(cls)
        machine.T, machine.W, machine.Q, machine.b_v, machine.b_h, _ = lattice_to_natural(lattice)
        mean, covariance, _ = continuous_limit(lattice)
        MultivariateNormal.__init__(machine, mean, covariance, validate_args=False)
        return machine

    def log_prob(self, value: Any) -> Tensor:
        """log P(v) (...) for v (..., Nv)."""
        return super().log_prob(check_vectors(as_real(value, "value"), "value", len(self.T)))

    @property
    def log_normalizer(self) -> Tensor:
        """log Z = ½(Nv + Nh) log 2π − ½ log det A + ½BᵀA⁻¹B, with A all couplings and B all biases (appendix A).

        Examples
        --------
        >>> ContinuousBoltzmannMachine([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).log_normalizer  # log 2π
        tensor(1.8379, dtype=torch.float64)
        """
        return -self.free_energy(self.loc) - self.log_prob(self.loc)  # P = exp(−F)/Z at any point

    def free_energy(self, value: Any) -> Tensor:
        """F(v) = −log ∫ exp(−E(v, h)) dh (...) for v (..., Nv), so that P = exp(−F)/Z (appendix A)::

            F(v) = ½vᵀTv + b_vᵀv − ½Nh log 2π + ½ log det Q − ½uᵀQ⁻¹u,   u = Wᵀv + b_h

        Examples
        --------
        >>> machine = ContinuousBoltzmannMachine([[2.0]], [[1.0]], [[4.0]], [1.0], [0.0])
        >>> bool((machine.log_prob([1.0]) + machine.free_energy([1.0]) + machine.log_normalizer).abs() < 1e-12)
        True
        """
        v = check_vectors(as_real(value, "value"), "value", len(self.T))
        u = v @ self.W + self.b_h
        energy = 0.5 * ((v @ self.T) * v).sum(-1) + v @ self.b_v - 0.5 * ((u @ inverse(self.Q)) * u).sum(-1)
        return energy + 0.5 * torch.logdet(self.Q / TWO_PI)

    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) = −Q⁻¹(Wᵀv + b_h) (..., Nh) for v (..., Nv): the straight line that an RTBM's steps follow.

        Examples
        --------
        >>> ContinuousBoltzmannMachine([[2.0]], [[1.0]], [[4.0]], [1.0], [0.0]).hidden_mean([2.0])
        tensor([-0.5000], dtype=torch.float64)
        """
        v = check_vectors(as_real(value, "value"), "value", len(self.T))
        return -(v @ self.W + self.b_h) @ inverse(self.Q)

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent draws of shape sample_shape + (Nv,)."""
        shape = as_shape(sample_shape)
        noise = torch.randn(*shape, len(self.T), dtype=self.loc.dtype, device=self.loc.device, generator=generator)
        with torch.no_grad():
            return self.loc + noise @ self.scale_tril.mT
