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
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np

from rtbm.common import Floats
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import COMPRESSIONS, existing_table, printable, table_kind

# pyarrow is imported in the functions that use it, so that arrays and .npy files do not wait for it.

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")
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
HEADER_ROWS = 1000
"""Rows of a CSV file that decide whether integers in its first row are names."""
NAMED_CELLS = 5
"""Cells of a first row that a message names."""
READ_BYTES = 2**20  # bytes of a column of a Parquet file that are read at a time
BLOCK_BYTES = 2**22
"""Bytes of a CSV file that are parsed at a time; a row must fit into them."""
CSV_ERROR = "cannot be read as CSV"


class FileData(NamedTuple):
    """A table (n, d), the names of its columns (None if the file has none), and columns left out, with reasons.

    The table holds numbers. With columns of text it holds objects: numbers, texts, and None for gaps in text. `kinds`
    are "text" and "dates", by the numbers of such columns.
    """

    values: np.ndarray
    names: list[str] | None
    left_out: Mapping[str, str] = MappingProxyType({})
    kinds: Mapping[int, str] = MappingProxyType({})


class Choice(NamedTuple):
    """The columns to read, and whether to read text and dates too."""

    columns: list[str]
    left_out: dict[str, str] | None
    """Columns left out, with reasons; None if columns are asked for by name, of which none is left out."""
    labels: Set[str] | None
    """Columns that may mix text and numbers; None if only numbers are read."""
    takes_text: bool = True
    """Whether text is read in columns that are no labels."""
    is_part: bool = False
    """Whether a table is a part of the rows. Then labels are text whatever their cells are, and all text is kept."""


