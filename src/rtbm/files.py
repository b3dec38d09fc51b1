"""Tables of numbers in files: CSV, Parquet and .npy, read at once or a block at a time.

Which columns of CSV and Parquet files are numbers:

- A column is text if it has cells and none of them resembles a number. Text and dates are left out.
- A column with a number must hold nothing else. Any other cell is a FileError that names it, so that a slip in one cell
  never drops a column.
- true and false are the numbers 1 and 0.
- The index of a data frame is left out: the columns that the metadata of a Parquet file calls index, and the columns
  without a name at the beginning of a CSV file. A column without a name is called "Unnamed: 0", with its position, as
  pandas does.

A column that is asked for is read in any case. If it holds anything but numbers, that is an error.
"""

import contextlib
import csv
import io
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from rtbm.common import Floats
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import COMPRESSIONS, existing_table, table_kind

# pyarrow is imported in the functions that use it: arrays and .npy files do not wait for it.


MISSING = {"", "na", "n/a", "nan", "null", "none"}
"""What stands for a missing number in a CSV file, in any case; it becomes NaN."""
BOOLEANS = {"true": 1.0, "false": 0.0}
"""Words that are numbers, in any case."""
BLOCK_ROWS = 65_536
SAMPLE_ROWS = 1000
"""Rows of a CSV file that are looked at to tell columns of numbers from text before all are read."""
READ_BYTES = 2**20
"""Columns of Parquet files are read so many bytes at a time."""
BLOCK_BYTES = 2**22
"""CSV is parsed in blocks of so many bytes; a row must fit into one."""


class Table(NamedTuple):
    """Numbers (n, d), the names of their columns (None where the file has none), and why others were left out."""

    values: Floats
    names: list[str] | None
    left_out: Mapping[str, str] = MappingProxyType({})


def read_table(
    path: Any,
    columns: Sequence[str] | None = None,
    header: bool | None = None,
    *,
    separator: str | None = None,
    decimal: str = ".",
) -> Table:
    """Read a table of numbers from a .csv (.tsv, .txt; .gz, .bz2, .zst of these), .parquet or .npy file.

    Parameters
    ----------
    path : path
        The ending of the name tells the format.
    columns : sequence of str
        Names of columns to read, in this order; or their numbers, from 0, where there are no names.
    header : bool
        Whether a CSV file begins with names; by default it does if its first row is not all numbers.
    separator : str
        What separates the cells of a CSV file; " " stands for any run of blanks. By default a semicolon or a tab if the
        first line has one outside of quotes, else a comma, or blanks in a .txt file without commas.
    decimal : "." or ","
        The decimal point of a CSV file. With "," the separator is not found to be a comma.

    Returns
    -------
    Table
        Missing cells are NaN. Text, dates and the index of a data frame are left out. Anything else that is not a
        finite number is a FileError with its row and column.
    """
    path = existing_table(path)
    if table_kind(path) == ".npy":
        array = _open_npy(path)
        chosen, _ = _choose(path, columns, [str(i) for i in range(array.shape[1])])
        return Table(_npy_rows(path, array, chosen), None)
    if table_kind(path) == ".parquet":
        file = _open_parquet(path)
        chosen, left_out = _parquet_columns(path, file, columns)
        return Table(*_parquet_rows(path, file.read(columns=chosen), chosen, left_out), left_out or {})
    with _text_errors(path):
        return _read_text(_open_text(path, header, separator, decimal), columns)


def column_names(
    path: Any, header: bool | None = None, *, separator: str | None = None, decimal: str = "."
) -> list[str] | None:
    """The names of all columns of a file; None if it has none."""
    path = existing_table(path)
    if table_kind(path) == ".npy":
        return None
    if table_kind(path) == ".parquet":
        return list(_open_parquet(path).schema_arrow.names)
    with _text_errors(path):
        return _open_text(path, header, separator, decimal).names


def _choose(
    path: Path, columns: Sequence[str] | None, known: list[str], index: Sequence[str] = ()
) -> tuple[list[str], dict[str, str] | None]:
    """The columns to read and those left out: all but the index; or those that are asked for, and then None."""
    repeated = sorted({name for part in (known, columns or ()) for name, n in Counter(part).items() if n > 1})
    if repeated:
        raise FileError(
            f"{path}: columns must have different names, got {', '.join(map(repr, repeated))} more than once"
        )
    if columns is None:
        return [name for name in known if name not in index], dict.fromkeys(index, "index of a data frame")
    missing = [name for name in columns if name not in known]
    if missing:
        raise FileError(f"{path}: no column {', '.join(map(repr, missing))}; there are {', '.join(known)}")
    return list(columns), None


