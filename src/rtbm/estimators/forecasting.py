"""Forecasts as distributions: seasons by theta units, and the exact conditional density of what is left given lags."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Self, TypedDict

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from rtbm.common import Floats
from rtbm.distributions import ColumnMap, Interval
from rtbm.distributions.arguments import check_probabilities
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import check_flag, check_number, draw_seed, forget, keep_arguments
from rtbm.estimators.density.committee import make_density
from rtbm.estimators.density.estimator import RTBMDensity
from rtbm.estimators.density.margins import map_back, map_rows
from rtbm.estimators.density.predictions import PredictingDensity
from rtbm.estimators.parallel import threads_for
from rtbm.nn import theta_unit
from rtbm.training.network_starts import find_sinusoids
from rtbm.validation import check_integer

SMALLEST_SIZE = 1e-100
"""Squares of smaller values, and of larger ones than 1/SMALLEST_SIZE, would leave float64 or come near."""
FEWEST_VALUES, SPARE_ROWS = 20, 3
"""Fewest known values of a series, and the rows that a member needs beyond its number of lags."""
LONGEST_HORIZON, SHORTEST_HORIZON = 12, 6
"""Members are judged this number of steps ahead, or a period if that lies between."""
N_ORIGINS, JUDGED_PATHS, N_MEMBERS = 6, 200, 3
"""The most origins from which members are judged, the paths of each, and the number of members that are kept."""
MAX_UNITS, UNIT_SHAPE, SEASON_PRIOR, LAG_PRIOR = 24, 1.0, 0.1, 2.0
"""The most theta units of a season, their q, and the rows for which the priors on seasons and lags count. Larger ones
give smoother seasons and shorter memories."""
MAX_SINUSOIDS = 4
"""The most frequencies that are looked for."""


class Structure(NamedTuple):
    """How a member sees the series: after which differences, given which lags, and whether less a season."""

    differences: tuple[int, ...]
    lags: tuple[int, ...]
    has_season: bool = False

    @property
    def reach(self) -> int:
        """The number of earlier values that have an influence."""
        return sum(self.differences) + max(self.lags)

    @property
    def filter(self) -> Floats:
        """The coefficients c of the differences Σ_j c_j x_{t−j}."""
        c = np.ones(1)
        for lag in self.differences:
            c = np.convolve(c, np.concatenate([[1.0], np.zeros(lag - 1), [-1.0]]))
        return c


def structures(periods: Sequence[float], with_theta: bool) -> dict[str, Structure]:
    """The candidates. The longest period also gives lags and differences."""
    if not periods:
        long = tuple(range(1, 10))
        return {
            "level": Structure((), (1, 2, 3)),
            "level, long memory": Structure((), long),
            "differences": Structure((1,), (1, 2, 3)),
            "differences, long memory": Structure((1,), long),
        }
    s = round(max(periods))
    near, season = (1, 2, 3), tuple(sorted({1, 2, 3, s}))
    both = tuple(sorted({*near, s, s + 1}))
    theta = {
        "theta season": Structure((), season, True),
        "theta season, differences": Structure((1,), season, True),
    }
    return {
        "level": Structure((), both),
        **(theta if with_theta else {}),
        "seasonal differences": Structure((s,), both),
        "seasonal and first differences": Structure((1, s), both),
    }


@dataclass(frozen=True, eq=False)
class LinearNormal:
    """A normal distribution of a number given others, with a mean linear in them."""

    centre: Floats
    slope: Floats
    mean: float
    std: float

    @classmethod
    def fit(cls, X: Floats, z: Floats, n_others: int) -> "LinearNormal":
        """By penalised least squares from X (n, d) and z (n,); n_others parameters were fitted to z before."""
        centre, mean = _column_means(X), float(z.mean())
        X = np.where(np.isnan(X), 0.0, X - centre)
        scales = np.maximum(X.std(axis=0), 1e-12 * max(float(z.std()), 1e-300))
        Z = X / scales
        slope = np.linalg.solve(Z.T @ Z + LAG_PRIOR * np.eye(Z.shape[1]), Z.T @ (z - mean)) / scales
        residual = z - mean - X @ slope
        n_free = max(len(z) - 1 - X.shape[1] - n_others, len(z) / 2)
        return cls(centre, slope, mean, math.sqrt(residual @ residual / n_free))

    def at_scores(self, X: Floats, scores: Floats) -> Floats:
        """The values (n,) at normal scores (n,), given each row of X (n, d)."""
        return self.mean + np.where(np.isnan(X), 0.0, X - self.centre) @ self.slope + self.std * scores


class SeriesIndex(TypedDict):
    """The last date or period of a series, and the step."""

    last: str
    step: str
    is_dates: bool


@dataclass(frozen=True, eq=False)
class Member:
    """A fitted model of the mapped series: a structure, the weights of its theta units, its drift and its remainder."""

    structure: Structure
    periods: tuple[float, ...]
    weights: Floats | None
    """Of the theta units, the last one of a constant (n_units + 1,), if there is a season."""
    mean: float
    """Of the differences in the past."""
    drift: float
    """The same for the future: nearer to 0 the less certain it is."""
    remainder: Annotated[Any, PredictingDensity | LinearNormal]
    """The distribution of a difference given its lags."""

    def season(self, times: Floats) -> Floats:
        """The season (n,) at times (n,)."""
        return np.zeros(len(times)) if self.weights is None else theta_season(times, self.periods) @ self.weights

    def paths(self, u: Floats, h: int, scores: Floats) -> Floats:
        """What follows the mapped series u (n,), (n_paths, h), at the normal scores (n_steps, n_paths) of each step.

        Paths begin at the first gap that has an influence: the gap is filled in, and known values stay as they are.
        """
        (n, c), n_paths = (len(u), self.structure.filter), scores.shape[1]
        reach = self.structure.reach
        gaps = np.flatnonzero(np.isnan(u[-reach:]))
        start = max(n - reach, 0) + int(gaps[0]) if len(gaps) else n
        season = self.season(np.arange(n + h, dtype=np.float64))
        w = np.tile(_filtered(u - season[:n], c)[:, None] - self.mean, n_paths)
        x = np.tile((_filled(u) - season[:n])[:, None], n_paths)
        w, x = (np.vstack([part, np.empty((h, n_paths))]) for part in (w, x))
        for t in range(start, n + h):
            base = -(c[1:] @ x[t - len(c) + 1 : t][::-1]) if len(c) > 1 else np.zeros(n_paths)
            if t < n and not np.isnan(u[t]):
                w[t] = x[t] - base - self.mean
                continue
            w[t] = _at_scores(
                self.remainder, np.stack([w[t - lag] for lag in self.structure.lags], 1), scores[t - n - h]
            )
            x[t] = w[t] + self.drift + base
        return (x[n:] + season[n:, None]).T


Fit = Callable[[Floats, Floats, int], Any]
"""What makes the distribution of z (n,) given X (n, d) after a number of other parameters."""


def fit_member(structure: Structure, u: Floats, periods: tuple[float, ...], fit: Fit) -> Member | None:
    """A member for the mapped series u (n,) with gaps; None if the series is too short for it."""
    c, n = structure.filter, len(u)
    structure = structure._replace(lags=tuple(lag for lag in structure.lags if 2 * lag <= n - len(c) + 1))
    if not structure.lags:
        return None
    weights, n_others = None, 0
    if structure.has_season:
        basis = theta_season(np.arange(n, dtype=np.float64), periods)
        weights = _season_weights(np.stack([_filtered(column, c) for column in basis.T], 1), _filtered(u, c))
        u, n_others = u - basis @ weights, len(weights) - 2
    w = _filtered(u, c)
    z_known = w[~np.isnan(w)]
    if len(z_known) < len(structure.lags) + SPARE_ROWS or np.ptp(z_known) == 0:
        return None
    mean = drift = float(z_known.mean())
    if structure.differences:
        drift *= max(0.0, 1 - float(z_known.var()) / (len(z_known) * drift**2)) if drift else 0.0
    X = np.stack([np.concatenate([np.full(lag, np.nan), w[:-lag]]) for lag in structure.lags], 1) - mean
    first = len(c) - 1 + max(structure.lags)
    rows = first + np.flatnonzero(~np.isnan(w[first:]))
    if len(rows) < len(structure.lags) + SPARE_ROWS or np.ptp(w[rows]) == 0:
        return None
    return Member(structure, periods, weights, mean, drift, fit(X[rows], w[rows] - mean, n_others))


def theta_season(times: Floats, periods: Sequence[float]) -> Floats:
    """Theta units of phase II with these periods (n, n_units), evenly spaced over each, and a constant."""
    parts = [np.ones((len(times), 1))]
    for period in periods:
        n_units = min(round(period), MAX_UNITS)
        angle = 2 * math.pi * (times[:, None] / period - np.arange(n_units) / n_units)
        parts.append(theta_unit(torch.from_numpy(angle), torch.full((n_units,), UNIT_SHAPE).double(), "II").numpy())
    return np.hstack(parts[1:] + parts[:1])


def find_periods(u: Floats) -> tuple[float, ...]:
    """The periods of a series (n,), the longest first: of the sinusoids that stand out of differences given lags."""
    w = _filtered(u, Structure((1,), ()).filter)
    X = np.stack([np.concatenate([np.full(lag, np.nan), w[:-lag]]) for lag in (1, 2, 3)], 1)
    times = np.flatnonzero(~np.isnan(w) & ~np.isnan(X).any(axis=1))
    if len(times) < FEWEST_VALUES:
        return ()
    normal = LinearNormal.fit(X[times], w[times], 0)
    residual = w[times] - normal.mean - (X[times] - normal.centre) @ normal.slope
    x, y = times[:, None].astype(np.float64), residual[:, None] / normal.std
    found = find_sinusoids(x, y, np.ones(len(x)), MAX_SINUSOIDS, np.random.default_rng(0), greedy=True)
    periods: list[float] = []
    for period in sorted((2 * math.pi / wave.frequency for wave in found), reverse=True):
        nearest = round(period)
        if abs(period - nearest) < period**2 / (2 * len(u)):
            period = float(nearest)
        is_harmonic = any(abs(longer / period - round(longer / period)) < 0.05 for longer in periods)
        if 2 <= period <= len(u) / 3 and not is_harmonic:
            periods.append(period)
    return tuple(periods)


class RTBMForecaster(BaseEstimator):
    """Forecasts of a series as distributions, from which paths are drawn.

    The series is mapped to the real line: positive values by the logarithm, where that has the higher likelihood.
    Several structures describe what is mapped: differences or none, of one step or of a period, and seasons that are
    sums of theta units, E(h|v), of known period. The rest is drawn step by step from its density given its lags, which
    is an exact conditional of a joint density. The structures are judged by the CRPS (continuous ranked probability
    score) of forecasts from origins in the second half of the series, with normal distributions in the place of the
    densities; the best three get densities. A path is the mean, on the real line, of the paths of these members at the
    same normal scores, so that a quantile of the first step is the mean of their quantiles.

    Parameters
    ----------
    density : RTBMDensity or RTBMDensityCV, default=None
        The joint density of lags and value to fit; None for two machines, or one Gaussian where that is as good.
    periods : sequence of float, default=None
        The number of values in each period, as (12,) for months; () for none; None to find them.
    horizon : int, default=None
        The number of steps ahead by which structures are judged; None for a period, within 6 and 12.
    theta : bool, default=True
        Whether seasons of theta units are among the structures; False for lags and differences alone.
    n_paths : int, default=1000
        The number of paths behind predictions.
    random_state : int, RandomState or None, default=None
        The same integer gives the same forecasts.

    Attributes
    ----------
    members_ : dict
        The fitted members by name.
    scores_ : dict
        The CRPS of each structure that the series is long enough for, in units of the mean step of a period (of one
        value without periods).
    uses_theta_ : bool
        Whether a member has a season of theta units; cross-validation leaves them out where lags are better.
    periods_ : tuple of float
        The periods, given or found; the longest one gives the lags and differences.
    map_ : ColumnMap
        The map of the values.
    n_values_ : int
        The number of values, gaps among them.

    Examples
    --------
    >>> from rtbm import RTBMForecaster
    >>> rng, t = np.random.default_rng(0), np.arange(120)
    >>> y = 10 + 3 * np.sin(2 * np.pi * t / 12) + 0.3 * rng.normal(size=120)
    >>> model = RTBMForecaster(random_state=0).fit(y)
    >>> model.periods_
    (12.0,)
    >>> truth = 10 + 3 * np.sin(2 * np.pi * np.arange(120, 126) / 12)
    >>> bool(np.abs(model.predict(6) - truth).max() < 0.5)
    True
    >>> model.predict_interval(6, coverage=0.9).shape, model.sample_paths(6, 100, random_state=0).shape
    ((6, 2), (100, 6))
    """

    density: Any
    periods: Any
    horizon: int | None
    theta: bool
    n_paths: int
    random_state: Any
    periods_: tuple[float, ...]
    map_: ColumnMap
    n_values_: int
    scores_: dict[str, float]
    uses_theta_: bool
    members_: dict[str, Member]
    _seed: int
    _y: Annotated[Floats, "values"]
    _index: Annotated[dict[str, Any], SeriesIndex] | None

    def __init__(
        self,
        density: Any = None,
        *,
        periods: Sequence[float] | None = None,
        horizon: int | None = None,
        theta: bool = True,
        n_paths: int = 1000,
        random_state: Any = None,
    ):
        keep_arguments(self, locals())

    def fit(self, y: Any, X: Any = None) -> Self:
        """Fit to a series y (n,) of values at equal steps; NaN values are gaps. X is ignored."""
        check_flag(self.theta, "theta")
        check_integer(self.n_paths, "n_paths", 2)
        if self.horizon is not None:
            check_integer(self.horizon, "horizon", 1)
        forget(self, "_y", "_seed", "_index")
        values = _check_series(y)
        given = None if self.periods is None else _check_periods(self.periods, len(values))
        self._seed = draw_seed(self.random_state)
        self.n_values_, self._y, self._index = len(values), values, _index_of(y)
        self.map_ = _choose_map(values, given)
        u = self._to_line(values)
        self.periods_ = find_periods(u) if given is None else given
        candidates = structures(self.periods_, bool(self.theta))
        self.scores_ = self._judge(candidates, u)
        if not self.scores_:
            raise InvalidInputError("y: too few values without gaps between them for any lag: fill in gaps")
        members: dict[str, Member] = {}
        for name in sorted(self.scores_, key=self.scores_.__getitem__)[:N_MEMBERS]:
            member = fit_member(candidates[name], u, self.periods_, self._fit_density)
            members |= {} if member is None else {name: member}
        self.uses_theta_ = any(member.structure.has_season for member in members.values())
        self.members_ = members
        return self

    def predict(self, h: int) -> Any:
        """The medians (h,) of the next h values.

        A pandas Series with dates or periods at equal steps gives one that goes on with them, and so do quantiles.
        """
        return self._framed(self._quantiles(h, np.array([0.5]))[:, 0])

    def predict_quantiles(self, h: int, quantiles: Sequence[float] | Floats = (0.05, 0.5, 0.95)) -> Any:
        """The quantiles (h, n_quantiles) of each of the next h values."""
        levels = check_probabilities(np.atleast_1d(np.asarray(quantiles, dtype=np.float64)), torch.device("cpu"))
        return self._framed(self._quantiles(h, levels.numpy()), levels.tolist())

    def predict_interval(self, h: int, coverage: float = 0.9) -> Any:
        """The central intervals (h, 2) that hold each of the next h values with probability `coverage`."""
        check_number(coverage, "coverage", 0.0, 1.0, strict=True)
        return self.predict_quantiles(h, ((1 - coverage) / 2, (1 + coverage) / 2))

    def sample_paths(self, h: int, n_paths: int = 100, random_state: Any = 0) -> Floats:
        """Draws (n_paths, h) of the next h values together, in random order; the same integer gives the same ones."""
        check_integer(n_paths, "n_paths", 1)
        return self._from_line(self._paths(h, n_paths, draw_seed(random_state)).mean(axis=0))

    def _quantiles(self, h: int, levels: Floats) -> Floats:
        """Quantiles of the paths; a warning where members disagree."""
        check_is_fitted(self)
        parts = self._paths(h, self.n_paths, self._seed)
        low, high = np.quantile(parts, (0.05, 0.95), axis=1)
        apart = np.flatnonzero(low.max(axis=0) > high.min(axis=0))
        if len(apart):
            warnings.warn(
                f"the 90 % intervals of the members {', '.join(self.members_)} do not overlap from step "
                f"{apart[0] + 1} on: the series does not tell how to continue it so far; ask for fewer steps",
                stacklevel=3,
            )
        return np.quantile(self._from_line(parts.mean(axis=0)), levels, axis=0).T

    def _paths(self, h: int, n_paths: int, seed: int) -> Floats:
        """The paths of all members (n_members, n_paths, h) on the real line, at the same normal scores."""
        check_is_fitted(self)
        check_integer(h, "h", 1)
        n_steps = h + max(member.structure.reach for member in self.members_.values())
        scores, u = np.random.default_rng(seed).normal(size=(n_steps, n_paths)), self._to_line(self._y)
        return np.stack([member.paths(u, h, scores) for member in self.members_.values()])

    def _judge(self, candidates: dict[str, Structure], u: Floats) -> dict[str, float]:
        """The mean CRPS of each structure, of those that the series up to every origin is long enough for."""
        n, longest = len(u), round(max(self.periods_, default=0))
        first = min(max(n // 2, 2 * longest + SPARE_ROWS), n - 1)
        wanted = self.horizon or min(max(longest, SHORTEST_HORIZON), LONGEST_HORIZON)
        h = min(wanted, n - first)
        origins = np.unique(
            np.linspace(max(first, n - h - (N_ORIGINS - 1) * max(h // 2, 1)), n - h, N_ORIGINS).astype(int)
        )
        steps, lag = _filled(self._y), max(longest, 1)
        unit = max(float(np.abs(steps[lag:] - steps[:-lag]).mean()), 1e-300)
        scores: dict[str, float] = {}
        for name, structure in candidates.items():
            scores_of_steps = np.random.default_rng(self._seed).normal(size=(h + structure.reach, JUDGED_PATHS))
            errors = []
            for origin in origins:
                member = fit_member(structure, u[:origin], self.periods_, LinearNormal.fit)
                if member is None:
                    break
                paths = self._from_line(member.paths(u[:origin], h, scores_of_steps))
                errors.append(_crps(paths, self._y[origin : origin + h]) / unit)
            else:
                scores[name] = float(np.nanmean(np.concatenate(errors)))
        return {name: score for name, score in scores.items() if math.isfinite(score)}

    def _fit_density(self, X: Floats, z: Floats, n_others: int) -> Any:
        """The joint density of lags and value."""
        given = self.density
        if given is None:
            given = RTBMDensity(1, n_components=2, n_init=1, max_iter=60, tol=1e-5, random_state=self._seed % 2**32)
        rows = np.column_stack([X, z])
        with warnings.catch_warnings(action="ignore"), threads_for(len(rows)):  # of spikes and iterations
            density = make_density(given, len(rows))
            return density.set_params(categorical_features=None, atoms=None, rounded=None).fit(rows)

    def _to_line(self, values: Floats) -> Floats:
        return map_rows([self.map_], values[:, None])[0][:, 0]

    def _from_line(self, paths: Floats) -> Floats:
        return map_back([self.map_], paths.reshape(-1, 1)).reshape(paths.shape)

    def _framed(self, result: Floats, columns: Any = None) -> Any:
        """Results (h,) or (h, n_columns) with the index that goes on from that of the series, if it had one."""
        if self._index is None:
            return result
        import pandas as pd

        last, step, is_dates = self._index["last"], self._index["step"], self._index["is_dates"]
        make = pd.date_range if is_dates else pd.period_range
        index = make(last, periods=len(result) + 1, freq=step)[1:]
        return pd.Series(result, index) if columns is None else pd.DataFrame(result, index, columns)

    def _check_loaded(self) -> None:
        """Check with one step that the attributes of a file belong together."""
        self._paths(1, 2, self._seed)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "members_")


def _check_series(y: Any) -> Floats:
    try:
        values = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError("y must be a series of numbers, with NaN for gaps") from None
    if values.ndim != 1:
        raise InvalidInputError(f"y must have the shape (n,), got {values.shape}: a forecaster takes one series")
    known = values[~np.isnan(values)]
    if np.isinf(known).any():
        raise InvalidInputError("y holds infinite values: use NaN for gaps")
    if len(known) < FEWEST_VALUES:
        raise InvalidInputError(f"y must hold {FEWEST_VALUES} known values or more, got {len(known)}")
    if np.ptp(known) == 0:
        raise InvalidInputError("y has only one value, so there is nothing to learn")
    if not SMALLEST_SIZE < np.abs(known).max() < 1 / SMALLEST_SIZE:
        raise InvalidInputError(f"y has values of size {np.abs(known).max():.0e}: change the unit")
    return values.copy()


def _check_periods(periods: Any, n: int) -> tuple[float, ...]:
    """The periods, the longest first."""
    if isinstance(periods, str) or not isinstance(periods, Sequence | np.ndarray):
        raise InvalidInputError(f"periods must be None or a sequence of numbers, as (12,), got {periods!r}")
    for period in periods:
        check_number(period, "periods", 2.0, math.inf)
        if n < 2 * round(period) + 2 * SPARE_ROWS:
            raise InvalidInputError(
                f"periods: a period of {period:g} needs {2 * round(period) + 2 * SPARE_ROWS} values or more, got {n}: "
                "leave it out, or collect more values"
            )
    return tuple(sorted({float(period) for period in periods}, reverse=True))


def _choose_map(values: Floats, periods: tuple[float, ...] | None) -> ColumnMap:
    """The logarithm for positive values, or none: the one with the higher likelihood of the differences given lags."""
    if not (values[~np.isnan(values)] > 0).all():
        return ColumnMap()
    best, found = -math.inf, ColumnMap()
    periods = find_periods(np.log(values)) if periods is None else periods
    for own in (ColumnMap(), Interval(0.0, math.inf)):
        u, log_slope = (part[:, 0] for part in map_rows([own], values[:, None]))
        member = fit_member(Structure((1,), (1, 2), bool(periods)), u, periods, LinearNormal.fit)
        if member is not None:
            score = float(np.nanmean(log_slope)) - math.log(max(member.remainder.std, 1e-300))
            best, found = (score, own) if score > best else (best, found)
    return found


def _season_weights(basis: Floats, w: Floats) -> Floats:
    """Weights of the theta units, the last one a constant without a prior, by penalised least squares."""
    known = ~np.isnan(w) & ~np.isnan(basis).any(axis=1)
    if not known.any():
        return np.zeros(basis.shape[1])
    B = basis[known]
    prior = np.sqrt(SEASON_PRIOR * (B**2).mean(axis=0)) * (np.arange(B.shape[1]) < B.shape[1] - 1)
    rows = np.vstack([B, np.diag(prior)])
    return np.linalg.lstsq(rows, np.concatenate([w[known], np.zeros(B.shape[1])]), rcond=1e-10)[0]


def _at_scores(remainder: Any, X: Floats, scores: Floats) -> Floats:
    """The values (n,) at normal scores (n,), given rows X (n, n_lags) of lags; unknown ones are integrated out."""
    if isinstance(remainder, LinearNormal):
        return remainder.at_scores(X, scores)
    with torch.no_grad(), threads_for(len(X)):
        points = torch.from_numpy(scores)[:, None]
        return remainder._condition_first(X).from_normal_scores(points)[:, 0].double().cpu().numpy()


def _filtered(x: Floats, c: Floats) -> Floats:
    """Σ_j c_j x_{t−j} (n,); NaN in the first rows, and where a value is missing."""
    result = np.full(len(x), np.nan)
    if len(x) >= len(c):
        windows = np.lib.stride_tricks.sliding_window_view(x, len(c))[:, ::-1]
        result[len(c) - 1 :] = windows[:, c != 0] @ c[c != 0]
    return result


def _filled(x: Floats) -> Floats:
    """Gaps as straight lines."""
    known, times = ~np.isnan(x), np.arange(len(x))
    return np.interp(times, times[known], x[known])


def _column_means(X: Floats) -> Floats:
    known = ~np.isnan(X)
    return np.where(known, X, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def _crps(paths: Floats, y: Floats) -> Floats:
    """The continuous ranked probability scores (h,) of draws (n, h): E|X − y| − ½E|X − X'|."""
    n = len(paths)
    share = (2 * np.arange(1, n + 1) - n - 1) / n**2
    return np.abs(paths - y).mean(axis=0) - share @ np.sort(paths, axis=0)


def _index_of(y: Any) -> dict[str, Any] | None:
    """The last date or period of a pandas Series, and the step; None for other series and for steps that differ."""
    index: Any = getattr(y, "index", None)
    if type(index).__name__ not in ("DatetimeIndex", "PeriodIndex"):
        return None
    if not (index.is_monotonic_increasing and index.is_unique):
        raise InvalidInputError("y: its dates must increase, and each must occur once: use y.sort_index()")
    is_dates = type(index).__name__ == "DatetimeIndex"
    step = (index.freqstr or index.inferred_freq) if is_dates else index.freqstr
    if step is None or (not is_dates and (index[-1] - index[0]).n != len(index) - 1):
        warnings.warn(
            "y: the steps between its dates differ, and its values are taken as evenly spaced: if dates are missing, "
            "fill them in with NaN, as y.asfreq does",
            stacklevel=3,
        )
        return None
    return {"last": str(index[-1]), "step": step, "is_dates": is_dates}
