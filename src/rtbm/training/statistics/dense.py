"""Dense machines around the pass over the points: their tables of states before it, and derivatives after it.

Everything is a few small loops for each machine, compiled where numba is installed. With δ = h − centre and L_A, L the
Cholesky factors of A and of the covariance, a machine is::

    P(h) ∝ exp(−½|L_Aᵀδ|²),    v = origin + Fδ + Lε,    origin = mean + F centre,    ε ~ N(0, 1)
"""

import math
from typing import NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.theta.kernels import compiled
from rtbm.theta.truncation import CHERNOFF

LARGEST_CENTRE = 1e9
"""Further out, differences of hidden states would lose digits: theta functions take over."""


class Machines(NamedTuple):
    """K machines with d visible and g hidden units, by their Cholesky factors, and the logarithms of their weights."""

    log_weights: Floats  # (K,)
    L_A: Floats  # (K, g, g)
    centre: Floats  # (K, g)
    F: Floats  # (K, d, g)
    mean: Floats  # (K, d)
    L: Floats  # (K, d, d)


class States(NamedTuple):
    """The hidden states over which machines are summed, one machine after the other, and what they leave out."""

    delta: Floats  # (S, g): h − centre
    log_prior: Floats  # (S,): log P(h)
    first: np.ndarray  # (K + 1,): the first state of each machine, and S
    log_left_out: Floats  # (K,): a bound on the logarithm of Σ P(h) over all other states
    mean: Floats  # (K, g): E[δ]
    second: Floats  # (K, g, g): E[δδᵀ]


class View(NamedTuple):
    """How machines see points of which p entries are present: y = inverse (x − origin), as `sum_chunks` takes it."""

    inverse: Floats  # (K, p, p)
    origin: Floats  # (K, p)
    slopes: Floats  # (K, p, g)
    bias: Floats  # (S,)
    centres: Floats  # (S, p)
    log_peak: Floats  # (K,): the logarithm of the highest value of N(v|h)
    basis: Floats  # (K, d, p): ε = basis y + what is not known


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
        for i in range(g):
            centre[k, i] = vector[at + i]
        at += g
        for i in range(d):
            for j in range(g):
                F[k, i, j] = vector[at + i * g + j]
        at += d * g
        for i in range(d):
            mean[k, i] = vector[at + i]
        at += d
        for i in range(d):
            for j in range(i + 1):
                L[k, i, j] = math.exp(vector[at]) if i == j else vector[at]
                at += 1
    log_weights = np.zeros(n_machines)
    if n_machines > 1:
        top, total = -np.inf, 0.0
        for k in range(n_machines):
            top = max(top, vector[n_machines * size + k])
        for k in range(n_machines):
            total += math.exp(vector[n_machines * size + k] - top)
        for k in range(n_machines):
            log_weights[k] = vector[n_machines * size + k] - top - math.log(total)
    return log_weights, L_A, centre, F, mean, L


@compiled
def pack_machines(logits, L_A, centre, F, mean, L):
    """The vector of machines, the inverse of `unpack_machines`, with any logits of the weights."""
    n_machines, d, g = F.shape
    size = g * (g + 1) // 2 + g + d * g + d + d * (d + 1) // 2
    vector = np.empty(n_machines * size + (n_machines if n_machines > 1 else 0))
    for k in range(n_machines):
        at = k * size
        for i in range(g):
            for j in range(i + 1):
                vector[at] = math.log(L_A[k, i, i]) if i == j else L_A[k, i, j]
                at += 1
        vector[at : at + g] = centre[k]
        at += g
        for i in range(d):
            vector[at : at + g] = F[k, i]
            at += g
        vector[at : at + d] = mean[k]
        at += d
        for i in range(d):
            for j in range(i + 1):
                vector[at] = math.log(L[k, i, i]) if i == j else L[k, i, j]
                at += 1
        if n_machines > 1:
            vector[n_machines * size + k] = logits[k]
    return vector


