"""Distributions whose columns were mapped to the real line: an exact change of variables in each column."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rtbm.distributions.arguments import broadcast, check_indices, check_known, check_points
from rtbm.distributions.base import MONTE_CARLO_SAMPLES
from rtbm.distributions.batch import HiddenStates
from rtbm.distributions.caching import forwarded
from rtbm.distributions.conditional import ConditionalDistribution
from rtbm.distributions.integration.boxes import NORMAL_CUTOFF, lower_tail
from rtbm.distributions.integration.expectations import Estimate, sample_expectation
from rtbm.distributions.integration.normal_sums import NEGLIGIBLE_SHARE
from rtbm.distributions.maps import ColumnMap, Interval, from_line, to_line
from rtbm.distributions.mixture import RTBMMixture
from rtbm.distributions.notebook import distribution_html
from rtbm.distributions.rtbm import RTBMDistribution
from rtbm.errors import InvalidInputError
from rtbm.theta import kernels
from rtbm.theta.chunks import run_threads
from rtbm.theta.kernels import compiled, exponential
from rtbm.validation import check_integer

NEGLIGIBLE_LOSS = 1e-9
"""Where bounds on the probability that float64 cannot tell from 0 are below this, it is not computed."""
LOGIT_SPACING, MAX_LOGIT_NODES = 0.65, 2000
"""The largest spacing, on the line, of the nodes that moments between two bounds take, and the most nodes on a side. A
larger spacing loses digits; fewer nodes lose them where nearly all values lie at the bounds."""
REACH, PANEL, PANEL_NODES, MAX_NORMALS = 9.0, 2.0, 16, 10_000
"""Moments of other maps are integrated up to REACH standard deviations from each normal of y, over panels of x with
PANEL_NODES nodes, as wide as PANEL standard deviations; for MAX_NORMALS normals at a time. Wider panels lose digits."""


def _interval_moments(states: HiddenStates, own: Interval) -> Tensor:
    """The mean and the variance (n, 2) of x in n mixtures of normals of y."""
    weights, centres, scales = states.on_line()
    means, variances = _normal_moments(centres, scales, own.low, own.high)
    mean = torch.where(weights > 0, weights * means, 0.0).sum(1)  # means may be infinite
    spread = variances + (means - mean[:, None]).square()
    variance = torch.where(weights > 0, weights * spread, 0.0).sum(1)
    return torch.stack([mean, torch.where(mean.isfinite(), variance, math.inf)], 1)


def _normal_moments(c: Tensor, s: Tensor, low: float, high: float) -> tuple[Tensor, Tensor]:
    """The means and the variances of x for y ~ N(c, s²): exact, or for two bounds by the trapezoidal rule."""
    has_low, has_high = math.isfinite(low), math.isfinite(high)
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


def _integrated_moments(states: HiddenStates, own: ColumnMap) -> Tensor:
    """The mean and the variance (n, 2) of x for any map, by Gauss-Legendre quadrature over panels."""
    shares = torch.where(states.weights > NEGLIGIBLE_SHARE * states.weights[:, :1], states.weights, 0.0)
    weights, centres, scales = (part.reshape(-1) for part in states._replace(weights=shares).on_line())
    moments = torch.where((weights > 0)[:, None], math.nan, centres.new_zeros(len(centres), 2))
    within = (centres.isfinite() & scales.isfinite() & (weights > 0)).nonzero()[:, 0]
    with torch.no_grad():
        order = within[centres[within].argsort()]
        order = order[scales[order].argsort(stable=True)]
        counts = scales[order].unique_consecutive(return_counts=True)[1].tolist()
    for alike in order.split(counts):
        for index in alike.split(MAX_NORMALS):
            moments[index] = _integrate_normals(own, centres[index], scales[index])
    weights, means, variances = (part.reshape(states.weights.shape) for part in (weights, *moments.mT))
    mean = (weights * means).sum(1)  # NaN where y leaves float64
    spread = variances + (means - mean[:, None]).square()
    return torch.stack([mean, (weights * spread).sum(1)], 1)


def _integrate_normals(own: ColumnMap, c: Tensor, s: Tensor) -> Tensor:
    """The mean and the variance (m, 2) of x for y ~ N(c, s²), where all s are the same and c (m,) are in order."""
    with torch.no_grad():
        low, high = c - REACH * s, c + REACH * s
        x, y, measure = _nodes(own, _edges(low, high, PANEL * float(s[0])))
        first, last = torch.searchsorted(y, low), torch.searchsorted(y, high)
    if kernels.AVAILABLE and not c.is_cuda and not (torch.is_grad_enabled() and (c.requires_grad or s.requires_grad)):
        result = c.new_empty(len(c), 2)
        arrays = [part.detach().contiguous().numpy() for part in (c, s, x, y, measure, first, last, result)]
        run_threads(lambda start, stop: fill_moments(*arrays, start, stop), len(c), len(c) * PANEL_NODES)
        return result
    place = first[:, None] + torch.arange(int((last - first).max()), device=c.device)
    is_inside, place = place < last[:, None], place.clamp(max=len(y) - 1)
    x, y, measure = x[place], y[place], torch.where(is_inside, measure[place], 0.0)
    density = (-0.5 * ((y - c[:, None]) / s[:, None]).square()).exp() * measure
    density = density / density.sum(1, keepdim=True)  # far out, slopes of learned margins have lost digits
    mean = (density * x).sum(1)
    return torch.stack([mean, (density * (x - mean[:, None]).square()).sum(1)], 1)


@compiled
def fill_moments(c, s, x, y, measure, first, last, result, start, stop):
    """Fill result[start:stop], the mean and the variance of each normal; see `_integrate_normals`."""
    for i in range(start, stop):
        total, mean, square, near = 0.0, 0.0, 0.0, x[(first[i] + last[i]) // 2]
        for n in range(first[i], last[i]):
            score, step = (y[n] - c[i]) / s[i], x[n] - near
            density = measure[n] * exponential(-0.5 * score * score)
            total += density
            mean += density * step
            square += density * step * step
        result[i, 0] = near + mean / total
        result[i, 1] = square / total - (mean / total) ** 2


def _edges(low: Tensor, high: Tensor, width: float) -> Tensor:
    """Edges (m,) of panels, at most this wide, of the union of intervals from `low` (n,), in order, to `high` (n,)."""
    reach = high.cummax(0).values
    begins = torch.cat([low.new_ones(1, dtype=torch.bool), low[1:] > reach[:-1]]).nonzero()[:, 0]
    ends = torch.cat([begins[1:] - 1, begins.new_tensor([len(low) - 1])])
    parts = []
    for begin, end in zip(low[begins].tolist(), reach[ends].tolist(), strict=True):
        count = 1 + math.ceil((end - begin) / width)
        parts.append(torch.linspace(begin, end, count + 1, dtype=torch.float64, device=low.device))
    return torch.cat(parts)


@torch.no_grad()
def _nodes(own: ColumnMap, edges: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes x (m,), their y, and weights with which functions of x, times densities of y, are integrated.

    `edges` (n,) are those of panels of y. Nodes are spaced along x, or along y if the map is smooth inversely.
    """
    inverse, knots = own.is_smooth_inversely, edges.new_tensor(own.knots)
    edges, knots = (edges, own.to_line(knots)[0]) if inverse else (own.from_line(edges), knots)
    edges = torch.cat([edges, knots[(edges[0] < knots) & (knots < edges[-1])]]).sort().values
    pieces = own.pieces(edges)
    left, width = (part.repeat_interleave(pieces) for part in (edges[:-1], edges.diff() / pieces))
    place = torch.arange(len(left), device=left.device) - (pieces.cumsum(0) - pieces).repeat_interleave(pieces)
    left = left + place * width
    roots, shares = (torch.from_numpy(part).to(left) for part in np.polynomial.legendre.leggauss(PANEL_NODES))
    nodes, measure = (left[:, None] + 0.5 * width[:, None] * (1 + roots)).reshape(-1), 0.5 * width[:, None] * shares
    if inverse:
        return own.from_line(nodes), nodes, measure.reshape(-1)
    y, log_slope = own.to_line(nodes)
    return nodes, y, measure.reshape(-1) * log_slope.exp()


