"""How long a committee takes on a table with gaps, as a ratio to the complete table, and what the gaps cost.

    python benchmarks/gaps.py

The tables are wine (178 × 13) and ten columns of breast cancer (569 × 10) of scikit-learn, standardised. Three quarters
of the rows are fitted. Cells are missing at random, so that nearly every row has gaps of its own. Shown are the seconds
of the process, the mean log-likelihood of the other, complete rows, and that of independent normal distributions.
"""

import time
import warnings

import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer, load_wine

from rtbm import RTBMDensityCV

SHARES = (0.0, 0.2, 0.5)


def seconds_and_score(rows: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """The processor time of a fit, and the score of other rows."""
    start = time.process_time()
    model = RTBMDensityCV(random_state=0).fit(rows)
    return time.process_time() - start, model.score(others)


def independent_score(rows: np.ndarray, others: np.ndarray) -> float:
    """The score of one normal distribution for each column."""
    variance = np.nanvar(rows, axis=0)
    squares = (others - np.nanmean(rows, axis=0)) ** 2 / variance
    return float(-0.5 * (squares + np.log(2 * np.pi * variance)).sum(axis=1).mean())


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    shown = Table("table", "gaps", "seconds", "ratio", "score", "independent normals")
    for name, X in {"wine": load_wine().data, "breast cancer": load_breast_cancer().data[:, :10]}.items():
        rng = np.random.default_rng(0)
        X = rng.permutation((X - X.mean(axis=0)) / X.std(axis=0))
        n = 3 * len(X) // 4
        tables = [np.where(rng.random((n, X.shape[1])) < share, np.nan, X[:n]) for share in SHARES]
        for table in tables:  # compile and load everything
            RTBMDensityCV(random_state=0, cv=2).fit(table[:60])
        results = [seconds_and_score(table, X[n:]) for table in tables]
        for share, table, (seconds, score) in zip(SHARES, tables, results, strict=True):
            ratio, normals = seconds / results[0][0], independent_score(table, X[n:])
            shown.add_row(name, f"{share:.0%}", f"{seconds:.1f}", f"{ratio:.1f}", f"{score:.2f}", f"{normals:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    main()