class TableSize(NamedTuple):
    """The bytes of a table, unpacked, and the numbers of its cells and columns."""

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

    Returns
    -------
    FileData
        Missing cells are NaN. Text, dates and the index of a data frame are left out. Anything else that is not a
        finite number is a FileError with its row and column.
    """
    file = _open_table(path, header, separator, decimal)
    labels = None if text is False else set() if text is True else {printable(name) for name in text}
    found = file.read(_choose(file, columns, labels))
    return found if file.has_names else found._replace(names=None)


def column_names(
    path: Any, header: bool | None = None, *, separator: str | None = None, decimal: str = "."
) -> list[str] | None:
    """The names of all columns of a file; None if it has none."""
    file = _open_table(path, header, separator, decimal)
    return file.columns if file.has_names else None


def table_size(path: Any, most: TableSize | None = None) -> TableSize:
    """The size of a table before it is read, of which a CSV file has about as many cells.

    A CSV file is unpacked no further than to more bytes or cells than `most`, and then has no columns here.
    """
    path = existing_table(path)
    if table_kind(path) in STREAMED_FILES:
        file = STREAMED_FILES[table_kind(path)](path)
        return TableSize(file.n_bytes, file.n_rows * len(file.columns), len(file.columns))
    n_bytes = n_cells = 0
    separators = [b",", b";", b"\t", b"\n", *([b" "] if table_kind(path) == ".txt" else [])]
    with _file_errors(path, CSV_ERROR), _open_bytes(path) as stream:
        while chunk := stream.read(READ_BYTES):
            n_bytes += len(chunk)
            n_cells += sum(map(chunk.count, separators))
            if most is not None and (n_bytes > most.n_bytes or n_cells > most.n_cells):
                return TableSize(n_bytes, n_cells, 0)
        return TableSize(n_bytes, n_cells, len(_TextFile(path).first_row))


def _open_table(path: Any, header: bool | None, separator: str | None, decimal: str) -> "_Table":
    path = existing_table(path)
    if table_kind(path) in STREAMED_FILES:
        return STREAMED_FILES[table_kind(path)](path)
    with _file_errors(path, CSV_ERROR):
        file = _TextFile(path, separator, decimal)
        file.find_names(header)
        return file


@contextlib.contextmanager
def _file_errors(path: Path, reason: str) -> Iterator[None]:
    """Raise errors of a library that reads a file as a FileError."""
    from pyarrow import ArrowException

    try:
        yield
    except UnicodeDecodeError:
        raise FileError(f"{path}: not text in UTF-8: save it in that encoding") from None
    except (csv.Error, OSError, ArrowException) as error:
        raise FileError(f"{path}: {reason} ({error})") from None


def _choose(file: "_Table", columns: Sequence[str] | None, labels: Set[str] | None = None) -> Choice:
    """The columns to read: those that are asked for, or all but the index of a data frame."""
    repeated = sorted({name for part in (file.columns, columns or ()) for name, n in Counter(part).items() if n > 1})
    if repeated:
        raise FileError(
            f"{file.path}: columns must have different names, got {', '.join(map(repr, repeated))} more than once"
        )
    if columns is None:
        kept = [name for name in file.columns if name not in file.index]
        return Choice(kept, dict.fromkeys(file.index, "index of a data frame"), labels)
    chosen = [printable(name) for name in columns]
    missing = sorted(set(chosen).difference(file.columns))
    if missing:
        raise FileError(f"{file.path}: no column {', '.join(map(repr, missing))}; there are {', '.join(file.columns)}")
    return Choice(chosen, None, labels)


def _printable_names(path: Path, names: Sequence[str]) -> list[str]:
    """Names of columns without control characters; a warning if there are any."""
    kept = [printable(name) for name in names]
    changed = [repr(new) for old, new in zip(names, kept, strict=True) if old != new]
    if changed:
        warnings.warn(
            f"{path}: blanks replace control characters in names of columns: {_first_of(changed)}", stacklevel=2
        )
    return kept


def _first_of(cells: Sequence[str]) -> str:
    return ", ".join(cells[:NAMED_CELLS]) + ", …" * (len(cells) > NAMED_CELLS)


def reasons(left_out: Mapping[str, str]) -> str:
    """Columns that were left out, with their reasons, in words."""
    return ", ".join(f"{name} ({reason})" for name, reason in left_out.items())


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


def _read_cells(column: Any, decimal: str, is_label: bool, is_part: bool) -> tuple[np.ndarray, str]:
    """The cells of an Arrow column, and what they are: "" for numbers, "text", "dates", or another type.

    Dates are days since 1970. Text has None for gaps. In columns of numbers, cells that are none are infinite. A column
    of labels is text if one of its cells is not a number, or if the column is a part of all rows.
    """
    import pyarrow as pa

    found = _words(column)
    if found is None:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        days = _to_days(column) if pa.types.is_temporal(column.type) else None
        if days is not None:
            return days, "dates"
        try:
            return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False), ""
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.full(len(column), np.inf), str(column.type)
    words, places = [*found[0], None], found[1]
    numbers = np.array([cell_number(word or "", decimal) for word in words])
    texts = [None if math.isnan(number) else _bare(word) for word, number in zip(words, numbers, strict=True)]
    has_number = any(_resembles_number(text) for text in texts if text is not None)
    is_text = is_part or np.isinf(numbers).any() if is_label else np.isinf(numbers).any() and not has_number
    if not is_text:
        return numbers[places], ""
    days = None if is_label else _to_days(pa.array(texts, pa.string()))
    if days is not None:
        return days[places], "dates"
    return np.array(texts, dtype=object)[places], "text"


def _to_days(column: Any) -> Floats | None:
    """Days since the beginning of 1970 of Arrow's dates, or of text in their ISO format; None if a cell is neither."""
    import pyarrow as pa

    for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):  # text may have the digits of nanoseconds
        with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            stamps = column.cast(pa.timestamp(unit, zone), safe=False).to_numpy(zero_copy_only=False)
            return np.where(np.isnat(stamps), np.nan, stamps.astype("datetime64[us]").astype(np.int64) / DAY)
    return None


