"""The paper's experiments, their numbers beside the paper's, and some experiments beyond it."""

import functools
import importlib
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from rtbm.paper.experiment import Experiment

ExperimentName = Literal[
    "table1", "figures", "timeseries", "iris", "jets", "digits", "conditionals", "realdata", "regression", "classifiers"
]
"""The experiments that `rtbm reproduce` runs; each is the EXPERIMENT of the module with its name."""


@functools.cache
def load_experiments() -> "dict[str, Experiment]":
    """All experiments by name. They are imported here, so that the names alone do not need torch."""
    return {name: importlib.import_module(f"rtbm.paper.{name}").EXPERIMENT for name in get_args(ExperimentName)}
