"""Why a row is unusual: the cells without which it is usual, and each cell beside its distribution given those."""

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
DRAWS = 200
"""Scores of this many draws from the density tell what is usual. More tell it better, and take longer."""


class Explanation(NamedTuple):
    """What is known of each cell (n, d); NaN, None and −1 where nothing is known, as in columns with one value alone.

    Of a number, the tail probability is 2 min(P(x ≤ cell), P(x ≥ cell)), at most 1. Of a category it is the probability
    of all levels that are as rare or rarer. Gaps have none; their normal values are those of an imputation.
    """

    culprit: np.ndarray
    """1 for the cell to blame first, 2 for the next, and so on; 0 for the usual cells and gaps."""
    p_value: Floats
    """The tail probability given the other usual cells of the row."""
    alone: Floats
    """The tail probability if nothing else is known."""
    expected: Any
    """The mean of a number given the other usual cells of the row, or the likeliest level."""
    low: Any
    """The lower end of the interval that leaves equal probabilities outside; None for categories."""
    high: Any
    """The upper end."""


def explain(
    density: FittedDensity,
    X: Any,
    cells: Floats,
    unseen: Floats,
    is_outlier: np.ndarray,
    usual_share: float,
    coverage: float,
) -> Any:
    """The Explanation of X by a density; a data frame if X is one.

    Parameters
    ----------
    cells, unseen : (n, d)
        X as numbers, and the probabilities of levels that training data do not have; 1 for all other cells.
    is_outlier : (n,)
        Which rows have culprits.
    usual_share : float
        The rest of a row is usual if its score is above those of this share of draws.
    coverage : float
        The probability of intervals.
    """
    kept, is_new = density._kept, np.less(unseen, 1)
    culprit = np.where(is_new, is_new.cumsum(axis=1), 0)
    with torch.no_grad():
        order = _find_culprits(density, cells[:, kept], is_outlier, np.any(is_new, axis=1), usual_share)
        found = _judge(density, cells[:, kept], order, coverage)
    culprit[:, kept] += np.where(order > 0, order + is_new.sum(axis=1, keepdims=True), 0)
    p_value, alone = (np.where(is_new, unseen, np.nan) for _ in range(2))
    for answer, own in zip((p_value, alone), found[:2], strict=True):
        answer[:, kept] = np.where(is_new[:, kept], answer[:, kept], own)
    given = X if is_frame(X) else None
    normal = [density._framed(density._whole_days(density._all_features(part)), given) for part in found[2:]]
    explanation = Explanation(culprit, p_value, alone, *normal)
    return explanation if given is None else _long_frame(X, explanation)


def _find_culprits(
    density: FittedDensity, rows: Floats, is_outlier: np.ndarray, is_known: np.ndarray, usual_share: float
) -> np.ndarray:
    """The cells (n, d) to leave out one after the other until the rest is usual, from 1; 0 for the rest.

    One or more of each outlier is left out, but for rows that have culprits already (`is_known`). Cells that are
    impossible whatever the others are, as beyond a bound, are left out first.
    """
    rest, order = rows.copy(), np.zeros(rows.shape, dtype=np.int64)
    draws, thresholds = density._draw(DRAWS, 0), dict[bytes, float]()

    def excess(parts: Floats) -> Floats:
        """How far the scores (m,) of rows lie above the threshold for rows with these gaps."""
        patterns, place = np.unique(np.isnan(parts), axis=0, return_inverse=True)
        for pattern in patterns:
            if pattern.tobytes() not in thresholds:
                scores = density._log_prob(np.where(pattern, np.nan, draws))
                thresholds[pattern.tobytes()] = float(np.quantile(scores, usual_share))
        found = np.array([thresholds[pattern.tobytes()] for pattern in patterns])
        return density._log_prob(parts) - found[place.ravel()]

    d = rows.shape[1]
    each = np.eye(d, dtype=bool)
    left = np.flatnonzero(is_outlier & ~np.isnan(rows).all(axis=1))
    alone = density._log_prob(np.where(each, rows[left, None], np.nan).reshape(-1, d)).reshape(-1, d)
    is_impossible = np.isneginf(alone) & ~np.isnan(rows[left])
    order[left] = np.where(is_impossible, is_impossible.cumsum(axis=1), 0)
    rest[left] = np.where(is_impossible, np.nan, rest[left])
    left = left[~is_impossible.any(axis=1) | (excess(rest[left]) < 0)]
    left = left[~is_known[left] | (excess(rows[left]) < 0)]
    while len(left):
        parts = np.where(each, np.nan, rest[left, None])
        gains = excess(parts.reshape(-1, d)).reshape(-1, d)
        best = np.where(np.isnan(rest[left]), -np.inf, np.nan_to_num(gains)).argmax(axis=1)
        order[left, best] = order[left].max(axis=1) + 1
        rest[left, best] = np.nan
        left = left[(gains[np.arange(len(left)), best] < 0) & ~np.isnan(rest[left]).all(axis=1)]
    return order


