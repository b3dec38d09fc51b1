"""How a theta function is summed: in which basis, over which lattice points, around which centre.

Write θ̃(z|Q) in a reduced basis, n = Un'. Poisson summation over some of the coordinates (the *transformed* ones, t)
turns short, crowded directions into long, sparse ones; the others are *kept* (k). With s = z − Qn₀ (phase I) or
s = z − 2πn₀ (phase II), the argument left after recentring, both phases read

    log θ̃ = offset + ½sᵀKs + constant + log Σ_m exp(−½mᵀGm + i½mᵀΨm + Σ_pos m_j x_j + i Σ_osc m_j x_j),   x = Bs

with G = 4π²Q_tt⁻¹ ⊕ (Q_kk − Q_kt Q_tt⁻¹ Q_tk). In phase I the transformed coordinates oscillate and the kept ones are
positive; in phase II it is the other way round. Coordinates are ordered: oscillating first, positive last.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.lattice import (
    DIGIT,
    PART_BITS,
    Floats,
    Integers,
    change_basis,
    cholesky,
    enumerate_points,
    estimate_count,
    exact_congruence,
    in_parts,
    integer_inverse,
    log_gauss_sum,
    nearest_plane_matrix,
    radius_from_spread,
    reduce_basis,
    squared_radius,
    tail_spread,
)

# 2π in three parts, to 1e-36; the products of the first two with integers below 2^20 are exact.
TWO_PI_PARTS = (6.2831853069365025, 2.4308402025215864e-10, 8.089064995183803e-21)
MAX_CANCELLATION = 100.0
"""An oscillating sum is used only where Σ|terms| ≤ 100 |Σ terms| is certain."""


class Periods(NamedTuple):
    """The steps that recentring takes: the rows of a matrix P (g, g), or the entries of a vector for a diagonal one.

    P is a sum of parts whose products with integers do not round, see `lattice.in_parts`.
    """

    inverse: Tensor  # of P
    parts: tuple[Tensor, ...]
    plane: Tensor | None = None  # nearest-plane matrix, for a matrix P


class Form(NamedTuple):
    """The matrices of the sum above, as tensors that remember how they came from Q."""

    B: Tensor  # (g, g)
    K: Tensor  # (g, g)
    G: Tensor  # (g, g), block-diagonal
    Psi: Tensor  # (g, g), symmetric, couples positive with oscillating coordinates
    constant: Tensor  # ()


class Geometry(NamedTuple):
    """Everything integer about one sum, and the bounds that certify it."""

    basis: Integers  # U (g, g)
    gram: Floats  # UᵀQU, exact to the last digit
    n_osc: int
    centre: Floats  # lattice coordinates of the argument: c = z' @ centre
    periods: tuple[Floats, ...]  # the inverse of centre as a sum: UᵀQU (phase I) or 2π (phase II)
    plane: Floats  # nearest-plane matrix
    points: Integers  # (terms, g): one of each ±pair of the oscillating coordinates
    factor: Floats  # upper triangular R with G = RᵀR

    @property
    def largest_exponent(self) -> float:
        """No term of the sum exceeds the exponential of this: ½‖residual‖² in the positive coordinates."""
        return float((np.diag(self.factor)[self.n_osc :] ** 2).sum()) / 8


def make_form(gram: Tensor, n_osc: int, phase: str) -> Form:
    """Apply Poisson summation to the oscillating (phase I) or positive (phase II) coordinates of `gram`."""
    g = gram.shape[0]
    osc, pos = slice(0, n_osc), slice(n_osc, g)
    t, k = (osc, pos) if phase == "I" else (pos, osc)
    sign = 1.0 if phase == "I" else -1.0
    factor = torch.linalg.cholesky(gram[t, t])
    inverse = torch.cholesky_inverse(factor) if factor.numel() else factor
    mix = gram[k, t] @ inverse

    B = torch.eye(g, dtype=gram.dtype, device=gram.device)
    B[t, t], B[k, t] = TWO_PI * inverse, -mix
    G, K, Psi = (torch.zeros_like(B) for _ in range(3))
    G[t, t], G[k, k] = TWO_PI**2 * inverse, gram[k, k] - mix @ gram[t, k]
    K[t, t] = sign * inverse
    Psi[k, t], Psi[t, k] = -sign * TWO_PI * mix, -sign * TWO_PI * mix.mT
    constant = 0.5 * len(inverse) * math.log(TWO_PI) - factor.diagonal().log().sum()
    return Form(B, K, G, Psi, constant)


def make_geometry(Q: Floats, phase: str, tolerance: float) -> tuple[Geometry, Form]:
    """Reduce Q, choose what to transform, and list the lattice points that `tolerance` asks for."""
    U, gram = reduce_basis(Q)
    t = _choose_transformed(np.diag(cholesky(gram)) ** 2, phase, tolerance)
    if t > 1:
        U, gram = _reduce_dual_block(Q, U, gram, t)
    if phase == "II":
        order = np.roll(np.arange(len(Q)), -t)
        U, gram = U[:, order], gram[np.ix_(order, order)]
    n_osc = t if phase == "I" else len(Q) - t

    form = make_form(torch.from_numpy(gram), n_osc, phase)
    R = _block_cholesky(form.G.numpy(), n_osc)
    norms = np.diag(R) ** 2
    radius2 = squared_radius(norms, _log_smallest(norms[n_osc:], norms[:n_osc]), tolerance)
    half_widths = np.where(np.arange(len(Q)) < n_osc, 0.0, np.diag(R) / 2)
    points = _half(enumerate_points(R, radius2, half_widths), n_osc)

    plane = np.zeros_like(gram)
    plane[n_osc:, n_osc:] = nearest_plane_matrix(R[n_osc:, n_osc:])
    centre = np.linalg.inv(gram) if phase == "I" else np.eye(len(Q)) / TWO_PI
    two_pi = tuple(part * np.eye(len(Q)) for part in TWO_PI_PARTS)
    periods = in_parts(*exact_congruence(Q, U)) if phase == "I" else two_pi
    return Geometry(U, gram, n_osc, centre, periods, plane, points, R), form


def grid_factor(U: Floats | Integers) -> float:
    """Times a power of two above |z|, added to z and subtracted again, it rounds z so that zU is exact."""
    return 1.5 * 2.0 ** math.ceil(math.log2(float(np.abs(U).sum(axis=0).max())) + 1)


def exact_product(z: Tensor, low: Tensor, U: Tensor) -> tuple[Tensor, Tensor]:
    """(z + low) @ U as a large part that is exact, and a small rest.

    z (points, g) is cut into a part on a coarse grid, whose integer combinations do not round, and what is left, which
    joins `low`. Derivatives flow through the rest.
    """
    with torch.no_grad():
        _, exponent = torch.frexp(z.abs().amax(dim=1, keepdim=True))
        grid = torch.ldexp(torch.full_like(z[:, :1], grid_factor(U.cpu().numpy())), exponent)
        high = (z + grid) - grid
        coarse = high @ U
    return coarse, ((z - high) + low) @ U


def remove_periods(high: Tensor, low: Tensor, periods: Periods, is_far: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The integers n₀ (points, g) next to (high + low)P⁻¹, and high + low − n₀P, again as a sum that does not round.

    `is_far` says that n₀ may exceed DIGIT. It is then found digit by digit: each step makes the argument smaller by
    DIGIT, and its rounding error is kept in the low part.
    """
    n0 = torch.zeros_like(high)
    for scale in (DIGIT**2, DIGIT, 1.0) if is_far else (1.0,):
        c = _times(high + low, periods.inverse) / scale
        n = scale * (c.round() if periods.plane is None else nearest_plane(c, periods.plane))
        n0 = n0 + n
        for part in periods.parts[:2]:
            step = _times(n, part)
            left = high - step
            taken = high - left
            low = low + ((high - (left + taken)) + (taken - step))
            high = left
        for part in periods.parts[2:]:
            low = low - _times(n, part)
    return n0, high, low


