"""The likelihood of machines as a function of their free parameters.

It is a sum over tables of hidden states (`sums/tables.py`). If hidden units are too soft for tables, it follows from
theta functions and automatic differentiation.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions import RTBMMixture
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.parameters import pack
from rtbm.training.families import Density, Family
from rtbm.training.sums.blocks import ArrayBlocks, Blocks, PointBlock
from rtbm.training.sums.passes import Evaluation
from rtbm.training.sums.tables import TABLE_TOLERANCE, Tables

ROW_TOLERANCE = 1e-12
"""The error of log P of a point from hidden states that tables omit, in `machine_log_prob`."""
FAILURES = (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)
"""What evaluating a density raises where its parameters leave float64."""


class Likelihood:
    """The mean log P of a family on weighted data, as a function of the vector of its free parameters.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Blocks
        The data in blocks. An `ArrayBlocks` also serves `log_joint` and `log_prob`.
    tolerance : float, default=TABLE_TOLERANCE
        A bound on the error of the mean log P from tables.
    max_states : int, default=None
        The most states of a machine in a table; None for the defaults of `tables.py`.
    omitted : float, default=None
        The log of the share of probability that tables omit, instead of `tolerance`: see `Tables`.
    """

    family: Family
    source: Blocks

    def __init__(
        self,
        family: Family,
        source: Blocks,
        tolerance: float = TABLE_TOLERANCE,
        max_states: int | None = None,
        omitted: float | None = None,
    ):
        self.family, self.source = family, source
        self._tables = Tables((family.n_components, family.n_visible, family.n_hidden), tolerance, max_states, omitted)

    def value(self, vector: Tensor) -> float:
        """The mean log P."""
        return self.with_gradient(vector, wants_gradient=False)[0]

    def with_gradient(self, vector: Tensor, wants_gradient: bool = True) -> tuple[float, Floats]:
        """The mean log P, and its derivative, or an empty array if that is not wanted."""
        evaluation = self._tabulated(vector, wants_gradient)
        if evaluation is None:
            sums = self.source.add(self._direct(vector, wants_gradient))
            return float(sums[0]), sums[1:]
        return evaluation.log_likelihood, evaluation.gradient() if wants_gradient else np.empty(0)

    def evaluate(self, vector: Tensor, log_tables: Floats | None = None) -> Evaluation:
        """The sums over all data, for expectation maximisation. A TooManyTermsError says that tables are too long.

        `log_tables` (S, K) are those of discrete columns, see `MixedPass`.
        """
        return self._tables.evaluate(_numpy(vector), self.source, log_tables=log_tables)

    def log_joint(self, vector: Tensor) -> Tensor:
        """The log of weight times density of each machine (n, K); −∞ for a machine whose parameters leave float64."""
        assert isinstance(self.source, ArrayBlocks)
        if self._tabulated(vector, wants_sums=False) is not None:
            sums = self._tables.latest(_numpy(vector))
            log_weights = torch.from_numpy(sums.machines.log_weights).to(self.source.x.device)
            return self.source.scatter(sums.log_joint, log_weights)
        machines, logits = self.family.split(vector)
        single, columns = self.family.single(), []
        for machine in machines:
            try:
                columns.append(Likelihood(single, self.source).log_prob(machine))
            except FAILURES:
                columns.append(torch.full_like(self.source.weights, -math.inf))
        return torch.stack(columns, 1) + logits.log_softmax(0)

    def log_prob(self, vector: Tensor) -> Tensor:
        """log P (n,) of each point."""
        assert isinstance(self.source, ArrayBlocks)
        if self._tabulated(vector, wants_sums=False) is not None:
            return self.log_joint(vector).logsumexp(1)
        return self.source.scatter(self._direct(vector, wants_gradient=False).log_prob, self.source.x.new_zeros(()))

    def _tabulated(self, vector: Tensor, wants_sums: bool) -> Evaluation | None:
        """The sums over tables; None if tables are too long."""
        try:
            return self._tables.evaluate(_numpy(vector), self.source, wants_sums)
        except TooManyTermsError:
            return None

    def _direct(self, vector: Tensor, wants_gradient: bool) -> "DirectPass":
        return DirectPass(self.family, _numpy(vector), wants_gradient)


class DirectPass(NamedTuple):
    """Σ w log P over blocks and its derivative in the vector, without tables of hidden states."""

    family: Family
    vector: Floats
    wants_gradient: bool

    def __call__(self, blocks: Iterable[PointBlock]) -> Floats:
        """The sums over some blocks (1 + n_parameters,), or the first one alone."""
        result = np.zeros(1 + (len(self.vector) if self.wants_gradient else 0))
        for block in blocks:
            self._add(block.with_gaps(self.family.n_visible), torch.as_tensor(block.weights), result)
        return result

    def _add(self, x: Tensor, weights: Tensor, result: Floats) -> None:
        """Add Σ w log P over points x (n, d), and its derivative, to the sums.

        The derivative is that of each machine at the points, weighted by its responsibilities. So memory holds the
        graph of one machine at a time.
        """
        machines, logits = self.family.split(torch.from_numpy(self.vector).to(x.device))
        with torch.no_grad():
            terms = torch.stack([self.family.machine(machine).log_prob(x) for machine in machines], 1)
            terms = terms + logits.log_softmax(0)
            log_prob = terms.logsumexp(1)
            shares = weights[:, None] * (terms - log_prob[:, None]).exp()
        result[0] += float(weights @ log_prob)
        if not self.wants_gradient:
            return
        gradients = []
        for machine, share in zip(machines, shares.unbind(1), strict=True):
            free = machine.clone().requires_grad_()
            gradients.append(torch.autograd.grad(share @ self.family.machine(free).log_prob(x), free)[0])
        by_logits = shares.sum(0) - weights.sum() * logits.softmax(0)
        result[1:] += self.family.join(gradients, by_logits).cpu().numpy()

    @torch.no_grad()
    def log_prob(self, block: PointBlock) -> Any:
        """log P (n,) at the points of a block."""
        x = block.with_gaps(self.family.n_visible)
        return self.family.distribution(torch.from_numpy(self.vector).to(x.device)).log_prob(x)


def _numpy(vector: Tensor) -> Floats:
    return np.ascontiguousarray(vector.detach().cpu().numpy(), dtype=np.float64)


def log_prob(family: Family, vector: Tensor, x: Tensor) -> Tensor:
    """log P (n,) of a member of a family at points x (n, Nv), without a graph. NaN entries are integrated out.

    The average is right to 1e-7 (see `Likelihood`). `family.distribution(vector).log_prob(x)` is
    exact, and differentiable.
    """
    return Likelihood(family, ArrayBlocks(x, torch.ones_like(x[:, 0]))).log_prob(vector)


def machine_log_prob(density: Density, x: Tensor) -> Tensor:
    """log P (n, K) of each dense machine of a density at points x (n, Nv); NaN entries are integrated out.

    Tables of hidden states serve all patterns of gaps in one pass, while `density.log_prob` makes machines for each
    pattern. Both have errors of about 1e-10 at most.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution(np.eye(2), np.full((2, 1), 0.5), [[3.0]], [0.0, 0.0], [0.0])
    >>> x = torch.tensor([[0.5, torch.nan], [0.5, 1.0]], dtype=torch.float64)
    >>> bool((machine_log_prob(machine, x)[:, 0] - machine.log_prob(x)).abs().max() < 1e-12)
    True
    """
    machines = list(density.components) if isinstance(density, RTBMMixture) else [density]
    source, result = ArrayBlocks(x, torch.ones_like(x[:, 0])), x.new_empty(len(x), len(machines))
    for size in {machine.n_hidden for machine in machines}:
        own = [k for k, machine in enumerate(machines) if machine.n_hidden == size]
        family = Family(x.shape[1], size, n_components=len(own))
        vector = family.join([pack(machines[k].free) for k in own], x.new_zeros(len(own)))
        log_joint = Likelihood(family, source, tolerance=ROW_TOLERANCE / len(x)).log_joint(vector)
        result[:, own] = log_joint + math.log(len(own))
    return result
