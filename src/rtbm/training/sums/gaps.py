"""The pass over points of which each has gaps of its own (numba), one point after the other.

A machine sees a point as ε = L⁻¹(v − origin − Fδ), with one standard normal entry for each feature. The columns of L⁻¹
that belong to missing features span what is not known of ε. With an orthonormal basis B of this span, and gaps filled
with anything, ε given the present entries and δ has mean (1 − BBᵀ)ε and covariance BBᵀ.
"""

import math

import numpy as np

from rtbm.theta.kernels import compiled, reducing
from rtbm.training.sums.dense import LOG_TWO_PI, invert_triangle
from rtbm.training.sums.numba import ROUNDED, SKIPPED


@reducing
def _orthonormalise(vectors, n):
    """Make the first n rows orthonormal; returns the log of the volume that they span. Rows that vanish stay 0.

    Gram-Schmidt, twice for orthogonality to the last digit.
    """
    d, log_volume = vectors.shape[1], 0.0
    for i in range(n):
        for _ in range(2):
            for m in range(i):
                along = 0.0
                for a in range(d):
                    along += vectors[i, a] * vectors[m, a]
                for a in range(d):
                    vectors[i, a] -= along * vectors[m, a]
        norm = 0.0
        for a in range(d):
            norm += vectors[i, a] * vectors[i, a]
        norm = math.sqrt(norm)
        for a in range(d):
            vectors[i, a] *= 1 / norm if norm > 0.0 else 0.0
        log_volume += math.log(norm)
    return log_volume


@compiled
def _distance_from_plane(y, slopes, plane):
    """A lower bound on the squared distance of y from the span of the columns of slopes; plane (g, d) is for work."""
    d, g = slopes.shape
    for i in range(g):
        for a in range(d):
            plane[i, a] = slopes[a, i]
    _orthonormalise(plane, g)
    distance = 0.0
    for a in range(d):
        distance += ROUNDED * y[a] * y[a]
    for i in range(g):
        along = 0.0
        for a in range(d):
            along += plane[i, a] * y[a]
        distance -= along * along
    return max(distance, 0.0)


@reducing
def _known_part(inverse, point, basis, n_missing, known):
    """Fill `known` (d,) with (1 − BBᵀ)L⁻¹ times a point whose missing entries are 0."""
    d = len(point)
    for a in range(d):
        known[a] = 0.0
        for b in range(a + 1):
            known[a] += inverse[a, b] * point[b]
    for i in range(n_missing):
        along = 0.0
        for a in range(d):
            along += known[a] * basis[i, a]
        for a in range(d):
            known[a] -= along * basis[i, a]


@reducing
def _squared_distance(y, slopes, delta):
    """|y − slopes δ|²."""
    total = 0.0
    for a in range(len(y)):
        noise = y[a]
        for i in range(len(delta)):
            noise -= slopes[a, i] * delta[i]
        total += noise * noise
    return total


@compiled
def _add_point(sums, k, terms, weight, delta, y, slopes, basis, n_missing, mean, second, noise):
    """Add a point's share to the sums of machine k.

    `terms` (S,) times `weight` are the shares of the states; mean (g,), second (g, g) and noise (d,) are work space.
    """
    d, g = slopes.shape
    total = 0.0
    mean[:], second[:] = 0.0, 0.0
    for s in range(len(terms)):
        share = weight * terms[s]
        total += share
        for i in range(g):
            mean[i] += share * delta[s, i]
            for j in range(i + 1):
                second[i, j] += share * delta[s, i] * delta[s, j]
    sums.shares[k] += total
    for i in range(g):
        sums.first[k, i] += mean[i]
        for j in range(g):
            sums.second[k, i, j] += second[max(i, j), min(i, j)]
    for i in range(g):  # now the covariance of δ, and its mean
        for j in range(i + 1):
            second[i, j] -= mean[i] * mean[j] / total
            second[j, i] = second[i, j]
    for a in range(d):
        noise[a] = y[a]
        for i in range(g):
            noise[a] -= slopes[a, i] * mean[i] / total
    for a in range(d):
        sums.noise[k, a] += total * noise[a]
        for i in range(g):
            cross = noise[a] * mean[i]
            for j in range(g):
                cross -= slopes[a, j] * second[j, i]
            sums.cross[k, a, i] += cross
        for b in range(a + 1):
            value = noise[a] * noise[b]
            for i in range(n_missing):
                value += basis[i, a] * basis[i, b]
            value *= total
            for i in range(g):
                for j in range(g):
                    value += slopes[a, i] * second[i, j] * slopes[b, j]
            sums.square[k, a, b] += value
            if b < a:
                sums.square[k, b, a] += value


