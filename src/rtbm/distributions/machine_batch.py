"""A batch of machines of one size, each row with parameters of its own."""

import math
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.distributions.arguments import check_indices, check_points
from rtbm.distributions.batch import STATE_ELEMENTS, DistributionBatch, HiddenStates
from rtbm.distributions.caching import cached_with_graph, cached_without_graph
from rtbm.distributions.rtbm import RTBMDistribution
from rtbm.distributions.sampling.lattice import MAX_LISTED_POINTS, list_points
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.parameters import (
    Free,
    Natural,
    constrain,
    from_log_cholesky,
    log_cholesky,
    map_tensors,
    natural_to_lattice,
    shapes_of,
    triangle_of,
    unconstrain,
)
from rtbm.theta.rows import log_shifted_sums
from rtbm.validation import check_finite, check_tolerance


class RTBMBatch(DistributionBatch):
    """Machines of one size with free parameters (..., count): one distribution for each entry of the batch::

        log P(v) = log N(y|0, 1) − ½ρ − log|L| + log Σ_h exp(−½|M(h − c − x)|²) − log Σ_h exp(−½|Rᵀ(h − c)|²)

    with A = RRᵀ, covariance = LLᵀ, y = L⁻¹(v − mean − Fc), M = (Rᵀ, L⁻¹F), and x that minimises
    ``ρ = |M x − (0, y)|²``. Both sums are exact up to `tolerance`. They suit up to three hidden units, and more where
    few terms matter.

    Parameters
    ----------
    free : rtbm.parameters.Free
        The parameters, with the shape of the batch in front. Every value of them is a machine, within the range of
        float64. With coupling "diagonal", the machines are changed to lattice form.
    tolerance : float, default=1e-12
        Bounds the relative truncation error of each sum over hidden states.

    Examples
    --------
    >>> from rtbm.parameters import count, unpack
    >>> free = unpack(torch.randn(5, count(1, 2), dtype=torch.float64), 1, 2)
    >>> batch = RTBMBatch(free)
    >>> batch
    RTBMBatch(batch_shape=(5,), n_visible=1, n_hidden=2, dtype=torch.float64)
    >>> v = torch.zeros(5, 1, dtype=torch.float64)
    >>> bool((batch.log_prob(v)[3] - batch[3].log_prob(v[3])).abs() < 1e-10)
    True
    >>> batch.sample((7,)).shape
    torch.Size([7, 5, 1])
    """

    def __init__(self, free: Free, *, tolerance: float = 1e-12):
        if not isinstance(free, Free):
            raise InvalidInputError(
                f"free must be an rtbm.parameters.Free, got a {type(free).__name__}: unpack(vectors, n_visible, "
                "n_hidden) makes one of vectors (..., count)"
            )
        self.tolerance: float = check_tolerance(tolerance)
        n_visible, self.n_hidden = _check_shapes(free)
        self.free = free
        batch_shape = free.visible_centre.shape[:-1]
        super().__init__(batch_shape, n_visible, free.weights.dtype, free.weights.device)
        parts: list[Any] = [part.double().reshape(-1, *part.shape[len(batch_shape) :]) for part in free[:-1]]
        rows = Free(*parts)._replace(coupling=free.coupling)
        self._rows = (
            rows if rows.coupling == "dense" else unconstrain(natural_to_lattice(cast(Natural, constrain(rows))))
        )
        self._root = triangle_of(self._rows.hidden_scale).mT
        self._factor = triangle_of(self._rows.visible_scale)
        for matrix in (self._root, self._factor):
            check_finite(matrix, "the Cholesky factors of these free parameters")

    def __repr__(self) -> str:
        return (
            f"RTBMBatch(batch_shape={tuple(self.batch_shape)}, n_visible={self.n_visible}, n_hidden={self.n_hidden}, "
            f"dtype={self.dtype})"
        )

    def __len__(self) -> int:
        return self.batch_shape[0]

    def __getitem__(self, index: Any) -> "RTBMDistribution | RTBMBatch":
        """One machine, or a part of the batch."""
        inner = torch.empty(self.batch_shape)[index].ndim
        parts: list[Any] = [part[index] for part in self.free[:-1]]
        free = Free(*parts)._replace(coupling=self.free.coupling)
        if inner:
            return RTBMBatch(free, tolerance=self.tolerance)
        return RTBMDistribution.from_free(free, tolerance=self.tolerance)

    def log_prob(self, value: Any) -> Tensor:
        """log P(v) for values (..., Nv) that broadcast against the batch."""
        points, shape = self._broadcast(check_points(value, "value", self.n_visible, self.device))
        draws = self._by_draws(points)
        _, centre, F, mean, _, _ = self._rows
        L = self._factor
        y = torch.linalg.solve_triangular(L, (draws - (mean + _times(F, centre))).movedim(0, -1), upper=False)
        weights = torch.linalg.solve_triangular(L, F, upper=False)
        M = torch.cat([self._root, weights], 1)
        q, r = torch.linalg.qr(M)
        goal = torch.cat([torch.zeros_like(self._root[..., :1]).expand(-1, -1, len(draws)), y], 1)
        x = torch.linalg.solve_triangular(r, q.mT @ goal, upper=True)
        rho = (goal - M @ x).square().sum(1)
        log_sum = log_shifted_sums((centre[..., None] + x).movedim(-1, 0), M, self.tolerance)
        log_volume = L.diagonal(dim1=1, dim2=2).log().sum(1) + 0.5 * self.n_visible * math.log(TWO_PI)
        log_prob = log_sum - 0.5 * rho.mT - log_volume - self._log_normalizer
        return self._shape(log_prob.reshape(-1), value, shape=shape)

    @cached_with_graph
    def _log_normalizer(self) -> Tensor:
        """log Σ_h exp(−½(h − c)ᵀA(h − c)) (n,)."""
        return log_shifted_sums(self._rows.hidden_centre, self._root, self.tolerance)

    @property
    def mean(self) -> Tensor:
        """E[v] (..., Nv)."""
        return self._shape(self._by_states(lambda s: (s.weights[:, None] @ s.centres)[:, 0], self.n_visible))

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (..., Nv, Nv)."""

        def second(states: HiddenStates) -> Tensor:
            centred = states.centres - states.weights[:, None] @ states.centres
            spread = centred.mT @ (states.weights[..., None] * centred)
            return (spread + states.factors[:, 0] @ states.factors[:, 0].mT).flatten(1)

        n = self.n_visible
        return self._shape(self._by_states(second, n * n), shape=(*self.batch_shape, n, n))

    def marginal(self, indices: int | Iterable[int]) -> "RTBMBatch":
        """The distributions of some coordinates, in that order: machines with the same hidden units."""
        chosen = check_indices(indices, self.n_visible)
        if not chosen:
            raise InvalidInputError("indices must name at least one coordinate")
        scale, centre, F, mean, covariance, _ = self._rows
        scales = log_cholesky(from_log_cholesky(covariance)[:, chosen][:, :, chosen])
        parts: list[Any] = [
            part.reshape(*self.batch_shape, *part.shape[1:])
            for part in (scale, centre, F[:, chosen], mean[:, chosen], scales)
        ]
        return RTBMBatch(map_tensors(Free(*parts), lambda part: part.to(self.dtype)), tolerance=self.tolerance)

    def _state_blocks(self, width: int = 1) -> Iterator[tuple[Tensor, HiddenStates]]:
        start = 0
        while start < self._n_rows:  # lists differ in length, so blocks end where the longest makes them full
            stop = start + 1
            longest = len(self._lists[start])
            while stop < self._n_rows:
                longer = max(longest, len(self._lists[stop]))
                if longer * (stop + 1 - start) * width > STATE_ELEMENTS:
                    break
                longest, stop = longer, stop + 1
            yield torch.arange(start, stop, device=self.device), self._states(slice(start, stop))
            start = stop

    def _states(self, rows: slice) -> HiddenStates:
        lists = self._lists[rows]
        h = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True)
        is_listed = torch.nn.utils.rnn.pad_sequence([torch.ones(len(part)) for part in lists], batch_first=True) > 0
        centre, F, mean = (part[rows] for part in self._rows[1:4])
        energy = 0.5 * ((h - centre[:, None]) @ self._root[rows].mT).square().sum(-1)
        weights = torch.where(is_listed.to(self.device), -energy, -torch.inf).softmax(1)
        factors = self._factor[rows][:, None].expand(-1, h.shape[1], -1, -1)
        return HiddenStates(weights, mean[:, None] + h @ F.mT, factors)

    @cached_without_graph
    def _lists(self) -> list[Tensor]:
        """The hidden states (terms, Nh) of each row, the likeliest first."""
        root, centres = self._root.detach(), self._rows.hidden_centre.detach().cpu().numpy()
        matrices = (root.mT @ root).cpu().numpy()
        lists = []
        for i, (A, centre) in enumerate(zip(matrices, centres, strict=True)):
            try:
                lists.append(torch.from_numpy(list_points(A, centre, MAX_LISTED_POINTS)[0]).to(self.device))
            except TooManyTermsError as error:
                raise TooManyTermsError(
                    error.terms,
                    error.limit,
                    f"the machine of row {i} has about {error.terms:.3g} hidden states that matter, and lists of them, "
                    f"which all but log_prob and marginal need, are limited to {error.limit}: take the machine of one "
                    "row, batch[i], which has methods for many states, or use fewer hidden units",
                ) from None
        return lists


def _check_shapes(free: Free) -> tuple[int, int]:
    """The numbers of visible and hidden units of parameters that fit together."""
    if free.weights.ndim < 3:
        raise InvalidInputError(
            f"free.weights must have shape (..., n_visible, n_hidden) with a batch in front, got "
            f"{tuple(free.weights.shape)}: for one machine use RTBMDistribution.from_free"
        )
    *batch, n_visible, n_hidden = free.weights.shape
    for name, part, shape in zip(free._fields, free[:-1], shapes_of(n_visible, n_hidden, free.coupling), strict=False):
        if tuple(part.shape) != (*batch, *shape):
            raise InvalidInputError(f"free.{name} must have shape {(*batch, *shape)}, got {tuple(part.shape)}")
        if part.dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(f"free.{name} must be of float32 or float64, got {part.dtype}")
        check_finite(part, f"free.{name}")
    return n_visible, n_hidden


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]
