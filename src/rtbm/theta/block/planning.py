"""Planning a sum, compiled: the reduced basis, what to transform, the matrices of the sum, and its terms.

Matrices are small, so everything is written as loops. Without numba the same source runs as plain Python.
`lattice.reduce_basis` and `poisson.make_form` say the same in NumPy and torch; tests compare them.
"""

import math

import numpy as np

from rtbm.common import TWO_PI
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.kernels import HIGH_BITS, compiled
from rtbm.theta.lattice import PART_BITS, lll
from rtbm.theta.truncation import CHERNOFF, add_spread, estimate_count, log_gauss, radius_from_spread

FOUND, NOT_EXACT, NOT_DEFINITE = 0, 1, 2
"""What `plan_sum` says: all is well; the basis needs longer integers; Q is not positive definite."""
BASIS, GRAM, CENTRE, PERIODS, PLANE, FACTOR, B, K, G, PSI, N_MATRICES = 0, 1, 2, 3, 6, 7, 8, 9, 10, 11, 12
"""Where `plan_sum` keeps the matrices of `poisson.Geometry` and `poisson.Form`; the periods are three."""
MAX_CANCELLATION = 100.0
"""An oscillating sum is used only where Σ|terms| ≤ MAX_CANCELLATION · |Σ terms| is certain. A larger limit would cost
digits, a smaller one terms."""
SHORT = 2.0**26
"""Entries of a basis up to here are multiplied by halves of float64 without rounding. For larger ones, `congruence`
gives up, and Python's integers take over."""
MAX_ROUNDS = 20
"""LLL runs again on the exactly transformed form, at most this often. Two or three rounds are usual."""


