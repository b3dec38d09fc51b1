"""The command under torchrun: one process group, in which the first process prints and writes."""

import contextlib
import os
from collections.abc import Iterator

from rtbm.training.distributed import rank_and_world


@contextlib.contextmanager
def process_group(device: str | None) -> Iterator[None]:
    """Join the processes that torchrun has started, if any; each takes the GPU of its own number."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    from torch import cuda, distributed

    on_gpu = device is not None and device.startswith("cuda")
    if on_gpu:
        cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % cuda.device_count())
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        distributed.destroy_process_group()


def is_first_process() -> bool:
    """Whether this process prints and writes."""
    return rank_and_world()[0] == 0
