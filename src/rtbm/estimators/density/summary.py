"""Data in blocks: one pass for moments and a sample, on which all starts run, and then passes over all rows."""

from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import ColumnMap
from rtbm.distributions.maps import is_trivial
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import LARGEST_WEIGHT, SMALLEST_WEIGHT, distinct_rows, infinite_cells, memory_limit
from rtbm.estimators.density.bounds import Bounds, Contact
from rtbm.estimators.density.columns import ColumnKinds, mixed_bits, states_of
from rtbm.estimators.density.fallback import FullDataScore, find_machine, gaussian_vector
from rtbm.estimators.density.margins import map_rows
from rtbm.estimators.density.standardise import Standardised, standardise, to_standard
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.multistart import Outcome, search
from rtbm.estimators.parallel import threads_for
from rtbm.training import Objective
from rtbm.training.blocks import LocalData, Part
from rtbm.training.coordinates import Moments, MomentSums
from rtbm.training.rows import make_rows

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


class Sample(NamedTuple):
    """Rows as they are given."""

    keys: np.ndarray  # (n,): random bits that depend on nothing but the seed and the numbers of the rows
    numbers: np.ndarray  # (n,)
    rows: Floats  # (n, d)
    weights: Floats  # (n,)

    def plus(self, other: "Sample") -> "Sample":
        """The rows of both parts with the smallest keys, at most SAMPLED_ROWS of them: a uniform sample."""
        joint, n = Sample(*map(np.concatenate, zip(self, other, strict=True))), SAMPLED_ROWS
        return joint if len(joint.keys) <= n else joint.take(np.argpartition(joint.keys, n)[:n])

    def take(self, chosen: np.ndarray) -> "Sample":
        """Some of the rows."""
        return Sample(*(part[chosen] for part in self))


class DataSummary(NamedTuple):
    """The results of one pass over a part of the data."""

    total: float  # the sum of all weights
    sums: MomentSums  # of the numbers on the line
    log_slope: float  # the weighted sum
    n_missing: int  # numbers on the line
    contact: Contact  # of rows as they are given
    sample: Sample

    def plus(self, other: "DataSummary") -> "DataSummary":
        """The results for both parts together."""
        pairs: Any = zip(self, other, strict=True)
        return DataSummary(*(one.plus(two) if hasattr(one, "plus") else one + two for one, two in pairs))

    @property
    def has_all_rows(self) -> bool:
        """Whether the sample holds all rows."""
        return len(self.sample.keys) < SAMPLED_ROWS


class RowEncoder(NamedTuple):
    """Checks rows, codes them as `ColumnKinds.split` does, and maps numbers to the real line."""

    names: list[str]
    kinds: ColumnKinds
    bounds: Bounds
    seed: int
    maps: list[ColumnMap] | None = None  # None for rows as they are given

    @property
    def numbers(self) -> list[int]:
        """The columns that hold numbers."""
        return [i for i, own in enumerate(self.kinds.levels) if own is None]

    @property
    def is_trivial(self) -> bool:
        """Whether numbers stay as they are."""
        is_plain = not any(self.kinds.atoms) and all(own is None for own in self.kinds.cells)
        return is_plain and self.bounds.is_trivial and is_trivial(self.maps or [])

    def check(self, begin: int, rows: Floats, weights: Floats) -> Sample:
        """The rows of a block, without those of weight 0 and those of which nothing is known."""
        if (is_infinite := np.isinf(rows)).any():
            row, i = np.argwhere(is_infinite)[0]
            raise infinite_cells("X", [f"{self.names[i]} ({rows[row, i]}) in row {row} of a block"])
        if not ((weights >= 0) & (weights <= LARGEST_WEIGHT)).all():
            raise InvalidInputError(f"a block holds negative weights, or weights above {LARGEST_WEIGHT:g}")
        numbers = np.arange(begin, begin + len(rows), dtype=np.uint64)
        keys = mixed_bits(numbers + np.random.SeedSequence(self.seed).generate_state(1, np.uint64)[0])
        found, counts = Sample(keys, numbers, rows, weights), (weights > 0) & ~np.isnan(rows).all(axis=1)
        return found if counts.all() else found.take(counts)

    def split(self, found: Sample) -> tuple[Floats, Floats]:
        """Rows as `ColumnKinds.split` returns them, with rounded numbers spread over their cells, and their weights."""
        if self.maps is None:
            return found.rows, found.weights
        ends, d = (self.bounds.low, self.bounds.high), len(self.names)
        rows, weights = self.kinds.spread(found.rows, found.weights, ends, keys=found.keys)
        rows = self.kinds.split(rows)
        self.bounds.check(rows[:, :d], self.names)
        return np.hstack([self.bounds.inside(rows[:, :d]), rows[:, d:]]), weights

    def to_line(self, rows: Floats) -> tuple[Floats, Floats]:
        """The numbers of split rows on the line, and their log slopes (n,)."""
        y, log_slope = map_rows(self.maps or [], rows)
        return y[:, self.numbers], log_slope.sum(axis=1)

    def summary(self, begin: int, rows: Floats, weights: Floats) -> DataSummary:
        """That of a block."""
        found = self.check(begin, rows, weights)
        split, weights = self.split(found)
        y, log_slope = self.to_line(split)
        return DataSummary(
            float(weights.sum()),
            MomentSums.of(y, weights),
            float(weights @ log_slope),
            int(np.isnan(y).sum()),
            self.bounds.contact(found.rows),
            found,
        )


