"""A fitted density at work: the paper's gamma sample, and everything that the fit knows.

    python examples/density_at_work.py --output build/density_at_work.png

Fits one machine with two hidden units, as in the paper's first example, prints a summary and draws the fit with its
normal components, its conditional expectation E(h|v) and its distribution function.
"""

import argparse
import itertools
import time
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rtbm import RTBMDensity, datasets
from rtbm.plotting import DARK, GREY, LIGHT, WARM, plot_density

DENSITY = datasets.gamma


def summary(model: RTBMDensity, X: np.ndarray, seconds: float) -> Table:
    """How good the fit is."""
    new = DENSITY.sample(10_000, seed=1)
    edges = np.histogram_bin_edges(X, 50)
    centres = (edges[:-1] + edges[1:])[:, None] / 2
    error = np.mean((np.exp(model.score_samples(centres)) - DENSITY.pdf(centres)) ** 2)
    mean, variance = X.mean(), X.var()
    gaussian = [np.mean(-0.5 * (x - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)) for x in (X, new)]
    x = np.linspace(-20, 50, 70_001)[:, None]
    machine = model.distribution_
    table = Table(title=f"{machine!r} on {len(X)} samples of {DENSITY.name}", show_header=False)
    for name, value in (
        ("log-likelihood a sample, training / new data", f"{model.score(X):.4f} / {model.score(new):.4f}"),
        ("the same for one Gaussian", f"{gaussian[0]:.4f} / {gaussian[1]:.4f}"),
        ("mean squared error over 50 bins (paper: 6.8e-06)", f"{error:.1e}"),
        ("integral of P, less one", f"{np.exp(model.score_samples(x)).sum() * 1e-3 - 1:.0e}"),
        ("mean, standard deviation (true: 7.5, 2.74)", f"{float(machine.mean):.3f}, {float(machine.stddev):.3f}"),
        ("skewness (true: 0.73)", f"{float(machine.cumulant(3) / machine.variance**1.5):.3f}"),
        ("median, 95 % quantile", ", ".join(f"{float(v):.3f}" for v in machine.icdf([0.5, 0.95]))),
        ("entropy", f"{float(machine.entropy()):.4f}"),
        ("seconds to fit, all starts", f"{seconds:.1f}"),
    ):
        table.add_row(name, value)
    return table


def draw(model: RTBMDensity, X: np.ndarray, output: Path) -> None:
    """Three panels."""
    v = np.linspace(0, 20, 600)[:, None]
    figure, axes = plt.subplots(1, 3, figsize=(14, 4), layout="constrained")
    plot_density(model, X, ax=axes[0])
    axes[0].plot(v, DENSITY.pdf(v), color=LIGHT, lw=1.5, ls="--", label="true density")
    axes[0].legend(frameon=False)
    for unit, colour in zip(model.transform(v).T, itertools.cycle((DARK, WARM, LIGHT)), strict=False):
        axes[1].plot(v, unit, color=colour)
    axes[1].set(title="E(h|v) of the hidden units", xlabel="v")
    axes[2].step(np.sort(X[:, 0]), np.arange(1, len(X) + 1) / len(X), color=GREY, lw=3, label="sample")
    axes[2].plot(v, model.cdf(v), color=WARM, lw=1.5, label="fit")
    axes[2].set(title="distribution function", xlabel="v")
    axes[2].legend(frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, dpi=110)


def main() -> None:
    """Fit, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/density_at_work.png"))
    parser.add_argument("--hidden", type=int, default=2, help="hidden units (the paper: 2)")
    arguments = parser.parse_args()
    X = DENSITY.sample()
    start = time.perf_counter()
    model = RTBMDensity(arguments.hidden, random_state=0, verbose=1).fit(X)
    console = Console()
    console.print(summary(model, X, time.perf_counter() - start))
    draw(model, X, arguments.output)
    console.print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
