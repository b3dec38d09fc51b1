"""What the arguments of the commands mean: tables, standard input, columns, bounds, probabilities, outputs.

As in `app`, numpy and torch are imported only in the functions that need them.
"""

import contextlib
import math
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from rtbm.paths import existing_table, printable, table_kind

ROW_FILES, PICTURE_FILES = (".csv", ".parquet", ".npy"), (".png", ".pdf", ".svg")
"""The endings of files that commands write."""
STANDARD = Path("-")
"""Standard input or output in place of a file."""
INPUT_FOLDER = "rtbm-input-"
"""The beginning of the name of the temporary folder that holds standard input. Messages leave the folder out."""
MAGIC = {b"PAR1": ".parquet", b"\x93NUMPY": ".npy"}
"""The first bytes of standard input that tell its format. All else is CSV."""


def _table(context: typer.Context, path: Path | None) -> Path | None:
    """The path of a table, which must exist. Standard input is kept in a temporary file until the command ends."""
    if path is None or path != STANDARD:
        return path and existing_table(path)
    content = sys.stdin.buffer.read()
    ending = next((ending for magic, ending in MAGIC.items() if content.startswith(magic)), ".csv")
    folder = context.with_resource(tempfile.TemporaryDirectory(prefix=INPUT_FOLDER))
    copy = Path(folder, f"standard_input{ending}")
    copy.write_bytes(content)
    return copy


TABLE_HELP = "A .csv, .csv.gz, .parquet or .npy file, or - for standard input"
Data = Annotated[
    Path | None, typer.Argument(callback=_table, help=f"{TABLE_HELP}; without it, the paper's gamma sample.")
]
OptionalData = Annotated[Path | None, typer.Argument(callback=_table, help=f"Data to draw with it. {TABLE_HELP}.")]
Needed = Annotated[Path, typer.Argument(callback=_table, help=f"{TABLE_HELP}.")]
Model = Annotated[Path, typer.Argument(help="A model that `rtbm fit` has saved.")]
Seed = Annotated[int, typer.Option(min=0, max=2**32 - 1, help="The same seed gives the same result.")]
RowsOutput = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        help="Where to write the rows (.csv, .parquet or .npy; - for CSV on the screen). An existing file is replaced.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--columns",
        "-c",
        help="Columns to use, as in x,y (numbers from 0 where there are no names); by default all that hold numbers, "
        "categories or dates, without identifiers and the index of a data frame. May be given several times, as names "
        "that hold commas need.",
    ),
]
Categorical = Annotated[
    list[str] | None,
    typer.Option(
        "--categorical",
        help="Columns whose cells are labels though some or all are numbers, as in zip,grade: 01 and 1 are two labels. "
        "Text always is. May be given several times.",
    ),
]
Header = Annotated[
    bool | None,
    typer.Option("--header/--no-header", help="Whether a CSV file begins with names; detected by default."),
]
Separator = Annotated[
    str | None,
    typer.Option(help="What separates the cells of a CSV file, as in ';' or '\\t' or ' '; detected by default."),
]
Given = Annotated[
    list[str] | None,
    typer.Option("--given", help="A known value, as in x=3, city=Rome or day=2020-03-01; may be given several times."),
]
DecimalPoint = Annotated[Literal[".", ","], typer.Option(help="The decimal point of a CSV file.")]
Pair = tuple[float | None, float | None]
Value = TypeVar("Value")


def parse_bounds(texts: list[str] | None) -> list[tuple[str | None, Pair]]:
    """Columns and bounds of --bounds; None stands for all other columns."""
    found: list[tuple[str | None, Pair]] = []
    for text in texts or []:
        name, equals, ends = text.rpartition("=")
        try:
            low, high = (float(end) if end.strip() else None for end in re.split("[:,]", ends))
            if low is not None and high is not None and not low < high:
                raise ValueError
        except ValueError:
            message = f"must be LOW:HIGH or COLUMN=LOW:HIGH with LOW < HIGH, one of which may be empty, got {text!r}"
            raise typer.BadParameter(message, param_hint="--bounds") from None
        found.append((name if equals else None, (low, high)))
    return found


def bounds_of(given: list[tuple[str | None, Pair]], names: list[str] | None, n_columns: int) -> Any:
    """The bounds as the estimators take them: one pair for all columns, or a list of pairs."""
    found = by_column(given, names, n_columns, "--bounds")
    common = found.pop(None, None)
    return [found.get(i, common) for i in range(n_columns)] if found else common


