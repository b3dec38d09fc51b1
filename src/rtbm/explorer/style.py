"""The look of the explorer: colours, style sheets, figures and panels that all tabs share."""

import html
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColumnDataSource, PlainText
from bokeh.plotting import figure

from rtbm.explorer.tables import UPLOAD_MB

BLUE, WARM, GREEN, NEUTRAL = "#4a9cc9", "#e07a5f", "#6a9f58", "#7f8b96"
"""The colours of pictures. They can be told from a light and from a dark background, so figures need no second set."""
SERIES = (BLUE, WARM, GREEN, "#b07aa1", "#c9a227", "#56b4a9", "#9c755f", "#8f8fd6")
PAGE_CSS = """
:root {
  --design-background-color: #ffffff; --design-background-text-color: #1d2733;
  --design-surface-color: #f1f4f6; --design-surface-text-color: #1d2733;
  --design-primary-color: #1b6a96; --design-primary-text-color: #ffffff;
  --line-color: #d5dbe0; color-scheme: light;
}
:root[data-theme="dark"] {
  --design-background-color: #151a20; --design-background-text-color: #dde4ea;
  --design-surface-color: #212932; --design-surface-text-color: #dde4ea;
  --design-primary-color: #4a9cc9; --design-primary-text-color: #0d1217;
  --line-color: #36414d; color-scheme: dark;
}
body {
  margin: 0 auto; max-width: 1400px; font-family: system-ui, sans-serif;
  background: var(--design-background-color); color: var(--design-background-text-color);
}
"""
"""Variables that the style sheets of Panel's widgets look up, for a light and a dark page."""
WIDGET_CSS = """
.bk-tab.bk-active { background: transparent; color: inherit; border-color: transparent;
  border-bottom: 3px solid var(--design-primary-color); font-weight: 600; }
.bk-tab { color: inherit; border: none; padding: 0.5em 0.9em; }
.bk-header { border-color: var(--line-color, #d5dbe0) !important; flex-wrap: wrap; }
.noUi-target { background: var(--line-color, #d5dbe0); border: none; box-shadow: none; }
.noUi-connect { background: var(--design-primary-color, #1b6a96) !important; }
.noUi-handle { border: none; border-radius: 50%; width: 16px !important; height: 16px !important; top: -4px !important;
  background: var(--design-primary-color, #1b6a96); box-shadow: none; }
.noUi-handle::before, .noUi-handle::after { display: none; }
.bk-input { border-color: var(--line-color, #d5dbe0); }
select.bk-input { appearance: auto !important; background-image: none !important; }
.choices__inner, .choices__list--dropdown { background: var(--design-background-color) !important;
  color: inherit; border-color: var(--line-color, #d5dbe0) !important; }
.choices__list--multiple .choices__item { background: var(--design-primary-color) !important;
  border-color: var(--design-primary-color) !important; color: var(--design-primary-text-color) !important; }
.filepond--root, .filepond--drop-label, .filepond--panel-root, .filepond--panel * {
  background: var(--design-surface-color) !important; }
.filepond--file, .filepond--drop-label, .filepond--drop-label label {
  color: var(--design-surface-text-color) !important; }
.bk-btn.bk-active { background: var(--design-primary-color) !important; box-shadow: none !important;
  color: var(--design-primary-text-color) !important; }
pre { overflow-x: auto; max-width: 100%; font-size: 12px; margin: 6px 0; padding: 6px 8px;
  box-sizing: border-box; background: var(--design-surface-color); }
table { border-collapse: collapse; font-size: 13px; width: 100%; }
td { padding: 3px 8px 3px 0; border-top: 1px solid var(--line-color, #d5dbe0); vertical-align: top;
  overflow-wrap: anywhere; }
td:first-child { opacity: 0.7; white-space: nowrap; }
.message { padding: 6px 10px; border-left: 3px solid #e07a5f; background: var(--design-surface-color); font-size: 13px;
  overflow-wrap: anywhere; }
h1 { font-size: 22px; margin: 0; } h3 { font-size: 14px; margin: 12px 0 2px; } p { font-size: 13px; margin: 4px 0; }
"""
"""Styles inside Panel's widgets, which page style sheets do not reach."""
SLIDER_MS = 2
"""Moves of a slider within this time are one. Panel's own 50 are felt; a shorter time draws each step of a drag."""
RESTING_MS = 150
"""What takes long is computed when the sliders have rested for this time."""


def plain(text: str) -> Any:
    """A text of a figure that is drawn as it is; Bokeh would take dollars for mathematics."""
    return PlainText(text=text)


def make_figure(title: str, x_label: str = "", y_label: str = "", height: int = 240, **options: Any) -> Any:
    """An empty figure as wide as its place, without tools, whose texts can be read on light and dark pages."""
    options = {"x_range": (0, 1), "y_range": (0, 1), "min_width": 100, "min_border_right": 14} | options
    options |= {"sizing_mode": "stretch_width", "tools": "", "toolbar_location": None}
    made: Any = figure(height=height, x_axis_label=plain(x_label), y_axis_label=plain(y_label), **options)
    made.background_fill_color = made.border_fill_color = made.outline_line_color = None
    made.title.update(text=plain(title), text_color=NEUTRAL, text_font_size="13px")
    for axis in made.axis:
        axis.ticker.desired_num_ticks = 5
        axis.update(axis_line_color=NEUTRAL, major_tick_line_color=NEUTRAL, minor_tick_line_color=None)
        axis.update(major_label_text_color=NEUTRAL, axis_label_text_color=NEUTRAL, axis_label_text_font_style="normal")
    for grid in made.grid:
        grid.update(grid_line_color=NEUTRAL, grid_line_alpha=0.18)
    return made