class MappedDistribution(Distribution):
    """The distribution of columns x whose maps to the real line, y, have a machine or a mixture as density::

        P(x) = P_y(t(x)) Π_i dt_i/dx_i

    With bounds, the maps are logarithms or logits. With learned margins, it is a copula: each column has a density of
    its own, and `base` describes how the normal scores of columns depend on each other. Density, samples, distribution
    function, quantiles, marginals and conditionals are as exact as those of `base`. Means and variances are exact for
    columns without a map or with one bound, and one-dimensional integrals for others, as covariances are.

    Parameters
    ----------
    base : RTBMDistribution, RTBMMixture or ConditionalDistribution
        The distribution of y (Nv,), or a batch of them.
    maps : sequence of ColumnMap
        The map of each column: `ColumnMap()` for none, `Interval(low, high)`, `YeoJohnson(exponent, centre, scale)`,
        `LearnedMargin(power, weights, centres, scales)` or `StraightTails(map, first, last)`, all in
        `rtbm.distributions`.

    Examples
    --------
    >>> import rtbm
    >>> from rtbm.distributions import Interval
    >>> base = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[9.0]], [0.0], [0.0])  # y is normal, so x is log-normal
    >>> x = rtbm.MappedDistribution(base, [Interval(0.0, float("inf"))])
    >>> x.log_prob([[1.0], [-1.0]])
    tensor([-0.9189,    -inf], dtype=torch.float64)
    >>> round(float(x.icdf(0.5)), 9), bool((x.sample((5,)) > 0).all())
    (1.0, True)
    """

    base: RTBMDistribution | RTBMMixture | ConditionalDistribution
    maps: list[ColumnMap]

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  the interface of torch
    support: Any = constraints.real_vector
    has_rsample = True
    _repr_html_ = distribution_html

    def __init__(self, base: RTBMDistribution | RTBMMixture | ConditionalDistribution, maps: Sequence[ColumnMap]):
        self.base, self.maps = base, list(maps)
        if len(self.maps) != base.n_visible or not all(isinstance(own, ColumnMap) for own in self.maps):
            raise InvalidInputError(f"maps must be {base.n_visible} ColumnMaps, one for each column, got {maps!r}")
        super().__init__(base.batch_shape, torch.Size([base.n_visible]), validate_args=False)

    def __repr__(self) -> str:
        return f"MappedDistribution({self.base!r}, {[type(own).__name__ for own in self.maps]})"

    n_visible: int = forwarded("base.n_visible", "The number of columns.")
    device: torch.device = forwarded("base.device", "The device of the parameters.")

    @property
    def mean(self) -> Tensor:
        """E[x] (..., Nv)."""
        return self._moments(has_variance=False)[0]

    @property
    def variance(self) -> Tensor:
        """The variance of each column (..., Nv)."""
        return self._moments()[1]

    def _moments(self, has_variance: bool = True) -> Tensor:
        """The mean and the variance of each column (2, ..., Nv); the latter is meaningless without `has_variance`."""
        batch = self.base
        if not isinstance(batch, ConditionalDistribution):
            nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
            batch = batch._conditionals([], list(range(self.n_visible)), nothing)

        def column(i: int, own: ColumnMap) -> Tensor:
            line = batch.marginal(i)
            if type(own) is ColumnMap:
                mean = line.mean[..., 0]
                return torch.stack([mean, line.variance[..., 0] if has_variance else mean], -1)
            rule: Any = _interval_moments if isinstance(own, Interval) else _integrated_moments
            return batch._shape(line._by_states(partial(rule, own=own), 2), shape=(*self.batch_shape, 2))

        return torch.stack([column(i, own) for i, own in enumerate(self.maps)], -1).movedim(-2, 0)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariances (Nv, Nv) of one distribution: integrals, over one column, of conditional means of others."""
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("covariance_matrix is for one distribution, this is a batch of conditionals")
        mean, variance = self._moments()
        result = torch.diag(variance.double())
        for i in range(self.n_visible - 1):
            x, probability = self._quadrature(i)
            others = self.marginal(range(i, self.n_visible)).conditional({0: x}).mean.double()
            result[i, i + 1 :] = result[i + 1 :, i] = (probability * (x - mean[i])) @ others
        return result.to(variance.dtype)

    def _quadrature(self, i: int) -> tuple[Tensor, Tensor]:
        """Nodes (m,) of column i, and probabilities (m,) with which they stand for its distribution."""
        own: ColumnMap = self.maps[i]
        line: Any = self.base.marginal(i)
        nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
        ((_, states),) = line._conditionals([], [0], nothing)._state_blocks()
        _, centres, scales = (part.detach() for part in states.on_line())
        parts = []
        for scale in scales.unique():
            low = (centres[scales == scale] - REACH * scale).sort().values
            parts.append(_edges(low, low + 2 * REACH * scale, PANEL * float(scale)))
        x, y, measure = _nodes(own, torch.cat(parts).sort().values)
        probability = line.log_prob(y[:, None]).double().exp() * measure
        return x, probability / probability.sum()

    def lost_probability(self) -> Tensor:
        """The probability (Nv,) of values of each column that lie nearer to a bound than float64 can tell, or beyond
        its largest number. Less than 1e-9 counts as 0.

        Examples
        --------
        >>> import rtbm
        >>> from rtbm.distributions import Interval
        >>> base = rtbm.RTBMDistribution([[1e-4]], [[0.0]], [[9.0]], [0.0], [0.0])  # a standard deviation of 100
        >>> rtbm.MappedDistribution(base, [Interval(1.0, float("inf"))]).lost_probability().round(decimals=3)
        tensor([0.3590], dtype=torch.float64)
        """
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("lost_probability is for one distribution, this is a batch of conditionals")
        low, high = self._ends()
        first, last = (to_line(self.maps, end)[0] for end in (low.nextafter(high), high.nextafter(low)))
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

    def _ends(self) -> tuple[Tensor, Tensor]:
        """The ends (Nv,) of the supports of the columns."""
        ends = torch.tensor([own.support for own in self.maps], dtype=torch.float64, device=self.device)
        return ends[:, 0], ends[:, 1]

    def log_prob(self, value: Any) -> Tensor:
        """log P(x) (...) for x (..., Nv); −∞ outside of the bounds. NaN entries are integrated out."""
        x = check_points(value, "value", self.n_visible, self.device, missing=True)
        y, log_slope = to_line(self.maps, x)
        return self.base.log_prob(y) + log_slope.sum(-1)

    def score_function(self, value: Any) -> Tensor:
        """The score function ∇_x log P(x) (..., Nv) for x (..., Nv). No entry may be missing."""
        x = check_points(value, "value", self.n_visible, self.device)
        with torch.enable_grad():
            point = x.detach().requires_grad_() if not x.requires_grad else x
            return torch.autograd.grad(self.log_prob(point).sum(), point, create_graph=x.requires_grad)[0]

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (Nv,)."""
        return from_line(self.maps, self.base.sample(sample_shape, generator).double())

    def rsample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """The draws of `sample`, differentiable in the parameters of the base and of the maps."""
        return from_line(self.maps, self.base.rsample(sample_shape, generator).double())

    def cdf(self, value: Any) -> Tensor:
        """P(all coordinates are below x) (...) for x (..., Nv)."""
        return self.base.cdf(self._limits(check_points(value, "value", self.n_visible, self.device, infinite=True)))

    def box_probability(self, low: Any, high: Any) -> Tensor:
        """P(low < x < high) (...) for corners (..., Nv), which may be infinite."""
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("box_probability is for one distribution: take differences of cdf for a batch")
        corners = [
            check_points(end, name, self.n_visible, self.device, infinite=True)
            for end, name in ((low, "low"), (high, "high"))
        ]
        first, last, shape = broadcast(corners[0], corners[1], "low and high")
        return self.base.box_probability(self._limits(first), self._limits(last)).reshape(shape)

    def _limits(self, x: Tensor) -> Tensor:
        """y (..., Nv) of corners x, which may be infinite, and are so outside of the bounds."""
        low, high = self._ends()
        is_inside = (x > low) & (x < high)
        y, _ = to_line(self.maps, torch.where(is_inside, x, math.nan))
        return torch.where(is_inside, y, torch.where(x <= low, -math.inf, math.inf))

    def icdf(self, value: Any) -> Tensor:
        """The quantiles x (..., 1) of probabilities (...) in one dimension: the inverse of `cdf`."""
        return self._from_line(self.base.icdf(value))

    def normal_scores(self, value: Any) -> Tensor:
        """z with Φ(z) = P(x ≤ value), for a batch of conditionals in one dimension; see `ConditionalDistribution`."""
        points = check_points(value, "value", self.n_visible, self.device, infinite=True)
        return self._batch().normal_scores(self._limits(points))

    def from_normal_scores(self, scores: Any) -> Tensor:
        """The values (..., q) of scores (..., q): the inverse of `normal_scores`."""
        return self._from_line(self._batch().from_normal_scores(scores)[..., None])[..., 0]

    def _batch(self) -> ConditionalDistribution:
        if not isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("normal scores are for a batch of conditionals: use cdf and icdf of a distribution")
        return self.base

    def _from_line(self, y: Tensor) -> Tensor:
        """x (..., Nv) for y, which may be infinite."""
        low, high = self._ends()
        x = from_line(self.maps, torch.where(y.isinf(), 0.0, y).double())
        return torch.where(y.isinf(), torch.where(y < 0, low, high), x)

    def estimate_entropy(
        self, n_samples: int = MONTE_CARLO_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The entropy −E[log P] as a Monte Carlo average with its standard error; arguments as for machines."""
        return self._estimate(lambda rows, log_prob: -log_prob, n_samples, generator)

    def estimate_kl(
        self, other: Distribution, n_samples: int = MONTE_CARLO_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The Kullback-Leibler divergence to another density, as a Monte Carlo average with its standard error."""
        return self._estimate(lambda rows, log_prob: log_prob - other.log_prob(rows).double(), n_samples, generator)

    def _estimate(self, function: Any, n_samples: int, generator: torch.Generator | None) -> Estimate:
        check_integer(n_samples, "n_samples", 2)
        return sample_expectation(self.sample((n_samples,), generator), self.log_prob, function)

    def marginal(self, indices: int | Iterable[int]) -> "MappedDistribution":
        """The distribution of some columns, in the order given."""
        chosen = check_indices(indices, self.n_visible)
        return MappedDistribution(self.base.marginal(chosen), [self.maps[i] for i in chosen])

    def conditional(self, values: Mapping[int, Any]) -> "MappedDistribution":
        """The distribution of the other columns, given the values of some: {index: value}.

        Tensors of values give the distributions of many rows at once.
        """
        if isinstance(self.base, ConditionalDistribution):
            raise InvalidInputError("this is a batch of conditionals already: give all values to conditional at once")
        known, free, numbers = check_known(values, self.n_visible, self.device)
        y, log_slope = to_line([self.maps[i] for i in known], numbers)
        if not bool(log_slope.isfinite().all()):
            raise InvalidInputError(f"values must lie strictly inside the bounds, got {dict(values)}")
        given = dict(zip(known, y.unbind(-1), strict=True))
        return MappedDistribution(self.base.conditional(given), [self.maps[i] for i in free])
