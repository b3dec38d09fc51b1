"""One distribution for each row of a batch, as mixtures of normals over hidden states."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from rtbm.common import TWO_PI
from rtbm.distributions.arguments import broadcast_to_batch, check_points, check_probabilities, dtype_of
from rtbm.distributions.integration.boxes import lower_tail
from rtbm.distributions.integration.normal_sums import NormalSums
from rtbm.errors import InvalidInputError
from rtbm.theta.chunks import in_chunks
from rtbm.validation import as_real, as_shape, check_device

STATE_ELEMENTS = 2**20  # rows times hidden states in one block
HERMITE_NODES = 48
"""Nodes of `DistributionBatch.expectation` for each hidden state. Fewer lose digits of curved functions."""

SMALLEST_TAIL = 1e-15
"""Normal scores are cut off where a tail is smaller, since hidden states that are left out have that probability."""
SMALLEST_WEIGHT = 1e-300  # hidden states of weight 0 fill up the rows of others


class HiddenStates(NamedTuple):
    """n distributions as mixtures of normals, one for each hidden state that matters.

    The likeliest states come first. Those left out have a probability of about 1e-15.
    """

    weights: Tensor  # (n, S)
    centres: Tensor  # (n, S, u)
    factors: Tensor  # (n, S, u, u): Cholesky factors of the covariances

    def on_line(self) -> NormalSums:
        """The same for one coordinate."""
        return NormalSums(self.weights, self.centres[..., 0], self.factors[..., 0, 0])

    def reparametrise(self, draws: Tensor) -> Tensor:
        """Draws (m, n, u) with their derivatives in the parameters.

        Coordinate after coordinate, P(v_k < x | v_1, …, v_{k−1}) of a draw is kept constant (implicit
        reparametrisation)::

            dv_k = −dP(v_k < x | v_1, …, v_{k−1}) / p(v_k | v_1, …, v_{k−1}),    x = v_k

        These are exact, also for the weights of the hidden states. Each draw has first and second derivatives.
        """
        log_weights = self.weights.clamp(min=SMALLEST_WEIGHT).log().expand(len(draws), -1, -1)
        scores: list[Tensor] = []
        columns: list[Tensor] = []
        for k in range(draws.shape[-1]):
            scale = self.factors[..., k, k]
            centre = self.centres[..., k] + sum(self.factors[..., k, j] * score for j, score in enumerate(scores))
            weights, x = log_weights.softmax(-1), draws[..., k]
            below = (weights * lower_tail((x[..., None] - centre) / scale)).sum(-1)
            sign = torch.where(below.detach() > 0.5, -1.0, 1.0)[..., None]  # of the smaller tail, which has more digits
            goal = None
            for _ in range(2):  # Newton steps of length zero that carry the first and second derivatives
                score = (x[..., None] - centre) / scale
                tail = (weights * lower_tail(sign * score)).sum(-1)
                density = (weights * (-0.5 * score.square()).exp() / scale).sum(-1) / math.sqrt(TWO_PI)
                goal = tail.detach() if goal is None else goal
                x = x - sign[..., 0] * (tail - goal) / density
            columns.append(x)
            scores.append((x[..., None] - centre) / scale)
            log_weights = log_weights - 0.5 * scores[-1].square() - scale.log()
        return torch.stack(columns, -1)


class DistributionBatch(Distribution, ABC):
    """What batches have in common: all that follows from the hidden states of each row.

    Results are computed in float64, and have the given dtype, or float64 if a float64 tensor or array is an argument.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, batch_shape: Sequence[int], n_visible: int, dtype: torch.dtype, device: torch.device):
        self.dtype, self.device = dtype, device
        super().__init__(torch.Size(batch_shape), torch.Size([n_visible]), validate_args=False)
        self._n_rows = self.batch_shape.numel()

    @property
    def n_visible(self) -> int:
        """The number of coordinates."""
        return self.event_shape[0]

    @abstractmethod
    def _state_blocks(self, width: int = 1) -> Iterator[tuple[Tensor, HiddenStates]]:
        """Blocks of rows (m,), and their hidden states."""

    @property
    @abstractmethod
    def covariance_matrix(self) -> Tensor:
        """The covariance of each row (..., u, u)."""

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (..., u)."""
        return self.covariance_matrix.diagonal(dim1=-2, dim2=-1)

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each coordinate (..., u)."""
        return self.variance.sqrt()

    def cdf(self, value: Any) -> Tensor:
        """P(v ≤ value) for values (..., 1) that broadcast against the batch, of one coordinate."""
        return self._tails(value, "cdf")[0]

    def _tails(self, value: Any, method: str) -> tuple[Tensor, Tensor]:
        """The probabilities below and above values."""
        self._needs_one(method)
        rows, shape = self._broadcast(check_points(value, "value", 1, self.device, infinite=True))
        n = self._n_rows
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
        """The quantiles p.shape + (..., 1) of probabilities p, of one coordinate: the inverse of `cdf`.

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
        p = check_probabilities(value, self.device)
        levels = p.reshape(-1).expand(self._n_rows, -1)
        result = self._quantiles(torch.where(levels > 0.5, 1 - levels, levels), levels > 0.5, "icdf")
        return self._shape(result.mT, value, shape=(*p.shape, *self.batch_shape, 1))

    def normal_scores(self, value: Any) -> Tensor:
        """z with Φ(z) = P(v ≤ value), for values as in `cdf`, between −7.9 and 7.9.

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
        rows = z.reshape(self._n_rows, z.shape[-1])
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
        """E[f(v)] (...) of an elementwise, smooth function of one coordinate, by quadrature.

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
            torch.from_numpy(x).to(self.device) for x in np.polynomial.hermite_e.hermegauss(HERMITE_NODES)
        )

        def average(states: HiddenStates) -> Tensor:
            values = function(states.centres + states.factors[..., 0] * nodes)  # (n, S, nodes)
            return (values @ weights / weights.sum() * states.weights).sum(1, keepdim=True)

        return self._shape(self._by_states(average, 1, HERMITE_NODES), shape=self.batch_shape)

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (..., u). The same generator state gives the same draws."""
        shape = as_shape(sample_shape)
        n, u = self._n_rows, self.n_visible
        draws = torch.empty(n, shape.numel(), u, dtype=torch.float64, device=self.device)
        noise = torch.randn(draws.shape, dtype=draws.dtype, device=draws.device, generator=generator)
        for index, states in self._state_blocks() if shape.numel() else ():
            chosen = torch.multinomial(states.weights, shape.numel(), replacement=True, generator=generator)
            centres = states.centres.gather(1, chosen[..., None].expand(-1, -1, u))
            factors = states.factors.gather(1, chosen[..., None, None].expand(-1, -1, u, u))
            draws[index] = centres + (factors @ noise[index][..., None])[..., 0]
        return self._shape(draws.transpose(0, 1), shape=(*shape, *self.batch_shape, u))

    def rsample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """The draws of `sample`, differentiable in the parameters: see `HiddenStates.reparametrise`.

        Examples
        --------
        >>> import rtbm
        >>> F = torch.tensor([[2.0]], requires_grad=True)  # v given h is normal with mean 2h, and h is 0 or 1
        >>> machine = rtbm.RTBMDistribution.from_lattice([[20.0]], [-10.0], F, [0.0], [[1.0]])
        >>> draws = machine.rsample((20_000,), torch.Generator().manual_seed(0))
        >>> (gradient,) = torch.autograd.grad(draws.mean(), F)
        >>> gradient.round(decimals=1)  # of E[v] = F/2
        tensor([[0.5000]])
        """
        return self._reparametrise(self.sample(sample_shape, generator))

    def _reparametrise(self, draws: Tensor) -> Tensor:
        """Give draws (..., batch, u) the derivatives of `rsample`."""
        if not torch.is_grad_enabled():
            return draws
        rows = self._by_draws(draws.detach().double())
        result = rows
        for index, states in self._state_blocks():
            width = states.centres.numel()
            found = in_chunks(lambda part, *s: HiddenStates(*s).reparametrise(part), rows[:, index], states, width)
            draw = torch.arange(len(rows), device=self.device)[:, None]
            result = result.index_put((draw, index.to(self.device)), found)
        return result.reshape(draws.shape).to(draws.dtype)

    def _by_states(self, function: Callable[[HiddenStates], Tensor], size: int, width: int = 1) -> Tensor:
        """function(hidden states of some rows) (rows, size) for all rows (n, size), in blocks of them."""
        result = torch.empty(self._n_rows, size, dtype=torch.float64, device=self.device)
        for index, states in self._state_blocks(width):
            result = result.index_put((index,), function(states))
        return result

    def _by_draws(self, x: Tensor) -> Tensor:
        """Values (draws, rows, u) of values (..., u) that have the shape of the batch behind that of the draws."""
        return x.reshape(x[..., 0].numel() // max(self._n_rows, 1), self._n_rows, self.n_visible)

    def _broadcast(self, x: Tensor) -> tuple[Tensor, torch.Size]:
        """Values (m, u), and the shape draws + batch of the results."""
        shape = broadcast_to_batch(x, self.batch_shape)
        return x.expand(*shape, -1).reshape(-1, self.n_visible), shape

    def _shape(self, result: Tensor, *values: Any, shape: Sequence[int] | None = None) -> Tensor:
        dtype = self.dtype
        for value in values:
            dtype = dtype_of(value, dtype)
        shape = (*self.batch_shape, *result.shape[1:]) if shape is None else shape
        return result.to(dtype).reshape(torch.Size(shape))

    def _needs_one(self, method: str) -> None:
        if self.n_visible != 1:
            raise InvalidInputError(
                f"{method} needs one coordinate, this distribution has {self.n_visible}: take a marginal(index) first"
            )

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Not supported: a batch has the shape that it was made with."""
        raise NotImplementedError("a batch has the shape that it was made with: make another instead of expanding")
