"""What each evaluator costs, and the best cut of the split product.

For each point, with T terms, or lists of T_a and T_b terms:

    list    200 + 20 T                         an exponential or cosine for every term
    fused   40 + 9 T, with derivatives 16 T    one compiled pass
    split   c + f (T_a + T_b) + p T_a T_b      two short lists and a matrix product; c, f, p are a `ProductCost`
    cuda    30 + 1.2 T                         one compiled pass on a GPU
    cuda product                               as split, with other constants

The constants are in nanoseconds of one core (`make bench`), and for GPUs in units of 0.004 ns
(`benchmarks/theta_gpu.py`). They decide which evaluator is used, so other values cost time but change no result; only
the ratios of evaluators for the same device matter.
"""

import math
from typing import NamedTuple

import numpy as np

from rtbm.common import Floats, Integers

LIST_POINT, LIST_TERM = 200.0, 20.0
FUSED_POINT, FUSED_TERM, FUSED_DERIVATIVES = 40.0, 9.0, 16.0
CUDA_POINT, CUDA_TERM = 30.0, 1.2


class ProductCost(NamedTuple):
    """The cost of a split product for each point, for each entry of its lists, and for each pair of entries."""

    point: float
    entry: float
    pair: float

    def of(self, n_first: int, n_last: int) -> float:
        """The cost of a point for two lists."""
        return self.point + (n_first + n_last) * self.entry + n_first * n_last * self.pair


COMPILED_PRODUCT = ProductCost(80.0, 5.0, 0.2)
"""Values, if numba is there."""
PRODUCT_DERIVATIVES = ProductCost(1000.0, 15.0, 0.9)
"""Values with their gradients, or moments."""
TORCH_PRODUCT = ProductCost(300.0, 30.0, 0.2)
"""Values without numba."""
CUDA_PRODUCT = ProductCost(300.0, 3.0, 0.15)
"""Values, gradients and moments in torch on a GPU."""
CUDA_TABLES = ProductCost(60.0, 3.0, 0.02)
"""Values and gradients by the CUDA product."""
SPLIT_SETUP, CUDA_SPLIT_SETUP = 5e5, 1e8
"""For each batch: finding the cut, and the coupling matrix; on a GPU, the launches as well."""
CUDA_PRODUCT_SETUP, CUDA_GRADIENT_SETUP = 5e6, 5e7
"""For each batch of the CUDA product: its launches, without and with gradients."""
SMALLEST_SPLIT = 20
"""Up to this number of terms a split is not considered, since finding its cut would take longer than the sum."""
MAX_PRODUCT = 2**24
"""The largest number of entries of the coupling matrix: 128 MiB."""
MAX_ENUMERATED = 2**24  # distinct points are marked in an array with at most this number of entries, else sorted


class SplitLists(NamedTuple):
    """Lists over the first and the last coordinates whose product set covers the points, up to signs in `last`."""

    first: Integers
    last: Integers  # one of each pair ±b of the oscillating coordinates


def choose_split(points: Integers, n_osc: int) -> SplitLists:
    """Cut the coordinates in two so that the matrix product and the lists are cheapest together."""
    columns = np.ascontiguousarray(points.T)
    third = max(1, len(columns) // 3)  # closer to the ends, one of the lists is long
    candidates = [
        SplitLists(_distinct_points(columns[:cut], 0), _distinct_points(columns[cut:], n_osc - cut))
        for cut in range(third, len(columns) - third + 1)
    ]
    return min(candidates, key=lambda lists: COMPILED_PRODUCT.of(len(lists.first), len(lists.last)))


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


def _distinct_points(columns: Integers, n_paired: int) -> Integers:
    """The distinct points (…, g) of coordinates (g, N) in lexical order; one of each pair ±m of the first n_paired.

    A point becomes one integer, with its coordinates as digits.
    """
    sign = np.zeros(columns.shape[1], dtype=np.int64)  # of the first coordinate that is not zero
    for column in columns[: max(n_paired, 0)]:
        sign = np.where(sign == 0, np.sign(column), sign)
    turned = np.array([np.where(sign < 0, -c, c) if j < n_paired else c for j, c in enumerate(columns)])
    keys, size = np.zeros(columns.shape[1], dtype=np.int64), 1
    for column in turned:
        low, high = int(column.min()), int(column.max())
        if size * (high - low + 1) > MAX_ENUMERATED:
            keys = np.unique(keys, return_inverse=True)[1]
            size = int(keys.max()) + 1
        keys = keys * (high - low + 1) + (column - low)
        size *= high - low + 1
    if size > MAX_ENUMERATED:
        return turned[:, np.unique(keys, return_index=True)[1]].T.copy()
    place = np.full(size, -1)
    place[keys] = np.arange(len(keys))
    return turned[:, place[place >= 0]].T.copy()
