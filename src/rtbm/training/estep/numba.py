"""The E-step on the CPU (numba). Rows run along the inner loops, so that the compiler makes SIMD code of them.

In the coordinates y = (x − origin) @ inverse of a machine its states lie in the plane of the slopes. So a state takes
as many coordinates as there are hidden units, however many columns there are. Along a line of states, each term
follows from the last one by a multiplication. Compiled functions take the work space w (rows, width) and row numbers,
since views would cost reference counts. They have plain loops, since others take long to compile, and are called with
np.int64(0), not 0: what gets a literal is compiled for that one alone.
"""

import math

import numpy as np

from rtbm.theta.kernels import compiled, exponential, reducing

WIDTH, NARROW, MANY_STATES = 128, 32, 2048
"""Rows of a block, and of one with many states, whose temporaries have to stay in the cache. Speed only."""
FEW = 4  # rows of a block for which plain loops over the columns are faster than loops over the rows
SKIPPED = 45.0
"""States whose terms are at most exp(−SKIPPED) of the largest one, for all rows of a block, are skipped. Less than
about 37 costs digits."""
REACH = 300.0
"""Terms whose logarithms vary by more than this in a block are exponentials of their own, each relative to the largest
one of its row. Much more would leave float64."""
LOG_ROOT_TWO_PI = 0.5 * math.log(2 * math.pi)


@reducing
def dot(w, i, j, n):
    """Σ row i · row j over the first n entries."""
    total = 0.0
    for b in range(n):
        total += w[i, b] * w[j, b]
    return total


@reducing
def span(w, i, n):
    """The least and the largest of the first n entries of row i."""
    low = high = w[i, 0]
    for b in range(1, n):
        low, high = min(low, w[i, b]), max(high, w[i, b])
    return low, high


@compiled
def add(w, target, factor, source, n):
    """Row target += factor · row source."""
    if factor != 0.0:
        for b in range(n):
            w[target, b] += factor * w[source, b]


@compiled
def exp_row(w, row, top, spare, n):
    """Row `row` = exp(row `row` − row `top`). In one loop it would not become SIMD code."""
    for b in range(n):
        w[spare, b] = w[row, b] - w[top, b]
    for b in range(n):
        w[row, b] = exponential(w[spare, b])


@compiled
def project(vectors, i, others, m):
    """Take off vector i what lies along the first m of other orthonormal vectors; returns its length.

    That is 0 if nothing but rounding is left. Where much was taken off, it is done again, for orthogonality to the last
    digit.
    """
    d = vectors.shape[1]
    after = dot(vectors, i, i, d)
    smallest = 1e-29 * after
    for _ in range(4):
        before = after
        for j in range(m):
            along = 0.0
            for a in range(d):
                along += vectors[i, a] * others[j, a]
            for a in range(d):
                vectors[i, a] -= along * others[j, a]
        after = dot(vectors, i, i, d)
        if after > 0.1 * before or after <= smallest:
            break
    return math.sqrt(after) if after > smallest else 0.0


@compiled
def scale(vectors, i, factor):
    """Vector i times a factor."""
    for a in range(vectors.shape[1]):
        vectors[i, a] *= factor


@compiled
def whiten(L, F, present, inverse, slopes, basis, plane, turned):
    """How a machine sees rows of which only some entries are present (d,): inverse (d, d), and what else follows.

    Of ε, what is not known are the rows of basis (d − p, d), which span what the present rows of L take to zero, and
    are taken off. Missing rows of L do not enter: narrow ones would cost digits. The rows of plane (q, d) are
    orthonormal and span the slopes (g, d), whose coordinates there are turned (q, g). Returns −½ log det of the
    covariance of what is present.
    """
    (g, d), q, m, log_det = slopes.shape, len(plane), np.int64(0), 0.0
    for a in range(d):  # column j solves L z = e_j, or has 1 at j if that is missing; at other missing entries it is 0
        for j in range(d):
            inverse[a, j] = 0.0
        inverse[a, a] = 1.0
        if present[a]:
            for b in range(a):
                for j in range(b + 1):
                    inverse[a, j] -= L[a, b] * inverse[b, j]
            scale(inverse, a, 1 / L[a, a])
            log_det -= math.log(L[a, a])
    for j in range(d):
        for a in range(j):
            inverse[a, j], inverse[j, a] = inverse[j, a], inverse[a, j]
    for j in range(d):
        if not present[j]:
            for a in range(d):
                basis[m, a] = inverse[j, a]
                inverse[j, a] = 0.0
            length = project(basis, m, basis, m)
            log_det -= math.log(length)
            scale(basis, m, 1 / length)
            m += 1
    for b in range(g):
        for a in range(d):
            slopes[b, a] = 0.0
    for j in range(d):
        if present[j]:
            if m:
                project(inverse, j, basis, m)
            for b in range(g):
                for a in range(d):
                    slopes[b, a] += inverse[j, a] * F[j, b]
    for i in range(q):
        for a in range(d):
            plane[i, a] = slopes[i, a] if q < d else 1.0 if a == i else 0.0
        if q < d:
            length = project(plane, i, plane, i)
            scale(plane, i, 1 / length if length > 0.0 else 0.0)
        for b in range(g):
            turned[i, b] = 0.0
            for a in range(d):
                turned[i, b] += plane[i, a] * slopes[b, a]
    return log_det


