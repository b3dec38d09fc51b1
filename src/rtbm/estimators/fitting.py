"""Standardised data, and the fit of a family of machines to them from one start."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import joblib
import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.parallel import THREADED_ROWS, threads_for
from rtbm.estimators.search import Report
from rtbm.training import Family, Objective, Prior, Record, Result, Settings, Watch, make_start, solve
from rtbm.training.family import FAILURES
from rtbm.training.starts import (
    Moments,
    independent_axes,
    ladder,
    local_widths,
    moments,
    standardisation,
)
from rtbm.training.statistics import Memory, make_blocks

NOT_LIKELIHOOD = ("score_matching", "pcd")
"""Solvers with an objective of their own."""
SAMPLED = ("lbfgs", "em")
SAMPLE_ROWS = 20_000
"""Rows of a sample on which a fit to many more is prepared. Rows are sorted, so every so many-th is a good sample."""
FLOOR = 1e-4
"""The smallest eigenvalue of the correlation of features that counts as a width of the data."""


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
    smoothness: float
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
    def threads(self) -> bool:
        """Whether starts that run at the same time are threads of one process."""
        return len(self.data.z) <= THREADED_ROWS

    def objective(self, family: Family) -> Objective:
        """The objective on the training data."""
        return Objective(family, self._x, self._weights, self._prior, self._source)

    @cached_property
    def _prior(self) -> Prior:
        z, weights = self.data.z, self.data.weights
        prior = Prior(self.regularization, local_widths(z, weights))
        if self.smoothness == 0:
            return prior
        steps = ladder(z, weights, self.n_hidden, 0, np.random.default_rng(0), binary=True).F.norm(dim=0)
        return prior._replace(smoothness=self.smoothness, steps=steps.numpy())

    @cached_property
    def _x(self) -> Tensor:
        return self._tensor(self.data.z)

    @cached_property
    def _weights(self) -> Tensor:
        return self._tensor(self.data.weights)

    @cached_property
    def _source(self) -> Memory:
        """The data in blocks, which all starts share."""
        return Memory(make_blocks(self._x, self._weights / self._weights.sum()))

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
        labels, binary = self._labels(index), self.smoothness > 0
        start = make_start(self.family, self.data.z, self.data.weights, index, self.settings.seed, labels, binary)
        return start.to(self.device or "cpu")

    def smaller(self) -> "Task | None":
        """The same task on a sample of SAMPLE_ROWS rows, for solvers that take all data in each step."""
        step = len(self.data.z) // SAMPLE_ROWS
        if step < 2 or self.settings.solver not in SAMPLED:
            return None
        z, weights = self.data.z[::step], self.data.weights[::step]
        weights = weights * (self.data.weights.sum() / weights.sum())
        return replace(self, data=self.data._replace(z=np.ascontiguousarray(z), weights=weights))

    def run(self, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
        """One start, or its continuation from a vector."""
        with threads_for(len(self.data.z)):
            family = self.family
            watch = self.watch(family, None if report is None else lambda record: report(index, record))
            start = self.start(index) if vector is None else vector
            settings = replace(self.settings, max_iter=max_iter, seed=self.settings.seed + index)
            return solve(self.objective(family), start, settings, watch)

    def _labels(self, index: int) -> np.ndarray | None:
        if self.n_components == 1:
            return None
        from sklearn.cluster import KMeans  # half a second, which only mixtures need

        filled = np.nan_to_num(self.data.z)
        n_distinct = len(np.unique(filled, axis=0)) if np.isnan(self.data.z).any() else len(filled)
        n_clusters = min(self.n_components, n_distinct)
        kmeans = KMeans(n_clusters, n_init=1, random_state=(self.settings.seed + index) % 2**32)
        with joblib.parallel_config("sequential"):
            return kmeans.fit(filled, sample_weight=self.data.weights).labels_

    def _tensor(self, array: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device or "cpu")


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


def from_standard(z: Floats, mean: Floats, root: Floats) -> Floats:
    """x = mean + root z, the inverse of `to_standard`."""
    if np.isnan(z).any():
        return mean + z * np.diag(root)
    return mean + z @ root.T


def _log_volume(x: Floats, root: Floats, weights: Floats, log_slope: Floats) -> float:
    """The mean of log P(z) − log P(x)."""
    return float(weights @ (log_scales(x, root) - log_slope) / weights.sum())


def log_scales(x: Floats, root: Floats) -> Floats:
    """log P(z) − log P(x) (n,). With missing entries root is diagonal, and only those present count."""
    if np.isnan(x).any():
        return ~np.isnan(x) @ np.log(np.diag(root))
    return np.full(len(x), np.linalg.slogdet(root)[1])
