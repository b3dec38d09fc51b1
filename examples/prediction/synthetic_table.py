"""
Synthetic tables
================

A density of the iris table, with its species as a column of categories, draws rows like the real ones. Columns, pairs
of columns and species are compared, and a random forest tries to tell real rows from drawn ones.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import StratifiedKFold, cross_val_score

from rtbm import RTBMDensity
from rtbm.plotting import DARK, WARM

# %%
# Fit and draw
# ------------
#
# Measurements are rounded to 0.1 cm, which the fit finds out: draws are rounded too.

iris = load_iris(as_frame=True)
table = iris.frame.rename(columns=lambda name: name.removesuffix(" (cm)")).rename(columns={"target": "species"})
table["species"] = pd.Categorical.from_codes(table["species"], iris.target_names)
model = RTBMDensity(1, n_components=4, n_init=3, random_state=0).fit(table)
draws = model.sample(len(table), random_state=0)
print(draws.head())
print("widths of cells:", [cells and cells.width for cells in model.columns_.cells])

# %%
# Real and drawn rows
# -------------------

fig, axes = plt.subplots(2, 3, figsize=(8.6, 4.8), layout="constrained")
for ax, name in zip(axes[0], ["sepal length", "petal length", "petal width"], strict=True):
    bins = np.linspace(table[name].min() - 0.3, table[name].max() + 0.3, 22)
    ax.hist(table[name], bins, color=DARK, alpha=0.55, label="real")
    ax.hist(draws[name], bins, histtype="step", color=WARM, lw=1.8, label="drawn")
    ax.set(xlabel=name, yticks=[])
axes[0, 0].legend(fontsize=8)
for ax, (x, y) in zip(axes[1], [("sepal length", "sepal width"), ("sepal length", "petal width")], strict=False):
    ax.plot(table[x], table[y], ".", ms=5, color=DARK, alpha=0.55)
    ax.plot(draws[x], draws[y], "x", ms=4, color=WARM)
    ax.set(xlabel=x, ylabel=y)
shares = pd.DataFrame({"real": table["species"].value_counts(), "drawn": draws["species"].value_counts()})
shares.plot.barh(ax=axes[1, 2], color=[DARK, WARM], legend=False)
axes[1, 2].set(xlabel="rows", ylabel="")

# %%
# Can a classifier tell them apart?
# ---------------------------------
#
# An area under the ROC curve of 0.5 means that it cannot. Columns that are drawn one by one, each with its own
# distribution, are easy to tell.

rng = np.random.default_rng(0)
shuffled = table.apply(lambda column: column.sample(frac=1, random_state=int(rng.integers(2**31))).to_numpy())
for name, rows in {"drawn from the density": draws, "columns shuffled": shuffled}.items():
    both = pd.get_dummies(pd.concat([table, rows], ignore_index=True))
    labels = np.repeat([0, 1], [len(table), len(rows)])
    forest = RandomForestClassifier(300, min_samples_leaf=3, random_state=0)
    folds = StratifiedKFold(5, shuffle=True, random_state=0)
    scores = cross_val_score(forest, both, labels, cv=folds, scoring="roc_auc")
    print(f"{name}: area under the curve {scores.mean():.2f}")
