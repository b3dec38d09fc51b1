"""Draw the pictures of docs/density.md into docs/pictures."""

import math
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMDensity, datasets
from rtbm.plotting import LIGHT, plot_density, plot_joint

PICTURES = Path(__file__).parent / "pictures"


def default_fit(name: str) -> tuple[RTBMDensity, np.ndarray]:
    """The paper's architecture with default settings."""
    density = datasets.DENSITIES[name]
    X = density.sample()
    return RTBMDensity(density.n_hidden, n_components=density.n_components, random_state=0).fit(X), X


def lines() -> None:
    """The six one-dimensional densities."""
    names = [name for name, density in datasets.DENSITIES.items() if density.n_features == 1]
    figure, axes = plt.subplots(2, 3, figsize=(13, 7), layout="constrained")
    for ax, name in zip(axes.flat, names, strict=True):
        model, X = default_fit(name)
        plot_density(model, X, ax=ax, legend=False)
        v = np.linspace(*ax.get_xlim(), 1000)[:, None]
        ax.plot(v, datasets.DENSITIES[name].pdf(v), color=LIGHT, lw=1.5, ls="--", label="true density")
        ax.set(title=name.replace("_", " "), xlabel="", ylabel="")
    axes[0, 0].legend(frameon=False)
    figure.savefig(PICTURES / "density_lines.png", dpi=100)


def planes() -> None:
    """The three two-dimensional densities."""
    names = [name for name, density in datasets.DENSITIES.items() if density.n_features == 2]
    figure = plt.figure(figsize=(14, 5.4), layout="constrained")
    for part, name in zip(figure.subfigures(1, 3), names, strict=True):
        model, X = default_fit(name)
        plot_joint(model, X, figure=part)
        part.suptitle(name.replace("_", " "))
    figure.savefig(PICTURES / "density_planes.png", dpi=100)


def prior() -> None:
    """What the prior is for: five hidden units on 200 points."""
    X = datasets.gamma.sample(200, seed=1)
    test = datasets.gamma.sample(20_000, seed=2)
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), sharey=True, layout="constrained")
    v = np.linspace(0, 20, 1000)[:, None]
    for ax, strength in zip(axes, (0.0, 0.1, 1.0), strict=True):
        model = RTBMDensity(5, regularization=strength, fallback=None, random_state=0).fit(X)
        plot_density(model, X, ax=ax, components=False, legend=False)
        ax.plot(v, datasets.gamma.pdf(v), color=LIGHT, lw=1.5, ls="--")
        ax.set(title=f"regularization={strength:g}: new data {model.score(test):.3f}", ylim=(0, 0.3))
    figure.savefig(PICTURES / "density_prior.png", dpi=100)


def bounds() -> None:
    """An edge: without bounds, and with them."""
    X = np.random.default_rng(0).gamma(1.5, size=(1000, 1))
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for ax, ends in zip(axes, (None, (0, None)), strict=True):
        model = RTBMDensity(3, bounds=ends, random_state=0).fit(X)
        plot_density(model, X, ax=ax, components=False, legend=False)
        v = np.linspace(0, ax.get_xlim()[1], 1000)
        ax.plot(v, np.sqrt(v) * np.exp(-v) / math.gamma(1.5), color=LIGHT, lw=1.5, ls="--")
        ax.set(title=f"bounds={ends}", xlabel="a gamma sample, of shape 1.5")
    figure.savefig(PICTURES / "density_bounds.png", dpi=100)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    PICTURES.mkdir(exist_ok=True)
    for picture in (lines, planes, prior, bounds):
        picture()
        plt.close("all")
