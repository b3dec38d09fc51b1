"""exp(−½mᵀGm + i½mᵀΨm + m·x) for a list of lattice points m: the factors of the split product."""

from typing import Any

import torch
from torch import Tensor

from rtbm.theta import kernels


def half_square(points: Tensor, matrix: Tensor) -> Tensor:
    """½mᵀ·matrix·m for every row m of `points`."""
    return 0.5 * ((points @ matrix) * points).sum(dim=1)


def exponentials(
    x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, n_osc: int
) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary part, both (terms, N), of exp(log_size + i·angle + m·x) for points m (terms, g) and x (N, g).

    The first n_osc coordinates of x stand for ix; without them the imaginary part is None. In double precision on the
    CPU the table is filled with powers by a compiled kernel; otherwise every entry takes torch's exp, cos and sin.
    `curvature` (g,), the diagonal of G, does not change the result: the kernel multiplies factors exp(px − ½p²G_jj),
    which stay small where exp(px) would overflow.
    """
    real, imaginary = _Exponentials.apply(x, log_size, angle, points, curvature, n_osc)
    return real, (imaginary if n_osc else None)


class _Exponentials(torch.autograd.Function):
    """The derivatives are the exponentials themselves, so nothing but the result is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, n_osc: int
    ) -> Any:
        compiled = kernels.AVAILABLE and x.dtype == torch.float64 and not x.is_cuda
        if compiled:
            real, imaginary = _fill(x, log_size, angle, points, curvature, n_osc)
        else:
            real, imaginary = _evaluate(x, log_size, angle, points, n_osc)
        ctx.save_for_backward(points, real, imaginary)
        ctx.n_osc = n_osc
        return real, imaginary

    @staticmethod
    def backward(ctx: Any, grad_real: Tensor, grad_imaginary: Tensor) -> Any:
        points, real, imaginary = ctx.saved_tensors
        o = ctx.n_osc
        by_size = grad_real * real
        if not o:
            return by_size.mT @ points, by_size.sum(dim=1), None, None, None, None
        by_size = by_size + grad_imaginary * imaginary
        by_angle = grad_imaginary * real - grad_real * imaginary
        grad_x = torch.cat([by_angle.mT @ points[:, :o], by_size.mT @ points[:, o:]], dim=1)
        return grad_x, by_size.sum(dim=1), by_angle.sum(dim=1), None, None, None


def _evaluate(x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, o: int) -> tuple[Tensor, Tensor]:
    exponent = log_size[:, None] if o == points.shape[1] else points[:, o:] @ x[:, o:].mT + log_size[:, None]
    size = exponent.exp()
    if not o:
        return size, size.new_empty(0, 0)
    turned = points[:, :o] @ x[:, :o].mT + angle[:, None]
    return size * turned.cos(), size * turned.sin()


def _fill(
    x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, o: int
) -> tuple[Tensor, Tensor]:
    real = x.new_empty(len(points), len(x))
    imaginary = x.new_empty(*(real.shape if o else (0, 0)))
    integers = points.long()
    half = 0.5 * curvature.detach()
    half[:o] = 0.0
    size = (log_size.detach() + points**2 @ half).exp()
    kernels.fill_exponentials(
        x.detach().mT.contiguous().numpy(),
        integers.numpy(),
        integers.abs().amax(dim=0).numpy(),
        o,
        half.numpy(),
        (size * angle.detach().cos()).numpy(),
        (size * angle.detach().sin()).numpy(),
        real.numpy(),
        imaginary.numpy(),
    )
    return real, imaginary