def summarise(data: LocalData, encoder: RowEncoder) -> DataSummary:
    """One pass over all data."""
    found = reduce(DataSummary.plus, data.map(partial(_summarise_part, encoder)))
    sample = found.sample
    if len(sample.keys) < 2:
        raise InvalidInputError(f"there are {len(sample.keys)} rows of positive weight: at least 2 are needed")
    if found.total < SMALLEST_WEIGHT:
        raise InvalidInputError(f"the weights of all rows have the sum {found.total:g}: multiply them by a number")
    return found._replace(sample=sample.take(np.argsort(sample.numbers)))


def _summarise_part(encoder: RowEncoder, part: Part) -> DataSummary:
    nothing = encoder.summary(0, np.empty((0, len(encoder.names))), np.empty(0))
    return reduce(DataSummary.plus, (encoder.summary(*block) for block in part), nothing)


def prepare(data: LocalData, encoder: RowEncoder, mean: Floats, root: Floats, total: float, device: str | None) -> None:
    """Put standardised points on a device in the place of rows; the weights of all blocks have sum 1."""
    device, limit = device or "cpu", memory_limit()
    if device.startswith("cuda"):
        limit = max(limit, torch.cuda.get_device_properties(device).total_memory // 2)
    data.prepare(partial(_prepare_block, encoder, mean, root, total, device), limit)


def _prepare_block(
    encoder: RowEncoder, mean: Floats, root: Floats, total: float, device: str, *block: Any
) -> list[Any]:
    rows, weights = encoder.split(encoder.check(*block))
    z = np.ascontiguousarray(to_standard(encoder.to_line(rows)[0], mean, root))
    x, w = (torch.from_numpy(part).to(device) for part in (z, weights / total))
    sizes = encoder.kinds.sizes
    return [make_rows(x, w, states_of(rows, sizes).places.to(device) if sizes else None)]


def split_sample(found: DataSummary, encoder: RowEncoder) -> tuple[Floats, Floats]:
    """The distinct rows of the sample, as `RowEncoder.split` returns them, with weights of the sum of all."""
    rows, weights = distinct_rows(*encoder.split(found.sample))
    return rows, weights * (found.total / weights.sum())


def standardise_sample(found: DataSummary, encoder: RowEncoder, rows: Floats, weights: Floats) -> Standardised:
    """The sample that `split_sample` returns, in standard coordinates: without gaps, those of all data."""
    points, log_slope = encoder.to_line(rows)
    names = [encoder.names[i] for i in encoder.numbers]
    known = None if found.n_missing else _round_moments(found.sums.moments())
    data = standardise(points, weights, log_slope, names, found.n_missing > 0, known)
    log_volume = np.linalg.slogdet(data.root)[1]
    if found.n_missing:
        log_volume = np.diag(found.sums.sums[0]) / found.total @ np.log(np.diag(data.root))
    return data._replace(log_volume=float(log_volume) - found.log_slope / found.total)


def _round_moments(found: Moments) -> Moments:
    """Moments of all data, rounded; see COARSE_BITS."""
    scale = np.sqrt(np.maximum(np.diag(found.covariance), 0.0))
    if not np.isfinite([scale, found.mean]).all():
        raise InvalidInputError("X has values whose squares leave float64: change the unit")
    unit = np.exp2(np.floor(np.log2(np.where(scale > 0, scale, 1.0))) - COARSE_BITS)
    area = np.outer(unit, unit) * 2.0**COARSE_BITS
    return Moments(np.round(found.mean / unit) * unit, np.round(found.covariance / area) * area)


def fit_all(
    task: DensityTask, fallback: str | None, data: LocalData, encoder: RowEncoder, found: DataSummary
) -> tuple[Outcome, FullDataScore]:
    """Run all starts on the sample, and then the best one on all data, each step one pass over them."""
    is_mixed, report = task.discrete is not None, task.report
    outcome = search(task) if is_mixed else find_machine(task, fallback)
    prepare(data, encoder, task.data.mean, task.data.root, found.total, task.device)
    objective = task.objective(data, found.total)
    solver = replace(task.solver, tol=POLISHING_TOL * task.solver.tol)
    monitor = task.monitor(None if report is None else lambda record: report(ALL_DATA, record))
    with threads_for(int(min(found.total, 2**62))):
        final = solver.minimise(objective, outcome.results[outcome.best].vector, monitor)
        if is_mixed:
            full = FullDataScore(objective.evaluate(final.vector)[1].log_likelihood, -np.inf)
        else:
            full = FullDataScore(objective.likelihood.value(final.vector), _gaussian_log_prob(task, objective, found))
    return outcome.continued(final), full


def _gaussian_log_prob(task: DensityTask, objective: Objective, found: DataSummary) -> float:
    """The mean log P of the Gaussian of all data; without gaps it follows from their moments."""
    if found.n_missing:
        return objective.likelihood.value(gaussian_vector(task))
    inverse, covariance = np.linalg.inv(task.data.root), found.sums.moments().covariance
    return -0.5 * float((np.log(2 * np.pi) + np.diag(inverse @ covariance @ inverse.T)).sum())
