"""The tab of fits: choose a table, fit it while the picture follows, and take the model along."""

import html
from typing import Any

import numpy as np
import panel as pn

from rtbm.errors import RTBMError
from rtbm.explorer.controls import JobControls
from rtbm.explorer.fit import (
    MAX_DRAWN,
    FitOptions,
    Panels,
    command_line,
    conditional_curves,
    finish,
    model_bytes,
    picture_bytes,
    python_code,
    select_columns,
    start_fit,
)
from rtbm.explorer.jobs import Job
from rtbm.explorer.style import (
    BLUE,
    NEUTRAL,
    WARM,
    Slider,
    Soon,
    code_block,
    download,
    empty_source,
    flow,
    locked,
    make_figure,
    message,
    set_axes,
    show,
    side_by_side,
    upload_box,
)
from rtbm.explorer.tables import TABLES, DataTable, Opened, csv_bytes, read_upload
from rtbm.markup import html_table
from rtbm.output import summary_rows
from rtbm.plotting import MarginalDensities

MANY_COLUMNS = 4
"""Columns that are chosen at first in a table with more."""
SAMPLE_ROWS = 1000
"""Rows in the download of samples."""


class FitTab:
    """Data, sizes, a fit that can be stopped, and what comes of it."""

    def __init__(self, opened: Opened) -> None:
        wide: Any = {"sizing_mode": "stretch_width"}
        self.source = pn.widgets.Select(name="Data", options=[opened.table.name, *TABLES], **wide)
        self.upload = upload_box(self._take_upload)
        self.columns = pn.widgets.MultiChoice(name="Columns", **wide)
        # a group, since a click on the text of a single Checkbox does not tick it
        self.committee = pn.widgets.CheckBoxGroup(options=["a committee, whose sizes cross-validation chooses"], **wide)
        self.n_hidden = pn.widgets.IntSlider(name="hidden units", start=1, end=6, value=2, **wide)
        self.n_components = pn.widgets.IntSlider(name="machines in the mixture", start=1, end=8, value=1, **wide)
        self._controls = JobControls("Start", self._begin, self._follow)
        self.status = pn.pane.HTML("", sizing_mode="stretch_width")
        self._pictures, self._results = pn.Column(**wide), pn.Column(visible=False, **wide)
        self._likelihood = empty_source("xs", "ys")
        self._steps = make_figure("log-likelihood with prior, by step of each start", "step", height=180)
        self._steps.multi_line("xs", "ys", source=self._likelihood, color=BLUE, line_width=1.5, alpha=0.7)
        self.table = opened.table
        self._drawn_columns: list[str] = []
        self.committee.param.watch(self._choose_committee, "value")
        self.source.param.watch(locked(self._choose_source), "value")
        self.columns.param.watch(locked(self._choose_columns), "value")
        controls = [self.source, self.upload, self.columns, self.committee, self.n_hidden, self.n_components]
        self._progress = show(self._steps)
        self.view = side_by_side(
            [*controls, self._controls.view, self.status], [self._pictures, self._progress, self._results]
        )
        self.show_table(opened.table, opened.table.columns if opened.model is not None else None)
        if opened.model is not None:
            self._show_model(opened.model, None)

    def show_table(self, table: DataTable, chosen: list[str] | None = None) -> None:
        """Draw a table, and offer its columns, of which the first few are chosen by default."""
        self.close()
        self.table, self.status.object = table, ""
        options = {html.escape(name): name for name in table.columns}  # the widget takes labels for HTML
        self.columns.param.update(options=options, value=list(chosen or table.columns[:MANY_COLUMNS]))
        self._show_columns()

    def _show_columns(self) -> None:
        """Draw the chosen columns without a density."""
        self.close()
        self._results.visible = self._progress.visible = False
        self._drawn_columns = list(self.columns.value)
        if self.columns.value:
            rows = select_columns(self.table, self.columns.value)
            names = self.columns.value if self.table.is_named else [f"column {name}" for name in self.columns.value]
            self.pictures = DensityPictures(Panels(rows), names)
            self._pictures[:] = [self.pictures.view]

    def _choose_columns(self, event: Any) -> None:
        if event.new != self._drawn_columns:  # else `show_table` has drawn them
            self._show_columns()

    def _choose_source(self, event: Any) -> None:
        if event.new in TABLES:
            self.show_table(TABLES[event.new]())

    def _choose_committee(self, event: Any) -> None:
        self.n_hidden.disabled = self.n_components.disabled = bool(event.new)

    def _take_upload(self, name: str, content: bytes | str) -> None:
        try:
            table = read_upload(name, content)
        except RTBMError as error:
            self.status.object = message(str(error))
            return
        self.show_table(table)
        left_out = f"; left out: {', '.join(table.left_out)}" if table.left_out else ""
        rows = [("file", table.name), ("rows", f"{len(table.rows):,}{left_out}")]
        self.status.object = html_table([*rows, *(("note", note) for note in table.notes)])

    def _begin(self) -> None:
        options = FitOptions(
            tuple(self.columns.value), bool(self.committee.value), self.n_hidden.value, self.n_components.value
        )
        try:
            job = start_fit(self.table, options)
        except RTBMError as error:
            self.status.object = message(str(error))
            return
        self._results.visible, self._progress.visible, self._options = False, True, options
        self._controls.run(job)

    def _follow(self, job: Job, is_running: bool) -> None:
        """Draw the running fit, and its result when it has ended."""
        self._draw_progress(job)
        if is_running:
            return
        if job.model is None:
            self.status.object = message(job.error)
            return
        self._show_model(finish(job.model, self.table, self._options), self._options)
        note = ""
        if job.was_stopped:
            note = "Stopped: the model is the fit so far."
            if self._options.is_committee and not hasattr(job.model, "candidate_weights_"):
                note = "Stopped: the model is the best member of the committee so far."
        self.status.object = message(note) if note else "<p>The fit has ended.</p>"

    def _draw_progress(self, job: Job) -> None:
        runs = [list(run) for run in job.runs]
        values = -np.concatenate([*runs, []])
        finite = values[np.isfinite(values)]
        if len(finite):
            self._likelihood.data = {"xs": [np.arange(len(run)) for run in runs], "ys": [-np.array(r) for r in runs]}
            low, high = float(np.quantile(finite, 0.2)), float(finite.max())
            margin = 0.15 * (high - low) or 0.1
            set_axes(self._steps, (0, max(len(run) for run in runs)), (low - margin, high + margin))
        latest = job.latest
        if latest is not None and job.is_running:
            self.pictures.update(MarginalDensities(latest.model()))
            self.status.object = f"<p>start {len(runs)}, step {latest.record.step}: {-latest.record.objective:.4f}</p>"

    def close(self) -> None:
        """End what runs."""
        self._controls.close()

    def _show_model(self, model: Any, options: FitOptions | None) -> None:
        """Draw a fitted model, with its summary, conditionals, downloads and code."""
        self.model, density = model, MarginalDensities(model.distribution_)
        self.pictures.update(density)
        parts: list[Any] = [pn.pane.HTML("<h3>Summary</h3>" + html_table(summary_rows(model)))]
        parts[0].sizing_mode = "stretch_width"
        if len(self.pictures.panels.singles) > 1:
            parts.append(ConditionalPictures(density, self.pictures).view)
        rows = select_columns(self.table, self.columns.value)
        names = [str(name) for name in getattr(model, "feature_names_in_", [])] or None
        files = {
            "model.rtbm": lambda: model_bytes(model),
            "model.png": lambda: picture_bytes(model, rows),
            "samples.csv": lambda: csv_bytes(np.asarray(model.sample(SAMPLE_ROWS, random_state=0)), names),
            "data.csv": lambda: csv_bytes(self.table.rows, self.table.columns if self.table.is_named else None),
        }
        files[self.table.file if self.table.file.endswith(".csv") else "data.csv"] = files.pop("data.csv")
        parts.append(flow(*(download(name, make) for name, make in files.items())))
        if options is not None:
            codes = python_code(self.table, options), command_line(self.table, options)
            parts.append(code_block("The same in Python, and as a command", *codes))
        self._results[:] = parts
        self._results.visible = True


