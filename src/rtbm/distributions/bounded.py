"""Distributions on intervals and half lines, by an exact change of variables to the whole line."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rtbm.distributions.arguments import check_indices, check_known, check_points, refuse_rsample
from rtbm.distributions.caching import forwarded
from rtbm.distributions.conditional import ConditionalDistribution, ConditionalStates
from rtbm.distributions.integration.boxes import NORMAL_CUTOFF, lower_tail
from rtbm.distributions.mixture import RTBMMixture
from rtbm.distributions.rtbm import RTBMDistribution
from rtbm.errors import InvalidInputError

NEGLIGIBLE_LOSS = 1e-9
"""Where bounds on the probability that float64 cannot tell from 0 are below this, it is not computed."""
LOGIT_SPACING, MAX_LOGIT_NODES = 0.65, 2000
"""The largest spacing, on the line, of the nodes that moments between two bounds take, and the most nodes on a side. A
larger spacing loses digits; fewer nodes lose them where nearly all values lie at the bounds."""


def to_line(x: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """y (..., d), and log dy/dx summed over the coordinates (...)::

        y = log(x − low)      y = −log(high − x)      y = log((x − low)/(high − x))

    for a lower bound, an upper bound and both; infinite bounds are none, and without bounds y = x. NaN entries stay,
    and count nothing. Outside of the bounds y is 0 and the logarithm −∞.
    """
    has_low, has_high = low.isfinite(), high.isfinite()
    is_inside = ~((x <= low) | (x >= high))
    above = torch.where(has_low & is_inside, x - low, 1.0).log()
    below = torch.where(has_high & is_inside, high - x, 1.0).log()
    y = torch.where(has_low | has_high, above - below, x)
    log_width = torch.where(has_low & has_high, high - low, 1.0).log()
    log_slope = torch.where(x.isnan(), 0.0, log_width - above - below)
    outside = torch.full_like(log_slope, -math.inf)
    return torch.where(is_inside, y, 0.0), torch.where(is_inside, log_slope, outside).sum(-1)


def from_line(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """x (..., d) strictly inside the bounds, the inverse of `to_line`."""
    has_low, has_high = low.isfinite(), high.isfinite()
    t = torch.exp(-y.abs())
    step = (high - low) * t / (1 + t)  # from the nearer bound
    both = torch.where(y >= 0, high - step, low + step)
    x = torch.where(has_low, torch.where(has_high, both, low + y.exp()), torch.where(has_high, high - (-y).exp(), y))
    first, last = torch.full_like(low, math.inf), torch.full_like(high, -math.inf)
    return torch.minimum(torch.maximum(x, torch.nextafter(low, first)), torch.nextafter(high, last))


def _mixture_moments(states: ConditionalStates, low: Tensor, high: Tensor) -> Tensor:
    """The mean and the variance (n, 2) of x in n mixtures of normals of y."""
    weights, centres, scales = states.on_line()
    means, variances = _normal_moments(centres, scales, low, high)
    mean = torch.where(weights > 0, weights * means, 0.0).sum(1)  # means may be infinite
    spread = variances + (means - mean[:, None]).square()
    variance = torch.where(weights > 0, weights * spread, 0.0).sum(1)
    return torch.stack([mean, torch.where(mean.isfinite(), variance, math.inf)], 1)


def _normal_moments(c: Tensor, s: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The means and the variances of x for y ~ N(c, s²): exact, or for two bounds by the trapezoidal rule."""
    has_low, has_high = bool(low.isfinite()), bool(high.isfinite())
    if has_low and has_high:
        near, first, second = torch.where(c >= 0, -c, c), torch.zeros_like(c), torch.zeros_like(c)
        spacing = min(0.5, LOGIT_SPACING / float(s.detach().max()))
        count = min(math.ceil(NORMAL_CUTOFF / spacing), MAX_LOGIT_NODES)
        for z in torch.linspace(-NORMAL_CUTOFF, NORMAL_CUTOFF, 2 * count + 1, dtype=c.dtype).tolist():
            density = math.exp(-0.5 * z * z) * NORMAL_CUTOFF / count / math.sqrt(2 * math.pi)
            step = (near + z * s).sigmoid() - near.sigmoid()  # of the share of the way from the nearer bound
            first, second = first + density * step, second + density * step.square()
        share, width = near.sigmoid() + first, high - low
        return torch.where(c >= 0, high - width * share, low + width * share), width**2 * (second - first.square())
    if not (has_low or has_high):
        return c, s.square()
    distance = ((c if has_low else -c) + 0.5 * s.square()).exp()
    return low + distance if has_low else high - distance, distance.square() * s.square().expm1()


