"""Dense machines: their parameters, how they see points, and derivatives from the sums of a pass over the points.

Everything is a few small loops for each machine, compiled where numba is installed. With δ = h − centre and L_A, L the
Cholesky factors of A and of the covariance, a machine is::

    P(h) ∝ exp(−½|L_Aᵀδ|²),    v = origin + Fδ + Lε,    origin = mean + F centre,    ε ~ N(0, 1)
"""

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from rtbm.common import TWO_PI, Floats
from rtbm.theta.kernels import compiled

LOG_TWO_PI = math.log(TWO_PI)


@functools.cache
def lower_triangle(n: int) -> tuple[np.ndarray, np.ndarray]:
    """The rows and columns of the entries of a lower triangle (n, n); kept, because they are asked for in each step."""
    return np.tril_indices(n)


class Machines(NamedTuple):
    """K machines with d visible and g hidden units, by their Cholesky factors, and the logarithms of their weights."""

    log_weights: Floats  # (K,)
    L_A: Floats  # (K, g, g)
    centre: Floats  # (K, g)
    F: Floats  # (K, d, g)
    mean: Floats  # (K, d)
    L: Floats  # (K, d, d)


class States(NamedTuple):
    """Tables of hidden states, one machine after the other. Machines are summed over these states only."""

    delta: Floats  # (S, g): h − centre
    log_prior: Floats  # (S,): log P(h)
    first: np.ndarray  # (K + 1,): the first state of each machine, and S
    log_left_out: Floats  # (K,): a bound on the logarithm of Σ P(h) over all other states
    mean: Floats  # (K, g): E[δ]
    second: Floats  # (K, g, g): E[δδᵀ]


class View(NamedTuple):
    """How machines see points x of which p entries are present: as y = inverse (x − origin).

    State s has log P(x, s) = bias_s − ½|y − centres_s|².
    """

    inverse: Floats  # (K, p, p)
    origin: Floats  # (K, p)
    slopes: Floats  # (K, p, g): inverse F
    bias: Floats  # (S,)
    centres: Floats  # (S, p)
    delta: Floats  # (S, g): see `States`
    first: np.ndarray  # (K + 1,): see `States`
    log_peak: Floats  # (K,): the logarithm of the highest value of N(v|h)
    basis: Floats  # (K, d, p): ε = basis y + what is not known

    @property
    def n_sums(self) -> int:
        """The number of sums of a pass; see `rtbm.training.sums.numba.sum_chunks`."""
        K, p, g = self.slopes.shape
        return 2 + K * (1 + g + g * g + p + p * g + p * p)

    def machine_states(self) -> list[slice]:
        """The states of each machine."""
        return list(itertools.starmap(slice, itertools.pairwise(self.first.tolist())))


@compiled
def unpack_machines(vector, n_machines, d, g):
    """The machines of a vector of free parameters; see `rtbm.training.family.Family`."""
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    L_A, centre = np.zeros((n_machines, g, g)), np.empty((n_machines, g))
    F, mean, L = np.empty((n_machines, d, g)), np.empty((n_machines, d)), np.zeros((n_machines, d, d))
    for k in range(n_machines):
        at = k * size
        for i in range(g):
            for j in range(i + 1):
                L_A[k, i, j] = math.exp(vector[at]) if i == j else vector[at]
                at += 1
        centre[k] = vector[at : at + g]
        at += g
        for i in range(d):
            F[k, i] = vector[at : at + g]
            at += g
        mean[k] = vector[at : at + d]
        at += d
        for i in range(d):
            for j in range(i + 1):
                L[k, i, j] = math.exp(vector[at]) if i == j else vector[at]
                at += 1
    log_weights = np.zeros(n_machines)
    if n_machines > 1:
        log_weights[:] = vector[n_machines * size :]
        log_weights -= log_weights.max()
        log_weights -= math.log(np.exp(log_weights).sum())
    return Machines(log_weights, L_A, centre, F, mean, L)


