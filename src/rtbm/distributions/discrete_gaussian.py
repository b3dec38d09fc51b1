"""The discrete Gaussian: a normal distribution restricted to the integer lattice."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence, register_kl

from rtbm.distributions.lattice_samplers import NearestPlane, Table, make_sampler
from rtbm.errors import InvalidInputError
from rtbm.theta.plan import ThetaMoments, ThetaPlan
from rtbm.validation import as_real, as_vectors, check_positive_definite, check_symmetric, check_vector


class DiscreteGaussian(Distribution):
    """P(h) ∝ exp(−½hᵀAh − aᵀh) on ℤ^g: what the hidden units of an RTBM follow (paper: P(h), and P(h|v) with A = Q).

    The normaliser is θ̃(a|A), so everything here is exact up to `tolerance`.

    Parameters
    ----------
    A : (g, g) real, symmetric, positive definite.
    a : (g,) real.
    tolerance : bounds the truncation error of the normaliser, relative to it.

    >>> hidden = DiscreteGaussian([[10.0]], [-5.0])  # 0 or 1 with equal odds
    >>> hidden.mean, hidden.log_prob([[0.0], [1.0]]).exp().round(decimals=4)
    (tensor([0.5000], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    >>> hidden.sample((3,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 1])
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False

    def __init__(self, A: Any, a: Any, *, tolerance: float = 1e-12):
        self.A = check_positive_definite(check_symmetric(as_real(A, "A"), "A"), "A")
        self.a = check_vector(as_real(a, "a"), "a", self.A.shape[0])
        self._plan = ThetaPlan(self.A, tolerance=tolerance)
        super().__init__(event_shape=self.a.shape, validate_args=False)

    def __repr__(self) -> str:
        return f"DiscreteGaussian(g={self._plan.g}, dtype={self.A.dtype})"

    @property
    def log_normalizer(self) -> Tensor:
        """log Σ_h exp(−½hᵀAh − aᵀh) = log θ̃(a|A), differentiable in A and a."""
        return self._moments.log_theta

    @property
    def mean(self) -> Tensor:
        """E[h] (g,)."""
        return self._known(self._moments.mean)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[h] (g, g)."""
        return self._known(self._moments.covariance)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (g,)."""
        return self.covariance_matrix.diagonal()

    def log_prob(self, h: Any) -> Tensor:
        """log P(h) for integer vectors h (..., g), given as any dtype. Returns (...)."""
        value = as_vectors(as_real(h, "h"), "h", self._plan.g).to(self.a)
        if not bool((value == value.round()).all()):
            raise InvalidInputError("h must hold integers: the distribution lives on the integer lattice")
        return -0.5 * ((value @ self.A) * value).sum(dim=-1) - value @ self.a - self.log_normalizer

    def sample(self, sample_shape: Sequence[int] = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (g,): integers, stored in the dtype of a."""
        shape = torch.Size(sample_shape)
        draws = self._sampler.sample(shape.numel(), generator)
        return draws.to(self.a.dtype).reshape(*shape, self._plan.g)

    def entropy(self) -> Tensor:
        """−Σ P log P, in closed form: log θ̃(a|A) + ½E[hᵀAh] + aᵀE[h]."""
        return self.log_normalizer + self._energy(self.A, self.a)

    def kl(self, other: "DiscreteGaussian") -> Tensor:
        """The Kullback-Leibler divergence Σ P log(P/P') from this distribution to another on the same lattice.

        >>> p, q = DiscreteGaussian([[1.0]], [0.0]), DiscreteGaussian([[2.0]], [0.5])
        >>> p.kl(p).abs() < 1e-14, p.kl(q) > 0
        (tensor(True), tensor(True))
        """
        if other.event_shape != self.event_shape:
            raise InvalidInputError(
                f"both distributions must have the same dimension, got {self._plan.g} and {other._plan.g}"
            )
        return other.log_normalizer - self.log_normalizer + self._energy(other.A - self.A, other.a - self.a)

    def _energy(self, A: Tensor, a: Tensor) -> Tensor:
        """E[½hᵀAh + aᵀh] under this distribution."""
        second = self.covariance_matrix + torch.outer(self.mean, self.mean)
        return 0.5 * (A * second).sum() + a @ self.mean

    @cached_property
    def _moments(self) -> ThetaMoments:
        return self._plan.moments(-self.a, order=2)

    @cached_property
    def _sampler(self) -> Table | NearestPlane:
        A, a = self.A.detach().double(), self.a.detach().double()
        centre = -torch.linalg.solve(A, a)
        return make_sampler(((A + A.mT) / 2).cpu().numpy(), centre.cpu().numpy(), self.a.device)

    @staticmethod
    def _known(value: Tensor | None) -> Tensor:
        assert value is not None
        return value


@register_kl(DiscreteGaussian, DiscreteGaussian)
def _kl_discrete_gaussian(p: DiscreteGaussian, q: DiscreteGaussian) -> Tensor:
    return p.kl(q)


__all__ = ["DiscreteGaussian", "kl_divergence"]
