"""The methods of fitted densities, with the conventions of scikit-learn."""

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import islice
from numbers import Integral
from typing import Annotated, Any, Self, TypedDict

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, DensityMixin, TransformerMixin, clone
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rtbm import nn
from rtbm.common import Floats
from rtbm.distributions import (
    CategoryColumn,
    ColumnMap,
    DiscreteGaussian,
    MappedDistribution,
    MixedDistribution,
    NumberColumn,
    RTBMMixture,
)
from rtbm.distributions.maps import is_trivial
from rtbm.distributions.missing import missing_patterns
from rtbm.distributions.mixed import components
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.estimators.base import Estimator
from rtbm.estimators.checks import (
    check_columns,
    check_rows,
    check_weights,
    draw_seed,
    is_constant,
    is_frame,
    listed,
    to_numpy,
    warn_of_spikes,
)
from rtbm.estimators.density.bounds import Bounds, Contact, make_bounds
from rtbm.estimators.density.categories import decode, encode_column, encode_like, learn_levels, read_column
from rtbm.estimators.density.columns import ColumnKinds, Levels, find_columns
from rtbm.estimators.density.frames import (
    FrameFormat,
    dates_to_days,
    format_of,
    holds_dates,
    make_frame,
    to_dates,
    to_days,
)
from rtbm.estimators.density.margins import count_shapes, map_back, map_rows
from rtbm.parameters import count
from rtbm.training import Density
from rtbm.training.objective import machine_log_prob
from rtbm.validation import check_integer

BLOCK_ROWS = 2**17  # rows that methods take at a time
FARTHEST = 1e10  # standard deviations; farther out, a density may be taken for 0
LARGEST_LOSS = 1e-6
"""More probability than this of values that float64 cannot hold is worth a warning."""


class Summary(TypedDict):
    """What every fitted density knows about its fit."""

    n_hidden: int
    members: Sequence[Annotated[Sequence[Annotated[int, range(2**31)]], "2"]]
    n_observations: float
    is_gaussian: bool
    n_iter: int
    converged: bool
    n_parameters: int


