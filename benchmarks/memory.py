"""The memory that the methods of fitted estimators take beyond the data, for each row and as a peak.

    python benchmarks/memory.py --rows 10000000          # every method on 10⁷ rows; the limit is 1 GiB beyond the data
    python benchmarks/memory.py --rows 300000 --method cdf

Each method runs in a process of its own. The peak is that of the process less what it had before the call, so it counts
the result too, which is shown apart.
"""

import argparse
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np

LIMIT = 1024  # MiB beyond data and result
FEATURES = 3


def models(name: str) -> Any:
    """A small fitted estimator."""
    import rtbm

    rng = np.random.default_rng(0)
    X = np.column_stack([rng.gamma(2.0, size=400), rng.normal(size=400), rng.normal(size=400)])
    X[:, 2] += X[:, 0]
    density = rtbm.RTBMDensity(1, n_components=2, n_init=1, fallback=None, random_state=0)
    labels = X[:, 0] > 2
    if name == "density":
        return density.fit(X)
    if name == "regressor":
        return rtbm.RTBMRegressor(density).fit(X, X[:, 0] - X[:, 1] + rng.normal(size=400))
    if name == "outliers":
        return rtbm.RTBMOutlierDetector(density).fit(X)
    if name == "features":
        return rtbm.RTBMFeatures(1, random_state=0).fit(X)
    if name == "classifier":
        return rtbm.RTBMClassifier(cv=2, random_state=0).fit(X, labels)
    return rtbm.ThetaNetRegressor((3,), n_init=1, max_iter=20, random_state=0).fit(X, X[:, 0])


METHODS = {
    "density.score_samples": lambda model, X: model.score_samples(X),
    "density.score_samples with gaps": lambda model, X: model.score_samples(with_gaps(X)),
    "density.transform": lambda model, X: model.transform(X),
    "density.predict": lambda model, X: model.predict(X),
    "density.predict_proba": lambda model, X: model.predict_proba(X),
    "density.predict_mean": lambda model, X: model.predict_mean(X, 2),
    "density.predict_quantiles": lambda model, X: model.predict_quantiles(X, 2),
    "density.impute": lambda model, X: model.impute(with_gaps(X)),
    "density.sample": lambda model, X: model.sample(len(X), random_state=0),
    "regressor.predict": lambda model, X: model.predict(X),
    "regressor.predict_quantiles": lambda model, X: model.predict_quantiles(X),
    "outliers.predict": lambda model, X: model.predict(X),
    "features.transform": lambda model, X: model.transform(X),
    "classifier.predict_proba": lambda model, X: model.predict_proba(X),
    "network.predict": lambda model, X: model.predict(X),
}


def with_gaps(X: np.ndarray) -> np.ndarray:
    """The same array, of which every fourth row lacks its last entry."""
    X[::4, -1] = np.nan
    return X


def peak() -> float:
    """The largest memory of this process so far, in MiB."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def measure(method: str, n: int) -> None:
    """Run one method in this process, and print its figures."""
    model = models(method.split(".")[0])
    X = np.random.default_rng(1).normal(1.0, 1.0, (n, FEATURES))
    METHODS[method](model, X[:1000].copy())  # compiles
    X.sum()
    before, begin = peak(), time.perf_counter()
    result = METHODS[method](model, X)
    seconds, beyond = time.perf_counter() - begin, peak() - before
    size = np.asarray(result).nbytes / 2**20
    rest = beyond - size
    verdict = "ok" if rest < LIMIT else "ABOVE THE LIMIT"
    each = rest * 2**20 / n
    print(f"{method:34} {seconds:8.1f} s {size:8.0f} MiB result {rest:8.0f} MiB beyond, {each:7.0f} B/row {verdict}")


def main() -> None:
    """Measure all methods, or those whose name holds a word."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10**7)
    parser.add_argument("--method", default="", help="part of the name of a method")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        measure(options.only, options.rows)
        return
    for method in METHODS:
        if options.method in method:
            command = [sys.executable, __file__, "--rows", str(options.rows), "--only", method]
            done = subprocess.run(command, capture_output=True, text=True)
            print(done.stdout.strip() or f"{method:34} failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)


if __name__ == "__main__":
    main()
