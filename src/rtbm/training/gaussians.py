"""Gaussians, by the same E-step: machines without hidden units.

One Gaussian stands for what is known of data before a fit, and several are what a mixture has to beat. Gaps are
integrated out.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.coordinates import Moments
from rtbm.training.machines import Machines
from rtbm.training.objective import ArrayBlocks, Evaluation, Expectation

GAUSSIAN_MAX_ITER, GAUSSIAN_TOL = 500, 1e-5
"""Iterations of expectation maximisation, and the gain in mean log P that ends it. A smaller one takes longer."""
STRENGTHS = np.geomspace(1e-6, 1e4, 61)
"""Strengths of the prior for independence that are compared, for each observation."""
FILLED_AT_ONCE = 10**6  # entries of the covariances of rows with gaps that are in memory at the same time
MANY_ROWS = 20
"""With more observations than this for each feature there is no such prior: the Gaussian has maximum likelihood."""


class Gaussians(NamedTuple):
    """A mixture of Gaussians."""

    log_weights: Floats  # (K,)
    means: Floats  # (K, d)
    roots: Floats  # (K, d, d), the Cholesky factors of the covariances

    def log_prob(self, source: ArrayBlocks) -> Tensor:
        """log P (n,) of the rows of a source."""
        return source.scatter(self._expectation().log_joint).logsumexp(1)

    def evaluate(self, source: ArrayBlocks) -> Evaluation:
        """The sums over the rows of a source."""
        return self._expectation().evaluate(source)

    def _expectation(self) -> Expectation:
        K, d = self.means.shape
        none = np.zeros((K, 0, 0)), np.zeros((K, 0)), np.zeros((K, d, 0))
        return Expectation.of(Machines(self.log_weights, *none, self.means, self.roots))


def fit_gaussians(source: ArrayBlocks, filled: Floats, shares: Floats, floor: Floats) -> Gaussians:
    """Gaussians that are fitted to points by expectation maximisation.

    Parameters
    ----------
    source : ArrayBlocks
        The points (n, d).
    filled : (n, d)
        The same with gaps filled, for the start.
    shares : (n, K)
        The weight of each point in each Gaussian, at the start.
    floor : (d,)
        What a prior adds to the sums of squares of a Gaussian, along the axes.
    """
    counts = np.maximum(shares.sum(0), 1e-12)
    means = shares.T @ filled / counts[:, None]
    centred = filled - means[:, None]
    gaussians = _from_squares(counts, means, (shares.T[:, :, None] * centred).mT @ centred, floor)
    value = -math.inf
    for _ in range(GAUSSIAN_MAX_ITER):
        evaluation = gaussians.evaluate(source)
        previous, value = value, evaluation.log_likelihood
        if abs(value - previous) < GAUSSIAN_TOL:
            break
        gaussians = _from_squares(*_expected_squares(gaussians, evaluation), floor)
    return gaussians


def _expected_squares(gaussians: Gaussians, evaluation: Evaluation) -> tuple[Floats, Floats, Floats]:
    """The counts (K,), means (K, d) and sums of squares about the means (K, d, d) that the Gaussians expect."""
    (gram, cross, square), roots = evaluation.sums.moments(), gaussians.roots
    counts = np.maximum(gram[:, 0, 0], 1e-12)
    shift = (cross[:, :, 0] / counts[:, None])[:, :, None]
    square = square - counts[:, None, None] * (shift @ shift.mT)
    return counts, gaussians.means + (roots @ shift)[:, :, 0], roots @ square @ roots.mT


def _from_squares(counts: Floats, means: Floats, square: Floats, floor: Floats) -> Gaussians:
    covariance = (0.5 * (square + square.mT) + np.diag(floor)) / counts[:, None, None]
    return Gaussians(np.log(counts / counts.sum()), means, np.linalg.cholesky(covariance))


def gaussian_moments(x: Floats, weights: Floats, of: Moments) -> tuple[Moments, float]:
    """The mean and covariance of the Gaussian of data, and the smallest eigenvalue of the correlation of the data.

    The Gaussian maximises the likelihood of what is present, with a prior for independent features, which matters where
    rows are few. With S the covariance of n observations and D its diagonal::

        covariance = (n S + ν D)/(n + ν)

    This is the expectation of an inverse Wishart posterior, and ν has the highest evidence (empirical Bayes). With more
    than 20 rows for each feature it is 0. Gaps are integrated out by expectation maximisation.

    Parameters
    ----------
    x, weights : (n, d), (n,)
        The data; NaN entries are missing. The sum of the weights is the number of observations.
    of : Moments
        The moments of the data, or of all data if x is a sample; `rtbm.training.coordinates.moments`.

    Examples
    --------
    >>> x = np.random.default_rng(0).standard_normal((12, 4))  # independent features
    >>> moments = Moments(x.mean(axis=0), np.cov(x.T, bias=True))
    >>> gaussian, _ = gaussian_moments(x, np.ones(12), moments)
    >>> [round(float(part.covariance[0, 2]), 2) for part in (moments, gaussian)]
    [0.11, 0.0]
    """
    scale = np.sqrt(of.covariance.diagonal())
    z, correlation = (x - of.mean) / scale, of.covariance / np.outer(scale, scale)
    total, size = float(weights.sum()), _effective_size(z, weights)
    if not np.isnan(z).any():
        eigenvalues = np.linalg.eigvalsh(correlation)
        covariance = _shrink(correlation, _best_strength(eigenvalues, size) * size / total)
        return Moments(of.mean, covariance * np.outer(scale, scale)), float(eigenvalues[0])
    within, smallest = _expect_gaps(z, weights / total, size, total)
    return Moments(of.mean + scale * within.mean, within.covariance * np.outer(scale, scale)), smallest


def _expect_gaps(z: Floats, weights: Floats, size: float, total: float) -> tuple[Moments, float]:
    """The same for standardised data with gaps, whose weights have sum 1, by expectation maximisation.

    Iterations begin with ν = d/2. Where they end, the evidence tells a better ν, with which they go on.
    """
    d, has_evidence, value = z.shape[1], False, -math.inf
    source = ArrayBlocks(torch.from_numpy(z), torch.from_numpy(weights))
    gaussian, strength = Gaussians(np.zeros(1), np.zeros((1, d)), np.eye(d)[None]), 0.5 * d / total
    for _ in range(GAUSSIAN_MAX_ITER):
        evaluation = gaussian.evaluate(source)
        previous, value = value, evaluation.log_likelihood
        _, means, (square,) = _expected_squares(gaussian, evaluation)
        spread = np.sqrt(square.diagonal())
        correlation = square / np.outer(spread, spread)
        if abs(value - previous) < GAUSSIAN_TOL:
            if has_evidence:
                break
            eigenvalues = np.linalg.eigvalsh(correlation)
            strength = max(_best_strength(eigenvalues, size), float(STRENGTHS[0])) * size / total
            has_evidence = True
        covariance = _shrink(square, strength)
        gaussian = Gaussians(np.zeros(1), means, np.linalg.cholesky(covariance)[None])
    return Moments(means[0], covariance), float(np.linalg.eigvalsh(correlation)[0])


def _shrink(covariance: Floats, strength: float) -> Floats:
    """(S + strength · D)/(1 + strength), with D the diagonal of S."""
    return (covariance + strength * np.diag(covariance.diagonal())) / (1 + strength)


def _effective_size(z: Floats, weights: Floats) -> float:
    """The number of observations that tell about correlations: the average number in which a feature is present.

    It is divided by 1 + κ/3, with κ the average excess kurtosis of standardised data, because correlations of data with
    heavy tails vary that much more.
    """
    counts = weights @ ~np.isnan(z)
    kurtosis = float((weights @ np.nan_to_num(z) ** 4 / counts).mean()) - 3
    return max(float(counts.mean()) / (1 + max(kurtosis, 0.0) / 3), 1.0)


def _best_strength(eigenvalues: Floats, size: float) -> float:
    """ν/size with the highest evidence, for the eigenvalues of the correlations of this number of observations."""
    d = len(eigenvalues)
    if size > MANY_ROWS * d:
        return 0.0
    values = np.maximum(eigenvalues, 0.0)
    prior = STRENGTHS * size
    degrees = torch.from_numpy(prior + d + 1)
    gammas = torch.mvlgamma((degrees + size) / 2, d) - torch.mvlgamma(degrees / 2, d)
    log_volumes = d * np.log(prior), np.log(prior[:, None] + size * values).sum(axis=1)
    evidence = 0.5 * (degrees.numpy() * log_volumes[0] - (degrees.numpy() + size) * log_volumes[1]) + gammas.numpy()
    best = int(evidence.argmax())
    if best in (0, len(evidence) - 1):
        return float(STRENGTHS[best])
    left, middle, right = evidence[best - 1 : best + 2]  # the top of a parabola in log ν
    offset = 0.5 * (left - right) / min(left - 2 * middle + right, -1e-300)
    return float(STRENGTHS[best] * (STRENGTHS[1] / STRENGTHS[0]) ** offset)


def fill_gaps(x: Floats, of: Moments, seed: int) -> Floats:
    """x with gaps filled by draws from a Gaussian, given what is present in a row.

    A draw z of the whole row becomes one given what is present: z + Cov(·, p) Cov(p, p)⁻¹ (x_p − z_p).

    Examples
    --------
    >>> nearly_equal = Moments(np.zeros(2), np.ones((2, 2)) + 1e-12 * np.eye(2))
    >>> fill_gaps(np.array([[1.0, np.nan], [2.0, 3.0]]), nearly_equal, seed=0).round(3)
    array([[1., 1.],
           [2., 3.]])
    """
    present = ~np.isnan(x)
    values, vectors = np.linalg.eigh(of.covariance)
    rng = np.random.default_rng([seed, *x.shape])  # not the numbers that data of the same seed are made of
    draws = of.mean + (rng.standard_normal(x.shape) * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    filled, difference = np.where(present, x, draws), np.where(present, x - draws, 0.0)
    rows = np.flatnonzero(~present.all(axis=1))
    for part in np.array_split(rows, 1 + len(rows) * x.shape[1] ** 2 // FILLED_AT_ONCE):
        both = present[part, :, None] & present[part, None]
        known = np.where(both, of.covariance, np.eye(x.shape[1]))  # of what is present; gaps stay apart
        change = np.linalg.solve(known, difference[part, :, None])[:, :, 0] @ of.covariance
        filled[part] += np.where(present[part], 0.0, change)
    return filled
