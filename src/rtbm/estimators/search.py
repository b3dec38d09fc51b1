"""Several starts of one solver, and the choice among their results."""

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple, Protocol, TypeVar

import joblib
import torch
from torch import Tensor

from rtbm.estimators.parallel import in_parallel
from rtbm.training import Record, Result, Settings

SCREENED = ("lbfgs", "em")
"""Solvers whose starts first run for a few iterations, after which only the best go on."""
SCREENING_ITERATIONS = 30
OUTPERFORMED = "outperformed by other starts"
FINALISTS = 3
THREADED_ROWS = 50_000
"""Up to so many rows one thread is faster than several."""

Report = Callable[[int, Record], None]
"""Called with the number of a start and each of its records."""


class Task(Protocol):
    """All that a search needs to know of a fit, in a form that other processes can be sent: a dataclass."""

    @property
    def settings(self) -> Settings:
        """How to solve."""

    @property
    def n_init(self) -> int:
        """The number of starts."""

    @property
    def screen(self) -> bool:
        """Whether starts may be given up early."""

    @property
    def n_jobs(self) -> int | None:
        """The number of starts that run at the same time."""

    @property
    def report(self) -> Report | None:
        """Where to tell of progress."""

    def run(self, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
        """One start, or its continuation from a vector."""


AnyTask = TypeVar("AnyTask", bound=Task)


class Outcome(NamedTuple):
    """The results of all starts, and the number of the best."""

    results: list[Result]
    best: int


def is_screened(task: Task) -> bool:
    """Whether all starts run for a while, and the best of them to the end."""
    is_long = task.settings.max_iter > SCREENING_ITERATIONS
    return task.screen and is_long and task.n_init > FINALISTS and task.settings.solver in SCREENED


def count_runs(task: Task) -> int:
    """How often the solver will run."""
    return task.n_init + (FINALISTS if is_screened(task) else 0)


def search(task: Task) -> Outcome:
    """Run all starts, and take the best by validation if there is any, else by the objective."""
    indices = list(range(task.n_init))
    if is_screened(task):
        screening = _run_all(task, [(i, None) for i in indices], SCREENING_ITERATIONS)
        ranked = sorted(indices, key=lambda i: _rank(screening[i]))
        chosen = sorted(ranked[:FINALISTS])
        left = task.settings.max_iter - SCREENING_ITERATIONS
        finals = _run_all(task, [(i, screening[i].vector) for i in chosen], left)
        results = [replace(result, reason=OUTPERFORMED) for result in screening]
        for i, final in zip(chosen, finals, strict=True):
            results[i] = _joined(screening[i], final)
    else:
        results = _run_all(task, [(i, None) for i in indices], task.settings.max_iter)
    best = min(indices, key=lambda i: _rank(results[i]))
    return Outcome(results, best)


def _run_all(task: AnyTask, jobs: list[tuple[int, Tensor | None]], max_iter: int) -> list[Result]:
    if task.n_jobs in (None, 1) and task.report is not None:
        return [task.run(index, vector, max_iter, task.report) for index, vector in jobs]
    quiet = replace(task, report=None)  # type: ignore[type-var]
    calls = (joblib.delayed(quiet.run)(index, vector, max_iter, None) for index, vector in jobs)
    results = []
    for (index, _), result in zip(jobs, in_parallel(task.n_jobs, calls), strict=True):
        if task.report is not None:
            task.report(index, result.history[-1])
        results.append(result)
    return results


@contextlib.contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """One torch thread for small data, as before afterwards."""
    threads = torch.get_num_threads()
    if rows <= THREADED_ROWS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _rank(result: Result) -> float:
    """Smaller is better."""
    value = result.objective if math.isnan(result.validation) else -result.validation
    return value if math.isfinite(value) else math.inf


def _joined(first: Result, second: Result) -> Result:
    """One result of a start and its continuation."""
    steps, seconds = len(first.history), first.seconds
    later = [r._replace(step=r.step + steps - 1, seconds=r.seconds + seconds) for r in second.history[1:]]
    return Result(
        second.vector,
        second.objective,
        second.validation,
        first.history + later,
        second.reason,
        seconds + second.seconds,
        first.evaluations + second.evaluations,
        second.solver,
        second.trail + first.trail,
    )
