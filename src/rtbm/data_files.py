"""Tables in files: CSV, Parquet and .npy, read at once or a block at a time.

Which columns of CSV and Parquet files are numbers:

- A column is text if it has cells and none of them resembles a number. Text and dates are left out, unless they are
  asked for (`text` of `read_table`): text is then read as it is, and dates are days since the beginning of 1970.
- A column with a number must hold only numbers. Any other cell is a FileError that names it, so that a typing error in
  one cell never drops a column.
- true and false are the numbers 1 and 0.
- The index of a data frame is left out: the columns that the metadata of a Parquet file calls index, and the columns
  without a name at the beginning of a CSV file. A column without a name is called "Unnamed: 0", with its position, as
  pandas does. If it has no cells either, as delimiters at the ends of lines make it, it is left out.

In names of columns, blanks replace control characters, with a warning.

A column that is asked for is never left out. If it holds anything else than what is read, that is an error.
"""

import contextlib
import csv
import io
import itertools
import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from rtbm.common import Floats
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import COMPRESSIONS, existing_table, printable, table_kind

# pyarrow is imported in the functions that use it, so that arrays and .npy files do not wait for it.

MISSING_WORDS = {"", "na", "n/a", "nan", "null", "none"}
"""Cells of a CSV file, in upper or lower case, that are read as NaN; other words make a column text."""
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0}
"""Cells, in upper or lower case, that are read as numbers."""
TEXT_TYPES = ("string", "large_string", "string_view")
"""Arrow's names of types of text."""
DAY = 86_400_000_000  # microseconds
MOST_WORDS = 1000
"""A column of text with more different cells than this, or in which more than half of the cells differ, is left out:
it holds names or identifiers. Estimators refuse more levels than this."""
FIRST_ROWS = 65_536
"""Rows of a Parquet file that decide which columns are text."""
INSPECTED_ROWS = 1000
"""Rows of a CSV file that decide which columns Arrow parses as numbers. It parses the others as text, more slowly."""
NAMED_CELLS = 5
"""Cells of a first row that a message names."""
READ_BYTES = 2**20  # bytes of a column of a Parquet file that are read at a time
BLOCK_BYTES = 2**22
"""Bytes of a CSV file that are parsed at a time; a row must fit into them."""


class FileData(NamedTuple):
    """A table (n, d), the names of its columns (None if the file has none), and columns left out, with reasons.

    The table holds numbers. With columns of text it holds objects: numbers, texts, and None for gaps in text. `kinds`
    are "text" and "dates", by the numbers of such columns.
    """

    values: np.ndarray
    names: list[str] | None
    left_out: Mapping[str, str] = MappingProxyType({})
    kinds: Mapping[int, str] = MappingProxyType({})


class Limits(NamedTuple):
    """The most bytes, unpacked, and the most cells and columns that a file may hold."""

    n_bytes: int
    n_cells: int
    n_columns: int


def read_table(
    path: Any,
    columns: Sequence[str] | None = None,
    header: bool | None = None,
    *,
    separator: str | None = None,
    decimal: str = ".",
    text: bool | Collection[str] = False,
    block_bytes: int = BLOCK_BYTES,
    limits: Limits | None = None,
) -> FileData:
    """Read a table from a .csv (.tsv, .txt; .gz, .bz2, .zst of these), .parquet or .npy file.

    Parameters
    ----------
    path : path
        The ending of the name tells the format.
    columns : sequence of str
        Names of columns to read, in this order; or their numbers, from 0, where there are no names.
    header : bool
        Whether a CSV file begins with names. By default it does if its first row is not all numbers. It also does, with
        a warning, if that row is 0, 1, 2, … in order, or holds different integers above columns with fractions.
    separator : str
        What separates the cells of a CSV file; " " stands for any run of blanks. By default a semicolon or a tab if the
        first line has one outside of quotes, else a comma, or blanks in a .txt file without commas.
    decimal : "." or ",", default="."
        The decimal point of a CSV file. With "," a comma is never taken for the separator.
    text : bool or collection of str, default=False
        Whether to read text too, and dates as days since the beginning of 1970. Text with more than 1,000 different
        cells, or in which more than half of the cells differ, is left out, and so is text that is always the same. A
        collection names columns that may mix text and numbers: they are text if one of their cells is not a number.
    block_bytes : int, default=4194304
        The bytes of a CSV file that are parsed at a time; a row must fit into them.
    limits : Limits, default=None
        A file that holds more is a FileError. Packed files are unpacked no further than this.

    Returns
    -------
    FileData
        Missing cells are NaN. Text, dates and the index of a data frame are left out. Anything else that is not a
        finite number is a FileError with its row and column.
    """
    path = existing_table(path)
    labels = None if text is False else set() if text is True else {printable(name) for name in text}
    if table_kind(path) in STREAMED_FILES:
        file = STREAMED_FILES[table_kind(path)](path)
        if limits is not None:
            _check_limits(path, Limits(file.n_bytes, file.n_rows * len(file.columns), len(file.columns)), limits)
        chosen, left_out = _choose(path, columns, file.columns, file.index)
        values, names, kinds = file.read(chosen, left_out, labels)
        return FileData(values, names if file.has_names else None, left_out or {}, kinds)
    with _text_errors(path):
        if limits is not None:
            _check_limits(path, _measure_text(path, limits), limits)
        return _read_text(_open_text(path, header, separator, decimal), columns, labels, block_bytes)


