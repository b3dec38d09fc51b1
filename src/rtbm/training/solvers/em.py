"""Exact expectation maximisation: P(h|v) is a finite sum, so the expectations have no error."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.training.objective import FAILURES, Evaluation, Objective
from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Monitor, Result, Solver

RISE = 1e-8
"""The objective may rise by this much from rounding and from states that are not listed; a larger rise ends EM."""


@dataclass(frozen=True)
class EM(Solver):
    """Expectation maximisation: the objective never rises, and there is no step size to choose.

    E-step: the sums of one pass over the data. M-step: F, mean and Σ by weighted regression of v on h (with the prior
    of Σ), the weights of a mixture by counting, and A and a by Newton's method on a convex function.
    """

    max_iter: int = 1000
    name: ClassVar[str] = "em"
    takes_full_passes: ClassVar[bool] = True

    def _minimise(self, objective: Objective, start: Tensor, monitor: Monitor) -> Result:
        try:
            known = objective.evaluate(start)
        except TooManyTermsError as error:
            raise InvalidInputError(
                f'solver="em" sums over lists of hidden states, which would need more than {error.limit} states here: '
                'use fewer hidden units, or solver="lbfgs"'
            ) from None
        monitor(start, known[0])
        vector, reason = iterate(objective, start, known, monitor, self.max_iter, self.tol)
        return monitor.result(vector, reason, objective.evaluations, self.name)


def iterate(
    objective: Objective, vector: Tensor, known: tuple[float, Evaluation], monitor: Monitor, max_iter: int, tol: float
) -> tuple[Tensor, str]:
    """Iterations from a vector, whose value and sums are known: where they end, and why."""
    value, evaluation = known
    for _ in range(max_iter):
        try:
            updated = objective.maximise(evaluation)
            previous, (value, evaluation) = value, objective.evaluate(updated)
        except FAILURES:  # hidden units too soft for a list, or a covariance of zero
            return vector, STALLED
        if not value <= previous + RISE:
            return vector, STALLED
        vector = updated
        if monitor(vector, value):
            return vector, EARLY_STOPPING
        if previous - value < tol * max(1.0, abs(value)):
            return vector, CONVERGED
    return vector, MAX_ITER
