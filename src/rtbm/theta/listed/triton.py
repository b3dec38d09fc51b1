"""The pass of `listed.numba` on CUDA (Triton): log θ̃ with its mean and covariance, or its gradients in z and Q.

A program works on blocks of points. Coordinates are unrolled, so the vectors and matrices of a point are in registers:
tuples with an entry for each coordinate, triangles with one for each i and j ≤ i.
"""

# mypy: disable-error-code="assignment,attr-defined,misc"
# Tuples grow while Triton unrolls their loops.

import numpy as np
import torch
from torch import Tensor

from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives
from rtbm.theta.device import SINE_TERMS, TRITON_AVAILABLE, exponential, jit, launch, sine_cosine
from rtbm.theta.kernels import ROUND
from rtbm.theta.listed.numba import EXPONENT_BITS
from rtbm.theta.local import LocalSum

if TRITON_AVAILABLE:
    import triton.language as tl

    _EXPONENT_BITS, _ROUND, _SINE_TERMS = tl.constexpr(EXPONENT_BITS), tl.constexpr(ROUND), tl.constexpr(SINE_TERMS)
    _HIGH, _LOW, _LOWER = (tl.constexpr(part) for part in TWO_PI_PARTS)
    _TURN = tl.constexpr(1 / (2 * np.pi))
    _BASIS, _CENTRE, _PLANE, _COARSE, _FINE, _TO_X, _BACK, _CURVATURE = (tl.constexpr(i) for i in range(8))

LARGEST_SIZE = 6
"""Most coordinates of a block that the pass serves. With more, the matrices of a point do not fit into registers."""
PROGRAM_POINTS, PROGRAMS = 128, 132 * 64
"""Points that a program works on at a time, and the largest number of programs. Speed only: measured on an H200."""


