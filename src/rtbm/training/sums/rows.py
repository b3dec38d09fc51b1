"""Compiled functions of numbers and of rows. These take the work space w (rows, width) and row numbers, since views
would cost reference counts.
"""

import numpy as np

from rtbm.theta.kernels import LN2_HIGH, LN2_LOW, ROUND, compiled, exponential, reducing

ROOT_HALF, ROUND_BITS = (int(np.array(number).view(np.int64)) for number in (0.5**0.5, ROUND))
"""The bits of √½ and of ROUND. `logarithm` relies on both."""


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
