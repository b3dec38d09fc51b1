"""Certified values and derivatives from FLINT, in interval arithmetic, and moments from exact fractions and mpmath."""

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from rtbm.theta.lattice import cholesky, enumerate_points, nearest_point, reduce_basis

flint = pytest.importorskip("flint", reason="the certified values come from python-flint")
mpmath = pytest.importorskip("mpmath")
Floats = NDArray[np.float64]


def flint_log_theta(z: Floats, Q: Floats, phase: str = "I") -> float:
    """log θ̃ at one point z (g,), exact for the given floating-point numbers: precision rises until the ball is tiny."""
    previous, precision = flint.ctx.prec, 128
    try:
        while True:
            flint.ctx.prec = precision
            value = _theta(z, Q, phase).log()
            if value.rad() < 1e-14 * max(1, abs(float(value.mid()))):
                return float(value.mid())
            precision *= 4
            if precision > 100_000:
                raise ArithmeticError(f"FLINT does not resolve this value: {value}")
    finally:
        flint.ctx.prec = previous


def _theta(z: Floats, Q: Floats, phase: str) -> "flint.arb":
    tau, argument, _ = _complex_arguments(z, Q, phase)
    return tau.theta(argument)[0, 0].real


def _complex_arguments(z: Floats, Q: Floats, phase: str) -> tuple["flint.acb_mat", "flint.acb_mat", "flint.acb"]:
    """τ, the argument factor·z, and the factor with θ̃(z|Q) = θ(factor·z|τ), or θ̃(iz|Q) in phase II."""
    two_pi, g = 2 * flint.arb.pi(), len(Q)
    tau = flint.acb_mat(g, g, [flint.acb(0, flint.arb(float(q)) / two_pi) for q in Q.flat])
    factor = (flint.acb(0, -1) if phase == "I" else flint.acb(1)) / two_pi
    return tau, flint.acb_mat(g, 1, [factor * flint.arb(float(x)) for x in z]), factor


class Moments(NamedTuple):
    """The first two z-derivatives of log θ̃ at one point, and how far log θ̃ is from ½zᵀQ⁻¹z (phase I) or 0."""

    mean: Floats  # (g,)
    covariance: Floats  # (g, g)
    depth: float  # the exponents that cancel in a sum around the nearest lattice point are at most four times as large


def flint_moments(z: Floats, Q: Floats, phase: str = "I") -> Moments:
    """The moments at one point z (g,), exact for the given floating-point numbers.

    Precision rises until the balls are tiny beside √(Q⁻¹)_ii, the natural size of a derivative by z_i.
    """
    bits, size, column = 128, np.sqrt(np.diag(np.linalg.inv(Q)).min()), flint_matrix(z)
    while bits < 100_000:
        with precision(bits):
            value, gradient, hessian = _derivatives(z, Q, phase)
            mean = gradient / value
            covariance = hessian / value - mean * mean.transpose()
            if _radius(mean) < 1e-14 * size and _radius(covariance) < 1e-14 * size**2:
                parabola = (column.transpose() * flint_matrix(Q).solve(column))[0, 0] / 2 if phase == "I" else 0
                depth = abs(value.log() - parabola)
                return Moments(rounded(mean).real[:, 0], rounded(covariance).real, float(depth.mid()))
        bits *= 2
    raise ArithmeticError(f"FLINT does not resolve these derivatives: {mean}, {covariance}")


def _derivatives(z: Floats, Q: Floats, phase: str) -> tuple["flint.acb", "flint.acb_mat", "flint.acb_mat"]:
    """θ̃, its gradient (g, 1) and its second derivatives (g, g) in z, from FLINT's Taylor coefficients."""
    tau, argument, factor = _complex_arguments(z, Q, phase)
    value, *coefficients = tau.theta_jets(argument, 2).table()[0]  # 1, z_1, …, z_g, z_1², z_1z_2, …, z_g²
    g = len(Q)
    hessian = flint.acb_mat(g, g)
    for i, j, coefficient in zip(*np.triu_indices(g), coefficients[g:], strict=True):
        hessian[i, j] = hessian[j, i] = coefficient * factor**2 * (2 if i == j else 1)
    return value, flint.acb_mat(g, 1, coefficients[:g]) * factor, hessian


def _radius(matrix: "flint.acb_mat") -> float:
    return max(float(x.rad()) for x in matrix.entries())


@contextmanager
def precision(bits: int) -> Iterator[None]:
    """FLINT's precision, for a while."""
    previous, flint.ctx.prec = flint.ctx.prec, bits
    try:
        yield
    finally:
        flint.ctx.prec = previous


def flint_matrix(values: NDArray) -> "flint.acb_mat":
    """A matrix of the given complex numbers, or a column of them, without rounding."""
    columns = values.shape[1] if values.ndim == 2 else 1
    return flint.acb_mat(len(values), columns, [flint.acb(float(x.real), float(x.imag)) for x in values.flat])


