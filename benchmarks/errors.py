"""Where the squared error of a density comes from: bias, variance, or a start that was not good enough.

    python benchmarks/errors.py --output build/errors.json

Each method is fitted to several samples of a density of the paper. On a fixed grid the mean squared error is the square
of the difference between the mean fit and the truth (bias: what the family cannot describe, or the prior does not
allow) plus the spread of the fits around their mean (variance). For machines, the last column is what eight starts gain
in the objective, likelihood and prior, over one (optimisation).
"""

import argparse
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from experiments import baselines
from experiments.paper.table1 import PAPER_TABLE, bin_centres
from rtbm import RTBMDensity, datasets

SHARP = {"regularization": 0.01, "tol": 1e-6}
MACHINES: dict[str, dict[str, dict[str, Any]]] = {
    "uniform": {
        "paper's sizes": {"n_hidden": 3},
        "4 machines of 2 units, weak prior": {"n_hidden": 2, "n_components": 4, **SHARP},
        "4 units, learned margin": {"n_hidden": 4, "margins": "learned", **SHARP},
    },
    "correlated_mixture": {
        "paper's sizes": {"n_hidden": 1, "n_components": 2},
        "the same, or 2 Gaussians": {"n_hidden": 1, "n_components": 2, "fallback": "gaussians"},
    },
}


def decompose(fits: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Bias and variance of fits (seeds, points), estimated without bias."""
    variance = float(fits.var(axis=0, ddof=1).mean())
    error = float(((fits - truth) ** 2).mean())
    return {"error": error, "bias": error - variance, "variance": variance}


def measure(name: str, seeds: int) -> dict[str, dict[str, float]]:
    """All methods on samples of one density."""
    density = datasets.DENSITIES[name]
    samples = [density.sample(seed=seed) for seed in range(seeds)]
    grid = bin_centres(samples[0])
    truth, found = density.pdf(grid), {}
    for method, options in MACHINES[name].items():
        models = [RTBMDensity(**options, n_init=1, random_state=0).fit(X) for X in samples]
        eight = RTBMDensity(**options, n_init=8, random_state=0).fit(samples[0])
        fits = np.array([np.exp(model.score_samples(grid)) for model in models])
        gain = models[0].history_[-1].objective - eight.history_[-1].objective
        found[method] = {**decompose(fits, truth), "gain": gain}
    paper = PAPER_TABLE[name]
    others = {
        f"KDE, width {paper.bandwidth}": [baselines.kernels(X, paper.bandwidth) for X in samples],
        f"GMM, {paper.n_components} components": [
            baselines.gaussian_mixture(X, paper.n_components, 0, quick=False) for X in samples
        ],
    }
    for method, models in others.items():
        found[method] = decompose(np.array([np.exp(model.score_samples(grid)) for model in models]), truth)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/errors.json"))
    parser.add_argument("--seeds", type=int, default=8)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    figures = {name: measure(name, arguments.seeds) for name in MACHINES}
    for name, found in figures.items():
        table = Table(title=f"{name}, {arguments.seeds} samples")
        for column in ("method", "error", "bias²", "variance", "gain by 8 starts"):
            table.add_column(column, justify="left" if column == "method" else "right")
        for method, numbers in found.items():
            gain = f"{numbers['gain']:.4f}" if "gain" in numbers else ""
            table.add_row(method, *(f"{numbers[key]:.1e}" for key in ("error", "bias", "variance")), gain)
        Console(width=100).print(table)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
