"""Mixtures whose components have a table for each discrete column beside a machine, by expectation maximisation."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.families import Family, Prior
from rtbm.training.objective import Objective
from rtbm.training.sums import Blocks, Evaluation
from rtbm.training.sums.mixed import MixedPass, count_states, state_log_prob

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
            evaluation = self.likelihood.evaluate(machines, tables.logs)
            assert evaluation.counts is not None
            log_prior = tables.log_prior(evaluation.counts * self.total) / self.total
            return self._noted(self._penalty(machines)[0] - log_prior - evaluation.log_likelihood), evaluation

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
            sums = source.add(MixedPass(classes.log_weights, classes.tables.logs))
            if sums[0] - last < tol or n_iter == max_iter:
                break
            last, counts = sums[0], sums[1:].reshape(-1, len(self.log_weights)) * total
            classes = self._fit(self.tables.sizes, counts)
        return classes._replace(log_prob=float(sums[0]), n_iter=self.n_iter + n_iter, converged=n_iter < max_iter)
