"""The theta function under the modular group: from (z, Ω) to a small z″ and a reduced Ω′, with derivatives."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
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
from rtbm.theta.series import Series, wave
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
    by_alpha: Tensor  # … and these phases (points, k) and (points, m) with characteristics
    by_beta: Tensor


class Transformation:
    """The way from Ω to a reduced Ω′ in another basis and with a small real part, for arguments and characteristics.

    A point z = Ωp + q has real coordinates (p, q), on which the group acts by integers, as it does on characteristics
    (α, β). The given floats are binary fractions, so all of this is exact. Phases are rounded only modulo 1, and z″
    only when it is small. In these coordinates w changes by phases and by the constant |det(CΩ + D)|^−½:

        w[α,β](z|Ω) = factor · e(½(α·β − a·b) − a·d + ½(p′·Re(Nz) − p·Re(z))) w[a+c, b+d](Nz|Ω′)

    with e(x) = exp(2πix), (a, b) = M̂(α, β), (p′, q′) = M̂(p, q), M̂ = [[D, −C], [−B, A]], and the factor and the
    characteristic (c, d) of `siegel.Reduction`.

    `Inversion` has C ≠ 0. The characteristics (m, 2g) form a part of a grid of k vectors a and as many b.
    """

    inverts = False

    def __init__(self, omega: Tensor, characteristics: Tensor):
        self.given = as_array(omega)
        self.way = reduce(self.given, self.inverts)
        g, M = len(self.given), self.way.matrix
        self.action = np.block([[M[g:, g:], -M[g:, :g]], [-M[:g, g:], M[:g, :g]]])
        self.form, N, G = self.way.rounded()
        exact, unit = exact_integers(characteristics.detach().cpu().numpy())
        self.unit = 2 * unit
        reduced, turns = self._move(2 * exact)
        self.alphas, self.a, rows = _distinct(reduced[:, :g], self.unit)
        self.betas, self.b, columns = _distinct(reduced[:, g:], self.unit)
        self.omega, self.N, self.G, self.turns, self.columns = (
            torch.as_tensor(x, device=omega.device) for x in (self.form, N, G, turns, rows * len(self.b) + columns)
        )

    def _move(self, characteristics: Exact) -> tuple[Exact, Floats]:
        """The characteristics as seen from Ω′, in [0, unit), and the phases that w(z|Ω) has more than w(Nz|Ω′)."""
        period, g = 2 * self.unit**2, len(self.given)
        kind: type = np.int64 if self.unit < SMALL_UNIT else object
        given, action, shift = (
            (x % period).astype(kind)
            for x in (characteristics, self.action, self.way.characteristic * (self.unit // 2))
        )
        moved = given @ action.T % period
        reduced = (moved + shift) % self.unit
        steps = (moved + shift - reduced)[:, g:]
        products = given[:, :g] * given[:, g:] - moved[:, :g] * (moved + 2 * shift)[:, g:] + 2 * reduced[:, :g] * steps
        turns = quotients(products.sum(1) % period, period)
        return reduced, turns + math.atan2(self.way.factor.imag, self.way.factor.real) / TWO_PI

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′, in digits of float64: fast for many of them.

        With n = −r, the phases are ½nᵀX′n + n·x for x = UᵀRe(z), and Re(z″) = x + X′n − t.
        """

        def parts(numerators: Exact, unit: int) -> list[Tensor]:
            return [torch.as_tensor(part, device=z.device) for part in in_parts(numerators % unit, unit)]

        (real, imaginary), unit, g = self.way.parts, self.way.unit, z.shape[1]
        exact = self.way.matrix[:g, :g].T
        U = torch.as_tensor(exact.astype(float), device=z.device)
        whole = z.real.round()
        (turned, x), (coarse, rest) = (
            exact_product(part, torch.zeros_like(whole), U) for part in (z.real - whole, z.imag)
        )
        y, factor = coarse + rest, torch.linalg.cholesky(self.omega.imag)
        p = torch.cholesky_solve(y.mT, factor).mT
        largest = _check_size(p, "Im(z) is too large: (Im Ω)⁻¹Im(z) reaches", "tells lattice points apart")
        if self.a.any():
            _check_size(whole, "Re(z) is too large for a characteristic:", "multiplies it by α exactly")
        plane = torch.as_tensor(nearest_plane_matrix(factor.mT.cpu().numpy()), device=z.device)
        steps = tuple(torch.as_tensor(part, device=z.device) for part in in_parts(imaginary, unit))
        n, high, low = remove_periods(
            -coarse, -rest, Periods(torch.cholesky_inverse(factor), steps, plane), largest > DIGIT
        )
        alphas, betas = self.alphas.astype(object), self.betas.astype(object)
        by_n = np.hstack([self.unit * real, 2 * (alphas @ real).T, 2 * unit * betas.T])
        half, by_alpha, by_beta = _product_modulo_one(n, parts(by_n, 2 * unit * self.unit)).split(
            [g, len(alphas), len(betas)], 1
        )
        by_alpha = by_alpha + _product_modulo_one(
            torch.hstack([whole, turned.round()]), parts(np.hstack([alphas @ exact.T, alphas]).T, self.unit)
        )
        x = turned - turned.round() + x
        there = x + 2 * half
        there = there - there.round()
        return Points(
            z=torch.complex(there, -(high + low)),
            u=torch.pi * (y * p).sum(1),
            sigma=(n @ U.mT).to(z.dtype),
            turns=(n * (half + x)).sum(1),
            by_alpha=by_alpha + (x - there) @ torch.as_tensor(self.a, device=z.device).mT,
            by_beta=by_beta,
        )

    def evaluate(
        self, z: Tensor, omega: Tensor, characteristics: Tensor, directions: Tensor, series: Series
    ) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, m) with derivatives in z, Ω and one characteristic, by a series for Ω′.

        Values are those of `locate`. Derivatives come from δ = z − z₀ and Δ = Ω − Ω₀, which are zero but have graphs.
        With the N, G and phase at z₀ and Ω₀, and with e(x) = exp(2πi Re x),

            w(z|Ω) = phase · |det(CΩ₀ + D)|^−½ det K^½ e(½(σ·δ + τ·η)) w(z″ + NKη | Ω₀′ + NKΔNᵀ)
            K = (1 + ΔG)⁻¹,     η = δ + Δσ,     σ = Nᵀa − p,     τ = σ − GKη

        This is exact, not a Taylor series. A change (ε, ζ) of (α, β) adds Ωε + ζ to δ, and ε·(z + β + ½Ωε) to the
        exponent.
        """
        with torch.no_grad():
            points = self.locate(z)
        omega, g = (omega + omega.mT) / 2, len(omega)
        first = characteristics[0].to(z.dtype)
        epsilon, zeta = (first - first.detach()).split(g)
        moved = omega @ epsilon + zeta
        delta, Delta = z - z.detach() + moved, omega - omega.detach()
        K = torch.linalg.inv(torch.eye(g, dtype=z.dtype, device=z.device) + Delta @ self.G)
        N, G = self.N @ K, self.G @ K
        eta = delta + points.sigma @ Delta
        slope = points.sigma - eta @ G
        exponent = 0.5 * (points.sigma * delta + slope * eta).sum(1) + (z + first[g:] + 0.5 * moved) @ epsilon
        u, w = series.evaluate(
            points.z + eta @ N.mT,
            self.omega + N @ Delta @ self.N.mT,
            (slope + epsilon) @ directions.mT,
            directions @ N.mT,
            directions @ G @ directions.mT * (0.5j / torch.pi),
        )
        grid = (points.by_alpha[:, :, None] + points.by_beta[:, None]).flatten(1)
        phases = grid[:, self.columns] + self.turns + (points.turns + exponent.real)[:, None]
        amplitude = abs(self.way.factor) * torch.linalg.det(K) ** 0.5
        return with_derivatives(points.u, u - TWO_PI * exponent.imag), amplitude * wave(phases) * w[:, self.columns]


class Inversion(Transformation):
    """A transformation with inversions, whose points are located in Python integers."""

    inverts = True

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′."""

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return torch.as_tensor(quotients(numerators, denominator), device=z.device)

        def phases(steps: Exact, characteristics: Exact) -> Tensor:
            return rounded((steps % self.unit).astype(characteristics.dtype) @ characteristics.T % self.unit, self.unit)

        (real, imaginary), scale = exact_integers(np.stack([self.given.real, self.given.imag]))
        inverse, determinant = exact_inverse(imaginary)
        argument = z.cpu().numpy()
        (x, y), unit = exact_integers(np.stack([argument.real, argument.imag]))
        solved, whole = y @ inverse, determinant * unit
        p, q = solved * scale, x * determinant - solved @ real
        moved = np.hstack([p, q]) @ self.action.T
        steps = (2 * moved + whole) // (2 * whole)
        (a, b), (r, t) = np.split(moved - steps * whole, 2, axis=1), np.split(steps, 2, axis=1)
        products = unit * (a * t - r * b + r * t * whole).sum(1) - (p * x).sum(1)
        centre = rounded(a, whole).to(z.dtype)
        there = centre @ self.omega + rounded(b, whole)
        return Points(
            z=there,
            u=torch.pi * rounded((p * y).sum(1), whole * unit),
            sigma=centre @ self.N - rounded(p, whole),
            turns=0.5 * (centre * there).real.sum(1) + rounded(products % (2 * whole * unit), 2 * whole * unit),
            by_alpha=phases(t, self.alphas),
            by_beta=phases(-r, self.betas),
        )


def _distinct(rows: Exact, unit: int) -> tuple[Exact, Floats, Integers]:
    """The different rows, these divided by `unit`, and the number of each one."""
    values, first, numbers = np.unique(quotients(rows, unit), axis=0, return_index=True, return_inverse=True)
    return rows[first], values, numbers.ravel()


def _check_size(integers: Tensor, what: str, purpose: str) -> float:
    """The largest entry, if it is exact in float64."""
    largest = largest_entry(integers)
    if largest > LARGEST_INTEGER:
        raise InvalidInputError(f"{what} {largest:.3g}, and float64 {purpose} up to {LARGEST_INTEGER:.3g}")
    return largest


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
