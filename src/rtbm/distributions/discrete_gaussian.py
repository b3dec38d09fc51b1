"""The discrete Gaussian: a normal distribution restricted to the integer lattice."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from rtbm.distributions.lattice_samplers import Independent, make_sampler
from rtbm.errors import InvalidInputError
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import (
    as_real,
    check_positive_definite,
    check_same_device,
    check_symmetric,
    check_vector,
    check_vectors,
)


class DiscreteGaussian(Distribution):
    """P(h) ∝ exp(−½hᵀAh − aᵀh) on ℤ^g: what the hidden units of an RTBM follow (paper: P(h|v) with A = Q).

    The normaliser is θ̃(a|A), so everything here is exact up to `tolerance`. Computations are in float64, around the
    integer point next to the centre −A⁻¹a, so that no digits are lost when it is far from zero.

    Parameters
    ----------
    A : (g, g)
        Real, symmetric, positive definite.
    a : (g,)
        Real.
    tolerance : float
        Bounds the truncation error of the normaliser, relative to it.

    Examples
    --------
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
        check_same_device(self.A, "A", self.a, "a")
        self._dtype = torch.promote_types(self.A.dtype, self.a.dtype)
        self._A, self._a = self.A.double(), self.a.double()
        self._plan = ThetaPlan(self._A, tolerance=tolerance)
        self._origin = -torch.linalg.solve(self._A.detach(), self._a.detach()).round()
        super().__init__(event_shape=self.a.shape, validate_args=False)

    def __repr__(self) -> str:
        return f"DiscreteGaussian(g={self._plan.g}, dtype={self._dtype})"

    @property
    def log_normalizer(self) -> Tensor:
        """log Σ_h exp(−½hᵀAh − aᵀh) = log θ̃(a|A), differentiable in A and a."""
        return (self._moments()[0] - self._origin @ (0.5 * self._A @ self._origin + self._a)).to(self._dtype)

    @property
    def mean(self) -> Tensor:
        """E[h] (g,)."""
        return (self._origin + self._moments()[1]).to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[h] (g, g)."""
        return self._moments()[2].to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (g,)."""
        return self.covariance_matrix.diagonal()

    def log_prob(self, h: Any) -> Tensor:
        """log P(h) for integer vectors h (..., g), given as any dtype. Returns (...)."""
        value = check_vectors(as_real(h, "h"), "h", self._plan.g)
        check_same_device(value, "h", self.A, "A")
        if not bool((value == value.round()).all()):
            raise InvalidInputError("h must hold integers: the distribution lives on the integer lattice")
        k = value.double() - self._origin
        return (-0.5 * ((k @ self._A) * k).sum(dim=-1) - k @ self._shifted(self) - self._moments()[0]).to(self._dtype)

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (g,): integers, stored in the dtype of A and a."""
        shape = torch.Size((sample_shape,) if isinstance(sample_shape, int) else sample_shape)
        draws = self._sampler.sample(shape.numel(), generator)
        return draws.to(self._dtype).reshape(*shape, self._plan.g)

    def entropy(self) -> Tensor:
        """−Σ P log P, in closed form: log θ̃(a|A) + ½E[hᵀAh] + aᵀE[h]."""
        return (self._moments()[0] + self._energy(self._A, self._shifted(self))).to(self._dtype)

    def kl(self, other: "DiscreteGaussian") -> Tensor:
        """The Kullback-Leibler divergence Σ P log(P/P') from this distribution to another on the same lattice.

        Examples
        --------
        >>> p, q = DiscreteGaussian([[1.0]], [0.0]), DiscreteGaussian([[2.0]], [0.5])
        >>> p.kl(p).abs() < 1e-14, p.kl(q) > 0
        (tensor(True), tensor(True))
        """
        if not isinstance(other, DiscreteGaussian) or other.event_shape != self.event_shape:
            raise InvalidInputError(f"other must be a DiscreteGaussian with g = {self._plan.g}, got {other!r}")
        theirs, ours = self._shifted(other), self._shifted(self)
        log_ratio = other._plan.log_theta(-theirs) - self._moments()[0]
        return (log_ratio + self._energy(other._A - self._A, theirs - ours)).to(self._dtype)

    def _shifted(self, other: "DiscreteGaussian") -> Tensor:
        """The bias a of `other` in coordinates around this distribution's origin: a + A·origin."""
        return other._a + other._A @ self._origin

    def _energy(self, A: Tensor, a: Tensor) -> Tensor:
        """E[½kᵀAk + aᵀk] under this distribution, k = h − origin."""
        _, mean, covariance = self._moments()
        return 0.5 * (A * (covariance + torch.outer(mean, mean))).sum() + a @ mean

    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """log-sum, mean and covariance of h − origin: with a graph where one is wanted, else computed once."""
        if torch.is_grad_enabled() and (self._A.requires_grad or self._a.requires_grad):
            return self._compute_moments()
        return self._fixed_moments

    @cached_property
    def _fixed_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            return self._compute_moments()

    def _compute_moments(self) -> tuple[Tensor, Tensor, Tensor]:
        log_sum, mean, covariance, _ = self._plan.moments(-self._shifted(self), order=2)
        assert mean is not None
        assert covariance is not None
        return log_sum, mean, covariance

    @cached_property
    def _sampler(self) -> Independent:
        A, a = self._A.detach(), self._a.detach()
        centre = -torch.linalg.solve(A, a)
        return make_sampler(((A + A.mT) / 2).cpu().numpy(), centre.cpu().numpy(), self.a.device)


@register_kl(DiscreteGaussian, DiscreteGaussian)
def _kl_discrete_gaussian(p: DiscreteGaussian, q: DiscreteGaussian) -> Tensor:
    return p.kl(q)
