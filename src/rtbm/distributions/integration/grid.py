"""Grids for the trapezoidal rule in visible space, with a bound on the error.

The density of a machine is a mixture of normal distributions that share one covariance. That covariance is the finest
detail of the density. For each normal distribution, the sum over a grid of spacing δ standard deviations differs from
the integral by at most the factor 1 + 2Σ_k exp(−2π²k²/δ²) per axis (Poisson summation). The same bound therefore holds
for the mixture, however many components it has.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.errors import TooManyNodesError, TooManyTermsError
from rtbm.theta.lattice import enumerate_points
from rtbm.theta.truncation import squared_radius

MAX_GRID_NODES = 2**20
"""The largest number of nodes of a grid. A larger limit reaches finer densities, and takes more time and memory."""
MAX_GRID_DIMENSION = 3
"""The largest number of visible units with a grid. In more dimensions a grid exceeds MAX_GRID_NODES."""


class Envelope(NamedTuple):
    """A Gaussian bound: P(v) ≤ exp(log_peak) N(v; mean, covariance), where P mixes normals of covariance `detail`."""

    mean: Tensor  # (Nv,)
    covariance: Tensor  # (Nv, Nv)
    detail: Tensor  # (Nv, Nv), at most `covariance`
    log_peak: float


class Grid(NamedTuple):
    """Equally spaced nodes in visible space: origin + steps · indices."""

    nodes: Tensor  # (n, Nv)
    log_cell: float  # log of the volume of a cell
    steps: Tensor  # (Nv, Nv): the columns span a cell
    origin: Tensor  # (Nv,)
    indices: Tensor  # (n, Nv), integers


def spacing_for(tolerance: float, n_visible: int) -> float:
    """The spacing, in standard deviations of the finest detail, that gives a relative error of half of `tolerance`.

    Examples
    --------
    >>> round(spacing_for(1e-12, 1), 3)
    0.825
    """
    return math.pi * math.sqrt(2 / math.log(4 * n_visible / tolerance))


def make_grid(
    envelope: Envelope, spacing: float, tolerance: float, limit: int = MAX_GRID_NODES, shift: float = 0.0
) -> Grid:
    """The grid that leaves out less than `tolerance` of the probability. More than `limit` nodes are an error.

    `spacing` is the distance of neighbouring nodes in standard deviations of the finest detail. `shift` moves all nodes
    along all axes, in steps of the grid.
    """
    steps, lengths = _steps(envelope, spacing)
    norms = lengths**2
    log_total = 0.5 * float(np.log(2 * np.pi / norms).sum()) - envelope.log_peak
    radius2 = squared_radius(norms, log_total + math.log(tolerance / 2))
    try:
        points = enumerate_points(np.diag(lengths), radius2, np.zeros(len(lengths)), limit=limit)
    except TooManyTermsError as error:
        raise TooManyNodesError(error.terms, error.limit) from None
    log_cell = float(torch.linalg.slogdet(steps).logabsdet)
    origin = envelope.mean.detach() + shift % 1.0 * steps.sum(1)
    indices = torch.from_numpy(points).to(steps.device)
    return Grid(origin + indices.to(steps) @ steps.mT, log_cell, steps, origin, indices)


def _steps(envelope: Envelope, spacing: float) -> tuple[Tensor, Floats]:
    """Steps (Nv, Nv) along directions in which `covariance` and `detail` are both diagonal, and their lengths (Nv,).

    Column j is `spacing` standard deviations of `detail` long. Its length is in standard deviations of `covariance`.
    """
    L = torch.linalg.cholesky(envelope.covariance.detach())
    half = torch.linalg.solve_triangular(L, envelope.detail.detach(), upper=False)
    squares, directions = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.mT, upper=False))
    lengths = spacing * squares.clamp(min=1e-300).sqrt()
    return L @ directions * lengths, lengths.cpu().numpy()
