"""Conditional distributions of many rows at once: the same coordinates are known in each, with other values."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rtbm.distributions.arguments import (
    broadcast_to_batch,
    check_indices,
    check_points,
    check_probabilities,
    dtype_of,
    refuse_rsample,
)
from rtbm.distributions.dense import DenseMachine, change_rows
from rtbm.distributions.evaluator import explains_failures
from rtbm.distributions.integration.boxes import lower_tail
from rtbm.distributions.integration.normal_sums import NEGLIGIBLE_SHARE, NormalSums
from rtbm.distributions.missing import Pattern, missing_patterns
from rtbm.distributions.sampling.lattice import MAX_LISTED_POINTS, SAMPLER_TAIL
from rtbm.errors import InvalidInputError
from rtbm.parameters import condition_lattice
from rtbm.theta.lattice import cholesky, enumerate_points
from rtbm.theta.truncation import log_gauss_sum, squared_radius
from rtbm.validation import as_real, as_shape, check_device

STATE_ELEMENTS = 2**20  # rows times hidden states in one block of conditionals
HERMITE_NODES = 48
"""Nodes of `ConditionalDistribution.expectation` for each hidden state. Fewer lose digits of curved functions."""

SMALLEST_TAIL = 1e-15
"""Normal scores are cut off where a tail is smaller, since hidden states that are left out have that probability."""


class ConditionalMoments(NamedTuple):
    """ConditionalMoments of the unknown coordinates under one machine, for n rows."""

    log_evidence: Tensor  # (n,): log P of the known values
    mean: Tensor  # (n, u)
    covariance: Tensor | None  # (n, u, u)


class ConditionalStates(NamedTuple):
    """The unknown coordinates of n rows as mixtures of normals, one for each hidden state that matters.

    The likeliest states come first. Those left out have a probability of about 1e-15.
    """

    weights: Tensor  # (n, S)
    centres: Tensor  # (n, S, u)
    factors: Tensor  # (n, S, u, u): Cholesky factors of the covariances

    def on_line(self) -> NormalSums:
        """The same for one unknown coordinate."""
        return NormalSums(self.weights, self.centres[..., 0], self.factors[..., 0, 0])


class Regression:
    """v[others] given v[known], for one machine in lattice form::

        v_u | h, v_k ~ N(m_u + F_u h + G(v_k − m_k − F_k h), Σ_uu − GΣ_ku),    G = Σ_uk Σ_kk⁻¹

    P(h|v_k) is a discrete Gaussian whose matrix does not depend on v_k, so one plan serves all rows.
    """

    def __init__(self, machine: DenseMachine, known: list[int], others: list[int]):
        self.n_visible, self.n_hidden, self.coupling = machine.n_visible, machine.n_hidden, machine.coupling
        _, _, F, mean, covariance = lattice = machine.local_lattice
        selection = torch.eye(len(mean), dtype=mean.dtype, device=mean.device)[known]
        self.known = machine.transform(selection, selection.new_zeros(len(known)))
        rest = condition_lattice(lattice, known, others, mean[known])
        self._F, self._mean, self.covariance = F[others], mean[others], rest.covariance
        self.factor = torch.linalg.cholesky(rest.covariance)
        L = torch.linalg.cholesky(covariance[known][:, known])
        self._gain = torch.linalg.solve_triangular(L, covariance[known][:, others], upper=False)  # of L⁻¹(v_k − …)
        self._response = change_rows(rest.F, self.known.reduced.basis)  # (u, Nh): what a step of the state does to v_u

    @explains_failures
    def moments(self, x: Tensor, order: int) -> ConditionalMoments:
        """The mean, and the covariance if `order` is 2, for rows x (n, known)."""
        posterior = self.known.posterior(x)
        log_theta, mean, covariance, _ = self.known.plan.moments(posterior.z, order=order)
        assert mean is not None
        if covariance is not None:
            covariance = self.covariance + self._response @ covariance @ self._response.mT
        evidence = self.known.log_joint(posterior) + log_theta
        return ConditionalMoments(evidence, self._location(posterior) + mean @ self._response.mT, covariance)

    @explains_failures
    def states(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log P(known values, h) (n, S) and the means (n, S, u) of the unknown ones, for rows x (n, known)."""
        posterior = self.known.posterior(x)
        log_weights = posterior.z @ self.points.mT - self._energies + self.known.log_joint(posterior)[:, None]
        centres = self._location(posterior)[:, None] + self.points @ self._response.mT
        return log_weights, centres

    def _location(self, posterior: Any) -> Tensor:
        """The mean (n, u) of the unknown coordinates at the nearest hidden state."""
        return self._mean + posterior.nearest @ self._F.mT + posterior.noise @ self._gain

    @cached_property
    @torch.no_grad()
    def points(self) -> Tensor:
        """The hidden states (S, Nh), relative to the nearest one, that matter for some row."""
        R = cholesky(self.known.reduced.total.cpu().numpy())
        norms = np.diag(R) ** 2
        radius2 = squared_radius(norms, log_gauss_sum(norms, 0.5).sum() + math.log(SAMPLER_TAIL))
        points = enumerate_points(R, radius2, np.diag(R) / 2, limit=MAX_LISTED_POINTS)
        return torch.as_tensor(points, dtype=torch.float64, device=self.known.device)

    @property
    def _energies(self) -> Tensor:
        return 0.5 * ((self.points @ self.known.reduced.total) * self.points).sum(1)


