"""The paper's experiments: data, runs, and the numbers that it reports."""

from rtbm.paper import digits, iris, jets, timeseries
from rtbm.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "timeseries": timeseries.EXPERIMENT,
    "iris": iris.EXPERIMENT,
    "jets": jets.EXPERIMENT,
    "digits": digits.EXPERIMENT,
}
"""The experiments that `rtbm reproduce` knows, by name."""

__all__ = ["EXPERIMENTS", "Experiment"]
