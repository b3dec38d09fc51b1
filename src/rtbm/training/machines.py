"""The algebra of machines, several at a time: their vector of free parameters, its gradient, and the prior.

With δ = h − centre and L_A, L the Cholesky factors of A and of the covariance, a machine is::

    P(h) ∝ exp(−½|L_Aᵀδ|²),    v = origin + Fδ + Lε,    origin = mean + F centre,    ε ~ N(0, 1)
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from rtbm.common import TWO_PI, Floats
from rtbm.training.states import States

LOG_TWO_PI = math.log(TWO_PI)
RIGIDITY, STIFFNESS = 0.02, 10.0
"""The strength of the prior on A, and its mode STIFFNESS · 1. Without it, A goes to infinity for hidden units with two
states, and to zero for hidden units without effect. A stronger one biases fits to few observations."""


class Prior(NamedTuple):
    """A penalty on fine structure, in units of observations: it plays the part of a bandwidth.

    It is divided by the number of observations, and so fades as they become many; see `penalty`.
    """

    strength: float
    widths: Floats  # (d,) or (K, d): of the data along the axes


class Machines(NamedTuple):
    """K machines with d visible and g hidden units, by their Cholesky factors, and the logarithms of their weights."""

    log_weights: Floats  # (K,)
    L_A: Floats  # (K, g, g)
    centre: Floats  # (K, g)
    F: Floats  # (K, d, g)
    mean: Floats  # (K, d)
    L: Floats  # (K, d, d)

    @property
    def origin(self) -> Floats:
        """The means of v where δ is 0 (K, d)."""
        return self.mean + (self.F @ self.centre[:, :, None])[:, :, 0]


class Sums(NamedTuple):
    """Sums over rows with weights w, from which the gradient and the M-step follow.

    All but the first have w times the probability that a row comes from the machine, and expectations given the row.
    """

    log_prob: float  # Σ w log P
    shares: Floats  # (K,): Σ 1
    first: Floats  # (K, g): Σ δ
    second: Floats  # (K, g, g): Σ δδᵀ
    noise: Floats  # (K, d): Σ ε
    cross: Floats  # (K, d, g): Σ εδᵀ
    square: Floats  # (K, d, d): Σ εεᵀ

    @classmethod
    def zeros(cls, K: int, d: int, g: int) -> "Sums":
        """Sums over no rows."""
        return cls(0.0, *map(np.zeros, ((K,), (K, g), (K, g, g), (K, d), (K, d, g), (K, d, d))))

    def plus(self, other: "Sums") -> "Sums":
        """The sums over both parts."""
        return Sums(self.log_prob + other.log_prob, *(a + b for a, b in zip(self[1:], other[1:], strict=True)))

    @property
    def vector(self) -> Floats:
        """All of them, one after the other: vectors of parts of the data can be added."""
        return np.concatenate([np.ravel(part) for part in self])

    @classmethod
    def of_vector(cls, vector: Floats, K: int, d: int, g: int) -> "Sums":
        """The sums in a vector: the inverse of `vector`."""
        shapes = (K,), (K, g), (K, g, g), (K, d), (K, d, g), (K, d, d)
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = np.split(vector[1 : 1 + ends[-1]], ends[:-1])
        return cls(float(vector[0]), *(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))

    def moments(self) -> tuple[Floats, Floats, Floats]:
        """Σ zzᵀ (K, g + 1, g + 1), Σ εzᵀ (K, d, g + 1) and Σ εεᵀ (K, d, d), for z = (δ, 1)."""
        K, d, g = self.cross.shape
        gram, cross = np.empty((K, g + 1, g + 1)), np.empty((K, d, g + 1))
        gram[:, :g, :g], gram[:, g, g] = self.second, self.shares
        gram[:, :g, g] = gram[:, g, :g] = self.first
        cross[:, :, :g], cross[:, :, g] = self.cross, self.noise
        return gram, cross, self.square


@functools.cache
def lower_triangle(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The rows and columns of the entries of a lower triangle (n, n), and the places of its diagonal among them."""
    row, column = np.tril_indices(n)
    return row, column, np.flatnonzero(row == column)


