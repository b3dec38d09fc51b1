"""The machine as a noisy linear view of a lattice: h from P(h), then v from N(mean + Fh, covariance)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.box_quadrature import BoxQuadrature
from rtbm.distributions.caching import cached_with_graph, cached_without_graph
from rtbm.distributions.discrete_gaussian import DiscreteGaussian
from rtbm.distributions.grid import Envelope
from rtbm.distributions.line_sum import LineSum
from rtbm.distributions.normal_box import MANY_NODES, nodes_per_box, normal_box
from rtbm.distributions.reduction import reduce_sum
from rtbm.errors import TooManyTermsError
from rtbm.parameters import Lattice, continuous_limit, solve
from rtbm.theta.chunks import CPU_ELEMENTS, in_chunks
from rtbm.theta.exact import nearest_plane
from rtbm.theta.plan import ThetaPlan

FEW_STATES, MAX_STATES = 2**10, 2**22
"""In one dimension probabilities are sums over h if there are at most FEW_STATES of them, or no more than an integral
over v would have nodes, and never if there are more than MAX_STATES."""


class Posterior(NamedTuple):
    """What v says about h: P(h|v) ∝ exp(−½kᵀQk + kᵀz) with h = nearest + Uk, U the reduced basis."""

    nearest: Tensor  # (n, Nh), integers
    z: Tensor  # (n, Nh)
    noise: Tensor  # (n, Nv): L⁻¹(v − mean − F·nearest)


class LatticeForm:
    """Densities and integrals of a machine with parameters in lattice form, all float64.

    The density is P(v) = P(h)P(v|h)/P(h|v), true for every h. With h next to the centre of P(h|v), no large numbers
    are left to cancel, however fine the lattice or narrow the noise.
    """

    def __init__(self, lattice: Lattice, tolerance: float):
        self.lattice = lattice
        self.tolerance = tolerance
        self._L = torch.linalg.cholesky(lattice.covariance)
        self._whitening = torch.linalg.solve_triangular(self._L, torch.eye(len(self._L)).to(self._L), upper=False).mT
        self._reduced = reduce_sum(lattice.A, lattice.F, self._L)

    @cached_with_graph
    def prior(self) -> DiscreteGaussian:
        """P(h)."""
        return DiscreteGaussian(self.lattice.A, self.lattice.a, tolerance=self.tolerance)

    @cached_with_graph
    def _plan(self) -> ThetaPlan:
        return ThetaPlan(self._reduced.total, tolerance=self.tolerance)

    def log_density(self, v: Tensor) -> Tensor:
        """log P(v) (n,) for v (n, Nv)."""
        nearest, z, noise = self._posterior(v)
        log_normal = -0.5 * noise.square().sum(1) - self._log_volume()
        return self.prior.log_prob(nearest) + log_normal + self._plan.log_theta(z)

    def score(self, v: Tensor) -> Tensor:
        """∇_v log P = −Σ⁻¹(v − mean − F E[h|v]) (n, Nv)."""
        _, z, noise = self._posterior(v)
        return (self._mean(z) @ self._reduced.root.mT - noise) @ self._whitening.mT

    def hidden_mean(self, v: Tensor, phase: str) -> Tensor:
        """E(h|v) (n, Nh) as the parameters of either phase define it."""
        nearest, z, _ = self._posterior(v)
        mean = self._mean(z)
        if phase == "I":
            return nearest + mean @ self._reduced.basis.mT
        return (z - mean @ self._reduced.total) @ self._reduced.dual.mT / TWO_PI

    def hidden_log_prob(self, h: Tensor, v: Tensor | None) -> Tensor:
        """log P(h) (n,) or log P(h|v) (n,) for integer h (n, Nh)."""
        if v is None:
            return self.prior.log_prob(h)
        nearest, z, _ = self._posterior(v)
        k = (h - nearest) @ self._reduced.dual
        return -0.5 * ((k @ self._reduced.total) * k).sum(1) + (k * z).sum(1) - self._plan.log_theta(z)

    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n draws of v (n, Nv) and h (n, Nh)."""
        with torch.no_grad():
            h = self.prior.sample((n,), generator)
            noise = torch.randn(n, len(self._L), dtype=h.dtype, device=h.device, generator=generator)
            return torch.addmm(self.lattice.mean, h, self.lattice.F.mT).addmm_(noise, self._L.mT), h

    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self.lattice.mean + self.lattice.F @ self.prior.mean

    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        return self.lattice.covariance + self.prior.image_covariance(self.lattice.F)

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv)."""
        quadratic = t @ self.lattice.mean + 0.5 * (t @ self._L).square().sum(1)
        return quadratic + self.prior.log_mgf(t @ self.lattice.F)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,) for low, high (n, Nv): a sum over h of normal probabilities."""
        if low.shape[1] == 1:
            return self.line().box(low, high)
        try:
            points, log_prob = self.prior.table()
        except TooManyTermsError:
            return self._quadrature.box(low, high)
        covariance, weights = self.lattice.covariance, log_prob.softmax(0)
        nodes = nodes_per_box(covariance)
        if nodes > MANY_NODES:  # quasi-Monte Carlo: what is far below its error is left out
            kept = int((weights.detach().cumsum(0) < 1 - 1e-6).sum()) + 1
            points, weights = points[:kept], log_prob[:kept].softmax(0)

        def probability(bounds: Tensor, centres: Tensor, weights: Tensor, covariance: Tensor) -> Tensor:
            low, high = bounds.unbind(1)
            return normal_box(low[:, None] - centres, high[:, None] - centres, covariance) @ weights

        bounds, total = torch.stack([low, high], 1), torch.zeros_like(low[:, 0])
        block = max(1, CPU_ELEMENTS // nodes)
        for part, weight in zip(points.split(block), weights.split(block), strict=True):
            centres = self.lattice.mean + part @ self.lattice.F.mT
            total = total + in_chunks(probability, bounds, [centres, weight, covariance], width=nodes * len(part))
        return total

    def line(self) -> LineSum | BoxQuadrature:
        """What probabilities come from in one dimension: the cheaper one of a sum over h and an integral over v."""
        return self._make_line() if self._wants_graph() else self._fixed_line

    @cached_without_graph
    def _fixed_line(self) -> LineSum | BoxQuadrature:
        return self._make_line()

    def _make_line(self) -> LineSum | BoxQuadrature:
        limit = min(max(FEW_STATES, self._quadrature.n_nodes), MAX_STATES)
        try:
            points, log_prob = self.prior.table(limit)
        except TooManyTermsError:
            return self._quadrature
        centres = self.lattice.mean + points @ self.lattice.F.mT
        return LineSum(centres[:, 0], log_prob.softmax(0), self._L[0, 0])

    @cached_with_graph
    def _quadrature(self) -> BoxQuadrature:
        return BoxQuadrature(self.log_density, self.envelope(), self._wants_graph)

    def _wants_graph(self) -> bool:
        return torch.is_grad_enabled() and any(part.requires_grad for part in self.lattice)

    @torch.no_grad()
    def envelope(self) -> Envelope:
        """The Gaussian that bounds the density, and the width of its finest detail."""
        mean, covariance, centre = continuous_limit(self.lattice)
        A, total = self.lattice.A, self._reduced.total
        distance = centre - centre.round()
        log_ratio = _log_root_det(total) - _log_root_det(A)
        log_prior = self.prior.log_prob(centre.round()[None])[0] + 0.5 * distance @ A @ distance
        peak = self._plan.log_theta(torch.zeros_like(centre)) + log_ratio + log_prior
        return Envelope(mean, covariance, self.lattice.covariance, float(peak))

    def _posterior(self, v: Tensor) -> Posterior:
        A, mean = self.lattice.A, self.lattice.mean
        basis, _, _, F, _, root = self._reduced
        with torch.no_grad():
            k = nearest_plane((v - mean) @ self._gain + self._centre, self._plane)
            nearest = k @ basis.mT
        noise = (v - mean - k @ F.mT) @ self._whitening
        slope = self.prior.bias + (nearest - self.prior.origin) @ A  # a + A·nearest, without its large parts
        return Posterior(nearest, noise @ root - slope @ basis, noise)

    @cached_without_graph
    def _gain(self) -> Tensor:
        """The expectation of a real h, in the reduced basis, is (v − mean) @ gain + centre."""
        return self._whitening @ solve(self._reduced.total, self._reduced.root.mT).mT

    @cached_without_graph
    def _centre(self) -> Tensor:
        return -solve(self._reduced.total, (self._reduced.basis.mT @ self.lattice.a)[:, None])[:, 0]

    @cached_without_graph
    def _plane(self) -> Tensor:
        R = torch.linalg.cholesky(self._reduced.total).mT
        return (R / R.diagonal()[:, None]).triu(1)

    def _mean(self, z: Tensor) -> Tensor:
        mean = self._plan.moments(z, order=1).mean
        assert mean is not None
        return mean

    def _log_volume(self) -> Tensor:
        return self._L.diagonal().log().sum() + 0.5 * len(self._L) * math.log(TWO_PI)


def _log_root_det(form: Tensor) -> Tensor:
    return torch.linalg.cholesky(form).diagonal().log().sum()