def column_names(
    path: Any, header: bool | None = None, *, separator: str | None = None, decimal: str = "."
) -> list[str] | None:
    """The names of all columns of a file; None if it has none."""
    path = existing_table(path)
    if table_kind(path) in STREAMED_FILES:
        file = STREAMED_FILES[table_kind(path)](path)
        return file.columns if file.has_names else None
    with _text_errors(path):
        return _open_text(path, header, separator, decimal).names


def count_numbers(path: Any, columns: Sequence[str] | None = None) -> int:
    """The number of cells of a .npy or Parquet file in some columns, or in all, according to its header."""
    file = STREAMED_FILES[table_kind(existing_table(path))](Path(path))
    return file.n_rows * len(file.columns if columns is None else columns)


def _check_limits(path: Path, found: Limits, limits: Limits) -> None:
    for name, number, most in zip(("bytes", "cells", "columns"), found, limits, strict=True):
        if number > most:
            raise FileError(f"{path}: holds more than {most:,} {name}")


def _measure_text(path: Path, limits: Limits) -> Limits:
    """The bytes and columns of a CSV file, and about as many cells as it has; too many bytes or cells end it."""
    n_bytes = n_cells = 0
    separators = [b",", b";", b"\t", b"\n", *([b" "] if table_kind(path) == ".txt" else [])]
    with _open_bytes(path) as stream:
        while chunk := stream.read(READ_BYTES):
            n_bytes += len(chunk)
            n_cells += sum(map(chunk.count, separators))
            if n_bytes > limits.n_bytes or n_cells > limits.n_cells:
                return Limits(n_bytes, n_cells, 0)
    return Limits(n_bytes, n_cells, _first_row(path, None, ".")[0].width or 0)


def _choose(
    path: Path, columns: Sequence[str] | None, known: list[str], index: Sequence[str] = ()
) -> tuple[list[str], dict[str, str] | None]:
    """The columns to read, and those left out. If columns are asked for, these are read, and None is left out."""
    repeated = sorted({name for part in (known, columns or ()) for name, n in Counter(part).items() if n > 1})
    if repeated:
        raise FileError(
            f"{path}: columns must have different names, got {', '.join(map(repr, repeated))} more than once"
        )
    if columns is None:
        return [name for name in known if name not in index], dict.fromkeys(index, "index of a data frame")
    columns = [printable(name) for name in columns]
    missing = set(columns).difference(known)
    if missing:
        raise FileError(f"{path}: no column {', '.join(map(repr, sorted(missing)))}; there are {', '.join(known)}")
    return list(columns), None


def _printable_names(path: Path, names: Sequence[str]) -> list[str]:
    """Names of columns without control characters; a warning if there are any."""
    kept = [printable(name) for name in names]
    changed = [repr(new) for old, new in zip(names, kept, strict=True) if old != new]
    if changed:
        first = ", ".join(changed[:NAMED_CELLS]) + ", …" * (len(changed) > NAMED_CELLS)
        warnings.warn(f"{path}: blanks replace control characters in names of columns: {first}", stacklevel=2)
    return kept


def _bare(cell: str) -> str:
    return cell.strip().strip('"')  # quotes are still there if blanks precede them


