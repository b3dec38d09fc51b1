"""Draw the pictures of docs/networks.md into docs/pictures."""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch

from rtbm.nn import ThetaLayer, theta_unit
from rtbm.plotting import DARK, WARM

PICTURES = Path(__file__).parent / "pictures"


def units() -> None:
    """E(h|v) of one unit, for several q, in both phases."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for ax, phase, shapes in zip(axes, ("I", "II"), ((1.5, 5.0, 10.0, 30.0), (0.5, 1.0, 2.0, 4.0)), strict=True):
        for i, q in enumerate(shapes):
            reach, unit = (3 * q, q) if phase == "I" else (10.0, 1.0)
            u = torch.linspace(-reach, reach, 2001, dtype=torch.float64)[:, None]
            E = theta_unit(u, torch.tensor([q], dtype=torch.float64), phase)
            ax.plot(u / unit, E, color=plt.get_cmap("viridis")(0.1 + 0.25 * i), label=f"q = {q:g}")
        ax.set(title=f"phase {phase}", xlabel="u / q" if phase == "I" else "u", ylabel="E(h|v)")
        ax.legend(loc="upper right")
    figure.savefig(PICTURES / "network_units.png", dpi=100)


def depth() -> None:
    """The variance of activations and gradients through ten layers, for both initialisations."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
    for initialization, colour in (("balanced", DARK), ("paper", WARM)):
        for phase, style in (("I", "-"), ("II", "--")):
            forward, backward = variances(initialization, phase)
            label = f"{initialization}, phase {phase}"
            axes[0].plot(range(11), forward, style, marker="o", ms=4, color=colour, label=label)
            axes[1].plot(range(11), backward, style, marker="o", ms=4, color=colour, label=label)
    axes[0].set(yscale="log", xlabel="layer", title="variance of activations")
    axes[1].set(yscale="log", xlabel="layer", title="variance of gradients, relative to the last layer")
    axes[0].legend(frameon=False)
    figure.savefig(PICTURES / "network_depth.png", dpi=100)


def variances(initialization: str, phase: str) -> tuple[list[float], list[float]]:
    """Of activations, from the input on, and of the gradients of a random function of the output."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2000, 64, dtype=torch.float64, generator=generator).requires_grad_()
    options = {"phase": phase, "initialization": initialization, "dtype": torch.float64, "generator": generator}
    states = [v]
    for _ in range(10):
        states.append(ThetaLayer(64, 64, **options)(states[-1]))
    weights = torch.randn(2000, 64, dtype=torch.float64, generator=generator)
    gradients = torch.autograd.grad(states[-1], states, weights)
    last = float(gradients[-1].var())
    return [float(s.detach().var(dim=0).mean()) for s in states], [float(g.var()) / last for g in gradients]


if __name__ == "__main__":
    units()
    depth()