@compiled
def _log_gauss_sum(a):
    """log Σ_k exp(−½ak²) over the integers."""
    b = a if a > 2 * math.pi else 4 * math.pi**2 / a
    total = 0.0
    for k in range(1, 5):
        total += math.exp(-0.5 * b * k * k)
    return math.log1p(2 * total) + (0.0 if a > 2 * math.pi else 0.5 * math.log(2 * math.pi / a))


@compiled
def _squared_radius(L_A, log_tail):
    """R² such that log Σ exp(−½|L_Aᵀδ|²) over |L_Aᵀδ| > R stays below log_tail; see `theta.lattice.squared_radius`."""
    best = np.inf
    for s in CHERNOFF:
        spread = 0.0
        for i in range(len(L_A)):
            spread += _log_gauss_sum(s * L_A[i, i] * L_A[i, i])
        best = min(best, 2 / (1 - s) * (spread - log_tail))
    return best


@compiled
def _closest(L_A, centre):
    """The square of the least |L_Aᵀδ| over all states: nearest-plane rounding, and a search within its distance.

    The search ends early in a basis that is far from reduced. The result is then that of the best state so far.
    """
    g = len(L_A)
    h, left, offset, step = np.zeros(g), np.zeros(g + 1), np.zeros(g), np.zeros(g)
    best, i, opening, visited = np.inf, g - 1, True, 0
    while i < g and visited < 2000:
        visited += 1
        if opening:
            offset[i] = 0.0
            for j in range(i + 1, g):
                offset[i] += L_A[j, i] * (h[j] - centre[j])
            middle = centre[i] - offset[i] / L_A[i, i]
            h[i] = np.rint(middle)
            step[i] = 1.0 if middle >= h[i] else -1.0  # the next nearest state is on this side, then on the other
        else:
            h[i] += step[i]
            step[i] = -step[i] - (1.0 if step[i] > 0 else -1.0)
        distance = L_A[i, i] * (h[i] - centre[i]) + offset[i]
        left[i] = left[i + 1] + distance * distance
        if left[i] >= best:
            i, opening = i + 1, False
        elif i > 0:
            i, opening = i - 1, True
        else:
            best, i, opening = left[0], 1, False
    return best


@compiled
def _enumerate(L_A, centre, radius2, delta):
    """Fill `delta` with all h − centre for which |L_Aᵀδ|² ≤ radius2; returns their number, or −1 if there is no room.

    The last unit varies slowest, the first fastest.
    """
    g, room = len(L_A), len(delta)
    # |L_Aᵀδ|² = Σ_i (L_ii δ_i + offset_i)², where offset_i depends on the units after i
    h, stop, left, offset = np.zeros(g), np.zeros(g), np.zeros(g + 1), np.zeros(g)
    left[g] = radius2 * (1 + 1e-9)
    i, end, visited, opening = g - 1, 0, 0, True
    while i < g:
        visited += 1
        if visited > 20 * room + 1000:
            return -1
        if opening:
            offset[i] = 0.0
            for j in range(i + 1, g):
                offset[i] += L_A[j, i] * (h[j] - centre[j])
            reach = math.sqrt(left[i + 1])
            h[i] = math.ceil((-reach - offset[i]) / L_A[i, i] + centre[i])
            stop[i] = math.floor((reach - offset[i]) / L_A[i, i] + centre[i])
        else:
            h[i] += 1
        if h[i] > stop[i]:
            i, opening = i + 1, False
            continue
        distance = L_A[i, i] * (h[i] - centre[i]) + offset[i]
        left[i] = max(left[i + 1] - distance * distance, 0.0)
        if i > 0:
            i, opening = i - 1, True
            continue
        opening = False
        if end == room:
            return -1
        for j in range(g):
            delta[end, j] = h[j] - centre[j]
        end += 1
    return end


@compiled
def _log_weight(L_A, delta):
    """−½|L_Aᵀδ|²."""
    value = 0.0
    for i in range(len(delta)):
        distance = 0.0
        for j in range(i, len(delta)):
            distance += L_A[j, i] * delta[j]
        value -= 0.5 * distance * distance
    return value


