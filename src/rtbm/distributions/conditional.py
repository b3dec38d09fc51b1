"""Conditional distributions of many rows at once: the same coordinates are known in each, with other values."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.distributions.arguments import check_indices, check_points
from rtbm.distributions.batch import STATE_ELEMENTS, DistributionBatch, HiddenStates
from rtbm.distributions.caching import cached_with_graph, cached_without_graph
from rtbm.distributions.dense import DenseMachine, change_rows
from rtbm.distributions.evaluator import explains_failures
from rtbm.distributions.integration.normal_sums import NEGLIGIBLE_SHARE
from rtbm.distributions.missing import Pattern, missing_patterns
from rtbm.distributions.notebook import distribution_html
from rtbm.distributions.sampling.lattice import MAX_LISTED_POINTS, SAMPLER_TAIL
from rtbm.parameters import condition_lattice
from rtbm.theta.lattice import cholesky, enumerate_points
from rtbm.theta.truncation import log_gauss_sum, squared_radius


class ConditionalMoments(NamedTuple):
    """ConditionalMoments of the unknown coordinates under one machine, for n rows."""

    log_evidence: Tensor  # (n,): log P of the known values
    mean: Tensor  # (n, u)
    covariance: Tensor | None  # (n, u, u)


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

    @cached_without_graph
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


class ConditionalDistribution(DistributionBatch):
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

    _repr_html_ = distribution_html

    def __init__(
        self,
        parent: Any,
        log_weights: Tensor,
        machines: Sequence[DenseMachine],
        known: list[int],
        others: list[int],
        values: Tensor,
    ):
        self._parent = parent
        self._machines, self._known, self._others = machines, known, others
        self._values = values.reshape(values.shape[:-1].numel(), len(known))
        self._log_weights = log_weights.expand(len(self._values), -1)
        super().__init__(values.shape[:-1], len(others), parent.dtype, values.device)

    def __repr__(self) -> str:
        return (
            f"ConditionalDistribution(batch_shape={tuple(self.batch_shape)}, unknown={self._others}, "
            f"known={self._known})"
        )

    @cached_with_graph
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

    def marginal(self, indices: int | Iterable[int]) -> "ConditionalDistribution":
        """The distributions of some of the unknown coordinates, in that order; 0 is the first unknown one."""
        others = [self._others[i] for i in check_indices(indices, len(self._others))]
        if others == self._others:
            return self
        values = self._values.reshape(*self.batch_shape, len(self._known))
        return ConditionalDistribution(self._parent, self._log_weights, self._machines, self._known, others, values)

    def _state_blocks(self, width: int = 1) -> Iterator[tuple[Tensor, HiddenStates]]:
        """Blocks of rows (m,), and the hidden states of all machines for them."""
        for rows, machines in self._groups if len(self._values) else ():
            n_states = sum(len(machine.points) for machine in machines)
            for block in rows.split(max(1, STATE_ELEMENTS // (width * n_states))):
                yield block, self._states(machines, block)

    def _states(self, machines: list[Regression], rows: Tensor) -> HiddenStates:
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
        return HiddenStates(weights.gather(1, order), centres, factors)