@compiled
def locate(w, inverse, origin, plane, x, y, along, base, spare, n):
    """Rows `along` (q): the coordinates of y in the plane; rows y (d): what is across it. Row base −= ½ its square."""
    q, d = plane.shape
    for j in range(d):
        for b in range(n):
            w[spare + j, b] = w[x + j, b] - origin[j]
    for i in range(d):
        for b in range(n):
            w[y + i, b] = inverse[0, i] * w[spare, b]
        for j in range(1, d if n > FEW else 1):
            add(w, y + i, inverse[j, i], spare + j, n)
    for b in range(n if n <= FEW else 0):
        for j in range(1, d):
            for i in range(d):
                w[y + i, b] += inverse[j, i] * w[spare + j, b]
    for i in range(q):
        for b in range(n):
            w[along + i, b] = plane[i, 0] * w[y, b]
        for j in range(1, d):
            add(w, along + i, plane[i, j], y + j, n)
    for j in range(d if d > q else 0):
        for i in range(q):
            add(w, y + j, -plane[i, j], along + i, n)
        for b in range(n):
            w[base, b] -= 0.5 * w[y + j, b] * w[y + j, b]


@compiled
def find_active(w, bias, centres, first, along, base, n, boxes, spans, active):
    """List the states that matter for some row of a block, machine by machine; those of machine k end at active[S + k].

    A term is largest at the nearest point of the box (q, 2) that holds all rows, and smallest at its furthest corner:
    spans (S, 2). Returns the state whose least term is largest.
    """
    K, (S, q), best = len(first) - 1, centres.shape, 0
    for k in range(K):
        least, most = span(w, base + k, n)
        for i in range(q):
            boxes[k, i, 0], boxes[k, i, 1] = span(w, along + k * q + i, n)
        for s in range(first[k], first[k + 1]):
            spans[s, 0], spans[s, 1] = bias[s] + least, bias[s] + most
            for i in range(q):
                below, above = centres[s, i] - boxes[k, i, 0], boxes[k, i, 1] - centres[s, i]
                spans[s, 0] -= 0.5 * max(below, above) ** 2
                spans[s, 1] -= 0.5 * max(0.0, max(-below, -above)) ** 2
            if spans[s, 0] > spans[best, 0]:
                best = s
    count = 0
    for k in range(K):
        for s in range(first[k], first[k + 1]):
            if spans[s, 1] >= spans[best, 0] - SKIPPED:
                active[count] = s
                count += 1
        active[S + k] = count
    return best


@compiled
def log_term(w, bias, centres, s, along, base, row, n):
    """Row `row` = log of weight times P(h) times density of the state s."""
    for b in range(n):
        w[row, b] = bias[s] + w[base, b]
    for i in range(centres.shape[1]):
        for b in range(n):
            difference = w[along + i, b] - centres[s, i]
            w[row, b] -= 0.5 * difference * difference


@compiled
def fill_terms(
    w, bias, centres, turned, follows, active, begin, end, box, spans, by_line, along, base, top, own, zeros, terms, n
):
    """Rows terms + a = the terms of the active states of a machine, relative to row top; row own is their sum.

    by_line allows that a state which follows the last one on a line of states takes its term, times exp(slope · y) and
    a number.
    """
    q, step, spare, has_step = centres.shape[1], zeros + 1, zeros + 2, False
    for b in range(n):
        w[own, b] = 0.0
    for a in range(begin, end):
        s, row = active[a], terms + a
        if (
            by_line
            and follows[s]
            and a > begin
            and active[a - 1] == s - 1
            and spans[s - 1, 1] - spans[s - 1, 0] < REACH
        ):
            change = bias[s] - bias[s - 1]
            for i in range(q):
                middle = 0.5 * (box[i, 0] + box[i, 1])
                change -= turned[i, 0] * (0.5 * (centres[s, i] + centres[s - 1, i]) - middle)
            if not has_step:
                for b in range(n):
                    w[step, b] = 0.0
                for i in range(q):
                    for b in range(n):
                        w[step, b] += turned[i, 0] * (w[along + i, b] - 0.5 * (box[i, 0] + box[i, 1]))
                exp_row(w, step, zeros, spare, n)
                has_step = True
            factor = math.exp(change)
            for b in range(n):
                w[row, b] = factor * w[step, b] * w[row - 1, b]
        else:
            log_term(w, bias, centres, s, along, base, row, n)
            exp_row(w, row, top, spare, n)
        add(w, own, 1.0, row, n)


