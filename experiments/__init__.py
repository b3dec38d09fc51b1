"""The laboratory: the paper's experiments beside the paper's numbers, and comparisons on real tables.

`python -m experiments NAME` runs one of them, from a checkout. Nothing here is part of the installed library.
"""

import functools
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from experiments.experiment import Experiment

MODULES = {
    "table1": "paper.table1",
    "sizes": "paper.sizes",
    "figures": "paper.figures",
    "timeseries": "paper.timeseries",
    "iris": "paper.iris",
    "jets": "paper.jets",
    "digits": "paper.digits",
    "conditionals": "paper.conditionals",
    "realdata": "tables.realdata",
    "mixed": "tables.mixed",
    "imputation": "tables.imputation",
    "mixed_classifiers": "tables.mixed_classifiers",
    "outliers": "tables.outliers",
    "regression": "tables.regression",
    "classifiers": "tables.classifiers",
    "forecasts": "tables.forecasts",
}
"""The module of each experiment, whose EXPERIMENT it is."""


@functools.cache
def load_experiments() -> "dict[str, Experiment]":
    """All experiments by name. They are imported here, so that the names alone do not need torch."""
    return {name: importlib.import_module(f"experiments.{module}").EXPERIMENT for name, module in MODULES.items()}
