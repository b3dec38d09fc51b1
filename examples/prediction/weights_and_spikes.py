"""
Weighted rows, discrete columns
===============================

A weight says how often a row counts, and a weight of three is the same as three copies of the row. A column of whole
numbers is different: it has no density, and a fit makes narrow spikes of its values. ``fit`` warns of such columns. The
example shows the warning and three ways to go on: leave the column out, fit one density for each value, or spread the
values by uniform noise and keep them in bounds.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np

from rtbm import RTBMDensity, datasets
from rtbm.errors import SpikeWarning
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# Weights
# -------
#
# Rows with weight zero are dropped, and whole weights repeat rows. Rows are sorted and merged before the fit, so the
# two fits below see the same numbers and give the same density to the last bit.

X = datasets.gamma.sample(400, seed=0)
weights = np.random.default_rng(0).integers(0, 4, len(X))
weighted = RTBMDensity(2, random_state=0).fit(X, sample_weight=weights)
repeated = RTBMDensity(2, random_state=0).fit(np.repeat(X, weights, axis=0))
grid = np.linspace(0, 20, 300)[:, None]
print("weights 0 to 3 equal repetition:", np.array_equal(weighted.pdf(grid), repeated.pdf(grid)))

# %%
# A column of whole numbers
# -------------------------
#
# The table has a duration and a number of events, from 0 to 7. More events go with longer durations.

rng = np.random.default_rng(1)
events = rng.binomial(7, 0.35, 1500)
duration = rng.gamma(4.0 + 2.0 * events, 0.5)
table = np.column_stack([duration, events])
train, test = table[:1000], table[1000:]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always", SpikeWarning)
    spiky = RTBMDensity(n_hidden=2, n_components=4, regularization=0.01, n_init=2, random_state=0).fit(train)
print(caught[0].category.__name__, "-", caught[0].message)

# %%
# Three ways to go on
# -------------------
#
# 1. Without the column, the density of the durations is an ordinary one.
# 2. With one density for each value, the share of the value is its probability. Values with few rows have to be joined
#    with their neighbours, or left out.
# 3. Uniform noise between 0 and 1 turns the number :math:`k` into a value between :math:`k` and :math:`k + 1`. Bounds
#    keep the density inside the range, and the probability of :math:`k` is that of its interval. Only this probability
#    has a meaning, not the shape of the density inside an interval.

alone = RTBMDensity(n_hidden=2, bounds=(0, None), random_state=0).fit(train[:, :1])

values = np.arange(6)  # 6 and 7 are too rare for a density of their own
each = [RTBMDensity(1, bounds=(0, None), n_init=2, random_state=0).fit(train[train[:, 1] == k, :1]) for k in values]
share = np.array([np.mean(train[:, 1] == k) for k in values])

spread = train + np.column_stack([np.zeros(len(train)), rng.random(len(train))])
smooth = RTBMDensity(n_hidden=1, n_components=4, bounds=[(0, None), (0, 8)], n_init=3, random_state=0).fit(spread)
by_noise = np.diff(smooth.marginal([1]).cdf(np.arange(9)[:, None]))

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
line = np.linspace(-0.5, 8, 1701)  # whole numbers are among these
left.plot(line, spiky.marginal([1]).pdf(line[:, None]), color=WARM, lw=1, label="values as they are")
left.plot(line, smooth.marginal([1]).pdf(line[:, None]), color=DARK, label="with noise")
left.set(xlabel="number of events", ylabel="density", yscale="log", ylim=(0.01, 1e5))
right.bar(np.arange(8), [np.mean(test[:, 1] == k) for k in range(8)], color=GREY, label="new rows")
right.plot(values, share, "s", ms=7, color=LIGHT, label="one density for each value")
right.plot(np.arange(8), by_noise, "o", ms=4, color=DARK, label="with noise")
right.set(xlabel="number of events", ylabel="probability", ylim=(0, 0.5))
for ax in (left, right):
    ax.legend(frameon=False, loc="upper right")
plt.show()

# %%
# Compare on new rows
# -------------------
#
# The log-likelihood of the first fit measures how narrow the spikes are. A fair one takes the probability of the number
# instead of a density. Both other ways have it: the share of the value times its density, and the density of the
# duration times the probability of the interval given the duration.

rows = test[test[:, 1] < 6]
numbers = rows[:, 1].astype(int)
by_value = np.log(share[numbers]) + [each[k].score_samples([[d]])[0] for d, k in zip(rows[:, 0], numbers, strict=True)]
given = smooth.conditional({0: rows[:, 0]})
interval = (given.cdf(rows[:, [1]] + 1) - given.cdf(rows[:, [1]])).numpy()
by_interval = smooth.marginal([0]).score_samples(rows[:, :1]) + np.log(interval)
print(f"mean log-likelihood with spikes: {spiky.score(rows):.1f}")
print(f"with one density for each value: {by_value.mean():.2f}; with noise: {by_interval.mean():.2f}")

fig, ax = plt.subplots(figsize=(8, 3.3), layout="constrained")
time = np.linspace(0.02, 14, 300)
ax.hist(test[:, 0], 35, density=True, color=GREY, label="all new rows")
ax.plot(time, alone.pdf(time[:, None]), color="black", label="without the column")
for k, style in ((1, "-"), (4, "--")):
    ax.plot(time, each[k].pdf(time[:, None]), style, color=WARM, label=f"fitted to rows with events = {k}")
ax.set(xlabel="duration", ylabel="density", xlim=(0, 14))
ax.legend(frameon=False)
plt.show()

# %%
# One density for each value and uniform noise describe new rows about equally well. The log-likelihood with spikes is
# several units higher without describing the rows any better.
