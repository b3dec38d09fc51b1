"""How fast densities are fitted and evaluated, beside a Gaussian mixture and a neural spline flow.

    python benchmarks/density.py --output build/density.json

1. Time to the same training likelihood: RTBMDensity, scikit-learn's GaussianMixture and zuko's neural spline flow.
2. Log-likelihoods a second, for 10^6 points.
3. How the cost of one value with gradient of the objective grows with points, hidden and visible units.

All in one process with one thread, so that ratios mean something on a busy machine.
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
import zuko
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import threadpool_limits

from rtbm import RTBMDensity, datasets
from rtbm.training import ArrayBlocks, Family, Objective, Prior, make_start

SHARE = 0.98
"""The target: this share of the way from a single Gaussian's likelihood to that of the default RTBMDensity."""
FLOW_SECONDS = 60.0
N_POINTS = 10**6


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """A result, and the seconds it took."""
    start = time.perf_counter()
    return function(), time.perf_counter() - start


def fit_rtbm(X: np.ndarray, n_hidden: int, n_components: int, target: float) -> tuple[RTBMDensity, float]:
    """A single-start fit, and its seconds up to the target."""
    model, seconds = timed(lambda: RTBMDensity(n_hidden, n_components=n_components, n_init=1, random_state=0).fit(X))
    offset = -model.history_[-1].objective - model.score(X)  # the prior's share at the end
    reached = [record.seconds for record in model.history_ if -record.objective - offset >= target]
    return model, min(reached[0] + seconds - model.history_[-1].seconds, seconds) if reached else np.inf


def fit_gmm(X: np.ndarray, target: float) -> tuple[GaussianMixture, float, int]:
    """The smallest Gaussian mixture that reaches the target; its time alone, not that of the smaller ones."""
    for n_components in range(1, 31):
        model = GaussianMixture(n_components, tol=1e-7, max_iter=3000, random_state=0)
        _, seconds = timed(lambda model=model: model.fit(X))
        if model.score(X) >= target:
            return model, seconds, n_components
    return model, np.inf, n_components


def fit_flow(X: np.ndarray, target: float) -> tuple[Any, float, float]:
    """A neural spline flow, by Adam with all data, until the target or the time limit; the last is its likelihood."""
    torch.manual_seed(0)
    x = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
    offset = float(np.log(X.std(0)).sum())
    flow = zuko.flows.NSF(features=X.shape[1], transforms=3, hidden_features=(32, 32))
    optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
    start, best = time.perf_counter(), -np.inf
    while time.perf_counter() - start < FLOW_SECONDS:
        loss = -flow().log_prob(x).mean()
        best = max(best, -float(loss.detach()) - offset)
        if best >= target:
            return flow, time.perf_counter() - start, best
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return flow, np.inf, best


def gaussian_score(X: np.ndarray) -> float:
    """The mean log-likelihood of the Gaussian of a sample."""
    covariance = np.atleast_2d(np.cov(X.T, bias=True))
    return float(-0.5 * np.linalg.slogdet(2 * np.pi * np.e * covariance)[1])


def compare(console: Console) -> dict[str, Any]:
    """Seconds to the same training likelihood, and log-likelihoods a second."""
    figures: dict[str, Any] = {}
    for name in ("gamma", "three_gaussians"):
        density = datasets.DENSITIES[name]
        X, many = density.sample(), density.sample(N_POINTS, seed=1)
        default, all_starts = timed(lambda X=X, d=density: RTBMDensity(d.n_hidden, random_state=0).fit(X))
        low, high = gaussian_score(X), default.score(X)
        target = low + SHARE * (high - low)
        model, seconds = fit_rtbm(X, density.n_hidden, density.n_components, target)
        gmm, gmm_seconds, size = fit_gmm(X, target)
        flow, flow_seconds, flow_best = fit_flow(X, target)
        points = torch.tensor(many, dtype=torch.float32)

        def flow_score(flow: Any = flow, points: torch.Tensor = points) -> None:
            with torch.no_grad():
                for part in points.split(50_000):
                    flow().log_prob(part)

        rates = [
            timed(lambda m=m, X=many: m.score_samples(X))[1] if not callable(m) else timed(m)[1]
            for m in (model, gmm, flow_score)
        ]
        table = Table(title=f"{name}, n = {len(X)}: to a training log-likelihood of {target:.4f} (Gaussian {low:.4f})")
        for column in ("method", "seconds", "ratio", "log-likelihoods a second"):
            table.add_column(column, justify="left" if column == "method" else "right")
        rows = (
            (f"RTBMDensity({density.n_hidden}), one start", seconds),
            (f"GaussianMixture({size})", gmm_seconds),
            (f"neural spline flow (reached {flow_best:.4f})", flow_seconds),
        )
        for (label, value), rate in zip(rows, rates, strict=True):
            shown = f"{value:.2f}" if np.isfinite(value) else f"> {FLOW_SECONDS:.0f}"
            table.add_row(label, shown, f"{value / seconds:.1f}", f"{N_POINTS / rate:.2e}")
        table.add_row("RTBMDensity, all 8 starts to the end", f"{all_starts:.2f}", f"{all_starts / seconds:.1f}", "")
        console.print(table)
        figures[name] = {
            "target": target,
            "seconds": [value for _, value in rows],
            "all_starts": all_starts,
            "evaluations_per_second": [N_POINTS / rate for rate in rates],
        }
    return figures


def step_time(n: int, n_visible: int, n_hidden: int) -> float:
    """Seconds for a value with gradient of the objective near a start, the least of several."""
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((n, n_visible)), np.ones(n)
    family = Family(n_visible, n_hidden)
    widths = np.ones(n_visible)
    objective = Objective(family, ArrayBlocks(torch.from_numpy(x), torch.from_numpy(weights)), Prior(1.0, widths))
    vector = make_start(family, x[:5000], weights[:5000], 0, 0)
    objective.with_gradient(vector)
    repeats = 3 if n > 10_000 else 10
    return min(timed(lambda i=i: objective.with_gradient(vector + 1e-4 * i))[1] for i in range(repeats))


def scaling(console: Console) -> dict[str, list[list[float]]]:
    """The cost of one step of L-BFGS."""
    sweeps = {
        "points (1 visible, 2 hidden units)": [(n, (n, 1, 2)) for n in (10**3, 10**4, 10**5, 10**6)],
        "hidden units (2,000 points, 1 visible)": [(h, (2000, 1, h)) for h in range(1, 9)],
        "visible units (2,000 points, 2 hidden)": [(v, (2000, v, 2)) for v in (1, 2, 5, 10, 20, 50)],
    }
    figures = {}
    for title, cases in sweeps.items():
        figures[title] = [[size, step_time(*arguments)] for size, arguments in cases]
        table = Table(title=f"one value with gradient: {title}")
        for size, _ in figures[title]:
            table.add_column(f"{size:,.0f}", justify="right")
        table.add_row(*(f"{1e3 * seconds:.1f} ms" for _, seconds in figures[title]))
        console.print(table)
    return figures


def main() -> None:
    """Run everything and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("build/density.json"))
    arguments = parser.parse_args()
    console = Console(width=110)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    with threadpool_limits(1):
        figures = {"compare": compare(console), "scaling": scaling(console)}
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
