"""Parquet files, as a whole and in blocks."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rtbm.common import MAX_LEVELS
from rtbm.data_files.cells import (
    TEXT_TYPES,
    Choice,
    FileData,
    check_finite,
    file_errors,
    printable_names,
    read_columns,
)

FIRST_ROWS = 65_536
"""Rows of a Parquet file that decide which columns are text."""
READ_BYTES = 2**20  # bytes of a column of a Parquet file that are read at a time


class ParquetFile:
    """A Parquet file."""

    has_names = True

    def __init__(self, path: Path):
        from pyarrow import parquet

        with file_errors(path, "not a Parquet file"):  # pre_buffer would hold all row groups in memory
            texts = [field.name for field in parquet.read_schema(path) if str(field.type) in TEXT_TYPES]
            self._file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=READ_BYTES, read_dictionary=texts)
        schema, metadata = self._file.schema_arrow, self._file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        self.path, self.columns = path, printable_names(path, schema.names)
        self._own_names = dict(zip(self.columns, schema.names, strict=True))
        self._edges = np.cumsum([0, *(group.num_rows for group in groups)])
        self.n_rows, self.n_bytes = metadata.num_rows, sum(group.total_byte_size for group in groups)
        index = (schema.pandas_metadata or {}).get("index_columns", [])
        self.index = [name for name, own in self._own_names.items() if own in index]

    def read(self, choice: Choice) -> FileData:
        """All rows of the chosen columns that are numbers, or text and dates; see `read_table`."""
        with file_errors(self.path, "cannot be read as Parquet"):
            table = self._file.read(columns=self._own(choice.columns))
        return self._collect(table, choice, 0)

    def cells(self) -> dict[str, list[Any]]:
        """All cells as Python has them."""
        with file_errors(self.path, "cannot be read as Parquet"):
            return {name: self._file.read(columns=[own]).column(0).to_pylist() for name, own in self._own_names.items()}

    def first_rows(self, choice: Choice) -> FileData:
        """The first rows of the columns that are read, which tell what columns are."""
        first = next(self._tables(choice.columns, 0, FIRST_ROWS, FIRST_ROWS), None)
        return self.read(choice) if first is None else self._collect(first[1], choice, 0)  # there may be no rows

    def count_texts(self, columns: list[str]) -> dict[str, Counter[Any]]:
        """How often each cell of columns of text occurs, None for gaps; counts end beyond MAX_LEVELS different ones."""
        counts: dict[str, Counter[Any]] = {name: Counter() for name in columns}
        choice = Choice(columns, None, set(columns), is_part=True)
        for block in self.blocks(choice, 0, self.n_rows, FIRST_ROWS) if columns else ():
            for own, cells in zip(counts.values(), block.T, strict=True):
                if len(own) <= MAX_LEVELS + 1:
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
        with file_errors(self.path, "cannot be read to its end as Parquet"):
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
        found = read_columns(self.path, table, choice)
        names: Any = found.names
        cells = table.select(names).columns
        check_finite(self.path, found.values, [repr(name) for name in names], cells, first, found.kinds)
        return found
