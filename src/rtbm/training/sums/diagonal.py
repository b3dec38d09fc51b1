"""Diagonal machines: the likelihood and its gradient from sums over one compiled pass (CPU, numba).

Hidden unit j contributes log θ(u|q), u = Wᵀ(v − mean)/2π + turns, which has period 1 in u. With f = u − the nearest
integer, c = cos 2πf and a = 4π²/q it is one of two short sums, whichever has fewer terms::

    q ≥ π:  θ = 1 + Σ_m 2exp(−½qm²) cos 2πmf            a polynomial of degree 4 in c: the next term is below 2e-17
    q < π:  θ = √(2π/q) exp(−½af²) Σ_m exp(amf − ½am²)  over |m| ≤ 2: the next term is below 4e-17

The derivatives need, for each machine and unit, only sums over the points. The normaliser is the mean of Π θ over the
Gaussian factor. On few visible units it is a sum over a grid, so that the same pass gives its value and derivatives.

For one machine with one visible unit, log P is a smooth function on a line. There the data are first replaced by fewer
points with the same sums, and the time of a step hardly depends on the number of points.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.distributions.diagonal import MAX_LATTICE_UNITS, DiagonalMachine
from rtbm.distributions.integration.grid import MAX_GRID_DIMENSION, MAX_GRID_NODES, spacing_for
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.parameters import Natural, constrain, unpack
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import CHEBYSHEV_COSINES, N_COSINES
from rtbm.theta.kernels import (
    ROUND,
    add_scaled_row,
    compiled,
    dot_rows,
    exp_row,
    fill_row,
    log_row,
    multiply_rows,
    reducing,
    sum_row,
    whiten_rows,
)
from rtbm.theta.lattice import DIGIT, enumerate_points
from rtbm.theta.truncation import squared_radius
from rtbm.training.sums.blocks import PointBlock

NORMALISER_TOLERANCE = 1e-12
"""The relative error of a normaliser, as in `RTBMDistribution`. Derivatives have a digit less. More is faster."""
COVERED = -4.0
"""The first grid is large enough if the log of the normaliser is above this, else a larger one follows."""
SAMPLED = 16
"""Every SAMPLED-th node of a grid is evaluated first, to find the order of magnitude."""
FEW_NODES = 2**12
"""Up to MAX_LATTICE_UNITS hidden units, the lattice sum of `DiagonalMachine` is faster than a grid with more nodes."""
WIDEST = 128
"""Points in a block. Temporaries of more points would not stay in the cache."""
BLOCK_ELEMENTS = 2**15
"""Blocks are narrower where the derivatives of all units would exceed this: they have to stay in the cache."""
CHUNK_ELEMENTS, SMALLEST_CHUNK, LARGEST_CHUNK = 2**18, 2**10, 2**14
"""Points times units in a chunk, and limits on its points. Chunks have sums of their own: threads change nothing."""
GROUP = 16
"""Units whose θ are multiplied, so that one logarithm and one division serve all of them. Each θ is between ½ and 3."""
FEW_COSINES = 10.0
"""From this q on, two cosines are enough: the third is exp(−4q) of the first."""
NODES_PER_CELL, CELL_LENGTH = 28, 1.0
"""In one dimension, points in a cell are replaced by this number of Chebyshev nodes; cells have this length in units of
the distance to the nearest complex zero of a θ. Polynomials of that degree have an error below 1e-14 in such cells."""
LEVELS_PER_OCTAVE, KEPT_LEVELS = 2, 4
"""Lengths of cells are powers of 2^(1/LEVELS_PER_OCTAVE), and the nodes of the last KEPT_LEVELS lengths are kept."""
LOWEST_TERM = -340.0
"""Exponents are cut off here: squares of the terms must not underflow."""
LARGEST_DUAL = 300.0
"""Beyond this a, the terms on the far side are below exp(−150), and are left out."""

# sin πf = f Σ S_k f^2k to 7e-19 and cos πf = 1 + Σ C_k f^2k to 4e-18 on |f| ≤ ½: the best polynomials of their degree.
S0, S1, S2 = 3.1415926535897932378, -5.1677127800499696087, 2.5501640398773005562
S3, S4, S5 = -0.59926452931894730367, 0.082145886573144203403, -0.007370430506270126766
S6, S7, S8 = 0.00046629981786209440743, -0.000021903501196441272786, 7.6978680332659424124e-7
C1, C2, C3, C4 = -4.9348022005446767737, 4.0587121264164975449, -1.3352627688434645931, 0.23533063012980844886
C5, C6, C7, C8 = -0.02580688873935804581, 0.0019295562836343032185, -0.00010456658087273931286, 4.1495918670635268621e-6

# Columns of the table of units: whether θ is a sum of cosines, and its constants.
IS_COSINE, P0, P1, P2, P3, P4, R0, R1, R2, R3, R4 = range(11)
A, TAIL = P0, P1
N_CONSTANTS = 11


class DiagonalMachines(NamedTuple):
    """K machines with d visible and g hidden units, and their constants for `sum_chunks`."""

    log_weights: Floats  # (K,)
    q: Floats  # (K, g)
    turns: Floats  # (K, g)
    W: Floats  # (K, d, g)
    mean: Floats  # (K, d)
    L: Floats  # (K, d, d)
    units: Floats  # (K, g, N_CONSTANTS): see `tabulate_units`
    inverse: Floats  # (K, d, d): of L
    bias: Floats  # (K,): log of all factors that do not depend on the point, without normalisers and weights

    def one(self, k: int) -> "DiagonalMachines":
        """Machine k alone."""
        return DiagonalMachines(*(part[k : k + 1] for part in self))


def unpack_machines(vector: Floats, n_machines: int, d: int, g: int) -> DiagonalMachines:
    """The machines of a vector of free parameters; see `rtbm.training.family.Family`."""
    sizes = np.cumsum([0, g, g, d * g, d, d * (d + 1) // 2])
    free = vector[: n_machines * sizes[-1]].reshape(n_machines, -1)
    log_q, turns, W, mean, width = (free[:, i:j] for i, j in itertools.pairwise(sizes))
    L = np.zeros((n_machines, d, d))
    row, column = np.tril_indices(d)
    L[:, row, column] = np.where(row == column, np.exp(width), width)
    logits = vector[free.size :] if n_machines > 1 else np.zeros(1)
    log_weights = logits - np.logaddexp.reduce(logits)
    q, units = np.exp(log_q), tabulate_units(np.exp(log_q))
    scale = np.where(units[..., IS_COSINE] > 0, 0.0, 0.5 * np.log(TWO_PI / q)).sum(1)
    volume = width[:, row == column].sum(1) + 0.5 * d * math.log(TWO_PI)
    W, turns, mean = W.reshape(n_machines, d, g), np.ascontiguousarray(turns), np.array(mean)
    return DiagonalMachines(log_weights, q, turns, W, mean, L, units, np.linalg.inv(L), scale - volume)


def tabulate_units(q: Floats) -> Floats:
    """The constants of θ (..., N_CONSTANTS) for q (...).

    Cosines: coefficients of polynomials, θ = P(c) and d²θ/dz² = R(c) for z = 2πu. Exponentials: a and exp(−a).
    """
    table = np.zeros((*q.shape, N_CONSTANTS))
    is_cosine = q >= math.pi
    m = np.arange(1.0, N_COSINES + 1)
    size = np.where((m <= 2) | (q[..., None] < FEW_COSINES), 2 * np.exp(-0.5 * q[..., None] * m**2), 0.0)
    table[..., P0 : P4 + 1], table[..., R0 : R4 + 1] = size @ CHEBYSHEV_COSINES, -(m**2 * size) @ CHEBYSHEV_COSINES
    table[..., P0] += 1
    dual = TWO_PI**2 / q
    tail = np.where(dual < LARGEST_DUAL, np.exp(-np.minimum(dual, LARGEST_DUAL)), 0.0)
    table[..., IS_COSINE] = is_cosine
    table[..., A] = np.where(is_cosine, table[..., A], dual)
    table[..., TAIL] = np.where(is_cosine, table[..., TAIL], tail)
    return table


@compiled
def _sum_cosines(w, unit, fraction, sine, cosine, total, first, second, wants_sums):
    """Row total = θ; rows first, second = its first and second derivative in z = 2πu.

    Row cosine = cos 2πf and row sine = ½ sin 2πf come from the half angle: two short loops keep all constants in
    registers.
    """
    for b in range(w.shape[1]):
        f = w[fraction, b]
        x = f * f
        x2 = x * x
        s = (S0 + S1 * x) + x2 * ((S2 + S3 * x) + x2 * ((S4 + S5 * x) + x2 * ((S6 + S7 * x) + x2 * S8)))
        s = s * f
        w[sine, b] = s
        w[cosine, b] = 1 - 2 * s * s
    for b in range(w.shape[1] if wants_sums else 0):
        x = w[fraction, b] * w[fraction, b]
        x2 = x * x
        h = (1.0 + C1 * x) + x2 * ((C2 + C3 * x) + x2 * ((C4 + C5 * x) + x2 * ((C6 + C7 * x) + x2 * C8)))
        w[sine, b] *= h
    p0, p1, p2, p3, p4 = unit[P0], unit[P1], unit[P2], unit[P3], unit[P4]
    r0, r1, r2, r3, r4 = unit[R0], unit[R1], unit[R2], unit[R3], unit[R4]
    d0, d1, d2, d3 = -2 * p1, -4 * p2, -6 * p3, -8 * p4
    if not wants_sums:
        for b in range(w.shape[1]):
            c = w[cosine, b]
            w[total, b] = p0 + c * (p1 + c * (p2 + c * (p3 + c * p4)))
    elif p3 == 0.0:
        for b in range(w.shape[1]):
            c = w[cosine, b]
            w[total, b] = p0 + c * (p1 + c * p2)
            w[first, b] = w[sine, b] * (d0 + c * d1)
            w[second, b] = r0 + c * (r1 + c * r2)
    else:
        for b in range(w.shape[1]):
            c = w[cosine, b]
            c2 = c * c
            w[total, b] = (p0 + p1 * c) + c2 * ((p2 + p3 * c) + c2 * p4)
            w[first, b] = w[sine, b] * ((d0 + d1 * c) + c2 * (d2 + d3 * c))
            w[second, b] = (r0 + r1 * c) + c2 * ((r2 + r3 * c) + c2 * r4)


@compiled
def _sum_exponentials(w, unit, fraction, smooth, term, total, first, second):
    """Row total = Σ_m t_m with t_m = exp(amf − ½am²), rows first, second = Σ_m t_m (f − m), Σ_m t_m (f − m)².

    Row smooth −= ½af². Row term is work space.
    """
    a, tail = unit[A], unit[TAIL]
    for b in range(w.shape[1]):
        f = w[fraction, b]
        w[smooth, b] -= 0.5 * a * f * f
        w[first, b] = max(a * (abs(f) - 0.5), LOWEST_TERM)
    exp_row(w, first, term)
    for b in range(w.shape[1]):
        f, near = w[fraction, b], w[term, b]  # for f > 0, `near` is the term m = 1, and `far` is m = −1
        h, far = abs(f), tail / near
        near2, far2 = tail * near * near, tail * far * far  # m = 2 and m = −2
        w[total, b] = 1.0 + near + far + near2 + far2
        excess = near - far + 2 * (near2 - far2)
        w[first, b] = f * w[total, b] - (excess if f > 0 else -excess)
        w[second, b] = h * h + near * (h - 1) ** 2 + far * (h + 1) ** 2 + near2 * (h - 2) ** 2 + far2 * (h + 2) ** 2


@compiled
def _divide(w, n, totals, products, inverse, first):
    """Divide rows first + 2j and first + 2j + 1 by row totals + j, for j < n, with one division for all of them.

    Row products + j is the product of the totals up to j.
    """
    for b in range(w.shape[1]):
        w[inverse, b] = 1 / w[products + n - 1, b]
    for j in range(n - 1, 0, -1):
        one, two = first + 2 * j, first + 2 * j + 1
        for b in range(w.shape[1]):
            share = w[inverse, b] * w[products + j - 1, b]
            w[inverse, b] *= w[totals + j, b]
            w[one, b] *= share
            w[two, b] *= share
    multiply_rows(w, first, first, inverse)
    multiply_rows(w, first + 1, first + 1, inverse)


@reducing
def _add_unit(w, sums, at, d, first, second, share, moments):
    """Add a block's part of the sums of a unit to sums[at:]: Σ first, Σ second and Σ (v − mean) first."""
    one, two, cross = 0.0, 0.0, 0.0
    for b in range(w.shape[1]):
        one += w[first, b] * w[share, b]
        two += w[second, b] * w[share, b]
        cross += w[first, b] * w[moments, b]
    sums[at] += one
    sums[at + 1] += two
    sums[at + 2] += cross
    for i in range(1, d):
        sums[at + 2 + i] += dot_rows(w, first, moments + i)


