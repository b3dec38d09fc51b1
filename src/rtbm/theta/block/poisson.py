"""The Poisson dual of a block: in which basis its theta function is summed, over which points, around which centre.

Write θ̃(z|Q) in a reduced basis, n = Un'. Poisson summation over some of the coordinates (the *transformed* ones, t)
turns short, crowded directions into long, sparse ones; the others are *kept* (k). With s = z − Qn₀ (phase I) or
s = z − 2πn₀ (phase II), the argument left after recentring, both phases read

    log θ̃ = offset + ½sᵀKs + constant + log Σ_m exp(−½mᵀGm + i½mᵀΨm + Σ_pos m_j x_j + i Σ_osc m_j x_j),   x = Bs

with G = 4π²Q_tt⁻¹ ⊕ (Q_kk − Q_kt Q_tt⁻¹ Q_tk). In phase I the transformed coordinates oscillate and the kept ones are
positive; in phase II it is the other way round. Coordinates are ordered: oscillating first, positive last.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.lattice import (
    change_basis,
    cholesky,
    enumerate_points,
    exact_congruence,
    in_parts,
    integer_inverse,
    nearest_plane_matrix,
    reduce_basis,
)
from rtbm.theta.truncation import estimate_count, log_gauss_sum, radius_from_spread, squared_radius, tail_spread

MAX_CANCELLATION = 100.0
"""An oscillating sum is used only where Σ|terms| ≤ MAX_CANCELLATION · |Σ terms| is certain. A larger limit would cost
digits, a smaller one terms."""


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
