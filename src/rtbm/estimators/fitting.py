"""From standardised data to the best machine of a family: starts, solvers, and the choice among their results."""

import contextlib
import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import joblib
import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.lattice import Floats
from rtbm.training import Family, Objective, Prior, Record, Result, Settings, Watch, make_start, solve
from rtbm.training.family import FAILURES
from rtbm.training.starts import Moments, gaussian_start, independent_axes, local_widths, moments, standardisation

SCREENED = ("lbfgs", "em")
"""Solvers whose starts first run for a few iterations, after which only the best go on."""
NOT_LIKELIHOOD = ("score_matching", "pcd")
"""Solvers with an objective of their own."""
SCREENING_ITERATIONS = 30
OUTPERFORMED = "outperformed by other starts"
FINALISTS = 3
FLOOR = 1e-4
"""The smallest eigenvalue of the correlation of features that counts as a width of the data."""
THREADED_ROWS = 50_000
"""Up to so many rows one thread is faster than several."""

Report = Callable[[int, Record], None]
"""Called with the number of a start and each of its records."""


class Standardised(NamedTuple):
    """Data of mean 0 and variance 1, and the way back: x = mean + root z."""

    z: Floats  # (n, d)
    weights: Floats  # (n,)
    mean: Floats  # (d,)
    root: Floats  # (d, d)
    covariance: Floats  # (d, d), of z: 1, unless entries are missing
    log_volume: float  # the mean of log P(z) − log P(x)


@dataclass(frozen=True)
class Task:
    """All that a fit needs, in a form that other processes can be sent."""

    n_hidden: int
    n_components: int
    hidden: str
    phase: str
    data: Standardised
    validation: Standardised | None
    regularization: float
    settings: Settings
    patience: int
    n_init: int
    screen: bool
    n_jobs: int | None
    device: str | None
    report: Report | None = field(default=None, repr=False)

    @property
    def family(self) -> Family:
        """The family that is fitted."""
        return Family(
            self.data.z.shape[1], self.n_hidden, n_components=self.n_components, hidden=self.hidden, phase=self.phase
        )

    @property
    def is_screened(self) -> bool:
        """Whether all starts run for a while, and the best of them to the end."""
        is_long = self.settings.max_iter > SCREENING_ITERATIONS
        return self.screen and is_long and self.n_init > FINALISTS and self.settings.solver in SCREENED

    @property
    def n_runs(self) -> int:
        """How often the solver will run."""
        return self.n_init + (FINALISTS if self.is_screened else 0)

    def objective(self, family: Family) -> Objective:
        """The objective on the training data."""
        z, weights = self.data.z, self.data.weights
        prior = Prior(self.regularization, self._tensor(local_widths(z, weights)))
        return Objective(family, self._tensor(z), self._tensor(weights), prior)

    def validate(self, family: Family) -> Callable[[Tensor], float] | None:
        """The mean log-likelihood of the validation data as a function of the vector, or None."""
        if self.validation is None:
            return None
        x, weights = self._tensor(self.validation.z), self._tensor(self.validation.weights)
        log_volume = self.validation.log_volume

        def mean_log_prob(vector: Tensor) -> float:
            with torch.no_grad():
                try:
                    return float(weights @ family.log_prob(vector, x) / weights.sum()) - log_volume
                except FAILURES:  # out of reach of float64 for some of these points
                    return -math.inf

        return mean_log_prob

    def watch(self, family: Family, report: Callable[[Record], None] | None) -> Watch:
        """A watch that speaks of likelihoods of the data as they were given."""
        shift = self.data.log_volume if self.settings.solver not in NOT_LIKELIHOOD else 0.0
        return Watch(self.validate(family), self.patience, report, shift)

    def start(self, index: int) -> Tensor:
        """The vector of a start."""
        return make_start(
            self.family, self.data.z, self.data.weights, index, self.settings.seed, self._labels(index)
        ).to(self.device or "cpu")

    def _labels(self, index: int) -> np.ndarray | None:
        if self.n_components == 1:
            return None
        from sklearn.cluster import KMeans  # half a second, which only mixtures need

        filled = np.nan_to_num(self.data.z)
        n_clusters = min(self.n_components, len(filled))
        kmeans = KMeans(n_clusters, n_init=1, random_state=(self.settings.seed + index) % 2**32)
        with joblib.parallel_config("sequential"), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
            return kmeans.fit(filled, sample_weight=self.data.weights).labels_

    def _tensor(self, array: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device or "cpu")


