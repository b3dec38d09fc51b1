"""What the command shows and writes."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.table import Table
from rich.text import Text

from rtbm.distributions import RTBMMixture
from rtbm.files import Floats, describe
from rtbm.paths import write_whole


def summary_table(model: Any, title: str) -> Table:
    """What a fitted model is, and how it came about."""
    table = Table(title=Text(title), show_header=False, title_justify="left")
    for name, value in _summary_rows(model) if hasattr(model, "distribution_") else _network_rows(model):
        table.add_row(name, Text(value))  # names of columns may look like markup
    return table


def _features(model: Any) -> str:
    names = [str(name) for name in getattr(model, "feature_names_in_", [])]
    return f"{model.n_features_in_}" + (f" ({', '.join(names)})" if names else "")


def _solver_rows(summary: dict[str, Any]) -> list[tuple[str, str]]:
    solver = f"{summary['solver']}, {summary['n_init']} starts, {summary['n_iter']} iterations, {summary['reason']}"
    return [("solver", solver), ("seconds", f"{summary['seconds']:.2f}")]


def _network_rows(model: Any) -> list[tuple[str, str]]:
    """Of a trained network."""
    summary = model.summary_
    layers = zip(model.layer_sizes_, model.layer_activations_, strict=True)
    rows = [
        ("kind", type(model).__name__),
        ("features", _features(model)),
        ("layers", ", ".join(f"{size} {name}" for size, name in layers)),
        ("free parameters", f"{model.n_parameters_}"),
        ("observations", f"{summary['n_observations']:g}"),
        ("loss", f"{summary['loss']:.6g}"),
        *_solver_rows(summary),
    ]
    if hasattr(model, "classes_"):
        rows.insert(3, ("classes", ", ".join(str(label) for label in model.classes_)))
    return rows


def _summary_rows(model: Any) -> list[tuple[str, str]]:
    summary, distribution = model.summary_, model.distribution_
    parts = distribution.components if isinstance(distribution, RTBMMixture) else [distribution]
    rows = [
        ("features", _features(model)),
        (
            "machines",
            f"{len(parts)}, with {_sizes(parts)} hidden units each ({parts[0].hidden}, phase {parts[0].phase})",
        ),
        ("free parameters", f"{model.n_parameters_}"),
        ("observations", f"{summary['n_observations']:g}"),
    ]
    if summary.get("left_out"):
        rows.insert(1, ("left out", describe(summary["left_out"])))
    if "log_likelihood" in summary:
        rows.append(("log-likelihood of an observation", f"{summary['log_likelihood']:.6f}"))
    if hasattr(model, "weights_"):
        shares = (model.weights_ > 0).sum()
        rows.append(("committee", f"{shares} of {len(model.weights_)} candidates, from {model.n_folds} folds"))
    else:
        rows += _solver_rows(summary)
    if model.is_gaussian_:
        rows.append(("note", "no better than Gaussians, which were taken instead"))
    if model._bounds.is_trivial and model.n_features_in_ <= 10:
        rows += [("mean", _numbers(distribution.mean)), ("standard deviation", _numbers(distribution.stddev))]
    elif not model._bounds.is_trivial:
        pairs = zip(model._bounds.low, model._bounds.high, strict=True)
        rows.append(("bounds", ", ".join(f"({low:g}, {high:g})" for low, high in pairs)))
    return rows


def _sizes(parts: Sequence[Any]) -> str:
    smallest, largest = (choose(part.n_hidden for part in parts) for choose in (min, max))
    return f"{smallest}" if smallest == largest else f"{smallest} to {largest}"


def _numbers(values: Any) -> str:
    return ", ".join(f"{float(value):.6g}" for value in values)


def write_rows(path: Path, rows: Floats, names: list[str] | None) -> None:
    """Write rows to a .csv or .npy file."""
    if path.suffix.lower() == ".npy":
        content = io.BytesIO()
        np.save(content, rows)
        write_whole(path, content.getvalue())
    else:
        text = io.StringIO()
        write_csv(text, rows, names)
        write_whole(path, text.getvalue().encode())


def write_csv(stream: TextIO, rows: Floats, names: list[str] | None) -> None:
    """Write rows as CSV, with every digit."""
    writer = csv.writer(stream, lineterminator="\n")
    if names:
        writer.writerow(names)
    writer.writerows([repr(float(x)) for x in row] for row in rows)
