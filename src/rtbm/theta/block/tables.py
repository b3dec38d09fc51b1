"""Compiled parts of the split product: tables of exponentials, and the passes before and after the matrix product.

An entry Π_j exp(m_j x_j − m_j²·half_j), or exp(2πi·m_j x_j) where a coordinate oscillates, is a product of powers that
are tabulated once for a row of points. A complex number takes two rows of the work space.
"""

import numpy as np
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.block.numba import local_argument
from rtbm.theta.chunks import run_threads
from rtbm.theta.kernels import ROW_WIDTH, add_scaled_row, compiled, exp_row, fill_row, log_row, sin_cos_row

FILL_PIECE = 16
"""Entries of a table that take as long as an elementary piece of work of `chunks.run_threads`."""


def fill_table(x: Tensor, points: Tensor, curvature: Tensor, n_osc: int) -> tuple[Tensor, Tensor]:
    """The table of `block.product.exponentials` in double precision on the CPU."""
    real = x.new_empty(len(points), len(x))
    imaginary = x.new_empty(*(real.shape if n_osc else (0, 0)))
    units = x.new_ones(x.shape[1])
    units[:n_osc] /= TWO_PI
    arrays = (x.detach() * units).mT.contiguous(), points.long(), 0.5 * curvature, real, imaginary
    columns = [array.numpy() for array in arrays]
    run_threads(lambda start, stop: fill_pass(start, stop, n_osc, *columns), len(x), real.numel() // FILL_PIECE)
    return real, imaginary


@compiled
def fill_pass(start, stop, n_osc, x, points, half, real, imag):
    """The table real + i·imag (terms, N) of the local arguments x (g, N), in the columns start…stop."""
    w, reach, origins, prefix, work = power_space(points, 0)
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        for j in range(points.shape[1]):
            for b in range(count):
                w[work, b] = x[j, begin + b]
            tabulate(w, work, j < n_osc, half[j], reach[j], origins[j], work + 1)
        write_table(w, points, origins, prefix, n_osc > 0, real, imag, begin, count)


@compiled
def first_pass(z, M, n_osc, is_first_phase, constant, points, half, value, x, real, imag):
    """From the arguments z (N, g) to the table of the first coordinates.

    Also what log θ̃ has beside the sum, as `value` (N,), and the last coordinates of the local arguments, x.
    """
    g, a = M.shape[1], points.shape[1]
    w, reach, origins, prefix, work = power_space(points, 6 * g)
    local = 5 * g  # see `local_argument`
    for begin in range(0, len(value), ROW_WIDTH):
        count = min(ROW_WIDTH, len(value) - begin)
        local_argument(z, begin, count, M, n_osc, is_first_phase, constant, w, work, value)
        for j in range(a):
            tabulate(w, local + j, j < n_osc, half[j], reach[j], origins[j], work)
        write_table(w, points, origins, prefix, n_osc > 0, real, imag, begin, count)
        for j in range(a, g):
            for b in range(count):
                x[j - a, begin + b] = w[local + j, b]


@compiled
def last_pass(n_osc, x, points, half, real, imag, value):
    """Add log Σ_b Re E_b · real − Im E_b · imag to `value`, where E_b is the table of the last coordinates x."""
    w, reach, origins, prefix, work = power_space(points, 0)
    total = work + 1
    for begin in range(0, len(value), ROW_WIDTH):
        count = min(ROW_WIDTH, len(value) - begin)
        for j in range(points.shape[1]):
            for b in range(count):
                w[work, b] = x[j, begin + b]
            tabulate(w, work, j < n_osc, half[j], reach[j], origins[j], total)
        fill_row(w, total, 0.0)
        for t in range(len(points)):
            left, right = factors(w, points, t, origins, prefix)
            if n_osc:
                add_complex(w, total, left, right, real[t, begin : begin + count], imag[t, begin : begin + count])
            else:
                add_real(w, total, left, right, real[t, begin : begin + count])
        log_row(w, total, work)
        for b in range(count):
            value[begin + b] += w[work, b]


@compiled
def power_space(points, n_rows):
    """A work space with n_rows rows, tables of the powers of each coordinate, products of these, and two spare rows.

    Also the highest power of each coordinate, the row of its power 0, and the first rows of products and spare rows.
    """
    g = points.shape[1]
    reach, origins = np.zeros(g, dtype=np.int64), np.zeros(g, dtype=np.int64)
    for j in range(g):
        reach[j] = np.abs(points[:, j]).max()
        origins[j] = n_rows + 2 * reach[j]
        n_rows += 2 * (2 * reach[j] + 1)
    w = np.zeros((n_rows + 2 * g + 2, ROW_WIDTH))
    fill_row(w, n_rows, 1.0)
    return w, reach, origins, n_rows, n_rows + 2 * g


@compiled
def tabulate(w, x, oscillates, half, reach, origin, spare):
    """Tabulate the powers of a coordinate whose values are row x."""
    if oscillates:
        tabulate_powers(w, x, reach, origin)
    else:
        tabulate_exponentials(w, x, half, reach, origin, spare)


@compiled
def tabulate_powers(w, turns, reach, origin):
    """Powers −reach…reach of exp(2πi·turns): power p takes the row origin + 2p and the next one."""
    fill_row(w, origin, 1.0)
    fill_row(w, origin + 1, 0.0)
    if reach > 0:
        sin_cos_row(w, turns, origin + 3, origin + 2)
    for p in range(1, reach + 1):
        a, b, c = origin + 2 * (p // 2), origin + 2 * (p - p // 2), origin + 2 * p
        if p > 1:
            multiply_complex(w, c, a, b)
        mirror = origin - 2 * p
        for k in range(ROW_WIDTH):
            w[mirror, k] = w[c, k]
            w[mirror + 1, k] = -w[c + 1, k]


@compiled
def tabulate_exponentials(w, x, half, reach, origin, spare):
    """Real exponentials exp(p·x − p²·half), p = −reach…reach, in every second row."""
    for p in range(-reach, reach + 1):
        fill_row(w, spare, -p * p * half)
        add_scaled_row(w, spare, float(p), x)
        exp_row(w, spare, origin + 2 * p)


@compiled
def factors(w, points, t, origins, prefix):
    """Two rows whose product is entry t. Points are sorted: products that t shares with the entry before are kept."""
    last = points.shape[1] - 1
    j = 0
    while t > 0 and j < last and points[t, j] == points[t - 1, j]:
        j += 1
    while j < last:
        multiply_complex(w, prefix + 2 * j + 2, prefix + 2 * j, origins[j] + 2 * points[t, j])
        j += 1
    return prefix + 2 * last, origins[last] + 2 * points[t, last]


@compiled
def write_table(w, points, origins, prefix, is_complex, real, imag, begin, count):
    """Write all entries of a row of points."""
    for t in range(len(points)):
        left, right = factors(w, points, t, origins, prefix)
        if is_complex:
            write_complex(w, left, right, real[t, begin : begin + count], imag[t, begin : begin + count])
        else:
            write_real(w, left, right, real[t, begin : begin + count])


@compiled
def multiply_complex(w, target, left, right):
    """The product of two complex rows."""
    for b in range(ROW_WIDTH):
        re = w[left, b] * w[right, b] - w[left + 1, b] * w[right + 1, b]
        im = w[left, b] * w[right + 1, b] + w[left + 1, b] * w[right, b]
        w[target, b] = re
        w[target + 1, b] = im


# Below, real and imag are parts of a row of a table. Indices that are sums, as begin + b, would not become SIMD code.


@compiled
def write_complex(w, left, right, real, imag):
    """Make real + i·imag the product of two complex rows."""
    for b in range(len(real)):
        real[b] = w[left, b] * w[right, b] - w[left + 1, b] * w[right + 1, b]
        imag[b] = w[left, b] * w[right + 1, b] + w[left + 1, b] * w[right, b]


@compiled
def write_real(w, left, right, real):
    """Make `real` the product of two real rows."""
    for b in range(len(real)):
        real[b] = w[left, b] * w[right, b]


@compiled
def add_complex(w, total, left, right, real, imag):
    """Add Re(left·right)·real − Im(left·right)·imag to the row total."""
    for b in range(len(real)):
        re = w[left, b] * w[right, b] - w[left + 1, b] * w[right + 1, b]
        im = w[left, b] * w[right + 1, b] + w[left + 1, b] * w[right, b]
        w[total, b] += re * real[b] - im * imag[b]


@compiled
def add_real(w, total, left, right, real):
    """Add left·right·real to the row total."""
    for b in range(len(real)):
        w[total, b] += w[left, b] * w[right, b] * real[b]
