"""The tables of the explorer: the paper's densities, those of scikit-learn, and files of one's own."""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn import datasets as sklearn_datasets

from rtbm import datasets
from rtbm.common import Floats
from rtbm.data_files import TableSize, read_table, table_size
from rtbm.errors import FileError
from rtbm.estimators.density.fitted import FittedDensity
from rtbm.paths import TABLE_SUFFIXES, printable, table_kind
from rtbm.persistence import load

UPLOAD_MB = 20
"""Largest file that the page takes, in megabytes. It is held in memory, in each session."""
UPLOAD_LIMITS = TableSize(n_bytes=50_000_000, n_cells=5_000_000, n_columns=1000)
"""The most that an upload may hold when it is unpacked. Larger tables make the page slow."""
MODEL_DRAWS = 2000
"""Draws from a model that stand for its data in pictures, if only the model is known."""


class DataTable(NamedTuple):
    """Rows (n, d) with the names of their columns, and the Python lines that make them."""

    name: str
    rows: Floats
    columns: list[str]
    code: list[str]
    """Lines of Python that make X."""
    file: str
    """The name of the file in a command line."""
    left_out: Mapping[str, str] = {}
    is_named: bool = True
    """Whether the file has names of columns."""
    text_format: Mapping[str, Any] = {}
    """What had to be said about a CSV file, as arguments of `read_table`."""
    notes: Sequence[str] = ()
    """What was doubtful when the file was read."""


class Opened(NamedTuple):
    """What the explorer begins with: a table, and a model if one was given."""

    table: DataTable
    model: Any = None
    is_given: bool = True
    """Whether the table or the model was given, and is not a first example."""


def paper_table(name: str) -> DataTable:
    """A sample of one of the paper's densities."""
    rows = datasets.DENSITIES[name].sample()
    code = ["from rtbm import datasets", f"X = datasets.{name}.sample()"]
    return DataTable(name, rows, numbered(rows), code, f"{name}.csv", is_named=False)


def sklearn_table(name: str) -> DataTable:
    """The features of one of scikit-learn's tables."""
    loader = f"load_{name}"
    frame = getattr(sklearn_datasets, loader)(as_frame=True).data
    code = [f"from sklearn.datasets import {loader}", f"X = {loader}(as_frame=True).data"]
    return DataTable(name, frame.to_numpy(np.float64), list(frame.columns), code, f"{name}.csv")


TABLES: dict[str, Callable[[], DataTable]] = {
    **{f"the paper's {name.replace('_', ' ')}": partial(paper_table, name) for name in datasets.DENSITIES},
    **{f"scikit-learn's {name.replace('_', ' ')}": partial(sklearn_table, name)
       for name in ("iris", "wine", "diabetes", "breast_cancer")},
}  # fmt: skip
"""The tables by the name that is shown."""


def numbered(rows: Floats) -> list[str]:
    """Names of columns that have none: their numbers."""
    return [str(i) for i in range(rows.shape[1])]


def file_table(path: Path, shown: str | None = None, **text_format: Any) -> DataTable:
    """The table in a file; `shown` is its name in code."""
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always")
        found = read_table(path, **text_format)
    shown = shown or str(path)
    notes = [str(doubt.message).replace(str(path), shown) for doubt in doubts]
    said = {name: value for name, value in text_format.items() if value not in (None, ".")}
    arguments = ", ".join([repr(shown), *(f"{name}={value!r}" for name, value in said.items())])
    code = ["from rtbm.data_files import read_table", f"X = read_table({arguments}).values"]
    columns = found.names or numbered(found.values)
    return DataTable(shown, found.values, columns, code, shown, found.left_out, found.names is not None, said, notes)


def read_upload(name: str, content: bytes | str) -> DataTable:
    """The table in an uploaded file, with the errors of the command. The file is removed at once.

    Parameters
    ----------
    name : str
        The name of the file; folders in it are ignored.
    content : bytes or str
        What the browser sent: str if it took the file for text.
    """
    name, content = Path(name.replace("\\", "/")).name, content.encode() if isinstance(content, str) else content
    if printable(name) != name:
        raise FileError(f"{printable(name)}: the name of the file holds control characters: rename it")
    if len(content) > UPLOAD_MB * 10**6:
        raise FileError(f"{name}: larger than {UPLOAD_MB} MB: use `rtbm fit`, which reads files of any size")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            with warnings.catch_warnings(action="ignore"):  # reading the table gives them again
                size = table_size(path, UPLOAD_LIMITS)
            for title, number, most in zip(("bytes", "cells", "columns"), size, UPLOAD_LIMITS, strict=True):
                if number > most:
                    raise FileError(f"{name}: holds more than {most:,} {title}")
            return file_table(path, name)
        except FileError as error:
            raise FileError(str(error).replace(str(path), name)) from None


def open_source(source: Any, **text_format: Any) -> Opened:
    """What was given to the explorer: nothing, a path of data or of a model, data, or a fitted density."""
    if source is None:
        return Opened(next(iter(TABLES.values()))(), is_given=False)
    if isinstance(source, FittedDensity):
        return _open_model(source, "the model")
    if isinstance(source, str | Path):
        path = Path(source)
        if table_kind(path) is not None:
            return Opened(file_table(path, **text_format))
        model = load(path)
        if not isinstance(model, FittedDensity):
            raise FileError(
                f"{path}: holds a {type(model).__name__}: the explorer shows a fitted RTBMDensity or RTBMDensityCV, or "
                f"a table (a file that ends in one of {', '.join(TABLE_SUFFIXES)})"
            )
        return _open_model(model, str(path))
    names = [printable(name) for name in getattr(source, "columns", [])]
    rows = np.asarray(source, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    code = ["# X is the table that was given to rtbm.explore"]
    return Opened(DataTable("the table given", rows, names or numbered(rows), code, "data.csv", {}, bool(names)))


def _open_model(model: FittedDensity, name: str) -> Opened:
    """A model, without columns that were left out as constant, and draws from it in place of its data."""
    if any(model.categories_):
        raise FileError(
            f"{name}: has columns of categories, and the explorer shows numbers alone: open a marginal of it"
        )
    kept = model._kept
    model = model if len(kept) == model.n_features_in_ else model.marginal(kept)
    rows = np.asarray(model.sample(MODEL_DRAWS, random_state=0), dtype=np.float64)
    columns = [printable(column) for column in getattr(model, "feature_names_in_", numbered(rows))]
    code = ["from rtbm import load", f"X = load({name!r}).sample({MODEL_DRAWS}, random_state=0)"]
    is_named = hasattr(model, "feature_names_in_")
    return Opened(DataTable(f"draws from {name}", rows, columns, code, "draws.csv", {}, is_named), model)


def csv_bytes(rows: Floats, names: list[str] | None) -> bytes:
    """Rows as a CSV file with every digit."""
    with tempfile.TemporaryDirectory() as folder:
        from rtbm.output import write_rows

        path = Path(folder) / "rows.csv"
        write_rows(path, rows, names)
        return path.read_bytes()
