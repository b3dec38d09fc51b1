"""The pass over the points on the CPU (numba). Points run along the inner loops, so that the compiler makes SIMD code.

A state of a machine contributes exp(bias − ½|y − centre|²) to the density of a point y in the machine's coordinates.
Relative to the best state of a block of points, the exponent of every other state is an integer combination of g linear
functions of y. So g exponentials a point give all terms of a machine, by multiplications.
"""

from typing import NamedTuple

import numpy as np

from rtbm.theta.kernels import compiled
from rtbm.training.sums.dense import add_sums, complete_moments, make_view, n_sums, unpack_sums
from rtbm.training.sums.rows import (
    add_scaled_row,
    dot_rows,
    dot_two_rows,
    exp_row,
    fill_row,
    log_row,
    multiply_rows,
    span_of_row,
    sum_row,
    whiten_rows,
)

CHUNK_POINTS = 2**14  # points with sums of their own, so that the number of threads does not change the result
WIDE_STATES, MEDIUM_STATES = 256, 2048
WIDE, MEDIUM, NARROW = 256, 64, 32
"""Points in a block: WIDE up to WIDE_STATES states, MEDIUM up to MEDIUM_STATES, else NARROW. Temporaries of a block
have to stay in the cache; narrower blocks take more time for each state."""
SKIPPED = 45.0
"""States whose terms are at most exp(−SKIPPED) of the largest one, for all points of a block, are skipped. Less than
about 37 costs digits."""
POWER_REACH = 250.0
"""Terms are products of powers as long as no exponent exceeds this, and single exponentials beyond. Much more than this
overflows float64."""
ROUNDED = 1 - 1e-12
"""Squared lengths are multiplied by this in bounds, which then hold in spite of rounding."""


class WorkRows(NamedTuple):
    """Where the rows of a block's work space begin, for p entries of a point, K machines and g units."""

    x: int  # p: the points
    spare: int  # p
    y: int  # K p: the points in the coordinates of each machine
    means: int  # g: E(δ|y)
    common: int  # K: the log of what the terms of a machine are divided by, then the factor itself
    parts: int  # K: Σ terms of each machine
    top: int  # the largest of `common`; then w/P
    total: int  # P, divided by exp(top)
    share: int  # w/P of a machine's terms
    weight: int  # w
    powers: int  # exp(m u_j), see `_tabulate_powers`
    prefix: int  # g: see `_multiply_powers`
    terms: int  # S: the terms of active states


@compiled
def _place_rows(n_machines, p, g, n_powers):
    y = 2 * p
    common = y + n_machines * p + g
    top = common + 2 * n_machines
    prefix = top + 4 + n_powers
    return WorkRows(
        0, p, y, common - g, common, common + n_machines, top, top + 1, top + 2, top + 3, top + 4, prefix, prefix + g
    )


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
def _find_active(bias, centres, first, boxes, slack, highest, active):
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
            if highest[s] >= bound - SKIPPED - slack:
                active[count] = s
                count += 1
        active[n_states + k] = count - before


@compiled
def _plan_powers(bias, centres, delta, slopes, k, active, begin, end, box, levels, spans):
    """The active state with the largest term in the middle of the box, and the log of that term.

    levels[a] becomes the log of each term there, and `spans` (2, g) the range of h_j − best_j over the active states.
    Also returns the largest exponent that powers reach in the box.
    """
    p, g = slopes.shape[1:]
    best, top, reach = active[begin], -np.inf, 0.0
    for a in range(begin, end):
        s = active[a]
        levels[a] = bias[s]
        for i in range(p):
            difference = 0.5 * (box[0, i] + box[1, i]) - centres[s, i]
            levels[a] -= 0.5 * difference * difference
        if levels[a] > top:
            best, top = s, levels[a]
    for j in range(g):
        low, high, slope = 0, 0, 0.0
        for a in range(begin, end):
            step = int(np.rint(delta[active[a], j] - delta[best, j]))
            low, high = min(low, step), max(high, step)
        spans[0, j], spans[1, j] = low, high
        for i in range(p):
            slope += abs(slopes[k, i, j]) * 0.5 * (box[1, i] - box[0, i])
        reach += max(-low, high) * slope
    return best, top, reach


