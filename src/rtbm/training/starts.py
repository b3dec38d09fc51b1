"""The choice among starts of a fit, on standardised data, which have mean 0 and covariance 1."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.parameters import Lattice, pack, unconstrain
from rtbm.training.coordinates import moments, quantiles, standardisation, structure
from rtbm.training.family import Family
from rtbm.training.machines import STIFFNESS

RANGE_TAIL = 0.005
"""The range of the data is between this quantile and its mirror image. A smaller one lets outliers widen the range."""
OVERLAP = 0.8
"""The standard deviation of v given h, in units of the distance between neighbouring centres. Smaller ones start with
separate peaks, larger ones with a blurred density."""


def make_start(
    family: Family,
    x: Floats,
    weights: Floats,
    index: int,
    seed: int,
    labels: np.ndarray | None = None,
) -> Tensor:
    """The vector of start number `index`: the same for the same seed.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    labels : (n,)
        For mixtures: the cluster of each point. A machine starts in each.
    """
    rng = np.random.default_rng([seed, index])
    if family.n_components == 1:
        return pack(unconstrain(evenly_spaced(x, weights, family.n_hidden, index, rng)))
    machines, logits = [], []
    for k in range(family.n_components):
        mine = np.ones(len(x), dtype=bool) if labels is None else labels == k
        if mine.sum() <= x.shape[1]:
            mine = np.ones(len(x), dtype=bool)  # too small a cluster to have a shape
        machines.append(_cluster_start(family, x[mine], weights[mine], index, rng))
        logits.append(math.log(weights[mine].sum() / weights.sum()))
    return family.join(machines, torch.tensor(logits, dtype=torch.float64))


def _cluster_start(family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator) -> Tensor:
    """A start for the points of one cluster, in its own standard coordinates, and back."""
    local_moments = moments(x, weights)
    mean, (root, _) = local_moments.mean, standardisation(local_moments, floor=1e-3)
    local = (x - mean) @ np.linalg.inv(root).T
    start = pack(unconstrain(evenly_spaced(local, weights, family.n_hidden, index, rng)))
    return family.single().affine(start, root, mean)


def evenly_spaced(x: Floats, weights: Floats, n_hidden: int, index: int, rng: np.random.Generator) -> Lattice:
    """The start of a machine whose 2^Nh centres are spread evenly over the data.

    Hidden units start on {0, 1} (A = 10), with steps R/2, R/4, … along one axis, R the range of the data there. The
    first start deals more units to axes with more structure, the next ones put all on one axis, and then axes, units,
    stiffness and overlap are drawn at random.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    index : int
        The number of the start.
    """
    d = x.shape[1]
    stiffness, axes, deal, overlap, base = STIFFNESS, np.eye(d), _deal(x, weights, n_hidden), OVERLAP, 2.0
    centre = np.full(n_hidden, 0.5)
    if 1 <= index <= d and d > 1:
        deal = np.full(n_hidden, index - 1)
    elif index >= 1:
        axes, _ = np.linalg.qr(rng.standard_normal((d, d)))
        deal = rng.integers(0, d, n_hidden)
        stiffness *= float(np.exp(rng.uniform(math.log(0.4), math.log(2))))
        overlap = rng.uniform(0.6, 1.2)
        centre, base = rng.uniform(0.3, 0.7, n_hidden), rng.uniform(1.6, 2.4)
    used, low, high = np.unique(deal), np.zeros(d), np.zeros(d)
    along = x @ axes[:, used]
    low[used], high[used] = quantiles(along, weights, np.array([RANGE_TAIL, 1 - RANGE_TAIL]))
    high = np.maximum(high, low + 0.1)
    F, width, mean = np.zeros((d, n_hidden)), np.ones(d), np.zeros(d)
    for axis in range(d):
        mine = np.flatnonzero(deal == axis)
        if len(mine):
            steps = base ** -np.arange(1.0, len(mine) + 1)
            spacing = (high[axis] - low[axis]) / 2 ** len(mine)
            F[axis, mine] = steps / steps.sum() * (high[axis] - low[axis] - spacing)
            width[axis] = min(1.0, overlap * spacing)
            mean[axis] = (low[axis] + high[axis]) / 2 - F[axis] @ centre
    A = stiffness * np.eye(n_hidden)
    parts = A, -A @ centre, axes @ F, axes @ mean, axes @ np.diag(width**2) @ axes.T
    return Lattice(*(torch.from_numpy(np.ascontiguousarray(part)) for part in parts))


def _deal(x: Floats, weights: Floats, n_hidden: int) -> np.ndarray:
    """The axis of each hidden unit: the one with most structure, which a unit makes a quarter of what it was."""
    left, axes = structure(x, weights), []
    for _ in range(n_hidden):
        axes.append(int(left.argmax()))
        left[axes[-1]] /= 4
    return np.array(axes)
