"""The theta function at work: accuracy, speed and shape in one minute.

    python examples/theta_at_work.py --output build/theta_at_work.png

Prints a summary and draws four pictures: E[n] in phase I and phase II (the activation functions of theta networks), how
many terms the sum takes with and without Poisson summation, and a discrete Gaussian with exact samples.
"""

import argparse
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from rtbm import DiscreteGaussian, ThetaPlan, theta_moments
from rtbm.theta.reference import reference_log_theta
from rtbm.theta.truncation import estimate_count, log_gauss_sum, squared_radius

COLOURS = ("#1b4965", "#5fa8d3", "#e07a5f")


def measure(g: int, n: int = 20_000) -> tuple[str, str, str, str]:
    """Time and error of log θ̃ and its gradients for one random matrix."""
    generator = torch.Generator().manual_seed(g)
    X = torch.rand(g, g, dtype=torch.float64, generator=generator) * 2 - 1
    Q = (X @ X.T + 0.5 * torch.eye(g, dtype=torch.float64)).requires_grad_()
    z = torch.randn(n, g, dtype=torch.float64, generator=generator).requires_grad_()
    plan = ThetaPlan(Q)
    plan.log_theta(z).sum().backward()  # compiled code is loaded here
    start = time.perf_counter()
    value = plan.log_theta(z)
    value.sum().backward()
    seconds = time.perf_counter() - start
    few = 5 if g > 3 else 50
    expected = reference_log_theta(z[:few].detach().numpy(), Q.detach().numpy())
    error = np.abs(value[:few].detach().numpy() - expected).max()
    return str(g), str(plan.n_terms), f"{seconds / n * 1e9:.0f} ns", f"{error:.0e}"


def draw_means(axes: Axes, phase: str) -> None:
    """The derivative of log θ̃ for three matrices (1 × 1): trending in phase I, periodic in phase II."""
    for q, colour in zip((2.0, 6.0, 30.0) if phase == "I" else (0.7, 2.0, 4.0), COLOURS, strict=True):
        t = torch.linspace(-3, 3, 600, dtype=torch.float64)[:, None]
        z = q * t if phase == "I" else 2 * torch.pi * t
        axes.plot(t, theta_moments(z, [[q]], phase=phase, order=1).mean, color=colour, label=f"q = {q:g}")
    if phase == "I":
        axes.set(xlabel="z / q", title="phase I: ∇ log θ̃(z|q) = E[n]")
    else:
        axes.set(xlabel="z / 2π", title="phase II: ∇ log θ̃(iz|q)", ylim=(-4.6, 3.9))
    axes.legend(ncols=3, loc="lower center" if phase == "II" else "upper left", framealpha=1)


def draw_terms(axes: Axes, g: int = 4) -> None:
    """Terms for 1e-12 against the size of Q = qI: the plain sum, its Poisson dual, and what the library takes."""
    q = np.geomspace(0.3, 120, 60)
    counts = np.empty((2, len(q)))
    for i, value in enumerate(q):
        for row, norm in enumerate((value, 4 * np.pi**2 / value)):
            norms = np.full(g, norm)
            smallest = log_gauss_sum(norms, 0.5).sum() if row == 0 else 0.0
            width = np.sqrt(norms) * (row == 0)
            counts[row, i] = max(1, estimate_count(norms, squared_radius(norms, smallest, 1e-12), width))
    coupling = 1e-3 * (np.ones((g, g)) - np.eye(g))
    chosen = [ThetaPlan(value * np.eye(g) + coupling).n_terms for value in q]
    axes.loglog(q, counts[0], "--", color=COLOURS[1], label="sum over n")
    axes.loglog(q, counts[1], "--", color=COLOURS[2], label="Poisson dual")
    axes.loglog(q, chosen, color=COLOURS[0], lw=2, label="taken (±m counted once)")
    axes.set(xlabel="q", ylabel="terms", title=f"terms for 1e-12, Q ≈ q·I, g = {g}")
    axes.legend(frameon=False)


def draw_discrete_gaussian(axes: Axes) -> None:
    """Probabilities and exact samples on ℤ²."""
    hidden = DiscreteGaussian([[0.5, -0.3], [-0.3, 0.6]], [0.4, -0.7])
    draws = hidden.sample((5000,), generator=torch.Generator().manual_seed(0))
    points, counts = torch.unique(draws, dim=0, return_counts=True)
    expected = 5000 * hidden.log_prob(points).exp()
    axes.scatter(*points.T, s=expected, color=COLOURS[1], label="P(h)")
    axes.scatter(*points.T, s=counts, facecolors="none", edgecolors=COLOURS[0], label="5000 samples")
    axes.plot(*hidden.mean, "+", color=COLOURS[2], ms=12, mew=2, label="mean")
    axes.set(xlabel="h₁", ylabel="h₂", title="discrete Gaussian", aspect="equal")
    axes.legend(frameon=False, loc="upper left", markerscale=0.6)


def main() -> None:
    """Measure, draw, and say where the picture is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/theta_at_work.png"))
    output = parser.parse_args().output
    figure, axes = plt.subplots(2, 2, figsize=(11, 8), layout="constrained")
    pictures = [
        ("phase I", lambda: draw_means(axes[0, 0], "I")),
        ("phase II", lambda: draw_means(axes[0, 1], "II")),
        ("terms", lambda: draw_terms(axes[1, 0])),
        ("discrete Gaussian", lambda: draw_discrete_gaussian(axes[1, 1])),
    ]
    rows = []
    columns = (TextColumn("{task.description:<28}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(*columns, TimeElapsedColumn()) as progress:
        task = progress.add_task("", total=4 + len(pictures))
        for g in (1, 2, 3, 4):
            progress.update(task, description=f"measuring, g = {g}")
            rows.append(measure(g))
            progress.advance(task)
        for name, draw in pictures:
            progress.update(task, description=f"drawing {name}")
            draw()
            progress.advance(task)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)

    table = Table("g", "terms", "value and both gradients, per point", "error against the plain sum")
    table.title = "log θ̃(z|Q), Q = XXᵀ + ½I, 20,000 points, tolerance 1e-12"
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.print(table)
    console.print(f"picture: {output}")


if __name__ == "__main__":
    main()
