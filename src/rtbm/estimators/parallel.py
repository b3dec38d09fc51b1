"""Calls that joblib runs at the same time, with results as they come where the backend allows it."""

import contextlib
import functools
import threading
import warnings
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import joblib
import torch
from joblib.parallel import get_active_backend
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import ThreadpoolController

from rtbm.errors import SpikeWarning

THREADED_ROWS = 50_000
"""Fits of at most this many rows use one thread each and share a process; larger ones get processes of their own."""


def in_parallel(n_jobs: int | None, calls: Iterable[Any], threads: bool = False) -> Iterator[Any]:
    """The results of `joblib.delayed` calls in their order.

    With `threads` they run in threads instead of processes, which take longer to start, unless another backend of
    joblib has been chosen.
    """
    is_lazy = getattr(get_active_backend()[0], "supports_return_generator", False)
    prefer = "threads" if threads else None
    yield from joblib.Parallel(n_jobs=n_jobs, return_as="generator" if is_lazy else "list", prefer=prefer)(calls)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress warnings that concern a single one of many fits. Filters are set in the main thread, for all threads."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", SpikeWarning)
        warnings.filterwarnings("ignore", ".*(linearly dependent|than float64 can tell).*", RuntimeWarning)
        yield


@contextlib.contextmanager
def threads_for(rows: int) -> Iterator[None]:
    """Limit BLAS to one thread, and torch too for small data. Limits may be nested and used in several threads."""
    with _limits.lock:
        if _limits.depth == 0:
            _limits.restore.callback(torch.set_num_threads, torch.get_num_threads())
            _limits.restore.enter_context(_blas().limit(limits=1, user_api="blas"))
            if rows <= THREADED_ROWS:
                torch.set_num_threads(1)
        _limits.depth += 1
    try:
        yield
    finally:
        with _limits.lock:
            _limits.depth -= 1
            if _limits.depth == 0:
                _limits.restore.close()


_limits = SimpleNamespace(lock=threading.Lock(), depth=0, restore=contextlib.ExitStack())
"""What `threads_for` shares among threads; `restore` undoes the outermost limit."""


@functools.cache
def _blas() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  its BLAS counts, and has to be there when libraries are looked for

    return ThreadpoolController()
