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
from rtbm.theta.block import planning
from rtbm.theta.lattice import (
    change_basis,
    cholesky,
    enumerate_points,
    exact_congruence,
    in_parts,
    integer_inverse,
    not_definite,
    reduce_basis,
)


class Form(NamedTuple):
    """The matrices of the sum above, as tensors that remember how they came from Q. There may be a batch of them."""

    B: Tensor  # (..., g, g)
    K: Tensor  # (..., g, g)
    G: Tensor  # (..., g, g), block-diagonal
    Psi: Tensor  # (..., g, g), symmetric, couples positive with oscillating coordinates
    constant: Tensor  # (...)


class Geometry(NamedTuple):
    """The numbers of one sum, and the bounds that certify it."""

    matrices: Floats  # (N_MATRICES, g, g), in the order of `block.planning`
    n_osc: int
    points: Integers  # (terms, g): one of each ±pair of the oscillating coordinates
    constant: float
    to_lattice: float  # the largest lattice coordinate of an argument |z| ≤ 1

    @property
    def basis(self) -> Floats:
        """U (g, g): integers."""
        return self.matrices[planning.BASIS]

    @property
    def gram(self) -> Floats:
        """UᵀQU (g, g), exact to the last digit."""
        return self.matrices[planning.GRAM]

    @property
    def centre(self) -> Floats:
        """Lattice coordinates of the argument (g, g): c = z' @ centre."""
        return self.matrices[planning.CENTRE]

    @property
    def periods(self) -> Floats:
        """The inverse of `centre` as a sum of three (3, g, g): UᵀQU (phase I) or 2π (phase II)."""
        return self.matrices[planning.PERIODS : planning.PERIODS + 3]

    @property
    def plane(self) -> Floats:
        """The nearest-plane matrix (g, g)."""
        return self.matrices[planning.PLANE]

    @property
    def factor(self) -> Floats:
        """The upper triangular R (g, g) with G = RᵀR."""
        return self.matrices[planning.FACTOR]

    @property
    def form(self) -> Form:
        """The matrices of the sum as tensors."""
        M = torch.from_numpy(self.matrices)
        constant = torch.tensor(self.constant, dtype=torch.float64)
        return Form(M[planning.B], M[planning.K], M[planning.G], M[planning.PSI], constant)

    @property
    def largest_exponent(self) -> float:
        """No term of the sum exceeds the exponential of this: ½‖residual‖² in the positive coordinates."""
        return float((np.diag(self.factor)[self.n_osc :] ** 2).sum()) / 8


def make_form(gram: Tensor, n_osc: int, phase: str) -> Form:
    """Apply Poisson summation to the oscillating (phase I) or positive (phase II) coordinates of `gram` (..., g, g)."""
    g = gram.shape[-1]
    osc, pos = slice(0, n_osc), slice(n_osc, g)
    t, k = (osc, pos) if phase == "I" else (pos, osc)
    sign = 1.0 if phase == "I" else -1.0
    factor = torch.linalg.cholesky(gram[..., t, t])
    inverse = torch.cholesky_inverse(factor) if factor.numel() else factor
    mix = gram[..., k, t] @ inverse

    B = torch.eye(g, dtype=gram.dtype, device=gram.device).expand_as(gram).clone()
    B[..., t, t], B[..., k, t] = TWO_PI * inverse, -mix
    G, K, Psi = (torch.zeros_like(B) for _ in range(3))
    G[..., t, t], G[..., k, k] = TWO_PI**2 * inverse, gram[..., k, k] - mix @ gram[..., t, k]
    K[..., t, t] = sign * inverse
    Psi[..., k, t], Psi[..., t, k] = -sign * TWO_PI * mix, -sign * TWO_PI * mix.mT
    log_root = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    return Form(B, K, G, Psi, 0.5 * inverse.shape[-1] * math.log(TWO_PI) - log_root)


def make_geometry(Q: Floats, phase: str, tolerance: float) -> Geometry:
    """Reduce Q, choose what to transform, and list the lattice points that `tolerance` asks for.

    Everything is compiled, see `block.planning`. Where a basis needs integers that are too long for that, Python's
    integers find it.
    """
    is_first = phase == "I"
    status, *found = planning.plan_sum(Q, is_first, tolerance, -1, Q, Q)
    if status == planning.NOT_EXACT:
        basis, gram, t = find_basis(Q, is_first, tolerance)
        status, *found = planning.plan_sum(Q, is_first, tolerance, t, basis.astype(float), gram)
        if is_first:
            found[0][planning.PERIODS : planning.PERIODS + 3] = in_parts(*exact_congruence(Q, basis))
    if status == planning.NOT_DEFINITE:
        raise not_definite(Q)
    matrices, n_osc, radius2, constant, to_lattice = found
    R = matrices[planning.FACTOR]
    half_widths = np.where(np.arange(len(R)) < n_osc, 0.0, np.diag(R) / 2)
    points = enumerate_points(R, radius2, half_widths, n_paired=n_osc)
    return Geometry(matrices, n_osc, points, constant, to_lattice)


def find_basis(Q: Floats, is_first_phase: bool, tolerance: float) -> tuple[Integers, Floats, int]:
    """The basis U, UᵀQU exact to the last digit, and the number of its first coordinates to transform.

    This is what `planning.plan_sum` finds, with Python's integers.
    """
    U, gram = reduce_basis(Q)
    t = planning.choose_transformed(np.diag(cholesky(gram)) ** 2, is_first_phase, tolerance)
    if t > 1:  # 4π²Q_tt⁻¹, not Q_tt, is to be reduced
        V, _ = reduce_basis(np.linalg.inv(gram[:t, :t]) * TWO_PI**2)
        U[:, :t] = U[:, :t] @ integer_inverse(V).T
        gram = change_basis(Q, U)
    return U, gram, t
