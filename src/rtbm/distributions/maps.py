"""Strictly increasing maps of single columns onto the real line: none, intervals, Yeo-Johnson, learned, straight tails.

To add a kind of map, write a subclass of `ColumnMap` here, and name it in `rtbm.persistence`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rtbm.distributions.integration.boxes import lower_tail
from rtbm.distributions.integration.normal_sums import ROOT_TWO_PI, NormalSums
from rtbm.distributions.integration.quantiles import refine_quantiles
from rtbm.errors import InvalidInputError

LOG_ROOT_TWO_PI = math.log(ROOT_TWO_PI)
SMALLEST_POWER = 1e-9
"""Powers below this count as 0, where (1 + u)^power becomes log(1 + u)."""
LARGEST_LOG = 700.0
"""Logarithms are cut off here, so that exponentials stay in float64."""
FARTHEST_QUANTILE, FAR_STEPS = 37.0, 6
"""Learned margins are inverted by normal tails up to this y. Beyond, tails leave float64, and Newton steps follow."""
LARGEST_SCORE = 1e100
"""Standard deviations beyond which values count as that far out. Their squares must stay in float64."""
MAX_PIECES = 100
"""The most pieces in which integrals cut a part of a learned margin. Fewer lose digits where values have wide gaps."""
LONGEST_PIECE = 8.0
"""The largest step of a logarithm or logit that an integral takes in one piece. A larger one loses digits."""
SMALLEST_LOG_TAIL = -600.0
"""Below this log of a normal tail, its quantile begins with the asymptotic formula, and Newton steps follow."""


@dataclass(frozen=True)
class ColumnMap:
    """A strictly increasing map y = t(x) of a column onto the real line. This one is y = x."""

    @property
    def support(self) -> tuple[float, float]:
        """The ends of the values x that have a y."""
        return -math.inf, math.inf

    @property
    def is_smooth_inversely(self) -> bool:
        """Whether x is a smoother function of y than y is of x, so that integrals take their nodes along y."""
        return False

    @property
    def knots(self) -> tuple[float, ...]:
        """The values of x where a derivative of the map jumps."""
        return ()

    def pieces(self, edges: Tensor) -> Tensor:
        """In how many pieces (n,) integrals cut the steps between neighbouring edges (n + 1,): values of x, or of y if
        the map is smooth inversely.
        """
        return torch.ones(len(edges) - 1, dtype=torch.int64, device=edges.device)

    def to_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """y (...) and log dy/dx (...) for x (...). NaN stays NaN. Outside of the support y is 0, and dy/dx too."""
        return x, torch.zeros_like(x)

    def from_line(self, y: Tensor) -> Tensor:
        """x (...), strictly inside the support, for y (...)."""
        return y


@dataclass(frozen=True)
class Interval(ColumnMap):
    """The map of an interval or a half line::

        y = log(x − low)      y = −log(high − x)      y = log((x − low)/(high − x))

    for a lower bound, an upper bound and both; an infinite bound is none.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise InvalidInputError(f"an interval needs low < high, got {self.low!r} and {self.high!r}")

    @property
    def support(self) -> tuple[float, float]:
        """See `ColumnMap`."""
        return self.low, self.high

    @property
    def is_smooth_inversely(self) -> bool:
        """See `ColumnMap`."""
        return True

    def pieces(self, edges: Tensor) -> Tensor:
        """See `ColumnMap`."""
        return (edges.diff() / LONGEST_PIECE).ceil().clamp(1, MAX_PIECES).long()

    def to_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `ColumnMap`."""
        has_low, has_high = math.isfinite(self.low), math.isfinite(self.high)
        is_inside = ~((x <= self.low) | (x >= self.high))
        one = torch.ones_like(x)
        above = torch.where(is_inside, x - self.low, one).log() if has_low else 0.0 * one
        below = torch.where(is_inside, self.high - x, one).log() if has_high else 0.0 * one
        log_width = math.log(self.high - self.low) if has_low and has_high else 0.0
        y = above - below if has_low or has_high else x
        return torch.where(is_inside, y, 0.0), torch.where(is_inside, log_width - above - below, -math.inf)

    def from_line(self, y: Tensor) -> Tensor:
        """See `ColumnMap`."""
        has_low, has_high = math.isfinite(self.low), math.isfinite(self.high)
        if has_low and has_high:
            t = torch.exp(-y.abs())
            step = (self.high - self.low) * t / (1 + t)  # from the nearer bound
            x = torch.where(y >= 0, self.high - step, self.low + step)
        elif has_low or has_high:
            x = self.low + y.exp() if has_low else self.high - (-y).exp()
        else:
            x = y
        return x.clamp(math.nextafter(self.low, math.inf), math.nextafter(self.high, -math.inf))


@dataclass(frozen=True)
class YeoJohnson(ColumnMap):
    """A power of u = (x − centre)/scale, with exponent λ from 0 to 2 so that the map is onto the real line::

        y = ((1 + u)^λ − 1)/λ  for u ≥ 0,      y = −((1 − u)^(2 − λ) − 1)/(2 − λ)  for u < 0

    λ = 1 is a straight line. Smaller exponents draw in the right tail, larger ones the left tail; 0 and 2 are
    logarithms.

    Examples
    --------
    >>> skewed = YeoJohnson(0.0, 0.0, 1.0)
    >>> skewed.to_line(torch.tensor([0.0, 1.0, 3.0]))[0]
    tensor([0.0000, 0.6931, 1.3863])
    """

    exponent: float
    centre: float
    scale: float

    def __post_init__(self) -> None:
        if not (0 <= self.exponent <= 2 and math.isfinite(self.centre) and 0 < self.scale < math.inf):
            raise InvalidInputError(
                f"a power needs an exponent from 0 to 2, a finite centre and a positive scale, got {self}"
            )

    @property
    def knots(self) -> tuple[float, ...]:
        """See `ColumnMap`."""
        return (self.centre,)

    def to_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `ColumnMap`."""
        u = (x - self.centre) / self.scale
        right, left = u.clamp(min=0).log1p(), (-u).clamp(min=0).log1p()
        y = torch.where(u >= 0, _power(right, self.exponent), -_power(left, 2 - self.exponent))
        return y, (self.exponent - 1) * (right - left) - math.log(self.scale)

    def from_line(self, y: Tensor) -> Tensor:
        """See `ColumnMap`."""
        right, left = _log_of_power(y.clamp(min=0), self.exponent), _log_of_power((-y).clamp(min=0), 2 - self.exponent)
        return self.centre + self.scale * torch.where(y >= 0, right.expm1(), -left.expm1())


