"""Averages over a density: on ever finer grids in few dimensions, by Monte Carlo in many."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.distributions.grid import MAX_GRID_DIMENSION, MAX_NODES, Envelope, make_grid
from rtbm.errors import TooManyTermsError

Density = Callable[[Tensor], Tensor]
Integrand = Callable[[Tensor, Tensor], Tensor]
"""A function of v (n, Nv) and log P(v) (n,) that returns numbers (n,)."""

CONVERGED = 1e-9
"""Two grids, one about twice as fine as the other, agree to this: the expectation counts as exact."""
CLOSE = 1e-5
"""They agree to this on the finest grid that was tried: still better than a Monte Carlo average."""
SPACINGS = (0.5, 0.31, 0.17, 0.11, 0.06)
"""No multiples of each other, and each grid is shifted differently: two of them do not agree by accident."""


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: Tensor
    error: Tensor


class Part(NamedTuple):
    """One component of a density: its weight, its own log-density and a bound."""

    weight: Tensor | float
    log_density: Density
    envelope: Envelope


def grid_average(
    parts: list[Part], log_density: Density, function: Integrand, details: tuple[Tensor, ...] = ()
) -> Tensor | None:
    """E[function(v, log P(v))] for the mixture of `parts`, or None where grids do not converge or get too large.

    `details` are covariances of further fine structure in the function, which the grid resolves too.
    """
    if len(parts[0].envelope.mean) > MAX_GRID_DIMENSION:
        return None
    previous, change, value = math.nan, math.inf, None
    if len(parts) > 1:  # the logarithm of a mixture has the details of all its parts
        details += tuple(part.envelope.detail for part in parts)
    for i, spacing in enumerate(SPACINGS):
        try:
            value = _average(parts, log_density, function, details, spacing, shift=0.618 * i)
        except TooManyTermsError:
            break
        size = float(value.detach())
        change, previous = abs(size - previous) / max(1.0, abs(size)), size
        if change <= CONVERGED:
            return value
    return value if change <= CLOSE else None


def _average(
    parts: list[Part],
    log_density: Density,
    function: Integrand,
    details: tuple[Tensor, ...],
    spacing: float,
    shift: float,
) -> Tensor:
    total = torch.zeros_like(parts[0].envelope.mean[0])
    for weight, log_part_density, envelope in parts:
        grid = make_grid(_resolving(envelope, details), spacing, 1e-14, MAX_NODES // 2, shift)
        log_part = log_part_density(grid.nodes)
        log_prob = log_part if len(parts) == 1 else log_density(grid.nodes)
        total = total + weight * (log_part + grid.log_cell).exp() @ function(grid.nodes, log_prob)
    return total


def _resolving(envelope: Envelope, details: tuple[Tensor, ...]) -> Envelope:
    if not details:
        return envelope
    precision = torch.linalg.inv(envelope.detail) + sum(torch.linalg.inv(detail) for detail in details)
    finest = torch.linalg.inv(precision)
    return envelope._replace(detail=(finest + finest.mT) / 2)


def sample_average(rows: Tensor, log_density: Density, function: Integrand) -> Estimate:
    """E[function(v, log P(v))] over draws (n, Nv). The value carries derivatives, those of the weights of draws too."""
    log_prob = log_density(rows)
    values = function(rows, log_prob)
    weights = (log_prob - log_prob.detach()).exp()  # 1, with the derivative of the density
    return Estimate((weights * values).mean(), values.detach().std() / math.sqrt(len(rows)))
