"""One of two processes that fit together; started by torchrun from test_sources and test_mixed_sources."""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import distributed

from rtbm import RTBMDensity


def share(kind: str, source: str, rank: int):
    """What this process fits."""
    if kind == "file":
        return source
    rows = np.load(source)
    if kind == "blocks":  # of different length, and in order
        return [rows[:100], rows[100:9000]] if rank == 0 else [rows[9000:]]
    if kind == "one":  # the second process has nothing
        return [rows] if rank == 0 else []
    if kind == "columns":
        path = Path(source).with_name(f"columns{rank}.parquet")
        pq.write_table(pa.table({"xy"[rank]: rows[:, 0]}), path)
        return path
    if kind == "infinite":
        return [rows[:100], rows[100:200] if rank == 0 else np.full((5, 1), np.inf)]
    return Dying([rows], kind, rank)


class Dying(list):
    """Blocks that the second process cannot read, or dies of, once fitting has begun."""

    def __init__(self, blocks, kind, rank):
        super().__init__(blocks)
        self.kind, self.rank, self.n_passes = kind, rank, 0

    def __iter__(self):
        self.n_passes += 1
        if self.rank == 1 and self.n_passes > 4:
            if self.kind == "die":
                os._exit(3)
            raise OSError("the disk is on fire")
        return super().__iter__()


def fit_rows(kind: str, source: str, rank: int):
    """The objective and one score of a machine."""
    if kind in ("fail", "die"):
        from sklearn import set_config

        set_config(working_memory=0)  # blocks are read again in each step
    model = RTBMDensity(2, n_init=2, random_state=0).fit(share(kind, source, rank))
    return [model.history_[-1].objective, model.score([[7.0]])]


def fit_table(kind: str, rank: int):
    """The scores of a table with categories."""
    from test_mixed_sources import FEW, TABLE, density

    table = FEW if kind == "few" else TABLE
    if kind == "text":  # levels of several types in the second process
        own = [table[:100]] if rank == 0 else [table[:100].assign(city=7)]
    else:
        own = [table[:40], table[40:200]] if rank == 0 else [table[200:]]
    return density().fit(own).score_samples(table)


def main(kind: str, source: str, output: str) -> None:
    """Fit, and write down what was found, or the error."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    try:
        found = fit_table(kind, rank) if source == "table" else fit_rows(kind, source, rank)
        np.save(f"{output}.{rank}.npy", found)
    except Exception as error:
        Path(f"{output}.{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
