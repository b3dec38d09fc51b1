"""The buttons that start and stop a fit, and the timer that follows it."""

from collections.abc import Callable

import panel as pn

from rtbm.explorer.jobs import Job
from rtbm.explorer.style import locked

REFRESH_MS = 250
"""Time between two pictures of a running fit. A shorter one slows the fit, a longer one looks jerky."""


class JobControls:
    """Two buttons, and at most one job.

    Parameters
    ----------
    name : str
        The text of the button that starts a job.
    begin : function
        Called when it is pressed.
    follow : function
        Called with the job and whether it runs, at each tick of the timer, and once more when it has ended.
    """

    def __init__(self, name: str, begin: Callable[[], None], follow: Callable[[Job, bool], None]):
        self._follow = follow
        self._start = pn.widgets.Button(name=name, button_type="primary", css_classes=["start"])
        self._stop = pn.widgets.Button(name="Stop", disabled=True, css_classes=["stop"])
        self._job: Job | None = None
        self._timer: pn.io.callbacks.PeriodicCallback | None = None
        self._start.on_click(locked(lambda event: begin()))
        self._stop.on_click(lambda event: self._job and self._job.stop())
        self.view = pn.Row(self._start, self._stop)

    def run(self, job: Job) -> None:
        """Follow a job that has begun."""
        self.close()
        self._job = job
        self._start.disabled, self._stop.disabled = True, False
        self._timer = pn.state.add_periodic_callback(self._tick, REFRESH_MS)

    def _tick(self) -> None:
        job = self._job
        if job is None:
            return
        is_running = job.is_running
        with pn.io.hold():  # all changes in one message, so that texts and pictures agree
            if not is_running:
                self._job = None  # it has ended by itself
                self.close()
            self._follow(job, is_running)

    def close(self) -> None:
        """Stop the job, if there is one, and forget it."""
        if self._timer is not None:
            self._timer.stop()
        if self._job is not None:
            self._job.stop()
        self._job = self._timer = None
        self._start.disabled, self._stop.disabled = False, True
