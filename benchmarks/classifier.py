"""`RTBMClassifier` beside logistic regression with a cross-validated penalty: time, and accuracy on all jets.

python benchmarks/classifier.py
"""

import os
import time
import warnings

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from sklearn.datasets import make_classification  # noqa: E402

from rtbm.paper.classifiers import METHODS, evaluate  # noqa: E402
from rtbm.paper.tables import Rows, load_table  # noqa: E402
from rtbm.paper.verdicts import Difference  # noqa: E402

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
    jets()
