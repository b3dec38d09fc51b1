"""Outlier detection by density."""

from typing import Annotated, Any, Self

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.base import Estimator
from rtbm.estimators.checks import (
    check_number,
    check_rows,
    check_weights,
    distinct_rows,
    draw_seed,
    forget,
    keep_arguments,
)
from rtbm.estimators.density.categories import find_known, learn_levels
from rtbm.estimators.density.committee import OWN_ARGUMENTS, RTBMDensityCV, make_density
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.explanations import explain

DEFAULT: dict[str, Any] = {
    "candidates": [
        {
            "n_hidden": 1,
            "n_components": 4,
            "regularization": 30.0,
            "fallback": None,
            "solver": "em",
            "max_iter": 30,
            "n_init": 1,
            "tol": 1e-4,
        }
    ],
    "combine": "single",
    "margins": "yeo-johnson",
    "atoms": None,
}
"""The density of the default detector: smooth, since a rich one describes outliers among the training rows too."""
FITTED_ROWS = 1000
"""The default density is fitted to a random sample of this many rows, and all others are scored as unseen rows. More
rows take longer, and allow nothing finer: the density is small."""
FENCE = 1.5
"""With contamination="auto", outliers lie further below the lower quartile of the scores than FENCE times the distance
of the quartiles. More calls fewer rows outliers."""


