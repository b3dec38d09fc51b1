"""What the tab of fits computes: the fit itself, its pictures, and the code that would do the same."""

import io
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from contourpy import contour_generator

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators import RTBMDensity, RTBMDensityCV
from rtbm.explorer.jobs import Job
from rtbm.explorer.tables import DataTable
from rtbm.persistence import save
from rtbm.plotting import MAX_PANELS, MarginalDensities, plot_model

MASSES = (0.5, 0.9, 0.99)
"""The shares of the probability that contours enclose."""
CURVE_POINTS, CONTOUR_POINTS = 240, 56
"""Points of a curve, and of each side of the grid of contours. More are smoother, and slower."""
DRAWN_POINTS = 1500
"""Most rows that are drawn as points. More make the page slow."""
OUTLIERS = 0.002
"""The share of the rows, on either side of a column, that does not extend its axis."""
MAX_DRAWN = 4
"""Most columns that are drawn; more would be too many panels."""


class FitOptions(NamedTuple):
    """What is fitted: a committee, or machines of the size given."""

    columns: tuple[str, ...]
    is_committee: bool = False
    n_hidden: int = 2
    n_components: int = 1
    seed: int = 0

    def estimator(self) -> RTBMDensity | RTBMDensityCV:
        """The estimator, not fitted yet."""
        if self.is_committee:
            return RTBMDensityCV(atoms=None, random_state=self.seed)
        return RTBMDensity(self.n_hidden, n_components=self.n_components, atoms=None, random_state=self.seed)


def select_columns(table: DataTable, columns: Sequence[str]) -> Floats:
    """The rows of some columns."""
    if not columns:
        raise InvalidInputError("choose one column or more")
    return table.rows[:, [table.columns.index(name) for name in columns]]


def start_fit(table: DataTable, options: FitOptions) -> Job:
    """Fit in a thread. The model gets the names of the columns and the summary that the command shows."""
    rows = select_columns(table, options.columns)

    def fit() -> Any:
        return options.estimator().fit(rows)

    def score(member: Any) -> float:
        return member.score(rows)

    return Job(fit, score)


def finish(model: Any, table: DataTable, options: FitOptions) -> Any:
    """Complete a fitted model as the command does: likelihood of all rows, names, and columns left out."""
    model.summary_["log_likelihood"] = model.score(select_columns(table, options.columns))
    model.summary_["left_out"] = dict(table.left_out)
    return model.set_feature_names(list(options.columns) if table.is_named else None)


