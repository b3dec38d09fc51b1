"""Adam on batches: for data that do not fit into memory, and for several processes."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtbm.training.batches import ArrayBatches, Batch, Batches
from rtbm.training.distributed import attempt, gather_objects, raise_first, rank_and_world, sum_over_processes
from rtbm.training.family import FAILURES, Family
from rtbm.training.objective import Objective, Prior
from rtbm.training.solvers.base import EpochSolver, Monitor, Result
from rtbm.training.statistics import ArraySource, Likelihood

ADAM_BATCH = 500
"""Rows in a batch of data in memory. Smaller batches make more steps an epoch, with noisier gradients."""
LARGEST_GRADIENT = 10.0
"""Longer gradients are cut to this length, so that one outlier in a batch cannot throw the fit away."""


@dataclass(frozen=True)
class Adam(EpochSolver):
    """Adam on batches.

    Under torch.distributed the gradients of all processes are added before each step. Processes that share the rows of
    each batch take the steps of a single process.
    """

    max_iter: int = 500
    name: ClassVar[str] = "adam"
    knows_smoothness: ClassVar[bool] = True

    def _minimise(self, objective: Objective, start: Tensor, monitor: Monitor) -> Result:
        weights, size = objective.weights * objective.total, self.batch_size or ADAM_BATCH
        batches = ArrayBatches(objective.x, weights, size, self.seed, *rank_and_world())
        return self.minimise_batches(objective.family, batches, objective.prior, objective.total, start, monitor)

    def minimise_batches(
        self,
        family: Family,
        batches: Batches,
        prior: Prior,
        total: float,
        start: Tensor,
        monitor: Monitor,
    ) -> Result:
        """Minimise the negative mean log-likelihood plus prior, with a step for each batch.

        Parameters
        ----------
        batches : Batches
            The data, or this process's share.
        total : float
            The sum of all weights, over all processes: the prior is divided by it.
        """
        vector, monitor.first_step = start.clone(), 1

        def run(epoch: int, step: Callable[[], Any]) -> tuple[Tensor, float]:
            loss, seen = 0.0, 0.0
            for value, weight, gradient in _steps(family, vector, iter(batches.epoch(epoch))):
                loss, seen = loss + value, seen + weight
                if gradient is not None:
                    pull = torch.from_numpy(prior.penalty(family, vector.cpu().numpy())[1]).to(vector.device)
                    gradient = gradient / weight + pull / total
                    vector.grad = gradient * min(1.0, LARGEST_GRADIENT / max(float(gradient.norm()), 1e-300))
                    step()
            mean = loss / seen if seen else math.inf
            return vector, mean + prior.penalty(family, vector.cpu().numpy())[0] / total

        vector, reason = self.run_epochs(vector, monitor, run)
        return monitor.result(vector, reason, len(monitor.history), self.name)


def _steps(family: Family, vector: Tensor, batches: Iterator[Batch]) -> Iterator[tuple[float, float, Tensor | None]]:
    """Σ −w log P, Σ w and the gradient of the first, over all processes, for each batch; no gradient if it failed."""
    while True:
        sums, error = attempt(lambda: _sums(family, vector, next(batches, None)))
        sums = sum_over_processes(vector.new_full((4 + len(vector),), math.nan) if error else sums)
        if bool(sums[2].isnan()):  # nothing else makes this one NaN
            raise_first(gather_objects(error))
        value, weight, running, failed = sums[:4].tolist()
        if not running:  # no process has a batch left
            return
        yield value, weight, None if failed or weight == 0 else sums[4:]


def _sums(family: Family, vector: Tensor, batch: Batch | None) -> Tensor:
    """Σ −w log P, Σ w, whether there was a batch, whether it failed, and the gradient of the first."""
    result = vector.new_zeros(4 + len(vector))
    if batch is None:
        return result
    x, weights = (part.to(vector.device) for part in batch)
    result[2] = 1.0
    try:
        if len(x):
            total = float(weights.sum())
            value, gradient = Likelihood(family, ArraySource(x, weights)).with_gradient(vector)
            result[0], result[1], result[4:] = -total * value, total, -total * torch.from_numpy(gradient)
    except FAILURES:
        result[3] = 1.0
    return result
