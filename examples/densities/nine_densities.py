"""
Compare estimators on nine densities
====================================

The paper on the Riemann-Theta Boltzmann machine (`arXiv:1712.07581 <https://arxiv.org/abs/1712.07581>`_) tests it on
nine densities: six in one dimension and three in two. Here three estimators get 1,000 values of each: Gaussian
kernels, a Gaussian mixture, and one machine of the size that the paper used. The table shows how much log-likelihood
each of them loses on new values. No estimator is best on all nine.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.neighbors import KernelDensity

from rtbm import RTBMDensity, datasets
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# Cross-validation chooses the width of the kernels. The Bayesian information criterion chooses the number of
# Gaussians, from one to eight. The size of the machine is that of the paper, and it makes three starts.
#
# The loss of an estimator is the mean log-density of the truth less that of the fit, over 3,000 new values. It
# estimates the Kullback-Leibler divergence: smaller is better, and zero is perfect. All samples lie between -20 and
# 20 in each coordinate, so the true density is normalised on that interval. This matters for the two Cauchy
# densities.

samples, fits, losses = {}, {}, {}
folds, line = KFold(3, shuffle=True, random_state=0), np.linspace(-20, 20, 40_001)[:, None]
for name, density in datasets.DENSITIES.items():
    X, new = density.sample(1000, seed=1), density.sample(3000, seed=2)
    widths = {"bandwidth": X.std() * np.geomspace(0.03, 1, 8)}
    sizes = [GaussianMixture(k, random_state=0).fit(X) for k in range(1, 9)]
    machine = RTBMDensity(density.n_hidden, n_components=density.n_components, n_init=3, random_state=0)
    samples[name], fits[name] = (
        X,
        {
            "kernels": GridSearchCV(KernelDensity(rtol=1e-4), widths, cv=folds).fit(X),
            "mixture": sizes[np.argmin([mixture.bic(X) for mixture in sizes])],
            "machine": machine.fit(X),
        },
    )
    share = 40 * density.pdf(line).mean() if density.n_features == 1 else 1.0
    truth = np.mean(np.log(density.pdf(new) / share))
    losses[name] = {kind: truth - fit.score_samples(new).mean() for kind, fit in fits[name].items()}

# %%
# The lines and contours show the three fits. The true density is dashed. Contours are drawn at 3, 20 and 60 % of the
# highest true density.

colours = {"kernels": LIGHT, "mixture": DARK, "machine": WARM}
fig, axes = plt.subplots(3, 3, figsize=(9, 8), layout="constrained")
for ax, (name, X) in zip(axes.flat, samples.items(), strict=True):
    density = datasets.DENSITIES[name]
    ax.set(title=name.replace("_", " "), yticks=[])
    if density.n_features == 1:
        v = np.linspace(*np.quantile(X, [0.01, 0.99]) + np.array([-1, 1]), 400)[:, None]
        ax.hist(X[:, 0], 40, range=(v[0, 0], v[-1, 0]), density=True, color=GREY, label="sample")
        ax.plot(v, density.pdf(v), color="black", lw=1, ls="--", label="true density")
        for kind, colour in colours.items():
            ax.plot(v, np.exp(fits[name][kind].score_samples(v)), color=colour, lw=1.8, label=kind)
        continue
    x = np.linspace(X.min() - 0.5, X.max() + 0.5, 70)
    mesh = np.stack(np.meshgrid(x, x), axis=-1).reshape(-1, 2)
    true = density.pdf(mesh).reshape(70, 70)
    levels = true.max() * np.array([0.03, 0.2, 0.6])
    ax.plot(*X.T, ".", ms=2, color=GREY)
    ax.contour(x, x, true, levels, colors="black", linewidths=1, linestyles="--")
    for kind, colour in colours.items():
        p = np.exp(fits[name][kind].score_samples(mesh)).reshape(70, 70)
        ax.contour(x, x, p, levels, colors=colour, linewidths=1.5)
fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False)
plt.show()

# %%
# The smallest loss of each row is marked, up to the digits shown.

print(f"{'loss':20}" + "".join(f"{kind:>10} " for kind in colours))
for name, row in losses.items():
    cells = (f"{loss:10.3f}{'*' if loss < min(row.values()) + 5e-4 else ' '}" for loss in row.values())
    print(f"{name.replace('_', ' '):20}" + "".join(cells))

# %%
# Kernels are best where the density has sharp edges ("custom" and "uniform"), and worst in two dimensions. On the
# other seven densities the machine is about as good as the mixture, or better. The uniform density is the hardest for
# a machine with three hidden units, because Gaussians of equal width make soft edges. For such data take the
# committee (``RTBMDensityCV``), which also tries machines with more hidden units.