@compiled
def _threshold(log_weights, log_dropped):
    """A t, almost the largest, such that the weights below t have a sum of at most exp(log_dropped); by bisection."""
    low, high = log_dropped - 50.0 - math.log(len(log_weights)), log_dropped
    for _ in range(12):
        middle, total = 0.5 * (low + high), 0.0
        for value in log_weights:
            if value < middle:
                total += math.exp(value - log_dropped)
        if total <= 1.0:
            low = middle
        else:
            high = middle
    return low


@compiled
def tabulate(L_A, centre, allowed, limit):
    """The states that matter, at most `limit` for each machine: the fields of `States`, empty if they are too many.

    `allowed` (K,) is the logarithm of what may be left out of Σ exp(−½|L_Aᵀδ|²), relative to the largest term. An
    ellipsoid holds all but half of that. Of its states, those with the smallest weights are dropped. It is not looked
    at if its volume promises far too many.
    """
    n_machines, g = centre.shape
    first, log_left_out = np.zeros(n_machines + 1, dtype=np.int64), np.empty(n_machines)
    none = np.empty((0, g)), np.empty(0), first, log_left_out, np.empty((0, g)), np.empty((0, g, g))
    buffer, weights = np.empty((4 * limit, g)), np.empty(4 * limit)
    delta, log_prior = np.empty((n_machines * limit, g)), np.empty(n_machines * limit)
    mean, second = np.zeros((n_machines, g)), np.zeros((n_machines, g, g))
    for k in range(n_machines):
        for i in range(g):
            if not (abs(centre[k, i]) < LARGEST_CENTRE and L_A[k, i, i] > 0):
                return none
        log_left_out[k] = allowed[k] - 0.5 * _closest(L_A[k], centre[k])
        radius2 = _squared_radius(L_A[k], log_left_out[k] - math.log(2.0))
        log_volume = 0.5 * g * math.log(math.pi * radius2) - math.lgamma(0.5 * g + 1)
        for i in range(g):
            log_volume -= math.log(L_A[k, i, i])
        if not log_volume < math.log(64.0 * limit):
            return none
        found = _enumerate(L_A[k], centre[k], radius2, buffer)
        if found < 1:
            return none
        top, total = -np.inf, 0.0
        for s in range(found):
            weights[s] = _log_weight(L_A[k], buffer[s])
            top = max(top, weights[s])
        least = _threshold(weights[:found], log_left_out[k] - math.log(2.0))
        end = first[k]
        for s in range(found):
            if weights[s] >= least:
                if end - first[k] == limit:
                    return none
                delta[end] = buffer[s]
                log_prior[end] = weights[s] - top
                total += math.exp(log_prior[end])
                end += 1
        first[k + 1] = end
        log_left_out[k] -= top + math.log(total)
        for s in range(first[k], end):
            log_prior[s] -= math.log(total)
            weight = math.exp(log_prior[s])
            for i in range(g):
                mean[k, i] += weight * delta[s, i]
                for j in range(g):
                    second[k, i, j] += weight * delta[s, i] * delta[s, j]
    return delta[: first[-1]].copy(), log_prior[: first[-1]].copy(), first, log_left_out, mean, second


