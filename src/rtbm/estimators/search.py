"""Several starts of one solver, and the choice among their results."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import joblib
from torch import Tensor

from rtbm.estimators.parallel import in_parallel
from rtbm.training import Record, Result, Solver

SCREENING_ITERATIONS = 30
"""Iterations of all starts, after which only the best FINALISTS go on, with solvers that take full passes. Fewer of
either save time, and more often miss the best optimum."""
FINALISTS = 3
OUTPERFORMED = "outperformed by other starts"
POLISHING_TOL = 0.1
"""The tolerance of steps with all data, relative to that on a sample: they start near the optimum, where steps are
small, and would else end before it."""

Report = Callable[[int, Record], None]
"""Called with the number of a start and each of its records."""


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What a search needs of a fit. It can be pickled for other processes."""

    solver: Solver
    n_init: int
    patience: int
    n_jobs: int | None
    device: str | None
    report: Report | None = field(default=None, repr=False)

    @property
    def uses_threads(self) -> bool:
        """Whether starts that run at the same time are threads of one process."""
        return False

    def smaller(self) -> "Task | None":
        """The same task on a sample of its data, if they are many; else None."""
        return None

    @abstractmethod
    def run(self, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
        """One start, or its continuation from a vector."""


class Outcome(NamedTuple):
    """The results of all starts, and the number of the best."""

    results: list[Result]
    best: int


def is_screened(task: Task) -> bool:
    """Whether all starts run for a while, and the best of them to the end."""
    is_long = task.solver.max_iter > SCREENING_ITERATIONS
    return is_long and task.n_init > FINALISTS and task.solver.takes_full_passes


def count_runs(task: Task) -> int:
    """How often the solver will run."""
    return task.n_init + (FINALISTS if is_screened(task) else 0) + (task.smaller() is not None)


def search(task: Task) -> Outcome:
    """Run all starts, and take the best by validation if there is any, else by the objective.

    Where the task has a smaller version, on a sample of its data, all starts run there. Only the best one then goes on
    with all data, from a fit that is as good as one.
    """
    smaller = task.smaller()
    if smaller is None:
        return _search(task)
    results, best = _search(smaller)
    solver = replace(task.solver, tol=POLISHING_TOL * task.solver.tol)
    whole = replace(task, solver=solver)
    (final,) = _run_all(whole, [(best, results[best].vector)], solver.max_iter)
    results = [*results[:best], joined(results[best], final), *results[best + 1 :]]
    return Outcome(results, best)


def _search(task: Task) -> Outcome:
    indices = list(range(task.n_init))
    if is_screened(task):
        screening = _run_all(task, [(i, None) for i in indices], SCREENING_ITERATIONS)
        ranked = sorted(indices, key=lambda i: _rank(screening[i]))
        chosen = sorted(ranked[:FINALISTS])
        left = task.solver.max_iter - SCREENING_ITERATIONS
        finals = _run_all(task, [(i, screening[i].vector) for i in chosen], left)
        results = [replace(result, reason=OUTPERFORMED) for result in screening]
        for i, final in zip(chosen, finals, strict=True):
            results[i] = joined(screening[i], final)
    else:
        results = _run_all(task, [(i, None) for i in indices], task.solver.max_iter)
    best = min(indices, key=lambda i: _rank(results[i]))
    return Outcome(results, best)


def _run_all(task: Task, jobs: list[tuple[int, Tensor | None]], max_iter: int) -> list[Result]:
    if task.n_jobs in (None, 1) and task.report is not None:
        return [task.run(index, vector, max_iter, task.report) for index, vector in jobs]
    quiet = replace(task, report=None)
    calls = (joblib.delayed(quiet.run)(index, vector, max_iter, None) for index, vector in jobs)
    results = []
    for (index, _), result in zip(jobs, in_parallel(task.n_jobs, calls, task.uses_threads), strict=True):
        if task.report is not None:
            task.report(index, result.history[-1])
        results.append(result)
    return results


def _rank(result: Result) -> float:
    """The value by which starts are compared; smaller is better."""
    value = result.objective if math.isnan(result.validation) else -result.validation
    return value if math.isfinite(value) else math.inf


def joined(first: Result, second: Result) -> Result:
    """The result of a start and its continuation as one."""
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
