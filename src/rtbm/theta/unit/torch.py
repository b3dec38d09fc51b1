"""One-dimensional theta functions in plain torch: the specification, differentiable to any order in every mode.

Take the nearest multiple of the period off the argument: u = n₀·period + s. The period is q in phase I and 2π in phase
II. What is left is one of two short series::

    cosine series        Z = 1 + Σ_{m=1}^{4} 2exp(−½bm²) cos(mx)       where b ≥ π
    exponential series   Z = Σ_{m=−2}^{2} exp(mx − ½am²), |x| ≤ ½a      where a > 4π

One of them is the sum itself, with x = s and a or b equal to q. The other one is its Poisson dual, with x = 2πs/q and a
or b equal to 4π²/q. In phase I the dual is the cosine series, in phase II the exponential series. Since ab = 4π², one
of the conditions holds. Altogether, with the upper sign in phase I, and in brackets what the dual adds::

    log θ̃ = ½n₀(u + s) [± ½s²/q + ½log(2π/q)] + log Z          n₀ → 0 in phase II
"""

import math
from typing import Any

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.chunks import in_chunks
from rtbm.theta.constants import N_COSINES, N_EXPONENTIALS, SERIES_LIMIT, TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives, with_derivatives
from rtbm.theta.exact import TWO_PI_PERIODS, Periods, in_two_parts, remove_periods


def takes_cosines(q: Any, phase: str) -> Any:
    """Whether the function of q is a cosine series, for a number, an array or a tensor.

    >>> [takes_cosines(q, phase) for q in (3.0, 20.0) for phase in ("I", "II")]
    [True, False, False, True]
    """
    return q < SERIES_LIMIT if phase == "I" else q > TWO_PI**2 / SERIES_LIMIT


def unit_derivatives(u: Tensor, q: Tensor, phase: str, order: int) -> Derivatives:
    """log θ̃(u|q), in phase II log θ̃(iu|q), and its first `order` ≤ 3 derivatives in u, entry by entry.

    Both series are formed and one is chosen entry by entry. No branch depends on numbers, so torch.func and
    torch.compile can follow.

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
    at, has_cosines = _recentre(u, q, phase, False), takes_cosines(q, phase)
    limit = SERIES_LIMIT if phase == "I" else TWO_PI**2 / SERIES_LIMIT
    both = [_log_theta(at, q.where(has_cosines == kind, limit), phase, order, kind) for kind in (True, False)]
    return tuple(torch.where(has_cosines, a, b) for a, b in zip(*both, strict=True))


def column_derivatives(z: Tensor, q: Tensor, phase: str, order: int, is_far: bool) -> Derivatives:
    """The same for z (points, g) and q (g,), both float64, where each column needs one of the series only.

    With `is_far` the argument may be as large as float64 can tell lattice points apart.
    """

    def one_kind(kind: bool, index: Tensor) -> Derivatives:
        return in_chunks(
            lambda rows, q: _log_theta(_recentre(rows, q, phase, is_far), q, phase, order, kind),
            z[:, index],
            [q[index]],
            len(index) * (2 * N_EXPONENTIALS + 1),
        )

    has_cosines = takes_cosines(q.detach(), phase)
    columns = [(has_cosines == kind).nonzero()[:, 0] for kind in (True, False)]
    back = torch.cat(columns).argsort()
    both = map(one_kind, (True, False), columns)
    return tuple(torch.cat(pair, dim=1)[:, back] for pair in zip(*both, strict=True))


def _recentre(u: Tensor, q: Tensor, phase: str, is_far: bool) -> tuple[Tensor, ...]:
    """u, n₀, s and what s has lost by rounding, with u = n₀·period + s + rest, of which s carries the derivatives."""
    value, fixed = u.detach(), q.detach()
    periods = Periods(1 / fixed, in_two_parts(fixed)) if phase == "I" else TWO_PI_PERIODS
    n0, high, low = remove_periods(value, torch.zeros_like(value), periods, is_far)
    s = high + low
    return u, n0, with_derivatives(s, u - n0 * q if phase == "I" else u), (high - s) + low


def _log_theta(recentred: tuple[Tensor, ...], q: Tensor, phase: str, order: int, has_cosines: bool) -> Derivatives:
    """log θ̃ and its derivatives from one of the two series."""
    u, n0, s, rest = recentred
    is_first = phase == "I"
    is_dual = has_cosines == is_first
    factor = TWO_PI / q if is_dual else torch.ones_like(q)
    if has_cosines:
        sums = _cosine_series(factor * s, TWO_PI * factor if is_dual else q, order)
    else:
        high: Any = in_two_parts(q.detach())[0]
        sums = _exponential_series(s, rest, factor, (high, q - high) if is_first else TWO_PI_PARTS[:2], order)
    m1, m2, m3 = ([moment / (1 + sums[0]) for moment in sums[1:]] + [0.0] * 3)[:3]
    series = torch.log1p(sums[0]), m1, m2 - m1**2, m3 - 3 * m2 * m1 + 2 * m1**3
    slope = is_dual * (1 if is_first else -1) / q
    n0 = n0 * is_first
    smooth = 0.5 * n0 * (u + s) + (0.5 * slope * s**2 + 0.5 * torch.log(factor)), n0 + slope * s, slope, 0.0
    return tuple(smooth[k] + factor**k * series[k] for k in range(order + 1))


def _cosine_series(x: Tensor, b: Tensor, order: int) -> list[Any]:
    """Z − 1 and the derivatives of Z in x for Z = 1 + Σ_m 2exp(−½bm²) cos(mx)."""
    sums: list[Any] = [0.0] * (order + 1)
    for m in range(1, N_COSINES + 1):
        size, sine, cosine = 2 * torch.exp(-0.5 * m**2 * b), torch.sin(m * x), torch.cos(m * x)
        derivatives = (cosine, -sine, -cosine, sine)
        sums = [total + m**k * size * derivatives[k] for k, total in enumerate(sums)]
    return sums


def _exponential_series(s: Tensor, rest: Tensor, factor: Tensor, period: Any, order: int) -> list[Any]:
    """The same for Z = 1 + Σ_m exp(mx − ½am²), without rounding where two terms are equal."""
    high, low = period
    sums: list[Any] = [0.0] * (order + 1)
    for m in (m for m in range(-N_EXPONENTIALS, N_EXPONENTIALS + 1) if m):
        term = torch.exp(factor * (m * ((s - 0.5 * m * high) + (rest - 0.5 * m * low))))
        sums = [total + m**k * term for k, total in enumerate(sums)]
    return sums
