"""Cross-validation: fits without each fold, and log P of the rows of that fold."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import ColumnMap, MixedDistribution, RTBMMixture
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.estimators.checks import is_constant
from rtbm.estimators.density.bounds import Bounds
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.density.fitted import component_weights, components
from rtbm.estimators.density.margins import make_maps, map_rows
from rtbm.estimators.density.stacking import HeldOut
from rtbm.estimators.parallel import without_warnings

OUT_OF_REACH = 30.0
"""Where log P of a row leaves float64, it counts as this much lower than that of all other rows."""
GAIN_ROWS = 400
"""What averages gain is found from about this many rows."""


class Judge(NamedTuple):
    """Maps rows to the real line and scores them."""

    maps: list[ColumnMap]
    targets: list[int]

    def score(self, model: RTBMDensity, rows: Floats) -> tuple[Floats, Floats]:
        """log P of rows (n, d) by a density on the line, of all columns and of those that are not targets.

        A row where log P leaves float64 counts as OUT_OF_REACH lower than all others. Without targets the second is 0.
        """
        y, log_slope = map_rows(self.maps, rows)
        joint: Floats = model._held_out_log_prob(y) + log_slope.sum(axis=1)
        given: Floats = np.zeros(len(rows))
        if self.targets:
            features = y.copy()
            features[:, self.targets] = np.nan
            given = model._log_prob(features) + np.delete(log_slope, self.targets, axis=1).sum(axis=1)
        within = np.isfinite(joint) & np.isfinite(given)
        lowest = (joint - given)[within].min() if within.any() else 0.0
        return np.where(within, joint, lowest - OUT_OF_REACH), np.where(within, given, 0.0)


class Folds(NamedTuple):
    """Rows with weights, and the number of the fold of each row."""

    rows: Floats  # (n, d)
    weights: Floats  # (n,)
    number: np.ndarray  # (n,)
    bounds: Bounds
    targets: list[int]
    sizes: Mapping[int, int]  # the numbers of levels of columns of categories
    near_zero: Collection[int] = ()  # columns that take no logarithm

    @property
    def n_folds(self) -> int:
        """The number of folds."""
        return int(self.number.max()) + 1

    def prepare(self, margins: str | None, k: int, seed: int) -> tuple[Judge, Floats]:
        """What judges fits without fold k, and the other rows on the real line. Maps are learned without the fold."""
        others = self.number != k
        rows = with_spread(self.rows[others], self.rows, seed + k, self.sizes)
        maps = make_maps(margins, self.bounds, rows, self.weights[others], self.sizes, self.near_zero)
        return Judge(maps, self.targets), map_rows(maps, rows)[0]


class Trial:
    """Candidates with one kind of margins: their fits without each fold, and log P of the rows of that fold."""

    held_out: HeldOut
    charge: float

    def __init__(self, margins: str | None, n_rows: int, n_candidates: int):
        self.margins = margins
        self.fits: list[list[RTBMDensity]] = [[] for _ in range(n_candidates)]
        self.held_out = HeldOut(np.full((n_rows, n_candidates), np.nan), np.zeros((n_rows, n_candidates)))
        self.judges: dict[int, Judge] = {}
        self.promising: list[int] = []
        self._gains: dict[tuple[int, int], float] = {}  # of candidates, and numbers of their fits
        self.charge = 0.0  # for the parameters of the maps, for each row

    def best(self, folds: Folds, seen: np.ndarray) -> tuple[float, Floats]:
        """The highest mean log P of a candidate on some rows, as `weigh` counts it, and its log P of them."""
        tried = [j for j, fits in enumerate(self.fits) if fits]
        log_prob = self.weigh(folds).of(tried).log_prob[seen] - self.charge
        means = folds.weights[seen] @ log_prob / folds.weights[seen].sum()
        return float(means.max()), log_prob[:, means.argmax()]

    def weigh(self, folds: Folds) -> HeldOut:
        """log P of the rows by each candidate without their fold, plus what its average over all folds gains."""
        for j, fits in enumerate(self.fits):
            if len(fits) > 1 and (j, len(fits)) not in self._gains:
                self._gains[j, len(fits)] = self._gain(fits, folds)
        gains = [self._gains.get((j, len(fits)), 0.0) for j, fits in enumerate(self.fits)]
        return HeldOut(self.held_out.joint + gains, self.held_out.given)

    def _gain(self, fits: list[RTBMDensity], folds: Folds) -> float:
        """What the average of fits gains: the mean over rows of log mean P − mean log P.

        Each row is judged by the fits that have seen it, since a fit that has not differs from them in another way. The
        gain grows with the number of fits in proportion to 1 − 1/number, as a variance does.
        """
        some = slice(None, None, -(-len(folds.rows) // GAIN_ROWS))
        rows, weights, number = folds.rows[some], folds.weights[some], folds.number[some]
        scores = [self.judges[k].score(fit, rows) for k, fit in enumerate(fits)]
        total, counted = 0.0, 0.0
        for k in range(folds.n_folds):
            own, seen = number == k, [score for m, score in enumerate(scores) if m != k]
            if len(seen) < 2 or not own.any():
                continue
            parts = HeldOut(*np.stack(seen, axis=2)[:, own])
            gains = parts.mixed(np.full(len(seen), 1 / len(seen))).log_prob[:, 0] - parts.log_prob.mean(axis=1)
            total += weights[own] @ gains * (1 - 1 / folds.n_folds) / (1 - 1 / len(seen))
            counted += weights[own].sum()
        return float(total / counted) if counted else 0.0

    def target_scores(self, shares: Floats, folds: Folds) -> Floats:
        """The normal scores Φ⁻¹(F(y|x)) (n,) of the target y given the other columns x.

        They are all NaN unless there is exactly one target, and no column of categories.

        F is that of the average, with these shares, of the fits without the fold of the row.
        """
        scores = np.full(len(folds.rows), np.nan)
        if len(folds.targets) != 1 or folds.sizes:
            return scores
        (target,) = folds.targets
        for k in range(folds.n_folds):
            own = (folds.number == k) & ~np.isnan(folds.rows[:, target])
            density = average_densities([(share, self.fits[j][k]) for j, share in enumerate(shares) if share > 0])
            y = torch.from_numpy(map_rows(self.judges[k].maps, folds.rows[own])[0]).to(density.device)
            try:
                with torch.no_grad():
                    given = density.conditional({i: column for i, column in enumerate(y.T) if i != target})
                    scores[own] = given.normal_scores(y[:, [target]]).cpu().numpy()
            except TooManyTermsError:  # quantiles are out of reach too
                return np.full(len(folds.rows), np.nan)
        return scores


def average_densities(parts: Sequence[tuple[float, RTBMDensity]]) -> Any:
    """The mixture of fits with these shares, on the line."""
    densities: list[Any] = [fit._line_density for _, fit in parts]
    weights = torch.cat([share * component_weights(own) for (share, _), own in zip(parts, densities, strict=True)])
    machines = [machine for own in densities for machine in components(own)]
    if isinstance(densities[0], MixedDistribution):
        columns = [_join_columns(same) for same in zip(*(own.columns for own in densities), strict=True)]
        return MixedDistribution(weights, machines, columns)
    return RTBMMixture(weights, machines) if len(machines) > 1 else machines[0]


def _join_columns(columns: Sequence[Any]) -> Any:
    """A column of all components of several densities."""
    if columns[0].probabilities is None:
        return columns[0]
    return replace(columns[0], probabilities=torch.cat([column.probabilities for column in columns]))


def fit_and_score(
    model: RTBMDensity, training: Floats, weights: Floats, judge: Judge, others: Floats
) -> tuple[RTBMDensity, Floats, Floats]:
    """Fit a model to rows on the line, and score other rows. The fit need not have converged: it is judged as it is."""
    with without_warnings():
        try:
            model.fit(training, sample_weight=weights)
        except InvalidInputError as error:
            raise InvalidInputError(f"without one of the folds there is no fit, so lower cv: {error}") from None
    return model, *judge.score(model, others)


def deal(counts: Floats, n_folds: int, seed: int) -> tuple[np.ndarray, np.ndarray, Floats]:
    """Deal the copies of rows, which are counts (n,), over folds in random order of the rows: one row after the other.

    Returns the number of the fold, the row, and how many copies of it are there (m,), for all pairs that occur.

    Examples
    --------
    >>> deal(np.array([1.0, 3.0]), 2, seed=0)
    (array([0, 0, 1]), array([0, 1, 1]), array([1., 1., 2.]))
    """
    queue = np.argsort(np.random.default_rng(seed).permutation(len(counts)))
    first = np.empty(len(counts))
    first[queue] = np.cumsum(counts[queue]) - counts[queue]
    behind = (np.arange(n_folds) - first[:, None]) % n_folds  # copies of a row before the first one in a fold
    copies = np.maximum(np.ceil((counts[:, None] - behind) / n_folds), 0.0)
    place, number = np.nonzero(copies)
    return number, place, copies[place, number]


def fold_numbers(cv: Any, rows: Floats, y: Any = None) -> np.ndarray:
    """The number (n,) of the test set that each row is in, of a splitter or of pairs (training rows, test rows).

    Examples
    --------
    >>> fold_numbers([([2, 3], [0, 1]), ([0, 1], [2, 3])], np.zeros((4, 1)))
    array([0, 0, 1, 1])
    """
    from sklearn.model_selection import check_cv  # half a second, which loading and using a committee spares

    numbers, count = np.full(len(rows), -1), np.zeros(len(rows), dtype=np.int64)
    try:
        tests = [np.asarray(test) for _, test in check_cv(cv, y).split(rows, y)]
        for k, test in enumerate(tests):
            numbers[test] = k
            count[test] += 1
    except (IndexError, TypeError, ValueError) as error:
        raise InvalidInputError(f"cv must be an integer, a splitter or pairs of row numbers ({error})") from None
    if len(tests) < 2 or not (count == 1).all():
        raise InvalidInputError(
            f"cv must have two folds or more, and every row in one test set, got {len(tests)} folds and "
            f"{int((count != 1).sum())} rows in none or several: use KFold or another partition"
        )
    return numbers


def with_spread(part: Floats, rows: Floats, seed: int, discrete: Collection[int] = ()) -> Floats:
    """A part of the rows, in which columns that hold only one value there are replaced by random numbers.

    These are spread evenly between the smallest and the largest value of all rows. So a column that is constant without
    a fold has a density of that width, the same for all candidates. Gaps stay, unless all or all but one of the entries
    are gaps. Discrete columns stay as they are.

    Examples
    --------
    >>> with_spread(np.array([[1.0, 5.0], [2.0, 5.0]]), np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 6.0]]), seed=0).round(1)
    array([[1. , 5.6],
           [2. , 5.3]])
    """
    absent = np.isnan(part)
    is_flat = is_constant(part) | absent.all(axis=0)
    is_flat[list(discrete)] = False
    flat = np.flatnonzero(is_flat)
    if not len(flat):
        return part
    ends = np.nanmin(rows[:, flat], axis=0), np.nanmax(rows[:, flat], axis=0)
    spread = np.random.default_rng(seed).uniform(*ends, (len(part), len(flat)))
    part = part.copy()
    has_several = (~absent[:, flat]).sum(axis=0) > 1  # one number alone would be constant again
    part[:, flat] = np.where(absent[:, flat] & has_several, np.nan, spread)
    return part
