"""Networks of theta units as scikit-learn estimators."""

import contextlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import (
    check_compute_device,
    check_jobs,
    check_number,
    distinct_rows,
    split_classes,
    split_rows,
)
from rtbm.estimators.progress import progress_bar
from rtbm.estimators.search import Outcome, Report, count_runs, search, threads_for
from rtbm.lattice import Floats
from rtbm.nn.networks import ACTIVATIONS, affine_layers, make_network
from rtbm.parameters import HIDDEN
from rtbm.training import Result, Settings, Watch
from rtbm.training.networks import (
    LOSSES,
    NETWORK_ITERATIONS,
    NETWORK_SOLVERS,
    NetworkObjective,
    solve_network,
)
from rtbm.training.resonance import tune
from rtbm.validation import check_choice, check_integer

INITIALIZATIONS = ("auto", "balanced", "paper")
PREDICTED_ROWS = 2**16
"""Rows that a network sees at a time when it predicts."""


class Rows(NamedTuple):
    """Inputs (n, d) of mean 0 and variance 1, targets (n, n_outputs) and weights (n,)."""

    x: Floats
    target: Floats
    weights: Floats


@dataclass(frozen=True)
class NetworkTask:
    """All that training needs, in a form that other processes can be sent."""

    sizes: tuple[int, ...]
    activations: tuple[str, ...]
    hidden: str
    initialization: str
    dropout: float
    loss: str
    alpha: float
    data: Rows
    validation: Rows | None
    settings: Settings
    patience: int
    n_init: int
    n_jobs: int | None
    device: str | None
    report: Report | None = field(default=None, repr=False)
    screen: bool = True

    def network(self, index: int) -> nn.Sequential:
        """The network of a start; with "auto", every other one is tuned to the data where that is possible."""
        seed = self.settings.seed + index
        network = make_network(
            self.data.x.shape[1],
            self.sizes,
            self.activations,
            generator=torch.Generator().manual_seed(seed),
            dtype=torch.float64,
            dropout=self.dropout,
            hidden=self.hidden,
            initialization="paper" if self.initialization == "paper" else "balanced",
        )
        if self.initialization == "auto" and index % 2 == 0:
            tune(network, *self.data, seed=seed, greedy=index == 0)
        return network.to(self.device or "cpu")

    def run(self, index: int, vector: Tensor | None, max_iter: int, report: Report | None) -> Result:
        """One start, or its continuation from a vector."""
        with threads_for(len(self.data.x)):
            objective = self._objective(index, self.data)
            watch = Watch(self._validate(index), self.patience, None if report is None else lambda r: report(index, r))
            settings = replace(self.settings, max_iter=max_iter, seed=self.settings.seed + index)
            return solve_network(objective, objective.start() if vector is None else vector, settings, watch)

    def _objective(self, index: int, rows: Rows, alpha: float | None = None) -> NetworkObjective:
        x, target, weights = (torch.from_numpy(np.ascontiguousarray(part)).to(self.device or "cpu") for part in rows)
        strength = self.alpha if alpha is None else alpha
        return NetworkObjective(self.network(index), LOSSES[self.loss], x, target, weights, strength)

    def _validate(self, index: int) -> Any:
        if self.validation is None:
            return None
        held_out = self._objective(index, self.validation, 0.0)
        return lambda vector: -held_out.value(vector)


