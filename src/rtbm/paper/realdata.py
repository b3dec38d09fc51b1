"""Beyond the paper: the likelihood of held-out real data under machines, mixtures, kernels and a flow."""

import functools
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets as samples
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.paper import baselines
from rtbm.paper.experiment import Experiment, Outcome, Picture, ResultTable
from rtbm.paper.records import method_names, seconds_table, seeded, values
from rtbm.paper.verdicts import MIN_PAIRS, Difference, Status, Verdict

TEST_SHARE = 0.2
"""Share of the rows that is held out; it also enters the errors of differences."""
QUICK_DATA_ROWS = 150
"""Rows of each data set that quick runs use."""


@functools.cache
def load(name: str) -> Floats:
    """The rows of one of `REAL_DATA`, which must not be changed."""
    return REAL_DATA[name]()


def _components(X: Floats, n_components: int) -> Floats:
    return PCA(n_components, svd_solver="full").fit_transform(X)


REAL_DATA: dict[str, Callable[[], Floats]] = {
    "iris": lambda: samples.load_iris().data,
    "wine": lambda: samples.load_wine().data,
    "breast cancer, 6 components": lambda: _components(
        StandardScaler().fit_transform(samples.load_breast_cancer().data), 6
    ),
    # the second feature of these takes only two values, and so has no density
    "diabetes": lambda: np.delete(samples.load_diabetes().data, 1, axis=1),
    "digits, 4 components": lambda: _components(samples.load_digits().data, 4),
    "jets, 2 components": lambda: _components(datasets.jets.load().pixels[:2000], 2),
}

OURS = "RTBM"
REAL_DATA_METHODS: dict[str, baselines.Fit] = {
    OURS: baselines.rtbm_committee,
    "GMM": baselines.tuned_gaussian_mixture,
    "KDE": baselines.tuned_kernels,
    **baselines.FLOW,
}


def fit_split(name: str, seed: int, quick: bool, only: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """The records of all methods, or of some, on one split. Features are scaled by the training data."""
    X = load(name)[: QUICK_DATA_ROWS if quick else None]
    train, test = train_test_split(X, test_size=TEST_SHARE, random_state=seed)
    scaler = StandardScaler().fit(train)
    methods = {method: REAL_DATA_METHODS[method] for method in only or REAL_DATA_METHODS}

    def score(_: str, model: Any) -> dict[str, Any]:
        return {"likelihood": float(model.score_samples(scaler.transform(test)).mean())}

    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # few rows may be linearly dependent
        return baselines.fit_and_score(methods, scaler.transform(train), seed, quick, score)


def ranks(outcome: Outcome) -> dict[str, float]:
    """The mean rank of each method over data sets and splits; 1 is best."""
    names = method_names(outcome)
    records = [record for data in outcome["records"].values() for record in data]
    scores = np.array([values(records, method, "likelihood") for method in names])
    places = 1 + (scores[None] > scores[:, None]).sum(axis=1)
    return dict(zip(names, places.mean(axis=1).tolist(), strict=True))


def tables(outcome: Outcome) -> list[ResultTable]:
    """Likelihoods, their differences from the machines', and times."""
    names = method_names(outcome)
    likelihoods, titles = [], []
    for data, records in outcome["records"].items():
        X = load(data)
        title = f"{data} ({min(len(X), QUICK_DATA_ROWS) if outcome['quick'] else len(X)}×{X.shape[1]})"
        row = [title, f"{values(records, OURS, 'likelihood').mean():.3f}"]
        for other in names[1:]:
            difference = _difference(records, other)
            mean = values(records, other, "likelihood").mean()
            row.append(f"{mean:.3f} ({difference.mean:+.3f} ± {difference.error:.3f})")
        likelihoods.append(row)
        titles.append(title)
    likelihoods.append(["mean rank", *(f"{rank:.2f}" for rank in ranks(outcome).values())])
    title = f"Mean log-likelihood of held-out rows, {outcome['seeds']} splits; in brackets RTBM minus the method"
    return [ResultTable(title, ["data", *names], likelihoods), seconds_table(outcome, titles, "data")]


def _difference(records: list[dict[str, Any]], other: str) -> Difference:
    """The likelihood of the machines minus that of another method."""
    ours, theirs = (values(records, method, "likelihood") for method in (OURS, other))
    return Difference.paired(ours, theirs, TEST_SHARE / (1 - TEST_SHARE))


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The machines beside each other method."""
    text = "Mean rank over data sets and splits: " + ", ".join(f"{m} {r:.2f}" for m, r in ranks(outcome).items())
    lines = [Verdict(Status.NOTED, f"{text} (1 is best).")]
    if outcome["seeds"] < MIN_PAIRS:
        text = "Too few splits to say on which data the machines are clearly ahead or behind."
        return [*lines, Verdict(Status.NOTED, text)]
    for other in method_names(outcome)[1:]:
        found: dict[str, list[str]] = {"clearly ahead": [], "level": [], "clearly behind": []}
        for data, records in outcome["records"].items():
            difference = _difference(records, other)
            word = "clearly ahead" if difference.mean > 0 else "clearly behind"
            found[word if difference.is_clear else "level"].append(data)
        parts = [f"{word} on {len(sets)} ({'; '.join(sets)})" for word, sets in found.items() if sets]
        lines.append(Verdict(Status.NOTED, f"RTBM beside {other}: " + ", ".join(parts) + "."))
    return lines


def draw(outcome: Outcome) -> Figure:
    """Differences of likelihoods between the machines and each other method."""
    others, names = method_names(outcome)[1:], list(outcome["records"])
    figure, axes = plt.subplots(1, len(others), figsize=(11, 3.4), layout="constrained", sharey=True, squeeze=False)
    for ax, other in zip(axes[0], others, strict=True):
        for i, data in enumerate(names):
            mean, error, _ = _difference(outcome["records"][data], other)
            ax.errorbar(mean, i, xerr=error, fmt="o", capsize=3, color=plotting.DARK if mean > 0 else plotting.WARM)
        ax.axvline(0, color="black", lw=0.8, ls=":")
        ax.set(title=f"RTBM minus {other}", xlabel="log-likelihood per row")
    axes[0, 0].set_yticks(range(len(names)), names)
    axes[0, 0].invert_yaxis()
    return figure


EXPERIMENT = Experiment(
    title="Real data",
    about="Held-out likelihood on data that come with scikit-learn and with this library, on random splits with 80 % "
    "of the rows for fitting. Principal components are those of all rows, the same for all methods. All methods choose "
    "their sizes by cross-validation on the rows for fitting; the flow stops by held-out rows. Errors of differences "
    "are for new data (Nadeau and Bengio).",
    seeds=(10, 2),
    seconds=(1500, 5),
    **seeded(fit_split, REAL_DATA),
    tables=tables,
    verdicts=verdicts,
    pictures=(
        Picture("", "", "Differences of held-out log-likelihoods per row: right of 0 the machines are ahead.", draw),
    ),
)
