"""Persistent contrastive divergence for diagonal machines: the normaliser's gradient from Gibbs chains that live on."""

import torch
from torch import Tensor

from rtbm.distributions.sampling.annealing import GibbsSampler
from rtbm.parameters import Natural, change_phase, constrain, map_tensors, unpack
from rtbm.training.adam import set_rate
from rtbm.training.batches import ArrayBatches
from rtbm.training.family import Family
from rtbm.training.objective import Objective
from rtbm.training.result import EARLY_STOPPING, SCHEDULE, Result, Watch
from rtbm.training.score_matching import ScoreMatching, check_diagonal

N_CHAINS = 500


def pcd(
    objective: Objective,
    start: Tensor,
    watch: Watch,
    *,
    max_iter: int,
    seed: int,
    batch_size: int | None = None,
    learning_rate: float = 0.02,
    n_steps: int = 2,
) -> Result:
    """Follow the gradient of the log-likelihood, with the expectation under the machine taken over Gibbs chains::

        ∂ mean log P = −mean over data of ∂F(v) + mean over chains of ∂F(v)

    with F the free energy. The history shows the score-matching objective, since the likelihood is not known.

    Parameters
    ----------
    max_iter : int
        Epochs.
    seed : int
        For batches and chains.
    batch_size : int
        Rows for each step; all by default.
    n_steps : int
        Gibbs steps between two steps of the optimiser.
    """
    family, x = objective.family, objective.x
    check_diagonal(family, x, "pcd")
    generator = torch.Generator(x.device).manual_seed(seed)
    batches = ArrayBatches(x, objective.weights, batch_size, seed)
    monitor = ScoreMatching(family, x, objective.weights * objective.total, objective.prior)
    vector, reason = start.clone().requires_grad_(), SCHEDULE
    average = start.clone()
    optimizer = torch.optim.Adam([vector], lr=learning_rate)
    chosen = torch.multinomial(objective.weights, N_CHAINS, replacement=True, generator=generator)
    chains, watch.first_step = x[chosen], 1
    for epoch in range(max_iter):
        set_rate(optimizer, learning_rate, epoch / max_iter)
        for points, weights in batches.epoch(epoch):
            gibbs = GibbsSampler(_first_phase(family, vector.detach()))
            for _ in range(n_steps):
                chains = gibbs.visible(gibbs.hidden(chains, generator), generator)
            machine = family.machine(vector)
            loss = weights @ machine.free_energy(points) / weights.sum() - machine.free_energy(chains).mean()
            (gradient,) = torch.autograd.grad(loss, vector)
            _, pull = objective.prior.penalty(family, vector.detach().cpu().numpy())
            vector.grad = gradient + torch.from_numpy(pull).to(gradient) / objective.total
            optimizer.step()
        average = vector.detach() if epoch < max_iter // 2 else 0.95 * average + 0.05 * vector.detach()
        if watch(average.clone(), monitor.value(average)):
            reason = EARLY_STOPPING
            break
    return watch.result(average, reason, len(watch.history), "pcd")


def _first_phase(family: Family, vector: Tensor) -> Natural:
    natural = constrain(unpack(vector, family.n_visible, family.n_hidden, "diagonal"))
    assert isinstance(natural, Natural)
    return map_tensors(change_phase(natural), torch.detach)
