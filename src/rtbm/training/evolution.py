"""CMA-ES, the optimiser of the paper: no derivatives, a population of candidates, and a learned covariance."""

import math
import warnings
from typing import Protocol

import numpy as np
import torch

from rtbm.training.result import CONVERGED, EARLY_STOPPING, MAX_ITER, Result, Watch

LARGE = 1e10


class Measurable(Protocol):
    """An objective."""

    evaluations: int

    def value(self, vector: torch.Tensor) -> float:
        """The value, infinite where the parameters leave float64."""


def cma(
    objective: Measurable,
    start: torch.Tensor,
    watch: Watch,
    *,
    max_iter: int,
    tol: float,
    seed: int,
    spread: float = 0.3,
) -> Result:
    """Minimise by CMA-ES (the `cma` package) in the free parameters, where every candidate is a machine.

    Parameters
    ----------
    max_iter : int
        Generations.
    tol : float
        Stop when the best values of recent generations differ by less.
    seed : int
        For repeatable results.
    spread : float
        The standard deviation of the first generation around the start.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks of the package on its optional dependencies
        import cma as package  # here, so that nothing else needs it

    draws = np.random.default_rng(seed)
    options = {
        "seed": math.nan,  # or the package seeds NumPy's global generator
        "randn": lambda *shape: draws.standard_normal(shape),
        "maxiter": max_iter,
        "tolfun": tol,
        "tolfunhist": tol,
        "verbose": -9,
        "verb_log": 0,
    }
    strategy = package.CMAEvolutionStrategy(start.cpu().numpy(), spread, options)
    first = objective.value(start)
    large = max(LARGE, 10 * abs(first)) if math.isfinite(first) else LARGE
    watch(start, first)
    best, lowest, reason = start, math.inf, CONVERGED
    while not strategy.stop():
        candidates = strategy.ask()
        values = [objective.value(torch.from_numpy(candidate).to(start)) for candidate in candidates]
        strategy.tell(candidates, [min(value, large) for value in values])
        if min(values) < lowest:
            lowest = min(values)
            best = torch.from_numpy(candidates[values.index(lowest)].copy()).to(start)
        if watch(best, lowest):
            reason = EARLY_STOPPING
            break
    if "maxiter" in strategy.stop():
        reason = MAX_ITER
    return watch.result(best, reason, objective.evaluations, "cma")
