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
from rtbm.theta import kernels
from rtbm.theta.chunks import run_threads
from rtbm.theta.kernels import ROW_WIDTH, compiled
from rtbm.theta.lattice import DIGIT
from rtbm.theta.unit.columns import UnitColumns
from rtbm.theta.unit.numba import TILE, find_columns, unit_series
from rtbm.training.sums.blocks import PointBlock
from rtbm.training.sums.dense import lower_triangle
from rtbm.training.sums.rows import add_scaled_row, dot_rows, fill_row, sum_row

NORMALISER_TOLERANCE = 1e-12
"""The relative error of a normaliser, as in `RTBMDistribution`. Derivatives have a digit less. More is faster."""
COVERED = -4.0
"""The first grid is large enough if the log of the normaliser is above this, else a larger one follows."""
FEW_NODES = 2**12
"""Up to MAX_LATTICE_UNITS hidden units, the lattice sum of `DiagonalMachine` is faster than a grid with more nodes."""
CHUNK_POINTS = 2**11  # points that are summed at a time
NEAR_ARGUMENT = DIGIT * TWO_PI  # up to here, `theta/unit` is exact
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


@compiled
def unit_row(w, argument, columns, j, value, second):
    """log θ̃ of phase II: its part beside log Z is added to the first row of `value`, the second is multiplied by Z.

    If `second` is not None, it gets κ₂ (1, width), and the row of arguments becomes κ₁.
    """
    c = columns[j]
    numbers = c.high, c.low, c.lower, c.trend, c.slope, c.factor, c.constant, c.decay, c.has_cosines
    for b in range(ROW_WIDTH):
        smooth, z, k1, k2, _ = unit_series(w[argument, b], *numbers)
        value[0, b] += smooth
        value[1, b] *= z
        if second is not None:
            w[argument, b], second[0, b] = k1, k2


