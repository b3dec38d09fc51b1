"""Standardised data, and the training of a network on them from one start."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from rtbm.common import Floats
from rtbm.estimators.multistart import Task
from rtbm.nn.feedforward import affine_layers, make_network
from rtbm.training import Monitor, Record
from rtbm.training.network_starts import start_at_sinusoids
from rtbm.training.networks import LOSSES, NetworkObjective


class NetworkRows(NamedTuple):
    """Inputs (n, d) of mean 0 and variance 1, targets (n, n_outputs) and weights (n,)."""

    x: Floats
    target: Floats
    weights: Floats


@dataclass(frozen=True, kw_only=True)
class NetworkTask(Task):
    """Everything that the training of a network needs.

    Starts run in processes, not in threads: dropout draws from one generator for all threads.
    """

    sizes: tuple[int, ...]
    activations: tuple[str, ...]
    coupling: str
    initialization: str
    dropout: float
    loss: str
    alpha: float
    data: NetworkRows
    validation: NetworkRows | None

    def network(self, index: int = 0) -> nn.Sequential:
        """The network, with initial values of a start."""
        return make_network(
            self.data.x.shape[1],
            self.sizes,
            self.activations,
            generator=torch.Generator().manual_seed(self.solver.seed + index),
            dtype=torch.float64,
            dropout=self.dropout,
            coupling=self.coupling,
            initialization="paper" if self.initialization == "paper" else "balanced",
        )

    def start(self, index: int) -> Tensor:
        """The vector of a start; with "auto", every other one is tuned to the data where that is possible."""
        network = self.network(index)
        if self.initialization == "auto" and index % 2 == 0:
            start_at_sinusoids(network, *self.data, seed=self.solver.seed + index, greedy=index == 0)
        return parameters_to_vector(network.parameters()).detach().to(self.device or "cpu")

    def objective(self) -> NetworkObjective:
        """The penalised loss of the training data."""
        return self._objective(self.data, self.alpha)

    def monitor(self, report: Callable[[Record], None] | None) -> Monitor:
        """A monitor whose validation is the negative loss of the validation data, if there are any."""
        if self.validation is None:
            return Monitor(None, self.patience, report)
        held_out = self._objective(self.validation, 0.0)
        return Monitor(lambda vector: -held_out.value(vector), self.patience, report)

    def _objective(self, rows: NetworkRows, alpha: float) -> NetworkObjective:
        x, target, weights = (torch.from_numpy(np.ascontiguousarray(part)).to(self.device or "cpu") for part in rows)
        return NetworkObjective(self.network().to(x.device), LOSSES[self.loss], x, target, weights, alpha)


@torch.no_grad()
def absorb(network: nn.Sequential, centre: Floats, scale: Floats, offset: Floats, unit: Floats) -> None:
    """Fold the standardisation into the first and last layers: the network then works in the units of the data."""
    layers = list(affine_layers(network))
    first, last = layers[0], layers[-1]
    first.weight.div_(torch.from_numpy(scale))
    first.bias.sub_(first.weight @ torch.from_numpy(centre))
    if not (np.all(offset == 0) and np.all(unit == 1)):
        last.weight.mul_(torch.from_numpy(unit)[:, None])
        last.bias.mul_(torch.from_numpy(unit)).add_(torch.from_numpy(offset))
