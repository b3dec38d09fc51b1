"""The machine as a Gaussian times a periodic function: phase II, where all terms of log P stay of moderate size."""

import math

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.caching import cached_with_graph, cached_without_graph, ordinary_tensors
from rtbm.distributions.grid import (
    MAX_GRID_DIMENSION,
    Envelope,
    Grid,
    make_grid,
    spacing_for,
)
from rtbm.distributions.reduction import reduce_sum, transform_rows
from rtbm.errors import TooManyNodesError
from rtbm.parameters import Natural, dense_hidden, inverse, solve, symmetric
from rtbm.theta.plan import ThetaPlan

MAX_DENSE = 3
"""Up to this many hidden units a diagonal machine is normalised by the lattice sum, which is then the cheapest."""

_AVERAGE_ELEMENTS = 2**22


class WaveForm:
    """Densities of a machine with natural parameters in phase II, dense or diagonal, all float64::

        log P(v) = log N(v; −T⁻¹b_v, T⁻¹) + log θ̃(i(Wᵀv + b_h)|Q) − log θ̃(i(b_h − WᵀT⁻¹b_v)|Q + WᵀT⁻¹W)

    The last term is the average of the second over the Gaussian. For diagonal Q it is computed as that, by the
    trapezoidal rule, when there are few visible and many hidden units.
    """

    def __init__(self, natural: Natural, tolerance: float):
        self.natural = natural
        self.tolerance = tolerance
        T, W, Q, b_v, b_h, _ = natural
        self._L = torch.linalg.cholesky(T)
        self.mean = -torch.cholesky_solve(b_v[:, None], self._L)[:, 0]
        self._W, self._Q, self._bias = W, Q, b_h
        if not natural.is_diagonal:
            self._reduced = reduce_sum(Q, W, self._L)
            self._W, self._Q = self._reduced.weights, self._reduced.form
            self._bias = transform_rows(b_h[None], self._reduced.basis)[0]
        self._offset = self._bias + self._W.mT @ self.mean

    def reduced_natural(self) -> Natural:
        """The parameters in the reduced basis: the same density, with other hidden units."""
        if self.natural.is_diagonal:
            return self.natural
        return self.natural._replace(W=self._W, Q=self._Q, b_h=self._bias)

    def log_density(self, v: Tensor) -> Tensor:
        """log P(v) (n,) for v (n, Nv)."""
        return self.log_unnormalized(v) - self.log_normalizer()

    def log_normalizer(self) -> Tensor:
        """log of the average of the periodic factor: with a graph where one is wanted, else computed once."""
        return self.log_average(self._offset[None])[0] if self.wants_graph() else self._fixed_log_normalizer

    @cached_without_graph
    def _fixed_log_normalizer(self) -> Tensor:
        return self.log_average(self._offset[None])[0]

    def wants_graph(self) -> bool:
        """Whether results are to be differentiable in the parameters."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in (self._L, self._W, self._Q, self._offset))

    def log_unnormalized(self, v: Tensor) -> Tensor:
        """log N(v) + log θ̃ (n,): everything but the normaliser."""
        centred = v - self.mean
        return _log_normal(centred, self._L) + self._plan.log_theta(centred @ self._W + self._offset)

    def score(self, v: Tensor) -> Tensor:
        """∇_v log P (n, Nv), which needs no normaliser."""
        centred = v - self.mean
        slope = self._slope(centred @ self._W + self._offset)
        return slope @ self._W.mT - (centred @ self._L) @ self._L.mT

    def hidden_mean(self, v: Tensor, phase: str) -> Tensor:
        """E(h|v) (n, Nh) as the parameters of either phase define it (phase I: diagonal Q only)."""
        u = (v - self.mean) @ self._W + self._offset
        slope = self._slope(u)
        if phase == "I":
            return (u + self._Q * slope) / TWO_PI
        return -slope if self.natural.is_diagonal else -slope @ self._reduced.basis.mT

    def hidden_posterior(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Centres (n, Nh) and precisions (Nh,) of the independent phase I units given v (diagonal Q only)."""
        return ((v - self.mean) @ self._W + self._offset) / TWO_PI, TWO_PI**2 / self._Q

    def hidden_log_prob(self, h: Tensor, v: Tensor) -> Tensor:
        """log P(h|v) (n,) of the phase I units h (n, Nh), which are independent (diagonal Q only)."""
        centre, precision = self.hidden_posterior(v)
        exponent = 0.5 * (precision / TWO_PI).log().sum() - 0.5 * (h - centre).square() @ precision
        return exponent - self._plan.log_theta(TWO_PI * centre)

    def log_average(self, offsets: Tensor) -> Tensor:
        """log of the mean of θ̃(i(Wᵀ(v − mean) + offset)|Q) over v ~ N(mean, T⁻¹) (n,), for any offsets (n, Nh).

        At this machine's own offset it is the normaliser.
        """
        if len(offsets) == 0:
            return offsets.sum(1)
        while self.grid is not None:
            rows = max(1, _AVERAGE_ELEMENTS // (len(self.grid.nodes) * offsets.shape[1]))
            values = torch.cat([self._average(part, self.grid) for part in offsets.split(rows)])
            lowest = float(values.detach().min())
            if not lowest < self._covered:
                return values
            try:
                self._cover(lowest - 1.0)  # the truncation was relative to a larger average: go further out
            except TooManyNodesError:
                self.grid = None
        return self._prior_plan.log_theta(offsets)

    def _average(self, offsets: Tensor, grid: Grid) -> Tensor:
        centred = grid.nodes - self.mean
        u = (centred @ self._W)[None] + offsets[:, None]
        return (self._plan.log_theta(u) + _log_normal(centred, self._L)).logsumexp(1) + grid.log_cell

    def log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of some coordinates (n, k): their Gaussian times the average over the others, given these."""
        T, W, Q, _, b_h, _ = self.natural
        missing = [i for i in range(len(T)) if i not in present]
        centred = rows - self.mean[present]
        log_normal = _log_normal(centred, torch.linalg.cholesky(inverse(inverse(T)[present][:, present])))
        precision = T[missing][:, missing]
        shift = -centred @ solve(precision, T[missing][:, present]).mT
        others = WaveForm(Natural(precision, W[missing], Q, 0 * self.mean[missing], 0 * b_h, "II"), self.tolerance)
        offsets = self._offset + centred @ W[present] + shift @ W[missing]
        return log_normal + others.log_average(offsets) - self.log_normalizer()

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv): the Gaussian is shifted by T⁻¹t, and with it the offset."""
        shift = t @ inverse(self.natural.T)
        averages = self.log_average(self._offset + shift @ self._W)
        return t @ self.mean + 0.5 * (t * shift).sum(1) + averages - self.log_normalizer()

    def envelope(self) -> Envelope:
        """The Gaussian that bounds the density, and the width of its finest detail."""
        return self._envelope(float(self._fixed_log_normalizer))

    @cached_without_graph
    def grid(self) -> Grid | None:
        """Nodes for the normaliser and other integrals over v; None where the lattice sum is used."""
        n_visible, n_hidden = self.natural.W.shape
        if not self.natural.is_diagonal or n_hidden <= MAX_DENSE or n_visible > MAX_GRID_DIMENSION:
            return None
        try:
            return self._cover(-1.0)
        except TooManyNodesError:
            return None

    def _cover(self, log_average: float) -> Grid:
        """Make a grid that truncates at `tolerance` relative to an average of exp(log_average) or more."""
        with ordinary_tensors():
            spacing = spacing_for(self.tolerance, len(self.mean))
            self.grid = make_grid(self._envelope(log_average), spacing, self.tolerance)
        self._covered = log_average
        return self.grid

    @torch.no_grad()
    def _envelope(self, log_average: float) -> Envelope:
        T, W = self.natural.T, self.natural.W
        curvature = (W / self._Q) @ W.mT if self.natural.is_diagonal else W @ solve(self.natural.Q, W.mT)
        peak = float(self._plan.log_theta(torch.zeros_like(self._offset)))
        return Envelope(self.mean, inverse(T), inverse(symmetric(T + curvature)), peak - log_average)

    @cached_with_graph
    def _plan(self) -> ThetaPlan:
        return ThetaPlan(self._Q, phase="II", tolerance=self.tolerance)

    @cached_with_graph
    def _prior_plan(self) -> ThetaPlan:
        if not self.natural.is_diagonal:
            return ThetaPlan(self._reduced.total, phase="II", tolerance=self.tolerance)
        root = torch.linalg.solve_triangular(self._L, self._W, upper=False)
        return ThetaPlan(dense_hidden(self.natural) + root.mT @ root, phase="II", tolerance=self.tolerance)

    def _slope(self, u: Tensor) -> Tensor:
        slope = self._plan.moments(u, order=1).mean
        assert slope is not None
        return slope


def _log_normal(centred: Tensor, L: Tensor) -> Tensor:
    """The log-density (n,) of a normal distribution with precision LLᵀ, at points (n, k) relative to its mean."""
    log_volume = 0.5 * len(L) * math.log(TWO_PI) - L.diagonal().log().sum()
    return -0.5 * (centred @ L).square().sum(1) - log_volume