def pack_machines(logits: Floats, L_A: Floats, centre: Floats, F: Floats, mean: Floats, L: Floats) -> Floats:
    """The vector of machines, the inverse of `unpack_machines`, with any logits of the weights."""
    K = len(F)
    parts = _log_triangle(L_A), centre, F.reshape(K, -1), mean, _log_triangle(L)
    return np.concatenate([np.concatenate(parts, axis=1).reshape(-1), logits if K > 1 else logits[:0]])


def _log_triangle(root: Floats) -> Floats:
    """The lower triangles (K, n(n + 1)/2) of matrices, with logarithms of the diagonals."""
    row, column = lower_triangle(root.shape[1])
    entries = root[:, row, column]
    entries[:, row == column] = np.log(entries[:, row == column])
    return entries


@compiled
def invert_triangle(L, inverse):
    """The inverse of a lower triangular matrix, in the lower triangle of `inverse`."""
    for i in range(len(L)):
        for j in range(i):
            inverse[i, j] = 0.0
        for m in range(i):
            for j in range(m + 1):
                inverse[i, j] -= L[i, m] * inverse[m, j]
        for j in range(i):
            inverse[i, j] /= L[i, i]
        inverse[i, i] = 1 / L[i, i]


@compiled
def make_view(machines, states, present):
    """How machines see points whose entries `present` (p,) are given: see `View`.

    For the rows of L that are present, L_p = RBᵀ with R lower triangular and orthonormal columns of B, the basis.
    """
    log_weights, _, centre, F, mean, L = machines
    delta, log_prior, first = states.delta, states.log_prior, states.first
    n_machines, d, g = F.shape
    p = len(present)
    inverse, origin = np.zeros((n_machines, p, p)), np.empty((n_machines, p))
    slopes, log_peak = np.empty((n_machines, p, g)), np.empty(n_machines)
    bias, centres, basis = np.empty(len(delta)), np.zeros((len(delta), p)), np.zeros((n_machines, d, p))
    root = np.zeros((p, p))
    for k in range(n_machines):
        if p == d:
            for i in range(d):
                basis[k, i, i] = 1.0
                for j in range(i + 1):
                    root[i, j] = L[k, i, j]
        else:  # Gram-Schmidt, twice for orthogonality to the last digit
            for i in range(p):
                for m in range(i):
                    root[i, m] = 0.0
                for j in range(d):
                    basis[k, j, i] = L[k, present[i], j]
                for _ in range(2):
                    for m in range(i):
                        along = 0.0
                        for j in range(d):
                            along += basis[k, j, i] * basis[k, j, m]
                        root[i, m] += along
                        for j in range(d):
                            basis[k, j, i] -= along * basis[k, j, m]
                norm = 0.0
                for j in range(d):
                    norm += basis[k, j, i] ** 2
                root[i, i] = math.sqrt(norm)
                for j in range(d):
                    basis[k, j, i] /= root[i, i]
        invert_triangle(root, inverse[k])
        log_peak[k] = -0.5 * p * LOG_TWO_PI
        for i in range(p):
            log_peak[k] -= math.log(root[i, i])
            origin[k, i] = mean[k, present[i]]
            for j in range(g):
                origin[k, i] += F[k, present[i], j] * centre[k, j]
                slopes[k, i, j] = 0.0
                for m in range(i + 1):
                    slopes[k, i, j] += inverse[k, i, m] * F[k, present[m], j]
        for s in range(first[k], first[k + 1]):
            bias[s] = log_weights[k] + log_prior[s] + log_peak[k]
            for i in range(p):
                for j in range(g):
                    centres[s, i] += slopes[k, i, j] * delta[s, j]
    return View(inverse, origin, slopes, bias, centres, delta, first, log_peak, basis)


