"""Speed of theta units on a GPU against torch.tanh: forward and backward on 10^6 and 10^8 activations, and as a layer.

    python benchmarks/layer_gpu.py --output build/layer_gpu.json

"device" is the time of the kernels alone, from replayed CUDA graphs. "eager" is the time of a call from Python and its
backward pass, which for 10^6 activations is mostly the time that Python and the launches take. "layer" compares a theta
layer of 100 units on 10,000 rows of 100 inputs with torch.nn.Linear and tanh. Errors are against the float64 result of
the CPU, relative to max(1, |value|).
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rtbm.nn import ThetaLayer, theta_unit

SHAPES = [(10_000, 100), (1_000_000, 1), (1_000, 1_000), (1_000_000, 100)]
RANGES = {"paper": (2.0, 18.0), "balanced": (3.0, 9.0)}
"""Where q lies: those of the paper need both ways to sum, the default ones only cosines."""


def seconds(function: Callable[[], Any], calls: int, repeats: int = 9) -> float:
    """Median time of one call, over batches of calls between two CUDA events."""
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            function()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e3 / calls)
    return float(np.median(times))


def replayed(function: Callable[[], Any]) -> Callable[[], None]:
    """The kernels of a function as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph.replay


def measure(shape: tuple[int, int], dtype: torch.dtype, phase: str, shapes: str) -> dict[str, Any]:
    """Times of tanh and theta units for one shape, and the largest errors on 1,000 rows."""
    generator = torch.Generator("cuda").manual_seed(0)
    u = (5 * torch.randn(shape, dtype=dtype, device="cuda", generator=generator)).requires_grad_()
    grad = torch.randn(shape, dtype=dtype, device="cuda", generator=generator)
    q = torch.linspace(*RANGES[shapes], shape[1], dtype=dtype, device="cuda").requires_grad_()

    def tanh() -> Any:
        return torch.autograd.grad(torch.tanh(u), u, grad)

    def theta() -> Any:
        return torch.autograd.grad(theta_unit(u, q, phase), (u, q), grad)

    calls = 100 if u.numel() <= 10**6 else 3
    times = {
        f"{name} {way}": seconds(function if way == "eager" else replayed(function), calls)
        for name, function in (("tanh", tanh), ("theta", theta))
        for way in ("eager", "device")
    }
    ratios = {way: times[f"theta {way}"] / times[f"tanh {way}"] for way in ("device", "eager")}
    part = u.detach()[:1000].double().cpu().requires_grad_()
    here = theta_unit(part, q.detach().double().cpu(), phase)
    (by_u,) = torch.autograd.grad(here, part, grad[:1000].double().cpu())
    there = theta_unit(u[:1000], q, phase)
    (by_u_there,) = torch.autograd.grad(there, u, grad[:1000])
    errors = [
        float(((a.detach().double().cpu() - b.detach()).abs() / b.detach().abs().clamp(min=1)).max())
        for a, b in ((there, here), (by_u_there[:1000], by_u))
    ]
    case = {"shape": shape, "dtype": str(dtype), "phase": phase, "q": shapes}
    return case | {"errors": errors, "ratios": ratios, "seconds": times}


def measure_layer(dtype: torch.dtype) -> dict[str, Any]:
    """Times of a linear layer with tanh and of a theta layer."""
    v = torch.randn(10_000, 100, dtype=dtype, device="cuda").requires_grad_()
    grad = torch.randn(10_000, 100, dtype=dtype, device="cuda")
    options: dict[str, Any] = {"dtype": dtype, "device": "cuda"}
    layers = {
        "tanh": torch.nn.Sequential(torch.nn.Linear(100, 100, **options), torch.nn.Tanh()),
        "theta": ThetaLayer(100, 100, initialization="paper", **options),
    }
    times = {}
    for name, layer in layers.items():

        def step(layer: torch.nn.Module = layer) -> Any:
            return torch.autograd.grad(layer(v), [v, *layer.parameters()], grad)

        times[f"{name} eager"], times[f"{name} device"] = seconds(step, 100), seconds(replayed(step), 100)
    ratios = {way: times[f"theta {way}"] / times[f"tanh {way}"] for way in ("device", "eager")}
    return {"shape": "layer (10000, 100)", "dtype": str(dtype), "phase": "I", "q": "paper"} | {
        "ratios": ratios,
        "seconds": times,
    }


def show(case: dict[str, Any]) -> None:
    """Print one case."""
    line = "  ".join(f"{name} {1e6 * value:.1f} µs" for name, value in case["seconds"].items())
    ratios = ", ".join(f"{way} {value:.2f}" for way, value in case["ratios"].items())
    errors = f"| errors {case['errors']}" if "errors" in case else ""
    print(
        case["shape"], case["dtype"], case["phase"], case["q"], "|", line, "| theta/tanh:", ratios, errors, flush=True
    )


def main() -> None:
    """Run all cases, print them, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=None)
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    cases = []
    for dtype in (torch.float64, torch.float32):
        for shape in SHAPES:
            for phase, shapes in (("I", "paper"), ("I", "balanced"), ("II", "paper")):
                if phase == "I" or shape == SHAPES[0]:
                    cases.append(measure(shape, dtype, phase, shapes))
                    show(cases[-1])
        cases.append(measure_layer(dtype))
        show(cases[-1])
    if arguments.output:
        arguments.output.write_text(json.dumps(cases, indent=1))


if __name__ == "__main__":
    main()
