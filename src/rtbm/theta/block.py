"""One indecomposable theta function: the lattice work done once, then values and derivatives for any batch."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta import kernels
from rtbm.theta.chunks import in_chunks
from rtbm.theta.cost import (
    MAX_EXPONENT,
    MAX_EXPONENT_FLOAT32,
    MAX_FUSED_SIZE,
    SMALLEST_SPLIT,
    SplitSize,
    choose_evaluator,
    choose_split,
    split_exponent,
)
from rtbm.theta.geometry import (
    TWO_PI,
    Congruence,
    Form,
    Periods,
    exact_product,
    largest_entry,
    make_form,
    make_geometry,
    remove_periods,
    two_pi_periods,
    with_derivatives,
)
from rtbm.theta.lattice import DIGIT, LARGEST_INTEGER
from rtbm.theta.series import (
    Derivatives,
    Split,
    SplitFactors,
    Terms,
    list_cumulants,
    list_log_sum,
    split_factors,
    split_log_sum,
)

LARGEST_FLOAT32_EXPONENT = 4.0  # above it, exponents that cancel would lose float32's last digits


class Block:
    """The sum for one matrix Q (g, g), phase and tolerance; `geometry` explains the symbols."""

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.g = len(Q)
        self.phase = phase
        with torch.inference_mode(False):
            self.geometry, form = make_geometry(Q, phase, tolerance)
        self._constants: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._forms = {torch.device("cpu"): form}
        to_lattice = float(np.abs(self.geometry.basis @ self.geometry.centre).sum(axis=0).max())
        self.largest_argument = LARGEST_INTEGER / max(to_lattice, 1.0)
        if phase == "I":
            self._near_argument = DIGIT / to_lattice
        else:  # the basis change acts on z modulo 2π
            self._near_argument = DIGIT * TWO_PI if np.pi * to_lattice < DIGIT else 0.0
        self.compiled: Any = None  # what the compiled pass keeps here

    def log_theta(self, z: Tensor, Q: Tensor, evaluator: str) -> Tensor:
        """log θ̃ (points,) for z (points, g), with the evaluator "list" or "split"; differentiable to any order."""
        form = self.form(Q)
        s, _, offset = self.recentre(z.double(), Q)
        dtype = self.dtype_for(z, evaluator)
        x, constants = (s @ form.B.mT).to(dtype), [matrix.to(dtype) for matrix in form]
        if evaluator == "list":
            terms = self.terms(dtype, z.device)
            series = in_chunks(lambda rows, *c: list_log_sum(rows, Form(*c), terms), x, constants, len(terms.points))
        else:
            series = self._split_series(x, Form(*constants))
        return offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + series

    def _split_series(self, x: Tensor, form: Form) -> Tensor:
        split = self.split(x.dtype, x.device)
        return in_chunks(
            lambda rows, *factors: split_log_sum(rows, SplitFactors(*factors), split),
            x,
            split_factors(form, split),
            len(split.first) + len(split.last),
        )

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """log θ̃ and its z-derivatives up to `order`, from the list of terms; differentiable to any order."""
        form = self.form(Q)
        s, centre, offset = self.recentre(z.double(), Q)
        dtype = self.dtype_for(z, "list")
        terms = self.terms(dtype, z.device)
        x, constants = (s @ form.B.mT).to(dtype), [matrix.to(dtype) for matrix in form]
        log_sum, *series = in_chunks(
            lambda rows, *c: list_cumulants(rows, Form(*c), terms, order), x, constants, len(terms.points)
        )
        U = self.basis(z.device)
        M = form.B @ U.mT  # x-derivatives to z-derivatives
        return (
            offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + log_sum,
            *(centre + ((s @ form.K) @ U.mT + first.double() @ M) for first in series[:1]),
            *(U @ form.K @ U.mT + M.mT @ second.double() @ M for second in series[1:2]),
            *(torch.einsum("nabc,ai,bj,ck->nijk", third.double(), M, M, M) for third in series[2:3]),
        )

    def recentre(self, z: Tensor, Q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split off the nearest lattice point: s (points, g), the point n (points, g) in the user's basis, the offset.

        In phase II only z modulo 2π matters, and it is reduced before the basis change as well as after; n and the
        offset are zero. No value rounds before s is added up. Derivatives are taken in the user's basis: those of the
        offset n·z − ½nᵀQn are n and −½nnᵀ, without rounding.
        """
        U = self.basis(z.device)
        is_first_phase, is_far = self.phase == "I", self.is_far(z)
        with torch.no_grad():
            high, low = z, torch.zeros_like(z)
            if not is_first_phase:
                _, high, low = remove_periods(high, low, two_pi_periods(z.device), is_far)
            high, low = exact_product(high, low, U)
            whole = high + low
            n0, high, low = remove_periods(high, low, self._periods(z.device), is_far)
            s = high + low
            if is_first_phase:
                offset = 0.5 * (n0 * (whole + s)).sum(dim=1)
                high, low = exact_product(n0, torch.zeros_like(n0), U.mT)
                n = high + low
            else:
                offset, n = z.new_zeros(len(z)), torch.zeros_like(z)
        if torch.is_grad_enabled() and (z.requires_grad or Q.requires_grad):
            left = z
            if is_first_phase:
                left = z - n @ (Q.double() + Q.double().mT) / 2
                offset = with_derivatives(offset, 0.5 * (n * (z + left)).sum(dim=1))
            s = with_derivatives(s, left @ U)
        return s, n, offset

    def is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`."""
        return len(z) > 0 and largest_entry(z) > self._near_argument

    def _periods(self, device: torch.device) -> Periods:
        inverse, plane = (
            self._constant(name, array, device)
            for name, array in (("centre", self.geometry.centre), ("plane", self.geometry.plane))
        )
        parts = (self._constant(f"period {i}", part, device) for i, part in enumerate(self.geometry.periods))
        return Periods(inverse, tuple(parts), plane)

    def evaluator(self, rows: Tensor) -> str:
        """The evaluator that the cost model picks for a batch: "list", "split" or "fused"."""
        n_terms = len(self.geometry.points)
        worth_splitting = len(rows) > 1 and n_terms > SMALLEST_SPLIT and self.supports("split", rows.device)
        split = self.split_size if worth_splitting else None
        can_fuse = self.supports("fused", rows.device) and not self.is_far(rows)
        return choose_evaluator(len(rows), n_terms, split, can_fuse)

    def supports(self, evaluator: str, device: torch.device) -> bool:
        """Whether an evaluator applies here; the list always does."""
        if evaluator == "split":
            return self.g > 1 and self._split_exponent < MAX_EXPONENT
        if evaluator == "fused":
            return device.type == "cpu" and kernels.AVAILABLE and self._can_fuse
        return True

    @cached_property
    def _can_fuse(self) -> bool:
        return self.g <= MAX_FUSED_SIZE and self.geometry.largest_exponent < MAX_EXPONENT

    @cached_property
    def _split_exponent(self) -> float:
        G = self.fixed_form(torch.device("cpu")).G.numpy()
        return split_exponent(self.split_size, G, self.geometry.factor, self.geometry.n_osc)

    def form(self, Q: Tensor) -> Form:
        """The matrices of the sum: exact in value, and differentiable in Q if it asks for that."""
        if not (Q.requires_grad and torch.is_grad_enabled()):
            return self.fixed_form(Q.device)
        gram = self._constant("gram", self.geometry.gram, Q.device)
        return make_form(Congruence.apply(Q.double(), self.basis(Q.device), gram), self.geometry.n_osc, self.phase)

    def fixed_form(self, device: torch.device) -> Form:
        """The matrices of the sum as constants."""
        if device not in self._forms:
            with torch.inference_mode(False):
                self._forms[device] = Form(*(matrix.to(device) for matrix in self._forms[torch.device("cpu")]))
        return self._forms[device]

    def dtype_for(self, z: Tensor, evaluator: str) -> torch.dtype:
        """Single precision only where no exponent is large enough to spoil it, or to overflow."""
        is_large = self.geometry.largest_exponent > LARGEST_FLOAT32_EXPONENT
        overflows = evaluator == "split" and self._split_exponent > MAX_EXPONENT_FLOAT32
        return torch.float64 if is_large or overflows else z.dtype

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
        if key not in self._constants:
            with torch.inference_mode(False):  # so that training can use it later
                self._constants[key] = torch.as_tensor(np.ascontiguousarray(array), dtype=dtype, device=device)
        return self._constants[key]
