"""A plan: the lattice work for one Q, done once and used for any number of batches."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.lattice import Integers
from rtbm.theta.block import Block
from rtbm.theta.diagonal import Diagonal
from rtbm.theta.fused import fused_log_theta, fused_moments
from rtbm.theta.series import Derivatives
from rtbm.validation import as_real, as_vectors, check_choice, check_positive_definite, check_symmetric, check_tolerance

FLOAT32_TOLERANCE = 1e-8  # a tighter one would be lost in rounding


class ThetaMoments(NamedTuple):
    """log θ̃ and its z-derivatives; in phase I these are the log-sum, mean, covariance and third cumulant of n."""

    log_theta: Tensor  # (...)
    mean: Tensor | None  # (..., g)
    covariance: Tensor | None  # (..., g, g)
    third: Tensor | None  # (..., g, g, g)


class ThetaPlan:
    """The theta function of one fixed Q: reduction, truncation and the choice of evaluators, done once.

    Parameters
    ----------
    Q : (g, g) real, symmetric, positive definite. If it requires a gradient, results are differentiable in it.
    phase : "I" for θ̃(z|Q), "II" for θ̃(iz|Q).
    tolerance : bounds the truncation error of θ̃ relative to θ̃ itself, at every argument.

    >>> plan = ThetaPlan([[2.0, 0.5], [0.5, 1.0]])
    >>> plan.log_theta([[0.1, 0.2], [10.0, -3.0]])
    tensor([ 1.5781, 43.8438], dtype=torch.float64)
    >>> plan
    ThetaPlan(g=2, phase='I', tolerance=1e-12, blocks=[2], terms=4)
    """

    def __init__(self, Q: Any, *, phase: str = "I", tolerance: float = 1e-12):
        self.Q = check_symmetric(as_real(Q, "Q"), "Q")
        self.phase = check_choice(phase, "phase", ("I", "II"))
        self.tolerance = check_tolerance(tolerance)
        check_positive_definite(self.Q, "Q")
        if self.Q.dtype == torch.float32:
            tolerance = max(tolerance, FLOAT32_TOLERANCE)
        matrix = self.Q.detach().double().cpu().numpy()
        matrix = (matrix + matrix.T) / 2
        components = connected_components(matrix != 0)
        singles = [c for c in components if len(c) == 1] if len(components) > 1 else []
        self._single = np.array([c[0] for c in singles], dtype=np.int64)
        self._diagonal = Diagonal(matrix[self._single, self._single], phase, tolerance) if singles else None
        self._blocks = [
            (c, Block(matrix[np.ix_(c, c)], phase, tolerance)) for c in components if len(c) > 1 or not singles
        ]

    @property
    def g(self) -> int:
        """The number of coordinates."""
        return self.Q.shape[0]

    def __repr__(self) -> str:
        sizes = sorted([*(len(c) for c, _ in self._blocks), *(1 for _ in self._single)], reverse=True)
        terms = sum(len(block.geometry.points) for _, block in self._blocks)
        terms += self._diagonal.n_terms if self._diagonal else 0
        blocks = sizes if len(sizes) <= 6 else f"{len(sizes)} blocks"
        return (
            f"ThetaPlan(g={self.g}, phase={self.phase!r}, tolerance={self.tolerance:g}, blocks={blocks}, terms={terms})"
        )

    def log_theta(self, z: Any) -> Tensor:
        """log θ̃(z|Q), or log θ̃(iz|Q) in phase II, for z (..., g). Returns (...)."""
        rows, shape = self._flatten(z)
        if len(rows) == 0:
            return rows.new_zeros(shape)
        parts = []
        if self._diagonal:
            parts.append(self._diagonal_moments(rows, self._diagonal, 0)[0].sum(dim=1))
        for indices, block in self._blocks:
            part, Q = self._restrict(rows, indices)
            parts.append(block_log_theta(block, part, Q, block.evaluator(part)))
        total = parts[0] if len(parts) == 1 else torch.stack(parts).sum(dim=0)
        return total.to(rows.dtype).reshape(shape)

    def moments(self, z: Any, order: int = 2) -> ThetaMoments:
        """log θ̃ and its z-derivatives up to `order` (0 to 3) for z (..., g)."""
        check_choice(order, "order", (0, 1, 2, 3))
        rows, shape = self._flatten(z)
        total = rows.new_zeros(len(rows), dtype=torch.float64)
        tensors = [rows.new_zeros(len(rows), *[self.g] * k, dtype=torch.float64) for k in range(1, order + 1)]
        if len(rows) and self._diagonal:
            value, *derivatives = self._diagonal_moments(rows, self._diagonal, order)
            total = total + value.sum(dim=1)
            for tensor, derivative in zip(tensors, derivatives, strict=True):
                tensor[_at([self._single] * (tensor.ndim - 1))] = derivative
        for indices, block in self._blocks if len(rows) else ():
            part, Q = self._restrict(rows, indices)
            value, *derivatives = _block_moments(block, part, Q, order)
            total = total + value
            for tensor, derivative in zip(tensors, derivatives, strict=True):
                tensor[_at(np.ix_(*[indices] * (tensor.ndim - 1)))] = derivative
        values = [tensor.to(rows.dtype).reshape((*shape, *tensor.shape[1:])) for tensor in (total, *tensors)]
        return ThetaMoments(*values, *[None] * (3 - order))

    def _flatten(self, z: Any) -> tuple[Tensor, torch.Size]:
        z = as_vectors(as_real(z, "z"), "z", self.g)
        if z.device != self.Q.device:
            raise InvalidInputError(f"z is on {z.device} and Q on {self.Q.device}: move one of them with .to(device)")
        return z.to(torch.promote_types(z.dtype, self.Q.dtype)).reshape(-1, self.g), z.shape[:-1]

    def _restrict(self, rows: Tensor, indices: Integers) -> tuple[Tensor, Tensor]:
        if len(indices) == self.g:
            return rows, self.Q
        index = torch.from_numpy(indices).to(rows.device)
        return rows[:, index], self.Q[index[:, None], index]

    def _diagonal_moments(self, rows: Tensor, diagonal: Diagonal, order: int) -> Derivatives:
        index = torch.from_numpy(self._single).to(rows.device)
        return diagonal.moments(rows[:, index].double(), self.Q.diagonal()[index].double(), order)


def block_log_theta(block: Block, rows: Tensor, Q: Tensor, evaluator: str) -> Tensor:
    """log θ̃ (points,) of one block by the evaluator "list", "split" or "fused"."""
    if evaluator == "fused":
        return fused_log_theta(rows, Q, block)
    return block.log_theta(rows, Q, evaluator)


def connected_components(adjacent: np.ndarray) -> list[Integers]:
    """The groups of indices that a symmetric pattern of non-zeros connects, in increasing order.

    >>> [c.tolist() for c in connected_components(np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]]) > 0)]
    [[0, 2], [1]]
    """
    left, components = set(range(len(adjacent))), []
    while left:
        group, frontier = set(), {min(left)}
        while frontier:
            group |= frontier
            frontier = {int(j) for i in frontier for j in np.flatnonzero(adjacent[i])} - group
        components.append(np.array(sorted(group), dtype=np.int64))
        left -= group
    return components


def _at(indices: Any) -> Any:
    """An index into the trailing dimensions."""
    return (slice(None), *(torch.from_numpy(index) for index in indices))


def _block_moments(block: Block, rows: Tensor, Q: Tensor, order: int) -> Derivatives:
    """Derivatives by the cheapest way: compiled without a graph, autograd through a split product, or the list."""
    differentiable = torch.is_grad_enabled() and (rows.requires_grad or Q.requires_grad)
    evaluator = block.evaluator(rows)
    if evaluator == "fused" and order <= 2 and not differentiable:
        return fused_moments(rows, block, order)
    if order <= 1 and evaluator == "split":
        with torch.enable_grad():
            argument = rows if rows.requires_grad else rows.detach().requires_grad_()
            value = block.log_theta(argument, Q if differentiable else Q.detach(), "split")
            (mean,) = torch.autograd.grad(value.sum(), argument, create_graph=differentiable)
        return (value if differentiable else value.detach(), mean)[: order + 1]
    return block.moments(rows, Q, order)
