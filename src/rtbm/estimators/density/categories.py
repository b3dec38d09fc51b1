"""Columns of categories: which they are, and their levels as numbers and back."""

import itertools
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from rtbm.common import MAX_LEVELS, Floats
from rtbm.data_files import ROW_NUMBERS, are_row_numbers, why_names
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import check_names, is_frame, is_number, listed, table_of_numbers, to_numpy
from rtbm.estimators.density.columns import Levels, column_place
from rtbm.estimators.density.frames import FrameFormat, dates_to_days, format_of, is_gap
from rtbm.training.blocks import Part

UNKNOWN = ("warn", "ignore", "error")
"""What is done with levels that training data do not have."""


def find_levels(X: Any, asked: Any) -> Levels:
    """The levels of the columns of a table, or nothing if none has any; `asked` is the argument `categorical_features`.

    Examples
    --------
    >>> find_levels(np.array([[1.0, 7.0], [2.0, 5.0]]), [1])
    [None, [5.0, 7.0]]
    """
    return merge_levels([SeenLevels.of_table(X, asked)], _column_names(X))


class SeenLevels(NamedTuple):
    """The levels of a column in some of the data."""

    levels: list[Any]
    is_given: bool  # by the user, or by the dtype: then they keep their order

    @classmethod
    def of_table(cls, X: Any, asked: Any, names: Sequence[Any] | None = None) -> dict[int, "SeenLevels"]:
        """Those of columns of categories in a table, by the numbers of columns; `names` are those of an array."""
        chosen = _chosen(X, asked, names)
        return {i: cls._of_cells(_column(X, i), given) for i, given in chosen.items()}

    @classmethod
    def _of_cells(cls, cells: Any, given: Any) -> "SeenLevels":
        if given is not None:
            return cls(list(given), True)
        known: Any = getattr(cells.dtype, "categories", None)  # of pandas, or of an Enum of polars
        if hasattr(known, "to_list") and len(known):
            return cls(known.to_list(), True)
        return cls(list({cell for cell in read_column(cells) if cell is not None}), False)

    def plus(self, other: "SeenLevels") -> "SeenLevels":
        """Those of both parts."""
        if self == other:
            return self
        return SeenLevels(list({*self.levels, *other.levels}), False)


@dataclass(frozen=True)
class LevelSearch:
    """A pass over the tables of a `Part`, for the levels of columns of categories.

    `asked` is as in `find_levels`, and `names` those of columns, if the tables are arrays and have any.
    """

    asked: Any
    names: Sequence[str] | None

    def __call__(self, part: Part) -> tuple[dict[int, SeenLevels], FrameFormat | None]:
        """The levels by the numbers of columns, and the format of the first table."""
        found: dict[int, SeenLevels] = {}
        own = None
        for given, _ in part.tables():
            table = to_numpy(given)
            own = own or format_of(table)
            for i, seen in SeenLevels.of_table(dates_to_days(table), self.asked, self.names).items():
                found[i] = found[i].plus(seen) if i in found else seen
                _check_number(found[i].levels, (self.names or _column_names(table))[i])
            if self._is_known(table):
                break
        return found, own

    def _is_known(self, table: Any) -> bool:
        """Whether other tables cannot show more."""
        if isinstance(self.asked, Mapping):
            return all(levels is not None for levels in self.asked.values())
        return self.asked is None or (isinstance(self.asked, str) and not is_frame(table))


def merge_levels(parts: Sequence[Mapping[int, SeenLevels]], names: Sequence[Any]) -> Levels:
    """The levels of all columns from those that parts of the data show, or nothing if no column has any."""
    together: dict[int, SeenLevels] = {}
    for i, seen in itertools.chain(*(part.items() for part in parts)):
        together[i] = together[i].plus(seen) if i in together else seen
    if not together:
        return []
    return [_in_order(together[i], names[i]) if i in together else None for i in range(len(names))]


def _chosen(X: Any, asked: Any, names: Sequence[Any] | None) -> dict[int, Any]:
    """The columns of categories of a table by their numbers, and their levels if the user gives them."""
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
    known = _column_names(X) if names is None or is_frame(X) else list(names)
    return {column_place(column, known, "categorical_features"): given for column, given in chosen.items()}


