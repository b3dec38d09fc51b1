"""Probabilities of intervals under a sum of normal distributions of one width, from those near the ends alone."""

import torch
from torch import Tensor

from rtbm.distributions.normal_box import interval
from rtbm.theta.chunks import in_chunks

NEAR, FAR = 9.0, 39.0
"""So many standard deviations from its centre a normal distribution has 1e-19 of probability left, or nothing."""
RARE = 1e-3
"""Intervals of less probability than this are summed again as far as FAR, to keep their digits."""


class LineSum:
    """Σ_i w_i P(low < x < high), x ~ N(c_i, width²): whole weights between the ends, error functions near them.

    `centres` (n,) may come in any order; `weights` (n,) have the sum 1, and `width` () is a standard deviation.
    """

    def __init__(self, centres: Tensor, weights: Tensor, width: Tensor):
        order = centres.detach().argsort()
        self._centres, self._weights, self._width = centres[order], weights[order], width
        sums = self._weights.cumsum(0)
        self._below = torch.cat([sums.new_zeros(1), sums])
        self._above = torch.cat([self._weights.flip(0).cumsum(0).flip(0), sums.new_zeros(1)])

    def windows(self, low: Tensor, high: Tensor, reach: float = NEAR) -> Tensor:
        """The components near `low` are number a to b, those near `high` c to d, and whole are b to c: (n, 4)."""
        reach, centres = reach * float(self._width.detach()), self._centres.detach()
        ends = low.detach() - reach, low.detach() + reach, high.detach() - reach, high.detach() + reach
        a, b, c, d = (torch.searchsorted(centres, end.contiguous()) for end in ends)
        return torch.stack([a, torch.where(b < c, b, d), torch.where(b < c, c, d), d], 1)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P (n,) for bounds (n, 1), which may be infinite."""
        low, high = (x[:, 0].clamp(-1e30, 1e30) for x in (low, high))  # ∞ has no derivatives
        total = self._sum(low, high, NEAR)
        rare = (total.detach() < RARE).nonzero()[:, 0]
        return total.index_put((rare,), self._sum(low[rare], high[rare], FAR))

    def _sum(self, low: Tensor, high: Tensor, reach: float) -> Tensor:
        if len(low) == 0:
            return low
        a, b, c, d = self.windows(low, high, reach).unbind(1)
        total = torch.where(
            self._above[b] < self._below[c], self._above[b] - self._above[c], self._below[c] - self._below[b]
        )
        for start, stop in ((a, b), (c, d)):
            size = int((stop - start).max())
            rows = torch.stack([low, high, start.to(low), stop.to(low)], 1)
            if size:
                total = total + in_chunks(self._near, rows, [self._centres, self._weights, self._width], width=size)
        return total

    @staticmethod
    def _near(rows: Tensor, centres: Tensor, weights: Tensor, width: Tensor) -> Tensor:
        """Σ w_i P_i over the components number start to stop."""
        low, high = rows[:, :1], rows[:, 1:2]
        start, stop = rows[:, 2:].detach().long().split(1, 1)
        index = start + torch.arange(int((stop - start).max()), device=rows.device)
        inside, index = index < stop, index.clamp(max=len(centres) - 1)
        z = ((end - centres[index]) / width for end in (low, high))
        low, high = (x.clamp(-100, 100) for x in z)
        return (torch.where(inside, weights[index], 0.0) * interval(low, high)).sum(1)
