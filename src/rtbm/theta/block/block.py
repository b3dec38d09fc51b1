"""One block of a matrix: the lattice work done once, then the cheapest evaluator for every batch."""

from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.numba import FusedPass
from rtbm.theta.block.product import SplitProduct
from rtbm.theta.block.tensors import BlockTensors
from rtbm.theta.block.torch import ListSum
from rtbm.theta.block.triton import CudaPass
from rtbm.theta.block.triton_product import CudaProduct
from rtbm.theta.derivatives import Derivatives, wants_graph


class Block:
    """log θ̃ for one matrix Q (g, g), phase and tolerance.

    Pass Q again to methods so that autograd can differentiate through it; its values must equal those given to
    `__init__`. `evaluators` holds the ways to form the sum by name: "list", "split", "fused", "cuda" and "cuda
    product". To add one, write a subclass of `Evaluator` and name it here.
    """

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        tensors = BlockTensors(Q, phase, tolerance)
        list_sum = ListSum(tensors)
        self.geometry = tensors.geometry
        split, cuda = SplitProduct(tensors, list_sum), CudaPass(tensors, list_sum)
        evaluators: list[Evaluator] = [
            list_sum, split, FusedPass(tensors, list_sum), cuda, CudaProduct(cuda, split)
        ]  # fmt: skip
        self.evaluators = {evaluator.name: evaluator for evaluator in evaluators}

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        return self.cheapest(z, wants_graph(z, Q)).log_theta(z, Q)

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""
        if order == 0:
            return (self.log_theta(z, Q),)
        return self.cheapest(z, moments=True).moments(z, Q, order)

    def cheapest(self, z: Tensor, derivatives: bool = False, moments: bool = False) -> Evaluator:
        """The evaluator that the cost model picks for a batch: for values, with gradients, or for moments."""
        n_points, device = z.shape[0], z.device
        candidates = [
            evaluator
            for evaluator in self.evaluators.values()
            if (evaluator.has_moments or not moments) and evaluator.pays(n_points, device)
        ]
        return min(candidates, key=lambda evaluator: evaluator.cost(n_points, device, derivatives or moments))
