"""Regression by the conditionals of a joint density."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.distributions import ColumnMap
from rtbm.distributions.arguments import check_probabilities
from rtbm.distributions.batch import SMALLEST_TAIL
from rtbm.errors import InvalidInputError, SpikeWarning
from rtbm.estimators.base import Estimator
from rtbm.estimators.checks import (
    check_flag,
    check_number,
    check_rows,
    draw_seed,
    forget,
    is_constant,
    is_frame,
    keep_arguments,
    warn_of_spikes,
)
from rtbm.estimators.density.categories import encode_like, learn_levels
from rtbm.estimators.density.columns import Levels
from rtbm.estimators.density.committee import make_density
from rtbm.estimators.density.fitted import in_blocks
from rtbm.estimators.density.predictions import PredictingDensity
from rtbm.validation import check_integer


class RTBMRegressor(RegressorMixin, Estimator):
    """Probabilistic regression: a density of features and targets together, and its exact conditionals p(y|x).

    It predicts means, standard deviations, quantiles, intervals, densities and draws. Missing features are integrated
    out, so X needs no imputation. Several targets are predicted jointly.

    Parameters
    ----------
    density : RTBMDensity or RTBMDensityCV, default=None
        The density of the columns (features, targets) to fit; None for a committee that is judged by how well it
        predicts the targets of held-out rows.
    calibrate : bool, default=True
        Whether quantiles, intervals, draws and log p of a single target are corrected by the distribution functions of
        rows that were held out in the fit. It needs a committee with this one target in `targets`, as the default is;
        other densities are not corrected, nor are tables with categories. Means and standard deviations are those of
        the density.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result. It is passed on to the default density.
    n_jobs : int, default=None
        The number of fits of the default density that run at the same time. -1 for all cores.
    verbose : int, default=0
        Whether the default density shows a progress bar.

    Attributes
    ----------
    density_ : RTBMDensity or RTBMDensityCV
        The fitted density of all columns: the features first, then the targets.
    categories_ : list
        The levels of each feature that is a column of categories; None for the others.
    n_targets_, n_features_in_ : int
        The number of targets and of features.

    Examples
    --------
    >>> from rtbm import RTBMDensity, RTBMRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-3, 3, (500, 1))
    >>> y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=500)
    >>> model = RTBMRegressor(RTBMDensity(1, n_components=8, random_state=0)).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    >>> model.predict_interval([[0.0], [np.nan]], coverage=0.9).shape
    (2, 2)
    """

    density: Any
    calibrate: bool
    random_state: Any
    n_jobs: int | None
    verbose: int
    n_features_in_: int
    n_targets_: int
    _is_flat: bool
    categories_: Annotated[Levels, "d"]
    density_: PredictingDensity

    def __init__(
        self,
        density: Any = None,
        *,
        calibrate: bool = True,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the joint density.

        Parameters
        ----------
        X : (n_samples, n_features)
            Features. NaN entries are missing.
        y : (n_samples,) or (n_samples, n_targets)
            Targets.
        sample_weight : (n_samples,), default=None
            A weight of k equals repeating the row k times; a weight of 0 drops it.
        """
        check_flag(self.calibrate, "calibrate")
        forget(self)
        names = [str(name) for name in (y.columns if is_frame(y) else [getattr(y, "name", None) or "target"])]
        features = {"dtype": np.float64, "ensure_all_finite": "allow-nan", "ensure_min_samples": 2}
        X, levels = learn_levels(X, getattr(self.density, "categorical_features", "auto"))
        X, y = check_rows(self, X, y, validate_separately=(features, {"dtype": np.float64, "ensure_2d": False}))
        if len(X) != len(y):
            raise InvalidInputError(f"X and y must have the same number of rows, got {len(X)} and {len(y)}")
        targets = y.reshape(len(y), -1)
        if len(names) != targets.shape[1] or set(names) & set(getattr(self, "feature_names_in_", [])):
            names = [f"target {i}" for i in range(targets.shape[1])]
        if is_constant(targets).any():
            raise InvalidInputError("y: a target has only one value, so it has no density")
        self._is_flat, self.n_targets_ = y.ndim == 1, targets.shape[1]
        joint = np.column_stack([X, targets])
        options = {"random_state": self.random_state, "n_jobs": self.n_jobs, "verbose": self.verbose}
        last = list(range(X.shape[1], joint.shape[1]))
        density = make_density(self.density, len(joint), targets=last, atoms=None, rounded=None, **options)
        self.categories_ = levels or [None] * X.shape[1]
        sizes = {i: range(len(own)) for i, own in enumerate(levels) if own is not None}
        density.set_params(categorical_features=sizes or None)
        warn_of_spikes(targets, [f"target {i}" for i in range(self.n_targets_)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SpikeWarning)  # features may be discrete
            self.density_ = density.fit(joint, sample_weight=sample_weight)
        known = [*self.categories_, *[None] * self.n_targets_]
        self.density_.columns_ = replace(self.density_.columns_, levels=known)
        if hasattr(self, "feature_names_in_"):
            self.density_.set_feature_names([*self.feature_names_in_, *names])
        return self

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """E[y|x] (n_samples,) or (n_samples, n_targets), and the standard deviation if `return_std`."""

        def moments(rows: Floats) -> Floats:
            given = self.density_._condition_first(rows)
            parts = [given.mean, given.variance.clamp(min=0).sqrt()] if return_std else [given.mean]
            return self._shaped(torch.stack(parts, 1))

        with torch.no_grad():
            found = in_blocks(moments, self._check(X))
        return (found[:, 0], found[:, 1]) if return_std else found[:, 0]

    def predict_quantiles(self, X: Any, quantiles: Sequence[float] | Floats = (0.05, 0.5, 0.95)) -> Floats:
        """Quantiles (n_samples, n_quantiles) of y given x; (n_samples, n_targets, n_quantiles) for several targets."""
        levels = np.atleast_1d(np.asarray(quantiles, dtype=np.float64))
        return in_blocks(lambda rows: self._quantiles(rows, levels), self._check(X))

    def _quantiles(self, rows: Floats, levels: Floats) -> Floats:
        given = self.density_._condition_first(rows)
        with torch.no_grad():
            if self._is_corrected:
                scores = torch.special.ndtri(check_probabilities(levels, given.device))
                return self._shaped(self._at_scores(given, scores.expand(*given.batch_shape, -1)), axis=1)
            columns = [given.marginal(i).icdf(levels)[..., 0] for i in range(self.n_targets_)]
        return self._shaped(torch.stack(columns, -1).permute(1, 2, 0), axis=1)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Floats:
        """The central interval (n_samples, 2) that holds y with probability `coverage`, given x.

        With several targets it is (n_samples, n_targets, 2), an interval for each.
        """
        check_number(coverage, "coverage", 0.0, 1.0, strict=True)
        return self.predict_quantiles(X, ((1 - coverage) / 2, (1 + coverage) / 2))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Draws of y given x: (n_rows, n_samples), or (n_rows, n_targets, n_samples) for several targets.

        Parameters
        ----------
        X : (n_rows, n_features)
            Features.
        n_samples : int, default=1
            The number of draws for each row.
        random_state : int, Generator, RandomState or None, default=0
            The same integer gives the same draws.
        """
        check_integer(n_samples, "n_samples", 1)
        given = self._given(X)
        seed = draw_seed(random_state)
        generator = torch.Generator(given.device).manual_seed(seed)
        if self._is_corrected:
            shape = (*given.batch_shape, n_samples)
            scores = torch.randn(shape, dtype=torch.float64, device=given.device, generator=generator)
            with torch.no_grad():
                return self._shaped(self._at_scores(given, scores), axis=1)
        return self._shaped(given.sample((n_samples,), generator).permute(1, 2, 0), axis=1)

    def log_prob(self, X: Any, y: Any) -> Floats:
        """log p(y|x) (n_samples,) of each row, jointly for several targets."""
        given = self._given(X)
        values: Floats = np.asarray(y, dtype=np.float64).reshape(given.batch_shape[0], -1)
        if values.shape[1] != self.n_targets_ or not np.isfinite(values).all():
            raise InvalidInputError(f"y must hold {self.n_targets_} finite numbers for each row of X")
        values = self.density_._bounds.subset(list(range(-self.n_targets_, 0))).inside(values)
        with torch.no_grad():
            targets = torch.tensor(values, device=given.device)
            log_prob = given.log_prob(targets)
            if self._is_corrected:
                score = given.normal_scores(targets)
                corrected, log_slope = self._calibration.to_line(score)
                gain = log_slope + 0.5 * (score.square() - corrected.square())
                beyond = torch.special.log_ndtr(-corrected.abs()) - math.log(SMALLEST_TAIL)  # of the whole tail
                is_inside = torch.special.ndtr(-score.abs()) > 1.001 * SMALLEST_TAIL
                log_prob = log_prob + torch.where(is_inside, gain, beyond)
            return log_prob.cpu().numpy()

    @property
    def _calibration(self) -> ColumnMap:
        """What corrects the normal scores of a target given the features."""
        return getattr(self.density_, "calibration_", ColumnMap())

    @property
    def _is_corrected(self) -> bool:
        """Whether held-out rows of this one target tell how to correct its distribution."""
        is_judged = list(getattr(self.density_, "targets", None) or []) == [self.density_.n_features_in_ - 1]
        return self.calibrate and self.n_targets_ == 1 and is_judged and type(self._calibration) is not ColumnMap

    def _at_scores(self, given: Any, scores: torch.Tensor) -> torch.Tensor:
        """The values (n, 1, q) of a target at corrected normal scores (n, q), which may be infinite."""
        uncorrected = torch.where(scores.isinf(), scores, self._calibration.from_line(scores.nan_to_num()))
        return given.from_normal_scores(uncorrected)[:, None]

    def _given(self, X: Any) -> Any:
        """The distributions of the targets given the features, one for each row."""
        rows = self._check(X)
        return self.density_._condition_first(rows)

    def _check(self, X: Any) -> Floats:
        """Checked rows, with numbers in the place of levels."""
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", None)
        X = encode_like(X, self.categories_, names, self.density_.handle_unknown)
        return check_rows(self, X, ensure_all_finite="allow-nan", reset=False)

    def _shaped(self, result: torch.Tensor, axis: int = -1) -> Floats:
        array = result.cpu().numpy()
        return array.squeeze(axis) if self._is_flat else array

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        if self.n_targets_ < 1 or self.density_.categories_ != [*self.categories_, *[None] * self.n_targets_]:
            raise InvalidInputError(
                "density_ must have the features, with their categories_, and then n_targets_ targets"
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "density_")
