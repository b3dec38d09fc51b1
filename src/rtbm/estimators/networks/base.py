"""The base class of the network estimators: parameters, training, predictions."""

import contextlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn
from torch.nn.utils import vector_to_parameters

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_compute_device,
    check_jobs,
    check_number,
    column_moments,
    distinct_rows,
    split_rows,
)
from rtbm.estimators.networks.task import NetworkRows, NetworkTask, absorb
from rtbm.estimators.parallel import threads_for
from rtbm.estimators.progress import progress_bar
from rtbm.estimators.search import Outcome, count_runs, search
from rtbm.nn.feedforward import ACTIVATIONS
from rtbm.parameters import COUPLINGS
from rtbm.training import make_solver
from rtbm.training.networks import NETWORK_SOLVERS
from rtbm.validation import check_choice, check_integer

INITIALIZATIONS = ("auto", "balanced", "paper")
PREDICTED_ROWS = 2**16
"""NetworkRows for which a network predicts at a time. More rows need more memory."""


class ThetaNet(BaseEstimator):
    """The base class of ThetaNetRegressor and ThetaNetClassifier."""

    n_features_in_: int
    module_: nn.Sequential

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (3, 3, 2),
        *,
        activation: str | Sequence[str] = "theta",
        output_activation: str = "linear",
        coupling: str = "diagonal",
        initialization: str = "auto",
        solver: str = "lbfgs",
        max_iter: int | None = None,
        tol: float = 1e-6,
        n_init: int = 8,
        alpha: float = 1e-4,
        dropout: float = 0.0,
        validation_fraction: float | None = None,
        n_iter_no_change: int = 20,
        batch_size: int | None = None,
        learning_rate: float = 0.01,
        random_state: Any = None,
        n_jobs: int | None = None,
        device: str | None = None,
        verbose: int = 0,
    ):
        self.hidden_layer_sizes = hidden_layer_sizes
        self.activation = activation
        self.output_activation = output_activation
        self.coupling = coupling
        self.initialization = initialization
        self.solver = solver
        self.max_iter = max_iter
        self.tol = tol
        self.n_init = n_init
        self.alpha = alpha
        self.dropout = dropout
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.device = device
        self.verbose = verbose

    @property
    def _loss(self) -> str:
        return "squared_error"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def _fit(self, X: Floats, target: Floats, weights: Floats) -> None:
        """Train on checked data: inputs (n, d), targets (n, n_outputs), weights (n,)."""
        d = X.shape[1]
        if weights.max() > 1e300 / len(weights):
            raise InvalidInputError("sample_weight: its sum leaves float64: divide it by its largest entry")
        seed = int(check_random_state(self.random_state).randint(2**31))
        rows, weights = distinct_rows(np.hstack([X, target]), weights)
        training, held_out = self._split(rows[:, d:], seed)
        centre, scale = column_moments(rows[training, :d], weights[training])
        offset, unit = column_moments(rows[training, d:], weights[training])
        if self.output_activation != "linear" or self._loss != "squared_error":
            offset, unit = 0 * offset, 0 * unit + 1
        rows = (rows - np.concatenate([centre, offset])) / np.concatenate([scale, unit])
        parts = [NetworkRows(rows[i, :d], rows[i, d:], weights[i]) for i in (training, held_out)]
        task = self._task(parts[0], parts[1] if len(held_out) else None, seed)
        bar = progress_bar(count_runs(task), "training", False) if self.verbose else contextlib.nullcontext()
        with bar as report:
            outcome = search(replace(task, report=report))
        network = self._best_network(task, outcome)
        absorb(network, centre, scale, offset, unit)
        self._keep(task, outcome, network)

    def _split(self, target: Floats, seed: int) -> tuple[np.ndarray, np.ndarray]:
        return split_rows(len(target), self.validation_fraction, seed)

    def _best_network(self, task: NetworkTask, outcome: Outcome) -> nn.Sequential:
        best = outcome.results[outcome.best]
        if not math.isfinite(best.objective):
            raise InvalidInputError(
                "X or y: the loss is infinite from every start: look for extreme values, or lower learning_rate"
            )
        network = task.network().eval()
        vector_to_parameters(best.vector.cpu(), network.parameters())
        return network

    def _keep(self, task: NetworkTask, outcome: Outcome, network: nn.Sequential) -> None:
        best = outcome.results[outcome.best]
        if not best.converged:
            warnings.warn(
                f"the solver {best.solver!r} stopped at max_iter={task.solver.max_iter}: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        self._set_network(network, task.sizes, task.activations, task.coupling, task.dropout)
        self.results_, self.history_ = outcome.results, best.history
        self._set_summary(
            {
                "n_parameters": len(best.vector),
                "n_observations": float(task.data.weights.sum()),
                "solver": self.solver,
                "n_init": len(outcome.results),
                "n_iter": best.history[-1].step,
                "reason": best.reason,
                "converged": best.converged,
                "loss": best.objective,
                "seconds": sum(result.seconds for result in outcome.results),
            }
        )

    def _set_network(
        self, network: nn.Sequential, sizes: Sequence[int], activations: Sequence[str], coupling: str, dropout: float
    ) -> None:
        """Keep a trained network and its architecture, because the user may change the parameters afterwards."""
        self.layer_sizes_, self.layer_activations_ = tuple(sizes), tuple(activations)
        self._coupling, self._dropout = coupling, dropout
        self.module_ = network

    def _set_summary(self, summary: dict[str, Any]) -> None:
        self.summary_ = summary
        self.n_parameters_, self.n_iter_ = summary["n_parameters"], summary["n_iter"]
        self.converged_, self.loss_ = summary["converged"], summary["loss"]

    def _task(self, data: NetworkRows, validation: NetworkRows | None, seed: int) -> NetworkTask:
        solver = make_solver(
            self.solver,
            None if self.max_iter is None else int(self.max_iter),
            NETWORK_SOLVERS,
            tol=float(self.tol),
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=float(self.learning_rate),
            seed=seed,
        )
        return NetworkTask(
            sizes=(*(int(size) for size in self._sizes()), data.target.shape[1]),
            activations=(*self._activations(), self.output_activation),
            coupling=self.coupling,
            initialization=self.initialization,
            dropout=float(self.dropout),
            loss=self._loss,
            alpha=float(self.alpha),
            data=data,
            validation=validation,
            solver=solver,
            patience=self.n_iter_no_change,
            n_init=self.n_init,
            n_jobs=self.n_jobs,
            device=self.device,
        )

    def _sizes(self) -> tuple[Any, ...]:
        sizes = self.hidden_layer_sizes
        if isinstance(sizes, Integral):
            return (sizes,)
        if not isinstance(sizes, list | tuple | range | np.ndarray):
            raise InvalidInputError(f"hidden_layer_sizes must be a list of integers, as (3, 3, 2), got {sizes!r}")
        return tuple(sizes)

    def _activations(self) -> tuple[str, ...]:
        names = self.activation
        if isinstance(names, str):
            return (names,) * len(self._sizes())
        if not isinstance(names, list | tuple | np.ndarray):
            raise InvalidInputError(f"activation must be a name or a list of names, got {names!r}")
        return tuple(names)

    def _check_parameters(self) -> None:
        for size in self._sizes():
            check_integer(size, "hidden_layer_sizes", 1)
        names = self._activations()
        if len(names) != len(self._sizes()):
            raise InvalidInputError(
                f"activation must be one name, or one for each of the {len(self._sizes())} hidden layers, got {names!r}"
            )
        for name in names:
            check_choice(name, "activation", ACTIVATIONS)
        check_choice(self.output_activation, "output_activation", ACTIVATIONS)
        check_choice(self.coupling, "coupling", COUPLINGS)
        check_choice(self.initialization, "initialization", INITIALIZATIONS)
        check_choice(self.solver, "solver", tuple(NETWORK_SOLVERS))
        check_integer(self.n_init, "n_init", 1)
        check_integer(self.n_iter_no_change, "n_iter_no_change", 1)
        for name in ("max_iter", "batch_size"):
            if getattr(self, name) is not None:
                check_integer(getattr(self, name), name, 1)
        check_number(self.tol, "tol", 0.0, math.inf)
        check_number(self.alpha, "alpha", 0.0, 1e9)
        check_number(self.learning_rate, "learning_rate", 0.0, math.inf, strict=True)
        check_number(self.dropout, "dropout", 0.0, 0.99)
        if self.dropout and self.solver != "adam":
            raise InvalidInputError(f"dropout needs solver='adam', which bears noise, got solver={self.solver!r}")
        if self.validation_fraction is not None:
            check_number(self.validation_fraction, "validation_fraction", 0.0, 1.0, strict=True)
        check_jobs(self.n_jobs)
        check_compute_device(self.device)

    def _forget(self) -> None:
        """Delete fitted attributes, so that a failed refit leaves no stale state."""
        for name in [name for name in self.__dict__ if name.endswith("_")]:
            del self.__dict__[name]

    def _outputs(self, X: Any) -> Floats:
        """The outputs (n, n_outputs) of the network for data (n, d)."""
        check_is_fitted(self)
        checked = validate_data(self, X, dtype=np.float64, reset=False)
        rows = torch.from_numpy(np.require(checked, requirements="W"))  # torch warns of arrays that cannot be written
        was_training = self.module_.training
        try:
            with torch.no_grad(), threads_for(len(rows)):
                network = self.module_.eval()
                return torch.cat([network(part) for part in rows.split(PREDICTED_ROWS)]).numpy()
        finally:
            self.module_.train(was_training)
