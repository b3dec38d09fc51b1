"""Tables in files: CSV, Parquet and .npy, read at once or a block at a time.

Which columns of CSV and Parquet files are numbers:

- A column is text if it has cells, none of them resembles a number, and at most half are dates. Text and dates are left
  out, unless they are asked for (`text` of `read_table`): text is then read as it is, and dates are days since the
  beginning of 1970.
- A column with a number must hold only numbers, and a column of dates that is read only dates. Any other cell is a
  FileError that names it, so that a typing error in one cell never drops a column.
- true and false are booleans where text is read, and the numbers 1 and 0 elsewhere, or if other cells are numbers.
- The index of a data frame is left out: the columns that the metadata of a Parquet file calls index, and the columns
  without a name at the beginning of a CSV file. A column without a name is called "Unnamed: 0", with its position, as
  pandas does. If it has no cells either, as delimiters at the ends of lines make it, it is left out.

In names of columns, blanks replace control characters, with a warning.

A column that is asked for is never left out. If it holds anything else than what is read, that is an error.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

from rtbm.data_files.cells import (
    BOOLEAN_WORDS,
    FEWEST_IDENTIFIERS,
    LABELS,
    ROW_NUMBERS,
    Choice,
    FileData,
    TableSize,
    are_row_numbers,
    cell_number,
    check_some,
    file_errors,
    reasons,
    why_left_out,
    why_names,
)
from rtbm.data_files.csv_file import CSV_ERROR, CsvFile, csv_size
from rtbm.data_files.npy_file import NpyFile
from rtbm.data_files.parquet_file import FIRST_ROWS, ParquetFile
from rtbm.errors import FileError
from rtbm.paths import existing_table, printable, table_kind

# pyarrow is imported in the functions that use it, so that arrays and .npy files do not wait for it.

__all__ = [
    "BOOLEAN_WORDS",
    "LABELS",
    "ROW_NUMBERS",
    "FileData",
    "FileRows",
    "TableSize",
    "are_row_numbers",
    "cell_number",
    "column_names",
    "read_cells",
    "read_table",
    "reasons",
    "table_size",
    "why_names",
]

_Table = CsvFile | NpyFile | ParquetFile
STREAMED_FILES: Mapping[str | None, type[NpyFile] | type[ParquetFile]] = {".npy": NpyFile, ".parquet": ParquetFile}
"""The files that can be read a block at a time, by their ending."""


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
        Whether to read text and booleans too, and dates as days since the beginning of 1970. Text with more than 1,000
        different cells, or with more than 20 that are more than half of the cells, is left out, and so are text and
        booleans that are always the same and, in files with names, whole numbers that count the rows. A collection
        names columns that are text whatever their cells are, as 01 and 1; numbers and booleans of Parquet stay what
        they are.

    Returns
    -------
    FileData
        Missing cells are NaN. Text, dates and the index of a data frame are left out. Anything else that is not a
        finite number is a FileError with its row and column.
    """
    file = _open_table(path, header, separator, decimal)
    labels = None if text is False else set() if text is True else {printable(name) for name in text}
    choice = _choose(file, columns, labels)
    choice = choice._replace(takes_row_numbers=labels is None or not file.has_names)
    found = file.read(choice)
    return found if file.has_names else found._replace(names=None)


def column_names(
    path: Any, header: bool | None = None, *, separator: str | None = None, decimal: str = "."
) -> list[str] | None:
    """The names of all columns of a file; None if it has none."""
    file = _open_table(path, header, separator, decimal)
    return file.columns if file.has_names else None


def read_cells(
    path: Any,
    chosen: Collection[str],
    texts: Collection[str],
    header: bool | None = None,
    *,
    separator: str | None = None,
    decimal: str = ".",
) -> dict[str, list[Any]]:
    """All cells of a .csv or .parquet file by the names of columns, None for gaps.

    Those of a CSV file are text with decimal points. Chosen columns that are not in `texts` and hold only numbers are
    numbers; those that are not chosen are as they are.
    """
    file: Any = _open_table(path, header, separator, decimal)
    return file.cells(chosen, texts) if isinstance(file, CsvFile) else file.cells()


