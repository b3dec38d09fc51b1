"""Lattices with a quadratic form: reduction, nearest plane, enumeration, and how far a sum must reach.

A positive definite matrix Q turns the integer vectors into a lattice with squared lengths nᵀQn = ‖Rn‖², where
Q = RᵀR and R is upper triangular. The squares of R's diagonal are the *Gram-Schmidt norms* d_i; every bound in
this module is a product over them.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rtbm.common import Floats, Integers
from rtbm.errors import InvalidInputError, NotPositiveDefiniteError, TooManyTermsError

LOVASZ = 0.99
"""How reduced a basis must be. Closer to 1 takes more swaps for a slightly better basis; it must exceed ¼."""
LARGEST_INTEGER = 2.0**50
"""Integers up to here are exact in float64, with room to add a few. Beyond 2^53 neighbours could not be told apart."""
MAX_TERMS = 2**22
"""The largest number of lattice points that is ever enumerated. A larger limit would take gigabytes before it fails."""

DIGIT = 2.0**20
"""Far lattice points are found in steps of DIGIT², DIGIT and 1. Larger steps would leave fewer bits for PART_BITS."""
PART_BITS = 30
"""Bits of the parts of a matrix that are multiplied by integers below DIGIT without rounding: 20 + 30 of float64's 53,
with room for a sum of eight. With more, such sums would round."""

CHERNOFF = np.geomspace(0.01, 0.7, 24)
"""The exponents s that `squared_radius` tries. A finer grid gives a radius that is hardly smaller, in more time."""


def cholesky(Q: Floats) -> Floats:
    """Return the upper triangular R with Q = RᵀR.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 1.],
           [0., 2.]])
    """
    try:
        return np.ascontiguousarray(np.linalg.cholesky(Q).T)
    except np.linalg.LinAlgError:
        smallest = float(np.linalg.eigvalsh(Q)[0])
        raise NotPositiveDefiniteError(
            f"the matrix is not positive definite to working precision (smallest eigenvalue {smallest:.3g}, "
            f"largest entry {np.abs(Q).max():.3g}): add to its diagonal or parametrise it by a Cholesky factor"
        ) from None


def change_basis(Q: Floats, U: Integers) -> Floats:
    """Return UᵀQU, computed exactly and rounded once.

    Floating-point numbers are integers over a power of two, so the product is formed in integers: a skewed basis
    loses no digits.

    >>> change_basis(np.array([[1.0, 1e8], [1e8, 1e16 + 2]]), np.array([[1, -(10**8)], [0, 1]]))
    array([[1., 0.],
           [0., 2.]])
    """
    product, unit = exact_congruence(Q, U)
    return np.array([[entry / unit for entry in row] for row in product], dtype=float)


def exact_congruence(Q: Floats, U: Integers) -> tuple[NDArray[Any], int]:
    """UᵀQU without rounding: an array of Python integers, and the power of two by which they are to be divided."""
    ratios = [[float(x).as_integer_ratio() for x in row] for row in Q]
    unit = max(denominator for row in ratios for _, denominator in row)
    exact = np.array([[n * (unit // d) for n, d in row] for row in ratios], dtype=object)
    basis = U.astype(object)
    return basis.T @ exact @ basis, unit


def in_parts(numerators: NDArray[Any], unit: int) -> tuple[Floats, Floats, Floats]:
    """The matrix numerators / unit as a sum of three, for exact products with integers.

    The first two hold 30 bits each, on one grid for each column. So n @ part does not round for integers n below
    DIGIT, nor for DIGIT, DIGIT², … times such integers. The third is the rest, rounded.

    >>> [float(part[0, 0]) for part in in_parts(np.array([[2**70 + 2**35 + 1]], dtype=object), 2**70)]
    [1.0, 2.9103830456733704e-11, 8.470329472543003e-22]
    """
    rest, parts = numerators, []
    for _ in range(2):
        steps = [1 << max(0, max(int(abs(x)).bit_length() for x in column) - PART_BITS) for column in rest.T]
        rows = [[(x + step // 2) // step * step for x, step in zip(row, steps, strict=True)] for row in rest]
        part = np.array(rows, dtype=object)
        rest = rest - part
        parts.append(part)
    first, second, third = (
        np.array([[x / unit for x in row] for row in part.tolist()], dtype=float) for part in (*parts, rest)
    )
    return first, second, third


def exact_shift(A: Floats, n: Floats, a: Floats) -> Floats:
    """Return a + An for integers n (g,), computed exactly and rounded once.

    >>> exact_shift(np.array([[0.1]]), np.array([10.0**17]), np.array([-(10.0**16)]))  # 0.1 is 5.55e-18 too large
    array([0.55511151])
    """
    result = []
    for row, b in zip(A, a.tolist(), strict=True):
        kept = np.flatnonzero(row * n)  # most of a large A is zero
        terms = (Fraction(x) * int(k) for x, k in zip(row[kept].tolist(), n[kept].tolist(), strict=True))
        result.append(float(sum(terms, Fraction(b))))
    return np.array(result)


def reduce_basis(Q: Floats) -> tuple[Integers, Floats]:
    """LLL-reduce the quadratic form Q.

    Returns the unimodular U and the reduced form UᵀQU. Reduction runs in floating point and repeats on the exactly
    transformed form until nothing changes, so that the result does not depend on how skewed Q was.

    >>> U, reduced = reduce_basis(np.array([[1.0, 5.0], [5.0, 26.0]]))
    >>> reduced
    array([[1., 0.],
           [0., 1.]])
    """
    g = len(Q)
    total = np.eye(g, dtype=np.int64)
    reduced = Q
    for _ in range(20):
        step = _lll(cholesky(reduced))
        if (step == np.eye(g)).all():
            break
        if (np.abs(total.astype(float)) @ np.abs(step)).max() > LARGEST_INTEGER:
            raise _unbalanced(Q)
        total = total @ step
        reduced = change_basis(Q, total)
    return total, reduced


def integer_inverse(U: Integers) -> Integers:
    """The inverse of a unimodular matrix, exactly: a floating-point inverse, refined in integers.

    >>> integer_inverse(np.array([[1, 10**6], [0, 1]]))
    array([[       1, -1000000],
           [       0,        1]])
    """
    if (np.eye(len(U)) == U).all():  # most bases are reduced already
        return U.copy()
    try:
        approximate = np.linalg.inv(U)
    except np.linalg.LinAlgError:
        raise InvalidInputError("the basis is too skewed to be inverted in float64: rescale the problem") from None
    inverse = np.rint(approximate).astype(object)
    identity = np.eye(len(U), dtype=int).astype(object)
    for _ in range(20):
        error = identity - U.astype(object) @ inverse
        if not error.any():
            break
        inverse = inverse + np.rint(approximate @ error.astype(float)).astype(np.int64).astype(object)
    return inverse.astype(np.int64)


def _unbalanced(Q: Floats) -> InvalidInputError:
    return InvalidInputError(
        f"the matrix is too unbalanced to be reduced in float64: its diagonal runs from {np.diag(Q).min():.3g} to "
        f"{np.diag(Q).max():.3g} with large entries beside it; rescale the problem"
    )


def _lll(R: Floats) -> Integers:
    """The unimodular U for which the columns of RU are LLL-reduced; R is upper triangular."""
    R = R.copy()
    g = len(R)
    U = np.eye(g, dtype=np.int64)
    k = 1
    while k < g:
        for j in range(k - 1, -1, -1):
            q = round(R[j, k] / R[j, j])
            if abs(q) > LARGEST_INTEGER:
                raise _unbalanced(R.T @ R)
            if q:
                R[:, k] -= q * R[:, j]
                U[:, k] -= q * U[:, j]
        if LOVASZ * R[k - 1, k - 1] ** 2 <= R[k - 1, k] ** 2 + R[k, k] ** 2:
            k += 1
            continue
        for matrix in (R, U):
            matrix[:, [k - 1, k]] = matrix[:, [k, k - 1]]
        x, y = R[k - 1, k - 1], R[k, k - 1]
        length = math.hypot(x, y)
        R[[k - 1, k], k - 1 :] = np.array([[x, y], [y, -x]]) / length @ R[[k - 1, k], k - 1 :]
        R[k, k - 1] = 0.0
        R[k, k] = abs(R[k, k])
        k = max(k - 1, 1)
    return U


def connected_components(adjacent: NDArray[np.bool_]) -> list[Integers]:
    """The groups of indices that a symmetric pattern of non-zeros connects, in increasing order.

    >>> [c.tolist() for c in connected_components(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]) > 0)]
    [[0, 2], [1]]
    """
    left, components = set(range(len(adjacent))), []
    while left:
        group, frontier = set(), {min(left)}
        while frontier:
            group |= frontier
            frontier = {int(j) for i in frontier for j in np.flatnonzero(adjacent[i])} - group
        components.append(np.array(sorted(group), dtype=np.int64))
        left -= group
    return components


def nearest_point(R: Floats, centre: Floats) -> Floats:
    """The lattice point (g,) that nearest-plane rounding finds for one centre (g,).

    >>> nearest_point(np.array([[2.0, 1.0], [0.0, 3.0]]), np.array([0.4, 0.6]))
    array([0., 1.])
    """
    nearest, plane = np.rint(centre), nearest_plane_matrix(R)
    for i in range(len(R) - 2, -1, -1):
        nearest[i] = np.rint(centre[i] + plane[i, i + 1 :] @ (centre - nearest)[i + 1 :])
    return nearest


def nearest_plane_matrix(R: Floats) -> Floats:
    """Return the strictly upper triangular M for the nearest-plane recursion.

    For a point c, going from the last coordinate to the first, n_i = round(c_i + Σ_{j>i} M_ij (c_j − n_j)) leaves a
    residual c − n whose Gram-Schmidt coordinates are at most ½√d_i.

    >>> nearest_plane_matrix(np.array([[2.0, 1.0], [0.0, 3.0]]))
    array([[0. , 0.5],
           [0. , 0. ]])
    """
    return np.triu(R / np.diag(R)[:, None], 1)


def enumerate_points(
    R: Floats, radius2: Floats | float, half_widths: Floats, centre: Floats | None = None, limit: int = MAX_TERMS
) -> Integers:
    """All n ∈ ℤ^g whose image R(n − centre) lies within √radius2 of the box |y_i| ≤ half_widths_i.  Returns (terms, g).

    With half_widths = 0 this is an ellipsoid. With ½√d_i and centre 0 (the default) it holds every lattice point within
    √radius2 of *some* point that nearest-plane rounding can leave, so one list serves a whole batch.
    More than `limit` points are an error, raised before they take memory.

    >>> enumerate_points(np.eye(2), 1.0, np.zeros(2)).tolist()
    [[0, -1], [-1, 0], [0, 0], [1, 0], [0, 1]]
    """
    g = len(R)
    expected = estimate_count(np.diag(R) ** 2, radius2, 2 * half_widths) if math.isfinite(float(radius2)) else math.inf
    if expected > limit:
        raise TooManyTermsError(expected, limit)
    c = np.zeros(g) if centre is None else centre
    points = np.zeros((1, g), dtype=np.int64)
    left = np.full(1, float(radius2) * (1 + 1e-9))
    for i in range(g - 1, -1, -1):
        offset = (points[:, i + 1 :] - c[i + 1 :]) @ R[i, i + 1 :] - c[i] * R[i, i]
        reach = np.sqrt(left) + half_widths[i]
        first = np.ceil((-reach - offset) / R[i, i]).astype(np.int64)
        counts = np.maximum(np.floor((reach - offset) / R[i, i]).astype(np.int64) - first + 1, 0)
        total = int(counts.sum())
        if total > limit:
            raise TooManyTermsError(max(total, expected), limit)
        points = np.repeat(points, counts, axis=0)
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        points[:, i] = np.repeat(first, counts) + np.arange(total) - starts
        outside = np.maximum(np.abs(points[:, i] * R[i, i] + np.repeat(offset, counts)) - half_widths[i], 0.0)
        left = np.maximum(np.repeat(left, counts) - outside**2, 0.0)
    return points


def log_gauss_sum(a: ArrayLike, shift: float = 0.0) -> Floats:
    """log Σ_k exp(−½a(k − shift)²) over the integers, for shift 0 (the largest value) or ½ (the smallest).

    >>> float(log_gauss_sum(1000.0, 0.5))  # two points half a step away: log 2 − 125
    -124.30685281944005
    >>> float(log_gauss_sum(0.0))
    inf
    """
    with np.errstate(divide="ignore"):
        return _log_gauss_sum(np.asarray(a, dtype=float), shift)


def _log_gauss_sum(a: Floats, shift: float) -> Floats:
    is_large = a > 2 * np.pi
    b = np.where(is_large, a, 4 * np.pi**2 / a)  # at least 2π: four terms are plenty
    k2 = np.arange(1, 5) ** 2
    terms = np.exp(-0.5 * b[..., None] * k2)
    if not shift:
        return np.log1p(2 * terms.sum(-1)) + np.where(is_large, 0.0, 0.5 * np.log(2 * np.pi / a))
    direct = np.log(2) - b / 8 + np.log1p(np.exp(-0.5 * b[..., None] * (k2 + np.sqrt(k2))).sum(-1))
    poisson = 0.5 * np.log(2 * np.pi / a) + np.log1p(2 * terms @ (-1.0) ** k2)
    return np.where(is_large, direct, poisson)


def squared_radius(norms: Floats, log_smallest: Floats | float, tolerance: float) -> Floats:
    """R² such that Σ exp(−½‖n−c‖²) over ‖n−c‖ > R stays below tolerance · exp(log_smallest), for every centre c.

    The Chernoff argument: for 0 < s < 1 the tail is at most exp(−½(1−s)R²) Σ_n exp(−½s‖n−c‖²), and the last sum
    is at most Π_i Σ_k exp(−½ s d_i k²), with d_i = `norms` (..., g), the Gram-Schmidt norms. The best s on a grid is
    taken. Returns (...).

    >>> squared_radius(np.array([2 * np.pi]), 0.0, 1e-12).round(1)
    np.float64(60.4)
    """
    return radius_from_spread(tail_spread(norms).sum(-1), log_smallest, tolerance)


def log_tail(norms: Floats, radius2: float) -> float:
    """A bound on log Σ exp(−½‖n−c‖²) over ‖n−c‖² > radius2, for every centre c: `squared_radius` the other way round.

    >>> round(log_tail(np.array([2 * np.pi]), 60.4), 1)  # log 1e-12
    -27.6
    """
    return float((tail_spread(norms).sum(-1) - 0.5 * (1 - CHERNOFF) * radius2).min())


def tail_spread(norms: Floats) -> Floats:
    """log Σ_k exp(−½ s d k²) for each norm d (...) and each s of the Chernoff grid. Returns (grid, ...)."""
    return log_gauss_sum(np.multiply.outer(CHERNOFF, norms))


def radius_from_spread(spread: Floats, log_smallest: Floats | float, tolerance: float) -> Floats:
    """R² from `tail_spread` summed over the coordinates (grid, ...); see `squared_radius`."""
    s = CHERNOFF.reshape(-1, *([1] * (spread.ndim - 1)))
    return (2 / (1 - s) * (spread - math.log(tolerance) - log_smallest)).min(axis=0)


def estimate_count(norms: Floats, radius2: Floats | float, widths: Floats) -> float:
    """How many points `enumerate_points` should find: the volume of box ⊕ ball over that of a cell (Steiner).

    >>> estimate_count(np.ones(2), 25.0, np.zeros(2))  # π 5²
    78.53981633974483
    """
    faces = [0.0]  # faces[j]: log of Σ over the box's faces of dimension j of face volume · R^(g−j), per cell
    for norm, width in zip(norms.tolist(), widths.tolist(), strict=True):
        ball = 0.5 * math.log(float(radius2) / norm)
        side = math.log(width / math.sqrt(norm)) if width else -math.inf
        faces = [_log_add(a + ball, b + side) for a, b in zip([*faces, -math.inf], [-math.inf, *faces], strict=True)]
    total = -math.inf
    for j, face in enumerate(faces):
        dimension = len(norms) - j
        total = _log_add(total, face + 0.5 * dimension * math.log(math.pi) - math.lgamma(dimension / 2 + 1))
    return math.exp(min(total, 700.0))


def _log_add(a: float, b: float) -> float:
    low, high = min(a, b), max(a, b)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
