"""Siegel reduction: a matrix of the upper half space moved by the modular group to where theta sums are short.

The group of integer symplectic matrices M = [[A, B], [C, D]] acts by Ω ↦ (AΩ + B)(CΩ + D)⁻¹. Three generators do all:
a change of basis Ω ↦ UᵀΩU, a translation Ω ↦ Ω − S, and an inversion in one coordinate.
"""

import cmath
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.theta.lattice import LOVASZ, cholesky, exact_integers, integer_inverse, quotients, reduce_basis
from rtbm.validation import as_complex, check_positive_definite, check_symmetric

REDUCED = 1e-9
"""By how much `is_siegel_reduced` lets each inequality fail. Below 1e-15, rounding would decide on the boundary."""

Exact = NDArray[Any]
"""An array of Python integers."""


class Reduction(NamedTuple):
    """M and Ω′ = MΩ without rounding, and what the theta function needs of the way:

    θ(z|Ω) = factor · exp(−πi zᵀGz) θ[c,d](Nz|Ω′),     N = (CΩ + D)⁻ᵀ = A − Ω′C,     G = (CΩ + D)⁻¹C = CᵀN
    """

    matrix: Exact  # M (2g, 2g)
    real: Exact  # Ω′ (g, g), times unit
    imaginary: Exact
    unit: int
    factor: complex  # an eighth root of unity over a branch of √det(CΩ + D)
    characteristic: Exact  # (c, d) (2g,), times 2

    @property
    def omega(self) -> NDArray[np.complex128]:
        """Ω′, rounded once."""
        return _rounded(self.real, self.imaginary, self.unit)

    def cocycle(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
        """N and G, each rounded once."""
        g = len(self.real)
        A, C = self.matrix[:g, :g], self.matrix[g:, :g]
        real, imaginary = A * self.unit - self.real @ C, -(self.imaginary @ C)
        return _rounded(real, imaginary, self.unit), _rounded(C.T @ real, C.T @ imaginary, self.unit)


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
    found = reduce(check_upper_half(as_complex(omega, "omega")).detach().cpu().numpy())
    if abs(found.matrix).max() >= 2**63:
        raise InvalidInputError(
            f"omega needs a symplectic matrix with entries up to {float(abs(found.matrix).max()):.3g}, beyond int64: "
            "its real part is too large, or its imaginary part too small; riemann_theta takes it as it is"
        )
    return torch.as_tensor(found.omega), torch.as_tensor(found.matrix.astype(np.int64))


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
    matrix = check_upper_half(as_complex(omega, "omega")).detach().cpu().numpy()
    R = cholesky((matrix.imag + matrix.imag.T) / 2)
    norms, slopes = np.diag(R) ** 2, np.triu(R / np.diag(R)[:, None], 1)
    following = norms[1:] + np.diag(slopes, 1) ** 2 * norms[:-1]
    return bool(
        (abs(matrix.real) <= 0.5 + REDUCED).all()
        and (abs(np.diag(matrix)) >= 1 - REDUCED).all()
        and (abs(slopes) <= 0.5 + REDUCED).all()
        and (following >= (LOVASZ - REDUCED) * norms[:-1]).all()
    )


def check_upper_half(omega: Tensor, name: str = "omega") -> Tensor:
    """Check that a tensor is one symmetric matrix with positive definite imaginary part."""
    check_positive_definite(check_symmetric(omega, name).imag, f"the imaginary part of {name}")
    return omega


def reduce(omega: NDArray[np.complex128]) -> Reduction:
    """Reduce Ω. Rounded matrices only choose the steps, and each inversion makes det Im Ω larger, so the loop ends."""
    g = len(omega)
    omega = (omega + omega.T) / 2
    both, unit = exact_integers(np.stack([omega.real, omega.imag]))
    real, imaginary = both
    M: Exact = np.eye(2 * g, dtype=int).astype(object)
    c = d = np.zeros(g, dtype=int).astype(object)
    eighths, root = 0, 1 + 0j
    while True:
        U = reduce_basis(quotients(imaginary, unit))[0]
        V, U = integer_inverse(U).astype(object), U.astype(object)
        real, imaginary = U.T @ real @ U, U.T @ imaginary @ U
        S = (2 * real + unit) // (2 * unit)
        real = real - S * unit
        c, d = V @ c, U.T @ d
        eighths -= c @ (2 * np.diag(S) + S @ c)
        d = d + S @ c + np.diag(S)
        lower = V @ M[g:]
        M = np.vstack([U.T @ M[:g] - S @ lower, lower])
        norms = np.diag(real) ** 2 + np.diag(imaginary) ** 2
        i = int(np.argmin(norms))
        if norms[i] >= unit**2:
            factor = cmath.exp(0.25j * cmath.pi * (eighths % 8)) / root
            return Reduction(M, real, imaginary, unit, factor, np.concatenate([c, d]))
        # Poisson summation in n_i gives 1/√(−iΩ_ii), the principal branch, because Re(−iΩ_ii) > 0
        root *= cmath.sqrt(complex(imaginary[i, i] / unit, -real[i, i] / unit))
        eighths += 2 * c[i] * d[i]
        c[i], d[i] = d[i], -c[i]
        M[i], M[g + i] = M[g + i].copy(), -M[i]
        real, imaginary, unit = _inverted(real, imaginary, unit, i)


def _inverted(real: Exact, imaginary: Exact, unit: int, i: int) -> tuple[Exact, Exact, int]:
    """Ω − vvᵀ/Ω_ii, where Ω has lost row and column i, and v is that column with v_i = 1."""
    x, y = real[i, i], imaginary[i, i]
    a, b = real[:, i].copy(), imaginary[:, i].copy()
    a[i], b[i] = unit, 0
    keep = np.ones(real.shape, dtype=int).astype(object)
    keep[i], keep[:, i] = 0, 0
    square, twice = np.outer(a, a) - np.outer(b, b), np.outer(a, b) + np.outer(b, a)
    norm = x**2 + y**2
    real = keep * real * norm - (square * x + twice * y)
    imaginary = keep * imaginary * norm - (twice * x - square * y)
    unit *= norm
    common = math.gcd(unit, *real.flat, *imaginary.flat)
    return real // common, imaginary // common, unit // common


def _rounded(real: Exact, imaginary: Exact, unit: int) -> NDArray[np.complex128]:
    return quotients(real, unit) + 1j * quotients(imaginary, unit)
