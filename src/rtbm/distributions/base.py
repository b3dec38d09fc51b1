"""What every distribution over visible units offers: one machine, or a mixture of machines."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal, constraints, register_kl

from rtbm.distributions.arguments import (
    broadcast,
    check_indices,
    check_known,
    check_map,
    check_points,
    check_probabilities,
    dtype_of,
)
from rtbm.distributions.caching import forwarded
from rtbm.distributions.conditional import ConditionalDistribution
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.evaluator import DistributionEvaluator
from rtbm.distributions.integration.expectations import Estimate, Integrand, grid_expectation, sample_expectation
from rtbm.distributions.integration.grid import MAX_GRID_DIMENSION
from rtbm.distributions.integration.quantiles import invert_cdf
from rtbm.distributions.missing import missing_patterns
from rtbm.distributions.notebook import distribution_html
from rtbm.errors import InvalidInputError, TooManyNodesError, TooManyTermsError
from rtbm.theta.derivatives import is_transforming
from rtbm.validation import as_shape, check_integer

MONTE_CARLO_SAMPLES = 100_000
"""The default number of samples of an estimate. Four times as many halve the standard error."""

AnyEvaluator = TypeVar("AnyEvaluator", bound=DistributionEvaluator)


class VisibleDistribution(Distribution, ABC, Generic[AnyEvaluator]):
    """A density over ℝ^Nv with exact samples, marginals and conditionals: one machine, or a mixture of machines.

    Everything is computed in float64. Results have the dtype of the parameters, or float64 if a float64 tensor or
    array is given.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support: Any = constraints.real_vector
    has_rsample = True
    _repr_html_ = distribution_html

    def __init__(self, evaluator: AnyEvaluator, n_visible: int, dtype: torch.dtype, device: torch.device):
        self._evaluator, self._dtype, self._device = evaluator, dtype, device
        super().__init__(event_shape=torch.Size([n_visible]), validate_args=False)

    dtype: torch.dtype = forwarded("_dtype", "The dtype of the parameters.")
    device: torch.device = forwarded("_device", "The device of the parameters.")

    @property
    def n_visible(self) -> int:
        """The number of visible units."""
        return self.event_shape[0]

    @property
    def mean(self) -> Tensor:
        """E[v] (Nv,)."""
        return self._evaluator.mean().to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """Cov[v] (Nv, Nv)."""
        return self._evaluator.covariance().to(self._dtype)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate (Nv,)."""
        return self.covariance_matrix.diagonal()

    @abstractmethod
    def hidden_mean(self, value: Any) -> Tensor:
        """E(h|v) (..., Nh) for v (..., Nv)."""

    @abstractmethod
    def to_phase(self, phase: str) -> Self:
        """The same density with natural parameters in the given phase."""

    @abstractmethod
    def _derived(self, evaluator: AnyEvaluator) -> Self:
        """A distribution of the same kind, phase and dtype with another evaluator."""

    @abstractmethod
    def _mapped(self, function: Callable[[Tensor], Tensor], dtype: torch.dtype | None = None) -> Self:
        """The same distribution with a function applied to every parameter tensor, and with results of `dtype`."""

    def marginal(self, indices: int | Iterable[int]) -> Self:
        """The distribution of the coordinates `indices`, in that order: machines with the same hidden units.

        A diagonal machine becomes a dense one, so it should have few hidden units. With many, use `log_prob`, which
        integrates over entries that are NaN.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> machine.marginal(1)
        RTBMDistribution(n_visible=1, n_hidden=1, coupling='dense', phase='I', dtype=torch.float64)
        """
        chosen = check_indices(indices, self.n_visible)
        if not chosen:
            raise InvalidInputError("indices must name at least one coordinate")
        if chosen == list(range(self.n_visible)):
            return self
        selection = torch.eye(self.n_visible, dtype=torch.float64, device=self._device)[chosen]
        return self._derived(self._evaluator.transform(selection, selection.new_zeros(len(chosen))))

    def conditional(self, values: Mapping[int, Any]) -> Any:
        """The distribution of the other coordinates, in increasing order, given some: {index: value, …}.

        Numbers give a machine or a mixture again. Tensors of numbers (...) give a batch of distributions, one for each
        row, as a ConditionalDistribution; values that are NaN are then unknown. In a mixture, components that predict
        the given values well gain weight. Means, for example, are::

            E[v_u|v_k] = m_u + Σ_uk Σ_kk⁻¹ (v_k − m_k) + (F_u − Σ_uk Σ_kk⁻¹ F_k) E[h|v_k]

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> given = machine.conditional({0: 0.7}).log_prob([0.3]) + machine.marginal(0).log_prob([0.7])
        >>> bool((given - machine.log_prob([0.7, 0.3])).abs() < 1e-12)
        True
        >>> machine.conditional({0: torch.tensor([0.7, 1.0, 2.0])})
        ConditionalDistribution(batch_shape=(3,), unknown=[1], known=[0])
        """
        known, others, numbers = check_known(values, self.n_visible, self._device)
        if numbers.ndim > 1:
            return self._conditionals(known, others, numbers)
        return self._derived(self._evaluator.condition(known, others, numbers)) if known else self

    def _conditionals(self, known: list[int], others: list[int], values: Tensor) -> ConditionalDistribution:
        """The distributions of the others given values (..., known), of which there may be none."""
        return ConditionalDistribution(self, *self._dense_machines(), known, others, values)

    @abstractmethod
    def _dense_machines(self) -> tuple[Tensor, list[DenseMachine]]:
        """The log-weights (K,) and the K machines of the density, as lattice sums."""

    def affine(self, M: Any, c: Any = None) -> Self:
        """The distribution of Mv + c, for M (n, Nv) of full row rank and c (n,).

        A diagonal machine stays diagonal if M is square, else it becomes dense.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
        >>> moved = machine.affine([[2.0]], [1.0])
        >>> bool((moved.mean - (2 * machine.mean + 1)).abs() < 1e-12)
        True
        """
        return self._derived(self._evaluator.transform(*check_map(M, c, self.n_visible, self._device)))

    def detach(self) -> Self:
        """The same distribution, detached from the autograd graph of its parameters."""
        return self._mapped(torch.detach)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """The same distribution on another device, or with results of another dtype (float32 or float64)."""
        if dtype not in (None, torch.float32, torch.float64):
            raise InvalidInputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        return self._mapped(lambda tensor: tensor.to(device), dtype)

    def log_prob(self, value: Any) -> Tensor:
        """log P(v) (...) for v (..., Nv). Entries that are NaN count as missing, and are integrated out.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 2.0]], [[0.5], [0.1]], [[3.0]], [0.0, 0.0], [0.2])
        >>> nan = float("nan")
        >>> present = machine.marginal([1]).log_prob([[0.3]])
        >>> bool((machine.log_prob([[nan, 0.3]]) - present).abs() < 1e-12)
        True
        """
        if is_transforming():
            return self._log_prob_as_one_step(value)
        return self._by_rows(self._log_incomplete, value, missing=True)

    def _log_prob_as_one_step(self, value: Any) -> Tensor:
        raise NotImplementedError(
            "torch.compile and torch.func follow log_prob of one machine: of mixtures, take logsumexp of the log_prob "
            "of their components and of their logits"
        )

    def _log_incomplete(self, rows: Tensor) -> Tensor:
        """log P (n,) of rows (n, Nv) with missing entries."""
        patterns = missing_patterns(rows)
        if not patterns:
            return self._evaluator.log_density(rows)
        result = rows.new_zeros(len(rows))
        for index, present, points in patterns:
            if len(present) == self.n_visible:
                result = result.index_put((index,), self._evaluator.log_density(points))
            elif len(present):
                result = result.index_put((index,), self._evaluator.log_marginal(points, present.tolist()))
        return result

    def sample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """Independent exact draws of shape sample_shape + (Nv,). The same generator state gives the same draws.

        Parameters
        ----------
        sample_shape : int or sequence of int, default=()
            The shape of the sample.
        generator : torch.Generator, default=None
            For repeatable draws.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.sample((2, 3), generator=torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 1])
        """
        shape = as_shape(sample_shape)
        draws = self._evaluator.sample(shape.numel(), generator)
        return draws.to(self._dtype).reshape(*shape, self.n_visible)

    def rsample(self, sample_shape: Sequence[int] | int = (), generator: torch.Generator | None = None) -> Tensor:
        """The draws of `sample`, differentiable in the parameters (implicit reparametrisation)::

            dv_k = −dP(v_k < x | v_1, …, v_{k−1}) / p(v_k | v_1, …, v_{k−1}),    x = v_k

        So gradients of averages of f(v) estimate those of E[f(v)], without bias, for smooth f. They include those of
        the weights of the hidden states and of a mixture. All sums over hidden states are formed, so there may be at
        most 2**18 of them: for diagonal machines with more, and one visible unit, use icdf(torch.rand(n)); else weight
        draws x by exp(log_prob(x) − log_prob(x).detach()).

        Examples
        --------
        >>> import rtbm
        >>> covariance = torch.tensor([[1.0]], dtype=torch.float64, requires_grad=True)
        >>> machine = rtbm.RTBMDistribution.from_lattice([[20.0]], [-10.0], [[4.0]], [-2.0], covariance)
        >>> v = machine.rsample((10_000,), torch.Generator().manual_seed(0))
        >>> (gradient,) = torch.autograd.grad((v**2).mean(), covariance)
        >>> gradient.round(decimals=1)  # of E[v²] = 4 + covariance
        tensor([[1.]], dtype=torch.float64)
        """
        draws = self.sample(sample_shape, generator)
        if not torch.is_grad_enabled():
            return draws
        nothing = torch.zeros(0, dtype=torch.float64, device=self._device)
        try:
            return self._conditionals([], list(range(self.n_visible)), nothing)._reparametrise(draws)
        except TooManyTermsError as error:
            raise NotImplementedError(
                f"rsample forms sums over all hidden states, of which this density has too many ({error.terms:.3g}): "
                "use icdf(torch.rand(n)) in one dimension, and in more sample() with the weights "
                "exp(log_prob(x) − log_prob(x).detach()) of draws x, which carry derivatives"
            ) from None

    def score_function(self, value: Any) -> Tensor:
        """The score function ∇_v log P(v) (..., Nv) for v (..., Nv). It needs no normaliser. No entry may be missing.

        Examples
        --------
        >>> import rtbm
        >>> normal = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0])
        >>> normal.score_function([[2.0]])  # −v
        tensor([[-2.]], dtype=torch.float64)
        """
        return self._by_rows(self._evaluator.score_function, value)

    def log_mgf(self, t: Any) -> Tensor:
        """The cumulant-generating function log E[exp(tᵀv)] (...) for t (..., Nv).

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).log_mgf([2.0])  # a standard normal: ½t²
        tensor(2., dtype=torch.float64)
        """
        return self._by_rows(self._evaluator.log_mgf, t, "t")

    def cumulant(self, order: int) -> Tensor:
        """The cumulant tensor of the given order (Nv, …, Nv): the derivative of `log_mgf` of that order at zero.

        Order 1 is the mean, 2 the covariance; 3 and 4 describe skewness and kurtosis.

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
            tensor = self._evaluator.log_mgf(t).reshape(())
            keeps_graph = self.mean.requires_grad
            for _ in range(order):
                entries = [torch.autograd.grad(x, t, create_graph=True)[0][0] for x in tensor.reshape(-1)]
                tensor = torch.stack(entries).reshape(*tensor.shape, self.n_visible)
        return (tensor if keeps_graph else tensor.detach()).to(self._dtype)

    def box_probability(self, low: Any, high: Any) -> Tensor:
        """P(low < v < high) (...) for corners (..., Nv), which may be infinite.

        In one dimension it is a sum of error functions, or an integral of the density where that is cheaper. In more
        dimensions it is a sum of error functions if v given h has independent coordinates. Otherwise two dimensions
        leave one integral for quadrature (error about 1e-13), and three or more are a quasi-Monte Carlo sum (error
        about 1e-4). Diagonal machines with many hidden units use quadrature in up to three dimensions, which takes
        seconds per box in more than one.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.box_probability([0.0], [float("inf")])
        tensor(0.5000, dtype=torch.float64)
        """
        first = check_points(low, "low", self.n_visible, self._device, infinite=True)
        last = check_points(high, "high", self.n_visible, self._device, infinite=True)
        first, last, shape = broadcast(first, last, "low and high")
        return self._shape(self._evaluator.box(first, torch.maximum(first, last)), shape, low, high)

    def cdf(self, value: Any) -> Tensor:
        """P(all coordinates are below v) (...) for v (..., Nv), computed as `box_probability`.

        Examples
        --------
        >>> import rtbm
        >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
        >>> machine.cdf([[-1.0], [0.0], [1.0]])
        tensor([0.1623, 0.5000, 0.8377], dtype=torch.float64)
        """
        box = self._evaluator.box
        return self._by_rows(lambda rows: box(torch.full_like(rows, -math.inf), rows), value, infinite=True)

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
            v = invert_cdf(flat.detach(), self._tail, self._density, *self._quantile_range(flat.detach()))
        if torch.is_grad_enabled() and (flat.requires_grad or self.mean.requires_grad):
            inside, upper = v.isfinite(), flat.detach() > 0.5
            for _ in range(2):  # Newton steps of length zero that carry the first and second derivatives
                x = torch.where(inside, v, self.mean.detach())
                excess = self._tail(x, upper) - torch.where(upper, 1 - flat, flat)
                step = torch.where(upper, excess, -excess) / self._density(x)
                v = v + torch.where(inside, step - step.detach(), 0.0)
        return self._shape(v, (*p.shape, 1), value)

    def _quantile_range(self, p: Tensor) -> tuple[float, float, float]:
        """Two numbers between which the quantiles of p lie, from the envelopes, and the finest width."""
        sides = torch.minimum(p, 1 - p)
        rarest = float(sides[sides > 0].min()) if bool((sides > 0).any()) else 0.5
        ends, widths = [], []
        for component in self._evaluator.components():
            mean, covariance, detail, log_peak = component.envelope
            reach = math.sqrt(2 * max(log_peak - math.log(rarest), 0.0)) * float(covariance) ** 0.5
            ends += [float(mean) - reach, float(mean) + reach]
            widths.append(float(detail) ** 0.5)
        return min(ends), max(ends), min(widths)

    def _tail(self, v: Tensor, upper: Tensor) -> Tensor:
        """The probability above v where `upper`, and below v elsewhere."""
        low, high = torch.where(upper, v, -math.inf), torch.where(upper, math.inf, v)
        return self._evaluator.box(low[:, None], high[:, None])

    def _density(self, v: Tensor) -> Tensor:
        return self._evaluator.log_density(v[:, None]).exp()

    def entropy(self) -> Tensor:
        """The differential entropy −E[log P] (), by quadrature, in up to three dimensions.

        The integral is computed on successively finer grids, until two agree to 1e-9, or to 1e-5 on the finest grid
        that fits into memory. In more dimensions, or where no grid resolves the density, it is an error; the Monte
        Carlo estimate with its standard error is `estimate_entropy`.

        Examples
        --------
        >>> import rtbm
        >>> rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0]).entropy()  # ½ log 2πe
        tensor(1.4189, dtype=torch.float64)
        """
        return self._integrate(lambda rows, log_prob: -log_prob, [], "entropy")

    def estimate_entropy(
        self, n_samples: int = MONTE_CARLO_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The entropy −E[log P] as a Monte Carlo average with its standard error, in any dimension.

        Parameters
        ----------
        n_samples : int, default=100_000
            The number of draws. The error falls with its square root.
        generator : torch.Generator, default=None
            For repeatable results.

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
        """The Kullback-Leibler divergence E[log P − log P'] () to another density, by quadrature as in `entropy`.

        In more than three dimensions it is an error; the Monte Carlo estimate is `estimate_kl`.
        `torch.distributions.kl_divergence` gives the same for two machines or mixtures, and for a machine and a
        MultivariateNormal in either order.

        Examples
        --------
        >>> import rtbm
        >>> p = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0])
        >>> q = rtbm.RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [-1.0], [0.0])
        >>> p.kl(q)  # ½(difference of the means)²
        tensor(0.5000, dtype=torch.float64)
        """
        log_ratio = self._log_ratio(other)
        details: list[Tensor] = []
        if isinstance(other, VisibleDistribution):
            details = [component.envelope.detail for component in other._evaluator.components()]
        elif isinstance(other, MultivariateNormal):
            details = [other.covariance_matrix.detach().double()]
        return self._integrate(log_ratio, details, "kl")

    def estimate_kl(
        self, other: Distribution, n_samples: int = MONTE_CARLO_SAMPLES, generator: torch.Generator | None = None
    ) -> Estimate:
        """The Kullback-Leibler divergence as a Monte Carlo average with its standard error, in any dimension.

        Parameters
        ----------
        other : torch.distributions.Distribution
            A density over vectors of the same length.
        n_samples : int, default=100_000
            The number of draws. The error falls with its square root.
        generator : torch.Generator, default=None
            For repeatable results.

        Examples
        --------
        >>> import rtbm
        >>> p = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [3.0])
        >>> value, error = p.estimate_kl(p.affine([[2.0]]), generator=torch.Generator().manual_seed(0))
        >>> bool((value - p.kl(p.affine([[2.0]]))).abs() < 4 * error)
        True
        """
        return self._estimate(self._log_ratio(other), n_samples, generator)

    def _log_ratio(self, other: Distribution) -> Integrand:
        if not isinstance(other, Distribution) or other.event_shape != self.event_shape or other.batch_shape:
            raise InvalidInputError(
                f"other must be one distribution over vectors of length {self.n_visible}, got {other!r}"
            )
        return lambda rows, log_prob: log_prob - other.log_prob(rows).double()

    def _integrate(self, function: Integrand, details: list[Tensor], name: str) -> Tensor:
        """E[function(v, log P(v))] () by quadrature."""
        advice = f"estimate_{name}() gives a Monte Carlo estimate with its standard error"
        if self.n_visible > MAX_GRID_DIMENSION:
            raise InvalidInputError(
                f"{name}() integrates over at most {MAX_GRID_DIMENSION} visible units, this distribution has "
                f"{self.n_visible}: {advice}"
            )
        evaluator = self._evaluator
        try:
            value = grid_expectation(evaluator.components(), evaluator.log_density, function, details)
        except TooManyNodesError as error:
            message = f"no grid of up to {error.limit} nodes resolves the integrand of {name}(): {advice}"
            raise TooManyNodesError(error.terms, error.limit, message) from None
        return value.to(self._dtype)

    def _estimate(self, function: Integrand, n_samples: int, generator: torch.Generator | None) -> Estimate:
        """E[function(v, log P(v))] by Monte Carlo."""
        check_integer(n_samples, "n_samples", 2)
        rows = self._evaluator.sample(n_samples, generator)
        value, error = sample_expectation(rows, self._evaluator.log_density, function)
        return Estimate(value.to(self._dtype), error.to(self._dtype))

    def _by_rows(
        self, function: Callable[[Tensor], Tensor], value: Any, name: str = "value", **allowed: bool
    ) -> Tensor:
        """Apply a function of rows (n, Nv) with results (n, …) to an argument (..., Nv), which is checked."""
        points = check_points(value, name, self.n_visible, self._device, **allowed)
        result = function(points.reshape(-1, self.n_visible))
        return self._shape(result, (*points.shape[:-1], *result.shape[1:]), value)

    def _shape(self, result: Tensor, shape: Sequence[int], *values: Any) -> Tensor:
        """A result in the given shape, and in the dtype that the arguments and the parameters imply."""
        dtype = self._dtype
        for value in values:
            dtype = dtype_of(value, dtype)
        return result.to(dtype).reshape(torch.Size(shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """Not supported: a distribution is one machine, and samples take any shape."""
        raise NotImplementedError("machines are not batched: draw samples of any shape instead of expanding")


register_kl(VisibleDistribution, VisibleDistribution)(VisibleDistribution.kl)
register_kl(VisibleDistribution, MultivariateNormal)(VisibleDistribution.kl)
