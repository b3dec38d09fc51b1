"""Outlier detection by density."""

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OutlierMixin
from sklearn.utils.validation import _check_sample_weight, check_is_fitted

from rtbm.common import Floats
from rtbm.estimators.checks import check_number, check_rows, forget, keep_arguments
from rtbm.estimators.density.committee import make_density


class RTBMOutlierDetector(OutlierMixin, BaseEstimator):
    """Outliers are the rows of lowest density.

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
        checked = check_rows(self, X, ensure_all_finite="allow-nan", ensure_min_samples=2)
        density = make_density(self.density, len(checked), random_state=self.random_state, n_jobs=self.n_jobs)
        self.density_ = density.fit(X, sample_weight=sample_weight)
        weights = _check_sample_weight(sample_weight, checked, dtype=np.float64)
        log_prob = self.density_.score_samples(X)
        last = np.quantile(log_prob, self.contamination, weights=weights, method="inverted_cdf")
        self.offset_ = float(np.nextafter(last, np.inf))  # the last outlier lies below
        return self

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
