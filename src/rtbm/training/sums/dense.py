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

    def machine_states(self) -> list[slice]:
        """The states of each machine."""
        return list(itertools.starmap(slice, itertools.pairwise(self.first.tolist())))


class Sums(NamedTuple):
    """Sums over points with weights w for K machines, from which all derivatives follow: parts of one vector.

    `shares` and the parts after it have w times the probability that a point comes from the machine, and expectations
    given the point. In the sums over a `View`, y and p stand in the place of ε and d.
    """

    log_prob: Floats  # (1,): Σ w log P
    errors: Floats  # (1 + K,): Σ w/P, and times the peak of each machine; each divided by a scale
    shares: Floats  # (K,): Σ 1
    first: Floats  # (K, g): Σ δ
    second: Floats  # (K, g, g): Σ δδᵀ
    noise: Floats  # (K, d): Σ ε
    cross: Floats  # (K, d, g): Σ εδᵀ
    square: Floats  # (K, d, d): Σ εεᵀ


@compiled
def n_sums(K, d, g):
    """The length of the vector of `Sums`."""
    return 2 + K + K * (1 + g + g * g + d + d * g + d * d)


@compiled
def unpack_sums(vector, K, d, g):
    """The sums in a vector (n_sums,), which they share their memory with."""
    first = 2 + 2 * K
    second = first + K * g
    noise = second + K * g * g
    cross = noise + K * d
    square = cross + K * d * g
    return Sums(
        vector[:1],
        vector[1 : 2 + K],
        vector[2 + K : first],
        vector[first:second].reshape(K, g),
        vector[second:noise].reshape(K, g, g),
        vector[noise:cross].reshape(K, d),
        vector[cross:square].reshape(K, d, g),
        vector[square:].reshape(K, d, d),
    )


@compiled
def new_sums(K, d, g):
    """Sums over no points."""
    return unpack_sums(np.zeros(n_sums(K, d, g)), K, d, g)


@compiled
def unpack_machines(vector, n_machines, d, g):
    """The machines of a vector of free parameters; see `rtbm.training.families.Family`."""
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
        for i in range(g):
            centre[k, i] = vector[at + i]
        at += g
        for i in range(d):
            for j in range(g):
                F[k, i, j] = vector[at + j]
            at += g
        for i in range(d):
            mean[k, i] = vector[at + i]
        at += d
        for i in range(d):
            for j in range(i + 1):
                L[k, i, j] = math.exp(vector[at]) if i == j else vector[at]
                at += 1
    log_weights = np.zeros(n_machines)
    if n_machines > 1:  # the logarithm of their softmax
        top, total = -np.inf, 0.0
        for k in range(n_machines):
            log_weights[k] = vector[n_machines * size + k]
            top = max(top, log_weights[k])
        for k in range(n_machines):
            total += math.exp(log_weights[k] - top)
        for k in range(n_machines):
            log_weights[k] -= top + math.log(total)
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
    p = len(mean)
    difference = np.empty(p)
    for i in range(p):
        difference[i] = 0.0
        for j in range(i + 1):
            difference[i] += inverse[0, i, j] * (mean[j] - origin[0, j])
        sums.noise[0, i] = total * difference[i]
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
            sums.square[0, i, j] = value


