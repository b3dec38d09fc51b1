"""Data of any size: arrays, files, memory maps, blocks, and the shares of several processes or of Dask's workers.

A fit asks three things of a source. `map` runs a function on the raw rows of each part, `prepare` says how rows become
blocks, and `add` adds up a function over all blocks. Rows stay where they are, and only results travel. `Rows` is one
part: the data of this process, or a partition. `ProcessGroup` asks all processes of torch.distributed, and `DaskRows`
the partitions of a Dask collection.
"""

import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from sklearn import get_config

from rtbm.common import Floats
from rtbm.data_files import FileRows
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import to_numpy
from rtbm.training.distributed import (
    all_succeed,
    broadcast_object,
    collect,
    gather_objects,
    is_distributed,
    portable,
    rank_and_world,
    result_or_error,
)
from rtbm.training.sums import Pass, PointBlock

CHUNK_ROWS = 2**17  # rows that are read and prepared at a time
PATIENCE = 2.0
"""Seconds between checks that Dask's workers are alive. More notice a dead worker later."""

Result = TypeVar("Result")


class Unreadable(Exception):  # noqa: N818
    """Wraps an error while data are read. It is not an RTBMError, because solvers take those for failed steps."""


class Chunk(NamedTuple):
    """Rows as they are read."""

    begin: int  # the number of the first row
    rows: Floats  # (n, d)
    weights: Floats  # (n,)


Encode = Callable[[Any], Floats]
"""Turns a table (n, d), an array or a data frame, into numbers (n, d)."""
Prepare = Callable[[int, Chunk], list[PointBlock]]
"""Makes the blocks of a chunk of the part with a number."""


class Columns(NamedTuple):
    """The columns of a source."""

    number: int | None  # None if there are no rows
    names: list[str] | None = None
    left_out: Mapping[str, str] = {}
    levels: Mapping[str, list[Any]] = {}
    """The levels of columns of text and booleans, if they are known already."""


class Source(ABC):
    """Rows in one or several parts."""

    columns: Columns
    is_numbered: bool
    """Whether the row numbers of chunks count over all parts, and not within each."""

    @abstractmethod
    def map_tables(self, function: Callable[[int, Iterable[Any]], Any]) -> list[Any]:
        """The results of a function of the number of a part and its tables, as they come, for all parts."""

    @abstractmethod
    def encode(self, function: Encode) -> None:
        """Set the function that turns tables into numbers."""

    @abstractmethod
    def map(self, function: Callable[[int, Iterable[Chunk]], Any]) -> list[Any]:
        """The results of a function of the number of a part and its chunks, for all parts."""

    @abstractmethod
    def prepare(self, function: Prepare) -> None:
        """Set the function that turns chunks into blocks."""

    @abstractmethod
    def add(self, function: Pass) -> Floats:
        """The sums of a function over all blocks."""


def memory_limit() -> int:
    """The bytes that data may take in memory: a quarter of scikit-learn's `working_memory`, 256 MiB by default.

    Memory maps, and files on the command line, with more numbers than that are fitted in blocks. Prepared blocks stay
    in memory up to this size; larger ones are read and prepared anew for each step.
    """
    return int(get_config()["working_memory"] * 2**18)


def is_path(X: Any) -> bool:
    """Whether X is the name of a file."""
    return isinstance(X, str) or hasattr(X, "__fspath__")


def is_dask(X: Any) -> bool:
    """Whether X is a collection of Dask."""
    return type(X).__module__.split(".")[0] in ("dask", "dask_expr") and hasattr(X, "to_delayed")


def is_source(X: Any) -> bool:
    """Whether X is read in blocks: a path, a large memory map, blocks or an iterable of them, a Dask collection.

    A list or tuple counts as blocks if it begins with a two-dimensional array, or with a pair of one and weights.
    """
    if is_path(X) or is_dask(X):
        return True
    if isinstance(X, np.memmap):
        return X.ndim == 2 and 8 * X.size > memory_limit()
    if isinstance(X, list | tuple):
        if not X:
            return is_distributed()  # other processes may have rows
        first = X[0]
        first = first[0] if isinstance(first, tuple) and first else first
        return getattr(first, "ndim", 0) == 2
    is_array = any(hasattr(X, name) for name in ("__array__", "shape"))
    return not is_array and isinstance(X, Iterable) and not isinstance(X, Mapping | Set)