def _power(log_base: Tensor, power: float) -> Tensor:
    """(base^power − 1)/power, or log base for power 0."""
    return log_base if power < SMALLEST_POWER else (power * log_base).clamp(max=LARGEST_LOG).expm1() / power


def _log_of_power(y: Tensor, power: float) -> Tensor:
    """The logarithm of base for y = (base^power − 1)/power."""
    return (y if power < SMALLEST_POWER else (power * y).log1p() / power).clamp(max=LARGEST_LOG)


@dataclass(frozen=True, eq=False)
class LearnedMargin(ColumnMap):
    """The normal score of a column with a learned density: y = Φ⁻¹(F(u)), for a power u of x and a sum of normals F.

    Far out, y follows from the logarithm of the tail of F, so that it is finite up to 10¹⁰⁰ standard deviations.

    Parameters
    ----------
    power : ColumnMap
        The map from x to u.
    weights, centres, scales : (S,)
        The normals. The weights have sum 1.

    Examples
    --------
    >>> normal = (torch.tensor([value], dtype=torch.float64) for value in (1.0, 5.0, 2.0))
    >>> margin = LearnedMargin(YeoJohnson(1.0, 0.0, 1.0), *normal)
    >>> margin.to_line(torch.tensor([3.0, 7.0, 205.0], dtype=torch.float64))[0].round(decimals=9)
    tensor([ -1.,   1., 100.], dtype=torch.float64)
    """

    power: ColumnMap
    weights: Tensor
    centres: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        weights, centres, scales = self.weights, self.centres, self.scales
        is_alike = len({(part.shape, part.dtype) for part in (weights, centres, scales)}) == 1 and weights.ndim == 1
        is_finite = is_alike and bool(torch.cat([weights, centres, scales]).isfinite().all())
        if not (is_finite and len(weights) and bool((weights >= 0).all() and (scales > 0).all())):
            raise InvalidInputError(
                "weights, centres and scales must be finite, of one dtype and one shape (S,), weights not negative, "
                f"and scales positive, got {(weights, centres, scales)}"
            )

    @property
    def knots(self) -> tuple[float, ...]:
        """See `ColumnMap`."""
        return self.power.knots

    def pieces(self, edges: Tensor) -> Tensor:
        """See `ColumnMap`."""
        return (
            (self.power.to_line(edges)[0].diff() / self.scales.min()).ceil().nan_to_num(1.0).clamp(1, MAX_PIECES).long()
        )

    def to_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `ColumnMap`."""
        u, log_power = self.power.to_line(x)
        y, log_slope = self._score(u)
        return y, log_slope + log_power

    def _score(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """y (...) and log dy/du (...)."""
        weights, centres, scales = (part.to(u.device) for part in (self.weights, self.centres, self.scales))
        scores = ((u[..., None] - centres) / scales).clamp(-LARGEST_SCORE, LARGEST_SCORE)
        log_weights = weights.log()
        below, above = ((torch.special.log_ndtr(z) + log_weights).logsumexp(-1) for z in (scores, -scores))
        is_right = above < below
        y = _normal_quantile(torch.where(is_right, above, below))
        y = torch.where(is_right, -y, y)
        log_density = (log_weights - scales.log() - 0.5 * scores.square()).logsumexp(-1)
        return y, log_density + 0.5 * y.square()

    def from_line(self, y: Tensor) -> Tensor:
        """See `ColumnMap`."""
        with torch.no_grad():
            rows = y.reshape(-1).double().clamp(-FARTHEST_QUANTILE, FARTHEST_QUANTILE)
            sums = NormalSums(*(part.to(y.device)[None] for part in (self.weights, self.centres, self.scales)))
            ends = rows[:, None] * sums.scales + sums.centres  # the quantiles of the normals
            tail, upper = lower_tail(-rows.abs()), rows > 0
            first = torch.zeros_like(rows, dtype=torch.int64)
            u = refine_quantiles(
                tail, upper, ends.amin(1), ends.amax(1), ends @ sums.weights[0],
                lambda u, upper, index: sums.tail_and_density(u, upper, first[index]), float(self.scales.min()),
            )  # fmt: skip
            is_far = bool((y.abs() > FARTHEST_QUANTILE).any())  # there, the map is nearly straight
            for _ in range(FAR_STEPS if is_far else 0):
                found, log_slope = self._score(u)
                u = u + (y.reshape(-1) - found) * (-log_slope).exp()
            x = self.power.from_line(u.reshape(y.shape))
        if torch.is_grad_enabled() and y.requires_grad:
            for _ in range(2):  # Newton steps of length zero that carry the first and second derivatives
                found, log_slope = self.to_line(x)
                step = (y - found) * (-log_slope).exp()
                x = x + (step - step.detach())
        return x


@dataclass(frozen=True)
class StraightTails(ColumnMap):
    """Another map from `first` to `last`, and its tangents beyond::

        y = t(last) + t′(last) (x − last)  for x > last

    Columns are mapped so beyond the data: a power or a logarithm says nothing there, and its inverse would carry draws
    and means exponentially far away.

    Examples
    --------
    >>> positive = StraightTails(Interval(0.0, math.inf), -math.inf, 1.0)  # the logarithm below 1
    >>> positive.to_line(torch.tensor([0.1, 1.0, 3.0]))[0]
    tensor([-2.3026,  0.0000,  2.0000])
    """

    inner: ColumnMap
    first: float
    last: float

    def __post_init__(self) -> None:
        if not self.first < self.last:
            raise InvalidInputError(f"straight tails need first < last, got {self.first!r} and {self.last!r}")

    @property
    def is_smooth_inversely(self) -> bool:
        """See `ColumnMap`."""
        return self.inner.is_smooth_inversely

    @property
    def support(self) -> tuple[float, float]:
        """See `ColumnMap`."""
        return self.inner.support

    @property
    def knots(self) -> tuple[float, ...]:
        """See `ColumnMap`."""
        return (*self.inner.knots, *(end for end in (self.first, self.last) if math.isfinite(end)))

    def pieces(self, edges: Tensor) -> Tensor:
        """See `ColumnMap`."""
        return self.inner.pieces(edges)

    def to_line(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See `ColumnMap`."""
        inside = x.clamp(self.first, self.last)
        y, log_slope = self.inner.to_line(inside)
        is_inside = x == inside
        return torch.where(is_inside, y, y + (x - inside) * log_slope.exp()), log_slope

    def from_line(self, y: Tensor) -> Tensor:
        """See `ColumnMap`."""
        ends = y.new_tensor([self.first, self.last])
        values, log_slopes = (torch.where(ends.isfinite(), part, ends) for part in self.inner.to_line(ends))
        inside = y.clamp(*values)
        is_inside = y == inside
        log_slope = torch.where(is_inside, 0.0, torch.where(y < inside, log_slopes[0], log_slopes[1]))
        return self.inner.from_line(inside) + torch.where(is_inside, 0.0, y - inside) * (-log_slope).exp()


