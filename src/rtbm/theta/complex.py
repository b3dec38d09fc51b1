"""The Riemann theta function of a complex matrix, with characteristics and derivatives of any order."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.lattice import (
    LARGEST_INTEGER,
    Floats,
    Integers,
    change_basis,
    cholesky,
    enumerate_points,
    nearest_plane_matrix,
    reduce_basis,
    squared_radius,
)
from rtbm.theta.chunks import in_chunks
from rtbm.theta.geometry import TWO_PI, Congruence, exact_product, nearest_plane
from rtbm.validation import (
    as_complex,
    as_real,
    check_positive_definite,
    check_same_device,
    check_symmetric,
    check_tolerance,
    check_vector,
    check_vectors,
)

LARGEST_LOG = 700.0


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
    omega : (g, g)
        Complex, symmetric, with positive definite imaginary part.
    derivatives : sequence of (g,)
        Direction vectors; the result is the directional derivative of order len(derivatives).
    characteristic : pair of (g,)
        The real vectors α and β; by default both are zero.
    tolerance : float
        Bounds the truncation error of w below. (θ has zeros, so no bound can be relative to θ itself.) With derivatives
        it is in units of Π_j 2π(‖d_j‖ + abs(d_j·n₀)), with ‖d‖² = dᵀ(2π Im Ω)⁻¹d and n₀ the lattice point next to
        −(Im Ω)⁻¹Im(z). Rounding adds about 1e-16·abs(n₀), and 1e-16·u where Ω has a real part.
    parts : bool
        If true, return (u, w) with θ = exp(u)·w and u = π Im(z)ᵀ(Im Ω)⁻¹Im(z). Without derivatives w is bounded, with
        them it grows like a power of z: nothing overflows.

    Returns
    -------
    Tensor (...)
        Complex; or the pair (u real, w complex). Differentiable in z and Ω.

    Examples
    --------
    >>> riemann_theta([0.0], [[1j]])  # π^¼ / Γ(¾)
    tensor(1.0864+0.j, dtype=torch.complex128)
    >>> u, w = riemann_theta([1000j], [[1j]], parts=True)
    >>> u, w
    (tensor(3141592.6536, dtype=torch.float64), tensor(1.0864+0.j, dtype=torch.complex128))
    """
    omega = check_symmetric(as_complex(omega, "omega"), "omega")
    check_positive_definite(omega.imag, "the imaginary part of omega")
    check_tolerance(tolerance)
    g = omega.shape[0]
    if not isinstance(derivatives, Sequence | np.ndarray | Tensor):
        raise InvalidInputError(f"derivatives must be a sequence of vectors ({g},), got {derivatives!r}")
    z = check_vectors(as_complex(z, "z"), "z", g)
    check_same_device(z, "z", omega, "omega")
    directions = [
        check_vector(as_complex(d, f"derivatives[{i}]"), f"derivatives[{i}]", g).to(omega.device)
        for i, d in enumerate(derivatives)
    ]
    alpha, beta = _characteristic(characteristic, omega)
    lattice = _Lattice(omega, tolerance, len(directions))
    rows = z.reshape(-1, g)

    def series(rows: Tensor, omega: Tensor) -> tuple[Tensor, Tensor]:
        return lattice.evaluate(rows, omega, alpha, beta, directions)

    u, w = in_chunks(series, rows, [omega], 4 * len(lattice.offsets)) if len(rows) else (rows[:, 0].real, rows[:, 0])
    u, w = u.reshape(z.shape[:-1]), w.reshape(z.shape[:-1])
    if parts:
        return u, w
    largest = float(u.detach().amax()) if u.numel() else 0.0
    if largest > LARGEST_LOG:
        raise InvalidInputError(
            f"θ overflows: its logarithm reaches {largest:.4g}. Pass parts=True to get (u, w) with θ = exp(u)·w"
        )
    return torch.exp(u) * w


