"""The compiled evaluator: everything from the argument to log θ̃, mean and covariance in one pass over the points."""

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta import kernels
from rtbm.theta.block.cost import FUSED_DERIVATIVES, FUSED_POINT, FUSED_TERM
from rtbm.theta.block.evaluator import CompiledEvaluator
from rtbm.theta.block.planning import BASIS, CENTRE, PERIODS, PLANE, B, K
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import CompiledLogTheta, Derivatives
from rtbm.theta.kernels import ROUND, ROW_WIDTH, add_scaled_row, compiled, exp_row, fill_row, sin_cos_row

MAX_EXPONENT = 600.0
"""Evaluators that multiply exponentials, or do not shift them, serve blocks whose exponents stay below this. Beyond 709
they would overflow."""
EXPONENT_BITS = 0x7FF << 52
"""The bits of a float64 that hold its exponent."""


class FusedPass(CompiledEvaluator):
    """The pass on the CPU (numba)."""

    name = "fused"
    function = CompiledLogTheta

    def supports(self, device: torch.device) -> bool:
        """Whether numba is there and no term overflows."""
        return self.is_compiled and device.type == "cpu"

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """One compiled pass."""
        return n_points * (FUSED_POINT + self.n_terms * (FUSED_DERIVATIVES if derivatives else FUSED_TERM))

    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 2 for near arguments, without a graph."""
        return self._run(z, order)[0]

    def near_moments(self, z: Tensor, order: int) -> Derivatives | None:
        """The same; None if an argument is far, which the pass finds out."""
        found, largest = self._run(z, order)
        return found if all(part <= self.tensors.near_argument for part in largest) else None

    def _run(self, z: Tensor, order: int) -> tuple[Derivatives, list[float]]:
        """The results of the pass, and the largest |z| of each of its parts, or NaN."""
        argument = z.detach().double().contiguous().numpy()
        N, g = argument.shape
        results = np.empty(N), np.empty((N if order > 0 else 0, g)), np.empty((N if order > 1 else 0, g, g))
        largest = run_threads(lambda start, stop: moment_pass(argument, start, stop, *self._sum, order, *results), N)
        return tuple(torch.from_numpy(array) for array in results[: order + 1]), largest

    @cached_property
    def _sum(self) -> tuple[Any, ...]:
        """What `moment_pass` takes to know the sum."""
        geometry = self.tensors.geometry
        return geometry.matrices, geometry.n_osc, self.phase == "I", geometry.constant, self.tensors.terms

    @cached_property
    def is_compiled(self) -> bool:
        """Whether numba is there and no term overflows."""
        return kernels.AVAILABLE and self.tensors.geometry.largest_exponent < MAX_EXPONENT


@compiled
def change_basis(z, begin, count, M, is_first_phase, w, whole, low, c, n0, s, spare):
    """whole = zU (phase II: z modulo 2π), and the same as s + low with s exact; c, n0 and spare are work space.

    Returns the largest |z|, or NaN.
    """
    g = M.shape[1]
    largest, widest = 0.0, 0.0
    fill_row(w, spare, 0.0)
    for i in range(g):
        column = 0.0
        for j in range(g):
            column += abs(M[BASIS, j, i])
        widest = max(widest, column)
        fill_row(w, s + i, 0.0)
        fill_row(w, low + i, 0.0)
        fill_row(w, whole + i, 0.0)
        for b in range(count):
            w[c + i, b] = z[begin + b, i]
            if not abs(w[c + i, b]) <= largest and largest == largest:  # NaN stays
                largest = abs(w[c + i, b])
        if not is_first_phase:  # z modulo 2π, and its rounding error
            for b in range(w.shape[1]):
                periods = (w[c + i, b] * (1 / TWO_PI) + ROUND) - ROUND
                exact = w[c + i, b] - periods * TWO_PI_PARTS[0]
                w[c + i, b] = exact - periods * TWO_PI_PARTS[1]
                w[whole + i, b] = ((exact - w[c + i, b]) - periods * TWO_PI_PARTS[1]) - periods * TWO_PI_PARTS[2]
        for b in range(w.shape[1]):
            w[spare, b] = max(w[spare, b], abs(w[c + i, b]))
    factor = 3 * 2.0 ** math.ceil(math.log2(widest) + 1)  # twice `exact.grid_factor`
    bits = w.view(np.int64)
    for b in range(w.shape[1]):
        bits[spare, b] &= EXPONENT_BITS  # the power of two below the largest coordinate
    for j in range(g):
        for b in range(w.shape[1]):
            grid = factor * w[spare, b]
            coarse = (w[c + j, b] + grid) - grid
            w[whole + j, b] += w[c + j, b] - coarse
            w[n0, b] = coarse
        for i in range(g):
            add_scaled_row(w, s + i, M[BASIS, j, i], n0)
            add_scaled_row(w, low + i, M[BASIS, j, i], whole + j)
    for i in range(g):
        for b in range(w.shape[1]):
            w[whole + i, b] = w[s + i, b] + w[low + i, b]
    return largest


@compiled
def recentre(M, w, whole, low, c, n0, s, spare):
    """Nearest plane: n0, and s + low minus n0 in the place of s (`remove_periods`); c and spare are work space."""
    g = M.shape[1]
    for i in range(g - 1, -1, -1):
        combine(w, c + i, M[CENTRE], i, whole)
        for b in range(w.shape[1]):
            w[spare, b] = w[c + i, b]
        for j in range(i + 1, g):
            add_scaled_row(w, spare, M[PLANE, i, j], c + j)
        for b in range(w.shape[1]):
            w[n0 + i, b] = (w[spare, b] + ROUND) - ROUND
            w[c + i, b] -= w[n0 + i, b]
    for i in range(g):
        for j in range(g):
            add_scaled_row(w, s + i, -M[PERIODS, j, i], n0 + j)
        for j in range(g):
            add_scaled_row(w, low + i, -(M[PERIODS + 1, j, i] + M[PERIODS + 2, j, i]), n0 + j)
        add_scaled_row(w, s + i, 1.0, low + i)


@compiled
def combine(w, target, A, i, source):
    """Row target = Σ_j A_ij · row (source + j)."""
    fill_row(w, target, 0.0)
    for j in range(A.shape[1]):
        add_scaled_row(w, target, A[i, j], source + j)


@compiled
def local_argument(z, begin, count, M, n_osc, is_first_phase, constant, w, work, value):
    """The local arguments x of the points begin…begin + count, and what log θ̃ has beside their sums as `value`.

    The first 6g rows of w become whole, low, c, n₀, s and x, and two rows from `work` on are work space. Where it
    oscillates, x is in turns. Returns the largest |z|, or NaN.
    """
    g = M.shape[1]
    whole, low, c, n0, s, x = np.int64(0), g, 2 * g, 3 * g, 4 * g, 5 * g
    largest = change_basis(z, begin, count, M, is_first_phase, w, whole, low, c, n0, s, work)
    recentre(M, w, whole, low, c, n0, s, work)
    fill_row(w, work, constant)  # and ½sᵀKs, and in phase I ½n₀·(z + s)
    for i in range(g):
        combine(w, x + i, M[B], i, s)
        combine(w, work + 1, M[K], i, s)
        for b in range(w.shape[1]):
            offset = w[n0 + i, b] * (w[whole + i, b] + w[s + i, b]) if is_first_phase else 0.0
            w[work, b] += 0.5 * (w[s + i, b] * w[work + 1, b] + offset)
        if i < n_osc:
            for b in range(w.shape[1]):
                w[x + i, b] /= TWO_PI
    for b in range(count):
        value[begin + b] = w[work, b]
    return largest


@compiled
def add_term(points, t, n_osc, order, w, x, work, total, first, second):
    """Add row t of `planning.list_terms`, and its derivatives in x, to the sums; oscillating x are in turns."""
    argument, cosines, size, sines = work, work + 1, work + 2, work + 3
    g = points.shape[1] - 2
    log_size, turns = points[t, g], points[t, g + 1]
    oscillates, grows = False, False
    for j in range(g):
        if points[t, j] != 0.0:
            oscillates, grows = oscillates or j < n_osc, grows or j >= n_osc
    if grows:
        fill_row(w, argument, log_size)
        for j in range(n_osc, g):
            add_scaled_row(w, argument, points[t, j], x + j)
        exp_row(w, argument, size)
    if oscillates:
        fill_row(w, argument, turns)
        for j in range(n_osc):
            add_scaled_row(w, argument, points[t, j], x + j)
        if order == 0 and not grows:
            kernels.add_cosine(w, total, math.exp(log_size), argument)
            return
        if not grows:
            fill_row(w, size, math.exp(log_size))
        sin_cos_row(w, argument, sines, cosines)
        for b in range(w.shape[1]):
            w[sines, b] *= -w[size, b]
            w[size, b] *= w[cosines, b]
    add_scaled_row(w, total, 1.0, size)
    if order == 0:
        return
    for i in range(g):
        if points[t, i] == 0.0:
            continue
        if i >= n_osc:
            add_scaled_row(w, first + i, points[t, i], size)
        elif oscillates:
            add_scaled_row(w, first + i, points[t, i], sines)
        for j in range(i + 1 if order == 2 else 0):
            product = points[t, i] * points[t, j]
            if i < n_osc or j >= n_osc:
                add_scaled_row(w, second + i * g + j, -product if i < n_osc else product, size)
            elif product != 0.0:
                add_scaled_row(w, second + i * g + j, product, sines)


@compiled
def write_covariance(w, first, second, back, curvature, row, result, begin, count):
    """result = curvature + M(second − first firstᵀ)Mᵀ with M = back; second holds its lower triangle."""
    g = len(back)
    for i in range(g):
        for j in range(i + 1):
            for b in range(w.shape[1]):
                w[second + i * g + j, b] -= w[first + i, b] * w[first + j, b]
    for k in range(g):
        for i in range(g):
            fill_row(w, row + i, 0.0)
            for j in range(g):
                add_scaled_row(w, row + i, back[k, j], second + max(i, j) * g + min(i, j))
        for i in range(k + 1):
            fill_row(w, row + g, curvature[i, k])
            for j in range(g):
                add_scaled_row(w, row + g, back[i, j], row + j)
            for b in range(count):
                result[begin + b, i, k] = w[row + g, b]
                result[begin + b, k, i] = w[row + g, b]


@compiled
def moment_pass(z, start, stop, M, n_osc, is_first_phase, constant, terms, order, value, mean, covariance):
    """log θ̃ for the points start…stop, with mean (order ≥ 1) and covariance (order 2); returns the largest |z| or NaN.

    One pass: basis change, nearest plane, the terms in the list, and the way back to the user's coordinates. M and
    `terms` come from `planning`.
    """
    g = M.shape[1]
    n0, s, x, first, second = 3 * g, 4 * g, 5 * g, 6 * g, 7 * g  # rows of the work space, see `local_argument`
    row, work = 7 * g + (g * g if order > 1 else 0), 8 * g + 1 + (g * g if order > 1 else 0)
    Z = work + 4
    w = np.zeros((Z + 1, min(ROW_WIDTH, stop - start)))
    # back = UBᵀ and curvature = UKUᵀ
    back, half, curvature = np.zeros((g, g)), np.zeros((g, g)), np.zeros((g, g))
    for i in range(g if order > 0 else 0):
        for j in range(g):
            for k in range(g):
                back[i, j] += M[BASIS, i, k] * M[B, j, k]
                half[i, j] += M[BASIS, i, k] * M[K, k, j]
    for i in range(g if order > 1 else 0):
        for j in range(g):
            for k in range(g):
                curvature[i, j] += half[i, k] * M[BASIS, j, k]
    largest = 0.0
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        reach = local_argument(z, begin, count, M, n_osc, is_first_phase, constant, w, work, value)
        if not reach <= largest and largest == largest:
            largest = reach
        for i in range(first, first + (0, g, g + g * g)[order]):
            fill_row(w, i, 0.0)
        fill_row(w, Z, 1.0)
        for t in range(terms.shape[0]):
            add_term(terms, t, n_osc, order, w, x, work, Z, first, second)
        kernels.log_row(w, Z, work)
        for b in range(count):
            value[begin + b] += w[work, b]
            w[Z, b] = 1 / w[Z, b]
        for i in range(first, first + (0, g, g + g * g)[order]):
            for b in range(w.shape[1]):
                w[i, b] *= w[Z, b]
        for i in range(g if order > 0 else 0):  # U(n₀ + Ks) + UBᵀ·first, without n₀ in phase II
            fill_row(w, work, 0.0)
            for j in range(g if is_first_phase else 0):  # first, since integers do not round
                add_scaled_row(w, work, M[BASIS, i, j], n0 + j)
            for j in range(g):
                add_scaled_row(w, work, half[i, j], s + j)
                add_scaled_row(w, work, back[i, j], first + j)
            for b in range(count):
                mean[begin + b, i] = w[work, b]
        if order > 1:
            write_covariance(w, first, second, back, curvature, row, covariance, begin, count)
    return largest
