"""Tables of numbers in files: CSV, Parquet and .npy, read at once or a block at a time."""

import contextlib
import csv
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from numpy.typing import NDArray

from rtbm.errors import FileError
from rtbm.paths import existing_table

Floats = NDArray[np.float64]

MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""What stands for a missing number in a CSV file, in any case; it becomes NaN."""
BLOCK_ROWS = 65_536


class Table(NamedTuple):
    """Numbers (n, d) and the names of their columns; None where the file has none."""

    values: Floats
    names: list[str] | None


def read_table(path: Any, columns: Sequence[str] | None = None, header: bool | None = None) -> Table:
    """Read a table of numbers from a .csv (.tsv, .txt), .parquet or .npy file.

    Parameters
    ----------
    path : path
        The ending of the name tells the format.
    columns : sequence of str
        Names of columns to read, in this order; or their numbers, from 0, where there are no names.
    header : bool
        Whether a CSV file begins with names; by default it does if its first row is not all numbers.

    Returns
    -------
    Table
        Missing cells are NaN. Anything else that is not a number is a FileError with its row and column.
    """
    path = existing_table(path)
    if path.suffix.lower() == ".npy":
        return _select(Table(np.asarray(_open_npy(path), dtype=np.float64), None), columns, path)
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, columns)
    with _csv_errors(path), path.open(newline="", encoding="utf-8-sig") as stream:
        return _read_csv(stream, path, columns, header)


def column_names(path: Any, header: bool | None = None) -> list[str] | None:
    """The names of the columns of a file; None if it has none."""
    path = existing_table(path)
    if path.suffix.lower() == ".npy":
        return None
    if path.suffix.lower() == ".parquet":
        return list(_open_parquet(path).schema_arrow.names)
    with _csv_errors(path), path.open(newline="", encoding="utf-8-sig") as stream:
        _, top, header, _ = _open_csv(stream, path, header)
        return [cell.strip() for cell in top] if header else None


@contextlib.contextmanager
def _csv_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise FileError(f"{path}: not text in UTF-8: save it in that encoding") from None
    except csv.Error as error:
        raise FileError(f"{path}: not a CSV file ({error})") from None


def _read_csv(stream: TextIO, path: Path, columns: Sequence[str] | None, header: bool | None) -> Table:
    reader, top, header, skipped = _open_csv(stream, path, header)
    names = [cell.strip() for cell in top] if header else None
    width, chosen = len(top), _positions(columns, names, len(top), path)
    values = [] if header else [_parse(top, chosen, names, path, skipped + reader.line_num)]
    for row in reader:
        if len(row) <= 1 and not any(cell.strip() for cell in row):
            continue  # a blank line
        if len(row) != width:
            raise FileError(
                f"{path}: line {skipped + reader.line_num} has {len(row)} cells, and the first row has {width}: look "
                "for a missing or surplus delimiter"
            )
        values.append(_parse(row, chosen, names, path, skipped + reader.line_num))
    if not values:
        raise FileError(f"{path}: there are names, but no rows")
    return Table(np.array(values, dtype=np.float64), None if names is None else [names[i] for i in chosen])


def _open_csv(stream: TextIO, path: Path, header: bool | None) -> tuple[Any, list[str], bool, int]:
    """A reader behind the first row, that row, whether it holds names, and the number of lines before it.

    Blank lines, and lines that begin with #, may come before it.
    """
    skipped, position, first = 0, stream.tell(), stream.readline()
    while first and (not first.strip() or first.startswith("#")):
        skipped, position, first = skipped + 1, stream.tell(), stream.readline()
    if not first:
        raise FileError(f"{path}: the file is empty")
    stream.seek(position)
    reader = csv.reader(stream, delimiter=_delimiter(first, path), skipinitialspace=True)
    top = next(reader)
    if header is None:
        header = _has_names(top, path)
    return reader, top, header, skipped


def _delimiter(line: str, path: Path) -> str:
    """What separates the cells of a line: a semicolon or a tab if there is one outside of quotes, else a comma."""
    bare = re.sub(r'"[^"]*"', "", line)
    found = next((character for character in ";\t," if character in bare), None)
    return found or (" " if " " in bare.strip() and path.suffix.lower() == ".txt" else ",")


def _has_names(top: list[str], path: Path) -> bool:
    """Whether a first row holds names. Names and numbers side by side may be a bad cell, and are not guessed at."""
    words = [not _is_number(cell) and cell.strip().lower() not in MISSING for cell in top]
    if any(words) and any(_is_number(cell) for cell in top):
        word = next(cell for cell, is_word in zip(top, words, strict=True) if is_word)
        raise FileError(
            f"{path}: the first row mixes numbers and text such as {word!r}: say whether it holds names "
            "(--header or --no-header; header=True or False)"
        )
    return any(words)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _parse(row: list[str], chosen: list[int], names: list[str] | None, path: Path, line: int) -> list[float]:
    numbers = [_number(row[i]) for i in chosen]
    if None in numbers:
        column = chosen[numbers.index(None)]
        name = f"{names[column]!r} ({column + 1})" if names else f"{column + 1}"
        hint = "choose other columns, or leave the cell empty if it is missing"
        if re.fullmatch(r"\s*[-+]?\d+,\d+\s*", row[column]):
            hint = "write decimal points, not commas"
        raise FileError(f"{path}: line {line}, column {name}: {row[column]!r} is not a finite number; {hint}")
    return numbers  # type: ignore[return-value]


def _number(cell: str) -> float | None:
    try:
        number = float(cell.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        return math.nan if cell.strip().lower() in MISSING else None
    return None if math.isinf(number) else number


def _positions(columns: Sequence[str] | None, names: list[str] | None, width: int, path: Path) -> list[int]:
    """The numbers of the chosen columns."""
    known = names or [str(i) for i in range(width)]
    repeated = sorted({name for part in (known, columns or ()) for name in part if list(part).count(name) > 1})
    if repeated:
        raise FileError(
            f"{path}: columns must have different names, got {', '.join(map(repr, repeated))} more than once"
        )
    if columns is None:
        return list(range(width))
    missing = [name for name in columns if name not in known]
    if missing:
        raise FileError(f"{path}: no column {', '.join(map(repr, missing))}; there are {', '.join(known)}")
    return [known.index(name) for name in columns]


def _select(table: Table, columns: Sequence[str] | None, path: Path) -> Table:
    chosen = _positions(columns, table.names, table.values.shape[1], path)
    infinite = np.argwhere(np.isinf(table.values[:, chosen]))
    if len(infinite):
        row, column = infinite[0]
        raise FileError(f"{path}: row {row}, column {chosen[column]}: infinite numbers cannot be used")
    return Table(table.values[:, chosen], None if table.names is None else [table.names[i] for i in chosen])


def _open_npy(path: Path) -> np.ndarray:
    """The array in a .npy file, as a memory map (n, d)."""
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise FileError(f"{path}: not a .npy file of numbers ({error})") from None
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
        raise FileError(f"{path}: must hold numbers of shape (n,) or (n, d), got {array.dtype} {array.shape}")
    return array[:, None] if array.ndim == 1 else array


def _open_parquet(path: Path) -> Any:
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise FileError(f"{path}: Parquet files need pyarrow: pip install 'rtbm[parquet]'") from None
    try:
        return ParquetFile(path)
    except (ArrowInvalid, OSError) as error:
        raise FileError(f"{path}: not a Parquet file ({error})") from None


def _read_parquet(path: Path, columns: Sequence[str] | None) -> Table:
    file = _open_parquet(path)
    names = [
        file.schema_arrow.names[i] for i in _positions(columns, file.schema_arrow.names, len(file.schema_arrow), path)
    ]
    return _select(Table(_as_floats(file.read(columns=names), names, path), names), None, path)


def _as_floats(table: Any, names: list[str], path: Path) -> Floats:
    """The columns of an Arrow table as numbers; nulls become NaN."""
    from pyarrow import ArrowInvalid, ArrowNotImplementedError, float64

    result = []
    for name in names:
        column = table.column(name)
        try:
            result.append(column.cast(float64()).to_numpy(zero_copy_only=False).astype(np.float64))
        except (ArrowInvalid, ArrowNotImplementedError) as error:
            row = _first_bad(column)
            where = "" if row is None else f"row {row}, "
            raise FileError(f"{path}: {where}column {name!r}: not numbers ({error}); choose other columns") from None
    return np.stack(result, axis=1) if result else np.empty((table.num_rows, 0))


def _first_bad(column: Any) -> int | None:
    for row, cell in enumerate(column.to_pylist()):
        if cell is not None and (not isinstance(cell, str) or _number(cell) is None):
            return row
    return None


class FileRows:
    """The rows of a .npy or Parquet file that need not fit into memory, in batches.

    A .npy file is a memory map, read in blocks; a Parquet file is read by row groups. Each epoch takes the blocks in a
    new order and shuffles the rows of each. In several processes, each takes its share of the blocks.

    Parameters
    ----------
    path : path
        A .npy or .parquet file.
    columns : sequence of str
        The columns to read.
    batch_size : int
        Rows in a batch.
    seed : int
        For the orders.
    rank, world : int
        The number of this process, and of all.
    """

    def __init__(
        self,
        path: Any,
        columns: Sequence[str] | None = None,
        batch_size: int = 4096,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
    ):
        self.path = existing_table(path)
        if self.path.suffix.lower() not in (".npy", ".parquet"):
            raise FileError(f"{self.path}: only .npy and .parquet files can be streamed; convert it, or read it whole")
        self._batch_size, self._seed, self._rank, self._world = batch_size, seed, rank, world
        if self.path.suffix.lower() == ".npy":
            array = _open_npy(self.path)
            self._chosen = _positions(columns, None, array.shape[1], self.path)
            self.names, self._n_blocks = None, math.ceil(len(array) / BLOCK_ROWS)
        else:
            file = _open_parquet(self.path)
            known = file.schema_arrow.names
            self.names = [known[i] for i in _positions(columns, known, len(known), self.path)]
            self._n_blocks = file.num_row_groups

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """The batches of one epoch: points (b, d) and weights (b,), which are 1."""
        rng = np.random.default_rng([self._seed, number])
        blocks = rng.permutation(self._n_blocks)[self._rank :: self._world]
        for block, rows in zip(blocks, self._read(blocks), strict=True):
            order = np.random.default_rng([self._seed, number, int(block)]).permutation(len(rows))
            for begin in range(0, len(rows), self._batch_size):
                batch = rows[order[begin : begin + self._batch_size]]
                yield batch, np.ones(len(batch))

    def _read(self, blocks: Sequence[int] | np.ndarray) -> Iterator[Floats]:
        if self.names is None:
            array = _open_npy(self.path)
            for block in blocks:
                part = array[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS, self._chosen]
                yield self._finite(np.asarray(part, dtype=np.float64), block)
        else:
            file = _open_parquet(self.path)
            for block in blocks:
                table = file.read_row_group(int(block), columns=self.names)
                yield self._finite(_as_floats(table, self.names, self.path), block)

    def _finite(self, rows: Floats, block: int) -> Floats:
        if np.isinf(rows).any():
            row, column = np.argwhere(np.isinf(rows))[0]
            raise FileError(f"{self.path}: block {block}, row {row}, column {column}: infinite numbers cannot be used")
        return rows
