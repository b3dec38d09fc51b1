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
from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Monitor, Result, Solver
from rtbm.training.statistics import Evaluation, dense
from rtbm.training.statistics.hidden import HiddenFamily
from rtbm.training.statistics.tables import TABLE_TOLERANCE

NEWTON_STEPS, NEWTON_GAIN = 3, 1e-7
"""Newton steps for P(h) in an M-step, which end when one gains less than NEWTON_GAIN in mean log P: the next one would
gain about the square. More cost time and hardly improve it, since the next M-step goes on."""
HALVINGS = 12
"""Trials of a Newton step. The last ones are steps of 0, so that one machine does not stop the others."""
LEAST_OBSERVATIONS = 1e-3
"""The M-step does not change machines whose share of the data is less than this many observations, since so few
determine nothing. Larger values leave more machines of a mixture where they started."""


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
        if objective.family.coupling != "dense":
            raise InvalidInputError('solver="em" needs coupling="dense": the states of a diagonal machine are not few')
        try:
            known = objective.evaluate(start)
        except TooManyTermsError as error:
            raise InvalidInputError(
                f'solver="em" sums over tables of hidden states, which would need more than {error.limit} states here: '
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
            updated = maximise(objective, evaluation)
            previous, (value, evaluation) = value, objective.evaluate(updated)
        except FAILURES:  # hidden units too soft for a table, or a covariance of zero
            return vector, STALLED
        if not value <= previous + TABLE_TOLERANCE:
            return vector, STALLED
        vector = updated
        if monitor(vector, value):
            return vector, EARLY_STOPPING
        if previous - value < tol * max(1.0, abs(value)):
            return vector, CONVERGED
    return vector, MAX_ITER


def maximise(objective: Objective, evaluation: Evaluation) -> Tensor:
    """The M-step: the vector of the machines that fit the expectations of an evaluation best."""
    machines, shares = evaluation.machines, evaluation.residuals[:, 0] * objective.total
    F, mean, covariance = _regression(objective, evaluation)
    L_A, centre = _fit_hidden(evaluation, objective.total)
    kept = shares < LEAST_OBSERVATIONS
    for new, old in ((L_A, machines.L_A), (centre, machines.centre), (F, machines.F), (mean, machines.mean)):
        new[kept] = old[kept]
    L = machines.L.copy()
    L[~kept] = np.linalg.cholesky(covariance[~kept])
    vector = dense.pack_machines(np.log(np.maximum(shares, 1e-300)), L_A, centre, F, mean, L)
    return torch.from_numpy(vector).to(objective.device)


@np.errstate(all="ignore")
def _fit_hidden(evaluation: Evaluation, total: float) -> tuple[Floats, Floats]:
    """L_A and centre of P(h) after a few damped Newton steps in (A, b); see `HiddenFamily`.

    The log-likelihood is concave there, and so is the prior. `total` is the number of observations.
    """
    machines, (K, g) = evaluation.machines, evaluation.machines.centre.shape
    sums, first, second = np.split(total * evaluation.residuals[:, : 1 + g + g * g], [1, 1 + g], axis=1)
    hidden = HiddenFamily(evaluation.states, RIGIDITY, STIFFNESS)
    observed, eye = hidden.statistics_of(second.reshape(K, g, g), first), np.eye(hidden.n_scale + g)
    A: Floats = machines.L_A @ machines.L_A.mT
    natural = hidden.natural(A)

    def evaluate(natural: Floats, A: Floats) -> tuple[Floats, Floats]:
        """The objective (K,), and P(h)."""
        log_sum, probabilities = hidden.probabilities(natural)
        return (observed * natural).sum(axis=1) - sums[:, 0] * log_sum - hidden.penalty(A), probabilities

    value, probabilities = evaluate(natural, A)
    for _ in range(NEWTON_STEPS):
        mean, covariance = hidden.moments(probabilities)
        gradient, information = observed - sums * mean, sums[:, :, None] * covariance
        hidden.add_penalty_derivatives(A, gradient, information)
        damping = 1e-9 * information.diagonal(axis1=1, axis2=2).max(axis=1) + 1e-12
        step = np.linalg.solve(information + damping[:, None, None] * eye, gradient[:, :, None])[:, :, 0]
        size = np.ones(K)
        for _ in range(HALVINGS):  # of each machine's step, until it improves and changes A no more than tables allow
            candidate = natural + np.where(size[:, None] > 0, size[:, None] * step, 0.0)
            matrix = hidden.matrix(candidate)
            new, probabilities = evaluate(candidate, matrix)
            accepted = (np.linalg.eigvalsh(matrix - 0.5 * A)[:, 0] > 0) & (new >= value)
            if accepted.all():
                break
            size = np.where(accepted, size, np.where(size > 2e-3, 0.5 * size, 0.0))
        if not (accepted.all() and size.any()):
            break
        gain = float((new - value).max()) / total
        natural, A, value = candidate, matrix, new
        if gain < NEWTON_GAIN:
            break
    shift = np.linalg.solve(A, natural[:, hidden.n_scale :, None])[:, :, 0]
    return np.linalg.cholesky(A), machines.centre - shift


def _regression(objective: Objective, evaluation: Evaluation) -> tuple[Floats, Floats, Floats]:
    """F, mean and covariance of v given h: weighted least squares, and the prior's share in the covariance."""
    machines, prior = evaluation.machines, objective.prior
    gram, cross, square = evaluation.moments()
    coefficients = cross @ np.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    fitted = coefficients @ cross.mT
    residual = square - fitted - fitted.mT + coefficients @ gram @ coefficients.mT
    floor = np.diag(2 * prior.strength / objective.total * prior.widths**2)
    covariance = (machines.L @ residual @ machines.L.mT + floor) / np.maximum(gram[:, -1:, -1:], 1e-300)
    change = machines.L @ coefficients
    F = machines.F + change[:, :, :-1]
    origin = machines.mean + (machines.F @ machines.centre[:, :, None])[:, :, 0] + change[:, :, -1]
    return F, origin - (F @ machines.centre[:, :, None])[:, :, 0], 0.5 * (covariance + covariance.mT)
