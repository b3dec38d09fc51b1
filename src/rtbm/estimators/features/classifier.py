"""A classifier on the features of machines that were fitted to patches of the data (the paper's section 5)."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, clone, is_classifier
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import has_fit_parameter

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import check_labelled, column_moments, distinct_labelled, forget, keep_arguments
from rtbm.estimators.features.transformer import RTBMFeatures

CLASSIFIERS = ("logistic", "bayes")


def _has(method: str) -> Any:
    """Whether the classifier has a method: the fitted one, or the one that would be fitted."""

    def check(self: "RTBMPatchClassifier") -> bool:
        if self._is_bayes():
            return method != "decision_function"
        fitted = getattr(self, "classifier_", self.classifier)
        return isinstance(fitted, str) or hasattr(fitted, method)

    return check


class RTBMPatchClassifier(ClassifierMixin, RTBMFeatures):
    """A classifier on the features of `RTBMFeatures`, or by Bayes' rule.

    The features of `RTBMFeatures`, standardised, are passed to a classifier; or, with classifier="bayes", the densities
    of the classes themselves decide by Bayes' rule. `transform` gives the features.

    Parameters
    ----------
    n_hidden, patch, patch_size, image_shape, n_patches, supervised, features
        As in `RTBMFeatures`.
    classifier : "logistic", "bayes" or a scikit-learn classifier
        "logistic" is logistic regression with its defaults; pass LogisticRegression() to search over them. "bayes"
        fits one density for each class on every patch, takes patches for independent, and predicts
        P(class|x) ∝ P(class) ∏ P(patch of x|class).
    n_components, coupling, phase, solver, max_iter, tol, n_init, regularization, random_state, n_jobs, verbose
        As in `RTBMFeatures`.

    Attributes
    ----------
    classes_ : (n_classes,)
        The labels.
    classifier_ : classifier
        The fitted classifier, on standardised features; not with "bayes".
    patches_, densities_, n_iter_, n_features_in_
        As in `RTBMFeatures`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from rtbm import RTBMPatchClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(RTBMPatchClassifier(n_hidden=4, random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    >>> bool(RTBMPatchClassifier(1, patch_size=4, classifier="bayes", random_state=0).fit(X, y).score(X, y) > 0.95)
    True
    """

    classifier: Any

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
        classifier: Any = "logistic",
        n_components: int = 1,
        coupling: str = "dense",
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

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:  # type: ignore[override]
        """Fit densities and classifier to data (n_samples, n_features) and labels (n_samples,).

        NaN entries are missing, and are integrated out. A weight of k equals repeating the row k times, if the
        classifier treats weights so; a weight of 0 drops it.
        """
        self._check_parameters()
        classifier = self._new_classifier()
        if sample_weight is not None and classifier is not None and not has_fit_parameter(classifier, "sample_weight"):
            raise InvalidInputError(f"sample_weight: the classifier {classifier!r} takes none: leave it at None")
        forget(self, "_log_prior", "_has_classifier")
        X, y, weights = check_labelled(self, X, y, sample_weight)
        rows, labels, sums = distinct_labelled(X, y, weights)
        try:
            self._fit(rows, sums, labels if self._is_supervised() else None)
            if classifier is not None:
                self._centre, self._scale = column_moments(self._features(rows), sums)
                if isinstance(self.classifier, str):  # other classifiers see the rows as they were given
                    X, y, weights = rows, labels, sums
                options = {} if sample_weight is None and X is not rows else {"sample_weight": weights}
                self.classifier_ = classifier.fit(self._standardised(self._features(X)), y, **options)
        except BaseException:
            forget(self, "_log_prior", "_has_classifier")
            raise
        self.classes_, self._has_classifier = np.unique(labels), classifier is not None
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The labels (n_samples,)."""
        return self._decide(X, "predict", lambda log_posterior: self.classes_[log_posterior.argmax(axis=1)])

    @available_if(_has("predict_proba"))
    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the classes (n_samples, n_classes)."""
        return self._decide(X, "predict_proba", np.exp)

    @available_if(_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Floats:
        """The logarithms of the probabilities of the classes (n_samples, n_classes)."""
        return self._decide(X, "predict_log_proba", np.asarray)

    @available_if(_has("decision_function"))
    def decision_function(self, X: Any) -> Floats:
        """What the classifier compares."""
        return self._decide(X, "decision_function", np.asarray)

    def _decide(self, X: Any, method: str, by_bayes: Callable[[Floats], np.ndarray]) -> np.ndarray:
        """The answer of a method of the classifier, or by Bayes' rule from log P(class|x) (n_samples, n_classes)."""
        X = self._check(X)
        if self._is_bayes():
            return by_bayes(log_softmax(self._class_log_likelihood(X) + self._log_prior, axis=1))
        return getattr(self.classifier_, method)(self._standardised(self._features(X)))

    def _standardised(self, features: Floats) -> Floats:
        return (features - self._centre) / self._scale

    def _is_bayes(self) -> bool:
        """Whether the class densities decide by Bayes' rule."""
        if self.__sklearn_is_fitted__():
            return not self._has_classifier
        return isinstance(self.classifier, str) and self.classifier == "bayes"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_has_classifier")

    def _is_supervised(self) -> bool:
        return bool(self.supervised) or (isinstance(self.classifier, str) and self.classifier == "bayes")

    def _new_classifier(self) -> Any:
        if isinstance(self.classifier, str) and self.classifier in CLASSIFIERS:
            from sklearn.linear_model import LogisticRegression

            return LogisticRegression(max_iter=1000) if self.classifier == "logistic" else None
        is_estimator = isinstance(self.classifier, BaseEstimator) and hasattr(self.classifier, "fit")
        if not is_estimator or not is_classifier(self.classifier):
            raise InvalidInputError(
                f"classifier must be 'logistic', 'bayes' or a scikit-learn classifier, got {self.classifier!r}"
            )
        return clone(self.classifier)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags
