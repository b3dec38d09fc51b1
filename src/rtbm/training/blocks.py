"""Data of any size: arrays, memory maps, loaders, files, processes of torch.distributed, and Dask collections.

A `Part` is an iterable of blocks of rows that begins anew for each pass. A fit has one part (`LocalData`), one in each
process (`SharedData`), or one for each partition of a Dask collection (`DaskData`). All three run a function on each
part: `map` returns the results, `add` their sum, and `become` puts them in the place of the parts. Rows stay where they
are, and only results travel.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, from_dlpack

from rtbm.common import Floats
from rtbm.errors import InvalidInputError, RTBMError
from rtbm.training.distributed import (
    attempt,
    broadcast_object,
    gather_objects,
    is_distributed,
    rank_and_world,
    results,
)

BLOCK_ROWS = 2**17  # rows that are read and prepared at a time
PATIENCE = 10.0  # seconds between checks that Dask has workers; more than it takes to start one anew


class Columns(NamedTuple):
    """The columns of data."""

    number: int | None  # None if there are no rows
    names: list[str] | None = None
    left_out: Mapping[str, str] = {}  # with reasons
    levels: Mapping[str, list[Any]] = {}  # of columns of text and booleans, if they are known already


def to_floats(values: Any) -> Floats:
    """An array or a tensor in float64."""
    return np.asarray(values.detach().double().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


@dataclass(frozen=True)
class Part:
    """One part of the data. Iterating over it gives (number of the first row, rows (n, d), weights (n,)) in float64.

    Parameters
    ----------
    tables : function
        Returns an iterable of tables (n, d) and their weights (n,), or None for 1. It is called for each pass.
    columns : Columns
    first : int or None
        The number of the first row; None if the rows of other parts have not been counted.
    encode : function
        Turns a table, an array or a data frame, into numbers.
    """

    tables: Callable[[], Iterable[tuple[Any, Any]]]
    columns: Columns
    first: int | None = 0
    encode: Callable[[Any], Floats] = to_floats

    def __iter__(self) -> Iterator[tuple[int, Floats, Floats]]:
        begin, held, size = self.first or 0, list[tuple[Floats, Floats]](), 0
        for piece in self._pieces():
            held.append(piece)
            size += len(piece[0])
            if size >= BLOCK_ROWS:
                yield begin, *_join(held)
                begin, held, size = begin + size, [], 0
        if held:
            yield begin, *_join(held)

    def _pieces(self) -> Iterator[tuple[Floats, Floats]]:
        """Rows and weights of at most BLOCK_ROWS rows."""
        for table, weights in self.tables():
            shape, own = np.shape(table), np.shape(table)[:1] if weights is None else np.shape(weights)
            if shape[1:] != (self.columns.number,) or own != shape[:1]:
                raise InvalidInputError(
                    f"a block must have shape (rows, {self.columns.number}) and weights (rows,), got {shape} and {own}"
                )
            for i in range(0, len(table), BLOCK_ROWS):
                rows = self.encode(table[i : i + BLOCK_ROWS])
                yield rows, np.ones(len(rows)) if weights is None else to_floats(weights[i : i + BLOCK_ROWS])


def _join(pieces: list[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    rows, weights = map(np.concatenate, zip(*pieces, strict=True))
    return rows, weights


class PreparedPart:
    """The blocks that a function makes of those of a part. They stay in memory if they take at most `limit` bytes."""

    def __init__(self, function: Callable[..., list[Any]], limit: int, part: Part):
        self._function, self._limit, self._part = function, limit, part
        self._kept: list[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        if self._kept is not None:
            yield from self._kept
            return
        kept, size = list[Any](), 0
        for block in self._make():
            yield block
            size += block.n_bytes
            if size <= self._limit:
                kept.append(block)
            else:
                kept.clear()
        self._kept = kept if size <= self._limit else None

    def _make(self) -> Iterator[Any]:
        try:
            for block in self._part:
                yield from self._function(*block)
        except (RTBMError, ArithmeticError) as error:  # which solvers would take for a failed step
            raise OSError(f"the data cannot be read again: {error}") from error


class LocalData:
    """Data with one part, in this process."""

    def __init__(self, part: Part):
        self.columns, self._part = part.columns, part

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """The results of a function of each part."""
        return [function(self._part)]

    def become(self, function: Callable[[Any], Any]) -> None:
        """Put the results of a function of each part in the place of the parts."""
        self._part = function(self._part)

    def add(self, function: Callable[[Any], Floats]) -> Floats:
        """The sum of the results of a function of each part."""
        return np.sum(self.map(function), axis=0)

    def prepare(self, function: Callable[..., list[Any]], limit: int) -> None:
        """Put blocks that a function makes of blocks of rows in their place; see `PreparedPart`."""
        self.become(partial(PreparedPart, function, limit))

    def lead(self, work: Callable[["LocalData"], Any]) -> Any:
        """The result of work on these data."""
        return work(self)


class SharedData(LocalData):
    """Data with a part in each process of torch.distributed: the first process asks, and all of them answer.

    Solvers run in the first process alone, so that processes cannot disagree about what comes next. Errors of the other
    ones come back with their answers.
    """

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """The results of a function of each part."""
        return [found[0] for found in self._ask(LocalData.map, function)]

    def become(self, function: Callable[[Any], Any]) -> None:
        """Put the results of a function of each part in the place of the parts."""
        self._ask(LocalData.become, function)

    def _ask(self, *question: Any) -> list[Any]:
        broadcast_object(question)
        return results(self._answer(*question))

    def _answer(self, verb: Callable[..., Any], function: Callable[[Any], Any]) -> list[Any]:
        return gather_objects(attempt(verb, self, function))

    def lead(self, work: Callable[[LocalData], Any]) -> Any:
        """The result of work in the first process, in all of them. An error there is raised in all."""
        if rank_and_world()[0] == 0:
            outcome = attempt(work, self)
            broadcast_object((None, outcome))
        else:
            while (question := broadcast_object(None))[0] is not None:
                self._answer(*question)
            outcome = question[1]
        return results([outcome])[0]


class DaskData(LocalData):
    """The partitions of a Dask collection. With a client of dask.distributed they stay in the memory of its workers.

    Without one, Dask's own scheduler makes each partition anew for each pass, so that they need not fit into memory
    together.
    """

    _steps: list[list[Any]]  # functions that tasks run on each partition, one after another

    def __init__(self, collection: Any, columns: Columns):
        self.columns, self._client = columns, _dask_client()
        self._keep(list(np.ravel(collection.to_delayed())))
        first = np.cumsum([0, *self.map(len)]).tolist()
        self._steps = [[partial(_partition, columns, begin)] for begin in first[:-1]]

    def _keep(self, partitions: list[Any]) -> None:
        self._partitions = partitions if self._client is None else self._client.persist(partitions)
        self._steps = [[]] * len(partitions)

    def map(self, function: Callable[[Any], Any]) -> list[Any]:
        """The results of a function of each part."""
        import dask

        tasks = self._tasks(function)
        return list(dask.compute(*tasks)) if self._client is None else self._wait(self._client.compute(tasks))

    def become(self, function: Callable[[Any], Any]) -> None:
        """Put the results of a function of each part in the place of the parts. They are made in each pass."""
        self._steps = [[*own, function] for own in self._steps]

    def prepare(self, function: Callable[..., list[Any]], limit: int) -> None:
        """Put blocks that a function makes of blocks of rows in their place. Workers keep all of them."""
        super().prepare(function, limit)
        if self._client is not None:
            self._keep(self._tasks(list))

    def _tasks(self, function: Callable[[Any], Any]) -> list[Any]:
        from dask import delayed

        pairs = zip(self._steps, self._partitions, strict=True)
        return [delayed(partial(_apply, [*own, function]), traverse=False)(part) for own, part in pairs]

    def _wait(self, futures: list[Any]) -> list[Any]:
        """The results of tasks. Dask repeats those of workers that die, as long as there are others."""
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=PATIENCE)
            except TimeoutError:
                if not self._client.nthreads():
                    raise ConnectionError("all Dask workers have died: start them and the fit again") from None
            else:
                return self._client.gather(futures)


def _partition(columns: Columns, first: int, table: Any) -> Part:
    return Part(lambda: [(table, None)], columns, first)


def _apply(functions: list[Callable[[Any], Any]], part: Any) -> Any:
    return reduce(lambda value, function: function(value), functions, part)


def _dask_client() -> Any:
    """The client of dask.distributed that is active; None if there is none."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None


