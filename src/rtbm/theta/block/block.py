"""One block of a matrix: the lattice work done once, then the cheapest evaluator for every batch."""

import math

from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.numba import FusedPass
from rtbm.theta.block.product import SplitProduct
from rtbm.theta.block.tensors import CPU, BlockTensors
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
        self.largest_argument = tensors.largest_argument
        self._split, self._fused = SplitProduct(tensors, list_sum), FusedPass(tensors, list_sum)
        cuda = CudaPass(tensors, list_sum)
        evaluators: list[Evaluator] = [list_sum, self._split, self._fused, cuda, CudaProduct(cuda, self._split)]
        self.evaluators = {evaluator.name: evaluator for evaluator in evaluators}

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        return self.cheapest(z, wants_graph(z, Q)).log_theta(z, Q)

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""
        if order == 0:
            return (self.log_theta(z, Q),)
        return self.cheapest(z, moments=True).moments(z, Q, order)

    def near_log_theta(self, z: Tensor) -> Tensor | None:
        """log θ̃ (...) for z (..., g) on the CPU, float64 and without graph, if one compiled pass is the cheapest.

        This is `log_theta` without its checks, for single points. None says that z needs them.
        """
        shape = z.shape[:-1] if z.ndim > 1 else ()  # slices of shapes take time
        n_points = math.prod(shape)
        if n_points == 0 or not self._fused.is_compiled or (n_points > 1 and self._prefers_split(n_points)):
            return None
        z, value = z.contiguous().resolve_neg(), z.new_empty(shape)
        # zeros that torch does not store have no address
        return value if z.data_ptr() and self._fused.near_log_theta(z, value) else None

    def _prefers_split(self, n_points: int) -> bool:
        batch = n_points, CPU, False
        return self._split.may_pay(n_points) and self._split.cost(*batch) < self._fused.cost(*batch)

    def cheapest(self, z: Tensor, derivatives: bool = False, moments: bool = False) -> Evaluator:
        """The evaluator that the cost model picks for a batch: for values, with gradients, or for moments."""
        able = [evaluator for evaluator in self.evaluators.values() if evaluator.has_moments or not moments]
        candidates = [evaluator for evaluator in able if evaluator.pays(z)]
        return min(candidates, key=lambda evaluator: evaluator.cost(len(z), z.device, derivatives or moments))
