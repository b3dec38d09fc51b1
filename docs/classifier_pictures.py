"""Draw the pictures of docs/classifier.md into docs/pictures."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from rtbm import RTBMFeatures, datasets
from rtbm.plotting import DARK, GREY, WARM, plot_images

PICTURES = Path(__file__).parent / "pictures"


def jets() -> None:
    """Single jets of both kinds, and the means of both classes."""
    sample = datasets.jets.load("train")
    w, other = (sample.images[sample.labels == label] for label in (1, 0))
    pictures = np.stack([w[0], w[1], w.mean(axis=0), other[0], other[1], other.mean(axis=0)])
    titles = ["W boson", "W boson", "mean of W bosons", "quark or gluon", "quark or gluon", "mean of the others"]
    plot_images(pictures, titles).savefig(PICTURES / "classifier_jets.png", dpi=90)


def features() -> None:
    """What four hidden units and the density make of one principal component."""
    sample = datasets.jets.load("train")
    x = PCA(3, random_state=0).fit_transform(sample.pixels)[:, 2:]
    model = RTBMFeatures(4, coupling="diagonal", patch_size=1, features="both", random_state=0).fit(x)
    grid = np.linspace(*np.quantile(x, (0.002, 0.998)), 400)[:, None]
    columns = model.transform(grid)
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    edges = np.linspace(grid[0, 0], grid[-1, 0], 61)
    for label, colour, name in ((0, DARK, "quark or gluon"), (1, WARM, "W boson")):
        axes[0].hist(x[sample.labels == label, 0], edges, density=True, color=colour, alpha=0.5, label=name)
    axes[0].plot(grid, np.exp(columns[:, 4]), color="black", lw=1.2, label="P of all")
    axes[0].legend(frameon=False)
    axes[0].set(title="third component of the images")
    for j in range(4):
        axes[1].plot(grid, columns[:, j] / np.abs(columns[:, j]).max(), color=plt.get_cmap("viridis")(0.1 + 0.25 * j))
    axes[1].axhline(0, color=GREY, lw=1)
    axes[1].set(title="E(h|x) of its four units (scaled)")
    axes[2].plot(grid, columns[:, 4], color="black")
    axes[2].set(title="log P(x)")
    for ax in axes:
        ax.set_xlabel("x")
    figure.savefig(PICTURES / "classifier_features.png", dpi=100)


if __name__ == "__main__":
    jets()
    features()
