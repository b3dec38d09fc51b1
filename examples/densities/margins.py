"""
Describe skewed columns
=======================

A table of two skewed columns that depend on each other, fitted by one machine without and with ``margins``. The map
of each column is learned first. The machine then describes how the normal scores of the columns depend on each other.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, WARM

# %%
# The logarithms of the columns are normal, with a correlation of 0.8.


def draw(n, seed):
    """n rows of the table."""
    return np.exp(np.random.default_rng(seed).multivariate_normal([0, 0], [[1.0, 0.8], [0.8, 1.0]], n))


X, new = draw(400, 0), draw(10_000, 1)
fits = {
    "no map": RTBMDensity(1, n_init=1, random_state=0).fit(X),
    "powers": RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0).fit(X),
    "learned margins": RTBMDensity(1, margins="learned", n_init=1, random_state=0).fit(X),
}
for name, fit in fits.items():
    print(f"{name:16} {fit.score(new):8.3f} nats a new row")

# %%
# The density without a map puts probability where no value can be. With learned margins it follows the curved table,
# and its tails. The last picture is the map of the first column: its normal score.

grid = np.linspace(-1.5, 7, 200)
rows = np.stack(np.meshgrid(grid, grid), -1).reshape(-1, 2)
fig, axes = plt.subplots(1, 3, figsize=(9.5, 3.2), layout="constrained")
levels = np.geomspace(1e-4, 0.5, 9)
for ax, name in zip(axes, ("no map", "learned margins"), strict=False):
    density = np.exp(fits[name].score_samples(rows)).reshape(len(grid), -1)
    ax.plot(*X.T, ".", ms=3, color=GREY)
    ax.contour(grid, grid, density, levels, colors=DARK, linewidths=1)
    ax.set(title=name.capitalize(), xlabel="first column", ylabel="second column", xlim=(-1.5, 7), ylim=(-1.5, 7))
margin = fits["learned margins"].distribution_.maps[0]
x = np.linspace(-0.5, 7, 300)
axes[2].plot(x, margin.to_line(torch.from_numpy(x))[0], color=WARM, lw=2)
axes[2].set(title="The map of the first column", xlabel="first column", ylabel="normal score")
plt.show()
