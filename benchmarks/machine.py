"""Speed of machines: densities, training steps, samples, and how cost grows with the number of hidden units.

    python benchmarks/machine.py --output build/machine.json

Ratios are to torch.distributions.MultivariateNormal on the same points, or to drawing as many normal numbers, in the
same run. Two threads at most. Times are the best of several runs, after one to warm up.
"""

import argparse
import json
import platform
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch.distributions import MultivariateNormal

from rtbm import RTBMDistribution, __version__, nn
from rtbm.theta.unit.columns import UnitColumns
from rtbm.theta.unit.torch import column_derivatives
from theta import best_time

POINTS = 100_000


def training_step(module: nn.RTBM, data: torch.Tensor) -> None:
    """One gradient of the mean log-likelihood."""
    module.zero_grad()
    (-module().log_prob(data).mean()).backward()


def measure(n_visible: int, n_hidden: int, hidden: str, phase: str) -> dict[str, float | str | int]:
    """Seconds for a density, a training step and draws of one random machine, beside a Gaussian's."""
    module = nn.RTBM(
        n_visible, n_hidden, coupling=hidden, phase=phase, generator=torch.Generator().manual_seed(n_hidden)
    )
    with torch.no_grad():
        machine = module()
    n = POINTS if hidden == "dense" else POINTS // 10
    data = machine.sample((n,), torch.Generator().manual_seed(0))
    normal = MultivariateNormal(data.mean(0), torch.cov(data.mT).reshape(n_visible, n_visible))
    few = data[:2000]
    return {
        "machine": f"{n_visible}, {n_hidden} {hidden}",
        "phase": phase,
        "log_prob, ns a point": 1e9 * best_time(lambda: machine.log_prob(data)) / n,
        "times a Gaussian": best_time(lambda: machine.log_prob(data)) / best_time(lambda: normal.log_prob(data)),
        "training step on 2,000 points, ms": 1e3 * best_time(lambda: training_step(module, few)),
        f"{n:,} draws, times torch.randn": best_time(lambda: machine.sample((n,)))
        / best_time(lambda: torch.randn(n, n_visible, dtype=torch.float64)),
    }


def diagonal_pass() -> dict[str, float]:
    """Nanoseconds for each one-dimensional theta function, one thread: compiled, in plain torch, and torch.tanh."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    q = 2 + 10 * torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    z = 3 * torch.randn(10_000, 100, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    times: dict[str, float] = {"torch.tanh": best_time(lambda: torch.tanh(z))}
    for phase in ("I", "II"):
        columns = UnitColumns(q.numpy(), phase)
        for order, what in ((0, "value"), (2, "value and two derivatives")):
            compiled = best_time(lambda c=columns, k=order: c.moments(z, q, k))
            plain = best_time(lambda p=phase, k=order: column_derivatives(z, q, p, k, is_far=False))
            times |= {f"phase {phase}, {what}, compiled": compiled, f"phase {phase}, {what}, torch": plain}
    torch.set_num_threads(threads)
    return {name: 1e9 * seconds / z.numel() for name, seconds in times.items()}


def draws() -> float:
    """Seconds for 10^6 draws of a machine with two visible and two hidden units."""
    machine = RTBMDistribution.from_lattice(
        [[1.1, 0.3], [0.3, 0.8]], [-0.5, 0.2], [[1.6, 0.5], [-0.4, 1.7]], [0.0, 0.0], [[0.12, 0.05], [0.05, 0.1]]
    )
    return best_time(lambda: machine.sample((1_000_000,)))


def quantiles() -> dict[str, float]:
    """Seconds for 1,000 quantiles: machines whose Q − WᵀT⁻¹W becomes singular, and one with many hidden units."""
    p = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
    Q = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)) + 0.3
    K = torch.tensor([[0.6, 0.5, 0.62]], dtype=torch.float64)
    direction = K / K.norm() @ torch.linalg.cholesky(Q).mT
    zeros, one = torch.zeros(3), torch.ones(1, 1, dtype=torch.float64)
    machines = {
        f"k = {k}": RTBMDistribution(one, k * direction, Q, [0.0], zeros) for k in (0.0, 0.99, 0.9999, 0.999999)
    }
    module = nn.RTBM(1, 1200, coupling="diagonal", generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        machines["1,200 diagonal units"] = module()
    return {name: best_time(lambda m=machine: m.icdf(p)) for name, machine in machines.items()}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/machine.json"))
    arguments = parser.parse_args()
    torch.set_num_threads(min(2, torch.get_num_threads()))
    cases = [(1, 1, "dense"), (1, 2, "dense"), (2, 2, "dense"), (1, 3, "dense"), (1, 4, "dense"), (2, 5, "dense")]
    cases += [(1, 20, "diagonal"), (1, 200, "diagonal"), (2, 100, "diagonal"), (3, 20, "diagonal")]
    rows = [measure(*case, phase) for case in cases for phase in ("I", "II")]
    table = Table(title="machines")
    for name in ("machine", "phase", "log_prob, ns a point", "times a Gaussian", "training step, ms", "draws / randn"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()))
    seconds = draws()
    console = Console()
    console.print(table)
    console.print(f"10^6 draws, 2 visible and 2 hidden units: {seconds:.2f} s (aim: 1 s)")
    inverted = quantiles()
    console.print(
        "1,000 quantiles, s (aim: 1 s): " + "; ".join(f"{name} {value:.2f}" for name, value in inverted.items())
    )
    units = diagonal_pass()
    console.print("ns a unit and point: " + "; ".join(f"{name} {value:.1f}" for name, value in units.items()))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "rtbm": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "rows": rows,
        "10^6 draws, s": seconds,
        "1,000 quantiles, s": inverted,
        "ns a unit and point": units,
    }
    arguments.output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