def _why_no_categories(counts: Counter[str | None]) -> str:
    """Why a column of text, in which each cell occurs so often, is left out; "" if it is not."""
    n, n_known = len(counts.keys() - {None}), counts.total() - counts[None]
    if n > MOST_WORDS:
        return f"text, more than {MOST_WORDS:,} different values"
    return "text, one value" if n == 1 else f"text, {n} different values" if n > n_known / 2 else ""


def _collect(path: Path, table: Any, choice: Choice, decimal: str = ".", hint: str = "") -> FileData:
    """The columns of an Arrow table that are read. The others are added to those left out."""
    left_out, labels = choice.left_out, choice.labels
    results: dict[str, np.ndarray] = {}
    kinds: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_label = labels is not None and name in labels
        cells, kind = _read_cells(column, decimal, is_label, choice.is_part)
        takes_text = is_label or choice.takes_text
        is_read = not kind or (labels is not None and (kind == "dates" or (kind == "text" and takes_text)))
        reason = "" if is_read else kind
        if is_read and kind == "text" and not is_label and not choice.is_part:
            reason = _why_no_categories(Counter(cells.tolist()))
        elif not kind and name.startswith("Unnamed: ") and np.isnan(cells).all():
            reason = "empty"
        if reason and left_out is not None:
            left_out[name] = reason
            continue
        if kind and is_read:
            kinds[len(results)] = kind
        results[name] = cells if is_read else np.where(column.is_null(), np.nan, np.inf)
    _check_some(path, results, left_out, hint)
    values = np.stack(list(results.values())).T  # column by column in memory, as data frames are
    return FileData(values, list(results), left_out or {}, kinds)


def _check_some(path: Path, columns: Collection[str], left_out: Mapping[str, str] | None, hint: str = "") -> None:
    """Raise an error if no column is read."""
    if not columns:
        raise FileError(
            f"{path}: no column holds numbers; left out: {reasons(left_out)}; name the columns to read{hint}"
            if left_out
            else f"{path}: there are no columns"
        )


def _is_infinite(values: np.ndarray) -> np.ndarray:
    """Which numbers (n, d) are infinite, among which there may be text."""
    return np.isinf(values) if values.dtype != object else (values == np.inf) | (values == -np.inf)


def _check_finite(path: Path, values: np.ndarray, names: Sequence[str], cells: Sequence[Any], first: int) -> None:
    """Raise an error for the first infinite number; cells[column][row] is the cell of the file, from row `first` on."""
    bad = _is_infinite(values)
    if bad.any():
        row, column = map(int, np.argwhere(bad)[0])
        raise FileError(
            f"{path}: row {first + row}, column {names[column]}: {str(cells[column][row])!r} is not a finite number; "
            "choose other columns"
        )


