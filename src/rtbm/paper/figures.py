"""The paper's figures, each from one run, in the library's own plotting functions."""

import warnings
from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.estimators import RTBMDensity
from rtbm.estimators.density.fitted import components
from rtbm.paper import iris, timeseries
from rtbm.paper.experiment import NOTED, Experiment, Job, Outcome, Picture, Table, Verdict
from rtbm.paper.table1 import PAPER, mean_squared_error
from rtbm.training.family import Density

ONE = [name for name in PAPER if datasets.DENSITIES[name].n_features == 1]
TWO = [name for name in PAPER if datasets.DENSITIES[name].n_features == 2]
IRIS_REPETITIONS, IRIS_ITERATIONS = 20, 300
N_JETS = 2000

# T, W, Q, b_v, b_h of machines with one visible unit
DENSITY_MACHINES: dict[str, list[Any]] = {
    "I": [
        ([[1.0]], [[3.0]], [[12.0]], [0.0], [6.0]),
        ([[2.0]], [[4.0, 2.0]], [[12.0, 1.0], [1.0, 6.0]], [0.0], [2.0, -1.0]),
        ([[4.0]], [[6.0, 3.0]], [[11.0, 4.0], [4.0, 5.0]], [0.0], [3.0, 0.5]),
    ],
    "II": [
        ([[0.3]], [[2.5]], [[1.5]], [0.0], [0.5]),
        ([[0.2]], [[1.5, 3.5]], [[2.5, 0.5], [0.5, 2.0]], [0.0], [0.3, 1.0]),
        ([[0.15]], [[1.0, 4.0]], [[1.6, -0.6], [-0.6, 2.4]], [0.1], [1.5, 0.0]),
    ],
}
EXPECTATION_MACHINES: dict[str, list[Any]] = {
    "I": [
        ([[1.0]], [[1.0]], [[4.0]], [0.0], [0.0]),
        ([[1.0]], [[3.0]], [[24.0]], [0.0], [1.0]),
        ([[6.0]], [[6.0, 2.0]], [[14.0, 4.0], [4.0, 10.0]], [0.0], [0.0, 2.0]),
    ],
    "II": [
        ([[1.0]], [[1.0]], [[2.0]], [0.0], [0.0]),
        ([[1.0]], [[1.5]], [[6.0]], [0.0], [1.0]),
        ([[1.0]], [[1.0, 2.0]], [[2.5, 1.0], [1.0, 3.0]], [0.0], [0.0, 1.0]),
    ],
}


def jobs(seeds: int, quick: bool) -> list[Job]:
    """One fit of each density, one of the time series, Iris, and one patch of the classifier."""
    fits = [Job(name, _fit_density, (name, quick)) for name in PAPER]
    flowers = [
        Job(f"iris, {kind}", iris.run_one, (kind, "squared_error", IRIS_REPETITIONS, MARKS)) for kind in iris.UNITS
    ]
    return [Job("time series", timeseries.one_fit, ()), *fits, *flowers, Job("classifier", _fit_patch, ())]


MARKS = [0, *np.unique(np.geomspace(1, IRIS_ITERATIONS, 20).round().astype(int)).tolist()]


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """The results as they are."""
    return {"seeds": seeds, "quick": quick, **results}


