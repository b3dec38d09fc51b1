"""Probabilities of boxes by Gauss-Legendre quadrature of a density, where its sum over hidden states is too long."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rtbm.distributions.caching import cached_without_graph
from rtbm.distributions.grid import MAX_GRID_DIMENSION, MAX_NODES, Envelope
from rtbm.distributions.lattice_samplers import LEFT_OUT
from rtbm.errors import TooManyNodesError

PANEL = 5.0
"""Panels are so many widths of the finest detail long, and have so many nodes:"""
PANEL_NODES = 22
LINE_PANEL, LINE_NODES = 2.5, 16
"""In one dimension panels are shorter, since each interval needs the nodes of two pieces of panels at most."""
MAX_LINE_NODES = 40 * MAX_NODES
"""The largest number of nodes in one dimension, where they are evaluated once."""
SMALLEST = 1e-300
"""In one dimension tails are followed down to this probability."""
_BLOCK = 2**15


class BoxQuadrature:
    """P(low < v < high) of a density with a bound and a known finest detail, in up to three dimensions.

    `wants_graph` says whether the density is to be differentiated by its parameters; if not, the panels of one
    dimension are integrated once.
    """

    def __init__(self, log_density: Callable[[Tensor], Tensor], envelope: Envelope, wants_graph: Callable[[], bool]):
        self._log_density, self._envelope, self._wants_graph = log_density, envelope, wants_graph
        if len(envelope.mean) > MAX_GRID_DIMENSION:
            raise TooManyNodesError(PANEL_NODES ** len(envelope.mean), MAX_NODES)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P (n,) for bounds (n, Nv)."""
        if low.shape[1] == 1:
            return self._between(low[:, 0], high[:, 0])
        boxes = [self._box(*bounds) for bounds in zip(low, high, strict=True)]
        return torch.stack(boxes) if boxes else low.sum(1)

    def _between(self, low: Tensor, high: Tensor) -> Tensor:
        """In one dimension: two pieces of panels, and whole ones between them, from sums that begin at the near end."""
        edges, mass = self._make_panels() if self._wants_graph() else self._fixed_panels
        n = len(mass)
        start, stop = low.clamp(edges[0], edges[-1]), high.clamp(edges[0], edges[-1])
        first = torch.searchsorted(edges, low.detach().contiguous()) - 1  # −1 and n: outside of all panels
        last = torch.searchsorted(edges, high.detach().contiguous(), right=True) - 1
        several = last > first
        left = self._pieces(
            start, torch.where(several, edges[(first + 1).clamp(max=n)], stop), (first >= 0) & (first < n)
        )
        right = self._pieces(edges[last.clamp(min=0)], stop, several & (last < n))
        below = torch.cat([mass.new_zeros(1), mass.cumsum(0)])
        above = torch.cat([mass.flip(0).cumsum(0).flip(0), mass.new_zeros(1)])
        last = last.clamp(min=0)
        inner = torch.minimum(first + 1, last)
        whole = torch.where(above[inner] < below[last], above[inner] - above[last], below[last] - below[inner])
        return (left + whole + right) / mass.sum()

    def _pieces(self, start: Tensor, stop: Tensor, needed: Tensor) -> Tensor:
        """∫P from start to stop (n,) where it is needed, else 0."""
        index = needed.nonzero()[:, 0]
        return torch.zeros_like(start).index_put((index,), self._integrate(start[index], stop[index]))

    @cached_without_graph
    def _fixed_panels(self) -> tuple[Tensor, Tensor]:
        return self._make_panels()

    @property
    def n_nodes(self) -> int:
        """How many nodes the panels of one dimension have."""
        low, high, width = self._support(SMALLEST, LINE_PANEL)
        return (int((high - low) / width) + 1) * LINE_NODES

    def _make_panels(self) -> tuple[Tensor, Tensor]:
        """Edges of the panels (k + 1,) in one dimension, and the probability of each (k,)."""
        if self.n_nodes > MAX_LINE_NODES:
            raise TooManyNodesError(self.n_nodes, MAX_LINE_NODES)
        low, high, _ = self._support(SMALLEST, LINE_PANEL)
        n_panels = self.n_nodes // LINE_NODES
        edges = torch.linspace(float(low), float(high), n_panels + 1, dtype=low.dtype, device=low.device)
        return edges, self._integrate(edges[:-1], edges[1:])

    def _integrate(self, start: Tensor, stop: Tensor) -> Tensor:
        """∫P from start to stop, each (n,), in blocks of bounded size."""
        x, weight = _legendre(start, LINE_NODES)
        parts = []
        for a, b in zip(start.split(_BLOCK), stop.split(_BLOCK), strict=True):
            half = (b - a)[:, None] / 2
            nodes = (b + a)[:, None] / 2 + half * x
            parts.append((self._log_density(nodes.reshape(-1, 1)).exp().reshape(nodes.shape) * half) @ weight)
        return torch.cat(parts) if parts else start

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        first, last, width = self._support(LEFT_OUT, PANEL)
        start, stop = low.clamp(first, last), high.clamp(first, last)
        counts = ((stop - start) / width).ceil().clamp(min=1).long().tolist()
        n_nodes = math.prod(counts) * PANEL_NODES ** len(counts)
        if n_nodes > 16 * MAX_NODES:
            raise TooManyNodesError(n_nodes, 16 * MAX_NODES)
        x, weight = _legendre(start, PANEL_NODES)
        columns, weights = [], []
        for a, b, count in zip(start, stop, counts, strict=True):
            half = (b - a) / (2 * count)
            middles = a + half * (2 * torch.arange(count, device=a.device) + 1)
            columns.append((middles[:, None] + half * x).reshape(-1))
            weights.append((half * weight).repeat(count))
        nodes, mesh = torch.cartesian_prod(*columns), torch.cartesian_prod(*weights)
        return self._log_density(nodes).exp() @ mesh.prod(1)

    def _support(self, left_out: float, panel: float) -> tuple[Tensor, Tensor, Tensor]:
        """A box that holds all but `left_out` of the probability, and the width of a panel along each axis."""
        mean, covariance, detail, log_peak = self._envelope
        radius = math.sqrt(2 * (max(log_peak, 0.0) - math.log(left_out)))
        reach = radius * covariance.detach().diagonal().sqrt()
        width = panel / torch.linalg.inv(detail.detach()).diagonal().sqrt()
        return mean.detach() - reach, mean.detach() + reach, width


def _legendre(like: Tensor, n: int) -> tuple[Tensor, Tensor]:
    x, weight = np.polynomial.legendre.leggauss(n)
    return torch.as_tensor(x, device=like.device), torch.as_tensor(weight, device=like.device)
