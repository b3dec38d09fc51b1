"""Compiled sums of many one-dimensional theta functions: one pass over the points, a column at a time."""

import numpy as np

from rtbm.theta.kernels import ROUND, WIDTH, compiled, exp_row, fill, sin_cos_row

# Rows of the work space.
N0, S, X, TOTAL, FIRST, SECOND, SINE, COSINE, OLDER, OLD, SPARE = range(11)
ROWS = 14


@compiled
def recentre_column(z, j, begin, count, w, inverse_period, period_high, period_low):
    """z = period · n₀ + s, with n₀ the nearest integer."""
    for b in range(count):
        w[X, b] = z[begin + b, j]
    for b in range(count, WIDTH):
        w[X, b] = 0.0
    for b in range(WIDTH):
        n0 = (w[X, b] * inverse_period + ROUND) - ROUND
        w[N0, b] = n0
        w[S, b] = (w[X, b] - n0 * period_high) - n0 * period_low


@compiled
def sum_cosines(w, scale, b, n_terms, order):
    """Σ_m 2exp(−½bm²) cos(mx) from m = 1, plus 1, and its x-derivatives; x = 2π·scale·s. Chebyshev's recurrence."""
    for k in range(WIDTH):
        w[X, k] = scale * w[S, k]
    sin_cos_row(w, X, SINE, COSINE)
    fill(w, TOTAL, 1.0)
    fill(w, FIRST, 0.0)
    fill(w, SECOND, 0.0)
    for m in range(1, n_terms + 1):
        size = 2 * np.exp(-0.5 * b * m * m)
        for k in range(WIDTH):  # OLD, OLDER hold cos mx, cos (m−1)x; SPARE, SPARE + 1 the sines
            c = w[COSINE, k] if m == 1 else 2 * w[COSINE, k] * w[OLD, k] - w[OLDER, k]
            w[OLDER, k] = 1.0 if m == 1 else w[OLD, k]
            w[OLD, k] = c
            w[TOTAL, k] += size * c
            w[SECOND, k] -= size * m * m * c
        if order > 0:
            for k in range(WIDTH):
                s = w[SINE, k] if m == 1 else 2 * w[COSINE, k] * w[SPARE, k] - w[SPARE + 1, k]
                w[SPARE + 1, k] = 0.0 if m == 1 else w[SPARE, k]
                w[SPARE, k] = s
                w[FIRST, k] -= size * m * s


@compiled
def sum_exponentials(w, scale, a, n_terms):
    """Σ_m exp(mx − ½am²) over |m| ≤ n_terms, and its x-derivatives; x = scale·s, |x| ≤ a/2."""
    fill(w, TOTAL, 1.0)
    fill(w, FIRST, 0.0)
    fill(w, SECOND, 0.0)
    for m in range(-n_terms, n_terms + 1):
        if m == 0:
            continue
        for k in range(WIDTH):
            w[X, k] = m * (scale * w[S, k] - 0.5 * a * m)
        exp_row(w, X, SPARE, SPARE + 1, SPARE + 2)
        for k in range(WIDTH):
            term = w[SPARE + 2, k]
            w[TOTAL, k] += term
            w[FIRST, k] += m * term
            w[SECOND, k] += m * m * term


@compiled
def diagonal_moments(z, start, stop, columns, is_first_phase, order, value, mean, second):
    """log θ̃ summed over the columns (points,), and the first and second derivative in each (points, g).

    `columns` holds, for each column: 1/period, period (two parts), whether it oscillates, scale of the argument of the
    series, its decay, its number of terms, factor of the argument in derivatives, curvature and constant of the smooth
    part.
    """
    w = np.zeros((ROWS, WIDTH))
    product = np.empty(WIDTH)
    for begin in range(start, stop, WIDTH):
        count = min(WIDTH, stop - begin)
        for b in range(count):
            value[begin + b] = 0.0
        product[:] = 1.0
        for j in range(columns.shape[0]):
            recentre_column(z, j, begin, count, w, columns[j, 0], columns[j, 1], columns[j, 2])
            factor, curvature, constant = columns[j, 7], columns[j, 8], columns[j, 9]
            if columns[j, 3] > 0:
                sum_cosines(w, columns[j, 4], columns[j, 5], int(columns[j, 6]), order)
            else:
                sum_exponentials(w, columns[j, 4], columns[j, 5], int(columns[j, 6]))
            for b in range(count):
                s, n0 = w[S, b], w[N0, b]
                smooth = 0.5 * curvature * s * s + constant
                if is_first_phase:
                    smooth += 0.5 * n0 * (z[begin + b, j] + s)
                value[begin + b] += smooth
                product[b] *= w[TOTAL, b]
            if j % 64 == 63 or j == columns.shape[0] - 1:
                for b in range(count):
                    value[begin + b] += np.log(product[b])
                product[:] = 1.0
            if order > 0:
                for b in range(count):
                    m = w[FIRST, b] / w[TOTAL, b]
                    trend = w[N0, b] if is_first_phase else 0.0
                    mean[begin + b, j] = trend + curvature * w[S, b] + factor * m
                    if order > 1:
                        second[begin + b, j] = curvature + factor * factor * (w[SECOND, b] / w[TOTAL, b] - m * m)
