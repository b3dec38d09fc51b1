"""Why a row is unusual: each cell beside its distribution given the rest of the row."""

from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import CategoryColumn, MixedDistribution
from rtbm.estimators.checks import is_frame
from rtbm.estimators.density.categories import read_column
from rtbm.estimators.density.fitted import FittedDensity

ROUNDING = 1e-9
"""Levels whose probabilities differ by a smaller factor than 1 + ROUNDING are equally rare."""


class Explanation(NamedTuple):
    """What is known of each cell (n, d); NaN, None and −1 where nothing is known, as in columns with one value alone.

    Of a number, the tail probability is 2 min(P(x ≤ cell), P(x ≥ cell)), at most 1. Of a category it is the probability
    of all levels that are as rare or rarer. Gaps have none; their normal values are those of an imputation.
    """

    p_value: Floats
    """The tail probability given all other cells of the row."""
    alone: Floats
    """The tail probability if nothing else is known."""
    partner: Any
    """The column whose cell makes this one most unusual: the tail probability given it alone is smallest, and smaller
    than `alone`. The number of the column, or its name in data frames; −1 or None if there is no such column."""
    expected: Any
    """The mean of a number given the other cells of the row, or the likeliest level."""
    low: Any
    """The lower end of the interval that leaves equal probabilities outside; None for categories."""
    high: Any
    """The upper end."""


def explain(density: FittedDensity, X: Any, coverage: float) -> Any:
    """The Explanation of rows X (n, d) by a density; a data frame if X is one. `coverage` is that of intervals."""
    everything = density._check_all(X)
    kept = density._kept
    rows = everything[:, kept]
    with torch.no_grad():
        found = _explain(density, rows, coverage)
    n, total = everything.shape
    parts = {name: np.full((n, total), np.nan) for name in ("p_value", "alone", "partner")}
    for name, part in parts.items():
        part[:, kept] = getattr(found, name)
    partner = np.full((n, total), -1)
    partner[:, kept] = np.where(found.partner < 0, -1, kept[found.partner])
    if not is_frame(X):
        values = [density._framed(density._all_features(part)) for part in found[3:]]
        return Explanation(parts["p_value"], parts["alone"], partner, *values)
    tables = [density._framed(density._all_features(part), X) for part in found[3:]]
    return _long_frame(X, Explanation(parts["p_value"], parts["alone"], partner, *tables))


def _explain(density: FittedDensity, rows: Floats, coverage: float) -> Explanation:
    """The same for the columns that the density describes, as numbers: categories are numbers of levels."""
    n, d = rows.shape
    joint = density.distribution_
    p_value, alone, expected, low, high = (np.full((n, d), np.nan) for _ in range(5))
    partner, smallest = np.full((n, d), -1), np.full((n, d), np.inf)
    cells = _CellConditionals(density, rows)
    for j in range(d):
        others = [i for i in range(d) if i != j]
        given = density._condition_rows(rows, others) if others else joint
        p_value[:, j], alone[:, j] = cells.tail(given, j), cells.tail(joint.marginal([j]), j)
        expected[:, j], low[:, j], high[:, j] = _normal_values(given, coverage)
        smallest[:, j] = alone[:, j]
        for i in others:
            known = torch.from_numpy(density._bounds.inside(rows)[:, i])
            pair = cells.tail(joint.marginal([j, i]).conditional({1: known}), j)
            closer = pair < smallest[:, j]
            smallest[closer, j], partner[closer, j] = pair[closer], i
    return Explanation(p_value, alone, partner, expected, low, high)


class _CellConditionals:
    """The cells of rows (n, d) as intervals: numbers have width 0, rounded numbers that of their cells."""

    def __init__(self, density: FittedDensity, rows: Floats):
        low, high = density._cells(rows)
        is_point = np.isinf(low) & np.isinf(high)
        self.rows, self.low, self.high = rows, np.where(is_point, rows, low), np.where(is_point, rows, high)

    def tail(self, given: Any, j: int) -> Floats:
        """The tail probabilities (n,) of the cells of column j by its distribution, or by one for each row."""
        known = ~np.isnan(self.rows[:, j])
        result = np.full(len(self.rows), np.nan)
        if isinstance(given, MixedDistribution) and isinstance(given.columns[0], CategoryColumn):
            table = given.category(0).probs.expand(len(self.rows), -1).cpu().numpy()
            own = np.take_along_axis(table, np.nan_to_num(self.rows[:, [j]]).astype(np.int64), axis=1)
            return np.where(known, np.where(table <= own * (1 + ROUNDING), table, 0.0).sum(axis=1), np.nan)
        fill = self.rows[known, j][0] if known.any() else 0.0
        ends = np.nextafter(self.low[:, j], -np.inf), self.high[:, j]
        below, up_to = (given.cdf(torch.from_numpy(np.where(known, end, fill))[:, None]).cpu().numpy() for end in ends)
        result[known] = np.clip(2 * np.minimum(up_to, 1 - below), 0.0, 1.0)[known]
        return result


def _normal_values(given: Any, coverage: float) -> tuple[Any, Any, Any]:
    """The mean of a column of numbers and its interval, or the likeliest level and no interval."""
    if isinstance(given, MixedDistribution) and isinstance(given.columns[0], CategoryColumn):
        return given.category(0).probs.argmax(-1).cpu().numpy(), np.nan, np.nan
    ends = given.icdf(np.array([(1 - coverage) / 2, (1 + coverage) / 2]))[..., 0].cpu().numpy()
    return given.mean[..., 0].cpu().numpy(), ends[0], ends[1]


def _long_frame(X: Any, found: Explanation) -> Any:
    """A data frame like X, of pandas or polars, with one line for each cell."""
    n, names = len(X), [*X.columns]
    columns: dict[str, Any] = {"column": names * n, "value": _cells_of(X)}
    columns |= {"p_value": found.p_value.ravel().tolist(), "alone": found.alone.ravel().tolist()}
    columns["partner"] = [None if i < 0 else names[i] for i in found.partner.ravel()]
    columns |= {name: _cells_of(getattr(found, name)) for name in ("expected", "low", "high")}
    if hasattr(X, "with_columns"):  # polars
        rows = {"row": np.repeat(np.arange(n), len(names)).tolist()}
        return type(X)({name: _of_one_type(cells) for name, cells in (rows | columns).items()})
    return type(X)(columns, index=X.index.repeat(len(names)))


def _cells_of(frame: Any) -> list[Any]:
    """The cells of a data frame, row by row, as objects; None for gaps."""
    table = [read_column(frame[name]) for name in frame.columns]
    return [cell for row in zip(*table, strict=True) for cell in row]


def _of_one_type(cells: list[Any]) -> list[Any]:
    """Cells as they are if they are all numbers or all of one type; else as text."""
    kinds = {Number if isinstance(cell, Number) else type(cell) for cell in cells if cell is not None}
    return cells if len(kinds) < 2 else [None if cell is None else str(cell) for cell in cells]
