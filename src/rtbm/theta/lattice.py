"""Lattices with a quadratic form: reduction, nearest plane, enumeration.

A positive definite matrix Q turns the integer vectors into a lattice with squared lengths nᵀQn = ‖Rn‖², where
Q = RᵀR and R is upper triangular. The squares of R's diagonal are the *Gram-Schmidt norms* d_i.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rtbm.common import Floats, Integers
from rtbm.errors import InvalidInputError, NotPositiveDefiniteError, TooManyTermsError
from rtbm.theta.kernels import compiled
from rtbm.theta.truncation import estimate_count

LOVASZ = 0.99
"""How reduced a basis must be. Closer to 1 takes more swaps for a slightly better basis; it must exceed ¼."""
LARGEST_INTEGER = 2.0**50
"""Integers up to here are exact in float64, with room to add a few. Beyond 2^53 neighbours could not be told apart."""
MAX_ROUNDS = 20
"""LLL runs again on the exactly transformed form, at most this often. Two or three rounds are usual."""
MAX_TERMS = 2**22
"""The largest number of lattice points that is ever enumerated. A larger limit would take gigabytes before it fails."""

DIGIT = 2.0**20
"""Far lattice points are found in steps of DIGIT², DIGIT and 1. Larger steps would leave fewer bits for PART_BITS."""
PART_BITS = 30
"""Bits of the parts of a matrix that are multiplied by integers below DIGIT without rounding: 20 + 30 of float64's 53,
with room for a sum of eight. With more, such sums would round."""


def cholesky(Q: Floats) -> Floats:
    """Return the upper triangular R with Q = RᵀR.

    >>> cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 1.],
           [0., 2.]])
    """
    try:
        return np.ascontiguousarray(np.linalg.cholesky(Q).T)
    except np.linalg.LinAlgError:
        raise not_definite(Q) from None


def not_definite(Q: Floats) -> NotPositiveDefiniteError:
    """The error for a symmetric Q without Cholesky factor."""
    smallest = float(np.linalg.eigvalsh(Q)[0])
    return NotPositiveDefiniteError(
        f"the matrix is not positive definite to working precision (smallest eigenvalue {smallest:.3g}, "
        f"largest entry {np.abs(Q).max():.3g}): add to its diagonal or parametrise it by a Cholesky factor"
    )


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


def exact_integers(values: Floats) -> tuple[NDArray[Any], int]:
    """An array of floats without rounding: Python integers, and the power of two by which they are to be divided.

    >>> exact_integers(np.array([0.5, 3.0, -0.75]))
    (array([2, 12, -3], dtype=object), 4)
    """
    mantissas, exponents = np.frexp(values)
    lowest = exponents.min(initial=53)
    integers = (mantissas * 2.0**53).astype(np.int64).astype(object) << (exponents - lowest).astype(object)
    unit = 1 << 53 - int(lowest)
    bits = np.bitwise_or.reduce(integers, axis=None, initial=unit)
    common = bits & -bits
    return integers // common, unit // common


def quotients(numerators: NDArray[Any], denominator: int) -> Floats:
    """An array of Python integers over one of them, each rounded once.

    >>> quotients(np.array([10**400, 1], dtype=object), 2 * 10**400)
    array([0.5, 0. ])
    """
    try:
        return (numerators / denominator).astype(float)
    except OverflowError:
        raise InvalidInputError(
            "a Siegel reduction leads to numbers beyond float64: the imaginary part of omega is too small for it, or z "
            "too large"
        ) from None


def exact_congruence(Q: Floats, U: Integers) -> tuple[NDArray[Any], int]:
    """UᵀQU without rounding: an array of Python integers, and the power of two by which they are to be divided."""
    exact, unit = exact_integers(Q)
    basis = U.astype(object)
    return basis.T @ exact @ basis, unit


def exact_inverse(Q: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """The inverse of a positive definite matrix of Python integers: integers, and the determinant that divides them.

    Bareiss' elimination: every division is exact.

    >>> exact_inverse(np.array([[2, 1], [1, 3]], dtype=object))
    (array([[3, -1],
           [-1, 2]], dtype=object), 5)
    """
    g, determinant = len(Q), 1
    rows = np.hstack([Q, np.eye(g, dtype=object)])
    for i in range(g):
        others = np.arange(g) != i
        rows[others] = (rows[others] * rows[i, i] - np.outer(rows[others, i], rows[i])) // determinant
        determinant = rows[i, i]
    return rows[:, g:], determinant


def in_parts(numerators: NDArray[Any], unit: int) -> tuple[Floats, ...]:
    """The matrix numerators / unit as a sum of three, for exact products with integers.

    The first two hold 30 bits each, on one grid for each column. So n @ part does not round for integers n below
    DIGIT, nor for DIGIT, DIGIT², … times such integers. The third is the rest, rounded.

    >>> [float(part[0, 0]) for part in in_parts(np.array([[2**70 + 2**35 + 1]], dtype=object), 2**70)]
    [1.0, 2.9103830456733704e-11, 8.470329472543003e-22]
    """
    rest, parts = numerators, []
    for _ in range(2):
        lengths = (int(x).bit_length() for x in np.abs(rest).max(axis=0))
        steps = np.array([1 << max(0, length - PART_BITS) for length in lengths], dtype=object)
        part = (rest + steps // 2) // steps * steps
        rest = rest - part
        parts.append(quotients(part, unit))
    return *parts, quotients(rest, unit)


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
    identity = np.eye(len(Q))
    basis, reduced = identity, Q
    for _ in range(MAX_ROUNDS):
        step = reduce_factors(cholesky(reduced)[None])[0]
        if np.array_equal(step, identity):
            break
        if not np.max(np.abs(basis) @ np.abs(step)) <= LARGEST_INTEGER:
            raise InvalidInputError(
                f"the matrix is too unbalanced to be reduced in float64: its diagonal runs from {np.diag(Q).min():.3g} "
                f"to {np.diag(Q).max():.3g} with large entries beside it; rescale the problem"
            )
        basis = basis @ step
        reduced = change_basis(Q, basis.astype(np.int64))
    return basis.astype(np.int64), reduced


def reduce_factors(R: Floats) -> Floats:
    """Unimodular U (n, g, g) that reduce the columns of upper triangular R (n, g, g), as far as float64 tells.

    Where they would need integers that are not exact, NaN.
    """
    R = np.array(R, order="C")
    U = np.broadcast_to(np.eye(R.shape[-1]), R.shape).copy()
    for factor, basis in zip(R, U, strict=True):
        if not lll(factor, basis) <= LARGEST_INTEGER:
            basis[:] = np.nan
    return U


@compiled
def lll(R: Floats, U: Floats) -> float:
    """LLL-reduce the columns of an upper triangular R (g, g) in place, with the columns of U (g, g) changed likewise.

    Returns the largest integer that occurred. Above LARGEST_INTEGER it ends early.
    """
    g, k, largest = len(R), 1, 1.0
    while k < g and largest <= LARGEST_INTEGER:
        for j in range(k - 1, -1, -1):
            q = np.rint(R[j, k] / R[j, j])
            if not abs(q) <= LARGEST_INTEGER:  # NaN, too: R is not of full rank
                return np.inf
            if q != 0.0:
                for i in range(g):
                    R[i, k] -= q * R[i, j]
                    U[i, k] -= q * U[i, j]
                    largest = max(largest, abs(U[i, k]))
        if LOVASZ * R[k - 1, k - 1] ** 2 <= R[k - 1, k] ** 2 + R[k, k] ** 2:
            k += 1
            continue
        for i in range(g):
            R[i, k - 1], R[i, k] = R[i, k], R[i, k - 1]
            U[i, k - 1], U[i, k] = U[i, k], U[i, k - 1]
        length = math.hypot(R[k - 1, k - 1], R[k, k - 1])
        c, s = R[k - 1, k - 1] / length, R[k, k - 1] / length
        for j in range(k - 1, g):  # a reflection makes R triangular again
            R[k - 1, j], R[k, j] = c * R[k - 1, j] + s * R[k, j], s * R[k - 1, j] - c * R[k, j]
        R[k, k - 1], R[k, k] = 0.0, abs(R[k, k])
        k = max(k - 1, 1)
    return largest


def triangular_factors(root: Floats) -> Floats:
    """The upper triangular R (…, g, g) with RᵀR = MᵀM and a positive diagonal, for M (…, k, g) of full column rank."""
    R: Any = np.linalg.qr(root, mode="r")
    return R * np.where(np.diagonal(R, axis1=-2, axis2=-1) < 0, -1.0, 1.0)[..., None]


def integer_inverse(U: Integers) -> Integers:
    """The inverse of a unimodular matrix, exactly: (UᵀU)⁻¹Uᵀ in Python integers.

    >>> integer_inverse(np.array([[1, 10**6], [0, 1]]))
    array([[       1, -1000000],
           [       0,        1]])
    """
    if (np.eye(len(U)) == U).all():  # most bases are reduced already
        return U.copy()
    exact = U.astype(object)
    return (exact_inverse(exact.T @ exact)[0] @ exact.T).astype(np.int64)


def connected_components(adjacent: NDArray[np.bool_]) -> list[Integers]:
    """The groups of indices that a symmetric pattern of non-zeros connects, in increasing order.

    >>> [c.tolist() for c in connected_components(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]) > 0)]
    [[0, 2], [1]]
    """
    label = np.arange(len(adjacent))
    while True:
        smallest = np.minimum(label, np.where(adjacent, label, len(label)).min(axis=1))
        smallest = smallest[smallest]
        if np.array_equal(smallest, label):
            return [np.flatnonzero(label == i) for i in np.unique(label)]
        label = smallest


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
    return np.triu(R / np.diagonal(R, axis1=-2, axis2=-1)[..., None], 1)


def enumerate_points(
    R: Floats,
    radius2: float,
    half_widths: Floats,
    centre: Floats | None = None,
    limit: int = MAX_TERMS,
    n_paired: int = 0,
) -> Integers:
    """All n ∈ ℤ^g whose image R(n − centre) lies within √radius2 of the box |y_i| ≤ half_widths_i.  Returns (terms, g).

    With half_widths = 0 this is an ellipsoid. With ½√d_i and centre 0 (the default) it holds every lattice point within
    √radius2 of *some* point that nearest-plane rounding can leave, so one list serves a whole batch. Points that differ
    in the sign of their first `n_paired` coordinates alone are pairs, of which one is listed.
    More than `limit` points are an error, raised before they take memory.

    >>> enumerate_points(np.eye(2), 1.0, np.zeros(2)).tolist()
    [[0, -1], [-1, 0], [0, 0], [1, 0], [0, 1]]
    """
    middle = np.zeros(len(R)) if centre is None else centre
    return list_points(R[None], np.array([radius2]), half_widths[None], middle[None], limit, n_paired)[0]


def list_points(
    R: Floats, radius2: Floats, half_widths: Floats, centre: Floats, limit: int, n_paired: int
) -> tuple[Integers, Integers]:
    """`enumerate_points` for n lattices: all points (terms, g), and the lattice of each.

    R is (n, g, g), radius2 (n,), half_widths and centre (n, g). Points are found level by level: a level holds the last
    coordinates that can be completed. The last coordinate varies slowest.
    """
    expected = np.inf
    if np.isfinite(radius2).all():
        expected = float(estimate_count(np.diagonal(R, axis1=1, axis2=2) ** 2, radius2, 2 * half_widths).sum())
    if not expected <= limit:
        raise TooManyTermsError(expected, limit)
    origin = np.rint(centre)  # from here on, points are relative to it
    owner, left, levels = np.arange(len(R)), radius2 * (1 + 1e-9), []
    image = (R @ (origin - centre)[..., None])[..., 0]  # of the point whose first coordinates are 0
    for i in range(R.shape[1] - 1, -1, -1):
        scale, box = R[owner, i, i], half_widths[owner, i]
        middle, reach = image[:, i] / scale, (np.sqrt(left) + box) / scale
        lowest = np.ceil(-middle - reach)
        counts = np.maximum(np.floor(reach - middle) - lowest + 1, 0)
        total = counts.sum()
        if total > 2 * limit:  # twice: of pairs, one is kept
            raise TooManyTermsError(total, limit)
        parent = np.repeat(np.arange(len(counts)), counts.astype(np.int64))
        value = np.arange(len(parent)) + (lowest - counts.cumsum() + counts)[parent]
        owner = owner[parent]
        image = image[parent, : i + 1] + R[owner, : i + 1, i] * value[:, None]
        outside = np.maximum(np.abs(image[:, i]) - box[parent], 0.0)
        left = np.maximum(left[parent] - outside**2, 0.0)
        levels.append((value, parent))
    points, index = np.empty((len(owner), R.shape[1])), np.arange(len(owner))
    for i, (value, parent) in enumerate(reversed(levels)):
        points[:, i] = value[index]
        index = parent[index]
    points += origin[owner]
    if n_paired:
        signs = np.sign(points[:, :n_paired])
        first = np.take_along_axis(signs, (signs != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
        points, owner = points[first >= 0], owner[first >= 0]
    if len(points) > limit:
        raise TooManyTermsError(len(points), limit)
    return points.astype(np.int64), owner
