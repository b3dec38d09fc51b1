"""The densities that are fitted, as functions of one vector of free parameters."""

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.errors import InvalidInputError, RTBMError
from rtbm.parameters import COUPLINGS, count, log_cholesky, pack, triangle_of, unpack
from rtbm.theta.lattice import MAX_TERMS
from rtbm.training.statistics import ArraySource, Likelihood
from rtbm.validation import check_choice, check_integer, check_parameter_count

FAILURES = (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)
"""What evaluating a density raises where its parameters leave float64."""
Density = RTBMDistribution | RTBMMixture
MAX_DENSE_UNITS = MAX_TERMS.bit_length() - 1
"""Most hidden units of a dense machine that is fitted. It starts as 2^n_hidden Gaussians, and sums have MAX_TERMS."""


def check_sizes(n_visible: Any, n_hidden: Any, n_components: Any, coupling: Any) -> tuple[int, int, int]:
    """Check that machines of these sizes can be fitted.

    Examples
    --------
    >>> check_sizes(1, 30, 1, "dense")
    Traceback (most recent call last):
    ...
    rtbm.errors.InvalidInputError: n_hidden must be at most 22 for dense machines, got 30: take more components, or ...
    """
    given = {"n_visible": n_visible, "n_hidden": n_hidden, "n_components": n_components}
    n_visible, n_hidden, n_components = (check_integer(size, name, 1) for name, size in given.items())
    check_choice(coupling, "coupling", COUPLINGS)
    if coupling == "dense" and n_hidden > MAX_DENSE_UNITS:
        raise InvalidInputError(
            f"n_hidden must be at most {MAX_DENSE_UNITS} for dense machines, got {n_hidden}: take more components, or "
            'coupling="diagonal"'
        )
    number = n_components * count(n_visible, n_hidden, coupling)
    sizes = f"n_hidden={n_hidden} and n_components={n_components} with {n_visible} or more features"
    check_parameter_count(number, sizes)
    return n_visible, n_hidden, n_components


@dataclass(eq=False)
class Family:
    """One machine, or a mixture of machines, of given sizes.

    A member is a vector of `n_parameters` real numbers: the free parameters of each machine (`rtbm.parameters`), and
    for mixtures the logits of the weights. Every vector is a member, as far as float64 reaches.

    Parameters
    ----------
    n_visible, n_hidden, n_components : int
        The numbers of visible units, of hidden units of each machine, and of machines (default=1).
    coupling : "dense" or "diagonal", default="dense"
        Whether Q is dense or diagonal.
    phase : "I" or "II", default="I"
        The phase in which members show their natural parameters.

    Examples
    --------
    >>> family = Family(1, 2)
    >>> vector = torch.zeros(family.n_parameters, dtype=torch.float64)
    >>> family.log_prob(vector, torch.zeros(3, 1, dtype=torch.float64)).shape
    torch.Size([3])
    """

    n_visible: int
    n_hidden: int
    _: KW_ONLY
    n_components: int = 1
    coupling: str = "dense"
    phase: str = "I"

    def __post_init__(self) -> None:
        sizes = check_sizes(self.n_visible, self.n_hidden, self.n_components, self.coupling)
        self.n_visible, self.n_hidden, self.n_components = sizes
        check_choice(self.phase, "phase", PHASES)

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

    def single(self) -> "Family":
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

    def log_prob(self, vector: Tensor, x: Tensor) -> Tensor:
        """log P (n,) at points x (n, Nv), without a graph. NaN entries are integrated out.

        The average is right to 1e-7 for dense machines (see `Likelihood`). `distribution(vector).log_prob(x)` is exact,
        and differentiable.
        """
        return Likelihood(self, ArraySource(x, torch.ones_like(x[:, 0]))).log_prob(vector)

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

    def affine(self, vector: Tensor, root: Floats, mean: Floats) -> Tensor:
        """The vector of the machine of v' = root v + mean, for one machine."""
        M, c = torch.from_numpy(np.ascontiguousarray(root)).to(vector), torch.from_numpy(mean).to(vector)
        if self.coupling == "diagonal":
            return self.vector(self.machine(vector).affine(M, c))
        free = unpack(vector, self.n_visible, self.n_hidden)
        half = M @ triangle_of(free.visible_scale)
        moved = free._replace(
            weights=M @ free.weights,
            visible_centre=M @ free.visible_centre + c,
            visible_scale=log_cholesky(half @ half.mT),
        )
        return pack(moved)
