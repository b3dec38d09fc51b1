"""The compiled path: everything from the argument to log θ̃, mean and covariance in one pass over the points."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta import kernels
from rtbm.theta.block import Block
from rtbm.theta.chunks import run_threads
from rtbm.theta.geometry import TWO_PI_PARTS, grid_factor
from rtbm.theta.series import Derivatives, gradients_with_graph


def fused_log_theta(z: Tensor, Q: Tensor, block: Block) -> Tensor:
    """log θ̃ (points,) for z (points, g) on the CPU; derivatives beyond the first go through the torch evaluators."""
    if torch.is_grad_enabled() and (z.requires_grad or Q.requires_grad):
        return _FusedLogTheta.apply(z, Q, block)
    return fused_moments(z, block, 0)[0]


def fused_moments(z: Tensor, block: Block, order: int) -> Derivatives:
    """log θ̃ and its z-derivatives up to `order` ≤ 2, without a graph."""
    argument = z.detach().double().contiguous()
    N, g = argument.shape
    log_part, total = np.empty(N), np.empty(N)
    mean = np.empty((N if order > 0 else 0, g))
    covariance = np.empty((N if order > 1 else 0, g, g))
    lattice, constants = _constants(block)

    def run(start: int, stop: int) -> None:
        kernels.fused_moments(
            argument.numpy(), start, stop, lattice, *constants, order, log_part, total, mean, covariance
        )

    run_threads(run, N)
    results = (log_part + np.log(total), mean, covariance)
    return tuple(torch.from_numpy(array) for array in results[: order + 1])


class _FusedLogTheta(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, Q: Tensor, block: Block) -> Tensor:
        order = 2 if ctx.needs_input_grad[1] else 1 if ctx.needs_input_grad[0] else 0
        value, *derivatives = fused_moments(z, block, order)
        ctx.save_for_backward(z, Q, *derivatives)
        ctx.block = block
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, Q, mean, *covariance = ctx.saved_tensors
        if torch.is_grad_enabled():  # a graph of the derivative is wanted
            return *gradients_with_graph(ctx.block.log_theta(z, Q, "list"), (z, Q), ctx.needs_input_grad, grad), None
        grad_Q = None
        if ctx.needs_input_grad[1]:
            sign = -0.5 if ctx.block.phase == "I" else 0.5
            weighted = grad[:, None] * mean
            grad_Q = (sign * (torch.tensordot(grad, covariance[0], 1) + weighted.mT @ mean)).to(Q.dtype)
        return (grad[:, None] * mean).to(z.dtype), grad_Q, None


def _constants(block: Block) -> tuple[Any, ...]:
    """What the kernel needs to know of a block, as contiguous arrays."""
    if block.compiled is None:
        geometry, form = block.geometry, block.fixed_form(torch.device("cpu"))
        o = geometry.n_osc
        points = geometry.points[(geometry.points != 0).any(axis=1)].astype(float)
        B, K, G, Psi = (matrix.numpy() for matrix in form[:4])
        U = geometry.basis.astype(float)
        oscillates = np.arange(block.g) < o
        units = np.where(oscillates, TWO_PI, 1.0)  # the kernel measures angles in turns
        slope = np.where(oscillates, 1.0, 0.0) if block.phase == "I" else np.where(oscillates, 0.0, -1 / TWO_PI)
        log_size = np.log(1.0 + (points[:, :o] != 0).any(axis=1)) - 0.5 * np.einsum("ti,ij,tj->t", points, G, points)
        turns = 0.5 * np.einsum("ti,ij,tj->t", points, Psi, points) / TWO_PI
        two_pi = np.array(TWO_PI_PARTS if block.phase == "II" else (0.0, 0.0, 0.0))
        coarse, *finer = geometry.periods
        lattice = (geometry.basis, geometry.centre, geometry.plane, coarse, sum(finer))
        block.compiled = (
            (2 * grid_factor(geometry.basis), two_pi, *(np.ascontiguousarray(array, dtype=float) for array in lattice)),
            ((B / units[:, None], slope, U @ B.T, U @ K @ U.T, float(form.constant)), o, (points, log_size, turns)),
        )
    return block.compiled
