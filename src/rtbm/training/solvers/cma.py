"""CMA-ES, the optimiser of the paper: no derivatives, a population of candidates, and a learned covariance."""

import math
import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER, Monitor, Result, Solver, cap_for


@dataclass(frozen=True)
class CMA(Solver):
    """CMA-ES (the `cma` package) in the free parameters, where every candidate is a machine.

    Attributes
    ----------
    spread : float, default=0.3
        The standard deviation of the first generation around the start.
    """

    max_iter: int = 3000
    spread: float = 0.3
    name: ClassVar[str] = "cma"
    unit: ClassVar[str] = "generation"

    def _minimise(self, objective: Any, start: torch.Tensor, monitor: Monitor) -> Result:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # remarks of the package on its optional dependencies
            import cma as package  # here, so that nothing else needs it

        draws = np.random.default_rng(self.seed)
        options = {
            "seed": math.nan,  # or the package seeds NumPy's global generator
            "randn": lambda *shape: draws.standard_normal(shape),
            "maxiter": self.max_iter,
            "tolfun": self.tol,
            "tolfunhist": self.tol,
            "verbose": -9,
            "verb_log": 0,
        }
        strategy = package.CMAEvolutionStrategy(start.cpu().numpy(), self.spread, options)
        first = objective.value(start)
        cap = cap_for(first)
        monitor(start, first)
        best, lowest, reason = start, math.inf, CONVERGED
        while not strategy.stop():
            candidates = strategy.ask()
            values = [objective.value(torch.from_numpy(candidate).to(start)) for candidate in candidates]
            strategy.tell(candidates, [min(value, cap) for value in values])
            if min(values) < lowest:
                lowest = min(values)
                best = torch.from_numpy(candidates[values.index(lowest)].copy()).to(start)
            if monitor(best, lowest):
                reason = EARLY_STOPPING
                break
        if "maxiter" in strategy.stop():
            reason = MAX_ITER
        return monitor.result(best, reason, objective.evaluations, self.name)
