"""The explorer: pages in a browser, or a notebook, to play with machines, fits, networks and theta functions."""

from typing import Any

from rtbm.errors import RTBMError


class MissingPackageError(RTBMError, ImportError):
    """A package that an extra brings is not installed."""


def explore(source: Any = None) -> Any:
    """The explorer in a notebook: the last expression of a cell shows it. `rtbm explore` opens it in a browser.

    Parameters
    ----------
    source : path, array, data frame or fitted density, default=None
        Data to fit (a .csv, .parquet or .npy file, or what `RTBMDensity.fit` takes), or a model to look at.

    Returns
    -------
    panel.viewable.Viewable
    """
    _check_panel()
    from rtbm.explorer.app import notebook_page

    return notebook_page(source)


def serve(source: Any = None, port: int | None = None, browser: bool = True, **text_format: Any) -> None:
    """Serve the explorer to browsers on this machine until interrupted.

    Parameters
    ----------
    source : path, default=None
        Data to fit or a model to look at, as in `explore`.
    port : int, default=None
        The port on 127.0.0.1; by default one that is free.
    browser : bool, default=True
        Whether to open a browser.
    text_format : bool or str
        `header`, `separator` and `decimal` of a CSV file, as in `read_table`.
    """
    _check_panel()
    from rtbm.explorer.app import run_server
    from rtbm.explorer.tables import open_source

    run_server(open_source(source, **text_format), port, browser)


def _check_panel() -> None:
    try:
        import panel  # noqa: F401
    except ImportError:
        raise MissingPackageError('the explorer needs Panel: pip install ".[explore]" in a checkout of rtbm') from None
