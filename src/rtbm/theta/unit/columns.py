"""The diagonal part of a matrix: a sum of one-dimensional theta functions, all columns of a batch at once."""

from functools import cached_property

from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta import kernels
from rtbm.theta.constants import N_EXPONENTIALS
from rtbm.theta.derivatives import CompiledLogTheta, Derivatives, wants_graph
from rtbm.theta.exact import is_above
from rtbm.theta.lattice import DIGIT, LARGEST_INTEGER
from rtbm.theta.unit.numba import column_moments, unit_constants
from rtbm.theta.unit.torch import column_derivatives


class UnitColumns:
    """Σ_j log θ̃(z_j|q_j) for entries q (g,), in phase II Σ_j log θ̃(iz_j|q_j).

    Pass q again to methods so that autograd can differentiate through it; its values must equal those given to
    `__init__`.
    """

    def __init__(self, q: Floats, phase: str):
        self.q = q
        self.phase = phase
        self._near_argument = DIGIT * (q.min() if phase == "I" else TWO_PI)
        self._largest_argument = LARGEST_INTEGER * (min(q.min(), 1.0) if phase == "I" else 1.0)

    @property
    def n_terms(self) -> int:
        """The number of terms in all columns together: as many waves as steps."""
        return len(self.q) * (2 * N_EXPONENTIALS + 1)

    def log_theta(self, z: Tensor, q: Tensor) -> Tensor:
        """The sum over columns (points,) for z (points, g); differentiable to any order."""
        if not self._is_compiled(z):
            return self.torch_log_theta(z, q)
        return CompiledLogTheta.apply(z, q, self) if wants_graph(z, q) else self.fixed_moments(z, 0)[0]

    def moments(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """The sum over columns, and derivatives (points, g) up to `order` ≤ 3 in each; differentiable to any order."""
        if self._is_compiled(z) and order <= 2 and not wants_graph(z, q):
            return self.fixed_moments(z, order)
        value, *derivatives = self.derivatives(z, q, order)
        return value.sum(dim=1), *derivatives

    def derivatives(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """log θ̃ of every column and its derivatives, all (points, g), in plain torch."""
        return column_derivatives(z.double(), q.double(), self.phase, order, self._is_far(z))

    def torch_log_theta(self, z: Tensor, q: Tensor) -> Tensor:
        """The sum over columns in plain torch."""
        return self.derivatives(z, q, 0)[0].sum(dim=1)

    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """The sum over columns, and derivatives up to `order` ≤ 2 in each, by the compiled pass and without a graph."""
        return column_moments(z, self._constants, order)

    @cached_property
    def _constants(self) -> Floats:
        return unit_constants(self.q, self.phase)

    def _is_compiled(self, z: Tensor) -> bool:
        return kernels.AVAILABLE and z.device.type == "cpu" and not self._is_far(z)

    def _is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`; an error if no step is exact."""
        return is_above(z, self._near_argument, self._largest_argument)