class FittedDensity(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, Estimator):
    """The base class of RTBMDensity and RTBMDensityCV: all methods of a fitted density.

    `_line_density` is the density of the features on the real line, where `_maps` take them. With categories or atoms
    it is a MixedDistribution of the features as given, which has the maps in its columns.
    """

    phase: str
    bounds: Any
    drop_constant: bool
    categorical_features: Any
    atoms: Any
    rounded: Any
    handle_unknown: str
    random_state: Any
    _line_density: Any  # of the type RTBMDistribution, RTBMMixture or MixedDistribution
    _n_features_out: int
    _module: nn.RTBM | nn.MixtureOfRTBMs | None = None
    _unsaved = ("results_", "_fit_result", "_module")
    n_features_in_: int
    feature_names_in_: np.ndarray
    constants_: Annotated[Floats, "d"]
    columns_: ColumnKinds
    _frame: FrameFormat | None = None
    _ranges: Annotated[Floats, "2 d"] | None = None  # the smallest and the largest numbers of the training data
    _bounds: Bounds
    _maps: list[ColumnMap]
    n_hidden_: int
    n_parameters_: int
    n_iter_: int
    converged_: bool
    is_gaussian_: bool
    summary_: Annotated[dict[str, Any], Summary]
    _is_derived = False

    def _prepare(self, X: Any, sample_weight: Any, seed: int, merge: bool = True) -> tuple[Floats, Floats]:
        """The rows of checked data as `_prepare_rows` returns them, and their weights (n,)."""
        return self._prepare_rows(*self._read(X, sample_weight), seed, merge)

    def _read(self, X: Any, sample_weight: Any) -> tuple[Floats, Floats, Levels]:
        """Checked rows (n, d) with numbers in the place of levels and dates, their weights (n,), and the levels."""
        self._frame = format_of(X)
        encoded, levels = learn_levels(X, self.categorical_features)
        X = check_rows(self, encoded, ensure_all_finite="allow-nan", ensure_min_samples=2)
        weights = check_weights(sample_weight, X)
        return np.where(weights[:, None] > 0, X, np.nan), weights, levels or [None] * X.shape[1]

    def _prepare_rows(
        self, X: Floats, weights: Floats, levels: Levels, seed: int, merge: bool = True
    ) -> tuple[Floats, Floats]:
        """Rows as `ColumnKinds.split` returns them, and their weights (n,).

        Columns with only one value are refused, or left out if `drop_constant`. Bounds are made and checked, and values
        on them are atoms, or are moved inside. Values of rounded columns are spread over their cells; with `merge`,
        equal rows are merged first.
        """
        bounds, d = self._find_columns(X, weights, levels), X.shape[1]
        smooth = self.columns_.split(X)[:, :d]
        bounds = bounds.closed(bounds.contact(smooth))
        bounds.check(smooth, self._names())
        self._leave_out_constants(X)
        self._bounds, kinds, d = bounds.subset(self._kept.tolist()), self._kinds, len(self._kept)
        self._warn_of_values(smooth[:, self._kept], self._bounds.contact(smooth[:, self._kept]))
        rows, weights = kinds.spread(X[:, self._kept], weights, (self._bounds.low, self._bounds.high), seed, merge)
        rows = kinds.split(rows)
        return np.hstack([self._bounds.inside(rows[:, :d]), rows[:, d:]]), weights

    def _find_columns(self, X: Floats, weights: Floats, levels: Levels) -> Bounds:
        """Find out what the columns of rows (n, d) are, and return the bounds of those with numbers."""
        self.constants_ = np.full(X.shape[1], np.nan)
        self._ranges = np.array([np.fmin.reduce(X, axis=0), np.fmax.reduce(X, axis=0)])
        bounds = make_bounds(self.bounds, self._columns())
        bounds = bounds.without([i for i, own in enumerate(levels) if own is not None])
        atoms = None if self.atoms == "auto" and not self._can_mix() else self.atoms
        ends = bounds.low, bounds.high
        self.columns_ = find_columns(X, weights, levels, self._columns(), atoms, self.rounded, ends)
        return bounds

    def _can_mix(self) -> bool:
        """Whether the parameters allow categories and atoms."""
        return True

    def _warn_of_values(self, smooth: Floats, contact: Contact) -> None:
        """Warn of numbers that repeat, and of those on a bound, in columns that are not known to hold such."""
        plain = [i for i, own in enumerate(self._kinds.levels) if own is None and self._kinds.cells[i] is None]
        names = [self._names()[i] for i in plain]
        warn_of_spikes(smooth[:, plain], names)
        contact.subset(plain).warn(names)

    def _leave_out_constants(self, X: Floats) -> None:
        constant, names = is_constant(X), self._names()
        constant &= [own is None or len(own) < 2 for own in self.columns_.levels]
        is_all = constant[self._kept].all()
        if constant.any() and (not self.drop_constant or is_all):
            flat = [name for name, is_flat in zip(names, constant[self._kept], strict=True) if is_flat]
            remedy = "there is nothing to fit" if is_all else "leave it out, or set drop_constant=True"
            raise InvalidInputError(f"X: there is only one value of {listed(flat)}, so there is no density: {remedy}")
        self.constants_[constant] = np.fmax.reduce(X[:, constant], axis=0)

    @property
    def categories_(self) -> Levels:
        """The levels of each feature that is a column of categories, none for identifiers; None for the others."""
        return self.columns_.levels

    @property
    def _kinds(self) -> ColumnKinds:
        """What the columns are that are kept."""
        return self.columns_.subset(self._kept.tolist())

    @property
    def _sizes(self) -> dict[int, int]:
        """The numbers of states of discrete columns, by their places in rows that `_prepare` returns."""
        return self._kinds.sizes

    def _columns(self) -> Sequence[Any]:
        """The names of all columns, or their numbers."""
        return list(getattr(self, "feature_names_in_", range(self.n_features_in_)))

    @property
    def _kept(self) -> np.ndarray:
        """The numbers of the features that the density describes: all but constants and identifiers."""
        is_identifier = [own == [] for own in self.columns_.levels]
        return np.flatnonzero(np.isnan(self.constants_) & ~np.array(is_identifier))

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
        density, numbers = self._line_density, list(range(len(self._maps)))
        if isinstance(density, MixedDistribution):
            density = RTBMMixture(density.weights, density.components)
            numbers = [i for i, own in enumerate(self._kinds.levels) if own is None]
        try:
            mapped = MappedDistribution(density, [self._maps[i] for i in numbers])
            lost = mapped.lost_probability().cpu().numpy()
        except TooManyTermsError:  # nobody can tell
            return
        names = [self._names()[i] for i in numbers]
        seen = [f"{n} ({100 * p:.2g} %)" for n, p in zip(names, lost, strict=True) if p > LARGEST_LOSS]
        if seen:
            warnings.warn(
                "bounds: part of the fitted probability lies nearer to a bound than float64 can tell, or beyond its "
                f"largest number, in {listed(seen)}: the distances from the bound have too many orders of magnitude. "
                "Look for outliers, or subtract the bound from the data, since float64 is finest near 0",
                RuntimeWarning,
                stacklevel=4,
            )

    def _mapped(self, density: Any) -> Any:
        """A density on the real line as the density of the features as given."""
        is_done = isinstance(density, MixedDistribution) or is_trivial(self._maps)
        return density if is_done else MappedDistribution(density, self._maps)

    def _to_line(self, X: Floats) -> tuple[Floats, Floats]:
        """Rows (n, d) where `_line_density` takes them, and the log slopes of the maps (n,), summed over features."""
        X = self._bounds.inside(X)
        if isinstance(self._line_density, MixedDistribution):
            return X, np.zeros(len(X))
        y, log_slope = map_rows(self._maps, X)
        return y, log_slope.sum(axis=1)

    def _check_bounds(self, X: Floats) -> None:
        """Check that no values of rows (n, d) are outside of the bounds. Atoms may lie on them."""
        self._bounds.check(self._kinds.split(X)[:, : X.shape[1]], self._names())

    @property
    def module_(self) -> nn.RTBM | nn.MixtureOfRTBMs:
        """The machine or mixture as a torch module. It is made once, so changes to it persist.

        With `bounds` or `margins` it describes the mapped features, as `distribution_.base` does.
        """
        check_is_fitted(self)
        if isinstance(self._line_density, MixedDistribution):
            raise AttributeError("module_ is for tables of numbers, this density has categories or atoms")
        if self._module is None:
            kind: Any = nn.MixtureOfRTBMs if isinstance(self._line_density, RTBMMixture) else nn.RTBM
            self._module = kind.from_distribution(self._line_density)
        return self._module

    def score_samples(self, X: Any) -> Floats:
        """log P(x) (n_samples,) of each row; NaN entries are integrated out, so it is 0 if all are missing.

        It is −∞ for rows outside of the bounds, and where values are too far out for float64. Values on a bound count
        as in `fit`, if training data lie there too.
        """
        return self._log_prob(self._check(X))

    def _log_prob(self, X: Floats) -> Floats:
        return in_blocks(self._log_prob_of_block, X)

    def _log_prob_of_block(self, X: Floats) -> Floats:
        line, log_slope = self._to_line(X)
        points = torch.from_numpy(line).to(self._line_density.device)
        result = np.empty(len(X))
        sizes = (np.frexp(reduce(np.fmax, np.abs(line).T, np.zeros(len(X))))[1] + 32) // 64
        for size in np.unique(sizes):  # numbers of very different sizes would spoil each other's sums
            rows = sizes == size
            result[rows] = self._log_prob_of_one_size(points if rows.all() else points[torch.from_numpy(rows)])
        return result + log_slope

    def _log_prob_of_one_size(self, points: Tensor) -> Floats:
        """log P (n,) of points on the line: −∞ where theta functions refuse them since they are too far out."""
        try:
            return self._log_prob_on_line(points)
        except InvalidInputError:
            with torch.no_grad():
                distance = (points - self._line_density.mean) / self._line_density.stddev
            near = ~(distance.abs() > FARTHEST).any(dim=1)
            if bool(near.all()):
                raise
            result = np.full(len(points), -np.inf)
            result[near.cpu().numpy()] = self._log_prob_on_line(points[near])
            return result

    def _log_prob_on_line(self, points: Tensor) -> Floats:
        with torch.no_grad():
            if isinstance(self._line_density, MixedDistribution):
                is_part = self._is_derived
                density = self._line_density
                log_prob = density.log_prob(points) if is_part else _log_joint(density, points).logsumexp(1)
            elif self._has_scattered_gaps(points):
                log_weights = component_weights(self._line_density).log()
                log_prob = (machine_log_prob(self._line_density, points) + log_weights).logsumexp(1)
            else:
                log_prob = self._line_density.log_prob(points)
        found: Floats = log_prob.cpu().numpy()
        return found

    def _has_scattered_gaps(self, points: Tensor) -> bool:
        """Whether points have gaps that machines sum over tables."""
        is_mixed = isinstance(self._line_density, MixedDistribution)
        return not is_mixed and points.is_cpu and bool(points.isnan().any())

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

        They are a data frame if the training data were one, or if `set_output` asks for it; else an array. Numbers of
        rounded columns are those of their cells, and others have as many decimals as the training data, up to six.

        Examples
        --------
        >>> from rtbm import RTBMDensity
        >>> years = np.random.default_rng(0).permutation(np.arange(1900, 2000))[:, None]
        >>> draws = RTBMDensity(1, n_init=1, random_state=0).fit(years).sample(3)
        >>> bool((draws == draws.round()).all())
        True
        """
        check_is_fitted(self)
        check_integer(n_samples, "n_samples", 1)
        return self._framed(self._all_features(self._draw(n_samples, random_state)))

    def _draw(self, n_samples: int, random_state: Any) -> Floats:
        """Draws (n_samples, kept features) as numbers."""
        draws = self._line_density.sample((n_samples,), generator=self._generator(random_state)).double().cpu().numpy()
        if not isinstance(self._line_density, MixedDistribution):
            draws = map_back(self._maps, draws)
        return self._rounded(draws)

    def _rounded(self, draws: Floats) -> Floats:
        """Draws (n, d) with the decimals of the training data."""
        return self._kinds.rounded(draws, [own.support for own in self._maps])

    def transform(self, X: Any) -> Floats:
        """The expectations E(h|x) (n_samples, n_hidden · n_components) of the hidden units.

        Missing entries are integrated out in phase I, so that a row without numbers gives E(h); in phase II they are an
        error.
        """
        self._refuse_categories("transform")
        X = self._check(X)
        self._check_bounds(X)
        return in_blocks(self._hidden_mean, X)

    def _refuse_categories(self, method: str) -> None:
        if isinstance(getattr(self, "_line_density", None), MixedDistribution):
            raise InvalidInputError(f"{method} is for tables of numbers, this density has categories or atoms")

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

        Numbers, levels and dates give a fitted estimator. A tuple (low, high) is a range of numbers, with None for an
        open side: it is integrated over by quadrature. Arrays, lists or series of values (n,), or a data frame of known
        columns, give the distributions of all rows at once, with `mean`, `variance`, `log_prob`, `cdf`, `icdf` and
        `sample`.

        A warning says which numbers are outside of the range of the training data by more than its length: there the
        answer is an extrapolation.

        Examples
        --------
        >>> from rtbm import RTBMDensity, datasets
        >>> model = RTBMDensity(1, random_state=0).fit(datasets.correlated_gaussian.sample(500))
        >>> bool(abs(float(model.conditional({0: 2.0}).distribution_.mean) - 1.6) < 0.1)
        True
        >>> model.conditional({0: [2.0, 0.0, 1.0]}).mean.shape
        torch.Size([3, 1])
        >>> bool(abs(float(model.conditional({0: (0.0, None)}).distribution_.mean) - 0.65) < 0.1)
        True
        """
        check_is_fitted(self)
        if is_frame(values):
            frame: Any = check_columns(dates_to_days(to_numpy(values)), "values")
            values = {name: frame[name] for name in frame.columns}
            if not all(isinstance(name, str) for name in values) and list(values) != list(range(len(values))):
                raise InvalidInputError(
                    f"values has columns of the names {list(values)}: a data frame needs strings as names, as that "
                    "of the fit; {number: values} takes columns by their places"
                )
        if not isinstance(values, Mapping):
            raise InvalidInputError(
                f"values must be a dictionary {{feature: value}} or a data frame, got a {type(values).__name__}"
            )
        if any(isinstance(value, tuple) for value in values.values()):
            return self._condition_ranges(values)
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
        self._check_bounds(rows)
        self._warn_of_extrapolation(rows)
        if columns and columns[0].ndim:
            return self._condition_rows(rows, list(known))
        line, _ = self._to_line(rows)
        rest = [i for i in range(n_features) if i not in known]
        return self._derived(self._line_density.conditional({i: float(line[0, i]) for i in known}), rest)

    def _condition_ranges(self, values: Mapping[Any, Any]) -> Any:
        """The density given ranges (low, high) of some features, and then given the values of others."""
        density = self._line_density
        if not isinstance(density, MixedDistribution):
            density = MixedDistribution.of_numbers(density, self._maps)
        left, nearest = list(range(len(self._kept))), np.full((1, len(self._kept)), np.nan)
        for feature, value in values.items():
            if isinstance(value, tuple):
                low, high = self._range(value, feature)
                i = self._index(feature)
                if self._ranges is not None:
                    nearest[0, i] = np.clip(self._ranges[0, self._kept[i]], low, high)
                if len(left) == 1:
                    raise InvalidInputError(
                        "values must leave a feature free: box_probability of distribution_ tells it"
                    )
                density = density.within(left.index(i), low, high)
                left.remove(i)
        self._warn_of_extrapolation(nearest)
        model = self._derived(density, left)
        rest = {left.index(self._index(name)): own for name, own in values.items() if not isinstance(own, tuple)}
        return model.conditional(rest) if rest else model

    def _warn_of_extrapolation(self, rows: Floats) -> None:
        """Warn of given numbers (n, d) outside of the range of the training data by more than its length."""
        if self._ranges is None:
            return
        low, high = self._ranges[:, self._kept]
        lengths = np.where([own is None for own in self._kinds.levels], high - low, np.nan)
        beyond = np.maximum(rows - high, low - rows) / lengths
        is_far, found = beyond > 1, []
        for i in np.flatnonzero(is_far.any(axis=0)):
            row, is_date = np.nanargmax(beyond[:, i]), self._frame and self._frame.is_date(int(self._kept[i]))
            numbers = np.array([rows[row, i], low[i], high[i]])
            words = to_dates(numbers).astype("datetime64[s]") if is_date else [f"{number:.6g}" for number in numbers]
            found.append(
                f"{self._names()[i]} = {words[0]} is outside of the training data, {words[1]} to {words[2]}, by "
                f"{beyond[row, i]:.3g} times the length of that range"
            )
        if found:
            which = f"in {is_far.any(axis=1).sum()} of {len(rows)} rows, at worst " if len(rows) > 1 else ""
            warnings.warn(f"values: {which}{listed(found)}. The answer is an extrapolation", stacklevel=3)

    def _range(self, value: tuple[Any, ...], feature: Any) -> tuple[float, float]:
        """The ends of a range, infinite where they are None. A range of a rounded column is one of whole cells."""
        i = self._index(feature)
        if len(value) != 2 or self._kinds.levels[i] is not None:
            raise InvalidInputError(
                f"values[{feature!r}]: a tuple is a range (low, high) of a column of numbers, got {value!r}; the "
                "values of several rows are a list"
            )
        pairs = zip(value, (-np.inf, np.inf), strict=True)
        low, high = (side if end is None else float(_as_numbers(end, feature)) for end, side in pairs)
        cells = self._kinds.cells[i]
        return (low, high) if cells is None else cells.around(low, high, self._kinds.atoms[i])

    def _as_numbers(self, value: Any, feature: Any) -> Floats:
        """A value, or a row of values, of a feature as numbers."""
        levels = self._kinds.levels[self._index(feature)]
        if levels is None:
            return _as_numbers(value, feature)
        cells = np.array(value, dtype=object)
        unknown = "error" if cells.ndim == 0 else self.handle_unknown
        return encode_column(read_column(cells.ravel()), levels, unknown, f"values[{feature!r}]").reshape(cells.shape)

    def _condition_rows(self, rows: Floats, known: list[int]) -> Any:
        inside = rows.copy()
        inside[:, [i for i in range(rows.shape[1]) if i not in known]] = np.nan
        self._check_bounds(inside)
        if not known:
            raise InvalidInputError("X: all features have only one value, so there is nothing to predict from")
        columns = torch.from_numpy(self._possible(self._bounds.inside(rows), known)).to(self._line_density.device)
        given = self.distribution_.conditional({i: columns[:, i] for i in known})
        if isinstance(given, MixedDistribution) and not self._is_derived:
            only = torch.full_like(columns, torch.nan)
            only[:, known] = columns[:, known]
            given.set_log_joint(_log_joint(self._line_density, only))
        return given

    def _possible(self, rows: Floats, known: list[int]) -> Floats:
        """Rows with gaps in the place of known numbers that a logarithm does not reach; a warning names the columns."""
        low, high = np.array([own.support for own in self._maps]).T
        is_atom = np.stack([np.isin(x, own) for x, own in zip(rows.T, self._kinds.atoms, strict=True)], axis=1)
        beyond = ((rows <= low) | (rows >= high)) & ~is_atom
        names = [self._names()[i] for i in known if beyond[:, i].any()]
        if names:
            warnings.warn(
                f"X: {listed(names)} has numbers that are not positive, as all numbers of the training data are. They "
                'count as gaps. margins="learned" has a density for all numbers',
                stacklevel=5,
            )
        return np.where(beyond, np.nan, rows)

    def _generator(self, random_state: Any) -> torch.Generator:
        seed = draw_seed(self.random_state if random_state is None else random_state)
        return torch.Generator(self._line_density.device).manual_seed(seed)

    def _all_features(self, rows: Floats) -> Floats:
        """Rows with the features that were left out because they have only one value."""
        everything = np.tile(self.constants_, (len(rows), 1))
        everything[:, self._kept] = rows
        return everything

    def _whole_days(self, rows: Floats) -> Floats:
        """Rows of all features in which dates are whole days, if those of the training data are."""
        days = [
            n == 0 and self._frame is not None and self._frame.is_date(i) for i, n in enumerate(self.columns_.decimals)
        ]
        return np.where(days, np.rint(rows), rows)

    def _framed(self, rows: Floats, given: Any = None) -> Any:
        """Rows as an array, or as a data frame like the rows given, or like the training data if none were given.

        `set_output` may ask for another one. Frames of pandas have index and names of the rows given.
        """
        table, library = decode(rows, self.categories_), _get_output_config("transform", self)["dense"]
        if library == "default":
            own = self._frame if given is None else format_of(given)
            if own is None:
                return table
            library = own.library
        numbered = given.columns if library == "pandas" and is_frame(given) else None  # polars has no such names
        names = getattr(self, "feature_names_in_", numbered)
        return make_frame(table, self.categories_, library, self._frame, names, given)

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

    def _check_all(self, X: Any, allow_nan: bool = True, unknown: str | None = None) -> Floats:
        """All columns of checked rows. `unknown` takes the place of `handle_unknown`."""
        check_is_fitted(self)
        finite = "allow-nan" if allow_nan else True
        with warnings.catch_warnings():
            if self._is_derived:  # a marginal or conditional takes arrays and data frames
                warnings.filterwarnings("ignore", "X does not have valid feature names")
            names = getattr(self, "feature_names_in_", None)
            if names is not None and is_frame(X):  # which may lack identifiers
                identifiers = {name for name, own in zip(names, self.categories_, strict=True) if own == []}
                X = self._with_all_columns(X) if set(names) - set(X.columns) <= identifiers else X
            X = encode_like(X, self.categories_, names, unknown or self.handle_unknown)
            return check_rows(self, X, ensure_all_finite=finite, reset=False)

    def _with_all_columns(self, X: Any) -> Any:
        """X, with columns of NaN for features that a data frame lacks."""
        names = getattr(self, "feature_names_in_", None)
        if names is None or not is_frame(X) or not set(X.columns) < set(names):
            return X
        if hasattr(X, "reindex"):
            return X.reindex(columns=list(names))
        return X.with_columns(**dict.fromkeys(set(names) - set(X.columns), np.nan)).select(list(names))  # polars

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
            reason = "holds identifiers" if np.isnan(self.constants_[int(number)]) else "has only one value"
            raise InvalidInputError(f"feature {feature} {reason}, and was left out of the density")
        return self._kept.tolist().index(int(number))

    def _indices(self, features: Any) -> list[int]:
        """The places of one feature, or of several in a list."""
        return [self._index(feature) for feature in (features if is_list(features) else [features])]

    def _derived(self, distribution: Any, indices: list[int]) -> Self:
        """A fitted estimator for some features."""
        model = clone(self)
        model.__dict__.update({name: value for name, value in self.__dict__.items() if name.endswith("_")})
        model.n_features_in_, model.constants_ = len(indices), np.full(len(indices), np.nan)
        model.columns_ = self._kinds.subset(indices)
        model._frame = self._frame and self._frame.subset(self._kept[indices].tolist())
        if hasattr(self, "feature_names_in_"):
            model.feature_names_in_ = self.feature_names_in_[self._kept[indices]]
        model._bounds, model._is_derived = self._bounds.subset(indices), True
        model._ranges = None if self._ranges is None else self._ranges[:, self._kept[indices]]
        model._maps = [self._maps[i] for i in indices]
        model._set_distribution(distribution)
        model._set_summary({name: own for name, own in self.summary_.items() if not name.endswith("log_likelihood")})
        return model

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_line_density")

    def _check_loaded(self) -> None:
        """Check that the attributes of a file belong together."""
        density, kinds, members = self._line_density, self._kinds, self.summary_["members"]
        sizes = {len(self._kept), len(self._bounds.low), len(self._maps), density.n_visible}
        dtypes = self._frame.dtypes if self._frame else self.columns_.levels
        if len(sizes) != 1 or {self.columns_.n_columns, len(dtypes)} != {self.n_features_in_}:
            raise InvalidInputError(f"it must have {density.n_visible} features like its density")
        columns: list[Any] = getattr(density, "columns", [NumberColumn()] * density.n_visible)
        for column, levels, atoms in zip(columns, kinds.levels, kinds.atoms, strict=True):
            is_same = [*atoms] == [*getattr(column, "atoms", [])]
            if isinstance(column, CategoryColumn) or levels is not None:
                is_same = isinstance(column, CategoryColumn) and column.probabilities.shape[1] == len(levels or [])
            if not is_same:
                raise InvalidInputError("columns_ must have the levels and atoms of the columns of its density")
        machines = components(density)
        if not self._is_derived and sum(n for n, _ in members) not in (len(machines), len(component_weights(density))):
            raise InvalidInputError("summary_: members must be those of its density")
        if not all(machine.coupling == "dense" for machine in machines):
            raise InvalidInputError("its machines must have a dense Q")
        if self._n_features_out != sum(machine.n_hidden for machine in machines):
            raise InvalidInputError("_n_features_out must be the number of hidden units")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def in_blocks(answer: Callable[[Floats], Floats], rows: Floats) -> Floats:
    """The answers (n, ...) to rows (n, d), block by block, so that intermediate results take little memory."""
    if len(rows) <= BLOCK_ROWS:
        return answer(rows)
    return np.concatenate([answer(rows[i : i + BLOCK_ROWS]) for i in range(0, len(rows), BLOCK_ROWS)])


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


