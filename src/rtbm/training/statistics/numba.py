"""The pass over the points on the CPU (numba). Points run along the inner loops, so that the compiler makes SIMD code.

A state of a machine contributes exp(bias − ½|y − centre|²) to the density of a point y in the machine's coordinates.
Relative to the best state of a block of points, the exponent of every other state is an integer combination of g linear
functions of y. So g exponentials a point give all terms of a machine, by multiplications.
"""

import math

import numpy as np

from rtbm.theta.kernels import compiled
from rtbm.training.statistics.dense import invert_triangle
from rtbm.training.statistics.rows import (
    add_row,
    add_scaled_row,
    dot_rows,
    dot_two_rows,
    exp_row,
    fill_row,
    largest_of_row,
    least_of_row,
    log_row,
    multiply_rows,
    sum_row,
    whiten_rows,
)

CHUNK = 2**14
"""Points with sums of their own. The result does not depend on how many threads share the chunks."""
WIDTHS = ((256, 256), (2048, 64))
"""Points in a block for tables of at most so many states, such that temporaries stay in the cache; else NARROW."""
NARROW = 32
LOG_TWO_PI = math.log(2 * math.pi)
SKIPPED = 45.0
"""States whose terms are at most exp(−SKIPPED) of the largest one, for all points of a block, are skipped."""
REACH = 250.0
"""Terms are products of powers as long as no exponent exceeds this, and single exponentials beyond."""


@compiled
def order_by_cells(points, low, scale, n_cells):
    """The rows of points (n, p) in the order of cells, by counting: strips of the first feature, then of the second.

    Strip i of a feature is where its scale (x − low) is between i and i + 1; the first and last strips reach on.
    """
    n, size = len(points), n_cells ** len(low)
    cells, first = np.empty(n, dtype=np.int32), np.zeros(size + 1, dtype=np.int64)
    for i in range(n):
        cell = 0
        for j in range(len(low)):
            place = min(max((points[i, j] - low[j]) * scale[j], 0.0), n_cells - 1.0)
            cell = cell * n_cells + int(place)
        cells[i] = cell
        first[cell + 1] += 1
    for c in range(size):
        first[c + 1] += first[c]
    order = np.empty(n, dtype=np.int64)
    for i in range(n):
        order[first[cells[i]]] = i
        first[cells[i]] += 1
    return order


@compiled
def width_for(n_states):
    """The number of points in a block."""
    for most, width in WIDTHS:
        if n_states <= most:
            return width
    return NARROW


@compiled
def _log_term(w, bias, centres, s, y, p, target):
    """Row target = bias_s − ½|y − centre_s|²."""
    for b in range(w.shape[1]):
        difference = w[y, b] - centres[s, 0]
        w[target, b] = bias[s] - 0.5 * difference * difference
    for i in range(1, p):
        for b in range(w.shape[1]):
            difference = w[y + i, b] - centres[s, i]
            w[target, b] -= 0.5 * difference * difference


@compiled
def _find_box(w, y, p, box):
    """The least and the largest of each coordinate in a block."""
    for i in range(p):
        box[0, i] = least_of_row(w, y + i)
        box[1, i] = largest_of_row(w, y + i)


@compiled
def _find_active(bias, centres, first, boxes, highest, active):
    """Fill `active` with the states that matter for some point of a block, machine by machine.

    In the box that holds all y of a machine, a term is at least its value at the furthest corner, and at most that at
    the nearest point. `highest` (S,) is work space; active[S + k] is the number of active states of machine k.
    """
    n_machines, n_states, p = len(first) - 1, len(bias), centres.shape[1]
    bound = -np.inf
    for k in range(n_machines):
        for s in range(first[k], first[k + 1]):
            near, far = 0.0, 0.0
            for i in range(p):
                below, above = centres[s, i] - boxes[k, 0, i], boxes[k, 1, i] - centres[s, i]
                outside = max(0.0, max(-below, -above))
                near += outside * outside
                corner = max(below, above)
                far += corner * corner
            highest[s] = bias[s] - 0.5 * near
            bound = max(bound, bias[s] - 0.5 * far)
    count = 0
    for k in range(n_machines):
        before = count
        for s in range(first[k], first[k + 1]):
            if highest[s] >= bound - SKIPPED:
                active[count] = s
                count += 1
        active[n_states + k] = count - before


