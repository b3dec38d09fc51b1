"""What derivatives need: exact values with derivatives of formulas that round, and compiled passes with gradients."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

Derivatives: TypeAlias = tuple[Tensor, ...]
"""A logarithm and its first derivatives: entry k is of order k."""


def with_derivatives(value: Tensor, expression: Tensor) -> Tensor:
    """An exact value with the derivatives of an expression for it that rounds."""
    return value + (expression - expression.detach())


def wants_graph(*inputs: Tensor) -> bool:
    """Whether results must be differentiable in one of the inputs, in reverse or forward mode."""
    in_forward_mode = forward_ad._current_level >= 0
    if in_forward_mode and any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in inputs):
        return True
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs)


def is_transforming() -> bool:
    """Whether torch.compile or torch.func follow what is computed."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


class CompiledSum(Protocol):
    """A compiled log θ̃ without graph, with what its gradients take."""

    def moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,), and its derivatives in z (points, g) up to `order` ≤ 2."""

    def start(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,), and what `gradients` takes: for those in z alone if `order` is 1, in z and Q if it is 2."""

    def gradients(self, z: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """The gradients of grad·log θ̃ in z and Q."""


class LogTheta(torch.autograd.Function):
    """log θ̃ (points,) by a compiled pass. Its gradients are compiled, too; a graph of these goes through torch.

    `in_torch(z, Q)` is log θ̃ in plain torch.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, Q: Tensor, compiled: CompiledSum, in_torch: Callable[..., Tensor]) -> Tensor:
        """The value."""
        value, *kept = compiled.start(z, 2 if ctx.needs_input_grad[1] else 1)
        ctx.save_for_backward(z, Q, *kept)
        ctx.compiled, ctx.in_torch = compiled, in_torch
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The gradients in z and Q."""
        z, Q, *kept = ctx.saved_tensors
        if torch.is_grad_enabled() or torch._C._functorch.is_legacy_batchedtensor(grad):
            return _torch_gradients(ctx, z, Q, grad)
        by_z, by_Q = ctx.compiled.gradients(z, grad, kept)
        return by_z.to(z.dtype), None if by_Q is None else by_Q.to(Q.dtype), None, None


def _torch_gradients(ctx: Any, z: Tensor, Q: Tensor, grad: Tensor) -> Any:
    """Gradients in plain torch; they have a graph if one is wanted."""
    wanted = [tensor for tensor, need in zip((z, Q), ctx.needs_input_grad, strict=False) if need]
    has_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        value = ctx.in_torch(z, Q)
    found = iter(torch.autograd.grad(value, wanted, grad, create_graph=has_graph))
    return *(next(found) if need else None for need in ctx.needs_input_grad[:2]), None, None


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


class Opaque(torch.autograd.Function):
    """A function of tensors that looks at their numbers, as the choice of lattice points does.

    torch.func hands such functions its own kinds of tensors, which have no numbers to look at; here they get ordinary
    ones. Derivatives are functions of the same kind, so they have derivatives too.
    """

    @staticmethod
    def forward(function: Callable[..., Any], *inputs: Tensor) -> Any:
        """The function of ordinary tensors."""
        return function(*(tensor.detach() for tensor in inputs))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the inputs."""
        ctx.function, *tensors = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        """Products with the Jacobian from the left."""
        inputs = ctx.saved_tensors
        return None, *Opaque.apply(pullback(ctx.function, len(inputs)), *inputs, *grads)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        """The product with the Jacobian J from the right: the derivative of w ↦ Jᵀw, which is linear."""
        inputs = ctx.saved_tensors
        given = [torch.zeros_like(x) if t is None else t for x, t in zip(inputs, tangents, strict=True)]
        return Opaque.apply(_pushforward(ctx.function, len(inputs)), *inputs, *given)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], function: Callable[..., Any], *inputs: Tensor) -> Any:
        """One call for each entry of the batch."""
        results = []
        for i in range(info.batch_size):
            single = [x if d is None else x.select(d, i) for x, d in zip(inputs, in_dims[1:], strict=True)]
            results.append(Opaque.apply(function, *single))
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])


def pullback(function: Callable[..., Any], n_inputs: int) -> Callable[..., Any]:
    """The vector-Jacobian product of a function, as a function of its inputs and of the vector."""

    def pulled(*arguments: Tensor) -> tuple[Tensor, ...]:
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            inputs = [x if x.requires_grad else x.detach().requires_grad_() for x in arguments[:n_inputs]]
            if not inputs[0].numel():  # results of no rows have no graph
                return tuple(map(torch.zeros_like, inputs))
            output = function(*inputs)
            return torch.autograd.grad(
                output, inputs, arguments[n_inputs:], create_graph=create_graph, materialize_grads=True
            )

    return pulled


def _pushforward(function: Callable[..., Any], n_inputs: int) -> Callable[..., Any]:
    """The Jacobian-vector product of a function, as a function of its inputs and of the vectors."""

    def pushed(*arguments: Tensor) -> Any:
        inputs, tangents = arguments[:n_inputs], arguments[n_inputs:]
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            point = [x if x.requires_grad else x.detach().requires_grad_() for x in inputs]
            outputs = function(*point)
            several = outputs if isinstance(outputs, tuple) else (outputs,)
            weights = [torch.zeros_like(output, requires_grad=True) for output in several]
            pulled = torch.autograd.grad(several, point, weights, create_graph=True, materialize_grads=True)
            total = torch.stack([(p * t).sum() for p, t in zip(pulled, tangents, strict=True)]).sum()
            found = torch.autograd.grad(total, weights, create_graph=create_graph, materialize_grads=True)
        return found if isinstance(outputs, tuple) else found[0]

    return pushed
