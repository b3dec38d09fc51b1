"""One-dimensional theta functions in plain torch: the specification, differentiable to any order in every mode.

Take the nearest multiple of the period off the argument: u = n₀·period + s. The period is q in phase I and 2π in phase
II. What is left is one of two short sums::

    waves   Z = 1 + Σ_{m=1}^{4} 2exp(−½bm²) cos(mx)       where b ≥ π
    steps   Z = Σ_{m=−2}^{2} exp(mx − ½am²), |x| ≤ ½a      where a > 4π

One of them is the series itself, with x = s and a or b equal to q. The other one is its Poisson dual, with x = 2πs/q
and a or b equal to 4π²/q. In phase I the dual is the sum of waves, in phase II that of steps. Since ab = 4π², one of
the conditions holds. Altogether, with the upper sign in phase I, and in brackets what the dual adds::

    log θ̃ = ½n₀(u + s) [± ½s²/q + ½log(2π/q)] + log Z          n₀ → 0 in phase II
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.chunks import in_chunks
from rtbm.theta.constants import N_COSINES, N_EXPONENTIALS, TWO_PI_PARTS, WAVE_LIMIT
from rtbm.theta.derivatives import Derivatives, with_derivatives
from rtbm.theta.exact import TWO_PI_PERIODS, Periods, in_two_parts, remove_periods


class Recentred(NamedTuple):
    """An argument u = n₀·period + s + rest, of which s carries the derivatives."""

    u: Tensor
    n0: Tensor
    s: Tensor
    rest: Tensor  # what s has lost by rounding


def sums_waves(q: Any, phase: str) -> Any:
    """Whether the function of q is a sum of waves, for a number, an array or a tensor.

    >>> sums_waves(3.0, "I"), sums_waves(20.0, "I"), sums_waves(3.0, "II"), sums_waves(20.0, "II")
    (True, False, False, True)
    """
    return q < WAVE_LIMIT if phase == "I" else q > TWO_PI**2 / WAVE_LIMIT


def unit_derivatives(u: Tensor, q: Tensor, phase: str, order: int) -> Derivatives:
    """log θ̃(u|q), in phase II log θ̃(iu|q), and its first `order` ≤ 3 derivatives in u, entry by entry.

    Both sums are formed and one is chosen entry by entry. No branch depends on numbers, so torch.func and torch.compile
    can follow.

    Parameters
    ----------
    u : (..., g)
        Real tensor.
    q : any shape that broadcasts against u
        Positive tensor; other entries give NaN.

    Returns
    -------
    Tensors of u's shape in float64. For entries of u beyond 2^27 periods digits are lost.

    Examples
    --------
    >>> u, q = torch.tensor([5.0, 1.0]), torch.tensor([10.0, 0.1])
    >>> [x.numpy().round(4).tolist() for x in unit_derivatives(u, q, "I", 2)]
    [[0.6932, 7.0702], [0.5, 10.0], [0.2501, 10.0]]
    """
    u, q = u.double(), torch.where(q > 0, q, math.nan).double()
    at, is_wave = _recentre(u, q, phase, False), sums_waves(q, phase)
    limit = WAVE_LIMIT if phase == "I" else TWO_PI**2 / WAVE_LIMIT
    waves = _one_sum(at, torch.where(is_wave, q, limit), phase, order, True)
    steps = _one_sum(at, torch.where(is_wave, limit, q), phase, order, False)
    return tuple(torch.where(is_wave, *pair) for pair in zip(waves, steps, strict=True))


def column_derivatives(z: Tensor, q: Tensor, phase: str, order: int, is_far: bool) -> Derivatives:
    """The same for z (points, g) and q (g,), both float64, where each column needs one of the sums only.

    With `is_far` the argument may be as large as float64 can tell lattice points apart.
    """
    is_wave = sums_waves(q.detach(), phase)
    sides, order_of_columns = [], []
    for waves in (True, False):
        columns = (is_wave == waves).nonzero()[:, 0]
        if len(columns):
            sides.append(
                in_chunks(
                    lambda rows, q, waves=waves: _one_sum(_recentre(rows, q, phase, is_far), q, phase, order, waves),
                    z[:, columns],
                    [q[columns]],
                    len(columns) * (2 * N_EXPONENTIALS + 1),
                )
            )
            order_of_columns.append(columns)
    if len(sides) == 1:
        return sides[0]
    back = torch.cat(order_of_columns).argsort()
    return tuple(torch.cat(pair, dim=1)[:, back] for pair in zip(*sides, strict=True))


def _recentre(u: Tensor, q: Tensor, phase: str, is_far: bool) -> Recentred:
    value, fixed = u.detach(), q.detach()
    periods = Periods(1 / fixed, in_two_parts(fixed)) if phase == "I" else TWO_PI_PERIODS
    n0, high, low = remove_periods(value, torch.zeros_like(value), periods, is_far)
    s = high + low
    rest = (high - s) + low
    return Recentred(u, n0, with_derivatives(s, u - n0 * q if phase == "I" else u), rest)


def _one_sum(at: Recentred, q: Tensor, phase: str, order: int, waves: bool) -> Derivatives:
    """log θ̃ and its derivatives from one of the two sums."""
    is_dual = waves == (phase == "I")
    factor = TWO_PI / q
    if waves:
        series = _waves(factor * at.s, TWO_PI * factor, order) if is_dual else _waves(at.s, q, order)
    else:
        series = _steps(_exponents(at, q, phase), order)
    parts = list(series)
    if is_dual:
        slope = (1 if phase == "I" else -1) / q
        parts = [factor**k * part for k, part in enumerate(series)]
        smooth = (0.5 * slope * at.s**2 + 0.5 * torch.log(factor), slope * at.s, slope)
        parts = [part + added for part, added in zip(parts, smooth, strict=False)] + parts[3:]
    if phase == "I":
        trend = (0.5 * at.n0 * (at.u + at.s), at.n0)
        parts = [part + added for part, added in zip(parts, trend, strict=False)] + parts[2:]
    return tuple(parts)


def _waves(x: Tensor, b: Tensor, order: int) -> Derivatives:
    """log Z and its derivatives in x for Z = 1 + Σ_m 2exp(−½bm²) cos(mx)."""
    turn = 2 * torch.cos(x)
    cosines, sines = [torch.ones_like(x), 0.5 * turn], [torch.zeros_like(x), torch.sin(x)]
    sums = [torch.zeros_like(x) for _ in range(order + 1)]
    for m in range(1, N_COSINES + 1):
        size = 2 * torch.exp(-0.5 * m**2 * b)
        derivatives = (cosines[m], -sines[m], -cosines[m], sines[m])
        sums = [total + m**k * size * derivatives[k] for k, total in enumerate(sums)]
        for multiples in (cosines, sines):  # Chebyshev: cos (m + 1)x = 2 cos x cos mx − cos (m − 1)x
            multiples.append(turn * multiples[m] - multiples[m - 1])
    return torch.log1p(sums[0]), *_cumulants([moment / (1 + sums[0]) for moment in sums[1:]])


def _exponents(at: Recentred, q: Tensor, phase: str) -> dict[int, Tensor]:
    """mx − ½am² for the terms m ≠ 0 of steps, without rounding where two terms are equal."""
    high: Any = in_two_parts(q.detach())[0] if phase == "I" else TWO_PI_PARTS[0]
    low: Any = q - high if phase == "I" else TWO_PI_PARTS[1]
    scale: Any = 1.0 if phase == "I" else TWO_PI / q
    terms = [m for m in range(-N_EXPONENTIALS, N_EXPONENTIALS + 1) if m]
    return {m: scale * (m * ((at.s - 0.5 * m * high) + (at.rest - 0.5 * m * low))) for m in terms}


def _steps(exponents: dict[int, Tensor], order: int) -> Derivatives:
    """log Z and its derivatives in x for Z = 1 + Σ_m exp(exponent of m)."""
    terms = {m: exponent.exp() for m, exponent in exponents.items()}
    total: Any = sum(terms.values())
    moments = [sum(m**k * term for m, term in terms.items()) / (1 + total) for k in range(1, order + 1)]
    return torch.log1p(total), *_cumulants(moments)


def _cumulants(moments: list[Tensor]) -> list[Tensor]:
    """Cumulants from up to three moments."""
    cumulants = moments[:1]
    if len(moments) > 1:
        cumulants.append(moments[1] - moments[0] ** 2)
    if len(moments) > 2:
        cumulants.append(moments[2] - 3 * moments[1] * moments[0] + 2 * moments[0] ** 3)
    return cumulants
