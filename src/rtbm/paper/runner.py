"""Run an experiment job by job, and keep what is finished, so that an interrupted run can go on."""

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import joblib
import torch

import rtbm
from rtbm.errors import InvalidInputError
from rtbm.estimators.parallel import in_parallel
from rtbm.paper.experiment import Experiment, Job, Outcome
from rtbm.paths import write_whole

PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "zuko")
"""What numbers depend on, beside the library."""
PRESENTATION = ("cli", "plotting.py", "paper/report.py")
"""What no number depends on."""

Part = dict[str, Any]
"""The result of a job under "result", and how many seconds it took under "seconds"."""


@cache
def versions() -> dict[str, str]:
    """The versions of all that numbers depend on."""
    found = {"rtbm": rtbm.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def fingerprint() -> str:
    """A hash of the versions and of the library's code, as far as it computes."""
    folder = Path(rtbm.__file__).parent
    digest = hashlib.sha256(json.dumps(versions()).encode())
    for path in sorted(folder.rglob("*.py")):
        if not path.relative_to(folder).as_posix().startswith(PRESENTATION):
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Parts:
    """The results of finished jobs, each in a file of its own; those of other code count as missing.

    Parameters
    ----------
    folder : Path
        Where they are; it is made when the first is written.
    """

    def __init__(self, folder: Path):
        self._folder, self._fingerprint = folder, fingerprint()

    def read(self, job: Job) -> Part | None:
        """What `write` was given, or None."""
        try:
            part = json.loads(self._path(job).read_text())
        except (OSError, ValueError):
            return None
        if not isinstance(part, dict) or not {"result", "seconds"} <= part.keys():
            return None
        return part if (part.get("key"), part.get("fingerprint")) == (job.key, self._fingerprint) else None

    def write(self, job: Job, result: Any, seconds: float) -> None:
        """Keep a result, whole or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        part = {"key": job.key, "fingerprint": self._fingerprint, "seconds": seconds, "result": result}
        write_whole(self._path(job), json.dumps(part).encode())

    def _path(self, job: Job) -> Path:
        name = re.sub(r"[^a-z0-9]+", "-", job.key.lower()).strip("-")
        return self._folder / f"{name}-{hashlib.sha256(job.key.encode()).hexdigest()[:8]}.json"


def unfinished(experiment: Experiment, seeds: int, quick: bool, parts: Parts | None) -> list[Job]:
    """The jobs of which nothing is kept."""
    jobs = experiment.jobs(seeds, quick)
    if len({job.key for job in jobs}) < len(jobs):
        raise InvalidInputError("the jobs of an experiment must have different keys")
    return jobs if parts is None else [job for job in jobs if parts.read(job) is None]


def expected_seconds(experiment: Experiment, seeds: int, quick: bool, left: int, n_jobs: int) -> float:
    """Roughly how long the jobs that are left will take."""
    usual = experiment.seconds[quick] / (experiment.quick_seeds if quick else experiment.seeds)
    return usual * seeds * left / len(experiment.jobs(seeds, quick)) / n_jobs


def run(
    experiment: Experiment,
    seeds: int,
    quick: bool,
    n_jobs: int | None = None,
    advance: Callable[[str], None] = lambda key: None,
    parts: Parts | None = None,
) -> tuple[Outcome, float]:
    """The outcome of an experiment, and the seconds that its jobs took, summed over processes.

    `advance` is called with the key of each job that has been run; those whose results are kept are not run again.
    """
    missing = unfinished(experiment, seeds, quick, parts)
    results = run_jobs([(job, parts) for job in missing], n_jobs)
    return collect(experiment, seeds, quick, take(results, missing, advance), parts)


def run_jobs(jobs: Iterable[tuple[Job, Parts | None]], n_jobs: int | None) -> Iterator[Part]:
    """The results of jobs in their order.

    Jobs of several experiments in one call keep all processes busy while the tables and pictures of those that are
    finished are made.
    """
    return in_parallel(n_jobs, (joblib.delayed(_run)(job, parts) for job, parts in jobs))


def take(results: Iterator[Part], jobs: Iterable[Job], advance: Callable[[str], None]) -> dict[str, Part]:
    """The next results by the keys of their jobs; `advance` is called with each key."""
    taken = {}
    for job in jobs:
        taken[job.key] = next(results)
        advance(job.key)
    return taken


def collect(
    experiment: Experiment, seeds: int, quick: bool, new: Mapping[str, Part], parts: Parts | None = None
) -> tuple[Outcome, float]:
    """The outcome of an experiment from new results and kept ones, and the seconds that they took."""
    jobs = experiment.jobs(seeds, quick)
    kept = {job.key: new[job.key] if parts is None or job.key in new else parts.read(job) or {} for job in jobs}
    results: Mapping[str, Any] = {key: json.loads(json.dumps(part["result"])) for key, part in kept.items()}
    return experiment.collect(results, seeds, quick), sum(part["seconds"] for part in kept.values())


def _run(job: Job, parts: Parts | None) -> Part:
    """Run a job, and keep its result as soon as it is there."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    result = job.function(*job.arguments)
    seconds = time.perf_counter() - start
    if parts is not None:
        parts.write(job, result, seconds)
    return {"result": result, "seconds": seconds}