def in_two_parts(q: Tensor) -> tuple[Tensor, Tensor]:
    """A vector as a sum whose products with integers below DIGIT do not round (Dekker's splitting)."""
    shifted = q * (2.0 ** (53 - PART_BITS) + 1)
    high = shifted - (shifted - q)
    return high, q - high


def two_pi_periods(device: torch.device) -> Periods:
    """The period 2π in every coordinate."""
    inverse, *parts = torch.tensor([1 / TWO_PI, *TWO_PI_PARTS], dtype=torch.float64, device=device)
    return Periods(inverse, tuple(parts))


def _times(x: Tensor, P: Tensor) -> Tensor:
    return x @ P if P.ndim == 2 else x * P


def with_derivatives(value: Tensor, expression: Tensor) -> Tensor:
    """An exact value with the derivatives of an expression for it that rounds."""
    return value + (expression - expression.detach()) if expression.requires_grad else value


def largest_entry(z: Tensor) -> float:
    """max |z|, or NaN if there is one."""
    low, high = z.detach().aminmax()
    return max(float(high), -float(low))


class Congruence(torch.autograd.Function):
    """UᵀQU for symmetric Q, with a value that `lattice.change_basis` computed exactly.

    The derivative is the usual one, symmetric. Nothing is saved for it, so that many backward passes work.
    """

    @staticmethod
    def forward(ctx: Any, Q: Tensor, U: Tensor, value: Tensor) -> Tensor:
        """Q only lends its graph."""
        ctx.U = U
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """U·grad·Uᵀ, symmetrised."""
        back = ctx.U @ grad @ ctx.U.mT
        return (back + back.mT) / 2, None, None


