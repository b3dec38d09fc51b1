"""The rows of a fit in memory: grouped by what is missing, and ordered so that neighbours lie together."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.theta import kernels

STRIP_ROWS = 256
"""Rows sorted by two columns lie in squares of about this many. Larger squares skip fewer states."""
TASK_ROWS = 2**14  # rows with sums of their own, so that the number of threads does not change the result
PATTERN_ROWS = 64  # a pattern of gaps takes as long as this number of rows. Speed only


class RowBlock(NamedTuple):
    """Rows of a fit, pattern by pattern of what is present."""

    order: Tensor  # (n,): their numbers in the data
    x: Any  # (n, d): 0 where entries are missing; an array for the compiled E-step, else a tensor
    weights: Any  # (n,)
    present: np.ndarray  # (patterns, d)
    segments: np.ndarray  # (patterns, 3): where rows of each pattern begin and end, and its number
    tasks: list[np.ndarray]  # the same in shorter segments, by tasks of about equal work
    places: Tensor | None = None  # (n, J): the places of states of discrete columns, see `Discrete`

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled E-step serves these rows."""
        return isinstance(self.x, np.ndarray)

    @property
    def n_bytes(self) -> int:
        """The size of the rows, weights and places."""
        return sum(part.nbytes for part in (self.x, self.weights, self.places) if part is not None)

    def with_gaps(self) -> Tensor:
        """The rows (n, d), NaN where entries are missing."""
        x = torch.as_tensor(self.x).clone()
        for begin, end, pattern in self.segments:
            x[begin:end, torch.from_numpy(~self.present[pattern]).to(x.device)] = math.nan
        return x


def make_rows(x: Tensor, weights: Tensor, places: Tensor | None = None) -> RowBlock:
    """The rows x (n, d) with weights (n,) as an E-step takes them; NaN entries are missing.

    For the compiled E-step neighbours lie together: it skips states that are far from all rows of a small block.
    """
    present, pattern = _patterns(x)
    filled, is_compiled = x.nan_to_num(), kernels.AVAILABLE and x.is_cpu
    order = _order(filled) if is_compiled else torch.arange(len(x), device=x.device)
    order = order[pattern[order].argsort(stable=True)]
    lengths = pattern.bincount(minlength=len(present)).cpu().numpy()
    x, weights, places = (None if part is None else part[order].contiguous() for part in (filled, weights, places))
    if is_compiled:
        x, weights = x.numpy(), weights.numpy()
    ends = np.cumsum(lengths)
    segments = np.column_stack([ends - lengths, ends, np.arange(len(lengths))])
    return RowBlock(order, x, weights, present, segments, _make_tasks(segments), places)


def _patterns(x: Tensor) -> tuple[np.ndarray, Tensor]:
    """The patterns of what is present (patterns, d), and the number of that of each row."""
    present = ~x.isnan()
    if bool(present.all()):
        return np.ones((1, x.shape[1]), dtype=bool), torch.zeros(len(x), dtype=torch.int64, device=x.device)
    patterns, pattern = present.unique(dim=0, return_inverse=True)
    return patterns.cpu().numpy(), pattern


def _order(x: Tensor) -> Tensor:
    """The rows in the order of strips of the first column, and of the second column within a strip."""
    if x.shape[1] == 0:
        return torch.arange(len(x))
    first = x[:, 0].argsort(stable=True)
    if x.shape[1] == 1 or len(x) <= STRIP_ROWS:
        return first
    strip = torch.empty_like(first)
    strip[first] = torch.arange(len(x)) * max(1, round(math.sqrt(len(x) / STRIP_ROWS))) // len(x)
    second = x[:, 1].argsort(stable=True)
    return second[strip[second].argsort(stable=True)]


def _make_tasks(segments: np.ndarray) -> list[np.ndarray]:
    """Shorter segments, in tasks of about equal work."""
    tasks, work = list[list[tuple[int, int, int]]]([[]]), 0
    for begin, stop, pattern in segments.tolist():
        for start in range(begin, stop, TASK_ROWS):
            end = min(start + TASK_ROWS, stop)
            if work and work + end - start > TASK_ROWS:
                tasks.append([])
                work = 0
            tasks[-1].append((start, end, pattern))
            work += max(end - start, PATTERN_ROWS)
    return [np.array(task, dtype=np.int64).reshape(-1, 3) for task in tasks]
