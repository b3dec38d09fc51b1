"""
Activations that are learned
============================

The activation function of a theta network is the expectation E(h|v) of an integer unit. Its shape depends on a
number q that is learned like a weight. We draw the shapes, watch them change in training, and see how the initial
values keep the size of a signal through many layers.
"""

# %%
# **One unit.** In phase I a unit is a straight line with a ripple of period q: for small q the ripple is invisible,
# for large q the line is a staircase. In phase II a unit is periodic: a sawtooth for small q, a sine for large q.

import matplotlib.pyplot as plt
import numpy as np
import torch

from rtbm import ThetaNetRegressor
from rtbm.nn import ThetaLayer, theta_unit
from rtbm.plotting import DARK, GREY, LIGHT, WARM

fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
for ax, phase, sizes in zip(axes, ("I", "II"), ((1.5, 6.0, 30.0), (0.5, 1.0, 3.0)), strict=True):
    for q, colour in zip(sizes, (LIGHT, DARK, WARM), strict=True):
        period = q if phase == "I" else 2 * np.pi
        u = torch.linspace(-2.5 * period, 2.5 * period, 1001, dtype=torch.float64)
        E = theta_unit(u[:, None], torch.tensor([q], dtype=torch.float64), phase)
        ax.plot(u / period, E[:, 0], color=colour, label=f"q = {q:g}")
    ax.set(title=f"phase {phase}", xlabel="argument u, in periods", ylabel="E(h|v)")
    ax.legend(loc="upper center", ncols=3, fontsize=9)
axes[0].set(ylim=(-2.8, 3.8))
axes[1].set(ylim=(-6.5, 9))
plt.show()

# %%
# **Training.** Three functions on [0, 8], each observed at 160 random points with noise, are learned by networks of
# one layer with five units. The initial values are random (``initialization="balanced"``), so that the change is
# due to training alone. Grey lines are units as they are drawn initially, coloured lines are the units of the
# trained network.

targets = {
    "trend and season": lambda t: 0.15 * t + np.sin(2 * np.pi * t),
    "staircase": lambda t: np.floor(t / 2),
    "saturation": lambda t: 2 / (1 + np.exp(3 - 2 * t)),
}
rng = np.random.default_rng(0)
t, grid = rng.uniform(0, 8, (160, 1)), np.linspace(0, 8, 400)[:, None]
initial = ThetaLayer(1, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
steps = torch.linspace(-1, 1, 401, dtype=torch.float64)[:, None]
fig, axes = plt.subplots(2, 3, figsize=(8, 4.8), layout="constrained")
for (above, below), (name, target) in zip(axes.T, targets.items(), strict=True):
    y = target(t[:, 0]) + 0.2 * rng.normal(size=160)
    model = ThetaNetRegressor((5,), initialization="balanced", n_init=6, random_state=0).fit(t, y)
    above.plot(t, y, ".", ms=3, color=GREY)
    above.plot(grid, model.predict(grid), color=DARK)
    above.set(title=name, xlabel="t")
    with torch.no_grad():
        for layer, colour in ((initial, GREY), (model.module_[0], WARM)):
            below.plot(steps, layer.activation(steps * layer.Q), color=colour)
        sizes = model.module_[0].Q.sort().values.numpy()
    below.set(xlabel="argument u / q")
    error = np.mean((model.predict(grid) - target(grid[:, 0])) ** 2)
    print(f"{name}: mean squared error {error:.4f}, q after training {sizes.round(1)}")
axes[0, 0].set_ylabel("data and network")
axes[1, 0].set_ylabel("E(h|v), grey: initial")
plt.show()

# %%
# The initial q lie between 3 and 9. Training has spread them: some units have become stairs, others straight lines.
# The saturating target is no natural task for these units, which never level off; the network has to balance their
# slopes.
#
# **Depth.** A unit of phase I divides its argument by q. The paper draws q between 2 and 18, with weights as in
# ``torch.nn.Linear``; then a signal fades from layer to layer. The default scales the weights of each unit by its
# q, so that inputs of variance 1 give outputs of mean square 1. We send normal inputs through ten layers of 64
# units.

fig, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained", sharey=True)
for initialization, colour in (("balanced", DARK), ("paper", WARM)):
    for ax, phase in zip(axes, ("I", "II"), strict=True):
        generator = torch.Generator().manual_seed(0)
        v = torch.randn(2000, 64, dtype=torch.float64, generator=generator)
        variances = [1.0]
        for _ in range(10):
            options = {"phase": phase, "initialization": initialization, "generator": generator}
            v = ThetaLayer(64, 64, dtype=torch.float64, **options)(v).detach()
            variances.append(float(v.var(dim=0).mean()))
        ax.semilogy(range(11), variances, "o-", ms=4, color=colour, label=initialization)
        ax.set(title=f"phase {phase}", xlabel="layer")
        print(f"{initialization}, phase {phase}: variance after ten layers {variances[-1]:.1e}")
axes[0].set(ylabel="variance of activations")
axes[0].legend()
plt.show()
