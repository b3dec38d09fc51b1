"""One-dimensional theta functions in compiled CPU passes, a column of one q at a time: the sums of `unit.torch`.

Cosines are polynomials in cos x. The terms of steps are powers of one exponential: with p = exp(|x| − ½a), the larger
of the terms m = ±1, and r = exp(−a), the terms m = 2, …, −2, seen from the side of s, are rp², p, 1, r/p and r³/p².
They are multiplied by p², which saves a division.
"""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import CHEBYSHEV_COSINES, CHEBYSHEV_SINES, N_COSINES, TWO_PI_PARTS, WAVE_LIMIT
from rtbm.theta.derivatives import Derivatives
from rtbm.theta.kernels import HIGH_BITS, ROUND, ROW_WIDTH, compiled, exponential, sine_cosine

TILE = 128
"""Columns that are read and written together. With fewer, wide matrices would be read in more passes over all their
pages; with more, a tile would leave the second-level cache."""
STRIDE = ROW_WIDTH + 8  # length of a row of a tile
SMALLEST_COLUMN_BLOCK = 8
"""From this number of columns on, a tile is read row by row; narrower ones are read column by column. Speed only."""
SMALLEST_STEP = 1e-75
"""Stands for smaller p, so that no power of it vanishes. It must be far below 1e-16, and its cube above 1e-308."""
WIDEST_DUAL = 1e50
"""Dual sums with a larger 4π²/q are one term. The others vanish, except at distances below 1e-48 from a jump, which
arguments cannot resolve. Their derivatives have factors up to (2π/q)³, which would overflow."""
HALF_LOW_BITS = 1 << 26
"""Added to the bits of a float64, it makes HIGH_BITS round to the nearest number of 26 bits. Products of this number
and of the rest with integers below 2^27 do not round."""
LOG_EVERY = 64
"""Columns whose sums are multiplied before a logarithm is taken. They lie between 0.58 and 3, so that the product of
hundreds would leave float64."""

# Columns of the array of constants (g, …); the four polynomials come last.
INVERSE_PERIOD, PERIOD, PERIOD_LOW, PERIOD_LOWER, TREND, SLOPE, FACTOR, CONSTANT, EDGE_SCALE, DECAY, IS_WAVE = range(11)
POLYNOMIALS = 11
N_UNIT_CONSTANTS = POLYNOMIALS + 18


def unit_constants(q: Floats, phase: str) -> Floats:
    """What the compiled passes need to know of functions with entries q (g,): an array (g, N_UNIT_CONSTANTS).

    Entries that are not positive, or leave float64, give NaN as in torch.
    """
    constants = np.empty((len(q), N_UNIT_CONSTANTS))
    find_constants(np.ascontiguousarray(q, dtype=float), phase == "I", constants)
    return constants


def expectations(u: Tensor, q: Tensor, phase: str) -> Tensor:
    """−∂/∂u log θ̃ for u (points, g) in float32 or float64 and q (g,)."""
    constants, source, value = _constants(q, phase), u.numpy(), torch.empty_like(u)
    run_threads(lambda *rows: expectation_pass(source, *rows, constants, value.numpy()), len(u), u.numel())
    return value


def expectation_gradients(u: Tensor, grad: Tensor, q: Tensor, phase: str) -> tuple[Tensor, Tensor]:
    """The gradients of `expectations` in u (points, g) and in q (g,)."""
    constants, by_u, sign = _constants(q, phase), torch.empty_like(u), 1.0 if phase == "I" else -1.0

    def run(start: int, stop: int) -> Floats:
        sums = np.zeros(len(constants))
        gradient_pass(u.numpy(), grad.numpy(), start, stop, constants, sign, by_u.numpy(), sums)
        return sums

    return by_u, torch.from_numpy(sum(run_threads(run, len(u), u.numel())))


def _constants(q: Tensor, phase: str) -> Floats:
    return unit_constants(q.detach().resolve_neg().double().numpy(), phase)


def column_moments(z: Tensor, constants: Floats, order: int) -> Derivatives:
    """Σ_j log θ̃(z_j|q_j) (points,) for z (points, g), and derivatives (points, g) up to `order` ≤ 2 in each column."""
    argument = z.detach().double().contiguous().numpy()
    N, g = argument.shape
    value = np.empty(N)
    mean, second = (np.empty((N if order > k else 0, g)) for k in range(2))
    run_threads(lambda *rows: moment_pass(argument, *rows, constants, order, value, mean, second), N, work=N * g)
    return tuple(torch.from_numpy(array) for array in (value, mean, second)[: order + 1])


