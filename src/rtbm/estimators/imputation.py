"""Imputation: missing entries from a density of all columns."""

from typing import Any, Self

from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rtbm.errors import InvalidInputError
from rtbm.estimators.base import Estimator
from rtbm.estimators.checks import check_rows, forget, keep_arguments
from rtbm.estimators.density.categories import learn_levels
from rtbm.estimators.density.committee import make_density
from rtbm.estimators.density.predictions import IMPUTATIONS, PredictingDensity
from rtbm.validation import check_choice, check_integer


class RTBMImputer(OneToOneFeatureMixin, TransformerMixin, Estimator):
    """Fills in missing entries by their distribution given the other entries of the row.

    It fits a density of all columns, which may be numbers, rounded numbers, numbers with atoms, categories and dates;
    see `RTBMDensity`. Data frames go in and come out, with their index and, as far as the values allow, their dtypes.

    Parameters
    ----------
    density : RTBMDensity or RTBMDensityCV, default=None
        The density to fit; None for a committee, `RTBMDensityCV()`.
    method : "mean" or "sample", default="mean"
        What `transform` fills in: means of numbers and the likeliest levels of categories, or one draw.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result. It is passed on to the default density.
    n_jobs : int, default=None
        The number of fits of the default density that run at the same time. -1 for all cores.

    Attributes
    ----------
    density_ : RTBMDensity or RTBMDensityCV
        The fitted density.
    n_features_in_ : int
        The number of features.

    Examples
    --------
    >>> import numpy as np
    >>> from rtbm import RTBMDensity, RTBMImputer, datasets
    >>> X = datasets.correlated_gaussian.sample(500)
    >>> X[:100, 1] = np.nan
    >>> imputer = RTBMImputer(RTBMDensity(1, random_state=0)).fit(X)
    >>> bool(np.isnan(imputer.transform(X)).any())
    False
    >>> len(imputer.complete(X, n_draws=3, random_state=0))
    3
    """

    density: Any
    method: str
    random_state: Any
    n_jobs: int | None
    n_features_in_: int
    density_: PredictingDensity

    def __init__(
        self, density: Any = None, *, method: str = "mean", random_state: Any = None, n_jobs: int | None = None
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the density to X (n_samples, n_features); NaN entries are missing. Rows with gaps count too."""
        check_choice(self.method, "method", IMPUTATIONS)
        forget(self)
        encoded, _ = learn_levels(X, getattr(self.density, "categorical_features", "auto"), warn=False)
        checked = check_rows(self, encoded, ensure_all_finite="allow-nan", ensure_min_samples=2)
        options = {"random_state": self.random_state, "n_jobs": self.n_jobs}
        self.density_ = make_density(self.density, len(checked), **options).fit(X, sample_weight=sample_weight)
        return self

    def transform(self, X: Any) -> Any:
        """X (n_samples, n_features) with missing entries filled in. Draws follow `random_state`."""
        check_is_fitted(self)
        return self.density_.impute(X, self.method, random_state=self.random_state)

    def complete(self, X: Any, n_draws: int = 5, random_state: Any = None) -> list[Any]:
        """Several completed tables, each with draws of its own, for multiple imputation.

        An analysis of each table, pooled by Rubin's rules, then has errors that count the missing entries. The
        parameters of the density are taken as known.
        """
        check_is_fitted(self)
        check_integer(n_draws, "n_draws", 1)
        seed = self.random_state if random_state is None else random_state
        return self.density_._impute(X, "sample", n_draws, seed)

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        if self.density_.n_features_in_ != self.n_features_in_:
            raise InvalidInputError(f"density_ must have n_features_in_ = {self.n_features_in_} features")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "density_")
