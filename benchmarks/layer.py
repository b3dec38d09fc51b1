"""Speed of theta units against torch.tanh on the CPU, forward and backward, in one run.

    python benchmarks/layer.py --output build/layer.json

"units": the activation function alone, on 10^6 and 10^3 activations. "layer": a whole layer of 100 units on 10,000 rows
of 100 inputs, against torch.nn.Linear and tanh. Calls alternate, and the best time of each counts; between them is a
pause, since torch's OpenMP threads keep a core busy for some milliseconds after their work. q is spread over [2, 18].
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from rtbm import __version__
from rtbm.nn import ThetaLayer, theta_unit

AIM = 6.0
"""The aim for units in float64, which the library works in."""
PAUSE = 0.02
SHAPES = [(1_000_000, 1), (10_000, 100), (1_000, 1_000), (100, 10)]


def alternate(functions: list[Callable[[], Any]], repeats: int = 15) -> list[float]:
    """The best seconds of each of some functions that take turns."""
    best = [float("inf")] * len(functions)
    for turn in range(repeats + 2):
        for i, function in enumerate(functions):
            time.sleep(PAUSE)
            start = time.perf_counter()
            function()
            if turn >= 2:
                best[i] = min(best[i], time.perf_counter() - start)
    return best


def units(shape: tuple[int, int], dtype: torch.dtype, phase: str) -> list[float]:
    """Seconds of tanh and of theta units, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    u = (5 * torch.randn(shape, dtype=dtype, generator=generator)).requires_grad_()
    grad = torch.randn(shape, dtype=dtype, generator=generator)
    q = torch.linspace(2, 18, shape[1], dtype=dtype).requires_grad_()
    return alternate(
        [
            lambda: torch.autograd.grad(torch.tanh(u), u, grad),
            lambda: torch.autograd.grad(theta_unit(u, q, phase), (u, q), grad),
        ]
    )


def layers(dtype: torch.dtype) -> list[float]:
    """Seconds of a linear layer with tanh and of a theta layer, forward and backward."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(10_000, 100, dtype=dtype, generator=generator).requires_grad_()
    grad = torch.randn(10_000, 100, dtype=dtype, generator=generator)
    ordinary = torch.nn.Sequential(torch.nn.Linear(100, 100, dtype=dtype), torch.nn.Tanh())
    theta = ThetaLayer(100, 100, initialization="paper", dtype=dtype, generator=generator)

    def step(layer: torch.nn.Module) -> Any:
        return torch.autograd.grad(layer(v), [v, *layer.parameters()], grad)

    return alternate([lambda: step(ordinary), lambda: step(theta)])


def main() -> None:
    """Run all cases, print a table, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    rows = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for dtype in (torch.float64, torch.float32):
            for shape in SHAPES:
                for phase in ("I", "II") if shape == SHAPES[1] else ("I",):
                    rows.append((f"units {shape}, phase {phase}", threads, dtype, units(shape, dtype, phase)))
            rows.append(("layer (10000, 100), phase I", threads, dtype, layers(dtype)))
    table = Table(title="Forward and backward")
    for name in ("", "threads", "dtype", "tanh, ms", "theta, ms", "ratio", "aim"):
        table.add_column(name, justify="right" if name else "left")
    cases = []
    for name, threads, dtype, (tanh, theta) in rows:
        aim = f"≤ {AIM:g}" if dtype == torch.float64 else ""
        kind = str(dtype).removeprefix("torch.")
        table.add_row(name, str(threads), kind, f"{1e3 * tanh:.2f}", f"{1e3 * theta:.2f}", f"{theta / tanh:.1f}", aim)
        cases.append({"case": name, "threads": threads, "dtype": kind, "tanh": tanh, "theta": theta})
    Console(width=110).print(table)
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        machine = {"rtbm": __version__, "torch": torch.__version__, "machine": platform.machine()}
        arguments.output.write_text(json.dumps({"machine": machine, "cases": cases}, indent=1))


if __name__ == "__main__":
    main()
