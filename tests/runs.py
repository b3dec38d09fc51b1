"""Run experiments without the command."""

from collections.abc import Callable
from typing import Any

from experiments.runner import Run, run_jobs, take_parts


def finish(run: Run, advance: Callable[[str], None] = lambda key: None, n_jobs: int | None = 1) -> dict[str, Any]:
    """Run the missing jobs, and return the outcome; `advance` is called with the key of each job that was run."""
    missing = run.missing()
    return run.collect(take_parts(run_jobs([(job, run.parts) for job in missing], n_jobs), missing, advance))[0]
