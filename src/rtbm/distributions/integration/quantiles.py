"""Quantiles of a one-dimensional distribution."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

QUANTILE_CELLS = 512
"""Cells of the range, one of which brackets a quantile at first. More cells cost time once, and save Newton steps."""
MAX_QUANTILE_STEPS = 200
"""The largest number of Newton and bisection steps. Bisection alone needs fewer than 100 to reach float64 rounding."""


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
    step = right - left
    for _ in range(MAX_QUANTILE_STEPS):
        if len(active) == 0:
            break
        excess = tail(x, upper) - target
        error = torch.where(upper, -excess, excess)  # negative where x is too small
        left, right = torch.where(error < 0, x, left), torch.where(error < 0, right, x)
        newton, half = -error / density(x), (left + right) / 2 - x
        done = newton.abs() <= 1e-8 * finest
        inside = (x + newton > left) & (x + newton < right)
        step = torch.where(done | (inside & (2 * newton.abs() <= step.abs())), newton, half)
        x = x + step
        v[active] = x
        rest = ~done & (step.abs() > 4e-16 * (x.abs() + (high - low)))
        active, upper, target, left, right, x, step = (
            part[rest] for part in (active, upper, target, left, right, x, step)
        )
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
