"""The Riemann theta function of a complex matrix, with characteristics and derivatives of any order."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.theta.chunks import in_chunks
from rtbm.theta.modular import Transformation
from rtbm.theta.siegel import upper_half
from rtbm.validation import (
    as_complex,
    as_real,
    check_same_device,
    check_tolerance,
    check_vector,
    check_vectors,
)

FEW_TERMS = 300
"""Up to this number of terms, Ω is not Siegel-reduced: the exact arithmetic of a point takes as long as 200 terms."""
PAYS = 2
"""The reduced sum is taken if it has fewer terms by this factor. A larger factor would leave more sums long."""
LARGEST_LOG = 700.0
"""θ itself is returned up to this logarithm. Beyond 709 it would overflow."""


def riemann_theta(
    z: Any,
    omega: Any,
    *,
    derivatives: Sequence[Any] = (),
    characteristic: tuple[Any, Any] | None = None,
    tolerance: float = 1e-12,
    parts: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """The Riemann theta function of a general complex matrix::

        θ[α,β](z|Ω) = Σ_{n∈ℤ^g} exp(2πi(½(n+α)ᵀΩ(n+α) + (n+α)ᵀ(z+β)))

    Parameters
    ----------
    z : (..., g)
        Complex or real.
    omega : (..., g, g)
        Complex, symmetric, with positive definite imaginary part. Its leading dimensions broadcast with those of z.
    derivatives : sequence of (g,), default=()
        Direction vectors; the result is the directional derivative of order len(derivatives).
    characteristic : pair of (g,), default=None
        The real vectors α and β; by default both are zero.
    tolerance : float, default=1e-12
        Bounds the truncation error of w below. (θ has zeros, so no bound can be relative to θ itself.) With derivatives
        it is in units of Π_j 2π(‖d_j‖ + abs(d_j·n₀)), with ‖d‖² = dᵀ(2π Im Ω)⁻¹d and n₀ the lattice point next to
        −(Im Ω)⁻¹Im(z). Rounding adds about 1e-15·(1 + abs(n₀)) to w, with n₀ in the reduced basis; it does not grow
        with Re(Ω), Re(z) or the condition of Im(Ω). Where Ω is Siegel-reduced to Ω′ (see Notes), rounding adds about
        1e-15·(det Im Ω′ / det Im Ω)^¼ instead, which is the size that w reaches. u has a relative error of about 1e-16.
    parts : bool, default=False
        If true, return (u, w) with θ = exp(u)·w and u = π Im(z)ᵀ(Im Ω)⁻¹Im(z). Without derivatives w is bounded, with
        them it grows like a power of z: nothing overflows.

    Returns
    -------
    Tensor (...)
        Complex; or the pair (u real, w complex). Differentiable in z, Ω, α and β.

    Notes
    -----
    Where Im Ω is small, the sum is long: it has about (det Im Ω)^−½ times as many terms as for Im Ω = 1. If it would
    have more than 300, Ω is moved by the modular group (`siegel_reduce`), and θ comes from a short sum, by

        θ[α,β](z|Ω) = κ det(CΩ + D)^−½ exp(−πi zᵀ(CΩ + D)⁻¹Cz) θ[α′,β′]((CΩ + D)⁻ᵀz | Ω′)

    with an eighth root of unity κ for α = β = 0. Phases are computed in exact arithmetic.

    Examples
    --------
    >>> riemann_theta([0.0], [[1j]])  # π^¼ / Γ(¾)
    tensor(1.0864+0.j, dtype=torch.complex128)
    >>> u, w = riemann_theta([1000j], [[1j]], parts=True)
    >>> u, w
    (tensor(3141592.6536, dtype=torch.float64), tensor(1.0864+0.j, dtype=torch.complex128))
    >>> riemann_theta([0.0], [[1e-12j]]).real  # Σ exp(−1e-12 πn²), by a Siegel reduction
    tensor(1000000., dtype=torch.float64)
    """
    matrices = as_matrices(omega)
    chosen = _characteristic(characteristic, matrices)
    u, w = theta_parts(as_complex(z, "z"), matrices, derivatives, chosen, tolerance)
    return (u, w[..., 0]) if parts else product(u, w)[..., 0]


def as_matrices(omega: Any) -> Tensor:
    """Return `omega` as a complex tensor (..., g, g) that is not empty."""
    tensor = as_complex(omega, "omega")
    if tensor.ndim < 2 or not tensor.numel():
        raise InvalidInputError(f"omega must have shape (..., g, g) and not be empty, got {tuple(tensor.shape)}")
    return tensor


def theta_parts(
    z: Tensor, omega: Tensor, derivatives: Sequence[Any], characteristics: Tensor, tolerance: float
) -> tuple[Tensor, Tensor]:
    """u (...) and w (..., m) for z (..., g), omega (..., g, g) and characteristics (m, 2g)."""
    check_tolerance(tolerance)
    g = omega.shape[-1]
    if not isinstance(derivatives, Sequence | np.ndarray | Tensor):
        raise InvalidInputError(f"derivatives must be a sequence of vectors ({g},), got {derivatives!r}")
    check_vectors(z, "z", g)
    check_same_device(z, "z", omega, "omega")
    directions = omega.new_zeros(len(derivatives), g)
    for i, d in enumerate(derivatives):
        directions[i] = check_vector(as_complex(d, f"derivatives[{i}]"), f"derivatives[{i}]", g)
    shape = broadcast(
        z.shape[:-1],
        omega.shape[:-2],
        f"z {tuple(z.shape)} and omega {tuple(omega.shape)} do not broadcast: all but the last dimension of z go with "
        "all but the last two of omega",
    )
    matrices, rows = omega.reshape(-1, *omega.shape[-2:]), z.expand(*shape, g)
    owners = torch.arange(len(matrices), device=z.device).reshape(omega.shape[:-2]).expand(shape)
    u, w = z.real.new_zeros(shape), z.new_zeros(*shape, len(characteristics))
    for i, matrix in enumerate(matrices):
        form = upper_half(matrix, f"omega[{i}]" if omega.ndim > 2 else "omega")
        settings, mine = (form, characteristics, tolerance, len(directions)), owners == i
        way = Transformation(*settings, False)
        if not way.series.expected <= FEW_TERMS:
            inversion = Transformation(*settings, True)
            if not PAYS * inversion.series.expected > way.series.expected:
                way = inversion
        evaluate = partial(way.evaluate, characteristics=characteristics, directions=directions)
        u[mine], w[mine] = in_chunks(evaluate, rows[mine], [matrix], way.series.width)
    return u, w


def broadcast(first: torch.Size, second: torch.Size, names: str) -> torch.Size:
    """The shape to which two shapes broadcast."""
    try:
        return torch.broadcast_shapes(first, second)
    except RuntimeError:
        raise InvalidInputError(f"the shapes of {names}") from None


def product(u: Tensor, w: Tensor) -> Tensor:
    """θ = exp(u)·w (..., columns), or an error if it overflows."""
    if (u > LARGEST_LOG).any():
        raise InvalidInputError(
            f"θ overflows: its logarithm reaches {float(u.max()):.4g}. Pass parts=True to get (u, w) with θ = exp(u)·w"
        )
    return torch.exp(u)[..., None] * w


def _characteristic(characteristic: tuple[Any, Any] | None, omega: Tensor) -> Tensor:
    """(α, β) as one row (1, 2g)."""
    g = omega.shape[-1]
    if characteristic is None:
        return omega.real.new_zeros(1, 2 * g)
    if not isinstance(characteristic, Sequence | np.ndarray | Tensor) or len(characteristic) != 2:
        raise InvalidInputError(
            f"characteristic must be a pair (alpha, beta) of vectors ({g},), got {characteristic!r}"
        )
    halves = (
        check_vector(as_real(c, name), name, g) for c, name in zip(characteristic, ("alpha", "beta"), strict=True)
    )
    return torch.cat([half.to(omega.real) for half in halves])[None]
