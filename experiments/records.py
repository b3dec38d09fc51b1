"""Scores of methods on many samples or splits: jobs that compute them, and text for tables."""

import functools
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.experiment import Job, Outcome, ResultTable
from rtbm.common import Floats


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """The result of a function, and the seconds that it took."""
    start = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - start


def seeded_jobs(function: Callable[..., Any], cases: Iterable[str], seeds: int, *arguments: Any) -> list[Job]:
    """A job function(case, seed, *arguments) for each case and seed."""
    pairs = [(case, seed) for seed in range(seeds) for case in cases]
    return [Job(f"{case}, seed {seed}", function, (case, seed, *arguments)) for case, seed in pairs]


def collect_records(results: Mapping[str, Any], cases: Iterable[str], seeds: int, quick: bool) -> Outcome:
    """The outcome of `seeded_jobs`: under "records" the results of each case, in the order of the seeds."""
    records = {case: [results[f"{case}, seed {seed}"] for seed in range(seeds)] for case in cases}
    return {"seeds": seeds, "quick": quick, "records": records}


def seeded(function: Callable[..., Any], cases: Iterable[str]) -> dict[str, Any]:
    """The jobs and the collection of an experiment whose jobs are function(case, seed, quick)."""
    return {
        "jobs": lambda seeds, quick: seeded_jobs(function, cases, seeds, quick),
        "collect": lambda results, seeds, quick: collect_records(results, cases, seeds, quick),
    }


def method_names(outcome: Outcome) -> list[str]:
    """The methods that were run, where each record holds all of them."""
    return list(next(iter(outcome["records"].values()))[0])


def seconds_table(outcome: Outcome, titles: Sequence[str], column: str) -> ResultTable:
    """The mean time of a fit of each method, with a row for each case."""
    names = method_names(outcome)
    rows = [
        [title, *(f"{values(records, name, 'seconds').mean():.2f}" for name in names)]
        for title, records in zip(titles, outcome["records"].values(), strict=True)
    ]
    return ResultTable("Seconds of a fit on one core, with the choice of hyper-parameters", [column, *names], rows)


def values(records: Sequence[Mapping[str, Any]], *keys: str) -> Floats:
    """One number of each record, found by its keys.

    Examples
    --------
    >>> values([{"GMM": {"error": 1.0}}, {"GMM": {"error": 2.0}}], "GMM", "error")
    array([1., 2.])
    """
    return np.array([functools.reduce(operator.getitem, keys, record) for record in records])


def with_deviation(numbers: Floats, form: str) -> str:
    """Mean and standard deviation as text.

    Examples
    --------
    >>> with_deviation(np.array([1.0, 2.0, 3.0]), ".1f")
    '2.0 ± 1.0'
    """
    return f"{numbers.mean():{form}} ± {numbers.std(ddof=1):{form}}"


def with_error(numbers: Floats, form: str, error_form: str) -> str:
    """Mean and its standard error as text."""
    return f"{numbers.mean():{form}} ± {numbers.std(ddof=1) / len(numbers) ** 0.5:{error_form}}"