def cell_number(cell: str, decimal: str = ".") -> float:
    """A cell as a number: NaN if it is missing, infinity if it is not a finite number."""
    word = _bare(cell).lower()
    if word in MISSING_WORDS:
        return math.nan
    if word in BOOLEAN_WORDS:
        return BOOLEAN_WORDS[word]
    if decimal == ",":
        word = word.replace(".", "?").replace(",", ".")
    try:
        return float(word.replace("_", "?"))  # Python would read 1_0 as 10
    except ValueError:
        return math.inf


def _resembles_number(cell: str) -> bool:
    """Whether a cell is a number, even an infinite one, or one in another notation such as 1,5 or 1,000.50 or 1_000."""
    try:
        float(_bare(cell).replace(",", ""))
    except ValueError:
        return math.isfinite(cell_number(cell))
    return True


def _words(column: Any) -> tuple[list[Any], np.ndarray] | None:
    """The different cells of an Arrow column of text, and the places (n,) of all cells among them; None for others.

    The place of a gap is one behind the last.
    """
    import pyarrow as pa

    is_dictionary = pa.types.is_dictionary(column.type)
    if str(column.type.value_type if is_dictionary else column.type) not in TEXT_TYPES:
        return None
    # one copy of each text: a file may repeat a long one many times
    column = (column if is_dictionary else column.dictionary_encode()).unify_dictionaries()
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    places = [chunk.indices.fill_null(len(words)).to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return words, np.concatenate([*places, np.empty(0, int)])


def _to_floats(column: Any, decimal: str = ".") -> tuple[Floats, str]:
    """An Arrow column as numbers, infinite where a cell is none; and its kind if it holds no numbers, else ""."""
    import pyarrow as pa

    found = _words(column)
    if found is not None:
        words, places = found
        numbers = np.array([*(cell_number(word or "", decimal) for word in words), math.nan])
        is_text = np.isinf(numbers).any() and not any(
            _resembles_number(word) for word, number in zip(words, numbers, strict=False) if not math.isnan(number)
        )
        return numbers[places], "text" if is_text else ""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_temporal(column.type):
        return np.full(len(column), np.inf), "dates"
    try:
        return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False), ""
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return np.full(len(column), np.inf), str(column.type)


class _Cells(NamedTuple):
    """A column, its kind ("text", "dates", or "" for numbers), and why it is left out, if it is."""

    values: np.ndarray
    kind: str
    reason: str


def _to_cells(column: Any, numbers: Floats, reason: str, is_label: bool) -> _Cells:
    """An Arrow column with text as objects, None for its gaps, and with days since 1970 in the place of dates.

    `numbers` and `reason` are those of `_to_floats`. A column of labels is text if one of its cells is not a number.
    """
    import pyarrow as pa

    found = _words(column)
    if found is None:
        days = _to_days(column) if reason == "dates" else None
        return _Cells(numbers, "", reason and str(column.type)) if days is None else _Cells(days, "dates", "")
    if not reason and not (is_label and np.isinf(numbers).any()):
        return _Cells(numbers, "", "")
    words = [None if math.isnan(cell_number(word or "")) else _bare(word) for word in [*found[0], None]]
    days = None if is_label else _to_days(pa.array(words, pa.string()))
    if days is not None:
        return _Cells(days[found[1]], "dates", "")
    cells = np.array(words, dtype=object)[found[1]]
    return _Cells(cells, "text", "" if is_label else _why_no_categories(cells))


def _to_days(column: Any) -> Floats | None:
    """Days since the beginning of 1970 of Arrow's dates, or of text in their ISO format; None if a cell is neither."""
    import pyarrow as pa

    for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):  # text may have the digits of nanoseconds
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            stamps = column.cast(pa.timestamp(unit, zone), safe=False).to_numpy(zero_copy_only=False)
            return np.where(np.isnat(stamps), np.nan, stamps.astype("datetime64[us]").astype(np.int64) / DAY)
    return None


def _why_no_categories(cells: np.ndarray) -> str:
    """Why a column of text is left out; "" if it is not."""
    known = [cell for cell in cells if cell is not None]
    n = len(set(known))
    if n == 1:
        return "text, one value"
    return f"text, {n:,} different values" if n > min(MOST_WORDS, len(known) / 2) else ""


