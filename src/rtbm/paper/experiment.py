"""What every experiment of the paper offers: jobs to run, tables, verdicts and pictures."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

Outcome = dict[str, Any]
"""The numbers of a run, as JSON holds them."""

REPRODUCED, BEATEN, NOT_REACHED, NOTED = "reproduced", "beaten", "not reached", "beyond the paper"
"""What became of a claim of the paper; the last is for results that the paper says nothing about."""


class Job(NamedTuple):
    """A part of an experiment that is run and kept by itself."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class Table(NamedTuple):
    """Numbers to print."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    best: tuple[int, ...] = ()
    """The column that is best, for each row, or -1."""


class Verdict(NamedTuple):
    """What became of a claim, and the figures behind it."""

    status: str
    text: str


class Picture(NamedTuple):
    """A figure, beside what the paper shows in its place."""

    name: str
    """Part of the name of its file."""
    paper: str
    """What the paper shows, or nothing."""
    ours: str
    draw: Callable[[Outcome], Figure]


class Experiment(NamedTuple):
    """An experiment of the paper, or one beyond it."""

    title: str
    about: str
    """What is done, in a few sentences."""
    seeds: int
    """How many seeds the full run takes."""
    quick_seeds: int
    seconds: tuple[float, float]
    """Roughly, of one process, for all seeds of the full run and of the quick one."""
    jobs: Callable[[int, bool], list[Job]]
    """jobs(seeds, quick)."""
    collect: Callable[[Mapping[str, Any], int, bool], Outcome]
    """collect(results by key, seeds, quick)."""
    tables: Callable[[Outcome], list[Table]]
    verdicts: Callable[[Outcome], list[Verdict]]
    pictures: tuple[Picture, ...]
