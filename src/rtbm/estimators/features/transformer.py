"""Features from densities of patches of columns: expectations of hidden units, log-likelihoods (paper, section 5)."""

import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, Self

import joblib
import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.errors import InvalidInputError, RTBMError
from rtbm.estimators.checks import (
    check_flag,
    check_jobs,
    check_labelled,
    check_rows,
    check_weights,
    column_moments,
    distinct_labelled,
    distinct_rows,
    draw_seed,
    forget,
    keep_arguments,
    varies,
)
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.features.patches import Patch, check_options, make_patches
from rtbm.estimators.parallel import THREADED_ROWS, in_parallel, threads_for, without_warnings
from rtbm.estimators.progress import progress_bar
from rtbm.validation import check_choice

FEATURE_KINDS = ("auto", "expectations", "log_likelihood", "both")
LARGEST_ENTRY = 1e150
"""Data with larger numbers are refused, since the squares leave float64."""


class RTBMFeatures(TransformerMixin, BaseEstimator):
    """Features for any classifier, from machines that are fitted to the densities of patches of the data.

    The columns are split into patches, and one machine (or mixture) is fitted to the density of each patch. `transform`
    returns the expectations E(h|x) of all hidden units, or log-likelihoods.

    Parameters
    ----------
    n_hidden : int, default=2
        The number of hidden units of each machine.
    patch : "contiguous", "blocks", "random" or list of lists, default="contiguous"
        Which features go together: consecutive ones; blocks of pixels of an image (see `image_shape`); random ones; or
        lists of their numbers, which may overlap.
    patch_size : int or pair, default=2
        The number of features in a patch; for blocks (rows, columns), or one number for both. Patches at the end may be
        smaller.
    image_shape : pair, default=None
        (rows, columns) of the images whose pixels are the features, for patch="blocks".
    n_patches : int, default=None
        The number of random patches; None for as many as it takes to have every feature in one. With more patches,
        features are used again, each equally often.
    supervised : bool, default=False
        Whether to fit one density for each class on every patch, which needs y.
    features : "auto", "expectations", "log_likelihood" or "both", default="auto"
        What `transform` returns for every machine: E(h|x), log P(x), or both. "auto" returns log-likelihoods if
        `supervised`, and expectations otherwise.
    n_components : int, default=1
    phase : "I" or "II", default="I"
    solver : str, default="lbfgs"
    max_iter : int, default=None
    tol : float, default=1e-4
    n_init : int, default=1
    regularization : float, default=1.0
        As in `RTBMDensity`. Features need fewer starts and a looser tolerance than densities.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result.
    n_jobs : int, default=None
        The number of patches that are fitted at the same time, through joblib. -1 for all cores.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    patches_ : list of (size,)
        The numbers of the features of each patch. Features with only one value are left out, and so are patches of
        nothing else.
    densities_ : list of lists of RTBMDensity
        The densities of every patch: one, or one for each class.
    classes_ : (n_classes,)
        The labels, if `supervised`.
    n_iter_ : int
        The iterations of the machine that took the most.
    n_features_in_ : int
        The number of features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from rtbm import RTBMFeatures
    >>> X, y = load_iris(return_X_y=True)
    >>> features = RTBMFeatures(n_hidden=2, patch_size=2, random_state=0).fit(X)
    >>> features.transform(X).shape
    (150, 4)
    >>> features.get_feature_names_out().tolist()
    ['patch0_h0', 'patch0_h1', 'patch1_h0', 'patch1_h1']
    """

    densities_: Annotated[list[list[RTBMDensity]], "patches"]
    patches_: Annotated[list[np.ndarray], "patches"]
    n_features_in_: int
    n_iter_: int
    _kind: Annotated[str, Literal["expectations", "log_likelihood", "both"]]

    def __init__(
        self,
        n_hidden: int = 2,
        *,
        patch: Any = "contiguous",
        patch_size: Any = 2,
        image_shape: Any = None,
        n_patches: int | None = None,
        supervised: bool = False,
        features: str = "auto",
        n_components: int = 1,
        phase: str = "I",
        solver: str = "lbfgs",
        max_iter: int | None = None,
        tol: float = 1e-4,
        n_init: int = 1,
        regularization: float = 1.0,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the densities to data (n_samples, n_features), and to labels (n_samples,) if `supervised`.

        NaN entries are missing, and are integrated out. A weight of k equals repeating the row k times; a weight of 0
        drops it.
        """
        self._check_parameters()
        forget(self, "_log_prior")
        if not self._is_supervised():
            X = check_rows(self, X, ensure_all_finite="allow-nan", ensure_min_samples=2)
            weights = check_weights(sample_weight, X)
            self._fit(*distinct_rows(X, weights))
        elif y is None:
            raise InvalidInputError("supervised=True requires y to be passed, but the target y is None")
        else:
            rows, labels, weights = distinct_labelled(*check_labelled(self, X, y, sample_weight))
            self._fit(rows, weights, labels)
        return self

    def _fit(self, X: Floats, weights: Floats, labels: np.ndarray | None = None) -> None:
        """Fit to rows of positive weight, of which the order does not matter."""
        self._kind = self._feature_kind()
        self._check_gaps(X, self.phase)
        largest = float(np.abs(X[~np.isnan(X)]).max(initial=0.0))
        if largest > LARGEST_ENTRY:
            raise InvalidInputError(f"X: values of size {largest:.0e}, whose squares leave float64: change the unit")
        seed = draw_seed(self.random_state)
        options = (self.patch, self.patch_size, X.shape[1], self.image_shape, self.n_patches, seed)
        is_used = varies(X)
        patches = [part[is_used[part]] for part in make_patches(*options)]
        patches = [part for part in patches if len(part)]
        if not patches:
            raise InvalidInputError("X: every feature of every patch has only one value, so there is no density")
        classes = np.empty(0) if labels is None else np.unique(labels)
        members = [np.ones(len(X), dtype=bool)] if labels is None else [labels == label for label in classes]
        densities = self._fit_densities(X, weights, patches, members, seed)
        n = len(members)
        self.densities_ = [densities[i : i + n] for i in range(0, len(densities), n)]
        self.patches_, self.n_iter_ = patches, max(density.n_iter_ for density in densities)
        if labels is not None:
            self.classes_ = classes
            totals = np.array([weights[part].sum() for part in members])
            self._log_prior = np.log(totals / totals.sum())

    def _fit_densities(
        self, X: Floats, weights: Floats, patches: list[Patch], members: list[np.ndarray], seed: int
    ) -> list[RTBMDensity]:
        options = self._density_options() | {"fallback": None}

        def calls() -> Iterator[Any]:
            fit = joblib.delayed(_fit_density)
            for i, part in enumerate(patches):
                chosen = options | {"random_state": (seed + i) % 2**32}
                if len(members) == 1:
                    yield fit(chosen, X[:, part], weights)
                    continue
                for member, moments in zip(members, class_moments(X[:, part], weights, members), strict=True):
                    yield fit(chosen, *spread_out(X[member][:, part], weights[member], *moments))

        n_machines = len(patches) * len(members)
        fitted, unfinished = [], 0
        with progress_bar(n_machines, unit="machine", shown=bool(self.verbose)) as report, without_warnings():
            for i, density in enumerate(in_parallel(self.n_jobs, calls(), len(X) <= THREADED_ROWS)):
                if report is not None:
                    report(i, density.history_[-1])
                fitted.append(density)
                unfinished += not density.converged_
        if unfinished:
            warnings.warn(
                f"{unfinished} of {n_machines} machines used up their iterations: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return fitted

    def transform(self, X: Any) -> Floats:
        """The features (n_samples, n_features_out): those of the first patch, then of the second, and so on.

        Missing entries are integrated out. A patch in which all are missing has the features E(h), and 0 as
        log-likelihood. In phase II, E(h|x) needs all entries.
        """
        return self._features(self._check(X))

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        for patch, densities in zip(self.patches_, self.densities_, strict=True):
            fits = patch.dtype.kind == "i" and patch.ndim == 1 and ((patch >= 0) & (patch < self.n_features_in_)).all()
            if not (fits and densities and {own.n_features_in_ for own in densities} == {len(patch)}):
                raise InvalidInputError(f"patches_ must be features that densities_ are of, got {patch!r}")
        if len(self.densities_[0]) != len(getattr(self, "classes_", [0])):
            raise InvalidInputError("densities_ must be those of all classes")

    def _check(self, X: Any) -> Floats:
        check_is_fitted(self)
        return check_rows(self, X, ensure_all_finite="allow-nan", reset=False)

    def _check_gaps(self, X: Floats, phase: str) -> None:
        if phase == "II" and self._kind != "log_likelihood" and np.isnan(X).any():
            raise InvalidInputError(
                'X holds NaN, for which E(h|x) is defined in phase "I" only: fit with phase="I", or with '
                'features="log_likelihood"'
            )

    def _features(self, X: Floats) -> Floats:
        self._check_gaps(X, self.densities_[0][0].phase)

        def columns(density: RTBMDensity, rows: Floats) -> Floats:
            parts = []
            if self._kind != "log_likelihood":
                parts.append(density._hidden_mean(rows))
            if self._kind != "expectations":
                parts.append(density.score_samples(rows)[:, None])
            return np.hstack(parts)

        return np.hstack([part for patch in self._evaluate(X, columns) for part in patch])

    def _evaluate(self, X: Floats, function: Callable[[RTBMDensity, Floats], Floats]) -> list[list[Floats]]:
        """A function of every density and its part of the data, patch by patch."""
        results = []
        with threads_for(len(X)):
            for i, (part, densities) in enumerate(zip(self.patches_, self.densities_, strict=True)):
                rows = np.ascontiguousarray(X[:, part])
                try:
                    results.append([function(density, rows) for density in densities])
                except RTBMError as error:
                    sizes = np.nan_to_num(np.abs(rows)).max(axis=1)
                    worst, size = int(sizes.argmax()), sizes.max()
                    raise InvalidInputError(
                        f"X: row {worst} holds {size:.3g} in patch {i}, out of reach of the machine there ({error}): "
                        "clip X to the range of the data of the fit"
                    ) from None
        return results

    def class_log_likelihood(self, X: Any) -> Floats:
        """log P(x|class) (n_samples, n_classes), as if patches were independent; needs supervised=True."""
        return self._class_log_likelihood(self._check(X))

    def _class_log_likelihood(self, X: Floats) -> Floats:
        if not hasattr(self, "_log_prior"):
            raise InvalidInputError("class_log_likelihood needs a density of each class: fit with supervised=True")
        log_prob = self._evaluate(X, lambda density, rows: density.score_samples(rows))
        return np.sum([np.stack(patch, axis=1) for patch in log_prob], axis=0)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """The names of the features: patch, class if `supervised`, and hidden unit or "log_likelihood".

        `input_features` is there for pipelines, and ignored.
        """
        check_is_fitted(self)
        names = []
        for i, densities in enumerate(self.densities_):
            for j, density in enumerate(densities):
                prefix = f"patch{i}_{self.classes_[j]}" if len(densities) > 1 else f"patch{i}"
                if self._kind != "log_likelihood":
                    names += [f"{prefix}_h{k}" for k in range(density._n_features_out)]
                if self._kind != "expectations":
                    names.append(f"{prefix}_log_likelihood")
        return np.array(names, dtype=object)

    def _is_supervised(self) -> bool:
        return bool(self.supervised)

    def _feature_kind(self) -> str:
        if self.features == "auto":
            return "log_likelihood" if self._is_supervised() else "expectations"
        return self.features

    def _check_parameters(self) -> None:
        """Check the parameters, which scikit-learn lets be set to anything, before the fit."""
        check_options(self.patch, self.patch_size, self.image_shape, self.n_patches)
        check_choice(self.features, "features", FEATURE_KINDS)
        check_flag(self.supervised, "supervised")
        check_jobs(self.n_jobs)
        RTBMDensity(**self._density_options())._check_parameters()

    def _density_options(self) -> dict[str, Any]:
        """The parameters that are passed on to the density of each patch."""
        shared = set(RTBMDensity().get_params()) - {"random_state", "n_jobs", "verbose"}
        return {name: value for name, value in self.get_params(deep=False).items() if name in shared}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "densities_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = self._is_supervised()
        tags.input_tags.allow_nan = self.phase != "II" or self._feature_kind() == "log_likelihood"
        return tags


def typical_variances(X: Floats, weights: Floats, members: list[np.ndarray]) -> Floats:
    """The (lower) median over classes of the variance (d,) of each feature within a class, where that is not 0.

    A feature that is constant in every class has a hundredth of its whole variance.
    """
    within = np.stack([column_moments(X[member], weights[member])[1] ** 2 for member in members])
    flat = np.stack([~varies(X[member]) for member in members])
    whole = column_moments(X, weights)[1] ** 2
    pairs = zip(within.T, flat.T, whole, strict=True)
    return np.array(
        [0.01 * total if flat.all() else np.quantile(own[~flat], 0.5, method="lower") for own, flat, total in pairs]
    )


def class_moments(X: Floats, weights: Floats, members: list[np.ndarray]) -> list[tuple[Floats, Floats]]:
    """For each class, the means (d,) of the features and their typical variances (d,).

    Where all rows of a class lack a feature, these are the mean and the variance of all rows.
    """
    typical, (mean, deviation) = typical_variances(X, weights, members), column_moments(X, weights)
    moments = []
    for member in members:
        absent = np.isnan(X[member]).all(axis=0)
        own = column_moments(X[member], weights[member])[0]
        moments.append((np.where(absent, mean, own), np.where(absent, deviation**2, typical)))
    return moments


def spread_out(rows: Floats, weights: Floats, mean: Floats, variances: Floats) -> tuple[Floats, Floats]:
    """Rows of a class, and one more observation that is spread out around their mean (d,).

    It is 2d points with given variances (d,) and the weight of an average row. It keeps the density finite where all
    rows have one value, and steadies it where they are few.
    """
    d = rows.shape[1]
    steps = np.diag(np.sqrt(d * variances))
    extra = np.full(2 * d, weights.mean() / (2 * d))
    return np.concatenate([rows, mean + steps, mean - steps]), np.concatenate([weights, extra])


def _fit_density(options: dict[str, Any], rows: Floats, weights: Floats) -> RTBMDensity:
    """A density, without the warnings that concern a single one."""
    with without_warnings():
        return RTBMDensity(**options, atoms=None, rounded=None).fit(rows, sample_weight=weights)
