"""Run an experiment job by job, and keep what is finished, so that an interrupted run can go on."""

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Mapping
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
PRESENTATION = ("cli", "plotting.py", "report.py")
"""What no number depends on."""


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
        if path.relative_to(folder).parts[0] not in PRESENTATION:
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

    def read(self, job: Job) -> dict[str, Any] | None:
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
    jobs = experiment.jobs(seeds, quick)
    if len({job.key for job in jobs}) < len(jobs):
        raise InvalidInputError("the jobs of an experiment must have different keys")
    kept: dict[str, Any] = {}
    missing = unfinished(experiment, seeds, quick, parts)
    calls = (joblib.delayed(_run)(job, parts) for job in missing)
    for job, (result, seconds) in zip(missing, in_parallel(n_jobs, calls), strict=True):
        kept[job.key] = {"result": result, "seconds": seconds}
        advance(job.key)
    if parts is not None:
        kept |= {job.key: parts.read(job) for job in jobs if job.key not in kept}
    results: Mapping[str, Any] = {job.key: json.loads(json.dumps(kept[job.key]["result"])) for job in jobs}
    return experiment.collect(results, seeds, quick), sum(kept[job.key]["seconds"] for job in jobs)


def _run(job: Job, parts: Parts | None) -> tuple[Any, float]:
    """The result of a job, which is kept as soon as it is there, and the seconds that it took."""
    torch.set_num_threads(1)
    start = time.perf_counter()
    result = job.function(*job.arguments)
    seconds = time.perf_counter() - start
    if parts is not None:
        parts.write(job, result, seconds)
    return result, seconds
