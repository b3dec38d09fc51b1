"""The paper's figures, each from one run, drawn by the library's plotting functions."""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from experiments.experiment import Experiment, Job, Outcome, Picture, ResultTable
from experiments.paper.table1 import PAPER_TABLE, draw_six, mean_squared_error, names_with, sample
from experiments.verdicts import Status, Verdict
from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.estimators import RTBMDensity
from rtbm.estimators.density.fitted import components
from rtbm.explorer.machine import DENSITY_MACHINES, EXPECTATION_MACHINES
from rtbm.training import Density


def jobs(seeds: int, quick: bool) -> list[Job]:
    """One fit of each density."""
    return [Job(name, _fit_density, (name, quick)) for name in PAPER_TABLE]


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """The fits by the names of the densities."""
    return {"seeds": seeds, "quick": quick, **results}


def _fit_density(name: str, quick: bool) -> dict[str, Any]:
    """The machine that the paper fits, on the first sample."""
    density = datasets.DENSITIES[name]
    X = sample(density, 0)
    model = RTBMDensity(density.n_hidden, n_components=density.n_components, random_state=0)
    model.set_params(n_init=2 if quick else 8).fit(X)
    return {"machine": to_numbers(model.distribution_), "error": mean_squared_error(model, density, X)}


def to_numbers(density: Density) -> dict[str, Any]:
    """The parameters of a density of dense machines, as lists."""
    weights = density.weights.tolist() if isinstance(density, RTBMMixture) else [1.0]
    parts = [[getattr(p, name).tolist() for name in ("T", "W", "Q", "b_v", "b_h")] for p in components(density)]
    return {"weights": weights, "machines": parts}


def from_numbers(numbers: Mapping[str, Any]) -> Density:
    """The density whose parameters `to_numbers` returned."""
    parts = [RTBMDistribution(*part) for part in numbers["machines"]]
    return RTBMMixture(numbers["weights"], parts) if len(parts) > 1 else parts[0]


def tables(outcome: Outcome) -> list[ResultTable]:
    """The errors of the fits that are drawn."""
    rows = [[row.title, f"{row.rtbm:.1e}", f"{outcome[name]['error']:.1e}"] for name, row in PAPER_TABLE.items()]
    return [ResultTable("Mean squared error of the fits in the pictures", ["density", "paper", "ours"], rows)]


def verdicts(outcome: Outcome) -> list[Verdict]:
    """No verdicts: the numbers are judged in the other sections."""
    text = (
        "Figures 2, 3, 5 and 6 are drawn anew here, figures 8, 9 and 10 in the sections on the time series and on "
        "Iris. Figures 1, 4, 7 and 11 are schemes, which the theory pages of the documentation have."
    )
    return [Verdict(Status.NOTED, text)]


def draw_densities(outcome: Outcome) -> Figure:
    """P(v), each with its mean."""

    def panel(ax: Any, machine: RTBMDistribution) -> None:
        plotting.plot_density(machine, ax=ax, components=False, legend=False)
        ax.axvline(float(machine.mean), color="grey", ls="--", lw=1)

    return _draw_phases(DENSITY_MACHINES, "P(v)", panel)


def draw_expectations(outcome: Outcome) -> Figure:
    """E(h|v)."""
    return _draw_phases(
        EXPECTATION_MACHINES, "E(h|v)", lambda ax, machine: plotting.plot_expectations(machine, (-10, 10), ax=ax)
    )


def _draw_phases(machines: Mapping[str, list[Any]], label: str, panel: Callable[..., Any]) -> Figure:
    """A row of panels for each phase, and a panel for each machine."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
    for row, (phase, parameters) in zip(axes, machines.items(), strict=True):
        for ax, natural in zip(row, parameters, strict=True):
            machine = RTBMDistribution(*natural, phase=phase)
            panel(ax, machine)
            ax.set(title=f"phase {phase}, {machine.n_hidden} hidden", ylabel=label if ax is row[0] else "")
    return figure


def draw_one(outcome: Outcome) -> Figure:
    """Fits in one dimension."""

    def curves(name: str, v: Floats) -> dict[str, Any]:
        return {"fit": from_numbers(outcome[name]["machine"]).log_prob(v).exp()}

    return draw_six(curves)


def draw_two(outcome: Outcome) -> Figure:
    """Fits in two dimensions."""
    figure = plt.figure(figsize=(12, 4.4), layout="constrained")
    parts: Any = figure.subfigures(1, 3)
    for part, name in zip(parts, names_with(2), strict=True):
        density = datasets.DENSITIES[name]
        X = sample(density, 0)
        joint, above, beside = plotting.plot_joint(from_numbers(outcome[name]["machine"]), X, figure=part, legend=False)
        levels = joint.collections[-1].levels  # type: ignore[attr-defined]
        line = np.linspace(-12, 12, 241)
        p = density.pdf(np.stack(np.meshgrid(line, line), axis=-1).reshape(-1, 2)).reshape(241, 241)
        style: Any = {"color": plotting.DARK, "lw": 1.0}
        joint.contour(line, line, p, levels, colors=plotting.DARK, linewidths=0.8)
        above.plot(line, p.sum(axis=0) * (line[1] - line[0]), **style)
        beside.plot(p.sum(axis=1) * (line[1] - line[0]), line, **style)
        part.suptitle(PAPER_TABLE[name].title)
    return figure


EXPERIMENT = Experiment(
    title="The paper's figures",
    about="Each figure from one run with a fixed seed. The paper does not give the parameters of the machines in its "
    "figures of P(v) and E(h|v); ours are chosen to show what its captions describe.",
    seeds=(1, 1),
    seconds=(50, 12),
    jobs=jobs,
    collect=collect,
    tables=tables,
    verdicts=verdicts,
    pictures=(
        Picture(
            "densities",
            "Figure of P(v) for one visible unit: three machines in phase I above, three in phase II below, the first "
            "of each with one hidden unit and the others with two. Dashed lines are the means.",
            "The same arrangement. Phase I: overlapping Gaussians on a lattice; phase II: a Gaussian with ripples.",
            draw_densities,
        ),
        Picture(
            "expectations",
            "Figure of E(h|v) for one visible unit, phase I above and phase II below; on the right with two hidden "
            "units. Phase I follows a trend with steps, phase II is periodic.",
            "The same arrangement, with a line for each hidden unit.",
            draw_expectations,
        ),
        Picture(
            "one-dimension",
            "Figure of six fits in one dimension: histogram, true density (blue) and fit (red).",
            "The same with the paper's numbers of hidden units and machines: truth dark, fit red.",
            draw_one,
        ),
        Picture(
            "two-dimensions",
            "Figure of three fits in two dimensions: samples, contours of truth and fit, and projections on both axes.",
            "The same: samples, contours and projections of the fit (red) and of the truth (blue).",
            draw_two,
        ),
    ),
)
