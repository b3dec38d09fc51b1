"""What is minimised: the negative mean log-likelihood, and a prior that prevents peaks at single points."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions import RTBMMixture
from rtbm.errors import RTBMError, TooManyTermsError
from rtbm.parameters import pack
from rtbm.training import machines as algebra
from rtbm.training.estep.backends import e_step
from rtbm.training.family import Density, Family, highest_log_peak, to_array
from rtbm.training.m_step import maximise
from rtbm.training.machines import Machines, Prior, Sums
from rtbm.training.rows import RowBlock, make_rows
from rtbm.training.scaling import Scaling, find_scaling
from rtbm.training.states import States, list_states

FAILURES = (RTBMError, np.linalg.LinAlgError, torch.linalg.LinAlgError, ArithmeticError)
"""What evaluating a density raises where its parameters leave float64."""
LIMIT, LIMIT_WIDE = 2**17, 2**12
"""The most states of a machine in a list; beyond, theta functions are faster. LIMIT is for up to two columns, where a
block of rows skips most states, and LIMIT_WIDE for more."""
HOPELESS_RISE = 10.0
"""A trial step is not evaluated if its objective exceeds the lowest one by more than this for certain."""
SUM_BITS, COORDINATE_BITS = 34, 24
"""Values and gradients of sums over data in several places are rounded to multiples of 2^−SUM_BITS, and coordinates of
L-BFGS there to their first COORDINATE_BITS bits. The order of summation changes the last bits of sums, and L-BFGS would
magnify that."""


class Blocks(Protocol):
    """Data in blocks, wherever they are. Their weights have sum 1."""

    def add(self, function: Any) -> Floats:
        """The sums of a function of an iterable of blocks, whose results for parts of the data can be added."""


class ArrayBlocks:
    """Data in memory.

    Parameters
    ----------
    x : (n, d)
        The data; NaN entries are missing.
    weights : (n,)
        Positive. They are divided by their sum.
    places : (n, J), default=None
        The places of states of discrete columns, see `Discrete`.
    """

    x: Tensor
    weights: Tensor
    total: float

    def __init__(self, x: Tensor, weights: Tensor, places: Tensor | None = None):
        self.x = x
        self.total = float(weights.numpy().sum() if weights.is_cpu else weights.sum())  # torch's depends on the threads
        self.weights = weights / self.total
        self._block = make_rows(x, self.weights, places)

    def add(self, function: Any) -> Floats:
        """The value of a function of the blocks."""
        return function([self._block])

    def scatter(self, function: Callable[[RowBlock], Any]) -> Tensor:
        """The values of a function of the block, in the order of the data."""
        values = torch.as_tensor(function(self._block)).to(self.x.device)
        return torch.empty_like(values).index_copy(0, self._block.order, values)


class Evaluation(NamedTuple):
    """The outcome of an E-step over all data."""

    machines: Machines
    states: States
    sums: Sums
    counts: Floats | None = None  # (S + 1, K): those of discrete columns, see `mixed`

    @property
    def log_likelihood(self) -> float:
        """Σ w log P."""
        return self.sums.log_prob

    def gradient(self) -> Floats:
        """The derivative of Σ w log P in the vector of free parameters."""
        return algebra.gradient(self.machines, self.states, self.sums)


class Expectation(NamedTuple):
    """An E-step over blocks. Its vectors of `Sums` for parts of the data can be added."""

    machines: Machines
    states: States
    wants_sums: bool = True

    @classmethod
    def of(cls, machines: Machines, wants_sums: bool = True) -> Self:
        """That of machines, with the states that matter. A TooManyTermsError says that they are too many."""
        if not (
            all(np.isfinite(part).all() for part in machines) and (machines.L.diagonal(axis1=1, axis2=2) > 0).all()
        ):
            raise ArithmeticError("the density leaves float64")
        limit = LIMIT if machines.mean.shape[1] <= 2 else LIMIT_WIDE
        return cls(machines, list_states(machines.L_A.mT, machines.centre, limit), wants_sums)

    def __call__(self, blocks: Iterable[RowBlock]) -> Floats:
        """The vector of the sums over some blocks."""
        total = Sums.zeros(*self.machines.F.shape).vector
        for block in blocks:
            total += e_step(block, self.machines, self.states, wants_sums=self.wants_sums).vector
        return total

    def log_joint(self, block: RowBlock) -> Any:
        """The log of weight times density of each machine (n, K) at the rows of a block: an array or a tensor."""
        shape = len(block.x), len(self.machines.mean)
        values = np.empty(shape) if block.is_compiled else block.x.new_empty(shape)
        e_step(block, self.machines, self.states, wants_sums=False, log_joint=values)
        return values

    def evaluate(self, source: Blocks) -> Evaluation:
        """The outcome over all data."""
        sums = Sums.of_vector(source.add(self), *self.machines.F.shape)
        if not math.isfinite(sums.log_prob):
            raise ArithmeticError("the density leaves float64")
        return Evaluation(self.machines, self.states, sums)


class SoftExpectation(NamedTuple):
    """Σ w log P over blocks and its derivative in the vector, by theta functions and automatic differentiation."""

    family: Family
    vector: Floats
    wants_gradient: bool

    def __call__(self, blocks: Iterable[RowBlock]) -> Floats:
        """The sums over some blocks (1 + n_parameters,), or the first one alone."""
        result = np.zeros(1 + (len(self.vector) if self.wants_gradient else 0))
        for block in blocks:
            self._add(block.with_gaps(), torch.as_tensor(block.weights), result)
        return result

    def _add(self, x: Tensor, weights: Tensor, result: Floats) -> None:
        """Add the sums over rows x (n, d).

        The derivative is that of each machine, weighted by its responsibilities. So memory holds the graph of one
        machine at a time.
        """
        parts, logits = self.family.split(torch.from_numpy(self.vector).to(x.device))
        with torch.no_grad():
            terms = torch.stack([self.family.machine(part).log_prob(x) for part in parts], 1) + logits.log_softmax(0)
            log_prob = terms.logsumexp(1)
            shares = weights[:, None] * (terms - log_prob[:, None]).exp()
        result[0] += float(weights @ log_prob)
        if not self.wants_gradient:
            return
        gradients = []
        for part, share in zip(parts, shares.unbind(1), strict=True):
            free = part.clone().requires_grad_()
            gradients.append(torch.autograd.grad(share @ self.family.machine(free).log_prob(x), free)[0])
        by_logits = shares.sum(0) - weights.sum() * logits.softmax(0)
        result[1:] += self.family.join(gradients, by_logits).cpu().numpy()


class Likelihood:
    """The mean log P of a family on weighted data, as a function of the vector of its free parameters.

    Machines are summed over lists of their hidden states. Where these are too long, theta functions serve.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Blocks
        The data in blocks. An `ArrayBlocks` also serves `log_joint` and `log_prob`.
    """

    def __init__(self, family: Family, source: Blocks):
        self.family, self.source = family, source

    def value(self, vector: Tensor) -> float:
        """The mean log P."""
        return self.with_gradient(vector, wants_gradient=False)[0]

    def with_gradient(
        self, vector: Tensor, wants_gradient: bool = True, machines: Machines | None = None
    ) -> tuple[float, Floats]:
        """The mean log P, and its derivative, or an empty array if that is not wanted.

        `machines` are those of the vector, where they are known already.
        """
        try:
            evaluation = Expectation.of(machines or self.family.machines(vector), wants_gradient).evaluate(self.source)
        except TooManyTermsError:
            sums = self.source.add(SoftExpectation(self.family, to_array(vector), wants_gradient))
            return float(sums[0]), sums[1:]
        return evaluation.log_likelihood, evaluation.gradient() if wants_gradient else np.empty(0)

    def log_joint(self, vector: Tensor) -> Tensor:
        """The log of weight times density of each machine (n, K); −∞ for a machine whose parameters leave float64."""
        assert isinstance(self.source, ArrayBlocks)
        try:
            return self.source.scatter(Expectation.of(self.family.machines(vector), False).log_joint)
        except FAILURES:
            parts, logits = self.family.split(vector)
            columns = []
            for part in parts:
                try:
                    columns.append(self.family.machine(part).log_prob(self.source.x).detach())
                except FAILURES:
                    columns.append(torch.full_like(self.source.weights, -math.inf))
            return torch.stack(columns, 1) + logits.log_softmax(0)

    def log_prob(self, vector: Tensor) -> Tensor:
        """log P (n,) of each row."""
        return self.log_joint(vector).logsumexp(1)


class Objective:
    """The negative mean log-likelihood of weighted data plus prior, as a function of a vector.

    Values and gradients over data that are not in memory are rounded: see SUM_BITS.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Blocks
        The data: an `ArrayBlocks`, or blocks elsewhere, whose weights have sum 1.
    prior : Prior
        Divided by the sum of the weights.
    total : float, default=None
        The sum of the weights as they were given; None for that of an `ArrayBlocks`.
    device : str or torch.device, default=None
        Where vectors are; None for the device of an `ArrayBlocks`, or else the CPU.
    """

    def __init__(
        self, family: Family, source: Blocks, prior: Prior, total: float | None = None, device: str | None = None
    ):
        self.family, self.source, self.prior = family, source, prior
        self.total, self._is_rounded, self._is_complete = total or 1.0, True, False
        self.device = torch.device(device or "cpu")
        if isinstance(source, ArrayBlocks):
            self.x, self.weights, self.device = source.x, source.weights, source.x.device
            self.total, self._is_rounded = total or source.total, False
            self._is_complete = not bool(source.x.isnan().any())
        self.likelihood = Likelihood(family, source)
        self.evaluations, self._lowest = 0, math.inf

    def value(self, vector: Tensor) -> float:
        """The value alone; infinite where the parameters leave float64."""
        return self._noted(self._attempt(vector, wants_gradient=False)[0])

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""
        value, gradient = self._attempt(vector, wants_gradient=True)
        if not (math.isfinite(value) and math.isfinite(float(gradient.sum()))):
            return math.inf, torch.zeros_like(vector)
        value = self._noted(value)
        if self._is_rounded:
            value, gradient = float(_round_sums(np.array(value))), _round_sums(gradient)
        return value, torch.from_numpy(gradient).to(vector.device)

    def _attempt(self, vector: Tensor, wants_gradient: bool) -> tuple[float, Floats]:
        """The value, infinite if it fails or is hopeless, and the gradient if it is wanted."""
        self.evaluations += 1
        try:
            with np.errstate(all="ignore"):  # trial steps may leave float64
                machines = self.family.machines(vector)
                penalty, by_penalty = self._penalty(machines)
                if self._is_hopeless(machines, penalty):
                    return math.inf, by_penalty
                value, gradient = self.likelihood.with_gradient(vector, wants_gradient, machines)
        except FAILURES:
            return math.inf, np.zeros(0)
        return penalty - value, by_penalty - gradient if wants_gradient else gradient

    def _noted(self, value: float) -> float:
        if not math.isfinite(value):
            return math.inf
        self._lowest = min(self._lowest, value)
        return value

    def _is_hopeless(self, machines: Machines, penalty: float) -> bool:
        """Whether the value certainly exceeds the lowest so far by HOPELESS_RISE.

        Trial steps of a line search may be so wild that the sums behind them are very long.
        """
        if not (self._is_complete and penalty >= 1.0 and math.isfinite(self._lowest)):
            return False
        return penalty - highest_log_peak(machines) > self._lowest + HOPELESS_RISE

    def evaluate(self, vector: Tensor) -> tuple[float, Evaluation]:
        """The value, and the sums over the data behind it.

        A TooManyTermsError says that a list of states is too long.
        """
        self.evaluations += 1
        with np.errstate(all="ignore"):
            evaluation = Expectation.of(self.family.machines(vector)).evaluate(self.source)
            return self._noted(self._penalty(evaluation.machines)[0] - evaluation.log_likelihood), evaluation

    def maximise(self, evaluation: Evaluation) -> Tensor:
        """The vector after an M-step of expectation maximisation, from the sums of an evaluation."""
        updated = maximise(evaluation.machines, evaluation.states, evaluation.sums, self.prior, self.total)
        return torch.from_numpy(algebra.pack(updated)).to(self.device)

    @property
    def is_scaled(self) -> bool:
        """Whether solvers begin with EM, and use the expected complete-data information."""
        return self.family.is_scaled

    def scaling(self, vector: Tensor) -> Scaling | None:
        """Coordinates around a vector in which EM's expected information is the identity; None if there are none."""
        if not self.family.is_scaled:
            return None
        origin = vector.detach().cpu().numpy()
        if self._is_rounded:
            origin = _keep_bits(origin)
            vector = torch.from_numpy(origin).to(vector.device)
        try:
            value, evaluation = self.evaluate(vector)
            gradient = self._penalty(evaluation.machines)[1] - evaluation.gradient()
            scaling = find_scaling(
                origin, value, gradient, evaluation.machines, evaluation.states, evaluation.sums, self.total
            )
        except FAILURES:
            return None
        if not self._is_rounded:
            return scaling
        sums = float(_round_sums(np.array(value))), _round_sums(gradient)
        return Scaling(origin, *sums, float(_keep_bits(np.array(scaling.length))), *map(_keep_bits, scaling[4:]))

    def _penalty(self, machines: Machines) -> tuple[float, Floats]:
        """The prior's share in the objective, and its derivative."""
        values, gradient = algebra.penalty(machines, self.prior)
        return float(values.sum()) / self.total, gradient / self.total


def _round_sums(values: Floats) -> Floats:
    """Multiples of 2^−SUM_BITS, or SUM_BITS bits of numbers above 1."""
    exponents = np.maximum(np.frexp(values)[1], 0) - SUM_BITS
    return np.ldexp(np.round(np.ldexp(values, -exponents)), exponents)


def _keep_bits(values: Floats) -> Floats:
    """The first COORDINATE_BITS bits of numbers."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissas, COORDINATE_BITS)), exponents - COORDINATE_BITS)


def log_prob(family: Family, vector: Tensor, x: Tensor) -> Tensor:
    """log P (n,) of a member of a family at rows x (n, d), without a graph. NaN entries are integrated out.

    `family.distribution(vector).log_prob(x)` is the same, and differentiable.
    """
    return Likelihood(family, ArrayBlocks(x, torch.ones_like(x[:, 0]))).log_prob(vector)


def machine_log_prob(density: Density, x: Tensor) -> Tensor:
    """log P (n, K) of each dense machine of a density at rows x (n, d); NaN entries are integrated out.

    Lists of hidden states serve all patterns of gaps in one pass, while `density.log_prob` makes machines for each
    pattern.

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
        result[:, own] = Likelihood(family, source).log_joint(vector) + math.log(len(own))
    return result
