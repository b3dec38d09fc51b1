"""
Find outliers
=============

A detector sees 250 benign tumours and no malignant one. It fits their density, and calls a new tumour an outlier if its
density is low. Most malignant tumours are outliers in this sense. The ranking is compared with those of a Gaussian
mixture and an isolation forest, and the detector explains which measurements of an outlier do not fit together.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import IsolationForest
from sklearn.metrics import roc_auc_score, roc_curve
from sklearn.mixture import GaussianMixture

from rtbm import RTBMDensity, RTBMOutlierDetector
from rtbm.plotting import DARK, GREY, LIGHT, WARM, plot_explanation

# %%
# Data
# ----
#
# The features are logarithms of six measurements of the nuclei of cells, means over an image. The logarithm makes their
# distributions less skewed. All rows that are not used for the fit, benign or malignant, are for testing.

data = load_breast_cancer(as_frame=True)
columns = ["texture", "perimeter", "area", "smoothness", "compactness", "symmetry"]
X = np.log(data.data[[f"mean {name}" for name in columns]]).set_axis(columns, axis=1)
is_malignant = data.target.to_numpy() == 0
chosen = np.random.default_rng(0).permutation(np.flatnonzero(~is_malignant))[:250]
train, test, truth = X.iloc[chosen], X.drop(index=chosen), np.delete(is_malignant, chosen)
print(f"{len(train)} benign tumours for the fit; {(~truth).sum()} benign and {truth.sum()} malignant ones for the test")

# %%
# Fit and detect
# --------------
#
# ``contamination`` is the share of new benign tumours that are to be called outliers, here 5 %. The threshold comes
# from scores of tumours by fits that have not seen them, so that it holds for new ones.

density = RTBMDensity(n_hidden=1, n_components=2, random_state=0)
detector = RTBMOutlierDetector(density, contamination=0.05).fit(train)
is_outlier = detector.predict(test) == -1
print(
    f"called outliers: {is_outlier[truth].mean():.0%} of the malignant, {is_outlier[~truth].mean():.0%} of the benign"
)

mixtures = [GaussianMixture(k, random_state=0).fit(train) for k in range(1, 7)]
others = {
    "GaussianMixture": min(mixtures, key=lambda mixture: mixture.bic(train)),
    "IsolationForest": IsolationForest(random_state=0).fit(train),
}
scores = {"RTBMOutlierDetector": detector.score_samples(test)}
scores |= {name: model.score_samples(test) for name, model in others.items()}
areas = {name: roc_auc_score(truth, -score) for name, score in scores.items()}
for name, area in areas.items():
    print(f"area under the ROC curve, {name}: {area:.2f}")

fig, (left, right) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained")
for kind, colour, name in ((~truth, DARK, "benign"), (truth, WARM, "malignant")):
    shown = np.clip(scores["RTBMOutlierDetector"][kind], -29, None)  # a few lie further to the left
    left.hist(shown, np.linspace(-30, 10, 41), color=colour, alpha=0.7, label=name)
left.axvline(detector.offset_, color="black", ls="--", lw=1, label="threshold")
left.set(xlabel="log-likelihood of a new tumour", ylabel="number of tumours")
left.legend(frameon=False, loc="upper left")
for (name, score), colour in zip(scores.items(), (DARK, LIGHT, WARM), strict=True):
    false, true, _ = roc_curve(truth, -score)
    right.plot(false, true, color=colour, label=f"{name}: {areas[name]:.2f}")
right.plot([0, 1], [0, 1], color=GREY, lw=1)
right.set(xlabel="share of benign ones called outliers", ylabel="share of malignant ones found")
right.legend(frameon=False, loc="lower right", title="area under the curve")
plt.show()

# %%
# Which measurement is unusual?
# -----------------------------
#
# ``explain`` names the measurements to blame, and gives the two-sided tail probability of each one, alone and given the
# other usual ones. The tumour below has ordinary measurements that do not fit together. The text says what would be
# normal given the usual ones.

found = detector.explain(test)  # one line for each measurement of each tumour
alone, given = (
    found.set_index("column", append=True)[name].unstack()[columns].to_numpy() for name in ("alone", "p_value")
)
is_ordinary = alone.min(axis=1) > 0.05
tumour = np.where(truth & is_ordinary, given.min(axis=1), 1).argmin()
for kind, name in ((truth, "malignant"), (~truth, "benign")):
    share = np.mean(given[kind & is_ordinary].min(axis=1) < 0.01)
    print(
        f"{name}: all measurements ordinary alone {(kind & is_ordinary).sum()}, of these unusual together {share:.0%}"
    )

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(2, 3), layout="constrained")
place = np.arange(len(columns))
for kind, colour, name, shift in ((truth, WARM, "malignant", -0.2), (~truth, DARK, "benign", 0.2)):
    left.barh(place + shift, np.mean(given[kind] < 0.01, axis=0), 0.38, color=colour, label=name)
left.set(yticks=place, yticklabels=columns, xlabel="share below 0.01 given the usual ones")
left.invert_yaxis()
left.legend(frameon=False)
plot_explanation(detector, test.iloc[[tumour]], ax=right)
plt.show()

# %%
# The three rankings are about equally good. Some malignant tumours are unusual only because their measurements do not
# fit together.