def unpack(vector: Floats, n_machines: int, d: int, g: int) -> Machines:
    """The machines of a vector: for each the log-Cholesky entries of A, centre, F, mean, those of the covariance.

    The logits of the weights of several machines come last.
    """
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    own, logits = vector[: n_machines * size].reshape(n_machines, size), vector[n_machines * size :]
    at_F, at_mean, at_L = n_scale + g, n_scale + g + d * g, size - n_width
    if len(logits):
        top = logits.max()
        logits = logits - (top + math.log(np.exp(logits - top).sum()))
    return Machines(
        logits if len(logits) else np.zeros(1),
        _root(own[:, :n_scale], g),
        np.ascontiguousarray(own[:, n_scale:at_F]),
        own[:, at_F:at_mean].reshape(n_machines, d, g).copy(),
        np.ascontiguousarray(own[:, at_mean:at_L]),
        _root(own[:, at_L:], d),
    )


def pack(machines: Machines) -> Floats:
    """The vector of machines: the inverse of `unpack`."""
    K = len(machines.mean)
    parts = _entries(machines.L_A), machines.centre, machines.F.reshape(K, -1), machines.mean, _entries(machines.L)
    return np.concatenate([np.hstack(parts).ravel(), machines.log_weights if K > 1 else np.empty(0)])


def _root(entries: Floats, n: int) -> Floats:
    """The Cholesky factors (K, n, n) of log-Cholesky entries (K, n(n + 1)/2)."""
    row, column, diagonal = lower_triangle(n)
    result = np.zeros((len(entries), n, n))
    result[:, row, column] = entries
    index = np.arange(n)
    result[:, index, index] = np.exp(entries[:, diagonal])
    return result


def _entries(root: Floats) -> Floats:
    """The log-Cholesky entries of Cholesky factors."""
    row, column, diagonal = lower_triangle(root.shape[1])
    entries = root[:, row, column]
    entries[:, diagonal] = np.log(entries[:, diagonal])
    return entries


def _by_entries(by_root: Floats, root: Floats) -> Floats:
    """The derivative in the log-Cholesky entries, from that in the Cholesky factors."""
    row, column, diagonal = lower_triangle(root.shape[1])
    entries = by_root[:, row, column]
    entries[:, diagonal] *= root.diagonal(axis1=1, axis2=2)
    return entries


def gradient(machines: Machines, states: States, sums: Sums) -> Floats:
    """The derivative of Σ w log P in the vector."""
    K, d, g = machines.F.shape
    mean, second = states.moments()
    first = sums.first - sums.shares[:, None] * mean
    excess = sums.second - sums.shares[:, None, None] * second
    inverse = np.linalg.inv(machines.L).mT
    by_mean = (inverse @ sums.noise[:, :, None])[:, :, 0]
    by_L = inverse @ (sums.square - sums.shares[:, None, None] * np.eye(d))
    parts = (
        _by_entries(-excess @ machines.L_A, machines.L_A),
        (machines.L_A @ (machines.L_A.mT @ first[:, :, None]))[:, :, 0],
        (inverse @ sums.cross + by_mean[:, :, None] * machines.centre[:, None]).reshape(K, d * g),
        by_mean,
        _by_entries(by_L, machines.L),
    )
    by_logits = sums.shares - np.exp(machines.log_weights) * sums.shares.sum()
    return np.concatenate([np.hstack(parts).ravel(), by_logits if K > 1 else by_logits[:0]])


def penalty(machines: Machines, prior: Prior) -> tuple[Floats, Floats]:
    """The negative logarithm of the prior of each machine (K,), up to a constant, and its derivative in the vector.

    With Σ the covariance of v given h and s the widths of the data along the axes::

        penalty = strength Σ_i s_i² (Σ⁻¹)_ii + RIGIDITY (tr A − STIFFNESS log det A)
    """
    K, d, g = machines.F.shape
    squares = prior.strength * prior.widths**2
    inverse = np.linalg.inv(machines.L)
    precision, diagonal = inverse.mT @ inverse, machines.L_A.diagonal(axis1=1, axis2=2)
    values = (squares * precision.diagonal(axis1=1, axis2=2)).sum(axis=1)
    values += RIGIDITY * ((machines.L_A**2).sum(axis=(1, 2)) - 2 * STIFFNESS * np.log(diagonal).sum(axis=1))
    by_A = machines.L_A.copy()
    index = np.arange(g)
    by_A[:, index, index] -= STIFFNESS / diagonal
    parts = (
        2 * RIGIDITY * _by_entries(by_A, machines.L_A),
        np.zeros((K, g + d * g + d)),
        -2 * _by_entries(precision @ (squares[..., None] * inverse.mT), machines.L),
    )
    return values, np.concatenate([np.hstack(parts).ravel(), np.zeros(K if K > 1 else 0)])
