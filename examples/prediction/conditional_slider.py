"""
A conditional, moved through the data
=====================================

A joint density of two features holds the distribution of one feature for every value of the other. We fit the density
of two lengths of iris flowers once, move the given sepal length through the data in six steps, and draw the
distribution of the petal length at each step. Flowers with short sepals have short petals, those with long sepals have
long petals, and in between there are two peaks, because both kinds occur.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_iris

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# Fit the joint density
# ---------------------
#
# Two machines with one hidden unit each describe both features together.

X = load_iris().data[:, [0, 2]]  # sepal length and petal length, in cm
model = RTBMDensity(n_hidden=1, n_components=2, random_state=0).fit(X)
print(f"mean log-likelihood of a flower: {model.score(X):.2f}")

# %%
# Move the given value
# --------------------
#
# ``conditional`` fixes some features and returns a fitted density of the others. Its mean and quantiles need no further
# fit. The band lies between the 5 % and the 95 % quantile. Ticks on the axis are flowers whose sepal
# length differs by at most 0.2 cm from the given one.

given = [4.6, 5.1, 5.4, 5.7, 6.2, 7.0]
petal = np.linspace(-2, 11, 1301)

fig = plt.figure(figsize=(8.6, 3.8), layout="constrained")
left, right = fig.subfigures(1, 2, width_ratios=(1, 1.7))
plane = left.subplots()
x, y = np.meshgrid(np.linspace(4, 8, 120), np.linspace(0.5, 7.5, 120))
joint = model.score_samples(np.column_stack([x.ravel(), y.ravel()])).reshape(x.shape)
plane.contour(x, y, joint, np.arange(-6, 0), colors=DARK, linestyles="solid", linewidths=1)
plane.plot(*X.T, ".", ms=4, color=GREY, zorder=0)
for value in given:
    plane.axvline(value, color=WARM, lw=1)
plane.set(xlabel="sepal length (cm)", ylabel="petal length (cm)", xlim=(4, 8), ylim=(0.5, 7.5), title="joint density")

print("given   mean   90 % interval   integral of the density")
panels = right.subplots(2, 3, sharex=True, sharey=True)
for value, ax in zip(given, panels.flat, strict=True):
    conditional = model.conditional({0: value})
    low, high = conditional.quantile([0.05, 0.95])
    mean = float(conditional.distribution_.mean)
    density = conditional.pdf(petal[:, None])
    print(f"{value:5.1f}  {mean:5.2f}   {low:4.2f} to {high:4.2f}    {np.trapezoid(density, petal):.8f}")
    ax.fill_between(petal, density, where=(petal > low) & (petal < high), color=LIGHT, alpha=0.4, lw=0, label="90 %")
    ax.plot(petal, density, color=DARK, label="density")
    ax.axvline(mean, color=WARM, lw=1.5, label="mean")
    near = X[np.abs(X[:, 0] - value) < 0.21, 1]
    ax.plot(near, np.full(len(near), -0.1), "|", color="black", ms=7, mew=0.7, label="flowers near")
    ax.set_xlim(0.5, 7.5)
    ax.set_title(f"sepal {value:g} cm", fontsize=10)
right.supxlabel("petal length (cm)", fontsize=10)
right.supylabel("density given the sepal", fontsize=10)
right.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
plt.show()

# %%
# All values at once
# ------------------
#
# With an array of values, ``conditional`` returns one distribution for each of them. Moving the value continuously
# gives a regression whose interval knows about both groups.

line = np.linspace(4, 8, 200)
batch = model.conditional({0: line})
low, median, high = batch.icdf([0.05, 0.5, 0.95])[..., 0].numpy()

fig, ax = plt.subplots(figsize=(8, 3.5), layout="constrained")
ax.plot(*X.T, ".", ms=5, color=GREY, zorder=0)
ax.fill_between(line, low, high, color=LIGHT, alpha=0.4, lw=0, label="90 % interval")
ax.plot(line, median, color=DARK, label="median")
ax.plot(line, batch.mean[:, 0], color=WARM, label="mean")
ax.set(xlabel="sepal length (cm)", ylabel="petal length (cm)", xlim=(4, 8), ylim=(0.5, 7.8))
ax.legend(loc="lower right", frameon=False)
plt.show()

low, high = model.predict_quantiles(X, 1, [0.05, 0.95]).T
print(f"share of the flowers inside the interval: {np.mean((low < X[:, 1]) & (X[:, 1] < high)):.2f}")

# %%
# Every conditional integrates to one. Where it has two peaks, the mean lies between them, where few flowers are. The
# interval spans both. A little more than nine flowers in ten lie inside the interval.