class _Lattice:
    """Reduced basis, offsets and nearest-plane matrix for the quadratic form 2π Im Ω."""

    def __init__(self, omega: Tensor, tolerance: float, order: int):
        form = omega.detach().cpu().numpy()
        form = (form + form.T) / 2
        self.basis, self.imaginary = reduce_basis(form.imag)
        self.real = change_basis(form.real, self.basis)
        R = cholesky(TWO_PI * self.imaginary)
        self.plane = nearest_plane_matrix(R)
        radius2 = self._radius2(np.diag(R) ** 2, tolerance, order)
        self.offsets: Integers = enumerate_points(R, radius2, np.diag(R) / 2)

    @staticmethod
    def _radius2(norms: Floats, tolerance: float, order: int) -> float:
        """The radius for Σ ‖n‖^order exp(−½‖n‖²): beyond it, ‖n‖^order grows slower than the margin it is given."""
        radius2 = float(squared_radius(norms, 0.0, tolerance))
        for _ in range(3 if order else 0):
            radius2 = float(squared_radius(norms, 0.0, tolerance * radius2 ** (-order / 2)))
        return radius2

    def _reduced(self, part: Tensor, value: Floats) -> Tensor:
        """UᵀMU for the real or imaginary part M of Ω: exact in value, and differentiable."""
        U = torch.as_tensor(self.basis, dtype=torch.float64, device=part.device)
        return Congruence.apply(part, U, torch.as_tensor(value, device=part.device))

    def evaluate(
        self, z: Tensor, omega: Tensor, alpha: Tensor, beta: Tensor, directions: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """(u, w) for the rows of z."""
        U = torch.as_tensor(self.basis, dtype=torch.float64, device=z.device)
        X, Y = self._reduced(omega.real, self.real), self._reduced(omega.imag, self.imaginary)
        a = torch.linalg.solve(U, alpha)  # n + α in reduced coordinates
        x, y = (_times_basis(part, U) for part in ((z + beta).real, z.imag))
        factor = torch.linalg.cholesky(Y)
        solved = torch.cholesky_solve(y.mT, factor).mT
        largest = float(solved.detach().abs().amax())
        if largest > LARGEST_INTEGER:
            raise InvalidInputError(
                f"Im(z) is too large: (Im Ω)⁻¹Im(z) reaches {largest:.3g}, and float64 tells lattice points apart up "
                f"to {LARGEST_INTEGER:.3g}"
            )
        n = nearest_plane(-solved.detach() - a, torch.as_tensor(self.plane, device=z.device)) + a

        # exponent(n + δ) = exponent(n) + 2πi(½δᵀΩδ + δᵀ(z + Ωn)), with Im(z + Ωn) small
        v = y + n @ Y
        whitened = torch.linalg.solve_triangular(factor, v.mT, upper=False)
        turns = 0.5 * ((n @ X) * n).sum(1) + (n * x).sum(1)
        delta = torch.as_tensor(self.offsets, dtype=torch.float64, device=z.device)
        local_turns = turns[:, None] + 0.5 * ((delta @ X) * delta).sum(1) + (x + n @ X) @ delta.mT
        decay = 0.5 * ((delta @ Y) * delta).sum(1) + v @ delta.mT + 0.5 * (whitened**2).sum(0)[:, None]
        terms = torch.polar(torch.exp(-TWO_PI * decay), TWO_PI * (local_turns - local_turns.detach().round()))
        for direction in directions:
            local = direction @ U.to(direction.dtype)
            terms = terms * (2j * torch.pi) * (n.to(local.dtype) @ local)[:, None] + terms * (
                2j * torch.pi * (delta.to(local.dtype) @ local)
            )
        return torch.pi * (y * solved).sum(1), terms.sum(1)


def _times_basis(part: Tensor, U: Tensor) -> Tensor:
    coarse, rest = exact_product(part, torch.zeros_like(part), U)
    return coarse + rest


def _characteristic(characteristic: tuple[Any, Any] | None, omega: Tensor) -> tuple[Tensor, Tensor]:
    g = omega.shape[0]
    if characteristic is None:
        zero = torch.zeros(g, dtype=torch.float64, device=omega.device)
        return zero, zero
    if not isinstance(characteristic, Sequence | np.ndarray | Tensor) or len(characteristic) != 2:
        raise InvalidInputError(
            f"characteristic must be a pair (alpha, beta) of vectors ({g},), got {characteristic!r}"
        )
    alpha, beta = (
        check_vector(as_real(c, name), name, g).to(omega.device, torch.float64)
        for c, name in zip(characteristic, ("alpha", "beta"), strict=True)
    )
    return alpha, beta
