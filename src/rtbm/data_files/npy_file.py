"""Files of NumPy: .npy."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rtbm.common import Floats
from rtbm.data_files.cells import Choice, FileData, check_finite
from rtbm.errors import FileError


class NpyFile:
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
        check_finite(self.path, values, chosen, list(values.T), rows.start, {})
        return values
