"""The tab of theta functions: Q by sliders, log θ̃ over a plane, and the complex function in colours."""

from typing import Any

import numpy as np
import panel as pn
from bokeh.models import ColorBar, LinearColorMapper

from rtbm.errors import RTBMError
from rtbm.explorer.style import (
    NEUTRAL,
    Slider,
    Soon,
    empty_source,
    flow,
    make_figure,
    message,
    set_axes,
    show,
    side_by_side,
)
from rtbm.explorer.theta import complex_plane, phase_colours, quadratic_form, real_plane

IMAGE = ("image", "x", "y", "dw", "dh")


class ThetaTab:
    """Sliders for Q and Ω, and the pictures of the theta function."""

    def __init__(self) -> None:
        def slider(name: str, low: float, high: float, value: float) -> Any:
            made = Slider(name=name, start=low, end=high, value=value)
            made.param.watch(self._redraw, "value")
            return made

        self._redraw = Soon(self._draw)
        self.phase = pn.widgets.RadioButtonGroup(options={"log θ̃(z)": "I", "log θ̃(iz)": "II"})
        self.phase.param.watch(self._redraw, "value")
        self.Q = [slider(name, *ends) for name, *ends in (("Q₁₁", 0.2, 16, 4), ("Q₁₂", -8, 8, 1), ("Q₂₂", 0.2, 16, 3))]
        self.reach = slider("z up to", 1, 40, 8)
        self.shift = [slider(f"Re Ω{i}", -1, 1, 0) for i in ("₁₁", "₁₂", "₂₂")]
        self.second = [slider(f"{part} z₂", -1, 1, 0) for part in ("Re", "Im")]
        self._message = pn.pane.HTML(sizing_mode="stretch_width")
        self._real, self._complex = empty_source(*IMAGE), empty_source(*IMAGE)
        self._plane = make_figure("log θ̃ over z", "z₁", "z₂", 420)
        self._mapper = LinearColorMapper(palette="Viridis256")
        self._plane.image(*IMAGE, source=self._real, color_mapper=self._mapper)
        bar = ColorBar(color_mapper=self._mapper, width=10, background_fill_color=None, major_label_text_color=NEUTRAL)
        self._plane.add_layout(bar, "right")
        self._colours = make_figure("θ(z₁, z₂|Ω), its phase as colour", "Re z₁", "Im z₁", 420)
        self._colours.image_rgba(*IMAGE, source=self._complex)
        about = pn.pane.HTML(
            "<p>Ω = Re Ω + iQ/2π. The hue is the phase of θ, and zeros are black. The growth "
            "exp(π Im z (Im Ω)⁻¹ Im z) is divided out of its size.</p>"
        )
        controls = [self.phase, *self.Q, self.reach, pn.pane.HTML("<p>The complex function</p>")]
        self.view = side_by_side(
            [*controls, *self.shift, *self.second],
            [self._message, flow(show(self._plane, 360), show(self._colours, 360)), about],
        )
        self._draw()

    def _draw(self) -> None:
        Q, shift = (quadratic_form(*(slider.value for slider in part)) for part in (self.Q, self.shift))
        second = complex(*(slider.value for slider in self.second))
        try:
            plane = real_plane(Q, self.phase.value, self.reach.value)
            colours = phase_colours(complex_plane(Q, shift, second))
        except RTBMError as error:
            self._message.object = message(f"No theta function, so the last picture stays: {error}")
            return
        self._message.object = ""
        for source, made, image, reach in (
            (self._real, self._plane, plane.values.astype(np.float32), self.reach.value),
            (self._complex, self._colours, colours, 1.0),
        ):
            source.data = {"image": [image], "x": [-reach], "y": [-reach], "dw": [2 * reach], "dh": [2 * reach]}
            set_axes(made, (-reach, reach), (-reach, reach))
        self._mapper.update(low=float(plane.values.min()), high=float(plane.values.max()))
