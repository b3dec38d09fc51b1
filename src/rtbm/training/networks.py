"""What is minimised when a network is trained, and the solvers for it."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rtbm.nn.feedforward import affine_layers
from rtbm.nn.theta_layer import ThetaLayer
from rtbm.training.objective import FAILURES
from rtbm.training.solvers import CMA, LBFGS
from rtbm.training.solvers.base import EARLY_STOPPING, SCHEDULE, Monitor, Result, Solver

NETWORK_BATCH = 128
"""Rows in a batch of Adam, by default. Smaller batches make more steps an epoch, with noisier gradients."""
FINAL_RATE = 0.01
"""The last learning rate of Adam, as a share of the first. A larger one ends with noisier parameters."""
CMA_SPREAD = 0.01
"""The standard deviation of the first generation. It is small, because starts are tuned to the data; CMA-ES widens it
where that helps."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""The loss of each row (n,), of outputs and targets (n, n_outputs)."""


def squared_error(output: Tensor, target: Tensor) -> Tensor:
    """The mean of the squared errors of a row.

    Examples
    --------
    >>> squared_error(torch.zeros(1, 2), torch.tensor([[1.0, 2.0]]))
    tensor([2.5000])
    """
    return (output - target).square().mean(dim=1)


def log_loss(output: Tensor, target: Tensor) -> Tensor:
    """The negative logarithm of the probability of the target, which is one-hot, or one column of 0 and 1.

    Examples
    --------
    >>> log_loss(torch.zeros(1, 4), torch.tensor([[0.0, 0.0, 1.0, 0.0]]))  # log 4
    tensor([1.3863])
    """
    if output.shape[1] == 1:
        return nn.functional.binary_cross_entropy_with_logits(output, target, reduction="none")[:, 0]
    return -(target * output.log_softmax(dim=1)).sum(dim=1)


LOSSES: dict[str, Loss] = {"squared_error": squared_error, "log_loss": log_loss}


