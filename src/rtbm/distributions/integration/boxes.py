"""Probabilities of boxes, P(low < v < high), in three ways.

`normal_box` is for one normal distribution. `IntervalSum` is for a one-dimensional mixture of normals of one width.
`BoxQuadrature` integrates any density that has an envelope, and serves where a mixture has too many components.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from rtbm.distributions.caching import cached_unless_graph
from rtbm.distributions.integration.grid import MAX_GRID_DIMENSION, MAX_GRID_NODES, Envelope
from rtbm.errors import TooManyNodesError
from rtbm.theta.chunks import in_chunks

NORMAL_CUTOFF = 8.5
"""Integrals over a standard normal stop here. Beyond lies a probability of 2e-17, which float64 does not resolve."""
GAUSS_NODES = 28
"""Nodes per smooth piece of a two-dimensional integral. Fewer lose digits below 1e-13; more only cost time."""
SOBOL_POINTS = 2**12
"""Quasi-Monte Carlo points for a box in three or more dimensions. Four times as many halve the error, or better."""
QUASI_MONTE_CARLO_NODES = 1000
"""A box that takes more nodes than this is a quasi-Monte Carlo sum, with an error of about 1e-4."""

NEAR_COMPONENTS, FAR_COMPONENTS = 9.0, 39.0
"""Components within this number of standard deviations of a bound are evaluated. A normal has 1e-19 beyond 9, and 0
beyond 39 in float64. Smaller numbers are faster and lose digits of small probabilities."""
FARTHEST = 100.0
"""Bounds are cut off at this number of standard deviations from all components, where normal tails are 0 in float64."""
SMALL_PROBABILITY = 1e-3
"""Intervals of less probability are summed again with FAR_COMPONENTS, to keep their relative accuracy."""

BOX_PANEL, BOX_PANEL_NODES = 5.0, 22
"""Length of a panel in standard deviations of the finest detail, and Gauss-Legendre nodes on it, in two and three
dimensions. Longer panels or fewer nodes lose digits."""
LINE_PANEL, LINE_PANEL_NODES = 2.5, 16
"""The same in one dimension. Panels are shorter, because an interval evaluates at most two pieces of panels."""
MAX_LINE_NODES = 40 * MAX_GRID_NODES
"""The largest number of nodes in one dimension, where all intervals share them."""
MAX_BOX_NODES = 16 * MAX_GRID_NODES
"""The largest number of nodes of a box in two or three dimensions. A larger limit takes more time and memory."""
BOX_TAIL, LINE_TAIL = 1e-15, 1e-300
"""Probability left out by boxes, and by intervals in one dimension, which follow the tails further for `icdf`."""
PANEL_BLOCK = 2**15  # panels that are integrated at once


def normal_box(low: Tensor, high: Tensor, covariance: Tensor) -> Tensor:
    """P(low < x < high) (...) for x ~ N(0, covariance) and bounds (..., n), which may be infinite.

    One dimension and diagonal covariances are exact. In two dimensions the remaining integral is done by Gauss-Legendre
    quadrature between the points where the integrand bends, to about 1e-13. In three or more dimensions it is a
    quasi-Monte Carlo sum with a fixed seed, accurate to about 1e-4.

    Examples
    --------
    >>> C = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    >>> zero = torch.zeros(2, dtype=torch.float64)
    >>> normal_box(zero - torch.inf, zero, C)  # ¼ + arcsin(½)/2π
    tensor(0.3333, dtype=torch.float64)
    """
    scale = covariance.diagonal().sqrt()
    reach = FARTHEST * scale.detach()  # ∞ has no derivatives
    low, high = (x.clamp(-reach, reach) / scale for x in (low, high))
    correlation = covariance / scale[:, None] / scale
    if _is_diagonal(covariance):
        return functools.reduce(torch.mul, interval(low, high).unbind(-1))  # prod has no second derivative at 0
    if len(scale) == 2:
        return _bivariate_box(low, high, correlation[0, 1])
    return _genz_box(low, high, torch.linalg.cholesky(correlation))


def nodes_per_box(covariance: Tensor) -> int:
    """The number of function values that `normal_box` takes for one box."""
    n = len(covariance)
    if _is_diagonal(covariance):
        return n
    return 7 * GAUSS_NODES if n == 2 else n * SOBOL_POINTS


def interval(low: Tensor, high: Tensor) -> Tensor:
    """P(low < x < high) for a standard normal x, accurate in both tails."""
    flip = low > 0
    below, above = torch.where(flip, -high, low), torch.where(flip, -low, high)
    return (lower_tail(above) - lower_tail(below)).clamp(min=0)


def _is_diagonal(matrix: Tensor) -> bool:
    """Whether a matrix may be treated as diagonal. It may not if its zeros are to be differentiated."""
    if torch.is_grad_enabled() and matrix.requires_grad and len(matrix) > 1:
        return False
    return not bool((matrix.detach() - torch.diag(matrix.detach().diagonal())).any())


def lower_tail(x: Tensor) -> Tensor:
    """P(y < x) for a standard normal y, with all digits of small probabilities."""
    return 0.5 * torch.special.erfc(-math.sqrt(0.5) * x)  # torch's ndtr has no digits left below −8


def _bivariate_box(low: Tensor, high: Tensor, rho: Tensor) -> Tensor:
    """∫ φ(x) P(low₂ < y < high₂ | x) dx. P bends where the line ρx meets a bound, over a width √(1−ρ²)/ρ."""
    rest = ((1 - rho) * (1 + rho)).sqrt()
    start, stop = low[..., :1].clamp(-NORMAL_CUTOFF, NORMAL_CUTOFF), high[..., :1].clamp(-NORMAL_CUTOFF, NORMAL_CUTOFF)
    with torch.no_grad():
        slope = torch.where(rho.abs() < 1e-200, 1e-200, rho)
        bends = torch.cat([low[..., 1:], high[..., 1:]], -1) / slope
        spread = NORMAL_CUTOFF * rest / slope.abs()
        inner = torch.cat([torch.zeros_like(start), bends, bends - spread, bends + spread], -1)
    edges = torch.cat([start, inner.clamp(start.detach(), stop.detach()).sort(-1).values, stop], -1)
    x, weight = _gauss_legendre(GAUSS_NODES, low.device)
    half = (edges[..., 1:] - edges[..., :-1])[..., None] / 2
    node = (edges[..., 1:] + edges[..., :-1])[..., None] / 2 + half * x
    inside = interval((low[..., 1, None, None] - rho * node) / rest, (high[..., 1, None, None] - rho * node) / rest)
    density = torch.exp(-0.5 * node**2) / math.sqrt(2 * math.pi)
    return (half * weight * density * inside).sum((-2, -1)).clamp(min=0)


def _genz_box(low: Tensor, high: Tensor, L: Tensor) -> Tensor:
    """Genz's transformation to the unit cube, one coordinate at a time. The last coordinate is an interval again."""
    n = len(L)
    cube = SobolEngine(n - 1, scramble=True, seed=0).draw(SOBOL_POINTS, dtype=torch.float64).to(low.device)
    drawn = low.new_zeros(*low.shape[:-1], SOBOL_POINTS, 0)
    product = low.new_ones(*low.shape[:-1], SOBOL_POINTS)
    for i in range(n):
        shift = drawn @ L[i, :i] if i else torch.zeros_like(product)
        below, above = (low[..., i, None] - shift) / L[i, i], (high[..., i, None] - shift) / L[i, i]
        inside = interval(below, above)
        product = product * inside
        if i < n - 1:
            level = (lower_tail(below) + cube[:, i] * inside).clamp(1e-300, 1 - 1e-16)
            drawn = torch.cat([drawn, torch.special.ndtri(level)[..., None]], -1)
    return product.mean(-1)