@compiled
def sum_far(
    x, weights, L_A, centre, log_prior, delta, first, inverse, origin, slopes, log_factors, wants_sums, limit, sums,
    log_joint,
):  # fmt: skip
    """The same sums as `sum_chunks` over points that are too far out for the tables; False if they take too long.

    P(h|x) is a discrete Gaussian with the form A + GᵀG, G = slopes. Its states are listed around its own centre for
    every point, until what is left out is 1e-10 of the largest term. `log_factors` (K,) are the logarithms of weights
    times peaks.
    """
    (n, p), (n_machines, g) = x.shape, centre.shape
    size = 1 + g + g * g + p + p * g + p * p
    roots, log_sums = np.empty((n_machines, g, g)), np.empty(n_machines)
    for k in range(n_machines):
        roots[k] = np.linalg.cholesky(L_A[k] @ L_A[k].T + slopes[k].T @ slopes[k])
        log_sums[k] = _log_weight(L_A[k], delta[first[k]]) - log_prior[first[k]]
    states, logs = np.empty((limit, g)), np.empty(limit)
    ends, y, noise = np.zeros(n_machines + 1, dtype=np.int64), np.empty((n_machines, p)), np.empty(p)
    for row in range(n):
        top = -np.inf
        for k in range(n_machines):
            y[k] = inverse[k] @ (x[row] - origin[k])
            shift = np.linalg.solve(roots[k] @ roots[k].T, slopes[k].T @ y[k])
            middle = centre[k] + shift
            if not np.abs(middle).max() < LARGEST_CENTRE:
                return False
            log_tail = -23.0 - 0.5 * _closest(roots[k], middle)
            found = _enumerate(roots[k], middle, _squared_radius(roots[k], log_tail), states[ends[k] :])
            if found < 1:
                return False
            ends[k + 1] = ends[k] + found
            for s in range(ends[k], ends[k + 1]):
                states[s] += shift
                noise[:] = y[k] - slopes[k] @ states[s]
                logs[s] = log_factors[k] - log_sums[k] + _log_weight(L_A[k], states[s]) - 0.5 * (noise @ noise)
                top = max(top, logs[s])
        total = 0.0
        for s in range(ends[n_machines]):
            total += math.exp(logs[s] - top)
        log_prob = top + math.log(total)
        sums[0] += weights[row] * log_prob
        for k in range(n_machines):
            own = 0.0
            at = 2 + k * size
            for s in range(ends[k], ends[k + 1]):
                share = math.exp(logs[s] - log_prob)
                own += share
                if wants_sums:
                    share *= weights[row]
                    sums[at] += share
                    for i in range(g):
                        sums[at + 1 + i] += share * states[s, i]
                        for j in range(g):
                            sums[at + 1 + g + i * g + j] += share * states[s, i] * states[s, j]
                        for j in range(p):
                            sums[at + 1 + g + g * g + p + j * g + i] += share * y[k, j] * states[s, i]
            if wants_sums and n_machines > 1:
                for i in range(p):
                    sums[at + 1 + g + g * g + i] += weights[row] * own * y[k, i]
                    for j in range(p):
                        sums[at + size - p * p + i * p + j] += weights[row] * own * y[k, i] * y[k, j]
            if len(log_joint):
                log_joint[row, k] = log_prob + math.log(own) if own > 0 else -np.inf
    return True


@compiled
def invert_triangle(L, inverse):
    """The inverse of a lower triangular matrix."""
    n = len(L)
    for j in range(n):
        inverse[j, j] = 1 / L[j, j]
        for i in range(j + 1, n):
            total = 0.0
            for m in range(j, i):
                total -= L[i, m] * inverse[m, j]
            inverse[i, j] = total / L[i, i]


@compiled
def likelihood_gradient(residuals, L_A, centre, L, mean_delta, second_delta, log_weights, gradient):
    """The derivative of Σ w log P in the vector of free parameters."""
    n_machines, g = centre.shape
    d = L.shape[1]
    head = 1 + g + g * g
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    inverse, by_mean, by_F = np.zeros((d, d)), np.empty(d), np.empty((d, g))
    excess_first, excess_second = np.empty(g), np.empty((g, g))
    whole = 0.0
    for k in range(n_machines):
        whole += residuals[k, 0]
    for k in range(n_machines):
        own = residuals[k]
        total = own[0]
        for i in range(g):
            excess_first[i] = own[1 + i] - total * mean_delta[k, i]
            for j in range(g):
                excess_second[i, j] = own[1 + g + i * g + j] - total * second_delta[k, i, j]
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
        for i in range(d):
            for j in range(g):
                gradient[at + i * g + j] = by_F[i, j]
        at += d * g
        for i in range(d):
            gradient[at + i] = by_mean[i]
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


