"""The page of the explorer, and the server that shows it to browsers on this machine alone."""

import re
import socket
import sys
import warnings
from typing import Any

import panel as pn
import torch
from sklearn.exceptions import ConvergenceWarning
from tornado.ioloop import IOLoop
from tornado.web import ErrorHandler

from rtbm.explorer.fit_tab import FitTab
from rtbm.explorer.machine_tab import MachineTab
from rtbm.explorer.network_tab import NetworkTab
from rtbm.explorer.style import PAGE_CSS, WIDGET_CSS, session_document
from rtbm.explorer.tables import Opened, open_source
from rtbm.explorer.theta_tab import ThetaTab

ADDRESS = "127.0.0.1"
"""The server listens here, so that no other machine can reach it."""
HOSTS = (ADDRESS, "localhost")
"""Requests that name another host are refused: a page whose name was rebound to this address would name its own."""
TITLE = "rtbm explorer"
EXTENSIONS = ("filedropper",)
"""Parts of Panel's script that the page needs beyond the usual ones."""
TOGGLE = """
const root = document.documentElement;
root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
"""
FOLLOW_SYSTEM = """<script>
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
</script>"""
"""The page begins dark if the system is."""
SWITCH_SECONDS = 0.001
"""How long a fit may keep the page waiting each time that Python changes threads; by default five times as long."""


def make_page(opened: Opened) -> Any:
    """The page of one session: its own controls, data and fits."""
    tabs: dict[str, Any] = {
        "Machine": MachineTab(),
        "Fit": FitTab(opened),
        "Network": NetworkTab(),
        "Theta": ThetaTab(),
    }
    shown = pn.Tabs(*((name, tab.view) for name, tab in tabs.items()), dynamic=True, sizing_mode="stretch_width")
    if opened.is_given:
        shown.active = list(tabs).index("Fit")
    if session_document() is not None:
        pn.state.on_session_destroyed(lambda context: [tabs[name].close() for name in ("Fit", "Network")])
    return shown


def notebook_page(source: Any = None) -> Any:
    """The page in a notebook, in the colours of the notebook."""
    pn.extension(*EXTENSIONS, raw_css=[WIDGET_CSS])
    return make_page(open_source(source))


def run_server(opened: Opened, port: int | None, browser: bool) -> None:
    """Serve the page on 127.0.0.1 until interrupted. Other hosts and origins are refused."""
    port = _free_port() if port is None else port
    pn.extension(*EXTENSIONS, raw_css=[WIDGET_CSS], global_css=[PAGE_CSS])
    sys.setswitchinterval(SWITCH_SECONDS)
    torch.set_num_threads(1)  # pictures are small, and several threads slow them down
    warnings.simplefilter("ignore", ConvergenceWarning)  # of members of committees; summaries say how a fit ended

    def session() -> Any:
        toggle = pn.widgets.Button(name="light / dark", align="center", margin=(0, 10))
        toggle.js_on_click(code=TOGGLE)
        title = pn.pane.HTML(f"<h1>{TITLE}</h1>{FOLLOW_SYSTEM}", align="center")
        header = pn.Row(title, pn.Spacer(sizing_mode="stretch_width"), toggle, sizing_mode="stretch_width")
        return pn.Column(header, make_page(opened), sizing_mode="stretch_width")

    origins = [f"{name}:{port}" for name in HOSTS]
    server = pn.io.server.get_server(
        {"/": session}, port, ADDRESS, websocket_origin=origins, title=TITLE, show=browser, start=False
    )
    other_hosts = rf"(?!({'|'.join(map(re.escape, HOSTS))})$).*"
    server._tornado.add_handlers(other_hosts, [(".*", ErrorHandler, {"status_code": 403})])
    print(f"The explorer is at http://{ADDRESS}:{port} until Ctrl-C.", flush=True)
    server.start()
    IOLoop.current().start()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return probe.getsockname()[1]
