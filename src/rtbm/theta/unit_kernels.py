"""Compiled CPU passes over units (see `units`), forward and backward, a column of one q at a time."""

import numpy as np

from rtbm.common import TWO_PI, Floats
from rtbm.theta.geometry import TWO_PI_PARTS
from rtbm.theta.kernels import COS_PI, EXP, LN2_HIGH, LN2_LOW, LOG2_E, LOWEST_EXPONENT, ROUND, SIN_PI, WIDTH, compiled
from rtbm.theta.units import THRESHOLD

TILE = 128
"""Columns that are read and written together: single columns of a wide matrix would touch all of its pages."""
STRIDE = WIDTH + 8
"""Length of a row in the work space; a power of two would let rows push each other out of the cache."""
SMALLEST = 1e-75
"""Stands for smaller exponentials, so that no square of one vanishes."""
N_COSINES = 4

# Columns of the table that describes the units; the polynomials come last.
INVERSE_PERIOD, PERIOD, PERIOD_LOW, PERIOD_LOWER, IS_WAVE, SCALE, WIDTH_A, TREND, SLOPE, FACTOR = range(10)
POLYNOMIALS = 10


@compiled
def sine_cosine(turns):
    """Sine and cosine of 2π·turns for |turns| ≤ ½, from the half angle."""
    square = turns * turns
    s, c = SIN_PI[10], COS_PI[10]
    for k in range(9, -1, -1):
        s = s * square + SIN_PI[k]
        c = c * square + COS_PI[k]
    s = s * turns
    return 2 * s * c, 1 - 2 * s * s


@compiled
def exponential(x):
    """exp(x) for x ≤ 0, to about one unit in the last place; below −700 it is cut off."""
    x = max(x, LOWEST_EXPONENT)
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = EXP[13]
    for j in range(12, -1, -1):
        p = p * r + EXP[j]
    return np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)).view(np.float64)


@compiled
def waves_forward(tile, c, table, j):
    """E = −κ₁ of one column of the tile, from cosines."""
    inverse, period, low = table[j, INVERSE_PERIOD], table[j, PERIOD], table[j, PERIOD_LOW]
    trend, slope, factor = table[j, TREND], table[j, SLOPE], table[j, FACTOR]
    k = POLYNOMIALS
    p0, p1, p2, p3, p4 = table[j, k], table[j, k + 1], table[j, k + 2], table[j, k + 3], table[j, k + 4]
    f0, f1, f2, f3 = table[j, k + 5], table[j, k + 6], table[j, k + 7], table[j, k + 8]
    for b in range(WIDTH):
        n0 = (tile[c, b] * inverse + ROUND) - ROUND
        s = (tile[c, b] - n0 * period) - n0 * low
        sine, x = sine_cosine(s * inverse)
        total = (((p4 * x + p3) * x + p2) * x + p1) * x + p0
        first = (((f3 * x + f2) * x + f1) * x + f0) * sine / total
        tile[c, b] = -(trend * n0 + (slope * s + factor * first))


@compiled
def waves_backward(tile, weights, c, table, j):
    """The gradients −κ₂ in u, instead of u, and ½(κ₃ + 2κ₁κ₂) in q, both times the weights, instead of these."""
    inverse, period, low = table[j, INVERSE_PERIOD], table[j, PERIOD], table[j, PERIOD_LOW]
    trend, slope, factor = table[j, TREND], table[j, SLOPE], table[j, FACTOR]
    square, cube = factor * factor, 0.5 * factor * factor * factor
    k = POLYNOMIALS
    p0, p1, p2, p3, p4 = table[j, k], table[j, k + 1], table[j, k + 2], table[j, k + 3], table[j, k + 4]
    f0, f1, f2, f3 = table[j, k + 5], table[j, k + 6], table[j, k + 7], table[j, k + 8]
    s0, s1, s2, s3, s4 = table[j, k + 9], table[j, k + 10], table[j, k + 11], table[j, k + 12], table[j, k + 13]
    t0, t1, t2, t3 = table[j, k + 14], table[j, k + 15], table[j, k + 16], table[j, k + 17]
    for b in range(WIDTH):
        n0 = (tile[c, b] * inverse + ROUND) - ROUND
        s = (tile[c, b] - n0 * period) - n0 * low
        sine, x = sine_cosine(s * inverse)
        over = 1 / ((((p4 * x + p3) * x + p2) * x + p1) * x + p0)
        m1 = (((f3 * x + f2) * x + f1) * x + f0) * (sine * over)
        m2 = ((((s4 * x + s3) * x + s2) * x + s1) * x + s0) * over
        m3 = (((t3 * x + t2) * x + t1) * x + t0) * (sine * over)
        first = trend * n0 + (slope * s + factor * m1)
        second = slope + square * (m2 - m1 * m1)
        third = cube * (m3 + m1 * (2 * m1 * m1 - 3 * m2))
        tile[c, b] = -second * weights[c, b]
        weights[c, b] *= third + first * second


