"""Coordinates in which the expected complete-data information is the identity: L-BFGS needs fewer steps there."""

from typing import NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.training.m_step import HiddenFamily
from rtbm.training.machines import RIGIDITY, STIFFNESS, Machines, Sums, lower_triangle
from rtbm.training.states import States

UNSCALED = np.empty(0)
"""Stands for parts of a scaling that changes nothing but the origin."""


class Scaling(NamedTuple):
    """Coordinates u of vectors around an origin. A step of length 1 against the gradient is the step that EM suggests.

    With L and centre those at the origin, a machine of share r changes by::

        d(hidden parameters) = hiddenᵀ u₁,   d(F, origin) = L U₂ visible,   dL = L U₃/√r  (√2 less on the diagonal)

    By default, u are differences to the origin.
    """

    origin: Floats
    value: float  # of the objective at the origin
    gradient: Floats
    length: float = 1.0
    hidden: Floats = UNSCALED  # (K, q, q): inverse root of the information about P(h)
    visible: Floats = UNSCALED  # (K, g + 1, g + 1): the same about F and the origin
    widths: Floats = UNSCALED  # (K, d(d + 1)/2): √r, and √(2r) on the diagonal
    logits: Floats = UNSCALED  # (K,): √r
    centre: Floats = UNSCALED  # (K, g)
    L: Floats = UNSCALED  # (K, d, d)

    def to_vector(self, u: Floats) -> Floats:
        """The vector of coordinates u."""
        if self.L is UNSCALED:
            return self.origin + u
        u = self.length * u
        K, d, _ = self.L.shape
        q, g = self.hidden.shape[1], self.centre.shape[1]
        row, column, _ = lower_triangle(d)
        own = u[: len(u) - K].reshape(K, -1)
        by_hidden = self.hidden.mT @ own[:, :q, None]
        change = self.L @ own[:, q : q + d * (g + 1)].reshape(K, d, g + 1) @ self.visible
        shift = change[:, :, g:] - change[:, :, :g] @ self.centre[:, :, None]
        triangle = np.zeros((K, d, d))
        triangle[:, row, column] = own[:, q + d * (g + 1) :] / self.widths
        by_width = (self.L @ triangle)[:, row, column] / self._log_diagonal(row, column)
        parts = by_hidden[:, :, 0], change[:, :, :g].reshape(K, -1), shift[:, :, 0], by_width
        return self.origin + np.concatenate([np.concatenate(parts, axis=1).reshape(-1), u[len(u) - K :] / self.logits])

    def to_scaled(self, gradient: Floats) -> Floats:
        """The derivative in u, from that in the vector: the transpose of `to_vector`."""
        if self.L is UNSCALED:
            return gradient
        K, d, _ = self.L.shape
        q, g = self.hidden.shape[1], self.centre.shape[1]
        row, column, _ = lower_triangle(d)
        own = gradient[: len(gradient) - K].reshape(K, -1)
        by_hidden = self.hidden @ own[:, :q, None]
        by_F, by_mean = own[:, q : q + d * g].reshape(K, d, g), own[:, q + d * g : q + d * (g + 1), None]
        change = np.concatenate([by_F - by_mean * self.centre[:, None], by_mean], axis=2)
        by_visible = self.L.mT @ change @ self.visible.mT
        triangle = np.zeros((K, d, d))
        triangle[:, row, column] = own[:, q + d * (g + 1) :] / self._log_diagonal(row, column)
        by_width = (self.L.mT @ triangle)[:, row, column] / self.widths
        parts = np.concatenate([by_hidden[:, :, 0], by_visible.reshape(K, -1), by_width], axis=1)
        return self.length * np.concatenate([parts.reshape(-1), gradient[len(gradient) - K :] / self.logits])

    def _log_diagonal(self, row: np.ndarray, column: np.ndarray) -> Floats:
        """What turns entries of dL into those of the vector, which has the logarithms of the diagonal."""
        return np.where(row == column, self.L[:, row, column], 1.0)


def find_scaling(
    vector: Floats, value: float, gradient: Floats, machines: Machines, states: States, sums: Sums, total: float
) -> Scaling:
    """The scaling around a vector of a mixture, from the sums there; `total` is the number of observations."""
    d, hidden = machines.F.shape[1], HiddenFamily(states, RIGIDITY / total, STIFFNESS)
    row, column, _ = lower_triangle(d)
    shares = np.maximum(sums.shares, 1 / total)
    gram = sums.moments()[0]
    widths = np.sqrt(shares[:, None] * np.where(row == column, 2.0, 1.0))
    roots = (
        _inverse_root(_hidden_information(machines, shares, hidden)),
        _inverse_root(gram + 1e-3 / total * np.eye(gram.shape[1])),
    )
    scaling = Scaling(vector, value, gradient, 1.0, *roots, widths, np.sqrt(shares), machines.centre, machines.L)
    return scaling._replace(length=float(np.linalg.norm(scaling.to_scaled(gradient))) or 1.0)


def _hidden_information(machines: Machines, shares: Floats, hidden: HiddenFamily) -> Floats:
    """The expected information (K, q, q) about the free parameters of P(h), with the prior."""
    L_A, n, row, column = machines.L_A, hidden.n_scale, hidden.row, hidden.column
    A = L_A @ L_A.mT
    K, g, _ = A.shape
    _, probabilities = hidden.probabilities(hidden.natural(A))
    information = shares[:, None, None] * hidden.moments(probabilities)[1]
    hidden.add_penalty_derivatives(A, np.zeros((K, n + g)), information)
    change = np.zeros((K, n, g, g))  # dL for each free parameter of L
    change[:, np.arange(n), row, column] = np.where(row == column, L_A[:, row, column], 1.0)
    half = change @ L_A[:, None].mT
    jacobian = np.zeros((K, n + g, n + g))
    jacobian[:, :n, :n] = (half + half.mT)[:, :, row, column].mT
    jacobian[:, n:, n:] = -A
    return jacobian.mT @ information @ jacobian


def _inverse_root(matrices: Floats) -> Floats:
    """X (K, n, n) with X matrix Xᵀ = 1, for positive definite matrices, slightly damped."""
    n = matrices.shape[1]
    damping = 1e-10 * matrices.diagonal(axis1=1, axis2=2).max(axis=1) + 1e-300
    return np.linalg.inv(np.linalg.cholesky(matrices + damping[:, None, None] * np.eye(n)))