class BoundedDistribution(Distribution):
    """The distribution of features with bounds, whose logarithms or logits have a machine or a mixture as density.

    Density, samples, distribution function, quantiles, marginals and conditionals are as exact as those of `base`.
    Means and variances are those of log-normal distributions, or for features with two bounds found by quadrature.

    Parameters
    ----------
    base : RTBMDistribution, RTBMMixture or ConditionalDistribution
        The distribution of the transformed features, y (Nv,), or a batch of them.
    low, high : (Nv,)
        The bounds: −∞ and +∞ where there is none. See `to_line` for the transformation.

    Examples
    --------
    >>> import rtbm
    >>> base = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[9.0]], [0.0], [0.0])  # y is normal, so x is log-normal
    >>> x = rtbm.BoundedDistribution(base, [0.0], [float("inf")])
    >>> x.log_prob([[1.0], [-1.0]])
    tensor([-0.9189,    -inf], dtype=torch.float64)
    >>> round(float(x.icdf(0.5)), 9), bool((x.sample((5,)) > 0).all())
    (1.0, True)
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  the interface of torch
    support = constraints.real_vector
    has_rsample = False
    rsample = refuse_rsample

    def __init__(self, base: RTBMDistribution | RTBMMixture | ConditionalDistribution, low: Any, high: Any):
        self.base = base
        self.low, self.high = (
            check_points(end, name, base.n_visible, base.device, infinite=True)
            for end, name in ((low, "low"), (high, "high"))
        )
        if self.low.ndim != 1 or self.high.ndim != 1 or not bool((self.low < self.high).all()):
            raise InvalidInputError(
                f"low and high must be ({base.n_visible},) with low < high, got {low!r} and {high!r}"
            )
        super().__init__(base.batch_shape, torch.Size([base.n_visible]), validate_args=False)

    def __repr__(self) -> str:
        return f"BoundedDistribution({self.base!r}, low={self.low.tolist()}, high={self.high.tolist()})"

    n_visible: int = forwarded("base.n_visible", "The number of features.")
    device: torch.device = forwarded("base.device", "The device of the parameters.")

    @property
    def mean(self) -> Tensor:
        """E[x] (..., Nv)."""
        return self._moments()[0]

    @property
    def variance(self) -> Tensor:
        """The variance of each feature (..., Nv)."""
        return self._moments()[1]

    def _moments(self) -> Tensor:
        """The mean and the variance of each feature (2, ..., Nv)."""
        batch = self.base
        if not isinstance(batch, ConditionalDistribution):
            nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
            batch = batch._conditionals([], list(range(self.n_visible)), nothing)

        def column(i: int) -> Tensor:
            moments = partial(_mixture_moments, low=self.low[i], high=self.high[i])
            return batch._shape(batch.marginal(i)._by_states(moments, 2), shape=(*self.batch_shape, 2))

        return torch.stack([column(i) for i in range(self.n_visible)], -1).movedim(-2, 0)

    def lost_probability(self) -> Tensor:
        """The probability (Nv,) of values of each feature that lie nearer to a bound than float64 can tell, or beyond
        its largest number. Less than 1e-9 counts as 0.

        Examples
        --------
        >>> import rtbm
        >>> base = rtbm.RTBMDistribution([[1e-4]], [[0.0]], [[9.0]], [0.0], [0.0])  # a standard deviation of 100
        >>> rtbm.BoundedDistribution(base, [1.0], [float("inf")]).lost_probability().round(decimals=3)
        tensor([0.3590], dtype=torch.float64)
        """
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("lost_probability is for one distribution, this is a batch of conditionals")
        ends = torch.stack([self.low.nextafter(self.high), self.high.nextafter(self.low)])
        first, last = to_line(ends, self.low, self.high)[0]
        limit = torch.zeros_like(first)
        for weight, _, envelope in self.base._evaluator.components():  # much quicker than exact probabilities
            scale = envelope.covariance.diagonal().sqrt()
            tails = lower_tail((first - envelope.mean) / scale) + lower_tail((envelope.mean - last) / scale)
            limit += weight * torch.where(tails > 0, (tails.log() + envelope.log_peak).exp(), 0.0)
        lost = torch.zeros_like(limit)
        for i in (limit > NEGLIGIBLE_LOSS).nonzero()[:, 0].tolist():
            line = self.base.marginal(i)
            lost[i] = line.cdf(first[i : i + 1]) + line.box_probability(last[i : i + 1], [math.inf])
        return lost

    def log_prob(self, value: Any) -> Tensor:
        """log P(x) (...) for x (..., Nv); −∞ outside of the bounds. NaN entries are integrated out."""
        x = check_points(value, "value", self.n_visible, self.device, missing=True)
        y, log_slope = to_line(x, self.low, self.high)
        return self.base.log_prob(y) + log_slope

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (Nv,)."""
        return from_line(self.base.sample(sample_shape, generator).double(), self.low, self.high)

    def cdf(self, value: Any) -> Tensor:
        """P(all coordinates are below x) (...) for x (..., Nv)."""
        x = check_points(value, "value", self.n_visible, self.device, infinite=True)
        y = to_line(x, self.low, self.high)[0]
        y = torch.where(x <= self.low, -math.inf, torch.where(x >= self.high, math.inf, y))
        return self.base.cdf(y)

    def icdf(self, value: Any) -> Tensor:
        """The quantiles x (..., 1) of probabilities (...) in one dimension: the inverse of `cdf`."""
        return from_line(self.base.icdf(value), self.low, self.high)

    def marginal(self, indices: int | Iterable[int]) -> "BoundedDistribution":
        """The distribution of some features, in the order given."""
        chosen = check_indices(indices, self.n_visible)
        return BoundedDistribution(self.base.marginal(chosen), self.low[chosen], self.high[chosen])

    def conditional(self, values: Mapping[int, Any]) -> "BoundedDistribution":
        """The distribution of the other features, given the values of some: {index: value}."""
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("this is a batch of conditionals already: give all values to conditional at once")
        known, free, numbers = check_known(values, self.n_visible, self.device)
        y, log_slope = to_line(numbers, self.low[known], self.high[known])
        if not bool(log_slope.isfinite().all()):
            raise InvalidInputError(f"values must lie strictly inside the bounds, got {dict(values)}")
        given = dict(zip(known, y.unbind(-1), strict=True))
        return BoundedDistribution(self.base.conditional(given), self.low[free], self.high[free])
