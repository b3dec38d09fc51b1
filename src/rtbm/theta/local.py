"""The sum for one Q in tensors: arguments without their lattice point, and matrices that are differentiable in Q."""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rtbm.common import TWO_PI, Floats
from rtbm.theta.derivatives import Congruence, wants_graph, with_derivatives
from rtbm.theta.exact import TWO_PI_PERIODS, Periods, exact_product, is_above, remove_periods
from rtbm.theta.lattice import DIGIT, LARGEST_INTEGER
from rtbm.theta.poisson import Form, LatticeSum, make_form


class Local(NamedTuple):
    """What is left of arguments z (points, g): log θ̃ = log_factor + log Z(x), see `poisson`."""

    x: Tensor  # (points, g)
    log_factor: Tensor  # (points,)
    form: Form


class LocalSum(LatticeSum):
    """A `LatticeSum` with its matrices as tensors, kept for each device that they were asked for."""

    def __init__(self, Q: Floats, phase: str, tolerance: float):
        super().__init__(Q, phase, tolerance)
        self._tensors: dict[tuple[str, torch.device], Tensor] = {}
        self.largest_argument = LARGEST_INTEGER / max(self.to_lattice, 1.0)
        near = DIGIT / self.to_lattice
        if phase == "II":  # the basis change acts on z modulo 2π
            near = DIGIT * TWO_PI if np.pi * self.to_lattice < DIGIT else 0.0
        self.near_argument = min(near, self.largest_argument)

    def is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`; an error if no step is exact."""
        return is_above(z, self.near_argument, self.largest_argument)

    def tensor(self, name: str, device: torch.device, values: ArrayLike | None = None) -> Tensor:
        """Numbers, by default the attribute with this name, as a float64 tensor that is made once."""
        if (name, device) not in self._tensors:
            values = np.ascontiguousarray(getattr(self, name) if values is None else values)
            with torch.inference_mode(False):  # so that training can use it later
                self._tensors[name, device] = torch.as_tensor(values, dtype=torch.float64, device=device)
        return self._tensors[name, device]

    def localise(self, z: Tensor, Q: Tensor) -> Local:
        """Take the nearest lattice point off z (points, g), and go to the coordinates of the sum.

        In phase II only z modulo 2π matters, and it is reduced before the basis change as well as after. No value
        rounds before s is added up. Derivatives are taken in the user's basis: those of the offset n·z − ½nᵀQn are n
        and −½nnᵀ, without rounding.
        """
        z, is_far, is_first = z.double(), self.is_far(z), self.phase == "I"
        U, centre, plane, parts = (self.tensor(name, z.device) for name in ("basis", "centre", "plane", "periods"))
        with torch.no_grad():
            high, low = z, torch.zeros_like(z)
            if not is_first:
                _, high, low = remove_periods(high, low, TWO_PI_PERIODS, is_far)
            high, low = exact_product(high, low, U)
            whole = high + low
            n0, high, low = remove_periods(high, low, Periods(centre, tuple(parts), plane), is_far)
            s, offset = high + low, z.new_zeros(len(z))
            if is_first:
                offset = 0.5 * (n0 * (whole + s)).sum(dim=1)
        if wants_graph(z, Q):
            left = z
            if is_first:
                high, low = exact_product(n0, torch.zeros_like(n0), U.mT)
                n = high + low
                left = z - n @ (Q.double() + Q.double().mT) / 2
                offset = with_derivatives(offset, 0.5 * (n * (z + left)).sum(dim=1))
            s = with_derivatives(s, left @ U)
        form = self.form_of(Q)
        log_factor = offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant
        return Local(s @ form.B.mT, log_factor, form)

    def form_of(self, Q: Tensor) -> Form:
        """The matrices of the sum: exact in value, and differentiable in Q if it asks for that."""
        if wants_graph(Q):
            U, gram = self.tensor("basis", Q.device), self.tensor("gram", Q.device)
            return make_form(Congruence.apply(Q.double(), U, gram), self.n_osc, self.phase)
        named = zip(self.form._fields, self.form, strict=True)
        return Form(*(self.tensor(name, Q.device, matrix) for name, matrix in named))