@compiled
def find_constants(q, is_first, constants):
    """Fill in the constants (g, N_UNIT_CONSTANTS) for q (g,)."""
    for j in range(len(q)):
        x, k = q[j] if q[j] > 0 else np.nan, constants[j]
        dual = TWO_PI**2 / x
        is_wave = x < WAVE_LIMIT if is_first else x > TWO_PI**2 / WAVE_LIMIT  # as `unit.torch.sums_waves`
        is_dual = is_wave == is_first
        k[INVERSE_PERIOD] = 1 / x if is_first else 1 / TWO_PI
        k[PERIOD], k[PERIOD_LOW], k[PERIOD_LOWER] = TWO_PI_PARTS
        if is_first:
            k[PERIOD] = np.int64((np.float64(x).view(np.int64) + HALF_LOW_BITS) & HIGH_BITS).view(np.float64)
            k[PERIOD_LOW], k[PERIOD_LOWER] = x - k[PERIOD], 0.0
        k[TREND] = 1.0 if is_first else 0.0
        k[SLOPE] = (1 if is_first else -1) / x if is_dual else 0.0
        k[FACTOR] = (0.0 if dual > WIDEST_DUAL else TWO_PI / x) if is_dual else 1.0
        k[CONSTANT] = 0.5 * math.log(TWO_PI / x) if is_dual else 0.0
        k[EDGE_SCALE] = 1.0 if is_first else TWO_PI / x
        k[DECAY] = math.exp(-x if is_first else -dual)
        k[IS_WAVE] = 1.0 if is_wave else 0.0
        find_polynomials(max(dual if is_first else x, TWO_PI**2 / WAVE_LIMIT), k[POLYNOMIALS:])


@compiled
def find_polynomials(b, coefficients):
    """Coefficients in cos x of 1 + Σ_m 2exp(−½bm²) cos mx and of its derivatives, the odd ones divided by sin x."""
    n = N_COSINES + 1
    coefficients[:] = 0.0
    coefficients[0] = 1.0
    for m in range(1, n):
        size = 2 * math.exp(-0.5 * m * m * b)
        for i in range(n):
            coefficients[i] += size * CHEBYSHEV_COSINES[m - 1, i]
            coefficients[2 * n - 1 + i] -= m * m * size * CHEBYSHEV_COSINES[m - 1, i]
        for i in range(n - 1):
            coefficients[n + i] -= m * size * CHEBYSHEV_SINES[m - 1, i]
            coefficients[3 * n - 1 + i] += m * m * m * size * CHEBYSHEV_SINES[m - 1, i]


# The functions of one number. They are inlined, and what a pass does not use is not computed.


@compiled
def read_constants(k, j):
    """The constants of column j as tuples, which the compiler keeps in registers."""
    p = POLYNOMIALS
    return (
        (k[j, INVERSE_PERIOD], k[j, PERIOD], k[j, PERIOD_LOW], k[j, PERIOD_LOWER]),
        (k[j, TREND], k[j, SLOPE], k[j, FACTOR], k[j, CONSTANT]),
        (k[j, EDGE_SCALE], k[j, DECAY]),
        (k[j, p], k[j, p + 1], k[j, p + 2], k[j, p + 3], k[j, p + 4]),
        (k[j, p + 5], k[j, p + 6], k[j, p + 7], k[j, p + 8]),
        (k[j, p + 9], k[j, p + 10], k[j, p + 11], k[j, p + 12], k[j, p + 13]),
        (k[j, p + 14], k[j, p + 15], k[j, p + 16], k[j, p + 17]),
    )


@compiled
def recentre(u, period):
    """n₀, s and what s has lost by rounding, with u = n₀·period + s."""
    inverse, high, low, lower = period
    n0 = (u * inverse + ROUND) - ROUND
    exact = u - n0 * high
    s = exact - n0 * low
    return n0, s, ((exact - s) - n0 * low) - n0 * lower


@compiled
def horner(p, x):
    """The polynomial with coefficients p, four or five of them."""
    if len(p) == 5:
        return (((p[4] * x + p[3]) * x + p[2]) * x + p[1]) * x + p[0]
    return ((p[3] * x + p[2]) * x + p[1]) * x + p[0]


