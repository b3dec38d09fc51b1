"""The theta function under the modular group: from (z, Ω) to a small z″ and a reduced Ω′, with derivatives."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.derivatives import with_derivatives
from rtbm.theta.lattice import exact_integers, exact_inverse, quotients
from rtbm.theta.series import Series, wave
from rtbm.theta.siegel import Exact, reduce

LOST_SHARE = 1e-17
"""Terms below this share of w are lost in rounding. A smaller one would lengthen reduced sums and change nothing."""
MODERATE = 16
"""Points are located in float64 if their coordinates and periods are at most this. A larger one would cost digits."""


class Transformation:
    """The way from Ω to a reduced Ω′ in another basis and with a small real part, for arguments and characteristics.

    A point z = Ωp + q has real coordinates (p, q), on which the group acts by integers, as it does on characteristics
    (α, β). The given floats are binary fractions, so all of this is exact. Phases are rounded only modulo 1, and z″
    only when it is small. In these coordinates w changes by phases and by the constant |det(CΩ + D)|^−½:

        w[α,β](z|Ω) = factor · e(½(α·β − a·b) − a·d + ½(p′·Re(Nz) − p·Re(z))) w[a+c, b+d](Nz|Ω′)

    with e(x) = exp(2πix), (a, b) = M̂(α, β), (p′, q′) = M̂(p, q), M̂ = [[D, −C], [−B, A]], and the factor and the
    characteristic (c, d) of `siegel.reduce`.

    Points z (points, g) are located as Nz = z″ + Ω′r + t with integers r and t. This gives z″, u, σ = Nᵀa − p for the
    a = (Im Ω′)⁻¹Im(z″), and the phases (points, m) that w[α,β](z|Ω) has more than w[a+c, b+d](z″|Ω′), for the m
    characteristics (m, 2g).
    """

    def __init__(
        self, form: NDArray[np.complex128], characteristics: Tensor, tolerance: float, order: int, inverts: bool
    ):
        self.given, self.inverts = form, inverts
        self.tensor = partial(torch.as_tensor, device=characteristics.device)
        M, parts, unit, self.factor, self.shift = reduce(form, inverts)
        (A, B), (C, D) = (np.hsplit(rows, 2) for rows in np.vsplit(M, 2))
        self.action = np.block([[D, -C], [-B, A]]).T
        N = -parts @ C
        N[0] += unit * A
        self.omega, self.N, self.G = (torch.complex(*map(self.tensor, quotients(x, unit))) for x in (parts, N, C.T @ N))
        exact, unit = exact_integers(characteristics.detach().cpu().numpy())
        self.unit = 2 * unit
        self.exact, turns = self._move(2 * exact)
        self.turns, imaginary = self.tensor(turns), self.omega.imag.cpu().numpy()
        if inverts:
            slope = np.sqrt(np.pi / 2 * np.diag(imaginary)).sum()  # bounds that of w″
            tolerance = max(tolerance / abs(self.factor), LOST_SHARE) / (2 + slope) ** order
        self.series = Series(imaginary, quotients(self.exact, self.unit), tolerance, order)

    def _move(self, characteristics: Exact) -> tuple[Exact, Floats]:
        """The characteristics as seen from Ω′, in [0, unit), and the phases of w(z|Ω) over factor·w(Nz|Ω′)."""
        period = 2 * self.unit**2
        shift = self.shift * (self.unit // 2)
        moved = characteristics @ self.action % period
        reduced = (moved + shift) % self.unit
        (alpha, beta), (a, b), (c, _), (_, t), (_, d) = (
            np.split(x, 2, -1) for x in (characteristics, moved, reduced, moved + shift - reduced, shift)
        )
        products = (alpha * beta - a * (b + 2 * d) + 2 * c * t).sum(1)
        return reduced, quotients(products % period, period)

    def locate(self, z: Tensor) -> tuple[Tensor, ...]:
        """The points as seen from Ω′: in float64, with r = t = 0, if nothing is large, else in Python integers."""
        near = z @ self.N.mT
        p = torch.cholesky_solve(near.imag.mT, torch.linalg.cholesky(self.omega.imag)).mT
        if not (self.inverts or (torch.hstack([z.abs() @ self.N.abs().mT, p.abs()]) > MODERATE).any()):
            return near, torch.pi * (near.imag * p).sum(1), 0 * z, 0 * p[:, :1]

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return self.tensor(quotients(numerators, denominator))

        parts, unit = exact_integers(torch.hstack([z.imag, z.real]).cpu().numpy())
        (X, Y), scale = exact_integers(np.stack([self.given.real, self.given.imag]))
        inverse, determinant = exact_inverse(Y)
        one, whole = determinant * np.eye(len(X), dtype=object), determinant * unit
        coordinates = parts @ np.block([[scale * inverse, -inverse @ X], [0 * X, one]])
        moved, period = coordinates @ self.action, 2 * whole * unit
        steps = (2 * moved + whole) // (2 * whole)
        (y, x), (exact_p, _), (there, _), (a, b), (r, t) = (
            np.split(rows, 2, 1) for rows in (parts, coordinates, moved, moved - steps * whole, steps)
        )
        centre, phases = rounded(a, whole).to(z.dtype), unit * (there * t - r * b) - exact_p * x
        near = centre @ self.omega + rounded(b, whole)
        turns = 0.5 * (centre.real * near.real).sum(1) + rounded(phases.sum(1) % period, period)
        products = np.hstack([t, -r]) % self.unit @ self.exact.T % self.unit
        return (
            near,
            torch.pi * rounded((exact_p * y).sum(1), whole * unit),
            centre @ self.N - rounded(exact_p, whole),
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
        w = self.factor * torch.linalg.det(K) ** 0.5 * wave(turns + self.turns + exponent.real[:, None]) * w
        return with_derivatives(value, u - TWO_PI * exponent.imag), w