class RTBMOutlierDetector(OutlierMixin, Estimator):
    """Outliers are the rows of lowest density.

    The threshold comes from scores of training rows by fits that have not seen them. So the share of new rows, from the
    source of the training rows, that are called outliers is the share that was asked for. Of the training rows, which
    the density has seen, `predict` calls somewhat fewer outliers.

    Parameters
    ----------
    density : RTBMDensity or RTBMDensityCV, default=None
        The density to fit. An RTBMDensity becomes a committee of one candidate, whose fits without each of five folds
        give the threshold. None for a smooth one: four machines with a heavy prior, after a power of each column.
    contamination : float or "auto", default=0.1
        The share of rows that are called outliers. It sets the threshold `offset_`. "auto" takes the lower fence of a
        box plot of the held-out scores, Q1 − 1.5 (Q3 − Q1) with the quartiles Q1 and Q3: there may be no outliers at
        all, and up to a quarter of the training rows may be outliers before they move the fence much.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result. It is passed on to the default density.
    n_jobs : int, default=None
        The number of fits of the default density that run at the same time. -1 for all cores.

    Attributes
    ----------
    density_ : RTBMDensityCV
        The fitted density.
    offset_ : float
        The threshold of `score_samples`.
    held_out_scores_, held_out_counts_ : (n_rows,), (n_rows,)
        The scores of distinct training rows by fits that have not seen them, in increasing order, and how often each
        row counts.
    n_features_in_ : int
        The number of features.

    Examples
    --------
    >>> from rtbm import RTBMDensity, RTBMOutlierDetector, datasets
    >>> X = datasets.correlated_gaussian.sample(500)
    >>> detector = RTBMOutlierDetector(RTBMDensity(1, random_state=0), contamination=0.05).fit(X)
    >>> detector.predict([[0.0, 0.0], [20.0, 20.0]])
    array([ 1, -1])
    >>> detector.p_values([[20.0, 20.0]]).round(3)
    array([0.002])
    """

    density: Any
    contamination: float | str
    random_state: Any
    n_jobs: int | None
    n_features_in_: int
    density_: RTBMDensityCV
    held_out_scores_: Annotated[Floats, "rows"]
    held_out_counts_: Annotated[Floats, "rows"]
    offset_: float

    def __init__(
        self,
        density: Any = None,
        *,
        contamination: float | str = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to X (n_samples, n_features); NaN entries are missing."""
        if self.contamination != "auto":
            check_number(self.contamination, 'contamination, if not "auto",', 0.0, 0.5, strict=True)
        forget(self)
        encoded, _ = learn_levels(X, getattr(self.density, "categorical_features", "auto"), warn=False)
        checked = check_rows(self, encoded, ensure_all_finite="allow-nan", ensure_min_samples=2)
        weights = check_weights(sample_weight, checked)
        seen = weights > 0
        if self.density is None:
            seen = self._sample(seen)
        n_distinct = len(distinct_rows(checked[seen], weights[seen])[0])
        self.density_ = self._make_density(n_distinct).fit(X, sample_weight=np.where(seen, weights, 0.0))
        self._keep_scores(X, weights, seen)
        self.offset_ = self._threshold()
        return self

    def _make_density(self, n_rows: int) -> RTBMDensityCV:
        """An unfitted committee. The default one has no atoms, since no score compares atoms and other numbers."""
        options: dict[str, Any] = {"random_state": self.random_state, "n_jobs": self.n_jobs}
        if self.density is None:
            options |= DEFAULT
        elif type(self.density) is RTBMDensity:
            own = self.density.get_params()
            options = {name: own.pop(name) for name in ("random_state", "n_jobs", "verbose", *OWN_ARGUMENTS)}
            options["candidates"] = [own]
        else:
            return make_density(self.density, n_rows)
        return make_density(None, n_rows, **options)

    def _sample(self, seen: np.ndarray) -> np.ndarray:
        """At most FITTED_ROWS of the rows that count, at random."""
        rows = np.flatnonzero(seen)
        rng = np.random.default_rng(draw_seed(self.random_state))
        chosen = np.zeros_like(seen)
        chosen[rng.permutation(rows)[:FITTED_ROWS]] = True
        return chosen

    def _keep_scores(self, X: Any, weights: Floats, seen: np.ndarray) -> None:
        """Keep the held-out scores of the committee, and those of rows that its density has not seen."""
        others = np.flatnonzero((weights > 0) & ~seen)
        scores, counts = self.density_.held_out_scores_, self.density_.held_out_counts_
        if len(others):
            scores = np.concatenate([scores, self.density_.score_samples(X)[others]])
            counts = np.concatenate([counts, weights[others]])
        order = scores.argsort(kind="stable")
        self.held_out_scores_, self.held_out_counts_ = scores[order], counts[order]

    def _threshold(self) -> float:
        """The score below which rows are outliers."""

        def quantile(share: Any) -> Floats:
            return np.quantile(self.held_out_scores_, share, weights=self.held_out_counts_, method="inverted_cdf")

        if self.contamination == "auto":
            low, high = quantile([0.25, 0.75])
            return float(low - FENCE * (high - low))
        return float(np.nextafter(quantile(self.contamination), np.inf))  # the last outlier lies below

    def score_samples(self, X: Any) -> Floats:
        """log P(x) (n_samples,): the lower, the more abnormal.

        A level that training rows do not have has the probability 1/(L (n + 1)), with L levels and n training rows:
        the share that the prior on tables of levels gives to a level without rows. So such a row is more abnormal than
        one with a gap in that place. With `handle_unknown="error"` of the density it is an error.
        """
        return self._score(*self._read(X))

    def _read(self, X: Any) -> tuple[Floats, Floats]:
        """Rows as numbers (n, d), and the probabilities (n, d) of their unseen levels; 1 for all other cells."""
        check_is_fitted(self)
        density, n_rows = self.density_, self.held_out_counts_.sum()
        cells = density._check_all(X, unknown="error" if density.handle_unknown == "error" else "ignore")
        unseen = [1 / (len(levels) * (n_rows + 1)) if levels else 1.0 for levels in density.categories_]
        return cells, np.where(find_known(X, cells, density.categories_) & np.isnan(cells), unseen, 1.0)

    def _score(self, cells: Floats, unseen: Floats) -> Floats:
        return self.density_._log_prob(cells[:, self.density_._kept]) + np.log(unseen).sum(axis=1)

    def decision_function(self, X: Any) -> Floats:
        """`score_samples` less `offset_` (n_samples,): negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for inliers and −1 for outliers (n_samples,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def p_values(self, X: Any) -> Floats:
        """The probability (n_samples,) that a row of the source of the training rows is as unusual or more::

            p(x) = (1 + number of training rows with a held-out score ≤ score of x) / (1 + number of training rows)

        The p-values of new rows from this source are uniform, as far as a score by all fits and one by the fits without
        a row compare: a rule p ≤ α calls a share α of them outliers, whether or not the density fits well. They have to
        have gaps as the training rows do, since scores of fewer cells are on another scale. Outliers among the training
        rows make p-values larger.
        """
        return self._rank(self.score_samples(X))

    def _rank(self, scores: Any) -> Floats:
        """The p-values of scores."""
        below = np.concatenate([[0.0], np.cumsum(self.held_out_counts_)])
        return (1 + below[np.searchsorted(self.held_out_scores_, scores, side="right")]) / (1 + below[-1])

    def explain(self, X: Any, coverage: float = 0.9) -> Any:
        """The cells that make a row an outlier, how unusual each cell is, and what would be normal in its place.

        The culprits are cells without which the rest of the row is usual. They are found one by one: each is the cell
        without which the score of the rest is highest, compared with the scores of draws from the density that have the
        same gaps. The rest is usual if its score is among those of draws as `offset_` is among those of training rows,
        or higher. Rows that are no outliers have no culprits, but for levels that training rows do not have: these are
        always culprits, and come first.

        Each cell is judged given the usual cells of its row, without the culprits. So a wrong cell does not make others
        look wrong. The time grows with the square of the number of columns, so pass the rows of interest, not the
        whole table.

        Parameters
        ----------
        X : (n_samples, n_features)
            Rows; NaN entries are unknown.
        coverage : float, default=0.9
            The probability of the interval of normal values.

        Returns
        -------
        Explanation, or a data frame if X is one.
            An `Explanation` has an array (n_samples, n_features) for each answer. A data frame has them as columns,
            after "column" and "value", with one line for each cell: row by row in the order of X, culprits first, and
            with the index of X (pandas) or the number of the row in a column "row" (polars, where values of columns of
            several types are text).

        Examples
        --------
        >>> from rtbm import RTBMDensity, RTBMOutlierDetector, datasets
        >>> X = datasets.correlated_gaussian.sample(500)
        >>> detector = RTBMOutlierDetector(RTBMDensity(1, random_state=0)).fit(X)
        >>> found = detector.explain([[0.5, 8.0]])
        >>> found.culprit, bool(found.p_value[0, 1] < 1e-6 < 0.1 < found.p_value[0, 0])
        (array([[0, 1]]), True)
        """
        check_number(coverage, "coverage", 0.0, 1.0, strict=True)
        cells, unseen = self._read(X)
        is_outlier = self._score(cells, unseen) < self.offset_
        share = float(self._rank(self.offset_))
        return explain(self.density_, X, cells, unseen, is_outlier, share, coverage)

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        if self.density_.n_features_in_ != self.n_features_in_:
            raise InvalidInputError(f"density_ must have n_features_in_ = {self.n_features_in_} features")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "offset_")
