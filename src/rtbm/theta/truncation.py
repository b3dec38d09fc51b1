"""How far a sum over a lattice must reach: bounds on what a truncated sum leaves out.

All bounds are products over the Gram-Schmidt norms d_i of the lattice (`rtbm.theta.lattice`).
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from rtbm.common import Floats
from rtbm.theta.kernels import compiled

CHERNOFF = np.geomspace(0.01, 0.7, 24)
"""The exponents s that `squared_radius` tries. A finer grid gives a radius that is hardly smaller, in more time."""


@compiled
def log_add(a: float, b: float) -> float:
    """log(exp a + exp b)."""
    low, high = min(a, b), max(a, b)
    return high if low == -np.inf else high + math.log1p(math.exp(low - high))


def log_gauss_sum(a: ArrayLike, shift: float = 0.0) -> Floats:
    """log Σ_k exp(−½a(k − shift)²) over the integers, for shift 0 (the largest value) or ½ (the smallest).

    >>> float(log_gauss_sum(1000.0, 0.5))  # two points half a step away: log 2 − 125
    -124.30685281944005
    >>> float(log_gauss_sum(0.0))
    inf
    """
    with np.errstate(divide="ignore"):
        return _log_gauss_sum(np.asarray(a, dtype=float), shift)


def _log_gauss_sum(a: Floats, shift: float) -> Floats:
    is_large = a > 2 * np.pi
    b = np.where(is_large, a, 4 * np.pi**2 / a)  # at least 2π: four terms are plenty
    k2 = np.arange(1, 5) ** 2
    terms = np.exp(-0.5 * b[..., None] * k2)
    if not shift:
        return np.log1p(2 * terms.sum(-1)) + np.where(is_large, 0.0, 0.5 * np.log(2 * np.pi / a))
    direct = np.log(2) - b / 8 + np.log1p(np.exp(-0.5 * b[..., None] * (k2 + np.sqrt(k2))).sum(-1))
    poisson = 0.5 * np.log(2 * np.pi / a) + np.log1p(2 * terms @ (-1.0) ** k2)
    return np.where(is_large, direct, poisson)


def squared_radius(norms: Floats, log_smallest: Floats | float, tolerance: float) -> Floats:
    """R² such that Σ exp(−½‖n−c‖²) over ‖n−c‖ > R stays below tolerance · exp(log_smallest), for every centre c.

    The Chernoff argument: for 0 < s < 1 the tail is at most exp(−½(1−s)R²) Σ_n exp(−½s‖n−c‖²), and the last sum
    is at most Π_i Σ_k exp(−½ s d_i k²), with d_i = `norms` (..., g), the Gram-Schmidt norms. The best s on a grid is
    taken. Returns (...).

    >>> squared_radius(np.array([2 * np.pi]), 0.0, 1e-12).round(1)
    np.float64(60.4)
    """
    return radius_from_spread(tail_spread(norms).sum(-1), log_smallest, tolerance)


def log_tail(norms: Floats, radius2: float) -> float:
    """A bound on log Σ exp(−½‖n−c‖²) over ‖n−c‖² > radius2, for every centre c: `squared_radius` the other way round.

    >>> round(log_tail(np.array([2 * np.pi]), 60.4), 1)  # log 1e-12
    -27.6
    """
    return float((tail_spread(norms).sum(-1) - 0.5 * (1 - CHERNOFF) * radius2).min())


def tail_spread(norms: Floats) -> Floats:
    """log Σ_k exp(−½ s d k²) for each norm d (...) and each s of the Chernoff grid. Returns (grid, ...)."""
    return log_gauss_sum(np.multiply.outer(CHERNOFF, norms))


def radius_from_spread(spread: Floats, log_smallest: Floats | float, tolerance: float) -> Floats:
    """R² from `tail_spread` summed over the coordinates (grid, ...); see `squared_radius`."""
    s = CHERNOFF.reshape(-1, *([1] * (spread.ndim - 1)))
    return (2 / (1 - s) * (spread - math.log(tolerance) - log_smallest)).min(axis=0)


@compiled
def log_gauss(a: float, shift: float) -> float:
    """`log_gauss_sum` of one number."""
    is_large, is_half = a > 2 * math.pi, shift != 0.0
    b = a if is_large else 4 * math.pi**2 / a
    outside = 0.0 if is_large else 0.5 * math.log(2 * math.pi / a)
    total = 0.0
    for k in range(1, 5):
        exponent = 0.5 * b * (k * k + (k if is_half and is_large else 0))
        if exponent > 40.0:  # does not change the sum
            break
        total += math.exp(-exponent) * (-1.0 if is_half and not is_large and k % 2 == 1 else 1.0)
    if is_half and is_large:
        return math.log(2.0) - b / 8 + math.log1p(total)
    return outside + math.log1p(2 * total)


@compiled
def estimate_count(norms: Floats, radius2: float, widths: Floats) -> float:
    """How many points `enumerate_points` should find: the volume of box ⊕ ball over that of a cell (Steiner).

    >>> round(estimate_count(np.ones(2), 25.0, np.zeros(2)), 6)  # π 5²
    78.539816
    """
    g = len(norms)
    faces = np.full(g + 1, -np.inf)  # entry j: log of Σ over the faces of dimension j of volume · R^(g−j), per cell
    faces[0] = 0.0
    for i in range(g):
        ball = 0.5 * math.log(radius2 / norms[i])
        side = math.log(widths[i] / math.sqrt(norms[i])) if widths[i] > 0 else -np.inf
        for j in range(i + 1, 0, -1):
            faces[j] = log_add(faces[j] + ball, faces[j - 1] + side)
        faces[0] += ball
    total = -np.inf
    for j in range(g + 1):
        dimension = g - j
        total = log_add(total, faces[j] + 0.5 * dimension * math.log(math.pi) - math.lgamma(dimension / 2 + 1))
    return math.exp(min(total, 700.0))
