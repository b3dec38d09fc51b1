"""Summaries of fitted models that the command and the explorer show, and rows that they write."""

import csv
import io
import sys
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from rtbm.data_files import reasons
from rtbm.distributions import ColumnMap, Interval, MappedDistribution, StraightTails, YeoJohnson
from rtbm.distributions.mixed import components
from rtbm.errors import FileError
from rtbm.paths import printable, write_whole
from rtbm.training import SOLVERS
from rtbm.validation import listed


def summary_table(model: Any, title: str) -> Table:
    """A table that describes a fitted model and its fit."""
    table = Table(title=Text(printable(title)), show_header=False, title_justify="left")
    for name, value in summary_rows(model):
        table.add_row(name, Text(value))  # names of columns may look like markup
    return table


def summary_rows(model: Any) -> list[tuple[str, str]]:
    """Names and values that describe a fitted model and its fit, without control characters."""
    rows = _density_rows(model) if hasattr(model, "distribution_") else _network_rows(model)
    return [(name, printable(value)) for name, value in rows]


def _features(model: Any) -> str:
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    return f"{model.n_features_in_}" + (f" ({listed(names)})" if names else "")


STOP_REASONS = {"max_iter": "stopped by the limit on iterations", "schedule completed": "all that were asked for"}
"""Why solvers stopped, in plain words where their own are short."""
LIKELIHOODS = {"held_out_log_likelihood": "held-out rows", "log_likelihood": "training rows"}
"""Mean log-likelihoods of rows in `summary_`, where it has them, and of which rows they are."""


SUMMARY_DRAWS = 1000
"""Draws among which a summary looks for negative ones."""


def counted(number: float, noun: str) -> str:
    """A number and a noun, as in 1 row and 2,000 rows."""
    return f"{number:,.12g} {noun}" + "s" * (number != 1)


def _solver_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    reason = STOP_REASONS.get(summary["reason"], summary["reason"])
    how = f"{summary['solver']}, best of {counted(summary['n_init'], 'start')}"
    return [
        ("solver", f"{how}: {counted(summary['n_iter'], SOLVERS[summary['solver']].unit)}, {reason}"),
        ("seconds, all starts", f"{summary['seconds']:.2f}"),
    ]


def _network_rows(model: Any) -> list[tuple[str, str]]:
    """The summary of a trained network."""
    layers = zip(model.layer_sizes_, model.layer_activations_, strict=True)
    rows = [
        ("kind", type(model).__name__),
        ("features", _features(model)),
        ("layers", ", ".join(f"{size} {name}" for size, name in layers)),
    ]
    if hasattr(model, "classes_"):
        rows.append(("classes", ", ".join(str(label) for label in model.classes_)))
    return [*rows, *_size_rows(model), ("loss", f"{model.summary_['loss']:.6g}"), *_solver_rows(model.summary_)]


def _size_rows(model: Any) -> list[tuple[str, str]]:
    observations = f"{model.summary_['n_observations']:,.12g}"
    return [("free parameters", f"{model.n_parameters_}"), ("observations", observations)]


def _density_rows(model: Any) -> list[tuple[str, str]]:
    """The summary of a fitted density."""
    summary, distribution = model.summary_, model.distribution_
    rows = [("features", _features(model))]
    left_out = summary.get("left_out", {}) | _left_out(model)
    if left_out:
        rows.append(("left out", reasons(left_out)))
    kinds = _kinds(model)
    if kinds:
        rows.append(("columns", listed(kinds)))
    below = _below_zero(model)
    if below:
        rows.append(("draws below 0", f"{listed(below)}: bounds from 0 on keep them out"))
    rows += [("model", describe(model)), *_size_rows(model)]
    likelihoods = [f"{summary[name]:.6f} ({where})" for name, where in LIKELIHOODS.items() if name in summary]
    if likelihoods:
        rows.append(("mean log-likelihood", ", ".join(likelihoods)))
    if hasattr(model, "candidate_weights_"):
        shares = int((model.candidate_weights_ > 0).sum())
        candidates = counted(len(model.candidate_weights_), "candidate")
        rows.append(("committee", f"{shares} of {candidates}, by {model.cv}-fold cross-validation"))
        rows.append(("combined as", _combination(model)))
    else:
        rows += _solver_rows(summary)
    if isinstance(distribution, MappedDistribution):
        known = list(map(_map, distribution.maps))
        same = len(set(known)) == 1 and len(known) > 1
        rows.append(("maps", f"{known[0]}, every feature" if same else listed(known)))
    elif model.n_features_in_ <= 10 and not any(model.categories_):
        rows += [("mean", _numbers(distribution.mean)), ("standard deviation", _numbers(distribution.stddev))]
    return rows


def _below_zero(model: Any) -> list[str]:
    """The columns of data that are not negative, of which some draws are, and the share of these."""
    if model._ranges is None:
        return []
    draws, found = model._draw(SUMMARY_DRAWS, 0), []
    for place, i in enumerate(model._kept.tolist()):
        share = float((draws[:, place] < 0).mean())
        if model._ranges[0, i] >= 0 and share > 0:
            found.append(f"{_names(model)[i]} ({share:.1%})")
    return found


