"""Samples, moments and probabilities from a grid in visible space, for diagonal machines with many hidden units."""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.distributions.caching import cached_without_graph
from rtbm.distributions.grid import MAX_NODES, Envelope, Grid, make_grid
from rtbm.distributions.lattice_samplers import LEFT_OUT, reach_of, sample_integers
from rtbm.distributions.wave_form import WaveForm
from rtbm.errors import TooManyNodesError

CELLS = (0.5, 0.8, 1.2)
"""The sampler's cells are so many widths of the finest detail long; larger ones reject more, but there are fewer."""
MAX_CELLS = 2**21
PANEL = 5.0
"""Panels of the quadrature for probabilities, in the same unit; each has so many nodes:"""
PANEL_NODES = 22
_WINDOW_ELEMENTS = 2**22


class Cells(NamedTuple):
    """Upper bounds of the density on the cells of a grid."""

    corner: Tensor  # (cells, Nv): the corner from which `steps` span a cell
    log_bound: Tensor  # (cells,)
    cumulative: Tensor  # (cells,): cumulative probability of the bounds, not normalised
    steps: Tensor  # (Nv, Nv)


class GridIntegrals:
    """Integrals of a density that is cheap to evaluate and known to be a mixture of normals of one covariance."""

    def __init__(self, wave: WaveForm):
        assert wave.grid is not None
        self._wave = wave
        self._nodes = wave.grid.nodes

    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self._weights() @ self._nodes

    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        weights = self._weights()
        centred = self._nodes - weights @ self._nodes
        return centred.mT @ (weights[:, None] * centred)

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,)."""
        return self._wave.log_mgf(t)

    def envelope(self) -> Envelope:
        """The Gaussian that bounds the density, and the width of its finest detail."""
        return self._wave.envelope()

    def log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of some coordinates (n, k): the conditional normaliser of the others, on a grid for each row."""
        return self._wave.log_marginal(rows, present)

    def _weights(self) -> Tensor:
        return self._make_weights() if self._wave.wants_graph() else self._fixed_weights

    @cached_without_graph
    def _fixed_weights(self) -> Tensor:
        return self._make_weights()

    def _make_weights(self) -> Tensor:
        return self._wave.log_unnormalized(self._nodes).softmax(0)

    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n exact draws of v (n, Nv), by rejection from bounds on cells, and of the phase I units h (n, Nh) given v."""
        with torch.no_grad():
            accepted = [self._nodes[:0]]
            while (missing := n - sum(map(len, accepted))) > 0:
                accepted.append(self._accept(missing + missing // 2 + 64, generator))
            v = torch.cat(accepted)[:n]
            return v, self._sample_hidden(v, generator)

    def _accept(self, n: int, generator: torch.Generator | None) -> Tensor:
        corner, log_bound, cumulative, steps = self._cells
        uniform = torch.rand(n, 2 + len(steps), dtype=torch.float64, device=steps.device, generator=generator)
        index = torch.searchsorted(cumulative, uniform[:, 0] * cumulative[-1], right=True).clamp(max=len(corner) - 1)
        v = corner[index] + uniform[:, 2:] @ steps.mT
        return v[uniform[:, 1].log() < self._wave.log_unnormalized(v) - log_bound[index]]

    @cached_without_graph
    def _cells(self) -> Cells:
        """The bound: log P plus half the square in units of the detail is convex, so corners bound what is between."""
        grid, size = self._cell_grid()
        n_visible = len(grid.steps)
        offsets = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n_visible))).to(grid.nodes) @ grid.steps.mT
        corners = torch.stack([self._wave.log_unnormalized(grid.nodes + offset) for offset in offsets])
        log_bound = corners.amax(0) + n_visible * size**2 / 8 + 1e-9
        cumulative = (log_bound - log_bound.max()).exp().cumsum(0)
        return Cells(grid.nodes, log_bound, cumulative, grid.steps)

    def _cell_grid(self) -> tuple[Grid, float]:
        envelope = self._wave.envelope()
        for size in CELLS[:-1]:
            try:
                return make_grid(envelope, size, LEFT_OUT, MAX_CELLS), size
            except TooManyNodesError:
                continue
        return make_grid(envelope, CELLS[-1], LEFT_OUT, MAX_CELLS), CELLS[-1]

    def _sample_hidden(self, v: Tensor, generator: torch.Generator | None) -> Tensor:
        centre, precision = self._wave.hidden_posterior(v)
        reach = int(reach_of(precision.cpu().numpy()).max())
        rows = max(1, _WINDOW_ELEMENTS // (len(precision) * (2 * reach + 1)))
        return torch.cat([sample_integers(part, precision, reach, generator)[0] for part in centre.split(rows)])

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,) for bounds (n, Nv), by Gauss-Legendre quadrature."""
        if low.shape[1] == 1:
            return (self._cdf(high[:, 0]) - self._cdf(low[:, 0])).clamp(min=0)
        boxes = [self._box(*bounds) for bounds in zip(low, high, strict=True)]
        return torch.stack(boxes) if boxes else low.sum(1)

    def _cdf(self, v: Tensor) -> Tensor:
        edges, below = self._make_panels() if self._wave.wants_graph() else self._fixed_panels
        inside = v.clamp(edges[0], edges[-1])
        index = (torch.searchsorted(edges, inside.detach(), right=True) - 1).clamp(max=len(below) - 1)
        return below[index] + self._integrate(edges[index], inside)

    @cached_without_graph
    def _fixed_panels(self) -> tuple[Tensor, Tensor]:
        return self._make_panels()

    def _make_panels(self) -> tuple[Tensor, Tensor]:
        """Edges of the panels (k + 1,) in one dimension, and the probability below each of the first k."""
        low, high, width = self._support()
        edges = torch.linspace(float(low), float(high), int((high - low) / width) + 2).to(self._nodes)
        mass = self._integrate(edges[:-1], edges[1:])
        return edges, mass.cumsum(0) - mass

    def _integrate(self, start: Tensor, stop: Tensor) -> Tensor:
        x, weight = _legendre(self._nodes)
        half = (stop - start)[:, None] / 2
        nodes = (stop + start)[:, None] / 2 + half * x
        return (self._wave.log_density(nodes.reshape(-1, 1)).exp().reshape(nodes.shape) * half) @ weight

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        first, last, width = self._support()
        start, stop = low.clamp(first, last), high.clamp(first, last)
        counts = ((stop - start) / width).ceil().clamp(min=1).long().tolist()
        if math.prod(counts) * PANEL_NODES ** len(counts) > 16 * MAX_NODES:
            raise TooManyNodesError(math.prod(counts) * PANEL_NODES ** len(counts), 16 * MAX_NODES)
        x, weight = _legendre(self._nodes)
        columns, weights = [], []
        for a, b, count in zip(start, stop, counts, strict=True):
            half = (b - a) / (2 * count)
            middles = a + half * (2 * torch.arange(count, device=a.device) + 1)
            columns.append((middles[:, None] + half * x).reshape(-1))
            weights.append((half * weight).repeat(count))
        nodes, mesh = torch.cartesian_prod(*columns), torch.cartesian_prod(*weights)
        return self._wave.log_density(nodes).exp() @ mesh.prod(1)

    def _support(self) -> tuple[Tensor, Tensor, Tensor]:
        """A box that holds all but 1e-15 of the probability, and the width of a panel along each axis."""
        envelope = self._wave.envelope()
        radius = math.sqrt(2 * (max(envelope.log_peak, 0.0) - math.log(LEFT_OUT)))
        reach = radius * envelope.covariance.detach().diagonal().sqrt()
        width = PANEL / torch.linalg.inv(envelope.detail.detach()).diagonal().sqrt()
        return self._wave.mean.detach() - reach, self._wave.mean.detach() + reach, width


def _legendre(like: Tensor) -> tuple[Tensor, Tensor]:
    x, weight = np.polynomial.legendre.leggauss(PANEL_NODES)
    return torch.as_tensor(x, device=like.device), torch.as_tensor(weight, device=like.device)