@compiled
def complete_moments(sums, view, total, mean, scatter):
    """Fill in Σ y and Σ yyᵀ for a single machine, from those of the points: Σ w, the mean, and the scatter about it."""
    inverse, origin = view.inverse, view.origin
    p, g = view.slopes.shape[1:]
    at = 3 + g + g * g
    difference = np.empty(p)
    for i in range(p):
        difference[i] = 0.0
        for j in range(i + 1):
            difference[i] += inverse[0, i, j] * (mean[j] - origin[0, j])
        sums[at + i] = total * difference[i]
    half = np.zeros((p, p))
    for i in range(p):
        for m in range(i + 1):
            for j in range(p):
                half[i, j] += inverse[0, i, m] * scatter[m, j]
    for i in range(p):
        for j in range(p):
            value = total * difference[i] * difference[j]
            for m in range(j + 1):
                value += half[i, m] * inverse[0, j, m]
            sums[at + p + p * g + i * p + j] = value


@compiled
def add_sums(sums, log_scales, view, wants_sums, result):
    """Add the sums of a block to `result`, those of all blocks.

    These are Σ w log P, Σ w/P, the same times the highest peak of each machine (K,), and residuals of each machine
    (K, 1 + g + g² + d(1 + g + d)), which all derivatives need. Residuals are, with w times the probability that a point
    comes from the machine, Σ 1, Σ δ, Σ δδᵀ, Σ ε, Σ εδᵀ and Σ εεᵀ, where ε = L⁻¹(v − origin − Fδ) and all are
    expectations given the point. Sums after the first are divided by exp(log_scales) (1 + K,).
    """
    slopes, basis = view.slopes, view.basis
    (n_machines, d, p), g = basis.shape, slopes.shape[2]
    size = 1 + g + g * g + p + p * g + p * p
    head = 1 + g + g * g
    n_residuals = head + d + d * g + d * d if wants_sums else 0
    first, half, cross, square = np.empty(p), np.empty(p), np.empty((p, g)), np.empty((p, p))
    result[0] += sums[0]
    result[1] += sums[1]
    for k in range(n_machines):
        result[2 + k] += sums[1] * math.exp(min(view.log_peak[k] + log_scales[0] - log_scales[1 + k], 700.0))
    for k in range(n_machines if wants_sums else 0):
        own, residuals = sums[2 + k * size : 2 + (k + 1) * size], result[2 + n_machines + k * n_residuals :]
        for i in range(head):
            residuals[i] += own[i]
        for i in range(p):
            first[i] = own[head + i]
            for a in range(g):
                first[i] -= slopes[k, i, a] * own[1 + a]
                cross[i, a] = own[head + p + i * g + a]
                for b in range(g):
                    cross[i, a] -= slopes[k, i, b] * own[1 + g + b * g + a]
        for i in range(p):
            for j in range(p):
                square[i, j] = own[head + p + p * g + i * p + j]
                for a in range(g):  # Σ yyᵀ − Σ yδᵀGᵀ − G Σ δ(y − Gδ)ᵀ
                    square[i, j] -= own[head + p + i * g + a] * slopes[k, j, a] + slopes[k, i, a] * cross[j, a]
        if p == d:  # the basis is the identity
            for i in range(d):
                residuals[head + i] += first[i]
                for a in range(g):
                    residuals[head + d + i * g + a] += cross[i, a]
                for j in range(d):
                    residuals[head + d + d * g + i * d + j] += square[i, j]
            continue
        for i in range(d):
            for m in range(p):
                residuals[head + i] += basis[k, i, m] * first[m]
                for a in range(g):
                    residuals[head + d + i * g + a] += basis[k, i, m] * cross[m, a]
                half[m] = 0.0
                for q in range(p):
                    half[m] += basis[k, i, q] * (square[q, m] - (own[0] if m == q else 0.0))
            for j in range(d):
                value = own[0] if i == j else 0.0
                for m in range(p):
                    value += half[m] * basis[k, j, m]
                residuals[head + d + d * g + i * d + j] += value