def _column_names(X: Any) -> list[Any]:
    """The names of the columns of a table, or their numbers."""
    return [*X.columns] if is_frame(X) else [*range(count_columns(X))]


def count_columns(X: Any) -> int:
    """The number of columns of a table; 0 if it is none."""
    if is_frame(X):
        return len(X.columns)
    cells = np.asarray(X, dtype=object)
    return cells.shape[1] if cells.ndim == 2 else 0


def _in_order(seen: SeenLevels, name: Any) -> list[Any]:
    """The levels of a column in the order of their numbers."""
    levels = list(seen.levels)
    try:
        levels = levels if seen.is_given else sorted(levels)
    except TypeError:
        kinds = sorted({type(cell).__name__ for cell in levels})
        raise InvalidInputError(f"X: column {name} has cells of several types, {listed(kinds)}: use one") from None
    if not levels and not seen.is_given:
        raise InvalidInputError(f"X: column {name} has nothing but gaps: leave it out")
    _check_number(levels, name)
    return levels


def _check_number(levels: list[Any], name: Any) -> None:
    if len(levels) > MAX_LEVELS:
        raise InvalidInputError(
            f"X: column {name} has {len(levels)} levels, more than {MAX_LEVELS}: leave it out, or join rare levels"
        )


def code_table(table: Any, levels: Levels, names: list[str] | None) -> Floats:
    """A table of data in blocks as numbers (n, d): those of levels, and days in the place of dates.

    Frames must have the columns `names`, unless that is None.
    """
    if is_frame(table) and names is not None and [str(name) for name in table.columns] != names:
        raise InvalidInputError(
            f"all blocks must have the same columns: expected {', '.join(names)}, got "
            f"{', '.join(map(str, table.columns))}"
        )
    table = dates_to_days(to_numpy(table))
    if any(own is not None for own in levels) and count_columns(table) == len(levels):
        table = encode(table, levels)
    return table_of_numbers(table)


def learn_levels(X: Any, asked: Any, warn: bool = True) -> tuple[Any, Levels]:
    """A table of training data with numbers in the place of levels and dates, and the levels, as `find_levels`.

    With "auto", identifiers in a data frame are left out, and have no levels: all of their numbers are NaN.
    """
    given = to_numpy(X)
    X = dates_to_days(given)
    check_names(X, "X")
    if isinstance(asked, str) and asked == "auto" and is_frame(X):
        found = find_identifiers(given)
        if found and warn:
            warnings.warn(
                f"X: identifiers are left out: {listed([f'{name} ({reason})' for name, reason in found.items()])}. To "
                "keep them, list all columns of categories in categorical_features ([] if there are none)",
                stacklevel=4,
            )
        asked = {name: [] if name in found else None for name in X.columns if name in found or _is_discrete(X[name])}
    levels = find_levels(X, asked)
    return encode(X, levels), levels


def find_identifiers(X: Any) -> dict[Any, str]:
    """The columns of a data frame that hold identifiers, by name, and why they are taken for that.

    Numbers that count the rows are identifiers only beside other columns.

    Examples
    --------
    >>> import pandas as pd
    >>> people = pd.DataFrame({"id": range(50), "age": [20, 30] * 25, "name": [f"name {i}" for i in range(50)]})
    >>> find_identifiers(people)
    {'name': 'text, 50 different values', 'id': 'whole numbers that count the rows'}
    """
    names = {name: reason for name in X.columns if (reason := _why_names(X[name]))}
    numbers = [name for name in X.columns if name not in names and _counts_rows(X[name])]
    if len(names) + len(numbers) < len(X.columns):
        return names | dict.fromkeys(numbers, ROW_NUMBERS)
    if not numbers and names:
        raise InvalidInputError(
            f"X: there is nothing to fit, since all columns hold identifiers, {listed(list(map(str, names)))}: list "
            "columns of categories in categorical_features"
        )
    return names


def _why_names(column: Any) -> str:
    """Why a column of a data frame is taken for names or other identifiers; "" if it is not."""
    if not _is_discrete(column):
        return ""
    cells = [cell for cell in read_column(column) if cell is not None]
    return why_names(len(set(cells)), len(cells)) if any(isinstance(cell, str) for cell in cells) else ""


