"""What an evaluator of a block is: a way to form the sum, with a cost."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from rtbm.theta.block.tensors import BlockTensors
from rtbm.theta.derivatives import Derivatives, wants_graph


class Evaluator(ABC):
    """log θ̃ and its derivatives for a block. Pass Q again to methods so that autograd can differentiate through it."""

    name: str
    has_moments: ClassVar[bool] = True
    """Whether it forms moments itself. Others leave them to another evaluator."""

    def __init__(self, tensors: BlockTensors):
        self.tensors = tensors
        self.phase = tensors.phase
        self.n_terms = len(tensors.geometry.points)

    def supports(self, device: torch.device) -> bool:
        """Whether it applies to this block on this device."""
        return True

    def pays(self, n_points: int, device: torch.device) -> bool:
        """Whether the cost model may choose it for a batch."""
        return self.supports(device)

    @abstractmethod
    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """The cost of a number of points on this device, for values alone or with derivatives; see `cost`."""

    @abstractmethod
    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        return self.moments(z, Q, 0)[0]


class CompiledEvaluator(Evaluator):
    """One compiled pass for basis change, nearest plane, terms and the way back. It serves up to two derivatives.

    Others, graphs of derivatives, and far arguments go through the list.
    """

    function: ClassVar[type[torch.autograd.Function]]
    """How gradients are formed: see `derivatives`."""

    def __init__(self, tensors: BlockTensors, list_sum: Evaluator):
        super().__init__(tensors)
        self._list_sum = list_sum

    @abstractmethod
    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 2 for near arguments, without a graph."""

    def near_moments(self, z: Tensor, order: int) -> Derivatives | None:
        """The same; None if an argument is far."""
        return None if self.tensors.is_far(z) else self.fixed_moments(z, order)

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """See `Evaluator`."""
        if wants_graph(z, Q):
            return self._list_sum.log_theta(z, Q) if self.tensors.is_far(z) else self.function.apply(z, Q, self)
        near = self.near_moments(z, 0)
        return self._list_sum.log_theta(z, Q) if near is None else near[0]

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        near = None if order > 2 or wants_graph(z, Q) else self.near_moments(z, order)
        return self._list_sum.moments(z, Q, order) if near is None else near

    def torch_log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ in plain torch."""
        return self._list_sum.log_theta(z, Q)