class DensityPictures:
    """Histograms and points of a table, with the curves and contours of a density over them."""

    def __init__(self, panels: Panels, names: list[str]):
        self.panels, self.names = panels, list(names)
        self._curves = [empty_source("v", "p") for _ in panels.singles]
        self._lines = [empty_source("xs", "ys") for _ in panels.pairs]
        d = len(panels.singles)
        height = 300 if d == 1 else 220
        figures = [self._line_figure(i, height) for i in panels.singles]
        figures += [self._plane_figure(number, 380 if d == 2 else 230) for number in range(len(panels.pairs))]
        width = None if d == 1 else 300 if d == 2 else 170
        more = len(names) - d
        note = [pn.pane.HTML(f"<p>The first {MAX_DRAWN} columns are drawn, and {more} more are fitted.</p>")]
        self.view = pn.Column(
            flow(*(show(made, width) for made in figures)), *(note if more > 0 else []), sizing_mode="stretch_width"
        )

    def update(self, density: MarginalDensities) -> None:
        """Draw a density."""
        for i, source in enumerate(self._curves):
            source.data = dict(zip("vp", self.panels.curve(density, i), strict=True))
            heights, _ = self.panels.histogram(i)
            top = max(float(heights.max()), float(np.max(source.data["p"])))
            set_axes(self._figures[i], y=(0, 1.1 * top))
        for pair, source in zip(self.panels.pairs, self._lines, strict=True):
            lines = self.panels.contours(density, pair)
            source.data = {"xs": [line[:, 0] for line in lines], "ys": [line[:, 1] for line in lines]}

    _figures: list[Any]

    def _line_figure(self, i: int, height: int) -> Any:
        heights, edges = self.panels.histogram(i)
        made = make_figure(self.names[i], height=height)
        made.quad(edges[:-1], edges[1:], heights, 0, color=NEUTRAL, alpha=0.35)
        made.line("v", "p", source=self._curves[i], color=WARM, line_width=2.5)
        set_axes(made, self.panels.limits[i], (0, 1.1 * float(heights.max())))
        self._figures = [*(self._figures if i else []), made]
        return made

    def _plane_figure(self, number: int, height: int) -> Any:
        j, i = self.panels.pairs[number]
        made = make_figure("", self.names[j], self.names[i], height)
        points = self.panels.points()
        made.scatter(points[:, j], points[:, i], size=3, color=BLUE, alpha=0.35, line_color=None)
        made.multi_line("xs", "ys", source=self._lines[number], color=WARM, line_width=1.8)
        set_axes(made, self.panels.limits[j], self.panels.limits[i])
        return made