@compiled
def _add_gaussian(w, sums, at, d, share, white, spare):
    """Add a block's part of Σ 1, Σ ε and the lower triangle of Σ εεᵀ to sums[at:]."""
    sums[at] += sum_row(w, share)
    for i in range(d):
        multiply_rows(w, spare, white + i, share)
        sums[at + 1 + i] += sum_row(w, spare)
        for j in range(i + 1):
            sums[at + 1 + d + i * d + j] += dot_rows(w, spare, white + j)


@compiled
def sum_chunks(x, weights, begin, end, chunk, width, machines, wants_sums, log_scale, out, log_joint):
    """The sums over chunks begin … end − 1 of points x (n, d) with weights (n,), into rows of `out`.

    A row holds Σ w log P, and for each machine, with w times the probability that the point comes from it: Σ 1,
    Σ ε (d,), the lower triangle of Σ εεᵀ (d, d), and for each unit Σ first, Σ second and Σ (v − mean) first (d,).
    Here ε = inverse (v − mean). `_sum_cosines` and `_sum_exponentials` say what first and second are; both are divided
    by the total. Unit j is at u = W_jᵀ(v − mean)/2π + turns_j.

    Parameters
    ----------
    chunk, width : int
        Points in a chunk and in a block.
    machines : DiagonalMachines
        With normalisers and weights in their bias.
    wants_sums : bool
        Whether more than the first sum is wanted.
    log_scale : float
        If it is not NaN, x are nodes of an integral of the only machine's P: they get the weights P exp(−log_scale).
    log_joint : (n, K) or (0, 0)
        log P of each point and machine is written to it.
    """
    units, turns, W, mean, inverse = machines.units, machines.turns, machines.W, machines.mean, machines.inverse
    n, d = x.shape
    n_machines, g = turns.shape
    size = 1 + d + d * d + g * (2 + d)
    X, MOMENTS, ARGUMENT, CENTRED = 0, d, 2 * d, 2 * d + 1
    WHITE = CENTRED + n_machines * d
    VALUES = WHITE + n_machines * d
    WEIGHT = VALUES + n_machines
    SHARE, TOP, TOTAL, SPARE, FRACTION, TERM = range(WEIGHT + 1, WEIGHT + 7)
    TOTALS, PRODUCTS, FIRST = WEIGHT + 7, WEIGHT + 7 + GROUP, WEIGHT + 7 + 2 * GROUP
    is_integral = not np.isnan(log_scale)
    is_mixture = n_machines > 1 or is_integral  # the shares of points are known after their log P
    w = np.zeros((FIRST + 2 * (n_machines * g if is_mixture else GROUP), width))
    for number in range(begin, end):
        sums, stop = out[number], min(n, (number + 1) * chunk)
        for start in range(number * chunk, stop, width):
            count = min(width, stop - start)
            for b in range(width):
                row = start + b if b < count else start
                for i in range(d):
                    w[X + i, b] = x[row, i]
                w[WEIGHT, b] = weights[row] if b < count else 0.0
            for k in range(n_machines):
                centred, white, value, at = CENTRED + k * d, WHITE + k * d, VALUES + k, 1 + k * size + 1 + d + d * d
                whiten_rows(w, inverse, mean, k, d, X, centred, white)
                fill_row(w, value, machines.bias[k])
                for i in range(d):
                    multiply_rows(w, MOMENTS + i, centred + i, WEIGHT)
                    for b in range(w.shape[1]):
                        w[value, b] -= 0.5 * w[white + i, b] * w[white + i, b]
                for j in range(g):
                    member = j % GROUP
                    group = FIRST + 2 * (k * g + j - member) if is_mixture else FIRST
                    first, total, product = group + 2 * member, TOTALS + member, PRODUCTS + member
                    source, slope, turn = centred, W[k, 0, j] / TWO_PI, turns[k, j]
                    if d > 1:
                        fill_row(w, ARGUMENT, turn)
                        for i in range(d):
                            add_scaled_row(w, ARGUMENT, W[k, i, j] / TWO_PI, centred + i)
                        source, slope, turn = ARGUMENT, 1.0, 0.0
                    for b in range(w.shape[1]):  # u − the nearest integer
                        u = slope * w[source, b] + turn
                        w[FRACTION, b] = u - ((u + ROUND) - ROUND)
                    if units[k, j, IS_COSINE] > 0:
                        _sum_cosines(w, units[k, j], FRACTION, SPARE, TERM, total, first, first + 1, wants_sums)
                    else:
                        _sum_exponentials(w, units[k, j], FRACTION, value, TERM, total, first, first + 1)
                    if member == 0:
                        for b in range(w.shape[1]):
                            w[product, b] = w[total, b]
                    else:
                        multiply_rows(w, product, product - 1, total)
                    if member < GROUP - 1 and j < g - 1:
                        continue
                    log_row(w, product, SPARE)
                    add_scaled_row(w, value, 1.0, SPARE)
                    if wants_sums:
                        _divide(w, member + 1, TOTALS, PRODUCTS, SPARE, group)
                        for m in range(0 if is_mixture else member + 1):
                            unit_at, row = at + (j - member + m) * (2 + d), group + 2 * m
                            _add_unit(w, sums, unit_at, d, row, row + 1, WEIGHT, MOMENTS)
            if len(log_joint):
                for b in range(count):
                    for k in range(n_machines):
                        log_joint[start + b, k] = w[VALUES + k, b]
            if not is_mixture:
                sums[0] += dot_rows(w, WEIGHT, VALUES)
                if wants_sums:
                    _add_gaussian(w, sums, 1, d, WEIGHT, WHITE, SPARE)
                continue
            fill_row(w, TOP, log_scale if is_integral else -np.inf)
            fill_row(w, TOTAL, 0.0)
            for k in range(0 if is_integral else n_machines):
                for b in range(w.shape[1]):
                    w[TOP, b] = max(w[TOP, b], w[VALUES + k, b])
            for k in range(n_machines):  # row VALUES + k becomes the machine's part, relative to the largest one
                for b in range(w.shape[1]):
                    w[SPARE, b] = w[VALUES + k, b] - w[TOP, b]
                exp_row(w, SPARE, VALUES + k)
                add_scaled_row(w, TOTAL, 1.0, VALUES + k)
            log_row(w, TOTAL, SPARE)
            add_scaled_row(w, SPARE, 1.0, TOP)
            sums[0] += dot_rows(w, WEIGHT, SPARE)
            if is_integral:
                fill_row(w, TOTAL, 1.0)
            if not wants_sums:
                continue
            for k in range(n_machines):
                at = 1 + k * size
                for b in range(w.shape[1]):
                    w[SHARE, b] = w[WEIGHT, b] * w[VALUES + k, b] / w[TOTAL, b]
                for i in range(d):
                    multiply_rows(w, MOMENTS + i, CENTRED + k * d + i, SHARE)
                _add_gaussian(w, sums, at, d, SHARE, WHITE + k * d, SPARE)
                at += 1 + d + d * d
                for j in range(g):
                    first = FIRST + 2 * (k * g + j)
                    _add_unit(w, sums, at + j * (2 + d), d, first, first + 1, SHARE, MOMENTS)