def open_source(
    X: Any, columns: Sequence[str] | None = None, weights: Any = None, labels: Any = None
) -> "Rows | DaskRows | None":
    """The data of this process, if they are read in blocks; None for data in memory.

    `labels` is the argument `categorical_features`, which files and Dask collections need to choose columns.
    Processes share a file or a memory map, and have blocks of their own. Their columns must be the same.
    """
    if not is_source(X):
        return None
    source = all_succeed(lambda: _open(X, columns, weights, labels))
    source.columns = _common_columns(source.columns)
    return source


def _open(X: Any, columns: Sequence[str] | None, weights: Any, labels: Any) -> "Rows | DaskRows":
    if columns is not None and not is_path(X):
        raise InvalidInputError("columns is for files: select the columns of other data before the fit")
    if weights is not None and not isinstance(X, np.memmap):
        raise InvalidInputError("sample_weight is for arrays: give blocks as pairs (rows, weights)")
    if is_dask(X):
        return DaskRows(X, labels)
    rank, world = rank_and_world()
    if is_path(X):
        takes_text = isinstance(labels, str) and labels == "auto"
        named = [name for name in labels if isinstance(name, str)] if isinstance(labels, Mapping | list | tuple) else []
        file = FileRows(X, columns, rank, world, named, takes_text)
        found = Columns(file.n_columns, file.names, file.left_out, file.levels)
        return Rows(lambda: ((rows, None) for rows in file.blocks(CHUNK_ROWS)), found, rank, file.first)
    if not isinstance(X, np.ndarray):
        return _loader_rows(X)
    if weights is not None and np.shape(weights) != (len(X),):
        raise InvalidInputError(f"sample_weight must have shape ({len(X)},), got {np.shape(weights)}")
    return array_rows(X, None if weights is None else to_floats(weights), rank, world)


def array_rows(X: np.ndarray, weights: Floats | None, rank: int = 0, world: int = 1) -> "Rows":
    """The rows of an array, such as a memory map, or the share of one process."""
    share = range(len(X) * rank // world, len(X) * (rank + 1) // world)

    def tables() -> Iterator[tuple[Any, Any]]:
        for begin in share[::CHUNK_ROWS]:
            part = slice(begin, min(begin + CHUNK_ROWS, share.stop))
            yield X[part], None if weights is None else weights[part]

    return Rows(tables, Columns(X.shape[1]), rank, share.start)


def _loader_rows(loader: Any) -> "Rows":
    """The rows of a DataLoader, or of anything that yields blocks each time it is iterated over.

    Its items are arrays or data frames (b, d), or pairs of those and weights (b,). The first one tells the columns.
    """
    if isinstance(loader, Iterator):
        raise InvalidInputError(
            "X must be something to iterate over once for each pass, such as a list or a DataLoader, got a "
            f"{type(loader).__name__}"
        )
    first: Any = next(map(_item, loader), (None, None))[0]
    shape = tuple(first.shape) if hasattr(first, "shape") else np.shape(first)
    if first is not None and len(shape) != 2:
        raise InvalidInputError(f"X must give blocks of shape (rows, n_features), got {shape}")
    rank, world = rank_and_world()
    columns = Columns(None) if first is None else Columns(shape[1], _text_names(first))
    return Rows(lambda: map(_item, loader), columns, rank, 0 if world == 1 else None)


def _text_names(table: Any) -> list[str] | None:
    """The names of the columns of a data frame, if all are text; as scikit-learn."""
    names = list(getattr(table, "columns", []))
    return names if names and all(isinstance(name, str) for name in names) else None


def _item(item: Any) -> tuple[Any, Any]:
    """Rows and weights of an item of a loader; None for weights of 1."""
    x, *rest = item if isinstance(item, list | tuple) else (item,)
    return to_numpy(x), rest[0] if rest else None


def regroup(items: Iterable[tuple[Floats, Floats]], first: int = 0) -> Iterator[Chunk]:
    """Rows and weights of any length as chunks of about CHUNK_ROWS rows, numbered from `first`."""
    held: list[tuple[Floats, Floats]] = []
    begin, size = first, 0

    def joined() -> Chunk:
        rows, weights = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*held, strict=True))
        return Chunk(begin, rows, weights)

    for rows, weights in items:
        check_shapes(rows, weights, held[0][0].shape[1] if held else None)
        for i in range(0, len(rows), CHUNK_ROWS):
            part = rows[i : i + CHUNK_ROWS], weights[i : i + CHUNK_ROWS]
            if held and size + len(part[0]) > CHUNK_ROWS:
                yield joined()
                begin, size, held = begin + size, 0, []
            held.append(part)
            size += len(part[0])
    if held:
        yield joined()


