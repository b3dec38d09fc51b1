"""Fitting densities: families of machines, the objective, and the solvers that minimise it."""

from rtbm.training.family import Family
from rtbm.training.objective import Objective, Prior
from rtbm.training.solvers import SOLVERS, Monitor, Record, Result, Solver, make_solver
from rtbm.training.starts import make_start
from rtbm.training.statistics import ArraySource

__all__ = [
    "SOLVERS",
    "ArraySource",
    "Family",
    "Monitor",
    "Objective",
    "Prior",
    "Record",
    "Result",
    "Solver",
    "make_solver",
    "make_start",
]