def _counts_rows(column: Any) -> bool:
    """Whether a column of a data frame holds whole numbers that count the rows."""
    for part in (column.head(100), column):
        cells = np.asarray(part)
        if cells.dtype == object and all(isinstance(cell, int) for cell in cells):  # of pandas, which may hold its NA
            cells = cells.astype(np.float64)
        if cells.dtype.kind not in "iuf" or not are_row_numbers(cells):
            return False
    return True


def encode_like(X: Any, levels: Levels, names: Any, unknown: str) -> Any:
    """The same for a later table, with the levels of training data, whose columns had these names; None for none.

    Columns in another place are told by their names. That they must not be there is up to later checks.
    """
    X = dates_to_days(to_numpy(X))
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
        if own == []:
            numbers[i] = np.full(len(X), np.nan)
        elif own is not None:
            name = X.columns[i] if is_frame(X) else i
            numbers[i] = encode_column(read_column(_column(X, i)), own, unknown, f"X: column {name}")
    if not numbers:
        return X
    if not is_frame(X):
        table = np.array(X, dtype=object)
        for i, column in numbers.items():
            table[:, i] = column
        return table
    if hasattr(X, "with_columns"):  # polars
        return X.with_columns(*(type(_column(X, i))(X.columns[i], column) for i, column in numbers.items()))
    table = X.copy(deep=False)
    for i, column in numbers.items():
        table[X.columns[i]] = column
    return table


def encode_column(cells: list[Any], levels: list[Any], unknown: str, place: str) -> Floats:
    """Cells, None for gaps, as the numbers of levels. Messages say where they are."""
    lookup = {level: float(number) for number, level in enumerate(levels)}
    numbers = [np.nan if cell is None else lookup.get(cell, -1.0) for cell in cells]
    codes = np.array(numbers, dtype=np.float64)
    strange = [cell for cell, code in zip(cells, numbers, strict=True) if code == -1.0]
    if strange:
        text = f"{place} has levels that were not there in the fit, {listed(sorted(map(repr, set(strange))))}"
        if unknown == "error":
            raise InvalidInputError(text)
        if unknown == "warn":
            warnings.warn(f"{text}. They count as gaps", stacklevel=5)
    return np.where(codes < 0, np.nan, codes)


def decode(rows: Floats, levels: Levels) -> Any:
    """Rows (n, d) with levels in the place of their numbers, as objects; the rows themselves if there are no levels."""
    if not any(levels):
        return rows
    table = rows.astype(object)
    for i, own in enumerate(levels):
        if own:
            table[:, i] = _decode_column(rows[:, i], own)
    return table


def _decode_column(numbers: Floats, levels: list[Any]) -> list[Any]:
    return [None if np.isnan(number) else levels[int(number)] for number in numbers]


def _is_discrete(column: Any) -> bool:
    """Whether a column of pandas or polars holds categories, true and false, or text that is no number."""
    kind = re.split(r"[(\[<]", str(column.dtype).lower())[0].removeprefix("large_")  # pyarrow has large strings
    if kind in ("object", "string", "str", "utf8"):
        cells = [cell for cell in read_column(column) if cell is not None]
        is_text = any(isinstance(cell, str) for cell in cells) and not all(map(is_number, cells))
        return is_text or (bool(cells) and all(isinstance(cell, bool | np.bool_) for cell in cells))
    return kind in ("category", "categorical", "dictionary", "enum", "bool", "boolean")


def _column(X: Any, i: int) -> Any:
    return X[X.columns[i]] if is_frame(X) else np.asarray(X, dtype=object)[:, i]


def read_column(cells: Any) -> list[Any]:
    """The cells of a column, None for gaps."""
    values = cells.to_list() if hasattr(cells, "to_list") else list(cells)
    absent = np.asarray(cells.isna(), dtype=bool) if hasattr(cells, "isna") else [is_gap(value) for value in values]
    return [None if gap else value for value, gap in zip(values, absent, strict=True)]


def find_known(X: Any, rows: Floats, levels: Levels) -> np.ndarray:
    """Which cells of a table are known (n, d), of which `rows` (n, d) are the numbers.

    Levels new to the fit are known, and identifiers stay as they are.
    """
    X, known = to_numpy(X), ~np.isnan(rows)
    for i, own in enumerate(levels):
        if own is not None:
            known[:, i] = [cell is not None or not own for cell in read_column(_column(X, i))]
    return known
