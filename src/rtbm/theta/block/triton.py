"""The pass of `block.numba` on CUDA (Triton): log θ̃ with its mean and covariance, or its gradients in z and Q.

A program works on blocks of points. Coordinates are unrolled, so the vectors and matrices of a point are in registers.
What is the same for all points is read from two arrays, `numbers` and `terms`.
"""

# mypy: disable-error-code="assignment,attr-defined,misc"
# Tuples grow while Triton unrolls their loops.

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta import kernels
from rtbm.theta.block import planning
from rtbm.theta.block.cost import CUDA_POINT, CUDA_TERM
from rtbm.theta.block.evaluator import CompiledEvaluator
from rtbm.theta.block.numba import EXPONENT_BITS, MAX_EXPONENT
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives, RecomputedLogTheta
from rtbm.theta.device import SINE_TERMS, TRITON_AVAILABLE, exponential, jit, launch, sine_cosine
from rtbm.theta.exact import grid_factor
from rtbm.theta.kernels import ROUND

if TRITON_AVAILABLE:
    import triton.language as tl

    _EXPONENT_BITS, _ROUND, _SINE_TERMS = tl.constexpr(EXPONENT_BITS), tl.constexpr(ROUND), tl.constexpr(SINE_TERMS)
    _HIGH, _LOW, _LOWER = (tl.constexpr(part) for part in TWO_PI_PARTS)
    _TURN = tl.constexpr(1 / (2 * np.pi))

MAX_CUDA_SIZE = 6
"""Most coordinates of a block that the pass serves. With more, the matrices of a point do not fit into registers."""
PROGRAM_POINTS, PROGRAMS = 128, 132 * 64
"""Points that a program works on at a time, and the largest number of programs. Speed only: measured on an H200."""


