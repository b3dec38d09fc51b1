"""The compiled evaluator: everything from the argument to log θ̃, mean and covariance in one pass over the points.

Also the table of exponentials that the split product starts from.
"""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta import kernels
from rtbm.theta.block.cost import FUSED_POINT, FUSED_TERM
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.tensors import CPU, BlockTensors
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import CompiledLogTheta, Derivatives, wants_graph
from rtbm.theta.exact import grid_factor
from rtbm.theta.kernels import ROUND, ROW_WIDTH, add_scaled_row, compiled, exp_row, fill_row, sin_cos_row

MAX_EXPONENT = 600.0
"""Evaluators that multiply exponentials, or do not shift them, serve blocks whose exponents stay below this. Beyond 709
they would overflow."""
MAX_FUSED_SIZE = 4
"""The compiled pass serves blocks of up to so many coordinates. Larger ones have so many terms that a split product is
faster."""
EXPONENT_BITS = 0x7FF << 52
"""The bits of a float64 that hold its exponent."""


class FusedPass(Evaluator):
    """One pass for basis change, nearest plane, terms and the way back. It serves up to two derivatives on the CPU.

    Others, and graphs of derivatives, go through the list.
    """

    name = "fused"

    def __init__(self, tensors: BlockTensors, list_sum: Evaluator):
        super().__init__(tensors)
        self._list_sum = list_sum

    def supports(self, device: torch.device) -> bool:
        """Whether numba is there, the block is small and no term overflows."""
        return kernels.AVAILABLE and device.type == "cpu" and self._is_small

    def pays(self, z: Tensor) -> bool:
        """Near arguments only."""
        return super().pays(z) and not self.tensors.is_far(z)

    def cost(self, n_points: int) -> float:
        """One compiled pass."""
        return n_points * (FUSED_POINT + self.n_terms * FUSED_TERM)

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """See `Evaluator`."""
        return CompiledLogTheta.apply(z, Q, self) if wants_graph(z, Q) else self.fixed_moments(z, 0)[0]

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        if order == 0:
            return (self.log_theta(z, Q),)
        if order > 2 or wants_graph(z, Q):
            return self._list_sum.moments(z, Q, order)
        return self.fixed_moments(z, order)

    def torch_log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ in plain torch."""
        return self._list_sum.log_theta(z, Q)

    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 2, without a graph."""
        argument = z.detach().double().contiguous()
        N, g = argument.shape
        log_part, total = np.empty(N), np.empty(N)
        mean = np.empty((N if order > 0 else 0, g))
        covariance = np.empty((N if order > 1 else 0, g, g))
        lattice, constants = self._constants

        def run(start: int, stop: int) -> None:
            moment_pass(argument.numpy(), start, stop, lattice, *constants, order, log_part, total, mean, covariance)

        run_threads(run, N)
        results = (log_part + np.log(total), mean, covariance)
        return tuple(torch.from_numpy(array) for array in results[: order + 1])

    @cached_property
    def _is_small(self) -> bool:
        return self.tensors.g <= MAX_FUSED_SIZE and self.tensors.geometry.largest_exponent < MAX_EXPONENT

    @cached_property
    def _constants(self) -> tuple[Any, ...]:
        c = pass_constants(self.tensors)
        lattice = (c.grid_factor, c.two_pi, c.U, c.centre, c.plane, c.periods, c.finer)
        return lattice, ((c.B, c.slope, c.back, c.curvature, c.constant), c.n_osc, (c.points, c.log_size, c.turns))


class PassConstants(NamedTuple):
    """What a compiled pass needs to know of a block; `block.poisson` explains the symbols."""

    grid_factor: float
    two_pi: Floats  # (3,): 2π in parts in phase II, zeros in phase I
    U: Floats  # (g, g), as the next four
    centre: Floats
    plane: Floats
    periods: Floats
    finer: Floats
    B: Floats  # (g, g), with oscillating rows in turns
    slope: Floats  # (g,): Ks = slope ∘ x
    back: Floats  # (g, g): UBᵀ
    curvature: Floats  # (g, g): UKUᵀ
    constant: float
    n_osc: int
    points: Floats  # (terms, g), without zero, whose term is 1
    log_size: Floats  # (terms,)
    turns: Floats  # (terms,)


def pass_constants(tensors: BlockTensors) -> PassConstants:
    """The constants of a block as contiguous arrays."""
    geometry, form = tensors.geometry, tensors.fixed_form(CPU)
    o = geometry.n_osc
    points = geometry.points[(geometry.points != 0).any(axis=1)].astype(float)
    B, K, G, Psi = (matrix.numpy() for matrix in form[:4])
    U = geometry.basis.astype(float)
    oscillates = np.arange(tensors.g) < o
    units = np.where(oscillates, TWO_PI, 1.0)
    slope = np.where(oscillates, 1.0, 0.0) if tensors.phase == "I" else np.where(oscillates, 0.0, -1 / TWO_PI)
    log_size = np.log(1.0 + (points[:, :o] != 0).any(axis=1)) - 0.5 * np.einsum("ti,ij,tj->t", points, G, points)
    turns = 0.5 * np.einsum("ti,ij,tj->t", points, Psi, points) / TWO_PI
    two_pi = np.array(TWO_PI_PARTS if tensors.phase == "II" else (0.0, 0.0, 0.0))
    coarse, *finer = geometry.periods
    lattice = (geometry.basis, geometry.centre, geometry.plane, coarse, sum(finer))
    own = (2 * grid_factor(geometry.basis), two_pi, *(np.ascontiguousarray(array, dtype=float) for array in lattice))
    form_arrays = (B / units[:, None], slope, U @ B.T, U @ K @ U.T, float(form.constant))
    return PassConstants._make((*own, *form_arrays, o, points, log_size, turns))


