"""The Gaussian fallback: one Gaussian, or as many as there are machines, which a fit has to beat."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import chdtri
from torch import Tensor

from rtbm.estimators.density.fitted import gaussian_size
from rtbm.estimators.density.task import DensityTask
from rtbm.estimators.multistart import Outcome, search
from rtbm.training import Objective
from rtbm.training.gaussians import Gaussians, fit_gaussians

CHANCE = 1e-6
"""A fit is kept if its gain over Gaussians is less probable than this for data that come from Gaussians."""
FEWER_ROWS = "no more rows than parameters"


class FullDataScore(NamedTuple):
    """Means of log P over all data, for tasks whose data are a sample."""

    log_prob: float  # of the fit
    gaussian: float  # of one Gaussian


def find_machine(task: DensityTask, fallback: str | None) -> Outcome:
    """Search for the best fit. There is no search if the Gaussian is sure to replace it; see `find_simpler`."""
    if not _has_too_few_rows(task, fallback, task.source.total):
        return search(task)
    vector, monitor = gaussian_vector(task), task.monitor(None)
    monitor(vector, task.objective().value(vector))
    return Outcome([monitor.result(vector, FEWER_ROWS, 1, task.solver.name)], 0)


def find_simpler(
    task: DensityTask,
    vector: Tensor,
    fallback: str | None,
    total: float | None = None,
    full: FullDataScore | None = None,
) -> tuple[Tensor, int]:
    """The vector of Gaussians that explain the training data as well as the fit, and their number; else the fit, and 0.

    With fallback="gaussian" the fit is compared with one Gaussian, with "gaussians" also with as many as it has
    machines. The fit needs more observations than parameters. Then it is better by the Bayesian information criterion,
    or if chance would hardly ever give a model of its size such a gain. The second rule is for large machines: under a
    prior they use few of their parameters, and the criterion counts them all. `total` is the number of observations if
    the data of the task are a sample, and `full` what is known of them.
    """
    if fallback is None:
        return vector, 0
    family, chosen, n = task.family, _one_gaussian(task), total or task.source.total
    is_kept, are_several = not _has_too_few_rows(task, fallback, n), fallback == "gaussians" and family.n_components > 1
    if not (is_kept or are_several):
        return _to_vector(task, chosen), 1
    objective, source, n_pairs = task.objective(), task.source, n * _share_of_pairs(task)
    weights = objective.weights
    with torch.no_grad():
        log_prob, simple = objective.likelihood.log_prob(vector), chosen.log_prob(source)
        gain = float(weights @ (log_prob - simple)) if full is None else full.log_prob - full.gaussian
        if are_several:
            several = _several_gaussians(task, objective, vector)
            theirs = several.log_prob(source)
            if _is_better(n * float(weights @ (theirs - simple)), _degrees_of_freedom(several), chosen, n_pairs):
                chosen, gain = several, float(weights @ (log_prob - theirs))
        better = is_kept and _is_better(n * gain, family.n_degrees_of_freedom, chosen, n_pairs)
        return (vector, 0) if better else (_to_vector(task, chosen), len(chosen.means))


def without_strays(task: DensityTask, vector: Tensor) -> Tensor:
    """Replace machines of a mixture that explain less than half an observation by the Gaussian of the data.

    No data hold such a machine in its place, and the prior makes it many times as wide as the data.
    """
    family = task.family
    if family.n_components == 1:
        return vector
    machines, logits = family.split(vector)
    normal = family.split(gaussian_vector(task))[0][0]
    explained = logits.softmax(0) * task.source.total
    return family.join(
        [normal if n < 0.5 else own for own, n in zip(machines, explained.tolist(), strict=True)], logits
    )


def gaussian_vector(task: DensityTask) -> Tensor:
    """The member of the family that is the Gaussian of the data."""
    return _to_vector(task, _one_gaussian(task))


def _has_too_few_rows(task: DensityTask, fallback: str | None, n: float) -> bool:
    """Whether there are no more observations than parameters."""
    if fallback is None:
        return False
    return n * _share_of_pairs(task) <= task.family.n_degrees_of_freedom + 1


def _share_of_pairs(task: DensityTask) -> float:
    """The share of the data in which two features are both present, on average: others tell nothing about both."""
    present, d = ~np.isnan(task.data.z), task.family.n_visible
    if d == 1 or present.all():
        return 1.0
    pairs = present.T @ (task.data.weights[:, None] * present) / task.data.weights.sum()
    return float((pairs.sum() - pairs.trace()) / (d * (d - 1)))


def _is_better(gain: float, degrees_of_freedom: int, than: Gaussians, n: float) -> bool:
    """Whether a gain in log-likelihood justifies the additional parameters, for n observations."""
    extra = max(degrees_of_freedom - _degrees_of_freedom(than), 1)
    return gain > 0.5 * min(extra * math.log(max(n, 2.0)), float(chdtri(extra, CHANCE)))


def _degrees_of_freedom(gaussians: Gaussians) -> int:
    """The number of independent parameters."""
    k, d = gaussians.means.shape
    return k * (gaussian_size(d) + 1) - 1


def _one_gaussian(task: DensityTask) -> Gaussians:
    """The Gaussian with the moments of the data."""
    d = len(task.data.covariance)
    return Gaussians(np.zeros(1), np.zeros((1, d)), np.linalg.cholesky(task.data.covariance)[None])


def _several_gaussians(task: DensityTask, objective: Objective, vector: Tensor) -> Gaussians:
    """As many Gaussians as the mixture has machines, by EM from the responsibilities of the machines."""
    shares = objective.likelihood.log_joint(vector).softmax(1) * objective.weights[:, None]
    floor = 2 * objective.prior.strength / objective.total * objective.prior.widths**2 + 1e-12
    return fit_gaussians(task.source, task.data.filled, shares.cpu().numpy(), floor)


def _to_vector(task: DensityTask, gaussians: Gaussians) -> Tensor:
    """The vector of these Gaussians as members of the family. A single one is repeated for all machines."""
    family = task.family
    normal, single = family.split(family.gaussian())[0][0], family.single()
    machines = [single.affine(normal, root, mean) for root, mean in zip(gaussians.roots, gaussians.means, strict=True)]
    repeats = family.n_components // len(machines)
    vector = family.join(machines * repeats, torch.from_numpy(gaussians.log_weights).repeat(repeats))
    return vector.to(task.device or "cpu")
