"""Persistent contrastive divergence for diagonal machines: the normaliser's gradient from Gibbs chains that live on."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from rtbm.distributions.sampling.annealing import GibbsSampler
from rtbm.parameters import Natural, change_phase, constrain, map_tensors, unpack
from rtbm.training.batches import ArrayBatches
from rtbm.training.family import Family
from rtbm.training.objective import Objective
from rtbm.training.solvers.base import EpochSolver, Monitor, Result
from rtbm.training.solvers.score_matching import ScoreMatchingObjective, check_diagonal

N_CHAINS = 500
"""Gibbs chains. More make the gradient less noisy, and steps slower."""
N_STEPS = 2
"""Gibbs steps between two steps of the optimiser."""


@dataclass(frozen=True)
class PCD(EpochSolver):
    """Follow the gradient of the log-likelihood, with the expectation under the machine taken over Gibbs chains::

        ∂ mean log P = −mean over data of ∂F(v) + mean over chains of ∂F(v)

    with F the free energy. The history shows the score-matching objective, since the likelihood is not known. A batch
    is all data by default.
    """

    max_iter: int = 300
    name: ClassVar[str] = "pcd"
    maximises_likelihood: ClassVar[bool] = False

    def _minimise(self, objective: Objective, start: Tensor, monitor: Monitor) -> Result:
        family, x = objective.family, objective.x
        check_diagonal(family, x, self.name)
        generator = torch.Generator(x.device).manual_seed(self.seed)
        batches = ArrayBatches(x, objective.weights, self.batch_size, self.seed)
        matching = ScoreMatchingObjective.like(objective)
        vector, average = start.clone().requires_grad_(), start
        chosen = torch.multinomial(objective.weights, N_CHAINS, replacement=True, generator=generator)
        chains, monitor.first_step = x[chosen], 1

        def run(epoch: int, step: Callable[[], Any]) -> tuple[Tensor, float]:
            nonlocal average, chains
            for points, weights in batches.epoch(epoch):
                gibbs = GibbsSampler(_first_phase(family, vector.detach()))
                for _ in range(N_STEPS):
                    chains = gibbs.visible(gibbs.hidden(chains, generator), generator)
                machine = family.machine(vector)
                loss = weights @ machine.free_energy(points) / weights.sum() - machine.free_energy(chains).mean()
                (gradient,) = torch.autograd.grad(loss, vector)
                _, pull = objective.prior.penalty(family, vector.detach().cpu().numpy())
                vector.grad = gradient + torch.from_numpy(pull).to(gradient) / objective.total
                step()
            average = vector.detach() if epoch < self.max_iter // 2 else 0.95 * average + 0.05 * vector.detach()
            return average, matching.value(average)

        average, reason = self.run_epochs(vector, monitor, run)
        return monitor.result(average, reason, len(monitor.history), self.name)


def _first_phase(family: Family, vector: Tensor) -> Natural:
    natural = constrain(unpack(vector, family.n_visible, family.n_hidden, "diagonal"))
    assert isinstance(natural, Natural)
    return map_tensors(change_phase(natural), torch.detach)
