"""The four theta functions of Jacobi: g = 1."""

from typing import Any

import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.theta.complex import broadcast, riemann_theta
from rtbm.validation import as_complex, check_choice, check_integer, check_same_device

CHARACTERISTICS = {1: (0.5, -0.5), 2: (0.5, 0.0), 3: (0.0, 0.0), 4: (0.0, 0.5)}
"""θ_n as a Riemann theta function with characteristic."""


def jacobi_theta(
    n: int, z: Any, tau: Any, *, derivative: int = 0, tolerance: float = 1e-12, parts: bool = False
) -> Tensor | tuple[Tensor, Tensor]:
    """Jacobi's theta function θ_n(z|τ), with periods 1 and τ up to factors::

        θ₁ = 2 Σ_{k≥0} (−1)^k q^((k+½)²) sin((2k+1)πz)     θ₂ = 2 Σ_{k≥0} q^((k+½)²) cos((2k+1)πz)
        θ₃ = 1 + 2 Σ_{k≥1} q^(k²) cos(2kπz)                θ₄ = 1 + 2 Σ_{k≥1} (−1)^k q^(k²) cos(2kπz)

    with q = exp(πiτ). This is FLINT's convention (acb_modular_theta). The θ_n(z, q) of DLMF 20.2, Mathematica and
    mpmath is jacobi_theta(n, z/π, τ), and θ₃ is riemann_theta with g = 1.

    Parameters
    ----------
    n : int
        1, 2, 3 or 4.
    z : (...)
        Complex or real.
    tau : (...)
        Complex, with positive imaginary part; its shape broadcasts with that of z.
    derivative : int, default=0
        The order of the derivative in z.
    tolerance, parts
        As in `riemann_theta`, with the same bound on the error.

    Returns
    -------
    Tensor (...)
        Complex; or the pair (u real, w complex) with θ = exp(u)·w. Differentiable in z and τ.

    Examples
    --------
    >>> jacobi_theta(1, 0.0, 1j, derivative=1).real / torch.pi  # θ₂θ₃θ₄ at z = 0
    tensor(0.9068, dtype=torch.float64)
    """
    alpha, beta = CHARACTERISTICS[check_choice(n, "n", tuple(CHARACTERISTICS))]
    argument, ratio = as_complex(z, "z"), as_complex(tau, "tau")
    check_same_device(argument, "z", ratio, "tau")
    if not bool((ratio.imag > 0).all()):
        raise InvalidInputError(f"the imaginary part of tau must be positive, got {float(ratio.imag.min()):.3g}")
    broadcast(argument.shape, ratio.shape, f"z {tuple(argument.shape)} and tau {tuple(ratio.shape)} do not broadcast")
    return riemann_theta(
        argument[..., None],
        ratio[..., None, None],
        derivatives=[torch.ones(1)] * check_integer(derivative, "derivative", 0),
        characteristic=([alpha], [beta]),
        tolerance=tolerance,
        parts=parts,
    )
