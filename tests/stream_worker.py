"""One of several processes that fit together; started by torchrun from test_streaming."""

import sys

import numpy as np
import torch
from torch import distributed

from rtbm import RTBMDensity, datasets


def main(kind: str, source: str, output: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    model = RTBMDensity(2, solver="adam", max_iter=30, n_init=1, fallback=None, random_state=0)
    if kind == "array":
        model.fit(datasets.gamma.sample(500, seed=0))
    elif kind == "file":
        model.set_params(max_iter=3).fit_stream(source)
    else:  # each process has a loader of its own, of different length
        rank = distributed.get_rank()
        rows = np.load(source)[rank::2][: 150 + 100 * rank]
        loader = torch.utils.data.DataLoader(torch.from_numpy(rows), batch_size=40)
        model.set_params(max_iter=2).fit_stream(loader)
    grid = np.linspace(0, 20, 50)[:, None]
    np.save(f"{output}.{distributed.get_rank()}.npy", model.score_samples(grid))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
