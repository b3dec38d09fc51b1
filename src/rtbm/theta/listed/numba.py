"""The sum over a list of lattice points in one compiled CPU pass: from the argument to log θ̃, mean and covariance.

A work space holds rows of points, so that the compiler makes SIMD code: a coordinate of 128 points is one row.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives, moment_gradients
from rtbm.theta.kernels import ROUND, ROW_WIDTH, compiled, exponential, sine_cosine
from rtbm.theta.local import LocalSum

EXPONENT_BITS = 0x7FF << 52
"""The bits of a float64 that hold its exponent."""


class NumbaList:
    """log θ̃ of near arguments, and its first two derivatives, without graph; see `derivatives.CompiledSum`."""

    def __init__(self, lattice: LocalSum, torch_log_theta: Callable[[Tensor, Tensor], Tensor]):
        self.lattice, self.torch_log_theta = lattice, torch_log_theta

    def moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,) for z (points, g), and up to `order` ≤ 2 mean (points, g) and covariance (points, g, g)."""
        argument, lattice = z.detach().double().contiguous().numpy(), self.lattice
        N, g = argument.shape
        value, Z, mean = np.empty(N), np.empty(N), np.empty((N if order > 0 else 0, g))
        covariance = np.empty((N if order > 1 else 0, g, g))
        M, numbers = np.split(lattice.numbers, [8 * g * g])
        fixed = M.reshape(8, g, g), numbers, lattice.terms, lattice.n_osc, lattice.phase == "I", order
        run_threads(lambda start, stop: list_pass(argument, start, stop, *fixed, value, Z, mean, covariance), N)
        log_theta = torch.from_numpy(value).add_(torch.from_numpy(Z).log_())
        return log_theta, *(torch.from_numpy(array) for array in (mean, covariance)[:order])

    start = moments  # the gradients need no more

    def gradients(self, _: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """See `derivatives.CompiledSum`."""
        return moment_gradients(grad, kept[0], kept[1] if len(kept) > 1 else None, self.lattice.phase)


@compiled
def add_row(w, target, factor, source):
    """Row target += factor · row source."""
    if factor != 0.0:
        for b in range(w.shape[1]):
            w[target, b] += factor * w[source, b]


@compiled
def localise(z, begin, count, M, numbers, n_osc, is_first, w, value):
    """The local arguments x of the points begin…begin + count, and log θ̃ − log Z as `value`.

    The first 6g + 1 rows of w become c, low, s, whole, n₀ and x, and work space. Where it oscillates, x is in turns.
    This is `local.LocalSum.localise` for near arguments.
    """
    g = M.shape[1]
    c, low, s, whole, n0, x, spare = 0, g, 2 * g, 3 * g, 4 * g, 5 * g, 6 * g
    w[: 6 * g + 1] = 0.0
    for i in range(g):
        for b in range(count):
            w[c + i, b] = z[begin + b, i]
        if not is_first:  # z modulo 2π, and its rounding error
            for b in range(w.shape[1]):
                periods = (w[c + i, b] * (1 / TWO_PI) + ROUND) - ROUND
                exact = w[c + i, b] - periods * TWO_PI_PARTS[0]
                w[c + i, b] = exact - periods * TWO_PI_PARTS[1]
                w[low + i, b] = ((exact - w[c + i, b]) - periods * TWO_PI_PARTS[1]) - periods * TWO_PI_PARTS[2]
        for b in range(w.shape[1]):
            w[spare, b] = max(w[spare, b], abs(w[c + i, b]))
    bits = w.view(np.int64)
    for b in range(w.shape[1]):  # the power of two below the largest coordinate
        bits[spare, b] &= EXPONENT_BITS
        w[spare, b] *= numbers[g]
    for j in range(g):  # zU as an exact part s, and a rest: in x, until x is known
        for b in range(w.shape[1]):
            coarse = (w[c + j, b] + w[spare, b]) - w[spare, b]
            w[low + j, b] += w[c + j, b] - coarse
            w[c + j, b] = coarse
        for i in range(g):
            add_row(w, s + i, M[0, j, i], c + j)
            add_row(w, x + i, M[0, j, i], low + j)
    for i in range(g):
        for b in range(w.shape[1]):
            w[whole + i, b] = w[s + i, b] + w[x + i, b]
    for i in range(g - 1, -1, -1):  # nearest plane: c becomes what is left of the lattice coordinates
        w[c + i] = 0.0
        for j in range(g):
            add_row(w, c + i, M[1, i, j], whole + j)
        for b in range(w.shape[1]):
            w[spare, b] = w[c + i, b]
        for j in range(i + 1, g):
            add_row(w, spare, M[2, i, j], c + j)
        for b in range(w.shape[1]):
            w[n0 + i, b] = (w[spare, b] + ROUND) - ROUND
            w[c + i, b] -= w[n0 + i, b]
    for i in range(g):
        for j in range(g):
            add_row(w, s + i, -M[3, j, i], n0 + j)
        for j in range(g):
            add_row(w, x + i, -M[4, j, i], n0 + j)
        add_row(w, s + i, 1.0, x + i)
    w[spare] = numbers[g + 1]
    for i in range(g):
        w[x + i] = 0.0
        for j in range(g):
            add_row(w, x + i, M[5, i, j], s + j)
        for b in range(w.shape[1]):
            offset = w[n0 + i, b] * (w[whole + i, b] + w[s + i, b]) if is_first else 0.0
            w[spare, b] += 0.5 * (numbers[i] * w[s + i, b] * w[x + i, b] + offset)
    for b in range(count):
        value[begin + b] = w[spare, b]


@compiled
def list_pass(z, start, stop, M, numbers, terms, n_osc, is_first, order, value, Z, mean, covariance):
    """log θ̃ − log Z and Z for the points start…stop, with mean (order ≥ 1) and covariance (order 2)."""
    g = M.shape[1]
    n0, x, argument, size, sines, total = 4 * g, 5 * g, 6 * g, 6 * g + 1, 6 * g + 2, 6 * g + 3
    first, second = total + 1, total + 1 + g
    w = np.zeros((second + g * g if order > 1 else second, min(ROW_WIDTH, stop - start)))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        localise(z, begin, count, M, numbers, n_osc, is_first, w, value)
        w[total:] = 0.0
        w[total] = 1.0
        for t in range(len(terms)):
            oscillates, grows, log_size = False, False, terms[t, g]
            for j in range(g):
                oscillates |= terms[t, j] != 0.0 and j < n_osc
                grows |= terms[t, j] != 0.0 and j >= n_osc
            w[size] = math.exp(log_size)
            if grows:
                w[argument] = log_size
                for j in range(n_osc, g):
                    add_row(w, argument, terms[t, j], x + j)
                for b in range(w.shape[1]):
                    w[size, b] = exponential(w[argument, b])
            if oscillates:
                w[argument] = terms[t, g + 1]
                for j in range(n_osc):
                    add_row(w, argument, terms[t, j], x + j)
                for b in range(w.shape[1] if order > 0 else 0):
                    sine, cosine = sine_cosine(w[argument, b] - ((w[argument, b] + ROUND) - ROUND))
                    w[sines, b] = -w[size, b] * sine
                    w[size, b] *= cosine
                for b in range(w.shape[1] if order == 0 else 0):  # without sine
                    w[size, b] *= sine_cosine(w[argument, b] - ((w[argument, b] + ROUND) - ROUND))[1]
            add_row(w, total, 1.0, size)
            for i in range(g if order > 0 else 0):
                add_row(w, first + i, terms[t, i], sines if i < n_osc else size)
                for j in range(i + 1 if order > 1 else 0):
                    product = terms[t, i] * terms[t, j] * (-1.0 if i < n_osc else 1.0)
                    add_row(w, second + i * g + j, product, sines if j < n_osc <= i else size)
        for b in range(count):
            Z[begin + b] = w[total, b]
        if order > 0:
            write_moments(w, M, numbers, is_first, order, begin, count, mean, covariance)


@compiled
def write_moments(w, M, numbers, is_first, order, begin, count, mean, covariance):
    """mean = U(n₀ + Ks) + back·first and covariance = curvature + back·(second − first·firstᵀ)·backᵀ over Z, at z."""
    g = M.shape[1]
    n0, x, total, row = 4 * g, 5 * g, 6 * g + 3, np.int64(0)  # rows of the work space, as in `list_pass`
    first, second = total + 1, total + 1 + g
    for i in range(first, len(w)):
        for b in range(w.shape[1]):
            w[i, b] /= w[total, b]
    for i in range(g):
        w[row] = 0.0
        for j in range(g if is_first else 0):  # first, since integers do not round
            add_row(w, row, M[0, i, j], n0 + j)
        for j in range(g):
            add_row(w, row, M[0, i, j] * numbers[j], x + j)
            add_row(w, row, M[6, i, j], first + j)
        for b in range(count):
            mean[begin + b, i] = w[row, b]
    if order < 2:
        return
    for i in range(g):
        for j in range(i + 1):
            for b in range(w.shape[1]):
                w[second + i * g + j, b] -= w[first + i, b] * w[first + j, b]
    for k in range(g):
        for i in range(g):
            w[row + i] = 0.0
            for j in range(g):
                add_row(w, row + i, M[6, k, j], second + max(i, j) * g + min(i, j))
        for i in range(k + 1):
            w[row + g] = M[7, i, k]
            for j in range(g):
                add_row(w, row + g, M[6, i, j], row + j)
            for b in range(count):
                covariance[begin + b, i, k] = w[row + g, b]
                covariance[begin + b, k, i] = w[row + g, b]