def by_column(
    given: Sequence[tuple[str | None, Value]], names: list[str] | None, n_columns: int, option: str
) -> dict[int | None, Value]:
    """Values by the numbers of their columns, each of which may be given once. None stays None."""
    found: dict[int | None, Value] = {}
    for name, value in given:
        number = None if name is None else column_number(name, names, n_columns, option)
        if number in found:
            raise typer.BadParameter(f"the same column is given twice, got {name!r}", param_hint=option)
        found[number] = value
    return found


def parse_probabilities(texts: list[str], option: str) -> list[float]:
    """Texts of an option as probabilities."""
    try:
        levels = [float(text) for text in texts]
        if not all(0 <= level <= 1 for level in levels) or len(set(levels)) < len(levels):
            raise ValueError
    except ValueError:
        message = f"must be different probabilities between 0 and 1, got {' '.join(texts)!r}"
        raise typer.BadParameter(message, param_hint=option) from None
    return levels


def parse_given(given: list[str] | None) -> list[tuple[str, str]]:
    """Columns and values of --given, as texts."""
    pairs = [text.rpartition("=") for text in given or []]
    if not all(equals for _, equals, _ in pairs):
        raise typer.BadParameter(f"must be COLUMN=NUMBER or COLUMN=LEVEL, got {given!r}", param_hint="--given")
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def given_value(name: str, text: str, levels: list[Any] | None, is_date: bool) -> Any:
    """The value of --given for a column with these levels, or for a column of dates or numbers if they are None."""
    from rtbm.data_files import cell_number
    from rtbm.estimators.checks import listed
    from rtbm.output import level_text

    number = _days(text) if is_date else cell_number(text)
    if levels is None and number is not None and math.isfinite(number):
        return number
    for level in levels or []:
        if str(level) == text or level == number:
            return level
    known = "a date such as 2020-03-01" if is_date else "a number"
    if levels is not None:
        known = f"one of {listed([level_text(level) for level in levels])}"
    raise typer.BadParameter(f"{name} must be {known}, got {text!r}", param_hint="--given")


def _days(text: str) -> float | None:
    """The days from the beginning of 1970 to a date; None for other texts."""
    with contextlib.suppress(ValueError):
        date = datetime.fromisoformat(text)
        return (date.replace(tzinfo=date.tzinfo or UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(days=1)
    return None


def column_number(text: str, names: list[str] | None, n_columns: int, option: str) -> int:
    """The number of a column that an option gives by its name or its number."""
    text = printable(text)
    if names is not None and text in names:
        return names.index(text)
    if text.isdecimal() and int(text) < n_columns:
        return int(text)
    known = f"one of {', '.join(names)} or " if names else ""
    raise typer.BadParameter(f"{text!r} is no column: use {known}0 to {n_columns - 1}", param_hint=option)


def chosen_columns(
    columns: list[str] | None, data: Path | None, text_format: Any, option: str = "--columns"
) -> list[str] | None:
    """The names of --columns. Commas separate them, unless the whole text is the name of a column."""
    if not columns:
        return None
    if data is None:
        raise typer.BadParameter("there is no file to choose columns of", param_hint=option)
    from rtbm.data_files import column_names

    known = column_names(data, **text_format) or []
    texts = map(printable, columns)
    parts = [[text] if text in known else [name.strip() for name in text.split(",")] for text in texts]
    return [name for part in parts for name in part]


def check_share(share: float | None) -> float | None:
    """A share between 0 and 1, which it must not be."""
    if share is not None and not 0 < share < 1:
        raise typer.BadParameter(f"must be between 0 and 1, got {share:g}")
    return share


def check_output(path: Path | None, option: str, suffixes: tuple[str, ...] | None, *inputs: Path | None) -> None:
    """Check before the work that a result can be written, and that it overwrites no input."""
    if path is None or (path == STANDARD and suffixes == ROW_FILES):
        return
    folder, message = path.resolve().parent, ""
    if not folder.is_dir():
        message = f"there is no folder {folder}"
    elif not os.access(folder, os.W_OK):
        message = f"no file can be written into the folder {folder}"
    elif path.is_dir():
        message = f"{path} is a folder"
    elif path == STANDARD:
        message = "only tables go to standard output: name a file"
    elif suffixes is not None and path.suffix.lower() not in suffixes:
        message = f"{path} must end in one of {', '.join(suffixes)}"
    elif suffixes is None and table_kind(path) is not None:
        message = f"{path} is the name of a data file, not of a model: use .rtbm"
    elif any(other is not None and other.resolve() == path.resolve() for other in inputs):
        message = f"{path} is used already, and would be overwritten"
    if message:
        raise typer.BadParameter(message, param_hint=option)
