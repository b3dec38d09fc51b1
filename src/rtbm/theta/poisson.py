"""The Poisson dual of a matrix: in which basis its theta function is summed, over which points, around which centre.

Write θ̃(z|Q) in a reduced basis, n = Un'. Poisson summation over some of the coordinates (the *transformed* ones, t)
turns short, crowded directions into long, sparse ones; the others are *kept* (k). With s = z − Qn₀ (phase I) or
s = z − 2πn₀ (phase II), the argument left after recentring, both phases read

    log θ̃ = offset + ½sᵀKs + constant + log Σ_m exp(−½mᵀGm + i½mᵀΨm + Σ_pos m_j x_j + i Σ_osc m_j x_j),   x = Bs

with G = 4π²Q_tt⁻¹ ⊕ (Q_kk − Q_kt Q_tt⁻¹ Q_tk). In phase I the transformed coordinates oscillate and the kept ones are
positive; in phase II it is the other way round. Coordinates are ordered: oscillating first, positive last.
"""

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.exact import grid_factor
from rtbm.theta.lattice import (
    cholesky,
    enumerate_points,
    exact_congruence,
    in_parts,
    nearest_plane_matrix,
    quotients,
    reduce_basis,
    reduce_factors,
    triangular_factors,
)
from rtbm.theta.truncation import estimate_count, log_gauss_sum, squared_radius

MAX_CANCELLATION = 100.0
"""An oscillating sum is used only where Σ|terms| ≤ MAX_CANCELLATION · |Σ terms| is certain. A larger limit would cost
digits, a smaller one terms."""


class Form(NamedTuple):
    """The matrices of the sum above, as arrays or tensors. There may be a batch of them."""

    B: Any  # (..., g, g)
    K: Any  # (..., g, g)
    G: Any  # (..., g, g), block-diagonal
    Psi: Any  # (..., g, g), symmetric, couples positive with oscillating coordinates
    constant: Any  # (...)


class LatticeSum:
    """What is summed for one matrix Q (g, g), phase and tolerance."""

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.g, self.phase = len(Q), phase
        self.basis, t = _find_basis(Q, phase, tolerance)
        self.n_osc = o = t if phase == "I" else self.g - t
        numerators, unit = exact_congruence(Q, self.basis)
        self.gram = quotients(numerators, unit)
        """UᵀQU, exact to the last digit."""
        self.form = make_form(self.gram, o, phase, np)
        self.factor = cholesky(self.form.G)
        """The upper triangular R with G = RᵀR."""
        widths, oscillates = self.factor.diagonal(), np.arange(self.g) < o
        radius2 = float(find_radius2(widths**2, oscillates, tolerance))
        self.points = enumerate_points(self.factor, radius2, widths / 2 * ~oscillates, n_paired=o)
        """The terms (terms, g): one of each pair ±m of the oscillating coordinates."""
        self.largest_exponent = float((widths[o:] ** 2).sum()) / 8
        """No term of the sum exceeds the exponential of this: ½‖x‖² in the positive coordinates, after recentring."""
        identity, is_first = np.eye(self.g), phase == "I"
        self.centre = np.linalg.inv(self.gram) if is_first else identity / TWO_PI
        self.periods = in_parts(numerators, unit) if is_first else [part * identity for part in TWO_PI_PARTS]
        self.plane = nearest_plane_matrix(self.factor) * ~oscillates[:, None]
        self.to_lattice = float(np.abs(self.basis @ self.centre).sum(axis=0).max())
        """The largest lattice coordinate of an argument |z| ≤ 1: coordinates are c = zU @ centre."""

    @cached_property
    def numbers(self) -> Floats:
        """What compiled passes take: eight matrices (g, g) for the way to local arguments and back, and g + 2 numbers.

        Where it oscillates, the argument x is in turns. The numbers are slopes with Ks = slopes·x, twice the factor of
        the grid on which zU is exact, and the constant.
        """
        U, B, K, oscillates = self.basis, self.form.B, self.form.K, np.arange(self.g) < self.n_osc
        coarse, *finer = self.periods
        to_x = B * np.where(oscillates, 1 / TWO_PI, 1.0)[:, None]
        matrices = U, self.centre, self.plane, coarse, sum(finer), to_x, U @ B.T, U @ K @ U.T
        slopes = oscillates * 1.0 if self.phase == "I" else np.where(oscillates, 0.0, -1 / TWO_PI)
        return np.concatenate([*map(np.ravel, matrices), slopes, [2 * grid_factor(U), self.form.constant]])

    @cached_property
    def terms(self) -> Floats:
        """What compiled passes sum (terms − 1, g + 2): a point but zero, the log of its size, its turns at x = 0."""
        m = self.points[self.points.any(axis=1)].astype(float)
        pairs = np.where(m[:, : self.n_osc].any(axis=1), math.log(2), 0.0)
        decay, turns = (0.5 * ((m @ matrix) * m).sum(axis=1) for matrix in (self.form.G, self.form.Psi / TWO_PI))
        return np.column_stack([m, pairs - decay, turns])


