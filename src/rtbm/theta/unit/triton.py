"""One-dimensional theta functions in CUDA passes (Triton): E(h|v) and its gradients, by the series of `unit.torch`.

A program works on a few columns, whose constants it finds once, and on many rows, in the type of u.
"""

import math

import torch
from torch import Tensor

from rtbm.theta.constants import SERIES_LIMIT, TWO_PI_PARTS
from rtbm.theta.device import SINE_TERMS, SINE_TERMS_FLOAT32, TRITON_AVAILABLE, jit, launch, reciprocal, sine_cosine

PROGRAM_BLOCKS = {torch.float64: (512, 16), torch.float32: (1024, 128)}
"""Entries that one program works on at a time, and the largest number of their columns. Speed only: measured on an
H200."""
ROUNDS = 2  # blocks that one program works on
MAX_COLUMNS = 2**19
"""The largest number of columns. More would not fit on the second axis of a grid of programs."""
SMALLEST_TERM = 1e-18
"""Stands for smaller exponentials. It is below the last digit, and its square does not vanish in float32."""
SMALLEST_A, SMALLEST_B = 12.0, 3.0
"""Stand for smaller a and b in columns of the other kind of series. Any values below 4π and π do, if nothing
overflows."""


def expectations(u: Tensor, q: Tensor, phase: str) -> Tensor:
    """−∂/∂u log θ̃ for u (points, g) in float32 or float64 and q (g,)."""
    return _run(u, u, q, phase, False)[0]


def expectation_gradients(u: Tensor, grad: Tensor, q: Tensor, phase: str) -> tuple[Tensor, Tensor]:
    """The gradients of `expectations` in u (points, g) and in q (g,)."""
    by_u, sums = _run(u, grad, q, phase, True)
    return by_u, sums.sum(dim=0)


