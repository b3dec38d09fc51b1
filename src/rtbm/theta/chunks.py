"""Bounded memory and several threads: run a row-wise function a block of rows at a time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CPU_ELEMENTS = 2**19
"""Elements of one temporary on the CPU: 4 MiB. Larger ones leave the cache; smaller ones cost more calls."""
GPU_ELEMENTS = 2**26
"""Elements of one temporary on a GPU: 512 MiB. Smaller ones leave the GPU idle between calls."""
GRAPH_CHUNKS = {"cpu": 16, "cuda": 8}
"""Chunks whose temporaries a graph may keep. Beyond, the backward pass recomputes them: less memory, more time."""
POINTS_PER_THREAD = 2**14  # elementary pieces of work that pay for a thread


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


def in_chunks(
    function: Callable[..., Any],
    rows: Tensor,
    constants: Sequence[Tensor],
    width: int,
    elements: int | None = None,
    graph_chunks: int | None = None,
) -> Any:
    """function(rows, *constants) for rows (points, …), in chunks whose temporaries have `width` columns.

    Parameters
    ----------
    function
        Returns a tensor, or a tuple of tensors, with one row for each row of its argument.
    elements : int, default=CPU_ELEMENTS or GPU_ELEMENTS
        The largest number of elements of a temporary.
    graph_chunks : int, default=GRAPH_CHUNKS
        The number of chunks whose temporaries a graph may keep; with more, the backward pass recomputes them.
    """
    device = "cuda" if rows.is_cuda else "cpu"
    elements = elements or (GPU_ELEMENTS if rows.is_cuda else CPU_ELEMENTS)
    graph_chunks = GRAPH_CHUNKS[device] if graph_chunks is None else graph_chunks
    size = max(1, elements // max(width, 1))
    if len(rows) <= size:
        return function(rows, *constants)
    keeps_graph = torch.is_grad_enabled() and any(t.requires_grad for t in (rows, *constants))
    recompute = keeps_graph and len(rows) * width > graph_chunks * elements
    parts = [
        checkpoint(function, part, *constants, use_reentrant=False, preserve_rng_state=False)
        if recompute
        else function(part, *constants)
        for part in rows.split(size)
    ]
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))