def _normal_quantile(log_tail: Tensor) -> Tensor:
    """The y ≤ 0 with log Φ(y) = log_tail, by Newton's method; differentiable twice."""
    with torch.no_grad():
        size = (-log_tail).clamp(min=1.0)
        far = -(2 * size - (4 * math.pi * size).log()).clamp(min=0.0).sqrt()
        y = torch.where(log_tail > SMALLEST_LOG_TAIL, torch.special.ndtri(log_tail.exp()), far)
    for _ in range(3):
        log_cdf = torch.special.log_ndtr(y)
        y = y - (log_cdf - log_tail) * (log_cdf + 0.5 * y.square() + LOG_ROOT_TWO_PI).exp()
    return y


def to_line(maps: Sequence[ColumnMap], x: Tensor) -> tuple[Tensor, Tensor]:
    """y (..., d) and log dy/dx (..., d) for x (..., d). NaN entries stay, and count 0."""
    parts = [own.to_line(x[..., i]) for i, own in enumerate(maps)]
    y, log_slope = (torch.stack(columns, -1) for columns in zip(*parts, strict=True))
    return y, torch.where(x.isnan(), 0.0, log_slope)


def from_line(maps: Sequence[ColumnMap], y: Tensor) -> Tensor:
    """x (..., d) for y (..., d)."""
    return torch.stack([own.from_line(y[..., i]) for i, own in enumerate(maps)], -1)


def is_trivial(maps: Sequence[ColumnMap]) -> bool:
    """Whether no column is mapped."""
    return all(type(own) is ColumnMap for own in maps)
