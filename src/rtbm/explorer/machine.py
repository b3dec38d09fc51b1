"""What the tab of the machine computes: machines from the values of sliders, and the numbers of their pictures."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.distributions import DiscreteGaussian, RTBMDistribution
from rtbm.plotting import SMALLEST_COMPONENT, NormalPart

Size = tuple[int, int]
SIZES: dict[str, Size] = {"1 visible, 1 hidden": (1, 1), "1 visible, 2 hidden": (1, 2), "2 visible, 2 hidden": (2, 2)}
"""The numbers of visible and hidden units, by the name that is shown."""
FIELDS = {
    "paper": {"T": "vv", "W": "vh", "Q": "hh", "b_v": "v", "b_h": "h"},
    "lattice": {"A": "hh", "a": "h", "F": "vh", "mean": "v", "covariance": "vv"},
}
"""The parameters of both kinds, and whether their axes are visible or hidden units; "vv" and "hh" are symmetric."""
RANGES = {"T": 8.0, "Q": 16.0, "A": 16.0, "covariance": 6.0}
"""Upper ends of the sliders of diagonal entries. Values beyond them widen the slider."""
OTHER_RANGE = 8.0
"""The sliders of all other entries reach from −OTHER_RANGE to it."""
LINE_POINTS, PLANE_POINTS = 300, 64
"""Points of a curve, and of each side of a picture in two dimensions. More are smoother, and slower to move."""
WIDTHS = 5.0
"""Standard deviations on either side of the mean that pictures show."""
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉"
DENSITY_MACHINES: dict[str, list[Any]] = {
    "I": [
        ([[1.0]], [[3.0]], [[12.0]], [0.0], [6.0]),
        ([[2.0]], [[4.0, 2.0]], [[12.0, 1.0], [1.0, 6.0]], [0.0], [2.0, -1.0]),
        ([[4.0]], [[6.0, 3.0]], [[11.0, 4.0], [4.0, 5.0]], [0.0], [3.0, 0.5]),
    ],
    "II": [
        ([[0.3]], [[2.5]], [[1.5]], [0.0], [0.5]),
        ([[0.2]], [[1.5, 3.5]], [[2.5, 0.5], [0.5, 2.0]], [0.0], [0.3, 1.0]),
        ([[0.15]], [[1.0, 4.0]], [[1.6, -0.6], [-0.6, 2.4]], [0.1], [1.5, 0.0]),
    ],
}
"""T, W, Q, b_v, b_h of the machines whose density is drawn, by phase."""
EXPECTATION_MACHINES: dict[str, list[Any]] = {
    "I": [
        ([[1.0]], [[1.0]], [[4.0]], [0.0], [0.0]),
        ([[1.0]], [[3.0]], [[24.0]], [0.0], [1.0]),
        ([[6.0]], [[6.0, 2.0]], [[14.0, 4.0], [4.0, 10.0]], [0.0], [0.0, 2.0]),
    ],
    "II": [
        ([[1.0]], [[1.0]], [[2.0]], [0.0], [0.0]),
        ([[1.0]], [[1.5]], [[6.0]], [0.0], [1.0]),
        ([[1.0]], [[1.0, 2.0]], [[2.5, 1.0], [1.0, 3.0]], [0.0], [0.0, 1.0]),
    ],
}
"""T, W, Q, b_v, b_h of the machines whose expectations are drawn, by phase."""


class Parameter(NamedTuple):
    """One entry of a parameter of a machine, and the range of its slider."""

    field: str
    entry: tuple[int, ...]
    label: str
    low: float
    high: float


class MachinePicture(NamedTuple):
    """The numbers of all pictures of a machine; axes are points of each visible unit, all grids are (y, x)."""

    axes: Sequence[Floats]
    p: Floats
    expectations: Sequence[Floats]
    components: list[NormalPart]
    draws: Floats
    states: Floats
    shares: Floats
    numbers: dict[str, str]


def parameters(size: Size, kind: str) -> list[Parameter]:
    """The sliders of a machine.

    Examples
    --------
    >>> [parameter.label for parameter in parameters((1, 2), "paper")]
    ['T', 'W₁', 'W₂', 'Q₁₁', 'Q₁₂', 'Q₂₂', 'b_v', 'b_h₁', 'b_h₂']
    """
    lengths = dict(zip("vh", size, strict=True))
    found = []
    for name, axes in FIELDS[kind].items():
        shape = [lengths[axis] for axis in axes]
        for index in np.ndindex(*shape):
            if axes in ("vv", "hh") and index[0] > index[1]:
                continue
            shown = [i + 1 for i, length in zip(index, shape, strict=True) if length > 1]
            positive = axes in ("vv", "hh") and index[0] == index[1]
            high = RANGES[name] if positive else OTHER_RANGE
            label = name + "".join(SUBSCRIPTS[i] for i in shown)
            found.append(Parameter(name, index, label, 0.05 if positive else -high, high))
    return found


def make_machine(size: Size, kind: str, phase: str, values: Mapping[str, float]) -> RTBMDistribution:
    """The machine of the values of sliders, by their labels; an InvalidInputError says which condition fails."""
    lengths = dict(zip("vh", size, strict=True))
    arrays: Any = {name: np.zeros([lengths[axis] for axis in axes]) for name, axes in FIELDS[kind].items()}
    for parameter in parameters(size, kind):
        arrays[parameter.field][parameter.entry] = values[parameter.label]
        if FIELDS[kind][parameter.field] in ("vv", "hh"):
            arrays[parameter.field][parameter.entry[::-1]] = values[parameter.label]
    make = RTBMDistribution if kind == "paper" else RTBMDistribution.from_lattice
    return make(*arrays.values(), phase=phase)


def values_of(machine: RTBMDistribution, kind: str) -> dict[str, float]:
    """The values of sliders that show a machine, by their labels."""
    view = machine.natural if kind == "paper" else machine.lattice
    size = machine.n_visible, machine.n_hidden
    return {p.label: float(getattr(view, p.field)[p.entry]) for p in parameters(size, kind)}


@cache
def presets() -> dict[str, RTBMDistribution]:
    """Machines as in the paper's first two figures, with parameters of our own, and two in two dimensions."""
    found = {}
    for figure, machines in (("P(v)", DENSITY_MACHINES), ("E(h|v)", EXPECTATION_MACHINES)):
        for phase, row in machines.items():
            for place, natural in zip(("left", "middle", "right"), row, strict=True):
                found[f"Figure of {figure}: phase {phase}, {place}"] = RTBMDistribution(*natural, phase=phase)
    for name, A, a, F in (
        ("Two dimensions: four peaks", [[9.0, 0.0], [0.0, 9.0]], [-4.5, -4.5], [[4.0, 0.0], [0.0, 4.0]]),
        ("Two dimensions: a skew lattice", [[1.5, 0.5], [0.5, 1.0]], [0.0, 0.5], [[2.5, 1.5], [-0.5, 2.5]]),
    ):
        covariance = [[0.5, 0.1], [0.1, 0.4]]
        found[name] = RTBMDistribution.from_lattice(A, a, F, [-2.0, -2.0], covariance)
    return found


