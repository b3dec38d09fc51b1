"""Quantiles of a one-dimensional distribution."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

CELLS = 512
"""The first bracket of a quantile is one of so many cells of the range."""


def invert(
    p: Tensor,
    tail: Callable[[Tensor, Tensor], Tensor],
    density: Callable[[Tensor], Tensor],
    low: float,
    high: float,
    finest: float,
) -> Tensor:
    """v (n,) with P(x < v) = p, for p (n,): Newton steps inside brackets that shrink, for all that are not done yet.

    `tail(v, upper)` is the probability above v where `upper`, and below v elsewhere. The smaller one of the two is
    compared, so that quantiles keep their digits in both tails. All quantiles of the p between 0 and 1 must lie between
    `low` and `high`; 0 and 1 have the quantiles −∞ and ∞. `finest` is the width of the finest detail of the density:
    after a Newton step of 1e-8 of it, what is left is below rounding.
    """
    v = torch.where(p < 0.5, -math.inf, math.inf).to(p)
    active = ((p > 0) & (p < 1)).nonzero()[:, 0]
    upper = p[active] > 0.5
    target = torch.where(upper, 1 - p[active], p[active])
    grid = torch.linspace(low, high, CELLS + 1, dtype=p.dtype, device=p.device)
    ends = [tail(grid, torch.full_like(grid, side, dtype=torch.bool)) for side in (False, True)]
    lower, higher = ends[0].cummax(0).values, (-ends[1]).cummax(0).values
    cell = torch.where(upper, torch.searchsorted(higher, -target), torch.searchsorted(lower, target)).clamp(1, CELLS)
    left, right = grid[cell - 1], grid[cell]
    before, after = (torch.where(upper, -higher[i], lower[i]) for i in (cell - 1, cell))
    slopes = (after - before).abs() / density(grid)[torch.stack([cell - 1, cell])] / (right - left)
    place = _hermite((target - before) / (after - before), *slopes)
    x = left + (right - left) * place.nan_to_num(0.5).clamp(0.01, 0.99)
    step = right - left
    for _ in range(200):
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


def _hermite(t: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """The cubic polynomial from 0 at t = 0 to 1 at t = 1 with the given slopes there."""
    return t * ((1 - t) ** 2 * first + t * (3 - 2 * t) - t * (1 - t) * last)
