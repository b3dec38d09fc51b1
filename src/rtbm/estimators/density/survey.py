"""Data that are read in blocks: one pass for moments and a sample, on which starts are compared, then full passes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple, Self

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import ColumnMap
from rtbm.distributions.maps import is_trivial
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import LARGEST_WEIGHT, SMALLEST_WEIGHT, distinct_rows, infinite_cells
from rtbm.estimators.density.bounds import Bounds, Contact
from rtbm.estimators.density.columns import ColumnKinds, mixed_bits, states_of
from rtbm.estimators.density.fallback import FullDataScore, find_machine, gaussian_vector
from rtbm.estimators.density.margins import map_rows
from rtbm.estimators.density.standardise import Standardised, standardise, to_standard
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.multistart import Outcome, search
from rtbm.estimators.parallel import threads_for
from rtbm.estimators.sources import Chunk, Source, check_shapes
from rtbm.training import Monitor, Objective
from rtbm.training.coordinates import Moments, MomentSums
from rtbm.training.sums import PointBlock, make_blocks

SAMPLED_ROWS = 20_000
"""Rows of the sample on which all starts run. Larger samples choose the start more surely, and take longer."""
POLISHING_TOL = 0.1
"""The tolerance with all data, as a share of the tolerance on the sample. These iterations start near the optimum,
where each one gains little; a larger value stops them too early."""
ALL_DATA = -1
"""The number of the start in reports on the passes over all data."""
COARSE_BITS = 24
"""Bits to which moments are rounded. So the order of summation, which processes and partitions change, has no
influence on the coordinates in which a fit begins."""


class Support(NamedTuple):
    """Checks rows, codes them as `ColumnKinds.split` does, and maps numbers to the real line."""

    names: list[str]
    kinds: ColumnKinds
    bounds: Bounds
    maps: list[ColumnMap] | None = None  # None for rows as they are given

    @property
    def is_trivial(self) -> bool:
        """Whether numbers stay as they are."""
        is_plain = not any(self.kinds.atoms) and all(own is None for own in self.kinds.cells)
        return is_plain and self.bounds.is_trivial and is_trivial(self.maps or [])

    @property
    def numbers(self) -> list[int]:
        """The columns that hold numbers."""
        return [i for i, own in enumerate(self.kinds.levels) if own is None]

    def counted(self, chunk: Chunk) -> tuple[Floats, Floats, np.ndarray | slice]:
        """The rows of a chunk that count, their weights, and which ones they are.

        Rows of weight 0 and rows of which nothing is known are left out.
        """
        rows, weights = chunk.rows, chunk.weights
        check_shapes(rows, weights, len(self.names))
        if (is_infinite := np.isinf(rows)).any():
            row, i = np.argwhere(is_infinite)[0]
            raise infinite_cells("X", [f"{self.names[i]} ({rows[row, i]}) in row {row} of a block"])
        if not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InvalidInputError(f"a block holds negative weights, or weights above {LARGEST_WEIGHT:g}")
        counts = weights > 0
        if np.isnan(rows).any():
            counts &= ~np.isnan(rows).all(axis=1)
        kept = slice(None) if counts.all() else counts
        return rows[kept], weights[kept], kept

    def split(self, rows: Floats, weights: Floats, keys: np.ndarray) -> tuple[Floats, Floats]:
        """Rows as `ColumnKinds.split` returns them, with rounded numbers spread by keys (n,), and their weights."""
        if self.maps is None:
            return rows, weights
        d = len(self.names)
        rows, weights = self.kinds.spread(rows, weights, (self.bounds.low, self.bounds.high), keys=keys)
        rows = self.kinds.split(rows)
        if self.bounds.is_trivial:
            return rows, weights
        self.bounds.check(rows[:, :d], self.names)
        return np.hstack([self.bounds.inside(rows[:, :d]), rows[:, d:]]), weights

    def to_line(self, rows: Floats) -> tuple[Floats, Floats]:
        """The numbers of split rows on the line, and their log slopes (n,)."""
        y, log_slope = map_rows(self.maps or [], rows)
        return y[:, self.numbers], log_slope.sum(axis=1)


@dataclass(frozen=True)
class Preparation:
    """Turns chunks of rows into blocks of standardised points on a device; the weights of all blocks have sum 1."""

    support: Support
    keys: "RowKeys"
    mean: Floats
    root: Floats
    total: float
    device: str | None

    def __call__(self, number: int, chunk: Chunk) -> list[PointBlock]:
        """The blocks of a chunk of a part."""
        rows, weights, kept = self.support.counted(chunk)
        rows, weights = self.support.split(rows, weights, self.keys.of(number, chunk)[kept])
        z = np.ascontiguousarray(to_standard(self.support.to_line(rows)[0], self.mean, self.root))
        sizes, device = self.support.kinds.sizes, self.device or "cpu"
        x, w = (torch.from_numpy(part).to(device) for part in (z, weights / self.total))
        places = states_of(rows, sizes).places.to(device) if sizes else None
        return [block._replace(rows=np.empty(0, dtype=int)) for block in make_blocks(x, w, places)]  # nobody asks


class Sample(NamedTuple):
    """Rows with the smallest keys: a uniform sample of all rows that depends on nothing but their numbers."""

    keys: np.ndarray  # (m,)
    rows: Floats  # (m, d)
    weights: Floats  # (m,)

    def plus(self, *others: "Sample") -> "Sample":
        """The sample of all parts."""
        joint = Sample(*(np.concatenate(parts) for parts in zip(self, *others, strict=True)))
        if len(joint.keys) <= SAMPLED_ROWS:
            return joint
        chosen = np.argpartition(joint.keys, SAMPLED_ROWS)[:SAMPLED_ROWS]
        return Sample(*(part[chosen] for part in joint))


class Survey(NamedTuple):
    """The results of one pass over a part of the data."""

    total: float  # the sum of all weights
    sums: MomentSums
    log_slope: float  # the weighted sum
    has_missing: bool
    contact: Contact  # of rows as they are given
    sample: Sample

    @property
    def is_all(self) -> bool:
        """Whether the sample holds all rows."""
        return len(self.sample.keys) < SAMPLED_ROWS

    def plus(self, other: "Survey") -> "Survey":
        """The results for both parts together."""
        return Survey(
            self.total + other.total,
            self.sums.plus(other.sums),
            self.log_slope + other.log_slope,
            self.has_missing or other.has_missing,
            self.contact.plus(other.contact),
            self.sample.plus(other.sample),
        )


class RowKeys(NamedTuple):
    """Random numbers of rows, which depend on nothing but the numbers of rows and the seed."""

    seed: int
    first: list[int]  # the numbers of the first rows of the parts; empty if chunks are numbered over all parts

    @classmethod
    def make(cls, source: Source, seed: int) -> Self:
        """Those of a source, after a pass that counts rows where their numbers are not known."""
        if source.is_numbered:
            return cls(seed, [])
        return cls(seed, np.concatenate([[0], np.cumsum(source.map(count_rows))[:-1]]).astype(int).tolist())

    def of(self, number: int, chunk: Chunk) -> np.ndarray:
        """The keys (n,) of a chunk of a part."""
        begin = chunk.begin + (self.first[number] if self.first else 0)
        z = np.arange(begin, begin + len(chunk.rows), dtype=np.uint64)
        return mixed_bits(z + np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0])


@dataclass(frozen=True)
class Surveyor:
    """One pass over the rows of a part: moments on the line, and a random sample."""

    support: Support
    keys: RowKeys

    def __call__(self, number: int, chunks: Iterable[Chunk]) -> Survey:
        """The results for one part."""
        (d, bounds), n_numbers = (len(self.support.names), self.support.bounds), len(self.support.numbers)
        empty = Sample(np.empty(0, dtype=np.uint64), np.empty((0, d)), np.empty(0))
        sums = MomentSums(np.zeros(n_numbers), np.zeros((3, n_numbers, n_numbers)))
        found = Survey(0.0, sums, 0.0, False, bounds.contact(empty.rows), empty)
        last = np.uint64(2**64 - 1)
        for chunk in chunks:
            rows, weights, kept = self.support.counted(chunk)
            if not len(rows):
                continue
            keys = self.keys.of(number, chunk)[kept]
            near = keys <= last
            sample = Sample(keys[near], rows[near], weights[near])
            contact = bounds.contact(rows)
            rows, weights = self.support.split(rows, weights, keys)
            points, log_slope = self.support.to_line(rows)
            sums, missing = MomentSums.of(points, weights), bool(np.isnan(points).any())
            found = found.plus(Survey(float(weights.sum()), sums, float(weights @ log_slope), missing, contact, sample))
            last = found.sample.keys.max() if len(found.sample.keys) == SAMPLED_ROWS else last
        return found


def count_rows(number: int, chunks: Iterable[Chunk]) -> int:
    """The number of rows of a part."""
    return sum(len(chunk.rows) for chunk in chunks)


def survey(source: Source, support: Support, keys: RowKeys) -> Survey:
    """One pass over a source."""
    found = reduce(Survey.plus, source.map(Surveyor(support, keys)))
    if len(found.sample.keys) < 2:
        raise InvalidInputError(f"there are {len(found.sample.keys)} rows of positive weight: at least 2 are needed")
    if found.total < SMALLEST_WEIGHT:
        raise InvalidInputError(f"the weights of all rows have the sum {found.total:g}: multiply them by a number")
    order = np.lexsort([found.sample.keys, *found.sample.rows.T[::-1]])
    return found._replace(sample=Sample(*(part[order] for part in found.sample)))


def known_moments(sums: MomentSums) -> Moments:
    """The moments of all data, rounded; see COARSE_BITS."""
    mean, covariance = sums.moments()
    scale = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    if not np.isfinite(scale).all() or not np.isfinite(mean).all():
        raise InvalidInputError("X has values whose squares leave float64: change the unit")
    unit = np.where(scale > 0, np.exp2(np.floor(np.log2(np.where(scale > 0, scale, 1.0))) - COARSE_BITS), 0.0)
    areas = np.outer(unit, unit) * 2.0**COARSE_BITS
    return Moments(_rounded(mean, unit), _rounded(covariance, areas))


def _rounded(value: Floats, unit: Floats) -> Floats:
    """Multiples of a unit; unchanged where it is 0."""
    return np.where(unit > 0, np.round(value / np.where(unit > 0, unit, 1.0)) * unit, value)


def split_sample(found: Survey, support: Support) -> tuple[Floats, Floats]:
    """The distinct rows of the sample, as `Support.split` returns them, with weights of the sum of all."""
    rows, weights = distinct_rows(*support.split(found.sample.rows, found.sample.weights, found.sample.keys))
    return rows, weights * (found.total / weights.sum())


def standardise_sample(found: Survey, support: Support, rows: Floats, weights: Floats) -> Standardised:
    """The sample that `split_sample` returns, in standard coordinates.

    Without gaps, the coordinates are those that the moments of all data suggest.
    """
    known = None if found.has_missing else known_moments(found.sums)
    points, log_slope = support.to_line(rows)
    names = [support.names[i] for i in support.numbers]
    data = standardise(points, weights, log_slope, names, found.has_missing, known)
    return data._replace(log_volume=_log_volume(found, data.root))


def _log_volume(found: Survey, root: Floats) -> float:
    """The mean of log P(z) − log P(x) over all data."""
    slope = found.log_slope / found.total
    if not found.has_missing:
        return float(np.linalg.slogdet(root)[1]) - slope
    return float(np.diag(found.sums.sums[0]) / found.total @ np.log(np.diag(root))) - slope


def fit_blocks(
    task: DensityTask, fallback: str | None, source: Source, support: Support, found: Survey, keys: RowKeys
) -> tuple[Outcome, FullDataScore]:
    """Run all starts on the sample, and then the best one on all data, each step one pass over them."""
    data, is_mixed = task.data, task.discrete is not None
    outcome = search(task) if is_mixed else find_machine(task, fallback)
    source.prepare(Preparation(support, keys, data.mean, data.root, found.total, task.device))
    objective = task.objective(source, found.total)
    solver = replace(task.solver, tol=POLISHING_TOL * task.solver.tol)
    with threads_for(int(min(found.total, 2**62))):
        final = solver.minimise(objective, outcome.results[outcome.best].vector, _monitor(task))
        if is_mixed:
            full = FullDataScore(objective.evaluate(final.vector)[1].log_likelihood, -np.inf)
        else:
            full = FullDataScore(objective.likelihood.value(final.vector), _gaussian_log_prob(task, objective, found))
    return outcome.continued(final), full


def _monitor(task: DensityTask) -> Monitor:
    """The monitor of the passes over all data."""
    report = task.report
    return task.monitor(None if report is None else lambda record: report(ALL_DATA, record))


def _gaussian_log_prob(task: DensityTask, objective: Objective, found: Survey) -> float:
    """The mean log P of the Gaussian of all data; without gaps it follows from their moments."""
    if found.has_missing:
        return objective.likelihood.value(gaussian_vector(task))
    inverse = np.linalg.inv(task.data.root)
    variance = np.diag(inverse @ found.sums.moments().covariance @ inverse.T)
    return -0.5 * float((np.log(2 * np.pi) + variance).sum())
