"""Machines with a dense Q: a sum over the lattice of hidden states."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.caching import cached_unless_graph, cached_with_graph, cached_without_graph
from rtbm.distributions.discrete_gaussian import DiscreteGaussian
from rtbm.distributions.evaluator import Machine, explained
from rtbm.distributions.integration.boxes import (
    QUASI_MONTE_CARLO_NODES,
    BoxQuadrature,
    IntervalSum,
    nodes_per_box,
    normal_box,
)
from rtbm.distributions.integration.grid import Envelope
from rtbm.errors import TooManyTermsError
from rtbm.parameters import (
    Free,
    Lattice,
    Natural,
    condition_lattice,
    continuous_limit,
    lattice_to_natural,
    map_tensors,
    natural_to_lattice,
    solve,
    transform_lattice,
    unconstrain,
)
from rtbm.theta.chunks import CPU_ELEMENTS, in_chunks
from rtbm.theta.derivatives import Congruence
from rtbm.theta.exact import exact_product, nearest_plane
from rtbm.theta.lattice import change_basis, integer_inverse, reduce_basis
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import check_positive_definite

FEW_INTERVAL_STATES, MAX_INTERVAL_STATES = 2**10, 2**22
"""In one dimension, probabilities are sums over h if there are at most FEW_INTERVAL_STATES, or no more than an integral
over v would have nodes, and never if there are more than MAX_INTERVAL_STATES. Else the density is integrated. Larger
numbers prefer sums, which take more memory."""
QUASI_MONTE_CARLO_TAIL = 1e-6
"""Probability of hidden states that quasi-Monte Carlo boxes leave out. It is far below their error of 1e-4, and a
smaller number only costs time."""


class ReducedBasis(NamedTuple):
    """A matrix A, weights F and their sum A + FᵀS⁻¹F, in a basis U in which the sum is LLL-reduced."""

    basis: Tensor  # U (g, g)
    dual: Tensor  # U⁻ᵀ (g, g)
    A: Tensor  # UᵀAU (g, g)
    F: Tensor  # FU (n, g)
    total: Tensor  # UᵀAU + (FU)ᵀS⁻¹(FU)
    root: Tensor  # L⁻¹FU with S = LLᵀ


class Posterior(NamedTuple):
    """P(h|v) ∝ exp(−½kᵀQk + kᵀz) with h = nearest + Uk, where U is the reduced basis and Q its `total`."""

    nearest: Tensor  # (n, Nh), integers
    z: Tensor  # (n, Nh)
    noise: Tensor  # (n, Nv): L⁻¹(v − mean − F·nearest)


class DenseMachine(Machine):
    """A machine as a noisy linear view of a lattice::

        h ~ P(h) ∝ exp(−½hᵀAh − aᵀh),   v given h ~ N(mean + Fh, covariance)

    The density is P(v) = P(h)P(v|h)/P(h|v), which holds for every h. With h near the centre of P(h|v), no large numbers
    cancel, however fine the lattice or narrow the noise.

    Parameters
    ----------
    lattice : Lattice
        Float64 parameters.
    tolerance : float
        Bounds the relative truncation error of each theta function.
    basis : pair of (Nh, Nh), default=None
        A unimodular matrix B and its dual B⁻ᵀ. `lattice` then describes k, and the hidden units are h = Bk. A machine
        in phase II may have a skewed Q, and its lattice parameters would lose digits in the basis of h. None is the
        identity.
    """

    coupling = "dense"
    local_lattice: Lattice
    """The lattice parameters of k."""

    def __init__(self, lattice: Lattice, tolerance: float, basis: tuple[Tensor, Tensor] | None = None):
        self.local_lattice = map_tensors(lattice, Tensor.contiguous)  # the last digits of products depend on the layout
        self.tolerance = tolerance
        self.n_visible, self.n_hidden = lattice.F.shape
        self.device = lattice.F.device
        identity = torch.eye(self.n_hidden, dtype=torch.float64, device=self.device)
        self._basis, self._dual = basis or (identity, identity)

    @classmethod
    def from_natural(cls, natural: Natural, tolerance: float) -> "DenseMachine":
        """The machine of natural parameters in either phase."""
        if natural.phase == "I":
            lattice = natural_to_lattice(natural)
            check_positive_definite(lattice.A, "Q − WᵀT⁻¹W (with T, W, Q as given in phase I)")
            return cls(lattice, tolerance)
        n_visible, n_hidden = natural.W.shape
        with explained(n_visible, n_hidden, "dense"):
            reduced = reduce_sum(natural.Q, natural.W, torch.linalg.cholesky(natural.T))
            b_h = change_rows(natural.b_h[None], reduced.basis)[0]
            lattice = natural_to_lattice(natural._replace(W=reduced.F, Q=reduced.A, b_h=b_h))
        return cls(lattice, tolerance, (reduced.dual, reduced.basis))

    @classmethod
    def from_parameters(cls, parameters: Sequence[Tensor], tolerance: float) -> "DenseMachine":
        """The machine of its own `parameters`."""
        return cls(Lattice(*parameters[:5]), tolerance, (parameters[5], parameters[6]))

    @property
    def parameters(self) -> list[Tensor]:
        """All tensors that the machine is made of."""
        return [*self.local_lattice, self._basis, self._dual]

    @property
    def checked(self) -> Lattice:
        """The parameters that must be finite, with positive definite matrices."""
        return self.local_lattice

    @cached_with_graph
    def lattice(self) -> Lattice:
        """The lattice parameters of h."""
        A, a, F, mean, covariance = self.local_lattice
        return Lattice(self._dual @ A @ self._dual.mT, self._dual @ a, F @ self._dual.mT, mean, covariance)

    def natural(self, phase: str) -> Natural:
        """The natural parameters in the given phase."""
        return lattice_to_natural(self.lattice, phase)

    def free(self) -> Free:
        """The free parameters."""
        return unconstrain(self.lattice)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "DenseMachine":
        """The same machine with a function applied to every parameter tensor."""
        basis = function(self._basis), function(self._dual)
        return DenseMachine(map_tensors(self.local_lattice, function), self.tolerance, basis)

    def as_dense(self) -> "DenseMachine":
        """The machine itself."""
        return self

    def condition(self, known: list[int], others: list[int], values: Tensor) -> "DenseMachine":
        """The machine of v[others] given v[known] = values."""
        lattice = condition_lattice(self.local_lattice, known, others, values)
        return DenseMachine(lattice, self.tolerance, (self._basis, self._dual))

    def transform(self, M: Tensor, c: Tensor) -> "DenseMachine":
        """The machine of Mv + c, with the same hidden units."""
        return DenseMachine(transform_lattice(self.local_lattice, M, c), self.tolerance, (self._basis, self._dual))

    def log_density(self, v: Tensor) -> Tensor:
        """log P(v) (n,)."""
        posterior = self.posterior(v)
        return self.log_joint(posterior) + self.plan.log_theta(posterior.z)

    def log_joint(self, posterior: Posterior) -> Tensor:
        """log P(v, h) (n,) at the nearest h."""
        log_volume = self._L.diagonal().log().sum() + 0.5 * self.n_visible * math.log(TWO_PI)
        return self.prior.log_prob(posterior.nearest) - 0.5 * posterior.noise.square().sum(1) - log_volume

    def log_marginal(self, v: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of the coordinates `present`."""
        selection = torch.eye(self.n_visible, dtype=v.dtype, device=v.device)[present]
        return self.transform(selection, selection.new_zeros(len(present))).log_density(v)

    def score_function(self, v: Tensor) -> Tensor:
        """∇_v log P = −Σ⁻¹(v − mean − F E[h|v]) (n, Nv)."""
        _, z, noise = self.posterior(v)
        return (self._mean(z) @ self.reduced.root.mT - noise) @ self._whitening.mT

    def hidden_mean(self, v: Tensor, phase: str) -> Tensor:
        """E(h|v) (n, Nh) as the natural parameters of `phase` define it."""
        nearest, z, _ = self.posterior(v)
        mean = self._mean(z)
        if phase == "I":
            return (nearest + mean @ self.reduced.basis.mT) @ self._basis.mT
        return (z - mean @ self.reduced.total) @ self.reduced.dual.mT @ self._dual.mT / TWO_PI

    def hidden_log_prob(self, h: Tensor, v: Tensor | None) -> Tensor:
        """log P(h|v) (n,), or log P(h) (n,) without v."""
        k = h @ self._dual
        if v is None:
            return self.prior.log_prob(k)
        nearest, z, _ = self.posterior(v)
        x = (k - nearest) @ self.reduced.dual
        return -0.5 * ((x @ self.reduced.total) * x).sum(1) + (x * z).sum(1) - self.plan.log_theta(z)

    @torch.no_grad()
    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n independent draws of v (n, Nv) and h (n, Nh)."""
        k = self.prior.sample((n,), generator)
        noise = torch.randn(n, self.n_visible, dtype=k.dtype, device=k.device, generator=generator)
        v = torch.addmm(self.local_lattice.mean, k, self.local_lattice.F.mT).addmm_(noise, self._L.mT)
        return v, k @ self._basis.mT

    def mean(self) -> Tensor:
        """E[v] = mean + F E[h] (Nv,)."""
        return self.local_lattice.mean + self.local_lattice.F @ self.prior.mean

    def covariance(self) -> Tensor:
        """Cov[v] = covariance + F Cov[h] Fᵀ (Nv, Nv)."""
        return self.local_lattice.covariance + self.prior.image_covariance(self.local_lattice.F)

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv)."""
        quadratic = t @ self.local_lattice.mean + 0.5 * (t @ self._L).square().sum(1)
        return quadratic + self.prior.log_mgf(t @ self.local_lattice.F)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,): a sum over h of normal probabilities, or an integral of the density over v."""
        if low.shape[1] == 1:
            return self._interval_rule.box(low, high)
        try:
            points, log_prob = self.prior.table()
        except TooManyTermsError:
            return self._quadrature.box(low, high)
        return self._sum_of_boxes(low, high, points, log_prob)

    def _sum_of_boxes(self, low: Tensor, high: Tensor, points: Tensor, log_prob: Tensor) -> Tensor:
        """Σ_h P(h) P(low < v < high | h) (n,), in blocks of hidden states that fit into memory."""
        covariance, weights = self.local_lattice.covariance, log_prob.softmax(0)
        nodes = nodes_per_box(covariance)
        if nodes > QUASI_MONTE_CARLO_NODES:
            kept = int((weights.detach().cumsum(0) < 1 - QUASI_MONTE_CARLO_TAIL).sum()) + 1
            points, weights = points[:kept], log_prob[:kept].softmax(0)

        def probability(bounds: Tensor, centres: Tensor, weights: Tensor, covariance: Tensor) -> Tensor:
            low, high = bounds.unbind(1)
            return normal_box(low[:, None] - centres, high[:, None] - centres, covariance) @ weights

        bounds, total = torch.stack([low, high], 1), torch.zeros_like(low[:, 0])
        block = max(1, CPU_ELEMENTS // nodes)
        for part, weight in zip(points.split(block), weights.split(block), strict=True):
            centres = self.local_lattice.mean + part @ self.local_lattice.F.mT
            total = total + in_chunks(probability, bounds, [centres, weight, covariance], width=nodes * len(part))
        return total

    @cached_unless_graph
    def _interval_rule(self) -> IntervalSum | BoxQuadrature:
        """The cheaper of a sum over h and an integral over v, for intervals in one dimension."""
        limit = min(max(FEW_INTERVAL_STATES, self._quadrature.n_line_nodes), MAX_INTERVAL_STATES)
        try:
            points, log_prob = self.prior.table(limit)
        except TooManyTermsError:
            return self._quadrature
        centres = self.local_lattice.mean + points @ self.local_lattice.F.mT
        return IntervalSum(centres[:, 0], log_prob.softmax(0), self._L[0, 0])

    @cached_with_graph
    def _quadrature(self) -> BoxQuadrature:
        return BoxQuadrature(self.log_density, self.envelope(), self._wants_graph)

    def _wants_graph(self) -> bool:
        return torch.is_grad_enabled() and any(part.requires_grad for part in self.local_lattice)

    @torch.no_grad()
    def envelope(self) -> Envelope:
        """A Gaussian bound on the density, and the covariance of its finest detail."""
        mean, covariance, centre = continuous_limit(self.local_lattice)
        A, total = self.local_lattice.A, self.reduced.total
        distance = centre - centre.round()
        log_ratio = 0.5 * (torch.logdet(total) - torch.logdet(A))
        log_prior = self.prior.log_prob(centre.round()[None])[0] + 0.5 * distance @ A @ distance
        peak = self.plan.log_theta(torch.zeros_like(centre)) + log_ratio + log_prior
        return Envelope(mean, covariance, self.local_lattice.covariance, float(peak))

    @cached_with_graph
    def prior(self) -> DiscreteGaussian:
        """P(k), where h = Bk."""
        return DiscreteGaussian(self.local_lattice.A, self.local_lattice.a, tolerance=self.tolerance)

    def posterior(self, v: Tensor) -> Posterior:
        """P(h|v) for rows v (n, Nv)."""
        A, mean = self.local_lattice.A, self.local_lattice.mean
        basis, _, _, F, _, root = self.reduced
        with torch.no_grad():
            k = nearest_plane((v - mean) @ self._gain + self._centre, self._plane)
            nearest = k @ basis.mT
        noise = (v - mean - k @ F.mT) @ self._whitening
        slope = self.prior.bias + (nearest - self.prior.origin) @ A  # a + A·nearest, without its large parts
        return Posterior(nearest, noise @ root - slope @ basis, noise)

    def _mean(self, z: Tensor) -> Tensor:
        mean = self.plan.moments(z, order=1).mean
        assert mean is not None
        return mean

    @cached_with_graph
    def plan(self) -> ThetaPlan:
        """The theta function of the posterior."""
        return ThetaPlan(self.reduced.total, tolerance=self.tolerance)

    @cached_with_graph
    def _L(self) -> Tensor:
        """The Cholesky factor of the covariance."""
        return torch.linalg.cholesky(self.local_lattice.covariance)

    @cached_with_graph
    def _whitening(self) -> Tensor:
        """L⁻ᵀ."""
        return torch.linalg.solve_triangular(self._L, torch.eye(self.n_visible).to(self._L), upper=False).mT

    @cached_with_graph
    def reduced(self) -> ReducedBasis:
        """The matrix of the posterior, A + FᵀΣ⁻¹F, in a reduced basis."""
        return reduce_sum(self.local_lattice.A, self.local_lattice.F, self._L)

    @cached_without_graph
    def _gain(self) -> Tensor:
        """The expectation of a real h given v, in the reduced basis, is (v − mean) @ gain + centre."""
        return self._whitening @ solve(self.reduced.total, self.reduced.root.mT).mT

    @cached_without_graph
    def _centre(self) -> Tensor:
        return -solve(self.reduced.total, (self.reduced.basis.mT @ self.local_lattice.a)[:, None])[:, 0]

    @cached_without_graph
    def _plane(self) -> Tensor:
        R = torch.linalg.cholesky(self.reduced.total).mT
        return (R / R.diagonal()[:, None]).triu(1)


def reduce_sum(A: Tensor, F: Tensor, L: Tensor) -> ReducedBasis:
    """Reduce A + FᵀS⁻¹F with S = LLᵀ. A and F are taken to the new basis before they are added.

    With more hidden than visible units FᵀS⁻¹F is singular, and a small A would be lost in its rounding errors. In the
    reduced basis both parts have the same size. The basis is constant under differentiation.
    """
    with torch.no_grad():
        a, f, factor = A.cpu(), F.cpu(), L.cpu()
        U = np.eye(A.shape[0], dtype=np.int64)
        for _ in range(8):
            root = torch.linalg.solve_triangular(factor, change_rows(f, torch.from_numpy(U).double()), upper=False)
            step, _ = reduce_basis(change_basis(a.numpy(), U) + (root.mT @ root).numpy())
            if (step == np.eye(len(U))).all():
                break
            U = U @ step
        dual = torch.from_numpy(integer_inverse(U).T).to(A)
        basis, gram = torch.from_numpy(U).to(A), torch.from_numpy(change_basis(a.numpy(), U)).to(A)
    gram, weights = Congruence.apply(A, basis, gram), change_rows(F, basis)
    root = torch.linalg.solve_triangular(L, weights, upper=False)
    return ReducedBasis(basis, dual, gram, weights, gram + root.mT @ root, root)


def change_rows(rows: Tensor, U: Tensor) -> Tensor:
    """rows (n, g) @ U, without rounding of intermediate sums."""
    coarse, rest = exact_product(rows, torch.zeros_like(rows), U)
    return coarse + rest