@compiled
def sum_rows(
    x, weights, offsets, begin, end, machines, states, log_scales, wants_sums, log_omitted, far, sums, log_joint
):
    """Add the sums over points begin … end − 1 of x (n, d), in which gaps are NaN, to `sums`; see `dense.add_sums`.

    The density of machine k at point i is multiplied by exp(offsets[i, k]), unless `offsets` is empty.

    `log_joint` (n, K) is filled with the log of weight times density of each machine, unless it is empty. Points for
    which states outside the tables matter are left out of the sums, and marked in `far` (n,), unless that is empty:
    `log_omitted` (K,) is the log of the weight of these states, divided by the tolerance; see `numba.bound_left_out`.
    """
    log_weights, _, centre, F, mean, L = machines
    delta, log_prior, first = states.delta, states.log_prior, states.first
    n_machines, d, g = F.shape
    inverse, log_scale = np.zeros((n_machines, d, d)), np.zeros(n_machines)
    origin = mean.copy()
    for k in range(n_machines):
        invert_triangle(L[k], inverse[k])
        for a in range(d):
            log_scale[k] -= math.log(L[k, a, a])
            for i in range(g):
                origin[k, a] += F[k, a, i] * centre[k, i]
    basis, y, slopes = np.empty((n_machines, d, d)), np.empty((n_machines, d)), np.empty((n_machines, d, g))
    terms, tops, parts, peaks = np.empty(len(delta)), np.empty(n_machines), np.empty(n_machines), np.empty(n_machines)
    missing, point, known = np.empty(d, dtype=np.int64), np.empty(d), np.empty(d)
    first_moment, second_moment, plane = np.empty(g), np.empty((g, g)), np.empty((g, d))
    for row in range(begin, end):
        n_missing = 0
        for a in range(d):
            if np.isnan(x[row, a]):
                missing[n_missing] = a
                n_missing += 1
        top = -np.inf
        for k in range(n_machines):
            for i in range(n_missing):
                for a in range(d):
                    basis[k, i, a] = inverse[k, a, missing[i]]
            log_volume = _orthonormalise(basis[k], n_missing)
            peaks[k] = log_scale[k] - log_volume - 0.5 * (d - n_missing) * LOG_TWO_PI
            for a in range(d):
                point[a] = 0.0 if np.isnan(x[row, a]) else x[row, a] - origin[k, a]
            _known_part(inverse[k], point, basis[k], n_missing, y[k])
            for i in range(g):
                for a in range(d):
                    point[a] = 0.0 if np.isnan(x[row, a]) else F[k, a, i]
                _known_part(inverse[k], point, basis[k], n_missing, known)
                slopes[k, :, i] = known
            tops[k], parts[k] = -np.inf, 0.0
            for s in range(first[k], first[k + 1]):
                terms[s] = log_weights[k] + log_prior[s] + peaks[k] + (offsets[row, k] if len(offsets) else 0.0)
                terms[s] -= 0.5 * _squared_distance(y[k], slopes[k], delta[s])
                tops[k] = max(tops[k], terms[s])
            for s in range(first[k], first[k + 1]):
                terms[s] = math.exp(terms[s] - tops[k]) if tops[k] > -np.inf else 0.0
                parts[k] += terms[s]
            top = max(top, tops[k])
        total = 0.0
        for k in range(n_machines):
            total += math.exp(tops[k] - top) * parts[k] if tops[k] > -np.inf else 0.0
        log_prob = top + math.log(total)
        for k in range(n_machines if len(log_joint) else 0):
            log_joint[row, k] = tops[k] + math.log(parts[k]) if parts[k] > 0.0 else -np.inf
        for k in range(n_machines if len(far) else 0):
            bound = log_omitted[k] + peaks[k]
            if not log_prob >= bound:
                bound -= 0.5 * _distance_from_plane(y[k], slopes[k], plane)
                far[row] = far[row] or not log_prob >= bound
        if len(far) and far[row]:
            continue
        inverse_density = weights[row] * math.exp(min(-log_prob - log_scales[0], 700.0))
        sums.log_prob[0] += weights[row] * log_prob
        sums.errors[0] += inverse_density
        for k in range(n_machines):
            scale = math.exp(min(peaks[k] + log_scales[0] - log_scales[1 + k], 700.0))
            sums.errors[1 + k] += inverse_density * scale
            if wants_sums and tops[k] > top - SKIPPED:
                share = weights[row] * math.exp(tops[k] - log_prob)
                _add_point(
                    sums, k, terms[first[k] : first[k + 1]], share, delta[first[k] : first[k + 1]], y[k], slopes[k],
                    basis[k], n_missing, first_moment,
                    second_moment, known,
                )  # fmt: skip