@reducing
def accumulate(w, delta, centres, active, begin, end, terms, weight, y, along, spare, n, counts, across, within):
    """Add a block's part of the sums of a machine: within the plane (q, q + g + 1), and across it (d, d + q + g + 1).

    Row terms + i has the term of state active[i], and row weight the weights of the rows over their densities.
    """
    d, q, g = len(across), centres.shape[1], delta.shape[1]
    means, own, part = spare, spare + q + g, spare + q + g + 1
    for i in range(q + g + 1 if d > q else 0):
        for b in range(n):
            w[means + i, b] = 0.0
    for a in range(begin, end):
        s, row, count = active[a], terms + a, 0.0
        for b in range(n):
            w[row, b] *= w[weight, b]
            count += w[row, b]
        counts[s] += count
        for i in range(q):
            moment, square, centre = 0.0, 0.0, centres[s, i]
            for b in range(n):
                difference = w[along + i, b] - centre
                moment += w[row, b] * difference
                square += w[row, b] * difference * difference
            within[i, i] += square
            for j in range(i):
                mixed, other = 0.0, centres[s, j]
                for b in range(n):
                    mixed += w[row, b] * (w[along + i, b] - centre) * (w[along + j, b] - other)
                within[i, j] += mixed
            for j in range(g):
                within[i, q + j] += moment * delta[s, j]
            within[i, q + g] += moment
            for b in range(n if d > q else 0):
                w[means + i, b] += w[row, b] * (w[along + i, b] - centre)
        for j in range(g if d > q else 0):
            add(w, means + q + j, delta[s, j], row, n)
        if d > q:
            add(w, own, 1.0, row, n)
    for i in range(d if d > q else 0):
        for b in range(n):
            w[part, b] = w[y + i, b] * w[own, b]
        for j in range(i + 1):
            across[i, j] += dot(w, part, y + j, n)
        for j in range(q + g + 1):
            across[i, d + j] += dot(w, y + i, means + j, n)


@compiled
def combine(within, across, plane, basis, n_missing, share, noise, cross, square):
    """Add the sums of a segment, in the plane and across it, and what is not known of ε, to those of all rows.

    Of `square`, only the lower triangle is added to.
    """
    (q, d), g = plane.shape, cross.shape[1]
    for a in range(d):
        noise[a] += across[a, d + q + g]
        for j in range(g):
            cross[a, j] += across[a, d + q + j]
        for c in range(a + 1):
            square[a, c] += across[a, c]
        for i in range(q):
            half = across[a, d + i]
            noise[a] += plane[i, a] * within[i, q + g]
            for j in range(g):
                cross[a, j] += plane[i, a] * within[i, q + j]
            for j in range(q):
                half += plane[j, a] * within[max(i, j), min(i, j)]
            for c in range(a + 1):
                square[a, c] += half * plane[i, c] + plane[i, a] * across[c, d + i]
        for i in range(n_missing):
            value = share * basis[i, a]
            for c in range(a + 1):
                square[a, c] += value * basis[i, c]


