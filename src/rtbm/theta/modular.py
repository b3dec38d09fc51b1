"""The theta function under the modular group: from (z, Ω) to a small z″ and a reduced Ω′, with derivatives."""

from functools import partial

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.errors import InvalidInputError
from rtbm.theta.derivatives import with_derivatives
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

LOST_SHARE = 1e-17
"""Terms below this share of w are lost in rounding. A smaller one would lengthen reduced sums and change nothing."""
MODERATE = 16
"""Points are located in float64 if U, (Im Ω′)^½ and the steps that characteristics multiply are at most this. A larger
one would cost digits."""


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

    def __init__(self, omega: Tensor, characteristics: Tensor, tolerance: float, order: int, inverts: bool):
        self.inverts, self.tensor = inverts, partial(torch.as_tensor, device=omega.device)
        self.given, self.scale = exact_parts(as_array(omega))
        way = self.way = reduce(self.given, self.scale, inverts)
        A, B, C, D = (half for rows in np.split(way.matrix, 2) for half in np.split(rows, 2, 1))
        self.action = np.block([[D, -C], [-B, A]])
        N = -way.parts @ C
        N[0] += way.unit * A
        self.omega, self.N, self.G = (
            torch.complex(*map(self.tensor, quotients(parts, way.unit))) for parts in (way.parts, N, C.T @ N)
        )
        exact, unit = exact_integers(characteristics.detach().cpu().numpy())
        self.unit = 2 * unit
        self.exact, turns = self._move(2 * exact)
        self.turns, self.characteristics = self.tensor(turns), quotients(self.exact, self.unit)
        imaginary = self.omega.imag.cpu().numpy()
        if inverts:
            slope = np.sqrt(np.pi / 2 * np.diag(imaginary)).sum()  # bounds that of w″
            tolerance = max(tolerance / abs(way.factor), LOST_SHARE) / (2 + slope) ** order
        self.series = Series(imaginary, self.characteristics, tolerance, order)

    def _move(self, characteristics: Exact) -> tuple[Exact, Floats]:
        """The characteristics as seen from Ω′, in [0, unit), and the phases of w(z|Ω) over factor·w(Nz|Ω′)."""
        period = 2 * self.unit**2
        shift = self.way.characteristic * (self.unit // 2)
        moved = characteristics @ self.action.T % period
        reduced = (moved + shift) % self.unit
        (alpha, beta), (a, b), (c, _), (_, t), (_, d) = (
            np.split(x, 2, -1) for x in (characteristics, moved, reduced, moved + shift - reduced, shift)
        )
        products = (alpha * beta - a * (b + 2 * d) + 2 * c * t).sum(1)
        return reduced, quotients(products % period, period)

    def locate(self, z: Tensor) -> tuple[Tensor, ...]:
        """The points as seen from Ω′: without inversions in float64, where it loses no digits, else in Python integers.

        With n = −r, the phase is ½nᵀX′n + n·x for x = UᵀRe(z), and Re(z″) = x + X′n − t.
        """
        if self.inverts:
            return self._exactly(z)
        whole, U, X, Y = z.real.round(), self.N.real.mT, self.omega.real, self.omega.imag
        x, y = (z.real - whole) @ U, z.imag @ U
        p = torch.cholesky_solve(y.mT, torch.linalg.cholesky(Y)).mT
        _check_size(p, "Im(z) is too large: (Im Ω)⁻¹Im(z)")
        if self.characteristics.any():
            _check_size(whole, "Re(z) is too large for a characteristic: it")
        n = -p.round()
        products = (n @ self.tensor(part) for part in in_parts(self.way.parts[0], 2 * self.way.unit))
        half = sum(product - product.round() for product in products)
        moved = x + 2 * half
        moved -= moved.round()
        t = whole @ U + (x + n @ X - moved).round()
        turns = (n * (half + x)).sum(1, keepdim=True) + torch.hstack([t, n]) @ self.tensor(self.characteristics).mT
        located = torch.complex(moved, y + n @ Y), torch.pi * (y * p).sum(1), n.to(z.dtype) @ self.N, turns
        limit = MODERATE if (2 * self.characteristics % 1).any() else LARGEST_INTEGER  # halves do not round
        sizes = torch.hstack([t / limit, n / DIGIT, n.sign() * Y.diagonal() / MODERATE**2]).abs()
        is_far = (sizes > 1).any(1) | (U.abs().max() > MODERATE)
        if is_far.any():
            for values, exact in zip(located, self._exactly(z[is_far]), strict=True):
                values[is_far] = exact
        return located

    def _exactly(self, z: Tensor) -> tuple[Tensor, ...]:
        """The points located in Python integers."""

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return self.tensor(quotients(numerators, denominator))

        (x, y), unit = exact_parts(z.cpu().numpy())
        inverse, determinant = exact_inverse(self.given[1])
        solved, whole = y @ inverse, determinant * unit
        p, q = solved * self.scale, x * determinant - solved @ self.given[0]
        moved = np.hstack([p, q]) @ self.action.T
        steps = (2 * moved + whole) // (2 * whole)
        (a, b), (r, t) = (np.split(half, 2, 1) for half in (moved - steps * whole, steps))
        products = unit * (a * t - r * b + r * t * whole).sum(1) - (p * x).sum(1)
        centre, period = rounded(a, whole).to(z.dtype), 2 * whole * unit
        there = centre @ self.omega + rounded(b, whole)
        turns = 0.5 * (centre.real * there.real).sum(1) + rounded(products % period, period)
        products = np.hstack([t, -r]) % self.unit @ self.exact.T % self.unit
        return (
            there,
            torch.pi * rounded((p * y).sum(1), whole * unit),
            centre @ self.N - rounded(p, whole),
            turns[:, None] + rounded(products, self.unit),
        )

    def evaluate(self, z: Tensor, omega: Tensor, characteristics: Tensor, directions: Tensor) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, m) with derivatives in z, Ω and one characteristic.

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
        delta, Delta = z - z.detach() + omega @ epsilon + zeta, omega - omega.detach()
        K = torch.linalg.inv(torch.eye(g).to(z) + Delta @ self.G)
        N, G = self.N @ K, self.G @ K
        eta = delta + sigma @ Delta
        slope = sigma - eta @ G
        exponent = 0.5 * (sigma * delta + slope * eta).sum(1) + (z + first[g:] + 0.5 * omega @ epsilon) @ epsilon
        u, w = self.series.evaluate(
            there + eta @ N.mT,
            self.omega + N @ Delta @ self.N.mT,
            (slope + epsilon) @ directions.mT,
            directions @ N.mT,
            directions @ G @ directions.mT * (0.5j / torch.pi),
        )
        w = self.way.factor * torch.linalg.det(K) ** 0.5 * wave(turns + self.turns + exponent.real[:, None]) * w
        return with_derivatives(value, u - TWO_PI * exponent.imag), w


def _check_size(steps: Tensor, what: str) -> None:
    """Check that steps of points are exact in float64."""
    if (steps.abs() > LARGEST_INTEGER).any():
        raise InvalidInputError(f"{what} reaches {float(steps.abs().max()):.3g}, beyond {LARGEST_INTEGER:.3g}")
