"""Expectations under a density: on successively finer grids in few dimensions, or by Monte Carlo."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.distributions.integration.grid import MAX_GRID_NODES, Envelope, make_grid
from rtbm.errors import TooManyNodesError

LogDensity = Callable[[Tensor], Tensor]
"""A function that returns log P (n,) of rows v (n, Nv)."""
Integrand = Callable[[Tensor, Tensor], Tensor]
"""A function of v (n, Nv) and log P(v) (n,) that returns numbers (n,)."""

GRID_AGREEMENT = 1e-9
"""Two successive grids that agree to this end the refinement. A smaller number takes finer grids."""
LAST_GRID_AGREEMENT = 1e-5
"""The two finest grids must agree to this; else the integral fails. A larger number accepts worse integrals."""
GRID_SPACINGS = (0.5, 0.31, 0.17, 0.11, 0.06)
"""Spacings of the grids, in standard deviations of the finest detail. None is a multiple of another, and each grid is
shifted differently, so that two grids do not agree by accident."""
MAX_EXPECTATION_NODES = MAX_GRID_NODES // 2
"""The largest number of nodes of one grid. A larger limit reaches finer densities, and takes more time and memory."""


class Estimate(NamedTuple):
    """A Monte Carlo estimate: its value and its standard error."""

    value: Tensor
    error: Tensor


class Component(NamedTuple):
    """One component of a mixture: its weight, its own log-density and an envelope of that density."""

    weight: Tensor | float
    log_density: LogDensity
    envelope: Envelope


def grid_expectation(
    components: list[Component], log_density: LogDensity, function: Integrand, details: list[Tensor]
) -> Tensor:
    """E[function(v, log P(v))] under the mixture of `components`, whose log-density is `log_density`.

    `details` are covariances of further fine structure in the function, which the grid resolves too. The error is a
    TooManyNodesError where the grids exceed their limit before they agree.
    """
    previous, change, value = math.nan, math.inf, None
    if len(components) > 1:  # the logarithm of a mixture has the details of all its components
        details = details + [component.envelope.detail for component in components]
    further = sum(torch.linalg.inv(detail) for detail in details)

    def on_grid(spacing: float, shift: float) -> Tensor:
        """Σ_i w_i E_i[function], each term on a grid of its own, which resolves all details."""
        total = torch.zeros_like(components[0].envelope.mean[0])
        for weight, log_component, envelope in components:
            if details:
                finest = torch.linalg.inv(torch.linalg.inv(envelope.detail) + further)
                envelope = envelope._replace(detail=(finest + finest.mT) / 2)
            grid = make_grid(envelope, spacing, 1e-14, MAX_EXPECTATION_NODES, shift)
            log_own = log_component(grid.nodes)
            log_prob = log_own if len(components) == 1 else log_density(grid.nodes)
            total = total + weight * (log_own + grid.log_cell).exp() @ function(grid.nodes, log_prob)
        return total

    for i, spacing in enumerate(GRID_SPACINGS):
        try:
            value = on_grid(spacing, shift=0.618 * i)
        except TooManyNodesError:
            if change <= LAST_GRID_AGREEMENT:
                break
            raise
        size = float(value.detach())
        change, previous = abs(size - previous) / max(1.0, abs(size)), size
        if change <= GRID_AGREEMENT:
            break
    if value is None or not change <= LAST_GRID_AGREEMENT:
        raise TooManyNodesError(MAX_EXPECTATION_NODES, MAX_EXPECTATION_NODES)
    return value


def sample_expectation(rows: Tensor, log_density: LogDensity, function: Integrand) -> Estimate:
    """E[function(v, log P(v))] over draws (n, Nv) of P.

    The value has derivatives in the parameters of P. The weights of the draws, which are all 1, carry the derivative of
    the density from which they were drawn.
    """
    log_prob = log_density(rows)
    values = function(rows, log_prob)
    weights = (log_prob - log_prob.detach()).exp()
    return Estimate((weights * values).mean(), values.detach().std() / math.sqrt(len(rows)))
