"""What all families share: densities that are fitted, as functions of one vector of free parameters."""

import math
from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.parameters import count, pack, unpack
from rtbm.validation import check_choice, check_integer, check_parameter_count

Density = RTBMDistribution | RTBMMixture


class Prior(NamedTuple):
    """A penalty on fine structure, in units of observations: it plays the part of a bandwidth.

    What it penalises is up to the family: see `Dense.penalty` and `Diagonal.penalty`. It is divided by the number of
    observations, and so fades as they become many.
    """

    strength: float
    widths: Floats  # (Nv,): of the data along the axes
    smoothness: float = 0.0
    steps: Floats | None = None  # (Nh,): of an evenly spaced start, if smoothness is asked for


@dataclass(eq=False)
class Family(ABC):
    """One machine, or a mixture of machines, of given sizes.

    A member is a vector of `n_parameters` real numbers: the free parameters of each machine (`rtbm.parameters`), and
    for mixtures the logits of the weights. Every vector is a member, as far as float64 reaches. Each kind of machine is
    a subclass, which `make_family` chooses by name.

    Parameters
    ----------
    n_visible, n_hidden, n_components : int
        The numbers of visible units, of hidden units of each machine, and of machines (default=1).
    phase : "I" or "II", default="I"
        The phase in which members show their natural parameters.
    """

    n_visible: int
    n_hidden: int
    _: KW_ONLY
    n_components: int = 1
    phase: str = "I"

    coupling: ClassVar[str]
    has_tables: ClassVar[bool]
    """Whether machines can be summed over tables of their hidden states, as expectation maximisation needs."""

    def __post_init__(self) -> None:
        self.n_visible, self.n_hidden, self.n_components = self.check_sizes(
            self.n_visible, self.n_hidden, self.n_components
        )
        check_choice(self.phase, "phase", PHASES)

    @classmethod
    def check_sizes(cls, n_visible: Any, n_hidden: Any, n_components: Any) -> tuple[int, int, int]:
        """Check that machines of these sizes can be fitted."""
        given = {"n_visible": n_visible, "n_hidden": n_hidden, "n_components": n_components}
        n_visible, n_hidden, n_components = (check_integer(size, name, 1) for name, size in given.items())
        number = n_components * count(n_visible, n_hidden, cls.coupling)
        sizes = f"n_hidden={n_hidden} and n_components={n_components} with {n_visible} or more features"
        check_parameter_count(number, sizes)
        return n_visible, n_hidden, n_components

    @property
    def n_machine_parameters(self) -> int:
        """The number of free parameters of each machine."""
        return count(self.n_visible, self.n_hidden, self.coupling)

    @property
    def n_parameters(self) -> int:
        """The length of the vector."""
        return self.n_components * self.n_machine_parameters + (self.n_components if self.n_components > 1 else 0)

    @property
    def n_degrees_of_freedom(self) -> int:
        """The number of independent parameters: the logits of K weights have one direction too many."""
        return self.n_components * self.n_machine_parameters + self.n_components - 1

    def single(self) -> Self:
        """The family of one machine of a mixture."""
        return replace(self, n_components=1)

    def split(self, vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """The vectors of the machines, and the logits of their weights (K,)."""
        machines = vector[: self.n_components * self.n_machine_parameters]
        logits = vector[len(machines) :] if self.n_components > 1 else vector.new_zeros(1)
        return list(machines.split(self.n_machine_parameters)), logits

    def join(self, machines: list[Tensor], logits: Tensor) -> Tensor:
        """The vector of some machines and logits: the inverse of `split`."""
        return torch.cat([*machines, logits] if self.n_components > 1 else machines)

    def distribution(self, vector: Tensor) -> Density:
        """The distribution of a vector; gradients flow to it."""
        machines, logits = self.split(vector)
        if self.n_components == 1:
            return self.machine(vector)
        return RTBMMixture.from_logits(logits, [self.machine(machine) for machine in machines])

    def machine(self, vector: Tensor) -> RTBMDistribution:
        """The machine of its own part of a vector; gradients flow to it."""
        free = unpack(vector, self.n_visible, self.n_hidden, self.coupling)
        return RTBMDistribution.from_free(free, phase=self.phase)

    def vector(self, distribution: Density) -> Tensor:
        """The vector of a distribution of this family."""
        if isinstance(distribution, RTBMDistribution):
            return pack(distribution.free)
        return self.join([pack(c.free) for c in distribution.components], distribution.logits)

    def affine(self, vector: Tensor, root: Floats, mean: Floats | None = None) -> Tensor:
        """The vector of v' = root v + mean; without a mean it is 0."""
        M = torch.from_numpy(np.ascontiguousarray(root)).to(vector)
        c = vector.new_zeros(len(M)) if mean is None else torch.from_numpy(mean).to(vector)
        machines, logits = self.split(vector)
        return self.join([self._move(machine, M, c) for machine in machines], logits)

    def gaussian(self) -> Tensor:
        """The member that is the standard normal distribution, up to ripples of 1e-8."""
        machine = self._gaussian_machine()
        return self.join([machine] * self.n_components, machine.new_zeros(self.n_components))

    @property
    def is_scaled(self) -> bool:
        """Whether solvers begin with expectation maximisation, and use the complete-data information."""
        return False

    def highest_log_peak(self, vector: Floats) -> float:
        """A bound on log P of a member at any point; infinite where none is known."""
        return math.inf

    @abstractmethod
    def start(self, x: Floats, weights: Floats, index: int, rng: np.random.Generator, binary: bool) -> Tensor:
        """The vector of a machine for standardised data x (n, Nv) with weights (n,): start number `index`.

        The first ones do not depend on `rng`. `binary` asks for hidden units that stay on {0, 1}.
        """

    @abstractmethod
    def penalty(self, vector: Floats, prior: Prior) -> tuple[float, Floats]:
        """The penalty of a member, and its derivative in the vector."""

    @abstractmethod
    def _move(self, vector: Tensor, M: Tensor, c: Tensor) -> Tensor:
        """The vector of a machine after v' = Mv + c."""

    @abstractmethod
    def _gaussian_machine(self) -> Tensor:
        """The vector of the machine that is the standard normal distribution."""
