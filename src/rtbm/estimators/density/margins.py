"""The argument `margins`: the map of each column to the real line, found from the data."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize_scalar

from rtbm.common import Floats
from rtbm.distributions.maps import (
    ColumnMap,
    Interval,
    LearnedMargin,
    StraightTails,
    YeoJohnson,
    from_line,
    is_trivial,
    to_line,
)
from rtbm.errors import InvalidInputError
from rtbm.estimators.density.bounds import Bounds
from rtbm.training.columns import FAMILY, ColumnDensities
from rtbm.training.coordinates import quantiles

SHAPES: dict[str | None, int] = {None: 0, "log": 0, "yeo-johnson": 1, "learned": 1 + FAMILY.n_parameters}
"""The kinds of margins, and the number of parameters that decide on the shape of a column."""
MARGINS: tuple[str, ...] = tuple(kind for kind in SHAPES if kind is not None)
FEWEST_VALUES = 5
"""Columns with fewer distinct values are not mapped: their shape says nothing."""
PRIOR_ROWS = 4.0
"""The prior on exponents counts as much as this number of rows. More keeps exponents nearer to 1."""
SMALLEST_SCALE = 1e-150
"""Scales of columns lie between this and its inverse, so that their squares stay in float64."""
NORMAL_QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""


def make_maps(
    margins: str | None,
    bounds: Bounds,
    rows: Floats,
    weights: Floats,
    discrete: Collection[int] = (),
    near_zero: Collection[int] = (),
) -> list[ColumnMap]:
    """The map of each column of rows (n, d) with weights (n,). Columns with bounds keep the map of their interval.

    Discrete columns have none, and columns that are `near_zero` no logarithm. Beyond the data, maps go on as straight
    lines; toward a bound they do not.

    Examples
    --------
    >>> from rtbm.estimators.density.bounds import make_bounds
    >>> X = np.random.default_rng(0).lognormal(size=(500, 1))
    >>> (skewed,) = make_maps("yeo-johnson", make_bounds(None, ["x"]), X, np.ones(500))
    >>> skewed.inner.exponent < 0.3
    True
    """
    maps: list[ColumnMap] = [
        ColumnMap() if np.isinf(low) and np.isinf(high) else Interval(float(low), float(high))
        for low, high in zip(bounds.low, bounds.high, strict=True)
    ]
    free = [i for i, own in enumerate(maps) if type(own) is ColumnMap and _has_shape(rows[:, i]) and i not in discrete]
    if margins == "log":
        free = [i for i in free if i not in near_zero]
    for i, own in zip(free, _FINDERS[margins](rows[:, free], weights), strict=True):
        maps[i] = own
    return [_straightened(own, rows[:, i]) for i, own in enumerate(maps)]


def _straightened(own: ColumnMap, column: Floats) -> ColumnMap:
    """A map that is straight beyond a column (n,) with gaps, but not toward its own bounds."""
    low, high = own.support
    if not isinstance(own, Interval | YeoJohnson) or np.isfinite(own.support).all() or np.isnan(column).all():
        return own
    first, last = float(np.nanmin(column)), float(np.nanmax(column))
    return StraightTails(own, -np.inf if np.isfinite(low) else first, np.inf if np.isfinite(high) else last)


def map_rows(maps: Sequence[ColumnMap], rows: Floats) -> tuple[Floats, Floats]:
    """y (n, d) and log dy/dx (n, d) of rows (n, d); NaN entries stay, and count 0. Columns without a map stay too."""
    if is_trivial(maps):
        return rows, np.zeros_like(rows)
    maps = [*maps, *(ColumnMap() for _ in range(rows.shape[1] - len(maps)))]
    y, log_slope = to_line(maps, torch.from_numpy(rows))
    return y.numpy(), log_slope.numpy()


def map_back(maps: Sequence[ColumnMap], y: Floats) -> Floats:
    """The inverse of `map_rows`."""
    return y if is_trivial(maps) else from_line(maps, torch.from_numpy(y)).numpy()


def are_alike(first: Sequence[ColumnMap], second: Sequence[ColumnMap]) -> bool:
    """Whether columns have maps of the same kinds, and the same intervals."""
    pairs = ((_inner(a), _inner(b)) for a, b in zip(first, second, strict=False))
    same = all(type(a) is type(b) and (not isinstance(a, Interval) or a == b) for a, b in pairs)
    return same and len(first) == len(second)


def count_shapes(maps: Sequence[ColumnMap]) -> int:
    """The number of parameters that decide on the shapes of columns."""
    kinds = {YeoJohnson: "yeo-johnson", LearnedMargin: "learned"}
    return sum(SHAPES[kinds.get(type(_inner(own)))] for own in maps)


def _inner(own: ColumnMap) -> ColumnMap:
    return own.inner if isinstance(own, StraightTails) else own


def learn_margin(column: Floats, weights: Floats) -> ColumnMap:
    """The learned map of a column (n,) with weights (n,) and gaps; none if it has few distinct values."""
    return _learned(column[:, None], weights)[0] if _has_shape(column) else ColumnMap()


def _has_shape(column: Floats) -> bool:
    return len(np.unique(column[~np.isnan(column)])) >= FEWEST_VALUES


def _unmapped(rows: Floats, weights: Floats) -> list[Any]:
    return [ColumnMap()] * rows.shape[1]


def _logarithms(rows: Floats, weights: Floats) -> list[Any]:
    """The logarithm of columns of positive numbers, where it is more nearly normal than the column itself."""
    return [_logarithm(column[known], weights[known]) for column in rows.T for known in [~np.isnan(column)]]


def _logarithm(x: Floats, weights: Floats) -> ColumnMap:
    if not (x > 0).all():
        return ColumnMap()
    y, shares = np.log(x / x.max()), weights / weights.sum()
    plain, mapped = (shares @ (values - shares @ values) ** 2 for values in (x / x.max(), y))
    return Interval(0.0, np.inf) if 0.5 * np.log(plain / mapped) > shares @ y else ColumnMap()


def _learned(rows: Floats, weights: Floats) -> list[Any]:
    if not rows.shape[1]:
        return []
    powers = _yeo_johnson(rows, weights)
    densities = ColumnDensities.fit(map_rows(powers, rows)[0], weights)
    return [LearnedMargin(own, *map(torch.from_numpy, densities.normals(i))) for i, own in enumerate(powers)]


def _yeo_johnson(rows: Floats, weights: Floats) -> list[Any]:
    powers = [_fit_exponent(column[known], weights[known]) for column in rows.T for known in [~np.isnan(column)]]
    return [_straightened(own, column) for own, column in zip(powers, rows.T, strict=True)]


def _fit_exponent(x: Floats, weights: Floats) -> YeoJohnson:
    """The exponent under which the column is most nearly normal: by maximum likelihood, with a prior toward 1."""
    low, centre, high = quantiles(x[:, None], weights, np.array([0.25, 0.5, 0.75]))[:, 0]
    shares = weights / weights.sum()
    farthest = np.abs(x - centre).max()
    scale = (high - low) / NORMAL_QUARTILES or farthest * np.sqrt(shares @ ((x - centre) / farthest) ** 2)
    if not SMALLEST_SCALE < scale < 1 / SMALLEST_SCALE:
        raise InvalidInputError(
            f"X: a column has values of size {farthest:.0e}, whose squares leave float64: change the unit"
        )
    points = torch.from_numpy(x)

    def loss(exponent: float) -> float:
        y, log_slope = (part.numpy() for part in YeoJohnson(exponent, centre, scale).to_line(points))
        variance = shares @ (y - shares @ y) ** 2
        return float(
            0.5 * np.log(variance) - shares @ log_slope + 0.5 * PRIOR_ROWS * (exponent - 1) ** 2 / weights.sum()
        )

    found = minimize_scalar(loss, bounds=(0.0, 2.0), method="bounded")
    return YeoJohnson(float(found.x), float(centre), float(scale))


_FINDERS: dict[str | None, Callable[[Floats, Floats], list[Any]]] = {
    None: _unmapped,
    "log": _logarithms,
    "yeo-johnson": _yeo_johnson,
    "learned": _learned,
}
"""The maps of columns (n, m) without bounds, for each kind of margins."""
