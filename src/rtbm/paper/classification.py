"""What experiments with classifiers have in common: splits, scores, paired differences, tables and a picture."""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, precision_score, roc_auc_score
from sklearn.model_selection import GridSearchCV, train_test_split

from rtbm import plotting
from rtbm.common import Floats
from rtbm.paper.differences import ENOUGH, corrected_error, is_clear
from rtbm.paper.experiment import (
    BEATEN,
    NOT_REACHED,
    NOTED,
    REPRODUCED,
    Experiment,
    Job,
    Outcome,
    Picture,
    Table,
    Verdict,
)

QUICK_ITERATIONS = 5
"""Of the fits of machines that make features, in quick runs."""
SCORES = ("precision", "accuracy", "auc")
"""The precision is the average over the classes, weighted by how frequent they are."""


class Method(NamedTuple):
    """A classifier, made for a seed, the name of what it is fed, and the paper's precision for it."""

    inputs: str
    make: Callable[[int], Any]
    paper: float | None = None


class Task(NamedTuple):
    """Data with labels, the inputs that are made of them, and the methods to compare on random splits."""

    load: Callable[[], tuple[Floats, np.ndarray]]
    sizes: tuple[int, int]
    """For training, for testing."""
    quick_sizes: tuple[int, int]
    inputs: Mapping[str, Callable[[int], Any]]
    """Transformers, made for a seed."""
    methods: Mapping[str, Method]


class OverMaximum(TransformerMixin, BaseEstimator):
    """Divide all features by the largest entry of the training data."""

    def fit(self, X: Floats, y: Any = None) -> "OverMaximum":
        """Find the largest entry."""
        self.largest_ = float(X.max())
        return self

    def transform(self, X: Floats) -> Floats:
        """Divide by it."""
        return X / self.largest_


def logistic_cv() -> GridSearchCV:
    """Logistic regression with a penalty that is chosen by cross-validation on the training data."""
    return GridSearchCV(LogisticRegression(max_iter=1000), {"C": [0.01, 0.03, 0.1, 0.3, 1.0]}, cv=3)


def jobs(task: Task, seeds: int, quick: bool) -> list[Job]:
    """Every input on `seeds` random splits, the same for all methods."""
    pairs = [(inputs, seed) for seed in range(seeds) for inputs in task.inputs]
    return [Job(_key(*pair), _run_one, (task, *pair, quick)) for pair in pairs]


def _key(inputs: str, seed: int) -> str:
    return f"{inputs}, split {seed}"


