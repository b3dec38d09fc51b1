"""What compiled CPU passes share (numba): the decorators, and elementary functions.

Points run along the inner loops, so that the compiler makes SIMD code. Every pass has a plain torch counterpart, which
serves when numba is not installed and on GPUs, and which tests compare it with.
"""

import math
from typing import Any

import numpy as np

from rtbm.theta.constants import COS_PI, SIN_PI

try:
    from numba import njit
except ImportError:  # the torch counterparts take over
    njit = None  # type: ignore[assignment]

AVAILABLE = njit is not None
"""Whether compiled passes are used. If it is false, everything runs in torch."""

ROW_WIDTH = 128
"""Points in one row of a work space. With more, the rows of one pass would leave the first-level cache."""
ROUND = 1.5 * 2.0**52
"""Adding and subtracting it rounds to the nearest integer. It must be this number: the last bit is then worth one."""
LOG2_E = 1 / math.log(2)
"""Turns an exponent of e into one of 2."""
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42fefa0000p-1"), float.fromhex("0x1.cf79abc9e3b39p-40")
"""log 2 as a sum. The first part has 36 bits, so that its products with exponents of 2 do not round; in one part, exp
would lose its last digits."""
HIGH_BITS = ~((1 << 27) - 1)
"""The bits of a float64 that hold sign, exponent and the upper half of its mantissa, 26 bits with the hidden one."""
LOWEST_EXPONENT = -700.0
"""Exponents are cut off here. Below, results would leave the normal numbers of float64, which is slow."""
EXP = np.array([1 / math.factorial(k) for k in range(14)])
"""Taylor coefficients of exp. For |r| ≤ ½log 2 fourteen terms reach the last digit; fewer would not."""


def compiled(function: Any, *more_flags: str, **more_options: Any) -> Any:
    """Compile without reassociation: the rounding tricks rely on the order of operations.

    Compiled functions pass np.int64(0), not 0, to each other: what gets a literal is compiled for that one alone.
    """
    if njit is None:
        return function
    flags = {"contract", "nsz", *more_flags}
    options = {"nogil": True, "error_model": "numpy", "fastmath": flags, "no_cfunc_wrapper": True, **more_options}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # no folder to keep compiled code in
        return njit(**options)(function)


def compiled_inline(function: Any) -> Any:
    """Compile into the code of callers, however long it is: loops that call functions do not become SIMD code."""
    return compiled(function, forceinline=True)


def reducing(function: Any) -> Any:
    """Compile with reassociation, so that sums and extrema over a row use SIMD instructions too."""
    return compiled(function, "nnan", "reassoc")


@compiled
def exponential(x):
    """exp(x) for x ≤ 709, to about one unit in the last place; below −700 it is cut off."""
    x = max(x, LOWEST_EXPONENT)
    shifted = x * LOG2_E + ROUND
    k = shifted - ROUND
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    p = EXP[13]
    for j in range(12, -1, -1):
        p = p * r + EXP[j]
    return np.int64(np.float64(p).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)).view(np.float64)


@compiled
def sine_cosine(turns):
    """Sine and cosine of 2π·turns for |turns| ≤ ½: sin 2a = 2 sin a cos a and cos 2a = 1 − 2 sin² a."""
    square = turns * turns
    s, c = SIN_PI[10], COS_PI[10]
    for k in range(9, -1, -1):
        s = s * square + SIN_PI[k]
        c = c * square + COS_PI[k]
    s = s * turns
    return 2 * s * c, 1 - 2 * s * s
