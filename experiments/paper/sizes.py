"""The paper's section 3: it expects fits to improve with more hidden units. Errors against the number of units."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments import baselines
from experiments.experiment import Experiment, Outcome, Picture, ResultTable
from experiments.paper.table1 import HELD_OUT_POINTS, PAPER_TABLE, mean_squared_error, names_with, sample
from experiments.records import seeded, values, with_error
from experiments.verdicts import Difference, Status, Verdict
from rtbm import datasets, plotting
from rtbm.estimators import RTBMDensity

UNITS = (1, 2, 3, 4, 5, 6)
"""Numbers of hidden units."""
QUICK_UNITS = (1, 2)
"""Those of quick runs."""


def fit_sizes(name: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """The errors and likelihoods of machines of all sizes on one sample of a density."""
    density = datasets.DENSITIES[name]
    X, others = sample(density, seed), density.sample(HELD_OUT_POINTS[quick], seed=10_000 + seed)

    def score(_: str, model: Any) -> dict[str, float]:
        return {"error": mean_squared_error(model, density, X), "likelihood": float(model.score(others))}

    def fit(n_hidden: int) -> baselines.Fit:
        effort: dict[str, Any] = baselines.QUICK_FIT if quick else {}
        return lambda X, seed, quick: RTBMDensity(
            n_hidden, n_components=density.n_components, random_state=seed, **effort
        ).fit(X)

    sizes = QUICK_UNITS if quick else UNITS
    return baselines.fit_and_score({str(n): fit(n) for n in sizes}, X, seed, quick, score)


def _sizes(outcome: Outcome) -> list[str]:
    return list(next(iter(outcome["records"].values()))[0])


def tables(outcome: Outcome) -> list[ResultTable]:
    """Errors and likelihoods of each size."""
    sizes, found = _sizes(outcome), []
    for what, title, forms in (
        ("error", "Mean squared error against the true density", (".2e", ".0e")),
        ("likelihood", f"Mean log-likelihood of {HELD_OUT_POINTS[outcome['quick']]} other points", (".4f", ".0e")),
    ):
        rows = [
            [PAPER_TABLE[name].title, *(with_error(values(records, size, what), *forms) for size in sizes)]
            for name, records in outcome["records"].items()
        ]
        columns = ["density", *(f"{size} hidden" for size in sizes)]
        found.append(ResultTable(f"{title} ± standard error, {outcome['seeds']} samples", columns, rows))
    return found


def verdicts(outcome: Outcome) -> list[Verdict]:
    """Whether the error of the largest machines is clearly below that of the smallest ones."""
    sizes, lines = _sizes(outcome), []
    for name, records in outcome["records"].items():
        errors = {size: values(records, size, "error") for size in sizes}
        difference = Difference.paired(errors[sizes[0]], errors[sizes[-1]])
        best = min(sizes, key=lambda size: errors[size].mean())
        status = Status.REPRODUCED if difference.mean > 0 and difference.is_clear else Status.NOT_REACHED
        lines.append(
            Verdict(
                status,
                f"{PAPER_TABLE[name].title}: the error goes from {errors[sizes[0]].mean():.1e} with {sizes[0]} hidden "
                f"unit to {errors[sizes[-1]].mean():.1e} with {sizes[-1]}; it is smallest with {best}, "
                f"{errors[best].mean():.1e}.",
            )
        )
    return lines


def draw(outcome: Outcome) -> Figure:
    """Errors relative to those of the smallest machines."""
    figure, ax = plt.subplots(figsize=(7, 4), layout="constrained")
    sizes = _sizes(outcome)
    ax.set_prop_cycle(color=plt.get_cmap("viridis")(np.linspace(0, 0.9, len(outcome["records"]))))
    for name, records in outcome["records"].items():
        errors = np.array([values(records, size, "error").mean() for size in sizes])
        ax.plot([int(size) for size in sizes], errors / errors[0], "o-", label=PAPER_TABLE[name].title)
    ax.set(xlabel="hidden units", ylabel="mean squared error / that of one unit", yscale="log")
    ax.axhline(1, color=plotting.GREY, lw=0.8, ls=":")
    ax.legend(frameon=False, fontsize="small")
    return figure


EXPERIMENT = Experiment(
    title="More hidden units",
    about="The paper expects that more hidden units improve its fits. Machines of 1 to 6 hidden units (two machines "
    "for the Cauchy mixture, as in the paper), trained by the default of `RTBMDensity`, on the samples of the table of "
    "nine densities. Errors are those of the table.",
    seeds=(6, 2),
    seconds=(900, 10),
    **seeded(fit_sizes, names_with(1)),
    tables=tables,
    verdicts=verdicts,
    pictures=(
        Picture(
            "",
            "No such figure. The text expects that more hidden nodes, or an average over different runs, improve the "
            "fits.",
            "Average errors over samples, relative to those of machines with one hidden unit.",
            draw,
        ),
    ),
)
