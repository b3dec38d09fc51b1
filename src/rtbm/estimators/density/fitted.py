"""The methods of fitted densities, with the conventions of scikit-learn."""

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin, clone
from sklearn.utils import check_random_state
from sklearn.utils._set_output import ADAPTERS_MANAGER, _get_output_config
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rtbm import nn
from rtbm.common import Floats
from rtbm.distributions import (
    ColumnMap,
    DiscreteGaussian,
    MappedDistribution,
    MixedDistribution,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.distributions.maps import is_trivial
from rtbm.distributions.missing import missing_patterns
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.estimators.checks import (
    check_columns,
    check_rows,
    check_weights,
    is_constant,
    is_frame,
    listed,
    warn_of_spikes,
)
from rtbm.estimators.density.bounds import Bounds, make_bounds
from rtbm.estimators.density.categories import Levels, decode, decode_frame, encode, encode_like, learn_levels
from rtbm.estimators.density.margins import count_shapes, map_back, map_rows
from rtbm.parameters import count
from rtbm.training import Record
from rtbm.training.families import Density
from rtbm.training.likelihood import machine_log_prob
from rtbm.validation import check_integer

LARGEST_LOSS = 1e-6
"""More probability than this of values that float64 cannot hold is worth a warning."""


class FittedDensity(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, BaseEstimator):
    """The base class of RTBMDensity and RTBMDensityCV: all methods of a fitted density.

    `_line_density` is the density of the features on the real line, where `_maps` take them.
    """

    phase: str
    bounds: Any
    drop_constant: bool
    categorical_features: Any
    handle_unknown: str
    random_state: Any
    _line_density: Any  # a Density, or a MixedDistribution if there are categories
    _module: nn.RTBM | nn.MixtureOfRTBMs | None = None
    _unsaved = ("results_", "_fit_result", "_module")
    history_: list[Record]
    n_features_in_: int
    feature_names_in_: np.ndarray
    constants_: Floats
    categories_: Levels
    _bounds: Bounds
    _maps: list[ColumnMap]
    _is_derived = False

    def _prepare(self, X: Any, sample_weight: Any) -> tuple[Floats, Floats]:
        """The rows (n, d) of checked data, categories as numbers, and their weights (n,).

        Columns with only one value are refused, or left out if `drop_constant`. Bounds are made and checked, and values
        on them are moved inside.
        """
        encoded, levels = learn_levels(X, self.categorical_features)
        X = check_rows(self, encoded, ensure_all_finite="allow-nan", ensure_min_samples=2)
        self.categories_ = levels or [None] * X.shape[1]
        weights = check_weights(sample_weight, X)
        X = np.where(weights[:, None] > 0, X, np.nan)
        self.constants_ = np.full(X.shape[1], np.nan)
        bounds = make_bounds(self.bounds, self._columns())
        bounds = bounds.without([i for i, own in enumerate(self.categories_) if own is not None])
        bounds = bounds.closed(bounds.contact(X))
        bounds.check(X, self._names())
        self._leave_out_constants(X)
        self._bounds, rows = bounds.subset(self._kept.tolist()), X[:, self._kept]
        numbers = [i for i in range(rows.shape[1]) if i not in self._sizes]
        warn_of_spikes(rows[:, numbers], [self._names()[i] for i in numbers])
        self._bounds.contact(rows).warn(self._names())
        return self._bounds.inside(rows), weights

    def _leave_out_constants(self, X: Floats) -> None:
        constant, names = is_constant(X), self._names()
        if constant.any() and (not self.drop_constant or constant.all()):
            flat = [name for name, is_flat in zip(names, constant, strict=True) if is_flat]
            remedy = "there is nothing to fit" if constant.all() else "leave it out, or set drop_constant=True"
            raise InvalidInputError(f"X: there is only one value of {listed(flat)}, so there is no density: {remedy}")
        self.constants_[constant] = np.fmax.reduce(X[:, constant], axis=0)

    @property
    def _sizes(self) -> dict[int, int]:
        """The numbers of levels of columns of categories, by their places among the columns that are kept."""
        levels = [self.categories_[i] for i in self._kept]
        return {i: len(own) for i, own in enumerate(levels) if own is not None}

    def _columns(self) -> Sequence[Any]:
        """The names of all columns, or their numbers."""
        return list(getattr(self, "feature_names_in_", range(self.n_features_in_)))

    def _make_bounds(self) -> None:
        """The bounds of the features that are kept, from those of all."""
        self._bounds = make_bounds(self.bounds, self._columns()).subset(self._kept.tolist())

    @property
    def _kept(self) -> np.ndarray:
        """The numbers of the features that the density describes: all but those that were left out as constant."""
        return np.flatnonzero(np.isnan(self.constants_))

    def _set_summary(self, summary: dict[str, Any]) -> None:
        """Keep the summary of a fit, in which `members` follow the order of the machines in the distribution.

        A member is the number of machines that were fitted together, and of Gaussians that replaced them (0: none did).
        """
        n_parameters = count_parameters(self._line_density, summary["members"]) + count_shapes(self._maps)
        summary = {**summary, "n_parameters": n_parameters}
        self.summary_ = summary
        self.n_hidden_, self.n_parameters_ = summary["n_hidden"], summary["n_parameters"]
        self.n_iter_, self.converged_ = summary["n_iter"], summary["converged"]
        self.is_gaussian_ = summary["is_gaussian"]

    def _set_distribution(self, distribution: Density | MixedDistribution) -> None:
        """Keep the density of the features on the real line."""
        self._line_density, self._module = distribution, None
        self._n_features_out = sum(part.n_hidden for part in components(distribution))

    @property
    def distribution_(self) -> Any:
        """The fitted density of the features as given."""
        if not hasattr(self, "_line_density"):
            raise AttributeError("distribution_ is there after fit")
        return self._mapped(self._line_density)

    def _warn_of_lost_probability(self) -> None:
        """Warn if values that float64 cannot tell from a bound, or cannot hold, are likelier than LARGEST_LOSS."""
        if self._bounds.is_trivial:
            return
        try:
            lost = self.distribution_.lost_probability().cpu().numpy()
        except TooManyTermsError:  # nobody can tell
            return
        seen = [f"{n} ({100 * p:.2g} %)" for n, p in zip(self._names(), lost, strict=True) if p > LARGEST_LOSS]
        if seen:
            warnings.warn(
                "bounds: part of the fitted probability lies nearer to a bound than float64 can tell, or beyond its "
                f"largest number, in {listed(seen)}: the distances from the bound have too many orders of magnitude. "
                "Look for outliers, or subtract the bound from the data, since float64 is finest near 0",
                RuntimeWarning,
                stacklevel=4,
            )

    def _mapped(self, density: Density) -> Any:
        """A density on the real line as the density of the features as given."""
        if isinstance(density, MixedDistribution):
            return density.with_maps(self._maps)
        return density if is_trivial(self._maps) else MappedDistribution(density, self._maps)

    def _to_line(self, X: Floats) -> tuple[Floats, Floats]:
        """Rows (n, d) on the real line, and the log slopes of the maps (n,), summed over the features."""
        y, log_slope = map_rows(self._maps, self._bounds.inside(X))
        return y, log_slope.sum(axis=1)

    @property
    def module_(self) -> nn.RTBM | nn.MixtureOfRTBMs:
        """The machine or mixture as a torch module. It is made once, so changes to it persist.

        With `bounds` or `margins` it describes the mapped features, as `distribution_.base` does.
        """
        check_is_fitted(self)
        self._refuse_categories("module_")
        if self._module is None:
            kind: Any = nn.MixtureOfRTBMs if isinstance(self._line_density, RTBMMixture) else nn.RTBM
            self._module = kind.from_distribution(self._line_density)
        return self._module

    def score_samples(self, X: Any) -> Floats:
        """log P(x) (n_samples,) of each row; NaN entries are integrated out, so it is 0 if all are missing.

        It is −∞ for rows outside of the bounds. Values on a bound count as in `fit`, if training data lie there too.
        """
        return self._log_prob(self._check(X))

    def _log_prob(self, X: Floats) -> Floats:
        line, log_slope = self._to_line(X)
        points = torch.from_numpy(line).to(self._line_density.device)
        with torch.no_grad():
            if isinstance(self._line_density, MixedDistribution):
                log_prob = _mixed_log_prob(self._line_density, points)
            elif self._has_scattered_gaps(points):
                log_weights = component_weights(self._line_density).log()
                log_prob = (machine_log_prob(self._line_density, points) + log_weights).logsumexp(1)
            else:
                log_prob = self._line_density.log_prob(points)
        return log_prob.cpu().numpy() + log_slope

    def _has_scattered_gaps(self, points: Tensor) -> bool:
        """Whether points have gaps that dense machines sum over tables."""
        if isinstance(self._line_density, MixedDistribution):
            return False
        is_dense = all(machine.coupling == "dense" for machine in components(self._line_density))
        return is_dense and points.is_cpu and bool(points.isnan().any())

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """The mean log-likelihood of data.

        Rows in which every entry is missing say nothing: they are left out of the mean, and a warning counts them.
        """
        X = self._check(X)
        log_prob = self._log_prob(X)
        weights = check_weights(sample_weight, X)
        weights = np.where(_has_numbers(X, weights > 0), weights, 0.0)
        counted = weights > 0
        return float(weights[counted] @ log_prob[counted] / weights.sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Any:
        """Independent exact draws (n_samples, n_features); by default they follow `random_state` of the estimator.

        They are an array; or a data frame, if `set_output` asks for it.
        """
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", 1)
        draws = self._line_density.sample((n_samples,), generator=self._generator(random_state))
        return self._framed(self._all_features(map_back(self._maps, draws.double().cpu().numpy())))

    def transform(self, X: Any) -> Floats:
        """The expectations E(h|x) (n_samples, n_hidden · n_components) of the hidden units.

        Missing entries are integrated out in phase I, so that a row without numbers gives E(h); in phase II they are an
        error.
        """
        self._refuse_categories("transform")
        X = self._check(X)
        self._bounds.check(X, self._names())
        return self._hidden_mean(X)

    def _refuse_categories(self, method: str) -> None:
        if isinstance(getattr(self, "_line_density", None), MixedDistribution):
            raise InvalidInputError(f"{method} is for tables of numbers, this density has categories")

    def _hidden_mean(self, X: Floats) -> Floats:
        points = torch.from_numpy(self._to_line(X)[0])
        patterns = missing_patterns(points)
        if patterns and self.phase == "II":
            raise InvalidInputError('X holds NaN, for which E(h|x) is defined in phase "I" only: fit with phase="I"')
        if not patterns:
            return self._expectations(self._line_density, points).numpy()
        result = points.new_zeros(len(points), self._n_features_out)
        for rows, present, part in patterns:
            if len(present):
                result[rows] = self._expectations(self._line_density.marginal(present.tolist()), part)
            else:
                hidden = [DiscreteGaussian(m.lattice.A, m.lattice.a) for m in components(self._line_density)]
                result[rows] = torch.cat([h.mean for h in hidden]).cpu()
        return result.numpy()

    @staticmethod
    def _expectations(machine: Density, points: Tensor) -> Tensor:
        with torch.no_grad():
            return machine.hidden_mean(points.to(machine.device)).cpu()

    def cdf(self, X: Any) -> Floats:
        """The joint distribution function: P(every feature ≤ that of the row) (n_samples,)."""
        X = self._check(X, allow_nan=False)
        with torch.no_grad():
            return self.distribution_.cdf(torch.from_numpy(X).to(self._line_density.device)).cpu().numpy()

    def marginal(self, features: Any) -> Self:
        """A fitted estimator for some of the features, given by number or name, in that order.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> model.marginal([1]).distribution_.n_visible
        1
        """
        check_is_fitted(self)
        indices = self._indices(features)
        return self._derived(self._line_density.marginal(indices), indices)

    def conditional(self, values: Mapping[Any, Any]) -> Any:
        """The density of the other features, given the values of some: {number or name: value}.

        Numbers give a fitted estimator. Arrays or series of numbers (n,), or a data frame of known columns, give the
        distributions of all rows at once, with `mean`, `variance`, `log_prob`, `cdf`, `icdf` and `sample`.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> bool(abs(float(model.conditional({0: 2.0}).distribution_.mean) - 1.6) < 0.1)
        True
        >>> model.conditional({0: [2.0, 0.0, 1.0]}).mean.shape
        torch.Size([3, 1])
        """
        check_is_fitted(self)
        if is_frame(values):
            frame: Any = check_columns(values, "values")
            values = {name: frame[name] for name in frame.columns}
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"values must be a dictionary {{feature: value}} or a data frame, got a {type(values).__name__}"
            )
        known = {self._index(feature): self._as_numbers(value, feature) for feature, value in values.items()}
        if len(known) < len(values):
            raise InvalidInputError(f"values must name each feature once, got {list(values)}")
        try:
            columns = np.broadcast_arrays(*known.values()) if known else []
        except ValueError:
            shapes = {feature: np.shape(value) for feature, value in values.items()}
            raise InvalidInputError(f"values must have one length, got shapes {shapes}") from None
        n_features = len(self._kept)
        rows = np.full((columns[0].size if columns else 1, n_features), np.nan)
        for i, column in zip(known, columns, strict=True):
            rows[:, i] = column.reshape(-1)
        self._bounds.check(rows, self._names())
        if columns and columns[0].ndim:
            return self._condition_rows(rows, list(known))
        line, _ = self._to_line(rows)
        rest = [i for i in range(n_features) if i not in known]
        return self._derived(self._line_density.conditional({i: float(line[0, i]) for i in known}), rest)

    def _as_numbers(self, value: Any, feature: Any) -> Floats:
        """A value, or a row of values, of a feature as numbers."""
        levels = self.categories_[self._kept[self._index(feature)]]
        if levels is None:
            return _as_numbers(value, feature)
        cells = np.array(value, dtype=object)
        codes = encode(cells.reshape(-1, 1), [levels], "error" if cells.ndim == 0 else self.handle_unknown)
        return np.asarray(codes, dtype=np.float64).reshape(cells.shape)

    def _condition_rows(self, rows: Floats, known: list[int]) -> Any:
        inside = rows.copy()
        inside[:, [i for i in range(rows.shape[1]) if i not in known]] = np.nan
        self._bounds.check(inside, self._names())
        columns = torch.from_numpy(self._bounds.inside(rows)).to(self._line_density.device)
        if not known:
            raise InvalidInputError("X: all features have only one value, so there is nothing to predict from")
        return self.distribution_.conditional({i: columns[:, i] for i in known})

    def _generator(self, random_state: Any) -> torch.Generator:
        source = check_random_state(self.random_state if random_state is None else random_state)
        return torch.Generator(self._line_density.device).manual_seed(int(source.randint(2**31)))

    def _all_features(self, rows: Floats) -> Floats:
        """Rows with the features that were left out because they have only one value."""
        everything = np.tile(self.constants_, (len(rows), 1))
        everything[:, self._kept] = rows
        return everything

    def _framed(self, rows: Floats, given: Any = None) -> Any:
        """Rows as an array, or as the data frame that `set_output` asks for, with index and names of the rows given."""
        container = _get_output_config("transform", self)["dense"]
        if container == "default":
            return decode(rows, self.categories_)
        numbered = given.columns if container == "pandas" and is_frame(given) else None  # polars has no such names
        names = getattr(self, "feature_names_in_", numbered)
        frame = ADAPTERS_MANAGER.adapters[container].create_container(rows, given, columns=names)
        return decode_frame(frame, self.categories_)

    def bic(self, X: Any) -> float:
        """The Bayesian information criterion on data: −2 log-likelihood + log(n) · parameters; lower is better.

        Rows in which every entry is missing do not count.
        """
        X = self._check(X)
        log_prob = self._log_prob(X[_has_numbers(X)])
        return float(-2 * log_prob.sum() + math.log(len(log_prob)) * self.n_parameters_)

    def aic(self, X: Any) -> float:
        """The Akaike information criterion on data: −2 log-likelihood + 2 · parameters; lower is better.

        Rows in which every entry is missing do not count.
        """
        X = self._check(X)
        return float(-2 * self._log_prob(X[_has_numbers(X)]).sum() + 2 * self.n_parameters_)

    def set_feature_names(self, names: Sequence[str] | None) -> Self:
        """Set the names of the features, as if the estimator had been fitted on a data frame; None removes them."""
        if names is None:
            self.__dict__.pop("feature_names_in_", None)
        elif len(names) != self.n_features_in_:
            raise InvalidInputError(f"names must be {self.n_features_in_}, one for each feature, got {list(names)!r}")
        else:
            self.feature_names_in_ = np.array(list(names), dtype=object)
        return self

    def _check(self, X: Any, allow_nan: bool = True) -> Floats:
        """The columns of checked rows that the density describes."""
        return self._check_all(X, allow_nan)[:, self._kept]

    def _check_all(self, X: Any, allow_nan: bool = True) -> Floats:
        """All columns of checked rows."""
        check_is_fitted(self)
        finite = "allow-nan" if allow_nan else True
        with warnings.catch_warnings():
            if self._is_derived:  # a marginal or conditional takes arrays and data frames
                warnings.filterwarnings("ignore", "X does not have valid feature names")
            X = encode_like(X, self.categories_, getattr(self, "feature_names_in_", None), self.handle_unknown)
            return check_rows(self, X, ensure_all_finite=finite, reset=False)

    def _names(self) -> list[str]:
        """The names of the features that the density describes."""
        names = getattr(self, "feature_names_in_", None)
        return [f"feature {i}" if names is None else str(names[i]) for i in self._kept]

    def _index(self, feature: Any) -> int:
        """The place of a feature among those that the density describes."""
        names, number = list(getattr(self, "feature_names_in_", [])), feature
        if isinstance(feature, str) and feature in names:
            number = names.index(feature)
        if not isinstance(number, Integral) or not 0 <= int(number) < self.n_features_in_:
            known = f"0 to {self.n_features_in_ - 1}" + (f" or one of {names}" if names else "")
            raise InvalidInputError(f"a feature must be {known}, got {feature!r}")
        if int(number) not in self._kept:
            raise InvalidInputError(f"feature {feature} has only one value, and was left out of the density")
        return self._kept.tolist().index(int(number))

    def _indices(self, features: Any) -> list[int]:
        """The places of one feature, or of several in a list."""
        return [self._index(feature) for feature in (features if is_list(features) else [features])]

    def _derived(self, distribution: Density, indices: list[int]) -> Self:
        """A fitted estimator for some features."""
        model = clone(self)
        model.__dict__.update({name: value for name, value in self.__dict__.items() if name.endswith("_")})
        model.n_features_in_, model.constants_ = len(indices), np.full(len(indices), np.nan)
        model.categories_ = [self.categories_[self._kept[i]] for i in indices]
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_[self._kept[indices]]
        model._bounds, model._is_derived = self._bounds.subset(indices), True
        model._maps = [self._maps[i] for i in indices]
        model._set_distribution(distribution)
        model._set_summary(self.summary_)
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_line_density")

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        if not self.__sklearn_is_fitted__():
            return
        n, names = self._line_density.n_visible, getattr(self, "feature_names_in_", self.constants_)
        sizes = {len(names), len(self.constants_)}
        if {len(self._kept), len(self._bounds.low), len(self._maps)} != {n} or sizes != {self.n_features_in_}:
            raise InvalidInputError(f"it must have {n} features like its density")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _has_numbers(X: Floats, counted: np.ndarray | None = None) -> np.ndarray:
    """Which rows hold a number. Warn of the number of rows, among `counted`, that hold none."""
    known = np.logical_not(np.isnan(X).all(axis=1))
    counted = np.ones(len(X), dtype=bool) if counted is None else counted
    empty = int((counted & ~known).sum())
    if empty == counted.sum():
        raise InvalidInputError("X: there is no row with numbers and a positive weight, so there is no mean")
    if empty:
        warnings.warn(
            f"X: {empty} of {counted.sum()} rows hold nothing but missing values, and are left out of the mean",
            stacklevel=3,
        )
    return known


def is_list(value: Any) -> bool:
    """Whether a value holds several names or numbers."""
    return isinstance(value, Iterable) and not isinstance(value, str)


def components(distribution: Any) -> list[RTBMDistribution]:
    """The machines of a density; those of its base if columns are mapped."""
    distribution = getattr(distribution, "base", distribution)
    has_several = isinstance(distribution, RTBMMixture | MixedDistribution)
    return list(distribution.components) if has_several else [distribution]


def component_weights(distribution: Density) -> Tensor:
    """The weights of these machines."""
    one = torch.ones(1, dtype=torch.float64, device=distribution.device)
    return distribution.weights if isinstance(distribution, RTBMMixture | MixedDistribution) else one


def count_parameters(distribution: Density, members: Sequence[tuple[int, int]]) -> int:
    """The free parameters of a density: of machines or of Gaussians, and of their weights."""
    machines, total = iter(components(distribution)), -1
    for n_machines, n_gaussians in members:
        sizes = [count(m.n_visible, m.n_hidden, m.coupling) for m in islice(machines, n_machines)]
        if n_gaussians:
            sizes = [gaussian_size(distribution.n_visible)] * n_gaussians
        total += sum(size + 1 for size in sizes)
    columns: Sequence[Any] = distribution.columns if isinstance(distribution, MixedDistribution) else []
    return total + sum(c.probabilities[:, 1:].numel() for c in columns if c.probabilities is not None)


def gaussian_size(n_features: int) -> int:
    """The free parameters of a Gaussian."""
    return n_features + n_features * (n_features + 1) // 2


def _mixed_log_prob(density: MixedDistribution, points: Tensor) -> Tensor:
    """log P (n,) of points (n, d). For a whole density, tables of hidden states serve all gaps in one pass."""
    model = density._model
    if density._others != list(range(len(model.columns))) or points.is_cuda:
        return density.log_prob(points)
    mixture = RTBMMixture(density.weights, density.components)
    by_numbers = machine_log_prob(mixture, points[:, model.numbers].contiguous())
    return (model.log_weights + model.log_discrete(points) + by_numbers).logsumexp(1)


def _as_numbers(value: Any, feature: Any) -> Floats:
    """A finite number (), or a row of numbers (n,) that may be missing."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.inf)
    if array.ndim > 1 or np.isinf(array).any() or (array.ndim == 0 and np.isnan(array)):
        raise InvalidInputError(f"values[{feature!r}] must be a finite number or a row of numbers, got {value!r}")
    return array