@compiled
def _best_state(bias, centres, active, begin, end, box, levels):
    """The active state with the largest term in the middle of the box; levels[a] becomes the log of each term."""
    best, top = active[begin], -np.inf
    for a in range(begin, end):
        s = active[a]
        level = bias[s]
        for i in range(centres.shape[1]):
            difference = 0.5 * (box[0, i] + box[1, i]) - centres[s, i]
            level -= 0.5 * difference * difference
        levels[a] = level
        if level > top:
            best, top = s, level
    return best, top


@compiled
def _find_spans(delta, slopes, k, active, begin, end, best, box, spans):
    """The range of h_j − best_j over the active states, into `spans` (2, g); returns the largest exponent."""
    p, g = slopes.shape[1:]
    reach = 0.0
    for j in range(g):
        low, high = 0, 0
        for a in range(begin, end):
            step = int(np.rint(delta[active[a], j] - delta[best, j]))
            low, high = min(low, step), max(high, step)
        spans[0, j] = low
        spans[1, j] = high
        slope = 0.0
        for i in range(p):
            slope += abs(slopes[k, i, j]) * 0.5 * (box[1, i] - box[0, i])
        reach += max(-low, high) * slope
    return reach


@compiled
def _tabulate_powers(w, bits, slopes, k, box, spans, y, spare, powers, shifted, mantissa):
    """For each unit, rows exp(m u_j) for m in its span, u_j = Σ_i slopes_ij (y_i − the middle of the box)."""
    p, g = slopes.shape[1:]
    at = powers
    for j in range(g):
        low, high = spans[0, j], spans[1, j]
        zero = at - low
        fill_row(w, zero, 1.0)
        if low < high:
            fill_row(w, spare, 0.0)
            for i in range(p):
                middle, slope = 0.5 * (box[0, i] + box[1, i]), slopes[k, i, j]
                for b in range(w.shape[1]):
                    w[spare, b] += slope * (w[y + i, b] - middle)
            if high > 0:
                exp_row(w, bits, spare, zero + 1, shifted, mantissa)
                for m in range(2, high + 1):
                    multiply_rows(w, zero + m, zero + m - 1, zero + 1)
            if low < 0:
                if high > 0:
                    for b in range(w.shape[1]):
                        w[zero - 1, b] = 1.0 / w[zero + 1, b]
                else:
                    for b in range(w.shape[1]):
                        w[spare, b] = -w[spare, b]
                    exp_row(w, bits, spare, zero - 1, shifted, mantissa)
                for m in range(2, -low + 1):
                    multiply_rows(w, zero - m, zero - m + 1, zero - 1)
        at += high - low + 1


@compiled
def _multiply_powers(w, delta, active, begin, end, best, levels, top, spans, powers, prefix, terms, total):
    """Rows terms + a = products of powers, relative to the term of the best state; row total is their sum.

    Row prefix + j is the product over units j, …, g − 1. It stays the same while the units before vary.
    """
    g = delta.shape[1]
    fill_row(w, total, 0.0)
    for a in range(begin, end):
        s = active[a]
        changed = g - 1  # the last unit that differs from the state before
        if a > begin:
            while changed > 0 and delta[s, changed] == delta[active[a - 1], changed]:
                changed -= 1
        at = powers
        for j in range(g):
            at += spans[1, j] - spans[0, j] + 1
        for j in range(g - 1, 0, -1):
            at -= spans[1, j] - spans[0, j] + 1
            if j <= changed:
                row = at + int(np.rint(delta[s, j] - delta[best, j])) - spans[0, j]
                if j == g - 1:
                    for b in range(w.shape[1]):
                        w[prefix + j, b] = w[row, b]
                else:
                    multiply_rows(w, prefix + j, prefix + j + 1, row)
        row, constant = powers + int(np.rint(delta[s, 0] - delta[best, 0])) - spans[0, 0], np.exp(levels[a] - top)
        if g == 1:
            for b in range(w.shape[1]):
                value = constant * w[row, b]
                w[terms + a, b] = value
                w[total, b] += value
        else:
            for b in range(w.shape[1]):
                value = constant * (w[prefix + 1, b] * w[row, b])
                w[terms + a, b] = value
                w[total, b] += value