def _fit_density(name: str, quick: bool) -> dict[str, Any]:
    """The machine that the paper fits, on the first sample."""
    density = datasets.DENSITIES[name]
    X = density.sample(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RTBMDensity(density.n_hidden, n_components=density.n_components, random_state=0)
        model.set_params(n_init=2 if quick else 8).fit(X)
    return {"machine": to_numbers(model.distribution_), "error": mean_squared_error(model, density, X)}


def _fit_patch() -> dict[str, Any]:
    """One of the classifier's machines: two principal components of jet images, two hidden units."""
    X = jet_components()
    return {"machine": to_numbers(RTBMDensity(2, random_state=0).fit(X).distribution_)}


def jet_components() -> Floats:
    """The first two principal components (n, 2) of jet images, standardised."""
    pixels = datasets.jets.load().pixels[:N_JETS]
    return StandardScaler().fit_transform(PCA(2, svd_solver="randomized", random_state=0).fit_transform(pixels))


def to_numbers(density: Density) -> dict[str, Any]:
    """Dense machines as lists."""
    weights = density.weights.tolist() if isinstance(density, RTBMMixture) else [1.0]
    parts = [[getattr(p, name).tolist() for name in ("T", "W", "Q", "b_v", "b_h")] for p in components(density)]
    return {"weights": weights, "machines": parts}


def from_numbers(numbers: Mapping[str, Any]) -> Density:
    """What `to_numbers` was given."""
    parts = [RTBMDistribution(*part) for part in numbers["machines"]]
    return RTBMMixture(numbers["weights"], parts) if len(parts) > 1 else parts[0]


def tables(outcome: Outcome) -> list[Table]:
    """The errors of the fits that are drawn."""
    rows = [[PAPER[name].title, f"{PAPER[name].rtbm:.1e}", f"{outcome[name]['error']:.1e}"] for name in PAPER]
    return [Table("Mean squared error of the fits in the pictures", ["density", "paper", "ours"], rows)]


def verdicts(outcome: Outcome) -> list[Verdict]:
    """None of its own: a picture is for the reader to judge, and the numbers are judged in the other sections."""
    return [Verdict(NOTED, "All figures of the paper are drawn anew; their numbers are judged in the other sections.")]


def draw_densities(outcome: Outcome) -> Figure:
    """P(v), each with its mean."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
    for row, (phase, machines) in zip(axes, DENSITY_MACHINES.items(), strict=True):
        for ax, parameters in zip(row, machines, strict=True):
            machine = RTBMDistribution(*parameters, phase=phase)
            plotting.plot_density(machine, ax=ax, components=False, legend=False)
            ax.axvline(float(machine.mean), color="grey", ls="--", lw=1)
            ax.set(title=f"phase {phase}, {machine.n_hidden} hidden", ylabel="P(v)" if ax is row[0] else "")
    return figure


def draw_expectations(outcome: Outcome) -> Figure:
    """E(h|v)."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
    for row, (phase, machines) in zip(axes, EXPECTATION_MACHINES.items(), strict=True):
        for ax, parameters in zip(row, machines, strict=True):
            machine = RTBMDistribution(*parameters, phase=phase)
            plotting.plot_expectations(machine, (-10, 10), ax=ax)
            ax.set(title=f"phase {phase}, {machine.n_hidden} hidden", ylabel="E(h|v)" if ax is row[0] else "")
    return figure


def draw_one(outcome: Outcome) -> Figure:
    """Fits in one dimension."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 6), layout="constrained")
    for ax, name in zip(axes.ravel(), ONE, strict=True):
        density = datasets.DENSITIES[name]
        X = density.sample(seed=0)
        plotting.plot_density(from_numbers(outcome[name]["machine"]), X, ax=ax, components=False, legend=False)
        v = np.linspace(X.min(), X.max(), 600)[:, None]
        ax.plot(v, density.pdf(v), color=plotting.DARK, lw=1.5, label="truth")
        ax.set(title=PAPER[name].title, xlabel="", ylabel="")
    axes[0, 0].legend(frameon=False)
    return figure


def draw_two(outcome: Outcome) -> Figure:
    """Fits in two dimensions."""
    figure = plt.figure(figsize=(12, 4.4), layout="constrained")
    parts: Any = figure.subfigures(1, 3)
    for part, name in zip(parts, TWO, strict=True):
        density = datasets.DENSITIES[name]
        X = density.sample(seed=0)
        joint, _, _ = plotting.plot_joint(from_numbers(outcome[name]["machine"]), X, figure=part, legend=False)
        levels = joint.collections[-1].levels  # type: ignore[attr-defined]
        x, y = (np.linspace(*limits, 120) for limits in (joint.get_xlim(), joint.get_ylim()))
        p = density.pdf(np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)).reshape(120, 120)
        joint.contour(x, y, p, levels, colors="black", linewidths=0.8, linestyles=":")
        part.suptitle(PAPER[name].title)
    return figure


def draw_series(outcome: Outcome) -> Figure:
    """The time series, and what a network made of it."""
    figure, ax = plt.subplots(figsize=(10, 3.4), layout="constrained")
    timeseries.draw_series(ax, outcome["time series"])
    return figure


def draw_iris(outcome: Outcome) -> Figure:
    """Precision against iterations."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    iris.draw_curves(axes, MARKS, {kind: outcome[f"iris, {kind}"]["curves"] for kind in iris.UNITS})
    return figure


def draw_activations(outcome: Outcome) -> Figure:
    """The learned activation functions of both networks."""
    figure = plt.figure(figsize=(12, 3.2), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(4, 1.2))  # type: ignore[misc]
    timeseries.draw_activations(left, outcome["time series"])
    ax = right.subplots()
    iris.draw_units(ax, outcome["iris, theta"]["units"])
    ax.set(title="Iris")
    return figure


def draw_classifier(outcome: Outcome) -> Figure:
    """From images over a machine to its expectations."""
    jets = datasets.jets.load()
    machine, X, labels = from_numbers(outcome["classifier"]["machine"]), jet_components(), jets.labels[:N_JETS]
    figure = plt.figure(figsize=(12, 3.8), layout="constrained")
    left, middle, right = figure.subfigures(1, 3, width_ratios=(1.1, 1, 1))  # type: ignore[misc]
    means = [jets.images[jets.labels == label].mean(axis=0) for label in (1, 0)]
    plotting.plot_images(means, ["W boson", "quark or gluon"], figure=left)
    joint, _, _ = plotting.plot_joint(machine, X, figure=middle, legend=False)
    joint.set(xlabel="component 1", ylabel="component 2")
    ax = right.subplots()
    E = machine.hidden_mean(X).numpy()
    for label, colour, name in ((1, plotting.WARM, "W boson"), (0, plotting.LIGHT, "quark or gluon")):
        ax.bar(np.arange(2) + 0.4 * (0.5 - label), E[labels == label].mean(axis=0), 0.4, color=colour, label=name)
    ax.set_xticks(range(2), ["E(h₁|v)", "E(h₂|v)"])
    ax.set(title="mean over jets")
    ax.legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    "The paper's figures",
    "Each figure from one run with a fixed seed. The paper does not give the parameters of its first two figures; ours "
    "are chosen to show the same variety.",
    1,
    1,
    (50, 12),
    jobs,
    collect,
    tables,
    verdicts,
    (
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
            "The same: samples, contours of the fit (red) and of the truth (dotted), projections of sample and fit.",
            draw_two,
        ),
        Picture(
            "time-series",
            "Figure of the time series: the signal, the signal with noise, the reconstruction and its continuation.",
            "All in one: noisy points up to t = 100, the signal, and the network, which goes on beyond.",
            draw_series,
        ),
        Picture(
            "iris",
            "Figure of Iris: precision against iterations on training and on test data, theta and tanh.",
            f"The same for {IRIS_REPETITIONS} repetitions of {IRIS_ITERATIONS} iterations.",
            draw_iris,
        ),
        Picture(
            "activations",
            "Figure of learned activation functions: of the network for the time series, and of that for Iris.",
            "The same, a panel for each layer of the first network.",
            draw_activations,
        ),
        Picture(
            "classifier",
            "Figure of the classifier: a scheme of machines on blocks of four pixels, and a standard classifier on "
            "their expectations.",
            "One of the machines at work on jets: mean images of both classes, the density of the first two principal "
            "components, and the mean of the expectations that the classifier is fed, by class.",
            draw_classifier,
        ),
    ),
)
