"""The fit of a family of machines to standardised data, from one start."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import joblib
import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.estimators.density.standardise import Standardised, start_on
from rtbm.estimators.multistart import Task
from rtbm.estimators.parallel import THREADED_ROWS
from rtbm.training import ArrayBlocks, Family, Monitor, Objective, Prior, Record, make_family
from rtbm.training.coordinates import local_widths
from rtbm.training.likelihood import FAILURES, log_prob
from rtbm.training.mixed import Discrete, MixedObjective, StateTables
from rtbm.training.sums import Blocks


@dataclass(frozen=True, kw_only=True)
class DensityTask(Task):
    """Everything that a fit needs. It can be pickled for other processes."""

    n_hidden: int
    n_components: int
    phase: str
    data: Standardised
    validation: Standardised | None
    regularization: float
    first: Tensor | None = None  # the vector of the first start, if it is known
    discrete: Discrete | None = None  # the discrete columns, if there are any

    @cached_property
    def family(self) -> Family:
        """The family that is fitted."""
        return make_family(
            self.data.z.shape[1],
            self.n_hidden,
            n_components=self.n_components,
            phase=self.phase,
        )

    @property
    def uses_threads(self) -> bool:
        """Whether starts that run at the same time are threads of one process."""
        return self.n_rows <= THREADED_ROWS

    def objective(self, source: Blocks | None = None, total: float | None = None) -> Objective:
        """The objective on the training data, or on a source of total weight `total` of which those are a sample."""
        source = source or self.source
        if self.discrete is not None:
            return MixedObjective(self.family, source, self.prior, self.discrete.sizes, total, self.device)
        return Objective(self.family, source, self.prior, total, self.device)

    @cached_property
    def prior(self) -> Prior:
        """The prior for the training data."""
        z, weights = self.data.z, self.data.weights
        return Prior(self.regularization, local_widths(z, weights))

    @cached_property
    def source(self) -> ArrayBlocks:
        """The data in blocks, which all starts share."""
        places = None if self.discrete is None else self.discrete.places.to(self.device or "cpu")
        return ArrayBlocks(self._tensor(self.data.z), self._tensor(self.data.weights), places)

    def monitor(self, report: Callable[[Record], None] | None) -> Monitor:
        """A monitor that reports likelihoods in the units of the original data."""
        shift = self.data.log_volume
        if self.validation is None:
            return Monitor(None, self.patience, report, shift)
        x, weights = self._tensor(self.validation.z), self._tensor(self.validation.weights)
        log_volume = self.validation.log_volume

        def validate(vector: Tensor) -> float:
            with torch.no_grad():
                try:
                    return float(weights @ log_prob(self.family, vector, x) / weights.sum()) - log_volume
                except FAILURES:  # out of reach of float64 for some of these points
                    return -math.inf

        return Monitor(validate, self.patience, report, shift)

    def start(self, index: int) -> Tensor:
        """The vector of a start."""
        if index == 0 and self.first is not None:
            return self.first.to(self.device or "cpu")
        labels = self._labels(index)
        start = start_on(self.data, self.family, index, self.solver.seed, labels).to(self.device or "cpu")
        return start if self.discrete is None else self._tables(labels).vector(start)

    def _tables(self, labels: np.ndarray | None) -> StateTables:
        """The tables of discrete columns in the clusters of rows with which machines start."""
        assert self.discrete is not None
        labels = np.zeros(self.n_rows, dtype=int) if labels is None else labels
        members = self.data.weights[:, None] * (labels[:, None] == np.arange(self.n_components))
        return StateTables.fit(self.discrete.sizes, self.discrete.count_shares(members))

    def _labels(self, index: int) -> np.ndarray | None:
        if self.n_components == 1:
            return None
        from sklearn.cluster import KMeans  # half a second, which only mixtures need

        n_clusters = min(self.n_components, self.n_rows)
        kmeans = KMeans(n_clusters, n_init=1, random_state=(self.solver.seed + index) % 2**32)
        with joblib.parallel_config("sequential"):
            return kmeans.fit(self._clustered, sample_weight=self.data.weights).labels_

    @property
    def _clustered(self) -> Floats:
        """The rows that are clustered: complete ones, with a column for each state of discrete columns."""
        if self.discrete is None:
            return self.data.complete
        columns = zip(self.discrete.states.T, self.discrete.sizes, strict=True)
        return np.hstack([self.data.complete, *(state[:, None] == np.arange(size) for state, size in columns)])

    def _tensor(self, array: Floats) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device or "cpu")
