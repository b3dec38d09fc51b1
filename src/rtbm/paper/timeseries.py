"""The paper's section 5: a trend with two waves, learned from noisy points by a network of 38 parameters.

Errors are mean squares against the signal without noise, on [0, 100] where the points lie, and beyond, on [100, 200].
"""

import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.estimators import ThetaNetRegressor
from rtbm.paper.experiment import BEATEN, NOT_REACHED, Experiment, Job, Outcome, Picture, Table, Verdict

PAPER = (3.6e-2, 3.8e-2)
"""The paper's errors, of one run: on the training range and beyond."""
SIZES = (3, 3, 2)
INSIDE, BEYOND = np.linspace(0, 100, 500)[:, None], np.linspace(100, 200, 500)[:, None]


class Method(NamedTuple):
    """A way to learn the series: arguments of `ThetaNetRegressor` (L-BFGS by default), and starts in a quick run."""

    options: dict[str, Any]
    quick_init: int = 2


THETA = {"hidden_layer_sizes": SIZES, "output": "theta"}
RANDOM = THETA | {"initialization": "balanced", "n_init": 32}
METHODS = {
    "theta, half the starts tuned": Method(THETA | {"n_init": 8}, 8),
    "theta, tuned start, CMA-ES": Method(THETA | {"n_init": 1, "solver": "cma", "max_iter": 300}, 1),
    "theta, random starts": Method(RANDOM | {"alpha": 0.0}),
    "theta, random starts, early stopping": Method(RANDOM | {"alpha": 0.0, "validation_fraction": 0.2}),
    "theta, random starts, penalty": Method(RANDOM | {"alpha": 0.1}),
    "theta, random starts, CMA-ES": Method(RANDOM | {"n_init": 2, "solver": "cma", "max_iter": 600, "alpha": 0.0}, 1),
    "tanh 5-3-2": Method({"hidden_layer_sizes": (5, 3, 2), "activation": "tanh", "n_init": 32}),
    "tanh 50-50": Method({"hidden_layer_sizes": (50, 50), "activation": "tanh", "n_init": 4}, 1),
}
BEST = next(iter(METHODS))
TRUTH = "the true formula, fitted"


def jobs(seeds: int, quick: bool) -> list[Job]:
    """Every method on `seeds` samples of the noise, and one fit for the pictures."""
    names = [(name, seed) for name in [TRUTH, *METHODS] for seed in range(seeds)]
    return [Job("fit", one_fit, ())] + [Job(_key(*each), _run_one, (*each, quick)) for each in names]


def _key(name: str, seed: int) -> str:
    return f"{name}, seed {seed}"


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """The records of every method."""
    records = {name: [results[_key(name, seed)] for seed in range(seeds)] for name in [TRUTH, *METHODS]}
    return {"seeds": seeds, "quick": quick, "records": records, "fit": results["fit"]}


def _run_one(name: str, seed: int, quick: bool) -> dict[str, float]:
    t, y = datasets.time_series.sample(seed=seed)
    start = time.perf_counter()
    if name == TRUTH:
        predict, n_parameters = _fit_formula(t[:, 0], y), 8
    else:
        model = _fit(name, t, y, seed, quick)
        predict, n_parameters = model.predict, model.n_parameters_
    seconds = time.perf_counter() - start
    inside, beyond = (float(np.mean((predict(x) - _signal(x)) ** 2)) for x in (INSIDE, BEYOND))
    return {"inside": inside, "beyond": beyond, "seconds": seconds, "parameters": n_parameters}


def _fit(name: str, t: Floats, y: Floats, seed: int, quick: bool) -> ThetaNetRegressor:
    options, quick_init = METHODS[name]
    if quick:
        options = options | {"n_init": quick_init}
        if options.get("solver") == "cma":
            options["max_iter"] = 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return ThetaNetRegressor(**options, random_state=seed).fit(t, y)


def _fit_formula(t: Floats, y: Floats) -> Any:
    """Least squares for the numbers in the formula of the signal, from their true values: as good as it gets."""
    from scipy.optimize import least_squares

    def signal(p: Floats, t: Floats) -> Floats:
        return p[0] + p[1] * t + p[2] * np.sin(p[3] * t + p[4]) + p[5] * np.cos(p[6] * t + p[7])

    found = least_squares(lambda p: signal(p, t) - y, [0, 0.02, 0.5, 1, 0.1, 0.75, 0.25, -0.3]).x
    return lambda x: signal(found, x[:, 0])


def _signal(x: Floats) -> Floats:
    return datasets.time_series.signal(x[:, 0])


