"""What comparisons of classifiers share: splits, scores, tables, verdicts and a picture."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split

from experiments.experiment import Experiment, Job, Outcome, Picture, ResultTable
from experiments.records import collect_records, seeded_jobs, timed, values, with_deviation
from experiments.verdicts import MIN_PAIRS, Difference, Status, Verdict
from rtbm import plotting
from rtbm.common import Floats

QUICK_FEATURE_ITERATIONS = 5
"""Iterations of each machine that makes features, in quick runs."""
SIMILAR = 0.01
"""Largest difference in accuracy at which two methods count as equally good."""
CLASSIFIER_SCORES = ("precision", "accuracy", "auc")
"""The precision is the average over the classes, weighted by their frequency."""


Verdicts = Callable[[Outcome], list[Verdict]]


class Method(NamedTuple):
    """A classifier, the name of its inputs, how to make it for a seed, and the paper's precision."""

    classifier: str
    inputs: str
    make: Callable[[int], Any]
    paper: float | None = None

    @property
    def name(self) -> str:
        """The classifier and its inputs."""
        return f"{self.classifier}, {self.inputs}"


class Comparison(NamedTuple):
    """Labelled data, the inputs that are made of them, and the methods to compare on random splits."""

    title: str
    load: Callable[[], tuple[Floats, np.ndarray]]
    sizes: Sequence[tuple[int, int]]
    """Rows for training and for testing, in a full run and in a quick one."""
    inputs: Mapping[str, Callable[[int], Any]]
    """Transformers by the name of their output, made for a seed."""
    methods: Sequence[Method]

    def jobs(self, seeds: int, quick: bool) -> list[Job]:
        """Each input on `seeds` random splits, the same for all inputs."""
        return seeded_jobs(self.run_split, self.inputs, seeds, quick)

    def run_split(self, inputs: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
        """The records of all methods with these inputs on one split; their time includes that for the inputs."""
        X, y = self.load()
        n_train, n_test = self.sizes[quick]
        options = {"train_size": n_train, "test_size": n_test, "stratify": y, "random_state": seed}
        train, test, y_train, y_test = train_test_split(X, y, **options)
        transformer = self.inputs[inputs](seed)
        if quick:
            iterations = [name for name in transformer.get_params() if name.endswith("rtbmfeatures__max_iter")]
            transformer.set_params(**dict.fromkeys(iterations, QUICK_FEATURE_ITERATIONS))
        train, preparation = timed(transformer.fit_transform, train, y_train)
        test = transformer.transform(test)
        records = {}
        for method in self.methods:
            if method.inputs == inputs:
                model, seconds = timed(method.make(seed).fit, train, y_train)
                records[method.name] = {**score(model, test, y_test), "seconds": preparation + seconds}
        return records

    def collect(self, results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
        """The records of each method, in the order of the splits."""
        outcome = collect_records(results, self.inputs, seeds, quick)
        records = {m.name: [record[m.name] for record in outcome["records"][m.inputs]] for m in self.methods}
        n_train, n_test = self.sizes[quick]
        return outcome | {"n_train": n_train, "n_test": n_test, "records": records}

    def tables(self, outcome: Outcome) -> list[ResultTable]:
        """The scores of all methods in per cent, with standard deviations over splits."""
        rows = []
        for method in self.methods:
            records = outcome["records"][method.name]
            scores = [with_deviation(100 * values(records, what), ".1f") for what in CLASSIFIER_SCORES]
            paper = "" if method.paper is None else f"{100 * method.paper:.0f}"
            rows.append([method.name, *scores, paper, f"{values(records, 'seconds').mean():.1f}"])
        sizes = f"{outcome['n_train']} for training, {outcome['n_test']} for testing, {outcome['seeds']} splits"
        columns = ["method", "precision %", "accuracy %", "AUC %", "paper %", "seconds"]
        return [ResultTable(f"{self.title}: {sizes}", columns, rows)]

    def experiment(self, about: str, seconds: tuple[float, float], verdicts: Verdicts, picture: Picture) -> Experiment:
        """The experiment that runs this comparison on 10 splits, or 2 if quick."""
        runs = (self.jobs, self.collect, self.tables, verdicts)
        return Experiment(self.title, about, (10, 2), seconds, *runs, pictures=(picture,))


class OverMaximum(TransformerMixin, BaseEstimator):
    """Divide all features by the largest entry of the training data."""

    def fit(self, X: Floats, y: Any = None) -> "OverMaximum":
        """Find the largest entry."""
        self.largest_ = float(X.max())
        return self

    def transform(self, X: Floats) -> Floats:
        """Divide by it."""
        return X / self.largest_


def logistic_cv(seed: int) -> GridSearchCV:
    """Logistic regression whose penalty is chosen by cross-validation on the training data."""
    return GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.01, 0.03, 0.1, 0.3, 1.0]}, cv=3)


