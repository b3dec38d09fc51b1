"""Compiled CPU kernels (numba). Points run along the inner loops, so that the compiler turns them into SIMD code.

Every kernel has a plain torch counterpart, which serves when numba is not installed, on GPUs, and as the test.
"""

import math
from typing import Any

import numpy as np

try:
    from numba import njit
except ImportError:  # the torch counterparts take over
    njit = None  # type: ignore[assignment]

AVAILABLE = njit is not None

WIDTH = 128  # points in one block: all temporaries of a block stay in the first-level cache
ROUND = 1.5 * 2.0**52  # adding and subtracting it rounds to the nearest integer
LOG2_E = 1 / math.log(2)
LN2_HIGH = float.fromhex("0x1.62e42fefa0000p-1")
LN2_LOW = float.fromhex("0x1.cf79abc9e3b39p-40")
LOWEST_EXPONENT = -700.0
EXPONENT_BITS = 0x7FF << 52
EXP = np.array([1 / math.factorial(k) for k in range(14)])
SIN_PI = np.array([(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(11)])
COS_PI = np.array([(-1) ** k * math.pi ** (2 * k) / math.factorial(2 * k) for k in range(11)])


def compiled(function: Any) -> Any:
    """Compile without reassociation: the rounding tricks rely on the order of operations."""
    if njit is None:
        return function
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract", "nsz"}}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in
        return njit(**options)(function)


# All work space is one array w (rows, WIDTH); functions get row numbers, since views would cost reference counts.


@compiled
def exp_row(w, exponent, shifted, mantissa, result):
    """Row result = exp(row exponent), to about one unit in the last place; below −700 it is cut off."""
    for b in range(WIDTH):
        e = max(w[exponent, b], LOWEST_EXPONENT)
        t = e * LOG2_E + ROUND
        k = t - ROUND
        r = (e - k * LN2_HIGH) - k * LN2_LOW
        p = EXP[13]
        for j in range(12, -1, -1):
            p = p * r + EXP[j]
        w[shifted, b] = t
        w[mantissa, b] = p
    bits = w.view(np.int64)
    for b in range(WIDTH):
        bits[result, b] = bits[mantissa, b] + (bits[shifted, b] << 52)


@compiled
def sin_cos_row(w, turns, sines, cosines):
    """Sine and cosine of 2π·turns, from the half angle: sin 2a = 2 sin a cos a, cos 2a = 1 − 2 sin² a."""
    for b in range(WIDTH):
        f = w[turns, b] - ((w[turns, b] + ROUND) - ROUND)
        f2 = f * f
        s, c = SIN_PI[10], COS_PI[10]
        for j in range(9, -1, -1):
            s = s * f2 + SIN_PI[j]
            c = c * f2 + COS_PI[j]
        s = s * f
        w[sines, b] = 2 * s * c
        w[cosines, b] = 1 - 2 * s * s


@compiled
def add_cosine(w, total, size, turns):
    """total += size · cos(2π·turns)."""
    for b in range(WIDTH):
        f = w[turns, b] - ((w[turns, b] + ROUND) - ROUND)
        f2 = f * f
        s = SIN_PI[10]
        for j in range(9, -1, -1):
            s = s * f2 + SIN_PI[j]
        s = s * f
        w[total, b] += size * (1 - 2 * s * s)


@compiled
def fill(w, target, value):
    """Row target = value."""
    for b in range(WIDTH):
        w[target, b] = value


@compiled
def add_scaled(w, target, factor, source):
    """Row target += factor · row source."""
    if factor != 0.0:
        for b in range(WIDTH):
            w[target, b] += factor * w[source, b]


@compiled
def combine(w, target, matrix, i, source):
    """Row target = Σ_j matrix_ij · row (source + j)."""
    fill(w, target, 0.0)
    for j in range(matrix.shape[1]):
        add_scaled(w, target, matrix[i, j], source + j)


@compiled
def change_basis(z, begin, count, geometry, w, whole, low, c, n0, s, spare):
    """whole = zU (phase II: z modulo 2π), and the same as s + low with s exact; c, n0 and spare are work space."""
    grid_factor, two_pi, U = geometry[:3]
    g = U.shape[0]
    fill(w, spare, 0.0)
    for i in range(g):
        fill(w, s + i, 0.0)
        fill(w, low + i, 0.0)
        for b in range(count):
            w[c + i, b] = z[begin + b, i]
            w[whole + i, b] = 0.0
        if two_pi[0] != 0.0:  # phase II: z modulo 2π, and its rounding error
            for b in range(WIDTH):
                periods = (w[c + i, b] * (1 / (2 * math.pi)) + ROUND) - ROUND
                exact = w[c + i, b] - periods * two_pi[0]
                w[c + i, b] = exact - periods * two_pi[1]
                w[whole + i, b] = ((exact - w[c + i, b]) - periods * two_pi[1]) - periods * two_pi[2]
        for b in range(WIDTH):
            w[spare, b] = max(w[spare, b], abs(w[c + i, b]))
    bits = w.view(np.int64)
    for b in range(WIDTH):
        bits[spare, b] &= EXPONENT_BITS  # the power of two below the largest coordinate
    for j in range(g):
        for b in range(WIDTH):
            grid = grid_factor * w[spare, b]
            coarse = (w[c + j, b] + grid) - grid
            w[whole + j, b] += w[c + j, b] - coarse
            w[n0, b] = coarse
        for i in range(g):
            add_scaled(w, s + i, U[j, i], n0)
            add_scaled(w, low + i, U[j, i], whole + j)
    for i in range(g):
        for b in range(WIDTH):
            w[whole + i, b] = w[s + i, b] + w[low + i, b]


@compiled
def recentre(geometry, w, whole, low, c, n0, s, spare):
    """Nearest plane: n0, and s + low minus n0 in the place of s (`remove_periods`); c and spare are work space."""
    centre, plane, periods, finer = geometry[3], geometry[4], geometry[5], geometry[6]
    g = plane.shape[0]
    for i in range(g - 1, -1, -1):
        combine(w, c + i, centre, i, whole)
        for b in range(WIDTH):
            w[spare, b] = w[c + i, b]
        for j in range(i + 1, g):
            add_scaled(w, spare, plane[i, j], c + j)
        for b in range(WIDTH):
            w[n0 + i, b] = (w[spare, b] + ROUND) - ROUND
            w[c + i, b] -= w[n0 + i, b]
    for i in range(g):
        for j in range(g):
            add_scaled(w, s + i, -periods[j, i], n0 + j)
        for j in range(g):
            add_scaled(w, low + i, -finer[j, i], n0 + j)
        add_scaled(w, s + i, 1.0, low + i)


@compiled
def add_term(points, t, n_osc, log_size, turns, order, w, x, work, total, first, second):
    """Add term t and its derivatives in x to the sums of one block; oscillating coordinates of x are in turns."""
    argument, shifted, mantissa, size, sines = work, work + 1, work + 2, work + 3, work + 4
    g = points.shape[1]
    oscillates, grows = False, False
    for j in range(g):
        if points[t, j] != 0.0:
            oscillates, grows = oscillates or j < n_osc, grows or j >= n_osc
    if grows:
        fill(w, argument, log_size)
        for j in range(n_osc, g):
            add_scaled(w, argument, points[t, j], x + j)
        exp_row(w, argument, shifted, mantissa, size)
    if oscillates:
        fill(w, argument, turns)
        for j in range(n_osc):
            add_scaled(w, argument, points[t, j], x + j)
        if order == 0 and not grows:
            add_cosine(w, total, math.exp(log_size), argument)
            return
        if not grows:
            fill(w, size, math.exp(log_size))
        sin_cos_row(w, argument, sines, mantissa)
        for b in range(WIDTH):
            w[sines, b] *= -w[size, b]
            w[size, b] *= w[mantissa, b]
    add_scaled(w, total, 1.0, size)
    if order == 0:
        return
    for i in range(g):
        if points[t, i] == 0.0:
            continue
        if i >= n_osc:
            add_scaled(w, first + i, points[t, i], size)
        elif oscillates:
            add_scaled(w, first + i, points[t, i], sines)
        for j in range(i + 1 if order == 2 else 0):
            product = points[t, i] * points[t, j]
            if i < n_osc or j >= n_osc:
                add_scaled(w, second + i * g + j, -product if i < n_osc else product, size)
            elif product != 0.0:
                add_scaled(w, second + i * g + j, product, sines)


@compiled
def write_covariance(w, first, second, constant, back, row, result, begin, count):
    """result = constant + M(second − first firstᵀ)Mᵀ with M = back; second holds its lower triangle."""
    g = back.shape[0]
    for i in range(g):
        for j in range(i + 1):
            for b in range(WIDTH):
                w[second + i * g + j, b] -= w[first + i, b] * w[first + j, b]
    for k in range(g):
        for i in range(g):
            fill(w, row + i, 0.0)
            for j in range(g):
                add_scaled(w, row + i, back[k, j], second + max(i, j) * g + min(i, j))
        for i in range(k + 1):
            fill(w, row + g, constant[i, k])
            for j in range(g):
                add_scaled(w, row + g, back[i, j], row + j)
            for b in range(count):
                result[begin + b, i, k] = w[row + g, b]
                result[begin + b, k, i] = w[row + g, b]


@compiled
def write_value(w, whole, n0, s, x, Z, spare, slope, constant, is_first_phase, log_part, total, begin, count):
    """log θ̃ = log_part + log total: constant, ½sᵀKs with Ks = slope ∘ x, and in phase I ½n₀·(z + s)."""
    fill(w, spare, constant)
    for i in range(slope.shape[0]):
        if slope[i] != 0.0:
            for b in range(WIDTH):
                w[spare, b] += 0.5 * slope[i] * w[s + i, b] * w[x + i, b]
        if is_first_phase:
            for b in range(WIDTH):
                w[spare, b] += 0.5 * w[n0 + i, b] * (w[whole + i, b] + w[s + i, b])
    for b in range(count):
        log_part[begin + b] = w[spare, b]
        total[begin + b] = w[Z, b]


@compiled
def write_mean(w, n0, x, first, spare, U, slope, back, is_first_phase, result, begin, count):
    """result = U(n₀ + Ks) + M·first with M = back; without n₀ in phase II."""
    for i in range(U.shape[0]):
        fill(w, spare, 0.0)
        for j in range(U.shape[1] if is_first_phase else 0):  # first, since integers do not round
            add_scaled(w, spare, U[i, j], n0 + j)
        for j in range(U.shape[1]):
            add_scaled(w, spare, U[i, j] * slope[j], x + j)
            add_scaled(w, spare, back[i, j], first + j)
        for b in range(count):
            result[begin + b, i] = w[spare, b]


@compiled
def fused_moments(z, start, stop, geometry, form, n_osc, terms, order, log_part, total, mean, covariance):
    """log θ̃ = log_part + log total for the points start…stop, with mean (order ≥ 1) and covariance (order 2).

    One pass: basis change, nearest plane, the terms in the list, and the way back to the user's coordinates. In `form`,
    B has its oscillating rows in turns, Ks = slope ∘ x, back = UBᵀ and curvature = UKUᵀ.
    """
    B, slope, back, curvature, constant = form
    points, log_size, turns = terms
    U = geometry[2]
    is_first_phase = geometry[1][0] == 0.0
    g = U.shape[0]
    whole, low, c, n0, s, x, first, second = 0, g, 2 * g, 3 * g, 4 * g, 5 * g, 6 * g, 7 * g
    row, work, Z = 7 * g + g * g, 8 * g + g * g + 1, 8 * g + g * g + 6
    w = np.zeros((Z + 1, WIDTH))
    for begin in range(start, stop, WIDTH):
        count = min(WIDTH, stop - begin)
        change_basis(z, begin, count, geometry, w, whole, low, c, n0, s, work)
        recentre(geometry, w, whole, low, c, n0, s, work)
        for i in range(g):
            combine(w, x + i, B, i, s)
        if order > 0:
            w[first : first + g + g * g] = 0.0
        fill(w, Z, 1.0)
        for t in range(points.shape[0]):
            add_term(points, t, n_osc, log_size[t], turns[t], order, w, x, work, Z, first, second)
        write_value(w, whole, n0, s, x, Z, work, slope, constant, is_first_phase, log_part, total, begin, count)
        if order == 0:
            continue
        for b in range(WIDTH):
            w[Z, b] = 1 / w[Z, b]
        for i in range(g + g * g):
            for b in range(WIDTH):
                w[first + i, b] *= w[Z, b]
        write_mean(w, n0, x, first, work, U, slope, back, is_first_phase, mean, begin, count)
        if order == 2:
            write_covariance(w, first, second, curvature, back, row, covariance, begin, count)


@compiled
def tabulate_powers(w, base, reach, table):
    """Complex powers −reach…reach of a number of modulus one; w[table + 2(reach + p)] and the next row hold power p."""
    origin = table + 2 * reach
    fill(w, origin, 1.0)
    fill(w, origin + 1, 0.0)
    for p in range(1, reach + 1):
        a, b, c = origin + 2 * (p // 2), origin + 2 * (p - p // 2), origin + 2 * p
        if p == 1:
            copy_complex(w, c, base)
        else:
            multiply_complex(w, c, a, b)
        mirror = origin - 2 * p
        for k in range(WIDTH):
            w[mirror, k] = w[c, k]
            w[mirror + 1, k] = -w[c + 1, k]


@compiled
def copy_complex(w, target, source):
    """Copy a complex number (two rows)."""
    for b in range(WIDTH):
        w[target, b] = w[source, b]
        w[target + 1, b] = w[source + 1, b]


@compiled
def multiply_complex(w, target, left, right):
    """Complex product of numbers that each take two rows."""
    for b in range(WIDTH):
        re = w[left, b] * w[right, b] - w[left + 1, b] * w[right + 1, b]
        im = w[left, b] * w[right + 1, b] + w[left + 1, b] * w[right, b]
        w[target, b] = re
        w[target + 1, b] = im


@compiled
def write_complex(w, left, right, re, im, real, imag, t, begin, count):
    """Row t of real + i·imag = (re + i·im) · left · right, for one block of points."""
    for b in range(count):
        x = w[left, b] * w[right, b] - w[left + 1, b] * w[right + 1, b]
        y = w[left, b] * w[right + 1, b] + w[left + 1, b] * w[right, b]
        real[t, begin + b] = x * re - y * im
        imag[t, begin + b] = x * im + y * re


@compiled
def tabulate_exponentials(w, x, half, reach, table, spare):
    """Real exponentials exp(p·x − p²·half), p = −reach…reach, in every second row of the table."""
    for p in range(-reach, reach + 1):
        fill(w, spare, -p * p * half)
        add_scaled(w, spare, float(p), x)
        exp_row(w, spare, spare + 1, spare + 2, table + 2 * (reach + p))


@compiled
def fill_exponentials(x, points, reach, n_osc, half, start_real, start_imag, real, imag):
    """real + i·imag = start · exp(m·x − m²·half), with x → ix where it oscillates; `points` is sorted.

    x is (g, N), the result (terms, N). Powers of exp(x_j) are tabulated, and a row starts from the product of the
    coordinates that it shares with the row before.
    """
    terms, g = points.shape
    tables = np.zeros(g + 1, dtype=np.int64)
    for j in range(g):
        tables[j + 1] = tables[j] + 2 * (2 * reach[j] + 1)
    prefix, work = tables[g], tables[g] + 2 * g
    w = np.zeros((work + 6, WIDTH))
    fill(w, prefix, 1.0)
    for begin in range(0, x.shape[1], WIDTH):
        count = min(WIDTH, x.shape[1] - begin)
        for j in range(g):
            for b in range(count):
                w[work, b] = x[j, begin + b]
            if j < n_osc:
                fill(w, work + 1, 0.0)
                add_scaled(w, work + 1, 1 / (2 * math.pi), work)
                sin_cos_row(w, work + 1, work + 3, work + 2)
                tabulate_powers(w, work + 2, reach[j], tables[j])
            else:
                tabulate_exponentials(w, work, half[j], reach[j], tables[j], work + 1)
        for t in range(terms):
            j = 0
            while t > 0 and j < g - 1 and points[t, j] == points[t - 1, j]:
                j += 1
            while j < g - 1:
                source, factor = prefix + 2 * j, tables[j] + 2 * (reach[j] + points[t, j])
                multiply_complex(w, source + 2, source, factor)
                j += 1
            source, factor = prefix + 2 * j, tables[j] + 2 * (reach[j] + points[t, j])
            if n_osc:
                write_complex(w, source, factor, start_real[t], start_imag[t], real, imag, t, begin, count)
            else:
                for b in range(count):
                    real[t, begin + b] = w[source, b] * w[factor, b] * start_real[t]