class Panels:
    """The pictures of a table and a density: a curve for each column, contours for each pair, up to MAX_DRAWN columns.

    Attributes
    ----------
    limits : list of pairs
        The ends of the axes of the columns, from the data.
    """

    def __init__(self, rows: Floats):
        self.rows = rows[:, :MAX_DRAWN]
        self.limits = [_limits(column[~np.isnan(column)]) for column in self.rows.T]
        self.singles = list(range(self.rows.shape[1]))
        self.pairs = [(j, i) for i in self.singles for j in range(i)]

    def points(self) -> Floats:
        """At most DRAWN_POINTS rows."""
        step = max(1, len(self.rows) // DRAWN_POINTS)
        return self.rows[::step][:DRAWN_POINTS]

    def histogram(self, i: int, bins: int = 40) -> tuple[Floats, Floats]:
        """Heights and edges of the bars of a column."""
        column = self.rows[~np.isnan(self.rows[:, i]), i]
        counts, edges = np.histogram(column, bins, self.limits[i])
        return counts / (max(1, len(column)) * np.diff(edges)), edges

    def curve(self, density: MarginalDensities, i: int) -> tuple[Floats, Floats]:
        """Points of a column, and the density there."""
        v = np.linspace(*self.limits[i], CURVE_POINTS)
        return v, density([i], v[:, None])

    def contours(self, density: MarginalDensities, pair: tuple[int, int]) -> list[Floats]:
        """Lines (n, 2) that enclose MASSES of the probability inside the axes."""
        x, y = (np.linspace(*self.limits[i], CONTOUR_POINTS) for i in pair)
        mesh = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
        p = density(list(pair), mesh)
        lines = contour_generator(x, y, p.reshape(len(y), len(x)))
        return [np.asarray(line) for level in mass_levels(p) for line in lines.lines(level)]


def mass_levels(p: Floats, masses: Sequence[float] = MASSES) -> list[float]:
    """The levels above which shares of the sum of p lie.

    Examples
    --------
    >>> mass_levels(np.array([1.0, 4.0, 2.0, 3.0]), [0.5])
    [3.0]
    """
    falling = -np.sort(-p)
    inside = np.cumsum(falling) / falling.sum()
    return sorted({float(falling[min(int(np.searchsorted(inside, mass)), len(p) - 1)]) for mass in masses})


def _limits(column: Floats) -> tuple[float, float]:
    column = column if len(column) else np.zeros(1)  # all cells are missing
    low, high = (float(end) for end in np.quantile(column, [OUTLIERS, 1 - OUTLIERS]))
    margin = 0.1 * (high - low) or 0.5
    return low - margin, high + margin


def conditional_curves(
    density: MarginalDensities, panels: Panels, given: int, value: float
) -> dict[int, tuple[Floats, Floats]]:
    """Points of the other drawn columns, and their densities P(v, value)/P(value) given the value of one column."""
    scale = float(density([given], np.array([[value]]))[0])
    curves: dict[int, tuple[Floats, Floats]] = {}
    for i in panels.singles:
        if i != given:
            v = np.linspace(*panels.limits[i], CURVE_POINTS)
            joint = density([i, given], np.column_stack([v, np.full_like(v, value)]))
            curves[i] = v, joint / scale if scale > 0 else np.zeros_like(v)
    return curves


def python_code(table: DataTable, options: FitOptions) -> str:
    """Python that does the same."""
    name = "RTBMDensityCV" if options.is_committee else "RTBMDensity"
    sizes = "" if options.is_committee else f"n_hidden={options.n_hidden}, n_components={options.n_components}, "
    lines = [*table.code, f"from rtbm import {name}, save"]
    if list(options.columns) != table.columns:
        places = [table.columns.index(column) for column in options.columns]
        is_frame = "as_frame" in table.code[-1]
        lines.append(f"X = X[{list(options.columns)!r}]" if is_frame else f"X = X[:, {places}]")
    lines += [f"model = {name}({sizes}random_state={options.seed}).fit(X)", 'save(model, "model.rtbm")']
    return "\n".join(sorted(lines, key=lambda line: not line.startswith("from ")))


def command_line(table: DataTable, options: FitOptions) -> str:
    """The command that does the same; the data can be downloaded where there is no file."""
    file = f"./{table.file}" if table.file.startswith("-") else table.file
    words = ["rtbm fit", shlex.quote(file)]
    if not table.is_named:
        words.append("--no-header")
    elif table.text_format.get("header"):
        words.append("--header")
    words += [f"--{name}={shlex.quote(value)}" for name, value in table.text_format.items() if name != "header"]
    if list(options.columns) != table.columns:
        words += [f"--columns={shlex.quote(name)}" for name in options.columns]
    words.append("--cv" if options.is_committee else f"--n-hidden {options.n_hidden}")
    if not options.is_committee:
        words.append(f"--n-components {options.n_components}")
    return " ".join([*words, f"--seed {options.seed}", "--output model.rtbm"])


def model_bytes(model: Any) -> bytes:
    """A model as the file that `rtbm.load` reads."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.rtbm"
        save(model, path)
        return path.read_bytes()


def picture_bytes(model: Any, rows: Floats) -> bytes:
    """The picture of a model that `rtbm plot` draws, as PNG, of at most MAX_PANELS columns."""
    import matplotlib.pyplot as plt

    if rows.shape[1] > MAX_PANELS:
        model, rows = model.marginal(range(MAX_PANELS)), rows[:, :MAX_PANELS]
    figure, content = plot_model(model, rows), io.BytesIO()
    figure.savefig(content, dpi=130)
    plt.close(figure)
    return content.getvalue()
