"""Data that are read in blocks: one pass for moments and a sample, on which starts are compared, then full passes."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import ColumnMap
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import LARGEST_WEIGHT, SMALLEST_WEIGHT, distinct_rows
from rtbm.estimators.density.bounds import Bounds, Contact
from rtbm.estimators.density.fallback import FullDataScore, find_machine, gaussian_vector
from rtbm.estimators.density.margins import map_rows
from rtbm.estimators.density.standardise import Standardised, standardise, to_standard
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.multistart import Outcome
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
    """Checks rows and maps features to the real line."""

    bounds: Bounds
    maps: list[ColumnMap]
    names: list[str]

    def counted(self, chunk: Chunk) -> tuple[Floats, Floats, np.ndarray | slice]:
        """The rows of a chunk that count, their weights, and which ones they are.

        Rows of weight 0 and rows without numbers are left out.
        """
        rows, weights = chunk.rows, chunk.weights
        check_shapes(rows, weights, len(self.names))
        if np.isinf(rows).any() or not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InvalidInputError(
                f"a block holds infinite numbers, negative weights, or weights above {LARGEST_WEIGHT:g}"
            )
        counts = weights > 0
        if np.isnan(rows).any():
            counts &= ~np.isnan(rows).all(axis=1)
        kept = slice(None) if counts.all() else counts
        return rows[kept], weights[kept], kept

    def to_line(self, rows: Floats) -> tuple[Floats, Floats]:
        """Rows on the line (n, d), and their log slopes (n,)."""
        if not self.bounds.is_trivial:
            self.bounds.check(rows, self.names)
            rows = self.bounds.inside(rows)
        y, log_slope = map_rows(self.maps, rows)
        return y, log_slope.sum(axis=1)

    def contact(self, number: int, chunks: Iterable[Chunk]) -> Contact:
        """How the rows of a part touch the bounds."""
        empty = self.bounds.contact(np.empty((0, len(self.names))))
        return reduce(Contact.plus, (self.bounds.contact(self.counted(chunk)[0]) for chunk in chunks), empty)

    def closed(self, source: Source) -> "Support":
        """The same with bounds closed that data lie on, after a pass over the data if there are bounds."""
        if self.bounds.is_trivial:
            return self
        contact = reduce(Contact.plus, source.map(self.contact))
        contact.warn(self.names)
        return self._replace(bounds=self.bounds.closed(contact))


@dataclass(frozen=True)
class Preparation:
    """Turns chunks of rows into blocks of standardised points on a device; the weights of all blocks have sum 1."""

    support: Support
    mean: Floats
    root: Floats
    total: float
    device: str | None

    def __call__(self, chunk: Chunk) -> list[PointBlock]:
        """The blocks of a chunk."""
        rows, weights, _ = self.support.counted(chunk)
        z = np.ascontiguousarray(to_standard(self.support.to_line(rows)[0], self.mean, self.root))
        x, w = (torch.from_numpy(part).to(self.device or "cpu") for part in (z, weights / self.total))
        return [block._replace(rows=np.empty(0, dtype=int)) for block in make_blocks(x, w)]  # nobody asks for them


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
            self.sample.plus(other.sample),
        )


@dataclass(frozen=True)
class Surveyor:
    """One pass over the rows of a part: moments on the line, and a random sample."""

    support: Support
    seed: int
    offsets: list[int]  # the numbers of the first rows of the parts

    def __call__(self, number: int, chunks: Iterable[Chunk]) -> Survey:
        """The results for one part."""
        d = len(self.support.names)
        empty = Sample(np.empty(0, dtype=np.uint64), np.empty((0, d)), np.empty(0))
        found = Survey(0.0, MomentSums(np.zeros(d), np.zeros((3, d, d))), 0.0, False, empty)
        offset, last = self.offsets[number] if self.offsets else 0, np.uint64(2**64 - 1)
        for chunk in chunks:
            rows, weights, kept = self.support.counted(chunk)
            if not len(rows):
                continue
            points, log_slope = self.support.to_line(rows)
            keys = _keys(chunk.begin + offset, len(chunk.rows), self.seed)[kept]
            near = keys <= last
            sample = Sample(keys[near], rows[near], weights[near])
            sums, missing = MomentSums.of(points, weights), bool(np.isnan(rows).any())
            found = found.plus(Survey(float(weights.sum()), sums, float(weights @ log_slope), missing, sample))
            last = found.sample.keys.max() if len(found.sample.keys) == SAMPLED_ROWS else last
        return found


def _keys(begin: int, n: int, seed: int) -> np.ndarray:
    """Random numbers (n,) that depend on the numbers of rows and the seed alone (the mixer of SplitMix64)."""
    z = np.arange(begin, begin + n, dtype=np.uint64)
    z += np.uint64(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53), (33, 1)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    return z


def count_rows(number: int, chunks: Iterable[Chunk]) -> int:
    """The number of rows of a part."""
    return sum(len(chunk.rows) for chunk in chunks)


def survey(source: Source, support: Support, seed: int) -> Survey:
    """One pass over a source, after another one that counts rows where their numbers are not known."""
    offsets = []
    if not source.is_numbered:
        offsets = np.concatenate([[0], np.cumsum(source.map(count_rows))[:-1]]).astype(int).tolist()
    found = reduce(Survey.plus, source.map(Surveyor(support, seed, offsets)))
    if len(found.sample.keys) < 2:
        raise InvalidInputError(f"there are {len(found.sample.keys)} rows of positive weight: at least 2 are needed")
    if found.total < SMALLEST_WEIGHT:
        raise InvalidInputError(f"the weights of all rows have the sum {found.total:g}: multiply them by a number")
    order = np.lexsort(found.sample.rows.T[::-1])
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


def standardise_sample(found: Survey, support: Support) -> Standardised:
    """The sample in standard coordinates, with weights of the sum of all.

    Without gaps, the coordinates are those that the moments of all data suggest.
    """
    rows, weights = distinct_rows(found.sample.rows, found.sample.weights)
    weights = weights * (found.total / weights.sum())
    known = None if found.has_missing else known_moments(found.sums)
    points, log_slope = support.to_line(rows)
    data = standardise(points, weights, log_slope, support.names, found.has_missing, known)
    return data._replace(log_volume=_log_volume(found, data.root))


def _log_volume(found: Survey, root: Floats) -> float:
    """The mean of log P(z) − log P(x) over all data."""
    slope = found.log_slope / found.total
    if not found.has_missing:
        return float(np.linalg.slogdet(root)[1]) - slope
    return float(np.diag(found.sums.sums[0]) / found.total @ np.log(np.diag(root))) - slope


def fit_blocks(
    task: DensityTask, fallback: str | None, source: Source, support: Support, found: Survey
) -> tuple[Outcome, FullDataScore]:
    """Run all starts on the sample, and then the best one on all data, each step one pass over them."""
    data, outcome = task.data, find_machine(task, fallback)
    source.prepare(Preparation(support, data.mean, data.root, found.total, task.device))
    objective = Objective(task.family, source, task.prior, found.total, task.device)
    solver = replace(task.solver, tol=POLISHING_TOL * task.solver.tol)
    with threads_for(int(min(found.total, 2**62))):
        final = solver.minimise(objective, outcome.results[outcome.best].vector, _monitor(task))
        log_prob = objective.likelihood.value(final.vector)
        gaussian = _gaussian_log_prob(task, objective, found)
    return outcome.continued(final), FullDataScore(log_prob, gaussian)


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
