"""The diagonal part of a matrix: a sum of one-dimensional theta functions, all columns of a batch at once."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta import kernels
from rtbm.theta.constants import N_EXPONENTIALS
from rtbm.theta.derivatives import Derivatives, gradients_with_graph, wants_graph
from rtbm.theta.exact import largest_entry
from rtbm.theta.lattice import DIGIT
from rtbm.theta.unit.numba import column_moments, unit_constants
from rtbm.theta.unit.torch import column_derivatives


class UnitColumns:
    """Σ_j log θ̃(z_j|q_j) for entries q (g,), in phase II Σ_j log θ̃(iz_j|q_j).

    Methods take q again, as a tensor that derivatives may be asked of; its values are those given here.
    """

    def __init__(self, q: Floats, phase: str):
        self.q = q
        self.phase = phase
        self._near_argument = DIGIT * (q.min() if phase == "I" else TWO_PI)

    @property
    def n_terms(self) -> int:
        """The number of terms in all columns together: as many waves as steps."""
        return len(self.q) * (2 * N_EXPONENTIALS + 1)

    def log_theta(self, z: Tensor, q: Tensor) -> Tensor:
        """The sum over columns (points,) for z (points, g); differentiable to any order."""
        if not self._is_compiled(z):
            return self.derivatives(z, q, 0)[0].sum(dim=1)
        if wants_graph(z, q):
            return _CompiledLogTheta.apply(z, q, self)
        return column_moments(z, self.constants, 0)[0]

    def moments(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """The sum over columns, and derivatives (points, g) up to `order` ≤ 3 in each; differentiable to any order."""
        if self._is_compiled(z) and order <= 2 and not wants_graph(z, q):
            return column_moments(z, self.constants, order)
        value, *derivatives = self.derivatives(z, q, order)
        return value.sum(dim=1), *derivatives

    def derivatives(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """log θ̃ of every column and its derivatives, all (points, g), in plain torch."""
        return column_derivatives(z.double(), q.double(), self.phase, order, self._is_far(z))

    @cached_property
    def constants(self) -> Floats:
        """What the compiled pass needs to know of q."""
        return unit_constants(self.q, self.phase)

    def _is_compiled(self, z: Tensor) -> bool:
        return kernels.AVAILABLE and z.device.type == "cpu" and not self._is_far(z)

    def _is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`."""
        return z.numel() > 0 and largest_entry(z) > self._near_argument


class _CompiledLogTheta(torch.autograd.Function):
    """The compiled pass with first derivatives; a graph of these goes through torch."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, q: Tensor, columns: UnitColumns) -> Tensor:
        value, *derivatives = column_moments(z, columns.constants, 2 if ctx.needs_input_grad[1] else 1)
        ctx.save_for_backward(z, q, *derivatives)
        ctx.columns = columns
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        z, q, mean, *second = ctx.saved_tensors
        if torch.is_grad_enabled():
            value = ctx.columns.derivatives(z, q, 0)[0].sum(dim=1)
            return *gradients_with_graph(value, (z, q), ctx.needs_input_grad, grad), None
        grad_q = None
        if ctx.needs_input_grad[1]:
            sign = -0.5 if ctx.columns.phase == "I" else 0.5
            grad_q = (sign * (grad @ torch.addcmul(second[0], mean, mean))).to(q.dtype)
        return (grad[:, None] * mean).to(z.dtype), grad_q, None