def component_weights(distribution: Density) -> Tensor:
    """The weights of these machines."""
    one = torch.ones(1, dtype=torch.float64, device=distribution.device)
    return distribution.weights if isinstance(distribution, RTBMMixture | MixedDistribution) else one


def count_parameters(distribution: Density, members: Sequence[tuple[int, int]]) -> int:
    """The free parameters of a density: of machines or of Gaussians, and of their weights."""
    machines, total = iter(components(distribution)), -1
    for n_machines, n_gaussians in members:
        sizes = [count(m.n_visible, m.n_hidden) for m in islice(machines, n_machines)]
        if n_gaussians:
            sizes = [gaussian_size(distribution.n_visible)] * n_gaussians
        total += sum(size + 1 for size in sizes) or n_machines  # without columns of numbers there are no machines
    columns: Sequence[Any] = distribution.columns if isinstance(distribution, MixedDistribution) else []
    return total + sum(c.probabilities[:, 1:].numel() for c in columns if c.probabilities is not None)


def gaussian_size(n_features: int) -> int:
    """The free parameters of a Gaussian."""
    return n_features + n_features * (n_features + 1) // 2


def _log_joint(density: MixedDistribution, points: Tensor) -> Tensor:
    """The log of weight times density of each component (n, K) of a whole density, for points (n, d).

    Tables of hidden states serve all gaps in one pass.
    """
    model = density._model
    if points.is_cuda or not model.machines:
        return model.log_joint(points)
    line, log_slope = model.line(points)
    by_numbers = machine_log_prob(RTBMMixture(density.weights, density.components), line.contiguous())
    return model.log_weights + model.log_discrete(points) + by_numbers + log_slope[:, None]


def _as_numbers(value: Any, feature: Any) -> Floats:
    """A finite number (), or a row of numbers (n,) that may be missing. Dates become days."""
    value = to_numpy(value)
    try:
        array = to_days(value) if holds_dates(value) else np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.inf)
    if array.ndim > 1 or np.isinf(array).any() or (array.ndim == 0 and np.isnan(array)):
        raise InvalidInputError(f"values[{feature!r}] must be a finite number or a row of numbers, got {value!r}")
    return array
