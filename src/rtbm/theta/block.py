"""One block of a matrix: the lattice work done once, then the evaluator that suits a batch."""

import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta import kernels
from rtbm.theta.derivatives import CompiledSum, Derivatives, LogTheta, wants_graph
from rtbm.theta.device import TRITON_AVAILABLE
from rtbm.theta.listed.numba import NumbaList
from rtbm.theta.listed.torch import log_sum
from rtbm.theta.listed.triton import LARGEST_SIZE, TritonList
from rtbm.theta.local import LocalSum
from rtbm.theta.product import SplitProduct

MAX_EXPONENT = 600.0
"""Evaluators that multiply exponentials, or do not shift them, serve blocks whose exponents stay below this. Beyond 709
they would overflow."""
LONG_LIST = {"cpu": 120, "cuda": 1000}
"""Lists with more terms are long: large batches take the split product. Speed only (`make bench`, `theta_gpu.py`)."""
LARGE_BATCH = 1e5
"""Points times terms of a large batch. In smaller ones the product's set-up takes longer than the sum. Speed only."""
MOMENT_ELEMENTS = 2**17  # numbers of a temporary of a chunk of points whose moments torch forms


class Block:
    """log θ̃ for one matrix Q (g, g), phase and tolerance.

    Pass Q again to methods so that autograd can differentiate through it; its values must equal those given to
    `__init__`. An `evaluator` is "list" or "product" (torch), or "numba" or "triton", the list in one compiled pass. By
    default one is chosen. Where a pass does not serve, as for far arguments, the list in torch takes over.
    """

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.lattice = LocalSum(Q, phase, tolerance)
        self.product = SplitProduct(self.lattice)
        self._compiled: dict[str, CompiledSum] = {
            "numba": NumbaList(self.lattice), "triton": TritonList(self.lattice)
        }  # fmt: skip

    def log_theta(self, z: Tensor, Q: Tensor, evaluator: str | None = None) -> Tensor:
        """log θ̃ (points,) for z (points, g); differentiable to any order."""
        compiled = self._compiled.get(evaluator or self.choose(z))
        if compiled is None or self.lattice.is_far(z):
            return self.torch_log_theta(z, Q, evaluator)
        if wants_graph(z, Q):
            return LogTheta.apply(z, Q, compiled, self.torch_log_theta)
        return compiled.moments(z, 0)[0]

    def moments(self, z: Tensor, Q: Tensor, order: int, evaluator: str | None = None) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order` ≤ 3; differentiable to any order."""
        name = evaluator or self.choose(z)
        if wants_graph(z, Q):
            return self._torch_moments(z, Q, order, name)
        if name in self._compiled and order <= 2 and not self.lattice.is_far(z):
            return self._compiled[name].moments(z, order)
        width = 4 * self.product.split.entries if name == "product" else len(self.lattice.points)
        chunks = z.split(max(1, MOMENT_ELEMENTS // (width * self.lattice.g ** max(order - 1, 0))))
        parts = [[part.detach() for part in self._torch_moments(rows, Q, order, name)] for rows in chunks]
        return tuple(torch.cat(column) for column in zip(*parts, strict=True))

    def _torch_moments(self, z: Tensor, Q: Tensor, order: int, evaluator: str) -> Derivatives:
        """Derivatives of derivatives by autograd."""
        with torch.inference_mode(False), torch.enable_grad():
            z = (z.clone() if z.is_inference() else z).double()
            argument = z if z.requires_grad else z.view_as(z).requires_grad_()
            found = [self.torch_log_theta(argument, Q, evaluator)]
            for _ in range(order):
                columns = found[-1].reshape(len(z), -1).unbind(dim=1)
                slopes = [torch.autograd.grad(c.sum(), argument, create_graph=True)[0] for c in columns]
                found.append(torch.stack(slopes, dim=1).reshape(*found[-1].shape, -1))
        return tuple(found)

    def torch_log_theta(self, z: Tensor, Q: Tensor, evaluator: str | None = None) -> Tensor:
        """log θ̃ in plain torch, by the list or the product."""
        local = self.lattice.localise(z, Q)
        is_product = (evaluator or self.choose(z)) == "product"
        return local.log_factor + (self.product.log_sum(local) if is_product else log_sum(local, self.lattice))

    def choose(self, z: Tensor) -> str:
        """The evaluator that suits z (points, g)."""
        device, n_terms = z.device.type, len(self.lattice.points)
        if n_terms > LONG_LIST.get(device, 0) and n_terms * len(z) > LARGE_BATCH and self.supports("product"):
            return "product"
        compiled = {"cpu": "numba", "cuda": "triton"}.get(device, "list")
        return compiled if self.supports(compiled) else "list"

    def supports(self, name: str) -> bool:
        """Whether an evaluator serves this block."""
        if name == "product":
            return self.lattice.g > 1 and self.product.largest_exponent < MAX_EXPONENT
        is_there = kernels.AVAILABLE if name == "numba" else TRITON_AVAILABLE and self.lattice.g <= LARGEST_SIZE
        return name == "list" or (is_there and self.lattice.largest_exponent < MAX_EXPONENT)