def _judge(density: FittedDensity, rows: Floats, order: np.ndarray, coverage: float) -> list[Floats]:
    """p-values, those alone, expected values and the ends of intervals (n, d) of the cells of rows, as numbers."""
    joint, usual = density.distribution_, np.where(order > 0, np.nan, rows)
    p_value, alone, expected, low, high = found = [np.full(rows.shape, np.nan) for _ in range(5)]
    cells = _CellConditionals(density, rows)
    for j in range(rows.shape[1]):
        others = [i for i in range(rows.shape[1]) if i != j]
        given = density._condition_rows(usual, others) if others else joint
        p_value[:, j], alone[:, j] = cells.tail(given, j), cells.tail(joint.marginal([j]), j)
        expected[:, j], low[:, j], high[:, j] = _normal_values(given, coverage)
    return found


class _CellConditionals:
    """The cells of rows (n, d) as intervals: numbers have width 0, rounded numbers that of their cells."""

    def __init__(self, density: FittedDensity, rows: Floats):
        low, high = density._cells(rows)
        is_point = np.isinf(low) & np.isinf(high)
        for i, own in enumerate(density._kinds.cells):
            if own is not None:  # a cell is open, but not what lies far beyond it
                first, last = own.ends(rows[:, i], is_open=False)
                is_point[:, i] |= (rows[:, i] < first) | (rows[:, i] > last)
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
        points = torch.from_numpy(np.where(known, ends, fill))[..., None]
        below, up_to = given.cdf(points).cpu().numpy()
        result[known] = np.clip(2 * np.minimum(up_to, 1 - below), 0.0, 1.0)[known]
        return result


def _normal_values(given: Any, coverage: float) -> tuple[Any, Any, Any]:
    """The mean of a column of numbers and its interval, or the likeliest level and no interval."""
    if isinstance(given, MixedDistribution) and isinstance(given.columns[0], CategoryColumn):
        return given.category(0).probs.argmax(-1).cpu().numpy(), np.nan, np.nan
    ends = given.icdf(np.array([(1 - coverage) / 2, (1 + coverage) / 2]))[..., 0].cpu().numpy()
    return given.mean[..., 0].cpu().numpy(), ends[0], ends[1]


def _long_frame(X: Any, found: Explanation) -> Any:
    """A data frame like X, of pandas or polars, with one line for each cell, culprits first."""
    n, names = len(X), [*X.columns]
    columns: dict[str, Any] = {"column": names * n, "value": _cells_of(X)}
    columns |= {name: getattr(found, name).ravel().tolist() for name in ("culprit", "p_value", "alone")}
    columns |= {name: _cells_of(getattr(found, name)) for name in ("expected", "low", "high")}
    order = np.where(found.culprit > 0, found.culprit, len(names) + 1).argsort(axis=1, kind="stable")
    lines = (order + len(names) * np.arange(n)[:, None]).ravel()
    if hasattr(X, "with_columns"):  # polars
        rows = {"row": np.repeat(np.arange(n), len(names)).tolist()}
        return type(X)({name: _of_one_type(cells) for name, cells in (rows | columns).items()})[lines]
    return type(X)(columns, index=X.index.repeat(len(names))).iloc[lines]


def _cells_of(frame: Any) -> list[Any]:
    """The cells of a data frame, row by row, as objects; None for gaps."""
    table = [read_column(frame[name]) for name in frame.columns]
    return [cell for row in zip(*table, strict=True) for cell in row]


def _of_one_type(cells: list[Any]) -> list[Any]:
    """Cells as they are if they are all numbers or all of one type; else as text."""
    kinds = {Number if isinstance(cell, Number) else type(cell) for cell in cells if cell is not None}
    return cells if len(kinds) < 2 else [None if cell is None else str(cell) for cell in cells]
