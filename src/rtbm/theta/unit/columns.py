"""The diagonal part of a matrix: a sum of one-dimensional theta functions, all columns of a batch at once."""

import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta import kernels
from rtbm.theta.constants import N_EXPONENTIALS
from rtbm.theta.derivatives import Derivatives, LogTheta, wants_graph
from rtbm.theta.exact import is_above
from rtbm.theta.lattice import DIGIT, LARGEST_INTEGER
from rtbm.theta.unit.numba import moments
from rtbm.theta.unit.torch import column_derivatives


class UnitColumns:
    """Σ_j log θ̃(z_j|q_j) for entries q (g,), in phase II Σ_j log θ̃(iz_j|q_j). Of no entries it is 0.

    Pass q again to methods so that autograd can differentiate through it; its values must equal those given to
    `__init__`.
    """

    def __init__(self, q: Floats, phase: str):
        self.q, self.phase = torch.as_tensor(q), phase
        self.n_terms = len(q) * (2 * N_EXPONENTIALS + 1)  # as many cosines as exponentials
        self._period = q.min(initial=TWO_PI) if phase == "I" else TWO_PI

    def log_theta(self, z: Tensor, q: Tensor) -> Tensor:
        """The sum over columns (points,) for z (points, g); differentiable to any order."""
        if wants_graph(z, q) and self._is_compiled(z):
            return LogTheta.apply(z, q, self, self.torch_log_theta)
        return self.torch_log_theta(z, q)

    def moments(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """The sum over columns, and derivatives (points, g) up to `order` ≤ 3 in each; differentiable to any order."""
        if order <= 2 and not wants_graph(z, q) and self._is_compiled(z):
            return self.start(z, order)
        value, *derivatives = column_derivatives(z.double(), q.double(), self.phase, order, self._is_far(z))
        return value.sum(dim=1), *derivatives

    def torch_log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """The sum over columns in plain torch, where z or Q carries a graph."""
        return self.moments(z, Q, 0)[0]

    def start(self, z: Tensor, order: int) -> Derivatives:
        """The sum over columns, and derivatives up to `order` ≤ 2 in each, by the compiled pass and without a graph."""
        return moments(z, self.q, self.phase, order)

    def gradients(self, z: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """See `derivatives.CompiledSum`: by the heat equation ∂θ̃/∂q = ∓½∂²θ̃/∂z², with the upper sign in phase I."""
        mean, *second = kept
        by_z = grad[:, None] * mean
        if not second:
            return by_z, None
        total = (grad[:, None] * second[0] + by_z * mean).sum(dim=0)
        return by_z, (-0.5 if self.phase == "I" else 0.5) * total

    def _is_compiled(self, z: Tensor) -> bool:
        return kernels.AVAILABLE and z.is_cpu and not self._is_far(z)

    def _is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`; an error if no step is exact."""
        return is_above(z, DIGIT * self._period, LARGEST_INTEGER * min(self._period, 1.0))