def check_shapes(rows: np.ndarray, weights: np.ndarray, width: int | None) -> None:
    """Check that rows (n, width) and weights (n,) belong together."""
    if rows.ndim != 2 or (width is not None and rows.shape[1] != width) or weights.shape != rows.shape[:1]:
        expected = "n_features" if width is None else width
        raise InvalidInputError(
            f"a block must have shape (rows, {expected}) and weights (rows,), got {rows.shape} and {weights.shape}"
        )


def to_floats(value: Any) -> Floats:
    """An array, a tensor or a data frame in float64."""
    return np.asarray(to_numpy(value), dtype=np.float64)


class Rows(Source):
    """The rows of one part: of this process, or of a partition of a Dask collection.

    Parameters
    ----------
    tables : function
        Yields pairs of a table (n, d) and weights (n,), or None for 1; called for each pass.
    columns : Columns
    number : int
        The number of this part.
    first : int or None
        The number of the first row; None if rows before this part have not been counted.
    """

    def __init__(
        self, tables: Callable[[], Iterator[tuple[Any, Any]]], columns: Columns, number: int, first: int | None
    ):
        self._tables, self.columns, self._number = tables, columns, number
        self._first, self.is_numbered = first or 0, first is not None
        self._encode: Encode = to_floats
        self._prepare: Prepare | None = None
        self._kept: list[list[PointBlock]] | None = None

    def map_tables(self, function: Callable[[int, Iterable[Any]], Any]) -> list[Any]:
        """The result of a function, in a list."""
        return [function(self._number, _readable(table for table, _ in self._tables()))]

    def encode(self, function: Encode) -> None:
        """Set the function that turns tables into numbers."""
        self._encode = function

    def _chunks(self) -> Iterator[Chunk]:
        pairs = ((self._encode(table), weights) for table, weights in self._tables())
        items = ((rows, np.ones(len(rows)) if w is None else to_floats(w)) for rows, w in pairs)
        return regroup(items, self._first)

    def map(self, function: Callable[[int, Iterable[Chunk]], Any]) -> list[Any]:
        """The result of a function, in a list."""
        return [function(self._number, _readable(self._chunks()))]

    def prepare(self, function: Prepare) -> None:
        """Set the function that turns chunks into blocks."""
        self._prepare, self._kept = function, None

    def add(self, function: Pass) -> Floats:
        """The sums of a function over all blocks."""
        total = function([])
        for blocks in self._blocks():
            total = total + function(blocks)
        return total

    def keep(self, function: Prepare) -> "Rows":
        """These rows, with all blocks that a function makes of the chunks."""
        self._kept = list(_readable(map(partial(function, self._number), self._chunks())))
        return self

    def _blocks(self) -> Iterator[list[PointBlock]]:
        """The blocks, a chunk at a time. They are kept if all of them are small enough."""
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[list[PointBlock]] | None = []
        size = 0
        assert self._prepare is not None
        for blocks in _readable(map(partial(self._prepare, self._number), self._chunks())):
            yield blocks
            size += sum(block.n_bytes for block in blocks)
            if kept is not None and size <= _most_kept(blocks):
                kept.append(blocks)
            else:
                kept = None
        self._kept = kept


