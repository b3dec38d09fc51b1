"""The geometry of a block as tensors: arguments in its reduced basis, and matrices that are differentiable in Q."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.block import planning
from rtbm.theta.block.poisson import Form, make_form, make_geometry
from rtbm.theta.derivatives import Congruence, wants_graph, with_derivatives
from rtbm.theta.exact import TWO_PI_PERIODS, Periods, exact_product, is_above, remove_periods
from rtbm.theta.lattice import DIGIT, LARGEST_INTEGER

CPU = torch.device("cpu")


class Argument(NamedTuple):
    """An argument z (points, g) without its lattice point."""

    s: Tensor  # (points, g): what is left, in the reduced basis
    centre: Tensor  # (points, g): the lattice point in the user's basis; zero in phase II
    offset: Tensor  # (points,): what the lattice point adds to log θ̃; zero in phase II


class BlockTensors:
    """One matrix Q (g, g), phase and tolerance; `block.poisson` explains the symbols.

    Tensors are kept for each type and device that they were asked for.
    """

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        self.g = len(Q)
        self.phase = phase
        self.geometry = make_geometry(Q, phase, tolerance)
        self._constants: dict[tuple[str, torch.dtype, torch.device], Tensor] = {}
        self._forms: dict[torch.device, Form] = {}
        to_lattice = self.geometry.to_lattice
        self.largest_argument = LARGEST_INTEGER / max(to_lattice, 1.0)
        near = DIGIT / to_lattice
        if phase == "II":  # the basis change acts on z modulo 2π
            near = DIGIT * TWO_PI if np.pi * to_lattice < DIGIT else 0.0
        self.near_argument = min(near, self.largest_argument)

    @cached_property
    def terms(self) -> Floats:
        """The terms for compiled passes (terms − 1, g + 2), see `planning.list_terms`."""
        return planning.list_terms(self.geometry.matrices, self.geometry.n_osc, self.geometry.points)

    def recentre(self, z: Tensor, Q: Tensor) -> Argument:
        """Take the nearest lattice point off z.

        In phase II only z modulo 2π matters, and it is reduced before the basis change as well as after. No value
        rounds before s is added up. Derivatives are taken in the user's basis: those of the offset n·z − ½nᵀQn are n
        and −½nnᵀ, without rounding.
        """
        z = z.double()
        U = self.basis(z.device)
        is_first_phase, is_far = self.phase == "I", self.is_far(z)
        with torch.no_grad():
            high, low = z, torch.zeros_like(z)
            if not is_first_phase:
                _, high, low = remove_periods(high, low, TWO_PI_PERIODS, is_far)
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
        if wants_graph(z, Q):
            left = z
            if is_first_phase:
                left = z - n @ (Q.double() + Q.double().mT) / 2
                offset = with_derivatives(offset, 0.5 * (n * (z + left)).sum(dim=1))
            s = with_derivatives(s, left @ U)
        return Argument(s, n, offset)

    def is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`; an error if no step is exact."""
        return is_above(z, self.near_argument, self.largest_argument)

    def form(self, Q: Tensor) -> Form:
        """The matrices of the sum: exact in value, and differentiable in Q if it asks for that."""
        if not wants_graph(Q):
            return self.fixed_form(Q.device)
        gram = self.constant("gram", self.geometry.gram, Q.device)
        return make_form(Congruence.apply(Q.double(), self.basis(Q.device), gram), self.geometry.n_osc, self.phase)

    def fixed_form(self, device: torch.device) -> Form:
        """The matrices of the sum as constants."""
        if device not in self._forms:
            with torch.inference_mode(False):
                self._forms[device] = Form(*(matrix.to(device) for matrix in self.geometry.form))
        return self._forms[device]

    def basis(self, device: torch.device) -> Tensor:
        """U as a tensor."""
        return self.constant("basis", self.geometry.basis, device)

    def constant(
        self, name: str, array: np.ndarray, device: torch.device, dtype: torch.dtype = torch.float64
    ) -> Tensor:
        """An array as a tensor, made at the first call with this name."""
        key = (name, dtype, device)
        if key not in self._constants:
            with torch.inference_mode(False):  # so that training can use it later
                self._constants[key] = torch.as_tensor(np.ascontiguousarray(array), dtype=dtype, device=device)
        return self._constants[key]

    def _periods(self, device: torch.device) -> Periods:
        inverse, plane = (
            self.constant(name, array, device)
            for name, array in (("centre", self.geometry.centre), ("plane", self.geometry.plane))
        )
        parts = (self.constant(f"period {i}", part, device) for i, part in enumerate(self.geometry.periods))
        return Periods(inverse, tuple(parts), plane)
