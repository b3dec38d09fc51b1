"""Compiled loops over rows of a work space, which the passes over the points are made of.

Points run along the rows, so that the compiler makes SIMD code. Functions take the whole work space w (rows, width) and
row numbers, since views would cost reference counts.
"""

from typing import Any

import numpy as np

from rtbm.theta.kernels import LN2_HIGH, LN2_LOW, LOG2_E, ROUND, compiled, njit

LOWEST_ROW_EXPONENT = -700.0
"""Exponents are cut off here. Lower ones would underflow, which is slow."""
ROOT_HALF = int(np.array(0.5**0.5).view(np.int64))
ROUND_BITS = int(np.array(ROUND).view(np.int64))
E2, E3, E4, E5, E6, E7 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720, 1 / 5040
E8, E9, E10, E11, E12, E13 = E7 / 8, E7 / 72, E7 / 720, E7 / 7920, E7 / 95040, E7 / 1235520


def reducing(function: Any) -> Any:
    """Compile with reassociation, so that sums and extrema over a row use SIMD instructions too."""
    if njit is None:
        return function
    flags = {"contract", "nnan", "nsz", "reassoc"}
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": flags}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in
        return njit(**options)(function)


@reducing
def dot_rows(w, i, j):
    """Σ row i · row j."""
    total = 0.0
    for b in range(w.shape[1]):
        total += w[i, b] * w[j, b]
    return total


@reducing
def sum_row(w, i):
    """Σ row i."""
    total = 0.0
    for b in range(w.shape[1]):
        total += w[i, b]
    return total


@reducing
def dot_two_rows(w, i, j, k):
    """Σ row i · row j, and Σ row i · row k."""
    first, second = 0.0, 0.0
    for b in range(w.shape[1]):
        first += w[i, b] * w[j, b]
        second += w[i, b] * w[k, b]
    return first, second


@compiled
def fill_row(w, i, value):
    """Row i = value."""
    for b in range(w.shape[1]):
        w[i, b] = value


@compiled
def add_row(w, target, source):
    """Row target += row source."""
    for b in range(w.shape[1]):
        w[target, b] += w[source, b]


@compiled
def add_scaled_row(w, target, factor, source):
    """Row target += factor · row source."""
    for b in range(w.shape[1]):
        w[target, b] += factor * w[source, b]


@compiled
def multiply_rows(w, target, i, j):
    """Row target = row i · row j."""
    for b in range(w.shape[1]):
        w[target, b] = w[i, b] * w[j, b]


@compiled
def exp_row(w, bits, source, target, shifted, mantissa):
    """Row target = exp(row source), to about one unit in the last place."""
    for b in range(w.shape[1]):
        e = w[source, b]
        e = e if e > LOWEST_ROW_EXPONENT else LOWEST_ROW_EXPONENT
        t = e * LOG2_E + ROUND
        k = t - ROUND
        r = (e - k * LN2_HIGH) - k * LN2_LOW
        r2 = r * r
        r4 = r2 * r2
        first = ((1.0 + r) + r2 * (E2 + E3 * r)) + r4 * ((E4 + E5 * r) + r2 * (E6 + E7 * r))
        rest = ((E8 + E9 * r) + r2 * (E10 + E11 * r)) + r4 * (E12 + E13 * r)
        w[shifted, b] = t
        w[mantissa, b] = first + (r4 * r4) * rest
    for b in range(w.shape[1]):
        bits[target, b] = bits[mantissa, b] + (bits[shifted, b] << 52)


@compiled
def log_row(w, bits, source, target, shifted):
    """Row target = log(row source), for positive normal numbers, to about two units in the last place.

    With x = m 2^k, m between √½ and √2, log m = 2 artanh(t) for t = (m − 1)/(m + 1).
    """
    for b in range(w.shape[1]):
        k = (bits[source, b] - ROOT_HALF) >> 52
        bits[shifted, b] = k + ROUND_BITS
        bits[target, b] = bits[source, b] - (k << 52)
    for b in range(w.shape[1]):
        k = w[shifted, b] - ROUND
        m = w[target, b]
        t = (m - 1.0) / (m + 1.0)
        t2 = t * t
        t4 = t2 * t2
        low = (2 / 3 + 2 / 5 * t2) + t4 * (2 / 7 + 2 / 9 * t2)
        high = (2 / 11 + 2 / 13 * t2) + t4 * ((2 / 15 + 2 / 17 * t2) + t4 * (2 / 19 + 2 / 21 * t2))
        w[target, b] = k * LN2_HIGH + (2 * t + (k * LN2_LOW + (t * t2) * (low + (t4 * t4) * high)))


@reducing
def span_of_row(w, i):
    """The least and the largest entry of row i."""
    low = high = w[i, 0]
    for b in range(1, w.shape[1]):
        low, high = min(low, w[i, b]), max(high, w[i, b])
    return low, high


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