@compiled
def _exponentiate(w, bits, bias, centres, active, begin, end, p, y, common, spare, terms, total, shifted, mantissa):
    """The same by an exponential for each state; row `common` becomes the largest exponent."""
    fill_row(w, common, -np.inf)
    fill_row(w, total, 0.0)
    for a in range(begin, end):
        _log_term(w, bias, centres, active[a], y, p, terms + a)
        for b in range(w.shape[1]):
            w[common, b] = max(w[common, b], w[terms + a, b])
    for a in range(begin, end):
        for b in range(w.shape[1]):
            w[spare, b] = w[terms + a, b] - w[common, b]
        exp_row(w, bits, spare, terms + a, shifted, mantissa)
        add_row(w, total, terms + a)


@compiled
def _accumulate(w, sums, at, counts, delta, active, begin, end, p, y, terms, share, total, spare, means, is_mixture):
    """Add a block's part of the sums of a machine to counts (S,) and to sums[at:]: Σ y, Σ y E(δ|y)ᵀ and Σ y yᵀ."""
    g = delta.shape[1]
    for i in range(p):
        multiply_rows(w, spare + i, y + i, share)
    if p <= g:  # Σ y of each state
        for a in range(begin, end):
            s = active[a]
            count, moment = dot_two_rows(w, terms + a, share, spare)
            counts[s] += count
            for j in range(g):
                sums[at + p + j] += moment * delta[s, j]
            for i in range(1, p):
                moment = dot_rows(w, terms + a, spare + i)
                for j in range(g):
                    sums[at + p + i * g + j] += moment * delta[s, j]
    else:  # E(δ|y) of each point
        for j in range(g):
            fill_row(w, means + j, 0.0)
        for a in range(begin, end):
            s = active[a]
            counts[s] += dot_rows(w, terms + a, share)
            for j in range(g):
                add_scaled_row(w, means + j, delta[s, j], terms + a)
        for i in range(p):
            for j in range(g):
                sums[at + p + i * g + j] += dot_rows(w, spare + i, means + j)
    if is_mixture:
        square = at + p + p * g
        for i in range(p):
            multiply_rows(w, spare + i, spare + i, total)
            sums[at + i] += sum_row(w, spare + i)
            for j in range(i + 1):
                sums[square + i * p + j] += dot_rows(w, spare + i, y + j)


@compiled
def _finish_chunk(sums, counts, delta, first, p):
    """Counts of states to Σ 1, Σ δ and Σ δδᵀ of each machine; Σ y yᵀ becomes symmetric."""
    g = delta.shape[1]
    size = 1 + g + g * g + p + p * g + p * p
    for k in range(len(first) - 1):
        at = 2 + k * size
        for s in range(first[k], first[k + 1]):
            sums[at] += counts[s]
            for i in range(g):
                sums[at + 1 + i] += counts[s] * delta[s, i]
                for j in range(g):
                    sums[at + 1 + g + i * g + j] += counts[s] * delta[s, i] * delta[s, j]
        square = at + 1 + g + g * g + p + p * g
        for i in range(p):
            for j in range(i):
                sums[square + j * p + i] = sums[square + i * p + j]


