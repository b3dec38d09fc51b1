"""Names and values as a table in HTML, which notebooks and the explorer show."""

from collections.abc import Sequence
from html import escape

from rtbm.paths import printable

LEFT = "style='text-align: left'"  # notebooks align cells to the right, as suits numbers


def html_table(rows: Sequence[tuple[str, str]], title: str = "") -> str:
    """Names and values as an HTML table. All text is escaped, since names of columns may look like tags.

    Examples
    --------
    >>> "<td style='text-align: left'>a &lt; b</td>" in html_table([("features", "a < b")])
    True
    """
    lines = "".join(f"<tr>{_cell(name)}{_cell(value)}</tr>" for name, value in rows)
    caption = f"<caption {LEFT}><b>{escape(printable(title))}</b></caption>" if title else ""
    return f"<table>{caption}{lines}</table>"


def _cell(text: str) -> str:
    return f"<td {LEFT}>{escape(printable(text))}</td>"
