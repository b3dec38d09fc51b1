"""How many hidden units? As many as predict data best that were not used to fit them."""

from dataclasses import replace

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.estimators.fitting import Task
from rtbm.estimators.search import count_runs, search

CANDIDATES = {"dense": (1, 2, 3, 4, 5), "diagonal": (2, 4, 8, 16, 32)}
FOLDS, STARTS = 3, 4


def choose_n_hidden(task: Task) -> tuple[int, dict[int, float]]:
    """The number of hidden units with the best likelihood on held-out folds, and that mean for all that were tried.

    Numbers are tried in increasing order, until two in a row have not improved.
    """
    n = len(task.data.z)
    fold = np.random.default_rng(task.settings.seed).permutation(n) % min(FOLDS, n)
    scores: dict[int, float] = {}
    for n_hidden in CANDIDATES[task.hidden]:
        scores[n_hidden] = _held_out(replace(task, n_hidden=n_hidden, n_init=min(task.n_init, STARTS)), fold)
        tried = list(scores.values())
        if len(tried) >= 3 and max(tried[-2:]) < max(tried):
            break
    return max(scores, key=scores.__getitem__), scores


def most_runs(task: Task) -> int:
    """How often the solver will run at most."""
    return len(CANDIDATES[task.hidden]) * FOLDS * count_runs(replace(task, n_init=min(task.n_init, STARTS)))


def _held_out(task: Task, fold: np.ndarray) -> float:
    """The mean log-likelihood of points by machines that were fitted without their fold."""
    log_prob: Floats = np.zeros(len(fold))
    for k in range(fold.max() + 1):
        data, held_out = (
            task.data._replace(z=task.data.z[m], weights=task.data.weights[m]) for m in (fold != k, fold == k)
        )
        part = replace(task, data=data)
        outcome = search(part)
        with torch.no_grad():
            points = torch.from_numpy(held_out.z).to(task.device or "cpu")
            values = part.family.log_prob(outcome.results[outcome.best].vector, points)
        log_prob[fold == k] = values.cpu().numpy()
    return float(task.data.weights @ log_prob / task.data.weights.sum()) - task.data.log_volume
