"""The starts of a fit, on standardised data, which have mean 0 and covariance 1."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.parameters import Free, Lattice, log_cholesky, pack, unconstrain
from rtbm.training.coordinates import moments, quantiles, standardisation, structure
from rtbm.training.family import Family
from rtbm.training.objective import BITS, STIFFNESS

RANGE_TAIL = 0.005
"""The range of the data is between this quantile and its mirror image. A smaller one lets outliers widen the range."""
OVERLAP = 0.8
"""The standard deviation of v given h, in units of the distance between neighbouring centres. Smaller ones start with
separate peaks, larger ones with a blurred density."""


def ladder(
    x: Floats, weights: Floats, n_hidden: int, index: int, rng: np.random.Generator, binary: bool = False
) -> Lattice:
    """A dense machine whose 2^Nh centres are spread evenly over the data.

    Hidden units start on {0, 1} (A = 10), with steps R/2, R/4, … along one axis, R the range of the data there. The
    first start deals more units to axes with more structure, the next ones put all on one axis, and then axes, units,
    stiffness and overlap are drawn at random.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    index : int
        The number of the start.
    binary : bool
        Whether hidden units are to stay on {0, 1}: A is larger then.
    """
    d = x.shape[1]
    stiffness = BITS if binary else STIFFNESS
    axes, deal, overlap, base = np.eye(d), _deal(x, weights, n_hidden), OVERLAP, 2.0
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


def waves(n_visible: int, n_hidden: int, rng: np.random.Generator) -> Free:
    """A diagonal machine: the Gaussian of the data, with weak ripples of random directions, frequencies and phases."""
    directions = rng.standard_normal((n_visible, n_hidden))
    directions /= np.linalg.norm(directions, axis=0)
    frequencies = rng.uniform(0.5, 4.0, n_hidden)
    q = rng.uniform(4.0, 12.0, n_hidden) + 2 * math.log(n_hidden)
    parts = np.log(q), rng.uniform(0.0, 1.0, n_hidden), directions * frequencies, np.zeros(n_visible)
    scale = log_cholesky(torch.eye(n_visible, dtype=torch.float64))
    log_q, turns, weights, mean = (torch.from_numpy(part) for part in parts)
    return Free(log_q, turns, weights, mean, scale, "diagonal")


def gaussian_start(family: Family) -> Tensor:
    """The member of a family that is the standard normal distribution, up to ripples of 1e-8.

    Hidden units of dense machines are so fine that they are nearly continuous. They lie along the principal axes in
    turn, and have half the variance of their axes.
    """
    n_visible, n_hidden = family.n_visible, family.n_hidden
    unit = torch.arange(n_hidden)
    axis = unit % n_visible
    W = torch.zeros(n_visible, n_hidden, dtype=torch.float64)
    mean = W.new_zeros(n_visible)
    if family.coupling == "diagonal":
        W[axis, unit] = 1.0
        log_q = torch.full((n_hidden,), math.log(60.0), dtype=torch.float64)
        scale = log_cholesky(torch.eye(n_visible, dtype=torch.float64))
        machine = pack(Free(log_q, 0 * log_q, W, mean, scale, "diagonal"))
    else:
        n_units = torch.bincount(axis, minlength=n_visible)
        A = 0.5 * torch.eye(n_hidden, dtype=torch.float64)  # with Q = A + FᵀΣ⁻¹F of at most 1, ripples are exp(−2π²)
        W[axis, unit] = (0.25 / n_units[axis].double()).sqrt()
        covariance = torch.diag(torch.where(n_units > 0, 0.5, 1.0).double())
        machine = pack(unconstrain(Lattice(A, A.new_zeros(n_hidden), W, mean, covariance)))
    return family.join([machine] * family.n_components, machine.new_zeros(family.n_components))


def make_start(
    family: Family,
    x: Floats,
    weights: Floats,
    index: int,
    seed: int,
    labels: np.ndarray | None = None,
    binary: bool = False,
) -> Tensor:
    """The vector of start number `index`: the same for the same seed.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    labels : (n,)
        For mixtures: the cluster of each point. A machine starts in each.
    binary : bool
        For single dense machines, see `ladder`.
    """
    rng = np.random.default_rng([seed, index])
    if family.n_components == 1:
        return _one_start(family, x, weights, index, rng, binary)
    machines, logits = [], []
    for k in range(family.n_components):
        mine = np.ones(len(x), dtype=bool) if labels is None else labels == k
        if mine.sum() <= x.shape[1]:
            mine = np.ones(len(x), dtype=bool)  # too small a cluster to have a shape
        machines.append(_cluster_start(family, x[mine], weights[mine], index, rng))
        logits.append(math.log(weights[mine].sum() / weights.sum()))
    return family.join(machines, torch.tensor(logits, dtype=torch.float64))


def _one_start(
    family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator, binary: bool = False
) -> Tensor:
    """The start of one machine."""
    if family.coupling == "diagonal":
        return pack(waves(family.n_visible, family.n_hidden, rng))
    return pack(unconstrain(ladder(x, weights, family.n_hidden, index, rng, binary)))


def _cluster_start(family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator) -> Tensor:
    """A start for the points of one cluster, in its own standard coordinates, and back."""
    local_moments = moments(x, weights)
    mean, (root, _) = local_moments.mean, standardisation(local_moments, floor=1e-3)
    local = (x - mean) @ np.linalg.inv(root).T
    return family.single().affine(_one_start(family.single(), local, weights, index, rng), root, mean)
