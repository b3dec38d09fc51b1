"""How long fits take by rows and features, beside Gaussian mixtures on the same rows.

    python benchmarks/sizes.py

The rows are those of a skewed mixture of three clusters. `RTBMDensity` and `GaussianMixture` fit three components. The
search over Gaussian mixtures has 1 to 10 components and two kinds of covariance, with five folds.
"""

import os
import time
import warnings
from collections.abc import Callable
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402
from sklearn.mixture import GaussianMixture  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402

from rtbm import RTBMDensity, RTBMDensityCV  # noqa: E402

ROWS, FEATURES = (200, 1000, 5000, 20000), (1, 2, 5, 10, 20)
GRID = {"n_components": [1, 2, 3, 4, 6, 8, 10], "covariance_type": ["full", "diag"]}
METHODS: dict[str, Callable[[], Any]] = {
    "mixture of 3 machines": lambda: RTBMDensity(1, n_components=3, random_state=0),
    "3 Gaussians": lambda: GaussianMixture(3, random_state=0),
    "committee": lambda: RTBMDensityCV(random_state=0),
    "search over Gaussians": lambda: GridSearchCV(GaussianMixture(random_state=0), GRID),
}


def make_rows(n_rows: int, n_features: int) -> np.ndarray:
    """Three clusters of correlated, skewed features."""
    generator = np.random.default_rng(0)
    centres, mixing = generator.normal(0, 3, (3, n_features)), generator.normal(size=(n_features, n_features))
    return centres[generator.integers(3, size=n_rows)] + generator.gamma(2, size=(n_rows, n_features)) @ mixing


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    for make in METHODS.values():
        make().fit(make_rows(200, 2))  # compiles
    print("| rows | features | " + " | ".join(METHODS) + " |\n" + "| --- " * (2 + len(METHODS)) + "|")
    for n_rows in ROWS:
        for n_features in FEATURES:
            X, seconds = make_rows(n_rows, n_features), []
            for make in METHODS.values():
                begin = time.perf_counter()
                make().fit(X)
                seconds.append(time.perf_counter() - begin)
            print(f"| {n_rows:,} | {n_features} | " + " | ".join(f"{s:.2g}" for s in seconds) + " |", flush=True)
