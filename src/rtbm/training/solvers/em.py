"""Exact expectation maximisation for dense machines: P(h|v) is a finite sum, so the expectations have no error."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.training.family import FAILURES
from rtbm.training.objective import RIGIDITY, STIFFNESS, Objective
from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Result, Solver, Watch
from rtbm.training.statistics import Evaluation, dense, information
from rtbm.training.statistics.likelihood import TOLERANCE

NEWTON_STEPS = 3
"""Newton steps for A and a in an M-step. More cost time and hardly improve it; the next M-step goes on."""
SMALLEST_COMPONENT = 1e-3
"""A machine of a mixture that explains fewer observations than this is left alone."""


@dataclass(frozen=True)
class EM(Solver):
    """Expectation maximisation: the objective never rises, and there is no step size to choose.

    E-step: the sums of one pass over the data. M-step: F, mean and Σ by weighted regression of v on h (with the prior
    of Σ), the weights of a mixture by counting, and A and a by Newton's method on a convex function.
    """

    max_iter: int = 1000
    name: ClassVar[str] = "em"
    takes_full_passes: ClassVar[bool] = True

    def minimise(self, objective: Objective, start: Tensor, watch: Watch | None = None) -> Result:
        """Minimise from a start."""
        watch = watch or Watch()
        if objective.family.coupling != "dense":
            raise InvalidInputError('solver="em" needs coupling="dense": the states of a diagonal machine are not few')
        try:
            value, evaluation = objective.evaluate(start)
        except TooManyTermsError as error:
            raise InvalidInputError(
                f'solver="em" sums over tables of hidden states, which would need more than {error.limit} states here: '
                'use fewer hidden units, or solver="lbfgs"'
            ) from None
        watch(start, value)
        vector, reason = iterate(objective, start, value, evaluation, watch, self.max_iter, self.tol)
        return watch.result(vector, reason, objective.evaluations, self.name)


def iterate(
    objective: Objective, vector: Tensor, value: float, evaluation: Evaluation, watch: Watch, max_iter: int, tol: float
) -> tuple[Tensor, str]:
    """Iterations from a vector, where value and sums are known: where they end, and why."""
    for _ in range(max_iter):
        try:
            updated = maximise(objective, evaluation)
            previous, (value, evaluation) = value, objective.evaluate(updated)
        except FAILURES:  # hidden units too soft for a table, or a covariance of zero
            return vector, STALLED
        if not value <= previous + TOLERANCE:
            return vector, STALLED
        vector = updated
        if watch(vector, value):
            return vector, EARLY_STOPPING
        if previous - value < tol * max(1.0, abs(value)):
            return vector, CONVERGED
    return vector, MAX_ITER


def maximise(objective: Objective, evaluation: Evaluation) -> Tensor:
    """The M-step: the vector of the machines that fit the expectations of an evaluation best."""
    machines, states, residuals = evaluation.machines, evaluation.states, evaluation.residuals
    g = machines.centre.shape[1]
    F, mean, covariance = _regression(objective, evaluation)
    L_A, centre, L = machines.L_A.copy(), machines.centre.copy(), machines.L.copy()
    kept = residuals[:, 0] * objective.total < SMALLEST_COMPONENT  # too few points to say anything
    F[kept], mean[kept] = machines.F[kept], machines.mean[kept]
    L[~kept] = np.linalg.cholesky(covariance[~kept])
    for k in np.flatnonzero(~kept):
        own = slice(states.first[k], states.first[k + 1])
        information.fit_hidden(
            L_A[k], centre[k], states.delta[own], residuals[k, : 1 + g + g * g], objective.total, RIGIDITY, STIFFNESS,
            NEWTON_STEPS,
        )  # fmt: skip
    shares = np.log(np.maximum(residuals[:, 0] * objective.total, 1e-300))
    vector = dense.pack_machines(shares, L_A, centre, F, mean, L)
    return torch.from_numpy(vector).to(objective.device)


def _regression(objective: Objective, evaluation: Evaluation) -> tuple[Floats, Floats, Floats]:
    """F, mean and covariance of v given h: weighted least squares, and the prior's share in the covariance."""
    machines, prior = evaluation.machines, objective.prior
    parts = evaluation.parts()
    coefficients = parts.cross @ np.linalg.pinv(parts.gram, hermitian=True, rtol=1e-13)
    explained = coefficients @ parts.cross.mT
    residual = parts.square - explained - explained.mT + coefficients @ parts.gram @ coefficients.mT
    floor = np.diag(2 * prior.strength / objective.total * prior.widths**2)
    total = np.maximum(parts.gram[:, -1:, -1:], 1e-300)
    covariance = (machines.L @ residual @ machines.L.mT + floor) / total
    change = machines.L @ coefficients
    F = machines.F + change[:, :, :-1]
    origin = machines.mean + (machines.F @ machines.centre[:, :, None])[:, :, 0] + change[:, :, -1]
    return F, origin - (F @ machines.centre[:, :, None])[:, :, 0], 0.5 * (covariance + covariance.mT)
