"""A machine at work: fit the paper's gamma sample, and ask the fit everything it knows.

    python examples/machine_at_work.py --output build/machine_at_work.png

Trains one machine with two hidden units, as in the paper's first example, prints a summary and draws the fit, its
normal components, its conditional expectation E(h|v) and its distribution function.
"""

import argparse
import itertools
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from rtbm import RTBMDistribution, datasets, nn

DARK, LIGHT, WARM, GREY = "#1b4965", "#5fa8d3", "#e07a5f", "#c8c8c8"
DENSITY = datasets.gamma


def ladder(data: torch.Tensor, n_hidden: int) -> RTBMDistribution:
    """A start: hidden units in {0, 1}, and steps R/2, R/4, … whose sums are spread evenly over the data's range R."""
    low, high = (float(data.quantile(p)) for p in (0.005, 0.995))
    steps = (high - low) * 0.5 ** torch.arange(1, n_hidden + 1)
    width = (high - low) / 2**n_hidden
    return RTBMDistribution.from_lattice(
        10 * np.eye(n_hidden), np.full(n_hidden, -5.0), steps[None].numpy(), [low + width / 2], [[(0.8 * width) ** 2]]
    )


def fit(data: torch.Tensor, n_hidden: int, n_steps: int, console: Console) -> tuple[nn.RTBM, float]:
    """Maximise the mean log-likelihood by Adam; returns the module and the seconds it took."""
    module = nn.RTBM.from_distribution(ladder(data, n_hidden))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.03)
    start = time.perf_counter()
    likelihood = TextColumn("{task.fields[likelihood]}")
    with Progress("{task.description}", BarColumn(), likelihood, TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("fitting", total=n_steps, likelihood="")
        for _ in range(n_steps):
            optimizer.zero_grad()
            loss = -module().log_prob(data).mean()
            loss.backward()
            optimizer.step()
            progress.update(task, advance=1, likelihood=f"log-likelihood {-float(loss.detach()):.4f}")
    return module, time.perf_counter() - start


def summary(machine: RTBMDistribution, data: torch.Tensor, seconds: float) -> Table:
    """How good the fit is."""
    held_out = torch.tensor(DENSITY.sample(10_000, seed=1))
    edges = np.histogram_bin_edges(data.numpy(), 50)
    centres = (edges[:-1] + edges[1:])[:, None] / 2
    error = float(np.mean((machine.log_prob(centres).exp().numpy() - DENSITY.pdf(centres)) ** 2))
    normal = torch.distributions.Normal(data.mean(), data.std())
    x = torch.linspace(-20, 50, 70_001, dtype=torch.float64)[:, None]
    table = Table(title=f"{machine!r} on {len(data)} samples of {DENSITY.name}", show_header=False)
    both = (data, held_out)
    ours, theirs = ([f"{density.log_prob(x).mean():.4f}" for x in both] for density in (machine, normal))
    for name, value in (
        ("log-likelihood a sample, training / new data", " / ".join(ours)),
        ("the same for one Gaussian", " / ".join(theirs)),
        ("mean squared error over 50 bins (paper: 6.8e-06)", f"{error:.1e}"),
        ("integral of P, less one", f"{float(machine.log_prob(x).exp().sum()) * 1e-3 - 1:.0e}"),
        ("mean, standard deviation (true: 7.5, 2.74)", f"{float(machine.mean):.3f}, {float(machine.stddev):.3f}"),
        ("skewness (true: 0.73)", f"{float(machine.cumulant(3) / machine.variance**1.5):.3f}"),
        ("median, 95 % quantile", ", ".join(f"{float(v):.3f}" for v in machine.icdf([0.5, 0.95]))),
        ("entropy", f"{float(machine.entropy()):.4f}"),
        ("seconds to fit", f"{seconds:.1f}"),
    ):
        table.add_row(name, value)
    return table


def draw_fit(axes: Axes, machine: RTBMDistribution, data: torch.Tensor, v: torch.Tensor) -> None:
    """Histogram, truth, fit, and the normal distributions that the fit is made of."""
    axes.hist(data[:, 0], 50, density=True, color=GREY)
    axes.plot(v, DENSITY.pdf(v), color=LIGHT, lw=2, label="true density")
    axes.plot(v, machine.log_prob(v).exp(), color=WARM, lw=2, label="fit")
    h = torch.tensor(list(itertools.product(range(-3, 5), repeat=machine.n_hidden)), dtype=torch.float64)
    lattice, weights = machine.lattice, machine.hidden_log_prob(h).exp()
    for state, weight in zip(h, weights, strict=True):
        if weight > 0.005:
            part = torch.distributions.Normal((lattice.mean + lattice.F @ state), lattice.covariance[0].sqrt())
            axes.plot(v, weight * part.log_prob(v).exp(), color=DARK, lw=0.8)
    axes.set(title="the fit, and P(h) × normal for each h", xlabel="v", ylabel="density")
    axes.legend()


def draw(machine: RTBMDistribution, data: torch.Tensor, output: Path) -> None:
    """Three panels."""
    v = torch.linspace(0, 20, 600, dtype=torch.float64)[:, None]
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    draw_fit(axes[0], machine, data, v)
    for unit, colour in zip(machine.hidden_mean(v).mT, itertools.cycle((DARK, WARM, LIGHT)), strict=False):
        axes[1].plot(v, unit, color=colour)
    axes[1].set(title="E(h|v) of the hidden units", xlabel="v")
    axes[2].plot(v, machine.cdf(v), color=WARM, lw=2, label="fit")
    ordered = data[:, 0].sort().values
    axes[2].step(ordered, torch.arange(1, len(ordered) + 1) / len(ordered), color=GREY, label="sample")
    axes[2].set(title="distribution function", xlabel="v")
    axes[2].legend()
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)


def main() -> None:
    """Fit, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/machine_at_work.png"))
    parser.add_argument("--hidden", type=int, default=2, help="hidden units (the paper: 2)")
    parser.add_argument("--steps", type=int, default=400, help="steps of the optimiser")
    arguments = parser.parse_args()
    console = Console()
    data = torch.tensor(DENSITY.sample())
    scale, shift = float(data.std()), float(data.mean())
    module, seconds = fit((data - shift) / scale, arguments.hidden, arguments.steps, console)
    machine = module().detach().affine([[scale]], [shift])
    console.print(summary(machine, data, seconds))
    draw(machine, data, arguments.output)
    console.print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
