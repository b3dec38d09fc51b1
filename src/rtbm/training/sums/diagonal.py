"""Diagonal machines: the likelihood and its gradient from sums over the points, with the units of `theta/unit`.

With ε = L⁻¹(v − mean) and z = Wᵀ(v − mean) + 2π turns, the density of a machine is::

    log P = Σ_j log θ̃(iz_j|q_j) − ½|ε|² − log det L − ½d log 2π − log normaliser

With κ the derivatives of log θ̃ in z, the one in q is ½(κ₂ + κ₁²), by the heat equation. So the gradient follows from a
few sums over the points. The normaliser is the mean of Π θ̃ over the Gaussian factor. On few visible units it is a sum
over a grid, and the same sums over its nodes give its derivatives.

For one machine with one visible unit, log P is a smooth function on a line. There the data are first replaced by fewer
points with the same sums, and the time of a step hardly depends on the number of points.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import TWO_PI, Floats
from rtbm.distributions.diagonal import MAX_LATTICE_UNITS, DiagonalMachine
from rtbm.distributions.integration.grid import (
    MAX_GRID_DIMENSION,
    MAX_GRID_NODES,
    Envelope,
    make_grid,
    spacing_for,
)
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.parameters import Natural, constrain, unpack
from rtbm.theta.unit.columns import UnitColumns
from rtbm.training.sums.blocks import PointBlock
from rtbm.training.sums.dense import lower_triangle

NORMALISER_TOLERANCE = 1e-12
"""The relative error of a normaliser, as in `RTBMDistribution`. Derivatives have a digit less. More is faster."""
COVERED = -4.0
"""The first grid is large enough if the log of the normaliser is above this, else a larger one follows."""
FEW_NODES = 2**12
"""Up to MAX_LATTICE_UNITS hidden units, the lattice sum of `DiagonalMachine` is faster than a grid with more nodes."""
CHUNK_ELEMENTS = 2**15
"""Points times units of all machines that are evaluated at a time, so that they stay in the cache. Speed only."""
NODES_PER_CELL, CELL_LENGTH = 28, 1.0
"""In one dimension, points in a cell are replaced by this number of Chebyshev nodes; cells have this length in units of
the distance to the nearest complex zero of a θ. Polynomials of that degree have an error below 1e-14 in such cells."""
LEVELS_PER_OCTAVE, KEPT_LEVELS = 2, 4
"""Lengths of cells are powers of 2^(1/LEVELS_PER_OCTAVE), and the nodes of the last KEPT_LEVELS lengths are kept."""


class UnitSums(NamedTuple):
    """Sums over points with weights, from which the derivatives of a machine follow."""

    share: Any  # (): Σ w
    noise: Floats  # (d,): Σ wε
    square: Floats  # (d, d): Σ w(v − mean)εᵀ
    first: Floats  # (g,): Σ wκ₁
    second: Floats  # (g,): Σ w½(κ₂ + κ₁²)
    cross: Floats  # (d, g): Σ w(v − mean)κ₁ᵀ

    def plus(self, other: "UnitSums", factor: float = 1.0) -> "UnitSums":
        """The sums over the points of both, of which the weights of the others are multiplied by a factor."""
        return UnitSums(*(mine + factor * theirs for mine, theirs in zip(self, other, strict=True)))


class PointTerms(NamedTuple):
    """A machine at n points."""

    log_prob: Floats  # (n,): without the normaliser
    centred: Floats  # (n, d): v − mean
    noise: Floats  # (n, d): ε
    derivatives: list[Floats]  # (n, g) each: κ₁ and κ₂, if sums are wanted

    def sums(self, weights: Floats) -> UnitSums:
        """The sums over the points with weights (n,)."""
        first, second = self.derivatives
        left = np.empty((len(weights), 1 + self.centred.shape[1]))
        left[:, 0], left[:, 1:] = weights, weights[:, None] * self.centred
        by_first, by_noise = left.T @ first, left.T @ self.noise
        by_second = 0.5 * (left.T @ (second + np.square(first)))[0]
        return UnitSums(weights.sum(), by_noise[0], by_noise[1:], by_first[0], by_second, by_first[1:])


class UnitMachine:
    """A diagonal machine without its normaliser.

    Parameters
    ----------
    vector : (n_parameters,)
        The free parameters.
    d, g : int
        The numbers of visible and hidden units.
    """

    def __init__(self, vector: Floats, d: int, g: int):
        log_q, turns, W, mean, width = np.split(vector, np.cumsum([g, g, d * g, d]))
        row, column = lower_triangle(d)
        self.vector, self.q, self.W, self.mean = vector, np.exp(log_q), W.reshape(d, g), mean
        self._offset, self.L = TWO_PI * turns, np.zeros((d, d))
        self.L[row, column] = np.where(row == column, np.exp(width), width)
        positive = np.concatenate([self.q, self.L.diagonal()])
        if not (np.isfinite(vector).all() and np.isfinite(positive).all() and (positive > 0).all()):
            raise FloatingPointError("parameters leave float64")
        self._inverse, self._units = np.linalg.inv(self.L), UnitColumns(self.q, "II")
        self._log_volume = float(np.log(self.L.diagonal()).sum()) + 0.5 * d * math.log(TWO_PI)

    def terms(self, x: Floats, wants_sums: bool) -> PointTerms:
        """The terms at points x (n, d)."""
        centred = x - self.mean
        noise = centred @ self._inverse.T
        value, *derivatives = self._moments(centred @ self.W + self._offset, 2 if wants_sums else 0)
        log_prob = value - 0.5 * np.square(noise).sum(axis=1) - self._log_volume
        return PointTerms(log_prob, centred, noise, derivatives)

    def gradient(self, sums: UnitSums) -> Floats:
        """The derivative in the vector of Σ w log P without the normaliser."""
        row, column = lower_triangle(len(self.L))
        by_mean = self._inverse.T @ sums.noise - self.W @ sums.first
        by_L = self._inverse.T @ (self._inverse @ sums.square - sums.share * np.eye(len(self.L)))
        by_width = by_L[row, column] * np.where(row == column, self.L[row, column], 1.0)
        return np.concatenate([self.q * sums.second, TWO_PI * sums.first, sums.cross.ravel(), by_mean, by_width])

    def normalise(self, wants_gradient: bool) -> tuple[float, Floats]:
        """The logarithm of the normaliser, and its derivative in the vector: by a grid where this is possible."""
        d, g = self.W.shape
        if d <= MAX_GRID_DIMENSION:
            try:
                return self.integrate(MAX_GRID_NODES if g > MAX_LATTICE_UNITS else FEW_NODES, wants_gradient)
            except (TooManyTermsError, np.linalg.LinAlgError, torch.linalg.LinAlgError):
                pass
        return self.differentiate(wants_gradient)

    def integrate(self, limit: int, wants_gradient: bool) -> tuple[float, Floats]:
        """The normaliser and its derivative from a grid with at most `limit` nodes.

        Π θ̃ is at most exp(peak) times its mean over the Gaussian of the machine, which is what the grid sums up.
        """
        precision = self._inverse.T @ self._inverse + (self.W / self.q) @ self.W.T
        parts = self.mean, self.L @ self.L.T, np.linalg.inv(precision)
        mean, covariance, detail = map(torch.from_numpy, parts)
        peak, covered = float(self._moments(np.zeros((1, len(self.q))), 0)[0][0]), COVERED
        while True:
            envelope = Envelope(mean, covariance, detail, peak - covered)
            grid = make_grid(envelope, spacing_for(NORMALISER_TOLERANCE, len(self.L)), NORMALISER_TOLERANCE, limit)
            log_total, sums = self._sum_nodes(grid.nodes.numpy(), wants_gradient)
            log_value = log_total + grid.log_cell
            if not log_value < covered:
                return log_value, np.empty(0) if sums is None else self.gradient(sums) / sums.share
            covered = log_value - 1.0

    def _sum_nodes(self, nodes: Floats, wants_sums: bool) -> tuple[float, UnitSums | None]:
        """log Σ P over nodes (n, d), without the normaliser, and the sums with weights in proportion to P."""
        log_total, sums = -math.inf, None
        for rows in chunks(len(nodes), len(self.q)):
            terms = self.terms(nodes[rows], wants_sums)
            own_total = float(np.logaddexp.reduce(terms.log_prob))
            before, log_total = log_total, float(np.logaddexp(log_total, own_total))
            if wants_sums:
                own = terms.sums(np.exp(terms.log_prob - log_total))
                sums = own if sums is None else own.plus(sums, math.exp(before - log_total))
        return log_total, sums

    def differentiate(self, wants_gradient: bool) -> tuple[float, Floats]:
        """The normaliser as `DiagonalMachine` computes it, and its derivative by automatic differentiation."""
        with torch.set_grad_enabled(wants_gradient):
            free = torch.tensor(self.vector, requires_grad=wants_gradient)
            natural = constrain(unpack(free, *self.W.shape, coupling="diagonal"))
            assert isinstance(natural, Natural)
            value = DiagonalMachine(natural, NORMALISER_TOLERANCE).log_normalizer()
            gradient = torch.autograd.grad(value, free)[0] if wants_gradient else free[:0]
        return float(value.detach()), gradient.numpy()

    def _moments(self, z: Floats, order: int) -> list[Floats]:
        """Σ_j log θ̃(iz_j|q_j) (n,) for z (n, g), and derivatives (n, g) up to `order` in each z_j."""
        parts = self._units.moments(torch.from_numpy(z), torch.from_numpy(self.q), order)
        return [part.numpy() for part in parts]


def chunks(n: int, n_units: int) -> list[slice]:
    """Rows of n points, as many at a time as their units fit into the cache."""
    size = max(1, CHUNK_ELEMENTS // n_units)
    return [slice(begin, begin + size) for begin in range(0, n, size)]


def compress(x: Floats, weights: Floats, length: float) -> tuple[Floats, Floats]:
    """Nodes (m, 1) and weights (m,) with the same sums as sorted x (n, 1), for functions smooth in cells of `length`.

    Σ_n w_n φ(x_n) = Σ_p ω_p φ(node_p) for polynomials φ of a degree below NODES_PER_CELL: ω_p = Σ_n w_n ℓ_p(x_n), with
    the Lagrange polynomials ℓ_p of Chebyshev's nodes. Cells of few points keep their points.
    """
    points = x[:, 0]
    cell = np.floor((points - points[0]) / length)
    first = np.concatenate([[0], np.flatnonzero(np.diff(cell)) + 1])
    counts = np.diff(np.append(first, len(points)))
    is_full = counts > NODES_PER_CELL
    kept = np.repeat(~is_full, counts)
    if not is_full.any():
        return x, weights
    inside, w = ~kept, weights[~kept]
    starts = np.concatenate([[0], np.cumsum(counts[is_full])[:-1]])
    middle = points[0] + (cell[first[is_full]] + 0.5) * length
    t = np.clip((points[inside] - np.repeat(middle, counts[is_full])) * (2 / length), -1.0, 1.0)
    angles = np.pi * (np.arange(NODES_PER_CELL) + 0.5) / NODES_PER_CELL
    older, old = np.ones_like(t), t
    shares = np.add.reduceat(w, starts)[:, None] * np.full(NODES_PER_CELL, 1 / NODES_PER_CELL)
    for k in range(1, NODES_PER_CELL):  # `old` holds Chebyshev's polynomial T_k(t)
        shares += np.add.reduceat(w * old, starts)[:, None] * (2 / NODES_PER_CELL * np.cos(k * angles))
        older, old = old, 2 * t * old - older
    nodes = middle[:, None] + 0.5 * length * np.cos(angles)
    return (
        np.concatenate([points[kept], nodes.reshape(-1)])[:, None],
        np.concatenate([weights[kept], shares.reshape(-1)]),
    )


class PointSet:
    """Points without gaps, and fewer points with the same sums where there is one machine with one feature.

    Parameters
    ----------
    x, weights : (n, d), (n,)
        The points, and their weights.
    """

    def __init__(self, x: Floats, weights: Floats):
        self.x, self.weights = x, weights
        self._extent = float(x.max() - x.min())
        self._compressed: dict[int, tuple[Floats, Floats]] = {}

    def for_machine(self, machine: UnitMachine) -> tuple[Floats, Floats]:
        """Points and weights with the same sums as the data, for one machine with one feature.

        θ̃(iz|q) has its zeros at a distance of q/2 from the real axis of z, so log θ̃ is smooth in smaller cells.
        """
        distance = 0.5 * float((machine.q / np.maximum(abs(machine.W[0]), 1e-300)).min())
        length = CELL_LENGTH * min(distance, self._extent)
        if not length * len(self.x) > self._extent:  # fewer than one point in a cell
            return self.x, self.weights
        level = math.floor(LEVELS_PER_OCTAVE * math.log2(length))
        if level not in self._compressed:
            if len(self._compressed) == KEPT_LEVELS:
                del self._compressed[next(iter(self._compressed))]
            order = self.x[:, 0].argsort(kind="stable")
            length = 2.0 ** (level / LEVELS_PER_OCTAVE)
            self._compressed[level] = compress(self.x[order], self.weights[order], length)
        return self._compressed[level]


class DiagonalPass:
    """Σ w log P and its derivative over blocks without gaps.

    Parameters
    ----------
    vector : (n_parameters,)
        The free parameters. An error says that they leave float64, or that a normaliser is out of reach.
    sizes : tuple of int
        The numbers of machines, and of visible and hidden units.
    wants_gradient : bool
        Whether the derivative is wanted.
    """

    def __init__(self, vector: Floats, sizes: tuple[int, int, int], wants_gradient: bool):
        K, d, g = sizes
        self._sizes, self._n_units, self._wants_gradient = sizes, K * g, wants_gradient
        machines, logits = (vector[:-K], vector[-K:]) if K > 1 else (vector, np.zeros(1))
        log_weights = logits - np.logaddexp.reduce(logits)
        self._weights = np.exp(log_weights)
        self._machines = [UnitMachine(part, d, g) for part in np.split(machines, K)]
        normalisers = [machine.normalise(wants_gradient) for machine in self._machines]
        self._bias = log_weights - np.array([log_value for log_value, _ in normalisers])
        self._by_normaliser = [gradient for _, gradient in normalisers]

    def sums(self, block: PointBlock) -> Floats | None:
        """Σ w log P and its derivative in the vector (1 + n_parameters,); None if it does not serve a block."""
        data = self._points(block)
        if data is None:
            return None
        x, weights = data.for_machine(self._machines[0]) if self._sizes[:2] == (1, 1) else (data.x, data.weights)
        log_likelihood, sums = 0.0, None
        for rows in chunks(len(x), self._n_units):
            terms, log_joint, log_prob = self._evaluate(x[rows], self._wants_gradient)
            log_likelihood += float((weights[rows] * log_prob).sum())  # a dot product depends on the number of threads
            if self._wants_gradient:
                shares = weights[rows, None] * np.exp(log_joint - log_prob[:, None])
                own = [part.sums(np.ascontiguousarray(shares[:, k])) for k, part in enumerate(terms)]
                sums = own if sums is None else [before.plus(more) for before, more in zip(sums, own, strict=True)]
        result = np.concatenate([[log_likelihood], [] if sums is None else self._gradient(sums)])
        return result if np.isfinite(result).all() else None

    def log_prob(self, block: PointBlock) -> Floats | None:
        """log P (n,) at the points of a block; None if it does not serve the block."""
        data = self._points(block)
        if data is None:
            return None
        result = np.concatenate([self._evaluate(data.x[rows], False)[2] for rows in chunks(len(data.x), self._n_units)])
        return result if np.isfinite(result).all() else None

    def _evaluate(self, x: Floats, wants_sums: bool) -> tuple[list[PointTerms], Floats, Floats]:
        """The machines at points x (n, d), the log of weight times density of each (n, K), and log P (n,)."""
        terms = [machine.terms(x, wants_sums) for machine in self._machines]
        log_joint = np.stack([part.log_prob for part in terms], axis=1) + self._bias
        return terms, log_joint, np.logaddexp.reduce(log_joint, axis=1)

    def _points(self, block: PointBlock) -> PointSet | None:
        """The points of a block without gaps, on the CPU. One machine with one feature moves them there."""
        K, d, _ = self._sizes
        x = torch.as_tensor(block.points)
        if len(block.present) < d or block.has_gaps or (x.is_cuda and K * d > 1):
            return None
        if "diagonal" not in block.cache:
            parts = (part.cpu().double().numpy() for part in (x, torch.as_tensor(block.weights)))
            block.cache["diagonal"] = PointSet(*parts)
        return block.cache["diagonal"]

    def _gradient(self, sums: list[UnitSums]) -> Floats:
        """The derivative of Σ w log P in the vector."""
        parts = [
            machine.gradient(own) - own.share * by_normaliser
            for machine, own, by_normaliser in zip(self._machines, sums, self._by_normaliser, strict=True)
        ]
        shares = np.array([own.share for own in sums])
        by_logits = shares - self._weights * shares.sum()
        return np.concatenate([*parts, by_logits] if len(parts) > 1 else parts)


@np.errstate(all="ignore")
def make_pass(vector: Floats, sizes: tuple[int, int, int], wants_gradient: bool) -> DiagonalPass | None:
    """The pass for the machines of a vector; None where parameters leave float64."""
    try:
        return DiagonalPass(vector, sizes, wants_gradient)
    except (RTBMError, ArithmeticError, np.linalg.LinAlgError, torch.linalg.LinAlgError):
        return None  # theta functions raise a clear error