class _TextFile:
    """A CSV file, its format and its first row."""

    columns: list[str]
    index: list[str]
    has_names: bool

    def __init__(self, path: Path, separator: str | None = None, decimal: str = "."):
        if decimal not in (".", ","):
            raise InvalidInputError(f'decimal must be "." or ",", got {decimal!r}')
        separator = separator and separator.replace("\\t", "\t")  # shells pass a backslash and a t
        if separator is not None and (len(separator) != 1 or separator in f'{decimal}"\r\n'):
            raise InvalidInputError(
                f"separator must be one character other than {decimal!r} and quotes, got {separator!r}"
            )
        begin = 0
        with io.TextIOWrapper(_open_bytes(path), encoding="utf-8-sig", newline="") as stream:
            line = stream.readline()
            while line and (not line.strip() or line.startswith("#")):
                begin, line = begin + 1, stream.readline()
        self.path, self._decimal, self._begin = path, decimal, begin
        self._separator = separator or _guess_separator(line, path, decimal)
        self.first_row: list[str] = []
        self._first_line, cells = next(self._rows(), (0, []))
        if not cells:
            raise FileError(f"{path}: the file is empty")
        self.first_row = [cell.strip() for cell in cells]

    def find_names(self, header: bool | None) -> None:
        """Find the names of columns: in the first row, or their numbers if that holds data."""
        numbers = range(len(self.first_row))
        self.columns, self.index = [str(i) for i in numbers], []
        if header is not False and not any(self.first_row):
            raise FileError(
                f"{self.path}: the first row has only empty cells, no names: say --no-header (header=False)"
            )
        self.has_names = self._begins_with_names() if header is None else header
        if self.has_names:
            bare = [f"Unnamed: {i}" for i in numbers]
            self._begin = self._first_line
            self.columns = _printable_names(self.path, [self.first_row[i] or bare[i] for i in numbers])
            self.index = [bare[i] for i in itertools.takewhile(lambda i: self.columns[i] == bare[i], numbers)]

    def read(self, choice: Choice) -> FileData:
        """All rows of the chosen columns that are numbers, or text and dates; see `read_table`."""
        with _file_errors(self.path, CSV_ERROR):
            if next(self._rows(), None) is None:
                raise FileError(f"{self.path}: there are names, but no rows")
            hint = f", or say what separates cells if it is not {self._separator!r} (--separator; separator=...)"
            found = _collect(self.path, self._parse(choice.columns), choice, self._decimal, hint)
            if _is_infinite(found.values).any():
                self._raise_bad_cell(found, choice)
        return found

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Line numbers and cells of rows, read by Python: for the first rows, and to find bad cells."""
        with io.TextIOWrapper(_open_bytes(self.path, self._separator), encoding="utf-8-sig", newline="") as stream:
            for _ in range(self._begin):
                stream.readline()
            reader = csv.reader(stream, delimiter=self._separator, skipinitialspace=True)
            for cells in reader:
                line = self._begin + reader.line_num
                if len(cells) <= 1 and not any(cell.strip() for cell in cells):
                    continue  # a blank line
                if self.first_row and len(cells) != len(self.first_row):
                    raise FileError(
                        f"{self.path}: line {line} has {len(cells)} cells, and the first row has "
                        f"{len(self.first_row)}: look for a missing or surplus delimiter"
                    )
                yield line, cells

    def _begins_with_names(self) -> bool:
        """Whether the first row holds names; a FileError if that is ambiguous."""
        top = self.first_row
        words = [cell for cell in top if not _resembles_number(cell) and cell.lower() not in MISSING_WORDS]
        if words and any(map(_resembles_number, top)):
            raise FileError(
                f"{self.path}: the first row mixes numbers and text such as {words[0]!r}: say whether it holds names "
                "(--header or --no-header; header=True or False)"
            )
        if words or not self._has_integers_for_names():
            return bool(words)
        if top[0]:
            hint = "say --header, or --no-header if it holds data (header=True or False)"
            warnings.warn(
                f"{self.path}: the first row, {_first_of(top)}, is taken for names of columns; {hint}", stacklevel=2
            )
        return True

    def _has_integers_for_names(self) -> bool:
        """Whether the first row holds different integers that are names: in order from 0, or above fractions.

        Empty cells may precede them, above the index of a data frame. A single column must begin with 0 and go on with
        fractions alone, since 0 may well be its first number.
        """
        names = list(itertools.dropwhile(lambda cell: not cell, self.first_row))
        if not all(map(_is_integer, names)) or len(set(map(int, names))) < len(names):
            return False
        below = [cells[-len(names) :] for _, cells in itertools.islice(self._rows(), 1, HEADER_ROWS)]
        numbers = [cell for cells in below for cell in cells if math.isfinite(cell_number(cell, self._decimal))]
        in_order = names == [str(i) for i in range(len(names))]
        if len(self.first_row) == 1:
            return in_order and len(numbers) > 0 and not any(map(_is_integer, numbers))
        return in_order or not all(map(_is_integer, numbers))

    def _parse(self, chosen: list[str]) -> Any:
        """The chosen columns as an Arrow table: as numbers if Arrow takes all of their cells for some, else as text."""
        import pyarrow as pa
        from pyarrow import csv as arrow

        def is_blank(row: Any) -> bool:
            return row.actual_columns == 1 and not row.text.strip()

        with _open_bytes(self.path, self._separator) as stream:
            try:
                table = arrow.read_csv(
                    stream,
                    arrow.ReadOptions(block_size=BLOCK_BYTES, skip_rows=self._begin, column_names=self.columns),
                    arrow.ParseOptions(
                        delimiter=self._separator,
                        newlines_in_values=True,
                        invalid_row_handler=lambda row: "skip" if is_blank(row) else "error",
                    ),
                    arrow.ConvertOptions(
                        include_columns=chosen,
                        column_types=dict.fromkeys(chosen, pa.string()),
                        null_values=[*MISSING_WORDS, *map(str.upper, MISSING_WORDS), "NaN"],
                        strings_can_be_null=True,
                    ),
                )
            except pa.ArrowInvalid:
                for _ in self._rows():
                    pass  # raises an error if a row has a wrong number of cells
                raise
        return pa.table({name: _to_numbers(table.column(name), self._decimal) for name in chosen})

    def _raise_bad_cell(self, found: FileData, choice: Choice) -> NoReturn:
        """Raise an error that names the first cell in columns of numbers that is not a finite number."""
        numeric = [self.columns.index(name) for i, name in enumerate(found.names or []) if i not in found.kinds]
        line, column, cell = next(
            (line, i, cells[i])
            for line, cells in self._rows()
            for i in numeric
            if math.isinf(cell_number(cells[i], self._decimal))
        )
        name = f"{self.columns[column]!r} ({column + 1})" if self.has_names else f"{column + 1}"
        other, points = (".", "points") if self._decimal == "," else (",", "commas")
        hint = "choose other columns, or leave the cell empty if it is missing"
        if choice.labels is not None and choice.left_out is not None:
            hint += f"; `rtbm fit --categorical {self.columns[column]}` takes its cells for labels"
        if math.isfinite(cell_number(cell, other)):
            hint = f"if numbers have decimal {points} here, say --decimal {other} (decimal={other!r})"
        raise FileError(f"{self.path}: line {line}, column {name}: {cell!r} is not a finite number; {hint}")


def _open_bytes(path: Path, separator: str | None = None) -> BinaryIO:
    """The bytes of a CSV file, decompressed. If blanks separate the cells, runs of them are reduced to one."""
    from pyarrow import input_stream

    stream = input_stream(path, compression=COMPRESSIONS.get(path.suffix.lower()))
    if separator != " ":
        return stream
    with stream:
        return io.BytesIO(b"\n".join(b" ".join(line.split()) for line in stream.read().splitlines()))


def _guess_separator(line: str, path: Path, decimal: str) -> str:
    bare = "".join(line.split('"')[::2])  # without what is in quotes
    last = ";" if decimal == "," else ","
    found = next((character for character in f";\t{last}" if character in bare), None)
    return found or (" " if " " in bare.strip() and table_kind(path) == ".txt" else last)


def _is_integer(cell: str) -> bool:
    return cell.strip().removeprefix("-").isdecimal()


def _to_numbers(column: Any, decimal: str) -> Any:
    """An Arrow column of text as numbers, if Arrow takes all of its cells for finite numbers; else as it is."""
    import pyarrow as pa
    from pyarrow import compute

    bare = compute.utf8_trim_whitespace(column)
    if decimal == ",":
        bare = compute.replace_substring(compute.replace_substring(bare, ".", "?"), ",", ".")
    try:
        numbers = bare.cast(pa.float64())
    except pa.ArrowInvalid:
        return column
    return column if compute.any(compute.is_inf(numbers)).as_py() else numbers


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
        self.path, self._array = path, array[:, None] if array.ndim == 1 else array
        self.n_rows, self.n_bytes = len(array), array.nbytes
        self.columns = [str(i) for i in range(self._array.shape[1])]

    def read(self, choice: Choice) -> FileData:
        """All rows of the chosen columns."""
        return FileData(self._numbers(slice(0, self.n_rows), choice.columns), choice.columns)

    def first_rows(self, choice: Choice) -> FileData:
        """The names of the chosen columns, since all are numbers."""
        return FileData(np.empty((0, len(choice.columns))), choice.columns)

    def count_texts(self, columns: list[str]) -> dict[str, Counter[str | None]]:
        """Nothing, since all are numbers."""
        return {}

    def blocks(self, choice: Choice, first: int, last: int, size: int) -> Iterator[np.ndarray]:
        """The rows from first to last, `size` at a time."""
        for begin in range(first, last, size):
            yield self._numbers(slice(begin, min(begin + size, last)), choice.columns)

    def _numbers(self, rows: slice, chosen: list[str]) -> Floats:
        array = self._array[rows]
        array = array if chosen == self.columns else array[:, [int(name) for name in chosen]]
        values = np.asarray(array, dtype=np.float64)
        _check_finite(self.path, values, chosen, list(values.T), rows.start)
        return values


class _ParquetFile:
    """A Parquet file."""

    has_names = True

    def __init__(self, path: Path):
        from pyarrow.parquet import ParquetFile, read_schema

        with _file_errors(path, "not a Parquet file"):  # pre_buffer would hold all row groups in memory
            texts = [field.name for field in read_schema(path) if str(field.type) in TEXT_TYPES]
            self._file = ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES, read_dictionary=texts)
        schema, metadata = self._file.schema_arrow, self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.path, self.columns = path, _printable_names(path, schema.names)
        self._own_names = dict(zip(self.columns, schema.names, strict=True))
        self._edges = np.cumsum([0, *(group.num_rows for group in groups)])
        self.n_rows, self.n_bytes = metadata.num_rows, sum(group.total_byte_size for group in groups)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self.index = [name for name, own in self._own_names.items() if own in index]

    def read(self, choice: Choice) -> FileData:
        """All rows of the chosen columns that are numbers, or text and dates; see `read_table`."""
        with _file_errors(self.path, "cannot be read as Parquet"):
            table = self._file.read(columns=self._own(choice.columns))
        return self._collect(table, choice, 0)

    def first_rows(self, choice: Choice) -> FileData:
        """The first rows of the columns that are read, which tell what columns are."""
        first = next(self._tables(choice.columns, 0, FIRST_ROWS, FIRST_ROWS), None)
        return self.read(choice) if first is None else self._collect(first[1], choice, 0)  # there may be no rows

    def count_texts(self, columns: list[str]) -> dict[str, Counter[str | None]]:
        """How often each cell of columns of text occurs, None for gaps; counts end beyond MOST_WORDS different ones."""
        counts: dict[str, Counter[str | None]] = {name: Counter() for name in columns}
        choice = Choice(columns, None, set(columns), is_part=True)
        for block in self.blocks(choice, 0, self.n_rows, FIRST_ROWS) if columns else ():
            for own, cells in zip(counts.values(), block.T, strict=True):
                if len(own) <= MOST_WORDS + 1:
                    own.update(cells.tolist())
        return counts

    def blocks(self, choice: Choice, first: int, last: int, size: int) -> Iterator[np.ndarray]:
        """The rows from first to last, `size` or fewer at a time."""
        for row, table in self._tables(choice.columns, first, last, size):
            yield self._collect(table, choice, row).values

    def _tables(self, chosen: list[str], first: int, last: int, size: int) -> Iterator[tuple[int, Any]]:
        """The rows from first to last as Arrow tables, each with the number of its first row.

        Pages are read one after the other, not whole row groups.
        """
        import pyarrow as pa

        groups = np.flatnonzero((self._edges[1:] > first) & (self._edges[:-1] < last)).tolist()
        if not groups:
            return
        begin = int(self._edges[groups[0]])
        with _file_errors(self.path, "cannot be read to its end as Parquet"):
            for batch in self._file.iter_batches(size, groups, self._own(chosen), use_threads=False):
                row, end = max(first, begin), min(last, begin + len(batch))
                if row < end:
                    yield row, pa.table(batch.slice(row - begin, end - row))
                begin += len(batch)

    def _own(self, names: list[str]) -> list[str]:
        """Names of columns as the file has them, with control characters."""
        return [self._own_names[name] for name in names]

    def _collect(self, table: Any, choice: Choice, first: int) -> FileData:
        table = table.select(self._own(choice.columns)).rename_columns(choice.columns)
        found = _collect(self.path, table, choice)
        names: Any = found.names
        cells = table.select(names).columns
        _check_finite(self.path, found.values, [repr(name) for name in names], cells, first)
        return found


_Table = _TextFile | _NpyFile | _ParquetFile
STREAMED_FILES: Mapping[str | None, type[_NpyFile] | type[_ParquetFile]] = {".npy": _NpyFile, ".parquet": _ParquetFile}
"""The files that can be read a block at a time, by their ending."""


class FileRows:
    """The rows of a .npy or Parquet file that need not fit into memory.

    Columns are left out as in `read_table`, and dates are days. But the first rows alone decide whether a column is
    text; then a pass over all rows counts its cells.

    Parameters
    ----------
    path : path
        A .npy or .parquet file.
    columns : sequence of str, default=None
        The columns to read; None for all.
    rank, world : int, default=0, 1
        The number of this process, and the number of processes, which share the rows.
    labels : collection of str, default=()
        Columns whose cells are labels if they are text, though some or all resemble numbers.
    takes_text : bool, default=True
        Whether other columns of text are read too.

    Attributes
    ----------
    names : list of str or None
        The names of the columns.
    left_out : dict
        Columns that are not read, with reasons.
    levels : dict
        The different cells of each column of text, in alphabetical order.
    kinds : dict
        "text" and "dates", by the numbers of such columns.
    n_columns : int
        The number of columns that are read.
    first : int
        The number of the first row of this process.
    """

    names: list[str] | None
    left_out: dict[str, str]
    levels: dict[str, list[str]]
    kinds: dict[int, str]

    def __init__(
        self,
        path: Any,
        columns: Sequence[str] | None = None,
        rank: int = 0,
        world: int = 1,
        labels: Collection[str] = (),
        takes_text: bool = True,
    ):
        path = existing_table(path)
        if table_kind(path) not in STREAMED_FILES:
            raise FileError(f"{path}: only .npy and .parquet files are read in blocks: convert it, or read it")
        file = self._file = STREAMED_FILES[table_kind(path)](path)
        labels = {printable(name) for name in labels}
        choice = _choose(file, columns, labels)._replace(takes_text=takes_text, is_part=True)
        found = file.first_rows(choice)
        names, self.left_out = found.names or [], dict(found.left_out)
        counts = file.count_texts([names[i] for i, kind in found.kinds.items() if kind == "text"])
        for name, own in counts.items():
            reason = _why_no_categories(own)
            if reason and columns is None and name not in labels:
                self.left_out[name] = reason
        chosen = [name for name in names if name not in self.left_out]
        _check_some(path, chosen, self.left_out)
        self.names, self.n_columns = chosen if file.has_names else None, len(chosen)
        self.levels = {n: sorted(c for c in own if c is not None) for n, own in counts.items() if n in chosen}
        self.kinds = {chosen.index(names[i]): kind for i, kind in found.kinds.items() if names[i] in chosen}
        self._choice = Choice(chosen, None, self.levels.keys(), takes_text=False, is_part=True)
        self.first, self._last = (file.n_rows * i // world for i in (rank, rank + 1))

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """The share of this process, in order, in blocks of `size` rows or fewer, with text as `read_table` has it.

        The shares of the processes differ by at most one row.
        """
        return self._file.blocks(self._choice, self.first, self._last, size)
