"""Starts of networks from the data: first-layer units have the frequencies of the target.

The periods of a theta unit are hard to learn from far away, since the loss has a minimum for each wrong number of
periods. So the strongest frequencies of the target, beyond its trend, are found one after the other along straight
directions (matching pursuit); a unit of the first layer is tuned to each. The other layers start as nearly linear maps
that pass on the best linear combination of the first layer, found by least squares. Training only has to refine that.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from rtbm.common import Floats
from rtbm.nn.feedforward import FIXED_ACTIVATIONS, affine_layers
from rtbm.nn.theta_layer import ThetaLayer
from rtbm.parameters import log_cholesky

MAX_ROWS, MAX_FREQUENCIES, N_DIRECTIONS = 2000, 500, 12
"""Rows, frequencies and random directions of the search. More take longer, and find weaker or faster waves."""
REFINED = 37
"""Frequencies around the strongest one of the grid that are tried. More are more accurate."""
TUNED = {"I": (5.0, 8.0), "II": (4.0, 6.0)}
"""The range of q for a tuned unit, by phase. Its ripple is strong, and almost a sine."""
STRAIGHT = {"I": (1.0, 2.5), "II": (0.3, 0.5)}
"""The range of q for a nearly linear unit, by phase."""
NEGLIGIBLE = 1e-3
"""The search ends when less than this share of the variance is left. Less finds weaker waves, and noise."""
SIDE = 0.3
"""The scale of random weights in units that do not carry the signal."""


class Sinusoid(NamedTuple):
    """A wave sin(frequency · direction · x + phase)."""

    direction: Floats  # (d,)
    frequency: float
    phase: float


def start_at_sinusoids(network: nn.Module, x: Floats, y: Floats, weights: Floats, seed: int, greedy: bool) -> bool:
    """Set the parameters of a network as described above; returns whether it could be done.

    It cannot if the first layer is not a diagonal theta layer, if a later one is neither of theta units nor linear, if
    one is narrower than the output, or if there is no frequency in the target.

    Parameters
    ----------
    network : nn.Module
        As `rtbm.nn.feedforward.make_network` makes them.
    x, y : (n, d), (n, n_outputs)
        Inputs and targets, of mean 0 and variance 1 or so.
    weights : (n,)
        Positive.
    seed : int
        For all that is random.
    greedy : bool
        Whether to take the strongest frequencies, or draw among the strong ones.

    Examples
    --------
    >>> from rtbm.nn.feedforward import make_network
    >>> x = np.linspace(-2, 2, 200)[:, None]
    >>> network = make_network(1, [2, 1], ["theta", "linear"], dtype=torch.float64)
    >>> start_at_sinusoids(network, x, x + np.sin(9 * x), np.ones(200), seed=0, greedy=True)
    True
    >>> layer = network[0]
    >>> frequencies = (2 * torch.pi * layer.weight[:, 0] / layer.Q).abs()  # of both units
    >>> bool((frequencies - 9).abs().min() < 0.1)
    True
    """
    layers = list(affine_layers(network))
    first, rest = layers[0], layers[1:]
    n_outputs = y.shape[1]
    if not isinstance(first, ThetaLayer) or first.coupling != "diagonal" or not rest:
        return False
    if any(isinstance(module, tuple(FIXED_ACTIVATIONS.values())) for module in network.modules()):
        return False
    if any(layer.out_features < n_outputs for layer in rest):
        return False
    rng = np.random.default_rng(seed)
    if len(x) > MAX_ROWS:
        rows = np.sort(rng.choice(len(x), MAX_ROWS, replace=False))
        x, y, weights = x[rows], y[rows], weights[rows]
    sinusoids = find_sinusoids(x, y, weights, max(1, first.out_features - 1), rng, greedy)  # one unit is for the trend
    if not sinusoids:
        return False
    with torch.no_grad():
        _start_first_layer(first, sinusoids, rng)
        h = first.activation(_tensor(x) @ first.weight.double().cpu().mT + first.bias.double().cpu()).numpy()
        _carry(rest, h, y, weights, rng)
    return True


def find_sinusoids(
    x: Floats, y: Floats, weights: Floats, n_sinusoids: int, rng: np.random.Generator, greedy: bool
) -> list[Sinusoid]:
    """Up to n_sinusoids waves in y beyond a linear trend, each as strong as chance would hardly make it.

    The search ends when less than a thousandth of the variance of y is left.
    """
    directions = _directions(x.shape[1], rng)
    positions = [x @ direction for direction in directions]
    n = min(len(x) - 1, MAX_FREQUENCIES)
    grids = [np.arange(1, n + 1) * math.pi / max(float(np.ptp(position)), 1e-12) for position in positions]
    known = np.hstack([np.ones((len(x), 1)), x])
    sinusoids: list[Sinusoid] = []
    total = weights.sum()
    for _ in range(n_sinusoids):
        residual = y - known @ _least_squares(known, y, weights)
        scale = np.sqrt(weights @ residual**2 / total)
        if not (scale**2 > NEGLIGIBLE * (weights @ (y - weights @ y / total) ** 2 / total)).any():
            break
        signal = weights[:, None] * residual / np.where(scale > 0, scale, np.inf)
        power = np.concatenate([_power(*place, signal, total) for place in zip(grids, positions, strict=True)])
        choice = int(power.argmax())
        if not greedy:
            odds = np.exp(0.3 * (power - power.max()))
            choice = int(rng.choice(len(power), p=odds / odds.sum()))
        if power[choice] < math.log(len(power)) + 3:
            break
        which, k = divmod(choice, n)
        position, coarse = positions[which], grids[which]
        near = coarse[k] + coarse[0] * np.linspace(-0.9, 0.9, REFINED)
        frequency = near[_power(near, position, signal, total).argmax()]
        angle = frequency * position
        sine, cosine = np.sin(angle), np.cos(angle)
        column = int(((signal.T @ sine) ** 2 + (signal.T @ cosine) ** 2).argmax())
        phase = math.atan2(cosine @ signal[:, column], sine @ signal[:, column])
        sinusoids.append(Sinusoid(directions[which], float(frequency), phase))
        known = np.hstack([known, sine[:, None], cosine[:, None]])
    return sinusoids


def _directions(d: int, rng: np.random.Generator) -> Floats:
    """The axes, and some random directions if there are several."""
    axes = np.eye(d)[rng.permutation(d)[:N_DIRECTIONS]]
    if d == 1:
        return axes
    others = rng.normal(size=(N_DIRECTIONS, d))
    return np.concatenate([axes, others / np.linalg.norm(others, axis=1, keepdims=True)])


def _power(frequencies: Floats, position: Floats, signal: Floats, total: float) -> Floats:
    """The largest power of the columns of a signal at each frequency along a direction; noise has mean power 1."""
    angle = np.outer(frequencies, position)
    power = (np.cos(angle) @ signal) ** 2 + (np.sin(angle) @ signal) ** 2
    return power.max(axis=1) / total


def _least_squares(columns: Floats, y: Floats, weights: Floats) -> Floats:
    root = np.sqrt(weights)[:, None]
    return np.linalg.lstsq(root * columns, root * y, rcond=None)[0]


def _start_first_layer(layer: ThetaLayer, sinusoids: list[Sinusoid], rng: np.random.Generator) -> None:
    """A unit for each sinusoid, in random order, and straight units for the rest."""
    d, phase = layer.in_features, layer.phase
    parts = []
    for i in range(layer.out_features):
        if i < len(sinusoids):
            q = rng.uniform(*TUNED[phase])
            scale = q / (2 * math.pi) if phase == "I" else 1.0
            parts.append((scale * sinusoids[i].frequency * sinusoids[i].direction, scale * sinusoids[i].phase, q))
        else:
            q = rng.uniform(*STRAIGHT[phase])
            parts.append((q * rng.normal(size=d) / math.sqrt(d), 0.0, q))
    parts = [parts[i] for i in rng.permutation(len(parts))]
    for parameter, values in zip((layer.weight, layer.bias), zip(*parts, strict=True), strict=False):
        parameter.copy_(_tensor(np.array(values)))
    layer.hidden_scale.copy_(_tensor(np.log([q for _, _, q in parts])))


def _carry(
    layers: list[ThetaLayer | nn.Linear], h: Floats, y: Floats, weights: Floats, rng: np.random.Generator
) -> None:
    """Let the first units of each layer pass on the least-squares fit of y by h; the others are random."""
    n_outputs = y.shape[1]
    fit = _least_squares(np.hstack([np.ones((len(h), 1)), h]), y, weights)
    signal, constant = fit[1:].T, fit[0]
    for layer in layers:
        matrix = SIDE * rng.normal(size=(layer.out_features, layer.in_features)) / math.sqrt(layer.in_features)
        matrix[:n_outputs] = signal
        bias = np.zeros(layer.out_features)
        bias[:n_outputs] = constant
        _make_linear(layer, matrix, bias, rng)
        signal, constant = np.eye(n_outputs, layer.out_features), np.zeros(n_outputs)


def _make_linear(layer: ThetaLayer | nn.Linear, matrix: Floats, bias: Floats, rng: np.random.Generator) -> None:
    """Let a layer compute matrix · h + bias, or nearly so."""
    slope: Floats | float = 1.0
    if isinstance(layer, ThetaLayer):
        q = rng.uniform(*STRAIGHT[layer.phase], size=layer.out_features)
        slope = -q if layer.phase == "I" else q
        if layer.coupling == "diagonal":
            layer.hidden_scale.copy_(_tensor(np.log(q)))
        else:
            layer.hidden_scale.copy_(log_cholesky(_tensor(np.diag(q))))
    layer.weight.copy_(_tensor((slope * matrix.T).T))
    layer.bias.copy_(_tensor(slope * bias))


def _tensor(array: Floats) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64))