def _collect(
    path: Path,
    table: Any,
    chosen: Sequence[str],
    left_out: dict[str, str] | None,
    decimal: str = ".",
    nameless: Set[str] = frozenset(),
    hint: str = "",
    labels: Set[str] | None = None,
) -> tuple[np.ndarray, list[str], dict[int, str]]:
    """Columns of an Arrow table (n, d), their names, and kinds. Others are added to `left_out`, unless None.

    They are numbers, and with `labels` text and dates too; see `read_table`. Columns without a name and without a cell
    are left out too: delimiters at the ends of lines make them.
    """
    results: dict[str, np.ndarray] = {}
    kinds: dict[int, str] = {}
    for name in chosen:
        column, kind = table.column(name), ""
        cells, reason = _to_floats(column, decimal)
        if name in nameless and np.isnan(cells).all():
            reason = "empty"
        elif labels is not None:
            cells, kind, reason = _to_cells(column, cells, reason, name in labels)
        if reason and left_out is not None:
            left_out[name] = reason
            continue
        if kind:
            kinds[len(results)] = kind
        results[name] = cells
    if not results:
        raise FileError(
            f"{path}: no column holds numbers; left out: {reasons(left_out)}; name the columns to read{hint}"
            if left_out
            else f"{path}: there are no columns"
        )
    return np.stack(list(results.values())).T, list(results), kinds  # column by column in memory, as data frames are


def reasons(left_out: Mapping[str, str]) -> str:
    """Columns that were left out, with their reasons, in words."""
    return ", ".join(f"{name} ({reason})" for name, reason in left_out.items())


def _is_infinite(values: np.ndarray) -> np.ndarray:
    """Which numbers (n, d) are infinite, among which there may be text."""
    return np.isinf(values) if values.dtype != object else (values == np.inf) | (values == -np.inf)


def _check_finite(values: np.ndarray, cells: Sequence[Any] | np.ndarray, names: Sequence[str], where: str) -> None:
    """Raise an error for the first infinite number; cells[column][row] is the cell of the file."""
    bad = _is_infinite(values)
    if bad.any():
        row, column = np.argwhere(bad)[0]
        cell = str(cells[column][int(row)])
        raise FileError(
            f"{where}row {row}, column {names[column]}: {cell!r} is not a finite number; choose other columns"
        )


class _TextFile(NamedTuple):
    """A CSV file and its format."""

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
    """The bytes of a CSV file, decompressed. If blanks separate the cells, runs of them are reduced to one."""
    from pyarrow import input_stream

    stream = input_stream(path, compression=COMPRESSIONS.get(path.suffix.lower()))
    if separator != " ":
        return stream
    with stream:
        return io.BytesIO(b"\n".join(b" ".join(line.split()) for line in stream.read().splitlines()))


def _rows(file: _TextFile) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and cells of a CSV file, read by Python: for the first rows, and to find bad cells."""
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
    """Find the format from the first row, and whether it holds names."""
    file, line, top = _first_row(path, separator, decimal)
    if not (_has_names(top, file) if header is None else header):
        return file
    if not any(top):
        raise FileError(f"{path}: the first row has only empty cells, no names: say --no-header (header=False)")
    names = _printable_names(path, [cell or f"Unnamed: {i}" for i, cell in enumerate(top)])
    return file._replace(begin=line, names=names)


def _first_row(path: Path, separator: str | None, decimal: str) -> tuple[_TextFile, int, list[str]]:
    """The format, and the number of the first row and its cells. Blank lines and lines with # may precede it."""
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
    return file._replace(width=len(top)), line, [cell.strip() for cell in top]


def _guess_separator(line: str, path: Path, decimal: str) -> str:
    bare = "".join(line.split('"')[::2])  # without what is in quotes
    last = ";" if decimal == "," else ","
    found = next((character for character in f";\t{last}" if character in bare), None)
    return found or (" " if " " in bare.strip() and table_kind(path) == ".txt" else last)


def _has_names(top: list[str], file: _TextFile) -> bool:
    """Whether the first row holds names; a FileError if that is ambiguous."""
    words = [cell for cell in top if not _resembles_number(cell) and cell.lower() not in MISSING_WORDS]
    ask = "say whether it holds names (--header or --no-header; header=True or False)"
    if words and any(_resembles_number(cell) for cell in top):
        raise FileError(f"{file.path}: the first row mixes numbers and text such as {words[0]!r}: {ask}")
    if not any(top):
        raise FileError(f"{file.path}: the first row has only empty cells: {ask}")
    if words or not _has_integers_for_names(top, file):
        return bool(words)
    if top[0]:
        first = ", ".join(top[:NAMED_CELLS]) + ", …" * (len(top) > NAMED_CELLS)
        hint = "say --header, or --no-header if it holds data (header=True or False)"
        warnings.warn(f"{file.path}: the first row, {first}, is taken for names of columns; {hint}", stacklevel=2)
    return True


