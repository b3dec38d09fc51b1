"""The experiments of the paper's section 5 on another task: ten handwritten digits of 8×8 pixels."""

from typing import Any

from matplotlib.figure import Figure
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from experiments.experiment import Outcome, Picture
from experiments.paper.classification import (
    Comparison,
    Method,
    OverMaximum,
    compare,
    draw_images_and_scores,
    logistic_cv,
)
from experiments.verdicts import Verdict
from rtbm.common import Floats
from rtbm.estimators import RTBMFeatures, ThetaNetClassifier


def _machines(seed: int, n_hidden: int, patch_size: Any, **options: Any) -> Any:
    image = {"patch": "blocks", "image_shape": (8, 8), "patch_size": patch_size}
    return make_pipeline(RTBMFeatures(n_hidden, **image, random_state=seed, **options), StandardScaler())


def _network(kind: str, seed: int) -> ThetaNetClassifier:
    return ThetaNetClassifier((16,), activation=kind, initialization="balanced", n_init=1, random_state=seed)


class BayesRule:
    """One machine with one hidden unit for each class; classes are equally frequent."""

    def __init__(self, seed: int):
        self._features = RTBMFeatures(1, patch_size=20, supervised=True, random_state=seed)

    def fit(self, X: Floats, y: Any) -> "BayesRule":
        """Fit the densities."""
        self._features.fit(X, y)
        return self

    def predict_proba(self, X: Floats) -> Floats:
        """The probabilities of the classes."""
        return softmax(self._features.class_log_likelihood(X), axis=1)

    def predict(self, X: Floats) -> Any:
        """The likeliest classes."""
        return self._features.classes_[self.predict_proba(X).argmax(axis=1)]


COMPARISON = Comparison(
    title="Digits: ten classes",
    load=lambda: load_digits(return_X_y=True),
    sizes=[(1197, 600), (250, 250)],
    inputs={
        "pixels": lambda seed: StandardScaler(),
        "pixels / max": lambda seed: OverMaximum(),
        "20 components": lambda seed: PCA(20, random_state=seed),
        "RTBMs on 2×2 pixels": lambda seed: _machines(seed, 2, 2),
        "RTBMs of classes on 1×2 pixels": lambda seed: _machines(seed, 1, (1, 2), supervised=True, features="both"),
    },
    methods=[
        Method("logistic regression", "pixels / max", lambda seed: LogisticRegression(max_iter=1000)),
        Method("logistic regression", "pixels", logistic_cv),
        Method("theta 64:16:10", "pixels", lambda seed: _network("theta", seed)),
        Method("tanh 64:16:10", "pixels", lambda seed: _network("tanh", seed)),
        Method("logistic regression", "RTBMs on 2×2 pixels", logistic_cv),
        Method("logistic regression", "RTBMs of classes on 1×2 pixels", logistic_cv),
        Method(
            "RTBMs of classes by Bayes",
            "20 components",
            BayesRule,
        ),
        Method("Gaussians of classes by Bayes", "20 components", lambda seed: QuadraticDiscriminantAnalysis()),
        Method("MLP", "pixels", lambda seed: MLPClassifier((128,), max_iter=500, random_state=seed)),
        Method("boosted trees", "pixels", lambda seed: HistGradientBoostingClassifier(random_state=seed)),
    ],
)


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The machines beside other classifiers; the paper has no numbers for this task."""
    bayes = "RTBMs of classes by Bayes, 20 components"
    pairs = [("theta 64:16:10, pixels", "tanh 64:16:10, pixels")]
    for ours in ("logistic regression, RTBMs of classes on 1×2 pixels", bayes):
        pairs += [(ours, f"{other}, pixels") for other in ("logistic regression", "MLP", "boosted trees")]
    pairs.append((bayes, "Gaussians of classes by Bayes, 20 components"))
    return [compare(outcome, first, second) for first, second in pairs]


def draw(outcome: Outcome) -> Figure:
    """Some digits, and the accuracy of all methods."""
    return draw_images_and_scores(outcome, load_digits().images[:3])


EXPERIMENT = COMPARISON.experiment(
    "The paper's classifiers on another task: 1797 handwritten digits of 8×8 pixels, 1197 for training and 600 for "
    "testing, on random splits.",
    (500, 30),
    verdicts,
    Picture("", "", "Some digits, and the accuracy of all methods with its spread over splits.", draw),
)