class Outcome(NamedTuple):
    """The results of all starts, and the number of the best."""

    results: list[Result]
    best: int


def standardise(
    x: Floats,
    weights: Floats,
    log_slope: Floats,
    names: list[str],
    has_missing: bool,
    known: Moments | None = None,
) -> Standardised:
    """Standardise data along their independent components, with a clear error if they span no volume.

    With missing entries, here or in other data (`has_missing`), each feature is standardised alone, since the axes
    would mix them. `log_slope` (n,) is the logarithm of the change of volume that came before, and `known` the moments
    if x is but a sample.
    """
    n, d = x.shape
    if np.isnan(x).all(axis=0).any():
        empty = [names[i] for i in np.flatnonzero(np.isnan(x).all(axis=0))]
        raise InvalidInputError(f"X: {', '.join(empty)} holds nothing but NaN: leave it out")
    size = np.nanmax(np.abs(x), axis=0)
    extreme = np.flatnonzero((size > 1e150) | ((size < 1e-150) & (size > 0)))
    if len(extreme):
        raise InvalidInputError(
            f"X: {', '.join(names[i] for i in extreme)} has values of size {size[extreme[0]]:.0e}, whose squares leave "
            "float64: change the unit"
        )
    mean, covariance = known or moments(x, weights)
    root, smallest = standardisation(Moments(mean, covariance), FLOOR)
    flat = np.flatnonzero(~(np.abs(root).max(axis=1) > 1e-13 * (1e-300 + np.abs(mean))) | (np.nanstd(x, axis=0) == 0))
    if len(flat):
        raise InvalidInputError(
            f"X: there is only one value of {', '.join(names[i] for i in flat)} to working precision, in {n} distinct "
            "rows, so there is no density: leave it out, or collect more data"
        )
    if n <= d or smallest < FLOOR:
        warnings.warn(
            f"the {d} features are linearly dependent over {n} distinct rows: across the plane that they lie in, the "
            "width of the density comes from the prior alone",
            RuntimeWarning,
            stacklevel=4,
        )
    covariance = np.eye(d)
    if has_missing:
        scales = np.linalg.norm(root, axis=1)
        covariance = (root @ root.T) / np.outer(scales, scales)
        root = np.diag(scales)
    elif d > 1:
        root = root @ independent_axes((x - mean) @ np.linalg.inv(root).T, weights)
    z = to_standard(x, mean, root)
    return Standardised(z, weights, mean, root, covariance, _log_volume(x, root, weights, log_slope))


def like(data: Standardised, x: Floats, weights: Floats, log_slope: Floats) -> Standardised:
    """Other data in the same coordinates."""
    z = to_standard(x, data.mean, data.root)
    return data._replace(z=z, weights=weights, log_volume=_log_volume(x, data.root, weights, log_slope))


def to_standard(x: Floats, mean: Floats, root: Floats) -> Floats:
    """z with x = mean + root z. A diagonal root keeps missing entries apart from the others."""
    if np.isnan(x).any():
        return (x - mean) / np.diag(root)
    return (x - mean) @ np.linalg.inv(root).T


def _log_volume(x: Floats, root: Floats, weights: Floats, log_slope: Floats) -> float:
    """The mean of log P(z) − log P(x). With missing entries root is diagonal, and only those present count."""
    log_scale = np.linalg.slogdet(root)[1]
    if np.isnan(x).any():
        log_scale = ~np.isnan(x) @ np.log(np.diag(root))
    return float(weights @ (log_scale - log_slope) / weights.sum())


