"""Progress of fits: bars with likelihood, validation, start number and time left, and functions that watch."""

import contextlib
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from torch import Tensor

from rtbm.estimators.multistart import Report, Watch
from rtbm.training import Record


class Iteration(NamedTuple):
    """One iteration of a fit, for a function that watches."""

    estimator: Any
    """The estimator that is being fitted; in a committee, one of its members."""
    start: int
    record: Record
    model: Callable[[], Any]
    """Makes the density, or the network, of this iteration."""


_watch: ContextVar[Callable[[Iteration], bool] | None] = ContextVar("watch", default=None)
"""The function that watches the fits of this thread."""


@contextlib.contextmanager
def watch_fits(watch: Callable[[Iteration], bool]) -> Iterator[None]:
    """Call a function after each iteration of all fits in this block and thread (n_jobs=None, data in memory).

    If it returns True, the fit ends with the model that it has so far. An exception in it ends the fit without a model.

    Examples
    --------
    >>> from rtbm import RTBMDensity, datasets
    >>> steps = []
    >>> with watch_fits(lambda iteration: steps.append(iteration.record.step) or len(steps) > 2):
    ...     model = RTBMDensity(1, n_init=1, random_state=0).fit(datasets.gamma.sample(200))
    >>> steps, model.summary_["reason"]
    ([0, 1, 2], 'early stopping')
    """
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)


def watch_of(estimator: Any, make_model: Callable[[Tensor], Any]) -> Watch | None:
    """The function that watches a fit of an estimator; None if there is none. `make_model` takes a vector."""
    watch = _watch.get()
    if watch is None:
        return None
    return lambda start, record, vector: watch(Iteration(estimator, start, record, lambda: make_model(vector)))


@contextlib.contextmanager
def progress_bar(
    n_runs: int, title: str = "fitting", is_likelihood: bool = True, unit: str = "start", shown: bool = True
) -> Iterator[Report | None]:
    """A bar on the error stream that advances with every run of the solver and shows what the solver last reported.

    `n_runs` is the most runs that there may be; the bar ends full, with the number that there were. Yields None, and
    shows nothing, unless `shown`.
    """
    if not shown:
        yield None
        return
    with _bar(title, n_runs, 10, "{task.fields[state]}") as update:
        runs, last = 0, (-1, math.inf)

        def report(start: int, record: Record) -> None:
            nonlocal runs, last
            is_new = start != last[0] or record.step <= last[1]
            runs, last = runs + is_new, (start, record.step)
            where = f"{unit} {start + 1}" if start >= 0 else "all data"
            value = f"log L + prior {-record.objective:.4f}" if is_likelihood else f"objective {record.objective:.4f}"
            known = "" if math.isnan(record.validation) else f" validation {record.validation:.4f}"
            update(completed=runs - 1, state=f"{where} step {record.step} {value}{known}")

        yield report
        update(completed=runs or n_runs)


@contextlib.contextmanager
def counting_bar(total: int, title: str, shown: bool) -> Iterator[Callable[[], None]]:
    """A bar on the error stream that counts; or nothing, if it is not to be shown.

    `total` is the largest count that there may be; the bar ends full, with the count that there was.
    """
    if not shown:
        yield lambda: None
        return
    with _bar(title, total, 20) as update:
        yield lambda: update(advance=1)


@contextlib.contextmanager
def _bar(title: str, total: int, width: int, *texts: str) -> Iterator[Callable[..., None]]:
    """A bar with further texts after the count; yields the function that updates it. The bar ends full."""
    from rich.console import Console  # here, since only verbose fits need it
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(bar_width=width), MofNCompleteColumn()]
    with Progress(*columns, *map(TextColumn, texts), TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, state="")
        yield lambda **changes: bar.update(task, **changes)
        bar.update(task, total=bar.tasks[0].completed)
