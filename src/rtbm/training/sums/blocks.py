"""The data of a fit: blocks of points with the same entries present, in memory or elsewhere.

Points whose gaps few others share make a block of their own, with NaN where an entry is missing.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions.missing import missing_patterns
from rtbm.theta import kernels
from rtbm.theta.kernels import compiled

SCATTER_ROWS = 2**22  # points whose second moments are found at a time
STRIP_POINTS = 256
"""Points sorted by two features lie in squares of about this many. Larger squares skip fewer states."""
FEW_POINTS = 24
"""Patterns of gaps with fewer points than this share one block. A block for each costs more than points one by one."""
MANY_POINTS, CELL_POINTS, CELL_RANGE = 2**15, 64, 4.0
"""From MANY_POINTS points on, points are counted into cells instead of sorted, which takes a tenth of the time. Cells
have about CELL_POINTS points each and cover CELL_RANGE standard deviations to either side."""


class PointBlock(NamedTuple):
    """Points with the same entries present, and their moments, which do not change during a fit.

    A block of points with gaps of their own (`has_gaps`) has all features in `present`, and no moments.
    """

    rows: Any  # (n,): their row numbers in the data, or slice(None) for all in their order
    present: np.ndarray  # (p,): the features that are present
    points: Any  # (n, p): an array for the compiled pass, else a tensor
    weights: Any  # (n,)
    total: float  # Σ w
    mean: Floats  # (p,)
    scatter: Floats  # (p, p): Σ w (x − mean)(x − mean)ᵀ
    cache: dict[str, Any]  # what the pass for diagonal machines keeps between steps

    has_gaps: bool = False
    offsets: Any = None  # (n, K): added to the log density of each machine; None for 0
    places: Any = None  # (n, J): the places of states of discrete columns, see `Discrete`; None without such columns

    @property
    def given_offsets(self) -> Any:
        """The offsets, or an empty array."""
        return np.empty((0, 0)) if self.offsets is None else self.offsets

    @property
    def n_bytes(self) -> int:
        """The size of the points, weights and places."""
        parts = (self.points, self.weights, self.places)
        return sum(part.nbytes for part in parts if part is not None)

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled pass serves these points."""
        return isinstance(self.points, np.ndarray)

    def with_gaps(self, n_visible: int) -> Tensor:
        """The points (n, n_visible), NaN where entries are missing."""
        points = torch.as_tensor(self.points)
        x = points.new_full((len(points), n_visible), math.nan)
        x[:, torch.as_tensor(self.present, device=x.device)] = points
        return x


def make_blocks(x: Tensor, weights: Tensor, places: Tensor | None = None) -> list[PointBlock]:
    """The blocks of data x (n, d) with weights (n,); NaN entries are missing, and rows without entries are left out.

    With discrete columns, whose states are at `places` (n, J), rows without entries are a block too. For the compiled
    pass, points are sorted along the first two features. The pass skips states that are far from all points of a small
    block, and neighbours share more of these states.
    """
    blocks = _make_blocks(x, weights, with_empty=places is not None)
    if places is None:
        return blocks
    return [block._replace(places=places[_rows(block, x.device)]) for block in blocks]


def _rows(block: PointBlock, device: torch.device) -> Any:
    """The row numbers of a block, as an index of tensors."""
    return block.rows if isinstance(block.rows, slice) else torch.from_numpy(block.rows).to(device)


def _make_blocks(x: Tensor, weights: Tensor, with_empty: bool) -> list[PointBlock]:
    patterns = missing_patterns(x)
    if not patterns:
        return [_make_block(slice(None), np.arange(x.shape[1]), x, weights)] if len(x) else []
    blocks, scattered = [], []
    for rows, present, points in patterns:
        if kernels.AVAILABLE and x.is_cpu and len(rows) < FEW_POINTS and 0 < len(present) < x.shape[1]:
            scattered.append(rows)
        elif len(present) or with_empty:
            blocks.append(_make_block(rows.cpu().numpy(), present.cpu().numpy(), points, weights[rows]))
    if scattered:
        rows = torch.cat(scattered).sort().values
        parts = np.arange(x.shape[1]), x[rows].numpy(), weights[rows].numpy()
        blocks.append(PointBlock(rows.numpy(), *parts, 0.0, np.empty(0), np.empty((0, 0)), {}, has_gaps=True))
    return blocks


def split_patterns(block: PointBlock, chosen: np.ndarray) -> list[PointBlock]:
    """Chosen points (n,) of a block with gaps, in a block for each pattern; row numbers are those in the block."""
    numbers, weights = np.flatnonzero(chosen), torch.from_numpy(block.weights[chosen])
    parts = [
        _make_block(numbers[rows.numpy()], present.numpy(), points, weights[rows])
        for rows, present, points in missing_patterns(torch.from_numpy(block.points[chosen]))
    ]
    return parts if block.offsets is None else [part._replace(offsets=block.offsets[part.rows]) for part in parts]