def sum_points(
    x: Floats,
    weights: Floats,
    machines: DiagonalMachines,
    *,
    wants_sums: bool = True,
    log_scale: float = math.nan,
    log_joint: Floats | None = None,
) -> Floats:
    """The sums over points x (n, d) with weights (n,): see `sum_chunks`. `log_joint` (n, K) is filled."""
    n, d = x.shape
    K, g = machines.turns.shape
    elements = K * g
    chunk = min(max(CHUNK_ELEMENTS // elements, SMALLEST_CHUNK), LARGEST_CHUNK)
    keeps_units = wants_sums and (K > 1 or not math.isnan(log_scale))
    width = WIDEST if not keeps_units else min(max(BLOCK_ELEMENTS // (2 * elements) // 16 * 16, 16), WIDEST)
    n_chunks = -(-n // chunk)
    out = np.zeros((n_chunks, 1 + (K * (1 + d + d * d + g * (2 + d)) if wants_sums else 0)))
    joint = np.empty((0, 0)) if log_joint is None else log_joint

    def run(begin: int, end: int) -> None:
        sum_chunks(x, weights, begin, end, chunk, width, machines, wants_sums, log_scale, out, joint)

    run_threads(run, n_chunks, work=n * elements)
    return out.sum(axis=0)


class Normaliser(NamedTuple):
    """The logarithm of a machine's normaliser, and its derivative: as sums over a grid, or by parameter."""

    log_value: float
    sums: Floats | float = 0.0  # (1 + d + d² + g(2 + d),), as those over the data
    gradient: Floats | float = 0.0  # (n_machine_parameters,)


def normalise_on_grid(machine: DiagonalMachines, wants_sums: bool) -> Normaliser:
    """The normaliser of one machine from a grid. A TooManyTermsError says that the grid would be too large.

    Π θ is at most exp(log_peak) times its mean over the Gaussian of the machine, which is what the grid sums up.
    """
    limit = MAX_GRID_NODES if machine.q.shape[1] > MAX_LATTICE_UNITS else FEW_NODES
    peak, covered = _log_peak(machine), COVERED
    while True:
        nodes, log_cell = _make_nodes(machine, peak - covered, limit)
        ones = np.ones(len(nodes))
        sampled = nodes if not wants_sums else np.ascontiguousarray(nodes[::SAMPLED])
        values = np.empty((len(sampled), 1))
        sum_points(sampled, ones, machine, wants_sums=False, log_joint=values)
        top = float(values.max())
        if wants_sums:
            sums = sum_points(nodes, ones, machine, log_scale=top)[1:]
            total = float(sums[0])
        else:
            total = float(np.exp(values - top).sum())
        log_value = top + math.log(total) + log_cell
        if not log_value < covered:
            return Normaliser(log_value, sums / total if wants_sums else 0.0)
        covered = log_value - 1.0


def _make_nodes(machine: DiagonalMachines, log_peak: float, limit: int) -> tuple[Floats, float]:
    """Nodes (n, d) of the grid, and the log of their cell: `integration.grid.make_grid` in numpy, for speed."""
    L = machine.L[0]
    root = L.T @ machine.W[0] / np.sqrt(machine.q[0])
    curvature, directions = np.linalg.eigh(root @ root.T)
    lengths = spacing_for(NORMALISER_TOLERANCE, len(L)) / np.sqrt(1 + np.maximum(curvature, 0.0))
    if not (lengths > 0).all():
        raise TooManyTermsError(math.inf, limit)
    norms = lengths**2
    log_total = 0.5 * float(np.log(TWO_PI / norms).sum()) - log_peak
    radius2 = squared_radius(norms, log_total, NORMALISER_TOLERANCE / 2)
    indices = enumerate_points(np.diag(lengths), radius2, np.zeros(len(L)), limit=limit)
    log_cell = float(np.log(lengths).sum() + np.log(L.diagonal()).sum())
    return machine.mean[0] + (indices * lengths) @ (L @ directions).T, log_cell


def _log_peak(machine: DiagonalMachines) -> float:
    """log Π θ of one machine at u = 0, where it is largest."""
    constants, q = machine.units[0], machine.q
    is_cosine = constants[:, IS_COSINE] > 0
    cosines = np.log(constants[is_cosine, P0 : P4 + 1].sum(1)).sum()
    a = constants[~is_cosine, A]
    return float(cosines + (0.5 * np.log(TWO_PI / q[0, ~is_cosine]) + np.log1p(2 * np.exp(-0.5 * a))).sum())


def normalise_by_autograd(vector: Tensor, d: int, g: int, wants_gradient: bool) -> Normaliser:
    """The normaliser of one machine with free parameters `vector`, as `DiagonalMachine` computes it."""
    with torch.set_grad_enabled(wants_gradient):
        free = vector.detach().clone().requires_grad_(wants_gradient)
        natural = constrain(unpack(free, d, g, "diagonal"))
        assert isinstance(natural, Natural)
        value = DiagonalMachine(natural, NORMALISER_TOLERANCE).log_normalizer()
        gradient = torch.autograd.grad(value, free)[0].numpy() if wants_gradient else 0.0
    return Normaliser(float(value.detach()), gradient=gradient)


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
        self._low, self._high = x.min(axis=0), x.max(axis=0)
        self._compressed: dict[int, tuple[Floats, Floats]] = {}

    def is_near(self, machines: DiagonalMachines) -> bool:
        """Whether all u are so small that one step takes them to the nearest period."""
        reach = np.maximum(abs(self._low - machines.mean), abs(self._high - machines.mean))
        furthest = (reach[:, None] @ abs(machines.W))[:, 0] / TWO_PI + abs(machines.turns)
        return bool((furthest < DIGIT).all())

    def for_machines(self, machines: DiagonalMachines) -> tuple[Floats, Floats]:
        """Points and weights with the same sums as the data.

        θ(u|q) has its zeros at a distance of q/2 from the real axis of 2πu, so log θ is smooth in smaller cells.
        """
        if machines.W.shape[:2] != (1, 1):
            return self.x, self.weights
        extent = float((self._high - self._low)[0])
        distance = 0.5 * float((machines.q / np.maximum(abs(machines.W[:, 0]), 1e-300)).min())
        length = CELL_LENGTH * min(distance, extent)
        if not length * len(self.x) > extent:  # fewer than one point in a cell
            return self.x, self.weights
        level = math.floor(LEVELS_PER_OCTAVE * math.log2(length))
        if level not in self._compressed:
            if len(self._compressed) == KEPT_LEVELS:
                del self._compressed[next(iter(self._compressed))]
            order = self.x[:, 0].argsort(kind="stable")
            length = 2.0 ** (level / LEVELS_PER_OCTAVE)
            self._compressed[level] = compress(self.x[order], self.weights[order], length)
        return self._compressed[level]


class DiagonalPass(NamedTuple):
    """Σ w log P and its derivative over blocks, for machines within reach of the compiled pass."""

    machines: DiagonalMachines
    normalisers: list[Normaliser]
    wants_gradient: bool

    def sums(self, block: PointBlock) -> Floats | None:
        """Σ w log P and its derivative in the vector (1 + n_parameters,), or None if it does not serve a block."""
        data = self._points(block)
        if data is None:
            return None
        with np.errstate(all="ignore"):
            sums = sum_points(*data.for_machines(self.machines), self.machines, wants_sums=self.wants_gradient)
            if not np.isfinite(sums).all():
                return None
            return np.concatenate([sums[:1], self._gradient(sums[1:].reshape(len(self.machines.q), -1))])

    def log_prob(self, block: PointBlock) -> Floats | None:
        """log P (n,) at the points of a block, or None."""
        data = self._points(block)
        if data is None:
            return None
        values = np.empty((len(data.x), len(self.machines.q)))
        with np.errstate(all="ignore"):
            sums = sum_points(data.x, data.weights, self.machines, wants_sums=False, log_joint=values)
            return np.logaddexp.reduce(values, axis=1) if np.isfinite(sums).all() else None

    def _points(self, block: PointBlock) -> PointSet | None:
        """The points of a block in the memory of the CPU: one machine with one feature needs them only once."""
        K, d, _ = self.machines.W.shape
        is_elsewhere = not block.is_compiled and not (block.points.is_cuda and K * d == 1)
        if len(block.present) < d or block.has_gaps or is_elsewhere:
            return None
        if "diagonal" not in block.cache:
            x, weights = (torch.as_tensor(part).cpu().double().numpy() for part in (block.points, block.weights))
            block.cache["diagonal"] = PointSet(x, weights)
        data = block.cache["diagonal"]
        return data if data.is_near(self.machines) else None

    def _gradient(self, sums: Floats) -> Floats:
        """The derivative of Σ w log P in the vector, from the sums (K, …) of `sum_chunks`."""
        if not self.wants_gradient:
            return np.empty(0)
        log_weights, q, _, W, _, L, _, inverse, _ = self.machines
        K, d, g = W.shape
        totals = sums[:, :1]
        sums = sums - totals * np.stack([np.broadcast_to(part.sums, sums.shape[1:]) for part in self.normalisers])
        total, first, square = sums[:, :1], sums[:, 1 : 1 + d, None], sums[:, 1 + d : 1 + d + d * d].reshape(K, d, d)
        one, two, cross = np.split(sums[:, 1 + d + d * d :].reshape(K, g, 2 + d), [1, 2], axis=2)
        is_cosine, dual = q >= math.pi, TWO_PI**2 / q
        slope = np.where(is_cosine, TWO_PI, -dual)
        by_turns = slope * one[:, :, 0]
        by_log_q = 0.5 * np.where(is_cosine, q * two[:, :, 0], dual * two[:, :, 0] - total)
        by_W = (slope[:, :, None] * cross).mT / TWO_PI
        by_mean = inverse.mT @ first - W @ by_turns[:, :, None] / TWO_PI
        by_L = inverse.mT @ (np.tril(square) + np.tril(square, -1).mT - total[:, :, None] * np.eye(d))
        row, column = np.tril_indices(d)
        by_width = by_L[:, row, column] * np.where(row == column, L[:, row, column], 1.0)
        parts = np.concatenate([by_log_q, by_turns, by_W.reshape(K, -1), by_mean[:, :, 0], by_width], axis=1)
        parts -= totals * np.stack([np.broadcast_to(part.gradient, parts.shape[1:]) for part in self.normalisers])
        by_logits = (totals - np.exp(log_weights[:, None]) * totals.sum())[:, 0]
        return np.concatenate([parts.reshape(-1), by_logits if K > 1 else by_logits[:0]])


@np.errstate(all="ignore")
def make_pass(vector: Floats, n_machines: int, d: int, g: int, wants_gradient: bool) -> DiagonalPass | None:
    """The pass for the machines of a vector; None where parameters leave float64."""
    try:
        machines = unpack_machines(vector, n_machines, d, g)
        positive = np.concatenate([machines.q, machines.L.diagonal(axis1=1, axis2=2)], axis=1)
        if not (np.isfinite(vector).all() and np.isfinite(positive).all() and (positive > 0).all()):
            return None
        own = vector[: len(vector) - (n_machines if n_machines > 1 else 0)].reshape(n_machines, -1)
        normalisers = [_normalise(own[k], machines.one(k), wants_gradient) for k in range(n_machines)]
    except (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError):  # theta functions raise a clear error
        return None
    bias = machines.bias + machines.log_weights - np.array([part.log_value for part in normalisers])
    return DiagonalPass(machines._replace(bias=bias), normalisers, wants_gradient)


def _normalise(vector: Floats, machine: DiagonalMachines, wants_gradient: bool) -> Normaliser:
    """The normaliser of one machine, by a grid where this is possible."""
    _, d, g = machine.W.shape
    if d <= MAX_GRID_DIMENSION:
        try:
            return normalise_on_grid(machine, wants_gradient)
        except (TooManyTermsError, np.linalg.LinAlgError, torch.linalg.LinAlgError):
            pass
    return normalise_by_autograd(torch.from_numpy(vector), d, g, wants_gradient)
