"""Sums over the processes of torch.distributed, and what they do when there is only one."""

from typing import Any

from torch import Tensor, distributed


def is_distributed() -> bool:
    """Whether a process group has been started, for instance under torchrun."""
    return distributed.is_available() and distributed.is_initialized()


def rank_and_world() -> tuple[int, int]:
    """The number of this process, and how many there are."""
    return (distributed.get_rank(), distributed.get_world_size()) if is_distributed() else (0, 1)


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same in each of them."""
    if is_distributed():
        tensor = tensor.clone()
        distributed.all_reduce(tensor)
    return tensor


def same_for_all(tensor: Tensor) -> Tensor:
    """The tensor of the first process, in each of them."""
    if is_distributed():
        tensor = tensor.clone()
        distributed.broadcast(tensor, src=0)
    return tensor


def gather_objects(value: Any) -> list[Any]:
    """The values of all processes, in the order of their numbers."""
    if not is_distributed():
        return [value]
    values: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(values, value)
    return values
