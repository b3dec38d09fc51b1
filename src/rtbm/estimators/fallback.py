"""Gaussians that a fit has to beat, one or as many as it has machines, and that stand in for machines without data."""

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.special import chdtri
from torch import Tensor

from rtbm.estimators.fitted import gaussian_size
from rtbm.estimators.fitting import NOT_LIKELIHOOD, Task
from rtbm.training import Objective
from rtbm.training.family import FAILURES
from rtbm.training.starts import gaussian_start

CHANCE = 1e-6
"""How probable a gain over Gaussians may be, if the data come from them, that is not put down to chance."""
NEGLIGIBLE = 1e-3
"""How much of one observation a machine explains that is as good as absent."""
MAX_ITER, TOLERANCE = 500, 1e-8
"""Of expectation maximisation: iterations, and the gain in mean log P that ends it."""


class Gaussians(NamedTuple):
    """A mixture of Gaussians."""

    log_weights: Tensor  # (K,)
    means: Tensor  # (K, d)
    roots: Tensor  # (K, d, d), the Cholesky factors of the covariances

    @property
    def n_degrees_of_freedom(self) -> int:
        """The number of independent parameters."""
        k, d = self.means.shape
        return k * (gaussian_size(d) + 1) - 1

    def log_joint(self, x: Tensor) -> Tensor:
        """The log of weight times density (n, K) of each Gaussian at points x (n, d)."""
        noise = torch.linalg.solve_triangular(self.roots, (x - self.means[:, None]).mT, upper=False)
        log_det = self.roots.diagonal(dim1=1, dim2=2).log().sum(1)
        log_volume = log_det + 0.5 * x.shape[1] * math.log(2 * math.pi)
        return (self.log_weights - log_volume - 0.5 * noise.square().sum(1).mT).contiguous()

    def log_prob(self, x: Tensor) -> Tensor:
        """log P (n,)."""
        return self.log_joint(x).logsumexp(1)


class Simpler(NamedTuple):
    """Gaussians as a member of a family of machines."""

    vector: Tensor
    n_gaussians: int


def find_simpler(task: Task, vector: Tensor, fallback: str | None, total: float | None = None) -> Simpler | None:
    """Gaussians that explain the training data as well as a fit, or None.

    With fallback="gaussian" it is compared with one, with "gaussians" also with as many as it has machines. Better is
    by the Bayesian information criterion, or because chance would hardly ever give parameters such a gain: a large
    machine under a prior uses but few of its parameters, and the criterion counts them all. Solvers that do without a
    normaliser are given the benefit of the doubt. `total` is the number of observations if the data of the task are
    but a sample.
    """
    if fallback is None or task.settings.solver in NOT_LIKELIHOOD:
        return None
    family, objective = task.family, task.objective(task.family)
    x, weights = objective.x, objective.weights
    n = total or objective.total
    has_missing = bool(x.isnan().any())
    one = _one_gaussian(task)
    with torch.no_grad():
        log_prob = family.log_prob(vector, x)
        simple = family.log_prob(_to_vector(task, one), x) if has_missing else one.log_prob(x)
        chosen = one
        if fallback == "gaussians" and family.n_components > 1 and not has_missing:
            several = _several_gaussians(objective, vector)
            theirs = several.log_prob(x)
            if _is_better(float(weights @ (theirs - simple)), several.n_degrees_of_freedom, one, n):
                chosen, simple = several, theirs
        better = _is_better(float(weights @ (log_prob - simple)), family.n_degrees_of_freedom, chosen, n)
        return None if better else Simpler(_to_vector(task, chosen), len(chosen.means))


def without_strays(task: Task, vector: Tensor) -> Tensor:
    """A fit in which machines that explain next to none of the data are the Gaussian of the data.

    Nothing holds such a machine where it is: the prior drives its covariance to infinity, and out of float64.
    """
    family = task.family
    if family.n_components == 1 or task.settings.solver in NOT_LIKELIHOOD:
        return vector
    objective = task.objective(family)
    with torch.no_grad():
        explained = objective.weights @ _log_joint(objective, vector).softmax(1) * objective.total
        machines, logits = family.split(vector)
        normal = family.split(_to_vector(task, _one_gaussian(task)))[0][0]
        held = [normal if bool(n < NEGLIGIBLE) else m for m, n in zip(machines, explained, strict=True)]
        return family.join(held, logits)


def _log_joint(objective: Objective, vector: Tensor) -> Tensor:
    """The log of weight times density (n, K) of each machine; −∞ for one that is out of float64."""
    machines, logits = objective.family.split(vector)
    single, columns = objective.family.single(), []
    for machine in machines:
        try:
            columns.append(single.log_prob(machine, objective.x))
        except FAILURES:
            columns.append(torch.full_like(objective.weights, -math.inf))
    return torch.stack(columns, 1) + logits.log_softmax(0)


def _is_better(gain: float, degrees_of_freedom: int, than: Gaussians, n: float) -> bool:
    """Whether a mean gain in log P, over n observations, is worth the parameters that it took."""
    if n <= degrees_of_freedom + 1:
        return False
    extra = max(degrees_of_freedom - than.n_degrees_of_freedom, 1)
    return gain * n > 0.5 * min(extra * math.log(max(n, 2.0)), float(chdtri(extra, CHANCE)))


def _one_gaussian(task: Task) -> Gaussians:
    """That of the data."""
    covariance = torch.from_numpy(np.ascontiguousarray(task.data.covariance)).to(task.device or "cpu")
    zeros = covariance.new_zeros(1, len(covariance))
    return Gaussians(zeros[:, 0], zeros, torch.linalg.cholesky(covariance)[None])


def _several_gaussians(objective: Objective, vector: Tensor) -> Gaussians:
    """As many as the mixture has machines, from the shares of these in the data, by expectation maximisation."""
    x, joint, value = objective.x, _log_joint(objective, vector), -math.inf
    for _ in range(MAX_ITER):
        shares = joint.softmax(1) * objective.weights[:, None]
        gaussians = _maximise(objective, shares)
        joint = gaussians.log_joint(x)
        previous, value = value, float(objective.weights @ joint.logsumexp(1))
        if abs(value - previous) < TOLERANCE:
            break
    return gaussians


def _maximise(objective: Objective, shares: Tensor) -> Gaussians:
    """The Gaussians of points that are divided among them in shares (n, K), under the prior on covariances."""
    x, prior = objective.x, objective.prior
    counts = shares.sum(0).clamp(min=1e-12)
    means = shares.mT @ x / counts[:, None]
    centred = x - means[:, None]
    floor = torch.diag(2 * prior.strength / objective.total * prior.widths.square() + 1e-12)
    covariance = ((shares.mT[:, :, None] * centred).mT @ centred + floor) / counts[:, None, None]
    return Gaussians((counts / counts.sum()).log(), means, torch.linalg.cholesky(covariance))


def _to_vector(task: Task, gaussians: Gaussians) -> Tensor:
    """The member of the family that is these Gaussians; one of them stands for all machines of a mixture."""
    family = task.family
    normal = family.single().distribution(family.split(gaussian_start(family))[0][0]).to(gaussians.means.device)
    machines = [
        family.single().vector(normal.affine(root, mean))
        for root, mean in zip(gaussians.roots, gaussians.means, strict=True)
    ]
    repeats = family.n_components // len(machines)
    return family.join(machines * repeats, gaussians.log_weights.repeat(repeats))
