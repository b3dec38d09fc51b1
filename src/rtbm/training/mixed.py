"""Mixtures whose components have a table for each discrete column beside a machine, by expectation maximisation."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.families import Family, Prior
from rtbm.training.likelihood import Likelihood
from rtbm.training.objective import Objective
from rtbm.training.sums import ArrayBlocks, Evaluation

TABLE_ROWS = 2.0
"""The prior on a table counts as much as this number of rows with the distribution of all rows. More rows shrink the
tables of components, and rare states, toward that."""
TABLE_STEPS, TABLE_CHANGE = 100, 1e-4
"""Tables for given machines are found in at most TABLE_STEPS steps, until no probability changes by TABLE_CHANGE."""


class Discrete(NamedTuple):
    """The discrete columns of n rows."""

    states: np.ndarray  # (n, J): the number of the state in each column, −1 for a gap
    sizes: tuple[int, ...]  # (J,): the numbers of states

    def log_prob(self, tables: list[Floats]) -> Floats:
        """The log probability (n, K) of the states in each component."""
        total = np.zeros((len(self.states), len(tables[0])))
        for state, table in zip(self.states.T, tables, strict=True):
            total += np.where(state[:, None] >= 0, np.log(table).T[np.maximum(state, 0)], 0.0)
        return total

    def fit(self, rows: Floats) -> list[Floats]:
        """Tables (K, size) from the weights of rows in each component (n, K), and the prior."""
        tables = []
        for state, size in zip(self.states.T, self.sizes, strict=True):
            known = state >= 0
            counts = np.stack([np.bincount(state[known], share[known], size) for share in rows.T])
            table = counts + TABLE_ROWS * _common(counts.sum(axis=0))
            tables.append(table / table.sum(axis=1, keepdims=True))
        return tables

    def log_prior(self, tables: list[Floats], weights: Floats) -> float:
        """The logarithm of the prior of tables, up to a constant."""
        total = 0.0
        for state, size, table in zip(self.states.T, self.sizes, tables, strict=True):
            counts = np.bincount(state[state >= 0], weights[state >= 0], size).astype(np.float64)
            total += TABLE_ROWS * float((_common(counts) * np.log(table)).sum())
        return total


def _common(counts: Floats) -> Floats:
    """The distribution (size,) of all rows. All states together count as one more row."""
    return (counts + 1 / len(counts)) / (counts.sum() + 1)


class MixedObjective(Objective):
    """The objective of machines with tables of discrete columns, for the solver "em".

    Tables are those of the last M-step, and at first those that suit the machines of the start.
    """

    def __init__(self, family: Family, source: ArrayBlocks, prior: Prior, discrete: Discrete):
        super().__init__(family, source, prior)
        self._data, self._discrete, self._rows = source, discrete, source.weights.cpu().numpy() * source.total
        self._tables: list[Floats] = []
        self._log_joint = torch.empty(0)

    def evaluate(self, vector: Tensor) -> tuple[float, Evaluation]:
        """The value, and the sums over the data behind it."""
        if not self._tables:
            self._tables = find_tables(self.family, self._data, self._discrete, vector)
        offsets = torch.from_numpy(self._discrete.log_prob(self._tables)).to(self.device)
        self.likelihood.source = self._data.with_offsets(offsets)
        _, evaluation = super().evaluate(vector)
        self._log_joint = self.likelihood.log_joint(vector)
        log_prior = self._discrete.log_prior(self._tables, self._rows)
        log_prob = float(self._rows @ self._log_joint.logsumexp(1).cpu().numpy())
        return self._noted(self._penalty(vector)[0] - (log_prior + log_prob) / self.total), evaluation

    def maximise(self, evaluation: Evaluation) -> Tensor:
        """The vector after an M-step. Tables and weights count rows without numbers too."""
        rows = self._rows[:, None] * self._log_joint.softmax(1).cpu().numpy()
        self._tables = self._discrete.fit(rows)
        machines, _ = self.family.split(super().maximise(evaluation))
        log_weights = np.log(np.maximum(rows.sum(axis=0), 1e-300) / self.total)
        return self.family.join(machines, torch.from_numpy(log_weights).to(self.device))


def find_tables(family: Family, source: ArrayBlocks, discrete: Discrete, vector: Tensor) -> list[Floats]:
    """The tables (K, size) of discrete columns that suit given machines and weights best."""
    log_joint, rows = Likelihood(family, source).log_joint(vector).cpu(), source.weights.cpu().numpy() * source.total
    tables = discrete.fit(rows[:, None] * log_joint.softmax(1).numpy())
    for _ in range(TABLE_STEPS):
        shares = (log_joint + torch.from_numpy(discrete.log_prob(tables))).softmax(1).numpy()
        before, tables = tables, discrete.fit(rows[:, None] * shares)
        if max((np.abs(new - old).max() for new, old in zip(tables, before, strict=True)), default=0.0) < TABLE_CHANGE:
            break
    return tables
