"""A plan: the lattice work for one Q, done once and used for any number of batches."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Integers
from rtbm.errors import InvalidInputError, NotPositiveDefiniteError
from rtbm.theta.block import Block
from rtbm.theta.lattice import connected_components
from rtbm.theta.unit.columns import UnitColumns
from rtbm.validation import (
    as_real,
    check_choice,
    check_finite,
    check_positive_definite,
    check_same_device,
    check_symmetric,
    check_tolerance,
    check_vectors,
)

FLOAT32_TOLERANCE = 1e-8
"""The least tolerance for float32. A tighter one would cost terms that are lost in rounding."""
SMALLEST_Q = 1e-300
"""Entries of a diagonal Q lie between this and its inverse. Beyond, (2π)²/q would leave float64."""


class ThetaMoments(NamedTuple):
    """log θ̃ and its z-derivatives; in phase I these are the log-sum, mean, covariance and third cumulant of n."""

    log_theta: Tensor  # (...)
    mean: Tensor | None  # (..., g)
    covariance: Tensor | None  # (..., g, g)
    third: Tensor | None  # (..., g, g, g)


class ThetaPlan:
    """The theta function of one fixed Q: reduction, truncation and the choice of evaluators, done once.

    The attribute `blocks` holds the dense blocks as pairs (indices, Block), and `diagonal_indices` the coordinates that
    are on their own; `n_terms` counts the terms of all sums.

    Parameters
    ----------
    Q : (g, g) or (g,)
        Real, symmetric, positive definite; or the diagonal of a diagonal matrix. With g = 0, log θ̃ = 0. If it requires
        a gradient, results are differentiable in it. A matrix without gradient is taken apart into its blocks; one with
        gradient is not, since its zeros have derivatives too: for hundreds of independent units, pass the vector.
    phase : "I" or "II", default="I"
        θ̃(z|Q) or θ̃(iz|Q).
    tolerance : float, default=1e-12
        Bounds the truncation error of θ̃ relative to θ̃ itself, at every argument; at least 1e-8 for float32. The sums of
        coordinates that are on their own always reach the last digit.

    Examples
    --------
    >>> plan = ThetaPlan([[2.0, 0.5], [0.5, 1.0]])
    >>> plan.log_theta([[0.1, 0.2], [10.0, -3.0]])
    tensor([ 1.5781, 43.8438], dtype=torch.float64)
    >>> plan
    ThetaPlan(g=2, phase='I', tolerance=1e-12, blocks=[2], terms=4)
    >>> ThetaPlan([0.5, 1.0, 30.0])
    ThetaPlan(g=3, phase='I', tolerance=1e-12, blocks=[1, 1, 1], terms=15)
    """

    phase: str
    tolerance: float
    diagonal_indices: np.ndarray

    def __init__(self, Q: Any, *, phase: str = "I", tolerance: float = 1e-12):
        self.Q = as_real(Q, "Q", finite=False)
        if self.Q.is_inference():
            with torch.inference_mode(False):  # so that training can use the plan later
                self.Q = self.Q.clone()
        self.phase = check_choice(phase, "phase", ("I", "II"))
        self.tolerance = check_tolerance(tolerance)
        if self.Q.dtype == torch.float32:
            self.tolerance = max(self.tolerance, FLOAT32_TOLERANCE)
        self._fixed = self.Q.detach().clone()
        check_finite(self.Q, "Q")
        values = self._fixed.cpu().numpy().astype(float)
        components: list[Integers] = []
        if self.Q.ndim == 1:
            _check_diagonal(values)
            self.diagonal_indices = np.arange(self.g)
        else:
            if self.Q.shape != (0, 0):
                check_positive_definite(check_symmetric(self.Q, "Q"), "Q")
                values = (values + values.T) / 2
                is_whole = self.Q.requires_grad or values.all()
                components = [np.arange(self.g)] if is_whole else connected_components(values != 0)
            singles = [c[0] for c in components if len(c) == 1 < self.g]
            self.diagonal_indices = np.array(singles, dtype=np.int64)
            components = [c for c in components if len(c) > 1 or self.g == 1]
        self.blocks = [(c, Block(values[np.ix_(c, c)], self.phase, self.tolerance)) for c in components]
        q = values if values.ndim == 1 else values.diagonal()[self.diagonal_indices]
        self._diagonal = UnitColumns(q, phase) if len(q) else None

    @property
    def g(self) -> int:
        """The number of coordinates."""
        return self.Q.shape[0]

    @property
    def n_terms(self) -> int:
        """The number of terms in the sums of all blocks together."""
        diagonal = self._diagonal.n_terms if self._diagonal else 0
        return diagonal + sum(len(block.lattice.points) for _, block in self.blocks)

    def __repr__(self) -> str:
        sizes = sorted([*(len(c) for c, _ in self.blocks), *(1 for _ in self.diagonal_indices)], reverse=True)
        blocks = sizes if len(sizes) <= 6 else f"<{len(sizes)} blocks>"
        return (
            f"ThetaPlan(g={self.g}, phase={self.phase!r}, tolerance={self.tolerance:g}, blocks={blocks}, "
            f"terms={self.n_terms})"
        )

    def log_theta(self, z: Any) -> Tensor:
        """log θ̃(z|Q), or log θ̃(iz|Q) in phase II, for z (..., g). Returns (...)."""
        rows, shape = self._flatten(z)
        parts = [part.log_theta(z, Q) for _, part, z, Q in self._parts(rows)] if len(rows) else []
        total = torch.stack(parts).sum(dim=0) if len(parts) > 1 else parts[0] if parts else rows.sum(dim=1)
        return total.to(rows.dtype).reshape(shape)

    def moments(self, z: Any, order: int = 2) -> ThetaMoments:
        """log θ̃ and its z-derivatives up to `order` (0 to 3) for z (..., g)."""
        order = check_choice(order, "order", (0, 1, 2, 3))
        rows, shape = self._flatten(z)
        total = rows.sum(dim=1).double() * 0
        tensors = [rows.new_zeros(len(rows), *[self.g] * k, dtype=torch.float64) for k in range(1, order + 1)]
        for indices, part, argument, Q in self._parts(rows) if len(rows) else ():
            value, *derivatives = part.moments(argument, Q, order)
            total = total + value
            for tensor, derivative in zip(tensors, derivatives, strict=True):
                axes = (indices,) * (tensor.ndim - 1)
                axes = axes if isinstance(part, UnitColumns) else np.ix_(*axes)
                where: Any = (slice(None), *(torch.from_numpy(axis) for axis in axes))
                tensor[where] = derivative
        values = [tensor.to(rows.dtype).reshape((*shape, *tensor.shape[1:])) for tensor in (total, *tensors)]
        return ThetaMoments(*values, *[None] * (3 - order))

    def _flatten(self, z: Any) -> tuple[Tensor, torch.Size]:
        """z as rows (points, g), and its shape without the last axis."""
        z = check_vectors(as_real(z, "z", finite=False), "z", self.g)
        check_same_device(z, "z", self.Q, "Q")
        if not torch.equal(self.Q.detach(), self._fixed):
            raise InvalidInputError("Q was changed in place after this plan was made: make a new ThetaPlan")
        rows = z.reshape(z.shape[:-1].numel(), self.g)
        return rows if z.dtype == self.Q.dtype else rows.double(), z.shape[:-1]

    def _parts(self, rows: Tensor) -> Iterator[tuple[Integers, UnitColumns | Block, Tensor, Tensor]]:
        """The diagonal part and the blocks: their indices, their evaluator, and what it takes of the rows and of Q."""
        parts: list[tuple[Integers, UnitColumns | Block]] = [*self.blocks]
        if self._diagonal:
            parts.append((self.diagonal_indices, self._diagonal))
        for indices, part in parts:
            z, Q = rows, self.Q
            if isinstance(part, UnitColumns) and Q.ndim == 2:
                Q = Q.diagonal()
            if len(indices) < self.g:
                index = torch.from_numpy(indices).to(rows.device)
                z, Q = rows[:, index], Q[index] if Q.ndim == 1 else Q[index[:, None], index]
            yield indices, part, z, Q


def _check_diagonal(q: np.ndarray) -> None:
    if len(q) and not (q.min() >= SMALLEST_Q and q.max() <= 1 / SMALLEST_Q):
        raise NotPositiveDefiniteError(
            f"Q must be positive definite: its diagonal must hold numbers between {SMALLEST_Q:g} and "
            f"{1 / SMALLEST_Q:g}, got {q.min():.3g} to {q.max():.3g}"
        )
