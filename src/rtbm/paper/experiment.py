"""What every experiment of the paper offers: a run, a table, verdicts and a picture."""

from collections.abc import Callable
from typing import Any, NamedTuple

from matplotlib.figure import Figure

Outcome = dict[str, Any]
"""The numbers of a run, as JSON holds them."""
Advance = Callable[[str], None]
"""Called with what has just been finished."""


class Table(NamedTuple):
    """Numbers to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Experiment(NamedTuple):
    """An experiment of the paper."""

    title: str
    seeds: int
    """How many seeds the full run takes."""
    quick_seeds: int
    run: Callable[[int, bool, int | None, Advance], Outcome]
    """run(seeds, quick, n_jobs, advance)."""
    steps: Callable[[int, bool], int]
    """How often `advance` will be called."""
    tables: Callable[[Outcome], list[Table]]
    verdicts: Callable[[Outcome], list[str]]
    draw: Callable[[Outcome], Figure]
