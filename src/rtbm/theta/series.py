"""Sums over the lattice around the largest term: one characteristic, or all half-integer ones."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.errors import InvalidInputError
from rtbm.theta.derivatives import Congruence, with_derivatives
from rtbm.theta.exact import Periods, exact_product, largest_entry, remove_periods
from rtbm.theta.lattice import (
    DIGIT,
    LARGEST_INTEGER,
    cholesky,
    enumerate_points,
    exact_congruence,
    exact_integers,
    in_parts,
    integer_inverse,
    nearest_plane_matrix,
    reduce_basis,
)
from rtbm.theta.truncation import estimate_count, squared_radius


class Series:
    """The terms around the largest one: reduced basis and offsets for the quadratic form 2π Im Ω, and their phases.

    In the reduced basis a term is n + a with a = U⁻¹α. In turns its phase is

        ½(n + a)ᵀX(n + a) + (n + a)·(x + Uᵀβ) = ½nᵀXn + n·(x + shift) + a·x + start,     X = UᵀRe(Ω)U,  x = UᵀRe(z)

    Only its value modulo 1 matters. So a, shift and start are taken modulo 1, and X modulo 1 off its diagonal and
    modulo 2 on it: in exact arithmetic, before they are rounded.
    """

    def __init__(self, omega: Tensor, alpha: Tensor, beta: Tensor, tolerance: float, order: int):
        self.alpha, self.beta, self.order = alpha, beta, order
        form = omega.detach().cpu().numpy()
        form = (form + form.T) / 2
        U, self.imaginary = reduce_basis(form.imag)
        self.basis, self.inverse_basis = U, integer_inverse(U)
        self.R = cholesky(TWO_PI * self.imaginary)
        self.plane = nearest_plane_matrix(self.R)
        self.imaginary_parts = in_parts(*exact_congruence(form.imag, U))
        self.radius2 = self._radius2(np.diag(self.R) ** 2, tolerance, order)

        X, unit = exact_congruence(form.real, U)
        reduced = X % (unit * (1 + np.eye(len(X), dtype=int).astype(object)))
        self.real = (X / unit).astype(float)  # derivatives in α are not periodic
        self.half_real_parts = in_parts(reduced, 2 * unit)
        exact_alpha, exact_beta = (np.array([Fraction(x) for x in c.detach().tolist()]) for c in (alpha, beta))
        a, b = self.inverse_basis.astype(object) @ exact_alpha % 1, U.T.astype(object) @ exact_beta
        Xa = X @ a / unit
        self.shift, self.start = ((Xa + b) % 1).astype(float), float(a @ (Xa / 2 + b) % 1)
        self.a, self.a_parts, self.alpha_parts = a.astype(float), _parts(a), _parts(exact_alpha % 1)

    @property
    def characteristics(self) -> tuple[NDArray[Any], int]:
        """The characteristics (columns, 2g) without rounding: Python integers, and an even number that divides them."""
        exact, unit = exact_integers(torch.cat([self.alpha, self.beta]).detach().cpu().numpy()[None])
        return 2 * exact, 2 * unit

    def moved(self, omega: Tensor, tolerance: float, characteristics: Floats) -> tuple["Series", Integers]:
        """The same kind of series for characteristics (columns, 2g) in [0, 1), and the column of each one."""
        alpha, beta = torch.as_tensor(characteristics[0], device=omega.device).chunk(2)
        return Series(omega, alpha, beta, tolerance, self.order), np.zeros(1, dtype=np.int64)

    @property
    def expected(self) -> float:
        """How many terms there will be: an estimate."""
        norms = np.diag(self.R) ** 2
        return estimate_count(norms, self.radius2, np.sqrt(norms)) if math.isfinite(self.radius2) else math.inf

    @cached_property
    def offsets(self) -> Integers:
        """The terms (terms, g), relative to the lattice point in the middle."""
        return enumerate_points(self.R, self.radius2, np.diag(self.R) / 2)

    @staticmethod
    def _radius2(norms: Floats, tolerance: float, order: int) -> float:
        """The radius for Σ ‖n‖^order exp(−½‖n‖²): beyond it, ‖n‖^order grows slower than the margin it is given."""
        radius2 = squared_radius(norms, math.log(tolerance))
        for _ in range(3 if order else 0):
            radius2 = squared_radius(norms, math.log(tolerance) - 0.5 * order * math.log(radius2))
        return radius2

    @property
    def columns(self) -> int:
        """How many functions are summed."""
        return 1

    @property
    def width(self) -> int:
        """Numbers that a point needs at the same time."""
        return 4 * len(self.offsets)

    def evaluate(self, z: Tensor, omega: Tensor, directions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, 1) for the rows of z."""
        u, _, terms = self._terms(z, omega, directions)
        return u, terms.sum(1, keepdim=True)

    def _terms(self, z: Tensor, omega: Tensor, directions: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """u (points,), the lattice points in the middle (points, g), and the terms (points, terms)."""
        alpha, beta = self.alpha, self.beta

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
        return torch.pi * (y * solved).sum(1), n, terms

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
        half_real = [constant(part) for part in self.half_real_parts]
        half = _product_modulo_one(n, half_real)
        turns = (n * (half + x + constant(self.shift))).sum(1) + x @ constant(self.a) + self.start
        for integers, parts in ((coarse.round(), self.a_parts), (whole, self.alpha_parts)):
            turns = turns + _product_modulo_one(integers, [constant(part) for part in parts])[:, 0]
        delta = constant(self.offsets)
        turns = (turns - turns.round())[:, None] + (_product_modulo_one(delta, half_real) * delta).sum(1)
        turns = turns + (2 * half + x + constant(self.shift)) @ delta.mT
        return turns - turns.round()


class AllCharacteristics(Series):
    """All half-integer characteristics at once, from the terms of θ(z/2 | Ω/4).

    With α = a/2 and β = b/2, the term n of θ[α,β](z|Ω) is the term N = 2n + a of θ(z/2 | Ω/4) times i^(N·b). So the
    terms are added by N modulo 4, and the 4^g sums are transformed in each coordinate (a Walsh-Hadamard transform).
    """

    def __init__(self, omega: Tensor, tolerance: float, order: int):
        zero = torch.zeros(len(omega), dtype=torch.float64, device=omega.device)
        super().__init__(omega / 4, zero, zero, tolerance, order)

    @property
    def characteristics(self) -> tuple[NDArray[Any], int]:
        """The half-integer characteristics (4^g, 2g): integers, and the 2 that divides them."""
        return np.indices([2] * (2 * len(self.basis))).reshape(2 * len(self.basis), -1).T.astype(object), 2

    def moved(self, omega: Tensor, tolerance: float, characteristics: Floats) -> tuple[Series, Integers]:
        """The series for another Ω, and the columns of these characteristics (4^g, 2g)."""
        bits = 2 ** np.arange(2 * len(omega) - 1, -1, -1)
        return AllCharacteristics(omega, tolerance, self.order), (2 * characteristics @ bits).astype(np.int64)

    @property
    def columns(self) -> int:
        """How many functions are summed."""
        return 4 ** len(self.basis)

    @property
    def width(self) -> int:
        """Numbers that a point needs at the same time."""
        return 4 * len(self.offsets) + len(self.basis) * self.columns

    def evaluate(self, z: Tensor, omega: Tensor, directions: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, 4^g) for the rows of z; the column has the bits of a, then those of b."""
        u, n, terms = self._terms(z / 2, omega / 4, [direction / 2 for direction in directions])
        g = len(self.basis)
        powers = 4 ** torch.arange(g - 1, -1, -1, device=z.device)
        offsets = torch.as_tensor(self.offsets % 4, device=z.device)
        sums = terms.new_zeros(len(z), 4**g).index_add(1, (offsets * powers).sum(1), terms)
        digits = np.indices([4] * g).reshape(g, -1)
        classes = torch.as_tensor((self.inverse_basis % 4 @ digits % 4).T, device=z.device)  # N = Un
        sums = sums.gather(1, ((classes - n.long()[:, None]) % 4 * powers).sum(2)).reshape(-1, *[4] * g)
        transform = sums.new_tensor([[1j ** (N * b) * (a == N % 2) for N in range(4)] for a in (0, 1) for b in (0, 1)])
        for _ in range(g):  # the first coordinate goes last, g times
            sums = torch.tensordot(sums, transform, ([1], [1]))
        bits = [*range(1, 2 * g, 2), *range(2, 2 * g + 1, 2)]
        return u, sums.reshape(-1, *[2] * (2 * g)).permute(0, *bits).reshape(-1, 4**g)


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
