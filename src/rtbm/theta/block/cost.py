"""What each evaluator costs, in nanoseconds of one core, and the best cut of the split product.

    list    N · (200 + 20T)                                an exponential or cosine for every term
    split   N · (300 + (T_a + T_b) · FILL + 0.15 T_a T_b)  two short lists, and a matrix product
            + 20 T_a T_b + 100,000                         once: the coupling matrix and small tensors
    fused   N · (40 + 9T)                                  one compiled pass
    cuda    N · (30 + 1.2T)                                the same on a GPU; beside list and split there, not on a CPU

N is the number of points, T the number of terms. The constants come from `make bench`. They decide which evaluator is
used, so other values cost time but change no result; only their ratios matter.
"""

import math
from typing import NamedTuple

import numpy as np

from rtbm.common import Floats, Integers

LIST_TERM, FUSED_TERM, CUDA_TERM, PRODUCT_TERM = 20.0, 9.0, 1.2, 0.15
"""For each term and point."""
FILL_TORCH, FILL_COMPILED = 30.0, 3.0
"""FILL without and with numba, which makes the exponentials of the lists cheap."""
LIST_POINT, SPLIT_POINT, FUSED_POINT, CUDA_POINT = 200.0, 300.0, 40.0, 30.0
"""For each point, whatever the number of terms."""
SPLIT_SETUP = 100_000.0
"""For each batch."""
SMALLEST_SPLIT = 20
"""Up to so many terms a split is not considered, since finding its cut would take longer than the sum."""
MAX_PRODUCT = 2**24
"""The largest number of entries of the coupling matrix: 128 MiB."""
MAX_ENUMERATED = 2**24
"""Distinct rows are marked in an array of at most so many entries, and sorted beyond. Speed and memory only."""


class SplitLists(NamedTuple):
    """Lists over the first and the last coordinates whose product set covers the points."""

    first: Integers
    last: Integers


def choose_split(points: Integers, n_osc: int) -> SplitLists:
    """Cut the coordinates in two so that the matrix product and the lists are cheapest together."""
    mirrored = points.copy()
    mirrored[:, :n_osc] *= -1
    both = np.concatenate([points, mirrored])
    best, best_cost = None, math.inf
    for cut in range(1, points.shape[1]):
        first, last = _unique_rows(points[:, :cut]), _unique_rows(both[:, cut:])
        cost = len(first) * len(last) * PRODUCT_TERM + (len(first) + len(last)) * FILL_COMPILED
        if cost < best_cost:
            best, best_cost = SplitLists(first, last), cost
    assert best is not None, "a split needs two coordinates"
    return best


def split_exponent(lists: SplitLists, G: Floats, R: Floats, n_osc: int) -> float:
    """A bound for the exponents of all factors of the product; infinite if the coupling matrix would not fit in memory.

    In the cell |x_j| ≤ ½Σ_i|R_ij|R_ii, so a factor exp(px − ½p²G_jj) is at most exp(½x²/G_jj). What couples the
    coordinates is bounded by the largest entries of the lists.
    """
    if len(lists.first) * len(lists.last) > MAX_PRODUCT:
        return math.inf
    diagonal = np.diag(G)
    largest = 0.5 * (np.abs(R).T @ np.diag(R))
    own = (largest**2 / (2 * diagonal))[n_osc:].sum()
    reach = np.concatenate([np.abs(part).max(axis=0) for part in lists])
    coupled = 0.5 * reach @ np.abs(G - np.diag(diagonal)) @ reach
    return float(own + coupled)


def _unique_rows(rows: Integers) -> Integers:
    """The distinct rows in lexical order."""
    low = rows.min(axis=0)
    extent = rows.max(axis=0) - low + 1
    if math.prod(extent.tolist()) >= 2**62:
        return np.unique(rows, axis=0)
    keys = np.ravel_multi_index(tuple((rows - low).T), tuple(extent))
    if extent.prod() < MAX_ENUMERATED:
        present = np.zeros(extent.prod(), dtype=bool)
        present[keys] = True
        distinct = np.flatnonzero(present)
    else:
        distinct = np.unique(keys)
    return np.stack(np.unravel_index(distinct, tuple(extent)), axis=1) + low
