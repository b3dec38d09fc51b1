"""Speed of the theta function against a NumPy sum, FLINT's acb_theta and a matrix product, all in one run.

    python benchmarks/theta.py --output build/theta.json

One thread, unless a row says two. Times are the best of several runs, after one to warm up. Lattice work (our plans,
and the reference's list of points) is done once and not counted, unless a row says "plan". Q = XXᵀ + ½I with X uniform
in [−1, 1] is "typical". Q = 2πI plus a small coupling is the "worst" case: neither the sum nor its dual is short.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import flint
import numpy as np
import torch
from flint import acb, acb_mat, arb
from rich.console import Console
from rich.table import Table

from matrices import typical, worst
from rtbm import ThetaPlan, __version__, log_theta
from rtbm.theta import kernels
from rtbm.theta.lattice import cholesky, enumerate_points, nearest_plane_matrix
from rtbm.theta.truncation import log_gauss_sum, squared_radius

POINTS = 10_000
TARGETS = {
    f"typical g={g}": {"speedup over NumPy, with plan": ratio, "step / value": 4.0}
    for g, ratio in ((2, 10.0), (3, 50.0), (4, 200.0))
}
AT_MOST = {"step / value"}


def best_time(function: Callable[[], Any], repeats: int = 7) -> float:
    """Seconds of the fastest of several calls, after one that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def numpy_sum(
    z: np.ndarray, Q: np.ndarray, bare: bool = False, tolerance: float = 1e-8
) -> tuple[Callable[[], np.ndarray], int]:
    """The reference: NumPy's exp over one list of points, recentred by nearest plane, in chunks.

    The list holds what every z needs for `tolerance`; `bare` takes the ellipsoid ½nᵀQn ≤ −log tolerance instead, which
    is shorter and guarantees nothing.
    """
    R = cholesky(Q)
    norms, plane = np.diag(R) ** 2, nearest_plane_matrix(R)
    radius2 = squared_radius(norms, log_gauss_sum(norms, 0.5).sum() + np.log(tolerance))
    n = enumerate_points(R, radius2, np.diag(R) / 2).astype(float)
    if bare:
        n = enumerate_points(R, -2 * np.log(tolerance), np.zeros(len(Q))).astype(float)
    constant = -0.5 * np.einsum("ti,ij,tj->t", n, Q, n)

    def run() -> np.ndarray:
        c = np.linalg.solve(Q, z.T).T
        n0 = np.rint(c)
        for i in range(len(Q) - 2, -1, -1):
            n0[:, i] = np.rint(c[:, i] + (c - n0)[:, i + 1 :] @ plane[i, i + 1 :])
        w = z - n0 @ Q
        sums = [np.exp(part @ n.T + constant).sum(axis=1) for part in np.array_split(w, max(1, w.shape[0] // 500))]
        return 0.5 * (n0 * (z + w)).sum(axis=1) + np.log(np.concatenate(sums))

    return run, len(n)


def flint_value(z: np.ndarray, Q: np.ndarray) -> Any:
    """acb_theta at 53 bits: one point."""
    flint.ctx.prec = 53
    two_pi, g = 2 * arb.pi(), len(Q)
    tau = acb_mat(g, g, [acb(0, arb(float(q)) / two_pi) for q in Q.flat])
    return tau.theta(acb_mat(g, 1, [acb(0, -arb(float(x)) / two_pi) for x in z]))


def training_step(plan: ThetaPlan, z: torch.Tensor) -> None:
    """Value, z-gradient and Q-gradient."""
    torch.autograd.grad(plan.log_theta(z).sum(), (z, plan.Q))


def bench_typical(g: int) -> dict[str, float]:
    """Value and training step on a large batch."""
    Q, z = typical(g), np.random.default_rng(0).normal(size=(POINTS, g))
    plan, tensor = ThetaPlan(Q), torch.tensor(z)
    reference, terms = numpy_sum(z, Q)
    error = float(np.abs(plan.log_theta(tensor).numpy() - reference()).max())
    learning = ThetaPlan(torch.tensor(Q, requires_grad=True))
    argument = tensor.clone().requires_grad_()
    value = best_time(lambda: plan.log_theta(tensor), 25)
    ours, theirs = value / POINTS, best_time(reference, 3) / POINTS
    bare, bare_terms = numpy_sum(z, Q, bare=True)
    shortest = best_time(bare, 3) / POINTS
    step = best_time(lambda: training_step(learning, argument), 25)
    with_plan = best_time(lambda: log_theta(tensor, Q), 25) / POINTS
    flint_time = best_time(lambda: flint_value(z[0], Q), 5)
    return {
        "NumPy terms": terms,
        "NumPy (ns/point)": theirs * 1e9,
        "FLINT (ns/point)": flint_time * 1e9,
        "value (ns/point)": ours * 1e9,
        "step (ns/point)": step / POINTS * 1e9,
        "speedup over NumPy": theirs / ours,
        "speedup over NumPy, with plan": theirs / with_plan,
        "bare ellipsoid: terms": bare_terms,
        "bare ellipsoid: error of NumPy": float(np.abs(bare() - reference()).max()),
        "speedup over NumPy, bare ellipsoid": shortest / ours,
        "speedup over FLINT": flint_time / ours,
        "step / value": step / value,
        "largest difference to NumPy": error,
    }


def bench_worst(g: int, points: int) -> dict[str, float]:
    """The split product against a bare matrix product with the same number of operations."""
    plan = ThetaPlan(worst(g))
    z = torch.tensor(np.random.default_rng(0).normal(size=(points, g)))
    ((_, block),) = plan.blocks
    split = block.product.split
    assert block.lattice.n_osc == g, "sine and cosine go through one real matrix"
    A = torch.randn(len(split.last), len(split.first), dtype=torch.float64)
    B = torch.randn(len(split.first), 2 * points, dtype=torch.float64)
    product, value = best_time(lambda: A @ B), best_time(lambda: plan.log_theta(z))
    learning = ThetaPlan(torch.tensor(worst(g), requires_grad=True))
    argument = z.clone().requires_grad_()
    return {
        "terms": len(block.lattice.points),
        "plan (ms)": best_time(lambda: ThetaPlan(worst(g)), 20) * 1e3,
        "matrix product (ns/point)": product / points * 1e9,
        "matrix product (GFLOP/s)": 2 * A.numel() * B.shape[1] / product / 1e9,
        "value (ns/point)": value / points * 1e9,
        "part of the matrix product's rate": product / value,
        "moments of order 2 (ns/point)": best_time(lambda: plan.moments(z[:1000]), 3) / min(points, 1000) * 1e9,
        "step / value": best_time(lambda: training_step(learning, argument), 3) / value,
        "1000 points, with plan (s)": best_time(lambda: log_theta(z[:1000], worst(g)), 3),
    }


def bench_single(g: int) -> dict[str, float]:
    """Making a plan, and one point against it."""
    Q, z = typical(g), torch.zeros(g, dtype=torch.float64)
    plan = ThetaPlan(Q)
    return {
        "plan (ms)": best_time(lambda: ThetaPlan(Q), 200) * 1e3,
        "call (µs)": best_time(lambda: plan.log_theta(z), 200) * 1e6,
    }


def bench_threads(Q: np.ndarray, points: int) -> dict[str, float]:
    """How much faster two threads are than one."""
    plan, z = ThetaPlan(Q), torch.tensor(np.random.default_rng(0).normal(size=(points, len(Q))))
    times = []
    for threads in (2, 1):
        torch.set_num_threads(threads)
        times.append(best_time(lambda: plan.log_theta(z), 15))
    return {"speedup": times[1] / times[0]}


def bench_evaluators(g: int, scale: float, phase: str = "I") -> dict[str, float]:
    """The evaluators on the same sum, alone and with the gradients in z and Q (ns per point)."""
    plan = ThetaPlan(scale * typical(g), phase=phase)
    ((_, block),) = plan.blocks
    z = torch.tensor(np.random.default_rng(0).normal(size=(POINTS, g)))
    inputs = z.clone().requires_grad_(), plan.Q.clone().requires_grad_()
    result = {"terms": float(len(block.lattice.points))}
    for name in filter(block.supports, ("numba", "list", "product")):
        value = best_time(lambda name=name: block.log_theta(z, plan.Q, name), 5)
        step = best_time(lambda name=name: torch.autograd.grad(block.log_theta(*inputs, name).sum(), inputs), 5)
        chosen = ", chosen" if name == block.choose(z) else ""
        result[f"{name}{chosen} (ns/point)"] = value / POINTS * 1e9
        result[f"{name}{chosen}, with gradients (ns/point)"] = step / POINTS * 1e9
    return result


def run_all() -> dict[str, dict[str, float]]:
    """Every row of the report."""
    results = {}
    for g in (2, 3, 4):
        results[f"typical g={g}"] = bench_typical(g)
    results["worst g=6"] = bench_worst(6, 100_000)
    results["worst g=8"] = bench_worst(8, 5000)
    results["worst g=10"] = {"one point, with plan (s)": best_time(lambda: log_theta(np.zeros(10), worst(10)), 2)}
    for g in (1, 2, 3, 4, 6):
        results[f"plan and one point g={g}"] = bench_single(g)
    results["two threads, typical g=3"] = bench_threads(typical(3), 100_000)
    results["two threads, worst g=6"] = bench_threads(worst(6), 100_000)
    sums = [(1, 1.0, "I"), (2, 1.0, "I"), (3, 1.0, "I"), (4, 1.0, "I"), (6, 1.0, "I"), (3, 1.0, "II"), (4, 10.0, "I")]
    for g, scale, phase in sums:
        results[f"evaluators g={g}, {scale:g} × typical, phase {phase}"] = bench_evaluators(g, scale, phase)
    return results


def judge(row: str, name: str, value: float) -> str:
    """Whether a figure reaches its target."""
    target = TARGETS.get(row, {}).get(name)
    if target is None:
        return ""
    reached = value <= target if name in AT_MOST else value >= target
    return f"{'≤' if name in AT_MOST else '≥'} {target:g}: {'reached' if reached else 'NOT reached'}"


def main() -> None:
    """Run everything, print a table and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/theta.json"))
    output = parser.parse_args().output
    torch.set_num_threads(1)
    results = run_all()
    table = Table("case", "figure", "measured", "target", title="log θ̃ on one CPU thread, float64, tolerance 1e-12")
    for row, figures in results.items():
        for name, value in figures.items():
            table.add_row(row, name, f"{value:.4g}", judge(row, name, value))
        table.add_section()
    Console(width=120).print(table)
    about = {
        "rtbm": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "numba": kernels.AVAILABLE,
        "machine": platform.machine(),
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({"about": about, "results": results}, indent=2))
    print(f"written to {output}")


if __name__ == "__main__":
    main()