def _number(cell: str, decimal: str = ".") -> float:
    """A cell as a number: NaN if it is missing, infinite if it is not a finite number."""
    word = cell.strip().strip('"').lower()  # quotes are still there if blanks precede them
    if word in MISSING:
        return math.nan
    if word in BOOLEANS:
        return BOOLEANS[word]
    if decimal == ",":
        word = word.replace(".", "?").replace(",", ".")
    try:
        return float(word.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        return math.inf


def _resembles_number(cell: str) -> bool:
    """Whether a cell is a number, even if it is infinite or written in another way: 1,5 or 1,000.50 or 1_000."""
    try:
        float(cell.strip().strip('"').replace(",", ""))
    except ValueError:
        return math.isfinite(_number(cell))
    return True


def _to_floats(column: Any, decimal: str = ".") -> tuple[Floats, str]:
    """An Arrow column as numbers, infinite where a cell is no number; and what it is, if it is no column of numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if str(column.type) in ("string", "large_string", "string_view"):
        column = column.cast(pa.large_string())
        cells = column.unique()
        words = ["" if cell is None else cell for cell in cells.to_pylist()]
        numbers = np.array([_number(word, decimal) for word in words], dtype=np.float64)
        is_text = np.isinf(numbers).any() and not any(
            _resembles_number(word) for word, number in zip(words, numbers, strict=True) if not math.isnan(number)
        )
        return numbers[pc.index_in(column, cells).to_numpy()], "text" if is_text else ""
    if pa.types.is_temporal(column.type):
        return np.full(len(column), np.inf), "dates"
    try:
        return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False), ""
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(column), np.inf), str(column.type)


def _collect(
    path: Path, table: Any, chosen: Sequence[str], left_out: dict[str, str] | None, decimal: str = "."
) -> tuple[Floats, list[str]]:
    """Columns of an Arrow table as numbers (n, d), and their names. Others go to `left_out`, unless that is None."""
    results = {}
    for name in chosen:
        numbers, kind = _to_floats(table.column(name), decimal)
        if kind and left_out is not None:
            left_out[name] = kind
        else:
            results[name] = numbers
    if not results:
        raise FileError(
            f"{path}: no column holds numbers; left out: {reasons(left_out or {})}; name the columns to read"
        )
    return np.stack(list(results.values())).T, list(results)  # column by column in memory, as data frames are


def reasons(left_out: Mapping[str, str]) -> str:
    """Columns that were left out, and why, in words."""
    return ", ".join(f"{name} ({reason})" for name, reason in left_out.items())


def _check_finite(values: Floats, cells: Sequence[Any] | np.ndarray, names: Sequence[str], where: str) -> None:
    """Name the first number that is not finite; cells[column][row] is what the file holds."""
    bad = np.isinf(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        cell = str(cells[column][int(row)])
        raise FileError(
            f"{where}row {row}, column {names[column]}: {cell!r} is not a finite number; choose other columns"
        )


class _TextFile(NamedTuple):
    """A CSV file, and how its cells are written."""

    path: Path
    separator: str
    decimal: str
    begin: int  # lines before the first row of cells
    width: int | None = None
    names: list[str] | None = None


@contextlib.contextmanager
def _text_errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowInvalid

    try:
        yield
    except UnicodeDecodeError:
        raise FileError(f"{path}: not text in UTF-8: save it in that encoding") from None
    except (csv.Error, OSError, ArrowInvalid) as error:
        raise FileError(f"{path}: cannot be read as CSV ({error})") from None


def _open_bytes(path: Path, separator: str | None = None) -> BinaryIO:
    """The bytes of a CSV file, unpacked; where blanks separate the cells, one stands for a run of them."""
    from pyarrow import input_stream

    stream = input_stream(path, compression=COMPRESSIONS.get(path.suffix.lower()))
    if separator != " ":
        return stream
    with stream:
        return io.BytesIO(b"\n".join(b" ".join(line.split()) for line in stream.read().splitlines()))


def _rows(file: _TextFile) -> Iterator[tuple[int, list[str]]]:
    """The rows of a CSV file, by Python: numbers of lines, and cells. For the first rows, and to find faults."""
    with io.TextIOWrapper(_open_bytes(file.path, file.separator), encoding="utf-8-sig", newline="") as stream:
        for _ in range(file.begin):
            stream.readline()
        reader = csv.reader(stream, delimiter=file.separator, skipinitialspace=True)
        for cells in reader:
            line = file.begin + reader.line_num
            if len(cells) <= 1 and not any(cell.strip() for cell in cells):
                continue  # a blank line
            if file.width is not None and len(cells) != file.width:
                raise FileError(
                    f"{file.path}: line {line} has {len(cells)} cells, and the first row has {file.width}: look for a "
                    "missing or surplus delimiter"
                )
            yield line, cells


def _open_text(path: Path, header: bool | None, separator: str | None, decimal: str) -> _TextFile:
    """Look at the first row. Blank lines, and lines that begin with #, may come before it."""
    if decimal not in (".", ","):
        raise InvalidInputError(f'decimal must be "." or ",", got {decimal!r}')
    separator = separator and separator.replace("\\t", "\t")  # shells pass a backslash and a t
    if separator is not None and (len(separator) != 1 or separator in f'{decimal}"\r\n'):
        raise InvalidInputError(f"separator must be one character other than {decimal!r} and quotes, got {separator!r}")
    begin = 0
    with io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        while first and (not first.strip() or first.startswith("#")):
            begin, first = begin + 1, stream.readline()
    file = _TextFile(path, separator or _guess_separator(first, path, decimal), decimal, begin)
    line, top = next(_rows(file), (0, []))
    if not top:
        raise FileError(f"{path}: the file is empty")
    top = [cell.strip() for cell in top]
    if not (_has_names(top, path) if header is None else header):
        return file._replace(width=len(top))
    if not any(top):
        raise FileError(f"{path}: the first row has only empty cells, no names: say --no-header (header=False)")
    return file._replace(begin=line, width=len(top), names=[cell or f"Unnamed: {i}" for i, cell in enumerate(top)])


def _guess_separator(line: str, path: Path, decimal: str) -> str:
    bare = "".join(line.split('"')[::2])  # without what is in quotes
    last = ";" if decimal == "," else ","
    found = next((character for character in f";\t{last}" if character in bare), None)
    return found or (" " if " " in bare.strip() and table_kind(path) == ".txt" else last)


def _has_names(top: list[str], path: Path) -> bool:
    """Whether a first row holds names. If it may be either, the user has to say."""
    named = list(itertools.dropwhile(lambda cell: not cell, top))
    if 0 < len(named) < len(top) and named == [str(i) for i in range(len(named))]:
        return True  # a data frame with its index, whose columns are called 0, 1, 2, …
    words = [cell for cell in top if not _resembles_number(cell) and cell.lower() not in MISSING]
    ask = "say whether it holds names (--header or --no-header; header=True or False)"
    if words and any(_resembles_number(cell) for cell in top):
        raise FileError(f"{path}: the first row mixes numbers and text such as {words[0]!r}: {ask}")
    if not any(top):
        raise FileError(f"{path}: the first row has only empty cells: {ask}")
    return bool(words)


def _read_text(file: _TextFile, columns: Sequence[str] | None) -> Table:
    from pyarrow import ArrowInvalid

    sample = [cells for _, cells in itertools.islice(_rows(file), SAMPLE_ROWS)]
    if not sample:
        raise FileError(f"{file.path}: there are names, but no rows")
    width = len(sample[0])
    known = file.names or [str(i) for i in range(width)]
    nameless = itertools.takewhile(lambda i: known[i] == f"Unnamed: {i}", range(width))
    chosen, left_out = _choose(file.path, columns, known, [known[i] for i in nameless])
    cells = dict(zip(known, zip(*sample, strict=True), strict=True))
    numeric = [name for name in chosen if all(_is_plain(cell, file.decimal) for cell in cells[name])]
    try:
        table = _parse(file, known, chosen, numeric)
    except ArrowInvalid:
        for _ in _rows(file):
            pass  # a row with a wrong number of cells is an error here
        table = _parse(file, known, chosen, [], newlines=True)  # slower, and exact
    values, names = _collect(file.path, table, chosen, left_out, file.decimal)
    if np.isinf(values).any():
        _raise_bad_cell(file, [known.index(name) for name in names])
    return Table(values, names if file.names else None, left_out or {})


def _is_plain(cell: str, decimal: str) -> bool:
    """Whether Arrow reads a cell as the same number as `_number`."""
    return not math.isinf(_number(cell, decimal)) and cell.strip().lower() not in BOOLEANS


def _parse(file: _TextFile, known: list[str], chosen: list[str], numeric: list[str], newlines: bool = False) -> Any:
    """The chosen columns of a CSV file as an Arrow table: the numeric ones as numbers, the others as text."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    def is_blank(row: Any) -> bool:
        return row.actual_columns == 1 and not row.text.strip()

    missing = ["".join(s) for word in MISSING for s in itertools.product(*zip(word, word.upper(), strict=True))]
    with _open_bytes(file.path, file.separator) as stream:
        return arrow.read_csv(
            stream,
            arrow.ReadOptions(block_size=BLOCK_BYTES, skip_rows=file.begin, column_names=known),
            arrow.ParseOptions(
                delimiter=file.separator,
                newlines_in_values=newlines,
                invalid_row_handler=lambda row: "skip" if is_blank(row) else "error",
            ),
            arrow.ConvertOptions(
                include_columns=chosen,
                column_types={name: pa.float64() if name in numeric else pa.string() for name in chosen},
                null_values=missing,
                decimal_point=file.decimal,
            ),
        )


def _raise_bad_cell(file: _TextFile, columns: list[int]) -> NoReturn:
    """Name the first cell of these columns that is not a finite number."""
    line, column, cell = next(
        (line, i, cells[i])
        for line, cells in _rows(file)
        for i in columns
        if math.isinf(_number(cells[i], file.decimal))
    )
    name = f"{file.names[column]!r} ({column + 1})" if file.names else f"{column + 1}"
    other, points = (".", "points") if file.decimal == "," else (",", "commas")
    hint = "choose other columns, or leave the cell empty if it is missing"
    if math.isfinite(_number(cell, other)):
        hint = f"if numbers have decimal {points} here, say --decimal {other} (decimal={other!r})"
    raise FileError(f"{file.path}: line {line}, column {name}: {cell!r} is not a finite number; {hint}")


def _open_npy(path: Path) -> np.ndarray:
    """The array in a .npy file, as a memory map (n, d)."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # refuses archives (.npz) and pickles
    except ValueError as error:
        if "mmap length is greater" in str(error):
            raise FileError(
                f"{path}: the file ends before its last row, after {path.stat().st_size} bytes: copy it again"
            ) from None
        raise _not_npy(path, error) from None
    except (OSError, EOFError) as error:
        raise _not_npy(path, error) from None
    if array.ndim not in (1, 2) or array.dtype.kind not in "fiub":
        raise FileError(f"{path}: must hold numbers of shape (n,) or (n, d), got {array.dtype} {array.shape}")
    return array[:, None] if array.ndim == 1 else array


def _not_npy(path: Path, error: Exception) -> FileError:
    hint = "save one array with numpy.save, not an archive with numpy.savez"
    return FileError(f"{path}: not a .npy file of numbers ({error}): {hint}")


def _open_parquet(path: Path) -> Any:
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES)  # else all row groups are held in memory
    except (ArrowInvalid, OSError) as error:
        raise FileError(f"{path}: not a Parquet file ({error})") from None


