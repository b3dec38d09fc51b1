"""The paper's section 4: Iris by a single layer 4:3, of theta units or of tanh, trained by full-batch Adam.

Outputs are trained towards 1 for the class and 0 for the others; the largest output is the prediction.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_iris
from sklearn.metrics import precision_score
from sklearn.model_selection import train_test_split
from torch import Tensor

from experiments.experiment import Experiment, Job, Outcome, Picture, ResultTable
from experiments.records import with_deviation
from experiments.verdicts import MIN_PAIRS, Difference, Status, Verdict
from rtbm import plotting
from rtbm.nn import theta_unit
from rtbm.nn.theta_layer import PAPER_RANGE
from rtbm.training.networks import LOSSES

UNIT_KINDS = ("theta", "tanh")
IRIS_TEST_SHARE = 0.4
"""Share of the flowers for testing, as in the paper; it also enters the corrected p-value."""
IRIS_LEARNING_RATE = 0.01
"""Step size of Adam; a larger one converges in fewer iterations than in the paper's figure."""
IRIS_ITERATIONS = (10_000, 400)
"""Iterations of a full run and of a quick one."""
N_CLASSES = 3


def jobs(seeds: int, quick: bool, losses: Iterable[str] = LOSSES) -> list[Job]:
    """One job for each loss and kind of units, with all repetitions at once."""
    pairs = [(kind, loss) for loss in losses for kind in UNIT_KINDS]
    return [Job(f"{_key(*pair)}, {seeds} repetitions", train_units, (*pair, seeds, _marks(quick))) for pair in pairs]


def _marks(quick: bool) -> list[int]:
    """The iterations at which the precision is recorded, on a logarithmic scale."""
    return [0, *np.unique(np.geomspace(1, IRIS_ITERATIONS[quick], 25).round().astype(int)).tolist()]


def _key(kind: str, loss: str) -> str:
    return f"{kind}, {loss}"


def collect(results: Mapping[str, Any], seeds: int, quick: bool) -> Outcome:
    """Curves by kind and loss, and the theta units of the first repetition by loss."""
    by_pair = {key.removesuffix(f", {seeds} repetitions"): result for key, result in results.items()}
    curves = {key: result["curves"] for key, result in by_pair.items()}
    units = {loss: by_pair[_key("theta", loss)]["units"] for loss in LOSSES if _key("theta", loss) in by_pair}
    return {"seeds": seeds, "quick": quick, "marks": _marks(quick), "curves": curves, "units": units}


def split(seed: int) -> tuple[np.ndarray, ...]:
    """Training features, test features, training labels and test labels; standardised by the training data."""
    X, y = load_iris(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=IRIS_TEST_SHARE, random_state=seed)
    mean, deviation = train.mean(axis=0), train.std(axis=0)
    return (train - mean) / deviation, (test - mean) / deviation, y_train, y_test


def train_units(kind: str, loss: str, seeds: int, marks: list[int]) -> dict[str, Any]:
    """The precision of all repetitions at the marks, and the parameters of the first repetition.

    One call trains all repetitions. Adam treats each parameter separately, so they do not influence each other.
    """
    splits = [split(seed) for seed in range(seeds)]
    train, test, labels = (torch.tensor(np.stack(parts)) for parts in list(zip(*splits, strict=True))[:3])
    target = torch.nn.functional.one_hot(labels, N_CLASSES).double()
    parameters = _initial_values(len(splits), train.shape[2])
    optimizer = torch.optim.Adam(parameters, lr=IRIS_LEARNING_RATE)
    curves: dict[str, list[list[float]]] = {"train": [], "test": []}
    for step in range(marks[-1] + 1):
        if step in marks:
            for name, x, i in (("train", train, 2), ("test", test, 3)):
                guesses = _outputs(kind, x, *parameters).detach().argmax(dim=2).numpy()
                pairs = [(parts[i], guess) for parts, guess in zip(splits, guesses, strict=True)]
                scores = [precision_score(*pair, average="macro", zero_division=0) for pair in pairs]
                curves[name].append([float(score) for score in scores])
        optimizer.zero_grad()
        result = _outputs(kind, train, *parameters)
        LOSSES[loss](result.reshape(-1, N_CLASSES), target.reshape(-1, N_CLASSES)).sum().backward()
        optimizer.step()
    return {"curves": curves, "units": [parameter[0].detach().tolist() for parameter in parameters]}


def _initial_values(repetitions: int, n_features: int) -> list[Tensor]:
    """W, b as in torch.nn.Linear, and log q with q uniform in the paper's range; the same for both kinds of units."""
    generator = torch.Generator().manual_seed(0)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(repetitions, *shape, dtype=torch.float64, generator=generator)

    bound = n_features**-0.5
    low, high = PAPER_RANGE
    W, b = bound * (2 * uniform(N_CLASSES, n_features) - 1), bound * (2 * uniform(N_CLASSES) - 1)
    return [part.requires_grad_() for part in (W, b, (low + (high - low) * uniform(N_CLASSES)).log())]


