"""Mixtures whose components have a table for each discrete column beside a machine, by expectation maximisation."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rtbm.common import Floats
from rtbm.training.estep.backends import e_step
from rtbm.training.family import Family
from rtbm.training.machines import Machines, Prior, Sums
from rtbm.training.objective import Blocks, Evaluation, Expectation, Objective
from rtbm.training.rows import RowBlock

TABLE_ROWS = 2.0
"""The prior on a table counts as much as this number of rows with the distribution of all rows. More rows shrink the
tables of components, and rare states, toward that."""


class Discrete(NamedTuple):
    """The discrete columns of n rows. All their states together are numbered by `places`, from 0 to S − 1."""

    states: np.ndarray  # (n, J): the number of the state in each column, −1 for a gap
    sizes: tuple[int, ...]  # (J,): the numbers of states

    @property
    def places(self) -> Tensor:
        """The places of the states (n, J) among those of all columns; S for a gap."""
        first = np.cumsum((0, *self.sizes))
        return torch.from_numpy(np.where(self.states < 0, first[-1], self.states + first[:-1]))

    def log_prob(self, log_tables: Floats) -> Floats:
        """The log probability (n, K) of the states in each component; see `StateTables`."""
        return state_log_prob(self.places, log_tables).numpy()

    def count_shares(self, shares: Floats) -> Floats:
        """The sums (S + 1, K) of the shares (n, K) of rows with each state, and of all rows."""
        return count_states(self.places, torch.from_numpy(shares), sum(self.sizes) + 1).numpy()


class StateTables(NamedTuple):
    """The log probabilities (S, K) of the states of all discrete columns, in each component."""

    sizes: tuple[int, ...]  # (J,)
    logs: Floats  # (S, K)

    @classmethod
    def fit(cls, sizes: Sequence[int], counts: Floats) -> Self:
        """Those that counts (S + 1, K) and the prior suggest."""
        tables = counts[:-1] + TABLE_ROWS * _common(sizes, counts)
        return cls(tuple(sizes), np.log(np.vstack([part / part.sum(axis=0) for part in _parts(sizes, tables)])))

    @classmethod
    def of_vector(cls, sizes: Sequence[int], n_components: int, vector: Tensor) -> tuple[Tensor, Self]:
        """The vector of the machines and the tables in a vector of both."""
        machines, logs = vector.split([len(vector) - sum(sizes) * n_components, sum(sizes) * n_components])
        return machines, cls(tuple(sizes), logs.cpu().numpy().reshape(-1, n_components))

    def vector(self, machines: Tensor) -> Tensor:
        """The vector of machines and of these tables behind them."""
        return torch.cat([machines, torch.from_numpy(self.logs.reshape(-1)).to(machines.device)])

    def log_prior(self, counts: Floats) -> float:
        """The logarithm of the prior, up to a constant."""
        return TABLE_ROWS * float((_common(self.sizes, counts) * self.logs).sum())

    @property
    def probabilities(self) -> list[Floats]:
        """The probabilities (K, size) of the states of each column."""
        return [np.ascontiguousarray(np.exp(part).T) for part in _parts(self.sizes, self.logs)]


def state_log_prob(places: Tensor, log_tables: Floats) -> Tensor:
    """The log probability (n, K) of the states of rows in each component; gaps count 0."""
    tables = torch.from_numpy(np.vstack([log_tables, np.zeros_like(log_tables[:1])]))
    return embedding_bag(places, tables.to(places.device), mode="sum")


def count_states(places: Tensor, shares: Tensor, size: int) -> Tensor:
    """The sums (size, K) of the shares (n, K) of rows with each state, and in the last row of all rows."""
    counts = shares.new_zeros(size, shares.shape[1])
    for column in places.unbind(1):
        counts.index_add_(0, column, shares)
    counts[-1] = shares.sum(0)
    return counts


class MixedExpectation(NamedTuple):
    """An E-step over blocks of rows with numbers and states, of which either may be missing.

    Its vectors for parts of the data can be added. They hold `Sums`, in which log P is that of rows with their states,
    and then the counts (S + 1, K) of states by the responsibilities of components. The last row counts all rows.
    """

    numbers: Expectation
    log_tables: Floats  # (S, K): the log probabilities of the states of all discrete columns

    def __call__(self, blocks: Iterable[RowBlock]) -> Floats:
        """The vector of some blocks."""
        machines, states, _ = self.numbers
        sums, counts = (
            Sums.zeros(*machines.F.shape).vector,
            np.zeros((len(self.log_tables) + 1, self.log_tables.shape[1])),
        )
        for block in blocks:
            assert block.places is not None
            offsets = state_log_prob(block.places, self.log_tables)
            joint = torch.empty_like(offsets)
            given, filled = (offsets.numpy(), joint.numpy()) if block.is_compiled else (offsets, joint)
            sums += e_step(block, machines, states, given, log_joint=filled).vector
            shares = torch.as_tensor(block.weights)[:, None] * joint.softmax(1)
            counts += count_states(block.places, shares, len(counts)).cpu().numpy()
        return np.concatenate([sums, counts.ravel()])

    def evaluate(self, source: Blocks) -> Evaluation:
        """The outcome over all data."""
        machines, states, _ = self.numbers
        vector, K = source.add(self), len(machines.mean)
        sums = Sums.of_vector(vector, *machines.F.shape)
        if not np.isfinite(sums.log_prob):
            raise ArithmeticError("the density leaves float64")
        return Evaluation(machines, states, sums, vector[len(sums.vector) :].reshape(-1, K))


def _parts(sizes: Sequence[int], tables: Floats) -> Iterator[Floats]:
    """The rows (size, K) of each column."""
    yield from np.split(tables, np.cumsum(sizes)[:-1])


def _common(sizes: Sequence[int], counts: Floats) -> Floats:
    """The distribution (S, 1) of all rows. All states of a column together count as one more row."""
    parts = _parts(sizes, counts[:-1].sum(axis=1, keepdims=True))
    return np.vstack([(part + 1 / len(part)) / (part.sum() + 1) for part in parts])


class MixedObjective(Objective):
    """The objective of machines with tables of discrete columns, for the solver "em".

    A vector is that of the machines, and the logarithms of the tables behind it: see `StateTables`.
    """

    def __init__(
        self,
        family: Family,
        source: Blocks,
        prior: Prior,
        sizes: Sequence[int],
        total: float | None = None,
        device: str | None = None,
    ):
        super().__init__(family, source, prior, total, device)
        self._sizes = sizes

    def evaluate(self, vector: Tensor) -> tuple[float, Evaluation]:
        """The value, and the sums over the data behind it."""
        self.evaluations += 1
        machines, tables = StateTables.of_vector(self._sizes, self.family.n_components, vector)
        with np.errstate(all="ignore"):
            numbers = Expectation.of(self.family.machines(machines))
            evaluation = MixedExpectation(numbers, tables.logs).evaluate(self.source)
            assert evaluation.counts is not None
            log_prior = tables.log_prior(evaluation.counts * self.total) / self.total
            return self._noted(self._penalty(numbers.machines)[0] - log_prior - evaluation.log_likelihood), evaluation

    def maximise(self, evaluation: Evaluation) -> Tensor:
        """The vector after an M-step. Tables and weights count rows without numbers too."""
        assert evaluation.counts is not None
        machines, _ = self.family.split(super().maximise(evaluation))
        log_weights = torch.from_numpy(np.log(np.maximum(evaluation.counts[-1], 1e-300))).to(self.device)
        tables = StateTables.fit(self._sizes, evaluation.counts * self.total)
        return tables.vector(self.family.join(machines, log_weights))


class LatentClasses(NamedTuple):
    """A mixture of tables, for rows without numbers."""

    log_weights: Floats  # (K,)
    tables: StateTables
    log_prob: float = -np.inf  # the mean over rows
    n_iter: int = 0
    converged: bool = False

    @classmethod
    def random(cls, discrete: Discrete, weights: Floats, n_classes: int, seed: int) -> Self:
        """A random start for rows with weights (n,)."""
        shares = np.random.default_rng(seed).dirichlet(np.ones(n_classes), len(weights))
        return cls._fit(discrete.sizes, discrete.count_shares(weights[:, None] * shares))

    @classmethod
    def _fit(cls, sizes: Sequence[int], counts: Floats) -> Self:
        weights = (counts[-1] + 1 / len(counts[-1])) / (counts[-1].sum() + 1)
        return cls(np.log(weights), StateTables.fit(sizes, counts))

    def improved(self, source: Blocks, total: float, max_iter: int, tol: float) -> Self:
        """The classes after EM on data whose weights have the sum `total`."""
        classes, last = self, -np.inf
        for n_iter in range(1, max_iter + 1):
            numbers = Expectation.of(_no_numbers(classes.log_weights))
            evaluation = MixedExpectation(numbers, classes.tables.logs).evaluate(source)
            if evaluation.log_likelihood - last < tol or n_iter == max_iter:
                break
            last = evaluation.log_likelihood
            assert evaluation.counts is not None
            classes = self._fit(self.tables.sizes, evaluation.counts * total)
        return classes._replace(
            log_prob=evaluation.log_likelihood, n_iter=self.n_iter + n_iter, converged=n_iter < max_iter
        )


def _no_numbers(log_weights: Floats) -> Machines:
    """Machines without visible and hidden units, for rows without numbers."""
    shapes = (0, 0), (0,), (0, 0), (0,), (0, 0)
    return Machines(log_weights, *(np.zeros((len(log_weights), *shape)) for shape in shapes))
