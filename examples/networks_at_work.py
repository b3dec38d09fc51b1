"""When a theta unit pays, and when it does not: three tasks, each by a theta network and by a tanh network.

    python examples/networks_at_work.py --output build/networks_at_work.png

The networks have one hidden layer and about as many parameters (theta 5 units, 21 numbers; tanh 7 units, 22), and are
trained by the same solver from the same number of starts. Errors are mean squares against the signal without noise, on
the range of the data and on the next half of it, averaged over ten samples of the noise.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from rich.console import Console
from rich.table import Table
from sklearn.exceptions import ConvergenceWarning

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from rtbm import ThetaNetRegressor
from rtbm.plotting import DARK, GREY, WARM

Signal = Callable[[np.ndarray], np.ndarray]

TASKS: dict[str, tuple[Signal, float]] = {
    "trend and season": (lambda t: 0.15 * t + np.sin(2 * np.pi * t) + 0.4 * np.cos(4 * np.pi * t), 8.0),
    "two tones": (lambda t: np.sin(4 * t) + 0.7 * np.sin(2.3 * t + 1), 8.0),
    "saturation": (lambda t: 2 / (1 + np.exp(3 - 2 * t)) + np.exp(-((t - 4) ** 2)), 8.0),
}
NETWORKS = {
    "theta": {"hidden_layer_sizes": (5,), "activation": "theta"},
    "tanh": {"hidden_layer_sizes": (7,), "activation": "tanh"},
}
COLOURS = {"theta": DARK, "tanh": WARM}
NOISE, N_POINTS, SEEDS = 0.3, 160, 10


def fit(kind: str, t: np.ndarray, y: np.ndarray, seed: int) -> ThetaNetRegressor:
    """One network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return ThetaNetRegressor(**NETWORKS[kind], alpha=0.01, n_init=8, random_state=seed).fit(t, y)


def errors(kind: str, signal: Signal, end: float, seed: int) -> tuple[float, float]:
    """Mean squared errors inside and beyond the data."""
    t, y = observe(signal, end, seed)
    model = fit(kind, t, y, seed)
    ranges = (np.linspace(0, end, 400)[:, None], np.linspace(end, 1.5 * end, 200)[:, None])
    inside, beyond = (float(np.mean((model.predict(x) - signal(x[:, 0])) ** 2)) for x in ranges)
    return inside, beyond


def observe(signal: Signal, end: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy points at random places."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, end, N_POINTS))
    return t[:, None], signal(t) + NOISE * rng.normal(size=N_POINTS)


def main() -> None:
    """Compare the networks, print a table and draw one sample of each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/networks_at_work.png"))
    arguments = parser.parse_args()
    table = Table(title=f"Mean squared error, median over {SEEDS} samples")
    for name in ("task", "network", "inside the data", "beyond"):
        table.add_column(name, justify="left" if name in ("task", "network") else "right")
    figure, axes = plt.subplots(1, len(TASKS), figsize=(13, 3.6), layout="constrained")
    for ax, (task, (signal, end)) in zip(axes, TASKS.items(), strict=True):
        for kind in NETWORKS:
            inside, beyond = np.median([errors(kind, signal, end, seed) for seed in range(SEEDS)], axis=0)
            table.add_row(task, kind, f"{inside:.4f}", f"{beyond:.3f}")
        t, y = observe(signal, end, 0)
        x = np.linspace(0, 1.5 * end, 900)[:, None]
        ax.plot(t, y, ".", ms=4, color=GREY)
        ax.plot(x, signal(x[:, 0]), color="black", lw=2.5, alpha=0.3, label="signal")
        low, high = ax.get_ylim()
        for kind in NETWORKS:
            ax.plot(x, fit(kind, t, y, 0).predict(x), color=COLOURS[kind], lw=1.3, label=kind)
        ax.axvline(end, color="black", lw=0.8, ls=":")
        ax.set(title=task, xlabel="t", ylim=(low - 0.5, high + 0.5))
    axes[0].legend(frameon=False)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, dpi=110)
    Console().print(table)
    Console().print(f"picture: {arguments.output}")


if __name__ == "__main__":
    main()