def set_axes(made: Any, x: tuple[float, float] | None = None, y: tuple[float, float] | None = None) -> None:
    """Set the ends of the axes of a figure, if they change."""
    for axis_range, ends in ((made.x_range, x), (made.y_range, y)):
        if ends is not None and (axis_range.start, axis_range.end) != ends:
            axis_range.update(start=float(ends[0]), end=float(ends[1]))


def with_margin(values: Any, share: float = 0.06) -> tuple[float, float]:
    """The ends of an axis that shows all values."""
    low, high = float(np.min(values)), float(np.max(values))
    margin = share * (high - low) or 0.5
    return low - margin, high + margin


def empty_source(*names: str) -> ColumnDataSource:
    """A data source with empty columns."""
    return ColumnDataSource({name: [] for name in names})


def style_legend(made: Any) -> None:
    """Make the legend of a figure small and transparent."""
    legend = made.legend[0]
    legend.update(background_fill_alpha=0, border_line_color=None, label_text_color=NEUTRAL, location="top_right")
    legend.update(label_text_font_size="11px", spacing=0, padding=2)


def show(made: Any, width: int | None = None) -> Any:
    """A figure in a place that is at least `width` wide if the window is; by default as wide as the column."""
    styles = {} if width is None else {"flex": f"1 1 min({width}px, 100%)", "min-width": "0", "width": "auto"}
    return pn.Column(pn.pane.Bokeh(made, sizing_mode="stretch_width"), sizing_mode="stretch_width", styles=styles)


def side_by_side(controls: Sequence[Any], pictures: Sequence[Any]) -> Any:
    """Controls to the left of pictures, or above them in a narrow window."""
    return pn.FlexBox(
        pn.Column(*controls, styles={"flex": "1 1 260px", "max-width": "min(100%, 420px)", "min-width": "0"}),
        pn.Column(*pictures, styles={"flex": "4 1 min(520px, 100%)", "min-width": "0"}),
        sizing_mode="stretch_width",
        gap="8px",
    )


def flow(*objects: Any) -> Any:
    """Objects side by side, as many as fit into a row."""
    return pn.FlexBox(*objects, sizing_mode="stretch_width")


def code_block(title: str, *codes: str) -> Any:
    """A title over pieces of code. They may hold names from tables, which HTML and Markdown must not interpret."""
    blocks = "".join(f"<pre>{html.escape(code)}</pre>" for code in codes)
    return pn.pane.HTML(f"<h3>{title}</h3>{blocks}", sizing_mode="stretch_width")


def message(text: str) -> str:
    """A message that stands out, as HTML; nothing for an empty text."""
    return f'<div class="message" role="alert">{html.escape(text)}</div>' if text else ""


def locked(handler: Callable[..., None]) -> Callable[..., None]:
    """A handler that waits for the lock of the session's document.

    Changes of figures need the lock, and Panel calls handlers of events without it.
    """
    document = session_document()
    if document is None:
        return handler

    def handle(*events: Any) -> None:
        with pn.io.hold(document):  # all changes in one message
            handler(*events)

    return lambda *events: document.add_next_tick_callback(lambda: handle(*events))


def session_document() -> Any:
    """The document of the session that a server is preparing; None elsewhere, as in notebooks."""
    document = pn.state.curdoc
    return document if document is not None and document.session_context else None


class Slider(pn.widgets.FloatSlider):
    """A slider as wide as its place that is followed while it moves."""

    _debounce = SLIDER_MS

    def __init__(self, **options: Any):
        super().__init__(**{"sizing_mode": "stretch_width", "margin": (2, 10), "step": 0.01} | options)


class Soon:
    """Calls a function soon, once for all changes that come in the meantime, so that a drag does not queue up.

    With `resting` it waits until there has been no change for that number of milliseconds.
    """

    def __init__(self, function: Callable[[], None], resting: int = 0):
        self._function, self._document, self._resting = function, session_document(), resting
        self._call: Any = None

    def __call__(self, *_: Any) -> None:
        """Ask for a call: at once where there is no server, as in notebooks."""
        if self._document is None:
            self._function()
        elif self._call is None:
            self._call = self._document.add_timeout_callback(self._run, self._resting)
        elif self._resting:
            self._document.remove_timeout_callback(self._call)
            self._call = self._document.add_timeout_callback(self._run, self._resting)

    def _run(self) -> None:
        self._call = None
        with pn.io.hold(self._document):  # all changes in one message
            self._function()


def upload_box(take: Callable[[str, bytes | str], None]) -> Any:
    """A place to drop one file into; `take` gets its name and content, and the page keeps neither."""
    box = pn.widgets.FileDropper(
        multiple=False, max_file_size=f"{UPLOAD_MB}MB", height=80, sizing_mode="stretch_width", margin=(5, 10)
    )

    def received(event: Any) -> None:
        if event.new:
            name, content = event.new.popitem()  # the last one, which the widget would keep
            event.new.clear()
            take(name, content)

    box.param.watch(locked(received), "value", onlychanged=False)
    return box


def download(name: str, make: Callable[[], bytes]) -> Any:
    """A button that downloads a file, which is made when the button is pressed."""
    name = name.split("/")[-1]
    return pn.widgets.FileDownload(callback=lambda: io.BytesIO(make()), filename=name, label=name, embed=False)
