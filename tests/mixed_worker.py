"""One of two processes that fit a mixed table together; started by torchrun from test_mixed_sources."""

import os
import sys
from pathlib import Path

import numpy as np
from torch import distributed

from rtbm import RTBMDensity
from test_mixed_sources import FEW, TABLE, density


def main(kind: str, output: str) -> None:
    """Fit, and write down scores, or the error."""
    distributed.init_process_group("gloo")
    rank, table = distributed.get_rank(), FEW if kind == "few" else TABLE
    try:
        if kind == "text":  # levels of several types in the second process
            share: list = [table[:100]] if rank == 0 else [table[:100].assign(city=7)]
        else:
            share = [table[:40], table[40:200]] if rank == 0 else [table[200:]]
        model: RTBMDensity = density().fit(share)
        np.save(f"{output}.{rank}.npy", model.score_samples(table))
    except Exception as error:
        Path(f"{output}.{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        os._exit(1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