def _has_integers_for_names(top: list[str], file: _TextFile) -> bool:
    """Whether the first row holds different integers that are names: in order from 0, or above fractions.

    Empty cells may precede them, above the index of a data frame. A single column must begin with 0 and go on with
    fractions alone, since 0 may well be its first number.
    """
    names = list(itertools.dropwhile(lambda cell: not cell, top))
    if not all(map(_is_integer, names)) or len(set(map(int, names))) < len(names):
        return False
    below = [cells[-len(names) :] for _, cells in itertools.islice(_rows(file), 1, INSPECTED_ROWS)]
    numbers = [cell for cells in below for cell in cells if math.isfinite(cell_number(cell, file.decimal))]
    in_order = names == [str(i) for i in range(len(names))]
    if len(top) == 1:
        return in_order and len(numbers) > 0 and not any(map(_is_integer, numbers))
    return in_order or not all(map(_is_integer, numbers))


def _is_integer(cell: str) -> bool:
    return cell.strip().removeprefix("-").isdecimal()


def _read_text(file: _TextFile, columns: Sequence[str] | None, labels: Set[str] | None, block_bytes: int) -> FileData:
    from pyarrow import ArrowInvalid

    sample = [cells for _, cells in itertools.islice(_rows(file), INSPECTED_ROWS)]
    if not sample:
        raise FileError(f"{file.path}: there are names, but no rows")
    width = len(sample[0])
    known = file.names or [str(i) for i in range(width)]
    nameless = {name for i, name in enumerate(known) if name == f"Unnamed: {i}"}
    index = list(itertools.takewhile(nameless.__contains__, known))
    chosen, left_out = _choose(file.path, columns, known, index)
    cells = dict(zip(known, zip(*sample, strict=True), strict=True))
    numeric = {name for name in chosen if all(_is_plain(cell, file.decimal) for cell in cells[name])}
    try:
        table = _parse(file, known, chosen, numeric, block_bytes)
    except ArrowInvalid:
        for _ in _rows(file):
            pass  # raises an error if a row has a wrong number of cells
        table = _parse(file, known, chosen, set(), block_bytes, newlines=True)  # slower, but handles all valid files
    hint = f", or say what separates cells if it is not {file.separator!r} (--separator; separator=...)"
    values, names, kinds = _collect(file.path, table, chosen, left_out, file.decimal, nameless, hint, labels)
    if _is_infinite(values).any():
        places = [known.index(name) for i, name in enumerate(names) if i not in kinds]
        _raise_bad_cell(file, places, labels is not None and columns is None)
    return FileData(values, names if file.names else None, left_out or {}, kinds)


def _is_plain(cell: str, decimal: str) -> bool:
    """Whether Arrow reads a cell as the same number as `cell_number`."""
    return not math.isinf(cell_number(cell, decimal)) and cell.strip().lower() not in BOOLEAN_WORDS


