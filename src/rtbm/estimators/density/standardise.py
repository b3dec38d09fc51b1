"""Standardised coordinates: data of mean 0 and variance 1, along independent axes where nothing is missing."""

import warnings
from typing import NamedTuple

import numpy as np
from torch import Tensor

from rtbm.common import Floats
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import is_constant
from rtbm.training import Family, make_start
from rtbm.training.coordinates import Moments, independent_axes, moments, standardisation
from rtbm.training.gaussians import fill_gaps, gaussian_moments

SMALLEST_VARIANCE = 1e-4
"""The smallest eigenvalue of the correlation that counts as a width of the data. Below it the features count as
linearly dependent, and the prior decides on the width."""


class Standardised(NamedTuple):
    """Data of mean 0 and variance 1, and the way back: x = mean + root z."""

    z: Floats  # (n, d)
    weights: Floats  # (n,)
    mean: Floats  # (d,)
    root: Floats  # (d, d)
    covariance: Floats  # (d, d), of the Gaussian of z: 1, unless entries are missing
    log_volume: float  # the mean of log P(z) − log P(x)
    complete: Floats  # (n, d): z with gaps filled, of covariance 1 along independent axes, for starts
    axes: Floats | None  # (d, d): z = axes · complete; None for 1, where nothing is missing

    @property
    def filled(self) -> Floats:
        """z (n, d) with gaps filled."""
        return self.complete if self.axes is None else self.complete @ self.axes.T


def standardise(
    x: Floats,
    weights: Floats,
    log_slope: Floats,
    names: list[str],
    has_missing: bool,
    known: Moments | None = None,
    axis_iter: int = 100,
) -> Standardised:
    """Standardise data along their independent components. Raise an error if they span no volume.

    With missing entries, here or in other data (`has_missing`), each feature is standardised alone, since the axes
    would mix them. `log_slope` (n,) is the logarithm of the change of volume that came before, and `known` the moments
    if x is but a sample. The axes are sought for `axis_iter` iterations.
    """
    n, d = x.shape
    if np.isnan(x).all(axis=0).any():
        empty = [names[i] for i in np.flatnonzero(np.isnan(x).all(axis=0))]
        raise InvalidInputError(f"X: {', '.join(empty)} holds nothing but NaN: leave it out")
    size = np.nanmax(np.abs(x), axis=0)
    extreme = np.flatnonzero((size > 1e150) | ((size < 1e-150) & (size > 0)))
    if len(extreme):
        raise InvalidInputError(
            f"X: {', '.join(names[i] for i in extreme)} has values of size {size[extreme[0]]:.0e}, whose squares leave "
            "float64: change the unit"
        )
    pairwise = known or moments(x, weights)
    scale = np.sqrt(np.maximum(pairwise.covariance.diagonal(), 0.0))
    flat = np.flatnonzero(is_constant(x) | ~(scale > 1e-13 * (1e-300 + np.abs(pairwise.mean))))
    if len(flat):
        raise InvalidInputError(
            f"X: there is only one value of {', '.join(names[i] for i in flat)} to working precision, in {n} distinct "
            "rows, so there is no density: leave it out, or collect more data"
        )
    gaussian, smallest = gaussian_moments(x, weights, pairwise)
    if n <= d or smallest < SMALLEST_VARIANCE:
        warnings.warn(
            f"the {d} features are linearly dependent over {n} distinct rows: across the plane that they lie in, the "
            "width of the density comes from the prior alone",
            RuntimeWarning,
            stacklevel=3,
        )
    mean, (root, _) = gaussian.mean, standardisation(gaussian, SMALLEST_VARIANCE)
    complete = (fill_gaps(x, gaussian, seed=0) - mean) @ np.linalg.inv(root).T
    if 1 < d < n:  # with fewer rows any axes are as good
        rotation = independent_axes(complete, weights, axis_iter)
        root, complete = root @ rotation, complete @ rotation
    axes, covariance = None, np.eye(d)
    if has_missing:
        scales = np.linalg.norm(root, axis=1)
        axes = root / scales[:, None]
        root, covariance = np.diag(scales), axes @ axes.T
    z = to_standard(x, mean, root)
    log_volume = _log_volume(x, root, weights, log_slope)
    return Standardised(z, weights, mean, root, covariance, log_volume, complete, axes)


def like(data: Standardised, x: Floats, weights: Floats, log_slope: Floats) -> Standardised:
    """Other data in the same coordinates."""
    z = to_standard(x, data.mean, data.root)
    return data._replace(z=z, weights=weights, log_volume=_log_volume(x, data.root, weights, log_slope))


def start_on(data: Standardised, family: Family, index: int, seed: int, labels: np.ndarray | None = None) -> Tensor:
    """The vector of start number `index`, for z; see `make_start`."""
    start = make_start(family, data.complete, data.weights, index, seed, labels)
    return start if data.axes is None else family.affine(start, data.axes)


def to_standard(x: Floats, mean: Floats, root: Floats) -> Floats:
    """z with x = mean + root z. A diagonal root keeps missing entries apart from the others."""
    if np.isnan(x).any():
        return (x - mean) / np.diag(root)
    return (x - mean) @ np.linalg.inv(root).T


def _log_volume(x: Floats, root: Floats, weights: Floats, log_slope: Floats) -> float:
    """The mean of log P(z) − log P(x)."""
    return float(weights @ (log_scales(x, root) - log_slope) / weights.sum())


def log_scales(x: Floats, root: Floats) -> Floats:
    """log P(z) − log P(x) (n,). With missing entries root is diagonal, and only those present count."""
    if np.isnan(x).any():
        return ~np.isnan(x) @ np.log(np.diag(root))
    return np.full(len(x), np.linalg.slogdet(root)[1])
