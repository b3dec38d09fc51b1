"""The paper's section 5: Iris by a single layer 4:3, of theta units or of tanh, trained by Adam on all data at once.

40 % of the data are for testing, and every repetition has a split and initial values of its own. Outputs are trained
towards 1 for the class and 0 for the others, and the largest one wins. Both kinds of units see the same splits.
"""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from sklearn.metrics import precision_score
from sklearn.model_selection import train_test_split
from torch import Tensor

from rtbm import plotting
from rtbm.nn import theta_unit
from rtbm.nn.theta_layer import PAPER_RANGE
from rtbm.paper.experiment import NOT_REACHED, NOTED, REPRODUCED, Experiment, Job, Outcome, Picture, Table, Verdict
from rtbm.training.networks import LOSSES, Loss

UNITS = ("theta", "tanh")
TEST_SIZE = 0.4
LEARNING_RATE = 0.01
ITERATIONS, QUICK_ITERATIONS = 10_000, 400
N_CLASSES = 3
ENOUGH = 6
"""Repetitions that a test needs."""


def jobs(seeds: int, quick: bool) -> list[Job]:
    """All repetitions at once, for both losses and both kinds of units."""
    marks = _marks(quick)
    pairs = [(kind, loss) for loss in LOSSES for kind in UNITS]
    return [Job(f"{_key(*pair)}, {seeds} repetitions", run_one, (*pair, seeds, marks)) for pair in pairs]


def _marks(quick: bool) -> list[int]:
    """The iterations whose precision is kept."""
    iterations = QUICK_ITERATIONS if quick else ITERATIONS
    return [0, *np.unique(np.geomspace(1, iterations, 25).round().astype(int)).tolist()]


def _key(kind: str, loss: str) -> str:
    return f"{kind}, {loss}"


def run_one(kind: str, loss: str, seeds: int, marks: list[int]) -> dict[str, Any]:
    """The curves of all repetitions, and the parameters of the first."""
    curves, parameters = _train(kind, LOSSES[loss], [_split(seed) for seed in range(seeds)], marks)
    return {"curves": curves, "units": parameters}


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """Curves by kind and loss, and the theta units of the first repetition by loss."""
    by_pair = {key.removesuffix(f", {seeds} repetitions"): result for key, result in results.items()}
    curves = {key: result["curves"] for key, result in by_pair.items()}
    units = {loss: by_pair[_key("theta", loss)]["units"] for loss in LOSSES}
    return {"seeds": seeds, "quick": quick, "marks": _marks(quick), "curves": curves, "units": units}


def _split(seed: int) -> tuple[np.ndarray, ...]:
    """Standardised features and labels: for training, for testing."""
    X, y = load_iris(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=TEST_SIZE, random_state=seed)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    return (train - mean) / deviation, (test - mean) / deviation, y_train, y_test


def _train(kind: str, loss: Loss, splits: list[Any], marks: list[int]) -> tuple[dict[str, Any], Any]:
    """Train all repetitions side by side: Adam works on each parameter alone, so they do not see each other."""
    train, test = (torch.tensor(np.stack([split[i] for split in splits])) for i in (0, 1))
    labels = torch.tensor(np.stack([split[2] for split in splits]))
    target = torch.nn.functional.one_hot(labels, N_CLASSES).double()
    parameters = _initial_values(len(splits), train.shape[2])
    outputs = _theta_outputs if kind == "theta" else _tanh_outputs
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE)
    curves: dict[str, list[list[float]]] = {"train": [], "test": []}
    for step in range(marks[-1] + 1):
        if step in marks:
            for name, x, i in (("train", train, 2), ("test", test, 3)):
                curves[name].append(_precisions(outputs(x, *parameters), [split[i] for split in splits]))
        optimizer.zero_grad()
        result = outputs(train, *parameters)
        loss(result.reshape(-1, N_CLASSES), target.reshape(-1, N_CLASSES)).sum().backward()
        optimizer.step()
    return curves, [parameter[0].detach().tolist() for parameter in parameters]


