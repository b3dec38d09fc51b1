"""Outlier detection by density."""

import warnings
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.estimators.checks import check_number, check_rows, check_weights, column_moments, forget, keep_arguments
from rtbm.estimators.density.categories import learn_levels
from rtbm.estimators.density.committee import RTBMDensityCV, make_density

LARGEST_EXCESS = 1 / 3
"""How much higher the scores of training rows may be than those of new rows, in standard deviations, without a warning.
At this value two or three times as many new rows as intended are called outliers."""


class RTBMOutlierDetector(OutlierMixin, BaseEstimator):
    """Outliers are the rows of lowest density.

    The threshold comes from the scores of training rows. A density with many parameters scores them higher than new
    rows, and `fit` warns if that matters.

    Parameters
    ----------
    density : RTBMDensity or RTBMDensityCV, default=None
        The density to fit; None for a committee, `RTBMDensityCV()`.
    contamination : float, default=0.1
        The share of training rows that are called outliers. It sets the threshold `offset_`.
    random_state : int, RandomState or None, default=None
        The same integer gives the same result. It is passed on to the default density.
    n_jobs : int, default=None
        The number of fits of the default density that run at the same time. -1 for all cores.

    Attributes
    ----------
    density_ : RTBMDensity or RTBMDensityCV
        The fitted density.
    offset_ : float
        The threshold of `score_samples`.
    n_features_in_ : int
        The number of features.

    Examples
    --------
    >>> from rtbm import RTBMDensity, RTBMOutlierDetector, datasets
    >>> X = datasets.correlated_gaussian.sample(500)
    >>> detector = RTBMOutlierDetector(RTBMDensity(1, random_state=0), contamination=0.05).fit(X)
    >>> detector.predict([[0.0, 0.0], [20.0, 20.0]])
    array([ 1, -1])
    """

    density: Any
    contamination: float
    random_state: Any
    n_jobs: int | None

    def __init__(
        self,
        density: Any = None,
        *,
        contamination: float = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to X (n_samples, n_features); NaN entries are missing."""
        check_number(self.contamination, "contamination", 0.0, 0.5, strict=True)
        forget(self)
        encoded, _ = learn_levels(X, getattr(self.density, "categorical_features", "auto"))
        checked = check_rows(self, encoded, ensure_all_finite="allow-nan", ensure_min_samples=2)
        density = make_density(self.density, len(checked), random_state=self.random_state, n_jobs=self.n_jobs)
        self.density_ = density.fit(X, sample_weight=sample_weight)
        weights = check_weights(sample_weight, checked)
        log_prob = self.density_.score_samples(X)
        last = np.quantile(log_prob, self.contamination, weights=weights, method="inverted_cdf")
        self.offset_ = float(np.nextafter(last, np.inf))  # the last outlier lies below
        counts = (weights > 0) & np.isfinite(log_prob)
        self._warn_of_optimism(log_prob[counts], weights[counts])
        return self

    def _warn_of_optimism(self, log_prob: Floats, weights: Floats) -> None:
        """Warn if the scores of training rows are much higher than those of new rows will be.

        The excess is that over the held-out rows of a committee. For other densities it is the number of parameters for
        each observation, as in the Akaike information criterion.
        """
        mean, deviation = (float(part[0]) for part in column_moments(log_prob[:, None], weights))
        n_observations = max(weights.sum(), weights.sum() ** 2 / (weights**2).sum())  # also if the sum is 1
        excess = self.density_.n_parameters_ / n_observations
        if isinstance(self.density_, RTBMDensityCV):
            excess = mean - float(self.density_.candidate_weights_ @ self.density_.held_out_)
            excess = 0.0 if self.density_.targets else excess  # they are judged by other scores
        if excess > LARGEST_EXCESS * deviation:
            warnings.warn(
                f"training rows have a log P that is higher by about {excess:.2g} than that of new rows, which is much "
                f"beside its standard deviation of {deviation:.2g}: new rows will be called outliers more often than "
                f"contamination={self.contamination:g} says. Fit a smaller density, or collect more rows",
                stacklevel=3,
            )

    def score_samples(self, X: Any) -> Floats:
        """log P(x) (n_samples,): the lower, the more abnormal."""
        check_is_fitted(self)
        return self.density_.score_samples(X)

    def decision_function(self, X: Any) -> Floats:
        """`score_samples` less `offset_` (n_samples,): negative for outliers."""
        return self.score_samples(X) - self.offset_

    def predict(self, X: Any) -> np.ndarray:
        """1 for inliers and −1 for outliers (n_samples,)."""
        return np.where(self.decision_function(X) >= 0, 1, -1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "density_")
