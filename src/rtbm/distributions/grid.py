"""The trapezoidal rule in visible space, with a bound on its error.

The density of a machine is a mixture of normal distributions with one common covariance, its finest detail. For each of
them a sum over a lattice of spacing δ widths differs from the integral by at most the factor 1 + 2Σ_k exp(−2π²k²/δ²) an
axis (Poisson summation), so the same holds for their mixture, however many components it has.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import TooManyNodesError, TooManyTermsError
from rtbm.theta.lattice import enumerate_points, squared_radius

MAX_NODES = 2**20
"""The largest number of grid nodes that is attempted."""
MAX_GRID_DIMENSION = 3
"""In more visible dimensions a grid is not attempted."""


class Envelope(NamedTuple):
    """P(v) ≤ exp(log_peak) N(v; mean, covariance), and P is a mixture of normals with covariance `detail`."""

    mean: Tensor  # (Nv,)
    covariance: Tensor  # (Nv, Nv)
    detail: Tensor  # (Nv, Nv), at most `covariance`
    log_peak: float


class Grid(NamedTuple):
    """Nodes of a lattice in visible space, all with the same weight."""

    nodes: Tensor  # (n, Nv): origin + steps · indices
    log_cell: float  # logarithm of the volume of a cell
    steps: Tensor  # (Nv, Nv): the columns span a cell
    origin: Tensor  # (Nv,)
    indices: Tensor  # (n, Nv), integers


def spacing_for(tolerance: float, n_visible: int) -> float:
    """The spacing, in widths of the finest detail, for a relative error of half of `tolerance`.

    Examples
    --------
    >>> round(spacing_for(1e-12, 1), 3)
    0.825
    """
    return math.pi * math.sqrt(2 / math.log(4 * n_visible / tolerance))


def make_grid(envelope: Envelope, spacing: float, tolerance: float, limit: int = MAX_NODES, shift: float = 0.0) -> Grid:
    """The nodes that the trapezoidal rule needs for P: what lies outside has less than `tolerance` of probability.

    `shift` moves all nodes along all axes, in steps of the grid.

    More than `limit` nodes are a TooManyNodesError.
    """
    steps, widths = axes(envelope, spacing)
    norms = widths**2
    log_total = 0.5 * float(np.log(2 * np.pi / norms).sum()) - envelope.log_peak
    radius2 = squared_radius(norms, log_total, tolerance / 2)
    try:
        points = enumerate_points(np.diag(widths), radius2, np.zeros(len(widths)), limit=limit)
    except TooManyTermsError as error:
        raise TooManyNodesError(error.terms, error.limit) from None
    log_cell = float(torch.linalg.slogdet(steps).logabsdet)
    origin = envelope.mean.detach() + shift % 1.0 * steps.sum(1)
    indices = torch.from_numpy(points).to(steps.device)
    return Grid(origin + indices.to(steps) @ steps.mT, log_cell, steps, origin, indices)


def axes(envelope: Envelope, spacing: float) -> tuple[Tensor, np.ndarray]:
    """Steps (Nv, Nv) along directions in which `covariance` and `detail` are both diagonal, and their lengths.

    Column j is `spacing` standard deviations of `detail` long; its length is told in those of `covariance`.
    """
    L = torch.linalg.cholesky(envelope.covariance.detach())
    half = torch.linalg.solve_triangular(L, envelope.detail.detach(), upper=False)
    squares, directions = torch.linalg.eigh(torch.linalg.solve_triangular(L, half.mT, upper=False))
    lengths = spacing * squares.clamp(min=1e-300).sqrt()
    return L @ directions * lengths, lengths.cpu().numpy()
