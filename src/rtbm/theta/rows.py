"""Lattice sums with a matrix of their own in each row, as a network that puts out machines needs them."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.errors import InvalidInputError, NotPositiveDefiniteError
from rtbm.theta.exact import nearest_plane
from rtbm.theta.lattice import (
    LARGEST_INTEGER,
    MAX_ROUNDS,
    MAX_TERMS,
    list_points,
    nearest_plane_matrix,
    reduce_factors,
    triangular_factors,
)
from rtbm.theta.poisson import choose_transformed, dual_step, log_smallest_sum, make_form
from rtbm.theta.truncation import squared_radius

BLOCK_ROWS = 2**12  # rows whose terms are held at once


def log_shifted_sums(centre: Tensor, root: Tensor, tolerance: float = 1e-12) -> Tensor:
    """log Σ_n exp(−½|M(n − c)|²) over n ∈ ℤ^g, for each row: log θ̃(Qc|Q) − ½cᵀQc with Q = MᵀM.

    Nothing cancels here, however far the centre is, and MᵀM is formed in a reduced basis.

    Parameters
    ----------
    centre : (..., n, g)
        The centres c. Several for one matrix cost less than as many matrices.
    root : (n, k, g)
        The matrices M, of full column rank.
    tolerance : float, default=1e-12
        Bounds the truncation error of each sum, relative to it.

    Returns
    -------
    Tensor (..., n)
        In float64, differentiable in both arguments to any order.

    Examples
    --------
    >>> log_shifted_sums(torch.tensor([[0.5], [7.5]]), torch.tensor([[[4.0]], [[4.0]]]))  # two terms of exp(−2)
    tensor([-1.3069, -1.3069], dtype=torch.float64)
    """
    centre, root = centre.double(), root.double()
    if not bool((centre.detach().abs() < LARGEST_INTEGER).all()):
        raise InvalidInputError(
            f"centre must be finite and below {LARGEST_INTEGER:.3g}, where float64 can tell lattice points apart"
        )
    if centre.numel() == 0:
        return centre.sum(-1) + root.sum((1, 2))
    bases, transformed = _find_bases(root.detach().cpu().numpy(), tolerance)
    rows = centre.reshape(-1, centre.shape[-1])
    matrix = np.arange(len(rows)) % len(root)
    parts, order = [], []
    for t in np.unique(transformed):
        for chosen in np.array_split(np.flatnonzero(transformed[matrix] == t), 1 + len(rows) // BLOCK_ROWS):
            index, own = (torch.from_numpy(part).to(rows.device) for part in (chosen, matrix[chosen]))
            basis = torch.from_numpy(bases[matrix[chosen]]).to(rows.device)
            parts.append(_sums(rows[index], root[own], basis, int(t), tolerance))
            order.append(index)
    return torch.cat(parts)[torch.cat(order).argsort()].reshape(centre.shape[:-1])


def _find_bases(root: Floats, tolerance: float) -> tuple[Floats, Integers]:
    """The reduced bases (n, g, g) of (MU)ᵀ(MU), and how many of their first coordinates to transform (n,)."""
    if not (np.isfinite(root).all() and (np.diagonal(triangular_factors(root), axis1=1, axis2=2) > 0).all()):
        raise NotPositiveDefiniteError("the matrices must be finite and of full column rank, and one is not")
    basis = np.broadcast_to(np.eye(root.shape[2]), (len(root), *root.shape[2:] * 2))
    for _ in range(MAX_ROUNDS):
        R = triangular_factors(root @ basis)
        step = reduce_factors(R)
        basis = basis @ step
        if not (np.abs(basis) <= LARGEST_INTEGER).all():
            raise InvalidInputError("a matrix is too unbalanced to be reduced in float64: rescale the problem")
        if (step == np.eye(root.shape[2])).all():
            break
    transformed = choose_transformed(np.diagonal(R, axis1=1, axis2=2) ** 2, "I", tolerance)
    for t in np.unique(transformed[transformed > 2]):
        rows = np.flatnonzero(transformed == t)
        basis[rows, :, :t] = basis[rows, :, :t] @ dual_step(R[rows], int(t))
    return basis, transformed


def _sums(centre: Tensor, root: Tensor, basis: Tensor, o: int, tolerance: float) -> Tensor:
    """The sums of rows that transform the same number o of coordinates; see `poisson`, with r = c − n₀::

    constant + log Σ_m exp(−½eᵀGe) cos 2πm_t·(r_t − Q_tt⁻¹Q_tk(m_k − r_k)),    e = (m_t, m_k − r_k)
    """
    reduced = root @ basis
    form = make_form(reduced.mT @ reduced, o, "I")
    factor = torch.linalg.cholesky(form.G.detach()).mT.cpu().numpy()
    rest = _remainders(centre, basis, factor)
    points, row = (torch.from_numpy(part).to(rest.device) for part in _list_rows(factor, rest, o, tolerance))
    rest, kept = rest[row], points[:, o:] - rest[row][:, o:]
    shifted = torch.cat([points[:, :o], kept], 1)
    exponent = -0.5 * ((form.G[row] @ shifted[..., None])[..., 0] * shifted).sum(1)
    largest = exponent.new_full((len(centre),), -torch.inf)
    largest = largest.scatter_reduce(0, row, exponent.detach(), "amax")
    terms = (exponent - largest[row]).exp()
    if o:
        turns = rest[:, :o] + (form.B[row][:, o:, :o].mT @ kept[..., None])[..., 0]
        pairs = 1 + (points[:, :o] != 0).any(1).double()
        terms = terms * pairs * (TWO_PI * (points[:, :o] * turns).sum(1)).cos()
    return form.constant + largest + torch.zeros_like(largest).index_add(0, row, terms).log()


def _remainders(centre: Tensor, basis: Tensor, factor: Floats) -> Tensor:
    """U⁻¹c − n₀ (n, g) with the lattice points n₀ that nearest-plane rounding finds."""
    inverse = torch.linalg.inv(basis).round()
    if not torch.equal(basis @ inverse, torch.eye(basis.shape[1]).to(basis).expand_as(basis)):
        raise InvalidInputError("the basis of a row is too skewed to be inverted in float64: rescale the problem")
    local = (inverse @ (centre - centre.detach().round())[..., None])[..., 0]  # whole numbers do not matter
    return local - nearest_plane(local.detach(), torch.from_numpy(nearest_plane_matrix(factor)).to(local))


def _list_rows(factor: Floats, rest: Tensor, o: int, tolerance: float) -> tuple[Integers, Integers]:
    """The points (terms, g) of n sums with factors R (n, g, g) around rest (n, g), and the rows (terms,) they are of.

    A sum is at least as large as its bound for any centre, and as the term next to the centre.
    """
    norms, oscillates = np.diagonal(factor, axis1=1, axis2=2) ** 2, np.arange(factor.shape[1]) < o
    centre = np.where(oscillates, 0.0, rest.detach().cpu().numpy())
    smallest = log_smallest_sum(norms, oscillates)
    nearest = -0.5 * ((factor @ centre[..., None])[..., 0] ** 2).sum(axis=1)
    positive = np.maximum((smallest * ~oscillates).sum(axis=1), nearest)
    radius2 = squared_radius(norms, (smallest * oscillates).sum(axis=1) + positive + math.log(tolerance))
    return list_points(factor, radius2, np.zeros_like(centre), centre, MAX_TERMS, o)
