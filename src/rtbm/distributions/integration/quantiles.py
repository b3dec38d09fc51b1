"""Quantiles of a one-dimensional distribution."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

QUANTILE_CELLS = 512  # cells of the range, one of which brackets a quantile at first
MAX_QUANTILE_STEPS = 2200
"""The largest number of Newton and bisection steps. Bisection alone takes fewer than 100 from a cell to a number of its
size, and 2100 from the largest number of float64 to the smallest."""


Tail = Callable[[Tensor, Tensor], Tensor]
"""A function tail(v, upper) of v (n,): the probability above v where `upper` (n,), and below v elsewhere."""
Density = Callable[[Tensor], Tensor]
"""A function that returns P(v) (n,) of v (n,)."""


def invert_cdf(p: Tensor, tail: Tail, density: Density, low: float, high: float, finest: float) -> Tensor:
    """The quantiles v (n,) with P(x < v) = p, for p (n,): Newton steps inside shrinking brackets.

    The smaller of both tails is compared with p or 1 − p, so that quantiles keep their digits in both. All quantiles of
    p between 0 and 1 must lie between `low` and `high`. `finest` is the width of the finest detail of the density:
    after a Newton step of 1e-8 of it, the remaining error is below rounding.
    """
    v = torch.where(p < 0.5, -math.inf, math.inf).to(p)
    active = ((p > 0) & (p < 1)).nonzero()[:, 0]
    upper = p[active] > 0.5
    target = torch.where(upper, 1 - p[active], p[active])
    left, right, x = _first_bracket(target, upper, tail, density, low, high)
    v[active] = refine_quantiles(
        target, upper, left, right, x, lambda x, upper, _: (tail(x, upper), density(x)), finest
    )
    return v


def refine_quantiles(
    target: Tensor,
    upper: Tensor,
    left: Tensor,
    right: Tensor,
    x: Tensor,
    tail_and_density: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    finest: float,
) -> Tensor:
    """Newton steps inside shrinking brackets, from first guesses x (n,) to the points where a tail has its target.

    The steps solve Φ⁻¹(tail) = Φ⁻¹(target), which is linear in x for a normal density.

    Parameters
    ----------
    target : (n,)
        The probability above the point where `upper`, and below it elsewhere.
    upper : (n,)
        Which tail counts.
    left, right : (n,)
        Brackets.
    x : (n,)
        First guesses inside them.
    tail_and_density : callable
        tail_and_density(x, upper, index) gives both (m,) at points x (m,) of the entries `index` (m,).
    finest : float
        The width of the finest detail of the density. The steps end when they are rounding errors of |x| + finest.
    """
    v, active, step = x.clone(), torch.arange(len(x), device=x.device), right - left
    goal = torch.special.ndtri(target)
    for _ in range(MAX_QUANTILE_STEPS):
        if len(active) == 0:
            break
        tail, density = tail_and_density(x, upper, active)
        z = torch.special.ndtri(tail)
        error = torch.where(upper, goal - z, z - goal)  # negative where x is too small
        left, right = torch.where(error < 0, x, left), torch.where(error < 0, right, x)
        newton = -error * (-0.5 * z.square()).exp() / (math.sqrt(2 * math.pi) * density)
        half = (left + right) / 2 - x
        done = newton.abs() <= 1e-8 * finest
        inside = (x + newton > left) & (x + newton < right)
        step = torch.where(done | (inside & (2 * newton.abs() <= step.abs())), newton, half)
        x = x + step
        v[active] = x
        rest = ~done & (step.abs() > 4e-16 * (x.abs() + finest))
        active, upper, goal, left, right, x, step = (part[rest] for part in (active, upper, goal, left, right, x, step))
    return v


def _first_bracket(
    target: Tensor, upper: Tensor, tail: Tail, density: Density, low: float, high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The cell (left, right) that holds each quantile, and a first guess by inverse Hermite interpolation."""
    edges = torch.linspace(low, high, QUANTILE_CELLS + 1, dtype=target.dtype, device=target.device)
    tails = [tail(edges, torch.full_like(edges, side, dtype=torch.bool)) for side in (False, True)]
    lower, higher = tails[0].cummax(0).values, (-tails[1]).cummax(0).values
    cell = torch.where(upper, torch.searchsorted(higher, -target), torch.searchsorted(lower, target))
    cell = cell.clamp(1, QUANTILE_CELLS)
    left, right = edges[cell - 1], edges[cell]
    before, after = (torch.where(upper, -higher[i], lower[i]) for i in (cell - 1, cell))
    slopes = (after - before).abs() / density(edges)[torch.stack([cell - 1, cell])] / (right - left)
    place = _hermite((target - before) / (after - before), *slopes)
    return left, right, left + (right - left) * place.nan_to_num(0.5).clamp(0.01, 0.99)


def _hermite(t: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The cubic polynomial from 0 at t = 0 to 1 at t = 1 with the given slopes there."""
    return t * ((1 - t) ** 2 * first + t * (3 - 2 * t) - t * (1 - t) * last)
