"""What cells of files are: numbers, text or dates; which columns are read; and errors that name a cell or a file."""

import contextlib
import csv
import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from rtbm.common import MAX_LEVELS, Floats
from rtbm.errors import FileError
from rtbm.paths import printable

MISSING_WORDS = ("", "na", "n/a", "nan", "null", "none")
"""Cells of a CSV file, in upper or lower case, that are read as NaN; other words make a column text."""
BOOLEAN_WORDS = {"true": 1.0, "false": 0.0}
"""Cells, in upper or lower case, that are booleans, or numbers if no text is read or other cells are numbers."""
LABELS = ("text", "booleans")
"""The kinds of columns that are categories."""
TEXT_TYPES = ("string", "large_string", "string_view")
"""Arrow's names of types of text."""
DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ].*)?$")
"""Cells that are dates, or look like them."""
DAY = 86_400_000_000  # microseconds
NOUNS = {"": "a finite number", "dates": "a date"}
"""What a cell should have been, by the kind of its column."""
FEWEST_IDENTIFIERS = 21
"""Fewer different texts, or numbers in order, are no identifiers: in short tables most texts differ by chance."""
NAMED_CELLS = 5
"""Cells of a first row that a message names."""


class FileData(NamedTuple):
    """A table (n, d), the names of its columns (None if the file has none), and columns left out, with reasons.

    The table holds numbers. With columns of text or booleans it holds objects: numbers, texts, booleans, and None for
    gaps in text and among booleans. `kinds` are "text", "booleans" and "dates", by the numbers of such columns.
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
    """Columns that are text whatever their cells are, or booleans of Parquet; None if only numbers are read."""
    takes_text: bool = True
    """Whether text and booleans are read in columns that are no labels."""
    is_part: bool = False
    """Whether a table is a part of the rows, of which all text is kept."""
    takes_row_numbers: bool = True
    """Whether columns of whole numbers that count the rows are read."""


class TableSize(NamedTuple):
    """The bytes of a table, unpacked, and the numbers of its cells and columns."""

    n_bytes: int
    n_cells: int
    n_columns: int


@contextlib.contextmanager
def file_errors(path: Path, reason: str) -> Iterator[None]:
    """Raise errors of a library that reads a file as a FileError."""
    from pyarrow import ArrowException

    try:
        yield
    except UnicodeDecodeError:
        raise FileError(f"{path}: not text in UTF-8: save it in that encoding") from None
    except (csv.Error, OSError, ArrowException) as error:
        raise FileError(f"{path}: {reason} ({error})") from None


def printable_names(path: Path, names: Sequence[str]) -> list[str]:
    """Names of columns without control characters; a warning if there are any."""
    kept = [printable(name) for name in names]
    changed = [repr(new) for old, new in zip(names, kept, strict=True) if old != new]
    if changed:
        warnings.warn(
            f"{path}: blanks replace control characters in names of columns: {first_of(changed)}", stacklevel=2
        )
    return kept


def first_of(cells: Sequence[str]) -> str:
    """Cells in words, but not many of them."""
    return ", ".join(cells[:NAMED_CELLS]) + ", …" * (len(cells) > NAMED_CELLS)


def reasons(left_out: Mapping[str, str]) -> str:
    """Columns that were left out, with their reasons, in words."""
    return ", ".join(f"{name} ({reason})" for name, reason in left_out.items())


def bare(cell: str) -> str:
    """A cell without blanks around it, and without the quotes that are still there if blanks precede them."""
    word = cell.strip()
    is_quoted = cell[:1].isspace() and len(word) > 1 and word[0] == word[-1] == '"'
    return word[1:-1].replace('""', '"') if is_quoted else word


def cell_number(cell: str, decimal: str = ".") -> float:
    """A cell as a number: NaN if it is missing, infinity if it is not a finite number."""
    word = bare(cell).lower()
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


def resembles_number(cell: str) -> bool:
    """Whether a cell is a number, even an infinite one, or one in another notation such as 1,5 or 1,000.50 or 1_000."""
    try:
        float(bare(cell).replace(",", ""))
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


def _read_cells(column: Any, decimal: str, is_label: bool, has_booleans: bool) -> tuple[np.ndarray, str]:
    """The cells of an Arrow column, and what they are: "" for numbers, "text", "booleans", "dates", or another type.

    Dates are days since 1970. Text and booleans have None for gaps; booleans are numbers unless `has_booleans`. In
    columns of numbers or dates, cells that are none are infinite.
    """
    import pyarrow as pa

    found = _words(column)
    if found is None:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        days = _to_days(column) if pa.types.is_temporal(column.type) else None
        if days is not None:
            return days, "dates"
        if pa.types.is_boolean(column.type) and has_booleans and (is_label or column.null_count < len(column)):
            return np.array(column.to_pylist(), dtype=object), "booleans"
        try:
            return column.cast(pa.float64(), safe=False).to_numpy().astype(np.float64, copy=False), ""
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return np.full(len(column), np.inf), str(column.type)
    words, places = [*found[0], None], found[1]
    numbers = np.array([cell_number(word or "", decimal) for word in words])
    texts = [None if math.isnan(number) else bare(word) for word, number in zip(words, numbers, strict=True)]
    if is_label:
        return np.array(texts, dtype=object)[places], "text"
    words_seen = {text.lower() for text in texts if text is not None}
    if has_booleans and words_seen and words_seen <= BOOLEAN_WORDS.keys():
        truth = [None if text is None else text.lower() == "true" for text in texts]
        return np.array(truth, dtype=object)[places], "booleans"
    if not np.isinf(numbers).any() or any(resembles_number(text) for text in texts if text is not None):
        return numbers[places], ""
    days = _to_days(pa.array(texts, pa.string()))
    if days is None:
        days = np.array([cell_day(text) for text in texts])
    if np.isfinite(days).sum() > np.isinf(days).sum():
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


def cell_day(cell: str | None) -> float:
    """A cell of text as days since the beginning of 1970: NaN for a gap, infinity if it is not a date."""
    import pyarrow as pa

    if cell is None:
        return math.nan
    days = _to_days(pa.array([cell])) if DATE.match(cell) else None
    return math.inf if days is None else float(days[0])


def why_left_out(counts: Counter[Any], kind: str) -> str:
    """Why a column of text or booleans, in which each cell occurs so often, is left out; "" if it is not."""
    n, n_known = len(counts.keys() - {None}), counts.total() - counts[None]
    if n == 1 or kind == "booleans":
        return f"{kind}, one value" if n == 1 else ""
    return why_names(n, n_known)


def why_names(n: int, n_known: int) -> str:
    """Why text with n different among `n_known` cells is taken for names or other identifiers; "" if it is not.

    Examples
    --------
    >>> why_names(87, 90), why_names(40, 90)
    ('text, 87 different values', '')
    """
    if n > MAX_LEVELS:
        return f"text, more than {MAX_LEVELS:,} different values"
    return f"text, {n} different values" if n > n_known / 2 and n >= FEWEST_IDENTIFIERS else ""


def are_row_numbers(values: Any, first: float | None = None) -> bool:
    """Whether numbers (n,) count the rows, from 0 or 1.

    With `first` they are a part of a column, which goes on with this number.

    Examples
    --------
    >>> [are_row_numbers(np.arange(*ends)) for ends in ((1.0, 50.0), (1.0, 5.0), (1960.0, 2020.0))]
    [True, False, False]
    """
    if first is None and (len(values) < FEWEST_IDENTIFIERS or values[0] not in (0, 1)):
        return False
    first = values[0] if first is None else first
    return bool((values == first + np.arange(len(values))).all())


ROW_NUMBERS = "whole numbers that count the rows"
"""Why a column of such numbers is left out."""


def read_columns(path: Path, table: Any, choice: Choice, decimal: str = ".", hint: str = "") -> FileData:
    """The columns of an Arrow table that are read. The others are added to those left out."""
    left_out, labels = choice.left_out, choice.labels
    results: dict[str, np.ndarray] = {}
    kinds: dict[int, str] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        is_label = labels is not None and name in labels
        takes_labels = labels is not None and (is_label or choice.takes_text)
        cells, kind = _read_cells(column, decimal, is_label, takes_labels)
        is_read = not kind or (kind == "dates" and labels is not None) or (kind in LABELS and takes_labels)
        reason = "" if is_read else kind
        if is_read and kind in LABELS and not is_label and not choice.is_part:
            reason = why_left_out(Counter(cells.tolist()), kind)
        elif not kind and not choice.takes_row_numbers and are_row_numbers(cells):
            reason = ROW_NUMBERS
        elif name.startswith("Unnamed: ") and not kind and not choice.is_part and np.isnan(cells).all():
            reason = "empty"
        if reason and left_out is not None:
            left_out[name] = reason
            continue
        if kind and is_read:
            kinds[len(results)] = kind
        results[name] = cells if is_read else np.where(column.is_null(), np.nan, np.inf)
    check_some(path, results, left_out, hint)
    values = np.stack(list(results.values())).T  # column by column in memory, as data frames are
    return FileData(values, list(results), left_out or {}, kinds)


def check_some(path: Path, columns: Collection[str], left_out: Mapping[str, str] | None, hint: str = "") -> None:
    """Raise an error if no column is read."""
    if not columns:
        raise FileError(
            f"{path}: no column holds numbers; left out: {reasons(left_out)}; name the columns to read{hint}"
            if left_out
            else f"{path}: there are no columns"
        )


def is_infinite(values: np.ndarray) -> np.ndarray:
    """Which numbers (n, d) are infinite, among which there may be text."""
    return np.isinf(values) if values.dtype != object else (values == np.inf) | (values == -np.inf)


def check_finite(
    path: Path, values: np.ndarray, names: Sequence[str], cells: Sequence[Any], first: int, kinds: Mapping[int, str]
) -> None:
    """Raise an error for the first infinite number; cells[column][row] is the cell of the file, from row `first` on."""
    bad = is_infinite(values)
    if bad.any():
        row, column = map(int, np.argwhere(bad)[0])
        raise FileError(
            f"{path}: row {first + row}, column {names[column]}: {str(cells[column][row])!r} is not "
            f"{NOUNS[kinds.get(column, '')]}; choose other columns"
        )