@compiled
def sum_chunks(
    x, weights, begin, end, width, inverse, origin, slopes, bias, centres, delta, first, log_scale, wants_sums, lowest,
    far, out, log_joint,
):  # fmt: skip
    """The sums over chunks begin … end − 1 of points x (n, p) with weights (n,), into rows of `out`.

    A row holds Σ w log P, a bound on Σ w exp(−log P − log_scale), and for each machine, with w times the probability
    that the point comes from it: Σ 1, Σ δ (g,), Σ δδᵀ (g, g), Σ y (p,), Σ yδᵀ (p, g), Σ yyᵀ (p, p), where δ stands for
    its expectation given y.
    Σ y and Σ yyᵀ are left 0 if there is only one machine.

    Parameters
    ----------
    width : int
        Points in a block; see `width_for`.
    inverse, origin : (K, p, p), (K, p)
        Machine k sees a point as y = inverse_k (x − origin_k).
    slopes : (K, p, g)
        inverse_k F_k.
    bias, centres, delta : (S,), (S, p), (S, g)
        State s has log P(x, s) = bias_s − ½|y − centres_s|², and is delta_s away from the centre of P(h).
    first : (K + 1,)
        The first state of each machine, and S.
    log_scale : float
        See above.
    wants_sums : bool
        Whether more than the first two sums are wanted.
    lowest, far : float, (n,) or (0,)
        Points with a lower log P are left out of all sums, and marked in `far`, unless that is empty.
    log_joint : (n, K), (n, 1) or (0, 0)
        log P of each point, and for K columns that of the point and its machine, is written to it.
    """
    n, p = x.shape
    n_machines, n_states, g = len(first) - 1, len(bias), delta.shape[1]
    size = 1 + g + g * g + p + p * g + p * p
    n_powers = 0
    for j in range(g):
        span = 0.0
        for k in range(n_machines):
            low, high = np.inf, -np.inf
            for s in range(first[k], first[k + 1]):
                low, high = min(low, delta[s, j]), max(high, delta[s, j])
            span = max(span, high - low)
        n_powers += int(np.rint(span)) + 1
    # rows of the work space
    X, SPARE, Y = 0, p, 2 * p
    MEANS = Y + n_machines * p
    COMMON = MEANS + g
    PARTS = COMMON + n_machines
    TOP = PARTS + n_machines
    TOTAL, SHARE, WEIGHT, SHIFTED, MANTISSA, POWERS = TOP + 1, TOP + 2, TOP + 3, TOP + 4, TOP + 5, TOP + 6
    PREFIX = POWERS + n_powers
    TERMS = PREFIX + g
    w = np.zeros((TERMS + n_states, width))
    bits = w.view(np.int64)
    counts, highest = np.zeros(n_states), np.empty(n_states)
    boxes, spans = np.empty((n_machines, 2, p)), np.empty((2, g), dtype=np.int64)
    active = np.empty(n_states + n_machines, dtype=np.int64)
    for chunk in range(begin, end):
        sums = out[chunk]
        counts[:] = 0.0
        for start in range(chunk * CHUNK, min(n, (chunk + 1) * CHUNK), width):
            count = min(width, n - start)
            for b in range(w.shape[1]):
                row = start + b if b < count else start
                for i in range(p):
                    w[X + i, b] = x[row, i]
                w[WEIGHT, b] = weights[row] if b < count else 0.0
            for k in range(n_machines):
                whiten_rows(w, inverse, origin, k, p, X, SPARE, Y + k * p)
                _find_box(w, Y + k * p, p, boxes[k])
            _find_active(bias, centres, first, boxes, highest, active)
            fill_row(w, TOP, -np.inf)
            position = 0
            for k in range(n_machines):
                begin_k, y = position, Y + k * p
                position += active[n_states + k]
                if position == begin_k:
                    continue
                best, top = _best_state(bias, centres, active, begin_k, position, boxes[k], highest)
                if _find_spans(delta, slopes, k, active, begin_k, position, best, boxes[k], spans) < REACH:
                    _log_term(w, bias, centres, best, y, p, COMMON + k)
                    _tabulate_powers(w, bits, slopes, k, boxes[k], spans, y, SPARE, POWERS, SHIFTED, MANTISSA)
                    _multiply_powers(
                        w, delta, active, begin_k, position, best, highest, top, spans, POWERS, PREFIX, TERMS, PARTS + k
                    )
                else:
                    _exponentiate(
                        w, bits, bias, centres, active, begin_k, position, p, y, COMMON + k, SPARE, TERMS, PARTS + k,
                        SHIFTED, MANTISSA,
                    )  # fmt: skip
                for b in range(w.shape[1]):
                    w[TOP, b] = max(w[TOP, b], w[COMMON + k, b])
            fill_row(w, TOTAL, 0.0)
            for k in range(n_machines):
                if active[n_states + k] == 0:
                    continue
                if n_machines > 1:  # row COMMON + k becomes the machine's factor
                    for b in range(w.shape[1]):
                        w[SPARE, b] = w[COMMON + k, b] - w[TOP, b]
                    exp_row(w, bits, SPARE, COMMON + k, SHIFTED, MANTISSA)
                    for b in range(w.shape[1]):
                        w[TOTAL, b] += w[COMMON + k, b] * w[PARTS + k, b]
                else:
                    add_row(w, TOTAL, PARTS)
            log_row(w, bits, TOTAL, SPARE, SHIFTED)
            add_row(w, SPARE, TOP)  # log P
            for b in range(count if len(far) else 0):
                if not w[SPARE, b] >= lowest:
                    far[start + b] = True
                    w[WEIGHT, b] = 0.0
            weight = sum_row(w, WEIGHT)
            sums[0] += dot_rows(w, WEIGHT, SPARE)
            sums[1] += weight * np.exp(min(-least_of_row(w, SPARE) - log_scale, 700.0))
            for b in range(count if len(log_joint) else 0):
                if log_joint.shape[1] == 1:
                    log_joint[start + b, 0] = w[SPARE, b]
                for k in range(n_machines if log_joint.shape[1] > 1 else 0):
                    part = w[COMMON + k, b] * w[PARTS + k, b] if active[n_states + k] > 0 else 0.0
                    log_joint[start + b, k] = w[TOP, b] + np.log(part) if part > 0.0 else -np.inf
            if not wants_sums:
                continue
            for b in range(w.shape[1]):
                w[TOP, b] = w[WEIGHT, b] / w[TOTAL, b]
            position = 0
            for k in range(n_machines):
                begin_k = position
                position += active[n_states + k]
                if position == begin_k:
                    continue
                share = TOP
                if n_machines > 1:
                    multiply_rows(w, SHARE, TOP, COMMON + k)
                    share = SHARE
                _accumulate(
                    w, sums, 3 + k * size + g + g * g, counts, delta, active, begin_k, position, p, Y + k * p, TERMS,
                    share, PARTS + k, SPARE, MEANS, n_machines > 1,
                )  # fmt: skip
        if wants_sums:
            _finish_chunk(sums, counts, delta, first, p)


