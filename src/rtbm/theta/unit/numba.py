"""One-dimensional theta functions in a compiled CPU pass, a column of one q at a time: the series of `unit.torch`.

A block of rows is read into a tile, whose rows are columns of the argument. So the loops over a column are SIMD code.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import N_COSINES, TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives
from rtbm.theta.exact import in_two_parts
from rtbm.theta.kernels import ROUND, ROW_WIDTH, compiled, compiled_inline, exponential, sine_cosine
from rtbm.theta.unit.torch import takes_cosines

TILE = 128
"""Columns that are read and written together. With fewer, wide matrices would be read in more passes over all their
pages; with more, a tile would leave the second-level cache. Their series are multiplied before a logarithm is taken;
each lies between 0.58 and 3, so that the product of hundreds would leave float64."""
SMALLEST_COLUMN_BLOCK = 8
"""From this number of columns on, a tile is read row by row; narrower ones are read column by column. Speed only."""
SMALLEST_EXPONENTIAL = 1e-75
"""Stands for smaller exponentials, so that no power of one vanishes. It must be far below 1e-16, and its cube above
1e-308."""
LARGEST_FACTOR = 1e50
"""Stands for larger 2π/q, whose cube could overflow. The exponential series is then one term, except at distances below
1e-48 from a jump, which arguments cannot resolve."""
NAMES = "high, low, lower, trend, slope, factor, constant, decay, has_cosines"
"""What the pass needs to know of a column: the parts of the period; log θ̃ − log Z is ½trend·n₀(u + s) + ½slope·s² +
constant; factor is dx/ds, and decay is exp(−½b) of cosines, exp(−a) of exponentials."""


def expectations(u: Tensor, q: Tensor, phase: str) -> Tensor:
    """−∂/∂u log θ̃ for u (points, g) in float32 or float64 and q (g,)."""
    value = torch.empty_like(u)
    _run(u, q, phase, None, value.numpy())
    return value


def expectation_gradients(u: Tensor, grad: Tensor, q: Tensor, phase: str) -> tuple[Tensor, Tensor]:
    """The gradients of `expectations` in u (points, g) and in q (g,)."""
    by_u = torch.empty_like(u)
    by_q = _run(u, q, phase, None, by_u.numpy(), None, grad.numpy())
    return by_u, torch.from_numpy(by_q if phase == "I" else -by_q)


def moments(z: Tensor, q: Tensor, phase: str, order: int) -> Derivatives:
    """Σ_j log θ̃(z_j|q_j) (points,) for z (points, g), and derivatives (points, g) up to `order` ≤ 2 in each column."""
    x = z.detach().double().contiguous()
    arrays = np.zeros(len(x)), *np.empty((order, *x.shape))
    _run(x, q, phase, *arrays)
    return tuple(map(torch.from_numpy, arrays))


def _run(x: Tensor, q: Tensor, phase: str, *arrays: Floats | None) -> Floats:
    """Run the pass over all rows, and return the sums (g,) that it adds up with `grad`."""
    columns = find_columns(q.detach().resolve_neg().double().numpy().tobytes(), phase)
    sums = run_threads(lambda *rows: unit_pass(x.numpy(), *rows, columns, *arrays), len(x), x.numel())
    return sum(sums).sum(axis=1)


@lru_cache(8)  # a backward pass needs the columns of the forward pass again
@np.errstate(all="ignore")
def find_columns(numbers: bytes, phase: str) -> Any:
    """An array (g,) with fields NAMES for numbers q (g,). Those that are not positive, or leave float64, give NaN."""
    q = np.frombuffer(numbers)
    q = np.where(q > 0, q, np.nan)
    is_first, has_cosines = phase == "I", takes_cosines(q, phase)
    is_dual = has_cosines == is_first
    factor = np.where(is_dual, TWO_PI / q, 1.0)
    period: Any = (*in_two_parts(q), 0.0) if is_first else TWO_PI_PARTS
    slope = is_dual * (1 if is_first else -1) / q
    decay = np.exp(-np.where(has_cosines, 0.5, 1.0) * q * factor**2)
    smooth = 1.0 * is_first, slope, np.minimum(factor, LARGEST_FACTOR), 0.5 * np.log(factor)
    fields = np.broadcast_arrays(*period, *smooth, decay, 1.0 * has_cosines)
    return np.rec.fromarrays(fields, names=NAMES)  # type: ignore[call-overload]


@compiled_inline
def unit_series(u, high, low, lower, trend, slope, factor, constant, decay, has_cosines):
    """log θ̃ − log Z, and Z; and κ₁, κ₂ and ½κ₃, the derivatives of log θ̃. Callers pass the fields of a column.

    With p = exp(|x| − ½a) and r = exp(−a), the terms of the exponential series are rp², p, 1, r/p and r³/p², here times
    p².
    """
    inverse = 1 / (high + low)
    n0 = (u * inverse + ROUND) - ROUND
    exact = u - n0 * high
    s = exact - n0 * low
    if has_cosines > 0:
        turned, x = sine_cosine(s * inverse)
        cosine, old_cosine, sine, old_sine, twice = x, 1.0, turned, 0.0, 2 * x
        size, ratio = 2 * decay, decay * decay * decay
        total, m1, m2, m3, scale = 1.0, 0.0, 0.0, 0.0, 1.0
        for m in range(1, N_COSINES + 1):
            total += size * cosine
            m1 -= m * size * sine
            m2 -= m * m * size * cosine
            m3 += m * m * m * size * sine
            cosine, old_cosine = twice * cosine - old_cosine, cosine
            sine, old_sine = twice * sine - old_sine, sine
            size, ratio = size * ratio, ratio * decay * decay
    else:
        side, rest = 1.0 if s >= 0 else -1.0, ((exact - s) - n0 * low) - n0 * lower
        distance = (abs(s) - 0.5 * high) + (side * rest - 0.5 * low)
        p = max(exponential(factor * distance), SMALLEST_EXPONENTIAL)
        scale, near, back, last = p * p, p * p * p, decay * p, decay * decay * decay
        far = near * back
        total = far + near + scale + back + last
        m1 = side * (2 * far + near - back - 2 * last)
        m2 = 4 * far + near + back + 4 * last
        m3 = side * (8 * far + near - back - 8 * last)
    smooth = 0.5 * trend * n0 * (u + s) + (0.5 * slope * s * s + constant)
    over = factor / total
    mean, second, third = over * m1, over * factor * m2, over * factor * factor * m3
    k1 = trend * n0 + (slope * s + mean)
    k2 = slope + (second - mean * mean)
    half_k3 = 0.5 * third + mean * (mean * mean - 1.5 * second)
    return smooth, total / scale, k1, k2, half_k3


@compiled
def copy_tile(source, target):
    """target = source, for two arrays (points, columns) of which one is a transposed tile."""
    count, width = source.shape
    if width >= SMALLEST_COLUMN_BLOCK:
        for b in range(count):
            for c in range(width):
                target[b, c] = source[b, c]
    else:
        for c in range(width):
            for b in range(count):
                target[b, c] = source[b, c]


@compiled
def unit_pass(x, start, stop, columns, value=None, first=None, second=None, grad=None):
    """What the arguments that are not None ask for, for the rows start…stop of x (points, g).

    With `value`: log θ̃ of all columns is added to it (points,), and `first` and `second` get the derivatives κ₁ and κ₂.
    Without it: `first` gets −κ₁; or with `grad`, −κ₂·grad, and the sums (g, …) of (½κ₃ + κ₁κ₂)·grad are returned,
    one of each place in a row.
    """
    g = len(columns)
    shape = min(g, TILE), ROW_WIDTH + 8  # columns of tiles do not lie a power of two apart
    tile, other, by_q = np.empty(shape), np.empty(shape), np.zeros((g, ROW_WIDTH))
    for begin in range(start, stop, ROW_WIDTH):
        rows = slice(begin, min(begin + ROW_WIDTH, stop))
        for left in range(0, g, TILE):
            part = rows, slice(left, left + TILE)
            count, width = x[part].shape
            block, other_block = tile.T[:count, :width], other.T[:count, :width]
            copy_tile(x[part], block)
            if grad is not None:
                copy_tile(grad[part], other_block)
            if value is not None:
                product, rest = np.ones(count), np.zeros(count)
            for j in range(width):
                c = columns[left + j]
                numbers = c.high, c.low, c.lower, c.trend, c.slope, c.factor, c.constant, c.decay, c.has_cosines
                for b in range(count):
                    smooth, z, k1, k2, half_k3 = unit_series(tile[j, b], *numbers)
                    if grad is not None:
                        tile[j, b] = -k2 * other[j, b]
                        by_q[left + j, b] += other[j, b] * (half_k3 + k1 * k2)
                    elif value is None:
                        tile[j, b] = -k1
                    else:
                        product[b] *= z
                        rest[b] += smooth
                        if first is not None:
                            tile[j, b] = k1
                        if second is not None:
                            other[j, b] = k2
            if value is not None:
                for b in range(count):
                    value[begin + b] += rest[b] + np.log(product[b])
            if first is not None:
                copy_tile(block, first[part])
            if second is not None:
                copy_tile(other_block, second[part])
    return by_q
