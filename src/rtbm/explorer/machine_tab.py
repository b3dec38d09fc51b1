"""The tab of the machine: sliders and presets, and pictures that follow them."""

from typing import Any

import numpy as np
import panel as pn
from bokeh.models import LinearColorMapper

from rtbm.distributions import RTBMDistribution
from rtbm.errors import RTBMError
from rtbm.explorer.machine import (
    SIZES,
    MachinePicture,
    component_curve,
    component_ellipse,
    draw_machine,
    make_machine,
    parameters,
    presets,
    values_of,
)
from rtbm.explorer.style import (
    BLUE,
    NEUTRAL,
    RESTING_MS,
    SERIES,
    WARM,
    Slider,
    Soon,
    empty_source,
    flow,
    locked,
    make_figure,
    message,
    set_axes,
    show,
    side_by_side,
    style_legend,
    with_margin,
)
from rtbm.markup import html_table

KINDS = {"the paper's": "paper", "the lattice's": "lattice"}
"""The kinds of parameters by the name that is shown."""
PALETTE = "Viridis256"
BARS = 40
"""Bars of the histogram of draws."""


class MachineTab:
    """Sliders for one machine, and what it looks like."""

    def __init__(self) -> None:
        self.preset = pn.widgets.Select(name="Preset", options=list(presets()), sizing_mode="stretch_width")
        self.size = pn.widgets.Select(name="Units", options=SIZES, sizing_mode="stretch_width")
        self.kind = pn.widgets.RadioButtonGroup(options=KINDS, sizing_mode="stretch_width")
        self.phase = pn.widgets.RadioButtonGroup(options={"phase I": "I", "phase II": "II"})
        self.other = pn.widgets.Button(name="The same density in the other phase", sizing_mode="stretch_width")
        self.n_draws = pn.widgets.IntSlider(name="draws", start=0, end=2000, step=100, value=500)
        self.n_draws.sizing_mode = "stretch_width"
        self.sliders: dict[str, Any] = {}
        self._slider_column = pn.Column(sizing_mode="stretch_width")
        self._message, self._numbers = pn.pane.HTML(sizing_mode="stretch_width"), pn.pane.HTML()
        self._line, self._plane = _LinePictures(), _PlanePictures()
        self._redraw, self._is_setting = Soon(self._draw), False
        self._complete = Soon(self._show_entropy, RESTING_MS)
        self.show_machine(next(iter(presets().values())))
        self.preset.param.watch(locked(lambda event: self.show_machine(presets()[event.new])), "value")
        self.size.param.watch(self._choose_size, "value")
        self.kind.param.watch(locked(lambda event: self.show_machine(self.machine)), "value")
        self.phase.param.watch(self._redraw, "value")
        self.n_draws.param.watch(self._redraw, "value")
        self.other.on_click(locked(self._change_phase))
        controls = [
            self.preset,
            self.size,
            pn.pane.HTML("<p>Parameters</p>"),
            self.kind,
            self.phase,
            self._slider_column,
            self.n_draws,
            self.other,
        ]
        pictures = [self._message, self._line.view, self._plane.view, self._numbers]
        self.view = side_by_side(controls, pictures)

    def show_machine(self, machine: RTBMDistribution) -> None:
        """Set all controls to a machine, and draw it."""
        self.machine, self._is_setting = machine, True
        size = machine.n_visible, machine.n_hidden
        self.size.value, self.phase.value = size, machine.phase
        self.sliders = {}
        values = values_of(machine, self.kind.value)
        for parameter in parameters(size, self.kind.value):
            value = values[parameter.label]
            slider = Slider(
                name=parameter.label,
                start=min(parameter.low, 1.5 * value),
                end=max(parameter.high, 1.5 * value),
                value=value,
            )
            slider.param.watch(self._redraw, "value")
            self.sliders[parameter.label] = slider
        self._slider_column[:] = list(self.sliders.values())
        self._is_setting = False
        self._draw()

    def _choose_size(self, event: Any) -> None:
        if not self._is_setting:
            sizes = {name: (machine.n_visible, machine.n_hidden) for name, machine in presets().items()}
            self.preset.value = next(name for name, size in sizes.items() if size == event.new)

    def _change_phase(self, _: Any) -> None:
        self.show_machine(self.machine.to_phase("II" if self.machine.phase == "I" else "I"))

    def _draw(self) -> None:
        if self._is_setting:
            return
        values = {label: slider.value for label, slider in self.sliders.items()}
        try:
            machine = make_machine(self.size.value, self.kind.value, self.phase.value, values)
            picture = draw_machine(machine, self.n_draws.value)
        except RTBMError as error:
            self._message.object = message(f"Not a machine, so the last picture stays: {error}")
            return
        self.machine, self._message.object = machine, ""
        is_line = machine.n_visible == 1
        self._line.view.visible, self._plane.view.visible = is_line, not is_line
        (self._line if is_line else self._plane).update(picture)
        self._shown_numbers = picture.numbers
        self._numbers.object = html_table([*picture.numbers.items(), ("entropy", "…")])
        self._complete()

    def _show_entropy(self) -> None:
        """Add the entropy, an integral that may take longer than all pictures."""
        entropy = f"{float(self.machine.entropy()):.4f}"
        self._numbers.object = html_table([*self._shown_numbers.items(), ("entropy", entropy)])


