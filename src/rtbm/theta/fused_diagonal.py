"""The compiled path for diagonal Q: log θ̃ of all columns in one pass, with first derivatives for training."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta import diagonal_kernels, kernels
from rtbm.theta.chunks import run_threads
from rtbm.theta.diagonal import Diagonal
from rtbm.theta.geometry import TWO_PI_PARTS, in_two_parts
from rtbm.theta.series import Derivatives, gradients_with_graph


def can_fuse(z: Tensor, diagonal: Diagonal) -> bool:
    """Whether the compiled pass serves these points."""
    return kernels.AVAILABLE and not z.is_cuda and not diagonal.is_far(z)


def fused_diagonal_log_theta(z: Tensor, q: Tensor, diagonal: Diagonal) -> Tensor:
    """Σ_j log θ̃(z_j|q_j) (points,) for z (points, g) on the CPU; further derivatives go through torch."""
    if torch.is_grad_enabled() and (z.requires_grad or q.requires_grad):
        return _FusedDiagonal.apply(z, q, diagonal)
    return fused_diagonal_moments(z, q, diagonal, 0)[0]


def fused_diagonal_moments(z: Tensor, q: Tensor, diagonal: Diagonal, order: int) -> Derivatives:
    """The sum over columns (points,), and derivatives (points, g) up to `order` ≤ 2 in each column, without a graph."""
    argument = z.detach().double().contiguous().numpy()
    N, g = argument.shape
    value = np.empty(N)
    mean, second = (np.empty((N if order > k else 0, g)) for k in range(2))
    columns = _columns(q.detach().double().numpy(), diagonal)
    is_first_phase = diagonal.phase == "I"

    def run(start: int, stop: int) -> None:
        diagonal_kernels.diagonal_moments(argument, start, stop, columns, is_first_phase, order, value, mean, second)

    run_threads(run, N, work=N * g)
    return tuple(torch.from_numpy(array) for array in (value, mean, second)[: order + 1])


class _FusedDiagonal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, q: Tensor, diagonal: Diagonal) -> Tensor:
        order = 2 if ctx.needs_input_grad[1] else 1
        value, *derivatives = fused_diagonal_moments(z, q, diagonal, order)
        ctx.save_for_backward(z, q, *derivatives)
        ctx.diagonal = diagonal
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, q, mean, *second = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the derivative is wanted
            value = ctx.diagonal.moments(z.double(), q.double(), 0)[0].sum(dim=1)
            return *gradients_with_graph(value, (z, q), ctx.needs_input_grad, grad), None
        grad_q = None
        if ctx.needs_input_grad[1]:
            sign = -0.5 if ctx.diagonal.phase == "I" else 0.5
            grad_q = (sign * (grad @ torch.addcmul(second[0], mean, mean))).to(q.dtype)
        return (grad[:, None] * mean).to(z.dtype), grad_q, None


def _columns(q: np.ndarray, diagonal: Diagonal) -> np.ndarray:
    """What the kernel needs to know of each column; see there."""
    osc, dual = diagonal.oscillates, TWO_PI**2 / q
    first = diagonal.phase == "I"
    transformed = osc if first else ~osc
    factor = np.where(transformed, TWO_PI / q, 1.0)
    columns = np.empty((len(q), 10))
    columns[:, 0] = 1 / q if first else 1 / TWO_PI
    columns[:, 1], columns[:, 2] = in_two_parts(torch.from_numpy(q)) if first else TWO_PI_PARTS[:2]
    columns[:, 3] = osc
    columns[:, 4] = np.where(osc, factor / TWO_PI, factor)
    columns[:, 5] = np.where(transformed, dual, q)
    columns[:, 6] = np.where(osc, diagonal.n_cosines, diagonal.n_exponentials)
    columns[:, 7] = factor
    columns[:, 8] = np.where(transformed, (1.0 if first else -1.0) / q, 0.0)
    columns[:, 9] = np.where(transformed, 0.5 * np.log(TWO_PI / q), 0.0)
    return columns
