"""Progress bars for fits: likelihood, validation, start number, time left."""

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

from rtbm.estimators.search import Report
from rtbm.training import Record


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
