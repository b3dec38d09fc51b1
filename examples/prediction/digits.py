"""
Digits by one density for each class
====================================

Each of the ten digits gets a density of its own, fitted to principal components of the images. Bayes' rule turns the
ten densities into a classifier. The same densities draw new digits, which are mapped back to images: they should look
like handwriting, and different from each other.
"""

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import confusion_matrix, log_loss
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rtbm import RTBMFeatures

# %%
# Fit ten densities
# -----------------
#
# The 64 pixels become 20 principal components, in one patch, so each class has one machine with 20 visible units and
# one hidden unit.

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=600, stratify=y, random_state=0)
pca = PCA(20, random_state=0).fit(X_train)
Z_train, Z_test = pca.transform(X_train), pca.transform(X_test)
model = RTBMFeatures(1, patch_size=20, supervised=True, random_state=0).fit(Z_train, y_train)
print(f"the components hold {pca.explained_variance_ratio_.sum():.0%} of the variance of the pixels")

# %%
# Draw new digits
# ---------------
#
# ``densities_`` holds the fitted densities: one list for each patch, with one density for each class. Draws from them
# are components, and ``inverse_transform`` of the principal components makes images of them. The first row shows digits
# of the data.

fig, axes = plt.subplots(5, 10, figsize=(8.6, 4.6), layout="constrained")
for digit, density in enumerate(model.densities_[0]):
    drawn = pca.inverse_transform(density.sample(4, random_state=digit))
    images = [X_train[y_train == digit][0], *drawn]
    for ax, image in zip(axes[:, digit], images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
        ax.set(xticks=[], yticks=[])
axes[0, 0].set_ylabel("data")
for ax in axes[1:, 0]:
    ax.set_ylabel("drawn")
plt.show()

# %%
# Classify
# --------
#
# Bayes' rule compares the densities of the classes at a new image. The classes are equally frequent, so their shares do
# not matter. The others see the same components: logistic regression, and quadratic discriminant analysis, which is
# Bayes' rule with one Gaussian for each class.

others = {
    "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
    "one Gaussian for each class": QuadraticDiscriminantAnalysis(),
}
probabilities = {"one machine for each class": softmax(model.class_log_likelihood(Z_test), axis=1)}
probabilities |= {name: other.fit(Z_train, y_train).predict_proba(Z_test) for name, other in others.items()}
for name, found in probabilities.items():
    accuracy, loss = np.mean(found.argmax(axis=1) == y_test), log_loss(y_test, found)
    print(f"{name:<28} accuracy {accuracy:.3f}   log-loss {loss:.3f}")

# %%
# The table counts test images by true and predicted digit. Beside it are the images that were classified wrongly.

predicted = probabilities["one machine for each class"].argmax(axis=1)
counts = confusion_matrix(y_test, predicted)
wrong = np.flatnonzero(predicted != y_test)
print(f"wrong: {len(wrong)} of {len(y_test)}")
fig = plt.figure(figsize=(8.6, 3.6), layout="constrained")
left, right = fig.subfigures(1, 2)
ax = left.subplots()
ax.imshow(np.where(counts > 0, np.log(np.maximum(counts, 1)) + 1, 0), cmap="Blues")
for i, j in zip(*np.nonzero(counts), strict=True):
    ax.text(j, i, counts[i, j], ha="center", va="center", color="white" if i == j else "black", fontsize=8)
ax.set(xlabel="predicted", ylabel="true", xticks=range(10), yticks=range(10))
for ax, row in zip(right.subplots(2, 4).flat, wrong, strict=False):
    ax.imshow(X_test[row].reshape(8, 8), cmap="gray_r", vmin=0, vmax=16)
    ax.set_title(f"{y_test[row]}, not {predicted[row]}", fontsize=10)
    ax.set(xticks=[], yticks=[])
plt.show()

# %%
# One machine for each class is right for about 98.5 % of the images, more than logistic regression. One Gaussian for
# each class is right nearly as often, with probabilities that are less good by log-loss.
