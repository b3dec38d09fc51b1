"""RTBMForecaster: distributions, paths, seasons, gaps, seeds, indices, files and errors."""

import warnings

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import norm

from rtbm import InvalidInputError, RTBMDensity, RTBMForecaster, load, save

GAUSSIAN = RTBMDensity(1, n_init=1, max_iter=20, random_state=0)


def quick(**options):
    return RTBMForecaster(GAUSSIAN, **{"periods": (), "n_paths": 200, "random_state": 0, **options})


def autoregression(n=300, coefficient=0.7, seed=0):
    rng = np.random.default_rng(seed)
    y = np.zeros(n)
    for t in range(1, n):
        y[t] = coefficient * y[t - 1] + rng.normal()
    return y


def seasonal(n=96, noise=0.2, seed=0):
    t = np.arange(n)
    return (
        20
        + 4 * np.sin(2 * np.pi * t / 12)
        + np.cos(2 * np.pi * t / 6)
        + noise * np.random.default_rng(seed).normal(size=n)
    )


def silent(model, h, **options):
    """Quantiles, with the warning of members that disagree left aside."""
    with warnings.catch_warnings(action="ignore"):
        return model.predict_quantiles(h, **options)


def test_an_autoregression_is_recovered():
    y = autoregression(1000)
    model = quick(n_paths=4000).fit(y)
    quantiles = silent(model, 3, quantiles=norm.cdf([-1, 0, 1]))
    steps = np.arange(1, 4)
    mean, std = 0.7**steps * y[-1], np.sqrt((1 - 0.7 ** (2 * steps)) / (1 - 0.7**2))
    error = 5 * np.sqrt(9 / 1000) * np.linalg.norm([1.0, y[-1]])  # of nine slopes, five standard errors
    assert np.abs(quantiles[:, 1] - mean).max() < error
    assert np.abs((quantiles[:, 2] - quantiles[:, 0]) / 2 - std).max() < 0.25 * std.max()


def test_paths_begin_with_the_one_step_conditional():
    y = autoregression(200)
    model = quick().fit(y)
    paths = model.sample_paths(1, 3000, random_state=1)[:, 0]
    levels, parts = np.linspace(0.05, 0.95, 19), []
    for member in model.members_.values():
        w = np.diff(y) if member.structure.differences else y
        lags = [w[-lag] - member.mean for lag in member.structure.lags]
        given = member.remainder.conditional(dict(enumerate(lags))).distribution_
        parts.append(given.icdf(levels)[:, 0].numpy() + member.drift + (y[-1] if member.structure.differences else 0.0))
    shares = (paths[:, None] < np.mean(parts, axis=0)).mean(axis=0)
    assert np.abs(shares - levels).max() < 4.5 * np.sqrt(0.25 / len(paths))


def test_intervals_are_quantiles_of_paths():
    model = quick(n_paths=3000).fit(autoregression())
    paths = model.sample_paths(4, 3000, random_state=3)
    with warnings.catch_warnings(action="ignore"):
        interval, median = model.predict_interval(4, 0.8), model.predict(4)
    low, high = np.quantile(paths, (0.1, 0.9), axis=0)
    assert np.abs(interval - np.stack([low, high], 1)).max() < 6 * np.sqrt(0.09 / 3000) / norm.pdf(norm.ppf(0.1)) * 2
    assert np.array_equal(median, silent(model, 4, quantiles=0.5)[:, 0])
    inside = (paths > interval[:, 0]) & (paths < interval[:, 1])
    assert abs(inside.mean() - 0.8) < 0.05


def test_the_seed_decides_everything():
    y = seasonal()
    first, second, other = (quick(periods=(12,), random_state=seed).fit(y) for seed in (1, 1, 2))
    assert np.array_equal(silent(first, 5), silent(second, 5))
    assert not np.array_equal(silent(first, 5), silent(other, 5))
    assert np.array_equal(first.sample_paths(5, 7, random_state=3), second.sample_paths(5, 7, random_state=3))
    assert not np.array_equal(first.sample_paths(5, 7, random_state=3), first.sample_paths(5, 7, random_state=4))


@pytest.mark.parametrize("periods", [(12,), None])
def test_a_season_is_continued_with_its_period_given_or_found(periods):
    y = seasonal(108)
    model = quick(periods=periods).fit(y[:96])
    assert model.periods_ == (12.0,)
    assert model.uses_theta_
    error = silent(model, 12, quantiles=0.5)[:, 0] - seasonal(108, noise=0.0)[96:]
    assert np.abs(error).max() < 5 * 0.2  # the noise of one value, five times


def test_theta_units_can_be_left_out():
    model = quick(periods=(12,), theta=False).fit(seasonal())
    assert not model.uses_theta_
    assert not any("theta" in name for name in model.scores_)


def test_noise_has_no_period():
    found = [quick(periods=None).fit(np.random.default_rng(seed).normal(size=60)).periods_ for seed in range(4)]
    assert sum(len(periods) > 0 for periods in found) <= 1