@compiled
def view(log_weights, centre, F, mean, L, delta, log_prior, first, present):
    """How machines see points whose entries `present` (p,) are given: the fields of `View`.

    For the rows of L that are present, L_p = RBᵀ with R lower triangular and orthonormal columns of B, the basis.
    """
    n_machines, d, g = F.shape
    p = len(present)
    inverse, origin = np.zeros((n_machines, p, p)), np.empty((n_machines, p))
    slopes, log_peak = np.empty((n_machines, p, g)), np.empty(n_machines)
    bias, centres, basis = np.empty(len(delta)), np.zeros((len(delta), p)), np.zeros((n_machines, d, p))
    root = np.zeros((p, p))
    for k in range(n_machines):
        if p == d:
            root[:] = L[k]
            for i in range(d):
                basis[k, i, i] = 1.0
        else:  # Gram-Schmidt, twice for orthogonality to the last digit
            root[:] = 0.0
            for i in range(p):
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
    return inverse, origin, slopes, bias, centres, log_peak, basis


@compiled
def add_residuals(sums, slopes, basis, residuals):
    """Add what the pass found on some points to `residuals`, the sums that all derivatives need.

    Those are, for each machine (K, 1 + g + g² + d(1 + g + d)), with w times the probability that a point comes from it:
    Σ 1, Σ δ, Σ δδᵀ, Σ ε, Σ εδᵀ, Σ εεᵀ, where ε = L⁻¹(v − origin − Fδ) and all are expectations given the point.
    """
    n_machines, d, p = basis.shape
    g = slopes.shape[2]
    size = 1 + g + g * g + p + p * g + p * p
    head = 1 + g + g * g
    first, cross, square = np.empty(p), np.empty((p, g)), np.empty((p, p))
    for k in range(n_machines):
        own, result = sums[2 + k * size : 2 + (k + 1) * size], residuals[k]
        for i in range(head):
            result[i] += own[i]
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
        if p == d:
            for i in range(d):
                result[head + i] += first[i]
                for a in range(g):
                    result[head + d + i * g + a] += cross[i, a]
                for j in range(d):
                    result[head + d + d * g + i * d + j] += square[i, j]
            continue
        for i in range(d):
            for m in range(p):
                result[head + i] += basis[k, i, m] * first[m]
                for a in range(g):
                    result[head + d + i * g + a] += basis[k, i, m] * cross[m, a]
            for j in range(d):
                value = own[0] if i == j else 0.0
                for m in range(p):
                    for q in range(p):
                        excess = square[m, q] - (own[0] if m == q else 0.0)
                        value += basis[k, i, m] * excess * basis[k, j, q]
                result[head + d + d * g + i * d + j] += value


