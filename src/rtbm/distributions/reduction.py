"""A better basis for the hidden units: h → Uh with U unimodular is another name for the same machine."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.theta.derivatives import Congruence
from rtbm.theta.exact import exact_product
from rtbm.theta.lattice import change_basis, integer_inverse, reduce_basis


class Reduced(NamedTuple):
    """A form A, weights F and their sum A + FᵀS⁻¹F, in a basis in which the sum is reduced."""

    basis: Tensor  # U (g, g)
    dual: Tensor  # U⁻ᵀ (g, g)
    form: Tensor  # UᵀAU (g, g)
    weights: Tensor  # FU (n, g)
    total: Tensor  # UᵀAU + (FU)ᵀS⁻¹(FU)
    root: Tensor  # L⁻¹FU with S = LLᵀ


def reduce_sum(A: Tensor, F: Tensor, L: Tensor) -> Reduced:
    """Reduce A + FᵀS⁻¹F (S = LLᵀ), taking A and F to the new basis before they are added.

    With more hidden than visible units FᵀS⁻¹F is singular, and a small A would drown in its rounding errors. In the
    reduced basis both parts have the same size. The basis is constant under differentiation.
    """
    with torch.no_grad():
        a, f, factor = A.cpu(), F.cpu(), L.cpu()
        U = np.eye(A.shape[0], dtype=np.int64)
        for _ in range(8):
            root = torch.linalg.solve_triangular(factor, transform_rows(f, torch.from_numpy(U).double()), upper=False)
            step, _ = reduce_basis(change_basis(a.numpy(), U) + (root.mT @ root).numpy())
            if (step == np.eye(len(U))).all():
                break
            U = U @ step
        dual = torch.from_numpy(integer_inverse(U).T).to(A)
        basis, form = torch.from_numpy(U).to(A), torch.from_numpy(change_basis(a.numpy(), U)).to(A)
    form, weights = Congruence.apply(A, basis, form), transform_rows(F, basis)
    root = torch.linalg.solve_triangular(L, weights, upper=False)
    return Reduced(basis, dual, form, weights, form + root.mT @ root, root)


def transform_rows(rows: Tensor, U: Tensor) -> Tensor:
    """rows (n, g) @ U, without rounding of intermediate sums."""
    coarse, rest = exact_product(rows, torch.zeros_like(rows), U)
    return coarse + rest