class _LinePictures:
    """The pictures of a machine with one visible unit."""

    def __init__(self) -> None:
        self.density = make_figure("P(v), its components, and draws", "v", height=300)
        self.expectation = make_figure("E(h|v)", "v", x_range=self.density.x_range)
        self.hidden = _HiddenStates()
        self.bars, self.parts = empty_source("left", "right", "top"), empty_source("xs", "ys")
        self.curve, self.lines = empty_source("v", "p"), empty_source("xs", "ys", "colour", "label")
        self.density.quad("left", "right", "top", 0, source=self.bars, color=NEUTRAL, alpha=0.25, legend_label="draws")
        self.density.multi_line("xs", "ys", source=self.parts, color=BLUE, alpha=0.8, legend_label="components")
        self.density.line("v", "p", source=self.curve, color=WARM, line_width=2.5, legend_label="P(v)")
        self.expectation.multi_line("xs", "ys", source=self.lines, color="colour", line_width=2, legend_field="label")
        for made in (self.density, self.expectation):
            style_legend(made)
        pair = flow(show(self.expectation, 300), show(self.hidden.figure, 300))
        self.view = pn.Column(show(self.density), pair, sizing_mode="stretch_width")

    def update(self, picture: MachinePicture) -> None:
        """Draw a machine."""
        v = picture.axes[0]
        counts, edges = np.histogram(picture.draws[:, 0], BARS, (v[0], v[-1]))
        heights = counts / max(1, len(picture.draws)) / np.diff(edges)
        curves = [component_curve(part, v) for part in picture.components]
        self.bars.data = {"left": edges[:-1], "right": edges[1:], "top": heights}
        self.parts.data = {"xs": [v] * len(curves), "ys": curves}
        self.curve.data = {"v": v, "p": picture.p}
        n_hidden = len(picture.expectations)
        labels = [f"E(h{'₁₂'[i]}|v)" if n_hidden > 1 else "E(h|v)" for i in range(n_hidden)]
        self.lines.data = {
            "xs": [v] * n_hidden,
            "ys": picture.expectations,
            "colour": SERIES[:n_hidden],
            "label": labels,
        }
        set_axes(self.density, (v[0], v[-1]), (0, 1.1 * max(picture.p.max(), heights.max())))
        set_axes(self.expectation, y=with_margin(picture.expectations))
        self.hidden.update(picture)


class _PlanePictures:
    """The pictures of a machine with two visible units."""

    def __init__(self) -> None:
        self.density = make_figure("P(v), its components at one σ, and draws", "v₁", "v₂", 380)
        options = {"x_range": self.density.x_range, "y_range": self.density.y_range, "height": 260}
        self.expectations = [make_figure(f"E(h{i}|v)", "v₁", "v₂", **options) for i in "₁₂"]
        self.hidden = _HiddenStates()
        self.images = [empty_source("image", "x", "y", "dw", "dh") for _ in range(3)]
        for made, source in zip((self.density, *self.expectations), self.images, strict=True):
            mapper = LinearColorMapper(palette=PALETTE)
            made.image("image", "x", "y", "dw", "dh", source=source, color_mapper=mapper)
            made.grid.visible = False
        self.points, self.parts = empty_source("x", "y"), empty_source("xs", "ys")
        self.density.scatter("x", "y", source=self.points, size=3, color="white", alpha=0.45, line_color=None)
        self.density.multi_line("xs", "ys", source=self.parts, color=WARM, line_width=1.5)
        panels = [show(made, 240) for made in (*self.expectations, self.hidden.figure)]
        self.view = pn.Column(show(self.density), flow(*panels), sizing_mode="stretch_width")

    def update(self, picture: MachinePicture) -> None:
        """Draw a machine."""
        x, y = picture.axes
        place = {"x": [x[0]], "y": [y[0]], "dw": [x[-1] - x[0]], "dh": [y[-1] - y[0]]}
        for source, values in zip(self.images, (picture.p, *picture.expectations), strict=True):
            source.data = {"image": [values.astype(np.float32)], **place}
        inside = ((picture.draws > [x[0], y[0]]) & (picture.draws < [x[-1], y[-1]])).all(axis=1)
        self.points.data = dict(zip("xy", picture.draws[inside].T, strict=True))
        set_axes(self.density, (x[0], x[-1]), (y[0], y[-1]))
        ellipses = [component_ellipse(part) for part in picture.components]
        self.parts.data = {"xs": [e[:, 0] for e in ellipses], "ys": [e[:, 1] for e in ellipses]}
        self.hidden.update(picture)


class _HiddenStates:
    """P(h): bars for one hidden unit, squares whose area is the probability for two."""

    def __init__(self) -> None:
        self.figure = make_figure("P(h), of phase I", "h")
        self.bars, self.squares = empty_source("h", "p"), empty_source("x", "y", "size")
        self.figure.vbar("h", 0.8, "p", source=self.bars, color=BLUE)
        self.figure.rect("x", "y", "size", "size", source=self.squares, color=BLUE)

    def update(self, picture: MachinePicture) -> None:
        """Draw the states whose probability can be seen."""
        seen = picture.shares > 1e-3 * picture.shares.max()
        states, shares = picture.states[seen], picture.shares[seen]
        is_line = states.shape[1] == 1
        self.figure.xaxis.axis_label, self.figure.yaxis.axis_label = ("h", "") if is_line else ("h₁", "h₂")
        low, high = states.min(axis=0) - 0.8, states.max(axis=0) + 0.8
        set_axes(self.figure, (low[0], high[0]), (0, 1.1 * shares.max()) if is_line else (low[1], high[1]))
        none: Any = {"x": [], "y": [], "size": []}
        self.bars.data = {"h": states[:, 0], "p": shares} if is_line else {"h": [], "p": []}
        sizes = np.sqrt(shares / shares.max())
        self.squares.data = none if is_line else {"x": states[:, 0], "y": states[:, 1], "size": sizes}