@contextlib.contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError) as error:
        raise FileError(f"{path}: cannot be read to its end as Parquet ({error})") from None


def _first_rows(file: Any, columns: list[str]) -> Any:
    """The first rows of a Parquet file, as an Arrow table."""
    import pyarrow as pa

    batch = next(file.iter_batches(BLOCK_ROWS, row_groups=[0], columns=columns), None)
    return file.read_row_group(0, columns=columns) if batch is None else pa.table(batch)


def _npy_rows(path: Path, rows: np.ndarray, chosen: Sequence[str], where: str = "") -> Floats:
    columns = [int(number) for number in chosen]
    is_all = columns == list(range(rows.shape[1]))
    values = np.asarray(rows if is_all else rows[:, columns], dtype=np.float64)
    _check_finite(values, values.T, chosen, f"{path}: {where}")
    return values


def _parquet_columns(path: Path, file: Any, columns: Sequence[str] | None) -> tuple[list[str], dict[str, str] | None]:
    names = list(file.schema_arrow.names)
    index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
    return _choose(path, columns, names, [name for name in names if name in index])


def _parquet_rows(
    path: Path, table: Any, chosen: Sequence[str], left_out: dict[str, str] | None, where: str = ""
) -> tuple[Floats, list[str]]:
    values, names = _collect(path, table, chosen, left_out)
    _check_finite(values, [table.column(name) for name in names], [repr(name) for name in names], f"{path}: {where}")
    return values, names


