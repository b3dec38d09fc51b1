"""
Choose how smooth a fit is
==========================

A machine with many hidden units can put narrow peaks on small groups of values. A prior prevents this. Its strength
is the argument ``regularization``, which has the role of a bandwidth. Here five hidden units are fitted to 300 values
with ten strengths. The likelihood of new values should be highest in between: with too little, the fit follows
chance; with too much, it loses the two humps of the true density.
"""

import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMDensity, datasets
from rtbm.plotting import DARK, GREY, LIGHT, WARM

X, new = datasets.custom.sample(300, seed=1), datasets.custom.sample(5000, seed=2)

# %%
# Each fit is scored on the 300 values that it has seen, and on 5,000 that it has not. ``fallback=None`` keeps every
# fit. By default, a fit that does not beat a single Gaussian is replaced by that Gaussian.

strengths = [0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]
fits = {r: RTBMDensity(5, regularization=r, n_init=2, fallback=None, random_state=0).fit(X) for r in strengths}
seen, unseen = ([fit.score(values) for fit in fits.values()] for values in (X, new))
print("regularization  300 values  new values")
for row in zip(strengths, seen, unseen, strict=True):
    print("{:14g}{:12.3f}{:12.3f}".format(*row))

# %%
# The left panel shows the fits with strengths 0.01, 1 and 100 over a histogram. The right panel shows the scores of
# all fits.

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
v = np.linspace(-2, 7, 800)[:, None]
axes[0].hist(X[:, 0], 40, density=True, color=GREY)
axes[0].plot(v, datasets.custom.pdf(v), color="black", lw=1, ls="--", label="true density")
for r, colour in ((0.01, LIGHT), (1, WARM), (100, DARK)):
    axes[0].plot(v, np.exp(fits[r].score_samples(v)), color=colour, lw=2, label=f"fit, {r:g}")
axes[0].set(xlabel="value", ylabel="density", xlim=(-2, 7), ylim=(0, 0.68))
axes[0].legend(frameon=False, ncols=2, loc="upper center")
axes[1].semilogx(strengths, seen, "o-", color=GREY, label="300 values of the fit")
axes[1].semilogx(strengths, unseen, "o-", color=WARM, label="5,000 new values")
axes[1].axhline(np.log(datasets.custom.pdf(new)).mean(), color="black", lw=1, ls="--", label="true density, new values")
axes[1].set(xlabel="regularization", ylabel="mean log-likelihood")
axes[1].legend(frameon=False, loc="lower left")
plt.show()

# %%
# New values have the highest likelihood for strengths between 0.3 and 1. The default is 1. The penalty is divided by
# the number of observations, so the same strength matters less in larger samples.
#
# Flat densities with sharp edges are hard for a sum of Gaussians. If the edges are known, give them as ``bounds``. If
# not, ``margins="learned"`` helps: the machine then corrects a first fit of the column.

X, new = datasets.uniform.sample(500, seed=1), datasets.uniform.sample(5000, seed=2)
options = [{}, {"regularization": 0.01}, {"margins": "learned", "regularization": 0.1}, {"bounds": (-5, 5)}]
v = np.linspace(-7, 7, 800)[:, None]
fig, axes = plt.subplots(1, 4, figsize=(10, 3), sharey=True, layout="constrained")
for ax, option in zip(axes, options, strict=True):
    fit = RTBMDensity(4, n_init=1, random_state=0, **option).fit(X)
    ax.hist(X[:, 0], 40, density=True, color=GREY)
    ax.plot(v, datasets.uniform.pdf(v), color="black", lw=1, ls="--")
    ax.plot(v, np.exp(fit.score_samples(v)), color=WARM, lw=2)
    title = "\n".join(f"{name}={value}" for name, value in option.items()) or "default"
    ax.set_title(title)
    ax.set(xlabel="value", xlim=(-7, 7))
    print(f"{title.replace(chr(10), ', ')}: new values {fit.score(new):.3f}")
axes[0].set_ylabel("density")
plt.show()

# %%
# Little regularization makes the edges sharper, but the top uneven. A learned margin does better, and with bounds new
# values have the highest likelihood of the four. If you do not know what your data need, take ``RTBMDensityCV``: it
# chooses regularization and margins by cross-validation.
