"""`RTBMClassifier` beside other classifiers: time, accuracy with missing cells, and accuracy on all jets.

python benchmarks/classifier.py
"""

import os
import time
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from sklearn.datasets import load_breast_cancer, load_wine, make_classification  # noqa: E402
from sklearn.ensemble import HistGradientBoostingClassifier  # noqa: E402
from sklearn.impute import SimpleImputer  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.metrics import log_loss  # noqa: E402
from sklearn.model_selection import StratifiedKFold  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

from experiments.tables.classifiers import METHODS, evaluate  # noqa: E402
from experiments.tables.comparison import Rows, load_table  # noqa: E402
from experiments.verdicts import Difference  # noqa: E402
from rtbm import RTBMClassifier  # noqa: E402

PAIR = ("RTBMClassifier", "logistic regression")


def times() -> None:
    """Seconds of a fit to 5,000 rows and 50 features of two classes, twice; the first fit of all is not counted."""
    X, y = make_classification(5000, 50, n_informative=20, n_clusters_per_class=3, random_state=0)
    METHODS[PAIR[0]](0, False).fit(X[:300], y[:300])
    for _ in range(2):
        seconds = []
        for method in PAIR:
            begin = time.perf_counter()
            METHODS[method](0, False).fit(X, y)
            seconds.append(time.perf_counter() - begin)
        print(f"5,000 × 50: {seconds[0]:.2f} s and {seconds[1]:.2f} s, ratio {seconds[0] / seconds[1]:.1f}")


def gaps(n_seeds: int = 2) -> None:
    """Accuracy and log-loss in five folds, with 0, 20 and 40 % of all cells missing at random."""
    methods = {
        "RTBMClassifier": lambda: RTBMClassifier(random_state=0),
        "logistic, means": lambda: make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression(max_iter=1000)),
        "boosted trees": lambda: HistGradientBoostingClassifier(random_state=0),
    }
    for table, load in (("wine", load_wine), ("breast cancer", load_breast_cancer)):
        complete, y = load(return_X_y=True)
        for share in (0.0, 0.2, 0.4):
            found: dict[str, list[tuple[float, float, float]]] = {method: [] for method in methods}
            for seed in range(n_seeds):
                X = np.where(np.random.default_rng(seed).random(complete.shape) < share, np.nan, complete)
                for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(X, y):
                    for method, make in methods.items():
                        begin = time.perf_counter()
                        model = make().fit(X[train], y[train])
                        seconds = time.perf_counter() - begin
                        loss = log_loss(y[test], model.predict_proba(X[test]))
                        found[method].append((100 * model.score(X[test], y[test]), loss, seconds))
            for method, rows in found.items():
                accuracy, loss, seconds = np.mean(rows, axis=0)
                error = np.std([row[0] for row in rows]) / len(rows) ** 0.5
                print(
                    f"{table}, {share:.0%} missing, {method}: {accuracy:.1f} ± {error:.1f} %, log-loss {loss:.3f}, "
                    f"{seconds:.2f} s a fit"
                )


def jets(n_splits: int = 5) -> None:
    """Accuracies on random splits of all images of jets, as 50 principal components."""
    rows: Rows = load_table("jets", 10**6)
    splits = [rows.split(seed, stratify=True) for seed in range(n_splits)]
    found = [[evaluate(m, *split, seed, False)["accuracy"] for seed, split in enumerate(splits)] for m in PAIR]
    difference = Difference.paired(np.array(found[0]), np.array(found[1]), 1 / 3)
    means = " and ".join(f"{100 * np.mean(scores):.1f} %" for scores in found)
    print(f"jets, {len(rows.X)} rows: {means}, difference {100 * difference.mean:.1f} ± {100 * difference.error:.1f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    times()
    gaps()
    jets()
