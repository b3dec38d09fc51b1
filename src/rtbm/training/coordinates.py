"""What is known of data before a fit: moments, quantiles, and the coordinates in which they are standardised."""

from typing import NamedTuple

import numpy as np
import torch

from rtbm.common import Floats

SMALLEST_SAMPLE = 20
"""Fewer points than this say nothing about local structure: widths are 1."""
LOG_COSH_NORMAL = 0.3745672
"""E[log cosh x] of a standard normal x."""


class Moments(NamedTuple):
    """Mean (Nv,) and covariance (Nv, Nv) of weighted data; NaN entries are left out, pair by pair."""

    mean: Floats
    covariance: Floats


class MomentSums(NamedTuple):
    """Sums over rows from which `Moments` follow, relative to an origin for accuracy. Those of parts can be added."""

    origin: Floats  # (Nv,): near the data
    sums: Floats  # (3, Nv, Nv): Σ w, Σ w x_i and Σ w x_i x_j over rows where both i and j are present

    @classmethod
    def of(cls, x: Floats, weights: Floats, origin: Floats | None = None) -> "MomentSums":
        """Those of data, by default relative to their mean; 0 for features that are nowhere present."""
        is_present = ~np.isnan(x)
        if origin is None:
            origin = np.where(is_present, x, 0.0).sum(axis=0) / np.maximum(is_present.sum(axis=0), 1)
        present, y = is_present.astype(np.float64), np.nan_to_num(x - origin)
        weighted = (weights[:, None] * y).T
        return cls(origin, np.stack([(weights[:, None] * present).T @ present, weighted @ present, weighted @ y]))

    def plus(self, other: "MomentSums") -> "MomentSums":
        """The sums of both parts, relative to the origin of the first one as far as it has data."""
        origin = np.where(np.diag(self.sums[0]) > 0, self.origin, other.origin)
        return MomentSums(origin, self._moved(origin) + other._moved(origin))

    def moments(self) -> Moments:
        """The moments behind the sums."""
        count, first, second = self.sums
        mean = np.diag(first) / np.diag(count)
        cross = first.T * mean[:, None]  # mean_i Σ w x_j
        covariance = (second - cross - cross.T) / np.where(count > 0, count, 1.0) + np.outer(mean, mean)
        return Moments(self.origin + mean, np.where(count > 0, covariance, 0.0))

    def _moved(self, origin: Floats) -> Floats:
        """The sums relative to another origin."""
        count, first, second = self.sums
        shift = np.where(np.diag(count) > 0, self.origin - origin, 0.0)[:, None]
        cross = shift * first.T
        return np.stack([count, first + shift * count, second + cross + cross.T + shift * shift.T * count])


def moments(x: Floats, weights: Floats) -> Moments:
    """The moments of weighted data, in two passes."""
    return MomentSums.of(x, weights, MomentSums.of(x, weights).moments().mean).moments()


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
    gaps = np.diff(quantiles(x, weights, np.append(p - half, p[-1] + half)), axis=0)
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


def structure(x: Floats, weights: Floats) -> Floats:
    """How far E[log cosh x] of each column of standardised data (Nv,) is from that of a Gaussian."""
    values = np.log(np.cosh(np.clip(x, -50, 50)))
    return np.abs(weights @ values / weights.sum() - LOG_COSH_NORMAL) + 1e-12
