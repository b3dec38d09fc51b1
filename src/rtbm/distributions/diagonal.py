"""Machines with a diagonal Q: a Gaussian times a product of one-dimensional theta functions."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.caching import cached_unless_graph, cached_with_graph, cached_without_graph, ordinary_tensors
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.evaluator import Machine
from rtbm.distributions.integration.boxes import BoxQuadrature
from rtbm.distributions.integration.grid import MAX_GRID_DIMENSION, Envelope, Grid, make_grid, spacing_for
from rtbm.distributions.sampling.lattice import reach_of, sample_integers
from rtbm.distributions.sampling.rejection import RejectionSampler
from rtbm.errors import TooManyNodesError
from rtbm.parameters import (
    Free,
    Lattice,
    Natural,
    change_phase,
    condition_natural,
    inverse,
    map_tensors,
    natural_to_lattice,
    solve,
    symmetric,
    transform_natural,
    unconstrain,
)
from rtbm.theta.plan import ThetaPlan
from rtbm.validation import check_positive_definite

MAX_LATTICE_UNITS = 3
"""Up to this many hidden units, a diagonal machine is normalised by the lattice sum of a dense one, which is then the
cheapest. With more, an integral over v is cheaper. The results agree."""
AVERAGE_ELEMENTS = 2**22  # offsets times nodes times units in one block of averages
WINDOW_ELEMENTS = 2**22  # points times units times integers in one block of hidden draws


class DiagonalMachine(Machine):
    """A Gaussian times a periodic factor, in natural parameters of phase II::

        log P(v) = log N(v; −T⁻¹b_v, T⁻¹) + log θ̃(i(Wᵀv + b_h)|Q) − log θ̃(i(b_h − WᵀT⁻¹b_v)|Q + WᵀT⁻¹W)

    The last term is the logarithm of the average of the periodic factor over the Gaussian. For up to three visible
    units it is computed as that average, by the trapezoidal rule, so there may be hundreds of hidden units. So are
    moments, samples and probabilities. Otherwise those come from a lattice sum, for few hidden units.

    `natural` are float64 parameters in phase II, with Q given by its diagonal. `tolerance` bounds the relative
    truncation error of each theta function, and of the normaliser. Up to `max_lattice_units` hidden units the lattice
    sum is preferred.
    """

    coupling = "diagonal"

    def __init__(self, natural: Natural, tolerance: float, max_lattice_units: int = MAX_LATTICE_UNITS):
        self._natural = map_tensors(natural, Tensor.contiguous)  # the last digits of products depend on the layout
        self.tolerance, self._max_lattice_units = tolerance, max_lattice_units
        self.n_visible, self.n_hidden = natural.W.shape
        self.device = natural.W.device

    @classmethod
    def from_natural(cls, natural: Natural, tolerance: float) -> "DiagonalMachine":
        """The machine of natural parameters in either phase."""
        if natural.phase == "II":
            return cls(natural, tolerance)
        dual = change_phase(natural)
        check_positive_definite(dual.T, "T − WQ⁻¹Wᵀ (with T, W, Q as given in phase I)")
        return cls(dual, tolerance)

    @classmethod
    def from_parameters(cls, parameters: Sequence[Tensor], tolerance: float) -> "DiagonalMachine":
        """The machine of its own `parameters`."""
        return cls(Natural(*parameters)._replace(phase="II"), tolerance)  # type: ignore[arg-type]

    @property
    def parameters(self) -> list[Tensor]:
        """All tensors that the machine is made of."""
        return list(self._natural[:-1])

    @property
    def checked(self) -> Natural:
        """The parameters that must be finite, with a positive definite T."""
        return self._natural

    @cached_with_graph
    def lattice(self) -> Lattice:
        """The lattice parameters."""
        return natural_to_lattice(self._natural)

    def natural(self, phase: str) -> Natural:
        """The natural parameters in the given phase."""
        return self._natural if phase == "II" else change_phase(self._natural)

    def free(self) -> Free:
        """The free parameters."""
        return unconstrain(self._natural)

    def mapped(self, function: Callable[[Tensor], Tensor]) -> "DiagonalMachine":
        """The same machine with a function applied to every parameter tensor."""
        return DiagonalMachine(map_tensors(self._natural, function), self.tolerance, self._max_lattice_units)

    def as_dense(self) -> DenseMachine:
        """The same density as a sum over the lattice of hidden states, for few hidden units."""
        return DenseMachine(self.lattice, self.tolerance)

    def condition(self, known: list[int], others: list[int], values: Tensor) -> "DiagonalMachine":
        """The machine of v[others] given v[known] = values."""
        with ordinary_tensors():
            return DiagonalMachine(condition_natural(self._natural, known, others, values.clone()), self.tolerance)

    def transform(self, M: Tensor, c: Tensor) -> "DiagonalMachine | DenseMachine":
        """The machine of Mv + c: diagonal if M is square, else dense."""
        if M.shape[0] == M.shape[1]:
            with ordinary_tensors():
                return DiagonalMachine(transform_natural(self._natural, M.clone(), c.clone()), self.tolerance)
        return self.as_dense().transform(M, c)

    def log_density(self, v: Tensor) -> Tensor:
        """log P(v) (n,)."""
        return self.log_unnormalized(v) - self.log_normalizer()

    def log_unnormalized(self, v: Tensor) -> Tensor:
        """log N(v) + log θ̃ (n,): log P without the normaliser."""
        return _log_normal(v - self._mean, self._L) + self._plan.log_theta(self._argument(v))

    def log_normalizer(self) -> Tensor:
        """log of the average () of the periodic factor over the Gaussian."""
        return self._log_normalizer

    def score_function(self, v: Tensor) -> Tensor:
        """∇_v log P(v) (n, Nv), which needs no normaliser."""
        slope = self._slope(self._argument(v))
        return slope @ self._natural.W.mT - ((v - self._mean) @ self._L) @ self._L.mT

    def hidden_mean(self, v: Tensor, phase: str) -> Tensor:
        """E(h|v) (n, Nh) as the natural parameters of `phase` define it."""
        u = self._argument(v)
        slope = self._slope(u)
        return -slope if phase == "II" else (u + self._natural.Q * slope) / TWO_PI

    def hidden_log_prob(self, h: Tensor, v: Tensor | None) -> Tensor:
        """log P(h|v) (n,) of independent units, or log P(h) (n,) without v."""
        if v is None:
            A, a, *_ = self.lattice
            centre, L = -solve(A, a[:, None])[:, 0], torch.linalg.cholesky(A)
            return _log_normal(h - centre, L) - self.log_normalizer()
        centre, precision = self._hidden_posterior(v)
        exponent = 0.5 * (precision / TWO_PI).log().sum() - 0.5 * (h - centre).square() @ precision
        return exponent - self._plan.log_theta(TWO_PI * centre)

    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        if self._dense is not None:
            return self._dense.mean()
        return self._node_weights @ self._nodes

    def covariance(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        if self._dense is not None:
            return self._dense.covariance()
        weights = self._node_weights
        centred = self._nodes - weights @ self._nodes
        return centred.mT @ (weights[:, None] * centred)

    def log_mgf(self, t: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv): the Gaussian is shifted by T⁻¹t, and with it the offset."""
        if self._dense is not None:
            return self._dense.log_mgf(t)
        shift = t @ inverse(self._natural.T)
        averages = self.log_average(self._offset + shift @ self._natural.W)
        return t @ self._mean + 0.5 * (t * shift).sum(1) + averages - self.log_normalizer()

    def log_marginal(self, v: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of the coordinates `present`: their Gaussian times the average over the others, given these."""
        if self._dense is not None:
            return self._dense.log_marginal(v, present)
        T, W, Q, _, b_h, _ = self._natural
        missing = [i for i in range(self.n_visible) if i not in present]
        centred = v - self._mean[present]
        log_normal = _log_normal(centred, torch.linalg.cholesky(inverse(inverse(T)[present][:, present])))
        precision = T[missing][:, missing]
        shift = -centred @ solve(precision, T[missing][:, present]).mT
        others = Natural(precision, W[missing], Q, 0 * self._mean[missing], 0 * b_h, "II")
        offsets = self._offset + centred @ W[present] + shift @ W[missing]
        return log_normal + DiagonalMachine(others, self.tolerance).log_average(offsets) - self.log_normalizer()

    def box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,): an integral of the density over v."""
        return self._dense.box(low, high) if self._dense is not None else self._quadrature.box(low, high)

    @torch.no_grad()
    def sample_joint(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """n independent draws of v (n, Nv), and of h (n, Nh) given v."""
        if self._dense is not None:
            return self._dense.sample_joint(n, generator)
        v = self._sampler.sample(n, generator)
        centre, precision = self._hidden_posterior(v)
        reach = int(reach_of(precision.cpu().numpy()).max())
        rows = max(1, WINDOW_ELEMENTS // (self.n_hidden * (2 * reach + 1)))
        parts = [sample_integers(part, precision, reach, generator)[0] for part in centre.split(rows)]
        return v, torch.cat(parts)

    @torch.no_grad()
    def envelope(self) -> Envelope:
        """A Gaussian bound on the density, and the covariance of its finest detail."""
        return self._dense.envelope() if self._dense is not None else self._envelope(float(self._log_normalizer))

    def log_average(self, offsets: Tensor) -> Tensor:
        """log of the mean of θ̃(i(Wᵀ(v − mean) + offset)|Q) over v ~ N(mean, T⁻¹) (n,), for any offsets (n, Nh).

        At this machine's own offset it is the normaliser. The grid must reach far enough for the smallest average,
        since it is truncated relative to that. If it does not, a larger one follows.
        """
        if len(offsets) == 0:
            return offsets.sum(1)
        while self.grid is not None:
            rows = max(1, AVERAGE_ELEMENTS // (len(self.grid.nodes) * self.n_hidden))
            centred = self.grid.nodes - self._mean
            u, log_normal = centred @ self._natural.W, _log_normal(centred, self._L)
            sums = [(self._plan.log_theta(u + part[:, None]) + log_normal).logsumexp(1) for part in offsets.split(rows)]
            values = torch.cat(sums) + self.grid.log_cell
            lowest = float(values.detach().min())
            if not lowest < self._smallest_log_average:
                return values
            self.grid = self._make_grid(lowest - 1.0)
        return self._normalizer_plan.log_theta(offsets)

    @cached_without_graph
    def grid(self) -> Grid | None:
        """The nodes for integrals over v, or None where the lattice sum is used."""
        if self.n_hidden <= self._max_lattice_units or self.n_visible > MAX_GRID_DIMENSION:
            return None
        return self._make_grid(-1.0)

    def _make_grid(self, smallest_log_average: float) -> Grid | None:
        """A grid that truncates at `tolerance` relative to that average or a larger one; None if it is too large."""
        self._smallest_log_average = smallest_log_average
        with ordinary_tensors():
            try:
                spacing = spacing_for(self.tolerance, self.n_visible)
                return make_grid(self._envelope(smallest_log_average), spacing, self.tolerance)
            except TooManyNodesError:
                return None

    @torch.no_grad()
    def _envelope(self, log_average: float) -> Envelope:
        """The envelope, if the average of the periodic factor is exp(log_average)."""
        T, W, Q = self._natural[:3]
        peak = float(self._plan.log_theta(torch.zeros_like(self._offset)))
        return Envelope(self._mean, inverse(T), inverse(symmetric(T + (W / Q) @ W.mT)), peak - log_average)

    @cached_with_graph
    def _dense(self) -> DenseMachine | None:
        """The dense machine that answers for integrals over v, or None where the grid does."""
        return self.as_dense() if self._nodes is None else None

    @cached_without_graph
    def _nodes(self) -> Tensor | None:
        """Nodes (n, Nv) for moments, or None where the lattice sum is used. They stay when the grid is replaced."""
        if self.grid is not None:
            self.log_normalizer()  # the grid reaches far enough only after this, or turns out to be too large
        return None if self.grid is None else self.grid.nodes

    @cached_unless_graph
    def _log_normalizer(self) -> Tensor:
        return self.log_average(self._offset[None])[0]

    @cached_unless_graph
    def _node_weights(self) -> Tensor:
        """The probabilities (n,) of the nodes."""
        assert self._nodes is not None
        return self.log_unnormalized(self._nodes).softmax(0)

    @cached_with_graph
    def _quadrature(self) -> BoxQuadrature:
        return BoxQuadrature(self.log_density, self.envelope(), self._wants_graph)

    @cached_without_graph
    def _sampler(self) -> RejectionSampler:
        return RejectionSampler(self.log_unnormalized, self.envelope())

    def _wants_graph(self) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in self._natural[:-1])

    def _argument(self, v: Tensor) -> Tensor:
        """u = Wᵀv + b_h (n, Nh), from v relative to the mean of the Gaussian."""
        return (v - self._mean) @ self._natural.W + self._offset

    def _hidden_posterior(self, v: Tensor) -> tuple[Tensor, Tensor]:
        """Centres (n, Nh) and precisions (Nh,) of the independent hidden units given v."""
        return self._argument(v) / TWO_PI, TWO_PI**2 / self._natural.Q

    def _slope(self, u: Tensor) -> Tensor:
        slope = self._plan.moments(u, order=1).mean
        assert slope is not None
        return slope

    @cached_with_graph
    def _plan(self) -> ThetaPlan:
        return ThetaPlan(self._natural.Q, phase="II", tolerance=self.tolerance)

    @cached_with_graph
    def _normalizer_plan(self) -> ThetaPlan:
        """θ̃ of Q + WᵀT⁻¹W."""
        root = torch.linalg.solve_triangular(self._L, self._natural.W, upper=False)
        return ThetaPlan(torch.diag(self._natural.Q) + root.mT @ root, phase="II", tolerance=self.tolerance)

    @cached_with_graph
    def _L(self) -> Tensor:
        """The Cholesky factor of T."""
        return torch.linalg.cholesky(self._natural.T)

    @cached_with_graph
    def _mean(self) -> Tensor:
        """The mean of the Gaussian factor."""
        return -torch.cholesky_solve(self._natural.b_v[:, None], self._L)[:, 0]

    @cached_with_graph
    def _offset(self) -> Tensor:
        """u at the mean of the Gaussian factor."""
        return self._natural.b_h + self._natural.W.mT @ self._mean


def _log_normal(centred: Tensor, L: Tensor) -> Tensor:
    """The log-density (n,) of a normal distribution with precision LLᵀ, at points (n, k) relative to its mean."""
    log_volume = 0.5 * len(L) * math.log(TWO_PI) - L.diagonal().log().sum()
    return -0.5 * (centred @ L).square().sum(1) - log_volume