@compiled
def unit_pass(x, weights, begin, end, W, offset, mean, inverse, columns, log_prob, out):
    """log P (n,) without normaliser and volume for chunks begin…end of points x (n, d); NaN where arguments are far.

    If `out` (chunks, 1 + d, 1 + d + 2g) is not empty, it gets Σ w (1, v − mean)(1, ε, κ₁, ½(κ₂ + κ₁²))ᵀ for each
    chunk, as far as `UnitSums` holds these sums.
    """
    (n, d), g = x.shape, W.shape[1]
    argument, centred, noise, weighted = 0, 1, 1 + d, 1 + 2 * d  # rows of the work space; weighted are w(1, v − mean)
    w, second, value = np.empty((2 + 3 * d, ROW_WIDTH)), np.empty((1, ROW_WIDTH)), np.empty((2, ROW_WIDTH))
    for start in range(begin * CHUNK_POINTS, min(n, end * CHUNK_POINTS), ROW_WIDTH):
        count, chunk = min(ROW_WIDTH, n - start), start // CHUNK_POINTS
        fill_row(value, 0, 0.0)
        fill_row(value, 1, 1.0)
        for b in range(ROW_WIDTH):
            row = start + min(b, count - 1)
            w[weighted, b] = weights[row] if len(out) > 0 and b < count else 0.0
            for i in range(d):
                w[centred + i, b] = x[row, i] - mean[i]
                w[weighted + 1 + i, b] = w[weighted, b] * w[centred + i, b]
        for i in range(d):
            fill_row(w, noise + i, 0.0)
            for j in range(i + 1):
                add_scaled_row(w, noise + i, inverse[i, j], centred + j)
            for b in range(ROW_WIDTH):
                value[0, b] -= 0.5 * w[noise + i, b] ** 2
        for j in range(g):
            fill_row(w, argument, offset[j])
            for i in range(d):
                add_scaled_row(w, argument, W[i, j], centred + i)
            for b in range(ROW_WIDTH):
                if not abs(w[argument, b]) <= NEAR_ARGUMENT:
                    w[argument, b] = np.nan
            if len(out) > 0:
                unit_row(w, argument, columns, j, value, second)
                for b in range(ROW_WIDTH):
                    second[0, b] = 0.5 * w[weighted, b] * (second[0, b] + w[argument, b] ** 2)
                out[chunk, 0, 1 + d + g + j] += sum_row(second, 0)
                for i in range(1 + d):
                    out[chunk, i, 1 + d + j] += dot_rows(w, weighted + i, argument)
            else:
                unit_row(w, argument, columns, j, value, None)
            if j % TILE == TILE - 1 or j == g - 1:  # the product must not leave float64
                for b in range(ROW_WIDTH):
                    value[0, b] += np.log(value[1, b])
                fill_row(value, 1, 1.0)
        for b in range(count):
            log_prob[start + b] = value[0, b]
        if len(out) > 0:
            out[chunk, 0, 0] += sum_row(w, weighted)
            for i in range(1 + d):
                for j in range(d):
                    out[chunk, i, 1 + j] += dot_rows(w, weighted + i, noise + j)


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
        self._inverse, self._columns = np.linalg.inv(self.L), find_columns(self.q.tobytes(), "II")
        self._log_volume = float(np.log(self.L.diagonal()).sum()) + 0.5 * d * math.log(TWO_PI)

    def log_prob(self, x: Floats) -> Floats:
        """log P (n,) of points x (n, d) without the normaliser; NaN where arguments of θ are far from 0."""
        return self._run(x, np.empty(0), np.empty((0, 0, 0)))

    def sums(self, x: Floats, weights: Floats) -> tuple[Floats, UnitSums]:
        """The same, and the sums over the points with weights (n,)."""
        d, g = self.W.shape
        out = np.zeros((-(-len(x) // CHUNK_POINTS), 1 + d, 1 + d + 2 * g))
        log_prob = self._run(x, weights, out)
        total = out.sum(axis=0)
        share, noise, first, second = np.split(total[0], [1, 1 + d, 1 + d + g])
        return log_prob, UnitSums(share[0], noise, total[1:, 1 : 1 + d], first, second, total[1:, 1 + d : 1 + d + g])

    def _run(self, x: Floats, weights: Floats, out: Floats) -> Floats:
        log_prob = np.empty(len(x))
        machine = self.W, self._offset, self.mean, self._inverse, self._columns

        def run(begin: int, end: int) -> None:
            unit_pass(x, weights, begin, end, *machine, log_prob, out)

        run_threads(run, -(-len(x) // CHUNK_POINTS), work=len(x) * len(self.q))
        return log_prob - self._log_volume

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
        q, covered = torch.from_numpy(self.q), COVERED
        peak = UnitColumns(self.q, "II").log_theta(torch.zeros_like(q)[None], q).item()
        while True:
            envelope = Envelope(mean, covariance, detail, peak - covered)
            grid = make_grid(envelope, spacing_for(NORMALISER_TOLERANCE, len(self.L)), NORMALISER_TOLERANCE, limit)
            nodes = np.ascontiguousarray(grid.nodes.numpy())
            log_prob = self.log_prob(nodes)
            highest = log_prob.max()
            weights = np.exp(log_prob - highest)
            total = weights.sum()
            log_value = float(highest + np.log(total)) + grid.log_cell
            if not log_value < covered:
                break
            covered = log_value - 1.0
        return log_value, self.gradient(self.sums(nodes, weights / total)[1]) if wants_gradient else np.empty(0)

    def differentiate(self, wants_gradient: bool) -> tuple[float, Floats]:
        """The normaliser as `DiagonalMachine` computes it, and its derivative by automatic differentiation."""
        with torch.set_grad_enabled(wants_gradient):
            free = torch.tensor(self.vector, requires_grad=wants_gradient)
            natural = constrain(unpack(free, *self.W.shape, coupling="diagonal"))
            assert isinstance(natural, Natural)
            value = DiagonalMachine(natural, NORMALISER_TOLERANCE).log_normalizer()
            gradient = torch.autograd.grad(value, free)[0] if wants_gradient else free[:0]
        return float(value.detach()), gradient.numpy()


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
        self._sizes, self._wants_gradient = sizes, wants_gradient
        machines, logits = (vector[:-K], vector[-K:]) if K > 1 else (vector, np.zeros(1))
        log_weights = logits - np.logaddexp.reduce(logits)
        self._weights = np.exp(log_weights)
        self._machines = [UnitMachine(part, d, g) for part in np.split(machines, K)]
        normalisers = [machine.normalise(wants_gradient) for machine in self._machines]
        self._bias = log_weights - np.array([log_value for log_value, _ in normalisers])
        self._by_normaliser = [gradient for _, gradient in normalisers]

    @np.errstate(invalid="ignore")  # NaN where arguments are far
    def sums(self, block: PointBlock) -> Floats | None:
        """Σ w log P and its derivative in the vector (1 + n_parameters,); None if it does not serve a block."""
        data = self._points(block)
        if data is None:
            return None
        x, weights = data.for_machine(self._machines[0]) if self._sizes[:2] == (1, 1) else (data.x, data.weights)
        if self._wants_gradient and len(self._machines) == 1:  # weights do not depend on log P
            own, one = self._machines[0].sums(x, weights)
            log_prob, sums = own + self._bias[0], [one]
        else:
            log_joint = self._log_joint(x)
            log_prob, sums = np.logaddexp.reduce(log_joint, axis=0), []
            for machine, own in zip(self._machines, log_joint, strict=True) if self._wants_gradient else ():
                sums.append(machine.sums(x, weights * np.exp(own - log_prob))[1])
        log_likelihood = (weights * log_prob).sum()  # a dot product depends on the number of threads
        result = np.concatenate([[log_likelihood], self._gradient(sums) if sums else []])
        return result if np.isfinite(result).all() else None

    @np.errstate(invalid="ignore")
    def log_prob(self, block: PointBlock) -> Floats | None:
        """log P (n,) at the points of a block; None if it does not serve the block."""
        data = self._points(block)
        if data is None:
            return None
        result = np.logaddexp.reduce(self._log_joint(data.x), axis=0)
        return result if np.isfinite(result).all() else None

    def _log_joint(self, x: Floats) -> Floats:
        """The log of weight times density (K, n) of each machine at points x (n, d)."""
        return np.stack([machine.log_prob(x) for machine in self._machines]) + self._bias[:, None]

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
    """The pass for the machines of a vector; None where parameters leave float64, and without numba."""
    if not kernels.AVAILABLE:
        return None
    try:
        return DiagonalPass(vector, sizes, wants_gradient)
    except (RTBMError, ArithmeticError, np.linalg.LinAlgError, torch.linalg.LinAlgError):
        return None  # theta functions raise a clear error