@compiled
def steps_forward(tile, c, table, j):
    """E = −κ₁ of one column of the tile, from the terms −2, …, 2 of the sum, seen from the side of s."""
    inverse, period, low, lower = (
        table[j, INVERSE_PERIOD],
        table[j, PERIOD],
        table[j, PERIOD_LOW],
        table[j, PERIOD_LOWER],
    )
    trend, slope, factor, scale = table[j, TREND], table[j, SLOPE], table[j, FACTOR], table[j, SCALE]
    r = np.exp(-table[j, WIDTH_A])
    r3 = r * r * r
    for b in range(WIDTH):
        n0 = (tile[c, b] * inverse + ROUND) - ROUND
        exact = tile[c, b] - n0 * period
        s = exact - n0 * low
        side = 1.0 if s >= 0 else -1.0
        rest = side * (((exact - s) - n0 * low) - n0 * lower)
        p = max(exponential(scale * ((abs(s) - 0.5 * period) + (rest - 0.5 * low))), SMALLEST)
        total = r3 + p * (r + p * (1 + p * (1 + r * p)))
        first = side * (p * (p * p * (1 + 2 * r * p) - r) - 2 * r3) / total
        tile[c, b] = -(trend * n0 + (slope * s + factor * first))


@compiled
def steps_backward(tile, weights, c, table, j):
    """As `waves_backward`, from the terms of the sum."""
    inverse, period, low, lower = (
        table[j, INVERSE_PERIOD],
        table[j, PERIOD],
        table[j, PERIOD_LOW],
        table[j, PERIOD_LOWER],
    )
    trend, slope, factor, scale = table[j, TREND], table[j, SLOPE], table[j, FACTOR], table[j, SCALE]
    square, cube = factor * factor, 0.5 * factor * factor * factor
    r = np.exp(-table[j, WIDTH_A])
    r3 = r * r * r
    for b in range(WIDTH):
        n0 = (tile[c, b] * inverse + ROUND) - ROUND
        exact = tile[c, b] - n0 * period
        s = exact - n0 * low
        side = 1.0 if s >= 0 else -1.0
        rest = side * (((exact - s) - n0 * low) - n0 * lower)
        p = max(exponential(scale * ((abs(s) - 0.5 * period) + (rest - 0.5 * low))), SMALLEST)
        over = 1 / (r3 + p * (r + p * (1 + p * (1 + r * p))))
        m1 = (p * (p * p * (1 + 2 * r * p) - r) - 2 * r3) * over
        m2 = (p * (p * p * (1 + 4 * r * p) + r) + 4 * r3) * over
        m3 = (p * (p * p * (1 + 8 * r * p) - r) - 8 * r3) * over
        first = trend * n0 + (slope * s + factor * side * m1)
        second = slope + square * (m2 - m1 * m1)
        third = cube * side * (m3 + m1 * (2 * m1 * m1 - 3 * m2))
        tile[c, b] = -second * weights[c, b]
        weights[c, b] *= third + first * second


@compiled
def sum_row(w, row):
    """The sum of a row, by halves, which runs in parallel."""
    half = WIDTH // 2
    while half > 0:
        for b in range(half):
            w[row, b] += w[row, half + b]
        half //= 2
    return w[row, 0]


@compiled
def read(source, tile, begin, count, left, right):
    """Read some columns as rows of the tile."""
    if right - left >= 8:
        for b in range(count):
            for c in range(right - left):
                tile[c, b] = source[begin + b, left + c]
    else:
        for c in range(right - left):
            for b in range(count):
                tile[c, b] = source[begin + b, left + c]


@compiled
def write(tile, target, begin, count, left, right):
    """Write rows of the tile as columns."""
    if right - left >= 8:
        for b in range(count):
            for c in range(right - left):
                target[begin + b, left + c] = tile[c, b]
    else:
        for c in range(right - left):
            for b in range(count):
                target[begin + b, left + c] = tile[c, b]