class CudaPass(CompiledEvaluator):
    """The pass on CUDA (Triton)."""

    name = "cuda"
    function = RecomputedLogTheta

    def supports(self, device: torch.device) -> bool:
        """Whether Triton is there, the block is small and no term overflows."""
        return TRITON_AVAILABLE and device.type == "cuda" and self._is_small

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """One compiled pass."""
        return n_points * (CUDA_POINT + self.n_terms * CUDA_TERM)

    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 2, without a graph."""
        N, g = z.shape
        shapes = ((N,), (N, g), (N, g, g))
        results = [torch.empty(shape, dtype=torch.float64, device=z.device) for shape in shapes[: order + 1]]
        self._run(z, z, *results, *[z] * (2 - order), order=order)
        return tuple(results)

    def start(self, z: Tensor) -> Derivatives:
        """log θ̃ (points,); nothing is kept for the gradients."""
        return self.fixed_moments(z, 0)

    def gradients(self, z: Tensor, grad: Tensor, _: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients of log θ̃ in z (points, g) and Q (g, g), for weights grad (points,)."""
        N, g = z.shape
        by_z = torch.empty(N, g, dtype=torch.float64, device=z.device)
        sums = torch.empty(self._programs(N), g, g, dtype=torch.float64, device=z.device)
        self._run(z, grad.contiguous(), z, by_z, sums, order=3)
        return by_z, (-0.5 if self.phase == "I" else 0.5) * sums.sum(dim=0)

    def _run(self, z: Tensor, grad: Tensor, *results: Tensor, order: int) -> None:
        terms = self.tensors.constant("cuda terms", self.tensors.terms, z.device)
        launch(
            *(_pass, (self._programs(len(z)), 1, 1)),
            *(z.detach().contiguous(), grad, *results, self.numbers(z.device), terms),
            *(len(z), len(terms)),
            *(self.tensors.g, self.tensors.geometry.n_osc, self.phase == "I", order, PROGRAM_POINTS),
        )

    @staticmethod
    def _programs(n_points: int) -> int:
        return min(-(-n_points // PROGRAM_POINTS), PROGRAMS)

    @cached_property
    def _is_small(self) -> bool:
        is_listed = kernels.AVAILABLE  # the list takes long in Python
        is_safe = self.tensors.geometry.largest_exponent < MAX_EXPONENT
        return is_listed and is_safe and self.tensors.g <= MAX_CUDA_SIZE

    def numbers(self, device: torch.device) -> Tensor:
        """What passes call numbers: eight matrices, `slope` with Ks = slope ∘ x, and two numbers."""
        return self.tensors.constant("cuda numbers", self._numbers, device)

    @cached_property
    def _numbers(self) -> np.ndarray:
        geometry = self.tensors.geometry
        U, B, K = geometry.basis, geometry.matrices[planning.B], geometry.matrices[planning.K]
        coarse, *finer = geometry.periods
        oscillates = np.arange(self.tensors.g) < geometry.n_osc
        turns = np.where(oscillates, 1 / TWO_PI, 1.0)[:, None]
        matrices = (U, geometry.centre, geometry.plane, coarse, sum(finer), B * turns, U @ B.T, U @ K @ U.T)
        slope = np.where(oscillates, 1.0, 0.0) if self.phase == "I" else np.where(oscillates, 0.0, -1 / TWO_PI)
        last = [2 * grid_factor(U), geometry.constant]
        return np.concatenate([*(np.ravel(matrix) for matrix in matrices), slope, last])


@jit
def _entry(numbers, matrix, i, j, G: "tl.constexpr"):
    """Entry (i, j) of one of the matrices in `numbers`."""
    return tl.load(numbers + (matrix * G + i) * G + j)


@jit
def _change_basis(z, row, inside, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """zU (phase II: of z modulo 2π) as a part that is exact and a small rest."""
    z_high = ()
    z_low = ()
    for i in tl.static_range(G):
        value = tl.load(z + row * G + i, mask=inside, other=0.0).to(tl.float64)
        rest = value * 0.0
        if not FIRST:
            periods = tl.floor(value * _TURN + 0.5)
            exact = value - periods * _HIGH
            value = exact - periods * _LOW
            rest = ((exact - value) - periods * _LOW) - periods * _LOWER
        z_high = z_high + (value,)
        z_low = z_low + (rest,)
    largest = tl.abs(z_high[0])
    for i in tl.static_range(1, G):
        largest = tl.maximum(largest, tl.abs(z_high[i]))
    power = (largest.to(tl.int64, bitcast=True) & _EXPONENT_BITS).to(tl.float64, bitcast=True)
    grid = tl.load(numbers + 8 * G * G + G) * power
    coarse = ()
    left = ()
    for j in tl.static_range(G):
        rounded = (z_high[j] + grid) - grid
        coarse = coarse + (rounded,)
        left = left + (z_low[j] + (z_high[j] - rounded),)
    high = ()
    low = ()
    for i in tl.static_range(G):
        a = _entry(numbers, 0, 0, i, G) * coarse[0]
        b = _entry(numbers, 0, 0, i, G) * left[0]
        for j in tl.static_range(1, G):
            a += _entry(numbers, 0, j, i, G) * coarse[j]
            b += _entry(numbers, 0, j, i, G) * left[j]
        high = high + (a,)
        low = low + (b,)
    return high, low


@jit
def _recentre(high, low, numbers, G: "tl.constexpr"):
    """Nearest plane: zU, its lattice point n₀, and what is left; n₀ is in the reverse order of coordinates."""
    whole = ()
    for i in tl.static_range(G):
        whole = whole + (high[i] + low[i],)
    n0 = ()
    residual = ()  # of the coordinates G − 1, G − 2, …
    for k in tl.static_range(G):
        c = _entry(numbers, 1, G - 1 - k, 0, G) * whole[0]
        for j in tl.static_range(1, G):
            c += _entry(numbers, 1, G - 1 - k, j, G) * whole[j]
        target = c
        for j in tl.static_range(k):
            target += _entry(numbers, 2, G - 1 - k, G - 1 - j, G) * residual[j]
        n = (target + _ROUND) - _ROUND
        n0 = n0 + (n,)
        residual = residual + (c - n,)
    s = ()
    for i in tl.static_range(G):
        a = high[i]
        b = low[i]
        for j in tl.static_range(G):
            a -= _entry(numbers, 3, j, i, G) * n0[G - 1 - j]
        for j in tl.static_range(G):
            b -= _entry(numbers, 4, j, i, G) * n0[G - 1 - j]
        s = s + (a + b,)
    return whole, n0, s


@jit
def local_argument(z, row, inside, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """n₀ (in the reverse order of coordinates), the local argument x, and the logarithm of what multiplies the sum."""
    high, low = _change_basis(z, row, inside, numbers, G, FIRST)
    whole, n0, s = _recentre(high, low, numbers, G)
    x = ()
    log_factor = tl.load(numbers + 8 * G * G + G + 1) + s[0] * 0.0
    for i in tl.static_range(G):
        value = _entry(numbers, 5, i, 0, G) * s[0]
        for j in tl.static_range(1, G):
            value += _entry(numbers, 5, i, j, G) * s[j]
        x = x + (value,)
        log_factor += 0.5 * tl.load(numbers + 8 * G * G + i) * s[i] * value
        if FIRST:
            log_factor += 0.5 * n0[G - 1 - i] * (whole[i] + s[i])
    return n0, x, log_factor


@jit
def _add_term(term, x, total, first, second, G: "tl.constexpr", OSC: "tl.constexpr", ORDER: "tl.constexpr"):
    """Add a term and its derivatives in x to the sums; oscillating coordinates of x are in turns."""
    p = ()
    for j in tl.static_range(G):
        p = p + (tl.load(term + j),)
    exponent = tl.load(term + G) + x[0] * 0.0
    for j in tl.static_range(OSC, G):
        exponent += p[j] * x[j]
    size = exponential(exponent)
    sines = size
    if OSC > 0:
        turns = tl.load(term + G + 1) + p[0] * x[0]
        for j in tl.static_range(1, OSC):
            turns += p[j] * x[j]
        sine, cosine = sine_cosine(turns - tl.floor(turns + 0.5), _SINE_TERMS)
        sines = -size * sine
        size = size * cosine
    total += size
    if ORDER > 0:
        added = ()
        for i in tl.static_range(G):
            added = added + (first[i] + p[i] * (sines if i < OSC else size),)
        first = added
    if ORDER > 1:
        squares = ()
        for i in tl.static_range(G):
            for j in tl.static_range(i + 1):
                if i < OSC:
                    squares = squares + (second[i * (i + 1) // 2 + j] - p[i] * p[j] * size,)
                elif j >= OSC:
                    squares = squares + (second[i * (i + 1) // 2 + j] + p[i] * p[j] * size,)
                else:
                    squares = squares + (second[i * (i + 1) // 2 + j] + p[i] * p[j] * sines,)
        second = squares
    return total, first, second


@jit
def mean_of(n0, x, first, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """U(n₀ + Ks) + M·first with M = back; without n₀ in phase II."""
    mean = ()
    for i in tl.static_range(G):
        value = x[0] * 0.0
        if FIRST:
            for j in tl.static_range(G):  # first, since integers do not round
                value += _entry(numbers, 0, i, j, G) * n0[G - 1 - j]
        for j in tl.static_range(G):
            value += _entry(numbers, 0, i, j, G) * tl.load(numbers + 8 * G * G + j) * x[j]
            value += _entry(numbers, 6, i, j, G) * first[j]
        mean = mean + (value,)
    return mean


@jit
def _covariance(second, numbers, G: "tl.constexpr"):
    """curvature + M·second·Mᵀ with M = back, as the rows of its lower triangle; `second` is one too."""
    result = ()
    for i in tl.static_range(G):
        row = ()  # of M·second
        for k in tl.static_range(G):
            value = second[0] * 0.0
            for j in tl.static_range(G):
                if j >= k:
                    value += _entry(numbers, 6, i, j, G) * second[j * (j + 1) // 2 + k]
                else:
                    value += _entry(numbers, 6, i, j, G) * second[k * (k + 1) // 2 + j]
            row = row + (value,)
        for j in tl.static_range(i + 1):
            value = row[0] * _entry(numbers, 6, j, 0, G)
            for k in tl.static_range(1, G):
                value += row[k] * _entry(numbers, 6, j, k, G)
            result = result + (value + _entry(numbers, 7, i, j, G),)
    return result


@jit
def _pass(
    z, grad, log_theta, first_result, second_result, numbers, terms, n_points, n_terms,
    G: "tl.constexpr", OSC: "tl.constexpr", FIRST: "tl.constexpr", ORDER: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """log θ̃ (points,), mean (points, g) and covariance (points, g, g), up to ORDER.

    If ORDER is 3, the results are grad · mean, and the sums of grad · E[nnᵀ] over the points of each program; in phase
    II, of grad · (covariance + mean·meanᵀ).
    """
    DERIVATIVES: tl.constexpr = min(ORDER, 2)
    sums = ()
    if ORDER == 3:
        for i in tl.static_range(G * (G + 1) // 2):
            sums = sums + (tl.zeros((POINTS,), dtype=tl.float64),)
    for start in range(tl.program_id(0) * POINTS, n_points, tl.num_programs(0) * POINTS):
        row = start + tl.arange(0, POINTS).to(tl.int64)
        inside = row < n_points
        n0, x, log_factor = local_argument(z, row, inside, numbers, G, FIRST)
        total = x[0] * 0.0 + 1.0
        first = ()
        second = ()
        for i in tl.static_range(G if ORDER > 0 else 0):
            first = first + (x[0] * 0.0,)
        for i in tl.static_range(G * (G + 1) // 2 if ORDER > 1 else 0):
            second = second + (x[0] * 0.0,)
        for t in range(n_terms):
            total, first, second = _add_term(terms + t * (G + 2), x, total, first, second, G, OSC, DERIVATIVES)
        if ORDER < 3:
            tl.store(log_theta + row, log_factor + tl.log(total), mask=inside)
        if ORDER > 0:
            over = 1.0 / total
            scaled = ()
            for i in tl.static_range(G):
                scaled = scaled + (first[i] * over,)
            first = scaled
            mean = mean_of(n0, x, first, numbers, G, FIRST)
            weight = x[0] * 0.0 + 1.0
            if ORDER == 3:
                weight = tl.load(grad + row, mask=inside, other=0.0).to(tl.float64)
            for i in tl.static_range(G):
                tl.store(first_result + row * G + i, weight * mean[i], mask=inside)
            if ORDER > 1:
                central = ()
                for i in tl.static_range(G):
                    for j in tl.static_range(i + 1):
                        central = central + (second[i * (i + 1) // 2 + j] * over - first[i] * first[j],)
                covariance = _covariance(central, numbers, G)
                if ORDER == 2:
                    for i in tl.static_range(G):
                        for j in tl.static_range(i + 1):
                            entry = covariance[i * (i + 1) // 2 + j]
                            tl.store(second_result + (row * G + i) * G + j, entry, mask=inside)
                            tl.store(second_result + (row * G + j) * G + i, entry, mask=inside)
                else:
                    added = ()
                    for i in tl.static_range(G):
                        for j in tl.static_range(i + 1):
                            raw = covariance[i * (i + 1) // 2 + j] + mean[i] * mean[j]
                            added = added + (sums[i * (i + 1) // 2 + j] + weight * raw,)
                    sums = added
    if ORDER == 3:
        target = second_result + tl.program_id(0) * G * G
        for i in tl.static_range(G):
            for j in tl.static_range(i + 1):
                entry = tl.sum(sums[i * (i + 1) // 2 + j])
                tl.store(target + i * G + j, entry)
                tl.store(target + j * G + i, entry)