def count_numbers(path: Any, columns: Sequence[str] | None = None) -> int:
    """How many numbers a .npy or Parquet file holds in some columns, or in all, by its header."""
    path = existing_table(path)
    if table_kind(path) == ".npy":
        rows, width = _open_npy(path).shape
    else:
        metadata = _open_parquet(path).metadata
        rows, width = metadata.num_rows, metadata.num_columns
    return int(rows * (width if columns is None else len(columns)))


class FileRows:
    """The rows of a .npy or Parquet file that need not fit into memory, in batches.

    A .npy file is a memory map, read in blocks; a Parquet file is read by row groups. Each epoch takes the blocks in a
    new order and shuffles the rows of each. In several processes, each takes its share of the blocks.

    Columns are left out as in `read_table`, but the first rows alone decide whether a column is text.

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

    Attributes
    ----------
    names : list of str or None
        The names of the columns.
    left_out : dict
        Columns that are not read, and why.
    n_rows : int
        The number of rows of the file.
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
        if table_kind(self.path) not in (".npy", ".parquet"):
            raise FileError(f"{self.path}: only .npy and .parquet files can be streamed; convert it, or read it whole")
        self._batch_size, self._seed, self._rank, self._world = batch_size, seed, rank, world
        if table_kind(self.path) == ".npy":
            array = _open_npy(self.path)
            self._chosen, left_out = _choose(self.path, columns, [str(i) for i in range(array.shape[1])])
            self.n_rows, self._n_blocks = len(array), math.ceil(len(array) / BLOCK_ROWS)
        else:
            file = _open_parquet(self.path)
            self._chosen, left_out = _parquet_columns(self.path, file, columns)
            self.n_rows, self._n_blocks = file.metadata.num_rows, file.num_row_groups
            if self._n_blocks:
                first = _first_rows(file, self._chosen)
                _, self._chosen = _parquet_rows(self.path, first, self._chosen, left_out, "block 0, ")
        self.names = None if table_kind(self.path) == ".npy" else self._chosen
        self.left_out = left_out or {}

    def epoch(self, number: int) -> Iterator[tuple[Any, Any]]:
        """The batches of one epoch: points (b, d) and weights (b,), which are 1."""
        rng = np.random.default_rng([self._seed, number])
        blocks = rng.permutation(self._n_blocks)[self._rank :: self._world]
        for block, rows in zip(blocks, self._read(blocks), strict=True):
            order = np.random.default_rng([self._seed, number, int(block)]).permutation(len(rows))
            for begin in range(0, len(rows), self._batch_size):
                batch = rows[order[begin : begin + self._batch_size]]
                yield batch, np.ones(len(batch))

    @property
    def n_columns(self) -> int:
        """The number of columns that are read."""
        return len(self._chosen)

    def in_order(self, size: int) -> Iterator[tuple[int, Floats]]:
        """The share of this process, in order: the number of the first row, and `size` rows or fewer, again and again.

        Shares are equal to one row. Pages of a Parquet file are read one after the other, and not whole row groups.
        """
        first, last = (self.n_rows * i // self._world for i in (self._rank, self._rank + 1))
        if self.names is None:
            array = _open_npy(self.path)
            for begin in range(first, last, size):
                rows = array[begin : min(begin + size, last)]
                yield begin, _npy_rows(self.path, rows, self._chosen, f"from row {begin} on, ")
            return
        for begin, table in self._parquet_tables(first, last, size):
            yield begin, _parquet_rows(self.path, table, self._chosen, None, f"from row {begin} on, ")[0]

    def _parquet_tables(self, first: int, last: int, size: int) -> Iterator[tuple[int, Any]]:
        """The rows from first to last as Arrow tables, and the number of the first row of each."""
        import pyarrow as pa

        file = _open_parquet(self.path)
        edges = np.cumsum([0, *(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))])
        groups = np.flatnonzero((edges[1:] > first) & (edges[:-1] < last)).tolist()
        begin = int(edges[groups[0]]) if groups else 0
        batches = file.iter_batches(size, row_groups=groups, columns=self._chosen, use_threads=False)
        with _parquet_errors(self.path):
            for batch in batches if groups else ():
                low, high = max(first - begin, 0), min(last - begin, len(batch))
                if low < high:
                    yield begin + low, pa.table(batch.slice(low, high - low))
                begin += len(batch)

    def _read(self, blocks: Sequence[int] | np.ndarray) -> Iterator[Floats]:
        if self.names is None:
            array = _open_npy(self.path)
            for block in blocks:
                rows = array[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
                yield _npy_rows(self.path, rows, self._chosen, f"block {block}, ")
        else:
            file = _open_parquet(self.path)
            for block in blocks:
                table = file.read_row_group(int(block), columns=self._chosen)
                yield _parquet_rows(self.path, table, self._chosen, None, f"block {block}, ")[0]
