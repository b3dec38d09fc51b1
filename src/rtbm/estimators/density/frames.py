"""Data frames of pandas and polars in and out: dates become days, and results have the dtypes of the data."""

import ast
import contextlib
import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
from sklearn.utils._set_output import ADAPTERS_MANAGER

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import is_frame, to_numpy
from rtbm.estimators.density.columns import Levels

DAY = 86_400_000_000  # microseconds
LAST_DAY = 2**62 / DAY
"""Dates farther from 1970 than this many days leave the range of microseconds in 64 bits, and are cut off."""
DATES = ("datetime", "date", "timestamp")
GAPS = ("NoneType", "NAType", "NaTType")
"""The types of cells that are gaps, beside NaN: None, and those of pandas."""


class FrameFormat(NamedTuple):
    """The library of a data frame, "pandas" or "polars", and the dtypes of its columns in its words."""

    library: Literal["pandas", "polars"]
    dtypes: list[str]

    def subset(self, indices: Sequence[int]) -> "FrameFormat":
        """That of some columns."""
        return FrameFormat(self.library, [self.dtypes[i] for i in indices])

    def is_date(self, i: int) -> bool:
        """Whether a column holds dates."""
        return self.dtypes[i].lower().startswith(DATES)


def format_of(X: Any) -> FrameFormat | None:
    """The format of a data frame; None for other data."""
    if not is_frame(X):
        return None
    if hasattr(X, "with_columns"):
        return FrameFormat("polars", [str(dtype) for dtype in X.dtypes])
    return FrameFormat("pandas", [_dtype_of(X.iloc[:, i]) for i in range(len(X.columns))])


def _dtype_of(column: Any) -> str:
    """The dtype of a column of pandas in words. Objects that are dates of Python are "date" or "datetime"."""
    import pandas as pd

    if column.dtype == object:
        kind = pd.api.types.infer_dtype(column, skipna=True)
        return kind if kind in ("date", "datetime", "datetime64") else "object"
    return f"{column.dtype}{' ordered' if getattr(column.dtype, 'ordered', False) else ''}"


def dates_to_days(X: Any) -> Any:
    """A data frame with days since the beginning of 1970 in the place of dates; other data as they are."""
    own = format_of(X)
    if own is None or len(set(X.columns)) < len(X.columns):
        return X
    days = {name: to_days(X[name]) for i, name in enumerate(X.columns) if own.is_date(i)}
    if not days:
        return X
    if own.library == "polars":
        return X.with_columns(*(type(X[name])(name, column) for name, column in days.items()))
    X = X.copy(deep=False)
    for name, column in days.items():
        X[name] = column
    return X


def to_days(dates: Any) -> Floats:
    """Days (...) since the beginning of 1970 of dates (...), NaN for gaps. Times with a zone are those of UTC."""
    try:
        if hasattr(getattr(dates, "dtype", None), "tz"):  # pandas, whose array would hold objects
            dates = dates.to_numpy(dtype=f"datetime64[{dates.dtype.unit}]")
        cells = np.asarray(dates)
        if cells.dtype == object:
            cells = np.array([_in_utc(cell) for cell in cells.flat], "datetime64[us]").reshape(cells.shape)
        stamps = cells.astype("datetime64[us]")
    except (OverflowError, TypeError, ValueError):
        raise InvalidInputError(f"a date cannot be read, or is beyond the reach of 64 bits, got {dates!r}") from None
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / DAY)


def _in_utc(date: Any) -> Any:
    """A date without its zone, None for gaps."""
    if is_gap(date):
        return None
    is_local = getattr(date, "tzinfo", None) is not None
    return date.astimezone(datetime.UTC).replace(tzinfo=None) if is_local else date


def is_gap(cell: Any) -> bool:
    """Whether a cell is missing."""
    return type(cell).__name__ in GAPS or (isinstance(cell, float | np.floating) and bool(np.isnan(cell)))


def holds_dates(values: Any) -> bool:
    """Whether a value is a date, or the first of several that is no gap."""
    cells = np.asarray(values)
    if cells.dtype != object:
        return cells.dtype.kind == "M"
    first = next((cell for cell in cells.flat if not is_gap(cell)), None)
    return isinstance(first, datetime.date | np.datetime64)


def to_dates(days: Floats) -> np.ndarray:
    """Dates (...) of days since 1970, to the microsecond."""
    near = np.clip(np.nan_to_num(days), -LAST_DAY, LAST_DAY)
    stamps = np.rint(near * DAY).astype(np.int64).astype("datetime64[us]")
    return np.where(np.isnan(days), np.datetime64("NaT"), stamps)


def make_frame(
    table: Any, levels: Levels, library: str, own: FrameFormat | None, names: Any = None, given: Any = None
) -> Any:
    """A table (n, d) of numbers and levels as a data frame with dtypes as far as values allow.

    `own` is the format of the training data. A frame of pandas has the index of the rows that were given.
    """
    frame = ADAPTERS_MANAGER.adapters[library].create_container(np.zeros(table.shape), given, columns=names)
    restore = _restore_pandas if library == "pandas" else _restore_polars
    dtypes = own.dtypes if own is not None and own.library == library else [""] * len(levels)
    for i, (name, dtype) in enumerate(zip(frame.columns, dtypes, strict=True)):
        is_date = own is not None and own.is_date(i)
        column = table[:, i] if levels[i] and not is_date else table[:, i].astype(np.float64)
        column = to_dates(column) if is_date else column
        frame = restore(frame, name, column, dtype, levels[i])
    return frame


