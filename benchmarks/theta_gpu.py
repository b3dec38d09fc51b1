"""Speed of the theta function on a GPU: value and training step, float64 and float32, checked against the CPU.

    python benchmarks/theta_gpu.py --output build/theta_gpu.json

Times are medians of CUDA-event timings. "evaluator" is that of the value. "product" counts the operations of its matrix
product, divided by the time of the value. Errors are largest differences to the float64 CPU result on 1000 of the
points.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from matrices import MATRICES
from rtbm import ThetaPlan

CASES = [("typical", g, 10**7) for g in (1, 2, 4, 6)] + [
    ("worst", 4, 10**7),
    ("worst", 6, 10**7),
    ("worst", 8, 10**6),
]


def median_time(function: Callable[[], Any], repeats: int = 9) -> float:
    """Seconds."""
    function()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3)
    return float(np.median(times))


def run_case(kind: str, g: int, points: int, dtype: torch.dtype) -> dict[str, Any]:
    """Value and training step for one matrix and dtype."""
    matrix = MATRICES[kind](g)
    exact = torch.tensor(np.random.default_rng(1).normal(size=(points, g)))
    z = exact.to("cuda", dtype).requires_grad_()
    Q = torch.tensor(matrix, device="cuda", dtype=dtype, requires_grad=True)
    plan, fixed = ThetaPlan(Q), ThetaPlan(Q.detach())

    def step() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(plan.log_theta(z).sum(), (z, Q))

    some = z.detach()[:1000].double().cpu().requires_grad_()
    same_Q = Q.detach().double().cpu().requires_grad_()
    expected = ThetaPlan(same_Q).log_theta(some)
    (by_z,) = torch.autograd.grad(expected.sum(), some)
    expected = expected.detach()
    torch.cuda.reset_peak_memory_stats()
    value, training = median_time(lambda: fixed.log_theta(z.detach())), median_time(step)
    ((_, block),) = plan.blocks
    got = fixed.log_theta(z.detach()[:1000])
    evaluator = block.choose(z)
    flops = 4 * block.product.split.pairs if evaluator == "product" else 0  # of the value at a point
    return {
        "case": f"{kind} g={g}",
        "dtype": str(dtype).removeprefix("torch."),
        "points": points,
        "terms": len(block.lattice.points),
        "evaluator": evaluator,
        "value (ns/point)": value / points * 1e9,
        "step (ns/point)": training / points * 1e9,
        "product (TFLOP/s)": flops / value * points / 1e12,
        "peak memory (GiB)": torch.cuda.max_memory_allocated() / 2**30,
        "error": float((got.double().cpu() - expected).abs().max()),
        "gradient error": float((step()[0][:1000].double().cpu() - by_z).abs().max()),
    }


def main() -> None:
    """Run everything, print a table and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worst", action="store_true", help="the long sums alone")
    parser.add_argument("--output", type=Path, default=Path("build/theta_gpu.json"))
    arguments = parser.parse_args()
    output, results = arguments.output, []
    for kind, g, points in (case for case in CASES if case[0] == "worst" or not arguments.worst):
        for dtype in (torch.float64, torch.float32):
            row = run_case(kind, g, points, dtype)
            results.append(row)
            print("  ".join(f"{k}: {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in row.items()), flush=True)
    rates = {}
    for dtype in (torch.float64, torch.float32):
        a = torch.randn(8192, 8192, device="cuda", dtype=dtype)
        rates[str(dtype)] = 2 * 8192**3 / median_time(lambda a=a: a @ a, 5) / 1e12
        print(f"matrix product {dtype}: {rates[str(dtype)]:.1f} TFLOP/s")
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "matrix product (TFLOP/s)": rates}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"about": about, "results": results}, indent=2))


if __name__ == "__main__":
    main()
