"""Columns of categories: which they are, and their levels as numbers and back."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import check_columns, is_frame, is_number, listed

UNKNOWN = ("warn", "ignore", "error")
"""What is done with levels that training data do not have."""
MAX_LEVELS = 1000
"""A column with more levels than this is no column of categories."""

Levels = list[list[Any] | None]
"""The levels of each column, in the order of their numbers; None for columns of numbers."""


def find_levels(X: Any, asked: Any) -> Levels:
    """The levels of the columns of a table, or nothing if none has any; `asked` is the argument `categorical_features`.

    Examples
    --------
    >>> find_levels(np.array([[1.0, 7.0], [2.0, 5.0]]), [1])
    [None, [5.0, 7.0]]
    """
    chosen: Mapping[Any, Any] = {}
    if isinstance(asked, Mapping):
        chosen = asked
    elif isinstance(asked, str) and asked == "auto":
        chosen = {name: None for name in (X.columns if is_frame(X) else []) if _is_discrete(X[name])}
    elif isinstance(asked, Sequence) and not isinstance(asked, str):
        chosen = dict.fromkeys(asked)
    elif asked is not None:
        raise InvalidInputError(
            f'categorical_features must be "auto", None, a list of columns, or {{column: levels}}, got {asked!r}'
        )
    if not chosen:
        return []
    names = [*X.columns] if is_frame(X) else [*range(count_columns(X))]
    numbers = {_place(column, names): column for column in chosen}
    return [_levels(_column(X, i), chosen[numbers[i]], names[i]) if i in numbers else None for i in range(len(names))]


def count_columns(X: Any) -> int:
    """The number of columns of a table; 0 if it is none."""
    if is_frame(X):
        return len(X.columns)
    cells = np.asarray(X, dtype=object)
    return cells.shape[1] if cells.ndim == 2 else 0


def _place(column: Any, names: list[Any]) -> int:
    if column in names:
        return names.index(column)
    if isinstance(column, int | np.integer) and 0 <= column < len(names):
        return int(column)
    raise InvalidInputError(f"categorical_features must name columns of X, {names}, got {column!r}")


def _levels(cells: Any, given: Any, name: Any) -> list[Any]:
    found = _read(cells)
    if given is not None:
        levels = list(given)
    elif hasattr(getattr(cells, "cat", None), "categories"):  # pandas, which keeps their order
        levels = cells.cat.categories.tolist()
    else:
        levels = list({cell for cell in found if cell is not None})
        try:
            levels.sort()
        except TypeError:
            kinds = sorted({type(cell).__name__ for cell in levels})
            raise InvalidInputError(f"X: column {name} has cells of several types, {listed(kinds)}: use one") from None
    if not levels:
        raise InvalidInputError(f"X: column {name} has nothing but gaps: leave it out")
    if len(levels) > MAX_LEVELS:
        raise InvalidInputError(
            f"X: column {name} has {len(levels)} levels, more than {MAX_LEVELS}: leave it out, or join rare levels"
        )
    return levels


def learn_levels(X: Any, asked: Any) -> tuple[Any, Levels]:
    """A table of training data with the numbers of levels in the place of levels, and the levels, as `find_levels`."""
    check_columns(X, "X")
    levels = find_levels(X, asked)
    return encode(X, levels), levels


def encode_like(X: Any, levels: Levels, names: Any, unknown: str) -> Any:
    """The same for a later table, with the levels of training data, whose columns had these names; None for none.

    Columns in another place are told by their names. That they must not be there is up to later checks.
    """
    if not any(own is not None for own in levels):
        return X
    if is_frame(X) and names is not None:
        known = dict(zip(names, levels, strict=True))
        levels = [known.get(name) for name in X.columns]
    return encode(X, levels, unknown) if count_columns(X) == len(levels) else X


def encode(X: Any, levels: Levels, unknown: str = "error") -> Any:
    """A table with the numbers of levels in the place of levels. Gaps and unknown levels are NaN."""
    numbers: dict[int, Floats] = {}
    for i, own in enumerate(levels):
        if own is not None:
            name = X.columns[i] if is_frame(X) else i
            numbers[i] = _encode_column(_read(_column(X, i)), own, unknown, name)
    if not numbers:
        return X
    if not is_frame(X):
        table = np.array(X, dtype=object)
        for i, column in numbers.items():
            table[:, i] = column
        return table.astype(np.float64)
    if hasattr(X, "with_columns"):  # polars
        return X.with_columns(*(type(_column(X, i))(X.columns[i], column) for i, column in numbers.items()))
    table = X.copy(deep=False)
    for i, column in numbers.items():
        table[X.columns[i]] = column
    return table


def _encode_column(cells: list[Any], levels: list[Any], unknown: str, name: Any) -> Floats:
    lookup = {level: float(number) for number, level in enumerate(levels)}
    numbers = [np.nan if cell is None else lookup.get(cell, -1.0) for cell in cells]
    codes = np.array(numbers, dtype=np.float64)
    strange = [cell for cell, code in zip(cells, numbers, strict=True) if code == -1.0]
    if strange:
        text = f"X: column {name} has levels that were not there in the fit, {listed(sorted(map(repr, set(strange))))}"
        if unknown == "error":
            raise InvalidInputError(text)
        if unknown == "warn":
            warnings.warn(f"{text}. They count as gaps", stacklevel=5)
    return np.where(codes < 0, np.nan, codes)


def decode(rows: Floats, levels: Levels) -> Any:
    """Rows (n, d) with levels in the place of their numbers, as objects; the rows themselves if there are no levels."""
    if not any(own is not None for own in levels):
        return rows
    table = rows.astype(object)
    for i, own in enumerate(levels):
        if own is not None:
            table[:, i] = _decode_column(rows[:, i], own)
    return table


def decode_frame(frame: Any, levels: Levels) -> Any:
    """A frame of numbers with levels in the place of their numbers."""
    for i, own in enumerate(levels):
        if own is not None:
            name, cells = frame.columns[i], _decode_column(frame[frame.columns[i]].to_numpy(), own)
            if hasattr(frame, "with_columns"):  # polars
                frame = frame.with_columns(type(frame[name])(name, cells))
            else:
                frame[name] = cells
    return frame


def _decode_column(numbers: Floats, levels: list[Any]) -> list[Any]:
    return [None if np.isnan(number) else levels[int(number)] for number in numbers]


def _is_discrete(column: Any) -> bool:
    """Whether a column of pandas or polars holds categories, true and false, or text that is no number."""
    kind = str(column.dtype).split("(")[0].lower()
    if kind in ("object", "string", "str", "utf8"):
        cells = [cell for cell in _read(column) if cell is not None]
        is_text = any(isinstance(cell, str) for cell in cells) and not all(map(is_number, cells))
        return is_text or (bool(cells) and all(isinstance(cell, bool | np.bool_) for cell in cells))
    return kind in ("category", "categorical", "enum", "bool", "boolean")


def _column(X: Any, i: int) -> Any:
    return X[X.columns[i]] if is_frame(X) else np.asarray(X, dtype=object)[:, i]


def _read(cells: Any) -> list[Any]:
    """The cells of a column, None for gaps."""
    values = cells.to_list() if hasattr(cells, "to_list") else list(cells)
    absent = np.asarray(cells.isna(), dtype=bool) if hasattr(cells, "isna") else [_is_gap(value) for value in values]
    return [None if gap else value for value, gap in zip(values, absent, strict=True)]


def _is_gap(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