def _make_block(rows: Any, present: np.ndarray, points: Tensor, weights: Tensor) -> PointBlock:
    if not len(present):
        return PointBlock(rows, present, points, weights, float(weights.sum()), np.empty(0), np.empty((0, 0)), {})
    total = float(weights.sum())
    mean = (weights @ points) / total
    scatter = torch.zeros_like(mean).repeat(len(mean), 1)
    for part, w in zip(points.split(SCATTER_ROWS), weights.split(SCATTER_ROWS), strict=True):
        centred = part - mean
        scatter += centred.mT @ (w[:, None] * centred)
    moments = total, mean.cpu().numpy(), scatter.cpu().numpy()
    if points.is_cuda or not kernels.AVAILABLE:
        return PointBlock(rows, present, points.contiguous(), weights.contiguous(), *moments, {})
    order = _order(points).numpy()
    rows = order if isinstance(rows, slice) else rows[order]
    return PointBlock(rows, present, points.numpy().take(order, axis=0), weights.numpy().take(order), *moments, {})


def _order(points: Tensor) -> Tensor:
    """The rows in the order of strips of the first feature, and of the second feature within a strip."""
    if len(points) >= MANY_POINTS:
        points = points[:, :2]
        variance, mean = torch.var_mean(points, 0)
        deviation = variance.sqrt().clamp(min=1e-300)
        n_cells = max(1, round((len(points) / CELL_POINTS) ** (1 / points.shape[1])))
        low, scale = mean - CELL_RANGE * deviation, 0.5 * n_cells / (CELL_RANGE * deviation)
        return torch.from_numpy(_order_by_cells(points.numpy(), low.numpy(), scale.numpy(), n_cells))
    first = points[:, 0].argsort(stable=True)
    if points.shape[1] == 1 or len(points) <= STRIP_POINTS:
        return first
    n_strips = max(1, round(math.sqrt(len(points) / STRIP_POINTS)))
    strip = torch.empty_like(first)
    strip[first] = torch.arange(len(first), device=first.device) * n_strips // len(first)
    second = points[:, 1].argsort(stable=True)
    return second[strip[second].argsort(stable=True)]


@compiled
def _order_by_cells(points, low, scale, n_cells):
    """The same for many points (n, 1 or 2), by counting.

    Strip i of a feature is where scale (x − low) is between i and i + 1. The first and last strips are unbounded.
    """
    n, size = len(points), n_cells ** len(low)
    cells, first = np.empty(n, dtype=np.int32), np.zeros(size + 1, dtype=np.int64)
    for i in range(n):
        cell = 0
        for j in range(len(low)):
            place = min(max((points[i, j] - low[j]) * scale[j], 0.0), n_cells - 1.0)
            cell = cell * n_cells + int(place)
        cells[i] = cell
        first[cell + 1] += 1
    for c in range(size):
        first[c + 1] += first[c]
    order = np.empty(n, dtype=np.int64)
    for i in range(n):
        order[first[cells[i]]] = i
        first[cells[i]] += 1
    return order


Pass = Any
"""A function of an iterable of blocks. Its results, arrays, for parts of the data can be added."""


class Blocks(Protocol):
    """Data in blocks, wherever they are. Their weights have sum 1."""

    def add(self, function: Pass) -> Floats:
        """The sums of a function over all blocks."""


class ArrayBlocks:
    """Data in memory.

    Parameters
    ----------
    x : (n, Nv)
        The data; NaN entries are missing.
    weights : (n,)
        Positive. They are divided by their sum.
    places : (n, J), default=None
        The places of states of discrete columns, see `Discrete`.
    """

    x: Tensor
    total: float
    weights: Tensor

    def __init__(self, x: Tensor, weights: Tensor, places: Tensor | None = None):
        self.x, self.total, self._places = x, float(weights.sum()), places
        self.weights = weights / self.total

    @cached_property
    def blocks(self) -> list[PointBlock]:
        """The blocks of the data."""
        return make_blocks(self.x, self.weights, self._places)

    def add(self, function: Pass) -> Floats:
        """The sums of a function over all blocks."""
        return function(self.blocks)

    def scatter(self, values: Callable[[PointBlock], Any], empty: Tensor) -> Tensor:
        """The values of a function of blocks, in the order of the data; `empty` for rows without entries."""
        result = empty.repeat(len(self.x), *[1] * empty.ndim)
        for block in self.blocks:
            if len(block.present):
                result[_rows(block, self.x.device)] = torch.as_tensor(values(block)).to(self.x.device)
        return result
