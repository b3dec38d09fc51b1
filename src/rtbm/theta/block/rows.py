"""Lattice sums with a matrix of their own in each row, as a network that puts out machines needs them."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.theta.block.planning import BASIS, FACTOR, FOUND, N_MATRICES, PLANE, oscillating_smallest, plan_sum
from rtbm.theta.block.poisson import make_form, make_geometry
from rtbm.theta.kernels import compiled
from rtbm.theta.lattice import LARGEST_INTEGER, MAX_TERMS, walk
from rtbm.theta.truncation import CHERNOFF, add_spread, log_gauss, radius_from_spread

BLOCK_ROWS = 2**12  # rows whose terms are held at once


class RowPlans(NamedTuple):
    """Part of what `poisson.Geometry` is, for n matrices."""

    matrices: Floats  # (n, N_MATRICES, g, g)
    n_osc: Integers  # (n,)


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
    plans, basis = _reduced_plans(root.detach(), tolerance)
    rows = centre.reshape(-1, centre.shape[-1])
    matrix = np.arange(len(rows)) % len(root)
    parts, order = [], []
    for n_osc in np.unique(plans.n_osc):
        for chosen in np.array_split(np.flatnonzero(plans.n_osc[matrix] == n_osc), 1 + len(rows) // BLOCK_ROWS):
            index, own = (torch.from_numpy(part).to(rows.device) for part in (chosen, matrix[chosen]))
            matrices = plans.matrices[matrix[chosen]]
            parts.append(_sums(rows[index], root[own], basis[own], matrices, int(n_osc), tolerance))
            order.append(index)
    return torch.cat(parts)[torch.cat(order).argsort()].reshape(centre.shape[:-1])


def _reduced_plans(root: Tensor, tolerance: float) -> tuple[RowPlans, Tensor]:
    """Plans of (MU)ᵀ(MU), and the bases U (n, g, g). Where a first basis changes, the rounded MᵀM was not the last."""
    plans = _plan(_squares(root), tolerance)
    basis = torch.from_numpy(plans.matrices[:, BASIS]).to(root)
    if not torch.equal(basis, torch.eye(basis.shape[1]).to(basis).expand_as(basis)):
        plans = _plan(_squares(root @ basis), tolerance)
        basis = basis @ torch.from_numpy(plans.matrices[:, BASIS]).to(root)
    return plans, basis


def _squares(root: Tensor) -> Floats:
    product: Floats = (root.mT @ root).cpu().numpy()
    return np.ascontiguousarray(product + product.swapaxes(1, 2)) / 2


def _sums(centre: Tensor, root: Tensor, basis: Tensor, matrices: Floats, o: int, tolerance: float) -> Tensor:
    """The sums of rows that transform the same number o of coordinates; see `block.poisson`, with r = c − n₀::

    constant + log Σ_m exp(−½eᵀGe) cos 2πm_t·(r_t − Q_tt⁻¹Q_tk(m_k − r_k)),    e = (m_t, m_k − r_k)
    """
    reduced = root @ basis
    form = make_form(reduced.mT @ reduced, o, "I")
    rest = _remainders(centre, basis, torch.from_numpy(matrices[:, PLANE]).to(centre))
    lists = _list_rows(matrices[:, FACTOR].copy(), rest.detach().cpu().numpy(), o, tolerance, MAX_TERMS)
    if len(lists[0]) > MAX_TERMS:
        raise TooManyTermsError(len(lists[0]), MAX_TERMS)
    points, row = (torch.from_numpy(part).to(centre.device) for part in lists)
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


def _remainders(centre: Tensor, basis: Tensor, plane: Tensor) -> Tensor:
    """U⁻¹c − n₀ (n, g) with the lattice points n₀ that nearest-plane rounding finds."""
    inverse = torch.linalg.inv(basis).round()
    if not torch.equal(basis @ inverse, torch.eye(basis.shape[1]).to(basis).expand_as(basis)):
        raise InvalidInputError("the basis of a row is too skewed to be inverted in float64: rescale the problem")
    local = (inverse @ (centre - centre.detach().round())[..., None])[..., 0]  # whole numbers do not matter
    with torch.no_grad():
        nearest = local.round()
        for i in range(local.shape[1] - 2, -1, -1):
            step = ((local - nearest)[:, i + 1 :] * plane[:, i, i + 1 :]).sum(1)
            nearest[:, i] = (local[:, i] + step).round()
    return local - nearest


def _plan(Q: Floats, tolerance: float) -> RowPlans:
    """Plan the sums of n positive definite matrices (n, g, g) in phase I."""
    status, matrices, n_osc = _plan_rows(Q, tolerance)
    for i in np.flatnonzero(status != FOUND):  # the basis needs long integers, or there is none: an error says so
        geometry = make_geometry(Q[i], "I", tolerance)
        matrices[i], n_osc[i] = geometry.matrices, geometry.n_osc
    return RowPlans(matrices, n_osc)


@compiled
def _plan_rows(Q, tolerance):
    """Status (n,), matrices (n, N_MATRICES, g, g) and n_osc (n,)."""
    n, g = Q.shape[0], Q.shape[1]
    status, n_osc, matrices = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64), np.zeros((n, N_MATRICES, g, g))
    for i in range(n):
        status[i], M, n_osc[i], _, _, _ = plan_sum(Q[i], True, tolerance, -1, Q[i], Q[i])
        matrices[i] = M
    return status, matrices, n_osc


@compiled
def _list_rows(factors, rest, n_osc, tolerance, limit):
    """The points (terms, g) of n sums with factors R (n, g, g) around rest (n, g), and the rows (terms,) they are of.

    The sum is at least as large as its bound for any centre, and as the term next to the centre. More than `limit`
    points are too many, and the list then ends.
    """
    n, g = rest.shape
    points, row, total = np.zeros((64 * n, g)), np.zeros(64 * n, dtype=np.int64), 0
    for i in range(n):
        R, spread, centre, smallest, nearest, oscillating = (
            factors[i],
            np.zeros(len(CHERNOFF)),
            np.zeros(g),
            0.0,
            0.0,
            0.0,
        )
        for j in range(g):
            norm = R[j, j] * R[j, j]
            add_spread(norm, 1.0, spread)
            if j < n_osc:
                oscillating += oscillating_smallest(norm)
                continue
            centre[j] = rest[i, j]
            smallest += log_gauss(norm, 0.5)
            image = 0.0
            for k in range(j, g):
                image += R[j, k] * rest[i, k]
            nearest -= 0.5 * image * image
        radius2 = radius_from_spread(spread, oscillating + max(smallest, nearest) + math.log(tolerance))
        found = walk(R, centre, np.zeros(g), n_osc, radius2, limit - total, points[total:])
        if total + found > limit:
            return np.zeros((limit + 1, g)), row
        if total + found > len(points):
            points = np.concatenate((points[:total], np.zeros((total + 2 * found, g))))
            row = np.concatenate((row[:total], np.zeros(total + 2 * found, dtype=np.int64)))
            walk(R, centre, np.zeros(g), n_osc, radius2, limit - total, points[total:])
        row[total : total + found] = i
        total += found
    return points[:total], row[:total]
