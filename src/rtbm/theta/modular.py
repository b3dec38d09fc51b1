"""The theta function under the modular group: from (z, Ω) to a small z″ and a reduced Ω′, with derivatives."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.errors import InvalidInputError
from rtbm.theta.derivatives import with_derivatives
from rtbm.theta.exact import Periods, exact_product, largest_entry, remove_periods
from rtbm.theta.lattice import (
    DIGIT,
    LARGEST_INTEGER,
    exact_integers,
    exact_inverse,
    in_parts,
    nearest_plane_matrix,
    quotients,
)
from rtbm.theta.series import Directions, Series
from rtbm.theta.siegel import Exact, as_array, reduce

SMALL_UNIT = 2**12
"""Characteristics over a unit below this are transformed in int64, with room for its fourth power. Beyond, they are
Python integers."""


class Points(NamedTuple):
    """Arguments z (points, g) as seen from Ω′: Nz = z″ + Ω′r + t with integers r and t."""

    z: Tensor  # z″
    u: Tensor  # π Im(z)ᵀ(Im Ω)⁻¹Im(z)
    sigma: Tensor  # Nᵀ(Im Ω′)⁻¹Im(z″) − (Im Ω)⁻¹Im(z)
    turns: Tensor  # w(z|Ω) has this phase more than w(z″|Ω′) …
    by_alpha: Tensor  # … and these phases (points, k) and (points, m) for characteristics
    by_beta: Tensor


class Transformation:
    """The way from Ω to a reduced Ω′, for arguments and characteristics: with inversions, or by its basis and Re Ω alone.

    A point z = Ωp + q has real coordinates (p, q), on which the group acts by integers, as it does on characteristics
    (α, β). The given floats are binary fractions, so all of this is exact. Phases are rounded only modulo 1, and z″
    only when it is small. In these coordinates w changes by phases and by the constant |det(CΩ + D)|^−½:

        w[α,β](z|Ω) = factor · e(½(α·β − a·b) − a·d + ½(p′·Re(Nz) − p·Re(z))) w[a+c, b+d](Nz|Ω′)

    with e(x) = exp(2πix), (a, b) = M̂(α, β), (p′, q′) = M̂(p, q), M̂ = [[D, −C], [−B, A]], and the factor and the
    characteristic (c, d) of `siegel.Reduction`.

    The characteristics (m, 2g) are integers, to be divided by an even unit.
    """

    def __init__(self, omega: Tensor, characteristics: Exact, unit: int, inverts: bool):
        self.given = as_array(omega)
        self.way = reduce(self.given, inverts)
        A, B, C, D = self.way.blocks
        self.inverts = bool(C.any())
        self.action = np.block([[D, -C], [-B, A]])
        self.form, N, G = self.way.rounded()
        self.omega, self.N, self.G = (torch.as_tensor(x, device=omega.device) for x in (self.form, N, G))
        reduced, turns = self._move(characteristics, unit)
        self.unit, self.turns = unit, torch.as_tensor(turns, device=omega.device)
        halves = [
            np.unique(quotients(half, unit), axis=0, return_index=True, return_inverse=True)
            for half in np.split(reduced, 2, axis=1)
        ]
        (self.a, first, rows), (self.b, second, columns) = halves
        self.alphas, self.betas = reduced[first, : len(C)], reduced[second, len(C) :]
        self.columns = torch.as_tensor(rows.ravel() * len(self.b) + columns.ravel(), device=omega.device)
        self._prepare()

    def _move(self, characteristics: Exact, unit: int) -> tuple[Exact, Floats]:
        """The characteristics as seen from Ω′, in [0, unit), and the phases that w(z|Ω) has more than w(Nz|Ω′)."""
        period = 2 * unit**2
        kind: type = np.int64 if unit < SMALL_UNIT else object
        given, action, shift = (
            (x % period).astype(kind)
            for x in (characteristics, self.action, self.way.characteristic * (unit // 2))
        )
        moved = given @ action.T % period
        reduced = (moved + shift) % unit
        alpha, beta, a, b, c, _, _, t = (
            half for x in (given, moved, reduced, moved + shift - reduced) for half in np.split(x, 2, axis=1)
        )
        products = (alpha * beta - a * b + 2 * c * t).sum(1) - 2 * a @ np.split(shift, 2)[1]
        factor = self.way.factor
        return reduced, quotients(products % period, period) + math.atan2(factor.imag, factor.real) / TWO_PI

    def _prepare(self) -> None:
        """What `locate` takes of the matrices."""
        raise NotImplementedError

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′."""
        raise NotImplementedError

    def evaluate(
        self, z: Tensor, omega: Tensor, directions: Tensor, series: Series, shift: tuple[Tensor, Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, m) with derivatives in z, Ω and the characteristic, by a series for Ω′.

        Values are those of `locate`. Derivatives come from δ = z − z₀ and Δ = Ω − Ω₀, which are zero but have graphs.
        With the N, G and phase at z₀ and Ω₀, and with e(x) = exp(2πi Re x),

            w(z|Ω) = phase · |det(CΩ₀ + D)|^−½ det K^½ e(½(σ·δ + τ·η)) w(z″ + NKη | Ω₀′ + NKΔNᵀ)
            K = (1 + ΔG)⁻¹,     η = δ + Δσ,     σ = Nᵀa − p,     τ = σ − GKη

        This is exact, not a Taylor series. A change (ε, ζ) of the characteristic adds Ωε + ζ to δ, and ε·(z + β + ½Ωε)
        to the exponent; β and these two are `shift`.
        """
        with torch.no_grad():
            points = self.locate(z)
        omega = (omega + omega.mT) / 2
        beta, epsilon, zeta = shift
        delta, Delta = z - z.detach() + omega @ epsilon + zeta, omega - omega.detach()
        change = torch.eye(len(omega), dtype=omega.dtype, device=omega.device) + Delta @ self.G
        N, G = (matrix @ torch.linalg.inv(change) for matrix in (self.N, self.G))
        eta = delta + points.sigma @ Delta
        slope = points.sigma - eta @ G
        exponent = 0.5 * ((points.sigma * delta + slope * eta).sum(1)) + (z + beta + 0.5 * omega @ epsilon) @ epsilon
        derivatives = Directions(
            (slope + epsilon) @ directions.mT,
            directions @ N.mT,
            directions @ G @ directions.mT * (0.5j / torch.pi),
        )
        u, w = series.evaluate(points.z + eta @ N.mT, self.omega + N @ Delta @ self.N.mT, derivatives)
        phases = (points.by_alpha[:, :, None] + points.by_beta[:, None]).flatten(1)[:, self.columns] + self.turns
        phases = phases + (points.turns + exponent.real)[:, None]
        amplitude = abs(self.way.factor) * torch.linalg.det(change) ** -0.5
        phases = torch.polar(torch.ones_like(phases), TWO_PI * phases)
        return with_derivatives(points.u, u - TWO_PI * exponent.imag), amplitude * phases * w[:, self.columns]


class BasisChange(Transformation):
    """A transformation without inversions, whose points are located in float64 digits: fast for many of them."""

    def _prepare(self) -> None:
        (real, imaginary), unit, U = self.way.parts, self.way.unit, self.way.blocks[0].T
        alphas, betas = self.alphas.astype(object), self.betas.astype(object)
        self.basis = torch.as_tensor(U.astype(float), device=self.omega.device)
        whole = unit * self.unit
        steps = np.hstack([self.unit * real, 2 * (alphas @ real).T, 2 * unit * betas.T])
        shifts = np.hstack([alphas @ U.T, alphas]).T
        self.parts, self.step_parts, self.shift_parts = (
            [torch.as_tensor(part, device=self.omega.device) for part in in_parts(*exact)]
            for exact in ((imaginary, unit), (steps % (2 * whole), 2 * whole), (shifts % self.unit, self.unit))
        )

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′. With n = −r, the exact phases of Re(z)·α and of n are

        ½nᵀX′n + n·x,     x = UᵀRe(z),     Re(z″) = x + X′n − t
        """
        whole = z.real.round()
        (turned, x), (coarse, rest) = (
            exact_product(part, torch.zeros_like(whole), self.basis) for part in (z.real - whole, z.imag)
        )
        y, factor = coarse + rest, torch.linalg.cholesky(self.omega.imag)
        p = torch.cholesky_solve(y.mT, factor).mT
        largest = largest_entry(p)
        _check_size(largest, "Im(z) is too large: (Im Ω)⁻¹Im(z) reaches", "tells lattice points apart")
        if self.alphas.any():
            _check_size(largest_entry(whole), "Re(z) is too large for a characteristic:", "multiplies it by α exactly")
        plane = torch.as_tensor(nearest_plane_matrix(factor.mT.cpu().numpy()), device=z.device)
        periods = Periods(torch.cholesky_inverse(factor), tuple(self.parts), plane)
        n, high, low = remove_periods(-coarse, -rest, periods, largest > DIGIT)
        half, by_alpha, by_beta = _product_modulo_one(n, self.step_parts).split(
            [n.shape[1], len(self.a), len(self.b)], 1
        )
        x = turned - turned.round() + x
        there = x + 2 * half
        there = there - there.round()
        by_alpha = by_alpha + _product_modulo_one(torch.hstack([whole, turned.round()]), self.shift_parts)
        return Points(
            z=torch.complex(there, -(high + low)),
            u=torch.pi * (y * p).sum(1),
            sigma=(n @ self.basis.mT).to(z.dtype),
            turns=(n * (half + x)).sum(1),
            by_alpha=by_alpha + (x - there) @ torch.as_tensor(self.a, device=z.device).mT,
            by_beta=by_beta,
        )


class Inversion(Transformation):
    """A transformation with inversions, whose points are located in Python integers."""

    def _prepare(self) -> None:
        (self.real, imaginary), self.scale = exact_integers(np.stack([self.given.real, self.given.imag]))
        self.inverse, self.determinant = exact_inverse(imaginary)

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′."""
        argument = z.cpu().numpy()
        (x, y), unit = exact_integers(np.stack([argument.real, argument.imag]))
        solved, whole = y @ self.inverse, self.determinant * unit
        p, q = solved * self.scale, x * self.determinant - solved @ self.real
        moved = np.hstack([p, q]) @ self.action.T
        steps = (2 * moved + whole) // (2 * whole)
        (a, b), (r, t) = np.split(moved - steps * whole, 2, axis=1), np.split(steps, 2, axis=1)
        products = unit * (a * t - r * b + r * t * whole).sum(1) - (p * x).sum(1)

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return torch.as_tensor(quotients(numerators, denominator), device=z.device)

        def phases(steps: Exact, characteristics: Exact) -> Tensor:
            return rounded((steps % self.unit).astype(characteristics.dtype) @ characteristics.T % self.unit, self.unit)

        centre = rounded(a, whole).to(z.dtype)
        at = centre @ self.omega + rounded(b, whole)
        return Points(
            z=at,
            u=torch.pi * rounded((p * y).sum(1), whole * unit),
            sigma=centre @ self.N - rounded(p, whole),
            turns=0.5 * (centre * at.real).real.sum(1) + rounded(products % (2 * whole * unit), 2 * whole * unit),
            by_alpha=phases(t, self.alphas),
            by_beta=phases(-r, self.betas),
        )


def _check_size(largest: float, what: str, purpose: str) -> None:
    """Check that integers are exact in float64."""
    if largest > LARGEST_INTEGER:
        raise InvalidInputError(f"{what} {largest:.3g}, and float64 {purpose} up to {LARGEST_INTEGER:.3g}")


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