@compiled
def _tabulate_powers(w, rows, slopes, k, box, spans):
    """For each unit, rows exp(m u_j) for m in its span, u_j = Σ_i slopes_ij (y_i − the middle of the box)."""
    p, g = slopes.shape[1:]
    y, spare, at = rows.y + k * p, rows.spare, rows.powers
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
                exp_row(w, spare, zero + 1)
                for m in range(2, high + 1):
                    multiply_rows(w, zero + m, zero + m - 1, zero + 1)
            if low < 0:
                if high > 0:
                    for b in range(w.shape[1]):
                        w[zero - 1, b] = 1.0 / w[zero + 1, b]
                else:
                    for b in range(w.shape[1]):
                        w[spare, b] = -w[spare, b]
                    exp_row(w, spare, zero - 1)
                for m in range(2, -low + 1):
                    multiply_rows(w, zero - m, zero - m + 1, zero - 1)
        at += high - low + 1


@compiled
def _multiply_powers(w, rows, k, delta, active, begin, end, best, levels, top, spans):
    """Rows terms + a = products of powers, relative to the term of the best state; row parts + k is their sum.

    Row prefix + j is the product over units j, …, g − 1. It stays the same while the units before vary.
    """
    g = delta.shape[1]
    powers, prefix, terms, total = rows.powers, rows.prefix, rows.terms, rows.parts + k
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
def _exponentiate(w, rows, k, bias, centres, active, begin, end):
    """The same by an exponential for each state; row common + k becomes the largest exponent."""
    p = centres.shape[1]
    common, spare, terms, total = rows.common + k, rows.spare, rows.terms, rows.parts + k
    fill_row(w, common, -np.inf)
    fill_row(w, total, 0.0)
    for a in range(begin, end):
        _log_term(w, bias, centres, active[a], rows.y + k * p, p, terms + a)
        for b in range(w.shape[1]):
            w[common, b] = max(w[common, b], w[terms + a, b])
    for a in range(begin, end):
        for b in range(w.shape[1]):
            w[spare, b] = w[terms + a, b] - w[common, b]
        exp_row(w, spare, terms + a)
        add_scaled_row(w, total, 1.0, terms + a)


@compiled
def _accumulate(w, rows, sums, k, counts, delta, active, begin, end):
    """Add a block's part of the sums of machine k to counts (S,), and to Σ y, Σ y E(δ|y)ᵀ and Σ y yᵀ."""
    n_machines, p, g = sums.cross.shape
    y, spare, means, terms, share = rows.y + k * p, rows.spare, rows.means, rows.terms, rows.top
    if n_machines > 1:
        share = rows.share
        multiply_rows(w, share, rows.top, rows.common + k)
    for i in range(p):
        multiply_rows(w, spare + i, y + i, share)
    if p <= g:  # Σ y of each state
        for a in range(begin, end):
            s = active[a]
            count, moment = dot_two_rows(w, terms + a, share, spare)
            counts[s] += count
            for j in range(g):
                sums.cross[k, 0, j] += moment * delta[s, j]
            for i in range(1, p):
                moment = dot_rows(w, terms + a, spare + i)
                for j in range(g):
                    sums.cross[k, i, j] += moment * delta[s, j]
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
                sums.cross[k, i, j] += dot_rows(w, spare + i, means + j)
    if n_machines > 1:
        for i in range(p):
            multiply_rows(w, spare + i, spare + i, rows.parts + k)
            sums.noise[k, i] += sum_row(w, spare + i)
            for j in range(i + 1):
                sums.square[k, i, j] += dot_rows(w, spare + i, y + j)


@compiled
def _finish_chunk(sums, counts, delta, first, p):
    """Counts of states to Σ 1, Σ δ and Σ δδᵀ of each machine; Σ y yᵀ becomes symmetric."""
    g = delta.shape[1]
    for k in range(len(first) - 1):
        for s in range(first[k], first[k + 1]):
            sums.shares[k] += counts[s]
            for i in range(g):
                sums.first[k, i] += counts[s] * delta[s, i]
                for j in range(g):
                    sums.second[k, i, j] += counts[s] * delta[s, i] * delta[s, j]
        for i in range(p):
            for j in range(i):
                sums.square[k, j, i] = sums.square[k, i, j]