def _restore_pandas(frame: Any, name: Any, column: Any, dtype: str, levels: list[Any] | None) -> Any:
    import pandas as pd

    if dtype.startswith("category"):
        frame[name] = pd.Categorical(column, categories=levels, ordered=dtype.endswith("ordered"))
        return frame
    cells = pd.Series(column, index=frame.index)
    if dtype == "date":
        frame[name] = cells.dt.date
        return frame
    if cells.dtype.kind == "M" and "," in dtype:
        cells = cells.dt.tz_localize("UTC")
    try:
        changed = cells.astype(dtype) if dtype else cells
        is_same = True
        if pd.api.types.is_numeric_dtype(cells):
            is_float = pd.api.types.is_float_dtype(changed)
            is_same = (changed.abs() < np.inf if is_float else changed == cells) | cells.isna()
        cells = changed if np.all(is_same) else cells
    except (NotImplementedError, TypeError, ValueError):  # gaps among integers, or dates beyond nanoseconds
        pass
    frame[name] = cells
    return frame


def _restore_polars(frame: Any, name: str, column: Any, dtype: str, levels: list[Any] | None) -> Any:
    import polars as pl

    cells = pl.Series(name, column.tolist() if column.dtype == object else column)
    if levels == []:  # identifiers, which are gaps
        cells = cells.clear(len(cells))
    kind = dtype.split("(")[0]
    wanted: Any = pl.Enum(levels or []) if kind == "Enum" else getattr(pl, kind, None)
    if kind in ("Datetime", "Decimal"):
        options = re.findall(r"(\w+)=('[^']*'|\w+)", dtype)
        wanted = wanted(**{option: ast.literal_eval(value) for option, value in options})
    is_whole = "Int" not in kind or bool((np.isnan(column) | (column == np.rint(column))).all())
    if wanted is not None and is_whole:
        with contextlib.suppress(pl.exceptions.PolarsError):  # numbers beyond the range of the dtype
            cells = cells.fill_nan(None).cast(wanted) if "Int" in kind else cells.cast(wanted)
    return frame.with_columns(cells)


def keep_known(filled: Any, given: Any, known: np.ndarray, levels: Levels) -> Any:
    """A completed table with the cells as they were given where they are known (n, d), to the last digit."""
    if isinstance(filled, np.ndarray):
        if is_frame(given) or (filled.dtype != object and [] not in levels):
            return filled
        return np.where(known, np.asarray(to_numpy(given), dtype=object if filled.dtype == object else None), filled)
    own, wanted = format_of(given), format_of(filled)
    if own is None or wanted is None or own.library != wanted.library:
        return filled
    for i, name in enumerate(filled.columns):
        cells = filled[name]
        if own.library == "polars":
            cells = _keep_polars(cells, given.to_series(i), known[:, i], levels[i] is not None)
            filled = filled.with_columns(cells.alias(name))
        else:
            filled[name] = _keep_pandas(cells, given.iloc[:, i], known[:, i], levels[i] is not None)
    return filled


def _keep_pandas(cells: Any, given: Any, known: np.ndarray, has_levels: bool) -> Any:
    """A column with other cells in its gaps: in its own dtype, else in theirs if that changes none, else objects."""
    import pandas as pd

    if known.all() or not known.any():
        return given if known.all() else cells
    old, new = given[known], cells[~known]
    dtypes = [given.dtype, cells.dtype]
    if (given.dtype == object and has_levels) or (given.dtype.kind == "f" and cells.dtype.kind in "iu"):
        dtypes.reverse()  # gaps have made objects of booleans, and floats of integers
    for dtype in dtypes:
        if hasattr(dtype, "categories") and not {*old, *new} <= {*dtype.categories}:
            continue
        try:
            parts = old.astype(dtype), new.astype(dtype)
            is_same = parts[0].astype(old.dtype).equals(old) and not parts[1].isna().any()
            if is_same and (parts[1].dtype.kind not in "iu" or (parts[1] == new).all()):
                break
        except (NotImplementedError, TypeError, ValueError):
            pass
    else:
        parts = old.astype(object), new.astype(object)
    if parts[0].dtype == object:
        parts = parts[0], _like(parts[1], list(old))
    together = pd.concat(parts, ignore_index=True)
    return together.iloc[np.argsort(np.argsort(~known, kind="stable"))].set_axis(given.index)


def _like(cells: Any, others: list[Any]) -> Any:
    """A column of objects, as strings, decimals, days or times with a zone if all others are."""
    kind: Any = type(others[0])
    is_date = all(isinstance(cell, datetime.datetime) for cell in cells)
    if {type(cell) for cell in others} != {kind}:
        return cells
    if kind in (str, Decimal):
        return cells.map(lambda cell: kind(str(cell)))
    if is_date and kind is datetime.date:
        return cells.map(lambda cell: cell.date())
    zone = getattr(others[0], "tzinfo", None) if is_date else None
    return cells.map(lambda cell: cell.tz_localize("UTC").astimezone(zone)) if zone else cells


def _keep_polars(cells: Any, given: Any, known: np.ndarray, has_levels: bool) -> Any:
    """The same for columns of polars."""
    import polars as pl

    if known.all() or not known.any():
        return given if known.all() else cells
    old, new = given.filter(pl.Series(known)), cells.filter(pl.Series(~known))
    dtypes = [given.dtype, cells.dtype]
    if given.dtype.is_float() and cells.dtype.is_integer():
        dtypes.reverse()
    for dtype in (*dtypes, pl.String) if has_levels else dtypes:
        try:
            parts = old.cast(dtype), new.cast(dtype)
            is_same = parts[0].cast(old.dtype).equals(old) and not parts[1].has_nulls()
            if is_same and (not parts[1].dtype.is_integer() or (parts[1] == new).all()):
                return pl.concat(parts).gather(np.argsort(np.argsort(~known, kind="stable")))
        except pl.exceptions.PolarsError:
            pass
    return cells