class ThetaNet(BaseEstimator):
    """What the regressor and the classifier have in common."""

    n_features_in_: int
    module_: nn.Sequential

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (3, 3, 2),
        *,
        activation: str | Sequence[str] = "theta",
        output: str = "linear",
        hidden: str = "diagonal",
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
        self.output = output
        self.hidden = hidden
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
        centre, scale = _moments(rows[training, :d], weights[training])
        offset, unit = _moments(rows[training, d:], weights[training])
        if self.output != "linear" or self._loss != "squared_error":
            offset, unit = 0 * offset, 0 * unit + 1
        rows = (rows - np.concatenate([centre, offset])) / np.concatenate([scale, unit])
        parts = [Rows(rows[i, :d], rows[i, d:], weights[i]) for i in (training, held_out)]
        task = self._task(parts[0], parts[1] if len(held_out) else None, seed)
        bar = progress_bar(count_runs(task), "training", False) if self.verbose else contextlib.nullcontext()
        with bar as report:
            outcome = search(replace(task, report=report))
        network = self._best_network(task, outcome)
        _absorb(network, centre, scale, offset, unit)
        self._take(task, outcome, network)

    def _split(self, target: Floats, seed: int) -> tuple[np.ndarray, np.ndarray]:
        return split_rows(len(target), self.validation_fraction, seed)

    def _best_network(self, task: NetworkTask, outcome: Outcome) -> nn.Sequential:
        best = outcome.results[outcome.best]
        if not math.isfinite(best.objective):
            raise InvalidInputError(
                "X or y: the loss is infinite from every start: look for extreme values, or lower learning_rate"
            )
        network = task.network(outcome.best).eval()
        vector_to_parameters(best.vector, network.parameters())
        return network.requires_grad_(True).cpu()

    def _take(self, task: NetworkTask, outcome: Outcome, network: nn.Sequential) -> None:
        best = outcome.results[outcome.best]
        if not best.converged:
            warnings.warn(
                f"the solver {best.solver!r} used up its {task.settings.max_iter} iterations: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=4,
            )
        self._set_network(network, task.sizes, task.activations, task.hidden, task.dropout)
        self.results_, self.history_ = outcome.results, best.history
        self._set_summary(
            {
                "n_parameters": len(best.vector),
                "n_observations": float(task.data.weights.sum()),
                "solver": self.solver,
                "n_init": len(outcome.results),
                "n_iter": len(best.history) - 1,
                "reason": best.reason,
                "converged": best.converged,
                "loss": best.objective,
                "seconds": sum(result.seconds for result in outcome.results),
            }
        )

    def _set_network(
        self, network: nn.Sequential, sizes: Sequence[int], activations: Sequence[str], hidden: str, dropout: float
    ) -> None:
        """Keep a trained network, and how it is built: parameters may be set to something else afterwards."""
        self.layer_sizes_, self.layer_activations_ = tuple(sizes), tuple(activations)
        self._hidden, self._dropout = hidden, dropout
        self.module_ = network

    def _set_summary(self, summary: dict[str, Any]) -> None:
        self.summary_ = summary
        self.n_parameters_, self.n_iter_ = summary["n_parameters"], summary["n_iter"]
        self.converged_, self.loss_ = summary["converged"], summary["loss"]

    def _task(self, data: Rows, validation: Rows | None, seed: int) -> NetworkTask:
        max_iter = self.max_iter or NETWORK_ITERATIONS[self.solver]
        size = None if self.batch_size is None else int(self.batch_size)
        settings = Settings(self.solver, int(max_iter), float(self.tol), size, float(self.learning_rate), seed)
        sizes = (*(int(size) for size in self._sizes()), data.target.shape[1])
        return NetworkTask(
            sizes,
            (*self._activations(), self.output),
            self.hidden,
            self.initialization,
            float(self.dropout),
            self._loss,
            float(self.alpha),
            data,
            validation,
            settings,
            self.n_iter_no_change,
            self.n_init,
            self.n_jobs,
            self.device,
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
        check_choice(self.output, "output", ACTIVATIONS)
        check_choice(self.hidden, "hidden", HIDDEN)
        check_choice(self.initialization, "initialization", INITIALIZATIONS)
        check_choice(self.solver, "solver", NETWORK_SOLVERS)
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
        """Forget an earlier fit: if this one fails, nothing must be left that fits neither."""
        for name in [name for name in self.__dict__ if name.endswith("_")]:
            del self.__dict__[name]

    def _outputs(self, X: Any) -> Floats:
        """What the network gives for data (n, d): (n, n_outputs)."""
        check_is_fitted(self)
        rows = torch.from_numpy(validate_data(self, X, dtype=np.float64, reset=False))
        was_training = self.module_.training
        try:
            with torch.no_grad(), threads_for(len(rows)):
                network = self.module_.eval()
                return torch.cat([network(part) for part in rows.split(PREDICTED_ROWS)]).numpy()
        finally:
            self.module_.train(was_training)


class ThetaNetRegressor(RegressorMixin, ThetaNet):
    """Regression by a network of theta units (the paper's section 5), or of theta and ordinary layers.

    The squared error is minimised from several starts. Features are standardised, and targets too if the output layer
    is linear; the trained network has this built in.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int
        Units in each hidden layer.
    activation : str or sequence of str
        The kind of all hidden layers, or one for each: "theta" (or "theta-I"), "theta-II", "tanh", "relu", "linear".
    output : str
        The kind of the output layer, of the same names.
    hidden : "diagonal" or "dense"
        The form of Q of theta layers.
    initialization : "auto", "balanced" or "paper"
        How starts are drawn. "auto": every other start is tuned to the strongest frequencies in the data
        (`rtbm.training.resonance`), where the network allows it, and the others are balanced.
    solver : "lbfgs", "adam" or "cma"
        "lbfgs" takes all data at once, "adam" takes batches, "cma" needs no derivatives.
    max_iter : int
        Iterations, epochs ("adam") or generations ("cma"); None for 500, 300 and 2000.
    tol : float
        Iterations of "lbfgs" and "cma" end when the objective improves by less.
    n_init : int
        Starts. With "lbfgs" all run for a few iterations, and the best three to the end.
    alpha : float
        The strength of the penalty on the slopes of all layers; it fades as data become many.
    dropout : float
        The probability with which outputs of hidden layers are set to 0 in training, with solver="adam".
    validation_fraction : float
        The share of the data that is set aside: iterations end when their loss has not improved for
        `n_iter_no_change` iterations, and the best start and iteration are chosen by it. None sets nothing aside.
    n_iter_no_change : int
        See `validation_fraction`.
    batch_size : int
        Rows in a batch of "adam", by default 128.
    learning_rate : float
        The first step size of "adam"; it falls to a hundredth of that.
    random_state : int, RandomState or None
        The same integer gives the same result, bit for bit.
    n_jobs : int
        Starts that run at the same time, through joblib.
    device : str
        A torch device to train on, as "cuda".
    verbose : int
        Whether to show a progress bar.

    Attributes
    ----------
    module_ : nn.Sequential
        The trained network, on the CPU: it takes features as they are, and gives what `predict` starts from.
    layer_sizes_, layer_activations_ : tuple
        Sizes and kinds of the layers, the output among them.
    history_ : list of Record
        The iterations of the start that was taken; their `validation` is the negative loss on the validation data.
    results_ : list of Result
        The results of all starts, in standardised coordinates; not kept by `rtbm.save`.
    converged_ : bool
        Whether the solver stopped by itself, which "adam" always does: at the end of its schedule.
    loss_ : float
        The objective at the end, in standardised coordinates.
    n_parameters_, n_iter_, n_features_in_ : int
        The number of free parameters of the network, of iterations, and of features.
    summary_ : dict
        These numbers, why the solver stopped, and the seconds that all starts took together.

    Examples
    --------
    >>> import numpy as np
    >>> from rtbm import ThetaNetRegressor
    >>> t = np.linspace(0, 20, 200)[:, None]
    >>> y = 0.1 * t[:, 0] + np.sin(3 * t[:, 0])
    >>> model = ThetaNetRegressor((3,), random_state=0).fit(t, y)
    >>> ahead = model.predict([[25.0]])  # beyond the data
    >>> bool(abs(ahead[0] - (2.5 + np.sin(75.0))) < 0.05)
    True
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on X (n_samples, n_features) and y (n_samples,) or (n_samples, n_outputs).

        A weight of 0 is as if the row were absent, 2 as if it were there twice.
        """
        self._check_parameters()
        self._forget()
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_min_samples=2)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        self._is_flat = y.ndim == 1
        self._fit(X, np.asarray(y, dtype=np.float64).reshape(len(X), -1), weights)
        return self

    def predict(self, X: Any) -> Floats:
        """The predictions (n_samples,), or (n_samples, n_outputs) if y had columns."""
        outputs = self._outputs(X)
        return outputs[:, 0] if self._is_flat else outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ThetaNetClassifier(ClassifierMixin, ThetaNet):
    """Classification by a network of theta units (the paper's section 5), or of theta and ordinary layers.

    Two classes need one output, more need one each. The log-loss of their logistic function or softmax is minimised;
    or, with loss="squared_error", the distance of the outputs from 0 and 1, and the largest one wins.

    Parameters
    ----------
    hidden_layer_sizes, activation, output, hidden, initialization, solver, max_iter, tol, n_init, alpha, dropout
        As in `ThetaNetRegressor`.
    validation_fraction, n_iter_no_change, batch_size, learning_rate, random_state, n_jobs, device, verbose
        As in `ThetaNetRegressor`.
    loss : "log_loss" or "squared_error"
        What is minimised.

    Attributes
    ----------
    classes_ : (n_classes,)
        The labels.
    module_, history_, results_, converged_, loss_, n_parameters_, n_iter_, n_features_in_, summary_
        As in `ThetaNetRegressor`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from rtbm import ThetaNetClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ThetaNetClassifier((3,), random_state=0, n_init=2).fit(X, y)
    >>> bool(model.score(X, y) > 0.95), model.predict_proba(X[:2]).shape
    (True, (2, 3))
    """

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (8,),
        *,
        activation: str | Sequence[str] = "theta",
        output: str = "linear",
        hidden: str = "diagonal",
        loss: str = "log_loss",
        initialization: str = "auto",
        solver: str = "lbfgs",
        max_iter: int | None = None,
        tol: float = 1e-5,
        n_init: int = 4,
        alpha: float = 1.0,
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
        super().__init__(
            hidden_layer_sizes,
            activation=activation,
            output=output,
            hidden=hidden,
            initialization=initialization,
            solver=solver,
            max_iter=max_iter,
            tol=tol,
            n_init=n_init,
            alpha=alpha,
            dropout=dropout,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            batch_size=batch_size,
            learning_rate=learning_rate,
            random_state=random_state,
            n_jobs=n_jobs,
            device=device,
            verbose=verbose,
        )
        self.loss = loss

    @property
    def _loss(self) -> str:
        return self.loss

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on X (n_samples, n_features) and labels y (n_samples,).

        A weight of 0 is as if the row were absent, 2 as if it were there twice.
        """
        self._check_parameters()
        check_choice(self.loss, "loss", tuple(LOSSES))
        self._forget()
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        X, y, weights = (part[weights > 0] for part in (X, y, weights))
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            found = f"one class: {classes[0]!s}" if len(classes) else "no row of positive weight"
            raise InvalidInputError(f"y must hold two classes or more, got {found}")
        target = codes[:, None].astype(np.float64) if len(classes) == 2 else np.eye(len(classes))[codes]
        self._fit(X, target, weights)
        self.classes_, self._trained_loss = classes, self.loss
        return self

    def _split(self, target: Floats, seed: int) -> tuple[np.ndarray, np.ndarray]:
        labels = target[:, 0] if target.shape[1] == 1 else target.argmax(axis=1)
        return split_classes(labels, self.validation_fraction, seed)

    def decision_function(self, X: Any) -> Floats:
        """What is compared: (n_samples,) for two classes, of which the second has positive values; else a column each.

        With log-loss, these are logits.
        """
        outputs = self._outputs(X)
        if len(self.classes_) > 2:
            return outputs
        return outputs[:, 0] - (0.5 if self._trained_loss == "squared_error" else 0.0)

    def predict(self, X: Any) -> np.ndarray:
        """The labels (n_samples,)."""
        scores = self.decision_function(X)
        return self.classes_[scores.argmax(axis=1) if scores.ndim == 2 else (scores > 0).astype(int)]

    def predict_proba(self, X: Any) -> Floats:
        """The probabilities of the classes (n_samples, n_classes).

        With loss="squared_error", they are the probabilities nearest to the outputs, which estimate them themselves.
        """
        outputs = torch.from_numpy(self._outputs(X))
        if self._trained_loss == "squared_error":
            if outputs.shape[1] == 1:
                outputs = torch.cat([1 - outputs, outputs], dim=1)
            return _nearest_probabilities(outputs.numpy())
        if outputs.shape[1] == 1:
            return torch.cat([(-outputs).sigmoid(), outputs.sigmoid()], dim=1).numpy()
        return outputs.softmax(dim=1).numpy()


def _nearest_probabilities(x: Floats) -> Floats:
    """The nearest points with entries from 0 on that add up to 1: every row is shifted, and cut off at 0."""
    falling = -np.sort(-x, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, x.shape[1] + 1)
    last = (falling > excess).sum(axis=1) - 1
    p = np.maximum(x - excess[np.arange(len(x)), last][:, None], 0.0)
    return p / p.sum(axis=1, keepdims=True)


def _moments(x: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Means and standard deviations of columns; 1 for columns that do not vary."""
    mean = weights @ x / weights.sum()
    largest = np.maximum(np.abs(x - mean).max(axis=0), 1e-300)
    deviation = largest * np.sqrt(weights @ ((x - mean) / largest) ** 2 / weights.sum())
    if not np.isfinite(mean).all() or not np.isfinite(deviation).all():
        raise InvalidInputError("X or y: numbers are so large that their sums leave float64: change the unit")
    is_flat = ~(deviation > 1e-12 * np.maximum(np.abs(mean), 1e-300))
    return mean, np.where(is_flat, 1.0, deviation)


@torch.no_grad()
def _absorb(network: nn.Sequential, centre: Floats, scale: Floats, offset: Floats, unit: Floats) -> None:
    """Let a network that was trained on standardised data take and give data as they are."""
    layers = list(affine_layers(network))
    first, last = layers[0], layers[-1]
    first.weight.div_(torch.from_numpy(scale))
    first.bias.sub_(first.weight @ torch.from_numpy(centre))
    if not (np.all(offset == 0) and np.all(unit == 1)):
        last.weight.mul_(torch.from_numpy(unit)[:, None])
        last.bias.mul_(torch.from_numpy(unit)).add_(torch.from_numpy(offset))
