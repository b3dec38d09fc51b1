"""The paper's experiments: data, runs, and the numbers that it reports; and some beyond it."""

from rtbm.paper import conditionals, digits, figures, iris, jets, realdata, table1, timeseries
from rtbm.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "table1": table1.EXPERIMENT,
    "figures": figures.EXPERIMENT,
    "timeseries": timeseries.EXPERIMENT,
    "iris": iris.EXPERIMENT,
    "jets": jets.EXPERIMENT,
    "digits": digits.EXPERIMENT,
    "conditionals": conditionals.EXPERIMENT,
    "realdata": realdata.EXPERIMENT,
}
"""The experiments that `rtbm reproduce` knows, by name."""

__all__ = ["EXPERIMENTS", "Experiment"]