@compiled
def _add_unevenness(L_A, centre, F, smoothness, steepest, steps, gradient):
    """The part of the penalty for uneven weights of neighbouring Gaussians, of one machine."""
    d, g = F.shape
    A, by_A, by_centre = np.zeros((g, g)), np.zeros((g, g)), np.zeros(g)
    for i in range(g):
        for j in range(g):
            for m in range(min(i, j) + 1):
                A[i, j] += L_A[i, m] * L_A[j, m]
    factor, value = smoothness / steepest**2, 0.0
    for i in range(g):
        tilt = 0.0
        for j in range(g):
            tilt += A[i, j] * (0.5 - centre[j]) / steps[i]
        value += 0.5 * factor * tilt**2
        for j in range(g):
            by_A[i, j] += factor * tilt / steps[i] * (0.5 - centre[j])
            by_centre[j] -= factor * tilt / steps[i] * A[i, j]
        for j in range(i + 1, g):
            coupling = A[i, j] / (steps[i] * steps[j])
            value += 0.5 * factor * coupling**2
            by_A[i, j] += factor * coupling / (steps[i] * steps[j])
    at = 0
    for i in range(g):
        for j in range(i + 1):
            by_L = 0.0
            for m in range(j, g):
                by_L += (by_A[i, m] + by_A[m, i]) * L_A[m, j]
            gradient[at] += by_L * (L_A[i, i] if i == j else 1.0)
            at += 1
    for j in range(g):
        gradient[at + j] += by_centre[j]
        norm2 = 0.0
        for i in range(d):
            norm2 += F[i, j] ** 2
        stretch = 0.5 * math.log(norm2) - math.log(steps[j])
        value += 0.5 * smoothness * stretch**2
        for i in range(d):
            gradient[at + g + i * g + j] += smoothness * stretch * F[i, j] / norm2
    return value


@compiled
def add_penalty(L_A, centre, F, L, strength, widths, rigidity, stiffness, smoothness, steepest, steps, gradient):
    """The prior's penalty (see `Prior`); its derivative is added to the gradient.

    `steps` (g,) is empty without smoothness.
    """
    n_machines, d, g = F.shape
    n_scale, n_width = g * (g + 1) // 2, d * (d + 1) // 2
    size = n_scale + g + d * g + d + n_width
    inverse, precision = np.zeros((d, d)), np.empty((d, d))
    value = 0.0
    for k in range(n_machines):
        invert_triangle(L[k], inverse)
        for i in range(d):
            for j in range(d):
                precision[i, j] = 0.0
                for m in range(max(i, j), d):
                    precision[i, j] += inverse[m, i] * inverse[m, j]
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
        if len(steps):
            value += _add_unevenness(L_A[k], centre[k], F[k], smoothness, steepest, steps, gradient[k * size :])
    return value


@compiled
def adjust(log_weights, log_left_out, errors, log_scales, allowed, log_tolerance, margin, surplus, least, most):
    """Whether tables were long enough; updates log_scales (1 + K,), and what the next tables may leave out (K,).

    `errors` (1 + K,) are Σ w/P, and the same times the highest peak of each machine, divided by exp(log_scales). With
    what a table leaves out, the latter bound the error of the mean log P.
    """
    n_machines = len(allowed)
    for k in range(n_machines + 1):
        log_scales[k] = min(max(log_scales[k] + math.log(max(errors[k], 1e-300)), -1e4), 1e4)
    accurate = True
    for k in range(n_machines):
        missing = log_weights[k] + log_left_out[k] + log_scales[k + 1]
        slack = log_tolerance - math.log(n_machines) - missing
        accurate = accurate and slack >= 0
        if slack < 0 or slack > surplus:
            allowed[k] = min(max(allowed[k] + slack - margin, least), most)
    return accurate
