"""The real theta function of the paper: log θ̃(z|Q) and its derivatives."""

from typing import Any

from torch import Tensor

from rtbm.theta.plan import ThetaMoments, ThetaPlan


def log_theta(z: Any, Q: Any, *, phase: str = "I", tolerance: float = 1e-12) -> Tensor:
    """The logarithm of the real Riemann theta function (the function θ̃ below the paper's equation for F(v))::

        phase "I":   log θ̃(z|Q)  = log Σ_{n∈ℤ^g} exp(−½nᵀQn + nᵀz)
        phase "II":  log θ̃(iz|Q) = log Σ_{n∈ℤ^g} exp(−½nᵀQn) cos(nᵀz), which is positive too

    Parameters
    ----------
    z : (..., g)
        Real tensor, array or nested list.
    Q : (g, g) or (g,)
        Real, symmetric, positive definite; or the diagonal of a diagonal matrix. With g = 0, log θ̃ = 0.
    phase : "I" or "II", default="I"
        Real or imaginary argument.
    tolerance : float, default=1e-12
        Bounds the truncation error of θ̃ relative to θ̃ itself, whatever z. Rounding adds a few units in the last place
        of the result. Float32 input is truncated at 1e-8.

    Returns
    -------
    Tensor (...)
        Differentiable in z and Q to any order; ∂/∂Q is the symmetric matrix −½E[nnᵀ]. For many batches against one Q,
        make a `ThetaPlan` once.

    Examples
    --------
    >>> log_theta([5.0], [[10.0]])  # the terms n = 0 and n = 1 are both 1
    tensor(0.6932, dtype=torch.float64)
    >>> log_theta([3.141592653589793], [[0.05]], phase="II")  # tiny, and still exact
    tensor(-95.5861, dtype=torch.float64)
    """
    return ThetaPlan(Q, phase=phase, tolerance=tolerance).log_theta(z)


def theta_moments(z: Any, Q: Any, *, phase: str = "I", order: int = 2, tolerance: float = 1e-12) -> ThetaMoments:
    """log θ̃ and its z-derivatives up to `order`: in phase I, the cumulants of the discrete Gaussian behind θ̃::

        ∇ log θ̃ = E[n]      ∇² log θ̃ = Cov[n]      ∇³ log θ̃ = third cumulant        (n ∝ exp(−½nᵀQn + nᵀz))

    In phase II the derivatives are those of log θ̃(iz|Q) in z. A derivative of order k carries a truncation error of
    about tolerance · R^k in units where Q = 1, R ≈ 8 for 1e-12.

    Parameters
    ----------
    z, Q, phase, tolerance
        As in `log_theta`.
    order : 0, 1, 2 or 3, default=2
        The highest derivative.

    Returns
    -------
    ThetaMoments
        log_theta (...), mean (..., g), covariance (..., g, g) and third (..., g, g, g); None beyond `order`.
        Differentiable in z and Q.

    Examples
    --------
    >>> moments = theta_moments([[5.0]], [[10.0]])  # n is 0 or 1 with equal odds
    >>> moments.mean, moments.covariance.round(decimals=2)
    (tensor([[0.5000]], dtype=torch.float64), tensor([[[0.2500]]], dtype=torch.float64))
    """
    return ThetaPlan(Q, phase=phase, tolerance=tolerance).moments(z, order)
