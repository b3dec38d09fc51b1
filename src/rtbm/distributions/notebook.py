"""What notebooks show of a distribution."""

import math
from typing import Any

from rtbm.errors import RTBMError
from rtbm.markup import html_table

FACTS = {
    "n_visible": "columns",
    "n_hidden": "hidden units",
    "coupling": "coupling",
    "phase": "phase",
    "batch_shape": "batch shape",
}
"""Attributes that a table shows, where a distribution has them, and what it calls them."""
SHOWN_COLUMNS = 10
"""Most columns whose means and deviations are shown."""


def distribution_html(distribution: Any) -> str:
    """A distribution as a short table in HTML: its size, its parts, and the mean and deviation of each column.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
    >>> "hidden units" in distribution_html(machine)
    True
    """
    base = getattr(distribution, "base", distribution)
    rows = [(label, _text(getattr(base, name))) for name, label in FACTS.items() if hasattr(base, name)]
    rows = [(label, text) for label, text in rows if text != "()"]  # most distributions are one alone
    if hasattr(base, "components"):
        rows.append(("components", str(len(base.weights))))
    for name, label in (("maps", "maps"), ("columns", "kinds of columns")):
        if hasattr(distribution, name):
            rows.append((label, ", ".join(type(own).__name__ for own in getattr(distribution, name))))
    return html_table([*rows, *_moments(distribution)], type(distribution).__name__)


def _text(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)


def _moments(distribution: Any) -> list[tuple[str, str]]:
    """Means and standard deviations; none of batches, of many columns, and where they are out of reach."""
    if distribution.batch_shape or distribution.event_shape.numel() > SHOWN_COLUMNS:
        return []
    try:
        moments = [("mean", distribution.mean), ("standard deviation", distribution.stddev)]
    except RTBMError:
        return []
    return [(name, ", ".join(map(_number, vector.tolist()))) for name, vector in moments]


def _number(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.6g}"  # categories have no mean
