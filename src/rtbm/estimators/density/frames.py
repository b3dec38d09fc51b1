"""Data frames of pandas and polars in and out: dates become days, and results have the dtypes of the data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils._set_output import ADAPTERS_MANAGER

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import is_frame
from rtbm.estimators.density.columns import Levels

DAY = 86_400_000_000  # microseconds
LAST_DAY = 2**62 / DAY
"""Dates farther from 1970 than this many days leave the range of microseconds in 64 bits, and are cut off."""
DATES = ("datetime", "date")


class FrameFormat(NamedTuple):
    """The library of a data frame, "pandas" or "polars", and the dtypes of its columns in its words."""

    library: str
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
    return FrameFormat("polars" if hasattr(X, "with_columns") else "pandas", [str(dtype) for dtype in X.dtypes])


def dates_to_days(X: Any) -> Any:
    """A data frame with days since the beginning of 1970 in the place of dates; other data as they are."""
    own = format_of(X)
    if own is None or len(set(X.columns)) < len(X.columns):
        return X
    days = {name: to_days(X[name].to_numpy()) for i, name in enumerate(X.columns) if own.is_date(i)}
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
        stamps = np.asarray(dates).astype("datetime64[us]")
    except (OverflowError, TypeError, ValueError):
        raise InvalidInputError(f"a date cannot be read, or is beyond the reach of 64 bits, got {dates!r}") from None
    return np.where(np.isnat(stamps), np.nan, stamps.astype(np.int64) / DAY)


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
        column = table[:, i] if levels[i] is not None else table[:, i].astype(np.float64)
        if own is not None and own.is_date(i):
            column = to_dates(column)
        frame = restore(frame, name, column, dtype, levels[i])
    return frame


def _restore_pandas(frame: Any, name: Any, column: Any, dtype: str, levels: list[Any] | None) -> Any:
    import pandas as pd

    if dtype == "category":
        frame[name] = pd.Categorical(column, categories=levels)
        return frame
    cells = pd.Series(column, index=frame.index)
    if dtype.startswith("datetime64[") and "," in dtype:
        cells = cells.dt.tz_localize("UTC")
    try:
        changed = cells.astype(dtype) if dtype else cells
        is_same = (changed == cells) | cells.isna() if pd.api.types.is_numeric_dtype(cells) else True
        cells = changed if np.all(is_same) else cells
    except (TypeError, ValueError):  # gaps among integers, or dates beyond the range of nanoseconds
        pass
    frame[name] = cells
    return frame


def _restore_polars(frame: Any, name: str, column: Any, dtype: str, levels: list[Any] | None) -> Any:
    import polars as pl

    cells = pl.Series(name, column.tolist() if column.dtype == object else column)
    kind = dtype.split("(")[0]
    wanted: Any = pl.Enum(levels or []) if kind == "Enum" else getattr(pl, kind, None)
    is_whole = "Int" not in kind or bool((np.isnan(column) | (column == np.rint(column))).all())
    if wanted is not None and is_whole:
        cells = cells.fill_nan(None).cast(wanted) if "Int" in kind else cells.cast(wanted)
    return frame.with_columns(cells)
