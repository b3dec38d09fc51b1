"""Where batches of data come from: arrays, loaders, and files that are larger than memory."""

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError

Batch = tuple[Tensor, Tensor]
"""Points (b, Nv) and their weights (b,)."""


class Batches(Protocol):
    """A source of batches that can be read once for every epoch."""

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""


class ArrayBatches:
    """Batches of an array in memory, in a new order each epoch.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        The data.
    batch_size : int
        Rows in a batch, over all processes; None takes all rows at once.
    seed : int
        For the orders.
    rank, world : int
        This process takes each batch's rows rank, rank + world, …

    Examples
    --------
    >>> batches = ArrayBatches(torch.zeros(5, 1), torch.ones(5), batch_size=2)
    >>> [len(x) for x, _ in batches.epoch(0)]
    [2, 2, 1]
    """

    def __init__(
        self, x: Tensor, weights: Tensor, batch_size: int | None = None, seed: int = 0, rank: int = 0, world: int = 1
    ):
        self._x, self._weights, self._size, self._seed = x, weights, batch_size, seed
        self._rank, self._world = rank, world

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        n = len(self._x)
        if self._size is None or self._size >= n:
            yield self._x[self._rank :: self._world], self._weights[self._rank :: self._world]
            return
        order = np.random.default_rng([self._seed, number]).permutation(n)
        for begin in range(0, n, self._size):
            chosen = torch.from_numpy(order[begin : begin + self._size][self._rank :: self._world]).to(self._x.device)
            yield self._x[chosen], self._weights[chosen]


class LoaderBatches:
    """Batches of a `torch.utils.data.DataLoader`, or of anything that can be iterated over again and again.

    Its items are arrays or data frames (b, Nv), or pairs of those and weights (b,), or a `TensorDataset`'s lists.
    """

    def __init__(self, loader: Iterable[Any]):
        if not isinstance(loader, Iterable) or isinstance(loader, Iterator):
            raise InvalidInputError(
                "a loader must be something to iterate over once for each epoch, such as a DataLoader, got "
                f"a {type(loader).__name__}"
            )
        self._loader = loader

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of one epoch."""
        set_epoch = getattr(self._loader, "set_epoch", None) or getattr(
            getattr(self._loader, "sampler", None), "set_epoch", None
        )
        if set_epoch is not None:
            set_epoch(number)
        for item in self._loader:
            x, *rest = item if isinstance(item, list | tuple) else (item,)
            points = _tensor(x)
            yield points, _tensor(rest[0]) if rest else points.new_ones(len(points))


def _tensor(values: Any) -> Tensor:
    """Numbers in float64. Arrays are copied, since those of a memory map cannot be written to."""
    return values.double() if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float64))
