"""Draw the pictures of the page on the machine into docs/pictures/."""

from pathlib import Path

import matplotlib
import numpy as np
import torch

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from rtbm import RTBMDistribution

FOLDER = Path(__file__).parent / "pictures"
DARK, LIGHT, WARM, GREY = "#1b4965", "#5fa8d3", "#e07a5f", "#c8c8c8"

FIRST = [  # T, W, Q, b_v, b_h of phase I
    ([[2.0]], [[4.0]], [[11.0]], [0.0], [2.0]),
    ([[10.0]], [[6.0, 11.0]], [[8.0, 7.0], [7.0, 18.0]], [1.0], [-1.0, 3.0]),
    ([[14.0]], [[9.0, 16.0]], [[7.5, 10.0], [10.0, 20.5]], [-3.0], [-3.5, -7.0]),
]
SECOND = [  # and of phase II
    ([[0.3]], [[4.0]], [[1.2]], [0.3], [0.5]),
    ([[0.4]], [[3.0, 1.3]], [[1.0, 0.2], [0.2, 1.5]], [0.0], [1.0, 2.0]),
    ([[0.5]], [[5.0, 2.0]], [[2.0, -0.6], [-0.6, 0.8]], [-0.5], [2.0, 3.0]),
]


def draw_density(axes: Axes, parameters: tuple, phase: str) -> None:
    """P(v) and its mean."""
    machine = RTBMDistribution(*parameters, phase=phase)
    mean, deviation = float(machine.mean), float(machine.variance) ** 0.5
    v = torch.linspace(mean - 3.5 * deviation, mean + 3.5 * deviation, 1200, dtype=torch.float64)
    density = machine.log_prob(v[:, None]).exp()
    axes.fill_between(v, density, color=LIGHT, alpha=0.35, lw=0)
    axes.plot(v, density, color=DARK)
    axes.axvline(mean, color="grey", ls="--", lw=1)
    axes.set(title=f"phase {phase}, $N_h$ = {machine.n_hidden}", xlabel="v", ylabel="P(v)", ylim=(0, None))


def draw_densities() -> None:
    """Like the paper's figure of P(v): phase I above, phase II below, means dashed."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
    for row, phase, family in zip(axes, ("I", "II"), (FIRST, SECOND), strict=True):
        for panel, parameters in zip(row, family, strict=True):
            draw_density(panel, parameters, phase)
    figure.savefig(FOLDER / "machine_densities.png", dpi=110)


def draw_expectation(axes: Axes, W: list, Q: list, b_h: list, phase: str) -> None:
    """E(h|v): T and b_v do not matter for it, so T only has to be large enough."""
    machine = RTBMDistribution([[50.0]], W, Q, [0.0], b_h, phase=phase)
    v = torch.linspace(-4, 4, 1200, dtype=torch.float64)
    for unit, colour in zip(machine.hidden_mean(v[:, None]).mT, (DARK, WARM), strict=False):
        axes.plot(v, unit, color=colour)
    axes.set(title=f"phase {phase}, $N_h$ = {machine.n_hidden}", xlabel="v", ylabel="E(h|v)")


def draw_expectations() -> None:
    """Like the paper's figure of E(h|v)."""
    first = [
        ([[-4.0]], [[3.0]], [0.0]),
        ([[-9.0]], [[12.0]], [2.0]),
        ([[-4.0, 7.0]], [[8.0, -3.0], [-3.0, 9.0]], [1.0, 2.0]),
    ]
    second = [
        ([[3.0]], [[4.0]], [0.0]),
        ([[3.0]], [[0.6]], [0.0]),
        ([[3.0, 5.0]], [[1.2, 0.4], [0.4, 0.9]], [0.0, 1.0]),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(11, 5.6), layout="constrained")
    for row, phase, family in zip(axes, ("I", "II"), (first, second), strict=True):
        for panel, parameters in zip(row, family, strict=True):
            draw_expectation(panel, *parameters, phase)
    figure.savefig(FOLDER / "machine_expectations.png", dpi=110)


