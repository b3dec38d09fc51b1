"""Files of NumPy: .npy."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as header

from rtbm.common import Floats
from rtbm.data_files.cells import Choice, FileData, check_finite
from rtbm.errors import FileError


class NpyFile:
    """A .npy file as a memory map (n, d). Its columns are called 0, 1, …"""

    has_names = False
    index: Sequence[str] = ()

    def __init__(self, path: Path):
        is_table = is_whole = False
        try:
            with path.open("rb") as stream:
                version = header.read_magic(stream)
                read = header.read_array_header_1_0 if version == (1, 0) else header.read_array_header_2_0
                shape, _, dtype = read(stream)
                rest = path.stat().st_size - stream.tell()
            is_table = dtype.kind in "fiub" and len(shape) in (1, 2) and 0 not in shape[1:]
            is_table = is_table and all(type(n) is int and n >= 0 for n in shape)
            is_whole = math.prod(shape) * dtype.itemsize <= rest
            if is_table and is_whole:
                array = header.open_memmap(path, mode="r")
        except Exception as error:  # a damaged header makes its parser raise errors of many types
            reason = str(error).split("\n")[0]
            raise FileError(
                f"{path}: not a .npy file of numbers ({reason}): save one array with numpy.save, not an archive with "
                "numpy.savez"
            ) from None
        if not is_table:
            raise FileError(f"{path}: must hold numbers of shape (n,) or (n, d) with d ≥ 1, got {dtype} {shape}")
        if not is_whole:
            raise FileError(
                f"{path}: the file ends before its last row: {rest} bytes are too few for {dtype} {shape}; "
                "copy it again"
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

    def count_texts(self, columns: list[str]) -> dict[str, Counter[Any]]:
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
        check_finite(self.path, values, chosen, list(values.T), rows.start, {})
        return values