def is_path(X: Any) -> bool:
    """Whether X is the name of a file."""
    return isinstance(X, str) or hasattr(X, "__fspath__")


def is_dask(X: Any) -> bool:
    """Whether X is a collection of Dask."""
    return type(X).__module__.split(".")[0] in ("dask", "dask_expr") and hasattr(X, "to_delayed")


def comes_in_blocks(X: Any, limit: int) -> bool:
    """Whether X is a path, a Dask collection, a memory map of more than `limit` bytes, or gives blocks of rows.

    A list or tuple does if it begins with a two-dimensional array, or with a pair of one and weights.
    """
    if isinstance(X, np.memmap):
        return X.ndim == 2 and 8 * X.size > limit
    if isinstance(X, list | tuple):
        first: Any = X
        while isinstance(first, list | tuple):
            first = first[0] if first else None
        return getattr(first, "ndim", 0) == 2 or (not X and is_distributed())  # other processes may have rows
    gives_blocks = isinstance(X, Iterable) and not isinstance(X, Mapping | Set) and not hasattr(X, "shape")
    return gives_blocks or is_path(X) or is_dask(X)


def open_data(X: Any, weights: Any = None, labels: Any = None, open_file: Any = None) -> LocalData:
    """The data of X, which comes in blocks. Processes share a file or a memory map, or have blocks of their own.

    Parameters
    ----------
    X : path, memory map, Dask collection, or iterable
        An iterable gives tables (n, d), or pairs of those and weights (n,), each time it is iterated over.
    weights : (n,), default=None
        For memory maps.
    labels : "auto", list, dict or None
        Columns of categories. "auto" takes those that are stored as such, and text in files.
    open_file : function
        Opens a path, as `FileRows`.
    """
    takes_text = isinstance(labels, str) and labels == "auto"
    named = [*labels] if isinstance(labels, Mapping | list | tuple) else []
    if is_dask(X):
        if weights is not None or is_distributed():
            raise InvalidInputError(
                "a Dask collection has no sample_weight, and workers of its own in place of torchrun"
            )
        return DaskData(*_choose_columns(X, named, takes_text))
    part, error = attempt(_open_part, X, weights, open_file, named, takes_text)
    columns = _common_columns(results(gather_objects((part and part.columns, error))))
    counts = results(gather_objects(attempt(_count_rows, part)))
    first = sum(counts[: rank_and_world()[0]]) if part.first is None else part.first
    return (SharedData if is_distributed() else LocalData)(replace(part, columns=columns, first=first))