class ConditionalPictures:
    """A slider for the value of one column, and the densities of the others given it."""

    def __init__(self, density: MarginalDensities, pictures: DensityPictures):
        self._density, self._panels = density, pictures.panels
        drawn = {pictures.names[i]: i for i in self._panels.singles}
        self.given = pn.widgets.Select(name="Given the value of", options=drawn, sizing_mode="stretch_width")
        self.value = Slider(name="value", start=0, end=1)
        self._figures = [self._figure(name, i) for name, i in drawn.items()]
        self._places = [show(made, 240) for made, _ in self._figures]
        self._choose()
        self.given.param.watch(locked(lambda event: self._choose()), "value")
        self.value.param.watch(Soon(self._draw), "value")
        about = "The density of each column given the value (red), and of all rows (grey)."
        title = pn.pane.HTML(f"<h3>Conditionals</h3><p>{about}</p>")
        controls = flow(self.given, self.value)
        self.view = pn.Column(title, controls, flow(*self._places), sizing_mode="stretch_width")

    def _figure(self, name: str, i: int) -> tuple[Any, Any]:
        made, source = make_figure(name, height=200), empty_source("v", "p")
        made.line(*self._panels.curve(self._density, i), color=NEUTRAL, line_width=1.5)
        made.line("v", "p", source=source, color=WARM, line_width=2.5)
        set_axes(made, self._panels.limits[i])
        return made, source

    def _choose(self) -> None:
        """Show the columns other than the given one, and the range of its values."""
        low, high = self._panels.limits[self.given.value]
        for i, place in enumerate(self._places):
            place.visible = i != self.given.value
        self.value.param.update(start=low, end=high, step=(high - low) / 200, value=(low + high) / 2)
        self._draw()

    def _draw(self) -> None:
        curves = conditional_curves(self._density, self._panels, self.given.value, self.value.value)
        for i, (v, p) in curves.items():
            made, source = self._figures[i]
            source.data = {"v": v, "p": p}
            _, everywhere = self._panels.curve(self._density, i)
            set_axes(made, y=(0, 1.1 * max(float(p.max()), float(everywhere.max()))))
