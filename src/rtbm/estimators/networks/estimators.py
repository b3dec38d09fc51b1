"""Networks of theta units as scikit-learn estimators."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from numbers import Integral
from typing import Annotated, Any, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.nn.utils import vector_to_parameters

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.base import Estimator
from rtbm.estimators.checks import (
    check_labelled,
    check_number,
    check_rows,
    check_search,
    check_weights,
    column_moments,
    distinct_rows,
    draw_seed,
    forget,
    keep_arguments,
    split_classes,
    split_rows,
)
from rtbm.estimators.multistart import SearchSummary, count_runs, search, task_options
from rtbm.estimators.networks.task import NetworkRows, NetworkTask, absorb
from rtbm.estimators.parallel import threads_for
from rtbm.estimators.progress import progress_bar, watch_of
from rtbm.nn.feedforward import ACTIVATIONS
from rtbm.parameters import COUPLINGS
from rtbm.training import Record, Result
from rtbm.training.networks import LOSSES, NETWORK_SOLVERS
from rtbm.validation import check_choice, check_integer, check_parameter_count

INITIALIZATIONS = ("auto", "balanced", "paper")
PREDICTED_ROWS = 2**16  # rows for which a network predicts at a time
ALIKE, FAR_APART = 1.2, 3.0
"""Starts whose loss is within ALIKE times the best count as other answers. `predict` warns where they are FAR_APART
times as far apart beyond the training data as inside, or as the mean absolute error if that is larger."""


class NetworkSummary(SearchSummary):
    """What a trained network knows about its training."""

    n_parameters: int
    n_observations: float
    loss: float


class ThetaNet(Estimator):
    """The base class of ThetaNetRegressor and ThetaNetClassifier."""

    loss = "squared_error"
    _unsaved = ("results_",)
    n_features_in_: int
    module_: nn.Sequential
    results_: list[Result]
    history_: list[Record]
    layer_sizes_: Annotated[tuple[int, ...], "layers"]
    layer_activations_: Annotated[tuple[str, ...], "layers"]
    n_parameters_: int
    n_iter_: int
    converged_: bool
    loss_: float
    summary_: Annotated[dict[str, Any], NetworkSummary]
    _coupling: str
    _dropout: float

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
        keep_arguments(self, locals())

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "module_")

    def _check_loaded(self) -> None:
        """Check with one row that the attributes of a file belong together."""
        shapes = {np.shape(getattr(self, "_inside", [0] * self.layer_sizes_[-1]))}
        shapes |= {
            _apply(network, np.zeros((1, self.n_features_in_))).shape[1:]
            for network in (self.module_, *getattr(self, "_others", []))
        }
        n_classes = len(getattr(self, "classes_", range(2)))
        is_for_classes = not hasattr(self, "classes_") or self.layer_sizes_[-1] == (1 if n_classes == 2 else n_classes)
        if shapes != {(self.layer_sizes_[-1],)} or not is_for_classes or n_classes < 2:
            raise InvalidInputError(f"layer_sizes_ must end with the number of outputs, got {self.layer_sizes_}")

    def _fit(self, X: Floats, target: Floats, weights: Floats) -> list[nn.Sequential]:
        """Train on checked data: inputs (n, d), targets (n, n_outputs), weights (n,).

        Returned are the networks of other starts whose loss is about as small.
        """
        _refuse_gaps(X)
        d = X.shape[1]
        seed = draw_seed(self.random_state)
        rows, weights = distinct_rows(np.hstack([X, target]), weights)
        training, held_out = self._split(rows[:, d:], seed)
        centre, scale = column_moments(rows[training, :d], weights[training])
        offset, unit = column_moments(rows[training, d:], weights[training])
        if self.output_activation != "linear" or self.loss != "squared_error":
            offset, unit = 0 * offset, 0 * unit + 1
        rows = (rows - np.concatenate([centre, offset])) / np.concatenate([scale, unit])
        parts = [NetworkRows(rows[i, :d], rows[i, d:], weights[i]) for i in (training, held_out)]
        task = self._task(parts[0], parts[1] if len(held_out) else None, seed)

        def trained(vector: Tensor) -> nn.Sequential:
            network = task.network().eval()
            vector_to_parameters(vector.cpu().clone(), network.parameters())  # the parameters are views of it
            absorb(network, centre, scale, offset, unit)
            return network

        with progress_bar(count_runs(task), "training", False, shown=bool(self.verbose)) as report:
            outcome = search(replace(task, report=report, watch=watch_of(self, trained)))
        best = outcome.results[outcome.best]
        if not math.isfinite(best.objective):
            raise InvalidInputError(
                "X or y: the loss is infinite from every start: look for extreme values, or lower learning_rate"
            )
        self._set_network(trained(best.vector), task.sizes, task.activations, task.coupling, task.dropout)
        self.results_, self.history_ = outcome.results, best.history
        known = {"n_parameters": len(best.vector), "n_observations": float(weights[training].sum())}
        self._set_summary(known | outcome.summary(task.solver.max_iter) | {"loss": best.objective})
        others = [result for i, result in enumerate(outcome.results) if i != outcome.best]
        return [trained(result.vector) for result in others if result.objective <= ALIKE * best.objective]

    def _split(self, target: Floats, seed: int) -> tuple[np.ndarray, np.ndarray]:
        return split_rows(len(target), self.validation_fraction, seed)

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
        sizes, activations = self._layers()
        widths = [data.x.shape[1], *sizes, data.target.shape[1]]
        number = sum((a + 3) * b + (b * b if self.coupling == "dense" else 0) for a, b in pairwise(widths))
        check_parameter_count(number, f"hidden_layer_sizes={tuple(sizes)}")
        return NetworkTask(
            sizes=(*sizes, data.target.shape[1]),
            activations=(*activations, self.output_activation),
            coupling=self.coupling,
            initialization=self.initialization,
            dropout=float(self.dropout),
            loss=self.loss,
            alpha=float(self.alpha),
            data=data,
            validation=validation,
            **task_options(self, NETWORK_SOLVERS, seed, **self._batches()),
        )

    def _batches(self) -> dict[str, Any]:
        """The settings of "adam"."""
        if self.solver != "adam":
            return {}
        size = {} if self.batch_size is None else {"batch_size": int(self.batch_size)}
        return size | {"learning_rate": float(self.learning_rate)}

    def _layers(self) -> tuple[list[int], list[str]]:
        """The sizes and kinds of the hidden layers, checked."""
        sizes, names = self.hidden_layer_sizes, self.activation
        if not isinstance(sizes, Integral | list | tuple | range | np.ndarray):
            raise InvalidInputError(f"hidden_layer_sizes must be a list of integers, as (3, 3, 2), got {sizes!r}")
        sizes = [sizes] if isinstance(sizes, Integral) else sizes
        if not isinstance(names, str | list | tuple | np.ndarray):
            raise InvalidInputError(f"activation must be a name or a list of names, got {names!r}")
        names = [names] * len(sizes) if isinstance(names, str) else names
        checked = [check_integer(size, "hidden_layer_sizes", 1) for size in sizes]
        if len(names) != len(sizes):
            raise InvalidInputError(
                f"activation must be one name, or one for each of the {len(sizes)} hidden layers, got {tuple(names)!r}"
            )
        return checked, [check_choice(name, "activation", ACTIVATIONS) for name in names]

    def _check_parameters(self) -> None:
        self._layers()
        check_choice(self.output_activation, "output_activation", ACTIVATIONS)
        check_choice(self.initialization, "initialization", INITIALIZATIONS)
        check_choice(self.coupling, "coupling", COUPLINGS)
        check_search(self, NETWORK_SOLVERS)
        check_number(self.learning_rate, "learning_rate", 0.0, math.inf, strict=True)
        if self.batch_size is not None:
            check_integer(self.batch_size, "batch_size", 1)
        check_number(self.alpha, "alpha", 0.0, 1e9)
        check_number(self.dropout, "dropout", 0.0, 0.99)
        if self.dropout and self.solver != "adam":
            raise InvalidInputError(
                f"dropout needs solver='adam', since its gradients are random, got solver={self.solver!r}"
            )

    def _outputs(self, X: Any) -> Floats:
        """The outputs (n, n_outputs) of the network for data (n, d)."""
        check_is_fitted(self)
        checked = check_rows(self, X, ensure_all_finite="allow-nan", reset=False)
        _refuse_gaps(checked)
        was_training = self.module_.training
        try:
            return _apply(self.module_.eval(), checked)
        finally:
            self.module_.train(was_training)


class ThetaNetRegressor(RegressorMixin, ThetaNet):
    """Regression by a network of theta units (the paper's section 4), or of theta and ordinary layers.

    The squared error is minimised from several starts. Features are standardised, and targets too if the output layer
    is linear; the trained network has this built in.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, default=(3, 3, 2)
        The number of units in each hidden layer.
    activation : str or sequence of str, default="theta"
        The kind of all hidden layers, or one for each: "theta" (or "theta-I"), "theta-II", "tanh", "relu", "linear".
    output_activation : str, default="linear"
        The kind of the output layer, one of the same names.
    coupling : "diagonal" or "dense", default="diagonal"
        Whether the matrix Q of theta layers is diagonal or dense.
    initialization : "auto", "balanced" or "paper", default="auto"
        How starts are drawn. With "auto", every other start is tuned to the strongest frequencies in the data
        (`rtbm.training.network_starts`), where the network allows it, and the others are "balanced".
    solver : "lbfgs", "adam" or "cma", default="lbfgs"
        "lbfgs" uses all data in each iteration, "adam" uses batches, "cma" needs no derivatives.
    max_iter : int, default=None
        The largest number of iterations, epochs ("adam") or generations ("cma"); None for 500, 300 and 2000.
    tol : float, default=1e-6
        Iterations of "lbfgs" and "cma" end when the objective improves by less.
    n_init : int, default=8
        The number of starts. With "lbfgs" all run for a few iterations, and the best three to the end.
    alpha : float, default=1e-4
        The strength of the penalty on the slopes of all layers. The penalty matters less as the data grow.
    dropout : float, default=0
        The probability with which outputs of hidden layers are set to 0 in training, with solver="adam".
    validation_fraction : float, default=None
        The share of the data that is set aside for validation. Iterations end when the loss of these data has not
        improved for `n_iter_no_change` iterations; the best start and iteration are those with the lowest one. None
        sets nothing aside.
    n_iter_no_change : int, default=20
        See `validation_fraction`.
    batch_size : int, default=None
        The number of rows in a batch of "adam"; None for 128.
    learning_rate : float, default=0.01
        The first step size of "adam"; it falls to a hundredth of that.
    random_state : int, Generator, RandomState or None, default=None
        The same integer gives the same result, bit for bit.
    n_jobs : int, default=None
        The number of starts that run at the same time, through joblib. -1 for all cores.
    device : str, default=None
        A torch device to train on, as "cuda"; None for the CPU.
    verbose : int, default=0
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

    _is_flat: bool
    _others: nn.ModuleList
    _inside: Floats
    _low: Annotated[Floats, "d"]
    _high: Annotated[Floats, "d"]

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on X (n_samples, n_features) and y (n_samples,) or (n_samples, n_outputs).

        A weight of k equals repeating the row k times; a weight of 0 drops it.
        """
        self._check_parameters()
        forget(self, "_others", "_inside", "_low", "_high")
        options = {"ensure_all_finite": "allow-nan", "multi_output": True, "y_numeric": True, "ensure_min_samples": 2}
        X, y = check_rows(self, X, y, **options)
        weights = check_weights(sample_weight, X)
        self._is_flat = y.ndim == 1
        target = np.asarray(y, dtype=np.float64).reshape(len(X), -1)
        others = self._fit(X, target, weights)
        X, target = X[weights > 0], target[weights > 0]
        outputs = _apply(self.module_, X)
        apart = [_mean_size(_apply(other, X) - outputs) for other in others]
        self._inside = np.max([_mean_size(target - outputs), *apart], axis=0)
        self._others, self._low, self._high = nn.ModuleList(others), X.min(axis=0), X.max(axis=0)
        return self

    def predict(self, X: Any) -> Floats:
        """The predictions (n_samples,), or (n_samples, n_outputs) if y had columns.

        A warning says where starts with nearly the same loss disagree beyond the range of the training data.
        """
        outputs = self._outputs(X)
        rows = check_rows(self, X, reset=False)
        beyond = ((rows < self._low) | (rows > self._high)).any(axis=1)
        if beyond.any():
            self._warn_of_disagreement(rows[beyond], outputs[beyond])
        return outputs[:, 0] if self._is_flat else outputs

    def _warn_of_disagreement(self, X: Floats, outputs: Floats) -> None:
        apart = [_mean_size(_apply(other, X) - outputs) for other in self._others]
        ratio = max((float((each / np.maximum(self._inside, 1e-300)).max()) for each in apart), default=0.0)
        if ratio > FAR_APART:
            warnings.warn(
                f"{len(X)} rows lie beyond the training data, where networks from other starts with about the same "
                f"loss predict something else: their distance is {ratio:.2g} times that inside (or the training "
                "error): do not rely on these rows, or fit fewer units to more data",
                stacklevel=3,
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class ThetaNetClassifier(ClassifierMixin, ThetaNet):
    """Classification by a network of theta units (the paper's section 4), or of theta and ordinary layers.

    Two classes need one output, more need one each. The log-loss of their logistic function or softmax is minimised;
    or, with loss="squared_error", the distance of the outputs from 0 and 1, and the largest one wins.

    Parameters
    ----------
    hidden_layer_sizes : sequence of int, default=(8,)
    tol : float, default=1e-5
    n_init : int, default=4
    alpha : float, default=1.0
        As in `ThetaNetRegressor`, with other defaults.
    activation, output_activation, coupling, initialization, solver, max_iter, dropout, validation_fraction
        As in `ThetaNetRegressor`.
    n_iter_no_change, batch_size, learning_rate, random_state, n_jobs, device, verbose
        As in `ThetaNetRegressor`.
    loss : "log_loss" or "squared_error", default="log_loss"
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

    classes_: Annotated[np.ndarray, "classes"]
    _trained_loss: str

    def __init__(
        self,
        hidden_layer_sizes: Sequence[int] = (8,),
        *,
        activation: str | Sequence[str] = "theta",
        output_activation: str = "linear",
        coupling: str = "diagonal",
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
        keep_arguments(self, locals())

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train the network on X (n_samples, n_features) and labels y (n_samples,).

        A weight of k equals repeating the row k times; a weight of 0 drops it.
        """
        self._check_parameters()
        check_choice(self.loss, "loss", tuple(LOSSES))
        forget(self)
        X, y, weights = check_labelled(self, X, y, sample_weight)
        classes, codes = np.unique(y, return_inverse=True)
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


def _apply(network: nn.Module, X: Floats) -> Floats:
    """The outputs (n, n_outputs) of a network for rows X (n, d)."""
    rows = torch.from_numpy(np.require(X, requirements="W"))  # torch warns of arrays that cannot be written
    with torch.no_grad(), threads_for(len(rows)):
        return torch.cat([network(part) for part in rows.split(PREDICTED_ROWS)]).numpy()


def _mean_size(x: Floats) -> Floats:
    """The mean absolute value of each column."""
    return np.abs(x).mean(axis=0)


def _refuse_gaps(X: Floats) -> None:
    if np.isnan(X).any():
        raise InvalidInputError(
            f"X holds {int(np.isnan(X).sum())} missing cells (NaN), which networks do not take: impute them first, for "
            "example with RTBMDensityCV().fit(X).impute(X)"
        )


def _nearest_probabilities(x: Floats) -> Floats:
    """The nearest points of the probability simplex, row by row."""
    falling = -np.sort(-x, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1) / np.arange(1, x.shape[1] + 1)
    last = (falling > excess).sum(axis=1) - 1
    p = np.maximum(x - excess[np.arange(len(x)), last][:, None], 0.0)
    return p / p.sum(axis=1, keepdims=True)