@compiled
def wave(u, constants):
    """n₀, s, 1, Z and its first three derivatives, for a sum of waves."""
    period, _, _, value, first, second, third = constants
    n0, s, _ = recentre(u, period)
    sine, x = sine_cosine(s * period[0])
    return n0, s, 1.0, horner(value, x), horner(first, x) * sine, horner(second, x), horner(third, x) * sine


@compiled
def step(u, constants):
    """n₀, s, p², and p² times Z and its first three derivatives, for a sum of steps."""
    period, _, (scale, r), _, _, _, _ = constants
    n0, s, rest = recentre(u, period)
    side = 1.0 if s >= 0 else -1.0
    p = exponential(scale * ((abs(s) - 0.5 * period[1]) + (side * rest - 0.5 * period[2])))
    p = max(p, SMALLEST_STEP)
    square, rp, r3 = p * p, r * p, r * r * r
    return (
        n0,
        s,
        square,
        r3 + p * (r + p * (1 + p * (1 + rp))),
        side * (p * (square * (1 + 2 * rp) - r) - 2 * r3),
        p * (square * (1 + 4 * rp) + r) + 4 * r3,
        side * (p * (square * (1 + 8 * rp) - r) - 8 * r3),
    )


@compiled
def log_theta_part(u, n0, s, smooth):
    """log θ̃ − log Z."""
    trend, slope, _, constant = smooth
    return 0.5 * trend * n0 * (u + s) + (0.5 * slope * s * s + constant)


@compiled
def first_cumulant(n0, s, total, first, smooth):
    """κ₁ of log θ̃."""
    trend, slope, factor, _ = smooth
    return trend * n0 + (slope * s + factor * (first / total))


@compiled
def cumulants(n0, s, _, total, first, second, third, smooth):
    """κ₁, κ₂ and ½κ₃ of log θ̃."""
    trend, slope, factor, _ = smooth
    square, over = factor * factor, 1 / total
    m1, m2, m3 = first * over, second * over, third * over
    return (
        trend * n0 + (slope * s + factor * m1),
        slope + square * (m2 - m1 * m1),
        0.5 * square * factor * (m3 + m1 * (2 * m1 * m1 - 3 * m2)),
    )


# The passes. Each works on tiles, whose rows are columns of u, in two loops for every column: one for each kind of sum.


@compiled
def expectation_row(tile, c, k, j):
    """−κ₁ instead of u."""
    constants = read_constants(k, j)
    smooth = constants[1]
    if k[j, IS_WAVE] > 0:
        for b in range(ROW_WIDTH):
            n0, s, _, total, first, _, _ = wave(tile[c, b], constants)
            tile[c, b] = -first_cumulant(n0, s, total, first, smooth)
    else:
        for b in range(ROW_WIDTH):
            n0, s, _, total, first, _, _ = step(tile[c, b], constants)
            tile[c, b] = -first_cumulant(n0, s, total, first, smooth)


@compiled
def gradient_row(tile, weights, c, k, j):
    """The gradients −κ₂ in u, instead of u, and ½κ₃ + κ₁κ₂ in q, both times the weights, instead of these."""
    constants = read_constants(k, j)
    smooth = constants[1]
    if k[j, IS_WAVE] > 0:
        for b in range(ROW_WIDTH):
            k1, k2, k3 = cumulants(*wave(tile[c, b], constants), smooth)
            tile[c, b] = -k2 * weights[c, b]
            weights[c, b] *= k3 + k1 * k2
    else:
        for b in range(ROW_WIDTH):
            k1, k2, k3 = cumulants(*step(tile[c, b], constants), smooth)
            tile[c, b] = -k2 * weights[c, b]
            weights[c, b] *= k3 + k1 * k2


@compiled
def value_row(tile, c, k, j, sums):
    """log θ̃: its part beside log Z is added to the first row of sums, and the second one is multiplied by Z."""
    constants = read_constants(k, j)
    smooth = constants[1]
    if k[j, IS_WAVE] > 0:
        for b in range(ROW_WIDTH):
            n0, s, scale, total, _, _, _ = wave(tile[c, b], constants)
            sums[0, b] += log_theta_part(tile[c, b], n0, s, smooth)
            sums[1, b] *= total / scale
    else:
        for b in range(ROW_WIDTH):
            n0, s, scale, total, _, _, _ = step(tile[c, b], constants)
            sums[0, b] += log_theta_part(tile[c, b], n0, s, smooth)
            sums[1, b] *= total / scale