def _run(u: Tensor, grad: Tensor, q: Tensor, phase: str, is_backward: bool) -> tuple[Tensor, Tensor]:
    """What `_pass` writes: the result in the shape of u, and the sums (programs, g)."""
    (rows, g), (entries, most) = u.shape, PROGRAM_BLOCKS[u.dtype]
    columns = min(1 << max(g - 1, 0).bit_length(), most)
    height = entries // columns
    n_programs = -(-rows // (height * ROUNDS))
    target = torch.empty_like(u)
    sums = u.new_empty(n_programs if is_backward else 0, g, dtype=torch.promote_types(q.dtype, u.dtype))
    if u.numel():
        grid, block = (n_programs, -(-g // columns), 1), (columns, height, ROUNDS)
        launch(_pass, grid, u, grad, target, sums, q.contiguous(), rows, g, phase == "I", is_backward, *block)
    return target, sums


if TRITON_AVAILABLE:
    import triton.language as tl

    _SERIES_LIMIT = tl.constexpr(SERIES_LIMIT)
    _TWO_PI = tl.constexpr(2 * math.pi)
    _HIGH, _LOW, _LOWER = (tl.constexpr(part) for part in TWO_PI_PARTS)
    _SINGLE_HIGH = tl.constexpr(float(torch.tensor(2 * math.pi, dtype=torch.float32)))
    _SINGLE_LOW = tl.constexpr(2 * math.pi - _SINGLE_HIGH.value)
    _SMALLEST_TERM = tl.constexpr(SMALLEST_TERM)
    _SMALLEST_A, _SMALLEST_B = tl.constexpr(SMALLEST_A), tl.constexpr(SMALLEST_B)
    _TERMS, _TERMS_FLOAT32 = tl.constexpr(SINE_TERMS), tl.constexpr(SINE_TERMS_FLOAT32)


@jit
def _recentre(u, inverse, period, FIRST: "tl.constexpr"):
    """n₀ and s with u = period · n₀ + s, and the distance |s| − ½·period from the edge."""
    n0 = tl.floor(u * inverse + 0.5)
    if FIRST:
        s = tl.fma(-n0, period, u)
        edge = tl.abs(s) - 0.5 * period
    else:
        high = tl.zeros_like(u) + (_HIGH if u.dtype == tl.float64 else _SINGLE_HIGH)
        low = tl.zeros_like(u) + (_LOW if u.dtype == tl.float64 else _SINGLE_LOW)
        exact = tl.fma(-n0, high, u)
        s = tl.fma(-n0, low, exact)
        rest = tl.fma(-n0, low, exact - s)
        if u.dtype == tl.float64:
            rest -= n0 * _LOWER
        edge = (tl.abs(s) - 0.5 * high) + (tl.where(s >= 0, rest, -rest) - 0.5 * low)
    return n0, s, edge


@jit
def _at_least(x, smallest):
    """The larger of both, and NaN for NaN."""
    return tl.where(x < smallest, smallest, x)


@jit
def _even(x, v1, v2, v3, v4):
    """Σ_m v_m cos(m·angle) for x = cos(angle)."""
    return (((8 * v4 * x + 4 * v3) * x + (2 * v2 - 8 * v4)) * x + (v1 - 3 * v3)) * x + (v4 - v2)


@jit
def _odd(x, v1, v2, v3, v4):
    """Σ_m v_m sin(m·angle) / sin(angle) for x = cos(angle)."""
    return ((8 * v4 * x + 4 * v3) * x + (2 * v2 - 4 * v4)) * x + (v1 - v3)


@jit
def _cosine_series(turns, decay, TERMS: "tl.constexpr"):
    """Derivatives of Z = 1 + Σ_m 2·decay^(m²) cos(2πm·turns) in 2π·turns, divided by Z."""
    fourth = decay * decay * decay * decay
    w1 = 2 * decay
    w2 = 2 * fourth
    w3 = w1 * fourth * fourth
    w4 = w2 * fourth * fourth * fourth
    sine, x = sine_cosine(turns, TERMS)
    over = reciprocal(1 + _even(x, w1, w2, w3, w4))
    turned = sine * over
    m1 = -turned * _odd(x, w1, 2 * w2, 3 * w3, 4 * w4)
    m2 = -over * _even(x, w1, 4 * w2, 9 * w3, 16 * w4)
    m3 = turned * _odd(x, w1, 8 * w2, 27 * w3, 64 * w4)
    return m1, m2, m3


@jit
def _exponential_series(exponent, s, r):
    """Moments of m under exp(mz − ½am²), with exponent = |z| − ½a and r = exp(−a): the terms −2, …, 2."""
    p = _at_least(tl.exp(exponent), _SMALLEST_TERM)
    r3 = r * r * r
    rp = r * p
    square = p * p
    over = reciprocal(r3 + p * (r + p * (1 + p * (1 + rp))))
    sided = tl.where(s >= 0, over, -over)
    m1 = sided * (p * (square * (1 + 2 * rp) - r) - 2 * r3)
    m2 = over * (p * (square * (1 + 4 * rp) + r) + 4 * r3)
    m3 = sided * (p * (square * (1 + 8 * rp) - r) - 8 * r3)
    return m1, m2, m3


@jit
def _constants(q, FIRST: "tl.constexpr"):
    """What is the same for all entries of a column."""
    q = tl.where(q > 0, q, float("nan"))
    inverse = 1 / q
    factor = _TWO_PI * inverse
    dual = _TWO_PI * factor
    if FIRST:
        has_cosines = q < _SERIES_LIMIT
        a = q
        b = dual
        scale = q * 0 + 1
        slope = tl.where(has_cosines, inverse, 0.0)
        factor = tl.where(has_cosines, factor, 1.0)
    else:
        has_cosines = dual < _SERIES_LIMIT
        a = dual
        b = q
        scale = factor
        slope = tl.where(has_cosines, 0.0, -inverse)
        factor = tl.where(has_cosines, 1.0, factor)
        inverse = q * 0 + 1 / _TWO_PI
    r = tl.exp(-_at_least(a, _SMALLEST_A))
    return has_cosines, inverse, scale, slope, factor, r, tl.exp(-0.5 * _at_least(b, _SMALLEST_B))


@jit
def _pass(
    u, grad, target, sums, q, rows, g, FIRST: "tl.constexpr", BACKWARD: "tl.constexpr",
    COLUMNS: "tl.constexpr", HEIGHT: "tl.constexpr", ROUNDS: "tl.constexpr",
):  # fmt: skip
    """E(h|v) written to `target`; if BACKWARD, its gradients in u, and those in q added up over the rows of a program.

    Forward, `grad` and `sums` are not used. What the results do not need, such as higher derivatives in the forward
    pass, the compiler leaves out.
    """
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    q = tl.load(q + column, mask=column < g, other=1.0).to(u.dtype.element_ty)
    has_cosines, inverse, scale, slope, factor, r, decay = _constants(q, FIRST)
    n_cosines = tl.sum(has_cosines.to(tl.int32))
    total = tl.zeros((HEIGHT, COLUMNS), dtype=q.dtype)
    start = tl.program_id(0).to(tl.int64) * ROUNDS * HEIGHT
    left = tl.minimum(rows - start, ROUNDS * HEIGHT).to(tl.int32)
    u += start * g
    grad += start * g
    target += start * g
    for k in range(ROUNDS):
        row = k * HEIGHT + tl.arange(0, HEIGHT)[:, None]
        index = row * g + column
        inside = (row < left) & (column < g)
        n0, s, edge = _recentre(tl.load(u + index, mask=inside, other=0.0), inverse, q, FIRST)
        m1 = s
        m2 = s
        m3 = s
        if n_cosines > 0:
            m1, m2, m3 = _cosine_series(s * inverse, decay, _TERMS if s.dtype == tl.float64 else _TERMS_FLOAT32)
        if n_cosines < COLUMNS:
            e1, e2, e3 = _exponential_series(scale * edge, s, r)
            m1 = tl.where(has_cosines, m1, e1)
            m2 = tl.where(has_cosines, m2, e2)
            m3 = tl.where(has_cosines, m3, e3)
        mean = factor * m1
        second = factor * factor * m2
        first = slope * s + mean
        if FIRST:
            first += n0
        if BACKWARD:
            weight = tl.load(grad + index, mask=inside, other=0.0)
            k2 = slope + (second - mean * mean)
            third = 0.5 * factor * factor * factor * m3 + mean * (mean * mean - 1.5 * second)
            tl.store(target + index, -k2 * weight, mask=inside)
            total += (third + first * k2) * weight
        else:
            tl.store(target + index, -first, mask=inside)
    if BACKWARD:
        column_sums = tl.sum(total.to(tl.float64), axis=0)[None, :]
        if not FIRST:
            column_sums = -column_sums
        tl.store(sums + tl.program_id(0) * g + column, column_sums, mask=column < g)
