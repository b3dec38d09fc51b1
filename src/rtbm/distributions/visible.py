"""What every density over visible units can do, given its values, samples and a grid."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints, register_kl

from rtbm.distributions.arguments import broadcast, check_corner, check_points, check_probabilities, dtype_of
from rtbm.distributions.expectations import Estimate, Integrand, Part, grid_average, sample_average
from rtbm.distributions.grid import Envelope
from rtbm.distributions.missing import Pattern, missing_patterns
from rtbm.distributions.quantiles import invert
from rtbm.errors import InvalidInputError
from rtbm.validation import as_shape, check_integer

N_SAMPLES = 100_000
"""The default size of a Monte Carlo estimate."""


class VisibleDistribution(Distribution, ABC):
    """A density over ℝ^Nv with exact samples, marginals and conditionals: one machine, or a mixture of them.

    Everything is computed in float64. Results have the dtype of the parameters, or float64 where a float64 tensor or
    array comes in.
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
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self._dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._device

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""

    @property
    @abstractmethod
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (Nv,)."""
        return self.covariance_matrix.diagonal()

    @abstractmethod
    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) (..., Nh) for v (..., Nv)."""

    @abstractmethod
    def marginal(self, indices: int | Iterable[int]) -> Self:
        """The distribution of the coordinates `indices`, in that order."""

    @abstractmethod
    def conditional(self, values: Mapping[int, Any]) -> Self:
        """The distribution of the other coordinates, in increasing order, given some: {index: value, …}."""

    @abstractmethod
    def affine(self, M: Any, c: Any = None) -> Self:
        """The distribution of Mv + c, for M (n, Nv) of full row rank and c (n,)."""

    @abstractmethod
    def to_phase(self, phase: str) -> Self:
        """The same density with natural parameters in the given phase."""

    @abstractmethod
    def detach(self) -> Self:
        """The same distribution, cut from the graph of its parameters."""

    @abstractmethod
    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same distribution on another device, or with results of another dtype."""

    @abstractmethod
    def _log_density(self, rows: Tensor) -> Tensor:
        """log P (n,) for finite float64 rows (n, Nv)."""

    @abstractmethod
    def _log_marginal(self, rows: Tensor, present: list[int]) -> Tensor:
        """log P (n,) of some coordinates alone, in increasing order, for finite float64 rows (n, present)."""

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
    def _parts(self) -> list[Part]:
        """The components, each with a bound."""

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
        v = check_points(value, "value", self.n_visible, self._device, missing=True)
        rows = v.reshape(-1, self.n_visible)
        patterns = missing_patterns(rows)
        result = self._log_incomplete(rows, patterns) if patterns else self._log_density(rows)
        return self._shape(result, v.shape[:-1], value)

    def _log_incomplete(self, rows: Tensor, patterns: list[Pattern]) -> Tensor:
        result = rows.new_zeros(len(rows))
        for index, present, points in patterns:
            if len(present) == self.n_visible:
                result = result.index_put((index,), self._log_density(points))
            elif len(present):
                result = result.index_put((index,), self._log_marginal(points, present.tolist()))
        return result

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (Nv,); the same state of the generator gives the same draws.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 1])
        """
        shape = as_shape(sample_shape)
        return self._sample(shape.numel(), generator).to(self._dtype).reshape(*shape, self.n_visible)

    def score(self, value: Any) -> Tensor:
        """∇_v log P(v) (..., Nv) for v (..., Nv); it needs no normaliser. No entry may be missing.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).score([[2.0]])  # a standard normal: −v
        tensor([[-2.]], dtype=torch.float64)
        """
        v = check_points(value, "value", self.n_visible, self._device)
        return self._shape(self._score(v.reshape(-1, self.n_visible)), v.shape, value)

    def log_mgf(self, t: Any) -> Tensor:
        """log E[exp(tᵀv)] (...) for t (..., Nv): the cumulant-generating function.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).log_mgf([2.0])  # a standard normal: ½t²
        tensor(2., dtype=torch.float64)
        """
        points = check_points(t, "t", self.n_visible, self._device)
        return self._shape(self._log_mgf(points.reshape(-1, self.n_visible)), points.shape[:-1], t)

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
        check_integer(order, "order", 1)
        with torch.inference_mode(False), torch.enable_grad():
            t = torch.zeros(1, self.n_visible, dtype=torch.float64, device=self._device, requires_grad=True)
            tensor = self._log_mgf(t).reshape(())
            keeps_graph = self.mean.requires_grad
            for _ in range(order):
                entries = [torch.autograd.grad(x, t, create_graph=True)[0][0] for x in tensor.reshape(-1)]
                tensor = torch.stack(entries).reshape(*tensor.shape, self.n_visible)
        return (tensor if keeps_graph else tensor.detach()).to(self._dtype)

    def box_probability(self, low: Any, high: Any) -> Tensor:
        """P(low < v < high) (...) for corners (..., Nv), which may be infinite.

        In one dimension it is a sum of error functions, or an integral of the density where that is cheaper. In more it
        is a sum of error functions where v given h has independent coordinates. Else one integral is left for
        quadrature in two dimensions (about 1e-13), and from three on it is a quasi-Monte Carlo sum (about 1e-4). For
        diagonal machines with many hidden units it is quadrature in up to three dimensions, which takes seconds a box
        in more than one.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.box_probability([0.0], [float("inf")])
        tensor(0.5000, dtype=torch.float64)
        """
        first = check_corner(low, "low", self.n_visible, self._device)
        last = check_corner(high, "high", self.n_visible, self._device)
        first, last, shape = broadcast(first, last, "low and high")
        return self._shape(self._box(first, torch.maximum(first, last)), shape, low, high)

    def cdf(self, value: Any) -> Tensor:
        """P(all coordinates are below v) (...) for v (..., Nv), computed as `box_probability`.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.cdf([[-1.0], [0.0], [1.0]])
        tensor([0.1623, 0.5000, 0.8377], dtype=torch.float64)
        """
        v = check_corner(value, "value", self.n_visible, self._device)
        rows = v.reshape(-1, self.n_visible)
        return self._shape(self._box(torch.full_like(rows, -math.inf), rows), v.shape[:-1], value)

    def icdf(self, value: Any) -> Tensor:
        """The quantiles v (..., 1) of probabilities p (...) in one dimension: the inverse of `cdf`.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.icdf(machine.cdf([[-1.0], [2.0]])).round(decimals=10)
        tensor([[-1.],
                [ 2.]], dtype=torch.float64)
        """
        if self.n_visible != 1:
            raise InvalidInputError(
                f"icdf needs one visible unit, this distribution has {self.n_visible}: take a marginal(index) first"
            )
        p = check_probabilities(value, self._device)
        flat = p.reshape(-1)
        with torch.no_grad():
            v = invert(flat.detach(), self._tail, self._density, *self._scales(flat.detach()))
        if torch.is_grad_enabled() and (flat.requires_grad or self.mean.requires_grad):
            inside = v.isfinite()
            for _ in range(2):  # Newton steps that change nothing but carry the first and second derivatives
                step = self._newton(flat, torch.where(inside, v, self.mean.detach()))
                v = v + torch.where(inside, step - step.detach(), 0.0)
        return self._shape(v, (*p.shape, 1), value)

    def _scales(self, p: Tensor) -> tuple[float, float, float]:
        """Two numbers between which the quantiles of p lie, since Gaussians bound all parts, and the finest width."""
        sides = torch.minimum(p, 1 - p)
        rarest = float(sides[sides > 0].min()) if bool((sides > 0).any()) else 0.5
        ends, widths = [], []
        for part in self._parts():
            mean, covariance, detail, log_peak = part.envelope
            reach = math.sqrt(2 * max(log_peak - math.log(rarest), 0.0)) * float(covariance) ** 0.5
            ends += [float(mean) - reach, float(mean) + reach]
            widths.append(float(detail) ** 0.5)
        return min(ends), max(ends), min(widths)

    def _newton(self, p: Tensor, v: Tensor) -> Tensor:
        upper = p.detach() > 0.5
        excess = self._tail(v, upper) - torch.where(upper, 1 - p, p)
        return torch.where(upper, excess, -excess) / self._density(v)

    def _tail(self, v: Tensor, upper: Tensor) -> Tensor:
        """The probability above v where `upper`, and below v elsewhere."""
        low, high = torch.where(upper, v, -math.inf), torch.where(upper, math.inf, v)
        return self._box(low[:, None], high[:, None])

    def _density(self, v: Tensor) -> Tensor:
        return self._log_density(v[:, None]).exp()

    def entropy(self) -> Tensor:
        """The differential entropy −E[log P].

        In up to three dimensions it is an integral on ever finer grids, until it changes by less than 1e-9, or by less
        than 1e-5 on the finest grid that fits. Otherwise it is the Monte Carlo estimate of `estimate_entropy` with a
        fixed seed.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).entropy()  # ½ log 2πe
        tensor(1.4189, dtype=torch.float64)
        """
        return self._average(lambda rows, log_prob: -log_prob)

    def estimate_entropy(self, n_samples: int = N_SAMPLES, generator: torch.Generator | None = None) -> Estimate:
        """The entropy as a Monte Carlo average, with its standard error.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [3.0])
        >>> value, error = machine.estimate_entropy(generator=torch.Generator().manual_seed(0))
        >>> bool((value - machine.entropy()).abs() < 4 * error)
        True
        """
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
        return self._average(self._log_ratio(other), _details(other))

    def estimate_kl(
        self, other: Distribution, n_samples: int = N_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The Kullback-Leibler divergence as a Monte Carlo average, with its standard error."""
        return self._estimate(self._log_ratio(other), n_samples, generator)

    def _log_ratio(self, other: Distribution) -> Integrand:
        if not isinstance(other, Distribution) or other.event_shape != self.event_shape or other.batch_shape:
            raise InvalidInputError(
                f"other must be one distribution over vectors of length {self.n_visible}, got {other!r}"
            )
        return lambda rows, log_prob: log_prob - other.log_prob(rows).double()

    def _average(self, function: Integrand, details: tuple[Tensor, ...] = ()) -> Tensor:
        exact = grid_average(self._parts(), self._log_density, function, details)
        if exact is None:
            return self._estimate(function, N_SAMPLES, torch.Generator(self._device).manual_seed(0)).value
        return exact.to(self._dtype)

    def _estimate(self, function: Integrand, n_samples: int, generator: torch.Generator | None) -> Estimate:
        check_integer(n_samples, "n_samples", 2)
        value, error = sample_average(self._sample(n_samples, generator), self._log_density, function)
        return Estimate(value.to(self._dtype), error.to(self._dtype))

    def _shape(self, result: Tensor, shape: Sequence[int], *values: Any) -> Tensor:
        """A result in the shape of the arguments, and in the dtype that they and the parameters ask for."""
        dtype = self._dtype
        for value in values:
            dtype = dtype_of(value, dtype)
        return result.to(dtype).reshape(torch.Size(shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Not supported: a distribution is one machine, and samples take any shape."""
        raise NotImplementedError("machines are not batched: draw samples of any shape instead of expanding")


def _details(other: Distribution) -> tuple[Tensor, ...]:
    """The covariances of the finest structure of another density."""
    if isinstance(other, VisibleDistribution):
        return tuple(part.envelope.detail for part in other._parts())
    return (other.covariance_matrix.detach().double(),) if isinstance(other, MultivariateNormal) else ()


@register_kl(VisibleDistribution, VisibleDistribution)
def _kl_visible(p: VisibleDistribution, q: VisibleDistribution) -> Tensor:
    return p.kl(q)


@register_kl(VisibleDistribution, MultivariateNormal)
def _kl_to_normal(p: VisibleDistribution, q: MultivariateNormal) -> Tensor:
    return p.kl(q)


@register_kl(MultivariateNormal, VisibleDistribution)
def _kl_from_normal(p: MultivariateNormal, q: VisibleDistribution) -> Tensor:
    if p.batch_shape or p.event_shape != q.event_shape:
        raise InvalidInputError(f"p must be one normal distribution over vectors of length {q.n_visible}, got {p!r}")

    def log_density(rows: Tensor) -> Tensor:
        return p.log_prob(rows).double()

    def log_ratio(rows: Tensor, log_prob: Tensor) -> Tensor:
        return log_prob - q.log_prob(rows).double()

    covariance = p.covariance_matrix.detach().double()
    parts = [Part(1.0, log_density, Envelope(p.mean.detach().double(), covariance, covariance, 0.0))]
    exact = grid_average(parts, log_density, log_ratio, _details(q))
    if exact is not None:
        return exact
    noise = torch.randn(N_SAMPLES, q.n_visible, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        rows = p.mean.double() + noise.to(q.device) @ p.scale_tril.double().mT
    return sample_average(rows, log_density, log_ratio).value