def _initial_values(repetitions: int, n_features: int) -> list[Tensor]:
    """W and b as in torch.nn.Linear, log q with q uniform in the paper's range; the same for both kinds of units."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(repetitions, *shape, dtype=torch.float64, generator=generator)

    bound = n_features**-0.5
    low, high = PAPER_RANGE
    W, b = bound * (2 * uniform(N_CLASSES, n_features) - 1), bound * (2 * uniform(N_CLASSES) - 1)
    return [part.requires_grad_() for part in (W, b, (low + (high - low) * uniform(N_CLASSES)).log())]


def _arguments(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    return torch.einsum("rni,roi->nro", x, W) + b


def _theta_outputs(x: Tensor, W: Tensor, b: Tensor, log_q: Tensor) -> Tensor:
    """(repetitions, n, classes). Every unit of every repetition is a column of its own."""
    u = _arguments(x, W, b)
    return theta_unit(u.flatten(1), log_q.exp().flatten()).reshape(u.shape).movedim(0, 1)


def _tanh_outputs(x: Tensor, W: Tensor, b: Tensor, log_q: Tensor) -> Tensor:
    return _arguments(x, W, b).tanh().movedim(0, 1) + 0 * log_q.sum()


def _precisions(outputs: Tensor, labels: list[np.ndarray]) -> list[float]:
    """The precision of each repetition, averaged over the classes."""
    guesses = outputs.detach().argmax(dim=2).numpy()
    score: Callable[..., float] = precision_score
    return [float(score(y, g, average="macro", zero_division=0)) for y, g in zip(labels, guesses, strict=True)]


def _final(outcome: Outcome, loss: str, part: str) -> tuple[np.ndarray, np.ndarray]:
    theta, tanh = (np.array(outcome["curves"][f"{kind}, {loss}"][part][-1]) for kind in UNITS)
    return theta, tanh


def _p_values(theta: np.ndarray, tanh: np.ndarray) -> tuple[float, float]:
    """Two-sided t-tests of paired differences: plain, and with the variance of Nadeau and Bengio.

    The plain one asks whether the difference is there on this data set. All splits share its 150 flowers, and so the
    plain variance is too small to speak of new flowers; the other is enlarged by the ratio of test to training data.
    """
    from scipy.stats import t

    difference = theta - tanh
    n, variance = len(difference), float(difference.var(ddof=1))
    if variance == 0:
        return (1.0, 1.0) if difference[0] == 0 else (0.0, 0.0)
    factors = (1 / n, 1 / n + TEST_SIZE / (1 - TEST_SIZE))
    first, second = (2 * float(t.sf(abs(difference.mean()) / (f * variance) ** 0.5, n - 1)) for f in factors)
    return first, second


def tables(outcome: Outcome) -> list[Table]:
    """Precision at the end, with standard deviation over repetitions, and the paired test."""
    rows = []
    for loss in LOSSES:
        for part in ("train", "test"):
            theta, tanh = _final(outcome, loss, part)
            rows.append(
                [
                    loss,
                    part,
                    f"{theta.mean():.4f} ± {theta.std(ddof=1):.4f}",
                    f"{tanh.mean():.4f} ± {tanh.std(ddof=1):.4f}",
                    f"{(theta - tanh).mean():+.4f}",
                    *(f"{p:.1e}" for p in _p_values(theta, tanh)),
                ]
            )
    title = f"Precision after {outcome['marks'][-1]} iterations, {outcome['seeds']} repetitions"
    return [Table(title, ["loss", "data", "theta", "tanh", "difference", "p (paired)", "p (corrected)"], rows)]


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The paper: theta converges more slowly, and ends significantly better on training and test data."""
    if outcome["seeds"] < ENOUGH:
        return [Verdict(NOTED, f"{outcome['seeds']} repetitions are too few for a test.")]
    lines = []
    for loss in LOSSES:
        for part in ("train", "test"):
            theta, tanh = _final(outcome, loss, part)
            difference, (p, corrected) = float((theta - tanh).mean()), _p_values(theta, tanh)
            word = "better" if difference > 0 else "worse"
            here, new = ("significant" if x < 0.05 else "not significant" for x in (p, corrected))
            status = REPRODUCED if difference > 0 and p < 0.05 else NOT_REACHED
            text = (
                f"Significantly better than tanh on {part} data, {loss}: theta is {word} by {abs(difference):.4f}: "
                f"{here} on these flowers (p = {p:.1e}), {new} for new ones (p = {corrected:.1e})."
            )
            lines.append(Verdict(status, text))
    return lines


def draw(outcome: Outcome) -> Figure:
    """Precision on training and test data against iterations, and the activation functions of one repetition."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    curves = {kind: outcome["curves"][_key(kind, "squared_error")] for kind in UNITS}
    draw_curves(axes[:2], outcome["marks"], curves)
    draw_units(axes[2], outcome["units"]["squared_error"])
    axes[2].set(title="learned E(h|v), first repetition")
    return figure


def draw_curves(axes: Any, marks: list[int], curves: Mapping[str, Any]) -> None:
    """Mean and standard deviation of the precision on training and test data, for both kinds of units."""
    x = np.maximum(marks, 0.5)
    for ax, part in zip(axes, ("train", "test"), strict=True):
        for kind, colour in zip(UNITS, (plotting.DARK, plotting.WARM), strict=True):
            scores = np.array(curves[kind][part])
            mean, deviation = scores.mean(axis=1), scores.std(axis=1, ddof=1)
            ax.plot(x, mean, color=colour, label=kind)
            ax.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.2, lw=0)
        ax.set(xscale="log", xlabel="iterations", title=f"precision, {part} data")
    axes[0].legend(frameon=False)


def draw_units(ax: Any, parameters: Any) -> None:
    """The activation functions of the three units."""
    W, _, log_q = (torch.tensor(part, dtype=torch.float64) for part in parameters)
    for j in range(N_CLASSES):
        u = 3 * W[j].norm() * torch.linspace(-1, 1, 401, dtype=torch.float64)
        E = theta_unit(u[:, None], log_q[j : j + 1].exp())[:, 0]
        ax.plot(u, E, color=plt.get_cmap("viridis")(0.1 + 0.35 * j), label=f"q = {float(log_q[j].exp()):.3g}")
    ax.set(xlabel="u")
    ax.legend(frameon=False)


EXPERIMENT = Experiment(
    "Iris by one layer",
    "A single layer 4:3, of theta units or of tanh, trained by Adam on 60 % of the 150 flowers, in repetitions with a "
    "split and initial values of their own, for two losses. Precision is averaged over the classes.",
    100,
    20,
    (230, 13),
    jobs,
    collect,
    tables,
    verdicts,
    (
        Picture(
            "",
            "Figure of Iris: precision on training and on test data against iterations, mean and standard deviation "
            "of 100 repetitions. Theta units converge more slowly, and end significantly better on both.",
            "The same, with the squared error; on the right the activation functions that one repetition learned.",
            draw,
        ),
    ),
)