class ConditionalDistribution(Distribution):
    """The distributions of some coordinates of a machine or mixture, given values of others: one for each row.

    It is what `RTBMDistribution.conditional` returns for tensors of values. The batch shape is that of the values, and
    the event shape is the number of unknown coordinates. Values that are NaN are unknown too, and are integrated out.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
    >>> given = machine.conditional({0: torch.tensor([0.7, -1.0, float("nan")], dtype=torch.float64)})
    >>> given.batch_shape, given.event_shape
    (torch.Size([3]), torch.Size([1]))
    >>> bool((given.mean[0] - machine.conditional({0: 0.7}).mean).abs() < 1e-12)
    True
    >>> bool((given.mean[2] - machine.marginal(1).mean).abs() < 1e-12)
    True
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False
    rsample = refuse_rsample

    def __init__(
        self,
        parent: Distribution,
        log_weights: Tensor,
        machines: Sequence[DenseMachine],
        known: list[int],
        others: list[int],
        values: Tensor,
    ):
        self._parent: Any = parent
        self._machines, self._known, self._others = machines, known, others
        self._values = values.reshape(values.shape[:-1].numel(), len(known))
        self._log_weights = log_weights.expand(len(self._values), -1)
        super().__init__(values.shape[:-1], torch.Size([len(others)]), validate_args=False)

    def __repr__(self) -> str:
        return (
            f"ConditionalDistribution(batch_shape={tuple(self.batch_shape)}, unknown={self._others}, "
            f"known={self._known})"
        )

    @property
    def n_visible(self) -> int:
        """The number of unknown coordinates."""
        return len(self._others)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._values.device

    @cached_property
    def _groups(self) -> list[tuple[Tensor, list[Regression]]]:
        """Rows with the same missing values, and how each machine answers for them."""
        patterns = missing_patterns(self._values) or [
            Pattern(torch.arange(len(self._values)), torch.arange(len(self._known)), self._values)
        ]
        groups = []
        for rows, present, _ in patterns:
            known = [self._known[i] for i in present.tolist()]
            groups.append((rows, [Regression(machine, known, self._others) for machine in self._machines]))
        return groups

    def _present(self, rows: Tensor) -> Tensor:
        """The values of rows that miss the same ones, without those."""
        values = self._values[rows]
        return values[:, ~values[0].isnan()] if len(rows) else values

    def _by_groups(self, function: Callable[[list[Regression], Tensor], Tensor]) -> Tensor:
        """function(regressions, rows) of each group of rows, with results (rows, …), put in order (n, …)."""
        parts = [function(regressions, rows) for rows, regressions in self._groups]
        order = torch.cat([rows for rows, _ in self._groups]).to(parts[0].device)
        return torch.cat(parts)[order.argsort()]

    @property
    def mean(self) -> Tensor:
        """E[v_u|v_k] (..., u)."""
        return self._shape(self._by_groups(lambda machines, rows: self._mix(machines, rows, 1)[0]))

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v_u|v_k] (..., u, u)."""
        return self._shape(self._by_groups(lambda machines, rows: self._mix(machines, rows, 2)[1]))

    @property
    def variance(self) -> Tensor:
        """The variance of each unknown coordinate (..., u)."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each unknown coordinate (..., u)."""
        return self.variance.sqrt()

    def _mix(self, machines: list[Regression], rows: Tensor, order: int) -> tuple[Tensor, Tensor]:
        """Mean (n, u) and covariance (n, u, u) over all machines; the covariance is meaningless for order 1."""
        parts = [machine.moments(self._present(rows), order) for machine in machines]
        weights = (torch.stack([part.log_evidence for part in parts], 1) + self._log_weights[rows]).softmax(1)
        means = torch.stack([part.mean for part in parts], 1)
        mean = (weights[:, None] @ means)[:, 0]
        if order == 1:
            return mean, mean
        centred = means - mean[:, None]
        within = torch.stack([part.covariance for part in parts if part.covariance is not None], 1)
        spread = within + centred[..., None] * centred[..., None, :]
        return mean, (weights[..., None, None] * spread).sum(1)

    def log_prob(self, value: Any) -> Tensor:
        """log P(v_u|v_k) for values (..., u) that broadcast against the batch."""
        rows, shape = self._broadcast(check_points(value, "value", self.n_visible, self.device))
        joint = self._log_joint(rows, self._values.expand(shape.numel() // max(len(self._values), 1), -1, -1))
        evidence = self._log_joint(None, self._values[None])
        return self._shape((joint - evidence).reshape(-1), value, shape=shape)

    def _log_joint(self, unknown: Tensor | None, known: Tensor) -> Tensor:
        rows = known.new_full((*known.shape[:-1], self._parent.n_visible), math.nan)
        rows[..., self._known] = known
        if unknown is not None:
            rows[..., self._others] = unknown.reshape(*known.shape[:-1], len(self._others))
        return self._parent.log_prob(rows).double()

    def cdf(self, value: Any) -> Tensor:
        """P(v_u ≤ value|v_k) for values (..., 1) that broadcast against the batch, of one unknown coordinate."""
        return self._tails(value, "cdf")[0]

    def _tails(self, value: Any, method: str) -> tuple[Tensor, Tensor]:
        """The probabilities below and above values."""
        self._needs_one(method)
        rows, shape = self._broadcast(check_points(value, "value", 1, self.device, infinite=True))
        n = len(self._values)
        draws = rows.reshape(shape.numel() // max(n, 1), n).mT  # (n, draws)
        results = [draws.new_empty(draws.shape) for _ in range(2)]
        for index, states in self._state_blocks():
            x = draws[index].reshape(-1)
            row = torch.arange(len(index), device=x.device).repeat_interleave(draws.shape[1])
            sums = states.on_line()
            for side in range(2):
                tail, _ = sums.tail_and_density(x, torch.full_like(x, side, dtype=torch.bool), row)
                results[side] = results[side].index_put((index,), tail.reshape(len(index), -1))
        below, above = (self._shape(result.mT.reshape(-1), value, shape=shape) for result in results)
        return below, above

    def icdf(self, value: Any) -> Tensor:
        """The quantiles p.shape + (..., 1) of probabilities p, of one unknown coordinate: the inverse of `cdf`.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: torch.tensor([0.7, -1.0])})
        >>> quantiles = given.icdf([0.05, 0.5, 0.95])
        >>> quantiles.shape
        torch.Size([3, 2, 1])
        >>> bool((given.cdf(quantiles)[1] - 0.5).abs().max() < 1e-12)
        True
        """
        p = check_probabilities(value, self._values.device)
        levels = p.reshape(-1).expand(len(self._values), -1)
        result = self._quantiles(torch.where(levels > 0.5, 1 - levels, levels), levels > 0.5, "icdf")
        return self._shape(result.mT, value, shape=(*p.shape, *self.batch_shape, 1))

    def normal_scores(self, value: Any) -> Tensor:
        """z with Φ(z) = P(v_u ≤ value|v_k), for values as in `cdf`, between −7.9 and 7.9.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: torch.tensor([0.7, -1.0], dtype=torch.float64)})
        >>> value = given.from_normal_scores([[1.0], [7.0]])
        >>> given.normal_scores(value)
        tensor([1.0000, 7.0000], dtype=torch.float64)
        """
        below, above = (tail.double() for tail in self._tails(value, "normal_scores"))
        score = torch.special.ndtri(torch.minimum(below, above).clamp(min=SMALLEST_TAIL))
        return self._shape(torch.where(above < below, -score, score), value, shape=score.shape)

    def from_normal_scores(self, scores: Any) -> Tensor:
        """The values (..., q) of scores (..., q), the inverse of `normal_scores`: each row has scores of its own."""
        z = check_device(as_real(scores, "scores", finite=False), "scores", self.device).double()
        if bool(z.detach().isnan().any()):
            raise InvalidInputError("scores must not hold NaN")
        if z.shape[:-1] != self.batch_shape:
            shapes = tuple(self.batch_shape), tuple(z.shape)
            raise InvalidInputError(f"scores must have the shape {shapes[0]} + (q,), got {shapes[1]}")
        rows = z.reshape(len(self._values), z.shape[-1])
        result = self._quantiles(lower_tail(-rows.abs()), rows > 0, "from_normal_scores")
        return self._shape(result, scores, shape=z.shape)

    def _quantiles(self, tail: Tensor, upper: Tensor, method: str) -> Tensor:
        """The values (n, q) with these probabilities (n, q) above them where `upper` (n, q), and below elsewhere."""
        self._needs_one(method)
        result = torch.empty_like(tail)
        for index, states in self._state_blocks():
            result = result.index_put((index,), states.on_line().quantiles(tail[index], upper[index]))
        return result

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """E[f(v_u)|v_k] (...) of an elementwise, smooth function of one unknown coordinate, by quadrature.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: torch.tensor([0.7, -1.0])})
        >>> square = given.expectation(torch.square)
        >>> bool((square - given.mean[:, 0] ** 2 - given.variance[:, 0]).abs().max() < 1e-6)  # float32 values
        True
        """
        self._needs_one("expectation")
        nodes, weights = (
            torch.from_numpy(x).to(self._values) for x in np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
        )

        def average(states: ConditionalStates) -> Tensor:
            values = function(states.centres + states.factors[..., 0] * nodes)  # (n, S, nodes)
            return (values @ weights / weights.sum() * states.weights).sum(1, keepdim=True)

        return self._shape(self._by_states(average, 1, HERMITE_NODES), shape=self.batch_shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (..., u). The same generator state gives the same draws."""
        shape = as_shape(sample_shape)
        n, u = len(self._values), len(self._others)
        draws = self._values.new_empty(n, shape.numel(), u)
        noise = torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
        for index, states in self._state_blocks() if shape.numel() else ():
            chosen = torch.multinomial(states.weights, shape.numel(), replacement=True, generator=generator)
            centres = states.centres.gather(1, chosen[..., None].expand(-1, -1, u))
            factors = states.factors.gather(1, chosen[..., None, None].expand(-1, -1, u, u))
            draws[index] = centres + (factors @ noise[index][..., None])[..., 0]
        return self._shape(draws.transpose(0, 1), shape=(*shape, *self.batch_shape, u))

    def marginal(self, indices: int | Iterable[int]) -> "ConditionalDistribution":
        """The distributions of some of the unknown coordinates, in that order; 0 is the first unknown one."""
        others = [self._others[i] for i in check_indices(indices, len(self._others))]
        values = self._values.reshape(*self.batch_shape, len(self._known))
        return ConditionalDistribution(self._parent, self._log_weights, self._machines, self._known, others, values)

    def _by_states(self, function: Callable[[ConditionalStates], Tensor], size: int, width: int = 1) -> Tensor:
        """function(hidden states of some rows) (rows, size) for all rows (n, size), in blocks of them."""
        result = self._values.new_empty(len(self._values), size)
        for index, states in self._state_blocks(width):
            result = result.index_put((index,), function(states))
        return result

    def _state_blocks(self, width: int = 1) -> Iterator[tuple[Tensor, ConditionalStates]]:
        """Blocks of rows (m,), and the hidden states of all machines for them."""
        for rows, machines in self._groups if len(self._values) else ():
            n_states = sum(len(machine.points) for machine in machines)
            for block in rows.split(max(1, STATE_ELEMENTS // (width * n_states))):
                yield block, self._states(machines, block)

    def _states(self, machines: list[Regression], rows: Tensor) -> ConditionalStates:
        parts = [machine.states(self._present(rows)) for machine in machines]
        pairs = zip(parts, self._log_weights[rows].split(1, 1), strict=True)
        log_weights = [part + weight for (part, _), weight in pairs]
        weights = torch.cat(log_weights, 1).softmax(1)
        order = weights.detach().argsort(dim=1, descending=True)
        largest = weights.detach().gather(1, order)
        order = order[:, : int((largest > NEGLIGIBLE_SHARE * largest[:, :1]).sum(1).max())]
        u = len(self._others)
        centres = torch.cat([part for _, part in parts], 1).gather(1, order[..., None].expand(-1, -1, u))
        factors = torch.cat([machine.factor.expand(len(machine.points), -1, -1) for machine in machines])[order]
        return ConditionalStates(weights.gather(1, order), centres, factors)

    def _broadcast(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        """Values (m, u) of the unknown coordinates, and the shape draws + batch of the results."""
        shape = broadcast_to_batch(x, self.batch_shape)
        return x.expand(*shape, -1).reshape(-1, len(self._others)), shape

    def _shape(self, result: Tensor, *values: Any, shape: Sequence[int] | None = None) -> Tensor:
        dtype = self._parent.dtype
        for value in values:
            dtype = dtype_of(value, dtype)
        shape = (*self.batch_shape, *result.shape[1:]) if shape is None else shape
        return result.to(dtype).reshape(torch.Size(shape))

    def _needs_one(self, method: str) -> None:
        if len(self._others) != 1:
            raise InvalidInputError(
                f"{method} needs one unknown coordinate, this distribution has {len(self._others)}: take a "
                "marginal(index) first"
            )

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Not supported: give values of the batch shape to `conditional`."""
        raise NotImplementedError("give values of the wanted shape to conditional() instead of expanding")