@compiled
def bound_left_out(w, left_out, directions, y, spare, along, result):
    """Row `result` = max_k of left_out_k − ½ times the squared distance of y from the plane of the machine's centres.

    It bounds the logarithm of what states outside the tables add to P, as `left_out` (K,) does where machines peak.
    `directions` (K, p, m) are an orthonormal basis of the plane, and rows `spare` and `along` are for work.
    """
    n_machines, p, m = directions.shape
    fill_row(w, result, -np.inf)
    for k in range(n_machines):
        fill_row(w, spare, 0.0)
        for i in range(p):
            for b in range(w.shape[1]):
                w[spare, b] += ROUNDED * w[y + k * p + i, b] ** 2
        for j in range(m):
            fill_row(w, along, 0.0)
            for i in range(p):
                add_scaled_row(w, along, directions[k, i, j], y + k * p + i)
            for b in range(w.shape[1]):
                w[spare, b] -= w[along, b] ** 2
        for b in range(w.shape[1]):
            w[result, b] = max(w[result, b], left_out[k] - 0.5 * max(w[spare, b], 0.0))


@compiled
def sum_chunks(x, weights, offsets, begin, end, view, log_scale, wants_sums, left_out, directions, far, out, log_joint):
    """The sums over chunks begin … end − 1 of points x (n, p) with weights (n,), into rows of `out`.

    The density of machine k at point i is multiplied by exp(offsets[i, k]), unless `offsets` is empty.

    A row is a vector of `Sums` of y. Its first error is a bound on Σ w exp(−log P − log_scale), and the others are left
    0, as are Σ y and Σ yyᵀ if there is only one machine. Points with a log P below that of
    `bound_left_out` are left out of all sums, and marked in `far` (n,), unless that is empty. `log_joint` may be empty
    too. The other arguments are those of `torch.sum_points`.
    """
    inverse, origin, slopes, bias, centres, delta, first = (
        view.inverse, view.origin, view.slopes, view.bias, view.centres, view.delta, view.first,
    )  # fmt: skip
    n, p = x.shape
    n_machines, n_states, g = len(first) - 1, len(bias), delta.shape[1]
    width = WIDE if n_states <= WIDE_STATES else MEDIUM if n_states <= MEDIUM_STATES else NARROW
    n_powers = np.int64(0)
    for j in range(g):
        span = 0.0
        for k in range(n_machines):
            low, high = np.inf, -np.inf
            for s in range(first[k], first[k + 1]):
                low, high = min(low, delta[s, j]), max(high, delta[s, j])
            span = max(span, high - low)
        n_powers += int(np.rint(span)) + 1
    rows = _place_rows(n_machines, p, g, n_powers)
    X, SPARE, Y, COMMON, PARTS = rows.x, rows.spare, rows.y, rows.common, rows.parts
    TOP, TOTAL, WEIGHT = rows.top, rows.total, rows.weight
    w = np.zeros((rows.terms + n_states, width))
    counts, highest = np.zeros(n_states), np.empty(n_states)
    boxes, spans = np.empty((n_machines, 2, p)), np.empty((2, g), dtype=np.int64)
    active = np.empty(n_states + n_machines, dtype=np.int64)
    for chunk in range(begin, end):
        sums = unpack_sums(out[chunk], n_machines, p, g)
        counts[:] = 0.0
        for start in range(chunk * CHUNK_POINTS, min(n, (chunk + 1) * CHUNK_POINTS), width):
            count = min(width, n - start)
            for b in range(w.shape[1]):
                row = start + b if b < count else start
                for i in range(p):
                    w[X + i, b] = x[row, i]
                w[WEIGHT, b] = weights[row] if b < count else 0.0
            for k in range(n_machines):
                whiten_rows(w, inverse, origin, k, p, X, SPARE, Y + k * p)
                for i in range(p):
                    boxes[k, 0, i], boxes[k, 1, i] = span_of_row(w, Y + k * p + i)
            slack = 0.0
            for b in range(count if len(offsets) else 0):
                slack = max(slack, offsets[start + b].max() - offsets[start + b].min())
            _find_active(bias, centres, first, boxes, slack, highest, active)
            fill_row(w, TOP, -np.inf)
            position = np.int64(0)
            for k in range(n_machines):
                begin_k = position
                position += active[n_states + k]
                if position == begin_k:
                    continue
                best, top, reach = _plan_powers(
                    bias, centres, delta, slopes, k, active, begin_k, position, boxes[k], highest, spans
                )
                if reach < POWER_REACH:
                    _log_term(w, bias, centres, best, Y + k * p, p, COMMON + k)
                    _tabulate_powers(w, rows, slopes, k, boxes[k], spans)
                    _multiply_powers(w, rows, k, delta, active, begin_k, position, best, highest, top, spans)
                else:
                    _exponentiate(w, rows, k, bias, centres, active, begin_k, position)
                for b in range(count if len(offsets) else 0):
                    w[COMMON + k, b] += offsets[start + b, k]
                for b in range(w.shape[1]):
                    w[TOP, b] = max(w[TOP, b], w[COMMON + k, b])
            fill_row(w, TOTAL, 0.0)
            for k in range(n_machines):
                if active[n_states + k] == 0:
                    continue
                if n_machines > 1:  # row COMMON + k becomes the machine's factor
                    for b in range(w.shape[1]):
                        w[SPARE, b] = w[COMMON + k, b] - w[TOP, b]
                    exp_row(w, SPARE, COMMON + k)
                    for b in range(w.shape[1]):
                        w[TOTAL, b] += w[COMMON + k, b] * w[PARTS + k, b]
                else:
                    add_scaled_row(w, TOTAL, 1.0, PARTS)
            log_row(w, TOTAL, SPARE)
            add_scaled_row(w, SPARE, 1.0, TOP)  # log P
            for b in range(count if len(log_joint) else 0):
                for k in range(n_machines):
                    factor = w[COMMON + k, b] if n_machines > 1 else 1.0
                    part = factor * w[PARTS + k, b] if active[n_states + k] > 0 else 0.0
                    log_joint[start + b, k] = w[TOP, b] + np.log(part) if part > 0.0 else -np.inf
            if len(far):
                bound_left_out(w, left_out, directions, Y, rows.prefix, rows.share, TOP)
                for b in range(count):
                    if not w[SPARE, b] >= w[TOP, b]:
                        far[start + b] = True
                        w[WEIGHT, b] = 0.0
            weight = sum_row(w, WEIGHT)
            sums.log_prob[0] += dot_rows(w, WEIGHT, SPARE)
            sums.errors[0] += weight * np.exp(min(-span_of_row(w, SPARE)[0] - log_scale, 700.0))
            if not wants_sums:
                continue
            for b in range(w.shape[1]):
                w[TOP, b] = w[WEIGHT, b] / w[TOTAL, b]
            position = np.int64(0)
            for k in range(n_machines):
                begin_k = position
                position += active[n_states + k]
                if position == begin_k:
                    continue
                _accumulate(w, rows, sums, k, counts, delta, active, begin_k, position)
        if wants_sums:
            _finish_chunk(sums, counts, delta, first, p)


@compiled
def sum_block(x, weights, offsets, present, total, mean, scatter, machines, states, log_scales, wants_sums, vector):
    """Add the sums over a block of at most CHUNK_POINTS points to a vector of `Sums`, in one call; see `add_sums`."""
    view = make_view(machines, states, present)
    n_machines, p, g = view.slopes.shape
    out = np.zeros((1, n_sums(n_machines, p, g)))
    no_bound, no_plane = np.empty(0), np.empty((0, 0, 0))
    no_marks, no_joint = np.empty(0, dtype=np.bool_), np.empty((0, 0))
    zero, one, scale = np.int64(0), np.int64(1), log_scales[0]
    sum_chunks(x, weights, offsets, zero, one, view, scale, wants_sums, no_bound, no_plane, no_marks, out, no_joint)
    sums = unpack_sums(out[0], n_machines, p, g)
    if wants_sums and n_machines == 1:
        complete_moments(sums, view, total, mean, scatter)
    result = unpack_sums(vector, n_machines, view.basis.shape[1], g)
    add_sums(sums, log_scales, view, wants_sums, result)