@compiled
def add_sums(sums, log_scales, view, wants_sums, result):
    """Add the sums of a block, over its view, to `result`, those of all blocks.

    ε = L⁻¹(v − origin − Fδ). The errors are divided by exp(log_scales) (1 + K,); without `wants_sums`, the parts after
    them are left out.
    """
    slopes, basis = view.slopes, view.basis
    (n_machines, d, p), g = basis.shape, slopes.shape[2]
    noise, half, cross, square = np.empty(p), np.empty(p), np.empty((p, g)), np.empty((p, p))
    result.log_prob[0] += sums.log_prob[0]
    result.errors[0] += sums.errors[0]
    for k in range(n_machines):
        scale = math.exp(min(view.log_peak[k] + log_scales[0] - log_scales[1 + k], 700.0))
        result.errors[1 + k] += sums.errors[0] * scale
    for k in range(n_machines if wants_sums else 0):
        count = sums.shares[k]
        result.shares[k] += count
        for a in range(g):
            result.first[k, a] += sums.first[k, a]
            for b in range(g):
                result.second[k, a, b] += sums.second[k, a, b]
        for i in range(p):
            noise[i] = sums.noise[k, i]
            for a in range(g):
                noise[i] -= slopes[k, i, a] * sums.first[k, a]
                cross[i, a] = sums.cross[k, i, a]
                for b in range(g):
                    cross[i, a] -= slopes[k, i, b] * sums.second[k, b, a]
        for i in range(p):
            for j in range(p):
                square[i, j] = sums.square[k, i, j]
                for a in range(g):  # Σ yyᵀ − Σ yδᵀGᵀ − G Σ δ(y − Gδ)ᵀ
                    square[i, j] -= sums.cross[k, i, a] * slopes[k, j, a] + slopes[k, i, a] * cross[j, a]
        if p == d:  # the basis is the identity
            for i in range(d):
                result.noise[k, i] += noise[i]
                for a in range(g):
                    result.cross[k, i, a] += cross[i, a]
                for j in range(d):
                    result.square[k, i, j] += square[i, j]
            continue
        for i in range(d):
            for m in range(p):
                result.noise[k, i] += basis[k, i, m] * noise[m]
                for a in range(g):
                    result.cross[k, i, a] += basis[k, i, m] * cross[m, a]
                half[m] = 0.0
                for q in range(p):
                    half[m] += basis[k, i, q] * (square[q, m] - (count if m == q else 0.0))
            for j in range(d):
                value = count if i == j else 0.0
                for m in range(p):
                    value += half[m] * basis[k, j, m]
                result.square[k, i, j] += value


@compiled
def likelihood_gradient(sums, machines, states):
    """The derivative of Σ w log P in the vector of free parameters."""
    log_weights, L_A, centre, F, _, L = machines
    n_machines, d, g = F.shape
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    gradient = np.empty(n_machines * size + (n_machines if n_machines > 1 else 0))
    inverse, by_mean, by_F = np.zeros((d, d)), np.empty(d), np.empty((d, g))
    excess_first, excess_second = np.empty(g), np.empty((g, g))
    whole = 0.0
    for k in range(n_machines):
        whole += sums.shares[k]
    for k in range(n_machines):
        total = sums.shares[k]
        for i in range(g):
            excess_first[i] = sums.first[k, i] - total * states.mean[k, i]
            for j in range(g):
                excess_second[i, j] = sums.second[k, i, j] - total * states.second[k, i, j]
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
                by_mean[i] += inverse[m, i] * sums.noise[k, m]
            for j in range(g):
                by_F[i, j] = by_mean[i] * centre[k, j]
                for m in range(i, d):
                    by_F[i, j] += inverse[m, i] * sums.cross[k, m, j]
        for i in range(d):
            for j in range(g):
                gradient[at + i * g + j] = by_F[i, j]
            gradient[at + d * g + i] = by_mean[i]
        at += d * g + d
        for i in range(d):  # the lower triangle of L⁻ᵀ(Σ εεᵀ − Σ 1)
            for j in range(i + 1):
                value = 0.0
                for m in range(i, d):
                    value += inverse[m, i] * (sums.square[k, m, j] - (total if m == j else 0.0))
                gradient[at] = value * L[k, i, i] if i == j else value
                at += 1
        if n_machines > 1:
            gradient[n_machines * size + k] = total - math.exp(log_weights[k]) * whole
    return gradient


@compiled
def add_penalty(machines, strength, widths, rigidity, stiffness, gradient):
    """The prior's penalty (see `Prior`); its derivative is added to the gradient."""
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