def fill_table(
    x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, o: int
) -> tuple[Tensor, Tensor]:
    """The table of `block.torch.exponentials` in double precision on the CPU."""
    real = x.new_empty(len(points), len(x))
    imaginary = x.new_empty(*(real.shape if o else (0, 0)))
    integers = points.long()
    half = 0.5 * curvature.detach()
    half[:o] = 0.0
    size = (log_size.detach() + points**2 @ half).exp()
    fill_pass(
        x.detach().mT.contiguous().numpy(),
        integers.numpy(),
        integers.abs().amax(dim=0).numpy(),
        o,
        half.numpy(),
        (size * angle.detach().cos()).numpy(),
        (size * angle.detach().sin()).numpy(),
        real.numpy(),
        imaginary.numpy(),
    )
    return real, imaginary


@compiled
def change_basis(z, begin, count, geometry, w, whole, low, c, n0, s, spare):
    """whole = zU (phase II: z modulo 2π), and the same as s + low with s exact; c, n0 and spare are work space."""
    grid_factor, two_pi, U = geometry[:3]
    g = U.shape[0]
    fill_row(w, spare, 0.0)
    for i in range(g):
        fill_row(w, s + i, 0.0)
        fill_row(w, low + i, 0.0)
        for b in range(count):
            w[c + i, b] = z[begin + b, i]
            w[whole + i, b] = 0.0
        if two_pi[0] != 0.0:  # phase II: z modulo 2π, and its rounding error
            for b in range(ROW_WIDTH):
                periods = (w[c + i, b] * (1 / (2 * math.pi)) + ROUND) - ROUND
                exact = w[c + i, b] - periods * two_pi[0]
                w[c + i, b] = exact - periods * two_pi[1]
                w[whole + i, b] = ((exact - w[c + i, b]) - periods * two_pi[1]) - periods * two_pi[2]
        for b in range(ROW_WIDTH):
            w[spare, b] = max(w[spare, b], abs(w[c + i, b]))
    bits = w.view(np.int64)
    for b in range(ROW_WIDTH):
        bits[spare, b] &= EXPONENT_BITS  # the power of two below the largest coordinate
    for j in range(g):
        for b in range(ROW_WIDTH):
            grid = grid_factor * w[spare, b]
            coarse = (w[c + j, b] + grid) - grid
            w[whole + j, b] += w[c + j, b] - coarse
            w[n0, b] = coarse
        for i in range(g):
            add_scaled_row(w, s + i, U[j, i], n0)
            add_scaled_row(w, low + i, U[j, i], whole + j)
    for i in range(g):
        for b in range(ROW_WIDTH):
            w[whole + i, b] = w[s + i, b] + w[low + i, b]


@compiled
def recentre(geometry, w, whole, low, c, n0, s, spare):
    """Nearest plane: n0, and s + low minus n0 in the place of s (`remove_periods`); c and spare are work space."""
    centre, plane, periods, finer = geometry[3], geometry[4], geometry[5], geometry[6]
    g = plane.shape[0]
    for i in range(g - 1, -1, -1):
        kernels.combine(w, c + i, centre, i, whole)
        for b in range(ROW_WIDTH):
            w[spare, b] = w[c + i, b]
        for j in range(i + 1, g):
            add_scaled_row(w, spare, plane[i, j], c + j)
        for b in range(ROW_WIDTH):
            w[n0 + i, b] = (w[spare, b] + ROUND) - ROUND
            w[c + i, b] -= w[n0 + i, b]
    for i in range(g):
        for j in range(g):
            add_scaled_row(w, s + i, -periods[j, i], n0 + j)
        for j in range(g):
            add_scaled_row(w, low + i, -finer[j, i], n0 + j)
        add_scaled_row(w, s + i, 1.0, low + i)


@compiled
def add_term(points, t, n_osc, log_size, turns, order, w, x, work, total, first, second):
    """Add term t and its derivatives in x to the sums of one block; oscillating coordinates of x are in turns."""
    argument, cosines, size, sines = work, work + 1, work + 2, work + 3
    g = points.shape[1]
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
        for b in range(ROW_WIDTH):
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
def write_covariance(w, first, second, constant, back, row, result, begin, count):
    """result = constant + M(second − first firstᵀ)Mᵀ with M = back; second holds its lower triangle."""
    g = back.shape[0]
    for i in range(g):
        for j in range(i + 1):
            for b in range(ROW_WIDTH):
                w[second + i * g + j, b] -= w[first + i, b] * w[first + j, b]
    for k in range(g):
        for i in range(g):
            fill_row(w, row + i, 0.0)
            for j in range(g):
                add_scaled_row(w, row + i, back[k, j], second + max(i, j) * g + min(i, j))
        for i in range(k + 1):
            fill_row(w, row + g, constant[i, k])
            for j in range(g):
                add_scaled_row(w, row + g, back[i, j], row + j)
            for b in range(count):
                result[begin + b, i, k] = w[row + g, b]
                result[begin + b, k, i] = w[row + g, b]


