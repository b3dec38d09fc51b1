"""The M-step of expectation maximisation: the parameters that maximise the expected complete-data log-likelihood."""

import numpy as np

from rtbm.common import Floats
from rtbm.training.machines import RIGIDITY, STIFFNESS, Machines, Prior, Sums, lower_triangle
from rtbm.training.states import States

NEWTON_STEPS, NEWTON_GAIN = 3, 1e-7
"""Newton steps for P(h) in an M-step, which end when one gains less than NEWTON_GAIN in mean log P: the next one would
gain about the square. More cost time and hardly improve it, since the next M-step goes on."""
HALVINGS = 12
"""Trials of a Newton step. The last ones are steps of 0, so that one machine does not stop the others."""
LEAST_OBSERVATIONS = 1e-3
"""The M-step does not change machines whose share of the data is less than this many observations, since so few
determine nothing. Larger values leave more machines of a mixture where they started."""


def maximise(machines: Machines, states: States, sums: Sums, prior: Prior, total: float) -> Machines:
    """The machines after an M-step, whose weights need not have the sum 1.

    F, mean and Σ follow from a weighted regression of v on h, weights from counts, and P(h) from Newton steps.
    `total` is the number of observations.
    """
    F, mean, covariance = _regression(machines, sums, prior, total)
    L_A, centre = _fit_hidden(machines, states, sums, total)
    shares = sums.shares * total
    kept, L = shares < LEAST_OBSERVATIONS, machines.L.copy()
    for new, old in ((L_A, machines.L_A), (centre, machines.centre), (F, machines.F), (mean, machines.mean)):
        new[kept] = old[kept]
    L[~kept] = np.linalg.cholesky(covariance[~kept])
    return Machines(np.log(np.maximum(shares, 1e-300)), L_A, centre, F, mean, L)


class HiddenFamily:
    """P(h) ∝ exp(−½δᵀAδ − bᵀδ) of K machines, in natural parameters (K, g(g + 1)/2 + g): the triangle of A, and b.

    Parameters
    ----------
    states : States
        The tables, which stay as they are while A and b change.
    rigidity, stiffness : float
        The prior on A: exp(−rigidity (tr A − stiffness log det A)).
    """

    row: np.ndarray
    column: np.ndarray
    n_scale: int

    def __init__(self, states: States, rigidity: float, stiffness: float):
        counts, g = np.diff(states.first), states.delta.shape[1]
        is_state = np.arange(counts.max()) < counts[:, None]
        delta = np.zeros((*is_state.shape, g))
        delta[is_state] = states.delta
        self.row, self.column, _ = lower_triangle(g)
        self.n_scale = len(self.row)
        self._statistics = self.statistics_of(delta[..., :, None] * delta[..., None, :], delta)
        self._log_mask = np.where(is_state, 0.0, -np.inf)
        self._directions = np.zeros((self.n_scale, g, g))  # dA for each entry of the triangle
        index = np.arange(self.n_scale)
        self._directions[index, self.row, self.column] = self._directions[index, self.column, self.row] = 1.0
        self._rigidity, self._stiffness = rigidity, stiffness

    def statistics_of(self, second: Floats, first: Floats) -> Floats:
        """What the natural parameters multiply in log P, from δδᵀ (..., g, g) and δ (..., g) or their sums."""
        halves = np.where(self.row == self.column, 0.5, 1.0)
        return -np.concatenate([halves * second[..., self.row, self.column], first], axis=-1)

    def natural(self, A: Floats) -> Floats:
        """The natural parameters of A (K, g, g) and b = 0."""
        return np.concatenate([A[:, self.row, self.column], np.zeros(A.shape[:2])], axis=1)

    def matrix(self, natural: Floats) -> Floats:
        """A (K, g, g)."""
        g = self._directions.shape[1]
        return (natural[:, : self.n_scale] @ self._directions.reshape(self.n_scale, -1)).reshape(-1, g, g)

    def probabilities(self, natural: Floats) -> tuple[Floats, Floats]:
        """log Σ exp over the states (K,), and P(h) (K, S)."""
        logits = (self._statistics @ natural[:, :, None])[:, :, 0] + self._log_mask
        top = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - top)
        total = weights.sum(axis=1, keepdims=True)
        return (top + np.log(total))[:, 0], weights / total

    def moments(self, probabilities: Floats) -> tuple[Floats, Floats]:
        """Mean (K, n) and covariance (K, n, n) of the statistics."""
        weighted = probabilities[:, :, None] * self._statistics
        mean = weighted.sum(axis=1)
        return mean, weighted.mT @ self._statistics - mean[:, :, None] * mean[:, None]

    def penalty(self, A: Floats) -> Floats:
        """The negative log prior (K,) of positive definite A."""
        return self._rigidity * (A.trace(axis1=1, axis2=2) - self._stiffness * np.linalg.slogdet(A)[1])

    def add_penalty_derivatives(self, A: Floats, gradient: Floats, information: Floats) -> None:
        """Add the first derivative of the log prior to the gradient (K, n), the negative second to the information."""
        n, g, is_diagonal = self.n_scale, A.shape[1], self.row == self.column
        inverse = np.linalg.inv(A)
        gradient[:, :n] += self._rigidity * (
            self._stiffness * np.where(is_diagonal, 1.0, 2.0) * inverse[:, self.row, self.column] - is_diagonal
        )
        products = inverse[:, None] @ self._directions
        second = products.reshape(-1, n, g * g) @ products.mT.reshape(-1, n, g * g).mT
        information[:, :n, :n] += self._rigidity * self._stiffness * second


