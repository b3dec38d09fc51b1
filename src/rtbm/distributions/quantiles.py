"""Quantiles of a one-dimensional distribution."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Tail = Callable[[Tensor], Tensor]


def invert(p: Tensor, below: Tail, above: Tail, density: Tail, centre: float, width: float) -> Tensor:
    """v (n,) with below(v) = p, for p (n,): Newton steps inside a shrinking bracket, all at once.

    `below` and `above` are the probabilities of the two sides of v. The smaller one is compared, so that quantiles keep
    their digits in both tails. 0 and 1 have the quantiles −∞ and ∞.
    """
    upper = p > 0.5
    target = torch.where(upper, 1 - p, p)

    def excess(v: Tensor) -> Tensor:
        """Negative where v is too small."""
        return torch.where(upper, target - above(v), below(v) - target)

    low, high = torch.full_like(p, centre - width), torch.full_like(p, centre + width)
    inside = (p > 0) & (p < 1)
    for _ in range(60):
        short_low, short_high = (excess(low) > 0) & inside, (excess(high) < 0) & inside
        if not bool((short_low | short_high).any()):
            break
        low = torch.where(short_low, centre + 2 * (low - centre), low)
        high = torch.where(short_high, centre + 2 * (high - centre), high)
    v = (low + high) / 2
    for _ in range(200):
        error = excess(v)
        low, high = torch.where(error < 0, v, low), torch.where(error < 0, high, v)
        step = v - error / density(v)
        v, previous = torch.where((step > low) & (step < high), step, (low + high) / 2), v
        if bool(((v - previous).abs() <= 4e-16 * (v.abs() + width)).all()):
            break
    v = torch.where(p == 0, -math.inf, v)
    return torch.where(p == 1, math.inf, v)
