"""All half-integer characteristics of the Riemann theta function from one sum, and theta constants."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rtbm.theta.complex import as_matrices, product, theta_parts
from rtbm.validation import as_complex


def riemann_theta_characteristics(
    z: Any, omega: Any, *, derivatives: Sequence[Any] = (), tolerance: float = 1e-12, parts: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """The 4^g theta functions with half-integer characteristics, θ[a/2, b/2](z|Ω) for a and b in {0, 1}^g.

    Column k holds the a and b whose bits a₁ … a_g b₁ … b_g are the binary digits of k, as in FLINT's acb_theta_all. One
    sum of about 2^g times as many terms as that of one function serves them all.

    Parameters
    ----------
    z : (..., g)
        Complex or real.
    omega : (..., g, g)
        Complex, symmetric, with positive definite imaginary part. Its leading dimensions broadcast with those of z.
    derivatives : sequence of (g,), default=()
        Direction vectors; the result is the directional derivative of order len(derivatives).
    tolerance : float, default=1e-12
        Bounds the error of each w, as in `riemann_theta`.
    parts : bool, default=False
        If true, return u (...) and w (..., 4^g) with θ = exp(u)·w and u = π Im(z)ᵀ(Im Ω)⁻¹Im(z).

    Returns
    -------
    Tensor (..., 4^g)
        Complex; or the pair (u real, w complex). Differentiable in z and Ω.

    Examples
    --------
    >>> riemann_theta_characteristics([0.0], [[1j]]).real.round(decimals=6)  # θ₃, θ₄, θ₂ and −θ₁ of Jacobi
    tensor([1.0864, 0.9136, 0.9136, 0.0000], dtype=torch.float64)
    """
    matrices = as_matrices(omega)
    u, w = theta_parts(as_complex(z, "z"), matrices, derivatives, _halves(matrices), tolerance)
    return (u, w) if parts else product(u, w)


def theta_constants(omega: Any, *, tolerance: float = 1e-12) -> Tensor:
    """The theta constants θ[a/2, b/2](0|Ω), in the order of `riemann_theta_characteristics`.

    Those with odd a·b are odd functions of z. They are exactly zero here.

    Parameters
    ----------
    omega : (..., g, g)
        Complex, symmetric, with positive definite imaginary part.
    tolerance : float, default=1e-12
        Bounds the truncation error. Rounding adds about 1e-15·(1 + (det Im Ω)^−½).

    Returns
    -------
    Tensor (..., 4^g)
        Complex. Differentiable in Ω.

    Examples
    --------
    >>> theta_constants([[1e-8j]]).real  # Σ exp(−1e-8 πn²) ≈ 1e4
    tensor([10000.,     0., 10000.,     0.], dtype=torch.float64)
    """
    matrices = as_matrices(omega)
    values = riemann_theta_characteristics(matrices.new_zeros(matrices.shape[-1]), matrices, tolerance=tolerance)
    assert isinstance(values, Tensor)
    a, b = _halves(matrices).chunk(2, 1)
    return torch.where((a * b).sum(1) % 0.5 > 0, 0.0, values)


def _halves(omega: Tensor) -> Tensor:
    """All half-integer characteristics (4^g, 2g), on the device of Ω."""
    bits = torch.tensor([0.0, 0.5]).to(omega.real)
    return torch.cartesian_prod(*[bits] * (2 * omega.shape[-1]))