class IntervalSum:
    """Σ_i w_i P(low < x < high) with x ~ N(c_i, width²), from the components near the two bounds.

    A component between the bounds counts with its whole weight, one outside with none. Cumulative sums give both, so
    the work does not grow with the number of components. `centres` (n,) may come in any order, `weights` (n,) have sum
    1, and `width` () is a standard deviation.
    """

    def __init__(self, centres: Tensor, weights: Tensor, width: Tensor):
        order = centres.detach().argsort()
        self._centres, self._weights, self._width = centres[order], weights[order], width
        self._below, self._above = _cumulative_sums(self._weights)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P (n,) for bounds (n, 1), which may be infinite."""
        reach = FARTHEST * self._width.detach() + self._centres.detach().abs().max()  # ∞ has no derivatives
        low, high = (x[:, 0].clamp(-reach, reach) for x in (low, high))
        total = self._sum(low, high, NEAR_COMPONENTS)
        rare = (total.detach() < SMALL_PROBABILITY).nonzero()[:, 0]
        return total.index_put((rare,), self._sum(low[rare], high[rare], FAR_COMPONENTS))

    def _sum(self, low: Tensor, high: Tensor, cutoff: float) -> Tensor:
        if len(low) == 0:
            return low
        reach, centres = cutoff * float(self._width.detach()), self._centres.detach()
        ends = low.detach() - reach, low.detach() + reach, high.detach() - reach, high.detach() + reach
        a, b, c, d = (torch.searchsorted(centres, end.contiguous()) for end in ends)
        b, c = torch.where(b < c, b, d), torch.where(b < c, c, d)  # a to b near low, c to d near high, b to c between
        total = _between(self._below, self._above, b, c)
        for start, stop in ((a, b), (c, d)):
            size = int((stop - start).max())
            rows = torch.stack([low, high, start.to(low), stop.to(low)], 1)
            if size:
                total = total + in_chunks(self._near, rows, [self._centres, self._weights, self._width], width=size)
        return total

    @staticmethod
    def _near(rows: Tensor, centres: Tensor, weights: Tensor, width: Tensor) -> Tensor:
        """Σ w_i P_i over the components start to stop."""
        low, high = rows[:, :1], rows[:, 1:2]
        start, stop = rows[:, 2:].detach().long().split(1, 1)
        index = start + torch.arange(int((stop - start).max()), device=rows.device)
        inside, index = index < stop, index.clamp(max=len(centres) - 1)
        z = ((end - centres[index]) / width for end in (low, high))
        low, high = (x.clamp(-FARTHEST, FARTHEST) for x in z)
        return (torch.where(inside, weights[index], 0.0) * interval(low, high)).sum(1)


class BoxQuadrature:
    """P(low < v < high) by Gauss-Legendre quadrature of a density with an envelope, in up to three dimensions.

    wants_graph() tells whether results are to be differentiable in the parameters of the density. If not, the panels of
    one dimension are integrated once.
    """

    def __init__(self, log_density: Callable[[Tensor], Tensor], envelope: Envelope, wants_graph: Callable[[], bool]):
        self._log_density, self._envelope, self._wants_graph = log_density, envelope, wants_graph
        if len(envelope.mean) > MAX_GRID_DIMENSION:
            raise TooManyNodesError(BOX_PANEL_NODES ** len(envelope.mean), MAX_GRID_NODES)

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P (n,) for bounds (n, Nv)."""
        if low.shape[1] == 1:
            return self._interval(low[:, 0], high[:, 0])
        boxes = [self._box(*bounds) for bounds in zip(low, high, strict=True)]
        return torch.stack(boxes) if boxes else low.sum(1)

    @property
    def n_line_nodes(self) -> int:
        """The number of nodes on all panels of one dimension."""
        low, high, width = self._support(LINE_TAIL, LINE_PANEL)
        return (int((high - low) / width) + 1) * LINE_PANEL_NODES

    def _interval(self, low: Tensor, high: Tensor) -> Tensor:
        """In one dimension: two pieces of panels, and the whole panels between them."""
        edges, mass = self._panels
        n = len(mass)
        start, stop = low.clamp(edges[0], edges[-1]), high.clamp(edges[0], edges[-1])
        first = torch.searchsorted(edges, low.detach().contiguous()) - 1  # −1 and n: outside of all panels
        last = torch.searchsorted(edges, high.detach().contiguous(), right=True) - 1
        several = last > first
        left = self._pieces(
            start, torch.where(several, edges[(first + 1).clamp(max=n)], stop), (first >= 0) & (first < n)
        )
        right = self._pieces(edges[last.clamp(min=0)], stop, several & (last < n))
        last = last.clamp(min=0)
        whole = _between(*_cumulative_sums(mass), torch.minimum(first + 1, last), last)
        return (left + whole + right) / mass.sum()

    def _pieces(self, start: Tensor, stop: Tensor, needed: Tensor) -> Tensor:
        """∫P from start to stop (n,) where it is needed, else 0."""
        index = needed.nonzero()[:, 0]
        return torch.zeros_like(start).index_put((index,), self._integrate(start[index], stop[index]))

    @cached_unless_graph
    def _panels(self) -> tuple[Tensor, Tensor]:
        """Edges of the panels (k + 1,) in one dimension, and the probability of each (k,)."""
        if self.n_line_nodes > MAX_LINE_NODES:
            raise TooManyNodesError(self.n_line_nodes, MAX_LINE_NODES)
        low, high, _ = self._support(LINE_TAIL, LINE_PANEL)
        n_panels = self.n_line_nodes // LINE_PANEL_NODES
        edges = torch.linspace(float(low), float(high), n_panels + 1, dtype=low.dtype, device=low.device)
        return edges, self._integrate(edges[:-1], edges[1:])

    def _integrate(self, start: Tensor, stop: Tensor) -> Tensor:
        """∫P from start to stop, each (n,), in blocks of bounded size."""
        x, weight = _gauss_legendre(LINE_PANEL_NODES, start.device)
        parts = []
        for a, b in zip(start.split(PANEL_BLOCK), stop.split(PANEL_BLOCK), strict=True):
            half = (b - a)[:, None] / 2
            nodes = (b + a)[:, None] / 2 + half * x
            parts.append((self._log_density(nodes.reshape(-1, 1)).exp().reshape(nodes.shape) * half) @ weight)
        return torch.cat(parts) if parts else start

    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        """P () of one box with bounds (Nv,), from a product of panels."""
        first, last, width = self._support(BOX_TAIL, BOX_PANEL)
        start, stop = low.clamp(first, last), high.clamp(first, last)
        counts = ((stop - start) / width).ceil().clamp(min=1).long().tolist()
        n_nodes = math.prod(counts) * BOX_PANEL_NODES ** len(counts)
        if n_nodes > MAX_BOX_NODES:
            raise TooManyNodesError(n_nodes, MAX_BOX_NODES)
        x, weight = _gauss_legendre(BOX_PANEL_NODES, start.device)
        columns, weights = [], []
        for a, b, count in zip(start, stop, counts, strict=True):
            half = (b - a) / (2 * count)
            middles = a + half * (2 * torch.arange(count, device=a.device) + 1)
            columns.append((middles[:, None] + half * x).reshape(-1))
            weights.append((half * weight).repeat(count))
        nodes, mesh = torch.cartesian_prod(*columns), torch.cartesian_prod(*weights)
        return self._log_density(nodes).exp() @ mesh.prod(1)

    def _support(self, tail: float, panel: float) -> tuple[Tensor, Tensor, Tensor]:
        """The corners of a box with all but `tail` of the probability, and the width of a panel along each axis."""
        mean, covariance, detail, log_peak = self._envelope
        radius = math.sqrt(2 * (max(log_peak, 0.0) - math.log(tail)))
        reach = radius * covariance.detach().diagonal().sqrt()
        width = panel / torch.linalg.inv(detail.detach()).diagonal().sqrt()
        return mean.detach() - reach, mean.detach() + reach, width


def _cumulative_sums(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Sums (n + 1,) of all weights before, and of all weights from, each index on."""
    zero = weights.new_zeros(1)
    return torch.cat([zero, weights.cumsum(0)]), torch.cat([weights.flip(0).cumsum(0).flip(0), zero])


def _between(below: Tensor, above: Tensor, start: Tensor, stop: Tensor) -> Tensor:
    """The sum of the weights start to stop, from the end where the cumulative sums are smaller and so more accurate."""
    return torch.where(above[start] < below[stop], above[start] - above[stop], below[stop] - below[start])


def _gauss_legendre(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    x, weight = np.polynomial.legendre.leggauss(n)
    return torch.as_tensor(x, device=device), torch.as_tensor(weight, device=device)