class TritonList:
    """log θ̃ of near arguments, and its first two derivatives, without graph; see `derivatives.CompiledSum`."""

    def __init__(self, lattice: LocalSum):
        self.lattice = lattice

    def start(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,) alone: its gradients are computed anew."""
        return self.moments(z, 0)

    def moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,) for z (points, g), and up to `order` ≤ 2 mean (points, g) and covariance (points, g, g)."""
        shape = (*z.shape, z.shape[1])
        found = [z.new_empty(shape[: 1 + k], dtype=torch.float64) for k in range(order + 1)]
        self._run(z, z, *found, *[z] * (2 - order), order=order)
        return tuple(found)

    def gradients(self, z: Tensor, grad: Tensor, _: list[Tensor]) -> tuple[Tensor, Tensor]:
        """See `derivatives.CompiledSum`."""
        by_z = torch.empty_like(z, dtype=torch.float64, memory_format=torch.contiguous_format)
        sums = z.new_empty(self._programs(z), *z.shape[1:] * 2, dtype=torch.float64)
        self._run(z, grad.contiguous(), z, by_z, sums, order=3)
        return by_z, (-0.5 if self.lattice.phase == "I" else 0.5) * sums.sum(dim=0)

    def _run(self, z: Tensor, grad: Tensor, *results: Tensor, order: int) -> None:
        numbers, terms = (self.lattice.tensor(name, z.device) for name in ("numbers", "terms"))
        launch(
            *(_pass, (self._programs(z), 1, 1)),
            *(z.detach().contiguous(), grad, *results, numbers, terms),
            *(len(z), len(terms), self.lattice.g, self.lattice.n_osc, self.lattice.phase == "I", order, PROGRAM_POINTS),
        )

    @staticmethod
    def _programs(z: Tensor) -> int:
        return min(-(-len(z) // PROGRAM_POINTS), PROGRAMS)


@jit
def _entry(numbers, matrix: "tl.constexpr", i, j, G: "tl.constexpr"):
    """Entry (i, j) of one of the matrices in `LatticeSum.numbers`."""
    return tl.load(numbers + (matrix * G + i) * G + j)


@jit
def _number(numbers, i, G: "tl.constexpr"):
    """Slope i, for i = G the factor of the grid, or for i = G + 1 the constant."""
    return tl.load(numbers + 8 * G * G + i)


@jit
def _times(numbers, matrix: "tl.constexpr", vector, G: "tl.constexpr", TRANSPOSED: "tl.constexpr" = False):
    """One of the matrices times a vector."""
    result = ()
    for i in tl.static_range(G):
        total = vector[0] * 0.0
        for j in tl.static_range(G):
            if TRANSPOSED:
                total += _entry(numbers, matrix, j, i, G) * vector[j]
            else:
                total += _entry(numbers, matrix, i, j, G) * vector[j]
        result = result + (total,)
    return result


@jit
def _change_basis(z, row, inside, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """zU (phase II: of z modulo 2π) as a part that is exact and a small rest."""
    high = ()
    low = ()
    for i in tl.static_range(G):
        value = tl.load(z + row * G + i, mask=inside, other=0.0).to(tl.float64)
        rest = value * 0.0
        if not FIRST:
            periods = tl.floor(value * _TURN + 0.5)
            exact = value - periods * _HIGH
            value = exact - periods * _LOW
            rest = ((exact - value) - periods * _LOW) - periods * _LOWER
        high = high + (value,)
        low = low + (rest,)
    largest = tl.abs(high[0])
    for i in tl.static_range(1, G):
        largest = tl.maximum(largest, tl.abs(high[i]))
    power = (largest.to(tl.int64, bitcast=True) & _EXPONENT_BITS).to(tl.float64, bitcast=True)
    grid = _number(numbers, G, G) * power
    coarse = ()
    left = ()
    for i in tl.static_range(G):
        rounded = (high[i] + grid) - grid
        coarse = coarse + (rounded,)
        left = left + (low[i] + (high[i] - rounded),)
    return _times(numbers, _BASIS, coarse, G, True), _times(numbers, _BASIS, left, G, True)


@jit
def localise(z, row, inside, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """The lattice point n₀, the local argument x, in turns where it oscillates, and the log of what multiplies Z."""
    high, low = _change_basis(z, row, inside, numbers, G, FIRST)
    whole = ()
    for i in tl.static_range(G):
        whole = whole + (high[i] + low[i],)
    c = _times(numbers, _CENTRE, whole, G)
    n0 = ()
    left = ()  # of the coordinates after i
    for k in tl.static_range(G):
        target = c[G - 1 - k]
        for j in tl.static_range(k):
            target += _entry(numbers, _PLANE, G - 1 - k, G - k + j, G) * left[j]
        n = (target + _ROUND) - _ROUND
        n0 = (n,) + n0
        left = (c[G - 1 - k] - n,) + left
    coarse = _times(numbers, _COARSE, n0, G, True)
    fine = _times(numbers, _FINE, n0, G, True)
    s = ()
    for i in tl.static_range(G):
        s = s + ((high[i] - coarse[i]) + (low[i] - fine[i]),)
    x = _times(numbers, _TO_X, s, G)
    log_factor = _number(numbers, G + 1, G) + s[0] * 0.0
    for i in tl.static_range(G):
        log_factor += 0.5 * _number(numbers, i, G) * s[i] * x[i]
        if FIRST:
            log_factor += 0.5 * n0[i] * (whole[i] + s[i])
    return n0, x, log_factor


@jit
def mean_of(n0, x, first, numbers, G: "tl.constexpr", FIRST: "tl.constexpr"):
    """U(n₀ + Ks) + back·first; without n₀ in phase II."""
    slopes = ()
    for i in tl.static_range(G):
        slopes = slopes + (_number(numbers, i, G) * x[i],)
    points = _times(numbers, _BASIS, n0, G)
    smooth = _times(numbers, _BASIS, slopes, G)
    series = _times(numbers, _BACK, first, G)
    mean = ()
    for i in tl.static_range(G):
        value = smooth[i] + series[i]
        if FIRST:
            value += points[i]
        mean = mean + (value,)
    return mean


@jit
def _covariance(central, numbers, G: "tl.constexpr"):
    """The triangle of curvature + back·central·backᵀ."""
    result = ()
    for i in tl.static_range(G):
        row = ()  # of back·central
        for k in tl.static_range(G):
            value = central[0] * 0.0
            for j in tl.static_range(G):
                if j >= k:
                    value += _entry(numbers, _BACK, i, j, G) * central[j * (j + 1) // 2 + k]
                else:
                    value += _entry(numbers, _BACK, i, j, G) * central[k * (k + 1) // 2 + j]
            row = row + (value,)
        for j in tl.static_range(i + 1):
            value = _entry(numbers, _CURVATURE, i, j, G) + row[0] * 0.0
            for k in tl.static_range(G):
                value += row[k] * _entry(numbers, _BACK, j, k, G)
            result = result + (value,)
    return result


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
    added = ()
    squares = ()
    for i in tl.static_range(G if ORDER > 0 else 0):
        added = added + (first[i] + p[i] * (sines if i < OSC else size),)
        for j in tl.static_range(i + 1 if ORDER > 1 else 0):
            weight = p[i] * p[j] * (-size if i < OSC else sines if j < OSC else size)
            squares = squares + (second[i * (i + 1) // 2 + j] + weight,)
    return total + size, added, squares


@jit
def zeros(like, N: "tl.constexpr"):
    """N tensors of zeros."""
    zeros = ()
    for _i in tl.static_range(N):
        zeros = zeros + (like * 0.0,)
    return zeros


@jit
def _pass(
    z, grad, log_theta, first_result, second_result, numbers, terms, n_points, n_terms,
    G: "tl.constexpr", OSC: "tl.constexpr", FIRST: "tl.constexpr", ORDER: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """log θ̃ (points,), mean (points, g) and covariance (points, g, g), up to ORDER.

    If ORDER is 3, the results are grad · mean, and the sums of grad · E[nnᵀ] over the points of each program; in phase
    II, of grad · (covariance + mean·meanᵀ).
    """
    TRIANGLE: tl.constexpr = G * (G + 1) // 2
    sums = zeros(tl.zeros((POINTS,), dtype=tl.float64), TRIANGLE)
    for start in range(tl.program_id(0) * POINTS, n_points, tl.num_programs(0) * POINTS):
        row = start + tl.arange(0, POINTS).to(tl.int64)
        inside = row < n_points
        n0, x, log_factor = localise(z, row, inside, numbers, G, FIRST)
        total = x[0] * 0.0 + 1.0
        first = zeros(x[0], G if ORDER > 0 else 0)
        second = zeros(x[0], TRIANGLE if ORDER > 1 else 0)
        for t in range(n_terms):
            total, first, second = _add_term(terms + t * (G + 2), x, total, first, second, G, OSC, ORDER)
        if ORDER < 3:
            tl.store(log_theta + row, log_factor + tl.log(total), mask=inside)
        if ORDER > 0:
            weight = x[0] * 0.0 + 1.0
            if ORDER == 3:
                weight = tl.load(grad + row, mask=inside, other=0.0).to(tl.float64)
            scaled = ()
            central = ()
            for i in tl.static_range(G):
                scaled = scaled + (first[i] / total,)
                for j in tl.static_range(i + 1 if ORDER > 1 else 0):
                    central = central + (second[i * (i + 1) // 2 + j] / total - scaled[i] * scaled[j],)
            mean = mean_of(n0, x, scaled, numbers, G, FIRST)
            for i in tl.static_range(G):
                tl.store(first_result + row * G + i, weight * mean[i], mask=inside)
            if ORDER > 1:
                covariance = _covariance(central, numbers, G)
                added = ()
                for i in tl.static_range(G):
                    for j in tl.static_range(i + 1):
                        entry = covariance[i * (i + 1) // 2 + j]
                        if ORDER == 2:
                            tl.store(second_result + (row * G + i) * G + j, entry, mask=inside)
                            tl.store(second_result + (row * G + j) * G + i, entry, mask=inside)
                        added = added + (sums[i * (i + 1) // 2 + j] + weight * (entry + mean[i] * mean[j]),)
                sums = added
    if ORDER == 3:
        target = second_result + tl.program_id(0) * G * G
        for i in tl.static_range(G):
            for j in tl.static_range(i + 1):
                total = tl.sum(sums[i * (i + 1) // 2 + j])
                tl.store(target + i * G + j, total)
                tl.store(target + j * G + i, total)
