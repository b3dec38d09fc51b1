"""Read a CSV file of 1,000,000 rows and 5 columns with rtbm and with pandas.

    python benchmarks/files.py --output build/files.json

The readers take turns, and the shortest run of each counts. The ratio is the time of pandas over that of rtbm: from 1
on, rtbm is at least as fast. rtbm parses on all cores and pandas on one, so the machine must have nothing else to do.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from rtbm.data_files import read_table

RUNS = 7


def seconds_of(work: Callable[[], object]) -> float:
    """How long one run takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/files.json"))
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    rows = np.random.default_rng(0).normal(size=(arguments.rows, 5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.csv"
        pd.DataFrame(rows, columns=list("abcde")).to_csv(path, index=False)
        readers = {"rtbm": lambda: read_table(path).values, "pandas": lambda: pd.read_csv(path).to_numpy()}
        for read in readers.values():
            np.testing.assert_allclose(read(), rows, rtol=1e-14)
        turns = [{name: seconds_of(read) for name, read in readers.items()} for _ in range(RUNS)]
    seconds = {name: min(turn[name] for turn in turns) for name in readers}
    ratio = seconds["pandas"] / seconds["rtbm"]
    print(f"rtbm {seconds['rtbm']:.3f} s, pandas {seconds['pandas']:.3f} s, pandas / rtbm {ratio:.2f}")
    result = {"rows": arguments.rows, "columns": 5, "seconds": seconds, "pandas / rtbm": ratio}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