@torch.no_grad()
def draw_machine(machine: RTBMDistribution, n_draws: int = 500) -> MachinePicture:
    """Compute all pictures of a machine: density, components, expectations, draws, hidden states and numbers."""
    mean, covariance = machine.mean.numpy(), machine.covariance_matrix.numpy()
    n_points = LINE_POINTS if machine.n_visible == 1 else PLANE_POINTS
    deviations = np.sqrt(np.diag(covariance))
    axes = [np.linspace(*rounded_limits(m, s), n_points) for m, s in zip(mean, deviations, strict=True)]
    grid = np.stack(np.meshgrid(*axes), axis=-1)
    rows, shape = grid.reshape(-1, len(axes)), grid.shape[:-1]
    expected = machine.hidden_mean(rows).numpy()
    A, a, F, origin, noise = machine.lattice
    table, log_shares = DiscreteGaussian(A, a).table()
    states, shares, centres = table.numpy(), log_shares.exp().numpy(), (origin + table @ F.mT).numpy()
    seen = np.flatnonzero(shares > SMALLEST_COMPONENT)
    return MachinePicture(
        axes,
        machine.log_prob(rows).exp().numpy().reshape(shape),
        [expected[:, i].reshape(shape) for i in range(machine.n_hidden)],
        [NormalPart(float(shares[i]), centres[i], noise.numpy()) for i in seen],
        machine.sample((n_draws,), generator=torch.Generator().manual_seed(0)).numpy(),
        states,
        shares,
        _numbers(machine, mean, covariance),
    )


def _numbers(machine: RTBMDistribution, mean: Floats, covariance: Floats) -> dict[str, str]:
    spread = "variance" if len(mean) == 1 else "covariance"
    entries = covariance[np.triu_indices(len(mean))]
    return {
        "log Z": f"{float(machine.log_normalizer):.4f}",
        "mean": ", ".join(f"{x:.4g}" for x in mean),
        spread: ", ".join(f"{x:.4g}" for x in entries),
    }


def rounded_limits(centre: float, deviation: float) -> tuple[float, float]:
    """Ends of an axis around a density, rounded outwards, so that the axis seldom moves while a slider does.

    Examples
    --------
    >>> rounded_limits(0.1, 1.0), rounded_limits(0.3, 1.1)
    ((-5.0, 10.0), (-10.0, 10.0))
    """
    step = 5.0 * 10.0 ** math.floor(math.log10(WIDTHS * deviation / 4))
    low, high = centre - WIDTHS * deviation, centre + WIDTHS * deviation
    return step * math.floor(low / step), step * math.ceil(high / step)


def component_curve(component: NormalPart, v: Floats) -> Floats:
    """The values (n,) of a normal component in one dimension."""
    variance = float(component.covariance[0, 0])
    scale = component.weight / math.sqrt(2 * math.pi * variance)
    return scale * np.exp(-0.5 * (v - component.mean[0]) ** 2 / variance)


def component_ellipse(component: NormalPart) -> Floats:
    """Points (n, 2) of the ellipse at one standard deviation of a normal component in two dimensions."""
    angle = np.linspace(0, 2 * np.pi, 40)
    circle = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    return component.mean + circle @ np.linalg.cholesky(component.covariance).T