@compiled
def write_value(w, whole, n0, s, x, Z, spare, slope, constant, is_first_phase, log_part, total, begin, count):
    """log θ̃ = log_part + log total: constant, ½sᵀKs with Ks = slope ∘ x, and in phase I ½n₀·(z + s)."""
    fill_row(w, spare, constant)
    for i in range(slope.shape[0]):
        if slope[i] != 0.0:
            for b in range(ROW_WIDTH):
                w[spare, b] += 0.5 * slope[i] * w[s + i, b] * w[x + i, b]
        if is_first_phase:
            for b in range(ROW_WIDTH):
                w[spare, b] += 0.5 * w[n0 + i, b] * (w[whole + i, b] + w[s + i, b])
    for b in range(count):
        log_part[begin + b] = w[spare, b]
        total[begin + b] = w[Z, b]


@compiled
def write_mean(w, n0, x, first, spare, U, slope, back, is_first_phase, result, begin, count):
    """result = U(n₀ + Ks) + M·first with M = back; without n₀ in phase II."""
    for i in range(U.shape[0]):
        fill_row(w, spare, 0.0)
        for j in range(U.shape[1] if is_first_phase else 0):  # first, since integers do not round
            add_scaled_row(w, spare, U[i, j], n0 + j)
        for j in range(U.shape[1]):
            add_scaled_row(w, spare, U[i, j] * slope[j], x + j)
            add_scaled_row(w, spare, back[i, j], first + j)
        for b in range(count):
            result[begin + b, i] = w[spare, b]


@compiled
def moment_pass(z, start, stop, geometry, form, n_osc, terms, order, log_part, total, mean, covariance):
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
    row, work, Z = 7 * g + g * g, 8 * g + g * g + 1, 8 * g + g * g + 5
    w = np.zeros((Z + 1, ROW_WIDTH))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        change_basis(z, begin, count, geometry, w, whole, low, c, n0, s, work)
        recentre(geometry, w, whole, low, c, n0, s, work)
        for i in range(g):
            kernels.combine(w, x + i, B, i, s)
        if order > 0:
            w[first : first + g + g * g] = 0.0
        fill_row(w, Z, 1.0)
        for t in range(points.shape[0]):
            add_term(points, t, n_osc, log_size[t], turns[t], order, w, x, work, Z, first, second)
        write_value(w, whole, n0, s, x, Z, work, slope, constant, is_first_phase, log_part, total, begin, count)
        if order == 0:
            continue
        for b in range(ROW_WIDTH):
            w[Z, b] = 1 / w[Z, b]
        for i in range(g + g * g):
            for b in range(ROW_WIDTH):
                w[first + i, b] *= w[Z, b]
        write_mean(w, n0, x, first, work, U, slope, back, is_first_phase, mean, begin, count)
        if order == 2:
            write_covariance(w, first, second, curvature, back, row, covariance, begin, count)


@compiled
def tabulate_powers(w, turns, reach, table):
    """Powers −reach…reach of exp(2πi·turns); w[table + 2(reach + p)] and the next row hold power p."""
    origin = table + 2 * reach
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
def multiply_complex(w, target, left, right):
    """Complex product of numbers that each take two rows."""
    for b in range(ROW_WIDTH):
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
        fill_row(w, spare, -p * p * half)
        add_scaled_row(w, spare, float(p), x)
        exp_row(w, spare, table + 2 * (reach + p))


@compiled
def fill_pass(x, points, reach, n_osc, half, start_real, start_imag, real, imag):
    """real + i·imag = start · exp(m·x − m²·half), with x → ix where it oscillates; `points` is sorted.

    x is (g, N), the result (terms, N). Powers of exp(x_j) are tabulated, and a row starts from the product of the
    coordinates that it shares with the row before.
    """
    terms, g = points.shape
    tables = np.zeros(g + 1, dtype=np.int64)
    for j in range(g):
        tables[j + 1] = tables[j] + 2 * (2 * reach[j] + 1)
    prefix, work = tables[g], tables[g] + 2 * g
    w = np.zeros((work + 2, ROW_WIDTH))
    fill_row(w, prefix, 1.0)
    for begin in range(0, x.shape[1], ROW_WIDTH):
        count = min(ROW_WIDTH, x.shape[1] - begin)
        for j in range(g):
            for b in range(count):
                w[work, b] = x[j, begin + b]
            if j < n_osc:
                fill_row(w, work + 1, 0.0)
                add_scaled_row(w, work + 1, 1 / (2 * math.pi), work)
                tabulate_powers(w, work + 1, reach[j], tables[j])
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
