"""The solvers: one class for each way to minimise an objective."""

from typing import Any

from rtbm.training.solvers.base import Monitor, Record, Result, Solver
from rtbm.training.solvers.cma import CMA
from rtbm.training.solvers.em import EM
from rtbm.training.solvers.lbfgs import LBFGS
from rtbm.validation import check_choice

SOLVERS: dict[str, type[Solver]] = {solver.name: solver for solver in (LBFGS, EM, CMA)}
"""The solvers of densities by name."""

__all__ = ["CMA", "EM", "LBFGS", "SOLVERS", "Monitor", "Record", "Result", "Solver"]


def make_solver(name: str, max_iter: int | None = None, solvers: Any = SOLVERS, **settings: Any) -> Solver:
    """The solver of a name, with its own number of iterations unless `max_iter` is given.

    Examples
    --------
    >>> make_solver("em", tol=1e-5).max_iter
    1000
    """
    make = solvers[check_choice(name, "solver", tuple(solvers))]
    return make(**settings) if max_iter is None else make(max_iter=max_iter, **settings)
