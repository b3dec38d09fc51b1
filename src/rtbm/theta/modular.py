"""The theta function under the modular group: from (z, Ω) to a small z″ and a reduced Ω′, with derivatives."""

import math
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.derivatives import with_derivatives
from rtbm.theta.exact import exact_product
from rtbm.theta.lattice import (
    DIGIT,
    LARGEST_INTEGER,
    exact_integers,
    exact_inverse,
    in_parts,
    quotients,
)
from rtbm.theta.series import Series, wave
from rtbm.theta.siegel import Exact, as_array, exact_parts, reduce

SMALL_UNIT = 2**12
"""Characteristics over a unit below this are transformed in int64, with room for its fourth power. Beyond, they are
Python integers."""
MODERATE = 64
"""Points are located in float64 if their steps are below this, where rounding matters. A larger one costs digits."""

Located: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]
"""What the theta function needs of points, see `Transformation`."""


class Transformation:
    """The way from Ω to a reduced Ω′ in another basis and with a small real part, for arguments and characteristics.

    A point z = Ωp + q has real coordinates (p, q), on which the group acts by integers, as it does on characteristics
    (α, β). The given floats are binary fractions, so all of this is exact. Phases are rounded only modulo 1, and z″
    only when it is small. In these coordinates w changes by phases and by the constant |det(CΩ + D)|^−½:

        w[α,β](z|Ω) = factor · e(½(α·β − a·b) − a·d + ½(p′·Re(Nz) − p·Re(z))) w[a+c, b+d](Nz|Ω′)

    with e(x) = exp(2πix), (a, b) = M̂(α, β), (p′, q′) = M̂(p, q), M̂ = [[D, −C], [−B, A]], and the factor and the
    characteristic (c, d) of `siegel.Reduction`.

    Points z (points, g) are located as Nz = z″ + Ω′r + t with integers r and t. This gives z″, u, σ = Nᵀa − p for the
    a = (Im Ω′)⁻¹Im(z″), and the phases (points, m) that w[α,β](z|Ω) has more than w[a+c, b+d](z″|Ω′), for the m
    characteristics (m, 2g).
    """

    def __init__(self, omega: Tensor, characteristics: Tensor, inverts: bool):
        form = as_array(omega)
        self.way, self.inverts, self.device = reduce(form, inverts), inverts, omega.device
        g, M = len(form), self.way.matrix
        self.given, self.scale = exact_parts(form)
        self.action = np.block([[M[g:, g:], -M[g:, :g]], [-M[:g, g:], M[:g, :g]]])
        self.form, N, G = self.way.rounded()
        exact, unit = exact_integers(characteristics.detach().cpu().numpy())
        self.unit = 2 * unit
        self.exact, turns = self._move(2 * exact)
        self.characteristics = quotients(self.exact, self.unit)
        self.omega, self.N, self.G, self.turns = map(self._tensor, (self.form, N, G, turns))

    def _tensor(self, array: Any) -> Tensor:
        return torch.as_tensor(array, device=self.device)

    def _move(self, characteristics: Exact) -> tuple[Exact, Floats]:
        """The characteristics as seen from Ω′, in [0, unit), and the phases that w(z|Ω) has more than w(Nz|Ω′)."""
        period, g = 2 * self.unit**2, len(self.form)
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

    def locate(self, z: Tensor) -> Located:
        """The points as seen from Ω′: in float64 where this is exact enough, else in Python integers."""
        if self.inverts:
            return self._exactly(z)
        located, is_far = self._nearby(z)
        if is_far.any():
            for values, exact in zip(located, self._exactly(z[is_far]), strict=True):
                values[is_far] = exact
        return located

    def _nearby(self, z: Tensor) -> tuple[Located, Tensor]:
        """The points located in float64, without inversions, and whether this may lose digits.

        With n = −r, the phase is ½nᵀX′n + n·x for x = UᵀRe(z), and Re(z″) = x + X′n − t.
        """
        U = self._tensor(self.way.matrix[: z.shape[1], : z.shape[1]].T.astype(float))
        whole = z.real.round()
        (turned, x), (coarse, rest) = (
            exact_product(part, torch.zeros_like(whole), U) for part in (z.real - whole, z.imag)
        )
        y, factor = coarse + rest, torch.linalg.cholesky(self.omega.imag)
        p = torch.cholesky_solve(y.mT, factor).mT
        n = -p.round()
        half = torch.zeros_like(n)
        for part in in_parts(self.way.parts[0], 2 * self.way.unit):
            product = n @ self._tensor(part)
            half += product - product.round()
        x = turned - turned.round() + x
        there = x + 2 * half
        there -= there.round()
        t = whole @ U + turned.round() + (x + n @ self.omega.real - there).round()
        limit = MODERATE if (2 * self.characteristics % 1).any() else LARGEST_INTEGER  # halves do not round
        sizes = torch.hstack([t / limit, n / DIGIT, n.sign() * self.omega.imag.diagonal() / MODERATE**2])
        turns = (n * (half + x)).sum(1, keepdim=True) + torch.hstack([t, n]) @ self._tensor(self.characteristics).mT
        located = (
            torch.complex(there, y + n @ self.omega.imag),
            torch.pi * (y * p).sum(1),
            (n @ U.mT).to(z.dtype),
            turns + self.turns,
        )
        return located, (sizes.abs() > 1).any(1)

    def _exactly(self, z: Tensor) -> Located:
        """The points located in Python integers."""

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return self._tensor(quotients(numerators, denominator))

        (x, y), unit = exact_parts(z.cpu().numpy())
        inverse, determinant = exact_inverse(self.given[1])
        solved, whole = y @ inverse, determinant * unit
        p, q = solved * self.scale, x * determinant - solved @ self.given[0]
        moved = np.hstack([p, q]) @ self.action.T
        steps = (2 * moved + whole) // (2 * whole)
        (a, b), (r, t) = (np.split(half, 2, axis=1) for half in (moved - steps * whole, steps))
        products = unit * (a * t - r * b + r * t * whole).sum(1) - (p * x).sum(1)
        centre, period = rounded(a, whole), 2 * whole * unit
        there = centre.to(z.dtype) @ self.omega + rounded(b, whole)
        turns = 0.5 * (centre * there.real).sum(1) + rounded(products % period, period)
        products = (np.hstack([t, -r]) % self.unit).astype(self.exact.dtype) @ self.exact.T % self.unit
        return (
            there,
            torch.pi * rounded((p * y).sum(1), whole * unit),
            centre.to(z.dtype) @ self.N - rounded(p, whole),
            turns[:, None] + rounded(products, self.unit) + self.turns,
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
            there, value, sigma, turns = self.locate(z)
        omega, g = (omega + omega.mT) / 2, len(omega)
        first = characteristics[0].to(z.dtype)
        epsilon, zeta = (first - first.detach()).split(g)
        moved = omega @ epsilon + zeta
        delta, Delta = z - z.detach() + moved, omega - omega.detach()
        K = torch.linalg.inv(torch.eye(g, dtype=z.dtype, device=z.device) + Delta @ self.G)
        N, G = self.N @ K, self.G @ K
        eta = delta + sigma @ Delta
        slope = sigma - eta @ G
        exponent = 0.5 * (sigma * delta + slope * eta).sum(1) + (z + first[g:] + 0.5 * moved) @ epsilon
        u, w = series.evaluate(
            there + eta @ N.mT,
            self.omega + N @ Delta @ self.N.mT,
            (slope + epsilon) @ directions.mT,
            directions @ N.mT,
            directions @ G @ directions.mT * (0.5j / torch.pi),
        )
        amplitude = abs(self.way.factor) * torch.linalg.det(K) ** 0.5
        waves = wave(turns + exponent.real[:, None])
        return with_derivatives(value, u - TWO_PI * exponent.imag), amplitude * waves * w
