"""Beyond the paper: the likelihood of held-out real data by machines, mixtures, kernels and a flow."""

import functools
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from sklearn import datasets as samples
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

from rtbm import datasets, plotting
from rtbm.common import Floats
from rtbm.estimators import RTBMDensityCV
from rtbm.paper import baselines
from rtbm.paper.differences import ENOUGH, corrected_error, is_clear
from rtbm.paper.experiment import NOTED, Experiment, Job, Outcome, Picture, Table, Verdict

TEST_SIZE = 0.2
QUICK_ROWS = 150


@functools.cache
def load(name: str) -> Floats:
    """The rows of one of `DATA`; only read from them."""
    return DATA[name]()


def _components(X: Floats, n_components: int) -> Floats:
    return PCA(n_components, svd_solver="full").fit_transform(X)


def _diabetes() -> Floats:
    """All but the second feature, which takes two values only and so has no density."""
    return np.delete(samples.load_diabetes().data, 1, axis=1)


DATA: dict[str, Callable[[], Floats]] = {
    "iris": lambda: samples.load_iris().data,
    "wine": lambda: samples.load_wine().data,
    "breast cancer, 6 components": lambda: _components(
        StandardScaler().fit_transform(samples.load_breast_cancer().data), 6
    ),
    "diabetes": _diabetes,
    "digits, 4 components": lambda: _components(samples.load_digits().data, 4),
    "jets, 2 components": lambda: _components(datasets.jets.load().pixels[:2000], 2),
}

OURS = "RTBM"
QUICK_CANDIDATES = [{"n_hidden": 1, "n_components": k, "n_init": 1, "tol": 1e-4, "max_iter": 30} for k in (1, 2)]
METHODS: dict[str, Callable[[Floats, int, bool], Any]] = {
    OURS: lambda X, seed, quick: (
        RTBMDensityCV(QUICK_CANDIDATES, cv=2, random_state=seed) if quick else RTBMDensityCV(random_state=seed)
    ).fit(X),
    "GMM": lambda X, seed, quick: baselines.tuned_gaussian_mixture(X, seed, quick),
    "KDE": lambda X, seed, quick: baselines.tuned_kernels(X, seed, quick),
    "spline flow": lambda X, seed, quick: baselines.SplineFlow(40 if quick else None, seed).fit(X),
}


def jobs(seeds: int, quick: bool) -> list[Job]:
    """Every data set with every split."""
    pairs = [(name, seed) for seed in range(seeds) for name in DATA]
    return [Job(_key(*pair), _run_one, (*pair, quick)) for pair in pairs]


def _key(name: str, seed: int) -> str:
    return f"{name}, split {seed}"


def _run_one(name: str, seed: int, quick: bool) -> dict[str, dict[str, float]]:
    """All methods on one split; features are scaled by the training data, in whose units likelihoods are."""
    X = load(name)[: QUICK_ROWS if quick else None]
    train, test = train_test_split(X, test_size=TEST_SIZE, random_state=seed)
    scaler = StandardScaler().fit(train)
    train, test = scaler.transform(train), scaler.transform(test)
    records = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", RuntimeWarning)  # features of few rows may depend on each other
        for method, fit in METHODS.items():
            if baselines.HAS_FLOW or method != "spline flow":
                start = time.perf_counter()
                model = fit(train, seed, quick)
                seconds = time.perf_counter() - start
                records[method] = {"likelihood": float(model.score_samples(test).mean()), "seconds": seconds}
    return records


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """Records by data set and method, in the order of the splits."""
    records = {
        name: {m: [results[_key(name, seed)][m] for seed in range(seeds)] for m in results[_key(name, 0)]}
        for name in DATA
    }
    return {"seeds": seeds, "quick": quick, "records": records}


def values(outcome: Outcome, name: str, method: str, what: str = "likelihood") -> Floats:
    """A number of a method for every split."""
    return np.array([record[what] for record in outcome["records"][name][method]])


def methods(outcome: Outcome) -> list[str]:
    """The methods that were run."""
    return list(next(iter(outcome["records"].values())))


