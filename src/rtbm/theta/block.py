"""One block of a matrix: the lattice work done once, then the cheapest evaluator for every batch."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta import kernels
from rtbm.theta.derivatives import CompiledSum, Derivatives, LogTheta, in_forward_mode, wants_graph
from rtbm.theta.device import TRITON_AVAILABLE
from rtbm.theta.listed import torch as listed
from rtbm.theta.listed.numba import NumbaList
from rtbm.theta.listed.triton import LARGEST_SIZE, TritonList
from rtbm.theta.local import LocalSum
from rtbm.theta.product import triton as product_triton
from rtbm.theta.product.torch import SplitProduct

MAX_EXPONENT = 600.0
"""Evaluators that multiply exponentials, or do not shift them, serve blocks whose exponents stay below this. Beyond 709
they would overflow."""
SMALLEST_PRODUCT = 20
"""Up to this number of terms the split product is not considered, since its lists are not much shorter."""
MOMENT_ELEMENTS = 2**22  # numbers of the graph of a chunk of points whose moments torch forms


class Cost(NamedTuple):
    """What an evaluator costs: for a batch, a point, an entry of the lists of the product, and a term at a point.

    In nanoseconds of one core (`make bench`), and for GPUs in units of 0.004 ns (`benchmarks/theta_gpu.py`). Other
    values cost time but change no result; only the ratios of evaluators for the same device matter.
    """

    batch: float
    point: float
    entry: float
    term: float


LIST = Cost(0, 200, 0, 20)
COSTS = {
    "cpu": {
        "list": (LIST, LIST),
        "product": (Cost(5e5, 300, 12, 0.25), Cost(5e5, 1000, 60, 0.9)),
        "numba": (Cost(0, 40, 0, 9), Cost(0, 40, 0, 16)),
    },
    "cuda": {
        "list": (LIST, LIST),
        "product": (Cost(1e8, 300, 3, 0.15), Cost(1e8, 600, 6, 0.3)),
        "triton product": (Cost(5e6, 60, 3, 0.02), Cost(5e7, 60, 3, 0.02)),
        "triton": (Cost(0, 30, 0, 1.2), Cost(0, 30, 0, 1.2)),
    },
}
"""The cost of each evaluator on a device for values, and for values with derivatives."""
TORCH = ("list", "product")
"""The evaluators in torch. They serve far arguments and graphs of derivatives, too."""


class Block:
    """log θ̃ for one matrix Q (g, g), phase and tolerance.

    Pass Q again to methods so that autograd can differentiate through it; its values must equal those given to
    `__init__`. An `evaluator` is "list" or "product" (torch), "numba", "triton" or "triton product"; by default the
    cheapest. Where it cannot, as for far arguments, one in torch takes over.
    """

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.lattice = lattice = LocalSum(Q, phase, tolerance)
        self.product = SplitProduct(lattice)
        self._compiled: dict[str, CompiledSum] = {
            "numba": NumbaList(lattice, self.torch_log_theta),
            "triton": TritonList(lattice, self.torch_log_theta),
            "triton product": product_triton.TritonProduct(self.product, self.torch_log_theta),
        }

    def log_theta(self, z: Tensor, Q: Tensor, evaluator: str | None = None) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        has_graph = wants_graph(z, Q)
        name = evaluator or self.cheapest(z, has_graph)
        if name in TORCH or self.lattice.is_far(z):
            return self.torch_log_theta(z, Q, name if name in TORCH else None)
        return LogTheta.apply(z, Q, self._compiled[name]) if has_graph else self._compiled[name].start(z, 0)[0]

    def moments(self, z: Tensor, Q: Tensor, order: int, evaluator: str | None = None) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""
        name = evaluator or self.cheapest(z, derivatives=True)
        has_graph = wants_graph(z, Q)
        if name in ("numba", "triton") and order <= 2 and not has_graph and not self.lattice.is_far(z):
            return self._compiled[name].moments(z, order)
        if has_graph:
            return self._torch_moments(z, Q, order)
        size = max(1, MOMENT_ELEMENTS // self.lattice.g ** max(order - 1, 0) // len(self.lattice.points))
        parts = [self._torch_moments(rows, Q, order) for rows in z.split(size)]
        return tuple(torch.cat(column).detach() for column in zip(*parts, strict=True))

    def _torch_moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """Derivatives of derivatives by autograd."""
        with torch.inference_mode(False), torch.enable_grad():
            z = z.clone() if z.is_inference() else z.double()
            argument = z if z.requires_grad else z.view_as(z).requires_grad_()
            found = [self.torch_log_theta(argument, Q)]
            for _ in range(order):
                columns = found[-1].reshape(len(z), -1).unbind(dim=1)
                slopes = [torch.autograd.grad(c.sum(), argument, create_graph=True)[0] for c in columns]
                found.append(torch.stack(slopes, dim=1).reshape(*found[-1].shape, -1))
        return tuple(found)

    def torch_log_theta(self, z: Tensor, Q: Tensor, evaluator: str | None = None) -> Tensor:
        """The same in plain torch."""
        local = self.lattice.localise(z, Q)
        if (evaluator or self.cheapest(z, wants_graph(z, Q), TORCH)) == "list":
            return local.log_factor + listed.log_sum(local, self.lattice)
        return local.log_factor + self.product.log_sum(local)

    def cheapest(self, z: Tensor, derivatives: bool = False, among: Sequence[str] = ()) -> str:
        """The evaluator that costs least for z (points, g), for values or with derivatives."""
        costs = {
            name: self._cost(cost[derivatives], len(z), name)
            for name, cost in COSTS[z.device.type].items()
            if (not among or name in among) and self._pays(name, len(z))
        }
        return min(costs, key=costs.__getitem__)

    def _cost(self, cost: Cost, n_points: int, name: str) -> float:
        entries, terms = 0, len(self.lattice.points)
        if "product" in name:
            entries, terms = self.product.split.entries, self.product.split.pairs
        return cost.batch + n_points * (cost.point + entries * cost.entry + terms * cost.term)

    def _pays(self, name: str, n_points: int) -> bool:
        """Whether an evaluator may be the cheapest: the lists of a product are not looked for in vain."""
        n_terms = len(self.lattice.points)
        if "product" in name and (n_terms <= SMALLEST_PRODUCT or n_points * n_terms < 5e4):
            return False
        return self.supports(name)

    def supports(self, name: str) -> bool:
        """Whether an evaluator serves this block, on its device."""
        lattice = self.lattice
        if name == "list":
            return True
        if "product" in name and (lattice.g == 1 or self.product.largest_exponent >= MAX_EXPONENT):
            return False
        if name == "triton product":
            return TRITON_AVAILABLE and lattice.n_osc == lattice.g <= product_triton.LARGEST_SIZE
        is_there = kernels.AVAILABLE if name == "numba" else TRITON_AVAILABLE and lattice.g <= LARGEST_SIZE
        return name == "product" or (is_there and lattice.largest_exponent < MAX_EXPONENT)