def _outputs(kind: str, x: Tensor, W: Tensor, b: Tensor, log_q: Tensor) -> Tensor:
    """Outputs (repetitions, n, classes). Each theta unit of each repetition is one column of `theta_unit`."""
    u = torch.einsum("rni,roi->nro", x, W) + b
    if kind == "tanh":
        return u.tanh().movedim(0, 1)
    return theta_unit(u.flatten(1), log_q.exp().flatten()).reshape(u.shape).movedim(0, 1)


def compare_units(outcome: Outcome, loss: str, part: str) -> tuple[np.ndarray, np.ndarray, Difference, Difference]:
    """The final precision of theta and of tanh, and their difference: on this data set, and for new flowers.

    All splits share the same 150 flowers, so their spread alone understates the error for new ones.
    """
    theta, tanh = (np.array(outcome["curves"][_key(kind, loss)][part][-1]) for kind in UNIT_KINDS)
    ratio = IRIS_TEST_SHARE / (1 - IRIS_TEST_SHARE)
    return theta, tanh, Difference.paired(theta, tanh), Difference.paired(theta, tanh, ratio)


def tables(outcome: Outcome) -> list[ResultTable]:
    """Precision at the end, with its standard deviation over repetitions, and p-values of the paired difference."""
    rows = []
    for loss, part in itertools.product(LOSSES, ("train", "test")):
        theta, tanh, here, new = compare_units(outcome, loss, part)
        numbers = [with_deviation(theta, ".4f"), with_deviation(tanh, ".4f"), f"{here.mean:+.4f}"]
        rows.append([loss, part, *numbers, f"{here.p_value:.1e}", f"{new.p_value:.1e}"])
    title = f"Precision after {outcome['marks'][-1]} iterations, {outcome['seeds']} repetitions"
    return [ResultTable(title, ["loss", "data", "theta", "tanh", "difference", "p (paired)", "p (corrected)"], rows)]


def verdicts(outcome: Outcome) -> list[Verdict]:
    """The paper's claim: theta units end significantly better than tanh, on training and on test data."""
    if outcome["seeds"] < MIN_PAIRS:
        return [Verdict(Status.NOTED, f"{outcome['seeds']} repetitions are too few for a test.")]
    lines = []
    for loss, part in itertools.product(LOSSES, ("train", "test")):
        _, _, here, new = compare_units(outcome, loss, part)
        word = "better" if here.mean > 0 else "worse"
        words = ["significant" if difference.is_clear else "not significant" for difference in (here, new)]
        status = Status.REPRODUCED if here.mean > 0 and here.is_clear else Status.NOT_REACHED
        text = (
            f"Significantly better than tanh on {part} data, {loss}: theta is {word} by {abs(here.mean):.4f}: "
            f"{words[0]} on these flowers (p = {here.p_value:.1e}), {words[1]} for new ones (p = {new.p_value:.1e})."
        )
        lines.append(Verdict(status, text))
    return lines


def draw(outcome: Outcome) -> Figure:
    """Precision on training and test data against iterations, and the activation functions of one repetition."""
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    x = np.maximum(outcome["marks"], 0.5)
    for ax, part in zip(axes, ("train", "test"), strict=False):
        for kind, colour in zip(UNIT_KINDS, (plotting.DARK, plotting.WARM), strict=True):
            scores = np.array(outcome["curves"][_key(kind, "squared_error")][part])
            mean, deviation = scores.mean(axis=1), scores.std(axis=1, ddof=1)
            ax.plot(x, mean, color=colour, label=kind)
            ax.fill_between(x, mean - deviation, mean + deviation, color=colour, alpha=0.2, lw=0)
        ax.set(xscale="log", xlabel="iterations", title=f"precision, {part} data")
    axes[0].legend(frameon=False)
    W, _, log_q = (torch.tensor(part, dtype=torch.float64) for part in outcome["units"]["squared_error"])
    for j, q in enumerate(log_q.exp()):
        u = 3 * W[j].norm() * torch.linspace(-1, 1, 401, dtype=torch.float64)
        E = theta_unit(u[:, None], q[None])[:, 0]
        axes[2].plot(u, E, color=plt.get_cmap("viridis")(0.1 + 0.35 * j), label=f"q = {float(q):.3g}")
    axes[2].set(xlabel="u", title="learned E(h|v), first repetition")
    axes[2].legend(frameon=False)
    return figure


EXPERIMENT = Experiment(
    title="Iris by one layer",
    about="A single layer 4:3, of theta units or of tanh, trained by Adam on 60 % of the 150 flowers, for two losses. "
    "Each repetition has its own split and initial values. Precision is averaged over the classes.",
    seeds=(100, 20),
    seconds=(230, 13),
    jobs=jobs,
    collect=collect,
    tables=tables,
    verdicts=verdicts,
    pictures=(
        Picture(
            "",
            "Figure of Iris: precision on training and on test data against iterations, mean and standard deviation "
            "of 100 repetitions. Theta units converge more slowly, and end significantly better on both.",
            "The same, with the squared error; on the right the activation functions that one repetition learned.",
            draw,
        ),
    ),
)