def test_a_season_that_multiplies_stays_positive():
    t = np.arange(84)
    rng = np.random.default_rng(0)
    y = np.exp(0.02 * t + 0.8 * np.sin(2 * np.pi * t / 12) + 0.1 * rng.normal(size=84))
    model = quick(periods=(12,)).fit(y)
    assert model.sample_paths(24, 200).min() > 0
    assert model.map_.support == (0.0, np.inf)
    shifted = quick(periods=(12,)).fit(y - 1.0)  # negative values have no logarithm
    assert shifted.map_.support == (-np.inf, np.inf)


def test_gaps_are_filled_by_draws():
    y = seasonal(96)
    whole = silent(quick(periods=(12,)).fit(y), 6, quantiles=0.5)
    inner, last = y.copy(), y.copy()
    inner[[30, 31, 60, 90]] = np.nan
    last[-2:] = np.nan
    assert np.abs(silent(quick(periods=(12,)).fit(inner), 6, quantiles=0.5) - whole).max() < 5 * 0.2
    model = quick(periods=(12,)).fit(last)
    assert model.n_values_ == 96
    assert np.abs(silent(model, 6, quantiles=0.5) - whole).max() < 5 * 0.2


def test_members_that_disagree_are_reported():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(size=60), 6 * np.linspace(0, 1, 12) ** 2 + 0.01 * rng.normal(size=12)])
    with pytest.warns(UserWarning, match="do not overlap from step"):
        quick().fit(np.cumsum(y) + 100 * y).predict_interval(60)


@pytest.mark.parametrize("make", [list, np.asarray, pl.Series, pd.Series])
def test_series_of_all_kinds(make):
    y = autoregression(60)
    result = silent(quick().fit(make(y)), 3)
    assert isinstance(result, np.ndarray)
    assert np.array_equal(result, silent(quick().fit(y), 3))


@pytest.mark.parametrize("kind", ["dates", "periods"])
def test_dates_must_increase_and_gaps_between_them_are_told(kind: str) -> None:
    rng = np.random.default_rng(0)
    dates = pd.date_range("2020-01-01", periods=60, freq="MS")
    y = pd.Series(rng.normal(size=60), dates if kind == "dates" else dates.to_period("M"))
    with pytest.raises(InvalidInputError, match="sort_index"):
        RTBMForecaster(random_state=0).fit(y[::-1])
    with pytest.warns(UserWarning, match="asfreq"):
        forecaster = RTBMForecaster(random_state=0).fit(y.drop(y.index[[20, 21]]))
    assert isinstance(forecaster.predict(2), np.ndarray)
    with pytest.raises(InvalidInputError, match="change the unit"):
        RTBMForecaster().fit(1e200 * y)


@pytest.mark.parametrize(
    "index", [pd.date_range("2020-01-31", periods=60, freq="ME"), pd.period_range("2020-01", periods=60, freq="M")]
)
def test_dates_go_on(index, tmp_path):
    model = quick().fit(pd.Series(autoregression(60), index))
    save(model, tmp_path / "series.rtbm")
    for each in (model, load(tmp_path / "series.rtbm")):
        frame = silent(each, 3, quantiles=(0.1, 0.9))
        assert list(frame.columns) == [0.1, 0.9]
        assert [str(label)[:7] for label in frame.index] == ["2025-01", "2025-02", "2025-03"]


def test_saved_and_loaded_it_forecasts_the_same(tmp_path):
    model = quick(periods=(12,)).fit(seasonal(60))
    save(model, tmp_path / "series.rtbm")
    copy = load(tmp_path / "series.rtbm")
    assert np.allclose(silent(copy, 6), silent(model, 6), rtol=1e-9)
    assert copy.uses_theta_ == model.uses_theta_
    assert copy.scores_ == model.scores_


@pytest.mark.parametrize(
    ("y", "options", "message"),
    [
        (np.zeros((30, 2)), {}, "shape"),
        (["a"] * 30, {}, "numbers"),
        (np.arange(10.0), {}, "20 known values"),
        (np.ones(30), {}, "only one value"),
        ([np.inf, *range(30)], {}, "infinite"),
        (np.arange(30.0), {"periods": 12}, "sequence"),
        (np.arange(30.0), {"periods": (1,)}, "periods must be"),
        (np.arange(30.0), {"periods": (24,)}, "needs 54 values"),
        (np.arange(30.0), {"n_paths": 0}, "n_paths"),
        (np.arange(30.0), {"horizon": 0}, "horizon"),
        (np.arange(30.0), {"theta": "no"}, "theta"),
    ],
)
def test_bad_input(y, options, message):
    with pytest.raises(InvalidInputError, match=message):
        quick(**options).fit(y)


def test_bad_requests():
    model = quick().fit(autoregression(60))
    for call in (model.predict, model.sample_paths):
        with pytest.raises(InvalidInputError, match="h must"):
            call(0)
    with pytest.raises(InvalidInputError, match="coverage"):
        model.predict_interval(3, 1.0)
    with pytest.raises(InvalidInputError, match="n_paths"):
        model.sample_paths(3, 0)


def test_rounded_values_that_repeat_are_numbers():
    y = np.round(autoregression(120))
    model = quick().fit(np.where(np.arange(120) % 3 == 0, 0.0, y))
    assert np.isfinite(silent(model, 3)).all()
