"""P(h) as an exponential family on tables of hidden states: for EM, and its information matrix."""

import numpy as np

from rtbm.common import Floats
from rtbm.training.sums.dense import States, lower_triangle


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
        self.row, self.column = lower_triangle(g)
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
