"""Run an experiment job by job, and keep finished jobs, so that an interrupted run can continue."""

import hashlib
import json
import platform
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import torch
from sklearn.exceptions import ConvergenceWarning

import rtbm
from experiments.experiment import Experiment, Job, Outcome
from experiments.records import timed
from rtbm.errors import InvalidInputError
from rtbm.estimators.parallel import in_parallel
from rtbm.paths import write_whole

NUMERICAL_PACKAGES = (
    "torch",
    "numpy",
    "scipy",
    "scikit-learn",
    "zuko",
    "pyvinecopulib",
    "ngboost",
    "statsforecast",
    "statsmodels",
)
"""Packages that results depend on. Another version of any of them makes finished jobs run again."""
PRESENTATION = ("cli", "explorer", "output.py", "plotting.py", "__main__.py", "report.py")
"""Files that no result depends on. Changes to them leave finished jobs valid."""

Part = dict[str, Any]
"""The result of a job under "result", and how many seconds it took under "seconds"."""


@cache
def versions() -> dict[str, str]:
    """The versions of all that results depend on."""
    found = {"rtbm": rtbm.__version__, "python": platform.python_version(), "machine": platform.machine()}
    for name in NUMERICAL_PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


@cache
def fingerprint() -> str:
    """A hash of the versions and of all code of the library and the experiments, except for presentation."""
    digest = hashlib.sha256(json.dumps(versions()).encode())
    for folder in (Path(rtbm.__file__).parent, Path(__file__).parent):
        for path in sorted(folder.rglob("*.py")):
            if not path.relative_to(folder).as_posix().startswith(PRESENTATION):
                digest.update(path.read_bytes())
    return digest.hexdigest()


class Parts:
    """The results of finished jobs, one file each in a folder. Results of other code count as missing."""

    def __init__(self, folder: Path):
        self._folder, self._fingerprint = folder, fingerprint()

    def read(self, job: Job) -> Part | None:
        """The part that was written for a job; None if there is none, or if it is damaged or of other code."""
        try:
            part = json.loads(self._path(job).read_text())
            is_valid = (part["key"], part["fingerprint"]) == (job.key, self._fingerprint)
            return part if is_valid and {"result", "seconds"} <= part.keys() else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, job: Job, part: Part) -> None:
        """Write a part, in full or not at all."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(job), json.dumps({"key": job.key, "fingerprint": self._fingerprint, **part}).encode())

    def _path(self, job: Job) -> Path:
        name = re.sub(r"[^a-z0-9]+", "-", job.key.lower()).strip("-")
        return self._folder / f"{name}-{hashlib.sha256(job.key.encode()).hexdigest()[:8]}.json"


class Run(NamedTuple):
    """A run of an experiment: its number of seeds, full or quick, and where finished parts are kept (None: nowhere)."""

    experiment: Experiment
    seeds: int
    quick: bool
    parts: Parts | None = None

    def jobs(self) -> list[Job]:
        """All jobs, whose keys must differ."""
        jobs = self.experiment.jobs(self.seeds, self.quick)
        if not jobs:
            title = self.experiment.title
            raise InvalidInputError(f"{title}: no data are installed; install the package with the extra 'bench'")
        if len({job.key for job in jobs}) < len(jobs):
            raise InvalidInputError("the jobs of an experiment must have different keys")
        return jobs

    def missing(self) -> list[Job]:
        """The jobs that still have to run."""
        return [job for job in self.jobs() if self.parts is None or self.parts.read(job) is None]

    def expected_seconds(self, n_missing: int, n_jobs: int) -> float:
        """Approximate time for the missing jobs in n_jobs processes."""
        seconds_per_seed = self.experiment.seconds[self.quick] / self.experiment.seeds[self.quick]
        return seconds_per_seed * self.seeds * n_missing / len(self.jobs()) / n_jobs

    def collect(self, new: Mapping[str, Part]) -> tuple[Outcome, float]:
        """The outcome from new parts and kept ones, and the seconds that their jobs took, summed over processes."""
        found = {job.key: new.get(job.key) or (self.parts and self.parts.read(job)) or {} for job in self.jobs()}
        results = {key: json.loads(json.dumps(part["result"])) for key, part in found.items()}
        outcome = self.experiment.collect(results, self.seeds, self.quick)
        return outcome, sum(part["seconds"] for part in found.values())


def run_jobs(jobs: Iterable[tuple[Job, Parts | None]], n_jobs: int | None) -> Iterator[Part]:
    """Run jobs in parallel, and yield their parts in order.

    Jobs of several experiments in one call keep all processes busy while the tables and pictures of finished
    experiments are made.
    """
    return in_parallel(n_jobs, (joblib.delayed(run_job)(job, parts) for job, parts in jobs))


def take_parts(parts: Iterator[Part], jobs: Iterable[Job], advance: Callable[[str], None]) -> dict[str, Part]:
    """The next parts by the keys of their jobs; `advance` is called with each key."""
    taken = {}
    for job in jobs:
        taken[job.key] = next(parts)
        advance(job.key)
    return taken


def run_job(job: Job, parts: Parts | None = None) -> Part:
    """Run a job on one thread, without warnings about convergence, and keep its result at once."""
    torch.set_num_threads(1)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        result, seconds = timed(job.function, *job.arguments)
    part = {"result": result, "seconds": seconds}
    if parts is not None:
        parts.write(job, part)
    return part
