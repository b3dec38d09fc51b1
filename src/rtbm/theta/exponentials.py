"""exp(−½mᵀGm + i½mᵀΨm + m·x) for a list of lattice points m: the factors of the split product."""

from typing import Any

import torch
from torch import Tensor

from rtbm.theta import kernels


def half_square(points: Tensor, matrix: Tensor) -> Tensor:
    """½mᵀ·matrix·m for every row m of `points`."""
    return 0.5 * ((points @ matrix) * points).sum(dim=1)


def exponentials(
    x: Tensor, points: Tensor, G: Tensor, Psi: Tensor, n_osc: int, *, compiled: bool
) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary part, both (terms, N), of the exponentials of x (N, g); see `geometry` for the meaning.

    Without oscillating coordinates (the first n_osc) the imaginary part is None. `compiled` fills the table with
    powers, in double precision on the CPU; otherwise every entry is an exponential and a sine and cosine of torch.
    """
    real, imaginary = _Exponentials.apply(
        x, -half_square(points, G), half_square(points, Psi), points, n_osc, compiled
    )
    return real, (imaginary if n_osc else None)


class _Exponentials(torch.autograd.Function):
    """The derivatives are the exponentials themselves, so nothing but the result is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, n_osc: int, compiled: bool):
        real, imaginary = _fill(x, log_size, angle, points, n_osc) if compiled else _evaluate(
            x, log_size, angle, points, n_osc
        )
        ctx.save_for_backward(points, real, imaginary)
        ctx.n_osc = n_osc
        return real, imaginary

    @staticmethod
    def backward(ctx: Any, grad_real: Tensor, grad_imaginary: Tensor):  # type: ignore[override]
        points, real, imaginary = ctx.saved_tensors
        o = ctx.n_osc
        by_size = grad_real * real
        by_angle = torch.zeros_like(by_size[:, :0])
        if o:
            by_size = by_size + grad_imaginary * imaginary
            by_angle = grad_imaginary * real - grad_real * imaginary
        grad_x = torch.cat([by_angle.mT @ points[:, :o], by_size.mT @ points[:, o:]], dim=1) if o else by_size.mT @ points
        return grad_x, by_size.sum(dim=1), by_angle.sum(dim=1) if o else None, None, None, None


def _evaluate(x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, o: int) -> tuple[Tensor, Tensor]:
    if o == points.shape[1]:
        size = log_size.exp()[:, None]
    else:
        size = (points[:, o:] @ x[:, o:].mT + log_size[:, None]).exp()
    if not o:
        return size, size.new_empty(0, 0)
    turned = points[:, :o] @ x[:, :o].mT + angle[:, None]
    return size * turned.cos(), size * turned.sin()


def _fill(x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, o: int) -> tuple[Tensor, Tensor]:
    real = x.new_empty(len(points), len(x))
    imaginary = x.new_empty(*(real.shape if o else (0, 0)))
    integers = points.long()
    kernels.fill_exponentials(
        x.detach().mT.contiguous().numpy(),
        integers.numpy(),
        integers.abs().amax(dim=0).numpy(),
        o,
        log_size.detach().exp().numpy(),
        angle.detach().numpy() / (2 * torch.pi),
        real.numpy(),
        imaginary.numpy(),
    )
    return real, imaginary