def _open_part(X: Any, weights: Any, open_file: Any, named: list[Any], takes_text: bool) -> Part:
    """The share of this process."""
    if weights is not None and not (isinstance(X, np.ndarray) and np.shape(weights) == (len(X),)):
        raise InvalidInputError("sample_weight is for arrays, one for each row: give blocks as pairs (rows, weights)")
    rank, world = rank_and_world()
    if is_path(X):
        texts = [name for name in named if isinstance(name, str)]
        file = open_file(X, rank=rank, world=world, labels=texts, takes_text=takes_text)
        columns = Columns(file.n_columns, file.names, file.left_out, file.levels)
        return Part(lambda: ((rows, None) for rows in file.blocks(BLOCK_ROWS)), columns, file.first)
    if isinstance(X, np.ndarray):
        return array_part(X, weights, rank, world)
    if isinstance(X, Iterator):
        raise InvalidInputError(
            "X must be something to iterate over once for each pass, such as a list or a DataLoader, got a "
            f"{type(X).__name__}"
        )

    def tables() -> Iterator[tuple[Any, Any]]:
        for item in X:
            table, weights = (*item, None)[:2] if isinstance(item, list | tuple) else (item, None)
            yield table if hasattr(table, "__getitem__") else from_dlpack(table), weights

    first, shape = next(((table, np.shape(table)) for table, _ in tables()), (None, (0, None)))
    if len(shape) != 2:
        raise InvalidInputError(f"X must give blocks of shape (rows, n_features), got {shape}")
    names = list(getattr(first, "columns", []))
    is_named = len(names) > 0 and all(isinstance(name, str) for name in names)
    return Part(tables, Columns(shape[1], names if is_named else None), 0 if world == 1 else None)


def array_part(X: np.ndarray, weights: Any = None, rank: int = 0, world: int = 1) -> Part:
    """The share of a process in the rows of an array, such as a memory map."""
    begin, end = (len(X) * i // world for i in (rank, rank + 1))
    own = None if weights is None else weights[begin:end]
    return Part(lambda: [(X[begin:end], own)], Columns(X.shape[1]), begin)


def _count_rows(part: Part) -> int:
    """The number of rows, if those of parts are to be counted."""
    return 0 if part.first is not None else sum(len(table) for table, _ in part.tables())


def _choose_columns(collection: Any, named: list[Any], takes_categories: bool) -> tuple[Any, Columns]:
    """A Dask collection of numbers, and of categories that are asked for, and its columns."""
    if not hasattr(collection, "columns"):
        if collection.ndim != 2:
            got = f"{collection.ndim} dimensions"
            raise InvalidInputError(f"X must be a Dask array of shape (rows, n_features), got {got}")
        return collection.rechunk({1: -1}), Columns(int(collection.shape[1]))
    kinds = ["number", "bool", *(["category"] if takes_categories else [])]
    chosen = {*collection.select_dtypes(include=kinds).columns, *named}
    kept = [name for name in collection.columns if name in chosen]
    left_out = {str(name): str(collection[name].dtype) for name in collection.columns if name not in chosen}
    if not kept:
        raise InvalidInputError("X: no column of this Dask data frame holds numbers or categories")
    return collection[kept], Columns(len(kept), [str(name) for name in kept], left_out)


def _common_columns(parts: list[Columns]) -> Columns:
    """The columns of all processes, which must be the same; those without any rows count as agreeing."""
    named = {rank: ", ".join(own.names or [str(own.number)]) for rank, own in enumerate(parts) if own.number}
    if not named:
        raise InvalidInputError("X must give blocks of shape (rows, n_features) with n_features ≥ 1, got 0 columns")
    if len(set(named.values())) > 1:
        got = ", and ".join(f"process {rank} has {columns}" for rank, columns in named.items())
        raise InvalidInputError(f"all processes must have the same columns: {got}")
    return parts[min(named)]