def fit(task: Task) -> Outcome:
    """Run all starts, and take the best by validation if there is any, else by the objective."""
    indices = list(range(task.n_init))
    if task.is_screened:
        screening = _run_all(task, [(i, None) for i in indices], SCREENING_ITERATIONS)
        ranked = sorted(indices, key=lambda i: _rank(screening[i]))
        chosen = sorted(ranked[:FINALISTS])
        left = task.settings.max_iter - SCREENING_ITERATIONS
        finals = _run_all(task, [(i, screening[i].vector) for i in chosen], left)
        results = [replace(result, reason=OUTPERFORMED) for result in screening]
        for i, final in zip(chosen, finals, strict=True):
            results[i] = _joined(screening[i], final)
    else:
        results = _run_all(task, [(i, None) for i in indices], task.settings.max_iter)
    best = min(indices, key=lambda i: _rank(results[i]))
    return Outcome(results, best)


def gaussian_vector(task: Task) -> Tensor:
    """The member of the family that is the Gaussian of the data."""
    family = task.family
    root = torch.from_numpy(np.linalg.cholesky(task.data.covariance))
    return family.vector(family.distribution(gaussian_start(family)).affine(root)).to(task.device or "cpu")


def beats_gaussian(task: Task, vector: Tensor, total: float | None = None) -> bool:
    """Whether a fit explains the training data better than a Gaussian, by the Bayesian information criterion.

    Solvers that do without a normaliser are given the benefit of the doubt. `total` is the number of observations if
    the data of the task are but a sample.
    """
    if task.settings.solver in NOT_LIKELIHOOD:
        return True
    family, objective = task.family, task.objective(task.family)
    with torch.no_grad():
        log_prob, normal = (family.log_prob(v, objective.x) for v in (vector, gaussian_vector(task)))
    n = total or objective.total
    if n <= family.n_degrees_of_freedom + 1:
        return False
    gain = float(objective.weights @ (log_prob - normal)) * n
    d = family.n_visible
    extra = family.n_degrees_of_freedom - d - d * (d + 1) // 2
    return gain > 0.5 * max(extra, 1) * math.log(max(n, 2.0))


def _run_all(task: Task, jobs: list[tuple[int, Tensor | None]], max_iter: int) -> list[Result]:
    if task.n_jobs in (None, 1) and task.report is not None:
        return [_run(task, index, vector, max_iter, task.report) for index, vector in jobs]
    quiet = replace(task, report=None)
    calls = (joblib.delayed(_run)(quiet, index, vector, max_iter, None) for index, vector in jobs)
    results = []
    finished = joblib.Parallel(n_jobs=task.n_jobs, return_as="generator")(calls)
    for (index, _), result in zip(jobs, finished, strict=True):
        if task.report is not None:
            task.report(index, result.history[-1])
        results.append(result)
    return results


def _run(task: Task, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
    """One start, or its continuation from a vector."""
    with _threads(len(task.data.z)):
        family = task.family
        watch = task.watch(family, None if report is None else lambda record: report(index, record))
        start = task.start(index) if vector is None else vector
        settings = replace(task.settings, max_iter=max_iter, seed=task.settings.seed + index)
        return solve(task.objective(family), start, settings, watch)


@contextlib.contextmanager
def _threads(rows: int) -> Iterator[None]:
    """One torch thread for small data, as before afterwards."""
    threads = torch.get_num_threads()
    if rows <= THREADED_ROWS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rank(result: Result) -> float:
    """Smaller is better."""
    value = result.objective if math.isnan(result.validation) else -result.validation
    return value if math.isfinite(value) else math.inf


def _joined(first: Result, second: Result) -> Result:
    """One result of a start and its continuation."""
    steps, seconds = len(first.history), first.seconds
    later = [r._replace(step=r.step + steps - 1, seconds=r.seconds + seconds) for r in second.history[1:]]
    return Result(
        second.vector,
        second.objective,
        second.validation,
        first.history + later,
        second.reason,
        seconds + second.seconds,
        first.evaluations + second.evaluations,
        second.solver,
    )