def collect(task: Task, results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """The records of every method, in the order of the splits."""
    n_train, n_test = task.quick_sizes if quick else task.sizes
    records = {
        name: [results[_key(method.inputs, seed)][name] for seed in range(seeds)]
        for name, method in task.methods.items()
    }
    return {"seeds": seeds, "quick": quick, "n_train": n_train, "n_test": n_test, "records": records}


def _run_one(task: Task, inputs: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """All methods that are fed the same, on one split; the time of each includes that for making its input."""
    X, y = task.load()
    n_train, n_test = task.quick_sizes if quick else task.sizes
    options = {"train_size": n_train, "test_size": n_test, "stratify": y, "random_state": seed}
    train, test, y_train, y_test = train_test_split(X, y, **options)
    records = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        start = time.perf_counter()
        transformer = task.inputs[inputs](seed)
        if quick:
            iterations = [name for name in transformer.get_params() if name.endswith("rtbmfeatures__max_iter")]
            transformer.set_params(**dict.fromkeys(iterations, QUICK_ITERATIONS))
        train = transformer.fit_transform(train, y_train)
        preparation = time.perf_counter() - start
        test = transformer.transform(test)
        for name, method in task.methods.items():
            if method.inputs == inputs:
                start = time.perf_counter()
                model = method.make(seed).fit(train, y_train)
                seconds = preparation + time.perf_counter() - start
                records[name] = {**score(model, test, y_test), "seconds": seconds}
    return records


def score(model: Any, X: Floats, y: np.ndarray) -> dict[str, float]:
    """Precision, accuracy and the area under the ROC curve, averaged over the classes."""
    guesses, probabilities = model.predict(X), model.predict_proba(X)
    ranked = probabilities[:, 1] if probabilities.shape[1] == 2 else probabilities
    return {
        "precision": float(precision_score(y, guesses, average="weighted", zero_division=0)),
        "accuracy": float(accuracy_score(y, guesses)),
        "auc": float(roc_auc_score(y, ranked, multi_class="ovr")),
    }


def values(outcome: Outcome, name: str, what: str = "accuracy") -> Floats:
    """A score of a method on every split."""
    return np.array([record[what] for record in outcome["records"][name]])


def difference(outcome: Outcome, first: str, second: str) -> tuple[float, float]:
    """The mean difference in accuracy, and its standard error for new data."""
    paired = values(outcome, first) - values(outcome, second)
    return float(paired.mean()), corrected_error(paired, outcome["n_test"] / outcome["n_train"])


def make_experiment(
    title: str,
    about: str,
    seconds: tuple[float, float],
    task: Task,
    verdicts: Callable[[Outcome], list[Verdict]],
    picture: Picture,
) -> Experiment:
    """The experiment of a task, on 10 splits, or 2 if quick; a job is one input on one split."""
    return Experiment(
        title,
        about,
        10,
        2,
        seconds,
        lambda seeds, quick: jobs(task, seeds, quick),
        lambda results, seeds, quick: collect(task, results, seeds, quick),
        lambda outcome: [table(outcome, title, task.methods)],
        verdicts,
        (picture,),
    )


def against_paper(outcome: Outcome, name: str, paper: float) -> Verdict:
    """What became of the paper's precision for a method."""
    precision = float(values(outcome, name, "precision").mean())
    status = REPRODUCED if abs(precision - paper) < 0.01 else BEATEN if precision > paper else NOT_REACHED
    return Verdict(status, f"{name}: precision {100 * precision:.1f} %, paper {100 * paper:.0f} %.")


def table(outcome: Outcome, title: str, methods: Mapping[str, Method]) -> Table:
    """The scores of all methods in per cent, with standard deviations over splits."""
    rows = []
    for name in outcome["records"]:
        paper = methods[name].paper if name in methods else None
        cells = []
        for what in SCORES:
            scores = 100 * values(outcome, name, what)
            cells.append(f"{scores.mean():.1f} ± {scores.std(ddof=1):.1f}")
        seconds = values(outcome, name, "seconds").mean()
        rows.append([name, *cells, "" if paper is None else f"{100 * paper:.0f}", f"{seconds:.1f}"])
    sizes = f"{outcome['n_train']} for training, {outcome['n_test']} for testing, {outcome['seeds']} splits"
    return Table(f"{title}: {sizes}", ["method", "precision %", "accuracy %", "AUC %", "paper %", "seconds"], rows)


def compare(outcome: Outcome, first: str, second: str) -> Verdict:
    """Two methods beside each other; a difference is clear if its 95 % interval by Student's t leaves out 0."""
    mean, error = difference(outcome, first, second)
    if outcome["seeds"] < ENOUGH:
        text = f"{first}: {100 * mean:+.1f} points of accuracy beside {second}; too few splits for an error."
        return Verdict(NOTED, text)
    word = "ahead of" if mean > 0 else "behind"
    sure = "clearly" if is_clear(mean, error, outcome["seeds"]) else "within the error"
    text = f"{first}: {word} {second} by {100 * abs(mean):.1f} ± {100 * error:.1f} points of accuracy, {sure}."
    return Verdict(NOTED, text)


def draw_scores(outcome: Outcome, axes: Any, ours: Callable[[str], bool]) -> None:
    """Accuracy of every method, with its spread over splits."""
    names = list(outcome["records"])
    for i, name in enumerate(names):
        scores = 100 * values(outcome, name)
        colour = plotting.DARK if ours(name) else plotting.WARM
        axes.errorbar(scores.mean(), i, xerr=scores.std(ddof=1), fmt="o", color=colour, capsize=3)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="accuracy on test data (%)")
    axes.grid(axis="x", alpha=0.3)


def new_figure(height: float) -> tuple[Figure, Any]:
    """A figure with images on the left and scores on the right."""
    figure = plt.figure(figsize=(11, height), layout="constrained")
    return figure, figure.subfigures(1, 2, width_ratios=(1, 1.4))
