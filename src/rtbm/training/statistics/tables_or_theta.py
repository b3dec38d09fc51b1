"""The likelihood of machines as a function of their free parameters, by the fastest of three ways.

1. Dense machines are summed over tables of hidden states (`tables.py`).
2. Diagonal machines have a compiled pass over points without gaps (`diagonal.py`).
3. Theta functions and automatic differentiation serve all other cases.
"""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.theta import kernels
from rtbm.training.statistics.blocks import ArraySource, Block, Source
from rtbm.training.statistics.diagonal import DiagonalPass, make_pass
from rtbm.training.statistics.sums import Evaluation
from rtbm.training.statistics.tables import TABLE_TOLERANCE, Tables

if TYPE_CHECKING:
    from rtbm.training.family import Family

FAILURES = (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)
"""What evaluating a density raises where its parameters leave float64."""


class Likelihood:
    """The mean log P of a family on weighted data, as a function of the vector of its free parameters.

    Theta functions serve dense machines whose hidden units are too soft for tables. They also serve diagonal machines
    at points with gaps, without numba, and on a GPU, except for one machine with one feature.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Source
        The data in blocks. An `ArraySource` also serves `log_joint` and `log_prob`.
    tolerance : float, default=TABLE_TOLERANCE
        A bound on the error of the mean log P from tables.
    max_states : int, default=None
        The most states of a machine in a table; None for the defaults of `tables.py`.
    omitted : float, default=None
        The log of the share of probability that tables omit, instead of `tolerance`: see `Tables`.
    """

    def __init__(
        self,
        family: "Family",
        source: Source,
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

    def evaluate(self, vector: Tensor) -> Evaluation:
        """The sums over all data, for expectation maximisation. A TooManyTermsError says that tables are too long."""
        return self._tables.evaluate(_numpy(vector), self.source)

    def log_joint(self, vector: Tensor) -> Tensor:
        """The log of weight times density of each machine (n, K); −∞ for a machine whose parameters leave float64."""
        assert isinstance(self.source, ArraySource)
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
        assert isinstance(self.source, ArraySource)
        if self._tabulated(vector, wants_sums=False) is not None:
            return self.log_joint(vector).logsumexp(1)
        return self.source.scatter(self._direct(vector, wants_gradient=False).log_prob, self.source.x.new_zeros(()))

    def _tabulated(self, vector: Tensor, wants_sums: bool) -> Evaluation | None:
        """The sums over tables; None for diagonal machines, and if tables are too long."""
        if self.family.coupling != "dense":
            return None
        try:
            return self._tables.evaluate(_numpy(vector), self.source, wants_sums)
        except TooManyTermsError:
            return None

    def _direct(self, vector: Tensor, wants_gradient: bool) -> "DirectSums":
        free, diagonal = _numpy(vector), None
        if self.family.coupling != "dense" and kernels.AVAILABLE:
            sizes = self.family.n_components, self.family.n_visible, self.family.n_hidden
            diagonal = make_pass(free, *sizes, wants_gradient)
        return DirectSums(self.family, free, wants_gradient, diagonal)


class DirectSums(NamedTuple):
    """Σ w log P over blocks and its derivative in the vector, without tables of hidden states."""

    family: "Family"
    vector: Floats
    wants_gradient: bool
    diagonal: DiagonalPass | None

    def __call__(self, blocks: Iterable[Block]) -> Floats:
        """The sums over some blocks (1 + n_parameters,), or the first one alone."""
        result = np.zeros(1 + (len(self.vector) if self.wants_gradient else 0))
        for block in blocks:
            own = None if self.diagonal is None else self.diagonal.sums(block)
            if own is None:
                self._add(block.with_gaps(self.family.n_visible), torch.as_tensor(block.weights), result)
            else:
                result += own
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
    def log_prob(self, block: Block) -> Any:
        """log P (n,) at the points of a block."""
        own = None if self.diagonal is None else self.diagonal.log_prob(block)
        if own is not None:
            return own
        x = block.with_gaps(self.family.n_visible)
        return self.family.distribution(torch.from_numpy(self.vector).to(x.device)).log_prob(x)


def _numpy(vector: Tensor) -> Floats:
    return np.ascontiguousarray(vector.detach().cpu().numpy(), dtype=np.float64)
