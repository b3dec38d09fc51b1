"""Beyond the paper: classification of tables with categories, complete and with gaps, beside other methods."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from experiments.tables.classifiers import SCORES, SMALLEST_CLASS, judge
from experiments.tables.comparison import QUICK_ROWS, Rows, TableComparison, available
from experiments.tables.mixed import DRAWN, KNOWN, read_table
from rtbm.estimators import RTBMClassifier

TABLES = available((*KNOWN, *DRAWN[:7]))
PATTERNS = {"complete": 0.0, "gaps": 0.2}
"""The share of cells that are hidden."""
TABLE_ROWS = 400
"""Most rows of a table. More rows take longer."""
MOST_CLASSES = 10
"""The label is the first column of categories with at most this many of them."""


@functools.cache
def load(case: str, quick: bool) -> Rows:
    """A table without its label, with gaps in all parts, and the labels."""
    name, pattern = case.split(", ")
    frame = read_table(name)[: QUICK_ROWS if quick else TABLE_ROWS]
    label = next(c for c in frame.select_dtypes("category") if frame[c].nunique() <= MOST_CLASSES)
    codes = frame[label].cat.codes.to_numpy()
    kept = np.bincount(codes)[codes] >= SMALLEST_CLASS
    features = frame.drop(columns=label)
    hidden = np.random.default_rng(0).random(features.shape) < PATTERNS[pattern]
    return Rows(features.mask(hidden)[kept], np.unique(codes[kept], return_inverse=True)[1])


def _logistic(seed: int, quick: bool) -> Any:
    """Means and most frequent categories in gaps, categories as indicators."""
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    categories = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    is_category = make_column_selector(dtype_include="category")
    table = make_column_transformer((categories, is_category), remainder=numbers)
    return make_pipeline(table, LogisticRegressionCV(Cs=10, cv=5, max_iter=1000, scoring="neg_log_loss"))


METHODS: dict[str, Callable[[int, bool], Any]] = {
    "RTBMClassifier": lambda seed, quick: RTBMClassifier(cv=2 if quick else 5, random_state=seed),
    "logistic regression": _logistic,
    "boosted trees": lambda seed, quick: HistGradientBoostingClassifier(
        categorical_features="from_dtype", random_state=seed
    ),
}


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """The scores of `classifiers`."""
    return judge(METHODS[method](seed, quick), train, test)


COMPARISON = TableComparison(
    title="Classification of tables with categories and gaps",
    about=f"The first column of categories, with at most {MOST_CLASSES} of them, of {len(TABLES)} of the tables of the "
    f"experiment `mixed`, given the other columns, on random splits with three quarters of at most {TABLE_ROWS} rows "
    "for fitting; complete, and with 20 % of the cells hidden at random in all rows. Logistic regression chooses its "
    "penalty by cross-validation, has indicators of categories, and means and most frequent categories in gaps. "
    "Boosted trees have their default settings, and take categories and gaps as they are. Nothing was tuned on these "
    "tables. Errors are for new data (Nadeau and Bengio).",
    load=load,
    tables=tuple(f"{name}, {pattern}" for name in TABLES for pattern in PATTERNS),
    quick_tables=("iris, gaps",),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=SCORES,
    stratify=True,
)
EXPERIMENT = COMPARISON.experiment(seeds=(5, 2), seconds=(150, 14))
