"""The tab of networks: a series, the fit and its continuation, and the activations as they are learned."""

from typing import Any

import numpy as np
import panel as pn

from rtbm import datasets
from rtbm.errors import RTBMError
from rtbm.explorer.controls import JobControls
from rtbm.explorer.fit import model_bytes
from rtbm.explorer.jobs import Job
from rtbm.explorer.network import (
    LAYERS,
    ObservedSeries,
    learned_activations,
    network_code,
    paper_series,
    predicted,
    start_training,
    table_series,
)
from rtbm.explorer.style import (
    BLUE,
    NEUTRAL,
    SERIES,
    WARM,
    code_block,
    download,
    empty_source,
    flow,
    locked,
    make_figure,
    message,
    plain,
    set_axes,
    show,
    side_by_side,
    style_legend,
    upload_box,
    with_margin,
)
from rtbm.explorer.tables import DataTable, read_upload
from rtbm.markup import html_table
from rtbm.output import summary_rows

NUMBERED = "(numbers of the rows)"


class NetworkTab:
    """A series, layers, a training that can be stopped, and what comes of it."""

    def __init__(self) -> None:
        wide: Any = {"sizing_mode": "stretch_width"}
        self.upload = upload_box(self._take_upload)
        self.time = pn.widgets.Select(name="Times", visible=False, **wide)
        self.value = pn.widgets.Select(name="Values", visible=False, **wide)
        self.layers = pn.widgets.Select(name="Hidden layers", options=LAYERS, value=(3, 3, 2), **wide)
        self.activation = pn.widgets.Select(name="Activation", options=["theta", "theta-II", "tanh"], **wide)
        self._controls = JobControls("Train", self._begin, self._follow)
        self.status = pn.pane.HTML("", **wide)
        self._activations, self._results = flow(), pn.Column(**wide)
        self._points, self._signal, self._fit = (empty_source("t", "y") for _ in range(3))
        self._picture = make_figure("the series, and its continuation", "t", height=320)
        self._picture.scatter("t", "y", source=self._points, size=3, color=BLUE, alpha=0.5, legend_label="data")
        self._picture.line("t", "y", source=self._signal, color=NEUTRAL, line_width=2, legend_label="signal")
        self._picture.line("t", "y", source=self._fit, color=WARM, line_width=2, legend_label="network")
        style_legend(self._picture)
        self._picture.legend[0].location = "top_left"
        self.table: DataTable | None = None
        for widget in (self.time, self.value):
            widget.param.watch(locked(lambda event: self._choose()), "value")
        about = pn.pane.HTML("<p>The paper's time series, or a file of one's own:</p>")
        controls = [about, self.upload, self.time, self.value, self.layers, self.activation]
        self.view = side_by_side(
            [*controls, self._controls.view, self.status],
            [show(self._picture), self._activations, self._results],
        )
        self.show_series(paper_series())

    def show_series(self, series: ObservedSeries) -> None:
        """Draw a series without a network."""
        self.close()
        self.series = series
        self._points.data = {"t": series.t, "y": series.y}
        signal: Any = datasets.time_series.signal(series.times) if series.has_signal else []
        self._signal.data = {"t": series.times if series.has_signal else [], "y": signal}
        self._fit.data = {"t": [], "y": []}
        self._picture.xaxis.axis_label, self._picture.yaxis.axis_label = map(plain, series.names)
        set_axes(self._picture, (series.times[0], series.times[-1]), with_margin([*series.y, *signal], 0.15))
        self._activations[:], self._results[:] = [], []

    def _take_upload(self, name: str, content: bytes | str) -> None:
        try:
            self.table = read_upload(name, content)
        except RTBMError as error:
            self.status.object = message(str(error))
            return
        columns = self.table.columns
        self.time.param.update(options=[NUMBERED, *columns], value=columns[0] if len(columns) > 1 else NUMBERED)
        self.value.param.update(options=columns, value=columns[-1])
        self.time.visible = self.value.visible = True
        self._choose()

    def _choose(self) -> None:
        if self.table is None or self.value.value not in self.table.columns:
            return
        time = None if self.time.value == NUMBERED else self.time.value
        try:
            self.show_series(table_series(self.table, time, self.value.value))
            self.status.object = ""
        except RTBMError as error:
            self.status.object = message(str(error))

    def _begin(self) -> None:
        self._results[:] = []
        self._controls.run(start_training(self.series, self.layers.value, self.activation.value))

    def _follow(self, job: Job, is_running: bool) -> None:
        """Draw the network in training, and the result when it has ended."""
        if is_running:
            if job.latest is not None:
                self._draw(job.latest.model())
                step = f"start {len(job.runs)}, step {job.latest.record.step}: loss {job.latest.record.objective:.5f}"
                self.status.object = f"<p>{step}</p>"
        elif job.model is None:
            self.status.object = message(job.error)
        else:
            stopped = message("Stopped: the network is the best so far.")
            self.status.object = stopped if job.was_stopped else "<p>Trained.</p>"
            self._show_model(job.model)

    def close(self) -> None:
        """End what runs."""
        self._controls.close()

    def _draw(self, module: Any) -> None:
        """Draw the output and the activations of a network."""
        times = self.series.times
        self._fit.data = {"t": times, "y": predicted(module, times)}
        curves = learned_activations(module, self.series)
        if len(self._activations) != len(curves):
            self._layers = [_Activations(number) for number in range(1, len(curves) + 1)]
            self._activations[:] = [show(layer.figure, 170) for layer in self._layers]
        for layer, learned in zip(self._layers if curves else [], curves, strict=True):
            layer.update(learned.u, learned.E)

    def _show_model(self, model: Any) -> None:
        self._draw(model.module_)
        code = code_block("The same in Python", network_code(self.layers.value, self.activation.value, self.series))
        summary = pn.pane.HTML("<h3>Summary</h3>" + html_table(summary_rows(model)), sizing_mode="stretch_width")
        self._results[:] = [summary, flow(download("network.rtbm", lambda: model_bytes(model))), code]


class _Activations:
    """The activation functions of one layer."""

    def __init__(self, number: int):
        self.figure = make_figure(f"E(h|v), layer {number}", "u", height=200)
        self._source = empty_source("xs", "ys", "colour")
        self.figure.multi_line("xs", "ys", source=self._source, color="colour", line_width=2)

    def update(self, u: np.ndarray, E: np.ndarray) -> None:
        """Draw the functions, arguments and values (points, units)."""
        step = slice(None, None, 4)
        colours = [SERIES[i % len(SERIES)] for i in range(u.shape[1])]
        self._source.data = {"xs": list(u[step].T), "ys": list(E[step].T), "colour": colours}
        set_axes(self.figure, with_margin(u), with_margin(E))
