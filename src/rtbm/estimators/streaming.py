"""Fitting data that need not fit into memory: one pass to get to know them, then Adam on batches."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.estimators.bounds import Bounds
from rtbm.estimators.fitting import Standardised, Task, to_standard
from rtbm.estimators.search import search
from rtbm.files import FileRows
from rtbm.lattice import Floats
from rtbm.training import Result
from rtbm.training.adam import adam
from rtbm.training.batches import Batch, Batches, LoaderBatches
from rtbm.training.distributed import gather_objects, rank_and_world, same_for_all
from rtbm.training.solvers import DEFAULT_ITERATIONS
from rtbm.training.starts import Moments, moment_sums, moments_from_sums

SAMPLE_ROWS = 20_000
"""Rows that are drawn from the stream to find a start."""
POLISHING_RATE = 0.1
"""The first step size over the stream, relative to the learning rate: the start is a fit already."""
ALL_DATA = -1
"""Stands for the number of a start in reports on the stream."""
FILE_BATCH = 4096
"""Rows in a batch of a file."""


class Survey(NamedTuple):
    """What one pass over a stream tells."""

    total: float  # the sum of all weights
    moments: Moments  # of all rows
    has_missing: bool  # in any row
    rows: Floats  # (m, d): a random sample, on the line
    weights: Floats  # (m,)


def as_batches(source: Any, columns: Any, batch_size: int | None, seed: int) -> Batches:
    """Batches from a path of a .npy or Parquet file, a DataLoader, or anything that has batches already."""
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return FileRows(source, columns, batch_size or FILE_BATCH, seed, *rank_and_world())
    return source if hasattr(source, "epoch") else LoaderBatches(source)


def count_features(batches: Batches) -> int:
    """The number of features of a stream. A process may have no batches of its own, as long as another one has."""
    first, _ = next(iter(batches.epoch(0)), (None, None))
    shapes = [shape for shape in gather_objects(None if first is None else tuple(np.shape(first))) if shape is not None]
    if not shapes or len(shapes[0]) != 2:
        got = shapes[0] if shapes else "nothing"
        raise InvalidInputError(f"source must give batches of shape (rows, n_features), got {got}")
    return int(shapes[0][1])


class LineBatches:
    """Batches with bounds removed and, once it is known, the standardisation applied."""

    def __init__(self, batches: Batches, bounds: Bounds, names: list[str]):
        self._batches, self._bounds, self._names = batches, bounds, names
        self.data: Standardised | None = None

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        for points, weights in self._batches.epoch(number):
            rows, w = _numpy(points), _numpy(weights)
            if rows.ndim != 2 or rows.shape[1] != len(self._names) or w.shape != rows.shape[:1]:
                raise InvalidInputError(
                    f"a batch must have shape (rows, {len(self._names)}) and weights (rows,), got {rows.shape} and "
                    f"{w.shape}"
                )
            if np.isinf(rows).any() or not (w >= 0).all():
                raise InvalidInputError("a batch holds infinite numbers or negative weights")
            rows, w = rows[w > 0], w[w > 0]
            if not len(rows):
                continue
            self._bounds.check(rows, self._names)
            rows, _ = self._bounds.to_line(rows)
            if self.data is not None:
                rows = to_standard(rows, self.data.mean, self.data.root)
            yield torch.from_numpy(np.ascontiguousarray(rows)), torch.from_numpy(np.ascontiguousarray(w))


def survey(batches: Batches, seed: int) -> Survey:
    """One pass: moments, and a uniform sample of rows, the same in all processes."""
    rank, _ = rank_and_world()
    rng, total, sums, has_missing = np.random.default_rng([seed, rank]), 0.0, np.zeros(()), False
    origin = next((o for o in gather_objects(_origin(batches)) if o is not None), None)
    if origin is None:
        raise InvalidInputError("the stream has no rows of positive weight: at least 2 are needed")
    kept: list[np.ndarray] = []  # key, weight, row: the rows with the smallest random keys are the sample
    for points, weights in batches.epoch(0):
        x, w = points.numpy(), weights.numpy()
        total, sums = total + float(w.sum()), sums + moment_sums(x, w, origin)
        has_missing = has_missing or bool(np.isnan(x).any())
        kept.append(np.column_stack([rng.random(len(x)), w, x]))
        if sum(map(len, kept)) > 4 * SAMPLE_ROWS:
            kept = [_smallest(np.concatenate(kept))]
    kept.append(np.empty((0, 2 + len(origin))))  # this process may have no rows
    parts = gather_objects((total, sums, has_missing, _smallest(np.concatenate(kept))))
    totals, all_sums, gaps, samples = zip(*parts, strict=True)
    sample = _smallest(np.concatenate(samples))
    if len(sample) < 2:
        raise InvalidInputError(f"the stream has {len(sample)} rows of positive weight: at least 2 are needed")
    sample = sample[np.lexsort(sample[:, 2:].T[::-1])]
    known = moments_from_sums(sum(all_sums), origin)
    return Survey(sum(totals), known, any(gaps), sample[:, 2:], sample[:, 1])


def fit_stream(task: Task, batches: LineBatches, total: float) -> Result:
    """Fit the sample by L-BFGS, then go on with Adam over the stream."""
    settings, report = task.settings, task.report
    quick = replace(settings, solver="lbfgs", max_iter=DEFAULT_ITERATIONS["lbfgs"])
    outcome = search(replace(task, settings=quick))
    start = same_for_all(outcome.results[outcome.best].vector)
    family = task.family
    batches.data = task.data
    watch = task.watch(family, None if report is None else lambda record: report(ALL_DATA, record))
    return adam(
        family,
        batches,
        task.objective(family).prior,
        total,
        start,
        watch,
        max_iter=settings.max_iter,
        learning_rate=POLISHING_RATE * settings.learning_rate,
    )


def _origin(batches: Batches) -> Floats | None:
    """A point among the data, relative to which sums lose no digits; None if there are no rows."""
    for points, _ in batches.epoch(0):
        x = points.numpy()
        count = (~np.isnan(x)).sum(axis=0)
        return np.nansum(x, axis=0) / np.maximum(count, 1)
    return None


def _smallest(rows: np.ndarray) -> np.ndarray:
    return rows if len(rows) <= SAMPLE_ROWS else rows[np.argpartition(rows[:, 0], SAMPLE_ROWS)[:SAMPLE_ROWS]]


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().double().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype=np.float64)
