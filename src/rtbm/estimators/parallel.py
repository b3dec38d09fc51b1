"""Calls that joblib runs at the same time, with results as they come where the backend allows it."""

from collections.abc import Iterable, Iterator
from typing import Any

import joblib
from joblib.parallel import get_active_backend


def in_parallel(n_jobs: int | None, calls: Iterable[Any]) -> Iterator[Any]:
    """The results of `joblib.delayed` calls in their order."""
    is_lazy = getattr(get_active_backend()[0], "supports_return_generator", False)
    yield from joblib.Parallel(n_jobs=n_jobs, return_as="generator" if is_lazy else "list")(calls)
