"""Which evaluator is cheapest: the cost model, in nanoseconds of one core, and the best cut of the split product.

    list    N · (200 + T · LIST)                                 an exponential or cosine for every term
    split   N · (300 + (T_a + T_b) · FILL + T_a T_b · PRODUCT)   two short lists, and a matrix product
            + T_a T_b · LIST + SETUP                             once: the coupling matrix and small tensors
    fused   N · (40 + T · FUSED)                                 one compiled pass, for blocks of up to 4 coordinates

N is the number of points, T the number of terms. The constants come from `make bench`; only their ratios matter.
`LIST` is the cost of torch's transcendental functions; compiled tables make `FILL` cheap where numba is installed.
"""

import math
from typing import NamedTuple

import numpy as np

from rtbm.common import Floats, Integers
from rtbm.theta import kernels

LIST, FUSED, PRODUCT = 20.0, 9.0, 0.15
FILL_TORCH, FILL_COMPILED = 30.0, 3.0
LIST_POINT, SPLIT_POINT, FUSED_POINT = 200.0, 300.0, 40.0
SETUP = 100_000.0
SMALLEST_SPLIT = 20  # terms; below it a split is not even considered
MAX_FUSED_SIZE = 4
MAX_PRODUCT = 2**24  # entries of the coupling matrix: 128 MiB
MAX_EXPONENT, MAX_EXPONENT_FLOAT32 = 600.0, 60.0  # beyond it, factors of a product might overflow


class SplitSize(NamedTuple):
    """Lists over the first and the last coordinates whose product set covers the points."""

    first: Integers
    last: Integers


def choose_evaluator(n_points: int, n_terms: int, split: SplitSize | None, can_fuse: bool) -> str:
    """The cheapest evaluator for a batch: "list", "split" or "fused"."""
    costs = {"list": n_points * (LIST_POINT + n_terms * LIST)}
    if split is not None:
        product = len(split.first) * len(split.last)
        fill = FILL_COMPILED if kernels.AVAILABLE else FILL_TORCH
        lists = len(split.first) + len(split.last)
        costs["split"] = n_points * (SPLIT_POINT + lists * fill + product * PRODUCT) + product * LIST + SETUP
    if can_fuse:
        costs["fused"] = n_points * (FUSED_POINT + n_terms * FUSED)
    return min(costs, key=lambda name: costs[name])


def choose_split(points: Integers, n_osc: int) -> SplitSize:
    """Cut the coordinates in two so that the matrix product and the lists are cheapest together."""
    mirrored = points.copy()
    mirrored[:, :n_osc] *= -1
    both = np.concatenate([points, mirrored])
    best, best_cost = None, math.inf
    for cut in range(1, points.shape[1]):
        first, last = _unique_rows(points[:, :cut]), _unique_rows(both[:, cut:])
        cost = len(first) * len(last) * PRODUCT + (len(first) + len(last)) * FILL_COMPILED
        if cost < best_cost:
            best, best_cost = SplitSize(first, last), cost
    assert best is not None, "a split needs two coordinates"
    return best


def split_exponent(split: SplitSize, G: Floats, R: Floats, n_osc: int) -> float:
    """A bound for the exponents of all factors of the product; infinite if the coupling matrix would not fit in memory.

    In the cell |x_j| ≤ ½Σ_i|R_ij|R_ii, so a factor exp(px − ½p²G_jj) is at most exp(½x²/G_jj). What couples the
    coordinates is bounded by the largest entries of the lists.
    """
    if len(split.first) * len(split.last) > MAX_PRODUCT:
        return math.inf
    diagonal = np.diag(G)
    largest = 0.5 * (np.abs(R).T @ np.diag(R))
    own = (largest**2 / (2 * diagonal))[n_osc:].sum()
    reach = np.concatenate([np.abs(part).max(axis=0) for part in split])
    coupled = 0.5 * reach @ np.abs(G - np.diag(diagonal)) @ reach
    return float(own + coupled)


def _unique_rows(rows: Integers) -> Integers:
    """The distinct rows in lexical order."""
    low = rows.min(axis=0)
    extent = rows.max(axis=0) - low + 1
    if math.prod(extent.tolist()) >= 2**62:
        return np.unique(rows, axis=0)
    keys = np.ravel_multi_index(tuple((rows - low).T), tuple(extent))
    if extent.prod() < 2**24:
        present = np.zeros(extent.prod(), dtype=bool)
        present[keys] = True
        distinct = np.flatnonzero(present)
    else:
        distinct = np.unique(keys)
    return np.stack(np.unravel_index(distinct, tuple(extent)), axis=1) + low
