"""Fitting on the GPU: values with gradient of the objective, and whole fits, beside one CPU thread, in float64.

python benchmarks/density_gpu.py --output build/density_gpu.json
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning

from rtbm import RTBMDensity, datasets
from rtbm.training import Family, Objective, Prior, make_start

CASES = [(1, 2, "dense"), (1, 4, "dense"), (10, 2, "dense"), (1, 200, "diagonal")]
POINTS = 1_000_000


def least(function: Callable[[], Any], repeats: int) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def step(device: str, n_visible: int, n_hidden: int, hidden: str) -> float:
    """Seconds for a value with gradient on 10^6 points."""
    x = np.random.default_rng(0).standard_normal((POINTS, n_visible))
    family = Family(n_visible, n_hidden, hidden=hidden)
    tensors = (torch.from_numpy(part).to(device) for part in (x, np.ones(POINTS), np.ones(n_visible)))
    data, weights, widths = tensors
    objective = Objective(family, data, weights, Prior(1.0, widths))
    vector = make_start(family, x[:5000], np.ones(5000), 0, 0).to(device)
    return least(lambda: objective.with_gradient(vector), 3 if device == "cuda" else 1)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/density_gpu.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    figures: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    for case in CASES:
        times = {device: step(device, *case) for device in ("cuda", "cpu")}
        figures["{} visible, {} hidden, {}".format(*case)] = times
        print(*case, {device: f"{1e3 * t:.1f} ms" for device, t in times.items()}, flush=True)
    X = datasets.gamma.sample(POINTS)
    for device in ("cuda", "cpu"):
        model = RTBMDensity(2, n_init=1, device=device, random_state=0)
        start = time.perf_counter()
        model.fit(X)
        seconds, solver = time.perf_counter() - start, model.summary_["seconds"]
        figures[f"fit of 10^6 points, {device}"] = [seconds, solver, model.n_iter_, model.score(X[:10_000])]
        print(
            f"fit, {device}: {seconds:.1f} s, {solver:.1f} of them in the solver, {model.n_iter_} iterations",
            flush=True,
        )
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
