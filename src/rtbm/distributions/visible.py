"""What every density over visible units can do, given its values, samples and a grid."""

import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints, register_kl

from rtbm.distributions.grid import MAX_GRID_DIMENSION, MAX_NODES, Envelope, make_grid
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.validation import as_real, check_device, check_vectors

QUADRATURE_ERROR = 1e-9
"""Two grids, one twice as fine as the other, must agree to this before an expectation counts as exact."""
N_SAMPLES = 100_000
"""The default size of a Monte Carlo estimate."""


Integrand = Callable[[Tensor, Tensor], Tensor]
"""A function of v (n, Nv) and log P(v) (n,) that returns numbers (n,)."""


class Estimate(NamedTuple):
    """A number and its standard error."""

    value: Tensor
    error: Tensor


class VisibleDistribution(Distribution):
    """A density over ℝ^Nv with exact samples, marginals and conditionals: one machine, or a mixture of them.

    Everything is computed in float64 and returned in the dtype of the parameters.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector
    has_rsample = False

    def __init__(self, n_visible: int, dtype: torch.dtype, device: torch.device):
        self._dtype, self._device = dtype, device
        super().__init__(event_shape=torch.Size([n_visible]), validate_args=False)

    @property
    def n_visible(self) -> int:
        """The number of visible units."""
        return self.event_shape[0]

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (Nv,)."""
        return self.covariance_matrix.diagonal()

    @property
    @abstractmethod
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""

    @abstractmethod
    def marginal(self, indices: int | Iterable[int]) -> Self:
        """The distribution of the coordinates `indices`, in that order."""

    @abstractmethod
    def _log_density(self, rows: Tensor) -> Tensor:
        """log P (n,) for finite float64 rows (n, Nv)."""

    @abstractmethod
    def _score(self, rows: Tensor) -> Tensor:
        """∇ log P (n, Nv)."""

    @abstractmethod
    def _log_mgf(self, rows: Tensor) -> Tensor:
        """log E[exp(tᵀv)] (n,) for t (n, Nv)."""

    @abstractmethod
    def _box(self, low: Tensor, high: Tensor) -> Tensor:
        """P(low < v < high) (n,) for low ≤ high (n, Nv)."""

    @abstractmethod
    def _sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n draws (n, Nv), float64."""

    @abstractmethod
    def _envelopes(self) -> list[tuple["VisibleDistribution", Tensor | float, Envelope]]:
        """The parts with their weights, and a bound for each."""

    def log_prob(self, value: Any) -> Tensor:
        """log P(v) (...) for v (..., Nv). Entries that are NaN are missing: they are integrated out.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> nan = float("nan")
        >>> present = machine.marginal([1]).log_prob([[0.3]])
        >>> bool((machine.log_prob([[nan, 0.3]]) - present).abs() < 1e-12)
        True
        """
        rows, shape, dtype = self._rows(value, "value", missing=True)
        absent = rows.detach().isnan()
        if not bool(absent.any()):
            return self._log_density(rows).to(dtype).reshape(shape)
        patterns, group = absent.unique(dim=0, return_inverse=True)
        result = rows.new_zeros(len(rows))
        for i, pattern in enumerate(patterns):
            index = (group == i).nonzero()[:, 0]
            present = (~pattern).nonzero()[:, 0]
            if len(present):
                part = self._log_marginal(rows[index][:, present], present.tolist())
                result = result.index_put((index,), part)
        return result.to(dtype).reshape(shape)

    def _log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of some coordinates alone."""
        if len(present) == self.n_visible:
            return self._log_density(rows)
        return self.marginal(present)._log_density(rows)

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (Nv,); the same generator state gives the same draws."""
        shape = as_shape(sample_shape)
        return self._sample(shape.numel(), generator).to(self._dtype).reshape(*shape, self.n_visible)

    def log_mgf(self, t: Any) -> Tensor:
        """log E[exp(tᵀv)] (...) for t (..., Nv): the cumulant-generating function.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).log_mgf([2.0])  # a standard normal: ½t²
        tensor(2., dtype=torch.float64)
        """
        rows, shape, dtype = self._rows(t, "t")
        return self._log_mgf(rows).to(dtype).reshape(shape)

    def box_probability(self, low: Any, high: Any) -> Tensor:
        """P(low < v < high) (...) for corners (..., Nv), which may be infinite.

        In one dimension, and where v given h has independent coordinates, a sum of error functions. In two dimensions
        one integral is left for quadrature (about 1e-13), in more a quasi-Monte Carlo sum (about 1e-4).

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.box_probability([0.0], [float("inf")])
        tensor(0.5000, dtype=torch.float64)
        """
        first, last, shape, dtype = self._corners(low, high)
        return self._box(first, torch.maximum(first, last)).to(dtype).reshape(shape)

    def cdf(self, value: Any) -> Tensor:
        """P(all coordinates are below v) (...) for v (..., Nv).

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.cdf([[-1.0], [0.0], [1.0]])
        tensor([0.1623, 0.5000, 0.8377], dtype=torch.float64)
        """
        value = as_real(value, "value", finite=False)
        return self.box_probability(torch.full_like(value, -math.inf), value)

    def icdf(self, value: Any) -> Tensor:
        """The quantiles v (..., 1) of probabilities p (..., 1) in one dimension: the inverse of `cdf`.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.icdf([[0.5]]).abs() < 1e-12
        tensor([[True]])
        """
        if self.n_visible != 1:
            raise InvalidInputError(
                f"icdf needs one visible unit, this distribution has {self.n_visible}: take a marginal(index) first"
            )
        rows, shape, dtype = self._rows(value, "value")
        if not bool(((rows.detach() >= 0) & (rows.detach() <= 1)).all()):
            raise InvalidInputError("value must hold probabilities between 0 and 1")
        with torch.no_grad():
            v, density = self._invert(rows.detach()[:, 0])
        inside = density > 0
        correction = (rows[:, 0] - self._cdf_rows(v)) / density
        v = torch.where(inside, v + torch.where(inside, correction, 0.0), v)  # one more step carries derivatives
        return v.to(dtype).reshape(*shape, 1)

    def _invert(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Newton steps inside a shrinking bracket, all p (n,) at once. Returns v (n,) and P(v), which is 0 at ±∞."""
        low, high = self._bracket(p)
        v = (low + high) / 2
        for _ in range(200):
            excess = self._cdf_rows(v) - p
            low, high = torch.where(excess < 0, v, low), torch.where(excess < 0, high, v)
            step = v - excess / self._log_density(v[:, None]).exp()
            inside = (step > low) & (step < high)
            v, previous = torch.where(inside, step, (low + high) / 2), v
            if bool(((v - previous).abs() <= 4e-16 * v.abs() + 1e-300).all()):
                break
        density = self._log_density(v[:, None]).exp()
        for end, infinity in ((0.0, -math.inf), (1.0, math.inf)):
            v, density = torch.where(p == end, infinity, v), torch.where(p == end, 0.0, density)
        return v, density

    def _bracket(self, p: Tensor) -> tuple[Tensor, Tensor]:
        """Points below and above the quantiles of p (n,): a standard deviation away, doubled as often as needed."""
        mean, deviation = self.mean.double()[0], self.variance.double()[0].sqrt()
        low, high = torch.full_like(p, float(mean - deviation)), torch.full_like(p, float(mean + deviation))
        for _ in range(60):
            short_low, short_high = (self._cdf_rows(low) > p) & (p > 0), (self._cdf_rows(high) < p) & (p < 1)
            if not bool((short_low | short_high).any()):
                break
            low = torch.where(short_low, mean + 2 * (low - mean), low)
            high = torch.where(short_high, mean + 2 * (high - mean), high)
        return low, high

    def _cdf_rows(self, v: Tensor) -> Tensor:
        return self.cdf(v[:, None]).double()

    def score(self, value: Any) -> Tensor:
        """∇_v log P(v) (..., Nv) for v (..., Nv); it needs no normaliser.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).score([[2.0]])  # a standard normal: −v
        tensor([[-2.]], dtype=torch.float64)
        """
        rows, shape, dtype = self._rows(value, "value")
        return self._score(rows).to(dtype).reshape(*shape, self.n_visible)

    def cumulant(self, order: int) -> Tensor:
        """The cumulant tensor of the given order (Nv, …, Nv): 1 is the mean, 2 the covariance, 3 and 4 tell skewness
        and kurtosis. Each is one more derivative of `log_mgf` at zero.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [3.0])
        >>> bool((machine.cumulant(2) - machine.covariance_matrix).abs() < 1e-10)
        True
        """
        if not isinstance(order, int) or order < 1:
            raise InvalidInputError(f"order must be a positive integer, got {order!r}")
        with torch.enable_grad():
            t = torch.zeros(1, self.n_visible, dtype=torch.float64, device=self._device, requires_grad=True)
            tensor = self._log_mgf(t).reshape(())
            keeps_graph = self.mean.requires_grad
            for _ in range(order):
                entries = [torch.autograd.grad(x, t, create_graph=True)[0][0] for x in tensor.reshape(-1)]
                tensor = torch.stack(entries).reshape(*tensor.shape, self.n_visible)
        return (tensor if keeps_graph else tensor.detach()).to(self._dtype)

    def entropy(self) -> Tensor:
        """The differential entropy −E[log P].

        In up to three dimensions it is an integral on a grid, refined until it changes by less than 1e-9; beyond, or
        where that takes too many nodes, the Monte Carlo estimate of `estimate_entropy` with a fixed seed.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).entropy()  # ½ log 2πe
        tensor(1.4189, dtype=torch.float64)
        """
        exact = self._expectation(lambda rows, log_prob: -log_prob)
        return self.estimate_entropy(generator=self._fixed_seed()).value if exact is None else exact.to(self._dtype)

    def estimate_entropy(self, n_samples: int = N_SAMPLES, generator: torch.Generator | None = None) -> Estimate:
        """The entropy as a Monte Carlo average, with its standard error."""
        return self._estimate(lambda rows, log_prob: -log_prob, n_samples, generator)

    def kl(self, other: Distribution) -> Tensor:
        """The Kullback-Leibler divergence E[log P − log P'] to another density, computed like `entropy`.

        Examples
        --------
        >>> import rtbm
        >>> p = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0])
        >>> q = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [-1.0], [0.0])
        >>> p.kl(q)  # ½(difference of the means)²
        tensor(0.5000, dtype=torch.float64)
        """
        function = self._log_ratio(other)
        exact = self._expectation(function)
        if exact is None:
            return self._estimate(function, N_SAMPLES, self._fixed_seed()).value
        return exact.to(self._dtype)

    def estimate_kl(
        self, other: Distribution, n_samples: int = N_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The Kullback-Leibler divergence as a Monte Carlo average, with its standard error."""
        return self._estimate(self._log_ratio(other), n_samples, generator)

    def _log_ratio(self, other: Distribution) -> Integrand:
        if not isinstance(other, Distribution) or other.event_shape != self.event_shape:
            raise InvalidInputError(
                f"other must be a distribution over vectors of length {self.n_visible}, got {other!r}"
            )
        return lambda rows, log_prob: log_prob - other.log_prob(rows).double()

    def _expectation(self, function: Integrand) -> Tensor | None:
        """E[function(v, log P(v))] on ever finer grids, or None if they would get too large."""
        if self.n_visible > MAX_GRID_DIMENSION:
            return None
        previous = math.nan
        for spacing in (0.5, 0.25, 0.125, 0.0625):
            try:
                value = self._grid_average(function, spacing)
            except TooManyTermsError:
                return None
            size = float(value.detach())
            if abs(size - previous) <= QUADRATURE_ERROR * max(1.0, abs(size)):
                return value
            previous = size
        return None

    def _grid_average(self, function: Integrand, spacing: float) -> Tensor:
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        for part, weight, envelope in self._envelopes():
            grid = make_grid(envelope, spacing, 1e-14, MAX_NODES // 2)
            log_part = part._log_density(grid.nodes)
            log_prob = log_part if part is self else self._log_density(grid.nodes)
            total = total + weight * (log_part + grid.log_cell).exp() @ function(grid.nodes, log_prob)
        return total

    def _estimate(self, function: Integrand, n_samples: int, generator: torch.Generator | None) -> Estimate:
        if not isinstance(n_samples, int) or n_samples < 2:
            raise InvalidInputError(f"n_samples must be an integer of at least 2, got {n_samples!r}")
        with torch.no_grad():
            rows = self._sample(n_samples, generator)
            values = function(rows, self._log_density(rows))
            return Estimate(values.mean().to(self._dtype), (values.std() / math.sqrt(n_samples)).to(self._dtype))

    def _fixed_seed(self) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(0)

    def _rows(self, value: Any, name: str, missing: bool = False) -> tuple[Tensor, torch.Size, torch.dtype]:
        """A checked argument (..., Nv) as float64 rows, its leading shape, and the dtype of the result."""
        tensor = check_vectors(as_real(value, name, finite=not missing), name, self.n_visible)
        if missing and bool(tensor.detach().isinf().any()):
            raise InvalidInputError(f"{name} must not hold infinite entries; a missing entry is NaN")
        check_device(tensor, name, self._device)
        dtype = torch.promote_types(tensor.dtype, self._dtype)
        return tensor.double().reshape(-1, self.n_visible), tensor.shape[:-1], dtype

    def _corners(self, low: Any, high: Any) -> tuple[Tensor, Tensor, torch.Size, torch.dtype]:
        """Checked corners of boxes as float64 rows."""
        corners = [as_real(value, name, finite=False) for value, name in ((low, "low"), (high, "high"))]
        for corner, name in zip(corners, ("low", "high"), strict=True):
            check_vectors(corner, name, self.n_visible)
            check_device(corner, name, self._device)
            if bool(corner.detach().isnan().any()):
                raise InvalidInputError(f"{name} must not hold NaN; an open side is infinite")
        dtype = torch.promote_types(torch.promote_types(corners[0].dtype, corners[1].dtype), self._dtype)
        try:
            first, last = torch.broadcast_tensors(*(corner.double() for corner in corners))
        except RuntimeError:
            shapes = " and ".join(str(tuple(corner.shape)) for corner in corners)
            raise InvalidInputError(f"low and high must have shapes that broadcast, got {shapes}") from None
        rows = [corner.reshape(-1, self.n_visible) for corner in (first, last)]
        return rows[0], rows[1], first.shape[:-1], dtype

    def _split(self, values: Mapping[int, Any]) -> tuple[list[int], list[int], Tensor]:
        """The known and free indices, and the known values, of a conditional."""
        if not isinstance(values, Mapping):
            raise InvalidInputError(f"values must be a mapping {{index: value}}, got a {type(values).__name__}")
        known = self._indices(values.keys())
        if len(known) == self.n_visible:
            raise InvalidInputError(
                "values must leave at least one coordinate free; log_prob(v) tells the density there"
            )
        numbers = [as_real(value, f"values[{key}]").double().to(self._device) for key, value in values.items()]
        for key, number in zip(values, numbers, strict=True):
            if number.ndim:
                raise InvalidInputError(f"values[{key}] must be one number, got shape {tuple(number.shape)}")
        vector = torch.stack(numbers) if numbers else torch.zeros(0, dtype=torch.float64, device=self._device)
        return known, [i for i in range(self.n_visible) if i not in known], vector

    def _indices(self, indices: int | Iterable[int]) -> list[int]:
        """Checked coordinate indices; negative ones count from the end."""
        try:
            chosen = [operator.index(i) for i in ([indices] if isinstance(indices, int) else indices)]
        except TypeError:
            raise InvalidInputError(f"indices must be integers, got {indices!r}") from None
        n = self.n_visible
        if any(not -n <= i < n for i in chosen):
            raise InvalidInputError(f"indices must be between 0 and {n - 1} for {n} visible units, got {chosen}")
        chosen = [i % n for i in chosen]
        if len(set(chosen)) < len(chosen):
            raise InvalidInputError(f"indices must not repeat, got {chosen}")
        return chosen


def as_shape(sample_shape: Sequence[int] | int) -> torch.Size:
    """A sample shape given as a number or a sequence."""
    return torch.Size((sample_shape,) if isinstance(sample_shape, int) else sample_shape)


@register_kl(VisibleDistribution, VisibleDistribution)
def _kl_visible(p: VisibleDistribution, q: VisibleDistribution) -> Tensor:
    return p.kl(q)


@register_kl(VisibleDistribution, MultivariateNormal)
def _kl_normal(p: VisibleDistribution, q: MultivariateNormal) -> Tensor:
    return p.kl(q)
