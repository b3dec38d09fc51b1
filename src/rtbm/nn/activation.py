"""E(h|v) as an activation function: `theta_unit` for diagonal Q, `theta_units` for dense Q.

Values and first derivatives of single units come from compiled passes. torch.func, torch.compile and graphs of
derivatives go through plain torch. Dense units depend on the numbers in Q, which torch.func hides. So they are computed
in a function that it does not look into, and are differentiable in every mode.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.theta import kernels
from rtbm.theta.derivatives import Opaque, is_transforming
from rtbm.theta.plan import ThetaPlan
from rtbm.theta.unit import numba, triton
from rtbm.theta.unit.torch import unit_derivatives
from rtbm.validation import check_choice


def theta_unit(u: Tensor, q: Tensor, phase: str = "I") -> Tensor:
    """The expectation of an integer unit, as an activation function whose shape q decides (the paper's E_d)::

        phase "I":   E(h|v) = −∂/∂u log Σ_n exp(−½qn² + nu)           −u/q and a ripple of period q
        phase "II":  E(h|v) = −∂/∂u log Σ_n exp(−½qn²) cos(nu)        of period 2π

    Small q give a straight line in phase I and a saw tooth in phase II; large q give stairs, and a sine of size
    2exp(−½q).

    Parameters
    ----------
    u : (..., g)
        Real tensor: Wᵀv + b_h.
    q : (g,), or any shape that broadcasts against u
        Positive tensor on the same device.
    phase : "I" or "II", default="I"
        The phase.

    Returns
    -------
    Tensor
        Of u's type, and differentiable to any order. On the CPU, values and gradients are computed in float64, to an
        accuracy of 1e-10 relative to max(1, their size), or to what the last digit of u decides, for entries of u up to
        1e6 and q from 1e-3 to 1e3; the gradient in q, relative to the terms that it is the sum of. Beyond, digits are
        lost as u has fewer of them within a period. NaN where q is not positive.

    Examples
    --------
    >>> u = torch.tensor([-10.0, 0.0, 2.0, 5.0], dtype=torch.float64)
    >>> theta_unit(u[:, None], torch.tensor([10.0], dtype=torch.float64)).mT  # stairs of width 10
    tensor([[ 1.0000,  0.0000, -0.0465, -0.5000]], dtype=torch.float64)
    """
    check_choice(phase, "phase", ("I", "II"))
    _check_real(u, "u")
    _check_real(q, "q")
    if q.shape != u.shape[-1:] and not _broadcasts(q.shape, u.shape):
        raise InvalidInputError(f"q must broadcast against u, got shapes {tuple(q.shape)} and {tuple(u.shape)}")
    if is_transforming():  # by plain torch
        return -unit_derivatives(u, q, phase, 1)[1].to(u.dtype)
    return _Unit.apply(u, q, phase)


def _check_real(tensor: Any, name: str) -> None:
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
        raise InvalidInputError(f"{name} must be a real floating point tensor, got {kind}")


def _broadcasts(small: torch.Size, large: torch.Size) -> bool:
    return len(small) <= len(large) and all(a in (1, b) for a, b in zip(reversed(small), reversed(large), strict=False))


class _Unit(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, q: Tensor, phase: str) -> Tensor:
        ctx.phase = phase
        ctx.save_for_backward(u, q)
        ctx.save_for_forward(u, q)
        ctx.has_kernel = _has_kernel(u, q)
        if ctx.has_kernel:
            return _shaped(_kernels(u).expectations(_rows(u), q, phase), u)
        return -unit_derivatives(u, q, phase, 1)[1].to(u.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        u, q = ctx.saved_tensors
        is_batched = torch._C._functorch.is_legacy_batchedtensor(grad)
        if ctx.has_kernel and not torch.is_grad_enabled() and not is_batched:
            by_u, by_q = _kernels(u).expectation_gradients(_rows(u), _rows(grad), q, ctx.phase)
            return _shaped(by_u, u), by_q.to(q.dtype), None
        by_u, by_q = _derivatives(u, q, ctx.phase)  # a graph of the derivatives may be wanted
        return (grad * by_u).to(u.dtype), (grad * by_q).sum_to_size(q.shape).to(q.dtype), None

    @staticmethod
    def jvp(ctx: Any, tangent_u: Tensor | None, tangent_q: Tensor | None, _: None) -> Tensor:
        u, q = ctx.saved_tensors
        tangents = (tangent_u, tangent_q)
        parts = [d * t for d, t in zip(_derivatives(u, q, ctx.phase), tangents, strict=True) if t is not None]
        return sum(parts[1:], start=parts[0]).to(u.dtype)


def _derivatives(u: Tensor, q: Tensor, phase: str) -> tuple[Tensor, Tensor]:
    """The derivatives of E in u and q, by the heat equation: the paper's κ and ρ."""
    _, first, second, third = unit_derivatives(u, q, phase, 3)
    sign = 0.5 if phase == "I" else -0.5
    return -second, sign * (third + 2 * first * second)


def _has_kernel(u: Tensor, q: Tensor) -> bool:
    """Whether a compiled pass serves these tensors."""
    if u.is_cuda:
        available = triton.TRITON_AVAILABLE and q.numel() <= triton.MAX_COLUMNS
    else:
        available = kernels.AVAILABLE and u.device.type == "cpu"
    return available and u.device == q.device and u.ndim > 0 and q.shape == u.shape[-1:]


def _kernels(u: Tensor) -> Any:
    return triton if u.is_cuda else numba


def _rows(u: Tensor) -> Tensor:
    """u (points, g), in a type that kernels know."""
    rows, is_known = u.detach(), u.dtype in (torch.float32, torch.float64)
    if is_known and u.ndim == 2 and u.is_contiguous() and not u.is_neg():
        return rows  # the most frequent case, without further calls
    rows = rows.resolve_neg().reshape(math.prod(u.shape[:-1]), u.shape[-1])
    return (rows if is_known else rows.float()).contiguous()


def _shaped(rows: Tensor, u: Tensor) -> Tensor:
    """Rows (points, g) in the shape and type of u."""
    return rows if u.ndim == 2 and rows.dtype == u.dtype else rows.reshape(u.shape).to(u.dtype)


def theta_units(u: Tensor, Q: Tensor, phase: str = "I", tolerance: float = 1e-12) -> Tensor:
    """The expectations of coupled integer units: E(h|v) = −∇_u log θ̃(u|Q), in phase II −∇_u log θ̃(iu|Q).

    Parameters
    ----------
    u : (..., g)
        Real tensor: Wᵀv + b_h.
    Q : (g, g)
        Symmetric, positive definite tensor.
    phase : "I" or "II", default="I"
        The phase.
    tolerance : float, default=1e-12
        Bounds the truncation error of θ̃, as in `rtbm.log_theta`.

    Returns
    -------
    Tensor (..., g)
        Of u's type. Differentiable to any order.

    Examples
    --------
    >>> Q = torch.tensor([[2.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> theta_units(torch.tensor([3.0, 4.0], dtype=torch.float64), Q)  # all but linear: −Q⁻¹u
    tensor([-1., -1.], dtype=torch.float64)
    """
    evaluate = _units_outside_graphs if torch.compiler.is_compiling() else _units
    return evaluate(u, Q, phase, tolerance)


def _units(u: Tensor, Q: Tensor, phase: str, tolerance: float) -> Tensor:
    check_choice(phase, "phase", ("I", "II"))
    _check_real(u, "u")
    _check_real(Q, "Q")
    if u.shape[-1:] != Q.shape[:1] or Q.shape[:1] != Q.shape[1:]:
        raise InvalidInputError(
            f"u must have shape (..., g) and Q (g, g), got shapes {tuple(u.shape)} and {tuple(Q.shape)}"
        )

    def expectations(u: Tensor, Q: Tensor) -> Tensor:
        Q = Q if Q.dtype in (torch.float32, torch.float64) else Q.float()
        mean = ThetaPlan(Q, phase=phase, tolerance=tolerance).moments(u.to(Q.dtype), 1).mean
        assert mean is not None  # of order 1 there is one
        return -mean.to(u.dtype)

    return Opaque.apply(expectations, u, Q)


# The compiler leaves this function alone. `torch.compiler.disable` would do the same, but imports the compiler at once.
_units_outside_graphs = torch._disable_dynamo(_units)
