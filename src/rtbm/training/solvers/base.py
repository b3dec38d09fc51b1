"""What all solvers share: their settings, the monitor that follows an iteration, and the result."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

CONVERGED = "converged"
MAX_ITER = "max_iter"
EARLY_STOPPING = "early stopping"
STALLED = "no further progress"
SCHEDULE = "schedule completed"
INFINITE = 1e10
"""Stands for the objective where parameters leave float64, unless objectives are that large themselves: line searches
then turn back, and the packages behind the solvers take no infinities."""


class Record(NamedTuple):
    """One line of a history."""

    step: int
    """The number of iterations so far: 0 at the start."""
    objective: float
    """What is minimised: for densities the negative mean log-likelihood plus prior."""
    validation: float
    """The mean log-likelihood of the validation data (NaN if there are none)."""
    seconds: float
    """Since the start of this solver."""


@dataclass(frozen=True)
class Result:
    """The outcome of one solver from one start.

    Attributes
    ----------
    vector : tensor
        The free parameters: the best on the validation data if there are any, else the last.
    objective : float
        The objective there.
    validation : float
        The mean log-likelihood of the validation data there (NaN if there are none).
    history : list of Record
        The start, and one for each iteration.
    reason : str
        Why it stopped: "converged", "max_iter", "early stopping", "schedule completed" (of learning rates) or
        "no further progress".
    seconds : float
        The time it took.
    evaluations : int
        How often the objective was computed on all data.
    solver : str
        The name of the solver.
    trail : list of tensor
        Vectors of earlier iterations, the latest first: all of the last few, ever fewer further back, and the start.
    """

    vector: Tensor
    objective: float
    validation: float
    history: list[Record] = field(repr=False)
    reason: str
    seconds: float
    evaluations: int
    solver: str
    trail: list[Tensor] = field(default_factory=list, repr=False)

    @property
    def converged(self) -> bool:
        """Whether it stopped by itself, and not because its iterations were used up."""
        return self.reason != MAX_ITER


def cap_for(first: float) -> float:
    """What stands for infinite objectives where the first one is known."""
    return max(INFINITE, 10 * abs(first)) if math.isfinite(first) else INFINITE


class Monitor:
    """Records the iterations of a solver and its best parameters on validation data, and decides when to stop.

    Parameters
    ----------
    validate : function
        The mean log-likelihood of the validation data for a vector, or None without such data.
    patience : int
        Stop when the validation has not improved in this number of iterations.
    report : function
        Called with every Record.
    shift : float
        Added to the objective in records and results: a change of units.
    watch : function
        Called with every Record and its vector; the solver stops when it returns True.
    """

    def __init__(
        self,
        validate: Callable[[Tensor], float] | None = None,
        patience: int = 20,
        report: Callable[[Record], None] | None = None,
        shift: float = 0.0,
        watch: Callable[[Record, Tensor], bool] | None = None,
    ):
        self._validate, self._patience, self._report, self._shift = validate, patience, report, shift
        self.watch = watch
        self._start = time.perf_counter()
        self._best: tuple[float, int, Tensor] | None = None
        self._vectors: dict[int, Tensor] = {}
        self.history: list[Record] = []

    def __call__(self, vector: Tensor, objective: float) -> bool:
        """Note one iteration; returns whether to stop early."""
        validation = math.nan if self._validate is None else self._validate(vector)
        seconds = time.perf_counter() - self._start
        record = Record(len(self.history), objective + self._shift, validation, seconds)
        self.history.append(record)
        self._remember(record.step, vector)
        if self._report is not None:
            self._report(record)
        stopped = self.watch is not None and self.watch(record, vector)
        if self._validate is None:
            return stopped
        if self._best is None or validation > self._best[0]:
            self._best = validation, record.step, vector.clone()
        return stopped or record.step - self._best[1] >= self._patience

    def _remember(self, step: int, vector: Tensor) -> None:
        """Keep a vector, and of the earlier ones a number that grows like the logarithm of the steps.

        The vector of a step is kept for four times as many steps as the largest power of two that divides it.
        """
        self._vectors[step] = vector.detach().clone()
        self._vectors = {s: v for s, v in self._vectors.items() if s == 0 or step - s < 4 * (s & -s)}

    def result(self, vector: Tensor, reason: str, evaluations: int, solver: str) -> Result:
        """The result of a solver that ended at a vector."""
        step = self.history[-1].step
        if self._best is not None:
            _, step, vector = self._best
        _, objective, validation, _ = self.history[step]
        seconds, final = time.perf_counter() - self._start, vector.detach().clone()
        trail = [self._vectors[earlier] for earlier in sorted(self._vectors, reverse=True) if earlier < step]
        return Result(final, objective, validation, self.history, reason, seconds, evaluations, solver, trail)


@dataclass(frozen=True)
class Solver(ABC):
    """A way to minimise an objective from a start. Each subclass is one method.

    Attributes
    ----------
    max_iter : int
        The largest number of iterations, generations or epochs; see `unit`.
    tol : float, default=1e-7
        Deterministic solvers and "cma" stop when the objective improves by less.
    seed : int, default=0
        Seed of everything random.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from rtbm.training import SOLVERS, ArrayBlocks, Family, Objective, Prior
    >>> x = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
    >>> family = Family(1, 1)
    >>> data = ArrayBlocks(x, torch.ones(50, dtype=torch.float64))
    >>> objective = Objective(family, data, Prior(1.0, np.ones(1)))
    >>> result = SOLVERS["lbfgs"](max_iter=50).minimise(objective, torch.zeros(family.n_parameters).double())
    >>> result.reason, result.solver
    ('converged', 'lbfgs')
    """

    max_iter: int
    tol: float = 1e-7
    seed: int = 0

    name: ClassVar[str]
    unit: ClassVar[str] = "iteration"
    """What `max_iter` counts."""
    takes_full_passes: ClassVar[bool] = False
    """Whether each iteration improves the objective on all data. Then a few iterations tell how good a start is, and
    data that are too large for memory can be read block by block."""

    def minimise(self, objective: Any, start: Tensor, monitor: Monitor | None = None) -> Result:
        """Minimise an objective from a start vector (n_parameters,); `monitor` follows the iterations."""
        return self._minimise(objective, start, monitor or Monitor())

    @abstractmethod
    def _minimise(self, objective: Any, start: Tensor, monitor: Monitor) -> Result:
        """The method of this solver."""
