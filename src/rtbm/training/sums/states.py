"""Hidden states of dense machines: which of them matter, found by search in the lattice (compiled)."""

import math

import numpy as np

from rtbm.theta.kernels import compiled
from rtbm.training.sums.dense import States
from rtbm.training.sums.enumeration import squared_radius, walk

LARGEST_CENTRE = 1e9
"""Further out, differences of hidden states would lose digits: theta functions take over."""
FAR_TAIL = -23.0
"""Log of what a list of states for a point far out omits, relative to its largest term. A larger value costs digits."""
NEGLIGIBLE_SHARE = 1e-20
"""Machines with a smaller share in the density of a point far out are left out of its sums: no digit would change."""


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
def _list_near(L, centre, radius2, delta):
    """Fill `delta` with all h − centre for which |Lᵀδ|² ≤ radius2; returns their number, or −1 if there is no room."""
    found = walk(np.ascontiguousarray(L.T), centre, np.zeros(len(L)), np.int64(0), radius2, len(delta), delta)
    if found > len(delta):
        return -1
    for s in range(found):
        for i in range(len(L)):
            delta[s, i] -= centre[i]
    return found


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
def tabulate(machines, allowed, limit):
    """The states that matter, at most `limit` for each machine: see `States`, empty if they are too many.

    `allowed` (K,) is the logarithm of what may be left out of Σ exp(−½|L_Aᵀδ|²), relative to the largest term. An
    ellipsoid holds all but half of that. Of its states, those with the smallest weights are dropped. It is not looked
    at if its volume promises far too many.
    """
    L_A, centre = machines.L_A, machines.centre
    n_machines, g = centre.shape
    first, log_left_out = np.zeros(n_machines + 1, dtype=np.int64), np.empty(n_machines)
    none = States(np.empty((0, g)), np.empty(0), first, log_left_out, np.empty((0, g)), np.empty((0, g, g)))
    buffer, weights = np.empty((4 * limit, g)), np.empty(4 * limit)
    delta, log_prior = np.empty((n_machines * limit, g)), np.empty(n_machines * limit)
    mean, second = np.zeros((n_machines, g)), np.zeros((n_machines, g, g))
    norms = np.empty(g)
    for k in range(n_machines):
        for i in range(g):
            if not (abs(centre[k, i]) < LARGEST_CENTRE and L_A[k, i, i] > 0):
                return none
            norms[i] = L_A[k, i, i] ** 2
        log_left_out[k] = allowed[k] - 0.5 * _closest(L_A[k], centre[k])
        radius2 = squared_radius(norms, log_left_out[k] - math.log(2.0))
        log_volume = 0.5 * g * math.log(math.pi * radius2) - math.lgamma(0.5 * g + 1)
        for i in range(g):
            log_volume -= math.log(L_A[k, i, i])
        if not log_volume < math.log(64.0 * limit):
            return none
        found = _list_near(L_A[k], centre[k], radius2, buffer)
        if found < 1:
            return none
        top, total = -np.inf, 0.0
        for s in range(found):
            weights[s] = _log_weight(L_A[k], buffer[s])
            top = max(top, weights[s])
        dropped = log_left_out[k] - math.log(2.0)
        least, high = dropped - 50.0 - math.log(found), dropped
        for _ in range(12):  # by bisection, almost the largest threshold below which weights have a sum of exp(dropped)
            middle, below = 0.5 * (least + high), 0.0
            for s in range(found):
                if weights[s] < middle:
                    below += math.exp(weights[s] - dropped)
            if below <= 1.0:
                least = middle
            else:
                high = middle
        end = first[k]
        for s in range(found):
            if weights[s] >= least:
                if end - first[k] == limit:
                    return none
                for i in range(g):
                    delta[end, i] = buffer[s, i]
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
    return States(delta[: first[-1]].copy(), log_prior[: first[-1]].copy(), first, log_left_out, mean, second)


@compiled
def sum_far(weights, offsets, y, shift, roots, machines, states, view, wants_sums, limit, sums, log_joint):
    """Add the sums of `sum_chunks` over points that are too far out for the tables; False if they take too long.

    P(h|y) is a discrete Gaussian around centre + shift (K, n, g), with roots (K, g, g) of its form A + GᵀG, G = slopes.
    For every point y (K, n, p), states are listed around there until less than exp(FAR_TAIL) of the largest term is
    left out.
    """
    L_A, centre, slopes = machines.L_A, machines.centre, view.slopes
    (n_machines, n, p), g = y.shape, centre.shape[1]
    middle, norms, near, logs = np.empty(g), np.empty(g), np.empty((limit, g)), np.empty(limit)
    ends = np.zeros(n_machines + 1, dtype=np.int64)
    for row in range(n):
        top = -np.inf
        for k in range(n_machines):
            for i in range(g):
                middle[i] = centre[k, i] + shift[k, row, i]
                norms[i] = roots[k, i, i] ** 2
                if not abs(middle[i]) < LARGEST_CENTRE:
                    return False
            log_tail = FAR_TAIL - 0.5 * _closest(roots[k], middle)
            found = _list_near(roots[k], middle, squared_radius(norms, log_tail), near[ends[k] :])
            if found < 1:
                return False
            ends[k + 1] = ends[k] + found
            s = states.first[k]
            log_factor = states.log_prior[s] - _log_weight(L_A[k], states.delta[s])
            log_factor += machines.log_weights[k] + view.log_peak[k] + (offsets[row, k] if len(offsets) else 0.0)
            for s in range(ends[k], ends[k + 1]):
                for i in range(g):
                    near[s, i] += shift[k, row, i]
                logs[s] = log_factor + _log_weight(L_A[k], near[s])
                for j in range(p):
                    noise = y[k, row, j]
                    for i in range(g):
                        noise -= slopes[k, j, i] * near[s, i]
                    logs[s] -= 0.5 * noise * noise
                top = max(top, logs[s])
        total = 0.0
        for s in range(ends[n_machines]):
            total += math.exp(logs[s] - top)
        log_prob = top + math.log(total)
        sums.log_prob[0] += weights[row] * log_prob
        for k in range(n_machines):
            own = 0.0
            for s in range(ends[k], ends[k + 1]):
                logs[s] = math.exp(logs[s] - log_prob)
                own += logs[s]
            if wants_sums and own > NEGLIGIBLE_SHARE:
                for s in range(ends[k], ends[k + 1]):
                    share = weights[row] * logs[s]
                    sums.shares[k] += share
                    for i in range(g):
                        sums.first[k, i] += share * near[s, i]
                        for j in range(g):
                            sums.second[k, i, j] += share * near[s, i] * near[s, j]
                        for j in range(p):
                            sums.cross[k, j, i] += share * y[k, row, j] * near[s, i]
                for i in range(p if n_machines > 1 else 0):
                    part = weights[row] * own * y[k, row, i]
                    sums.noise[k, i] += part
                    for j in range(p):
                        sums.square[k, i, j] += part * y[k, row, j]
            if len(log_joint):
                log_joint[row, k] = log_prob + math.log(own) if own > 0 else -np.inf
    return True