@compiled
def forward(u, start, stop, table, value):
    """E(h|v) = −κ₁ for rows of u (points, g)."""
    g = table.shape[0]
    tile = np.zeros((min(g, TILE), STRIDE))
    for begin in range(start, stop, WIDTH):
        count = min(WIDTH, stop - begin)
        for left in range(0, g, TILE):
            right = min(g, left + TILE)
            read(u, tile, begin, count, left, right)
            for j in range(left, right):
                if table[j, IS_WAVE] > 0:
                    waves_forward(tile, j - left, table, j)
                else:
                    steps_forward(tile, j - left, table, j)
            write(tile, value, begin, count, left, right)


@compiled
def backward(u, grad, start, stop, table, sign, by_u, by_q):
    """The gradients −grad·κ₂ in u, and those in q, sign·½(κ₃ + 2κ₁κ₂)·grad, added up in by_q (g,)."""
    g = table.shape[0]
    tile, weights = np.zeros((min(g, TILE), STRIDE)), np.zeros((min(g, TILE), STRIDE))
    by_q[:] = 0.0
    for begin in range(start, stop, WIDTH):
        count = min(WIDTH, stop - begin)
        for left in range(0, g, TILE):
            right = min(g, left + TILE)
            if count < WIDTH:  # nothing of the block before must be left
                weights[:] = 0.0
                tile[:] = 0.0
            read(u, tile, begin, count, left, right)
            read(grad, weights, begin, count, left, right)
            for j in range(left, right):
                if table[j, IS_WAVE] > 0:
                    waves_backward(tile, weights, j - left, table, j)
                else:
                    steps_backward(tile, weights, j - left, table, j)
                by_q[j] += sign * sum_row(weights, j - left)
            write(tile, by_u, begin, count, left, right)


def table_of(q: Floats, phase: str) -> Floats:
    """What the kernels need to know of units with entries q (g,)."""
    with np.errstate(all="ignore"):  # q outside of float64's reach gives NaN, as everywhere in torch
        return _table(np.where(q > 0, q, np.nan), phase == "I")


def _table(q: Floats, first: bool) -> Floats:
    a = q if first else TWO_PI**2 / q
    high = q.astype(np.float32).astype(float)
    waves = a < THRESHOLD
    transformed = waves == first
    table = np.empty((len(q), POLYNOMIALS + 18))
    table[:, INVERSE_PERIOD] = 1 / q if first else 1 / TWO_PI
    table[:, PERIOD] = high if first else TWO_PI_PARTS[0]
    table[:, PERIOD_LOW] = q - high if first else TWO_PI_PARTS[1]
    table[:, PERIOD_LOWER] = 0.0 if first else TWO_PI_PARTS[2]
    table[:, IS_WAVE] = waves
    table[:, SCALE] = 1.0 if first else TWO_PI / q
    table[:, WIDTH_A] = a
    table[:, TREND] = first
    table[:, SLOPE] = np.where(transformed, (1 if first else -1) / q, 0.0)
    table[:, FACTOR] = np.where(transformed, TWO_PI / q, 1.0)
    table[:, POLYNOMIALS:] = _cosine_polynomials(np.maximum(TWO_PI**2 / a, TWO_PI**2 / THRESHOLD))
    return table


def _cosine_polynomials(b: Floats) -> Floats:
    """Coefficients in c = cos x of 1 + Σ_m w_m cos mx and of its derivatives, the odd ones divided by sin x."""
    m = np.arange(1.0, N_COSINES + 1)
    w = 2 * np.exp(-0.5 * m**2 * b[:, None])
    powers: list[Floats] = [w * m**k for k in range(4)]
    value, first, second, third = (_even(v) if k % 2 == 0 else _odd(v) for k, v in enumerate(powers))
    value[:, 0] += 1
    return np.concatenate([value, -first, -second, third], axis=1)


def _even(v: Floats) -> Floats:
    """Σ_m v_m cos mx."""
    v1, v2, v3, v4 = v.T
    return np.stack([v4 - v2, v1 - 3 * v3, 2 * v2 - 8 * v4, 4 * v3, 8 * v4], axis=1)


def _odd(v: Floats) -> Floats:
    """Σ_m v_m sin mx / sin x."""
    v1, v2, v3, v4 = v.T
    return np.stack([v1 - v3, 2 * v2 - 4 * v4, 4 * v3, 8 * v4], axis=1)