@compiled
def two_sum(a, b):
    """a + b as a rounded sum and its error."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


@compiled
def congruence(Q, U, exact):
    """exact (3, g, g) = UᵀQU as a sum of three, the first of them correctly rounded; whether that is certain.

    The entries u_ki u_lj of integers below SHORT and those of Q are cut in halves, so that their products do not round.
    These are added with the rounding errors, and with those of the errors. Then `lost` bounds what is left.
    """
    g = len(Q)
    for i in range(g):
        for j in range(g):
            if not abs(U[i, j]) <= SHORT:
                return False
    for i in range(g):
        for j in range(i + 1):
            high, middle, low, lost = 0.0, 0.0, 0.0, 0.0
            for k in range(g):
                if U[k, i] == 0.0:
                    continue
                for m in range(g):
                    if U[m, j] == 0.0:
                        continue
                    w, q = np.float64(U[k, i] * U[m, j]), np.float64(Q[k, m])
                    w_high = np.rint(w / SHORT) * SHORT
                    q_high = np.int64(q.view(np.int64) & HIGH_BITS).view(np.float64)
                    w_low, q_low = w - w_high, q - q_high
                    for product in (w_high * q_high, w_high * q_low, w_low * q_high, w_low * q_low):
                        high, error = two_sum(high, product)
                        middle, error = two_sum(middle, error)
                        low, error = two_sum(low, error)
                        lost += abs(error)
            middle, low = two_sum(middle, low)
            high, middle = two_sum(high, middle)
            middle, low = two_sum(middle, low)
            margin = 2 * (abs(low) + lost)
            if margin > 0.0:
                margin += 1e-15 * abs(middle)
            if not (high + (middle + margin) == high and high + (middle - margin) == high):
                return False
            exact[0, i, j] = exact[0, j, i] = high
            exact[1, i, j] = exact[1, j, i] = middle
            exact[2, i, j] = exact[2, j, i] = low
    return True


@compiled
def cut_in_parts(exact, M):
    """`lattice.in_parts` for a sum of three matrices (3, g, g): two parts of PART_BITS, and the rounded rest."""
    g = exact.shape[1]
    for j in range(g):
        for part in range(2):
            largest = 0.0
            for i in range(g):
                M[PERIODS + 2, i, j] = (exact[0, i, j] - M[PERIODS, i, j]) + (exact[1, i, j] if part else 0.0)
                largest = max(largest, abs(M[PERIODS + 2, i, j]))
            step = 2.0 ** (math.frexp(largest)[1] - PART_BITS)
            for i in range(g):
                M[PERIODS + part, i, j] = np.rint(M[PERIODS + 2, i, j] / step) * step
        for i in range(g):
            left = (exact[0, i, j] - M[PERIODS, i, j]) - M[PERIODS + 1, i, j]
            M[PERIODS + 2, i, j] = (left + exact[1, i, j]) + exact[2, i, j]


@compiled
def factorise(A, R):
    """The upper triangular R with A = RᵀR; whether A is positive definite. R must be zero below its diagonal."""
    for j in range(len(A)):
        for i in range(j + 1):
            left = A[i, j]
            for k in range(i):
                left -= R[k, i] * R[k, j]
            if i < j:
                R[i, j] = left / R[i, i]
            elif left > 0:
                R[j, j] = math.sqrt(left)
            else:
                return False
    return True


@compiled
def invert(R):
    """The inverse of RᵀR for an upper triangular R (g, g)."""
    g = len(R)
    inverse, result = np.zeros((g, g)), np.zeros((g, g))
    for j in range(g):
        inverse[j, j] = 1 / R[j, j]
        for i in range(j - 1, -1, -1):
            for k in range(i + 1, j + 1):
                inverse[i, j] -= R[i, k] * inverse[k, j]
            inverse[i, j] /= R[i, i]
    for i in range(g):
        for j in range(i + 1):
            for k in range(i, g):
                result[i, j] += inverse[i, k] * inverse[j, k]
            result[j, i] = result[i, j]
    return result


@compiled
def reduce_form(Q, U, dual, exact):
    """LLL-reduce Q (g, g): U becomes the basis, `exact` becomes UᵀQU, and the first g columns of `dual` change by U⁻ᵀ.

    U and `exact` start as the identity and Q. Returns a status and the factor R of the reduced form.
    """
    R = np.zeros(Q.shape)
    for _ in range(MAX_ROUNDS):
        R[:] = 0.0
        if not factorise(exact[0], R):
            return NOT_DEFINITE, R
        steps = lll(R, U, dual)
        if steps == 0:
            break
        if steps < 0 or not congruence(Q, U, exact):
            return NOT_EXACT, R
    return FOUND, R


@compiled
def choose_transformed(norms, is_first_phase, tolerance):
    """The number of leading coordinates to transform that leaves the fewest terms without much cancellation.

    Everything is a sum over coordinates of something known for the norm d (kept) and 4π²/d (transformed): the logs of
    the smallest sum, of its cancellation, and of the spread for each s of the Chernoff grid.
    """
    g = len(norms)
    # first the sums for t = 0, where all are kept; then one coordinate after the other is transformed
    lower, cancels, spread = 0.0, 0.0, np.zeros(len(CHERNOFF))
    best, best_count = 0, np.inf
    chosen, widths = norms.copy(), np.zeros(g)
    for i in range(g):
        d = norms[i]
        if is_first_phase:
            lower += log_gauss(d, 0.5)
            widths[i] = math.sqrt(d)
        else:
            smallest = oscillating_smallest(d)
            lower += smallest
            cancels += log_gauss(d, 0.0) - smallest
        add_spread(d, 1.0, spread)
    for t in range(g + 1):
        if t > 0:
            d, dual = norms[t - 1], TWO_PI**2 / norms[t - 1]
            positive, oscillating = (d, dual) if is_first_phase else (dual, d)
            smallest = oscillating_smallest(oscillating)
            change, cancelled = smallest - log_gauss(positive, 0.5), log_gauss(oscillating, 0.0) - smallest
            sign = 1.0 if is_first_phase else -1.0
            lower, cancels = lower + sign * change, cancels + sign * cancelled
            add_spread(dual, 1.0, spread)
            add_spread(d, -1.0, spread)
            chosen[t - 1] = dual
            widths[t - 1] = 0.0 if is_first_phase else math.sqrt(dual)
        if cancels <= math.log(MAX_CANCELLATION):
            count = estimate_count(chosen, radius_from_spread(spread, lower + math.log(tolerance)), widths)
            if t > 0 if is_first_phase else t < g:
                count /= 2
            if count < best_count:
                best, best_count = t, count
    return best


@compiled
def oscillating_smallest(d):
    """Log of the least value of an oscillating sum with norm d."""
    return log_gauss(TWO_PI**2 / d, 0.5) + 0.5 * math.log(TWO_PI / d)


@compiled
def seek_basis(Q, is_first_phase, tolerance, U, exact):
    """Make U the basis and `exact` UᵀQU; returns a status and the number of coordinates to transform."""
    status, R = reduce_form(Q, U, np.zeros((0, len(Q))), exact)
    if status != FOUND:
        return status, 0
    t = choose_transformed(squares(R), is_first_phase, tolerance)
    if t > 1:  # 4π²Q_tt⁻¹, not Q_tt, is to be reduced
        form = np.zeros((3, t, t))
        dual = invert(R[:t, :t].copy())
        for i in range(t):
            for j in range(t):
                dual[i, j] *= TWO_PI**2
                form[0, i, j] = dual[i, j]
        status, _ = reduce_form(dual, np.eye(t), U, form)
        if status != FOUND or not congruence(Q, U, exact):
            return NOT_EXACT, 0
    return FOUND, t


@compiled
def squares(R):
    """The squares of the diagonal of R."""
    result = np.zeros(len(R))
    for i in range(len(R)):
        result[i] = R[i, i] * R[i, i]
    return result


@compiled
def transform(M, begin, end, sign):
    """Poisson summation over the coordinates from `begin` to `end` of the Gram matrix; see `poisson.make_form`.

    Returns the constant, or NaN if a matrix is not positive definite.
    """
    g, t = M.shape[1], end - begin
    own = np.zeros((t, t))
    if not factorise(M[GRAM, begin:end, begin:end].copy(), own):
        return np.nan
    inverse = invert(own)
    constant = 0.5 * t * math.log(TWO_PI)
    for i in range(t):
        constant -= math.log(own[i, i])
    for i in range(g):
        is_kept = i < begin or i >= end
        M[B, i, i] = 1.0
        for j in range(t):
            if is_kept:
                mix = 0.0
                for k in range(t):
                    mix += M[GRAM, i, begin + k] * inverse[k, j]
                M[B, i, begin + j] = -mix
                M[PSI, i, begin + j] = -sign * TWO_PI * mix
                M[PSI, begin + j, i] = -sign * TWO_PI * mix
            else:
                M[B, i, begin + j] = TWO_PI * inverse[i - begin, j]
                M[G, i, begin + j] = TWO_PI**2 * inverse[i - begin, j]
                M[K, i, begin + j] = sign * inverse[i - begin, j]
    for i in range(g):
        for j in range(i + 1):
            if (i < begin or i >= end) and (j < begin or j >= end):
                left = M[GRAM, i, j]
                for k in range(begin, end):
                    left += M[B, i, k] * M[GRAM, k, j]
                M[G, i, j] = left
                M[G, j, i] = left
    return constant if factorise(M[G], M[FACTOR]) else np.nan  # G is block-diagonal, and so is its factor


@compiled
def plan_recentring(M, n_osc, is_first_phase, exact):
    """Fill in the matrices that recentring needs; returns the largest lattice coordinate of |z| ≤ 1."""
    g = M.shape[1]
    whole = np.zeros((g, g))
    if is_first_phase:
        factorise(M[GRAM], whole)
        whole = invert(whole)
        cut_in_parts(exact, M)
    to_lattice = 0.0
    for j in range(g):
        column = 0.0
        for i in range(g):
            if is_first_phase:
                M[CENTRE, i, j] = whole[i, j]
            elif i == j:
                M[CENTRE, i, i] = 1 / TWO_PI
                for k in range(3):
                    M[PERIODS + k, i, i] = TWO_PI_PARTS[k]
            if n_osc <= i < j:
                M[PLANE, i, j] = M[FACTOR, i, j] / M[FACTOR, i, i]
        for i in range(g):
            entry = 0.0
            for k in range(g):
                entry += M[BASIS, i, k] * M[CENTRE, k, j]
            column += abs(entry)
        to_lattice = max(to_lattice, column)
    return to_lattice


@compiled
def plan_sum(Q, is_first_phase, tolerance, t, basis, gram):
    """The matrices of the sum for Q (g, g), see `poisson`.

    With t < 0 everything is sought, and the last two arguments are not read. Else the number t of transformed
    coordinates, the basis U and UᵀQU (g, g) are known already, but the periods are not exact. All are float64.

    Returns
    -------
    status, matrices (N_MATRICES, g, g), n_osc, radius2, constant, and the largest lattice coordinate of |z| ≤ 1
    """
    g, status = len(Q), FOUND
    M, U, exact = np.zeros((N_MATRICES, g, g)), np.eye(g), np.zeros((3, g, g))
    for i in range(g):
        for j in range(g):
            exact[0, i, j] = Q[i, j] if t < 0 else gram[i, j]
            U[i, j] = U[i, j] if t < 0 else basis[i, j]
    if t < 0:
        status, t = seek_basis(Q, is_first_phase, tolerance, U, exact)
        if status != FOUND:
            return status, M, 0, 0.0, 0.0, 0.0
    n_osc = t if is_first_phase else g - t
    for i in range(g):  # the oscillating coordinates come first: in phase II those that are kept
        a = i if is_first_phase else (i + t) % g
        for j in range(g):
            M[BASIS, j, i] = U[j, a]
            M[GRAM, i, j] = exact[0, a, j if is_first_phase else (j + t) % g]
    begin, sign = (n_osc - t, 1.0) if is_first_phase else (n_osc, -1.0)
    constant = transform(M, begin, begin + t, sign)
    if math.isnan(constant):
        return NOT_DEFINITE, M, 0, 0.0, 0.0, 0.0
    spread, log_smallest = np.zeros(len(CHERNOFF)), 0.0
    norms = squares(M[FACTOR])
    for i in range(g):
        log_smallest += oscillating_smallest(norms[i]) if i < n_osc else log_gauss(norms[i], 0.5)
        add_spread(norms[i], 1.0, spread)
    radius2 = radius_from_spread(spread, log_smallest + math.log(tolerance))
    return FOUND, M, n_osc, radius2, constant, plan_recentring(M, n_osc, is_first_phase, exact)


@compiled
def list_terms(M, n_osc, points):
    """Rows (terms − 1, g + 2) with a point, its log-size and its turns at x = 0, for all points but zero."""
    g = M.shape[1]
    rows = np.zeros((len(points) - 1, g + 2))
    has_turns = 0 < n_osc < g  # Ψ couples oscillating coordinates with others
    t = 0
    for k in range(len(points)):
        size, turns, oscillates, is_zero = 0.0, 0.0, False, True
        for i in range(g):
            m = points[k, i]
            if m == 0:
                continue
            is_zero = False
            oscillates = oscillates or i < n_osc
            row = 0.5 * M[G, i, i] * m
            for j in range(i):
                row += M[G, i, j] * points[k, j]
            size += m * row
            for j in range(i if has_turns else 0):
                turns += m * M[PSI, i, j] * points[k, j]
        if is_zero:
            continue
        for i in range(g):
            rows[t, i] = points[k, i]
        rows[t, g] = (math.log(2.0) if oscillates else 0.0) - size
        rows[t, g + 1] = turns / TWO_PI
        t += 1
    return rows
