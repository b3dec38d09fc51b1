"""Enumeration of lattice points in compiled code, as `squared_radius` and `list_points` of theta do it in NumPy."""

import math

import numpy as np

from rtbm.theta.kernels import compiled
from rtbm.theta.truncation import CHERNOFF


@compiled
def squared_radius(norms, log_bound):
    """As `theta.truncation.squared_radius`, for one lattice."""
    spread = np.zeros(len(CHERNOFF))
    for d in norms:
        for k in range(len(CHERNOFF)):
            spread[k] += log_gauss(CHERNOFF[k] * d)
    radius2 = np.inf
    for k in range(len(CHERNOFF)):
        radius2 = min(radius2, 2 / (1 - CHERNOFF[k]) * (spread[k] - log_bound))
    return radius2


@compiled
def log_gauss(a):
    """log Σ_k exp(−½ak²) over the integers."""
    if a == 0.0:
        return np.inf
    q = math.exp(-0.5 * max(a, 4 * math.pi**2 / a))
    root = max(0.5 * math.log(2 * math.pi / a), 0.0)
    return root + math.log1p(2 * (q + q**4 + q**9))


@compiled
def walk(R, centre, half_widths, n_paired, radius2, limit, points):
    """Fill `points` with those of `theta.lattice.enumerate_points`, as many as it has rows.

    Returns their number, or any above limit.

    The last coordinate varies slowest, the first fastest. A basis that is far from reduced takes too many steps: then
    the number is above the limit, too.
    """
    g = len(R)
    n, stop, left, offset = np.zeros(g), np.zeros(g), np.zeros(g + 1), np.zeros(g)
    left[g] = radius2 * (1 + 1e-9)
    i, is_new, count, steps = g - 1, True, 0, 0
    while i < g and count <= limit:
        steps += 1
        if steps > 20 * limit + 1000:
            return limit + 1
        if is_new:
            offset[i] = 0.0
            for j in range(i + 1, g):
                offset[i] += R[i, j] * (n[j] - centre[j])
            reach = math.sqrt(left[i + 1]) + half_widths[i]
            n[i] = math.ceil((-reach - offset[i]) / R[i, i] + centre[i])
            stop[i] = math.floor((reach - offset[i]) / R[i, i] + centre[i])
        else:
            n[i] += 1
        if i == 0:
            if n_paired > 0:  # the first coordinate that is not zero must be positive
                j = 1
                while j < n_paired and n[j] == 0.0:
                    j += 1
                n[0] = max(n[0], 1.0 if j < n_paired and n[j] < 0.0 else 0.0)
            found = max(int(stop[0] - n[0]) + 1, 0)
            for k in range(count, min(count + found, len(points))):
                points[k, 0] = n[0] + (k - count)
                for j in range(1, g):
                    points[k, j] = n[j]
            count += found
        if i == 0 or n[i] > stop[i]:
            i, is_new = i + 1, False
            continue
        outside = max(abs(R[i, i] * (n[i] - centre[i]) + offset[i]) - half_widths[i], 0.0)
        left[i] = max(left[i + 1] - outside * outside, 0.0)
        i, is_new = i - 1, True
    return count