def nearest_plane(c: Tensor, plane: Tensor) -> Tensor:
    """The lattice points (points, g) next to c (points, g); see `lattice.nearest_plane_matrix`."""
    n = c.round()
    for i in range(c.shape[1] - 2, -1, -1):
        n[:, i] = (c[:, i] + (c[:, i + 1 :] - n[:, i + 1 :]) @ plane[i, i + 1 :]).round()
    return n


def _choose_transformed(norms: Floats, phase: str, tolerance: float) -> int:
    """The number of leading coordinates to transform that leaves the fewest terms without much cancellation.

    Everything is a sum over coordinates of something known for the norm d (kept) and 4π²/d (transformed), so the sums
    for every cut come from two tables.
    """
    dual = TWO_PI**2 / norms
    both = np.array([norms, dual])
    smallest = log_gauss_sum(both, 0.5)  # of a positive sum with these norms
    oscillating = smallest[::-1] + 0.5 * np.log(TWO_PI / both)  # of an oscillating one
    cancellation = log_gauss_sum(both) - oscillating
    if phase == "I":
        lower, cancels = _every_cut(smallest[0], oscillating[1]), _every_cut(0 * norms, cancellation[1])
    else:
        lower, cancels = _every_cut(oscillating[0], smallest[1]), _every_cut(cancellation[0], 0 * norms)
    radii2 = radius_from_spread(_every_cut(tail_spread(norms), tail_spread(dual)), lower, tolerance)
    best = (math.inf, 0)
    for t, radius2 in enumerate(radii2):
        if cancels[t] <= math.log(MAX_CANCELLATION):
            oscillates = (np.arange(len(norms)) < t) == (phase == "I")
            chosen = np.concatenate([dual[:t], norms[t:]])
            count = estimate_count(chosen, radius2, np.where(oscillates, 0.0, np.sqrt(chosen)))
            best = min(best, (count / 2 if oscillates.any() else count, t))
    return best[1]


def _every_cut(kept: Floats, transformed: Floats) -> Floats:
    """Σ_{i<t} transformed_i + Σ_{i≥t} kept_i along the last axis (..., g), for t = 0 … g. Returns (..., g + 1)."""
    change = np.cumsum(transformed - kept, axis=-1)
    return kept.sum(axis=-1, keepdims=True) + np.concatenate([np.zeros_like(change[..., :1]), change], axis=-1)


def _log_smallest(pos: Floats, osc: Floats) -> float:
    """A lower bound for the logarithm of the sum, whatever the argument (one-dimensional sums multiply)."""
    poisson = 0.5 * np.log(TWO_PI / osc) + log_gauss_sum(TWO_PI**2 / osc, 0.5)
    return float(log_gauss_sum(pos, 0.5).sum() + poisson.sum())


def _reduce_dual_block(Q: Floats, U: Integers, gram: Floats, t: int) -> tuple[Integers, Floats]:
    """Change the first t coordinates so that 4π²Q_tt⁻¹, not Q_tt, is reduced."""
    V, _ = reduce_basis(np.linalg.inv(gram[:t, :t]) * TWO_PI**2)
    if (np.eye(t) == V).all():
        return U, gram
    U = U.copy()
    U[:, :t] = U[:, :t] @ integer_inverse(V).T
    return U, change_basis(Q, U)


def _block_cholesky(G: Floats, n_osc: int) -> Floats:
    R = np.zeros_like(G)
    for block in (slice(0, n_osc), slice(n_osc, len(G))):
        if G[block, block].size:
            R[block, block] = cholesky((G[block, block] + G[block, block].T) / 2)
    return R


def _half(points: Integers, n_osc: int) -> Integers:
    """Keep the points whose first non-zero oscillating coordinate is positive (or that have none)."""
    if not n_osc:
        return points
    osc = points[:, :n_osc]
    leading = osc[np.arange(len(osc)), (osc != 0).argmax(axis=1)]
    return points[leading >= 0]
