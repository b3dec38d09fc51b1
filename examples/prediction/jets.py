"""
W bosons among jets
===================

A jet is a spray of particles in a detector. It comes from a W boson that decayed to two quarks, or from an ordinary
quark or gluon. We reduce images of jets to principal components and classify them with ``RTBMClassifier``, which adds
the densities of both classes to logistic regression. It should be right more often than logistic regression on the
same components, because the classes differ in the shapes of their densities.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score, roc_curve
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rtbm import RTBMClassifier, RTBMDensity, datasets
from rtbm.plotting import DARK, GREY, WARM

# %%
# The images
# ----------
#
# The library comes with 7500 simulated images of 32 × 32 pixels, each the transverse momentum in a cell. They are
# centred, rotated and mirrored, and the middle part is drawn on a logarithmic scale. In the difference, red pixels have
# more energy for W bosons. They form two groups, one for each quark.

train, test = datasets.jets.load("train"), datasets.jets.load("test")
w, other = (train.images[train.labels == label].mean(axis=0) for label in (1, 0))
fig, axes = plt.subplots(1, 4, figsize=(8.6, 2.4), layout="constrained")
single = train.images[np.flatnonzero(train.labels == 1)[0]]
panels = {"one W boson": single, "mean of W bosons": w, "mean of the others": other}
for ax, (title, image) in zip(axes, panels.items(), strict=False):
    ax.imshow(np.log10(image / image.max() + 1e-4)[4:26, 5:27], cmap="viridis")
    ax.set_title(title, fontsize=10)
difference = w / w.sum() - other / other.sum()
largest = np.abs(difference).max() / 3
axes[3].imshow(difference[4:26, 5:27], cmap="RdBu_r", vmin=-largest, vmax=largest)
axes[3].set_title("difference of means", fontsize=10)
for ax in axes:
    ax.set(xticks=[], yticks=[])
plt.show()

# %%
# Principal components
# --------------------
#
# Forty components replace the 1024 pixels. The classes differ in the shape of the densities of single components, not
# only in their means. Logistic regression on the components uses the means alone; densities use the shapes.

pca = PCA(40, random_state=0).fit(train.pixels)
X, X_test, y, y_test = pca.transform(train.pixels), pca.transform(test.pixels), train.labels, test.labels
print(f"the components hold {pca.explained_variance_ratio_.sum():.0%} of the variance of the pixels")

fig, axes = plt.subplots(1, 3, figsize=(8.6, 3), layout="constrained")
for number, ax in enumerate(axes):
    grid = np.linspace(*np.quantile(X[:, number], (0.002, 0.998)), 300)
    for label, colour, name in ((1, WARM, "W boson"), (0, DARK, "quark or gluon")):
        column = X[y == label][:, [number]]
        density = RTBMDensity(n_hidden=2, n_components=2, n_init=1, random_state=0).fit(column)
        ax.hist(column[:, 0], np.linspace(grid[0], grid[-1], 41), density=True, color=colour, alpha=0.3)
        ax.plot(grid, density.pdf(grid[:, None]), color=colour, label=name)
    ax.set(xlabel=f"component {number + 1} (GeV)", yticks=[])
axes[0].set_ylabel("density")
fig.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
plt.show()

# %%
# Classify
# --------
#
# Both classifiers see the same components of 5000 images and are judged on 2500 others. ``predictor_weights_`` says
# what the prediction of ``RTBMClassifier`` is made of.

search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.01, 0.1, 1.0, 10.0]}, scoring="neg_log_loss")
logistic = make_pipeline(StandardScaler(), search).fit(X, y)
model = RTBMClassifier(cv=3, random_state=0).fit(X, y)
for name, weight in model.predictor_weights_.items():
    print(f"weight {weight:.2f}: {name}")

fig, ax = plt.subplots(figsize=(8, 3.6), layout="constrained")
print(f"{'':<22}{'accuracy':>10}{'area under ROC':>17}{'log-loss':>11}")
for name, classifier, colour in (("logistic regression", logistic, WARM), ("RTBMClassifier", model, DARK)):
    p = classifier.predict_proba(X_test)[:, 1]
    area = roc_auc_score(y_test, p)
    accuracy = np.mean(classifier.predict(X_test) == y_test)
    print(f"{name:<22}{accuracy:10.3f}{area:17.3f}{log_loss(y_test, p):11.3f}")
    false, true, _ = roc_curve(y_test, p)
    ax.plot(true, 1 / np.maximum(false, 1e-3), color=colour, label=f"{name}: area {area:.2f}")
ax.plot(true, 1 / np.maximum(true, 1e-3), color=GREY, lw=1, label="chance")
ax.set(
    xlabel="share of W bosons kept", ylabel="1 / share of the others kept", yscale="log", xlim=(0.2, 1), ylim=(1, 100)
)
ax.legend(frameon=False)
plt.show()

# %%
# ``RTBMClassifier`` is right for about 81 % of the jets and logistic regression for about 78 %. Where at least 30 % of
# the W bosons are kept, it rejects more of the others. Logistic regressions on log-likelihoods of the classes, and
# Bayes' rule with a mixture, have the largest weights.
