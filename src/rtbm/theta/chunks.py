"""Bounded memory and several threads: run a row-wise function a block of rows at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CPU_ELEMENTS = 2**19
"""Elements of one temporary on the CPU: 4 MiB."""
GPU_ELEMENTS = 2**26
GRAPH_ELEMENTS = 2**23
"""Above this many elements in all, the backward pass recomputes a block instead of keeping its temporaries."""


POINTS_PER_THREAD = 2**14


def run_threads(function: Callable[[int, int], Any], rows: int, work: int | None = None) -> list[Any]:
    """function(start, stop) over all rows, in as many threads as torch uses and the work pays for; their results.

    `work` is the number of elementary pieces, by default one for each row.
    """
    threads = min(torch.get_num_threads(), (rows if work is None else work) // POINTS_PER_THREAD, rows)
    if threads <= 1:
        return [function(0, rows)]
    edges = [rows * i // threads for i in range(threads + 1)]
    with ThreadPoolExecutor(threads - 1) as pool:
        others = pool.map(function, edges[1:-1], edges[2:])
        return [function(0, edges[1]), *others]


def in_chunks(function: Callable[..., Any], rows: Tensor, constants: Sequence[Tensor], width: int) -> Any:
    """function(rows, *constants) for rows (points, …), in blocks whose temporaries have `width` columns.

    The function returns a tensor, or a tuple of tensors, with one row for each row of its argument.
    """
    elements = GPU_ELEMENTS if rows.is_cuda else CPU_ELEMENTS
    size = max(1, elements // max(width, 1))
    if len(rows) <= size:
        return function(rows, *constants)
    keeps_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (rows, *constants))
    recompute = keeps_graph and len(rows) * width > (8 * GPU_ELEMENTS if rows.is_cuda else GRAPH_ELEMENTS)
    parts = [
        checkpoint(function, part, *constants, use_reentrant=False, preserve_rng_state=False)
        if recompute
        else function(part, *constants)
        for part in rows.split(size)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
