"""
Sample from a lattice
=====================

A Riemann-Theta Boltzmann machine draws in two steps: an integer vector h from a discrete Gaussian, then a normal
vector v around a point of a lattice that h selects. So its density is a sum of infinitely many normal distributions
of one shape. Both steps are exact, and so are the density, the mean and the covariance that we compare the draws
with.
"""

# %%
# In these coordinates a machine has five parameters:
#
# .. math:: P(h) \propto \exp\left(-\tfrac12 h^\top Ah - a^\top h\right), \qquad
#           v \mid h \sim \mathcal{N}(\mu + Fh, \Sigma).
#
# The columns of F span the lattice. A and a say which of its points are likely.

import matplotlib.pyplot as plt
import numpy as np
import torch

from rtbm import DiscreteGaussian, RTBMDistribution
from rtbm.plotting import DARK, GREY, LIGHT, WARM

A, a = [[1.1, 0.3], [0.3, 0.8]], [-0.5, 0.2]
F, mean, covariance = [[1.6, 0.5], [-0.4, 1.7]], [0.0, 0.0], [[0.12, 0.05], [0.05, 0.10]]
machine = RTBMDistribution.from_lattice(A, a, F, mean, covariance)
print(machine)

# %%
# The likely states h with their probabilities, 3,000 draws of v, and the exact density.

n_draws = 3000
v, h = machine.sample_joint((n_draws,), generator=torch.Generator().manual_seed(0))
states, log_prob = DiscreteGaussian(A, a).table()
likely = log_prob.exp() > 1e-4
centres = machine.lattice.mean + states[likely] @ machine.lattice.F.mT

fig, axes = plt.subplots(1, 3, figsize=(8, 3.1), layout="constrained", sharex=True, sharey=True)
axes[0].scatter(*centres.mT, s=1200 * log_prob[likely].exp(), color=WARM)
for column in machine.lattice.F.mT:
    axes[0].annotate(
        "", column, (0, 0), arrowprops={"arrowstyle": "-|>", "color": DARK, "lw": 2, "shrinkA": 0, "shrinkB": 0}
    )
axes[0].set(title="lattice points, area P(h)", xlabel="v₁", ylabel="v₂")
axes[1].plot(*v.mT, ".", color=DARK, ms=1.5)
axes[1].set(title=f"{n_draws:,} draws of v", xlabel="v₁")
line = torch.linspace(-6.5, 5.5, 180, dtype=torch.float64)
points = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1)
axes[2].contourf(line, line, machine.log_prob(points).exp(), levels=np.linspace(0.003, 0.23, 12), cmap="Blues")
axes[2].set(title="exact density P(v)", xlabel="v₁")
for ax in axes:
    ax.set(xlim=(-4.5, 5.5), ylim=(-6.2, 3.8), aspect="equal")
plt.show()

# %%
# **The first step.** Shares of the states among the draws against their probabilities, for the twelve most likely
# states.

seen = (h[:, None] == states[:12]).all(dim=-1).double().mean(dim=0)
exact = log_prob[:12].exp().numpy()
fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
place = np.arange(12)
ax.bar(place, exact, color=LIGHT, label="exact P(h)")
ax.errorbar(
    place, seen, np.sqrt(exact * (1 - exact) / n_draws), fmt="o", ms=4, color=DARK, label="draws, with standard error"
)
ax.set_xticks(place, [f"({x:.0f}, {y:.0f})" for x, y in states[:12]])
ax.set(xlabel="state h", ylabel="probability")
ax.legend()
plt.show()

# %%
# **Both steps.** The mean of v is μ + F E[h], and its covariance is Σ + F Cov[h] Fᵀ. The theta function gives E[h]
# and Cov[h] without draws.

error = (machine.variance / n_draws).sqrt()
print("mean, exact:", machine.mean.numpy().round(3))
print("mean, draws:", v.mean(dim=0).numpy().round(3), "with standard errors", error.numpy().round(3))
print("covariance, exact:", machine.covariance_matrix.numpy().round(3).tolist())
print("covariance, draws:", v.mT.cov().numpy().round(3).tolist())

marginal = machine.marginal(1)
fig, ax = plt.subplots(figsize=(8, 2.8), layout="constrained")
ax.hist(v[:, 1].numpy(), 60, density=True, color=GREY, label="draws")
ax.plot(line, marginal.log_prob(line[:, None]).exp(), color=WARM, lw=2, label="exact density")
ax.set(xlabel="v₂", ylabel="density", xlim=(-6.5, 5.5))
ax.legend()
plt.show()
