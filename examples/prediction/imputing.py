"""
Fill in missing values
======================

A quarter of the entries of a table of wines is removed and filled in again, from a density that was fitted to the table
with its gaps. Means given the known entries have the smallest error for single entries. Draws have larger errors, but
they keep the spread and the correlations of the table, which matters when statistics are computed from it. Both are
compared with the imputers of scikit-learn.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer, SimpleImputer

from rtbm import RTBMDensity
from rtbm.plotting import DARK, GREY, LIGHT, WARM

# %%
# A table with gaps
# -----------------
#
# There are 178 wines and five measurements. Entries are missing at random. A row without any known entry gets one back,
# because there would be nothing to impute from.

columns = ["alcohol", "flavanoids", "color_intensity", "hue", "proline"]
table = load_wine(as_frame=True).data[columns].to_numpy()
is_gap = np.random.default_rng(0).random(table.shape) < 0.25
is_gap[is_gap.all(axis=1), 0] = False
gaps = np.where(is_gap, np.nan, table)
print(f"missing: {is_gap.mean():.0%} of the entries, in {is_gap.any(axis=1).mean():.0%} of the rows")

# %%
# Fit and fill in
# ---------------
#
# The fit integrates over missing entries, so no row is left out and nothing is filled in beforehand. Draws differ from
# one to the next, so there are four of them.

model = RTBMDensity(n_hidden=1, n_components=3, n_init=3, random_state=0).fit(gaps)
draws = [IterativeImputer(sample_posterior=True, random_state=seed).fit_transform(gaps) for seed in range(4)]
filled = {
    "RTBMDensity, means": [model.impute(gaps)],
    "RTBMDensity, draws": [model.impute(gaps, method="sample", random_state=seed) for seed in range(4)],
    "IterativeImputer": [IterativeImputer(max_iter=30, random_state=0).fit_transform(gaps)],
    "IterativeImputer, draws": draws,
    "KNNImputer": [KNNImputer().fit_transform(gaps)],
    "column means": [SimpleImputer().fit_transform(gaps)],
}

fig, axes = plt.subplots(1, 4, figsize=(8.6, 3), sharex=True, sharey=True, layout="constrained")
rows = is_gap[:, 1] | is_gap[:, 2]
pictures = {"true": table} | {name: filled[name][0] for name in list(filled)[:3]}
for ax, (name, result) in zip(axes, pictures.items(), strict=True):
    ax.plot(*table[~rows][:, 1:3].T, ".", ms=4, color=GREY, label="nothing missing here")
    ax.plot(*result[rows][:, 1:3].T, ".", ms=5, color=WARM, label="colour, flavanoids or both filled in")
    ax.set_title(name, fontsize=10)
    ax.set_xlabel("flavanoids")
axes[0].set_ylabel("colour intensity")
fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
plt.show()

# %%
# Errors and statistics
# ---------------------
#
# The error is the root mean square over the removed entries. The spread is the standard deviation of the filled
# entries, which should be that of the removed ones (dashed). Both are in standard deviations of each column.
# Correlations are those between two columns of the filled table; their error is a mean over all pairs.

centre, scale = table.mean(axis=0), table.std(axis=0)
pairs = np.triu_indices(len(columns), 1)
true_correlations = np.corrcoef(table.T)[pairs]
print(f"{'':<26}{'error':>8}{'spread':>10}{'error of correlations':>24}")
print(f"{'removed entries':<26}{0:8.2f}{((table - centre) / scale)[is_gap].std():10.2f}{0:24.3f}")
figures = {}
for name, results in filled.items():
    errors = [np.sqrt(np.mean(((result - table) / scale)[is_gap] ** 2)) for result in results]
    spreads = [((result - centre) / scale)[is_gap].std() for result in results]
    off = [np.abs(np.corrcoef(result.T)[pairs] - true_correlations).mean() for result in results]
    figures[name] = [np.mean(errors), np.mean(spreads), np.mean(off)]
    print(f"{name:<26}{np.mean(errors):8.2f}{np.mean(spreads):10.2f}{np.mean(off):24.3f}")

fig, axes = plt.subplots(1, 3, figsize=(8.6, 2.8), sharey=True, layout="constrained")
titles = ("error of an entry", "spread of filled entries", "error of a correlation")
for i, (ax, title) in enumerate(zip(axes, titles, strict=True)):
    ax.barh(list(figures), [values[i] for values in figures.values()], color=[DARK] * 2 + [LIGHT] * 3 + [GREY])
    ax.set_title(title, fontsize=10)
axes[1].axvline(((table - centre) / scale)[is_gap].std(), color="black", ls="--", lw=1)
axes[0].invert_yaxis()
plt.show()

# %%
# By means, ``RTBMDensity`` has the smallest error of an entry. By draws it has nearly the right spread, and smaller
# errors of correlations than by means; the same holds for the draws of ``IterativeImputer``. ``KNNImputer`` keeps the
# correlations as well as draws do, but has only about half of the spread.
