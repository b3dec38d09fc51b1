"""The densities that are fitted, as functions of one vector of free parameters."""

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import PHASES, Floats
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.parameters import Lattice, count, log_cholesky, pack, triangle_of, unconstrain, unpack
from rtbm.theta.lattice import MAX_TERMS
from rtbm.training import machines
from rtbm.validation import check_choice, check_integer, check_parameter_count

Density = RTBMDistribution | RTBMMixture
MAX_UNITS = MAX_TERMS.bit_length() - 1
"""Most hidden units of a machine that is fitted. It starts as 2^n_hidden Gaussians, and sums have MAX_TERMS."""


@dataclass(eq=False)
class Family:
    """One machine with dense Q, or a mixture of them, of given sizes.

    A member is a vector of `n_parameters` real numbers: the free parameters of each machine (`rtbm.parameters`), and
    for mixtures the logits of the weights. Every vector is a member, as far as float64 reaches.

    Parameters
    ----------
    n_visible, n_hidden, n_components : int
        The numbers of visible units, of hidden units of each machine, and of machines (default=1).
    phase : "I" or "II", default="I"
        The phase in which members show their natural parameters.

    Examples
    --------
    >>> Family(1, 2, n_components=3).n_parameters
    30
    >>> Family(1, 30)
    Traceback (most recent call last):
    ...
    rtbm.errors.InvalidInputError: n_hidden must be at most 22, got 30: take more components
    """

    n_visible: int
    n_hidden: int
    _: KW_ONLY
    n_components: int = 1
    phase: str = "I"

    def __post_init__(self) -> None:
        self.n_visible, self.n_hidden, self.n_components = self.check_sizes(
            self.n_visible, self.n_hidden, self.n_components
        )
        check_choice(self.phase, "phase", PHASES)

    @staticmethod
    def check_sizes(n_visible: Any, n_hidden: Any, n_components: Any) -> tuple[int, int, int]:
        """Check that machines of these sizes can be fitted."""
        given = {"n_visible": n_visible, "n_hidden": n_hidden, "n_components": n_components}
        n_visible, n_hidden, n_components = (check_integer(size, name, 1) for name, size in given.items())
        if n_hidden > MAX_UNITS:
            raise InvalidInputError(f"n_hidden must be at most {MAX_UNITS}, got {n_hidden}: take more components")
        sizes = f"n_hidden={n_hidden} and n_components={n_components} with {n_visible} or more features"
        check_parameter_count(n_components * count(n_visible, n_hidden), sizes)
        return n_visible, n_hidden, n_components

    @property
    def n_machine_parameters(self) -> int:
        """The number of free parameters of each machine."""
        return count(self.n_visible, self.n_hidden)

    @property
    def n_parameters(self) -> int:
        """The length of the vector."""
        return self.n_components * self.n_machine_parameters + (self.n_components if self.n_components > 1 else 0)

    @property
    def n_degrees_of_freedom(self) -> int:
        """The number of independent parameters: the logits of K weights have one direction too many."""
        return self.n_components * self.n_machine_parameters + self.n_components - 1

    @property
    def is_scaled(self) -> bool:
        """Whether solvers use the expected complete-data information: it helps for mixtures on several features."""
        return min(self.n_visible, self.n_components) > 1

    def single(self) -> Self:
        """The family of one machine of a mixture."""
        return replace(self, n_components=1)

    def machines(self, vector: Any) -> machines.Machines:
        """The machines of a vector, in arrays."""
        return machines.unpack(to_array(vector), self.n_components, self.n_visible, self.n_hidden)

    def split(self, vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """The vectors of the machines, and the logits of their weights (K,)."""
        parts = vector[: self.n_components * self.n_machine_parameters]
        logits = vector[len(parts) :] if self.n_components > 1 else vector.new_zeros(1)
        return list(parts.split(self.n_machine_parameters)), logits

    def join(self, parts: list[Tensor], logits: Tensor) -> Tensor:
        """The vector of some machines and logits: the inverse of `split`."""
        return torch.cat([*parts, logits] if self.n_components > 1 else parts)

    def distribution(self, vector: Tensor) -> Density:
        """The distribution of a vector; gradients flow to it."""
        parts, logits = self.split(vector)
        if self.n_components == 1:
            return self.machine(vector)
        return RTBMMixture.from_logits(logits, [self.machine(part) for part in parts])

    def machine(self, vector: Tensor) -> RTBMDistribution:
        """The machine of its own part of a vector; gradients flow to it."""
        return RTBMDistribution.from_free(unpack(vector, self.n_visible, self.n_hidden), phase=self.phase)

    def vector(self, distribution: Density) -> Tensor:
        """The vector of a distribution of this family."""
        if isinstance(distribution, RTBMDistribution):
            return pack(distribution.free)
        return self.join([pack(c.free) for c in distribution.components], distribution.logits)

    def affine(self, vector: Tensor, root: Floats, mean: Floats | None = None) -> Tensor:
        """The vector of v' = root v + mean; without a mean it is 0."""
        M = torch.from_numpy(np.ascontiguousarray(root)).to(vector)
        c = vector.new_zeros(len(M)) if mean is None else torch.from_numpy(mean).to(vector)
        parts, logits = self.split(vector)
        moved = []
        for part in parts:
            free = unpack(part, self.n_visible, self.n_hidden)
            half = M @ triangle_of(free.visible_scale)
            changed = free._replace(
                weights=M @ free.weights,
                visible_centre=M @ free.visible_centre + c,
                visible_scale=log_cholesky(half @ half.mT),
            )
            moved.append(pack(changed))
        return self.join(moved, logits)

    def gaussian(self) -> Tensor:
        """The member that is the standard normal distribution, up to ripples of 1e-8.

        Its hidden units are nearly continuous. They lie along the principal axes in turn, and have half the variance of
        their axes.
        """
        unit = torch.arange(self.n_hidden)
        axis = unit % self.n_visible
        n_units = torch.bincount(axis, minlength=self.n_visible)
        F = torch.zeros(self.n_visible, self.n_hidden, dtype=torch.float64)
        A = 0.5 * torch.eye(self.n_hidden, dtype=torch.float64)  # Q = A + FᵀΣ⁻¹F is at most 1, and ripples exp(−2π²)
        F[axis, unit] = (0.25 / n_units[axis].double()).sqrt()
        covariance = torch.diag(torch.where(n_units > 0, 0.5, 1.0).double())
        machine = pack(unconstrain(Lattice(A, A.new_zeros(self.n_hidden), F, F.new_zeros(self.n_visible), covariance)))
        return self.join([machine] * self.n_components, machine.new_zeros(self.n_components))


def to_array(vector: Any) -> Floats:
    """A vector as an array of float64."""
    return np.ascontiguousarray(torch.as_tensor(vector).detach().cpu().numpy(), dtype=np.float64)


def highest_log_peak(of: machines.Machines) -> float:
    """A bound on log P at any row: no density exceeds the highest peak of its Gaussians."""
    d = of.mean.shape[1]
    log_roots = np.log(of.L.diagonal(axis1=1, axis2=2)).sum(axis=1)
    return -float(log_roots.min()) - 0.5 * d * math.log(2 * math.pi)
