"""How far a sum over a lattice must reach: bounds on what a truncated sum leaves out.

All bounds are products over the Gram-Schmidt norms d_i of the lattice (`rtbm.theta.lattice`). Leading axes of arrays
stand for several lattices.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rtbm.common import TWO_PI, Floats

CHERNOFF = np.geomspace(0.01, 0.7, 24)
"""The exponents s that `squared_radius` tries. A finer grid gives a radius that is hardly smaller, in more time."""


def log_gauss_sum(a: ArrayLike, shift: float = 0.0) -> Floats:
    """log Σ_k exp(−½a(k − shift)²) over the integers, for shift 0 (the largest value) or ½ (the smallest).

    Below 2π, this is the Poisson dual √(2π/a) Σ_k exp(−½bk²) cos(2πk·shift) with b = 4π²/a. So the terms are powers of
    q < 0.044; those that are left out are below 1e-16.

    >>> float(log_gauss_sum(1000.0, 0.5))  # two points half a step away: log 2 − 125
    -124.30685281944005
    >>> float(log_gauss_sum(0.0))
    inf
    """
    a = np.asarray(a, dtype=float)
    with np.errstate(divide="ignore", over="ignore"):
        dual = TWO_PI**2 / a
        root = 0.5 * np.log(dual / TWO_PI)
    q = np.exp(-0.5 * np.maximum(a, dual))
    square = q * q
    fourth = square * square
    ninth = fourth * fourth * q
    if not shift:
        return np.maximum(root, 0.0) + np.log1p(2 * (q + fourth + ninth))
    near = (math.log(2) - 0.125 * a) + np.log1p(square + square * fourth)
    return np.where(root > 0, root + np.log1p(2 * (fourth - q - ninth)), near)


def squared_radius(norms: Floats, log_bound: ArrayLike) -> Any:
    """R² such that log Σ exp(−½‖n−c‖²) over ‖n−c‖ > R stays below log_bound, for every centre c.

    The Chernoff argument: for 0 < s < 1 the tail is at most exp(−½(1−s)R²) Σ_n exp(−½s‖n−c‖²), and the last sum
    is at most Π_i Σ_k exp(−½ s d_i k²), with d_i = `norms` (…, g), the Gram-Schmidt norms. The best s on a grid is
    taken.

    >>> round(float(squared_radius(np.array([2 * np.pi]), math.log(1e-12))), 1)
    60.4
    """
    spread = log_gauss_sum(norms[..., None, :] * CHERNOFF[:, None]).sum(axis=-1)
    return (2 / (1 - CHERNOFF) * (spread - np.asarray(log_bound)[..., None])).min(axis=-1)


def estimate_count(norms: Floats, radius2: ArrayLike, widths: Floats) -> Any:
    """How many points `enumerate_points` should find: the volume of box ⊕ ball over that of a cell (Steiner).

    >>> round(float(estimate_count(np.ones(2), 25.0, np.zeros(2))), 6)  # π 5²
    78.539816
    """
    g, radius2 = norms.shape[-1], np.asarray(radius2)[..., None]
    sides = widths / np.sqrt(radius2)
    faces = np.zeros((*norms.shape[:-1], g + 1))  # entry j: Σ over the faces of dimension j of their volume / R^j
    faces[..., 0] = 1.0
    for i in range(g):
        faces[..., 1:] += sides[..., i, None] * faces[..., :-1]
    balls = [math.exp(n / 2 * math.log(math.pi) - math.lgamma(n / 2 + 1)) for n in range(g, -1, -1)]
    return np.exp(np.minimum(np.log(faces @ balls) + 0.5 * np.log(radius2 / norms).sum(axis=-1), 700.0))
