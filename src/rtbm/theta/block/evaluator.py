"""What an evaluator of a block is: a way to form the sum, with a cost."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from rtbm.theta.block.tensors import BlockTensors
from rtbm.theta.derivatives import Derivatives


class Evaluator(ABC):
    """log θ̃ and its derivatives for a block. Methods take Q as a tensor, which derivatives may be asked of."""

    name: str

    def __init__(self, tensors: BlockTensors):
        self.tensors = tensors
        self.phase = tensors.phase
        self.n_terms = len(tensors.geometry.points)

    def supports(self, device: torch.device) -> bool:
        """Whether it applies to this block on this device."""
        return True

    def pays(self, z: Tensor) -> bool:
        """Whether the cost model may choose it for the batch z (points, g)."""
        return self.supports(z.device)

    @abstractmethod
    def cost(self, n_points: int) -> float:
        """Nanoseconds for so many points."""

    @abstractmethod
    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        return self.moments(z, Q, 0)[0]
