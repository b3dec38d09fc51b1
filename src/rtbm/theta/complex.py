"""The Riemann theta function of a complex matrix, with characteristics and derivatives of any order."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.errors import InvalidInputError
from rtbm.theta.chunks import in_chunks
from rtbm.theta.derivatives import Congruence, with_derivatives
from rtbm.theta.exact import Periods, exact_product, largest_entry, remove_periods
from rtbm.theta.lattice import (
    DIGIT,
    LARGEST_INTEGER,
    cholesky,
    enumerate_points,
    exact_congruence,
    in_parts,
    integer_inverse,
    nearest_plane_matrix,
    reduce_basis,
)
from rtbm.theta.truncation import squared_radius
from rtbm.validation import (
    as_complex,
    as_real,
    check_positive_definite,
    check_same_device,
    check_symmetric,
    check_tolerance,
    check_vector,
    check_vectors,
)

LARGEST_LOG = 700.0
"""θ itself is returned up to this logarithm. Beyond 709 it would overflow."""


def riemann_theta(
    z: Any,
    omega: Any,
    *,
    derivatives: Sequence[Any] = (),
    characteristic: tuple[Any, Any] | None = None,
    tolerance: float = 1e-12,
    parts: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The Riemann theta function of a general complex matrix::

        θ[α,β](z|Ω) = Σ_{n∈ℤ^g} exp(2πi(½(n+α)ᵀΩ(n+α) + (n+α)ᵀ(z+β)))

    Parameters
    ----------
    z : (..., g)
        Complex or real.
    omega : (g, g)
        Complex, symmetric, with positive definite imaginary part.
    derivatives : sequence of (g,), default=()
        Direction vectors; the result is the directional derivative of order len(derivatives).
    characteristic : pair of (g,), default=None
        The real vectors α and β; by default both are zero.
    tolerance : float, default=1e-12
        Bounds the truncation error of w below. (θ has zeros, so no bound can be relative to θ itself.) With derivatives
        it is in units of Π_j 2π(‖d_j‖ + abs(d_j·n₀)), with ‖d‖² = dᵀ(2π Im Ω)⁻¹d and n₀ the lattice point next to
        −(Im Ω)⁻¹Im(z). Rounding adds about 1e-15·(1 + abs(n₀)) to w, with n₀ in the reduced basis; it does not grow
        with Re(Ω), Re(z) or the condition of Im(Ω). u has a relative error of about 1e-16.
    parts : bool, default=False
        If true, return (u, w) with θ = exp(u)·w and u = π Im(z)ᵀ(Im Ω)⁻¹Im(z). Without derivatives w is bounded, with
        them it grows like a power of z: nothing overflows.

    Returns
    -------
    Tensor (...)
        Complex; or the pair (u real, w complex). Differentiable in z and Ω.

    Examples
    --------
    >>> riemann_theta([0.0], [[1j]])  # π^¼ / Γ(¾)
    tensor(1.0864+0.j, dtype=torch.complex128)
    >>> u, w = riemann_theta([1000j], [[1j]], parts=True)
    >>> u, w
    (tensor(3141592.6536, dtype=torch.float64), tensor(1.0864+0.j, dtype=torch.complex128))
    """
    omega = check_symmetric(as_complex(omega, "omega"), "omega")
    check_positive_definite(omega.imag, "the imaginary part of omega")
    check_tolerance(tolerance)
    g = omega.shape[0]
    if not isinstance(derivatives, Sequence | np.ndarray | Tensor):
        raise InvalidInputError(f"derivatives must be a sequence of vectors ({g},), got {derivatives!r}")
    z = check_vectors(as_complex(z, "z"), "z", g)
    check_same_device(z, "z", omega, "omega")
    directions = [
        check_vector(as_complex(d, f"derivatives[{i}]"), f"derivatives[{i}]", g).to(omega.device)
        for i, d in enumerate(derivatives)
    ]
    alpha, beta = _characteristic(characteristic, omega)
    series = _Series(omega, alpha, beta, tolerance, len(directions))
    rows = z.reshape(-1, g)

    def evaluate(rows: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        return series.evaluate(rows, omega, alpha, beta, directions)

    u, w = in_chunks(evaluate, rows, [omega], 4 * len(series.offsets)) if len(rows) else (rows[:, 0].real, rows[:, 0])
    u, w = u.reshape(z.shape[:-1]), w.reshape(z.shape[:-1])
    if parts:
        return u, w
    largest = float(u.detach().amax()) if u.numel() else 0.0
    if largest > LARGEST_LOG:
        raise InvalidInputError(
            f"θ overflows: its logarithm reaches {largest:.4g}. Pass parts=True to get (u, w) with θ = exp(u)·w"
        )
    return torch.exp(u) * w


class _Series:
    """The terms around the largest one: reduced basis and offsets for the quadratic form 2π Im Ω, and their phases.

    In the reduced basis a term is n + a with a = U⁻¹α. In turns its phase is

        ½(n + a)ᵀX(n + a) + (n + a)·(x + Uᵀβ) = ½nᵀXn + n·(x + shift) + a·x + start,     X = UᵀRe(Ω)U,  x = UᵀRe(z)

    Only its value modulo 1 matters. So a, shift and start are taken modulo 1, and X modulo 1 off its diagonal and
    modulo 2 on it: in exact arithmetic, before they are rounded.
    """

    def __init__(self, omega: Tensor, alpha: Tensor, beta: Tensor, tolerance: float, order: int):
        form = omega.detach().cpu().numpy()
        form = (form + form.T) / 2
        U, self.imaginary = reduce_basis(form.imag)
        self.basis, self.inverse_basis = U, integer_inverse(U)
        R = cholesky(TWO_PI * self.imaginary)
        self.plane = nearest_plane_matrix(R)
        self.imaginary_parts = in_parts(*exact_congruence(form.imag, U))
        radius2 = self._radius2(np.diag(R) ** 2, tolerance, order)
        self.offsets: Integers = enumerate_points(R, radius2, np.diag(R) / 2)

        X, unit = exact_congruence(form.real, U)
        reduced = X % (unit * (1 + np.eye(len(X), dtype=int).astype(object)))
        self.real = (reduced / unit).astype(float)
        self.half_real_parts = in_parts(reduced, 2 * unit)
        exact_alpha, exact_beta = (np.array([Fraction(x) for x in c.detach().tolist()]) for c in (alpha, beta))
        a, b = self.inverse_basis.astype(object) @ exact_alpha % 1, U.T.astype(object) @ exact_beta
        Xa = X @ a / unit
        self.shift, self.start = ((Xa + b) % 1).astype(float), float(a @ (Xa / 2 + b) % 1)
        self.a, self.a_parts, self.alpha_parts = a.astype(float), _parts(a), _parts(exact_alpha % 1)

    @staticmethod
    def _radius2(norms: Floats, tolerance: float, order: int) -> float:
        """The radius for Σ ‖n‖^order exp(−½‖n‖²): beyond it, ‖n‖^order grows slower than the margin it is given."""
        radius2 = float(squared_radius(norms, 0.0, tolerance))
        for _ in range(3 if order else 0):
            radius2 = float(squared_radius(norms, 0.0, tolerance * radius2 ** (-order / 2)))
        return radius2

    def evaluate(
        self, z: Tensor, omega: Tensor, alpha: Tensor, beta: Tensor, directions: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(u, w) for the rows of z."""

        def constant(array: Any) -> Tensor:
            return torch.as_tensor(array, dtype=torch.float64, device=z.device)

        U, delta = constant(self.basis), constant(self.offsets)
        X, Y = (
            Congruence.apply(part, U, constant(value))
            for part, value in ((omega.real, self.real), (omega.imag, self.imaginary))
        )
        a = with_derivatives(constant(self.a), alpha @ constant(self.inverse_basis).mT)
        coarse, rest = exact_product(z.imag, torch.zeros_like(z.imag), U)
        y = coarse + rest
        factor = torch.linalg.cholesky(Y)
        solved = torch.cholesky_solve(y.mT, factor).mT
        largest = largest_entry(solved)
        if largest > LARGEST_INTEGER:
            raise InvalidInputError(
                f"Im(z) is too large: (Im Ω)⁻¹Im(z) reaches {largest:.3g}, and float64 tells lattice points apart up "
                f"to {LARGEST_INTEGER:.3g}"
            )
        with torch.no_grad():
            parts = tuple(constant(part) for part in self.imaginary_parts)
            periods = Periods(torch.cholesky_inverse(factor), parts, constant(self.plane))
            n, high, low = remove_periods(-coarse, -rest - a @ Y, periods, largest > DIGIT)
            turns = self._turns(n, z.real, constant)
        # exponent(n + δ) = exponent(n) + 2πi(½δᵀΩδ + δᵀ(z + Ωn)), with Im(z + Ωn) small
        v = -(high + low)
        if torch.is_grad_enabled() and any(t.requires_grad for t in (z, omega, alpha, beta)):
            centre, x = n + a, (z.real + beta) @ U
            v = with_derivatives(v, y + centre @ Y)
            slope = x + centre @ X
            quadratic = 0.5 * ((delta @ X) * delta).sum(1) + 0.5 * (centre * (x + slope)).sum(1)[:, None]
            turns = with_derivatives(turns, quadratic + slope @ delta.mT)
        whitened = torch.linalg.solve_triangular(factor, v.mT, upper=False)
        decay = 0.5 * ((delta @ Y) * delta).sum(1) + v @ delta.mT + 0.5 * (whitened**2).sum(0)[:, None]
        terms = torch.polar(torch.exp(-TWO_PI * decay), TWO_PI * turns)
        for direction in directions:
            local = direction @ U.to(direction.dtype)
            terms = terms * (2j * torch.pi) * ((n + a).to(local.dtype) @ local)[:, None] + terms * (
                2j * torch.pi * (delta.to(local.dtype) @ local)
            )
        return torch.pi * (y * solved).sum(1), terms.sum(1)

    def _turns(self, n: Tensor, real: Tensor, constant: Callable[[Any], Tensor]) -> Tensor:
        """The phases (points, terms) of n + a + δ in turns, modulo 1, for Re(z) = real."""
        whole = real.round()
        largest = largest_entry(whole)
        if largest > LARGEST_INTEGER and any(part.any() for part in self.alpha_parts):
            raise InvalidInputError(
                f"Re(z) is too large for a characteristic: {largest:.3g}, and float64 multiplies it by α exactly up to "
                f"{LARGEST_INTEGER:.3g}"
            )
        coarse, rest = exact_product(real - whole, torch.zeros_like(real), constant(self.basis))
        x = (coarse - coarse.round()) + rest
        half = _product_modulo_one(n, [constant(part) for part in self.half_real_parts])
        turns = (n * (half + x + constant(self.shift))).sum(1) + x @ constant(self.a) + self.start
        for integers, parts in ((coarse.round(), self.a_parts), (whole, self.alpha_parts)):
            turns = turns + _product_modulo_one(integers, [constant(part) for part in parts])[:, 0]
        delta = constant(self.offsets)
        turns = (turns - turns.round())[:, None] + 0.5 * ((delta @ constant(self.real)) * delta).sum(1)
        turns = turns + (2 * half + x + constant(self.shift)) @ delta.mT
        return turns - turns.round()


def _parts(x: NDArray[Any]) -> tuple[Floats, ...]:
    """A vector of binary fractions as a column in parts, see `lattice.in_parts`."""
    unit = max(fraction.denominator for fraction in x)
    return in_parts(np.array([[fraction.numerator * (unit // fraction.denominator)] for fraction in x]), unit)


def _product_modulo_one(n: Tensor, parts: list[Tensor]) -> Tensor:
    """n @ Σ parts modulo 1 for integers n, exact but for the rounding of the last sum."""
    total = torch.zeros_like(n @ parts[0])
    for scale in (DIGIT**2, DIGIT, 1.0) if largest_entry(n) > DIGIT else (1.0,):
        digit = scale * (n / scale).round()
        n = n - digit
        for part in parts:
            product = digit @ part
            total = total + (product - product.round())
    return total


def _characteristic(characteristic: tuple[Any, Any] | None, omega: Tensor) -> tuple[Tensor, Tensor]:
    g = omega.shape[0]
    if characteristic is None:
        zero = torch.zeros(g, dtype=torch.float64, device=omega.device)
        return zero, zero
    if not isinstance(characteristic, Sequence | np.ndarray | Tensor) or len(characteristic) != 2:
        raise InvalidInputError(
            f"characteristic must be a pair (alpha, beta) of vectors ({g},), got {characteristic!r}"
        )
    alpha, beta = (
        check_vector(as_real(c, name), name, g).to(omega.device, torch.float64)
        for c, name in zip(characteristic, ("alpha", "beta"), strict=True)
    )
    return alpha, beta
