"""Draw the picture of docs/prediction.md: python docs/prediction_pictures.py."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMDensity, RTBMRegressor

PICTURES = Path(__file__).parent / "pictures"


def draw_regression(ax: plt.Axes, rng: np.random.Generator) -> None:
    """A curve with noise that grows, and the central 50 % and 90 % intervals."""
    x = rng.uniform(-3, 3, 800)
    y = np.sin(2 * x) + 0.4 * x + (0.1 + 0.15 * (x > 0) * x) * rng.normal(size=800)
    model = RTBMRegressor(random_state=0).fit(x[:, None], y)
    line = np.linspace(-3, 3, 300)[:, None]
    low, lower, middle, upper, high = model.predict_quantiles(line, [0.05, 0.25, 0.5, 0.75, 0.95]).T
    ax.fill_between(line[:, 0], low, high, color="tab:blue", alpha=0.2, lw=0, label="90 %")
    ax.fill_between(line[:, 0], lower, upper, color="tab:blue", alpha=0.4, lw=0, label="50 %")
    ax.plot(line[:, 0], middle, color="tab:blue", label="median")
    ax.scatter(x, y, s=4, color="black", alpha=0.4, lw=0)
    ax.set(xlabel="x", ylabel="y", title="intervals of y given x")
    ax.legend(frameon=False)


def draw_imputation(axes: list[plt.Axes], rng: np.random.Generator) -> None:
    """A ring with missing second coordinates, filled in by means and by draws."""
    angle = rng.uniform(0, 2 * np.pi, 600)
    ring = np.column_stack([np.cos(angle), np.sin(angle)]) + 0.1 * rng.normal(size=(600, 2))
    model = RTBMDensity(1, n_components=8, random_state=0).fit(ring)
    gaps = ring[:200].copy()
    gaps[:, 1] = np.nan
    for ax, method in zip(axes, ("mean", "sample"), strict=True):
        filled = model.impute(gaps, method=method, random_state=0)
        ax.scatter(*ring[200:].T, s=4, color="black", alpha=0.3, lw=0)
        ax.scatter(*filled.T, s=8, color="tab:red", lw=0)
        ax.set(xlabel="first feature", ylabel="second, missing for red points", title=f'impute(method="{method}")')
        ax.set_aspect("equal")


def main() -> None:
    """Draw the picture."""
    rng = np.random.default_rng(0)
    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    draw_regression(axes[0], rng)
    draw_imputation(list(axes[1:]), rng)
    figure.savefig(PICTURES / "prediction.png", dpi=110)


if __name__ == "__main__":
    main()
