"""What the tab of networks computes: series, their fits and continuations, and activations as they are learned."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm import datasets
from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators import ThetaNetRegressor
from rtbm.explorer.jobs import Job
from rtbm.explorer.tables import DataTable
from rtbm.plotting import ActivationCurves, activation_curves

LAYERS = {"3": (3,), "3, 3": (3, 3), "3, 3, 2 (the paper's)": (3, 3, 2), "8, 4": (8, 4)}
"""Sizes of the hidden layers by the name that is shown."""
CURVE_TIMES = 600
"""Times at which the fit and its continuation are drawn."""


class ObservedSeries(NamedTuple):
    """Times and values (n,), with names, and the noise-free values where they are known."""

    t: Floats
    y: Floats
    names: tuple[str, str] = ("t", "y")
    has_signal: bool = False

    @property
    def times(self) -> Floats:
        """Times of the pictures: those of the data, and as long again beyond them."""
        low, high = float(self.t.min()), float(self.t.max())
        return np.linspace(low, 2 * high - low, CURVE_TIMES)


def paper_series() -> ObservedSeries:
    """The paper's time series with its noise."""
    t, y = datasets.time_series.sample()
    return ObservedSeries(t[:, 0], y, has_signal=True)


def table_series(table: DataTable, time: str | None, value: str) -> ObservedSeries:
    """Two columns of a table as a series; without a column of times, the rows are numbered. Gaps are left out."""
    columns = dict(zip(table.columns, table.rows.T, strict=True))
    y = columns[value]
    t = np.arange(len(y), dtype=np.float64) if time is None else columns[time]
    known = ~(np.isnan(t) | np.isnan(y))
    if known.sum() < 10 or np.ptp(t[known]) == 0:
        raise InvalidInputError("a series needs 10 rows or more, at different times")
    return ObservedSeries(t[known], y[known], (time or "row", value))


def start_training(series: ObservedSeries, layers: Sequence[int], activation: str = "theta", seed: int = 0) -> Job:
    """Train a network in a thread."""
    output = "theta" if activation == "theta" else "linear"
    model = ThetaNetRegressor(tuple(layers), activation=activation, output_activation=output, random_state=seed)
    return Job(lambda: model.fit(series.t[:, None], series.y))


@torch.no_grad()
def predicted(module: Any, times: Floats) -> Floats:
    """The output (n,) of a network of one feature."""
    return module(torch.from_numpy(times[:, None]))[:, 0].numpy()


def learned_activations(module: Any, series: ObservedSeries) -> list[ActivationCurves]:
    """The activation functions of the theta layers over the arguments that the data cause; none of other networks."""
    try:
        return activation_curves(module, series.t[:, None])
    except InvalidInputError:
        return []


def network_code(layers: Sequence[int], activation: str, series: ObservedSeries) -> str:
    """Python that does the same."""
    output = ', output_activation="theta"' if activation == "theta" else ""
    kind = "" if activation == "theta" else f", activation={activation!r}"
    lines = ["from rtbm import ThetaNetRegressor, save"]
    if series.has_signal:
        lines = ["from rtbm import ThetaNetRegressor, datasets, save", "t, y = datasets.time_series.sample()"]
    fit = f"model = ThetaNetRegressor({tuple(layers)!r}{kind}{output}, random_state=0).fit(t, y)"
    return "\n".join([*lines, fit, 'save(model, "network.rtbm")'])
