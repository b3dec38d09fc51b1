"""Fits of data larger than memory: one pass for moments and a sample, then full passes, or batches for Adam."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.data_files import FileRows
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import LARGEST_WEIGHT, SMALLEST_WEIGHT, distinct_rows
from rtbm.estimators.density.bounds import Bounds, Contact
from rtbm.estimators.density.fallback import Whole, find_machine, gaussian_vector
from rtbm.estimators.density.sources import (
    AnySource,
    Chunk,
    Look,
    Rows,
    batch_rows,
    check_shapes,
    describe_file,
    is_path,
    plain_errors,
    to_floats,
)
from rtbm.estimators.density.standardise import Standardised, standardise, to_standard
from rtbm.estimators.density.task import SCREENED_ROWS, DensityTask
from rtbm.estimators.parallel import threads_for
from rtbm.estimators.search import POLISHING_TOL, Outcome, search
from rtbm.training import Monitor, Objective, Result
from rtbm.training.batches import Batch, Batches, LoaderBatches
from rtbm.training.coordinates import Moments, MomentSums
from rtbm.training.distributed import broadcast_object, collect, rank_and_world, together
from rtbm.training.solvers import LBFGS, Adam
from rtbm.training.statistics import Block, make_blocks

POLISHING_RATE = 0.1
"""The first step size of Adam over a stream, as a share of the learning rate: small, because the start is a fit."""
ALL_DATA = -1
"""The number of the start in reports on the pass over all data."""
FILE_BATCH = 4096
"""Rows in a batch that Adam reads from a file, by default."""
COARSE_BITS = 24
"""Moments are rounded to so many bits. So the order of summation, which processes and partitions change, has no
influence on the coordinates in which a fit begins."""


class Line(NamedTuple):
    """Checks rows and maps features with bounds to the real line."""

    bounds: Bounds
    names: list[str]

    def __call__(self, chunk: Chunk) -> tuple[Floats, Floats, Floats, np.ndarray | slice]:
        """Rows on the line (n, d), their weights and log slopes (n,), and which rows of the chunk they are.

        Rows of weight 0 and rows without numbers are left out.
        """
        rows, weights, kept = self._checked(chunk)
        if self.bounds.is_trivial:
            return rows, weights, np.zeros(len(rows)), kept
        self.bounds.check(rows, self.names)
        line, log_slope = self.bounds.to_line(rows)
        return line, weights, log_slope, kept

    def contact(self, number: int, chunks: Iterable[Chunk]) -> Contact:
        """How the rows of a part touch the bounds."""
        empty = self.bounds.contact(np.empty((0, len(self.names))))
        return reduce(Contact.plus, (self.bounds.contact(self._checked(chunk)[0]) for chunk in chunks), empty)

    def closed(self, gather: Callable[[Look], list[Any]]) -> "Line":
        """The same with bounds closed that data lie on, after a pass over the data if there are bounds.

        `gather` returns the results of a function for all parts.
        """
        if self.bounds.is_trivial:
            return self
        with plain_errors():
            contact = reduce(Contact.plus, gather(self.contact))
        contact.warn(self.names)
        return self._replace(bounds=self.bounds.closed(contact))

    def _checked(self, chunk: Chunk) -> tuple[Floats, Floats, np.ndarray | slice]:
        """The rows of a chunk that count, their weights, and which ones they are."""
        rows, weights = chunk.rows, np.ones(len(chunk.rows)) if chunk.weights is None else chunk.weights
        check_shapes(rows, weights, len(self.names))
        if np.isinf(rows).any() or not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InvalidInputError(
                f"a batch holds infinite numbers, negative weights, or weights above {LARGEST_WEIGHT:g}"
            )
        counts = weights > 0
        if np.isnan(rows).any():
            counts &= ~np.isnan(rows).all(axis=1)
        kept = slice(None) if counts.all() else counts
        return rows[kept], weights[kept], kept


@dataclass(frozen=True)
class Preparation:
    """Turns chunks of rows into standardised points, and into blocks of them on a device."""

    line: Line
    mean: Floats
    root: Floats
    total: float = 1.0
    device: str | None = None

    def points(self, chunk: Chunk) -> Batch:
        """The points of a chunk, and their weights divided by the total."""
        rows, weights, *_ = self.line(chunk)
        z = np.ascontiguousarray(to_standard(rows, self.mean, self.root))
        return torch.from_numpy(z), torch.from_numpy(weights / self.total)

    def __call__(self, chunk: Chunk) -> list[Block]:
        """The blocks of a chunk; the weights of all blocks have sum 1."""
        x, w = (part.to(self.device or "cpu") for part in self.points(chunk))
        return [block._replace(rows=np.empty(0, dtype=int)) for block in make_blocks(x, w)]  # nobody asks for them


class Sample(NamedTuple):
    """Rows with the smallest keys: a uniform sample of all rows that depends on nothing but their numbers."""

    keys: np.ndarray  # (m,)
    rows: Floats  # (m, d): on the line
    weights: Floats  # (m,)
    log_slope: Floats  # (m,)

    def plus(self, *others: "Sample") -> "Sample":
        """The sample of all parts."""
        joint = Sample(*(np.concatenate(parts) for parts in zip(self, *others, strict=True)))
        if len(joint.keys) <= SCREENED_ROWS:
            return joint
        chosen = np.argpartition(joint.keys, SCREENED_ROWS)[:SCREENED_ROWS]
        return Sample(*(part[chosen] for part in joint))


class Seen(NamedTuple):
    """The results of one pass over a part of the data."""

    total: float  # the sum of all weights
    sums: MomentSums
    log_slope: float  # the weighted sum
    has_missing: bool
    sample: Sample

    @property
    def is_all(self) -> bool:
        """Whether the sample holds all rows."""
        return len(self.sample.keys) < SCREENED_ROWS

    def plus(self, other: "Seen") -> "Seen":
        """The results for both parts together."""
        return Seen(
            self.total + other.total,
            self.sums.plus(other.sums),
            self.log_slope + other.log_slope,
            self.has_missing or other.has_missing,
            self.sample.plus(other.sample),
        )


@dataclass(frozen=True)
class Survey:
    """One pass over the rows of a part: moments and a random sample."""

    line: Line
    seed: int
    offsets: list[int]  # the numbers of the first rows of the parts

    def __call__(self, number: int, chunks: Iterable[Chunk]) -> Seen:
        """The results for one part."""
        d = len(self.line.names)
        empty = Sample(np.empty(0, dtype=np.uint64), np.empty((0, d)), np.empty(0), np.empty(0))
        seen = Seen(0.0, MomentSums(np.zeros(d), np.zeros((3, d, d))), 0.0, False, empty)
        offset, last = self.offsets[number] if self.offsets else 0, np.uint64(2**64 - 1)
        for chunk in chunks:
            rows, weights, log_slope, kept = self.line(chunk)
            if not len(rows):
                continue
            keys = _keys(chunk.begin + offset, len(chunk.rows), self.seed)[kept]
            near = keys <= last
            sample = Sample(keys[near], rows[near], weights[near], log_slope[near])
            sums, missing = MomentSums.of(rows, weights), bool(np.isnan(rows).any())
            seen = seen.plus(Seen(float(weights.sum()), sums, float(weights @ log_slope), missing, sample))
            last = seen.sample.keys.max() if len(seen.sample.keys) == SCREENED_ROWS else last
        return seen


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


def survey(source: AnySource, line: Line, seed: int) -> Seen:
    """One pass over a source, after another one that counts rows where their numbers are not known."""
    offsets = []
    if not source.is_numbered:
        counts = source.gather(count_rows)
        offsets = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int).tolist()
    return _joint(source.gather(Survey(line, seed, offsets)))


def _joint(parts: list[Seen]) -> Seen:
    """The results for all parts together, with a sorted sample."""
    seen = reduce(Seen.plus, parts)
    if len(seen.sample.keys) < 2:
        raise InvalidInputError(f"there are {len(seen.sample.keys)} rows of positive weight: at least 2 are needed")
    if seen.total < SMALLEST_WEIGHT:
        raise InvalidInputError(f"the weights of all rows have the sum {seen.total:g}: multiply them by a large number")
    order = np.lexsort(seen.sample.rows.T[::-1])
    return seen._replace(sample=Sample(*(part[order] for part in seen.sample)))


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


def standardise_sample(seen: Seen, names: list[str]) -> Standardised:
    """The sample in standard coordinates, with weights of the sum of all.

    Without gaps, the coordinates of a sample are those that the moments of all data suggest. A sample that holds all
    rows is standardised as data in memory are, so that the fit is the same.
    """
    rows, weights = distinct_rows(seen.sample.rows, seen.sample.weights)
    if not seen.is_all:
        weights = weights * (seen.total / weights.sum())
    known = None if seen.has_missing or seen.is_all else known_moments(seen.sums)
    data = standardise(rows, weights, np.zeros(len(rows)), names, seen.has_missing, known)
    return data._replace(log_volume=_log_volume(seen, data.root))


def _log_volume(seen: Seen, root: Floats) -> float:
    """The mean of log P(z) − log P(x) over all data."""
    if not seen.has_missing:
        return float(np.linalg.slogdet(root)[1]) - seen.log_slope / seen.total
    shares = np.diag(seen.sums.sums[0]) / seen.total
    return float(shares @ np.log(np.diag(root))) - seen.log_slope / seen.total


def fit_exactly(
    task: DensityTask, fallback: str | None, source: AnySource, line: Line, seen: Seen
) -> tuple[Outcome, Whole | None]:
    """Run all starts on the sample, and then the best one on all data, each step one pass over them."""
    data, outcome = task.data, find_machine(task, fallback)
    if seen.is_all:
        return outcome, None
    source.prepare(Preparation(line, data.mean, data.root, seen.total, task.device))
    objective = Objective(task.family, source, task.prior, seen.total, task.device)
    solver = replace(task.solver, tol=POLISHING_TOL * task.solver.tol)
    with threads_for(int(min(seen.total, 2**62))):
        final = solver.minimise(objective, outcome.results[outcome.best].vector, _monitor(task))
        log_prob = objective.likelihood.value(final.vector)
        gaussian = _gaussian_log_prob(task, objective, seen)
    return outcome.continued(final), Whole(log_prob, gaussian)


def _monitor(task: DensityTask) -> Monitor:
    """The monitor of the pass over all data."""
    report = task.report
    return task.monitor(None if report is None else lambda record: report(ALL_DATA, record))


def _gaussian_log_prob(task: DensityTask, objective: Objective, seen: Seen) -> float:
    """The mean log P of the Gaussian of all data; without gaps it follows from their moments."""
    if seen.has_missing:
        return objective.likelihood.value(gaussian_vector(task))
    inverse = np.linalg.inv(task.data.root)
    variance = np.diag(inverse @ seen.sums.moments().covariance @ inverse.T)
    return -0.5 * float((np.log(2 * np.pi) + variance).sum())


def open_batches(source: Any, columns: Any, batch_size: int | None, seed: int) -> tuple[Batches, Rows]:
    """Batches of a .npy or Parquet file, a DataLoader, or anything that has batches already; and all their rows."""
    if is_path(source):
        size = batch_size or FILE_BATCH
        file = together(lambda: FileRows(source, columns, size, seed, *rank_and_world()))
        return file, batch_rows(file, describe_file(file))
    batches = source if hasattr(source, "epoch") else together(lambda: LoaderBatches(source))
    return batches, together(lambda: batch_rows(batches))


def survey_batches(rows: Rows, line: Line, seed: int) -> Seen:
    """One pass over the rows of all processes."""
    look = Survey(line, seed, [number << 40 for number in range(rank_and_world()[1])])
    with plain_errors():
        return _joint(gather_all(rows, look))


def gather_all(rows: Rows, function: Look) -> list[Any]:
    """The results of a function for the rows of all processes."""
    return [parts[0] for parts in collect(lambda: rows.gather(function))]


class LineBatches:
    """Batches with bounds removed and the standardisation applied."""

    def __init__(self, batches: Batches, prepare: Preparation):
        self._batches, self._prepare = batches, prepare

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch, without empty ones."""
        chunks = (Chunk(0, to_floats(points), to_floats(weights)) for points, weights in self._batches.epoch(number))
        return (batch for batch in map(self._prepare.points, chunks) if len(batch[0]))


def fit_stream(task: DensityTask, batches: LineBatches, total: float) -> Result:
    """Fit the sample by L-BFGS, then go on with Adam over the stream."""
    solver = task.solver
    assert isinstance(solver, Adam)
    outcome = search(replace(task, solver=LBFGS(tol=solver.tol, seed=solver.seed)))
    start = broadcast_object(outcome.results[outcome.best].vector.cpu()).to(task.device or "cpu")
    slower = replace(solver, learning_rate=POLISHING_RATE * solver.learning_rate)
    return slower.minimise_batches(task.family, batches, task.prior, total, start, _monitor(task))
