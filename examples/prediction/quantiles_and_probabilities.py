"""
Probabilities, quantiles and boxes
==================================

A fitted density answers questions by integrals: how likely is a value below a limit, where are the quantiles, how
likely is a box, how much does one feature tell about another? ``rtbm`` computes them from the density. Each answer is
compared with the same number estimated from samples of the density. The two agree within about two standard errors of
sampling, which fall only slowly with the number of samples.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.patches import Rectangle
from sklearn.datasets import load_iris

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# Fit a density of four features, and draw from it
# ------------------------------------------------

X = load_iris().data  # sepal length and width, petal length and width, in cm
model = RTBMDensity(n_hidden=1, n_components=3, random_state=0).fit(X)
draws = model.sample(100_000, random_state=1)

# %%
# One feature
# -----------
#
# ``marginal`` integrates the other features out. ``cdf`` and ``quantile`` are each other's inverse.

petal = model.marginal([2])
p = np.array([0.05, 0.25, 0.5, 0.75, 0.95])
quantiles = petal.quantile(p)
print("petal length    computed   samples")
for probability, computed, sampled in zip(p, quantiles, np.quantile(draws[:, 2], p), strict=True):
    print(f"{probability:4.0%} quantile    {computed:8.4f}  {sampled:8.4f}")
between = petal.cdf([[5.0]]) - petal.cdf([[3.0]])
print(f"P(3 < x < 5)     {between[0]:8.4f}  {np.mean((draws[:, 2] > 3) & (draws[:, 2] < 5)):8.4f}")
print(f"largest |cdf(quantile(p)) - p|: {np.abs(petal.cdf(quantiles[:, None]) - p).max():.0e}")

grid = np.linspace(0, 8, 400)
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
left.hist(X[:, 2], 30, density=True, color=GREY, label="data")
left.plot(grid, petal.pdf(grid[:, None]), color=DARK, label="density")
inside = (grid > 3) & (grid < 5)
left.fill_between(grid, petal.pdf(grid[:, None]), where=inside, color=WARM, alpha=0.5, lw=0, label="P(3 < x < 5)")
left.set(xlabel="petal length (cm)", ylabel="density")
left.legend(frameon=False)
right.step(np.sort(X[:, 2]), np.arange(1, 151) / 150, color=GREY, where="post", label="data")
right.plot(grid, petal.cdf(grid[:, None]), color=DARK, label="distribution function")
right.plot(quantiles, p, "o", color=WARM, ms=5, label="quantiles")
right.set(xlabel="petal length (cm)", ylabel="probability")
right.legend(frameon=False)
plt.show()

# %%
# Boxes
# -----
#
# The distribution ``distribution_`` has the probability of boxes, whose corners may be infinite. With three features or
# more it is a quasi-Monte Carlo sum with an error of about 1e-4.

corners = {
    "petals": ([2, 3], [3.0, 1.0], [5.0, 1.6]),
    "all four": ([0, 1, 2, 3], [5.0, -np.inf, 3.0, 1.0], [6.5, 3.0, 5.0, 1.6]),
}
print("box      computed   samples   error of sampling")
for name, (features, low, high) in corners.items():
    computed = float(model.marginal(features).distribution_.box_probability(low, high))
    sampled = np.mean(((draws[:, features] > low) & (draws[:, features] < high)).all(axis=1))
    error = np.sqrt(sampled * (1 - sampled) / len(draws))
    print(f"{name:<9}{computed:8.4f}  {sampled:8.4f}   {error:8.4f}")

x, y = np.meshgrid(np.linspace(0.5, 7.5, 120), np.linspace(-0.3, 3, 120))
petals = model.marginal([2, 3])
log_density = petals.score_samples(np.column_stack([x.ravel(), y.ravel()])).reshape(x.shape)
is_inside = ((draws[:, 2:] > [3.0, 1.0]) & (draws[:, 2:] < [5.0, 1.6])).all(axis=1)
n = np.arange(1, len(draws) + 1)
exact = float(petals.distribution_.box_probability([3.0, 1.0], [5.0, 1.6]))
fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
left.contour(x, y, log_density, np.arange(-6, 2), colors=DARK, linestyles="solid", linewidths=1)
left.plot(*X[:, 2:].T, ".", ms=4, color=GREY, zorder=0)
left.add_patch(Rectangle((3.0, 1.0), 2.0, 0.6, color=WARM, alpha=0.4, lw=0))
left.set(xlabel="petal length (cm)", ylabel="petal width (cm)", title=f"probability of the box: {exact:.3f}")
error = np.sqrt(exact * (1 - exact) / n)
right.fill_between(n, exact - error, exact + error, color=LIGHT, alpha=0.4, lw=0, label="standard error")
right.plot(n, np.cumsum(is_inside) / n, color=DARK, label="from samples")
right.axhline(exact, color=WARM, label="box_probability")
right.set(xscale="log", xlabel="number of samples", ylabel="probability of the box", xlim=(100, 1e5), ylim=(0.18, 0.36))
right.legend(frameon=False)
plt.show()

# %%
# Entropy, and what one feature tells about another
# -------------------------------------------------
#
# ``entropy`` and ``kl`` integrate over up to three features; ``estimate_entropy`` takes samples, for any number. The
# mutual information of two features is the sum of their entropies less that of both. The divergence from a normal
# distribution with the same mean and covariance says how far from normal the density is.

both, length, width = (model.marginal(features).distribution_ for features in ([2, 3], [2], [3]))
estimate = both.estimate_entropy(generator=torch.Generator().manual_seed(0))
normal = torch.distributions.MultivariateNormal(both.mean, both.covariance_matrix)
print(f"entropy of both petal sizes: {both.entropy():.4f}; from samples {estimate.value:.4f} ± {estimate.error:.4f}")
print(f"mutual information: {length.entropy() + width.entropy() - both.entropy():.4f}")
divergence = both.estimate_kl(normal, generator=torch.Generator().manual_seed(0))
print(f"divergence from normal: {both.kl(normal):.4f}; from samples {divergence.value:.4f} ± {divergence.error:.4f}")

# %%
# The samples confirm the computed numbers. To gain one more digit from samples takes a hundred times as many of them.
