"""Exact samples from a density in visible space, by rejection from bounds on the cells of a grid."""

import itertools

import torch
from torch import Tensor

from rtbm.distributions.integration.expectations import LogDensity
from rtbm.distributions.integration.grid import Envelope, Grid, make_grid
from rtbm.distributions.sampling.lattice import SAMPLER_TAIL
from rtbm.errors import TooManyNodesError

REJECTION_CELLS = (0.5, 0.8, 1.2)
"""Sizes of cells to try, in standard deviations of the finest detail. Larger cells reject more, and are fewer."""
MAX_REJECTION_CELLS = 2**21
"""The largest number of cells. A larger limit reaches finer densities, and takes more memory."""


class RejectionSampler:
    """Draws from a density with an envelope, of which log P may lack a constant.

    log P plus half the square, in units of the finest detail, is convex. So the values at the corners of a cell bound
    log P inside it, up to Nv·size²/8.
    """

    def __init__(self, log_density: LogDensity, envelope: Envelope):
        grid, size = _make_cells(envelope)
        self._log_density, self._corner, self._steps = log_density, grid.nodes, grid.steps
        points, cells = _corners(grid.indices)
        values = log_density(grid.origin + points.to(grid.steps) @ grid.steps.mT)
        self._log_bound = values[cells].amax(1) + len(grid.steps) * size**2 / 8 + 1e-9
        self._cumulative = (self._log_bound - self._log_bound.max()).exp().cumsum(0)

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, Nv): rounds of proposals until enough are accepted."""
        accepted = [self._corner[:0]]
        steps, cumulative = self._steps, self._cumulative
        while (missing := n - sum(map(len, accepted))) > 0:
            size = missing + missing // 2 + 64, 2 + len(steps)
            uniform = torch.rand(size, dtype=torch.float64, device=steps.device, generator=generator)
            index = torch.searchsorted(cumulative, uniform[:, 0] * cumulative[-1], right=True)
            index = index.clamp(max=len(cumulative) - 1)
            v = self._corner[index] + uniform[:, 2:] @ steps.mT
            accepted.append(v[uniform[:, 1].log() < self._log_density(v) - self._log_bound[index]])
        return torch.cat(accepted)[:n]


def _make_cells(envelope: Envelope) -> tuple[Grid, float]:
    """A grid with the smallest cells that are not too many, and their size."""
    for size in REJECTION_CELLS:
        try:
            return make_grid(envelope, size, SAMPLER_TAIL, MAX_REJECTION_CELLS), size
        except TooManyNodesError as error:
            failure = error
    raise failure


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
