"""One block of a matrix: the lattice work done once, then the cheapest evaluator for every batch."""

from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.numba import FusedPass
from rtbm.theta.block.tensors import BlockTensors
from rtbm.theta.block.torch import ListSum, SplitProduct
from rtbm.theta.block.triton import CudaPass
from rtbm.theta.derivatives import Derivatives


class Block:
    """log θ̃ for one matrix Q (g, g), phase and tolerance.

    Methods take Q again, as a tensor that derivatives may be asked of; its values are those given here. `evaluators`
    holds the ways to form the sum by name: "list", "split", "fused" and "cuda". To add one, write a subclass of
    `Evaluator` and name it here.
    """

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        tensors = BlockTensors(Q, phase, tolerance)
        list_sum = ListSum(tensors)
        self.geometry = tensors.geometry
        self.largest_argument = tensors.largest_argument
        others = (SplitProduct, FusedPass, CudaPass)
        evaluators: list[Evaluator] = [list_sum, *(kind(tensors, list_sum) for kind in others)]
        self.evaluators = {evaluator.name: evaluator for evaluator in evaluators}

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        return self.cheapest(z).log_theta(z, Q)

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""
        return self.cheapest(z).moments(z, Q, order)

    def cheapest(self, z: Tensor) -> Evaluator:
        """The evaluator that the cost model picks for a batch."""
        candidates = [evaluator for evaluator in self.evaluators.values() if evaluator.pays(z)]
        return min(candidates, key=lambda evaluator: evaluator.cost(len(z)))
