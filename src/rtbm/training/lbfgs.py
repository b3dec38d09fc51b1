"""Limited-memory BFGS, the default solver: all data at once, and curvature from the last steps."""

import math
from typing import Any, Protocol

import numpy as np
import torch

from rtbm.training.result import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Result, Watch

MEMORY = 20
INFINITE = 1e10
"""Stands for the objective where parameters leave float64, unless objectives are that large themselves; the line search
then turns back."""


class Differentiable(Protocol):
    """An objective with a gradient."""

    evaluations: int

    def with_gradient(self, vector: torch.Tensor) -> tuple[float, torch.Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""


def lbfgs(
    objective: Differentiable, start: torch.Tensor, watch: Watch, *, max_iter: int, tol: float, name: str = "lbfgs"
) -> Result:
    """Minimise by L-BFGS with a line search (scipy), until an iteration improves the objective by less than `tol`.

    Where parameters leave float64 the objective counts as a large number, so the line search turns back.
    """
    from scipy.optimize import minimize  # here, so that nothing else needs scipy

    def evaluate(vector: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = objective.with_gradient(torch.from_numpy(vector.copy()).to(start))
        return min(value, cap), gradient.cpu().numpy()

    stopped, cap = False, math.inf

    def note(intermediate_result: Any) -> None:
        nonlocal stopped
        stopped = watch(torch.from_numpy(intermediate_result.x.copy()).to(start), float(intermediate_result.fun))
        if stopped:
            raise StopIteration

    first, _ = evaluate(start.cpu().numpy())
    cap = max(INFINITE, 10 * abs(first)) if math.isfinite(first) else INFINITE
    watch(start, first)
    options = {"maxiter": max_iter, "maxfun": 3 * max_iter, "maxcor": MEMORY, "ftol": tol, "gtol": 0.1 * tol**0.5}
    found = minimize(evaluate, start.cpu().numpy(), jac=True, method="L-BFGS-B", callback=note, options=options)
    reason = EARLY_STOPPING if stopped else {0: CONVERGED, 1: MAX_ITER}.get(found.status, STALLED)
    return watch.result(torch.from_numpy(found.x.copy()).to(start), reason, objective.evaluations, name)