def ranks(outcome: Outcome) -> dict[str, float]:
    """The mean rank of each method over data sets and splits; 1 is best."""
    names = methods(outcome)
    scores = np.concatenate([[values(outcome, data, m) for m in names] for data in outcome["records"]], axis=1)
    places = 1 + (scores[None] > scores[:, None]).sum(axis=1)
    return dict(zip(names, places.mean(axis=1).tolist(), strict=True))


def tables(outcome: Outcome) -> list[Table]:
    """Likelihoods, their differences from the machines', and times."""
    names = methods(outcome)
    likelihoods, times = [], []
    for data in outcome["records"]:
        X = load(data)
        title = f"{data} ({min(len(X), QUICK_ROWS) if outcome['quick'] else len(X)}×{X.shape[1]})"
        row = [title, f"{values(outcome, data, OURS).mean():.3f}"]
        for other in names[1:]:
            mean, error = _difference(outcome, data, other)
            row.append(f"{values(outcome, data, other).mean():.3f} ({mean:+.3f} ± {error:.3f})")
        likelihoods.append(row)
        times.append([title, *(f"{values(outcome, data, m, 'seconds').mean():.1f}" for m in names)])
    likelihoods.append(["mean rank", *(f"{rank:.2f}" for rank in ranks(outcome).values())])
    title = f"Mean log-likelihood of held-out rows, {outcome['seeds']} splits; in brackets RTBM less this"
    return [
        Table(title, ["data", *names], likelihoods),
        Table("Seconds of a fit on one core, with the choice of hyper-parameters", ["data", *names], times),
    ]


def _difference(outcome: Outcome, data: str, other: str) -> tuple[float, float]:
    paired = values(outcome, data, OURS) - values(outcome, data, other)
    return float(paired.mean()), corrected_error(paired, TEST_SIZE / (1 - TEST_SIZE))


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The machines beside each other method."""
    text = "Mean rank over data sets and splits: " + ", ".join(f"{m} {r:.2f}" for m, r in ranks(outcome).items())
    lines = [Verdict(NOTED, f"{text} (1 is best).")]
    if outcome["seeds"] < ENOUGH:
        return [*lines, Verdict(NOTED, "Too few splits to say on which data the machines are clearly ahead or behind.")]
    for other in methods(outcome)[1:]:
        found: dict[str, list[str]] = {"clearly ahead": [], "level": [], "clearly behind": []}
        for data in outcome["records"]:
            mean, error = _difference(outcome, data, other)
            clear = is_clear(mean, error, outcome["seeds"])
            found["level" if not clear else "clearly ahead" if mean > 0 else "clearly behind"].append(data)
        parts = [f"{word} on {len(sets)} ({'; '.join(sets)})" for word, sets in found.items() if sets]
        lines.append(Verdict(NOTED, f"RTBM beside {other}: " + ", ".join(parts) + "."))
    return lines


def draw(outcome: Outcome) -> Figure:
    """Differences of likelihoods from the machines'."""
    others = methods(outcome)[1:]
    figure, axes = plt.subplots(1, len(others), figsize=(11, 3.4), layout="constrained", sharey=True)
    names = list(outcome["records"])
    for ax, other in zip(np.ravel(axes), others, strict=True):
        for i, data in enumerate(names):
            mean, error = _difference(outcome, data, other)
            ax.errorbar(mean, i, xerr=error, fmt="o", capsize=3, color=plotting.DARK if mean > 0 else plotting.WARM)
        ax.axvline(0, color="black", lw=0.8, ls=":")
        ax.set(title=f"RTBM less {other}", xlabel="log-likelihood a row")
    np.ravel(axes)[0].set_yticks(range(len(names)), names)
    np.ravel(axes)[0].invert_yaxis()
    return figure


EXPERIMENT = Experiment(
    "Real data",
    "Held-out likelihood on data that come with scikit-learn and with this library: 80 % of the rows to fit, 20 % to "
    "judge, on random splits. Principal components are those of all rows, the same for all methods. All methods choose "
    "their sizes by cross-validation on the rows for fitting (the flow stops by held-out rows). "
    "Errors of differences are for new data (Nadeau and Bengio).",
    10,
    2,
    (1500, 5),
    jobs,
    collect,
    tables,
    verdicts,
    (Picture("", "", "Differences of held-out log-likelihoods a row: to the right of 0 machines are ahead.", draw),),
)