def _most_kept(blocks: list[PointBlock]) -> int:
    """The bytes of blocks that may stay in memory: on a GPU half of its memory."""
    if not blocks or blocks[0].is_compiled or not blocks[0].points.is_cuda:
        return memory_limit()
    return max(memory_limit(), torch.cuda.get_device_properties(blocks[0].points.device).total_memory // 2)


def _readable(items: Iterable[Result]) -> Iterator[Result]:
    """The items; an error while reading them is raised as Unreadable."""
    try:
        yield from items
    except ConnectionError:
        raise
    except Exception as error:
        raise Unreadable(portable(error)) from None


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise the original error in place of Unreadable."""
    try:
        yield
    except Unreadable as error:
        raise error.args[0] from None


class _Parts(Source):
    """Data in several parts, which are asked as `Rows`."""

    def map_tables(self, function: Callable[[int, Iterable[Any]], Any]) -> list[Any]:
        """The results of a function for all parts."""
        return list(itertools.chain(*self._ask("map_tables", function)))

    def encode(self, function: Encode) -> None:
        """Set the function that turns tables into numbers."""
        self._ask("encode", function)

    def map(self, function: Callable[[int, Iterable[Chunk]], Any]) -> list[Any]:
        """The results of a function for all parts."""
        return list(itertools.chain(*self._ask("map", function)))

    def prepare(self, function: Prepare) -> None:
        """Set the function that turns chunks into blocks."""
        self._ask("prepare", function)

    def add(self, function: Pass) -> Floats:
        """The sums of a function over all blocks."""
        return np.sum(self._ask("add", function), axis=0)

    @abstractmethod
    def _ask(self, name: str, argument: Any) -> list[Any]:
        """What a method of `Rows` returns in each part."""


class ProcessGroup(_Parts):
    """The data of all processes of torch.distributed: the first process asks, and all of them answer.

    The solver runs in the first process only, so processes cannot disagree about what comes next. Errors of the others
    come back with their answers.
    """

    def __init__(self, rows: Rows):
        self._rows, self.columns, self.is_numbered = rows, rows.columns, rows.is_numbered

    def _ask(self, name: str, argument: Any) -> list[Any]:
        broadcast_object((name, argument))
        return collect(lambda: getattr(self._rows, name)(argument))

    def lead(self, work: Callable[[Source], Result]) -> Result:
        """Run work in the first process and return its result in all. An error there is raised in all."""
        if rank_and_world()[0] > 0:
            return self._serve()
        try:
            with plain_errors():
                result = work(self)
        except BaseException as error:
            stopped = InterruptedError("the first process was stopped")
            with contextlib.suppress(ConnectionError):
                broadcast_object(("fail", portable(error) if isinstance(error, Exception) else stopped))
            raise
        broadcast_object(("end", result))
        return result

    def _serve(self) -> Any:
        """Answer the first process until it has a result. It also decides what an error means."""
        while True:
            name, argument = broadcast_object(None)
            if name == "end":
                return argument
            if name == "fail":
                raise argument
            gather_objects(result_or_error(lambda: getattr(self._rows, name)(argument)))  # noqa: B023


def work_on(source: Source, work: Callable[[Source], Result]) -> Result:
    """The result of work on a source; under torch.distributed, on the data of all processes, in the first of them."""
    if is_distributed():
        if not isinstance(source, Rows):
            raise InvalidInputError("a Dask collection has its own workers: fit it in one process, not under torchrun")
        return ProcessGroup(source).lead(work)
    with plain_errors():
        return work(source)


def _common_columns(columns: Columns) -> Columns:
    """The columns of all processes, which must be the same; those without any rows count as agreeing."""
    some = [(rank, part) for rank, part in enumerate(gather_objects(columns)) if part.number is not None]
    if not some or some[0][1].number == 0:
        got = "0 columns" if some else "nothing"
        raise InvalidInputError(f"X must give blocks of shape (rows, n_features) with n_features ≥ 1, got {got}")
    rank, first = some[0]
    for other, part in some:
        if part[:2] != first[:2]:
            raise InvalidInputError(
                f"all processes must have the same columns: process {rank} has {_named(first)}, and process {other} "
                f"has {_named(part)}"
            )
    return first


def _named(columns: Columns) -> str:
    return f"{columns.number}" if columns.names is None else ", ".join(columns.names)


class DaskRows(_Parts):
    """The partitions of a Dask array or data frame. With a distributed client they stay on their workers.

    Without a client, Dask's own scheduler makes each partition anew for each step, so that they need not fit into
    memory together.
    """

    is_numbered = False

    def __init__(self, collection: Any, labels: Any = None):
        self.columns, collection = _usable(collection, labels)
        self._client = _dask_client()
        self._parts = list(np.ravel(collection.to_delayed()))
        self._holders: list[str] = []
        self._encode: Encode = to_floats
        self._prepare: Prepare | None = None
        if self._client is not None:
            self._parts = self._client.compute(self._parts)
            self._wait(self._parts)
            holders = self._client.who_has(self._parts)
            self._holders = [next(iter(holders[part.key])) for part in self._parts]

    def encode(self, function: Encode) -> None:
        """Set the function that turns tables into numbers."""
        self._encode = function

    def prepare(self, function: Prepare) -> None:
        """Set the function that turns chunks into blocks. Workers make the blocks now, and keep them."""
        if self._client is None:
            self._prepare = function
        else:
            self._parts = self._submit("keep", function)
            self._wait(self._parts)

    def _ask(self, name: str, argument: Any) -> list[Any]:
        if self._client is None:
            import dask

            call = dask.delayed(_answer)
            arguments = self.columns, self._encode, name, argument, self._prepare
            return list(dask.compute(*(call(i, part, *arguments) for i, part in enumerate(self._parts))))
        futures = self._submit(name, argument)
        self._wait(futures)
        return self._client.gather(futures)

    def _submit(self, *question: Any) -> list[Any]:
        return [
            self._client.submit(
                _answer, i, part, self.columns, self._encode, *question, workers=[self._holders[i]], pure=False
            )
            for i, part in enumerate(self._parts)
        ]

    def _wait(self, futures: list[Any]) -> None:
        """Wait for tasks, as long as the workers that they belong to are alive; raise the first error."""
        from distributed import wait

        while True:
            try:
                wait(futures, timeout=PATIENCE)
                break
            except TimeoutError:
                alive = set(self._client.nthreads())
                lost = sorted(set(self._holders) - alive)
                if lost or not alive:
                    named = ", ".join(lost) or "all of them"
                    raise ConnectionError(f"Dask workers have died ({named}): start them and the fit again") from None
        failed = next((future for future in futures if future.status != "finished"), None)
        if failed is not None:
            error = failed.exception() if failed.status == "error" else None
            if error is None or type(error).__name__ == "KilledWorker":
                raise ConnectionError(f"a Dask worker has died, or its task was cancelled ({error or failed.status})")
            raise error


def _answer(
    number: int,
    part: Any,
    columns: Columns,
    encode: Encode,
    name: str,
    argument: Any,
    prepare: Prepare | None = None,
) -> Any:
    """What a method of `Rows` returns for a partition, which is `Rows` already if a worker keeps its blocks."""
    rows = part
    if not isinstance(part, Rows):
        rows = Rows(partial(_part_tables, part), columns, number, None)
        rows.encode(encode)
    if prepare is not None:
        rows.prepare(prepare)
    return getattr(rows, name)(argument)


def _part_tables(part: Any) -> Iterator[tuple[Any, Any]]:
    yield part[:, None] if part.ndim == 1 else part, None


def _usable(collection: Any, labels: Any) -> tuple[Columns, Any]:
    """The columns of a Dask collection with numbers, or with categories that are asked for, and their description.

    `labels` is the argument `categorical_features`: "auto" takes columns of the dtype category.
    """
    if hasattr(collection, "columns"):
        own = ["category"] if isinstance(labels, str) and labels == "auto" else []
        chosen = collection.select_dtypes(include=["number", "bool", *own])
        named = set() if isinstance(labels, str) or labels is None else set(labels).difference(chosen.columns)
        if named.intersection(collection.columns):
            chosen = collection[[name for name in collection.columns if name in named or name in chosen.columns]]
        names = [str(name) for name in chosen.columns]
        left_out = {str(c): str(collection[c].dtype) for c in collection.columns if str(c) not in names}
        if not names:
            raise InvalidInputError("X: no column of this Dask data frame holds numbers or categories")
        return Columns(len(names), names, left_out), chosen
    if collection.ndim != 2:
        raise InvalidInputError(f"X must be a Dask array of shape (rows, n_features), got {collection.ndim} dimensions")
    return Columns(int(collection.shape[1])), collection.rechunk({1: -1})


def _dask_client() -> Any:
    """The client of dask.distributed that is active; None if there is none."""
    try:
        from distributed import get_client

        return get_client()
    except (ImportError, ValueError):
        return None
