"""
The discrete Gaussian on a lattice
==================================

A normal distribution that is restricted to the integer vectors is called a discrete Gaussian. Its normaliser is a
theta function, so its probabilities, moments and entropy are exact. ``DiscreteGaussian`` is a torch distribution
that draws from it exactly. We compare draws with probabilities, and see how mean and covariance change as the
lattice becomes coarse or fine.
"""

# %%
# The distribution is :math:`P(h) \propto \exp(-\frac12 h^\top Ah - a^\top h)` for integer vectors h. A normal
# distribution with the same exponent has the mean :math:`-A^{-1}a` and the covariance :math:`A^{-1}`.

import matplotlib.pyplot as plt
import numpy as np
import torch

from rtbm import DiscreteGaussian
from rtbm.plotting import DARK, GREY, LIGHT, WARM

A, a = torch.tensor([[0.5, -0.3], [-0.3, 0.6]], dtype=torch.float64), torch.tensor([0.4, -0.7], dtype=torch.float64)
hidden = DiscreteGaussian(A, a)
n_draws = 20_000
draws = hidden.sample((n_draws,), generator=torch.Generator().manual_seed(0))
states, counts = torch.unique(draws, dim=0, return_counts=True)
listed, log_prob = hidden.table()

fig, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
likely = log_prob.exp() > 1e-4
axes[0].scatter(*listed[likely].mT, s=5000 * log_prob[likely].exp(), color=LIGHT, label="exact probability")
axes[0].scatter(*states.mT, s=5000 * counts / n_draws, fc="none", ec=DARK, label="share of 20,000 draws")
axes[0].plot(*hidden.mean, "+", color=WARM, ms=12, mew=2, label="mean")
axes[0].set(xlabel="h₁", ylabel="h₂", xlim=(-5.5, 7.5), ylim=(-5.5, 9), title="areas are probabilities")
axes[0].legend(fontsize=8, markerscale=0.6, loc="upper left")
exact = hidden.log_prob(states).exp()
error = (exact * (1 - exact) / n_draws).sqrt()
axes[1].plot([3e-5, 0.2], [3e-5, 0.2], color=GREY)
axes[1].errorbar(exact, counts / n_draws, error, fmt=".", color=DARK, ecolor=LIGHT, label="with standard error")
axes[1].set(
    xscale="log",
    yscale="log",
    xlabel="exact probability",
    ylabel="share of the draws",
    title="one dot for each state h",
)
axes[1].set(xlim=(3e-5, 0.2), ylim=(1e-4, 0.2))
axes[1].legend()
plt.show()

missing = abs(1 - float(log_prob.exp().sum()))
print(f"{len(listed)} states are listed, with all probability except for {missing:.0e}")
print("mean, exact:", hidden.mean.numpy().round(3), " draws:", draws.mean(dim=0).numpy().round(3), end=" ")
print("with standard errors", (hidden.variance / n_draws).sqrt().numpy().round(3))
print("covariance, exact:", hidden.covariance_matrix.numpy().round(3).tolist())
print("covariance, draws:", draws.mT.cov().numpy().round(3).tolist())

# %%
# **Coarse and fine.** Let the lattice have steps of size s, so that x = sh, and let the exponent in x stay the
# same. Then A becomes s²A and a becomes sa. On a fine lattice the distribution of x looks normal. On a coarse
# lattice a few states remain.

fig, axes = plt.subplots(1, 3, figsize=(8, 2.9), layout="constrained", sharex=True, sharey=True)
for ax, step in zip(axes, (0.5, 1.5, 4.0), strict=True):
    states, log_prob = DiscreteGaussian(step**2 * A, step * a).table()
    likely = log_prob.exp() > 1e-4
    ax.scatter(*(step * states[likely].mT), s=1200 * log_prob[likely].exp(), color=DARK)
    ax.set(title=f"steps of {step:g}", xlabel="x₁", xlim=(-5, 6.5), ylim=(-5.5, 7))
axes[0].set(ylabel="x₂")
plt.show()

# %%
# The mean and the variances agree with those of the normal distribution to three digits up to steps of 2, a little
# more than one standard deviation. The difference falls faster than any power of the step, because by Poisson's
# formula it is a sum of terms of the size :math:`\exp(-2\pi^2 m^\top A^{-1}m / s^2)`.

steps = np.geomspace(0.5, 6, 60)
family = [DiscreteGaussian(step**2 * A, step * a, tolerance=1e-15) for step in steps]
means = np.array([step * p.mean.numpy() for step, p in zip(steps, family, strict=True)])
variances = np.array([step**2 * p.variance.numpy() for step, p in zip(steps, family, strict=True)])
normal_mean, normal_variance = -torch.linalg.solve(A, a).numpy(), torch.linalg.inv(A).diagonal().numpy()
fig, axes = plt.subplots(1, 3, figsize=(8, 3), layout="constrained")
for ax, values, limit, name in (
    (axes[0], means, normal_mean, "mean"),
    (axes[1], variances, normal_variance, "variance"),
):
    for i, colour in enumerate((DARK, WARM)):
        ax.plot(steps, values[:, i], color=colour, label=f"x{'₁₂'[i]}")
        ax.axhline(limit[i], color=colour, ls=":", lw=1)
    ax.set(xlabel="step s", title=f"{name} (dotted: normal)")
axes[0].legend()
axes[2].semilogy(steps, np.maximum(np.abs(variances - normal_variance)[:, 0], 1e-16), color=DARK)
axes[2].set(xlabel="step s", title="|variance of x₁ − normal|")
plt.show()
for step in (1.0, 2.0, 4.0):
    p = DiscreteGaussian(step**2 * A, step * a)
    print(f"steps of {step:g}: variances {(step**2 * p.variance).numpy().round(6)}, entropy {float(p.entropy()):.2f}")
print(f"normal:     variances {normal_variance.round(6)}")
