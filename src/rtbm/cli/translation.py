"""Translation between the cells of a file and those of a model: labels and levels, gaps, dates, booleans."""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

from rtbm.data_files import BOOLEAN_WORDS, cell_number
from rtbm.estimators.density.categories import read_column
from rtbm.estimators.density.frames import is_gap, to_dates


def as_levels(cells: Sequence[Any], levels: Sequence[Any]) -> list[Any]:
    """Labels (n,) as the levels of a model; others stay. Only numbers of Parquet are compared as numbers.

    pandas adds .0 to whole numbers in columns with gaps.
    """
    exact: dict[Any, Any] = {str(level): level for level in levels}
    near = {text.removesuffix(".0"): level for text, level in exact.items()}
    numbers = {cell_number(text): exact[text] for text in sorted(exact, key=len, reverse=True)}
    return [
        exact.get(cell, near.get(cell.removesuffix(".0"), cell)) if isinstance(cell, str) else numbers.get(cell, cell)
        for cell in cells
    ]


def find_gaps(rows: np.ndarray) -> np.ndarray:
    """Which cells (n, d) are missing."""
    return np.vectorize(is_gap, otypes=[bool])(rows)


def fill(cells: list[Any], values: np.ndarray, gaps: np.ndarray, is_date: bool, has_dates: bool) -> list[Any]:
    """Cells (n,) of a file with values (n,) of a model in the place of gaps, written as the other cells are.

    If the file to be written has dates, dates that were text become some.
    """
    known = [cell for cell, gap in zip(cells, gaps, strict=True) if not gap]
    example = known[0] if known else None
    new: list[Any] = values.tolist()
    if is_date:
        are_days = bool((values[~gaps].astype(float) % 1 == 0).all())
        new = days_to_dates(np.rint(values.astype(float)) if are_days else values, isinstance(example, datetime))
        if isinstance(example, str) and has_dates:
            return new
        zone = getattr(example, "tzinfo", None)
        new = [date.replace(tzinfo=UTC).astimezone(zone) for date in new] if zone else new
    elif known and all(str(cell).lower() in BOOLEAN_WORDS for cell in known) and not isinstance(values[0], str):
        new = [value >= 0.5 for value in new]
    if isinstance(example, str):
        words = [value if isinstance(value, str) else str(value).removesuffix(".0") for value in new]
        change: Any = next(
            (f for f in (str.lower, str.upper) if isinstance(new[0], bool) and f(example) == example), str
        )
        new = [change(word) for word in words]
    elif isinstance(example, int) and not isinstance(example, bool):
        new = [value if isinstance(value, str) or value % 1 else int(value) for value in new]
    return [value if gap else cell for cell, value, gap in zip(cells, new, gaps, strict=True)]


def days_to_dates(days: Any, have_times: bool = False) -> list[Any]:
    """Dates of days (n,) since the beginning of 1970, without times unless there are some."""
    days = np.asarray(days, dtype=float)
    dates = to_dates(days)
    return (dates if have_times or (days % 1 != 0).any() else dates.astype("datetime64[D]")).tolist()


def as_cells(column: Any, is_date: bool, is_whole: bool) -> list[Any]:
    """A column (n,) of a model as cells of a file: dates, whole numbers and others. Those of data frames are such."""
    cells = read_column(column)
    if hasattr(column, "to_list") or not all(isinstance(cell, float) for cell in cells):
        return cells
    if is_date:
        return days_to_dates(cells)
    return [int(cell) for cell in cells] if is_whole and not any(cell % 1 for cell in cells) else cells


def as_table(columns: Collection[Sequence[Any]]) -> np.ndarray:
    """Columns of any objects as an array (n, d) of objects."""
    return np.column_stack([np.fromiter(column, dtype=object, count=len(column)) for column in columns])
