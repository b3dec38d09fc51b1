"""Machines on the GPU: nanoseconds a point for densities, and training steps, in float64.

python benchmarks/machine_gpu.py --output build/machine_gpu.json
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from rtbm import __version__, nn

POINTS = 1_000_000
CASES = [(1, 2, "dense"), (2, 2, "dense"), (2, 4, "dense"), (1, 200, "diagonal"), (2, 100, "diagonal")]


def best_time(function: Callable[[], Any], repeats: int = 5) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    times = []
    for _ in range(repeats + 1):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


def training_step(module: nn.RTBM, data: torch.Tensor) -> None:
    """One gradient of the mean log-likelihood."""
    module.zero_grad()
    (-module().log_prob(data).mean()).backward()


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/machine_gpu.json"))
    arguments = parser.parse_args()
    rows = []
    for n_visible, n_hidden, hidden in CASES:
        module = nn.RTBM(
            n_visible, n_hidden, coupling=hidden, device="cuda", generator=torch.Generator().manual_seed(0)
        )
        machine = module().detach()
        n = POINTS if hidden == "dense" else POINTS // 10
        data = machine.sample((n,), torch.Generator("cuda").manual_seed(0))
        rows.append(
            {
                "machine": f"{n_visible}, {n_hidden} {hidden}",
                "points": n,
                "log_prob, ns a point": 1e9 * best_time(lambda m=machine, x=data: m.log_prob(x)) / n,
                "training step, ms": 1e3 * best_time(lambda m=module, x=data: training_step(m, x)),
                "draws, ns each": 1e9 * best_time(lambda m=machine, k=n: m.sample((k,))) / n,
            }
        )
        print(rows[-1], flush=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {"rtbm": __version__, "torch": torch.__version__, "gpu": torch.cuda.get_device_name(), "rows": rows}
    arguments.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
