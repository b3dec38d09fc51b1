"""Time and memory of a fit of a Parquet file that need not fit into memory, and of one of its steps.

    python benchmarks/any_size.py 1e7
    torchrun --nproc-per-node 2 benchmarks/any_size.py 1e7

Writes the file first (one column of gamma-distributed numbers, 8 bytes a row), and removes it afterwards.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from rtbm import RTBMDensity
from rtbm.data_files import FileRows
from rtbm.estimators.density.bounds import make_bounds
from rtbm.estimators.density.summary import RowEncoder, prepare
from rtbm.training.blocks import LocalData, open_data
from rtbm.training.distributed import broadcast_object, process_group, rank_and_world
from rtbm.training.objective import Objective, Prior

GROUP_ROWS, STEPS = 2**20, 5


def write_file(path: Path, n: int) -> None:
    """A Parquet file of one column, a row group at a time."""
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, pa.schema([("x", pa.float64())]), compression="none", use_dictionary=False) as writer:
        for begin in range(0, n, GROUP_ROWS):
            writer.write_table(pa.table({"x": rng.gamma(7.5, 1.0, min(GROUP_ROWS, n - begin))}))


def time_steps(model: RTBMDensity, path: Path, n: int) -> list[float]:
    """Seconds of the first step, which also reads and prepares the blocks, and of later ones."""
    family, vector, mean, root = model._fit_result

    def work(data: LocalData) -> list[float]:
        prepare(data, RowEncoder(["x"], model.columns_, make_bounds(None, ["x"]), 0), mean, root, float(n), None)
        objective = Objective(family, data, Prior(1.0, np.ones(1)), float(n))
        seconds = []
        for _ in range(1 + STEPS):
            begin = time.perf_counter()
            objective.with_gradient(vector)
            seconds.append(time.perf_counter() - begin)
        return seconds

    return open_data(path, open_file=FileRows).lead(work)


def main() -> None:
    """Write, fit, measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", type=float)
    n = int(parser.parse_args().rows)
    torch.set_num_threads(1)
    with process_group(None), tempfile.TemporaryDirectory() as folder:
        path = Path(broadcast_object(folder)) / "x.parquet"
        if rank_and_world()[0] == 0:
            write_file(path, n)
        broadcast_object(None)
        begin = time.perf_counter()
        model = RTBMDensity(2, random_state=0).fit(path)
        seconds = time.perf_counter() - begin
        first, *later = time_steps(model, path, n)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        if rank_and_world()[0] == 0:
            print(
                f"{n:.0e} rows, {os.environ.get('WORLD_SIZE', 1)} process(es): fit {seconds:.1f} s, first step "
                f"{first:.4f} s, later steps {statistics.median(later):.4f} s, at most {memory:.2f} GiB, "
                f"objective {model.history_[-1].objective:.12f}"
            )


if __name__ == "__main__":
    main()
