"""Mixtures of Gaussians, by the same pass over the data: machines whose hidden units have only one state."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.statistics import Block, Evaluation, dense, make_blocks
from rtbm.training.statistics.sums import TableSums

GAUSSIAN_MAX_ITER, GAUSSIAN_TOL = 500, 1e-5
"""Iterations of expectation maximisation, and the gain in mean log P that ends it. A smaller one takes longer."""


class Gaussians(NamedTuple):
    """A mixture of Gaussians."""

    log_weights: Floats  # (K,)
    means: Floats  # (K, d)
    roots: Floats  # (K, d, d), the Cholesky factors of the covariances

    def log_prob(self, x: Tensor) -> Tensor:
        """log P (n,) of points x (n, d)."""
        log_weights, means, roots = (torch.from_numpy(part).to(x.device) for part in self)
        noise = torch.linalg.solve_triangular(roots, (x - means[:, None]).mT, upper=False)
        log_volume = roots.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * x.shape[1] * math.log(2 * math.pi)
        return (log_weights - log_volume - 0.5 * noise.square().sum(1).mT).logsumexp(1)


def fit_gaussians(x: Tensor, weights: Tensor, shares: Floats, floor: Floats) -> Gaussians:
    """Gaussians that are fitted to points by expectation maximisation.

    Parameters
    ----------
    x, weights : (n, d), (n,)
        The points; weights have sum 1.
    shares : (n, K)
        The weight of each point in each Gaussian, at the start.
    floor : (d,)
        What a prior adds to the sums of squares of a Gaussian, along the axes.
    """
    points = x.cpu().numpy()
    counts = np.maximum(shares.sum(0), 1e-12)
    means = shares.T @ points / counts[:, None]
    centred = points - means[:, None]
    square = (shares.T[:, :, None] * centred).mT @ centred
    gaussians = _from_squares(counts, means, square, floor)
    blocks, value = make_blocks(x, weights), -math.inf
    for _ in range(GAUSSIAN_MAX_ITER):
        evaluation = _evaluate(gaussians, blocks)
        previous, value = value, evaluation.log_likelihood
        if abs(value - previous) < GAUSSIAN_TOL:
            break
        gaussians = _maximise(gaussians, evaluation, floor)
    return gaussians


def _evaluate(gaussians: Gaussians, blocks: list[Block]) -> Evaluation:
    K, d = gaussians.means.shape
    zeros = np.zeros((K, 1))
    F = np.zeros((K, d, 1))
    machines = dense.Machines(gaussians.log_weights, zeros[:, :, None] + 1, zeros, F, gaussians.means, gaussians.roots)
    states = dense.States(zeros, np.zeros(K), np.arange(K + 1), np.full(K, -np.inf), zeros, zeros[:, :, None])
    sums = TableSums(machines, states, np.zeros(1 + K))(blocks)
    return Evaluation(machines, states, float(sums[0]), sums[2 + K :].reshape(K, -1))


def _maximise(gaussians: Gaussians, evaluation: Evaluation, floor: Floats) -> Gaussians:
    (gram, cross, square), roots = evaluation.moments(), gaussians.roots
    counts = np.maximum(gram[:, 1, 1], 1e-12)
    shift = (cross[:, :, 1] / counts[:, None])[:, :, None]
    square = square - counts[:, None, None] * (shift @ shift.mT)
    return _from_squares(counts, gaussians.means + (roots @ shift)[:, :, 0], roots @ square @ roots.mT, floor)


def _from_squares(counts: Floats, means: Floats, square: Floats, floor: Floats) -> Gaussians:
    covariance = (0.5 * (square + square.mT) + np.diag(floor)) / counts[:, None, None]
    return Gaussians(np.log(counts / counts.sum()), means, np.linalg.cholesky(covariance))
