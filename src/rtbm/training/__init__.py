"""Fitting densities: the E-step, the objective, and the solvers that minimise it."""

from rtbm.training.family import Density, Family
from rtbm.training.machines import Prior
from rtbm.training.objective import FAILURES, ArrayBlocks, Likelihood, Objective
from rtbm.training.solvers import SOLVERS, Monitor, Record, Result, Solver, make_solver
from rtbm.training.starts import make_start

__all__ = [
    "FAILURES",
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
    "make_solver",
    "make_start",
]
