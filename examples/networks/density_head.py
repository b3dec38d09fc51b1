"""
A network that predicts densities
=================================

``rtbm.nn.RTBMHead`` is the last layer of a network: it turns features into the parameters of a machine for each row.
Calling it returns a batch of distributions, with an exact ``log_prob``, quantiles and draws. It does what a
mixture-density network does with mixtures of normals. Here noise of two sides, whose distance and width depend on x,
is learned from 400 points, and compared with a head of one normal.
"""

# %%
# Below and above a curve the targets lie at distances that grow with x, so for large x the density of y has two peaks.

import matplotlib.pyplot as plt
import torch
from torch import nn

from rtbm.nn import RTBMHead
from rtbm.plotting import DARK, WARM

generator = torch.Generator().manual_seed(0)


def draw(n):
    """Points x (n, 1) and targets y (n, 1)."""
    x = 2 * torch.rand(n, 1, generator=generator, dtype=torch.float64) - 1
    side = torch.where(torch.rand(n, 1, generator=generator) < 0.7, 1.0, -1.0)
    noise = (0.1 + 0.15 * x.abs()) * torch.randn(n, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(3 * x) + 0.7 * side * (1 + x) + noise


(x, y), (x_test, y_test) = draw(400), draw(1000)

# %%
# Both networks share everything but their last layer. The first one puts out a mean and the logarithm of a standard
# deviation, the second one the nine parameters of a machine with two hidden units. Every value of these is a machine.


class NormalHead(nn.Linear):
    """Mean and log-scale of a normal distribution."""

    def forward(self, features):
        """The distributions of rows of features."""
        mean, log_scale = super().forward(features).split(1, dim=1)
        return torch.distributions.Independent(torch.distributions.Normal(mean, log_scale.exp()), 1)


torch.manual_seed(0)
heads = {"one normal": NormalHead(16, 2), "machine": RTBMHead(16, 1, 2, generator=torch.Generator().manual_seed(0))}
networks = {name: nn.Sequential(nn.Linear(1, 16), nn.Tanh(), head).double() for name, head in heads.items()}
for name, network in networks.items():
    optimizer = torch.optim.Adam(network.parameters(), lr=0.02)
    for _ in range(120):
        optimizer.zero_grad()
        loss = -network(x).log_prob(y).mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(f"{name}: mean log-likelihood of new points {float(network(x_test).log_prob(y_test).mean()):.3f}")

# %%
# A batch has the methods of conditional distributions of many rows: ``mean``, ``cdf``, ``icdf`` and ``sample``. Its
# entries are ordinary machines.

line, heights = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None], torch.linspace(-3, 3, 120, dtype=torch.float64)
fig, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharey=True)
for ax, (name, network) in zip(axes, networks.items(), strict=True):
    with torch.no_grad():
        density = network(line).log_prob(heights[:, None, None]).exp()
    ax.contourf(line[:, 0], heights, density, levels=12, cmap="Blues")
    ax.plot(x_test[:300, 0], y_test[:300, 0], ".", ms=2, color=WARM)
    ax.set(title=name, xlabel="x", ylabel="y", xticks=[-1, -0.5, 0, 0.5, 1])
with torch.no_grad():
    quantiles = networks["machine"](line).icdf([0.05, 0.5, 0.95])[..., 0]
axes[1].plot(line[:, 0], quantiles.mT, color=DARK, lw=1)
plt.show()

# %%
# The lines are the 5 %, 50 % and 95 % quantiles. The normal head covers the gap between the two sides; the machine
# leaves it empty.