def _combination(model: Any) -> str:
    """How the candidates of a committee were combined, and why."""
    loss = model.summary_["behind_average"]
    behind = f"{abs(loss):.2g} nats a row {'behind' if loss >= 0 else 'ahead of'} the average"
    if model.combined_ == "single":
        return f"one candidate, fitted to all rows: {behind}"
    return f"an average: the best single candidate is {behind}"


def _left_out(model: Any) -> dict[str, str]:
    """The features that the density leaves out: identifiers, and constants with their values."""
    found = {}
    for name, value, levels in zip(_names(model), model.constants_, model.categories_, strict=True):
        if levels == []:
            found[name] = "identifiers"
        elif not np.isnan(value):
            found[name] = f"always {value:g}" if levels is None else f"always {level_text(levels[int(value)])}"
    return found


def _names(model: Any) -> list[str]:
    return [str(name) for name in getattr(model, "feature_names_in_", range(model.n_features_in_))]


def _kinds(model: Any) -> list[str]:
    """What columns were taken for that are not plain numbers, in words."""
    columns, found = model.columns_, []
    for name, levels, atoms, cells, constant in zip(
        _names(model), columns.levels, columns.atoms, columns.cells, model.constants_, strict=True
    ):
        words = ["days since 1970"] if name in model.summary_.get("dates", []) else []
        if levels:
            words.append(f"{len(levels):,} categories")
        if atoms:
            words.append(f"atom{'s' * (len(atoms) > 1)} at " + " and ".join(f"{atom:g}" for atom in atoms))
        if cells is not None:
            words.append(f"rounded to {cells.width:g}")
        if words and np.isnan(constant):
            found.append(f"{name}: {' and '.join(words)}")
    return found


def level_text(level: Any) -> str:
    """A level as a text, without control characters."""
    return f"{level:.15g}" if isinstance(level, float) else printable(level)


def describe(model: Any) -> str:
    """The parts of a fitted density: machines, or the Gaussians that replaced them."""
    parts = components(model.distribution_)
    if not parts:
        return f"mixture of {counted(len(model.distribution_.weights), 'table')} of categories"
    machines, sizes, n_gaussians = iter(parts), [], 0
    for number, replaced_by in model.summary_["members"]:
        mine = [part.n_hidden for part in islice(machines, number)]
        sizes += [] if replaced_by else mine
        n_gaussians += replaced_by
    names = [counted(n_gaussians, "Gaussian")] if n_gaussians else []
    names = [_machines(sizes), *names] if sizes else names
    text = "mixture of " * (len(sizes) + n_gaussians > 1) + " and ".join(names)
    if sizes:
        return f"{text} (phase {parts[0].phase})"
    tried, were = _machines([part.n_hidden for part in parts]), "were" if len(parts) > 1 else "was"
    return f"{text}: {tried} {were} no better"


def _machines(sizes: Sequence[int]) -> str:
    """The number of machines and of their hidden units, in words."""
    low, high = min(sizes), max(sizes)
    units = counted(high, "hidden unit") if low == high else f"{low} to {counted(high, 'hidden unit')}"
    return f"{counted(len(sizes), 'machine')} with {units}" + (" each" if len(sizes) > 1 else "")


def _map(own: ColumnMap) -> str:
    """The map of a feature to the real line, in words."""
    own = own.inner if isinstance(own, StraightTails) else own
    if isinstance(own, YeoJohnson):
        return f"Yeo-Johnson with exponent {own.exponent:.2f}"
    if not isinstance(own, Interval):
        return "none" if type(own) is ColumnMap else "learned margin"
    if np.isinf(own.high):
        return f"above {own.low:g}"
    return f"below {own.high:g}" if np.isinf(own.low) else f"{own.low:g} to {own.high:g}"


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.6g}" for value in values)


def write_rows(path: Path | None, rows: Any, names: list[str] | None) -> None:
    """Write rows to a .npy or .parquet file, or as CSV with every digit to a file or, without a path, to the screen.

    Rows are an array of numbers, or a data frame or an array of objects, which may be text. Columns without names are
    called 0, 1, … in Parquet. A gap in text is an empty cell.
    """
    rows = np.asarray(rows)
    content, kind = io.BytesIO(), path and path.suffix.lower()
    if kind == ".npy":
        if rows.dtype == object and not all(isinstance(cell, float | int | None) for cell in rows.flat):
            raise FileError(f"{path}: a .npy file holds numbers alone, and the table has text: use .csv or .parquet")
        np.save(content, rows.astype(np.float64))
    elif kind == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns = [pa.array(column.tolist() if rows.dtype == object else column) for column in rows.T]
        pq.write_table(pa.table(columns, names or [str(i) for i in range(rows.shape[1])]), content)
    else:
        text: Any = sys.stdout if path is None else io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([names] if names else [])
        show: Any = printable if path is None else str
        writer.writerows(
            [repr(float(x)) if isinstance(x, float) else "" if x is None else show(x) for x in row] for row in rows
        )
        content.write(b"" if path is None else text.getvalue().encode())
    if path is not None:
        write_whole(path, content.getvalue())
