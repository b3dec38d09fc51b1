"""Where a fit starts: for standardised data, which have mean 0 and covariance 1."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.parameters import Free, Lattice, log_cholesky, pack, unconstrain
from rtbm.training.family import Family
from rtbm.training.objective import BITS, STIFFNESS

SMALLEST_SAMPLE = 20  # distinct points; fewer say nothing about local structure
TAIL = 0.005  # the range of the data is between this quantile and its mirror image
LOG_COSH_NORMAL = 0.3745672  # E[log cosh x] of a standard normal x
OVERLAP = 0.8  # the standard deviation of v given h, in units of the distance between neighbouring centres


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
        Standardised data, the principal axes in order; NaN entries are left out.
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
    low, high = quantiles(np.nan_to_num(x) @ axes if d > 1 else x, weights, np.array([TAIL, 1 - TAIL]))
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


def structure(x: Floats, weights: Floats) -> Floats:
    """How far E[log cosh x] of each column of standardised data (Nv,) is from that of a Gaussian."""
    present = ~np.isnan(x)
    values = np.log(np.cosh(np.clip(np.nan_to_num(x), -50, 50)))
    total = weights @ present
    return np.where(total > 0, np.abs((weights @ values) / np.where(total > 0, total, 1) - LOG_COSH_NORMAL), 0) + 1e-12


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


def gaussian(n_visible: int, n_hidden: int, hidden: str) -> Tensor:
    """The machine that is the standard normal distribution, up to ripples of 1e-8, as a vector.

    Its hidden units are so fine that they are all but continuous: along the principal axes in turn, with half the
    variance of their axes.
    """
    if hidden == "diagonal":
        weights = torch.zeros(n_visible, n_hidden, dtype=torch.float64)
        weights[torch.arange(n_hidden) % n_visible, torch.arange(n_hidden)] = 1.0
        scale = log_cholesky(torch.eye(n_visible, dtype=torch.float64))
        q = torch.full((n_hidden,), math.log(60.0), dtype=torch.float64)
        return pack(Free(q, 0 * q, weights, weights.new_zeros(n_visible), scale, "diagonal"))
    axis = torch.arange(n_hidden) % n_visible
    units = torch.bincount(axis, minlength=n_visible)
    F = torch.zeros(n_visible, n_hidden, dtype=torch.float64)
    A = 0.5 * torch.eye(n_hidden, dtype=torch.float64)  # with Q = A + FᵀΣ⁻¹F of at most 1, ripples are exp(−2π²)
    F[axis, torch.arange(n_hidden)] = (0.25 / units[axis].double()).sqrt()
    covariance = torch.diag(torch.where(units > 0, 0.5, 1.0).double())
    return pack(unconstrain(Lattice(A, A.new_zeros(n_hidden), F, F.new_zeros(n_visible), covariance)))


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
        if mine.sum() <= x.shape[1] or (~np.isnan(x[mine])).sum(axis=0).min() < 2:
            mine = np.ones(len(x), dtype=bool)  # too small a cluster to have a shape
        machines.append(_cluster_start(family, x[mine], weights[mine], index, rng))
        logits.append(math.log(weights[mine].sum() / weights.sum()))
    return family.join(machines, torch.tensor(logits, dtype=torch.float64))


def gaussian_start(family: Family) -> Tensor:
    """The member of a family that is the standard normal distribution."""
    machine = gaussian(family.n_visible, family.n_hidden, family.coupling)
    return family.join([machine] * family.n_components, machine.new_zeros(family.n_components))


def _one_start(
    family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator, binary: bool = False
) -> Tensor:
    if family.coupling == "diagonal":
        return pack(waves(family.n_visible, family.n_hidden, rng))
    return pack(unconstrain(ladder(x, weights, family.n_hidden, index, rng, binary)))


def _cluster_start(family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator) -> Tensor:
    """A start for the points of one cluster, in its own standard coordinates, and back."""
    local_moments = moments(x, weights)
    mean, (root, _) = local_moments.mean, standardisation(local_moments, floor=1e-3)
    local = (np.nan_to_num(x - mean)) @ np.linalg.inv(root).T
    return family.single().affine(_one_start(family.single(), local, weights, index, rng), root, mean)


class Moments(NamedTuple):
    """Mean (Nv,) and covariance (Nv, Nv) of weighted data; NaN entries are left out, pair by pair."""

    mean: Floats
    covariance: Floats


def moment_sums(x: Floats, weights: Floats, origin: Floats) -> Floats:
    """Sums (3, Nv, Nv) over rows from which `moments` follow; those of parts of the data may be added.

    They are Σ w, Σ w x_i and Σ w x_i x_j over rows where both i and j are present, relative to an origin (Nv,) among
    the data, for accuracy.
    """
    present = (~np.isnan(x)).astype(np.float64)
    y, w = np.nan_to_num(x - origin), weights[:, None] * present
    return np.stack([w.T @ present, (weights[:, None] * y).T @ present, (weights[:, None] * y).T @ y])


def moments_from_sums(sums: Floats, origin: Floats) -> Moments:
    """The moments behind the sums of `moment_sums`."""
    count, first, second = sums
    mean = np.diag(first) / np.diag(count)
    cross = first.T * mean[:, None]  # mean_i Σ w x_j
    covariance = (second - cross - cross.T) / np.where(count > 0, count, 1.0) + np.outer(mean, mean)
    return Moments(origin + mean, np.where(count > 0, covariance, 0.0))


class MomentSums(NamedTuple):
    """The sums of `moment_sums` and their origin, so that parts with different origins can be added."""

    origin: Floats  # (Nv,)
    sums: Floats  # (3, Nv, Nv)

    @classmethod
    def of(cls, x: Floats, weights: Floats) -> "MomentSums":
        """Those of data, relative to their mean; 0 for features that are nowhere present."""
        present = ~np.isnan(x)
        origin = np.where(present, x, 0.0).sum(axis=0) / np.maximum(present.sum(axis=0), 1)
        return cls(origin, moment_sums(x, weights, origin))

    def plus(self, other: "MomentSums") -> "MomentSums":
        """The sums of both parts, relative to the origin of the first one as far as it has data."""
        origin = np.where(np.diag(self.sums[0]) > 0, self.origin, other.origin)
        return MomentSums(origin, self._moved(origin) + other._moved(origin))

    def moments(self) -> Moments:
        """The moments behind the sums."""
        return moments_from_sums(self.sums, self.origin)

    def _moved(self, origin: Floats) -> Floats:
        """The sums relative to another origin."""
        count, first, second = self.sums
        shift = np.where(np.diag(count) > 0, self.origin - origin, 0.0)[:, None]
        cross = shift * first.T
        return np.stack([count, first + shift * count, second + cross + cross.T + shift * shift.T * count])


def moments(x: Floats, weights: Floats) -> Moments:
    """The moments of weighted data, in two passes."""
    origin = np.nanmean(x, axis=0)
    origin = moments_from_sums(moment_sums(x, weights, origin), origin).mean
    return moments_from_sums(moment_sums(x, weights, origin), origin)


def standardisation(of: Moments, floor: float = 0.0) -> tuple[Floats, float]:
    """M (Nv, Nv) such that x = mean + Mz with z of covariance 1, along the principal axes of the correlation.

    Eigenvalues of the correlation are raised to `floor`; the smallest that was found is returned as well.
    """
    scale = np.sqrt(np.maximum(np.diag(of.covariance), 0.0))
    safe = np.where(scale > 0, scale, 1.0)
    values, vectors = np.linalg.eigh(of.covariance / np.outer(safe, safe))
    vectors = vectors * np.where(vectors[np.abs(vectors).argmax(0), np.arange(len(scale))] < 0, -1.0, 1.0)
    root = np.sqrt(np.maximum(values, floor))[::-1] * vectors[:, ::-1]
    return safe[:, None] * root, float(values[0])


def independent_axes(z: Floats, weights: Floats, n_iter: int = 100) -> Floats:
    """A rotation (Nv, Nv) whose columns are directions of standardised data that look least like a Gaussian.

    Independent component analysis (FastICA with log cosh, symmetric), from the present axes; the directions with most
    structure come first. For Gaussian data, any rotation is as good as another.
    """
    step = max(1, len(z) // 20_000)
    x, w = z[::step], weights[::step] / weights[::step].sum()
    axes = np.eye(z.shape[1])
    for _ in range(n_iter):
        g = np.tanh(x @ axes)
        updated = (x.T * w) @ g - axes * (w @ (1 - g**2))
        u, _, v = np.linalg.svd(updated)
        previous, axes = axes, u @ v
        if np.abs(np.abs((axes * previous).sum(0)) - 1).max() < 1e-6:
            break
    return axes[:, np.argsort(-structure(x @ axes, w), kind="stable")]


def local_widths(x: Floats, weights: Floats) -> Floats:
    """The widths (Nv,) of what standardised data are made of: 1, or less if it is narrow peaks in a wide range.

    Distances between neighbouring quantiles, compared with those of a normal distribution: the median of the ratios.
    """
    p, half = np.arange(1, 10) / 10, 0.05
    if len(x) < SMALLEST_SAMPLE:
        return np.ones(x.shape[1])
    gaps = quantiles(x, weights, p + half) - quantiles(x, weights, p - half)
    normal = torch.special.ndtri(torch.from_numpy(p + half)) - torch.special.ndtri(torch.from_numpy(p - half))
    widths = np.median(gaps / normal.numpy()[:, None], axis=0)
    return np.where(np.isnan(x).all(axis=0), 1.0, np.clip(widths, 0.05, 1.0))


def quantiles(x: Floats, weights: Floats, probabilities: Floats) -> Floats:
    """The quantiles (k, Nv) of the columns of weighted data for probabilities (k,), interpolated between points.

    NaN entries are left out; a column without entries has quantiles 0.
    """
    result = np.zeros((len(probabilities), x.shape[1]))
    for i, column in enumerate(x.T):
        present = ~np.isnan(column)
        if present.any():
            order = np.argsort(column[present], kind="stable")
            w = weights[present][order]
            middle = np.cumsum(w) - 0.5 * w
            result[:, i] = np.interp(probabilities * w.sum(), middle, column[present][order])
    return result
