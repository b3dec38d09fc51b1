"""What derivatives need: exact values with the derivatives of formulas that round, and graphs of gradients."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Derivatives: TypeAlias = tuple[Tensor, ...]
"""A logarithm and its first derivatives: entry k is of order k."""


def with_derivatives(value: Tensor, expression: Tensor) -> Tensor:
    """An exact value with the derivatives of an expression for it that rounds."""
    return value + (expression - expression.detach())


def wants_graph(*inputs: Tensor) -> bool:
    """Whether results must be differentiable in one of the inputs."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def gradients_with_graph(
    value: Tensor, inputs: tuple[Tensor, ...], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `value` in the inputs that need one, None for the others, ready to be differentiated again."""
    wanted = [tensor for tensor, need in zip(inputs, needed, strict=False) if need]
    derivatives = iter(torch.autograd.grad(value, wanted, grad, create_graph=True))
    return [next(derivatives) if need else None for _, need in zip(inputs, needed, strict=False)]


class Congruence(torch.autograd.Function):
    """UᵀQU for symmetric Q, with a value that `lattice.change_basis` computed exactly.

    The derivative is the usual one, symmetric. Nothing is saved for it, so that many backward passes work.
    """

    @staticmethod
    def forward(ctx: Any, Q: Tensor, U: Tensor, value: Tensor) -> Tensor:
        """The value; Q gives nothing but its graph."""
        ctx.U = U
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """U·grad·Uᵀ, symmetrised."""
        back = ctx.U @ grad @ ctx.U.mT
        return (back + back.mT) / 2, None, None
