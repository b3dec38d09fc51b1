"""Classification by the densities of classes and by logistic regression, weighed by what predicts held-out rows."""

from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple, Self

import joblib
import numpy as np
from scipy.special import log_softmax, logsumexp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_jobs,
    check_labelled,
    check_rows,
    check_weights,
    column_moments,
    distinct_labelled,
    draw_seed,
    forget,
    keep_arguments,
)
from rtbm.estimators.class_densities import ClassDensities, class_tasks
from rtbm.estimators.density.categories import UNKNOWN, encode_like, learn_levels
from rtbm.estimators.density.columns import Levels, states_of
from rtbm.estimators.density.fitted import in_blocks
from rtbm.estimators.density.folds import fold_numbers
from rtbm.estimators.density.stacking import stacking_weights
from rtbm.estimators.parallel import in_parallel, without_warnings
from rtbm.estimators.progress import counting_bar
from rtbm.training.mixed import StateTables
from rtbm.validation import check_choice, check_integer

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""The inverse regularisations C of logistic regression that are tried. More take longer, and change little."""
LOGISTIC_ITER, LOGISTIC_TOL = 500, 1e-3
"""The most iterations of a logistic regression, and the tolerance in cross-validation. More effort changes little."""
STACKING_TOL = 1e-5
"""The weights of predictors are final when an iteration changes them by less. Predictions do not gain from more."""
LEAST_LOG = -27.0
"""Log-probabilities of classes are cut off here, so that a class that a density excludes costs a finite amount."""
REACH = 10.0
"""Features are cut off this many ranges of the training data beyond them, where every density is far from its data."""
MAX_COLUMNS = 2000
"""With more log-likelihoods of single features than this, logistic regression sees their sums alone."""


class LogLikelihoods(NamedTuple):
    """log P(x|class) of n rows, d features and C classes."""

    single: Floats  # (n, d, C): of each feature
    joint: Floats  # (n, 2, C): of all features together, by one machine and by a mixture

    def centred(self) -> "LogLikelihoods":
        """Less their mean over the classes, which tells nothing about the class. Of two classes the first tells all."""
        n_columns = 1 if self.single.shape[-1] == 2 else None
        return LogLikelihoods(*((part - part.mean(axis=-1, keepdims=True))[..., :n_columns] for part in self))


class FoldDensities(NamedTuple):
    """The densities of all classes, fitted to part of the data: of numbers, and tables of columns of categories."""

    numbers: list[int]  # the columns of numbers
    classes: list[ClassDensities]
    tables: dict[str, Floats]  # (C, levels) by the numbers of columns of categories

    def log_prob(self, rows: Floats) -> LogLikelihoods:
        """log P(x|class) of rows (n, d); missing entries count nothing."""
        parts = zip(*(density.log_prob(rows[:, self.numbers]) for density in self.classes), strict=True)
        single, joint = (np.stack(part, axis=-1) for part in parts)
        own = [states_of(rows, {int(i): len(table.T)}).log_prob(np.log(table.T)) for i, table in self.tables.items()]
        if not own:
            return LogLikelihoods(single, joint)
        levels = np.stack(own, axis=1)
        return LogLikelihoods(np.hstack([single, levels]), joint + levels.sum(axis=1, keepdims=True))


class RTBMClassifier(ClassifierMixin, BaseEstimator):
    """A classifier from the densities of classes, weighed by what predicts held-out rows.

    For each class, densities are fitted to every single feature and to all features together. Six predictors follow:

    - logistic regression on the features; on the features with the log-likelihoods of all densities; and on the
      features with log-likelihoods that are summed over single features,
    - Bayes' rule with the product of the densities of single features, and with either density of all features.

    The data are split into folds. The log-likelihoods of a row come from densities that have not seen it, and so do the
    probabilities by which the predictors are judged. The prediction is the average of all predictors, with weights that
    maximise the log-likelihood of the held-out labels (stacking).

    Missing entries are integrated out of the densities. Logistic regression sees the means of the features in their
    place. The density of a column of categories is a table for each class, with a prior of two rows toward the
    distribution of all classes; logistic regression sees a column of 0 and 1 for each level.

    The classifier of the paper, which passes expectations of hidden units to logistic regression, is
    `make_patch_classifier`.

    Parameters
    ----------
    cv : int, splitter or iterable, default=5
        The number of folds, a splitter of scikit-learn, or pairs (training rows, test rows). Every row has to be in one
        test set.
    categorical_features : "auto", list, dict or None, default="auto"
    handle_unknown : "warn", "ignore" or "error", default="warn"
        Columns of categories, and levels that the fit has not seen, as in `RTBMDensity`.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result.
    n_jobs : int, default=None
        The number of densities that are fitted at the same time, through joblib. -1 for all cores.
    verbose : int, default=0
        Whether to show a progress bar.

    Attributes
    ----------
    classes_ : (n_classes,)
        The labels.
    predictor_weights_ : dict
        The weight of each predictor.
    held_out_ : dict
        The mean log-probability of held-out labels by each predictor.
    categories_ : list
        The levels of each feature that is a column of categories; None for the others.
    n_features_in_ : int
        The number of features.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from rtbm import RTBMClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = RTBMClassifier(cv=2, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), round(sum(model.predictor_weights_.values()), 6)
    (True, 1.0)
    """

    cv: Any
    categorical_features: Any
    handle_unknown: str
    random_state: Any
    n_jobs: int | None
    verbose: int
    n_features_in_: int
    categories_: Annotated[Levels, "d"]
    classes_: Annotated[np.ndarray, "classes"]
    predictor_weights_: dict[str, float]
    held_out_: dict[str, float]
    _centre: Annotated[Floats, "kept"]
    _scale: Annotated[Floats, "kept"]
    _low: Annotated[Floats, "kept"]
    _high: Annotated[Floats, "kept"]
    _log_prior: Annotated[Floats, "classes"]
    _logistic: dict[str, tuple[Floats, Floats, BaseEstimator]]
    _densities: list[FoldDensities]

    def __init__(
        self,
        *,
        cv: Any = 5,
        categorical_features: Any = "auto",
        handle_unknown: str = "warn",
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ):
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit densities and predictors to data (n_samples, n_features) and labels (n_samples,).

        NaN entries are missing. A weight of k equals repeating the row k times; a weight of 0 drops it.
        """
        if isinstance(self.cv, int | np.integer):
            check_integer(self.cv, "cv", 2)
        check_jobs(self.n_jobs)
        check_choice(self.handle_unknown, "handle_unknown", UNKNOWN)
        forget(self, "_densities")
        X, levels = learn_levels(X, self.categorical_features)
        seed = draw_seed(self.random_state)
        fold = None if isinstance(self.cv, int | np.integer) else fold_numbers(self.cv, X, y)
        if fold is not None and sample_weight is not None:
            fold = fold[check_weights(sample_weight, X) > 0]
        rows, codes, weights, fold = self._split(*check_labelled(self, X, y, sample_weight), fold, seed)
        self.categories_ = levels or [None] * rows.shape[1]
        rows = rows[:, self._kept]
        self._centre, self._scale = column_moments(rows, weights)
        discrete = list(self._sizes)
        self._centre[discrete], self._scale[discrete] = 0.0, 1.0
        rows = self._set_limits(rows)
        densities, known = self._cross_fit(rows, codes, weights, fold, seed)
        counts = np.bincount(codes, weights)
        self._log_prior = np.log(counts / counts.sum())
        with without_warnings():
            self._fit_predictors(rows, known, codes, weights, fold)
        self._densities = densities
        return self

    def _split(
        self, X: Floats, y: np.ndarray, weights: Floats, fold: np.ndarray | None, seed: int
    ) -> tuple[Floats, np.ndarray, Floats, np.ndarray]:
        """The distinct rows, the numbers of their classes, the sums of their weights, and their folds."""
        self.classes_, codes = np.unique(y, return_inverse=True)
        if fold is None:
            rows, codes, weights = distinct_labelled(X, codes, weights)
            return rows, codes, weights, _stratified_folds(codes, int(self.cv), seed)
        rows, pairs, weights = distinct_labelled(X, len(self.classes_) * fold + codes, weights)
        fold, codes = np.divmod(pairs, len(self.classes_))
        return rows, codes, weights, fold

    def _set_limits(self, rows: Floats) -> Floats:
        """Standardised rows. The limits beyond which features are cut off are set from them."""
        z = (rows - self._centre) / self._scale
        low, high = np.fmin.reduce(z, axis=0), np.fmax.reduce(z, axis=0)
        self._low, self._high = low - REACH * (high - low), high + REACH * (high - low)
        return z

    def _cross_fit(
        self, rows: Floats, codes: np.ndarray, weights: Floats, fold: np.ndarray, seed: int
    ) -> tuple[list[FoldDensities], LogLikelihoods]:
        """Densities without each fold, and the log-likelihoods of all rows from densities that have not seen them.

        Rows of fold −1 are in the training data of all folds, so theirs are averages over all densities.
        """
        C, n_folds = len(self.classes_), int(fold.max()) + 1
        numbers = [i for i in range(rows.shape[1]) if i not in self._sizes]

        def tables(k: int) -> dict[str, Floats]:
            members = np.where(codes[:, None] == np.arange(C), weights[:, None], 0.0) * (fold != k)[:, None]
            counts = {i: states_of(rows, {i: size}).count_shares(members) for i, size in self._sizes.items()}
            return {str(i): StateTables.fit([self._sizes[i]], own).probabilities[0] for i, own in counts.items()}

        def calls() -> Iterator[Any]:
            for k in range(n_folds):
                kept = fold != k
                for task in class_tasks(rows[kept][:, numbers], codes[kept], weights[kept]):
                    yield joblib.delayed(ClassDensities.fit)(*task, seed)

        for k in range(n_folds):
            if len(np.unique(codes[fold != k])) < C:
                raise InvalidInputError(f"cv: all rows of a class are in the test set of fold {k}: stratify")
        found = []
        with counting_bar(n_folds * C, "fitting", bool(self.verbose)) as advance, without_warnings():
            for density in in_parallel(self.n_jobs, calls(), threads=True):
                found.append(density)
                advance()
        densities = [FoldDensities(numbers, found[k * C : (k + 1) * C], tables(k)) for k in range(n_folds)]
        d, n_joint = rows.shape[1], len(found[0].joint)
        known = LogLikelihoods(np.zeros((len(rows), d, C)), np.zeros((len(rows), n_joint, C)))
        for k in range(n_folds):
            for part, new in zip(known, densities[k].log_prob(rows[fold == k]), strict=True):
                part[fold == k] = new
        alone = fold < 0
        if alone.any():
            for part, new in zip(known, _average(densities, rows[alone]), strict=True):
                part[alone] = new
        return densities, known

    def _fit_predictors(
        self, rows: Floats, known: LogLikelihoods, codes: np.ndarray, weights: Floats, fold: np.ndarray
    ) -> None:
        """Fit logistic regressions to all rows, and weigh all predictors by the labels of held-out rows."""
        from sklearn.linear_model import LogisticRegression  # half a second, which loading and using a density spares

        held_out = self._bayes(known)
        self._logistic = {}
        width = self._design(rows).shape[1]
        for name, columns in self._columns(rows, known).items():
            centre, scale = column_moments(columns, weights)
            if len(self.classes_) == 2:
                scale[width:] /= 2**0.5  # one column stands for two, and has the penalty of both
            z = (columns - centre) / scale
            held_out[name], strength = _cross_validated(z, codes, weights, fold, len(self.classes_))
            model = LogisticRegression(C=strength, max_iter=LOGISTIC_ITER).fit(z, codes, weights)
            self._logistic[name] = centre, scale, model
        own = np.stack([log_prob[np.arange(len(codes)), codes] for log_prob in held_out.values()], axis=1)
        shares = stacking_weights(own, weights, np.zeros(len(held_out)), tol=STACKING_TOL)
        self.predictor_weights_ = dict(zip(held_out, shares.tolist(), strict=True))
        self.held_out_ = dict(zip(held_out, (weights @ own / weights.sum()).tolist(), strict=True))

    def _bayes(self, known: LogLikelihoods) -> dict[str, Floats]:
        """log P(class|x) (n, C) by Bayes' rule."""
        by = {
            "Bayes, single features": known.single.sum(axis=1),
            "Bayes, one machine": known.joint[:, 0],
            "Bayes, mixture": known.joint[:, 1],
        }
        return {name: _floored(value + self._log_prior) for name, value in by.items()}

    def _columns(self, rows: Floats, known: LogLikelihoods) -> dict[str, Floats]:
        """What the logistic regressions see, (n, columns) each."""
        single, joint = known.centred()
        rows = self._design(rows)
        together = np.hstack([rows, joint.reshape(len(rows), -1)])
        columns = {
            "logistic, features": rows,
            "logistic, sums of log-likelihoods": np.hstack([together, single.sum(axis=1)]),
        }
        if single[0].size <= MAX_COLUMNS:
            columns["logistic, log-likelihoods"] = np.hstack([together, single.reshape(len(rows), -1)])
        return columns

    def _design(self, rows: Floats) -> Floats:
        """Features (n, columns) for logistic regression: numbers, with means for gaps, and levels as 0 and 1."""
        sizes = self._sizes
        numbers = [i for i in range(rows.shape[1]) if i not in sizes]
        levels = [rows[:, [i]] == np.arange(size) for i, size in sizes.items()]
        return np.hstack([np.nan_to_num(rows[:, numbers]), *levels])

    @property
    def _sizes(self) -> dict[int, int]:
        """The numbers of levels of columns of categories."""
        sizes = [len(self.categories_[i] or ()) for i in self._kept]
        return {place: size for place, size in enumerate(sizes) if size}

    @property
    def _kept(self) -> list[int]:
        """The numbers of the features that are no identifiers."""
        return [i for i, own in enumerate(self.categories_) if own != []]

    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithms of the probabilities of the classes (n_samples, n_classes)."""
        check_is_fitted(self)
        X = encode_like(X, self.categories_, getattr(self, "feature_names_in_", None), self.handle_unknown)
        X = check_rows(self, X, ensure_all_finite="allow-nan", reset=False)
        return in_blocks(self._log_proba_of_block, X[:, self._kept])

    def _log_proba_of_block(self, X: Floats) -> Floats:
        rows = np.clip((X - self._centre) / self._scale, self._low, self._high)
        known = _average(self._densities, rows)
        parts = self._bayes(known)
        for name, columns in self._columns(rows, known).items():
            centre, scale, model = self._logistic[name]
            parts[name] = _log_proba(model, (columns - centre) / scale, len(self.classes_))
        shares = np.array([self.predictor_weights_[name] for name in parts])
        with np.errstate(divide="ignore"):
            return logsumexp(np.stack(list(parts.values())) + np.log(shares)[:, None, None], axis=0)

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the classes (n_samples, n_classes)."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The labels (n_samples,)."""
        log_proba = self.predict_log_proba(X)
        return self.classes_[log_proba.argmax(axis=1)]

    def _check_loaded(self) -> None:
        """Check with two rows that the attributes of a file belong together."""
        rows = np.stack([np.full_like(self._centre, np.nan), self._centre])
        if np.isnan(self._log_proba_of_block(rows)).any():
            raise InvalidInputError("the densities or the weights of the predictors hold NaN")

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_densities")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _average(densities: list[FoldDensities], rows: Floats) -> LogLikelihoods:
    """The logarithms of likelihoods averaged over the densities of all folds."""
    total = densities[0].log_prob(rows)
    for fold in densities[1:]:
        total = LogLikelihoods(*map(np.logaddexp, total, fold.log_prob(rows)))
    return LogLikelihoods(*(part - np.log(len(densities)) for part in total))


