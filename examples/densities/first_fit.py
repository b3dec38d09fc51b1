"""
Fit a density in five lines
===========================

``RTBMDensity`` estimates a density from a table of numbers, with the conventions of scikit-learn. Here the table has
one column: 2,000 values of a gamma distribution, which is skewed to the right. The picture shows the fit over a
histogram, its distribution function beside that of the sample, and the expectations of its hidden units. The fit
should follow the histogram and stay close to the true density.
"""

import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMDensity, datasets
from rtbm.plotting import DARK, GREY, LIGHT, WARM, plot_density

X = datasets.gamma.sample()  # an array (2000, 1); data frames work too
model = RTBMDensity(n_hidden=2, random_state=0).fit(X)
print(f"mean log-likelihood: {model.score(X):.3f}")

# %%
# The model is a sum of Gaussians of equal width. Their means lie on a lattice, and their weights follow from a few
# parameters. Each Gaussian belongs to one state of the integer hidden units. The expectations of the units, given a
# value, change where one Gaussian takes over from the next.

v = np.linspace(0, 20, 600)[:, None]
fig, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
plot_density(model, X, ax=axes[0], legend=False)
axes[0].plot(v, datasets.gamma.pdf(v), color=LIGHT, ls="--", label="true density")
axes[0].set(title="Density", xlabel="value", xlim=(0, 20), ylim=(0, 0.27))
axes[0].legend(frameon=False, loc="upper right")

axes[1].step(np.sort(X[:, 0]), np.arange(1, len(X) + 1) / len(X), color=GREY, lw=5, label="sample")
axes[1].plot(v, model.cdf(v), color=WARM, lw=2, label="fit")
axes[1].set(title="Distribution function", xlabel="value", ylabel="probability of a smaller value", xlim=(0, 20))
axes[1].legend(frameon=False)

for number, (unit, colour) in enumerate(zip(model.transform(v).T, (DARK, WARM), strict=True), start=1):
    axes[2].plot(v, unit, color=colour, lw=2, label=f"unit {number}")
axes[2].set(title="Hidden units", xlabel="value", ylabel="expectation given the value", xlim=(0, 20))
axes[2].legend(frameon=False)
plt.show()

# %%
# ``distribution_`` is the fitted density as a torch distribution. Its moments and quantiles are computed from the
# parameters, without draws. For the gamma distribution with shape 7.5, the mean is 7.5, the standard deviation is
# 2.74, and the skewness is 0.73.

fitted = model.distribution_
print(f"mean {fitted.mean.item():.2f}, standard deviation {fitted.stddev.item():.2f}")
print(f"skewness {(fitted.cumulant(3) / fitted.variance**1.5).item():.2f}")
print("median and 95 % quantile: {:.2f} and {:.2f}".format(*fitted.icdf([0.5, 0.95]).flatten().tolist()))
print("three draws:", model.sample(3, random_state=1).ravel().round(2))

# %%
# New values tell how good the fit is, because the fit has not seen them. One Gaussian is the simplest alternative.
# The true density is the best that can be reached.

new = datasets.gamma.sample(10_000, seed=1)
mean, variance = X.mean(), X.var()
print("mean log-likelihood of new values:")
print(f"  fit          {model.score(new):.3f}")
print(f"  one Gaussian {np.mean(-0.5 * (new - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)):.3f}")
print(f"  true density {np.mean(np.log(datasets.gamma.pdf(new))):.3f}")

# %%
# The fit is clearly better than one Gaussian, and comes close to the true density.