def table_size(path: Any, most: TableSize | None = None) -> TableSize:
    """The size of a table before it is read, of which a CSV file has about as many cells.

    A CSV file is unpacked no further than to more bytes or cells than `most`, and then has no columns here.
    """
    path = existing_table(path)
    if table_kind(path) not in STREAMED_FILES:
        return csv_size(path, most)
    file = STREAMED_FILES[table_kind(path)](path)
    return TableSize(file.n_bytes, file.n_rows * len(file.columns), len(file.columns))


def _open_table(path: Any, header: bool | None, separator: str | None, decimal: str) -> _Table:
    path = existing_table(path)
    if table_kind(path) in STREAMED_FILES:
        return STREAMED_FILES[table_kind(path)](path)
    with file_errors(path, CSV_ERROR):
        file = CsvFile(path, separator, decimal)
        file.find_names(header)
        return file


def _choose(file: _Table, columns: Sequence[str] | None, labels: Set[str] | None = None) -> Choice:
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
        Columns of text whose cells are labels, though some or all resemble numbers.
    takes_text : bool, default=True
        Whether other columns of text are read too, and booleans not as numbers.

    Attributes
    ----------
    names : list of str or None
        The names of the columns.
    left_out : dict
        Columns that are not read, with reasons.
    levels : dict
        The different cells of each column of text or booleans, in order.
    kinds : dict
        "text", "booleans" and "dates", by the numbers of such columns.
    n_columns : int
        The number of columns that are read.
    first : int
        The number of the first row of this process.
    """

    names: list[str] | None
    left_out: dict[str, str]
    levels: dict[str, list[Any]]
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
        labelled = {names[i]: kind for i, kind in found.kinds.items() if kind in LABELS}
        counts = file.count_texts(list(labelled))
        for name, own in counts.items():
            reason = why_left_out(own, labelled[name])
            if reason and columns is None and name not in labels:
                self.left_out[name] = reason
        if file.has_names and columns is None and file.n_rows >= FEWEST_IDENTIFIERS:
            self.left_out |= dict.fromkeys(self._row_numbers(found), ROW_NUMBERS)
        chosen = [name for name in names if name not in self.left_out]
        check_some(path, chosen, self.left_out)
        self.names, self.n_columns = chosen if file.has_names else None, len(chosen)
        self.levels = {n: sorted(c for c in own if c is not None) for n, own in counts.items() if n in chosen}
        self.kinds = {chosen.index(names[i]): kind for i, kind in found.kinds.items() if names[i] in chosen}
        self._choice = Choice(chosen, None, self.levels.keys(), takes_text=False, is_part=True)
        self.first, self._last = (file.n_rows * i // world for i in (rank, rank + 1))

    def _row_numbers(self, found: FileData) -> list[str]:
        """Which columns of numbers count the rows of the file, of which `found` are the first."""
        columns = zip(found.names or [], found.values.T, strict=True)
        next_ones = {
            name: column[0]
            for i, (name, column) in enumerate(columns)
            if i not in found.kinds
            and name not in self.left_out
            and len(column)
            and column[0] in (0, 1)
            and are_row_numbers(column, column[0])
        }
        choice = Choice(list(next_ones), None, None)
        for block in self._file.blocks(choice, 0, self._file.n_rows, FIRST_ROWS) if next_ones else ():
            for name, column in zip(choice.columns, block.T, strict=True):
                if name in next_ones and are_row_numbers(column, next_ones[name]):
                    next_ones[name] += len(column)
                else:
                    next_ones.pop(name, None)
        return list(next_ones)

    def blocks(self, size: int) -> Iterator[np.ndarray]:
        """The share of this process, in order, in blocks of `size` rows or fewer, with text as `read_table` has it.

        The shares of the processes differ by at most one row.
        """
        return self._file.blocks(self._choice, self.first, self._last, size)
