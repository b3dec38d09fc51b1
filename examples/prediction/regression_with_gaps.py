"""
Probabilistic regression with missing features
==============================================

A quantity is measured by two sensors: a precise one and a noisy one. Each of them fails in 30 % of the rows, both when
the model is fitted and when it predicts. ``RTBMRegressor`` integrates over what is missing, so each prediction uses the
sensors that there are, and its interval becomes wider when the precise sensor is absent. A linear regression and a
Gaussian process cannot read missing values, so gaps are filled for them first.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import BayesianRidge
from sklearn.pipeline import make_pipeline

from rtbm import RTBMDensity, RTBMRegressor
from rtbm.plotting import DARK, LIGHT, WARM

# %%
# Data with gaps
# --------------
#
# The target is a curve of the true state with noise. Gaps are drawn at random, independently of the values.

rng = np.random.default_rng(0)
state = rng.uniform(-3, 3, 1600)
sensors = np.column_stack([state + 0.05 * rng.normal(size=1600), state + 0.8 * rng.normal(size=1600)])
y = np.sin(2 * state) + 0.5 * state + 0.15 * rng.normal(size=1600)
sensors[rng.random(sensors.shape) < 0.3] = np.nan
X, X_new, y, y_new = sensors[:600], sensors[600:], y[:600], y[600:]
print(f"rows without a gap: {np.mean(~np.isnan(X).any(axis=1)):.0%}")

# %%
# Three regressions
# -----------------
#
# The density of both sensors and the target is a mixture of eight machines. It is fitted to all rows, those with gaps
# included. (Without a density, ``RTBMRegressor()`` chooses sizes by cross-validation, which takes longer.) For the
# linear regression a gap is filled by the mean of its column, for the Gaussian process by a regression on the other
# sensor.

density = RTBMDensity(n_hidden=1, n_components=8, regularization=0.1, n_init=2, random_state=0)
model = RTBMRegressor(density).fit(X, y)
kernel = ConstantKernel() * RBF([1.0, 1.0]) + WhiteKernel(0.1)
process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
others = {
    "linear, gaps filled": make_pipeline(SimpleImputer(), BayesianRidge()).fit(X, y),
    "Gaussian process, filled": make_pipeline(IterativeImputer(random_state=0), process).fit(X, y),
}

answers = {"RTBMRegressor": (model.predict(X_new), *model.predict_interval(X_new, coverage=0.9).T)}
for name, other in others.items():
    mean, std = other.predict(X_new, return_std=True)
    answers[name] = (mean, mean - 1.645 * std, mean + 1.645 * std)

is_missing = np.isnan(X_new)
groups = {
    "both sensors": ~is_missing.any(axis=1),
    "precise one": ~is_missing[:, 0] & is_missing[:, 1],
    "noisy one": is_missing[:, 0] & ~is_missing[:, 1],
    "none": is_missing.all(axis=1),
}
print("new rows with:              " + "".join(f"{group:>17}" for group in groups))
shares = {}
for name, (mean, low, high) in answers.items():
    errors = [np.sqrt(np.mean((mean - y_new)[rows] ** 2)) for rows in groups.values()]
    shares[name] = [np.mean(((low < y_new) & (y_new < high))[rows]) for rows in groups.values()]
    widths = [np.mean((high - low)[rows]) for rows in groups.values()]
    print(name)
    for label, values in (("error (RMSE)", errors), ("in the 90 % interval", shares[name]), ("its width", widths)):
        print(f"    {label:<24}" + "".join(f"{value:17.2f}" for value in values))

# %%
# Intervals that know what is missing
# -----------------------------------

grid, gap = np.linspace(-3.2, 3.2, 200), np.full(200, np.nan)
fig, axes = plt.subplots(1, 3, figsize=(8.6, 3.5), sharey=True, layout="constrained")
cases = (
    ("precise sensor alone", "precise one", 0, np.column_stack([grid, gap])),
    ("noisy sensor alone", "noisy one", 1, np.column_stack([gap, grid])),
    ("no sensor", "none", None, np.column_stack([gap, gap])),
)
for ax, (title, group, column, rows) in zip(axes, cases, strict=True):
    low, high = model.predict_interval(rows, coverage=0.9).T
    seen = X_new[groups[group], column] if column is not None else rng.uniform(-3, 3, groups[group].sum())
    ax.fill_between(grid, low, high, color=LIGHT, alpha=0.4, lw=0, label="90 % interval")
    ax.plot(grid, model.predict(rows), color=DARK, label="mean")
    ax.plot(grid, others["linear, gaps filled"].predict(rows), color=WARM, label="linear, gaps filled")
    ax.plot(seen, y_new[groups[group]], ".", ms=4, color="black", alpha=0.5, label="new rows")
    ax.set(xlabel="reading" if column is not None else "(placed at random)", title=title, xlim=(-3.2, 3.2))
axes[0].set_ylabel("target")
fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
plt.show()

# %%
# Coverage
# --------
#
# A 90 % interval should hold 90 % of new rows, whatever is missing.

fig, ax = plt.subplots(figsize=(8, 3), layout="constrained")
for i, (name, colour) in enumerate(zip(answers, (DARK, WARM, LIGHT), strict=True)):
    ax.bar(np.arange(4) + 0.27 * (i - 1), shares[name], 0.25, color=colour, label=name)
ax.axhline(0.9, color="black", lw=1, ls="--")
ax.set(xticks=range(4), xticklabels=groups, ylabel="share inside 90 % interval", ylim=(0, 1.25), yticks=[0, 0.5, 0.9])
ax.legend(loc="upper center", ncols=3, frameon=False)
plt.show()

# %%
# The intervals of ``RTBMRegressor`` are narrow with the precise sensor and wide without it, and hold about nine rows in
# ten in all four groups. The Gaussian process has somewhat larger errors. It has one noise level for all rows, so its
# intervals are too wide with the precise sensor and too narrow without. Without any sensor, nothing is better than the
# mean of the target.