@compiled
def complete_moments(sums, inverse, origin, slopes, total, mean, scatter):
    """Fill in Σ y and Σ yyᵀ for a single machine, from those of the points: Σ w, the mean, and the scatter about it."""
    p, g = slopes.shape[1:]
    at = 3 + g + g * g
    difference = np.empty(p)
    for i in range(p):
        difference[i] = 0.0
        for j in range(i + 1):
            difference[i] += inverse[0, i, j] * (mean[j] - origin[0, j])
        sums[at + i] = total * difference[i]
    half = np.zeros((p, p))
    for i in range(p):
        for j in range(p):
            for m in range(i + 1):
                half[i, j] += inverse[0, i, m] * scatter[m, j]
    for i in range(p):
        for j in range(p):
            value = total * difference[i] * difference[j]
            for m in range(j + 1):
                value += half[i, m] * inverse[0, j, m]
            sums[at + p + p * g + i * p + j] = value


@compiled
def add_sums(sums, log_scales, views, result, residuals):
    """Add the sums of a block to those of all blocks; see `BlockSums`."""
    log_peak = views[5]
    result[0] += sums[0]
    result[1] += sums[1]
    for k in range(len(log_peak)):
        result[2 + k] += sums[1] * np.exp(min(log_peak[k] + log_scales[0] - log_scales[1 + k], 700.0))
    if len(residuals):
        add_residuals(sums, views[2], views[6], residuals)


@compiled
def sum_block(
    x, weights, present, total, mean, scatter, log_weights, centre, F, origin, L, delta, log_prior, first, log_scales,
    result, residuals,
):  # fmt: skip
    """The sums over a block of at most CHUNK points, in one call."""
    views = view(log_weights, centre, F, origin, L, delta, log_prior, first, present)
    (p, g), n_machines = views[2].shape[1:], len(first) - 1
    out = np.zeros((1, 2 + n_machines * (1 + g + g * g + p + p * g + p * p)))
    wants_sums = len(residuals) > 0
    sum_chunks(
        x, weights, 0, 1, width_for(len(delta)), views[0], views[1], views[2], views[3], views[4], delta, first,
        log_scales[0], wants_sums, 0.0, np.empty(0, dtype=np.bool_), out, np.empty((0, 0)),
    )  # fmt: skip
    if wants_sums and n_machines == 1:
        complete_moments(out[0], views[0], views[1], views[2], total, mean, scatter)
    add_sums(out[0], log_scales, views, result, residuals)
