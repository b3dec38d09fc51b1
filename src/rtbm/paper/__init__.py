"""The paper's experiments: data, runs, and the numbers that it reports."""

from rtbm.paper import iris, timeseries
from rtbm.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {"timeseries": timeseries.EXPERIMENT, "iris": iris.EXPERIMENT}
"""The experiments that `rtbm reproduce` knows, by name."""

__all__ = ["EXPERIMENTS", "Experiment"]
