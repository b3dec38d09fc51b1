"""Draw the pictures of the documentation into docs/pictures/."""

from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse, Polygon

from rtbm import log_theta
from rtbm.theta.lattice import cholesky, enumerate_points, nearest_point, reduce_basis
from rtbm.theta.truncation import log_gauss_sum, squared_radius

FOLDER = Path(__file__).parent / "pictures"
DARK, LIGHT, WARM, GREY = "#1b4965", "#5fa8d3", "#e07a5f", "#c8c8c8"


def lattice_points(R: np.ndarray, reach: int = 14) -> np.ndarray:
    """Lattice points around the origin, in the plane where lengths are those of the form."""
    grid = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 2), -1).reshape(-1, 2)
    return grid @ R.T


def draw_basis(axes: Axes, R: np.ndarray, basis: np.ndarray, title: str) -> None:
    """The lattice of R with two basis vectors, the columns of `basis`."""
    axes.plot(*lattice_points(R).T, "o", color=GREY, ms=3)
    for column in basis.T:
        axes.annotate("", column, (0, 0), arrowprops={"arrowstyle": "-|>", "color": WARM, "lw": 2})
    axes.set(title=title, xlim=(-9, 9), ylim=(-6, 6), aspect="equal", xticks=[], yticks=[])


def draw_truncation(axes: Axes, R: np.ndarray) -> None:
    """The box of residuals, one residual with its ball, and the points that serve every residual."""
    norms = np.diag(R) ** 2
    radius2 = float(squared_radius(norms, float(log_gauss_sum(norms, 0.5).sum()), 1e-2))
    everything = lattice_points(R)
    kept = enumerate_points(R, radius2, np.diag(R) / 2) @ R.T
    residual = np.array([0.45, 0.8])
    residual = residual - nearest_point(R, residual)
    half = np.diag(R) / 2
    corners = [(-half[0], -half[1]), (half[0], -half[1]), (half[0], half[1]), (-half[0], half[1])]
    axes.add_patch(Polygon(corners, closed=True, facecolor=WARM, alpha=0.3, label="where z can be left"))
    centre = R @ residual
    ball = {"width": 2 * radius2**0.5, "height": 2 * radius2**0.5, "fill": False, "edgecolor": DARK, "ls": "--"}
    axes.add_patch(Ellipse(centre, **ball, label="terms that one z needs"))
    axes.plot(*everything.T, "o", color=GREY, ms=3)
    axes.plot(*kept.T, "o", color=LIGHT, ms=5, label="terms that serve every z")
    axes.plot(*centre, "+", color=DARK, ms=10, mew=2)
    axes.set(title="certified truncation", xlim=(-9, 9), ylim=(-6, 6), aspect="equal", xticks=[], yticks=[])
    axes.legend(loc="lower right", fontsize=8)


def draw_lattice() -> None:
    """Reduction and truncation, side by side."""
    reduced_form = np.array([[1.6, 0.4], [0.4, 2.6]])
    skew = np.array([[2, 5], [1, 3]])
    figure, axes = plt.subplots(1, 3, figsize=(13, 3.6), layout="constrained")
    U, reduced = reduce_basis(skew.T @ reduced_form @ skew)
    R = cholesky(reduced)
    draw_basis(axes[0], R, R @ np.linalg.inv(U), "as given: a skewed basis")
    draw_basis(axes[1], R, R, "reduced: the same lattice")
    draw_truncation(axes[2], R)
    figure.savefig(FOLDER / "lattice.png", dpi=110)


def draw_phases() -> None:
    """log θ̃ in both phases: a parabola with ripples, and a periodic function."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    z = torch.linspace(-15, 15, 700, dtype=torch.float64)[:, None]
    for q, colour in zip((1.0, 5.0, 15.0), (DARK, LIGHT, WARM), strict=True):
        axes[0].plot(z, log_theta(z, [[q]]), color=colour, label=f"q = {q:g}")
    for q, colour in zip((0.5, 1.0, 3.0), (DARK, LIGHT, WARM), strict=True):
        axes[1].plot(z, log_theta(z, [[q]], phase="II"), color=colour, label=f"q = {q:g}")
    axes[0].set(xlabel="z", title="phase I: log θ̃(z|q)", ylim=(-2, 40))
    axes[1].set(xlabel="z", title="phase II: log θ̃(iz|q)")
    for panel in axes:
        panel.legend(loc="upper center" if panel is axes[0] else "lower left", framealpha=1)
    figure.savefig(FOLDER / "phases.png", dpi=110)


def main() -> None:
    """Draw everything."""
    FOLDER.mkdir(exist_ok=True)
    draw_lattice()
    draw_phases()


if __name__ == "__main__":
    main()
