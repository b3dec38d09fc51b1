"""Fit 50 machines with 2 visible and 2 hidden units to 5000 jets, on one and on two processes.

    python benchmarks/features.py --output build/features.json

The first fit with two processes includes the start of the workers; the second finds them running. Beside this, the work
inside one evaluation of all machines, sums over hidden states, is measured machine by machine and as one batched tensor
program, on one thread.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from sklearn.decomposition import PCA
from torch import Tensor

from rtbm import RTBMFeatures, datasets

RUNS = {"one process": 1, "two processes, just started": 2, "two processes, running": 2}


def batching(n_machines: int = 50, n_rows: int = 5000) -> dict[str, float]:
    """The time of one machine after another over that of one batched program, by the number of hidden states."""
    torch.set_num_threads(1)
    generator, ratios = torch.Generator().manual_seed(0), {}
    for n_states in (16, 64, 256):
        y = torch.randn(n_machines, n_rows, 2, dtype=torch.float64, generator=generator)
        means = torch.randn(n_machines, n_states, 2, dtype=torch.float64, generator=generator)
        pairs = list(zip(y, means, strict=True))
        alone = seconds_of(lambda pairs=pairs: [posterior(*pair) for pair in pairs])
        together = seconds_of(lambda y=y, means=means: posterior(y, means))
        ratios[f"{n_states} states"] = alone / together
    return ratios


def posterior(y: Tensor, means: Tensor) -> Tensor:
    """P(h|x) over hidden states with given means, as fits compute it."""
    logits = y @ means.mT - 0.5 * means.square().sum(-1)[..., None, :]
    terms = logits.sub_(logits.amax(-1, keepdim=True)).exp_()
    return terms.div_(terms.sum(-1, keepdim=True))


def seconds_of(work: Callable[[], object]) -> float:
    """The shortest of five runs."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


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
    seconds: dict[str, dict[str, float]] = {}
    for name, n_jobs in RUNS.items():
        start = time.perf_counter()
        features = RTBMFeatures(2, n_jobs=n_jobs, random_state=0).fit(X)
        middle = time.perf_counter()
        features.transform(X)
        seconds[name] = {"fit": middle - start, "transform": time.perf_counter() - middle}
        table.add_row(name, *(f"{value:.2f} s" for value in seconds[name].values()))
    Console().print(table)
    seconds["one by one / batched"] = batching()
    Console().print({name: round(ratio, 2) for name, ratio in seconds["one by one / batched"].items()})
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(seconds, indent=1))


if __name__ == "__main__":
    main()
