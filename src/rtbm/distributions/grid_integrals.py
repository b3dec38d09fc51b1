"""Samples, moments and probabilities from a grid in visible space, for diagonal machines with many hidden units."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.distributions.box_quadrature import BoxQuadrature
from rtbm.distributions.caching import cached_without_graph
from rtbm.distributions.grid import Envelope, Grid, make_grid
from rtbm.distributions.lattice_samplers import LEFT_OUT, reach_of, sample_integers
from rtbm.distributions.wave_form import WaveForm
from rtbm.errors import TooManyNodesError

CELLS = (0.5, 0.8, 1.2)
"""The sampler's cells are so many widths of the finest detail long; larger ones reject more, but there are fewer."""
MAX_CELLS = 2**21
_WINDOW_ELEMENTS = 2**22


class Cells(NamedTuple):
    """Upper bounds of the density on the cells of a grid."""

    corner: Tensor  # (cells, Nv): the corner from which `steps` span a cell
    log_bound: Tensor  # (cells,)
    cumulative: Tensor  # (cells,): cumulative probability of the bounds, not normalised
    steps: Tensor  # (Nv, Nv)


class GridIntegrals:
    """Integrals of a density that is cheap to evaluate and known to be a mixture of normals of one covariance.

    The normaliser must have been computed before: only then the grid reaches far enough.
    """

    def __init__(self, wave: WaveForm):
        assert wave.grid is not None
        self._wave, self._nodes = wave, wave.grid.nodes
        self.box = BoxQuadrature(wave.log_density, wave.envelope(), wave.wants_graph).box

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
        points, cells = _corners(grid.indices)
        values = self._wave.log_unnormalized(grid.origin + points.to(grid.steps) @ grid.steps.mT)
        log_bound = values[cells].amax(1) + n_visible * size**2 / 8 + 1e-9
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


def _corners(cells: Tensor) -> tuple[Tensor, Tensor]:
    """The corners of unit cells (n, Nv), each once (k, Nv), and for each cell the indices of its own (n, 2^Nv)."""
    n_visible = cells.shape[1]
    offsets = torch.tensor(list(itertools.product((0, 1), repeat=n_visible)), device=cells.device)
    corners = cells[:, None] + offsets
    lowest = cells.amin(0)
    spans = cells.amax(0) - lowest + 2
    strides = torch.cat([spans.new_ones(1), spans[:-1].cumprod(0)])
    keys, index = ((corners - lowest) * strides).sum(2).unique(return_inverse=True)
    return keys[:, None] // strides % spans + lowest, index
