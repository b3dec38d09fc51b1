"""Fits in threads of their own, so that the page goes on: followed while they run, and stopped on request."""

import threading
from collections.abc import Callable
from typing import Any

from rtbm.errors import RTBMError
from rtbm.estimators.progress import Iteration, watch_fits


class _StoppedError(Exception):
    """Ends a committee, which would go on with its next member."""


class Job:
    """A fit in a thread. Attributes change while it runs; `model` or `error` is there when it has ended.

    Parameters
    ----------
    fit : function
        Fits and returns a model. A committee is stopped between two members: the member with the best `score` is then
        the model.
    score : function
        How good a member of a committee is.

    Attributes
    ----------
    runs : list of lists
        The objective by step, of each run of the solver.
    latest : Iteration or None
        The last iteration.
    model : estimator or None
        What was fitted: until the end, or until it was stopped.
    error : str
        Why there is no model.
    """

    def __init__(self, fit: Callable[[], Any], score: Callable[[Any], float] = lambda model: 0.0):
        self._fit, self._score, self._stop = fit, score, threading.Event()
        self._members: list[Any] = []
        self._last_run: Any = None
        self.runs: list[list[float]] = []
        self.latest: Iteration | None = None
        self.model: Any = None
        self.error = ""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the fit goes on."""
        return self._thread.is_alive()

    @property
    def was_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Ask the fit to end with the model that it has. It does so after its current iteration."""
        self._stop.set()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for the end."""
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            with watch_fits(self._watch):
                self.model = self._fit()
        except _StoppedError:
            self.model = max(self._members, key=self._score)
        except (RTBMError, ValueError, RuntimeError, MemoryError, Warning) as error:
            self.error = str(error) or type(error).__name__

    def _watch(self, iteration: Iteration) -> bool:
        if not self._members or iteration.estimator is not self._members[-1]:
            if self._members and self._stop.is_set():
                raise _StoppedError
            self._members.append(iteration.estimator)
        run = len(self._members), iteration.start
        if run != self._last_run or iteration.record.step == 0:
            self.runs.append([])
        self._last_run, self.latest = run, iteration
        self.runs[-1].append(iteration.record.objective)
        return self._stop.is_set()
