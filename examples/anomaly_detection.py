"""Find malignant tumours without having seen one: a density of benign ones, and what is unlikely under it.

    python examples/anomaly_detection.py --output build/anomaly_detection.png

Estimators see 250 benign tumours of the breast cancer data that come with scikit-learn, by the first principal
components of the logarithms of their measurements. All others are ranked by log-likelihood, and the area under the ROC
curve says how well malignant ones stand out. Gaussian mixtures have the number of components with the lowest BIC.
"""

import argparse
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_breast_cancer
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.mixture import GaussianMixture
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, LIGHT, WARM

N_TRAIN, SPLITS, N_COMPONENTS = 250, 10, (4, 10)
RTBM = "RTBM (1 hidden unit)"
COLOURS = {RTBM: DARK, "GaussianMixture": LIGHT, "IsolationForest": WARM}


def split(n_components: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Components of benign tumours for training, of all others, and whether these are malignant."""
    X, is_benign = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(seed).permutation(np.flatnonzero(is_benign))
    train, rest = order[:N_TRAIN], np.setdiff1d(np.arange(len(X)), order[:N_TRAIN])
    pca = make_pipeline(StandardScaler(), PCA(n_components, random_state=0)).fit(np.log1p(X[train]))
    return pca.transform(np.log1p(X[train])), pca.transform(np.log1p(X[rest])), is_benign[rest] == 0


def fit_all(X: np.ndarray) -> dict[str, Any]:
    """The three estimators."""
    mixtures = [GaussianMixture(k, random_state=0).fit(X) for k in range(1, 7)]
    return {
        RTBM: RTBMDensity(1, n_init=2, random_state=0).fit(X),
        "GaussianMixture": min(mixtures, key=lambda mixture: mixture.bic(X)),
        "IsolationForest": IsolationForest(random_state=0).fit(X),
    }


def areas(n_components: int, seed: int) -> list[float]:
    """The areas under the ROC curves of one split."""
    train, rest, is_malignant = split(n_components, seed)
    return [float(roc_auc_score(is_malignant, -model.score_samples(rest))) for model in fit_all(train).values()]


def draw(n_components: int) -> plt.Figure:
    """The marginal density of two components with tumours of both kinds, and ROC curves, for one split."""
    train, rest, is_malignant = split(n_components, 0)
    models = fit_all(train)
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    low, high = rest[:, :2].min(axis=0) - 1, rest[:, :2].max(axis=0) + 1
    x, y = (np.linspace(low[i], high[i], 160) for i in (0, 1))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    log_prob = models[RTBM].marginal([0, 1]).score_samples(grid).reshape(160, 160)
    axes[0].contourf(x, y, log_prob, np.arange(-16, -2.9, 1.0), cmap="Blues", extend="both", alpha=0.8)
    for kind, colour, name in ((~is_malignant, "black", "benign"), (is_malignant, WARM, "malignant")):
        axes[0].plot(*rest[kind, :2].T, ".", ms=4, color=colour, label=name)
    axes[0].set(xlabel="first component", ylabel="second component", title="log P of benign tumours, and new ones")
    axes[0].legend()
    for name, model in models.items():
        scores = -model.score_samples(rest)
        false, true, _ = roc_curve(is_malignant, scores)
        axes[1].plot(false, true, color=COLOURS[name], label=f"{name}: {roc_auc_score(is_malignant, scores):.3f}")
    axes[1].plot([0, 1], [0, 1], color=GREY, lw=1)
    axes[1].set(xlabel="benign ones called strange", ylabel="malignant ones found", title="ROC, and the area under it")
    axes[1].legend(loc="lower right")
    return figure


def main() -> None:
    """Rank tumours on several splits, print areas under ROC curves, and draw one split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/anomaly_detection.png"))
    arguments = parser.parse_args()
    table = Table(title=f"Area under the ROC curve, {SPLITS} splits: mean ± standard deviation")
    for name in ("components", *COLOURS):
        table.add_column(name, justify="right")
    for n_components in N_COMPONENTS:
        found = np.array([areas(n_components, seed) for seed in range(SPLITS)])
        pairs = zip(found.mean(axis=0), found.std(axis=0, ddof=1), strict=True)
        table.add_row(str(n_components), *(f"{mean:.3f} ± {spread:.3f}" for mean, spread in pairs))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    draw(N_COMPONENTS[0]).savefig(arguments.output, dpi=110)
    Console().print(table)
    Console().print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