@compiled
def likelihood_gradient(residuals, machines, states):
    """The derivative of Σ w log P in the vector of free parameters."""
    log_weights, L_A, centre, F, _, L = machines
    n_machines, d, g = F.shape
    head = 1 + g + g * g
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    gradient = np.empty(n_machines * size + (n_machines if n_machines > 1 else 0))
    inverse, by_mean, by_F = np.zeros((d, d)), np.empty(d), np.empty((d, g))
    excess_first, excess_second = np.empty(g), np.empty((g, g))
    whole = residuals[:, 0].sum()
    for k in range(n_machines):
        own = residuals[k]
        total = own[0]
        for i in range(g):
            excess_first[i] = own[1 + i] - total * states.mean[k, i]
            for j in range(g):
                excess_second[i, j] = own[1 + g + i * g + j] - total * states.second[k, i, j]
        at = k * size
        for i in range(g):  # −(Σ δδᵀ − Σ E[δδᵀ]) L_A
            for j in range(i + 1):
                value = 0.0
                for m in range(j, g):
                    value -= excess_second[i, m] * L_A[k, m, j]
                gradient[at] = value * L_A[k, i, i] if i == j else value
                at += 1
        for i in range(g):  # A (Σ δ − Σ E[δ])
            value = 0.0
            for m in range(g):
                for j in range(min(i, m) + 1):
                    value += L_A[k, i, j] * L_A[k, m, j] * excess_first[m]
            gradient[at + i] = value
        at += g
        invert_triangle(L[k], inverse)
        for i in range(d):
            by_mean[i] = 0.0
            for m in range(i, d):
                by_mean[i] += inverse[m, i] * own[head + m]
            for j in range(g):
                by_F[i, j] = by_mean[i] * centre[k, j]
                for m in range(i, d):
                    by_F[i, j] += inverse[m, i] * own[head + d + m * g + j]
        gradient[at : at + d * g] = by_F.ravel()
        at += d * g
        gradient[at : at + d] = by_mean
        at += d
        square = head + d + d * g
        for i in range(d):  # the lower triangle of L⁻ᵀ(Σ εεᵀ − Σ 1)
            for j in range(i + 1):
                value = 0.0
                for m in range(i, d):
                    value += inverse[m, i] * (own[square + m * d + j] - (total if m == j else 0.0))
                gradient[at] = value * L[k, i, i] if i == j else value
                at += 1
        if n_machines > 1:
            gradient[n_machines * size + k] = total - math.exp(log_weights[k]) * whole
    return gradient


@compiled
def add_penalty(machines, strength, widths, rigidity, stiffness, gradient):
    """The prior's penalty without smoothness (see `Prior`); its derivative is added to the gradient."""
    L_A, L = machines.L_A, machines.L
    n_machines, d, g = machines.F.shape
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    inverse, precision = np.zeros((d, d)), np.empty((d, d))
    value = 0.0
    for k in range(n_machines):
        invert_triangle(L[k], inverse)
        precision[:] = 0.0
        for m in range(d):
            for i in range(m + 1):
                for j in range(i + 1):  # the lower triangle is enough
                    precision[i, j] += inverse[m, i] * inverse[m, j]
        for i in range(d):
            value += strength * widths[i] ** 2 * precision[i, i]
        at = k * size
        for i in range(g):
            for j in range(i + 1):
                value += rigidity * L_A[k, i, j] ** 2
                if i == j:
                    value -= 2 * rigidity * stiffness * math.log(L_A[k, i, i])
                    gradient[at] += 2 * rigidity * (L_A[k, i, i] ** 2 - stiffness)
                else:
                    gradient[at] += 2 * rigidity * L_A[k, i, j]
                at += 1
        at = k * size + n_scale + g + d * g + d
        for i in range(d):  # −2 strength Σ⁻¹ diag(widths²) L⁻ᵀ, its lower triangle
            for j in range(i + 1):
                by_L = 0.0
                for m in range(j + 1):
                    by_L -= 2 * strength * precision[i, m] * widths[m] ** 2 * inverse[j, m]
                gradient[at] += by_L * (L[k, i, i] if i == j else 1.0)
                at += 1
    return value
