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


@compiled
def log_gauss(a: float, shift: float) -> float:
    """`log_gauss_sum` of one number."""
    if a == 0.0:
        return np.inf
    is_large, is_half = a > 2 * math.pi, shift != 0.0
    b = a if is_large else 4 * math.pi**2 / a  # at least 2π: four terms are plenty
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


def log_gauss_sum(a: ArrayLike, shift: float = 0.0) -> Floats:
    """log Σ_k exp(−½a(k − shift)²) over the integers, for shift 0 (the largest value) or ½ (the smallest).

    >>> float(log_gauss_sum(1000.0, 0.5))  # two points half a step away: log 2 − 125
    -124.30685281944005
    >>> float(log_gauss_sum(0.0))
    inf
    """
    values = np.asarray(a, dtype=float)
    return np.array([log_gauss(value, shift) for value in values.flat]).reshape(values.shape)


@compiled
def squared_radius(norms: Floats, log_bound: float) -> float:
    """R² such that log Σ exp(−½‖n−c‖²) over ‖n−c‖ > R stays below log_bound, for every centre c.

    The Chernoff argument: for 0 < s < 1 the tail is at most exp(−½(1−s)R²) Σ_n exp(−½s‖n−c‖²), and the last sum
    is at most Π_i Σ_k exp(−½ s d_i k²), with d_i = `norms` (g,), the Gram-Schmidt norms. The best s on a grid is taken.

    >>> round(squared_radius(np.array([2 * np.pi]), math.log(1e-12)), 1)
    60.4
    """
    spread = np.zeros(len(CHERNOFF))
    for d in norms:
        add_spread(d, 1.0, spread)
    return radius_from_spread(spread, log_bound)


@compiled
def add_spread(d: float, sign: float, spread: Floats) -> None:
    """Add log Σ_k exp(−½ s d k²), times a sign, for each s of the Chernoff grid."""
    for k in range(len(CHERNOFF)):
        spread[k] += sign * log_gauss(CHERNOFF[k] * d, 0.0)


@compiled
def radius_from_spread(spread: Floats, log_bound: float) -> float:
    """R² from the sums of `add_spread` over the coordinates; see `squared_radius`."""
    radius2 = np.inf
    for k in range(len(CHERNOFF)):
        radius2 = min(radius2, 2 / (1 - CHERNOFF[k]) * (spread[k] - log_bound))
    return radius2


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
