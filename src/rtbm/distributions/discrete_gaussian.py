"""The discrete Gaussian: a normal distribution restricted to the integer lattice."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from rtbm.distributions.arguments import refuse_rsample
from rtbm.distributions.caching import cached_unless_graph, cached_with_graph, cached_without_graph
from rtbm.distributions.notebook import distribution_html
from rtbm.distributions.sampling.lattice import MAX_LISTED_POINTS, BlockSampler, list_points, make_sampler
from rtbm.errors import InvalidInputError
from rtbm.theta.derivatives import Congruence
from rtbm.theta.exact import exact_product
from rtbm.theta.lattice import cholesky, exact_shift, integer_inverse, nearest_point, reduce_basis
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import (
    as_real,
    as_shape,
    check_integers,
    check_positive_definite,
    check_same_device,
    check_symmetric,
    check_tolerance,
    check_vector,
    check_vectors,
)


class DiscreteGaussian(Distribution):
    """P(h) ∝ exp(−½hᵀAh − aᵀh) on ℤ^g: the distribution of the hidden units of an RTBM (the paper's P(h|v) with A = Q).

    The normaliser is θ̃(a|A), so all results are exact up to `tolerance`. Computations are in float64, in coordinates
    h = U(k + k₀) where U is a reduced basis and k₀ is near the centre −A⁻¹a. So no digits are lost when A is skewed or
    the centre is far from zero. `origin` (g,) is the lattice point Uk₀, and `bias` (g,) is a + A·origin. The
    distribution keeps copies of A and a, so changing them later does not change it.

    Parameters
    ----------
    A : (g, g)
        Real, symmetric, positive definite.
    a : (g,)
        Real.
    tolerance : float, default=1e-12
        Bounds the truncation error of the normaliser, relative to it.

    Examples
    --------
    >>> hidden = DiscreteGaussian([[10.0]], [-5.0])  # 0 or 1 with equal odds
    >>> hidden.mean, hidden.log_prob([[0.0], [1.0]]).exp().round(decimals=4)
    (tensor([0.5000], dtype=torch.float64), tensor([0.5000, 0.5000], dtype=torch.float64))
    >>> hidden.sample((3,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([3, 1])
    """

    A: Tensor
    a: Tensor
    origin: Tensor

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support: Any = constraints.independent(constraints.integer_interval(-math.inf, math.inf), 1)
    has_rsample = False
    rsample = refuse_rsample
    _repr_html_ = distribution_html

    def __init__(self, A: Any, a: Any, *, tolerance: float = 1e-12):
        self.A = check_positive_definite(check_symmetric(as_real(A, "A"), "A"), "A")
        self.a = check_vector(as_real(a, "a"), "a", self.A.shape[0])
        check_same_device(self.A, "A", self.a, "a")
        self._dtype = torch.promote_types(self.A.dtype, self.a.dtype)
        matrix = self.A.detach().double().cpu().numpy()
        basis, gram = reduce_basis((matrix + matrix.T) / 2)
        self._U = torch.as_tensor(basis, dtype=torch.float64, device=self.A.device)
        self._U_inverse = torch.as_tensor(integer_inverse(basis), dtype=torch.float64, device=self.A.device)
        self._given_A = self.A.double().clone()
        self._A = Congruence.apply(self._given_A, self._U, torch.as_tensor(gram, device=self.A.device))
        self._given_a = self.a.double().clone()
        centre = -np.linalg.solve(gram, self._reduce(self._given_a).detach().cpu().numpy())
        self._origin = torch.as_tensor(nearest_point(cholesky(gram), centre), device=self.A.device)
        self.origin = self._U @ self._origin
        self._exact_bias = self._exact_slope(self.origin)
        self._tolerance = check_tolerance(tolerance)
        super().__init__(event_shape=self.a.shape, validate_args=False)

    def __repr__(self) -> str:
        return f"DiscreteGaussian(g={len(self.a)}, dtype={self._dtype})"

    @cached_with_graph
    def _plan(self) -> ThetaPlan:
        return ThetaPlan(self._A, tolerance=self._tolerance)

    @property
    def log_normalizer(self) -> Tensor:
        """log Σ_h exp(−½hᵀAh − aᵀh) = log θ̃(a|A), differentiable in A and a."""
        energy = self._origin @ (0.5 * self._A @ self._origin + self._reduce(self._given_a))
        return (self._moments[0] - energy).to(self._dtype)

    @property
    def mean(self) -> Tensor:
        """E[h] (g,)."""
        return (self.origin + self._U @ self._moments[1]).to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[h] (g, g)."""
        return (self._U @ self._moments[2] @ self._U.mT).to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (g,)."""
        return self.covariance_matrix.diagonal()

    def log_prob(self, h: Any) -> Tensor:
        """log P(h) for integer vectors h (..., g), given as any dtype. Returns (...)."""
        value = check_integers(check_vectors(as_real(h, "h"), "h", len(self.a)), "h")
        check_same_device(value, "h", self.A, "A")
        k = value.double() @ self._U_inverse.mT - self._origin
        return (-0.5 * ((k @ self._A) * k).sum(dim=-1) - k @ self._bias() - self._log_sum()).to(self._dtype)

    def log_mgf(self, t: Any) -> Tensor:
        """log E[exp(tᵀh)] (...) for t (..., g): the cumulant-generating function.

        Examples
        --------
        >>> DiscreteGaussian([[10.0]], [-5.0]).log_mgf([[0.0], [1.0]]).exp().round(decimals=3)  # (1 + e) / 2
        tensor([1.0000, 1.8590], dtype=torch.float64)
        """
        tilt = check_vectors(as_real(t, "t"), "t", len(self.a)).double()
        check_same_device(tilt, "t", self.A, "A")
        growth = self._plan.log_theta(self._reduce(tilt) - self._bias()) - self._log_sum()
        return (growth + tilt @ self.origin).to(self._dtype)

    def image_covariance(self, F: Any) -> Tensor:
        """The covariance (n, n) of Fh for a matrix F (n, g), computed in the reduced basis: F Cov[h] Fᵀ."""
        image = self._reduce(check_vectors(as_real(F, "F"), "F", len(self.a)).double())
        return (image @ self._moments[2] @ image.mT).to(self._dtype)

    def table(self, limit: int = MAX_LISTED_POINTS) -> tuple[Tensor, Tensor]:
        """The likeliest h (terms, g) in decreasing order, and their log P(h) (terms,). They leave out 1e-15 in total.

        Parameters
        ----------
        limit : int, default=2**18
            More terms than this raise a TooManyTermsError.

        Examples
        --------
        >>> h, log_prob = DiscreteGaussian([[10.0]], [-5.0]).table()
        >>> bool((log_prob.exp().sum() - 1).abs() < 1e-12)
        True
        """
        points, _ = list_points(*self._local_parameters(), limit)
        h = self.origin + torch.as_tensor(points, device=self.a.device) @ self._U.mT
        return h.to(self._dtype), self.log_prob(h)

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (g,): integers, stored in the dtype of A and a."""
        shape = as_shape(sample_shape)
        draws = torch.addmm(self.origin, self._sampler.sample(shape.numel(), generator), self._U.mT)
        return draws.to(self._dtype).reshape(*shape, len(self.a))

    def entropy(self) -> Tensor:
        """−Σ P log P, in closed form: log θ̃(a|A) + ½E[hᵀAh] + aᵀE[h]."""
        return (self._moments[0] + self._energy(self._A, self._bias())).to(self._dtype)

    def kl(self, other: "DiscreteGaussian") -> Tensor:
        """The Kullback-Leibler divergence Σ P log(P/P') from this distribution to another on the same lattice.

        Examples
        --------
        >>> p, q = DiscreteGaussian([[1.0]], [0.0]), DiscreteGaussian([[2.0]], [0.5])
        >>> p.kl(p).abs() < 1e-14, p.kl(q) > 0
        (tensor(True), tensor(True))
        """
        if not isinstance(other, DiscreteGaussian) or other.event_shape != self.event_shape:
            raise InvalidInputError(f"other must be a DiscreteGaussian with g = {len(self.a)}, got {other!r}")
        change = other._U_inverse @ self._U
        theirs = other._reduce(other._bias_at(self.origin, other._exact_slope(self.origin)))
        log_ratio = other._plan.log_theta(-theirs) - self._moments[0]
        energy = self._energy(change.mT @ other._A @ change - self._A, change.mT @ theirs - self._bias())
        return (log_ratio + energy).to(self._dtype)

    @property
    def bias(self) -> Tensor:
        """a + A·origin (g,), correctly rounded."""
        return self._bias_at(self.origin, self._exact_bias)

    def _bias_at(self, point: Tensor, exact: Tensor) -> Tensor:
        """a + A·point (g,), with the exact value and the derivatives of the formula."""
        slope = self._given_a + 0.5 * (self._given_A + self._given_A.mT) @ point
        return exact + (slope - slope.detach())

    def _exact_slope(self, point: Tensor) -> Tensor:
        A, a, n = (x.detach().cpu().numpy() for x in (self._given_A, self._given_a, point))
        return torch.as_tensor(exact_shift((A + A.T) / 2, n, a), device=self.A.device)

    def _reduce(self, vector: Tensor) -> Tensor:
        """Uᵀ times a vector (g,) or the rows of a matrix (n, g), without rounding of intermediate sums."""
        rows = vector.reshape(-1, len(self.a))
        coarse, rest = exact_product(rows, torch.zeros_like(rows), self._U)
        return (coarse + rest).reshape(vector.shape)

    def _bias(self) -> Tensor:
        """The bias around the origin, in reduced coordinates."""
        return self._reduce(self.bias)

    def _local_parameters(self) -> tuple[np.ndarray, np.ndarray]:
        """The matrix and the centre relative to the origin, in reduced coordinates."""
        A, bias = self._A.detach().cpu().numpy(), self._bias().detach().cpu().numpy()
        return A, -np.linalg.solve(A, bias)

    def _energy(self, A: Tensor, a: Tensor) -> Tensor:
        """E[½kᵀAk + aᵀk] under this distribution, in reduced coordinates around the origin."""
        _, mean, covariance = self._moments
        return 0.5 * (A * (covariance + torch.outer(mean, mean))).sum() + a @ mean

    def _log_sum(self) -> Tensor:
        """log Σ_k alone, which is cheaper than all moments if a graph is needed."""
        return self._plan.log_theta(-self._bias()) if self._wants_graph() else self._moments[0]

    @cached_unless_graph
    def _moments(self) -> Any:
        """log Σ_k, mean and covariance of k."""
        return self._plan.moments(-self._bias(), order=2)[:3]

    def _wants_graph(self) -> bool:
        return torch.is_grad_enabled() and (self._A.requires_grad or self._given_a.requires_grad)

    @cached_without_graph
    def _sampler(self) -> BlockSampler:
        return make_sampler(*self._local_parameters(), self.a.device)


register_kl(DiscreteGaussian, DiscreteGaussian)(DiscreteGaussian.kl)
