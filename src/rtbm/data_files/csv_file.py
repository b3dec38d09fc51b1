"""CSV files: their format, names of columns, rows, and cells that are no numbers."""

import csv
import io
import itertools
import math
import warnings
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np

from rtbm.data_files.cells import (
    MISSING_WORDS,
    NOUNS,
    Choice,
    FileData,
    TableSize,
    bare,
    cell_day,
    cell_number,
    file_errors,
    first_of,
    is_infinite,
    printable_names,
    read_columns,
    resembles_number,
)
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import COMPRESSIONS, table_kind

HEADER_ROWS = 1000
"""Rows of a CSV file that decide whether integers in its first row are names."""
BLOCK_BYTES = 2**22
"""Bytes of a CSV file that are parsed at a time; a row must fit into them."""
READ_BYTES = 2**20  # bytes that are counted at a time
CSV_ERROR = "cannot be read as CSV"
csv.field_size_limit(max(csv.field_size_limit(), BLOCK_BYTES))  # Python's own limit is 2¹⁷ characters in a cell


class CsvFile:
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
            self.columns = printable_names(self.path, [self.first_row[i] or bare[i] for i in numbers])
            self.index = [bare[i] for i in itertools.takewhile(lambda i: self.columns[i] == bare[i], numbers)]

    def read(self, choice: Choice) -> FileData:
        """All rows of the chosen columns that are numbers, or text and dates; see `read_table`."""
        with file_errors(self.path, CSV_ERROR):
            if next(self._rows(), None) is None:
                raise FileError(f"{self.path}: there are names, but no rows")
            hint = f", or say what separates cells if it is not {self._separator!r} (--separator; separator=...)"
            table = self._parse(choice.columns, choice.labels or ())
            found = read_columns(self.path, table, choice, self._decimal, hint)
            if is_infinite(found.values).any():
                self._raise_bad_cell(found, choice)
        return found

    def cells(self, chosen: Collection[str], texts: Collection[str]) -> dict[str, list[Any]]:
        """All cells. In the chosen columns: numbers where all are, None for gaps; else, and in `texts`, plain text.

        In other columns they are text as it is.
        """
        others = [name for name in self.columns if name not in chosen]
        found: dict[str, list[Any]] = {}
        with file_errors(self.path, CSV_ERROR):
            for name, column in self._parse(list(chosen), texts).to_pydict().items():
                found[name] = [self._plain(cell) for cell in column]
            found |= self._parse(others, others, has_gaps=False).to_pydict() if others else {}
        return {name: found[name] for name in self.columns}

    def _plain(self, cell: Any) -> Any:
        """A cell without what belongs to the format of the file: blanks, quotes, and decimal commas."""
        if not isinstance(cell, str):
            return cell
        is_comma = self._decimal == "," and math.isfinite(cell_number(cell, ","))
        return bare(cell).replace(",", ".") if is_comma else bare(cell)

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
        words = [cell for cell in top if not resembles_number(cell) and cell.lower() not in MISSING_WORDS]
        if words and any(map(resembles_number, top)):
            raise FileError(
                f"{self.path}: the first row mixes numbers and text such as {words[0]!r}: say whether it holds names "
                "(--header or --no-header; header=True or False)"
            )
        if words or not self._has_integers_for_names():
            return bool(words)
        if top[0]:
            hint = "say --header, or --no-header if it holds data (header=True or False)"
            warnings.warn(
                f"{self.path}: the first row, {first_of(top)}, is taken for names of columns; {hint}", stacklevel=2
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

    def _parse(self, chosen: list[str], texts: Collection[str], has_gaps: bool = True) -> Any:
        """The chosen columns as an Arrow table: as numbers if Arrow takes all of their cells for some, else as text.

        Those in `texts` are always text.
        """
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
                        strings_can_be_null=has_gaps,
                    ),
                )
            except pa.ArrowInvalid:
                for _ in self._rows():
                    pass  # raises an error if a row has a wrong number of cells
                raise
        columns = {name: table.column(name) for name in chosen}
        return pa.table({n: own if n in texts else _to_numbers(own, self._decimal) for n, own in columns.items()})

    def _raise_bad_cell(self, found: FileData, choice: Choice) -> NoReturn:
        """Raise an error that names the first cell in columns of numbers or dates that is neither."""
        bad = np.flatnonzero(is_infinite(found.values).any(axis=0)).tolist()
        kinds = {self.columns.index((found.names or [])[i]): found.kinds.get(i, "") for i in bad}
        line, column, cell = next(
            (line, i, cells[i])
            for line, cells in self._rows()
            for i, kind in kinds.items()
            if math.isinf(cell_number(cells[i], self._decimal))
            and not (kind == "dates" and math.isfinite(cell_day(bare(cells[i]))))
        )
        name = f"{self.columns[column]!r} ({column + 1})" if self.has_names else f"{column + 1}"
        other, points = (".", "points") if self._decimal == "," else (",", "commas")
        hint = "choose other columns, or leave the cell empty if it is missing"
        if choice.labels is not None and choice.left_out is not None:
            hint += f"; `rtbm fit --categorical {self.columns[column]}` takes its cells for labels"
        if math.isfinite(cell_number(cell, other)):
            hint = f"if numbers have decimal {points} here, say --decimal {other} (decimal={other!r})"
        raise FileError(f"{self.path}: line {line}, column {name}: {cell!r} is not {NOUNS[kinds[column]]}; {hint}")


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


def csv_size(path: Path, most: TableSize | None = None) -> TableSize:
    """The size of a CSV file, and about as many cells as it has. Too many bytes or cells end it."""
    n_bytes = n_cells = 0
    separators = [b",", b";", b"\t", b"\n", *([b" "] if table_kind(path) == ".txt" else [])]
    with file_errors(path, CSV_ERROR), _open_bytes(path) as stream:
        while chunk := stream.read(READ_BYTES):
            n_bytes += len(chunk)
            n_cells += sum(map(chunk.count, separators))
            if most is not None and (n_bytes > most.n_bytes or n_cells > most.n_cells):
                return TableSize(n_bytes, n_cells, 0)
        return TableSize(n_bytes, n_cells, len(CsvFile(path).first_row))
