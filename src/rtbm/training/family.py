"""The densities that are fitted, as functions of one vector of free parameters."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm import nn
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.distributions.missing import Pattern, missing_patterns
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.parameters import HIDDEN, count, pack, unpack
from rtbm.training.tables import MAX_STATES, StateMixture, TabulatedMachine
from rtbm.validation import check_choice, check_integer

TOLERANCE = 1e-7
"""Bounds the error of the average log P while a dense machine is fitted."""

FAILURES = (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)
"""What evaluating a density raises where its parameters leave float64."""
FAR_SHARE = 0.02
"""The share of the points that may be too far out for a table."""

Density = RTBMDistribution | RTBMMixture


class Family:
    """One machine, or a mixture of machines, of given sizes.

    A member is a vector of `n_parameters` real numbers: the free parameters of each machine (`rtbm.parameters`), and
    for mixtures the logits of the weights. Every vector is a member, as far as float64 reaches.

    Parameters
    ----------
    n_visible, n_hidden, n_components : int
        The numbers of visible units, of hidden units of each machine, and of machines.
    hidden : "dense" or "diagonal"
        The form of Q.
    phase : "I" or "II"
        The phase in which members show their natural parameters.

    Examples
    --------
    >>> family = Family(1, 2)
    >>> vector = torch.zeros(family.n_parameters, dtype=torch.float64)
    >>> family.log_prob(vector, torch.zeros(3, 1, dtype=torch.float64)).shape
    torch.Size([3])
    """

    def __init__(
        self, n_visible: int, n_hidden: int, *, n_components: int = 1, hidden: str = "dense", phase: str = "I"
    ):
        self.n_visible = check_integer(n_visible, "n_visible", 1)
        self.n_hidden = check_integer(n_hidden, "n_hidden", 1)
        self.n_components = check_integer(n_components, "n_components", 1)
        self.hidden = check_choice(hidden, "hidden", HIDDEN)
        self.phase = check_choice(phase, "phase", ("I", "II"))
        self._tables = [TabulatedMachine(n_visible, n_hidden) for _ in range(n_components)]
        self._has_far_points = False

    def __repr__(self) -> str:
        return (
            f"Family(n_visible={self.n_visible}, n_hidden={self.n_hidden}, n_components={self.n_components}, "
            f"hidden={self.hidden!r}, phase={self.phase!r})"
        )

    @property
    def n_machine_parameters(self) -> int:
        """The number of free parameters of each machine."""
        return count(self.n_visible, self.n_hidden, self.hidden)

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
        return Family(self.n_visible, self.n_hidden, hidden=self.hidden, phase=self.phase)

    def split(self, vector: Tensor) -> tuple[list[Tensor], Tensor]:
        """The vectors of the machines, and the logits of their weights (K,)."""
        machines = vector[: self.n_components * self.n_machine_parameters]
        logits = vector[len(machines) :] if self.n_components > 1 else vector.new_zeros(1)
        return list(machines.split(self.n_machine_parameters)), logits

    def join(self, machines: list[Tensor], logits: Tensor) -> Tensor:
        """The vector of some machines and logits: the inverse of `split`."""
        return torch.cat([*machines, logits] if self.n_components > 1 else machines)

    def log_prob(self, vector: Tensor, x: Tensor, patterns: list[Pattern] | None = None) -> Tensor:
        """log P (n,) at points x (n, Nv), differentiable in the vector. NaN entries are integrated out.

        `patterns` are those of `missing_patterns(x)`, which are the same in every step of a fit.

        Dense machines are summed over tables of hidden states as long as these are moderate in size, with an error of
        the average log P below TOLERANCE. Points that are too far out for such a table, all points if the table would
        be too long, and diagonal machines take theta functions.
        """
        if self.hidden == "dense":
            try:
                return self._tabulated(vector, x, missing_patterns(x) if patterns is None else patterns)
            except TooManyTermsError:
                pass
        return self.distribution(vector).log_prob(x)

    def _tabulated(self, vector: Tensor, x: Tensor, patterns: list[Pattern]) -> Tensor:
        if not self._has_far_points:
            try:
                return self.tabulate(vector, x, patterns=patterns)[0]
            except TooManyTermsError:
                self._has_far_points = True
        log_prob, log_missing, _ = self.tabulate(vector, x, max(1, int(FAR_SHARE * len(x))), patterns)
        far = log_missing - log_prob.detach() > math.log(TOLERANCE)
        if not bool(far.any()):
            return log_prob
        return log_prob.index_put((far,), self.distribution(vector).log_prob(x[far]))

    def tabulate(
        self, vector: Tensor, x: Tensor, n_far: int = 0, patterns: list[Pattern] | None = None
    ) -> tuple[Tensor, float, list[StateMixture]]:
        """log P (n,) over tables of hidden states, a bound on the log of what is missing, and each machine's mixture.

        The tables are accurate enough for all points but the `n_far` least likely ones. A TooManyTermsError says that
        such tables would be too large.
        """
        machines, logits = self.split(vector)
        log_weights = logits.log_softmax(0)
        log_tolerance = math.log(TOLERANCE / len(machines))
        for _ in range(3):
            pairs = zip(self._tables, machines, strict=True)
            results = [table.log_prob(machine, x, patterns) for table, machine in pairs]
            columns = torch.stack([column for column, _, _ in results], 1)
            log_prob = columns[:, 0] if len(machines) == 1 else (columns + log_weights).logsumexp(1)
            log_error = _log_error(log_prob.detach(), n_far)
            if not math.isfinite(log_error):  # the parameters leave float64: theta functions say how
                break
            missing = [w + bound for w, (_, bound, _) in zip(log_weights.tolist(), results, strict=True)]
            slack = [log_tolerance - log_error - bound for bound in missing]
            for table, value in zip(self._tables, slack, strict=True):
                table.allow(value)
            if min(slack) >= 0:
                total = float(torch.tensor(missing, dtype=torch.float64).logsumexp(0))
                return log_prob, total, [mixture for _, _, mixture in results]
        raise TooManyTermsError(MAX_STATES, MAX_STATES)

    def distribution(self, vector: Tensor) -> Density:
        """The distribution of a vector; gradients flow to it."""
        machines, logits = self.split(vector)
        if self.n_components == 1:
            return self.machine(vector)
        return RTBMMixture.from_logits(logits, [self.machine(machine) for machine in machines])

    def machine(self, vector: Tensor) -> RTBMDistribution:
        """The machine of its own part of a vector; gradients flow to it."""
        free = unpack(vector, self.n_visible, self.n_hidden, self.hidden)
        return RTBMDistribution.from_unconstrained(free, phase=self.phase)

    def vector(self, distribution: Density) -> Tensor:
        """The vector of a distribution of this family."""
        if isinstance(distribution, RTBMDistribution):
            return pack(distribution.unconstrained)
        return self.join([pack(c.unconstrained) for c in distribution.components], distribution.logits)

    def module(self, vector: Tensor) -> nn.RTBM | nn.RTBMMixture:
        """A torch module with the parameters of a vector."""
        distribution = self.distribution(vector.detach())
        if isinstance(distribution, RTBMMixture):
            return nn.RTBMMixture.from_distribution(distribution)
        return nn.RTBM.from_distribution(distribution)


def _log_error(log_prob: Tensor, n_far: int) -> float:
    """The log of the error of log P for a unit of missing density: the mean over points, or the largest but some."""
    if not len(log_prob):
        return 0.0
    if n_far == 0:
        return float((-log_prob).logsumexp(0)) - math.log(len(log_prob))
    return -float(log_prob.kthvalue(min(n_far + 1, len(log_prob))).values)