def rounded(matrix: "flint.acb_mat") -> NDArray[np.complex128]:
    """A FLINT matrix in float64: real and imaginary parts rounded once."""
    values = [complex(float(x.real.mid()), float(x.imag.mid())) for x in matrix.entries()]
    return np.array(values).reshape(matrix.nrows(), matrix.ncols())


def flint_all(z: NDArray, omega: NDArray) -> tuple[float, NDArray[np.complex128]]:
    """u = πyᵀ(Im Ω)⁻¹y with y = Im z, and θ_ab(z|Ω)·exp(−u) (4^g,) in the order of acb_theta_all."""
    with precision(2000):
        y = flint_matrix(z.imag)
        u = flint.acb.pi() * (y.transpose() * flint_matrix(omega.imag).solve(y))[0, 0]
        values = [value * (-u).exp() for value in flint_matrix(omega).theta(flint_matrix(z)).entries()]
        assert all(value.rad() < 1e-18 * max(1.0, abs(complex(value.mid()))) for value in values)
        return float(u.real.mid()), np.array([complex(value.mid()) for value in values])


def flint_part(z: NDArray, omega: NDArray, alpha: Floats, beta: Floats, derivative: NDArray | None = None) -> complex:
    """θ[α,β](z|Ω)·exp(−u) for any α, by θ[α,β](z) = exp(2πi(½αᵀΩα + α·(z+β))) θ(z + β + Ωα) in FLINT's arithmetic.

    With `derivative` (order, g), the same direction `order` times, it is that derivative of θ, times exp(−u). Precision
    rises until the ball is tiny.
    """
    bits = 600
    while True:
        with precision(bits):
            value = _part(z, omega, alpha, beta, derivative)
            if value.rad() < 1e-18 * max(1.0, abs(complex(value.mid()))):
                return complex(value.mid())
        bits *= 2
        if bits > 100_000:
            raise ArithmeticError(f"FLINT does not resolve this value: {value}")


def _part(z: NDArray, omega: NDArray, alpha: Floats, beta: Floats, derivative: NDArray | None) -> "flint.acb":
    tau, a, argument, y = map(flint_matrix, (omega, alpha, z, z.imag))
    argument = argument + flint_matrix(beta)
    u = flint.acb.pi() * (y.transpose() * flint_matrix(omega.imag).solve(y))[0, 0]
    turn = 2 * flint.acb.pi() * flint.acb(0, 1)

    def part(argument: "flint.acb_mat") -> "flint.acb":
        factor = (turn * (a.transpose() * (tau * a / 2 + argument))[0, 0]).exp()
        return tau.theta(argument + tau * a)[0, 0] * factor * (-u).exp()

    if derivative is None:
        return part(argument)
    # a Taylor coefficient, by Cauchy's integral on a small circle: 16 points alias at a relative r^16
    order, direction, r = len(derivative), flint_matrix(derivative[0]), flint.acb(2) ** -80
    roots = [(turn * k / 16).exp() for k in range(16)]
    total = sum((part(argument + direction * (r * root)) * root**-order for root in roots), flint.acb(0))
    return total / 16 / r**order * flint.acb(order + 1).gamma()


def exact_moments(z: Floats, Q: Floats) -> tuple[float, Floats, Floats, Floats, Floats]:
    """log θ̃ and its first three derivatives in phase I, for the given numbers, and their natural size √(Q⁻¹)_ii (g,).

    The lattice point in the middle and z − Qn are exact fractions, and the terms have 50 digits. The library only
    chooses a basis and a list of points; neither can spoil the result as long as the list is long enough.
    """
    basis, gram = reduce_basis(Q)
    U, exact_Q = basis.astype(object), np.vectorize(Fraction, otypes=[object])(Q)
    G, target = U.T @ exact_Q @ U, U.T @ np.array([Fraction(x) for x in z.tolist()])
    R, n = cholesky(gram), np.zeros(len(z), dtype=object)
    for _ in range(10):  # towards the nearest point, from one that is only as good as float64
        centre = np.linalg.solve(gram, (target - G @ n).astype(float))
        n = n + np.array([int(x) for x in nearest_point(R, centre)], dtype=object)
    s = target - G @ n
    points = enumerate_points(R, 100.0 + (np.diag(R) ** 2).sum() / 4, np.diag(R) / 2).astype(object)
    with mpmath.workdps(50):
        exponents = [p @ s - p @ G @ p / 2 for p in points]
        weights = [mpmath.exp(mpmath.mpf(e.numerator) / e.denominator) for e in map(Fraction, exponents)]
        total = mpmath.fsum(weights)
        probability = np.array(weights) / total
        offset = Fraction(n @ (target + s)) / 2
        log_theta = float(mpmath.mpf(offset.numerator) / offset.denominator + mpmath.log(total))
        local = probability @ points
        mean = U @ (n + local)
        rest = (points - local) @ U.T
        covariance = (probability[:, None] * rest).T @ rest
        third = np.einsum("t,ti,tj,tk->ijk", probability, rest, rest, rest)
    size = np.sqrt(np.diag(basis @ np.linalg.inv(gram) @ basis.T))
    return log_theta, mean.astype(float), covariance.astype(float), third.astype(float), size
