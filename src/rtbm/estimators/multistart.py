"""Several starts of one solver, and the choice among their results."""

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

import joblib
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from rtbm.estimators.parallel import in_parallel, threads_for
from rtbm.training import Monitor, Record, Result, Solver, make_solver

SCREENING_ITERATIONS = 30
"""Iterations of all starts, after which only the best FINALISTS go on, with solvers that take full passes. Fewer of
either save time, and more often miss the best optimum."""
FINALISTS = 3
OUTPERFORMED = "outperformed by other starts"

Report = Callable[[int, Record], None]
"""Called with the number of a start and each of its records."""
Watch = Callable[[int, Record, Tensor], bool]
"""Called with the number of a start, each of its records and the vector there; the fit ends when it returns True."""


class SearchSummary(TypedDict):
    """What a fitted estimator knows about the search: see `Outcome.summary`."""

    solver: Literal["lbfgs", "em", "cma", "adam"]
    n_init: int
    n_iter: int
    reason: str
    converged: bool
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """What a search needs of a fit. It can be pickled for other processes."""

    data: Any  # a tuple of arrays, of which the first has a row for each observation
    validation: Any  # the same, or None
    solver: Solver
    n_init: int
    patience: int
    n_jobs: int | None
    device: str | None
    report: Report | None = field(default=None, repr=False)
    watch: Watch | None = field(default=None, repr=False)  # for starts in this process

    @property
    def uses_threads(self) -> bool:
        """Whether starts that run at the same time are threads of one process."""
        return False

    @property
    def n_rows(self) -> int:
        """The number of rows of the training data."""
        return len(self.data[0])

    @abstractmethod
    def objective(self) -> Any:
        """What the solver minimises, on the training data."""

    @abstractmethod
    def monitor(self, report: Callable[[Record], None] | None) -> Monitor:
        """A monitor that knows the validation data."""

    @abstractmethod
    def start(self, index: int) -> Tensor:
        """The vector of a start."""

    def run(self, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
        """One start, or its continuation from a vector."""
        with threads_for(self.n_rows):
            start = self.start(index) if vector is None else vector
            monitor = self.monitor(None if report is None else lambda record: report(index, record))
            monitor.watch = None if self.watch is None else partial(self.watch, index)
            solver = replace(self.solver, max_iter=max_iter, seed=self.solver.seed + index)
            return solver.minimise(self.objective(), start, monitor)


def task_options(estimator: Any, solvers: Any, seed: int, **settings: Any) -> dict[str, Any]:
    """The arguments of a `Task`, from the parameters of an estimator; `settings` are further ones of its solver."""
    solver = make_solver(
        estimator.solver,
        None if estimator.max_iter is None else int(estimator.max_iter),
        solvers,
        tol=float(estimator.tol),
        seed=seed,
        **settings,
    )
    options = {"solver": solver, "patience": estimator.n_iter_no_change, "n_init": estimator.n_init}
    return options | {"n_jobs": estimator.n_jobs, "device": estimator.device}


class Outcome(NamedTuple):
    """The results of all starts, and the number of the best."""

    results: list[Result]
    best: int

    def continued(self, final: Result) -> "Outcome":
        """The outcome after the best start went on."""
        results = [joined(result, final) if i == self.best else result for i, result in enumerate(self.results)]
        return Outcome(results, self.best)

    def summary(self, max_iter: int) -> dict[str, Any]:
        """How the search went; a warning if the best start used up its iterations."""
        best = self.results[self.best]
        if not best.converged:
            warnings.warn(
                f"the solver {best.solver!r} stopped at max_iter={max_iter}: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        return {
            "solver": best.solver,
            "n_init": len(self.results),
            "n_iter": best.history[-1].step,
            "reason": best.reason,
            "converged": best.converged,
            "seconds": sum(result.seconds for result in self.results),
        }


def is_screened(task: Task) -> bool:
    """Whether all starts run for a while, and the best of them to the end."""
    is_long = task.solver.max_iter > SCREENING_ITERATIONS
    return is_long and task.n_init > FINALISTS and task.solver.takes_full_passes


def count_runs(task: Task) -> int:
    """How often the solver will run."""
    return task.n_init + (FINALISTS if is_screened(task) else 0)


def search(task: Task) -> Outcome:
    """Run all starts, and take the best by validation if there is any, else by the objective."""
    indices, first = range(task.n_init), SCREENING_ITERATIONS if is_screened(task) else task.solver.max_iter
    results = _run_all(task, [(i, None) for i in indices], first)
    if is_screened(task):
        chosen = sorted(sorted(indices, key=lambda i: _rank(results[i]))[:FINALISTS])
        finals = _run_all(task, [(i, results[i].vector) for i in chosen], task.solver.max_iter - first)
        ends = {i: joined(results[i], final) for i, final in zip(chosen, finals, strict=True)}
        results = [ends.get(i, replace(result, reason=OUTPERFORMED)) for i, result in enumerate(results)]
    return Outcome(results, min(indices, key=lambda i: _rank(results[i])))


def _run_all(task: Task, jobs: list[tuple[int, Tensor | None]], max_iter: int) -> list[Result]:
    if task.n_jobs in (None, 1) and (task.report or task.watch) is not None:
        return [task.run(index, vector, max_iter, task.report) for index, vector in jobs]
    quiet = replace(task, report=None, watch=None)
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
    return replace(
        second,
        history=first.history + later,
        seconds=seconds + second.seconds,
        evaluations=first.evaluations + second.evaluations,
        trail=second.trail + first.trail,
    )
