"""Every public estimator with quick settings, data that all of them take, and everything that they predict."""

import re
from typing import Any

import numpy as np

import rtbm

ESTIMATORS = {
    "machine": lambda: rtbm.RTBMDensity(1, n_init=1, random_state=0),
    "mixture": lambda: rtbm.RTBMDensity(1, n_components=2, n_init=1, fallback=None, random_state=0),
    "committee": lambda: rtbm.RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0),
    "features": lambda: rtbm.RTBMFeatures(n_hidden=1, random_state=0),
    "classifier": lambda: rtbm.RTBMClassifier(cv=2, random_state=0),
    "regressor": lambda: rtbm.RTBMRegressor(rtbm.RTBMDensity(1, n_init=1, random_state=0)),
    "outlier detector": lambda: rtbm.RTBMOutlierDetector(rtbm.RTBMDensity(1, n_init=1, random_state=0)),
    "imputer": lambda: rtbm.RTBMImputer(rtbm.RTBMDensity(1, n_init=1, random_state=0)),
    "theta regressor": lambda: rtbm.ThetaNetRegressor((2,), n_init=1, solver="lbfgs", random_state=0),
    "theta classifier": lambda: rtbm.ThetaNetClassifier((2,), n_init=1, solver="lbfgs", random_state=0),
}


def quick(n_hidden: int = 1, **options: Any) -> rtbm.RTBMDensity:
    """A machine that is fitted from one start."""
    return rtbm.RTBMDensity(n_hidden, **{"n_init": 1, "random_state": 0, **options})


METHODS = ("score_samples", "transform", "predict", "predict_proba", "decision_function")


def table(name, n=60, seed=0):
    """Rows of two features that are not Gaussian, and a target: a number for regressors, else "low" or "high"."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.gamma(2.0, size=n), rng.normal(size=n)])
    score = X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.normal(size=n)
    return X, score if "regressor" in name else np.where(score > np.median(score), "high", "low")


def outputs(model, X):
    """What a fitted estimator says about rows, by the name of the method."""
    return {method: np.asarray(getattr(model, method)(X)) for method in METHODS if hasattr(model, method)}


def knowledge(model: Any) -> dict[str, str]:
    """Everything public that a fitted estimator, or the last step of a pipeline, knows about its fit, as text.

    Numbers of NumPy are shown as those of Python, and addresses of memory are left out.
    """
    last = model[-1] if hasattr(model, "steps") else model
    names = [name for name in dir(last) if name.endswith("_") and not name.startswith("_") and hasattr(last, name)]
    values = {"parameters": model.get_params(), **{name: getattr(last, name) for name in names}}
    return {name: re.sub(r"np\.\w+\(([^()]*)\)| at 0x\w+", r"\1", repr(value)) for name, value in values.items()}
