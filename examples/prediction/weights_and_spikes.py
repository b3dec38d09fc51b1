"""
Weighted rows, whole numbers
============================

A weight says how often a row counts, and a weight of three is the same as three copies of the row. A column of whole
numbers is different: taken as it is, it has no density, and a fit makes narrow spikes of its values. By default the
values are spread over their cells instead, and the probabilities of cells take the place of densities. The example
compares both, and one density for each value.
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
    options = {"n_components": 4, "regularization": 0.01, "n_init": 2, "random_state": 0}
    spiky = RTBMDensity(2, atoms=None, rounded=None, **options).fit(train)
print(caught[0].category.__name__, "-", caught[0].message)

# %%
# Cells, or one density for each value
# ------------------------------------
#
# 1. By default the fit takes the column for a rounded one: each number is a cell from half below it to half above.
# 2. With one density for each value, the share of the value is its probability. Values with few rows have to be joined
#    with their neighbours, or left out.

cells = RTBMDensity(1, n_components=4, bounds=[(0, None), None], n_init=3, random_state=0).fit(train)
by_cells = cells.marginal([1]).cell_probability(np.arange(7)[:, None])  # 7 is not in these rows

values = np.arange(6)  # 6 and 7 are too rare for a density of their own
each = [RTBMDensity(1, bounds=(0, None), n_init=2, random_state=0).fit(train[train[:, 1] == k, :1]) for k in values]
share = np.array([np.mean(train[:, 1] == k) for k in values])

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.5), layout="constrained")
line = np.linspace(-0.5, 8, 1701)  # whole numbers are among these
left.plot(line, spiky.marginal([1]).pdf(line[:, None]), color=WARM, lw=1, label="values as they are")
left.plot(line, cells.marginal([1]).pdf(line[:, None]), color=DARK, label="spread over cells")
left.set(xlabel="number of events", ylabel="density", yscale="log", ylim=(0.01, 1e5))
right.bar(np.arange(8), [np.mean(test[:, 1] == k) for k in range(8)], color=GREY, label="new rows")
right.plot(values, share, "s", ms=7, color=LIGHT, label="one density for each value")
right.plot(np.arange(7), by_cells, "o", ms=4, color=DARK, label="cells")
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
# duration times the probability of the cell given the duration.

rows = test[test[:, 1] < 6]
numbers = rows[:, 1].astype(int)
by_value = np.log(share[numbers]) + [each[k].score_samples([[d]])[0] for d, k in zip(rows[:, 0], numbers, strict=True)]
by_cell = cells.marginal([0]).score_samples(rows[:, :1]) + np.log(cells.cell_probability(rows, 1))
print(f"mean log-likelihood with spikes: {spiky.score(rows):.1f}")
print(f"with one density for each value: {by_value.mean():.2f}; with cells: {by_cell.mean():.2f}")

fig, ax = plt.subplots(figsize=(8, 3.3), layout="constrained")
time = np.linspace(0.02, 14, 300)
ax.hist(test[:, 0], 35, density=True, color=GREY, label="all new rows")
ax.plot(time, cells.marginal([0]).pdf(time[:, None]), color="black", label="fitted to all rows")
for k, style in ((1, "-"), (4, "--")):
    ax.plot(time, each[k].pdf(time[:, None]), style, color=WARM, label=f"fitted to rows with events = {k}")
ax.set(xlabel="duration", ylabel="density", xlim=(0, 14))
ax.legend(frameon=False)
plt.show()

# %%
# One density for each value and one density with cells describe new rows about equally well. The log-likelihood with
# spikes is several units higher without describing the rows any better.
