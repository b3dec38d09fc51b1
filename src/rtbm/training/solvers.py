"""The solvers by name, behind one function."""

from dataclasses import dataclass

from torch import Tensor

from rtbm.training.adam import adam
from rtbm.training.batches import ArrayBatches
from rtbm.training.contrastive_divergence import pcd
from rtbm.training.distributed import rank_and_world
from rtbm.training.em import em, em_then_lbfgs
from rtbm.training.evolution import cma
from rtbm.training.objective import Objective
from rtbm.training.result import Result, Watch
from rtbm.training.score_matching import score_matching
from rtbm.validation import check_choice

DEFAULT_ITERATIONS = {"lbfgs": 1000, "adam": 500, "em": 1000, "cma": 3000, "score_matching": 500, "pcd": 300}
ADAM_BATCH = 500
SOLVERS = tuple(DEFAULT_ITERATIONS)
"""The names that `solver` may have."""


@dataclass(frozen=True)
class Settings:
    """How to solve.

    Attributes
    ----------
    solver : str
        One of SOLVERS.
    max_iter : int
        Iterations of "lbfgs", "em" and "score_matching", generations of "cma", epochs of "adam" and "pcd".
    tol : float
        "lbfgs", "em", "cma" and "score_matching" end when the objective improves by less.
    batch_size : int
        Rows in a batch of "adam" and "pcd"; by default ADAM_BATCH for the first and all for the second.
    learning_rate : float
        The first step size of "adam" and "pcd".
    seed : int
        For whatever is random.
    """

    solver: str = "lbfgs"
    max_iter: int = 500
    tol: float = 1e-7
    batch_size: int | None = None
    learning_rate: float = 0.03
    seed: int = 0


def solve(objective: Objective, start: Tensor, settings: Settings, watch: Watch | None = None) -> Result:
    """Minimise an objective from a start, by the solver of the given settings.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from rtbm.training import Family, Objective, Prior, Settings, solve
    >>> x = torch.linspace(-2, 2, 50, dtype=torch.float64)[:, None]
    >>> family = Family(1, 1)
    >>> objective = Objective(family, x, torch.ones(50, dtype=torch.float64), Prior(1.0, np.ones(1)))
    >>> result = solve(objective, torch.zeros(family.n_parameters, dtype=torch.float64), Settings("lbfgs"))
    >>> result.reason, result.solver
    ('converged', 'lbfgs')
    """
    watch = watch or Watch()
    name, max_iter, tol = check_choice(settings.solver, "solver", SOLVERS), settings.max_iter, settings.tol
    if name == "lbfgs":
        return em_then_lbfgs(objective, start, watch, max_iter=max_iter, tol=tol)
    if name == "em":
        return em(objective, start, watch, max_iter=max_iter, tol=tol)
    if name == "cma":
        return cma(objective, start, watch, max_iter=max_iter, tol=tol, seed=settings.seed)
    if name == "score_matching":
        return score_matching(objective, start, watch, max_iter=max_iter, tol=tol)
    rate, size, seed = settings.learning_rate, settings.batch_size, settings.seed
    if name == "pcd":
        return pcd(objective, start, watch, max_iter=max_iter, seed=seed, batch_size=size, learning_rate=rate)
    weights = objective.weights * objective.total
    batches = ArrayBatches(objective.x, weights, size or ADAM_BATCH, seed, *rank_and_world())
    return adam(
        objective.family,
        batches,
        objective.prior,
        objective.total,
        start,
        watch,
        max_iter=max_iter,
        learning_rate=rate,
    )