@compiled
def sum_rows(
    x, weights, offsets, segments, present, machines, origin, states, log_far, wants_sums, far, log_joint,
    value, counts, noise, cross, square,
):  # fmt: skip
    """Add the sums over rows of x (n, d), in which missing entries are 0.

    A segment is (begin, end, pattern): rows of which the entries present[pattern] (d,) are given. The density of
    machine k at row i is multiplied by exp(offsets[i, k]), unless `offsets` is empty. The sums are value (1,), Σ w log
    P, counts (S,) of the states, and noise, cross and square as in `Sums`. Without `wants_sums`,
    only the first one is made.

    `far` (n,) marks rows for which states that are not listed may matter, by the bound log_far (K,) on what they add.
    They are left out of the sums. `log_joint` (n, K), the log of weight times density of each machine, is filled in
    unless it is empty.
    """
    delta, log_prior, first = states.delta, states.log_prior, states.first
    (K, d, g), S = machines.F.shape, len(delta)
    q = min(d, g)
    inverse, slopes, basis = np.empty((K, d, d)), np.empty((K, g, d)), np.empty((K, d + 1, d))
    plane, turned, log_peak = np.empty((K, q, d)), np.empty((K, q, g)), np.empty(K)
    bias, centres, spans, boxes = np.empty(S), np.empty((S, q)), np.empty((S, 2)), np.empty((K, q, 2))
    active, follows = np.empty(S + K, dtype=np.int64), np.zeros(S, dtype=np.bool_)
    for k in range(K):
        for s in range(first[k] + 1, first[k + 1] if g else 0):
            follows[s] = delta[s, 0] > delta[s - 1, 0]
            for j in range(1, g):
                follows[s] = follows[s] and delta[s, j] == delta[s - 1, j]
    X, Y, ALONG = 0, d, d + K * d
    BASE = ALONG + K * q
    OWN = BASE + K
    TOP, WEIGHT, ZEROS, SPARE = OWN + K, OWN + K + 1, OWN + K + 2, OWN + K + 3
    TERMS = SPARE + d + q + g + 3
    width = WIDTH if S <= MANY_STATES else NARROW
    w = np.zeros((TERMS + S, width))
    for t in range(len(segments)):
        begin, end, given = segments[t, 0], segments[t, 1], present[segments[t, 2]]
        m = np.int64(0)
        for i in range(d):
            m += not given[i]
        for k in range(K):
            log_det = whiten(machines.L[k], machines.F[k], given, inverse[k], slopes[k], basis[k], plane[k], turned[k])
            log_peak[k] = log_det - (d - m) * LOG_ROOT_TWO_PI
            for s in range(first[k], first[k + 1]):
                bias[s] = machines.log_weights[k] + log_prior[s] + log_peak[k]
                for i in range(q):
                    centres[s, i] = 0.0
                    for j in range(g):
                        centres[s, i] += turned[k, i, j] * delta[s, j]
        within, across, shares = np.zeros((K, q, q + g + 1)), np.zeros((K, d, d + q + g + 1)), np.zeros(K)
        for start in range(begin, end, width):
            n = min(width, end - start)
            for i in range(d):
                for b in range(n):
                    w[X + i, b] = x[start + b, i]
            for k in range(K):
                for b in range(n):
                    w[BASE + k, b] = offsets[start + b, k] if len(offsets) else 0.0
                locate(w, inverse[k], origin[k], plane[k], X, Y + k * d, ALONG + k * q, BASE + k, SPARE, n)
            best, owner, highest = (
                find_active(w, bias, centres, first, ALONG, BASE, n, boxes, spans, active),
                0,
                -np.inf,
            )
            for s in range(S):
                highest = max(highest, spans[s, 1])
            while first[owner + 1] <= best:
                owner += 1
            log_term(w, bias, centres, best, ALONG + owner * q, BASE + owner, TOP, n)
            by_line = highest - spans[best, 0] < REACH
            for k in range(K if not by_line else 0):  # the largest term of each row
                for a in range(active[S + k - 1] if k else 0, active[S + k]):
                    log_term(w, bias, centres, active[a], ALONG + k * q, BASE + k, SPARE, n)
                    for b in range(n):
                        w[TOP, b] = max(w[TOP, b], w[SPARE, b])
            for b in range(n):
                w[WEIGHT, b] = 0.0
            for k in range(K):
                fill_terms(
                    w, bias, centres, turned[k], follows, active, active[S + k - 1] if k else 0, active[S + k],
                    boxes[k], spans, by_line, ALONG + k * q, BASE + k, TOP, OWN + k, ZEROS, TERMS, n,
                )  # fmt: skip
                add(w, WEIGHT, 1.0, OWN + k, n)
            for b in range(n):
                total, row, bound = w[WEIGHT, b], start + b, -np.inf
                log_prob = w[TOP, b] + math.log(total)
                for k in range(K):
                    bound = max(bound, log_far[k] + log_peak[k] + w[BASE + k, b])
                for k in range(K if len(log_joint) else 0):
                    log_joint[row, k] = w[TOP, b] + math.log(w[OWN + k, b]) if w[OWN + k, b] > 0.0 else -np.inf
                far[row] = not log_prob >= bound
                value[0] += 0.0 if far[row] else weights[row] * log_prob
                w[WEIGHT, b] = 0.0 if far[row] else weights[row] / total
            for k in range(K if wants_sums else 0):
                accumulate(
                    w, delta, centres, active, active[S + k - 1] if k else 0, active[S + k], TERMS, WEIGHT, Y + k * d,
                    ALONG + k * q, SPARE, n, counts, across[k], within[k],
                )  # fmt: skip
                shares[k] += dot(w, OWN + k, WEIGHT, n)
        for k in range(K if wants_sums else 0):
            combine(within[k], across[k], plane[k], basis[k], m, shares[k], noise[k], cross[k], square[k])
    for k in range(K):
        for a in range(d):
            for c in range(a):
                square[k, c, a] = square[k, a, c]