def contours(axes: Axes, machine: RTBMDistribution, reach: float) -> None:
    """The density of two visible units."""
    x = torch.linspace(-reach, reach, 240, dtype=torch.float64)
    grid = torch.cartesian_prod(x, x)
    density = machine.log_prob(grid).exp().reshape(240, 240).mT
    axes.contourf(x, x, density, levels=12, cmap="Blues")
    axes.set(aspect="equal", xlim=(-reach, reach), ylim=(-reach, reach), xlabel="$v_1$", ylabel="$v_2$")


def draw_lattice_view() -> None:
    """The machine as a noisy view of a lattice, its samples, and a conditional."""
    machine = RTBMDistribution.from_lattice(
        [[1.1, 0.3], [0.3, 0.8]], [-0.5, 0.2], [[1.6, 0.5], [-0.4, 1.7]], [0.0, 0.0], [[0.12, 0.05], [0.05, 0.1]]
    )
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 4), layout="constrained")
    contours(axes[0], machine, 5)
    h = torch.cartesian_prod(*[torch.arange(-4.0, 5.0, dtype=torch.float64)] * 2)
    centres = machine.lattice.mean + h @ machine.lattice.F.mT
    weights = machine.hidden_log_prob(h).exp()
    axes[0].scatter(*centres.mT, s=600 * weights, color=WARM, alpha=0.8, lw=0)
    axes[0].set(title="P(v), and mean + Fh with area P(h)")
    draws = machine.sample((4000,), generator=torch.Generator().manual_seed(0))
    axes[1].plot(*draws.mT, ".", color=DARK, ms=1.5)
    axes[1].set(aspect="equal", xlim=(-5, 5), ylim=(-5, 5), xlabel="$v_1$", title="4,000 exact draws")
    v = torch.linspace(-5, 5, 800, dtype=torch.float64)[:, None]
    axes[2].plot(v, machine.marginal(1).log_prob(v).exp(), color=GREY, lw=2, label="$P(v_2)$")
    for value, colour in ((-1.5, DARK), (0.0, LIGHT), (1.5, WARM)):
        conditional = machine.conditional({0: value})
        axes[2].plot(v, conditional.log_prob(v).exp(), color=colour, label=f"$P(v_2 | v_1 = {value:g})$")
    axes[2].set(xlabel="$v_2$", title="marginal and conditionals", ylim=(0, None))
    axes[2].legend(fontsize=8)
    figure.savefig(FOLDER / "machine_lattice.png", dpi=110)


def draw_limit() -> None:
    """A lattice that becomes fine, and a diagonal machine with 200 units."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
    v = torch.linspace(-7, 7, 1200, dtype=torch.float64)[:, None]
    for step, colour in ((1.0, WARM), (0.6, LIGHT), (0.4, DARK)):
        machine = RTBMDistribution.from_lattice([[0.5 * step**2]], [0.0], [[1.5 * step]], [0.0], [[0.1]])
        axes[0].plot(v, machine.log_prob(v).exp(), color=colour, label=f"steps of {1.5 * step:g}")
    axes[0].plot(v, machine.continuous_limit().log_prob(v).exp(), color="black", ls=":", label="continuous machine")
    axes[0].set(xlabel="v", ylabel="P(v)", title="the lattice becomes fine", ylim=(0, None))
    axes[0].legend(fontsize=8)
    rng = np.random.default_rng(3)
    many = RTBMDistribution(
        [[0.1]], rng.normal(size=(1, 200)) * 2, rng.uniform(4, 14, 200), [0.0], rng.uniform(0, 6.28, 200), phase="II"
    )
    v = torch.linspace(-9, 9, 2000, dtype=torch.float64)[:, None]
    axes[1].hist(many.sample((20_000,), torch.Generator().manual_seed(0))[:, 0], 120, density=True, color=GREY)
    axes[1].plot(v, many.log_prob(v).exp(), color=DARK)
    axes[1].set(xlabel="v", title="200 random units with diagonal Q, and 20,000 draws", xlim=(-9, 9))
    figure.savefig(FOLDER / "machine_limits.png", dpi=110)


def main() -> None:
    """Draw everything."""
    FOLDER.mkdir(exist_ok=True)
    draw_densities()
    draw_expectations()
    draw_lattice_view()
    draw_limit()


if __name__ == "__main__":
    main()
