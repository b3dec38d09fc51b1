"""The theta function under the modular group: from (z, Ω) to the Siegel-reduced Ω′, with derivatives in z and Ω."""

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.lattice import exact_integers, exact_inverse, quotients
from rtbm.theta.siegel import Exact, reduce

SMALL_UNIT = 2**28
"""Products of integers modulo this fit into int64, with room for a sum of 64. Beyond, they are Python integers."""


class Points(NamedTuple):
    """Arguments z (points, g) as seen from Ω′: Nz = z″ + Ω′r + t with integers r and t."""

    p: Tensor  # (Im Ω)⁻¹Im(z)
    u: Tensor  # π Im(z)·p
    a: Tensor  # (Im Ω′)⁻¹Im(z″), in [−½, ½]
    z: Tensor  # z″
    turns: Tensor  # w(z|Ω) has this phase more than w(z″|Ω′)
    steps: Exact  # (t, −r) (points, 2g)


class Characteristics(NamedTuple):
    """Characteristics as seen from Ω′, in [0, 1)."""

    numerators: Exact  # (m, 2g), to be divided by unit
    unit: int
    turns: Floats  # (m,): w(z|Ω) has this phase more than w(Nz|Ω′)


class Transformation:
    """The way from Ω to its reduction Ω′, for arguments and characteristics.

    A point z = Ωp + q has real coordinates (p, q), on which the group acts by integers, as it does on characteristics
    (α, β). The given floats are binary fractions, so all of this is exact. Phases are rounded only modulo 1, and z″
    only when it is small. In these coordinates w changes by phases and by the constant |det(CΩ + D)|^−½:

        w[α,β](z|Ω) = factor · e(½(α·β − a·b) − a·d + ½(p′·Re(Nz) − p·Re(z))) w[a+c, b+d](Nz|Ω′)

    with e(x) = exp(2πix), (a, b) = M̂(α, β), (p′, q′) = M̂(p, q), M̂ = [[D, −C], [−B, A]], and the factor and the
    characteristic (c, d) of `siegel.Reduction`.
    """

    def __init__(self, omega: Tensor):
        form = omega.detach().cpu().numpy()
        form = (form + form.T) / 2
        self.reduction = reduce(form)
        g = len(form)
        A, B, C, D = (self.reduction.matrix[i : i + g, j : j + g] for i in (0, g) for j in (0, g))
        self.inverts = bool(C.any())
        self.action = np.block([[D, -C], [-B, A]])
        (self.real, imaginary), self.unit = exact_integers(np.stack([form.real, form.imag]))
        self.inverse, self.determinant = exact_inverse(imaginary)
        self.amplitude = abs(self.reduction.factor)
        self.turns = math.atan2(self.reduction.factor.imag, self.reduction.factor.real) / TWO_PI
        self.N, self.G = (torch.as_tensor(x, device=omega.device) for x in self.reduction.cocycle())
        self.omega = torch.as_tensor(self.reduction.omega, device=omega.device)

    def characteristics(self, exact: Exact, unit: int) -> Characteristics:
        """Characteristics (α, β) (m, 2g), to be divided by an even unit, as seen from Ω′."""
        g = exact.shape[1] // 2
        moved = exact @ self.action.T
        d = self.reduction.characteristic[g:]
        products = (exact[:, :g] * exact[:, g:] - moved[:, :g] * moved[:, g:]).sum(1) - unit * (moved[:, :g] @ d)
        moved = moved + self.reduction.characteristic * (unit // 2)
        reduced = moved % unit
        products += 2 * (reduced[:, :g] * (moved - reduced)[:, g:]).sum(1)
        turns = quotients(products % (2 * unit**2), 2 * unit**2) + self.turns
        return Characteristics(reduced, unit, turns)

    def locate(self, z: Tensor) -> Points:
        """The points as seen from Ω′."""
        argument = z.detach().cpu().numpy()
        (x, y), unit = exact_integers(np.stack([argument.real, argument.imag]))
        solved, whole = y @ self.inverse, self.determinant * unit
        p, q = solved * self.unit, x * self.determinant - solved @ self.real
        moved = np.hstack([p, q]) @ self.action.T
        steps = (2 * moved + whole) // (2 * whole)
        (a, b), (r, t) = np.split(moved - steps * whole, 2, axis=1), np.split(steps, 2, axis=1)
        products = unit * (a * t - r * b + r * t * whole).sum(1) - (p * x).sum(1)

        def rounded(numerators: Exact, denominator: int) -> Tensor:
            return torch.as_tensor(quotients(numerators, denominator), device=z.device)

        centre = rounded(a, whole)
        at = centre @ self.omega.real + rounded(b, whole)
        return Points(
            p=rounded(p, whole),
            u=torch.pi * rounded((p * y).sum(1), whole * unit),
            a=centre,
            z=torch.complex(at, centre @ self.omega.imag),
            turns=0.5 * (centre * at).sum(1) + rounded(products % (2 * whole * unit), 2 * whole * unit),
            steps=np.hstack([t, -r]),
        )

    def evaluate(
        self,
        z: Tensor,
        omega: Tensor,
        directions: Sequence[Tensor],
        characteristics: Characteristics,
        reduced_sum: Callable[[Tensor, Tensor, Sequence[Tensor]], Tensor],
    ) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, m), from `reduced_sum`(z″, Ω′, directions), which gives w(z″|Ω′) (points, m).

        Values are those of `locate`. Derivatives come from δ = z − z₀ and Δ = Ω − Ω₀, which are zero but have graphs.
        With the N, G and phase at z₀ and Ω₀, and with e(x) = exp(2πi Re x),

            w(z|Ω) = phase · |det(CΩ₀ + D)|^−½ det K^½ e(σ·δ + ½σᵀΔσ − ½ηᵀGKη) w(z″ + NKη | Ω₀′ + NKΔNᵀ)
            K = (1 + ΔG)⁻¹,     η = δ + Δσ,     σ = Nᵀa − p

        This is exact, not a Taylor series.
        """
        points = self.locate(z)
        omega = (omega + omega.mT) / 2
        delta, Delta = z - z.detach(), omega - omega.detach()
        change = torch.eye(len(omega), dtype=omega.dtype, device=omega.device) + Delta @ self.G
        N, G = (matrix @ torch.linalg.inv(change) for matrix in (self.N, self.G))
        sigma = points.a.to(z.dtype) @ self.N - points.p
        eta = delta + sigma @ Delta
        exponent = (sigma * (delta + 0.5 * sigma @ Delta)).sum(1) - 0.5 * (eta @ G * eta).sum(1)

        constant = self._signs(points.steps, characteristics) + characteristics.turns
        phases = torch.as_tensor(constant, device=z.device) + (points.turns + exponent.real)[:, None]
        amplitude = self.amplitude * torch.linalg.det(change) ** -0.5
        at, reduced = points.z + eta @ N.mT, self.omega + N @ Delta @ self.N.mT

        def derivative(chosen: Sequence[int]) -> Tensor:
            return reduced_sum(at, reduced, [N @ directions[i] for i in chosen])

        slope, order = sigma - eta @ G, range(len(directions))
        pairs = [[-2j * torch.pi * (c @ G @ d) for c in directions] for d in directions]
        slopes = [2j * torch.pi * (slope @ d)[:, None] for d in directions]
        w = sum(
            _gaussian_derivative([i for i in order if i not in chosen], slopes, pairs) * derivative(chosen)
            for k in range(len(directions) + 1)
            for chosen in combinations(order, k)
        )
        return self._exponent(z, omega, points), amplitude * torch.polar(torch.ones_like(phases), TWO_PI * phases) * w

    @staticmethod
    def _signs(steps: Exact, characteristics: Characteristics) -> Floats:
        """The phases (points, m) of the steps to z″ for each characteristic, in turns."""
        unit = characteristics.unit
        kind: type = np.int64 if unit < SMALL_UNIT else object
        product: Exact = (steps % unit).astype(kind) @ characteristics.numerators.astype(kind).T % unit
        return quotients(product, unit)

    @staticmethod
    def _exponent(z: Tensor, omega: Tensor, points: Points) -> Tensor:
        """u = π Im(z)ᵀ(Im Ω)⁻¹Im(z), with derivatives as in `evaluate`."""
        y, Y = ((x - x.detach()).imag for x in (z, omega))
        left = y - points.p @ Y
        change = (points.p * (y + left)).sum(1) + (left * torch.linalg.solve(omega.imag, left.mT).mT).sum(1)
        return points.u + torch.pi * change


def _gaussian_derivative(chosen: list[int], slopes: list[Tensor], pairs: list[list[Tensor]]) -> Tensor | float:
    """The derivative of exp(quadratic) over exp(quadratic): products of slopes and pairs, over all ways to pair up."""
    if not chosen:
        return 1.0
    first, *rest = chosen
    total = slopes[first] * _gaussian_derivative(rest, slopes, pairs)
    for other in rest:
        left = [i for i in rest if i != other]
        total = total + pairs[first][other] * _gaussian_derivative(left, slopes, pairs)
    return total
