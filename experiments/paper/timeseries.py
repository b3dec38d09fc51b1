"""The paper's section 4: a network of 38 parameters learns a trend with two waves from noisy points."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.optimize import least_squares

from experiments.experiment import Experiment, Job, Outcome, Picture, ResultTable
from experiments.records import collect_records, seeded_jobs, timed, values
from experiments.verdicts import Status, Verdict
from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.estimators import ThetaNetRegressor
from rtbm.nn.feedforward import make_network

PAPER_ERRORS = {"inside": 3.6e-2, "beyond": 3.8e-2}
"""The paper's errors, of one run: on [0, 100], where the points lie, and on [100, 200]."""
LAYER_SIZES = (3, 3, 2)
"""The paper's hidden layers; other sizes have another number of parameters than its 38."""
TIMES = {"inside": np.linspace(0, 100, 500)[:, None], "beyond": np.linspace(100, 200, 500)[:, None]}
"""Times at which errors are measured."""


class NetworkMethod(NamedTuple):
    """A way to learn the series: arguments of `ThetaNetRegressor`, and the number of starts in a quick run."""

    options: dict[str, Any]
    quick_init: int = 2


THETA_NETWORK = {"hidden_layer_sizes": LAYER_SIZES, "output_activation": "theta"}
RANDOM_STARTS = THETA_NETWORK | {"initialization": "balanced", "n_init": 32, "alpha": 0.0}
NETWORK_METHODS = {
    "theta, half the starts tuned": NetworkMethod(THETA_NETWORK | {"n_init": 8}, 8),
    "theta, tuned start, CMA-ES": NetworkMethod(THETA_NETWORK | {"n_init": 1, "solver": "cma", "max_iter": 300}, 1),
    "theta, random starts": NetworkMethod(RANDOM_STARTS),
    "theta, random starts, early stopping": NetworkMethod(RANDOM_STARTS | {"validation_fraction": 0.2}),
    "theta, random starts, penalty": NetworkMethod(RANDOM_STARTS | {"alpha": 0.1}),
    "theta, random starts, CMA-ES": NetworkMethod(RANDOM_STARTS | {"n_init": 2, "solver": "cma", "max_iter": 600}, 1),
    "tanh 5-3-2": NetworkMethod({"hidden_layer_sizes": (5, 3, 2), "activation": "tanh", "n_init": 32}),
    "tanh 50-50": NetworkMethod({"hidden_layer_sizes": (50, 50), "activation": "tanh", "n_init": 4}, 1),
}
BEST_NETWORK = next(iter(NETWORK_METHODS))
TRUE_FORMULA = "the true formula, fitted"
"""Least squares for the numbers in the true formula: a bound that no network should beat on average."""
SERIES_CASES = (TRUE_FORMULA, *NETWORK_METHODS)


def jobs(seeds: int, quick: bool, names: Sequence[str] = SERIES_CASES) -> list[Job]:
    """Methods on `seeds` samples of the noise, and one fit for the pictures."""
    return [Job("fit", fit_for_pictures, ()), *seeded_jobs(fit_series, names, seeds, quick)]


def collect(results: Mapping[str, Any], seeds: int, quick: bool, names: Sequence[str] = SERIES_CASES) -> Outcome:
    """The records of the methods, in the order of the seeds, and the fit for the pictures."""
    return collect_records(results, names, seeds, quick) | {"fit": results["fit"]}


def fit_series(name: str, seed: int, quick: bool) -> dict[str, float]:
    """The errors of a method on one sample of the noise."""
    t, y = datasets.time_series.sample(seed=seed)
    if name == TRUE_FORMULA:
        predict, seconds = timed(_fit_formula, t[:, 0], y)
        n_parameters = 8
    else:
        model, seconds = timed(_fit, name, t, y, seed, quick)
        predict, n_parameters = model.predict, model.n_parameters_
    errors = {
        where: float(np.mean((predict(x) - datasets.time_series.signal(x[:, 0])) ** 2)) for where, x in TIMES.items()
    }
    return errors | {"seconds": seconds, "parameters": n_parameters}


def _fit(name: str, t: Floats, y: Floats, seed: int, quick: bool) -> ThetaNetRegressor:
    options, quick_init = NETWORK_METHODS[name]
    if quick:
        options = options | {"n_init": quick_init}
        if options.get("solver") == "cma":
            options["max_iter"] = 30
    return ThetaNetRegressor(**options, random_state=seed).fit(t, y)