def make_form(gram: Any, n_osc: int, phase: str, xp: Any = torch) -> Form:
    """Poisson summation over the oscillating (phase I) or positive (phase II) coordinates of `gram` (..., g, g).

    These are arrays (xp=numpy) or tensors (xp=torch), differentiable to any order. All matrices have g coordinates:
    with T = Q_tt ⊕ 1, inverse = Q_tt⁻¹ ⊕ 0 and mix = Q_kt Q_tt⁻¹.
    """
    g, sign = gram.shape[-1], 1.0 if phase == "I" else -1.0
    is_transformed = (np.arange(g) < n_osc) == (phase == "I")
    t = xp.asarray(is_transformed * 1.0) if xp is np else gram.new_tensor(is_transformed * 1.0)
    k = 1 - t
    both, kept = t[:, None] * t, k[:, None] * k
    T = gram * both + xp.diag(k)
    inverse = xp.linalg.inv(T) * both
    mix = (gram * (k[:, None] * t)) @ inverse
    B = TWO_PI * inverse - mix + xp.diag(k)
    G = TWO_PI**2 * inverse + (gram - mix @ gram) * kept
    Psi = -sign * TWO_PI * (mix + mix.swapaxes(-1, -2))
    constant = 0.5 * (math.log(TWO_PI) * float(is_transformed.sum()) - xp.linalg.slogdet(T)[1])
    return Form(B, sign * inverse, G, Psi, constant)


def find_radius2(norms: Floats, oscillates: Any, tolerance: float) -> Any:
    """The squared radius for sums over lattices with Gram-Schmidt norms (..., g), of which some coordinates oscillate.

    The terms beyond it are together below `tolerance` times the sum, wherever that is smallest.
    """
    return squared_radius(norms, log_smallest_sum(norms, oscillates).sum(axis=-1) + math.log(tolerance))


def log_smallest_sum(norms: Floats, oscillates: Any) -> Floats:
    """The log of the least value of Σ_k exp(−½d(k − c)²) for each norm d.

    Where it oscillates, it is that of Σ_k exp(−½dk²) cos(kc), Σ_k (−1)^k exp(−½dk²): √(2π/d) times the former one for
    4π²/d.
    """
    root = 0.5 * np.log(TWO_PI / norms) * oscillates
    return log_gauss_sum(np.where(oscillates, TWO_PI**2 / norms, norms), 0.5) + root


def choose_transformed(norms: Floats, phase: str, tolerance: float) -> Integers:
    """The number (...) of leading coordinates to transform that leaves the fewest terms without much cancellation."""
    g = norms.shape[-1]
    is_transformed = np.arange(g) < np.arange(g + 1)[:, None]
    norms = np.where(is_transformed, TWO_PI**2 / norms[..., None, :], norms[..., None, :])
    oscillates = is_transformed == (phase == "I")
    smallest = log_smallest_sum(norms, oscillates)
    cancellation = ((log_gauss_sum(norms) - smallest) * oscillates).sum(axis=-1)
    radius2 = squared_radius(norms, smallest.sum(axis=-1) + math.log(tolerance))
    count = estimate_count(norms, radius2, np.sqrt(norms) * ~oscillates) / (1 + oscillates.any(axis=-1))
    return np.where(cancellation <= math.log(MAX_CANCELLATION), count, np.inf).argmin(axis=-1)


def dual_step(R: Floats, t: int) -> Floats:
    """The change (n, t, t) of the first t of the basis vectors, with factors R (n, g, g), that reduces 4π²Q_tt⁻¹."""
    root = TWO_PI * np.linalg.inv(R[:, :t, :t]).swapaxes(1, 2)
    return np.rint(np.linalg.inv(reduce_factors(triangular_factors(root)))).swapaxes(1, 2)


def _find_basis(Q: Floats, phase: str, tolerance: float) -> tuple[Integers, int]:
    """The basis U (g, g), oscillating coordinates first, and the number of coordinates to transform."""
    U, gram = reduce_basis(Q)
    R = cholesky(gram)
    t = int(choose_transformed(R.diagonal() ** 2, phase, tolerance))
    if t > 2:  # the dual of two reduced basis vectors is reduced
        U[:, :t] = U[:, :t] @ dual_step(R[None], t)[0].astype(np.int64)
    return (U if phase == "I" else np.roll(U, -t, axis=1)), t
