"""Siegel reduction: a matrix of the upper half space moved by the modular group to where theta sums are short.

The group of integer symplectic matrices M = [[A, B], [C, D]] acts by Ω ↦ (AΩ + B)(CΩ + D)⁻¹. Three generators do all:
a change of basis Ω ↦ UᵀΩU, a translation Ω ↦ Ω − S, and an inversion in one coordinate.
"""

import cmath
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.theta.lattice import (
    LOVASZ,
    cholesky,
    exact_integers,
    integer_inverse,
    nearest_plane_matrix,
    quotients,
    reduce_basis,
)
from rtbm.validation import as_complex, check_positive_definite, check_symmetric

REDUCED = 1e-9
"""By how much `is_siegel_reduced` lets each inequality fail. Below 1e-15, rounding would decide on the boundary."""

Exact = NDArray[Any]
"""An array of Python integers."""


def siegel_reduce(omega: Any) -> tuple[Tensor, Tensor]:
    """Siegel-reduce a matrix Ω: find M in Sp(2g, ℤ) that moves it to where theta sums are short::

        Ω′ = (AΩ + B)(CΩ + D)⁻¹,     M = [[A, B], [C, D]]

    Ω′ has an LLL-reduced imaginary part, real parts in [−½, ½], and abs(Ω′_ii) ≥ 1 for every i. So Im Ω′_ii ≥ √3/2, and
    det Im Ω′ ≥ det Im Ω.

    Parameters
    ----------
    omega : (g, g)
        Complex, symmetric, with positive definite imaginary part.

    Returns
    -------
    Ω′ : Tensor (g, g)
        Complex, with an error of half a unit in the last place of each real and imaginary part: the given floats count
        as exact, and every step is exact.
    M : Tensor (2g, 2g)
        int64.

    Examples
    --------
    >>> reduced, M = siegel_reduce([[0.001j]])
    >>> reduced, M
    (tensor([[0.+1000.j]], dtype=torch.complex128), tensor([[ 0,  1],
            [-1,  0]]))
    """
    M, parts, unit, *_ = reduce(upper_half(as_complex(omega, "omega")))
    largest = abs(M).max()
    if largest >= 2**63:
        raise InvalidInputError(
            f"omega needs a symplectic matrix with entries up to {float(largest):.3g}, beyond int64: "
            "its real part is too large, or its imaginary part too small; riemann_theta takes it as it is"
        )
    real, imaginary = quotients(parts, unit)
    return torch.as_tensor(real + 1j * imaginary), torch.as_tensor(M.astype(np.int64))


def is_siegel_reduced(omega: Any) -> bool:
    """Whether Ω is reduced as by `siegel_reduce`, up to 1e-9 in each inequality.

    Parameters
    ----------
    omega : (g, g)
        Complex, symmetric, with positive definite imaginary part.

    Examples
    --------
    >>> is_siegel_reduced([[0.001j]]), is_siegel_reduced([[1000j]])
    (False, True)
    """
    matrix = upper_half(as_complex(omega, "omega"))
    R = cholesky(matrix.imag)
    norms, slopes = np.diag(R) ** 2, nearest_plane_matrix(R)
    excesses = (
        abs(matrix.real) - 0.5,
        1 - abs(np.diag(matrix)),
        abs(slopes) - 0.5,
        LOVASZ - np.diag(slopes, 1) ** 2 - norms[1:] / norms[:-1],
    )
    return all((excess <= REDUCED).all() for excess in excesses)


def upper_half(omega: Tensor, name: str = "omega") -> NDArray[np.complex128]:
    """Ω as an array, checked to be one symmetric matrix with positive definite imaginary part."""
    check_positive_definite(check_symmetric(omega, name).imag, f"the imaginary part of {name}")
    form = omega.detach().cpu().numpy()
    return (form + form.T) / 2


def reduce(omega: NDArray[np.complex128], inverts: bool = True) -> tuple[Exact, Exact, int, complex, Exact]:
    """Reduce Ω; without inversions, only its basis and its real part.

    Returns M (2g, 2g) and Ω′ = MΩ without rounding (its real and imaginary part, and the integer that divides them),
    and the factor, an eighth root of unity over a branch of √det(CΩ + D), and (c, d) (2g,), times 2, in

        θ(z|Ω) = factor · exp(−πi zᵀGz) θ[c,d](Nz|Ω′),     N = (CΩ + D)⁻ᵀ = A − Ω′C,     G = (CΩ + D)⁻¹C = CᵀN

    Rounded matrices only choose the steps, and each inversion makes det Im Ω larger, so the loop ends.
    """
    (parts, unit), g = exact_integers(np.stack([omega.real, omega.imag])), len(omega)
    M: Exact = np.eye(2 * g, 2 * g + 1, dtype=object)  # the last column is (−d, c), which moves alike
    upper, lower = M[:g], M[g:]
    eighths, root = 0, 1 + 0j
    while True:
        U = reduce_basis(quotients(parts[1], unit))[0].astype(object)
        parts = U.T @ parts @ U
        S = (2 * parts[0] + unit) // (2 * unit)
        parts[0] -= S * unit
        lower[:] = integer_inverse(U) @ lower
        upper[:] = U.T @ upper - S @ lower
        upper[:, -1] -= np.diag(S)
        c = lower[:, -1]
        eighths -= c @ (2 * np.diag(S) + S @ c)
        real, imaginary = np.diagonal(parts, 0, 1, 2)
        norms = real**2 + imaginary**2
        i = np.argmin(norms)
        if not inverts or norms[i] >= unit**2:
            factor = cmath.exp(0.25j * cmath.pi * (eighths % 8)) / root
            return M[:, :-1], parts, unit, factor, np.hstack([c, -upper[:, -1]])
        # Poisson summation in n_i gives 1/√(−iΩ_ii), the principal branch, because Re(−iΩ_ii) > 0
        root *= cmath.sqrt(complex(imaginary[i] / unit, -real[i] / unit))
        eighths -= 2 * c[i] * upper[i, -1]
        M[[i, g + i]] = lower[i], -upper[i]
        parts, unit = _inverted(parts, unit, i)


def _inverted(parts: Exact, unit: int, i: np.intp) -> tuple[Exact, int]:
    """Ω − vvᵀ/Ω_ii, where Ω has lost row and column i, and v = a + bi is that column with v_i = 1."""
    a, b = v = parts[:, :, [i]]
    x, y = parts[:, i, i]
    v[:, i, 0] = unit, 0
    parts[:, i] = parts[:, :, i] = 0
    p, q, norm = x * a + y * b, x * b - y * a, x * x + y * y  # v times the conjugate of Ω_ii
    parts = parts * norm - np.stack([p @ a.T - q @ b.T, p @ b.T + q @ a.T])
    common = math.gcd(unit * norm, *parts.flat)
    return parts // common, unit * norm // common
