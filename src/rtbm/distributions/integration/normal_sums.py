"""One-dimensional mixtures of normals, one for each row: tails, densities and quantiles."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.distributions.integration.boxes import lower_tail
from rtbm.distributions.integration.quantiles import refine_quantiles
from rtbm.theta import kernels
from rtbm.theta.chunks import run_threads
from rtbm.theta.kernels import compiled

NEGLIGIBLE_SHARE = 1e-17
"""Normals with less than this part of the largest weight of their row are left out. A larger number is faster, and
loses digits of small tails."""
LARGE_SHARE = 1e-7
"""Quantiles are first found from the normals above this part of the largest weight, then from all. It decides how long
they take, not what they are."""
FARTHEST_SCORE = 38.5
"""Standard deviations beyond which normal tails and densities are 0 in float64."""
ROOT_HALF, ROOT_TWO_PI = math.sqrt(0.5), math.sqrt(2 * math.pi)
"""√½ and √2π."""


class NormalSums(NamedTuple):
    """n mixtures of at most S normals each; the largest weights come first."""

    weights: Tensor  # (n, S)
    centres: Tensor  # (n, S)
    scales: Tensor  # (n, S)

    def largest(self, least: float) -> "NormalSums":
        """The same with as many normals as some row has with `least` times its largest weight or more."""
        kept = int((self.weights > least * self.weights[:, :1]).sum(1).max())
        return NormalSums(*(part[:, :kept] for part in self))

    def tail_and_density(self, x: Tensor, upper: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        """The probability (m,) above x (m,) where `upper`, below x elsewhere, and the density (m,), in rows `row`."""
        if kernels.AVAILABLE and not x.is_cuda and not (torch.is_grad_enabled() and self._differentiable(x)):
            return self._compiled(x, upper, row)
        weights, centres, scales = (part[row] for part in self)
        scores = (x[:, None] - centres) / scales
        tail = (lower_tail(torch.where(upper[:, None], -scores, scores)) * weights).sum(1)
        return tail, ((-0.5 * scores.square()).exp() / scales * weights).sum(1) / ROOT_TWO_PI

    def _tail_and_density_of(self, row: Tensor, x: Tensor, upper: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        return self.tail_and_density(x, upper, row[index])

    def _compiled(self, x: Tensor, upper: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        tail, density = torch.empty_like(x), torch.empty_like(x)
        arrays = [part.detach().contiguous().numpy() for part in (*self, x, upper, row, tail, density)]
        run_threads(lambda start, stop: add_normals(*arrays, start, stop), len(x), x.numel() * self.weights.shape[1])
        return tail, density

    def _differentiable(self, *others: Tensor) -> bool:
        return any(part.requires_grad for part in (*self, *others))

    def quantiles(self, tail: Tensor, upper: Tensor) -> Tensor:
        """The values (n, q) with probabilities `tail` (n, q) above them where `upper` (n, q), and below elsewhere."""
        goal, is_upper = tail.reshape(-1), upper.reshape(-1)
        row = torch.arange(len(tail), device=tail.device).repeat_interleave(tail.shape[1])
        inside = goal.detach() > 0
        with torch.no_grad():
            scores = torch.special.ndtri(tail.clamp(min=1e-300))
            scores = torch.where(upper, -scores, scores)[..., None]
            ends = scores * self.scales[:, None] + self.centres[:, None]  # the quantiles of the normals
            low, high = ends.amin(2).reshape(-1), ends.amax(2).reshape(-1)  # those of the sum lie between them
            x, index = (ends * self.weights[:, None]).sum(2).reshape(-1), inside.nonzero()[:, 0]
            for sums in (self.largest(LARGE_SHARE), self):
                x[index] = refine_quantiles(
                    goal[index],
                    is_upper[index],
                    low[index],
                    high[index],
                    x[index],
                    partial(sums._tail_and_density_of, row[index]),
                    float(self.scales.min()),
                )
            v = torch.where(inside, x, torch.where(is_upper, math.inf, -math.inf))
        if torch.is_grad_enabled() and self._differentiable(tail):
            for _ in range(2):  # Newton steps of length zero that carry the first and second derivatives
                found, density = self.tail_and_density(torch.where(inside, v, x), is_upper, row)
                step = torch.where(is_upper, found - goal, goal - found) / density
                v = v + torch.where(inside, step - step.detach(), 0.0)
        return v.reshape(tail.shape)


@compiled
def add_normals(weights, centres, scales, x, upper, row, tail, density, start, stop):
    """Fill tail[start:stop] and density[start:stop]; see `NormalSums.tail_and_density`."""
    for i in range(start, stop):
        r, below, slope = row[i], 0.0, 0.0
        sign = -1.0 if upper[i] else 1.0
        least = NEGLIGIBLE_SHARE * weights[r, 0]
        for s in range(weights.shape[1]):
            if weights[r, s] < least:
                break
            score = sign * (x[i] - centres[r, s]) / scales[r, s]
            if score > 9.0:
                below += weights[r, s]
            elif score > -FARTHEST_SCORE:
                below += weights[r, s] * 0.5 * math.erfc(-ROOT_HALF * score)
            if abs(score) < FARTHEST_SCORE:
                slope += weights[r, s] / scales[r, s] * math.exp(-0.5 * score * score)
        tail[i], density[i] = below, slope / ROOT_TWO_PI