def score(model: Any, X: Floats, y: np.ndarray) -> dict[str, float]:
    """Precision, accuracy and the area under the ROC curve, averaged over the classes."""
    guesses, probabilities = model.predict(X), model.predict_proba(X)
    ranked = probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities
    return {
        "precision": float(precision_score(y, guesses, average="weighted", zero_division=0)),
        "accuracy": float(accuracy_score(y, guesses)),
        "auc": float(roc_auc_score(y, ranked, multi_class="ovr")),
    }


def difference(outcome: Outcome, first: str, second: str) -> Difference:
    """The difference in accuracy between two methods."""
    ours, theirs = (values(outcome["records"][name], "accuracy") for name in (first, second))
    return Difference.paired(ours, theirs, outcome["n_test"] / outcome["n_train"])


def beside_paper(outcome: Outcome, name: str, paper: float) -> Verdict:
    """The precision of a method beside that of the paper on other images."""
    precision = float(values(outcome["records"][name], "precision").mean())
    text = f"{name}: precision {100 * precision:.1f} %; {100 * paper:.0f} % on the paper's images."
    return Verdict(Status.NOT_COMPARABLE, text)


def order(outcome: Outcome, better: str, worse: str) -> Verdict:
    """Whether one method is clearly better than another, as in the paper."""
    mean, error, _ = found = difference(outcome, better, worse)
    status = Status.REPRODUCED if mean > 0 and found.is_clear else Status.NOT_REACHED
    text = f"{better} ahead of {worse}, as in the paper: {100 * mean:+.1f} ± {100 * error:.1f} points of accuracy."
    return Verdict(status, text)


def similar(outcome: Outcome, first: str, second: str, claim: str) -> Verdict:
    """Whether two methods are as good as each other, up to SIMILAR, as the paper says."""
    mean, error, _ = difference(outcome, first, second)
    status = Status.REPRODUCED if abs(mean) < SIMILAR else Status.NOT_REACHED
    text = f"{claim[0].upper()}{claim[1:]}: {first} beside {second}, {100 * mean:+.1f} ± {100 * error:.1f} points."
    return Verdict(status, text)


def compare(outcome: Outcome, first: str, second: str) -> Verdict:
    """The difference in accuracy between two methods, in words."""
    mean, error, _ = found = difference(outcome, first, second)
    word, sure = "ahead of" if mean > 0 else "behind", "clearly" if found.is_clear else "within the error"
    text = f"{first}: {word} {second} by {100 * abs(mean):.1f} ± {100 * error:.1f} points of accuracy, {sure}."
    if outcome["seeds"] < MIN_PAIRS:
        text = f"{first}: {100 * mean:+.1f} points of accuracy beside {second}; too few splits for an error."
    return Verdict(Status.NOTED, text)


def draw_images_and_scores(outcome: Outcome, images: Any, titles: Sequence[str] = ()) -> Figure:
    """Images on the left; on the right the accuracy of every method, with its standard deviation over splits."""
    figure = plt.figure(figsize=(11, 1.6 + 0.25 * len(outcome["records"])), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.4))  # type: ignore[misc]
    plotting.plot_images(images, titles, figure=left)
    ax = right.subplots()
    for i, (name, records) in enumerate(outcome["records"].items()):
        scores = 100 * values(records, "accuracy")
        colour = plotting.DARK if "RTBM" in name or "theta" in name else plotting.WARM
        ax.errorbar(scores.mean(), i, xerr=scores.std(ddof=1), fmt="o", color=colour, capsize=3)
    ax.set_yticks(range(len(outcome["records"])), list(outcome["records"]))
    ax.invert_yaxis()
    ax.set(xlabel="accuracy on test data (%)")
    ax.grid(axis="x", alpha=0.3)
    return figure