def _parse(
    file: _TextFile, known: list[str], chosen: list[str], numeric: set[str], block_bytes: int, newlines: bool = False
) -> Any:
    """The chosen columns of a CSV file as an Arrow table: the numeric ones as numbers, the others as text."""
    import pyarrow as pa
    from pyarrow import csv as arrow

    def is_blank(row: Any) -> bool:
        return row.actual_columns == 1 and not row.text.strip()

    missing = ["".join(s) for word in MISSING_WORDS for s in itertools.product(*zip(word, word.upper(), strict=True))]
    with _open_bytes(file.path, file.separator) as stream:
        return arrow.read_csv(
            stream,
            arrow.ReadOptions(block_size=block_bytes, skip_rows=file.begin, column_names=known),
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


def _raise_bad_cell(file: _TextFile, columns: list[int], may_be_labels: bool) -> NoReturn:
    """Raise an error that names the first cell of these columns that is not a finite number."""
    line, column, cell = next(
        (line, i, cells[i])
        for line, cells in _rows(file)
        for i in columns
        if math.isinf(cell_number(cells[i], file.decimal))
    )
    name = f"{file.names[column]!r} ({column + 1})" if file.names else f"{column + 1}"
    other, points = (".", "points") if file.decimal == "," else (",", "commas")
    hint = "choose other columns, or leave the cell empty if it is missing"
    if may_be_labels:
        hint += f"; `rtbm fit --categorical {file.names[column] if file.names else column}` takes its cells for labels"
    if math.isfinite(cell_number(cell, other)):
        hint = f"if numbers have decimal {points} here, say --decimal {other} (decimal={other!r})"
    raise FileError(f"{file.path}: line {line}, column {name}: {cell!r} is not a finite number; {hint}")


class _NpyFile:
    """A .npy file as a memory map (n, d). Its columns are called 0, 1, …"""

    has_names = False
    index: Sequence[str] = ()

    def __init__(self, path: Path):
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # refuses archives (.npz) and pickles
        except (OSError, EOFError, ValueError) as error:
            hint = "save one array with numpy.save, not an archive with numpy.savez"
            reason = f"not a .npy file of numbers ({error}): {hint}"
            if "mmap length is greater" in str(error):
                reason = f"the file ends before its last row, after {path.stat().st_size} bytes: copy it again"
            raise FileError(f"{path}: {reason}") from None
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiub" or 0 in array.shape[1:]:
            raise FileError(
                f"{path}: must hold numbers of shape (n,) or (n, d) with d ≥ 1, got {array.dtype} {array.shape}"
            )
        self._path, self._array = path, array[:, None] if array.ndim == 1 else array
        self.n_rows, width = (int(size) for size in self._array.shape)
        self.n_bytes = self._array.nbytes
        self.columns = [str(i) for i in range(width)]

    def read(self, chosen: list[str], left_out: Any, labels: Any) -> tuple[np.ndarray, list[str], dict[int, str]]:
        """All rows of the chosen columns."""
        return self._numbers(slice(None), chosen, ""), chosen, {}

    def numeric_columns(self, chosen: list[str], left_out: dict[str, str] | None) -> list[str]:
        """The chosen columns, since all are numbers."""
        return chosen

    def in_order(self, chosen: list[str], first: int, last: int, size: int) -> Iterator[tuple[int, Floats]]:
        """The rows from first to last, `size` at a time, each with the number of its first row."""
        for begin in range(first, last, size):
            yield begin, self._numbers(slice(begin, min(begin + size, last)), chosen, f"from row {begin} on, ")

    def _numbers(self, rows: slice, chosen: list[str], where: str) -> Floats:
        numbers, columns = self._array[rows], [int(number) for number in chosen]
        numbers = numbers if chosen == self.columns else numbers[:, columns]
        values = np.asarray(numbers, dtype=np.float64)
        _check_finite(values, values.T, chosen, f"{self._path}: {where}")
        return values


class _ParquetFile:
    """A Parquet file. Its blocks are its row groups."""

    has_names = True

    def __init__(self, path: Path):
        from pyarrow import ArrowInvalid
        from pyarrow.parquet import ParquetFile, read_schema

        try:  # pre_buffer would hold all row groups in memory
            texts = [field.name for field in read_schema(path) if str(field.type) in TEXT_TYPES]
            self._file = ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES, read_dictionary=texts)
        except (ArrowInvalid, OSError) as error:
            raise FileError(f"{path}: not a Parquet file ({error})") from None
        schema, metadata = self._file.schema_arrow, self._file.metadata
        self._path, self._metadata, self.columns = path, metadata, _printable_names(path, schema.names)
        self._own_names = dict(zip(self.columns, schema.names, strict=True))
        self.n_rows = metadata.num_rows
        self.n_bytes = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self.index = [name for name, own in self._own_names.items() if own in index]

    def read(
        self, chosen: list[str], left_out: dict[str, str] | None, labels: Set[str] | None
    ) -> tuple[np.ndarray, list[str], dict[int, str]]:
        """All rows of the chosen columns that are numbers, or text and dates; see `read_table`."""
        return self._cells(self._file.read(columns=self._own(chosen)), chosen, left_out, "", labels)

    def numeric_columns(self, chosen: list[str], left_out: dict[str, str] | None) -> list[str]:
        """The chosen columns whose first rows are numbers."""
        import pyarrow as pa

        if not self._metadata.num_row_groups:
            return chosen
        batch = next(self._file.iter_batches(FIRST_ROWS, row_groups=[0], columns=self._own(chosen)), None)
        first = self._file.read_row_group(0, columns=self._own(chosen)) if batch is None else pa.table(batch)
        return self._cells(first, chosen, left_out, "first rows, ")[1]

    def in_order(self, chosen: list[str], first: int, last: int, size: int) -> Iterator[tuple[int, Floats]]:
        """The rows from first to last, `size` or fewer at a time, each with the number of its first row.

        Pages are read one after the other, not whole row groups.
        """
        import pyarrow as pa

        edges = np.cumsum([0, *(self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups))])
        groups = np.flatnonzero((edges[1:] > first) & (edges[:-1] < last)).tolist()
        begin = int(edges[groups[0]]) if groups else 0
        batches = self._file.iter_batches(size, row_groups=groups, columns=self._own(chosen), use_threads=False)
        try:
            for batch in batches if groups else ():
                low, high = max(first - begin, 0), min(last - begin, len(batch))
                if low < high:
                    table, row = pa.table(batch.slice(low, high - low)), begin + low
                    yield row, self._cells(table, chosen, None, f"from row {row} on, ")[0]
                begin += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise FileError(f"{self._path}: cannot be read to its end as Parquet ({error})") from None

    def _own(self, names: list[str]) -> list[str]:
        """Names of columns as the file has them, with control characters."""
        return [self._own_names[name] for name in names]

    def _cells(
        self,
        table: Any,
        chosen: list[str],
        left_out: dict[str, str] | None,
        where: str,
        labels: Set[str] | None = None,
    ) -> tuple[np.ndarray, list[str], dict[int, str]]:
        table = table.rename_columns([printable(name) for name in table.column_names])
        values, names, kinds = _collect(self._path, table, chosen, left_out, labels=labels)
        cells, quoted = [table.column(name) for name in names], [repr(name) for name in names]
        _check_finite(values, cells, quoted, f"{self._path}: {where}")
        return values, names, kinds