class NetworkObjective:
    """The weighted mean loss of a network plus a penalty, as a function of the vector of its parameters::

        Σ_i weights_i loss_i / Σ weights + ½ alpha Σ_layers ‖slope‖² / Σ weights

    The slope of a linear layer is its matrix W, and that of a theta layer Q⁻¹W, its trend.

    Parameters
    ----------
    network : nn.Module
        The network; its parameters are changed by every call.
    loss : function
        See `Loss`.
    x, target : (n, n_inputs), (n, n_outputs)
        The data.
    weights : (n,)
        Positive.
    alpha : float, default=0
        The strength of the penalty.

    Examples
    --------
    >>> from rtbm.nn.feedforward import make_network
    >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
    >>> network = make_network(1, [1], ["linear"], dtype=torch.float64)
    >>> objective = NetworkObjective(network, squared_error, x, 2 * x + 1, torch.ones(50, dtype=torch.float64))
    >>> NETWORK_SOLVERS["lbfgs"]().minimise(objective, objective.start()).vector.round(decimals=3)
    tensor([2., 1.], dtype=torch.float64)
    """

    network: nn.Module
    loss: Loss
    x: Tensor
    target: Tensor
    total: float
    weights: Tensor
    alpha: float
    evaluations: int

    def __init__(self, network: nn.Module, loss: Loss, x: Tensor, target: Tensor, weights: Tensor, alpha: float = 0.0):
        self.network, self.loss, self.x, self.target = copy.deepcopy(network), loss, x, target
        self.total = float(weights.sum())
        self.weights, self.alpha = weights, alpha
        self.evaluations = 0

    def start(self) -> Tensor:
        """The vector of the present parameters."""
        return parameters_to_vector(self.network.parameters()).detach().clone()

    def penalty(self) -> Tensor:
        """The penalty of the present parameters."""
        zero = self.weights.new_zeros(())
        if not self.alpha:
            return zero
        squares = [_slope(layer).square().sum() for layer in affine_layers(self.network)]
        return 0.5 * self.alpha / self.total * sum(squares, start=zero)

    def value(self, vector: Tensor) -> float:
        """The objective, infinite where the parameters leave float64."""
        self.evaluations += 1
        try:
            with torch.no_grad():
                value = float(self._evaluate(vector))
        except FAILURES:
            return math.inf
        return value if math.isfinite(value) else math.inf

    def with_gradient(self, vector: Tensor, rows: Tensor | None = None) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64.

        With `rows`, they are those of a batch of rows that were drawn by their weights, with dropout.
        """
        self.evaluations += rows is None
        try:
            loss = self._evaluate(vector, rows)
            parts = torch.autograd.grad(loss, list(self.network.parameters()))
        except FAILURES:
            return math.inf, torch.zeros_like(vector)
        value, gradient = float(loss.detach()), torch.cat([part.reshape(-1) for part in parts])
        if not (math.isfinite(value) and bool(torch.isfinite(gradient).all())):
            return math.inf, torch.zeros_like(vector)
        return value, gradient

    def _evaluate(self, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        self.network.train(rows is not None)
        vector_to_parameters(vector, self.network.parameters())
        if rows is not None:
            return self.loss(self.network(self.x[rows]), self.target[rows]).mean() + self.penalty()
        return self.weights @ self.loss(self.network(self.x), self.target) / self.total + self.penalty()


@dataclass(frozen=True)
class NetworkAdam(Solver):
    """Adam, with a step for every batch of shuffled rows, for `max_iter` epochs.

    The learning rate falls along half a cosine to FINAL_RATE times the first one. Rows are drawn by their weights. A
    heavy row is drawn often; a larger gradient instead would have little effect, because Adam divides gradients by
    their size.

    Attributes
    ----------
    batch_size : int, default=128
        The number of rows in a batch.
    learning_rate : float, default=0.01
        The first step size.
    """

    max_iter: int = 300
    batch_size: int = NETWORK_BATCH
    learning_rate: float = 0.01
    name: ClassVar[str] = "adam"
    unit: ClassVar[str] = "epoch"

    def _minimise(self, objective: NetworkObjective, start: Tensor, monitor: Monitor) -> Result:
        weights, vector = objective.weights.cpu(), start.clone()
        generator, optimizer = torch.Generator().manual_seed(self.seed), torch.optim.Adam([vector])
        reason, devices = SCHEDULE, [vector.device] if vector.is_cuda else []
        with torch.random.fork_rng(devices):  # dropout draws from the global generator
            torch.manual_seed(self.seed)
            monitor(vector.clone(), objective.value(vector))
            for epoch in range(self.max_iter):
                fall = 0.5 * (1 + math.cos(math.pi * epoch / self.max_iter))
                optimizer.param_groups[0]["lr"] = self.learning_rate * (FINAL_RATE + (1 - FINAL_RATE) * fall)
                for rows in _draw_rows(weights, generator).split(self.batch_size):
                    loss, vector.grad = objective.with_gradient(vector, rows.to(vector.device))
                    if math.isfinite(loss):
                        optimizer.step()
                if monitor(vector.clone(), objective.value(vector)):
                    reason = EARLY_STOPPING
                    break
        return monitor.result(vector, reason, objective.evaluations, self.name)


NETWORK_SOLVERS: dict[str, Callable[..., Solver]] = {
    "lbfgs": partial(LBFGS, max_iter=500),
    "adam": NetworkAdam,
    "cma": partial(CMA, max_iter=2000, spread=CMA_SPREAD),
}
"""The solvers of networks by name."""


def _draw_rows(weights: Tensor, generator: torch.Generator) -> Tensor:
    """The numbers of all rows in random order; of unequal weights, as many draws, each as likely as its weight says."""
    if bool((weights == weights[0]).all()):
        return torch.randperm(len(weights), generator=generator)
    return torch.multinomial(weights, len(weights), replacement=True, generator=generator)


def _slope(layer: nn.Linear | ThetaLayer) -> Tensor:
    if isinstance(layer, nn.Linear):
        return layer.weight
    Q = layer.Q
    return layer.weight / Q[:, None] if Q.ndim == 1 else torch.linalg.solve(Q, layer.weight)
