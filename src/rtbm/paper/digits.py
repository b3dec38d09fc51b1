"""The experiments of the paper's section 6 on another task: ten handwritten digits of 8×8 pixels."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rtbm import plotting
from rtbm.common import Floats
from rtbm.estimators import RTBMClassifier, RTBMFeatures, ThetaNetClassifier
from rtbm.paper.classification import (
    Method,
    OverMaximum,
    Task,
    compare,
    draw_scores,
    logistic_cv,
    make_experiment,
    new_figure,
)
from rtbm.paper.experiment import Outcome, Picture, Verdict

SHAPE = (8, 8)
N_COMPONENTS = 20
PIXELS, OVER_MAXIMUM, COMPONENTS = "pixels", "pixels / max", "20 components"
BLOCKS, CLASSES = "RTBMs on 2×2 pixels", "RTBMs of classes on 1×2 pixels"


def _machines(seed: int, n_hidden: int, patch_size: Any, **options: Any) -> Any:
    image = {"patch": "blocks", "image_shape": SHAPE, "patch_size": patch_size}
    return make_pipeline(RTBMFeatures(n_hidden, **image, random_state=seed, **options), StandardScaler())


INPUTS = {
    PIXELS: lambda seed: StandardScaler(),
    OVER_MAXIMUM: lambda seed: OverMaximum(),
    COMPONENTS: lambda seed: PCA(N_COMPONENTS, random_state=seed),
    BLOCKS: lambda seed: _machines(seed, 2, 2),
    CLASSES: lambda seed: _machines(seed, 1, (1, 2), supervised=True, features="both"),
}


def _network(kind: str, seed: int) -> ThetaNetClassifier:
    return ThetaNetClassifier((16,), activation=kind, initialization="balanced", n_init=1, random_state=seed)


def _bayes(seed: int) -> RTBMClassifier:
    return RTBMClassifier(1, patch_size=N_COMPONENTS, classifier="bayes", random_state=seed)


LOGISTIC, MLP, TREES = (f"{name}, {PIXELS}" for name in ("logistic regression", "MLP", "boosted trees"))
THETA, TANH = f"theta 64:16:10, {PIXELS}", f"tanh 64:16:10, {PIXELS}"
RTBM, BAYES = f"logistic regression, {CLASSES}", f"RTBMs of classes by Bayes, {COMPONENTS}"
GAUSSIANS = f"Gaussians of classes by Bayes, {COMPONENTS}"
METHODS = {
    f"logistic regression, {OVER_MAXIMUM}": Method(OVER_MAXIMUM, lambda seed: LogisticRegression(max_iter=1000)),
    LOGISTIC: Method(PIXELS, lambda seed: logistic_cv()),
    THETA: Method(PIXELS, lambda seed: _network("theta", seed)),
    TANH: Method(PIXELS, lambda seed: _network("tanh", seed)),
    f"logistic regression, {BLOCKS}": Method(BLOCKS, lambda seed: logistic_cv()),
    RTBM: Method(CLASSES, lambda seed: logistic_cv()),
    BAYES: Method(COMPONENTS, _bayes),
    GAUSSIANS: Method(COMPONENTS, lambda seed: QuadraticDiscriminantAnalysis()),
    MLP: Method(PIXELS, lambda seed: MLPClassifier((128,), max_iter=500, random_state=seed)),
    TREES: Method(PIXELS, lambda seed: HistGradientBoostingClassifier(random_state=seed)),
}


def _load() -> tuple[Floats, np.ndarray]:
    return load_digits(return_X_y=True)


TASK = Task(_load, (1197, 600), (250, 250), INPUTS, METHODS)


def verdicts(outcome: Outcome) -> list[Verdict]:
    """How the machines stand beside other classifiers; the paper has no numbers for this task."""
    pairs = [(THETA, TANH), *((ours, other) for ours in (RTBM, BAYES) for other in (LOGISTIC, MLP, TREES))]
    pairs.append((BAYES, GAUSSIANS))
    return [compare(outcome, first, second) for first, second in pairs]


def draw(outcome: Outcome) -> Figure:
    """Some digits, and the accuracy of all methods."""
    figure, (left, right) = new_figure(3.8)
    plotting.plot_images(load_digits().images[:3], figure=left)
    draw_scores(outcome, right.subplots(), lambda name: "RTBM" in name or "theta" in name)
    return figure


EXPERIMENT = make_experiment(
    "Digits: ten classes",
    "The paper's classifiers on another task: 1797 handwritten digits of 8×8 pixels, 1197 for training and 600 for "
    "testing, on random splits.",
    (500, 30),
    TASK,
    verdicts,
    Picture("", "", "Some digits, and the accuracy of all methods with its spread over splits.", draw),
)
