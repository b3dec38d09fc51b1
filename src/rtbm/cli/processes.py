"""The command under torchrun: one process group, and one process that speaks."""

import contextlib
import os
from collections.abc import Iterator

from rtbm.training.distributed import rank_and_world


@contextlib.contextmanager
def process_group(device: str | None) -> Iterator[None]:
    """Join the other processes that torchrun has started, if there are any."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    from torch import distributed

    distributed.init_process_group("nccl" if device and device.startswith("cuda") else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process is the one that writes and prints."""
    return rank_and_world()[0] == 0
