"""The densities that are fitted, as functions of one vector of free parameters."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.parameters import COUPLINGS, count, log_cholesky, pack, triangle_of, unpack
from rtbm.theta.lattice import MAX_TERMS
from rtbm.training.statistics import FAILURES, ArraySource, Likelihood
from rtbm.validation import check_choice, check_integer, check_parameter_count

__all__ = ["FAILURES", "Density", "Family", "machine_log_prob"]

Density = RTBMDistribution | RTBMMixture
ROW_TOLERANCE = 1e-12
"""The error of log P of a point from hidden states that tables omit, in `machine_log_prob`."""
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

    def affine(self, vector: Tensor, root: Floats, mean: Floats | None = None) -> Tensor:
        """The vector of v' = root v + mean; without a mean it is 0."""
        M = torch.from_numpy(np.ascontiguousarray(root)).to(vector)
        c = vector.new_zeros(len(M)) if mean is None else torch.from_numpy(mean).to(vector)
        machines, logits = self.split(vector)
        return self.join([self._affine_machine(machine, M, c) for machine in machines], logits)

    def _affine_machine(self, vector: Tensor, M: Tensor, c: Tensor) -> Tensor:
        if self.coupling == "diagonal":
            return pack(self.machine(vector).affine(M, c).free)
        free = unpack(vector, self.n_visible, self.n_hidden)
        half = M @ triangle_of(free.visible_scale)
        moved = free._replace(
            weights=M @ free.weights,
            visible_centre=M @ free.visible_centre + c,
            visible_scale=log_cholesky(half @ half.mT),
        )
        return pack(moved)


def machine_log_prob(density: Density, x: Tensor) -> Tensor:
    """log P (n, K) of each dense machine of a density at points x (n, Nv); NaN entries are integrated out.

    Tables of hidden states serve all patterns of gaps in one pass, while `density.log_prob` makes machines for each
    pattern. Both have errors of about 1e-10 at most.

    Examples
    --------
    >>> machine = RTBMDistribution(np.eye(2), np.full((2, 1), 0.5), [[3.0]], [0.0, 0.0], [0.0])
    >>> x = torch.tensor([[0.5, torch.nan], [0.5, 1.0]], dtype=torch.float64)
    >>> bool((machine_log_prob(machine, x)[:, 0] - machine.log_prob(x)).abs().max() < 1e-12)
    True
    """
    machines = list(density.components) if isinstance(density, RTBMMixture) else [density]
    source, result = ArraySource(x, torch.ones_like(x[:, 0])), x.new_empty(len(x), len(machines))
    for size in {machine.n_hidden for machine in machines}:
        own = [k for k, machine in enumerate(machines) if machine.n_hidden == size]
        family = Family(x.shape[1], size, n_components=len(own))
        vector = family.join([pack(machines[k].free) for k in own], x.new_zeros(len(own)))
        log_joint = Likelihood(family, source, tolerance=ROW_TOLERANCE / len(x)).log_joint(vector)
        result[:, own] = log_joint + math.log(len(own))
    return result
