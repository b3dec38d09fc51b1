"""What an experiment is: jobs, and the tables, verdicts and pictures that are made of their results."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from experiments.verdicts import MIN_PAIRS, Status, Verdict

Outcome = dict[str, Any]
"""The numbers of a run, as JSON holds them: "seeds", "quick", and those of the experiment."""


class Job(NamedTuple):
    """A part of an experiment that runs, and is kept, by itself: function(*arguments)."""

    key: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class ResultTable(NamedTuple):
    """Numbers to print, as text."""

    title: str
    columns: list[str]
    rows: list[list[str]]
    best: tuple[int, ...] = ()
    """For each row the column to highlight, or -1; empty to highlight none."""


class Picture(NamedTuple):
    """A figure, and what the paper shows in its place."""

    name: str
    """Part of the file name."""
    paper: str
    """What the paper shows; empty if it has no such figure."""
    ours: str
    draw: Callable[[Outcome], Figure]


class Experiment(NamedTuple):
    """An experiment of the paper, or one beyond it. Pairs are for a full run and a quick one."""

    title: str
    about: str
    """What is done, in a few sentences."""
    seeds: tuple[int, int]
    """Number of seeds, or of random splits."""
    seconds: tuple[float, float]
    """Approximate time of one process for all seeds."""
    jobs: Callable[[int, bool], list[Job]]
    """jobs(seeds, quick)."""
    collect: Callable[[Mapping[str, Any], int, bool], Outcome]
    """collect(results by key, seeds, quick)."""
    tables: Callable[[Outcome], list[ResultTable]]
    verdicts: Callable[[Outcome], list[Verdict]]
    pictures: tuple[Picture, ...]

    def judge(self, outcome: Outcome) -> list[Verdict]:
        """The verdicts. With fewer than MIN_PAIRS seeds, a claim that is not reached says that they are too few."""
        lines = self.verdicts(outcome)
        if outcome["seeds"] >= MIN_PAIRS:
            return lines
        return [v._replace(status=Status.TOO_FEW) if v.status == Status.NOT_REACHED else v for v in lines]