@np.errstate(all="ignore")
def _fit_hidden(machines: Machines, states: States, sums: Sums, total: float) -> tuple[Floats, Floats]:
    """L_A and centre of P(h) after a few damped Newton steps in (A, b); see `HiddenFamily`.

    The log-likelihood is concave there, and so is the prior. `total` is the number of observations.
    """
    K, g = machines.centre.shape
    if g == 0:
        return machines.L_A.copy(), machines.centre.copy()
    counts, hidden = total * sums.shares, HiddenFamily(states, RIGIDITY, STIFFNESS)
    observed, eye = total * hidden.statistics_of(sums.second, sums.first), np.eye(hidden.n_scale + g)
    A: Floats = machines.L_A @ machines.L_A.mT
    natural = hidden.natural(A)

    def evaluate(natural: Floats, A: Floats) -> tuple[Floats, Floats]:
        """The objective (K,), and P(h)."""
        log_sum, probabilities = hidden.probabilities(natural)
        return (observed * natural).sum(axis=1) - counts * log_sum - hidden.penalty(A), probabilities

    value, probabilities = evaluate(natural, A)
    for _ in range(NEWTON_STEPS):
        mean, covariance = hidden.moments(probabilities)
        gradient, information = observed - counts[:, None] * mean, counts[:, None, None] * covariance
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


def _regression(machines: Machines, sums: Sums, prior: Prior, total: float) -> tuple[Floats, Floats, Floats]:
    """F, mean and covariance of v given h: weighted least squares, and the prior's share in the covariance."""
    gram, cross, square = sums.moments()
    coefficients = cross @ np.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    fitted = coefficients @ cross.mT
    residual = square - fitted - fitted.mT + coefficients @ gram @ coefficients.mT
    floor = np.diag(2 * prior.strength / total * prior.widths**2)
    covariance = (machines.L @ residual @ machines.L.mT + floor) / np.maximum(gram[:, -1:, -1:], 1e-300)
    change = machines.L @ coefficients
    F = machines.F + change[:, :, :-1]
    origin = machines.origin + change[:, :, -1]
    return F, origin - (F @ machines.centre[:, :, None])[:, :, 0], 0.5 * (covariance + covariance.mT)
