"""Process groups of torch.distributed. A single process gets back what it gives."""

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator
from typing import Any

from torch import cuda, distributed

Outcome = tuple[Any, BaseException | None]
"""What a function returned, or the error that it raised."""


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
    values = [value]
    if is_distributed():
        with _connected():
            distributed.broadcast_object_list(values, src=0)
    return values[0]


def gather_objects(value: Any) -> list[Any]:
    """The values of all processes, in the order of their numbers."""
    values = [value] * rank_and_world()[1]
    if is_distributed():
        with _connected():
            distributed.all_gather_object(values, value)
    return values


def attempt(function: Callable[..., Any], *arguments: Any) -> Outcome:
    """The outcome of a function, in a form that other processes can be sent."""
    try:
        return function(*arguments), None
    except BaseException as error:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return None, RuntimeError(f"{type(error).__name__}: {error}")
        return None, error


def results(outcomes: list[Outcome]) -> list[Any]:
    """What functions returned. The first error, if there is one, is raised."""
    for _, error in outcomes:
        if error is not None:
            raise error
    return [value for value, _ in outcomes]


@contextlib.contextmanager
def _connected() -> Iterator[None]:
    """Report that another process has died. It is not an RTBMError, which solvers would take for a failed step."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ConnectionError(f"another process of this fit has ended or cannot be reached ({reason})") from None