def _stratified_folds(codes: np.ndarray, n_folds: int, seed: int) -> np.ndarray:
    """The fold (n,) of each row, with each class spread over the folds; −1 for the row of a class with one row."""
    rng = np.random.default_rng(seed)
    fold, start = np.empty(len(codes), dtype=np.int64), 0
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        fold[members] = (start + rng.permutation(len(members))) % n_folds if len(members) > 1 else -1
        start += len(members)
    if len(np.unique(fold[fold >= 0])) < n_folds:
        raise InvalidInputError(f"X: {n_folds} folds need as many distinct rows, got {len(codes)}: lower cv")
    return fold


def _cross_validated(
    z: Floats, codes: np.ndarray, weights: Floats, fold: np.ndarray, n_classes: int
) -> tuple[Floats, float]:
    """log P(class|x) (n, C) of held-out rows by logistic regression, and the C of STRENGTHS that predicts them best.

    C rises until the prediction is worse. Each fit starts from the one before, with the same rows.
    """
    from sklearn.linear_model import LogisticRegression

    options = {"tol": LOGISTIC_TOL, "max_iter": LOGISTIC_ITER, "warm_start": True}
    models = [LogisticRegression(**options) for _ in range(fold.max() + 1)]
    best, found, chosen = -np.inf, np.empty((len(z), n_classes)), STRENGTHS[0]
    for strength in STRENGTHS:
        log_prob = np.empty((len(z), n_classes))
        for k, model in enumerate(models):
            kept = fold != k
            held_out = ~kept if k else ~kept | (fold < 0)
            model.set_params(C=strength).fit(z[kept], codes[kept], weights[kept])
            log_prob[held_out] = _log_proba(model, z[held_out], n_classes)
        value = float(weights @ log_prob[np.arange(len(codes)), codes])
        if value <= best:
            break
        best, found, chosen = value, log_prob, strength
    return found, chosen


def _log_proba(model: Any, z: Floats, n_classes: int) -> Floats:
    scores = model.decision_function(z)
    log_weights = np.full((len(z), n_classes), -np.inf)
    log_weights[:, model.classes_] = np.column_stack([-scores / 2, scores / 2]) if scores.ndim == 1 else scores
    return _floored(log_weights)


def _floored(log_weights: Floats) -> Floats:
    """Log-probabilities (n, C) of classes, at least LEAST_LOG."""
    return log_softmax(np.maximum(log_softmax(log_weights, axis=1), LEAST_LOG), axis=1)
