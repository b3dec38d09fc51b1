"""Limited-memory BFGS, the default solver: all data at once, and curvature from the last steps."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.objective import FAILURES
from rtbm.training.scaling import UNSCALED, Scaling
from rtbm.training.solvers import em
from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Monitor, Result, Solver, cap_for

EM_STEPS, EM_GAIN = 30, 1e-4
"""L-BFGS takes over from EM after EM_STEPS iterations, or when one improves the objective by less than EM_GAIN."""
MEMORY = 20  # earlier steps from which L-BFGS estimates the curvature
FIRST_SEGMENT = 10
"""Iterations until coordinates are scaled anew; each time twice as many."""


@dataclass(frozen=True)
class LBFGS(Solver):
    """Expectation maximisation while that gains much, and then L-BFGS.

    EM is best at the first steps from a rough start, and L-BFGS at the last digits. For one machine, and with one
    feature, L-BFGS alone finds better optima (densities with heavy tails are the clearest case). Diagonal machines and
    tables that are too long take it alone as well.
    """

    max_iter: int = 1000
    name: ClassVar[str] = "lbfgs"
    takes_full_passes: ClassVar[bool] = True

    def _minimise(self, objective: Any, start: Tensor, monitor: Monitor) -> Result:
        if getattr(objective, "is_scaled", False):
            try:
                known = objective.evaluate(start)
            except FAILURES:
                pass
            else:
                monitor(start, known[0])
                steps = min(EM_STEPS, self.max_iter)
                start, reason = em.iterate(objective, start, known, monitor, steps, max(EM_GAIN, self.tol))
                if reason == EARLY_STOPPING or len(monitor.history) > self.max_iter:
                    reason = reason if reason == EARLY_STOPPING else MAX_ITER
                    return monitor.result(start, reason, objective.evaluations, self.name)
        return lbfgs(objective, start, monitor, max_iter=self.max_iter, tol=self.tol, name=self.name)


def lbfgs(objective: Any, start: Tensor, monitor: Monitor, *, max_iter: int, tol: float, name: str) -> Result:
    """Minimise by L-BFGS with a line search (scipy), until an iteration improves the objective by less than `tol`.

    Where parameters leave float64 the objective counts as a large number, so the line search turns back. An objective
    that has a `scaling` is minimised in the coordinates that it gives, which are found anew every so often.
    """
    from scipy.optimize import minimize  # here, so that nothing else needs scipy

    def to_tensor(vector: Floats) -> Tensor:
        return torch.from_numpy(np.array(vector)).to(start)

    def coordinates_at(vector: Floats) -> Scaling:
        scaling = objective.scaling(to_tensor(vector)) if hasattr(objective, "scaling") else None
        if scaling is not None:
            return scaling
        value, gradient = objective.with_gradient(to_tensor(vector))
        return Scaling(vector, value, gradient.cpu().numpy())

    def evaluate(u: Floats) -> tuple[float, Floats]:
        if not u.any():
            return min(here.value, cap), here.to_scaled(here.gradient)
        value, gradient = objective.with_gradient(to_tensor(here.to_vector(u)))
        return min(value, cap), here.to_scaled(gradient.cpu().numpy())

    stopped = False
    done = max(0, len(monitor.history) - 1)  # iterations of another solver, from which this one takes over

    def note(intermediate_result: Any) -> None:
        nonlocal stopped, done
        done += 1
        stopped = monitor(to_tensor(here.to_vector(intermediate_result.x)), float(intermediate_result.fun))
        if stopped:
            raise StopIteration

    here, segment = coordinates_at(start.cpu().numpy()), FIRST_SEGMENT
    cap = cap_for(here.value)
    if not monitor.history:
        monitor(start, min(here.value, cap))
    while True:
        left = max_iter - done
        iterations = left if here.L is UNSCALED else min(segment, left)
        gtol = 0.1 * tol**0.5 * here.length
        options = {"maxiter": iterations, "maxfun": 3 * left, "maxcor": MEMORY, "ftol": tol, "gtol": gtol}
        zeros = np.zeros(len(here.origin))
        found = minimize(evaluate, zeros, jac=True, method="L-BFGS-B", callback=note, options=options)
        vector, segment = here.to_vector(found.x), 2 * segment
        if stopped or found.status != 1 or done >= max_iter:
            break
        here = coordinates_at(vector)
    reason = EARLY_STOPPING if stopped else {0: CONVERGED, 1: MAX_ITER}.get(found.status, STALLED)
    return monitor.result(to_tensor(vector), reason, objective.evaluations, name)
