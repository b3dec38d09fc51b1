"""Process groups of torch.distributed, and sums over them. A single process gets back what it gives."""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from torch import cuda, distributed

from rtbm.errors import RTBMError


def is_distributed() -> bool:
    """Whether a process group has been started, for instance under torchrun."""
    return distributed.is_available() and distributed.is_initialized()


@contextlib.contextmanager
def process_group(device: str | None) -> Iterator[None]:
    """Join the processes that torchrun has started, if any; each takes the GPU of its own number."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    on_gpu = device is not None and device.startswith("cuda")
    if on_gpu:
        cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % cuda.device_count())
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def rank_and_world() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (distributed.get_rank(), distributed.get_world_size()) if is_distributed() else (0, 1)


def broadcast_object(value: Any) -> Any:
    """The value of the first process, in each of them."""
    if not is_distributed():
        return value
    values = [value]
    with _connected():
        distributed.broadcast_object_list(values, src=0)
    return values[0]


def gather_objects(value: Any) -> list[Any]:
    """The values of all processes, in the order of their numbers."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    with _connected():
        distributed.all_gather_object(values, value)
    return values


def result_or_error(function: Callable[[], Any]) -> tuple[Any, Exception | None]:
    """What a function returns, or else the error that it raises, in a form that other processes can be sent."""
    try:
        return function(), None
    except Exception as error:
        return None, portable(error)


def all_succeed(function: Callable[[], Any]) -> Any:
    """What a function returns in this process, unless it fails in any: then all processes raise the error."""
    value, error = result_or_error(function)
    raise_first(gather_objects(error))
    return value


def collect(function: Callable[[], Any]) -> list[Any]:
    """What a function returns in each process. An error in one of them is raised in all."""
    outcomes = gather_objects(result_or_error(function))
    raise_first([error for _, error in outcomes])
    return [value for value, _ in outcomes]


def raise_first(errors: list[Exception | None]) -> None:
    """Raise the first error, if there is one."""
    for error in errors:
        if error is not None:
            raise error


def portable(error: Exception) -> Exception:
    """An error that can be pickled: itself, or an RTBMError with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RTBMError(str(error))
    return error


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Report that another process has died. It is not an RTBMError, which solvers would take for a failed step."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(f"another process of this fit has ended or cannot be reached ({reason})") from None
