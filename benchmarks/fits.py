"""How good and how fast the default fits of RTBMDensity are, and how its solvers compare.

    python benchmarks/fits.py defaults --seeds 20     the paper's nine densities with the paper's architectures
    python benchmarks/fits.py solvers --seeds 3       all solvers on some of them

For each density: the mean squared error over the paper's histogram bins against the true density, the log-likelihood of
20,000 new points compared with that of a single Gaussian, how far the integral is from one, and seconds for all starts.
"""

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

from rtbm import RTBMDensity, datasets

PAPER = {
    "gamma": 6.8e-6,
    "cauchy": 2.9e-5,
    "cauchy_mixture": 6.5e-5,
    "gaussian_mixture": 1.9e-6,
    "custom": 6.7e-4,
    "uniform": 8.2e-5,
    "correlated_gaussian": 2.7e-7,
    "correlated_mixture": 2.2e-7,
    "three_gaussians": 5.8e-6,
}
"""The mean squared errors of the paper's table, one sample each."""
N_TEST, N_BINS = 20_000, 50


def bin_centres(X: np.ndarray) -> np.ndarray:
    """The centres of the paper's histogram bins: 50 in each dimension over the range of the sample."""
    edges = [np.histogram_bin_edges(column, N_BINS) for column in X.T]
    mesh = np.meshgrid(*((e[1:] + e[:-1]) / 2 for e in edges), indexing="ij")
    return np.stack(mesh, axis=-1).reshape(-1, X.shape[1])


def gaussian_score(X: np.ndarray, test: np.ndarray) -> float:
    """The mean log-likelihood of new points under the Gaussian of a sample."""
    mean, covariance = X.mean(0), np.atleast_2d(np.cov(X.T, bias=True))
    noise = np.linalg.solve(np.linalg.cholesky(covariance), (test - mean).T)
    return float(-0.5 * (noise**2).sum(0).mean() - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1])


def integral(model: RTBMDensity) -> float:
    """∫P by the trapezoidal rule, over twelve standard deviations to both sides."""
    mean, std = (part.numpy() for part in (model.distribution_.mean, model.distribution_.stddev))
    n = 40_001 if len(mean) == 1 else 1201
    axes = [np.linspace(m - 12 * s, m + 12 * s, n) for m, s in zip(mean, std, strict=True)]
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    mesh = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(mean))
    return float(np.exp(model.score_samples(mesh)).sum() * cell)


def run(name: str, seed: int, options: dict[str, Any]) -> dict[str, float]:
    """One fit to one sample, and how good it is."""
    torch.set_num_threads(1)
    density = datasets.DENSITIES[name]
    X, test = density.sample(seed=seed), density.sample(N_TEST, seed=10_000 + seed)
    options = {"n_hidden": density.n_hidden, "n_components": density.n_components, "random_state": seed, **options}
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RTBMDensity(**options).fit(X)
    seconds = time.perf_counter() - start
    centres = bin_centres(X)
    return {
        "mse": float(np.mean((np.exp(model.score_samples(centres)) - density.pdf(centres)) ** 2)),
        "train": model.score(X),
        "gain": model.score(test) - gaussian_score(X, test),
        "integral": integral(model) - 1,
        "converged": float(model.converged_),
        "gaussian": float(model.is_gaussian_),
        "seconds": seconds,
        "evaluations": float(sum(result.evaluations for result in model.results_)),
    }


def repeat(name: str, seeds: int, jobs: int, **options: Any) -> dict[str, np.ndarray]:
    """The results for seeds 0, 1, …, as columns."""
    results = Parallel(jobs)(delayed(run)(name, seed, options) for seed in range(seeds))
    return {key: np.array([result[key] for result in results]) for key in results[0]}


def defaults(seeds: int, jobs: int, console: Console) -> dict[str, Any]:
    """The paper's densities with the paper's architectures, all other settings at their defaults."""
    table = Table(title=f"default fits, {seeds} seeds each")
    for column in (
        "density",
        "Nh × K",
        "MSE ± standard error",
        "paper",
        "gain over Gaussian",
        "least",
        "|∫P − 1|",
        "converged",
        "s",
    ):
        table.add_column(column, justify="left" if column == "density" else "right")
    kept = {}
    for name, density in datasets.DENSITIES.items():
        r = kept[name] = repeat(name, seeds, jobs)
        table.add_row(
            name,
            f"{density.n_hidden} × {density.n_components}",
            f"{r['mse'].mean():.2e} ± {r['mse'].std() / max(1, seeds - 1) ** 0.5:.0e}",
            f"{PAPER[name]:.1e}",
            f"{r['gain'].mean():.4f}",
            f"{r['gain'].min():.1e}" if abs(r["gain"].min()) < 1e-3 else f"{r['gain'].min():.4f}",
            f"{np.abs(r['integral']).max():.0e}",
            f"{int(r['converged'].sum())}/{seeds}",
            f"{r['seconds'].mean():.1f}",
        )
        console.print(f"{name} done", style="dim")
    console.print(table)
    return {name: {key: column.tolist() for key, column in r.items()} for name, r in kept.items()}


def solvers(seeds: int, jobs: int, console: Console) -> dict[str, Any]:
    """All solvers, one start each, on three densities."""
    kept = {}
    for name, n_hidden in (("gamma", 2), ("gaussian_mixture", 3), ("three_gaussians", 2)):
        table = Table(title=f"{name}: one start each, mean of {seeds} seeds")
        for column in (
            "machine",
            "solver",
            "log-likelihood",
            "gain over Gaussian, new data",
            "MSE",
            "evaluations",
            "s",
        ):
            table.add_column(column, justify="left" if column in ("machine", "solver") else "right")
        for solver in ("lbfgs", "em", "cma"):
            options = {"n_hidden": n_hidden, "solver": solver, "n_init": 1, "fallback": None}
            r = kept[f"{name} {solver}"] = repeat(name, seeds, jobs, **options)
            cells = (r["train"], r["gain"], r["mse"], r["evaluations"], r["seconds"])
            formats = ("{:.5f}", "{:.4f}", "{:.1e}", "{:.0f}", "{:.1f}")
            cells = [text.format(cell.mean()) for text, cell in zip(formats, cells, strict=True)]
            table.add_row(f"{n_hidden} units", solver, *cells)
        console.print(table)
    return {name: {key: column.tolist() for key, column in r.items()} for name, r in kept.items()}


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("defaults", "solvers"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2, help="fits at the same time")
    parser.add_argument("--output", type=Path, help="a JSON file for the figures")
    arguments = parser.parse_args()
    part = defaults if arguments.part == "defaults" else solvers
    figures = part(arguments.seeds, arguments.jobs, Console(width=160))
    if arguments.output:
        arguments.output.parent.mkdir(parents=True, exist_ok=True)
        arguments.output.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