def one_fit() -> dict[str, Any]:
    """The best method on the first sample, for the pictures."""
    t, y = datasets.time_series.sample(seed=0)
    model = _fit(BEST, t, y, 0, False)
    state = {name: value.tolist() for name, value in model.module_.named_parameters()}
    return {"y": y.tolist(), "inside": model.predict(INSIDE).tolist(), "beyond": model.predict(BEYOND).tolist()} | {
        "parameters": state
    }


def tables(outcome: Outcome) -> list[Table]:
    """Medians over seeds, with quartiles."""
    rows = [["paper (one run)", "38", f"{PAPER[0]:.1e}", f"{PAPER[1]:.1e}", ""]]
    for name, records in outcome["records"].items():
        inside, beyond, seconds = (np.array([r[key] for r in records]) for key in ("inside", "beyond", "seconds"))
        rows.append(
            [
                name,
                f"{records[0]['parameters']:.0f}",
                _median(inside),
                _median(beyond),
                f"{np.median(seconds):.1f}",
            ]
        )
    title = f"Mean squared error against the signal, {outcome['seeds']} seeds"
    title += " (quick: fewer starts and generations)" if outcome["quick"] else ""
    columns = ["median (quartiles)", "numbers", "on [0, 100]", "on [100, 200]", "seconds"]
    return [Table(title, columns, rows)]


def _median(values: Floats) -> str:
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.1e} ({low:.1e} to {high:.1e})"


def verdicts(outcome: Outcome) -> list[Verdict]:
    """What became of the paper's two figures."""
    best, truth = (outcome["records"][name] for name in (BEST, TRUTH))
    lines = []
    for key, expected, where in zip(("inside", "beyond"), PAPER, ("[0, 100]", "[100, 200]"), strict=True):
        ours, bound = (np.array([r[key] for r in records]) for records in (best, truth))
        status = BEATEN if np.median(ours) <= expected else NOT_REACHED
        text = (
            f"Mean squared error on {where}: median {np.median(ours):.1e}, paper {expected:.1e} (one run). At or below "
            f"it for {np.mean(ours <= expected):.0%} of the seeds. The true formula, its numbers fitted, has median "
            f"{np.median(bound):.1e}, and is at or below it for {np.mean(bound <= expected):.0%}."
        )
        lines.append(Verdict(status, text))
    return lines


def draw(outcome: Outcome) -> Figure:
    """The signal, the noisy points, the fit with its continuation, and the activation functions."""
    fit = outcome["fit"]
    figure = plt.figure(figsize=(10, 6.5), layout="constrained")
    above, below = figure.subfigures(2, 1)  # type: ignore[misc]
    draw_series(above.subplots(), fit)
    draw_activations(below, fit)
    return figure


def draw_series(ax: Any, fit: dict[str, Any]) -> None:
    """The points, the signal, and a network with its continuation."""
    both = np.concatenate([INSIDE, BEYOND])
    ax.plot(np.linspace(0, 100, len(fit["y"])), fit["y"], ".", ms=3, color=plotting.GREY, label="500 noisy points")
    ax.plot(both[:, 0], _signal(both), color=plotting.WARM, lw=3, alpha=0.6, label="signal")
    ax.plot(both[:, 0], fit["inside"] + fit["beyond"], color=plotting.DARK, lw=1.2, label="network, 38 parameters")
    ax.axvline(100, color="black", lw=0.8, ls=":")
    ax.set(xlabel="t", ylabel="y")
    ax.legend(frameon=False, loc="upper left")


def draw_activations(figure: Any, fit: dict[str, Any]) -> None:
    """The activation functions of a network."""
    from rtbm.nn.feedforward import make_network

    network = make_network(1, (*SIZES, 1), ["theta"] * 4, dtype=torch.float64)
    network.load_state_dict({k: torch.tensor(v, dtype=torch.float64) for k, v in fit["parameters"].items()}, False)
    plotting.plot_activations(network, INSIDE, figure=figure)


EXPERIMENT = Experiment(
    "A trend with two waves",
    "A network 1:3-3-2:1 of theta units, 38 parameters, learns y(t) = 0.02t + 0.5 sin(t + 0.1) + 0.75 cos(0.25t − 0.3) "
    "from 500 points with noise of variance 1 on [0, 100]. Errors are against the signal without noise, also on "
    "[100, 200], where there are no data.",
    20,
    2,
    (1700, 34),
    jobs,
    collect,
    tables,
    verdicts,
    (
        Picture(
            "",
            "Figure of the time series: the signal, the signal with noise, and the signal as the network learned it "
            "with its continuation; errors 3.6e-2 and 3.8e-2. Another figure has its learned activation functions.",
            "The noisy points, the signal, and the network with its continuation beyond t = 100 (seed 0); below, the "
            "learned activation functions of its four layers.",
            draw,
        ),
    ),
)
