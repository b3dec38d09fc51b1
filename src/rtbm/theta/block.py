"""One indecomposable theta function: the lattice work done once, then values and derivatives for any batch."""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rtbm.lattice import Floats
from rtbm.theta.chunks import in_chunks
from rtbm.theta.cost import SplitSize, choose_split
from rtbm.theta.geometry import TWO_PI_PARTS, Form, make_form, make_geometry, nearest_plane
from rtbm.theta.series import Cumulants, Split, Terms, list_cumulants, list_log_sum, split_log_sum


class Block:
    """The sum for one matrix Q (g, g), phase and tolerance; `geometry` explains the symbols."""

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.g = len(Q)
        self.phase = phase
        self.geometry = make_geometry(Q, phase, tolerance)
        self._cache: dict[tuple[str, torch.dtype, torch.device], object] = {}

    def log_theta(self, z: Tensor, Q: Tensor, evaluator: str) -> Tensor:
        """log θ̃ (points,) for z (points, g), with the evaluator "list" or "split"; differentiable to any order."""
        form = self.form(Q)
        s, _, offset = self.recentre(z.double(), form)
        dtype = self.dtype_for(z)
        x, constants = (s @ form.B.mT).to(dtype), [matrix.to(dtype) for matrix in form]
        if evaluator == "list":
            terms = self.terms(dtype, z.device)
            series = in_chunks(lambda rows, *c: list_log_sum(rows, Form(*c), terms), x, constants, len(terms.points))
        else:
            split = self.split(dtype, z.device)
            width = len(split.first) + len(split.last)
            series = in_chunks(lambda rows, *c: split_log_sum(rows, Form(*c), split), x, constants, width)
        return offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + series

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Cumulants:
        """log θ̃ and its z-derivatives up to `order`, from the list of terms; differentiable to any order."""
        form = self.form(Q)
        s, n0, offset = self.recentre(z.double(), form)
        dtype = self.dtype_for(z)
        terms = self.terms(dtype, z.device)
        x, constants = (s @ form.B.mT).to(dtype), [matrix.to(dtype) for matrix in form]
        series = Cumulants(
            *in_chunks(
                lambda rows, *c: list_cumulants(rows, Form(*c), terms, order), x, constants, len(terms.points)
            )
        )
        value = offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + series.log_sum
        U = self.basis(z.device)
        M = form.B @ U.mT  # x-derivatives to z-derivatives
        first = second = third = None
        if series.first is not None:
            centre = n0 if self.phase == "I" else 0.0
            first = (centre + s @ form.K) @ U.mT + series.first.double() @ M
        if series.second is not None:
            second = U @ form.K @ U.mT + M.mT @ series.second.double() @ M
        if series.third is not None:
            third = torch.einsum("nabc,ai,bj,ck->nijk", series.third.double(), M, M, M)
        return Cumulants(value, first, second, third)

    def recentre(self, z: Tensor, form: Form) -> tuple[Tensor, Tensor, Tensor]:
        """Split off the nearest lattice point: returns s (points, g), n₀ (points, g) and the offset (points,).

        The basis change is exact: z is cut into a part on a coarse grid, whose integer combinations do not round,
        and a small rest. Derivatives flow through the rest.
        """
        U = self.basis(z.device)
        geometry = self.geometry
        with torch.no_grad():
            grid = self.rounding_grid(z)
            high = (z + grid) - grid
            coarse = high @ U
        rest = (z - high) @ U
        with torch.no_grad():
            c = (coarse + rest) @ self._constant("centre", geometry.centre, z.device)
            n0 = nearest_plane(c, self._constant("plane", geometry.plane, z.device))
        if self.phase == "I":
            s = (coarse - n0 @ form.gram) + rest
            return s, n0, 0.5 * (n0 * (coarse + rest + s)).sum(dim=1)
        s = ((coarse - n0 * TWO_PI_PARTS[0]) - n0 * TWO_PI_PARTS[1]) + rest
        return s, n0, z.new_zeros(len(z))

    def form(self, Q: Tensor) -> Form:
        """The matrices of the sum: exact in value, and differentiable in Q."""
        if Q.requires_grad and torch.is_grad_enabled():
            U = self.basis(Q.device)
            symmetric = 0.5 * (Q + Q.mT).double()
            change = U.mT @ (symmetric - symmetric.detach()) @ U
            return make_form(self._constant("gram", self.geometry.gram, Q.device) + change, self.geometry.n_osc, self.phase)
        key = ("form", torch.float64, Q.device)
        if key not in self._cache:
            gram = self._constant("gram", self.geometry.gram, Q.device)
            self._cache[key] = make_form(gram, self.geometry.n_osc, self.phase)
        return self._cache[key]  # type: ignore[return-value]

    def rounding_grid(self, z: Tensor) -> Tensor:
        """The number that, added to z and subtracted again, rounds z so coarsely that z @ U is exact."""
        largest = z.detach().abs().amax().clamp(min=1.0) * float(np.abs(self.geometry.basis).sum(axis=0).max())
        return 1.5 * torch.exp2(largest.log2().ceil() + 1)

    def dtype_for(self, z: Tensor) -> torch.dtype:
        """Single precision only where no exponent is large enough to spoil it."""
        pos = self.geometry.norms[self.geometry.n_osc :]
        return torch.float64 if pos.sum() / 8 > 4 else z.dtype

    def basis(self, device: torch.device) -> Tensor:
        """U as a tensor."""
        return self._constant("basis", self.geometry.basis, device)

    def terms(self, dtype: torch.dtype, device: torch.device) -> Terms:
        """The list of lattice points as tensors."""
        points = self._constant("points", self.geometry.points, device, dtype)
        o = self.geometry.n_osc
        return Terms(points, 1 + (points[:, :o] != 0).any(dim=1).to(dtype), o)

    def split(self, dtype: torch.dtype, device: torch.device) -> Split:
        """The two lists of the split product as tensors."""
        first = self._constant("first", self.split_size.first, device, dtype)
        last = self._constant("last", self.split_size.last, device, dtype)
        o = self.geometry.n_osc
        return Split(first, last, 1 + (first[:, :o] != 0).any(dim=1).to(dtype), o)

    @cached_property
    def split_size(self) -> SplitSize:
        """Where the split product cuts the coordinates, and its two lists."""
        return choose_split(self.geometry.points, self.geometry.n_osc)

    def _constant(
        self, name: str, array: np.ndarray, device: torch.device, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        key = (name, dtype, device)
        if key not in self._cache:
            self._cache[key] = torch.as_tensor(np.ascontiguousarray(array), dtype=dtype, device=device)
        return self._cache[key]  # type: ignore[return-value]