@compiled
def moment_row(tile, seconds, c, k, j, sums):
    """As `value_row`, and κ₁ instead of u, and κ₂ in a row of seconds."""
    constants = read_constants(k, j)
    smooth = constants[1]
    if k[j, IS_WAVE] > 0:
        for b in range(ROW_WIDTH):
            terms = wave(tile[c, b], constants)
            sums[0, b] += log_theta_part(tile[c, b], terms[0], terms[1], smooth)
            sums[1, b] *= terms[3] / terms[2]
            tile[c, b], seconds[c, b], _ = cumulants(*terms, smooth)
    else:
        for b in range(ROW_WIDTH):
            terms = step(tile[c, b], constants)
            sums[0, b] += log_theta_part(tile[c, b], terms[0], terms[1], smooth)
            sums[1, b] *= terms[3] / terms[2]
            tile[c, b], seconds[c, b], _ = cumulants(*terms, smooth)


@compiled
def copy_tile(source, target):
    """target = source, for two arrays (points, columns) of which one is a transposed tile."""
    count, width = source.shape
    if width >= SMALLEST_COLUMN_BLOCK:
        for b in range(count):
            for c in range(width):
                target[b, c] = source[b, c]
    else:
        for c in range(width):
            for b in range(count):
                target[b, c] = source[b, c]


@compiled
def sum_in_halves(w, row):
    """The sum of a row, by halves, which runs in parallel."""
    half = ROW_WIDTH // 2
    while half > 0:
        for b in range(half):
            w[row, b] += w[row, half + b]
        half //= 2
    return w[row, 0]


@compiled
def expectation_pass(u, start, stop, constants, value):
    """E(h|v) = −κ₁ for the rows start…stop of u (points, g)."""
    g = constants.shape[0]
    tile = np.zeros((min(g, TILE), STRIDE))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        for left in range(0, g, TILE):
            right = min(g, left + TILE)
            copy_tile(u[begin : begin + count, left:right], tile.T[:count, : right - left])
            for j in range(left, right):
                expectation_row(tile, j - left, constants, j)
            copy_tile(tile.T[:count, : right - left], value[begin : begin + count, left:right])


@compiled
def gradient_pass(u, grad, start, stop, constants, sign, by_u, by_q):
    """The gradients −κ₂·grad in u, and those in q, sign·(½κ₃ + κ₁κ₂)·grad, added to by_q (g,)."""
    g = constants.shape[0]
    tile, weights = np.zeros((min(g, TILE), STRIDE)), np.zeros((min(g, TILE), STRIDE))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        for left in range(0, g, TILE):
            right = min(g, left + TILE)
            if count < ROW_WIDTH:  # the end of a row must not hold numbers of the last block
                weights[:] = 0.0
                tile[:] = 0.0
            copy_tile(u[begin : begin + count, left:right], tile.T[:count, : right - left])
            copy_tile(grad[begin : begin + count, left:right], weights.T[:count, : right - left])
            for j in range(left, right):
                gradient_row(tile, weights, j - left, constants, j)
                by_q[j] += sign * sum_in_halves(weights, j - left)
            copy_tile(tile.T[:count, : right - left], by_u[begin : begin + count, left:right])


@compiled
def moment_pass(z, start, stop, constants, order, value, mean, second):
    """log θ̃ summed over the columns (points,), and the first and second derivative in each (points, g)."""
    g = constants.shape[0]
    tile, seconds = np.zeros((min(g, TILE), STRIDE)), np.zeros((min(g, TILE), STRIDE))
    sums = np.empty((2, ROW_WIDTH))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        sums[0] = 0.0
        sums[1] = 1.0
        for left in range(0, g, TILE):
            right = min(g, left + TILE)
            copy_tile(z[begin : begin + count, left:right], tile.T[:count, : right - left])
            for j in range(left, right):
                if order == 0:
                    value_row(tile, j - left, constants, j, sums)
                else:
                    moment_row(tile, seconds, j - left, constants, j, sums)
                if j % LOG_EVERY == LOG_EVERY - 1 or j == g - 1:
                    for b in range(ROW_WIDTH):
                        sums[0, b] += np.log(sums[1, b])
                    sums[1] = 1.0
            if order > 0:
                copy_tile(tile.T[:count, : right - left], mean[begin : begin + count, left:right])
            if order > 1:
                copy_tile(seconds.T[:count, : right - left], second[begin : begin + count, left:right])
        for b in range(count):
            value[begin + b] = sums[0, b]