STREAMED_FILES: Mapping[str | None, type[_NpyFile] | type[_ParquetFile]] = {".npy": _NpyFile, ".parquet": _ParquetFile}
"""The files that can be read a block at a time, by their ending."""


class FileRows:
    """The rows of a .npy or Parquet file that need not fit into memory.

    Columns are left out as in `read_table`, but the first rows alone decide whether a column is text.

    Parameters
    ----------
    path : path
        A .npy or .parquet file.
    columns : sequence of str, default=None
        The columns to read; None for all that hold numbers.
    rank, world : int, default=0, 1
        The number of this process, and the number of processes, which share the rows.

    Attributes
    ----------
    names : list of str or None
        The names of the columns.
    left_out : dict
        Columns that are not read, with reasons.
    n_rows, n_columns : int
        The number of rows of the file, and of columns that are read.
    first : int
        The number of the first row of this process.
    """

    path: Path
    names: list[str] | None
    left_out: dict[str, str]
    n_rows: int
    n_columns: int

    def __init__(self, path: Any, columns: Sequence[str] | None = None, rank: int = 0, world: int = 1):
        self.path = existing_table(path)
        if table_kind(self.path) not in STREAMED_FILES:
            raise FileError(f"{self.path}: only .npy and .parquet files are read in blocks: convert it, or read it")
        self._rank, self._world = rank, world
        # opened anew for each pass, so that this object can be sent to other processes
        self._open = partial(STREAMED_FILES[table_kind(self.path)], self.path)
        file = self._open()
        chosen, left_out = _choose(self.path, columns, file.columns, file.index)
        self._chosen = file.numeric_columns(chosen, left_out)
        self.names, self.left_out = self._chosen if file.has_names else None, left_out or {}
        self.n_rows, self.n_columns = file.n_rows, len(self._chosen)
        self.first = file.n_rows * rank // world

    def in_order(self, size: int) -> Iterator[tuple[int, Floats]]:
        """The share of this process, in order: the number of a row, and `size` rows or fewer from there on.

        The shares of the processes differ by at most one row.
        """
        first, last = (self.n_rows * i // self._world for i in (self._rank, self._rank + 1))
        return self._open().in_order(self._chosen, first, last, size)