def _fit_formula(t: Floats, y: Floats) -> Any:
    """Least squares for the numbers in the formula of the signal, starting from their true values."""

    def signal(p: Floats, t: Floats) -> Floats:
        return p[0] + p[1] * t + p[2] * np.sin(p[3] * t + p[4]) + p[5] * np.cos(p[6] * t + p[7])

    found = least_squares(lambda p: signal(p, t) - y, [0, 0.02, 0.5, 1, 0.1, 0.75, 0.25, -0.3]).x
    return lambda x: signal(found, x[:, 0])


def fit_for_pictures() -> dict[str, Any]:
    """The best network on the first sample: its predictions and its parameters."""
    t, y = datasets.time_series.sample(seed=0)
    model = _fit(BEST_NETWORK, t, y, 0, False)
    predictions = {where: model.predict(x).tolist() for where, x in TIMES.items()}
    state = {name: value.tolist() for name, value in model.module_.named_parameters()}
    return {"y": y.tolist(), **predictions, "parameters": state}


def tables(outcome: Outcome) -> list[ResultTable]:
    """Medians over seeds, with quartiles."""
    rows = [["paper (one run)", "38", *(f"{error:.1e}" for error in PAPER_ERRORS.values()), ""]]
    for name, records in outcome["records"].items():
        errors = [_median(values(records, where)) for where in TIMES]
        rows.append([name, str(records[0]["parameters"]), *errors, f"{np.median(values(records, 'seconds')):.1f}"])
    title = f"Mean squared error against the signal, {outcome['seeds']} seeds"
    title += " (quick: fewer starts and generations)" if outcome["quick"] else ""
    columns = ["median (quartiles)", "parameters", "on [0, 100]", "on [100, 200]", "seconds"]
    return [ResultTable(title, columns, rows)]


def _median(numbers: Floats) -> str:
    low, middle, high = np.quantile(numbers, [0.25, 0.5, 0.75])
    return f"{middle:.1e} ({low:.1e} to {high:.1e})"


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The paper's two errors beside ours, and beside those of the true formula."""
    lines = []
    for (where, expected), interval in zip(PAPER_ERRORS.items(), ("[0, 100]", "[100, 200]"), strict=True):
        ours, bound = (values(outcome["records"][name], where) for name in (BEST_NETWORK, TRUE_FORMULA))
        status = Status.BEATEN if np.median(ours) <= expected else Status.NOT_REACHED
        text = (
            f"Mean squared error on {interval}: median {np.median(ours):.1e}, paper {expected:.1e} (one run). At or "
            f"below it for {np.mean(ours <= expected):.0%} of the seeds. The true formula, with fitted numbers, has "
            f"median {np.median(bound):.1e}, and is at or below it for {np.mean(bound <= expected):.0%}."
        )
        lines.append(Verdict(status, text))
    return lines


def draw(outcome: Outcome) -> Figure:
    """The points, the signal, the network with its extrapolation, and below its activation functions."""
    fit, both = outcome["fit"], np.concatenate(list(TIMES.values()))
    figure = plt.figure(figsize=(10, 6.5), layout="constrained")
    above, below = figure.subfigures(2, 1)  # type: ignore[misc]
    ax = above.subplots()
    ax.plot(np.linspace(0, 100, len(fit["y"])), fit["y"], ".", ms=3, color=plotting.GREY, label="500 noisy points")
    ax.plot(both[:, 0], datasets.time_series.signal(both[:, 0]), color=plotting.WARM, lw=3, alpha=0.6, label="signal")
    ax.plot(both[:, 0], fit["inside"] + fit["beyond"], color=plotting.DARK, lw=1.2, label="network, 38 parameters")
    ax.axvline(100, color="black", lw=0.8, ls=":")
    ax.set(xlabel="t", ylabel="y")
    ax.legend(frameon=False, loc="upper left")
    network = make_network(1, (*LAYER_SIZES, 1), ["theta"] * 4, dtype=torch.float64)
    network.load_state_dict({k: torch.tensor(v, dtype=torch.float64) for k, v in fit["parameters"].items()}, False)
    plotting.plot_activations(network, TIMES["inside"], figure=below)
    return figure


EXPERIMENT = Experiment(
    title="A trend with two waves",
    about="A network 1:3-3-2:1 of theta units, 38 parameters, learns y(t) = 0.02t + 0.5 sin(t + 0.1) + "
    "0.75 cos(0.25t − 0.3) from 500 points with noise of variance 1 on [0, 100]. Errors are against the signal without "
    "noise, also on [100, 200], where there are no data.",
    seeds=(20, 2),
    seconds=(1700, 34),
    jobs=jobs,
    collect=collect,
    tables=tables,
    verdicts=verdicts,
    pictures=(
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
