"""What CUDA passes (Triton) share: how they are compiled and launched, and elementary functions."""

from typing import Any

import torch

from rtbm.theta.constants import COS_PI, SIN_PI
from rtbm.theta.kernels import EXP, LN2_HIGH, LN2_LOW, LOG2_E, LOWEST_EXPONENT

try:
    import triton
    import triton.language as tl
except ImportError:  # plain torch takes over
    triton = None

TRITON_AVAILABLE = triton is not None
"""Whether these passes are used on CUDA. If it is false, they run in torch."""
SINE_TERMS, SINE_TERMS_FLOAT32 = 9, 5
"""Taylor terms of sine and cosine up to a quarter of a turn. With fewer, the last digits would be wrong."""
MAX_CHOICES = 1000  # choices of a compiled kernel that are kept; then all are forgotten


def jit(function: Any) -> Any:
    """Compile by Triton where it is installed. Triton keeps what it has compiled on disk."""
    return triton.jit(function) if TRITON_AVAILABLE else function


_chosen: dict[Any, tuple[Any, Any]] = {}
"""A kernel, and what it was compiled to, for arguments of one kind."""


def launch(kernel: Any, grid: tuple[int, int, int], *arguments: Any) -> None:
    """Run a kernel on the device of its first argument; the arguments are tensors and integers.

    Triton examines all arguments to choose a compiled kernel, which takes longer than the launch. The choice is kept
    here for arguments of the same types, alignments and numbers.
    """
    device = arguments[0].get_device()
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return launch(kernel, grid, *arguments)
    key = id(kernel), device, *[a if isinstance(a, int) else (a.dtype, a.data_ptr() % 16) for a in arguments]
    if key in _chosen:
        _chosen[key][1][grid](*arguments)
        return None
    if len(_chosen) >= MAX_CHOICES:
        _chosen.clear()
    compiled = kernel[grid](*arguments)
    if compiled is not None:  # Triton's interpreter compiles nothing
        _chosen[key] = kernel, compiled


if TRITON_AVAILABLE:
    _SINE, _COSINE = (tl.constexpr(tuple(table.tolist())) for table in (SIN_PI, COS_PI))
    _EXP = tl.constexpr(tuple(EXP.tolist()))
    _LOG2_E, _LN2_HIGH, _LN2_LOW = tl.constexpr(LOG2_E), tl.constexpr(LN2_HIGH), tl.constexpr(LN2_LOW)
    _LOWEST = tl.constexpr(LOWEST_EXPONENT)


@jit
def sine_cosine(turns, TERMS: "tl.constexpr"):
    """Sine and cosine of 2π·turns for |turns| ≤ ½: from half the angle to a quarter of a turn."""
    shifted = tl.abs(turns) - 0.25
    square = shifted * shifted
    s = tl.zeros_like(turns) + _SINE[TERMS - 1]
    c = tl.zeros_like(turns) + _COSINE[TERMS - 1]
    for k in tl.static_range(TERMS - 2, -1, -1):
        s = s * square + _SINE[k]
        c = c * square + _COSINE[k]
    s = s * shifted
    sine = 1 - 2 * s * s
    return tl.where(turns >= 0, sine, -sine), -2 * s * c


@jit
def exponential(x):
    """exp(x) for x up to 700 in float64, to about one unit in the last place; about exp(−700) below −700."""
    x = tl.maximum(x, _LOWEST)
    k = tl.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    p = r * _EXP[13] + _EXP[12]  # not tl.fma, which would take constants in float32
    for i in tl.static_range(11, -1, -1):
        p = p * r + _EXP[i]
    bits = p.to(tl.int64, bitcast=True) + (k.to(tl.int32).to(tl.int64) << 52)
    return bits.to(tl.float64, bitcast=True)


@jit
def reciprocal(x):
    """1 / x, for float64 by Newton's method, which is shorter than a division."""
    if x.dtype == tl.float64:
        y = (1 / x.to(tl.float32)).to(tl.float64)
        y = y * (2 - x * y)
        y = y * (2 - x * y)
    else:
        y = 1 / x
    return y
