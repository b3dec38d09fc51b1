"""Tensor arithmetic without rounding: products with integer matrices, and arguments modulo a lattice.

A number is kept as a sum high + low, where high is exact.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.errors import InvalidInputError
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.lattice import DIGIT
from rtbm.validation import check_finite

SPLITTER = 2.0**27 + 1
"""Dekker's constant: `in_two_parts` leaves 26 bits in each part, so products with integers below 2^27 do not round. A
larger one would overflow for entries near 1e300."""


class Periods(NamedTuple):
    """The steps that recentring takes: the rows of a matrix P (g, g), or a period for each coordinate.

    P is a sum of parts whose products with integers do not round, see `lattice.in_parts`.
    """

    inverse: Any  # of P: a tensor or a number
    parts: tuple[Any, ...]
    plane: Tensor | None = None  # the nearest-plane matrix if P is a matrix, None if each coordinate has a period


TWO_PI_PERIODS = Periods(1 / TWO_PI, TWO_PI_PARTS)
"""The period 2π in every coordinate."""


def remove_periods(high: Tensor, low: Tensor, periods: Periods, is_far: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The integers n₀ (points, g) next to (high + low)P⁻¹, and high + low − n₀P, again as a sum that does not round.

    `is_far` says that n₀ may exceed DIGIT. It is then found digit by digit: each step makes the argument smaller by
    DIGIT, and its rounding error is kept in the low part.
    """

    def times(x: Tensor, P: Any) -> Tensor:
        return x * P if periods.plane is None else x @ P

    n0 = torch.zeros_like(high)
    for scale in (DIGIT**2, DIGIT, 1.0) if is_far else (1.0,):
        c = times(high + low, periods.inverse) / scale
        n = scale * (c.round() if periods.plane is None else nearest_plane(c, periods.plane))
        n0 = n0 + n
        for part in periods.parts[:2]:
            step = times(n, part)
            left = high - step
            taken = high - left
            low = low + ((high - (left + taken)) + (taken - step))
            high = left
        for part in periods.parts[2:]:
            low = low - times(n, part)
    return n0, high, low


def nearest_plane(c: Tensor, plane: Tensor) -> Tensor:
    """The lattice points (points, g) next to c (points, g), for one `plane` or for one of each point.

    See `lattice.nearest_plane_matrix`.
    """
    n = c.round()
    for i in range(c.shape[1] - 2, -1, -1):
        n[:, i] = (c[:, i] + ((c - n)[:, i + 1 :] * plane[..., i, i + 1 :]).sum(dim=1)).round()
    return n


def in_two_parts(q: Any) -> tuple[Any, Any]:
    """An array or tensor as a sum of two, whose products with integers below 2^27 do not round (Dekker's splitting).

    >>> high, low = in_two_parts(0.1)
    >>> high + low == 0.1, low
    (True, 3.7252903539730653e-10)
    """
    shifted = q * SPLITTER
    high = shifted - (shifted - q)
    return high, q - high


def grid_factor(U: Floats | Integers) -> float:
    """The factor c such that (z + c·2ᵏ) − c·2ᵏ, 2ᵏ > |z|, lies on a grid where z @ U is exact."""
    return 1.5 * 2.0 ** math.ceil(math.log2(float(np.abs(U).sum(axis=0).max())) + 1)


def exact_product(z: Tensor, low: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
    """(z + low) @ U as a large part that is exact, and a small rest.

    z (points, g) is cut into a part on a coarse grid, whose integer combinations do not round, and what is left, which
    joins `low`. Derivatives flow through the rest.
    """
    with torch.no_grad():
        _, exponent = torch.frexp(z.abs().amax(dim=1, keepdim=True))
        grid = torch.ldexp(torch.full_like(z[:, :1], grid_factor(U.cpu().numpy())), exponent)
        high = (z + grid) - grid
        coarse = high @ U
    return coarse, ((z - high) + low) @ U


def is_above(z: Tensor, near: float, most: float) -> bool:
    """Whether some |z| exceeds `near`; an error if one exceeds `most`, or is NaN."""
    largest = largest_entry(z) if z.numel() else 0.0
    if not largest <= most:
        check_finite(z, "z")
        raise InvalidInputError(
            f"z is too large: {largest:.3g}, where float64 can tell lattice points apart up to {most:.3g} for this Q"
        )
    return largest > near


def largest_entry(z: Tensor) -> float:
    """max |z|, or NaN if there is one."""
    low, high = z.detach().aminmax()
    return max(float(high), -float(low))
