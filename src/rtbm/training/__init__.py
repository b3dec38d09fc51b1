"""Fitting densities: what is fitted, the objective, and the solvers that minimise it."""

from rtbm.training.families import Density, Family, Prior, make_family
from rtbm.training.likelihood import Likelihood
from rtbm.training.objective import Objective
from rtbm.training.solvers import SOLVERS, Monitor, Record, Result, Solver, make_solver
from rtbm.training.starts import make_start
from rtbm.training.sums import ArrayBlocks

__all__ = [
    "SOLVERS",
    "ArrayBlocks",
    "Density",
    "Family",
    "Likelihood",
    "Monitor",
    "Objective",
    "Prior",
    "Record",
    "Result",
    "Solver",
    "make_family",
    "make_solver",
    "make_start",
]
