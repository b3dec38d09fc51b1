"""Fit 50 machines with 2 visible and 2 hidden units to 5000 jets, on one and on two processes.

    python benchmarks/features.py --output build/features.json

The first fit with two processes includes the start of the workers; the second finds them running.
"""

import argparse
import json
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA

from rtbm import RTBMFeatures, datasets

RUNS = {"one process": 1, "two processes, just started": 2, "two processes, running": 2}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/features.json"))
    arguments = parser.parse_args()
    X = PCA(100, random_state=0).fit_transform(datasets.jets.load("train").pixels)
    RTBMFeatures(2, random_state=0).fit(X[:, :2])  # compiles kernels
    table = Table(title="50 RTBMs (2, 2) on 5000 samples")
    for name in ("", "fit", "transform"):
        table.add_column(name)
    seconds = {}
    for name, n_jobs in RUNS.items():
        start = time.perf_counter()
        features = RTBMFeatures(2, n_jobs=n_jobs, random_state=0).fit(X)
        middle = time.perf_counter()
        features.transform(X)
        seconds[name] = {"fit": middle - start, "transform": time.perf_counter() - middle}
        table.add_row(name, *(f"{value:.2f} s" for value in seconds[name].values()))
    Console().print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
