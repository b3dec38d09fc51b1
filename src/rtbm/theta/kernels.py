"""What compiled CPU passes share (numba): the decorator, elementary functions, and loops over rows of a work space.

Points run along the rows, so that the compiler makes SIMD code. Every pass has a plain torch counterpart, which serves
when numba is not installed and on GPUs, and which tests compare it with.
"""

import math
from typing import Any

import numpy as np

from rtbm.theta.constants import COS_PI, SIN_PI

try:
    from numba import njit
except ImportError:  # the torch counterparts take over
    njit = None  # type: ignore[assignment]

AVAILABLE = njit is not None
"""Whether compiled passes are used. If it is false, everything runs in torch."""

ROW_WIDTH = 128
"""Points in one row of a work space. With more, the rows of one pass would leave the first-level cache."""
ROUND = 1.5 * 2.0**52
"""Adding and subtracting it rounds to the nearest integer. It must be this number: the last bit is then worth one."""
LOG2_E = 1 / math.log(2)
"""Turns an exponent of e into one of 2."""
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fefa0000p-1"), float.fromhex("0x1.cf79abc9e3b39p-40")
"""log 2 as a sum. The first part has 36 bits, so that its products with exponents of 2 do not round; in one part, exp
would lose its last digits."""
HIGH_BITS = ~((1 << 27) - 1)
"""The bits of a float64 that hold sign, exponent and the upper half of its mantissa, 26 bits with the hidden one."""
LOWEST_EXPONENT = -700.0
"""Exponents are cut off here. Below, results would leave the normal numbers of float64, which is slow."""
ROOT_HALF, ROUND_BITS = (int(np.array(number).view(np.int64)) for number in (0.5**0.5, ROUND))
"""The bits of √½ and of ROUND. `logarithm` relies on both."""
EXP = np.array([1 / math.factorial(k) for k in range(14)])
"""Taylor coefficients of exp. For |r| ≤ ½log 2 fourteen terms reach the last digit; fewer would not."""


def compiled(function: Any, *more_flags: str) -> Any:
    """Compile without reassociation: the rounding tricks rely on the order of operations.

    Compiled functions pass np.int64(0), not 0, to each other: what gets a literal is compiled for that one alone.
    """
    if njit is None:
        return function
    flags = {"contract", "nsz", *more_flags}
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": flags, "no_cfunc_wrapper": True}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in
        return njit(**options)(function)


def reducing(function: Any) -> Any:
    """Compile with reassociation, so that sums and extrema over a row use SIMD instructions too."""
    return compiled(function, "nnan", "reassoc")


@compiled
def exponential(x):
    """exp(x) for x ≤ 709, to about one unit in the last place; below −700 it is cut off."""
    x = max(x, LOWEST_EXPONENT)
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = EXP[13]
    for j in range(12, -1, -1):
        p = p * r + EXP[j]
    return np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)).view(np.float64)


@compiled
def sine_cosine(turns):
    """Sine and cosine of 2π·turns for |turns| ≤ ½: sin 2a = 2 sin a cos a and cos 2a = 1 − 2 sin² a."""
    square = turns * turns
    s, c = SIN_PI[10], COS_PI[10]
    for k in range(9, -1, -1):
        s = s * square + SIN_PI[k]
        c = c * square + COS_PI[k]
    s = s * turns
    return 2 * s * c, 1 - 2 * s * s


@compiled
def logarithm(x):
    """log(x) for positive normal numbers, to about two units in the last place.

    With x = m 2^k, m between √½ and √2, log m = 2 artanh(t) for t = (m − 1)/(m + 1).
    """
    bits = np.float64(x).view(np.int64)
    exponent = (bits - ROOT_HALF) >> 52
    k = np.int64(exponent + ROUND_BITS).view(np.float64) - ROUND
    m = np.int64(bits - (exponent << 52)).view(np.float64)
    t = (m - 1.0) / (m + 1.0)
    t2 = t * t
    t4 = t2 * t2
    low = (2 / 3 + 2 / 5 * t2) + t4 * (2 / 7 + 2 / 9 * t2)
    high = (2 / 11 + 2 / 13 * t2) + t4 * ((2 / 15 + 2 / 17 * t2) + t4 * (2 / 19 + 2 / 21 * t2))
    return k * LN2_HIGH + (2 * t + (k * LN2_LOW + (t * t2) * (low + (t4 * t4) * high)))


# Functions of rows take the work space w (rows, width) and row numbers, since views would cost reference counts.


@compiled
def exp_row(w, exponent, result):
    """Row result = exp(row exponent). These must be two rows: else the loop is not made SIMD code."""
    for b in range(w.shape[1]):
        w[result, b] = exponential(w[exponent, b])


@compiled
def log_row(w, source, result):
    """Row result = log(row source)."""
    for b in range(w.shape[1]):
        w[result, b] = logarithm(w[source, b])


@compiled
def sin_cos_row(w, turns, sines, cosines):
    """Sine and cosine of 2π·turns."""
    for b in range(w.shape[1]):
        w[sines, b], w[cosines, b] = sine_cosine(w[turns, b] - ((w[turns, b] + ROUND) - ROUND))


@compiled
def add_cosine(w, total, size, turns):
    """Row total += size · cos(2π·turns)."""
    for b in range(w.shape[1]):
        _, cosine = sine_cosine(w[turns, b] - ((w[turns, b] + ROUND) - ROUND))
        w[total, b] += size * cosine


@compiled
def fill_row(w, i, value):
    """Row i = value."""
    for b in range(w.shape[1]):
        w[i, b] = value


@compiled
def add_scaled_row(w, target, factor, source):
    """Row target += factor · row source."""
    if factor != 0.0:
        for b in range(w.shape[1]):
            w[target, b] += factor * w[source, b]


@compiled
def multiply_rows(w, target, i, j):
    """Row target = row i · row j."""
    for b in range(w.shape[1]):
        w[target, b] = w[i, b] * w[j, b]


@compiled
def whiten_rows(w, inverse, origin, k, p, x, spare, y):
    """Rows y = inverse_k (rows x − origin_k), with a lower triangular inverse_k."""
    for i in range(p):
        for b in range(w.shape[1]):
            w[spare + i, b] = w[x + i, b] - origin[k, i]
    for i in range(p):
        factor = inverse[k, i, 0]
        for b in range(w.shape[1]):
            w[y + i, b] = factor * w[spare, b]
        for j in range(1, i + 1):
            add_scaled_row(w, y + i, inverse[k, i, j], spare + j)


@reducing
def sum_row(w, i):
    """Σ row i."""
    total = 0.0
    for b in range(w.shape[1]):
        total += w[i, b]
    return total


@reducing
def dot_rows(w, i, j):
    """Σ row i · row j."""
    total = 0.0
    for b in range(w.shape[1]):
        total += w[i, b] * w[j, b]
    return total


@reducing
def dot_two_rows(w, i, j, k):
    """Σ row i · row j, and Σ row i · row k."""
    first, second = 0.0, 0.0
    for b in range(w.shape[1]):
        first += w[i, b] * w[j, b]
        second += w[i, b] * w[k, b]
    return first, second


@reducing
def span_of_row(w, i):
    """The least and the largest entry of row i."""
    low = high = w[i, 0]
    for b in range(1, w.shape[1]):
        low, high = min(low, w[i, b]), max(high, w[i, b])
    return low, high
