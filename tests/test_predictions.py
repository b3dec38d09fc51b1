"""What densities predict: regression, imputation, outliers, quantiles, bounds and frames by name."""

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_iris

from estimators import quick
from rtbm import (
    InvalidInputError,
    RTBMDensityCV,
    RTBMDistribution,
    RTBMOutlierDetector,
    RTBMRegressor,
    datasets,
    load,
    save,
)
from rtbm.distributions import LearnedMargin, YeoJohnson

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def table():
    """Two features and a target with noise that grows; the truth is known."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1500, 2))
    y = x[:, 0] + 0.5 * x[:, 1] + 0.3 * rng.normal(size=1500)
    return pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": y})


@pytest.fixture(scope="module")
def density(table):
    return quick(n_components=2).fit(table)


@pytest.fixture(scope="module")
def regressor(table):
    return RTBMRegressor(quick(n_components=2)).fit(table[["a", "b"]], table["y"])


def test_regression_finds_mean_and_noise(regressor):
    X = pd.DataFrame({"a": [0.0, 1.0], "b": [0.0, -1.0]})
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, [0.0, 0.5], atol=0.06)
    np.testing.assert_allclose(std, 0.3, atol=0.04)
    interval = regressor.predict_interval(X, coverage=0.9)
    np.testing.assert_allclose(interval, np.column_stack([mean - 1.645 * std, mean + 1.645 * std]), atol=0.06)
    np.testing.assert_array_equal(regressor.predict_quantiles(X, [0.05, 0.95])[:, 0], interval[:, 0])


def test_missing_features_widen_the_prediction(regressor):
    X = pd.DataFrame({"a": [1.0, 1.0, np.nan], "b": [0.0, np.nan, np.nan]})
    mean, std = regressor.predict(X, return_std=True)
    np.testing.assert_allclose(mean, [1.0, 1.0, 0.0], atol=0.1)
    np.testing.assert_allclose(std, np.sqrt([0.09, 0.09 + 0.25, 0.09 + 0.25 + 1]), rtol=0.1)


def test_densities_and_draws_of_targets_agree(regressor, table):
    X, y = table[["a", "b"]].iloc[:400], table["y"].iloc[:400]
    draws = regressor.sample_y(X, n_samples=3)
    assert draws.shape == (400, 3)
    np.testing.assert_array_equal(draws, regressor.sample_y(X, n_samples=3))
    given = regressor.density_.distribution_.conditional({0: X["a"].to_numpy(), 1: X["b"].to_numpy()})
    uniform = given.cdf(torch.from_numpy(draws.T.copy())[..., None]).numpy()
    assert stats.kstest(uniform.reshape(-1), "uniform").pvalue > 1e-3
    expected = given.log_prob(torch.tensor(y.to_numpy())[:, None]).numpy()
    np.testing.assert_allclose(regressor.log_prob(X, y), expected, rtol=1e-12)


def test_several_targets(table):
    Y = np.column_stack([table["y"], -2 * table["a"] + np.sin(table["y"])])
    model = RTBMRegressor(quick()).fit(table[["a", "b"]].to_numpy(), Y)
    X = table[["a", "b"]].to_numpy()[:5]
    assert model.predict(X).shape == (5, 2)
    assert model.predict_quantiles(X, [0.1, 0.5, 0.9]).shape == (5, 2, 3)
    assert model.predict_interval(X).shape == (5, 2, 2)
    assert model.sample_y(X, 4).shape == (5, 2, 4)
    assert model.log_prob(X, Y[:5]).shape == (5,)
    assert model.score(X, Y[:5]) > 0.8


def test_constant_features_are_left_out(table):
    X = np.column_stack([table["a"], np.full(len(table), 7.0)])
    model = RTBMRegressor(quick()).fit(X, table["y"])
    assert model.score(X, table["y"]) > 0.5


def test_few_rows_take_fewer_folds():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(8, 1))
    y = X[:, 0] + 0.1 * rng.normal(size=8)
    assert RTBMRegressor(random_state=0).fit(X, y).score(X, y) > 0.8


def test_bounds_of_targets(table):
    positive = np.exp(table["y"].to_numpy())
    density = quick(bounds=[None, None, (0, None)])
    model = RTBMRegressor(density).fit(table[["a", "b"]].to_numpy(), positive)
    X = np.array([[0.0, 0.0], [-3.0, -3.0]])
    assert (model.predict_quantiles(X, [0.001, 0.5]) > 0).all()
    np.testing.assert_allclose(model.predict(X), np.exp([0.045, -4.455]), rtol=0.15)  # a log-normal mean
    assert model.predict(X, return_std=True)[1].shape == (2,)


@pytest.fixture(scope="module")
def too_smooth():
    """A committee whose only candidate has so strong a prior that its intervals are too wide."""
    candidate = {"n_hidden": 1, "n_init": 1, "regularization": 200.0, "fallback": None}
    committee = RTBMDensityCV([candidate], targets=[1], margins=None, random_state=0)
    return RTBMRegressor(committee).fit(*noisy_line(500, seed=0))


def noisy_line(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    return X, X[:, 0] + rng.normal(size=n)


def test_calibration_agrees_with_itself(too_smooth):
    row, grid = np.array([[0.5]]), np.linspace(-60, 60, 60_001)
    density = np.exp(too_smooth.log_prob(np.repeat(row, len(grid), 0), grid))
    below = np.cumsum(density) * (grid[1] - grid[0])
    assert np.isclose(below[-1], 1, atol=1e-9)
    levels = np.array([0.05, 0.5, 0.95])
    quantiles = too_smooth.predict_quantiles(row, levels)[0]
    assert np.allclose(np.interp(quantiles, grid, below), levels, atol=2e-3)  # the sum has cells of 0.002
    draws = too_smooth.sample_y(row, 4000, random_state=0)[0]
    assert stats.kstest(draws, lambda x: np.interp(x, grid, below)).pvalue > 1e-3
    assert np.isinf(too_smooth.predict_quantiles(row, [0.0, 1.0])).all()


def test_calibrated_intervals_hold_what_they_say(too_smooth):
    X, y = noisy_line(4000, seed=1)
    plain = clone(too_smooth).set_params(calibrate=False)
    plain.__dict__.update({name: value for name, value in too_smooth.__dict__.items() if name != "calibrate"})

    def share(model):
        low, high = model.predict_interval(X, 0.5).T
        return ((low < y) & (y < high)).mean()

    error = 0.5 / np.sqrt(500)  # of a share of 500 rows, which the correction was learned from
    assert abs(share(too_smooth) - 0.5) < 3 * error < abs(share(plain) - 0.5)
    assert too_smooth.log_prob(X, y).mean() > plain.log_prob(X, y).mean() + 0.02
    assert np.array_equal(too_smooth.predict(X), plain.predict(X))


def test_targets_with_gaps_and_other_targets(too_smooth):
    X, y = noisy_line(200, seed=2)
    rows = np.column_stack([X, np.where(np.arange(200) % 7 == 0, np.nan, y)])
    tried = [{"n_hidden": 1, "n_init": 1}]
    committee = RTBMDensityCV(tried, targets=[1], margins=None, random_state=0).fit(rows)
    assert np.isfinite(committee.held_out_).all()
    other = RTBMRegressor(RTBMDensityCV(tried, targets=[0], margins=None, random_state=0)).fit(X, y)
    plain = other.density_.predict_quantiles(rows[:5], 1, [0.9])
    assert np.array_equal(other.predict_quantiles(X[:5], 0.9), plain)  # not corrected by scores of another column


def test_the_tail_of_a_wide_correction_keeps_its_mass(too_smooth):
    wide = clone(too_smooth)
    wide.__dict__.update(too_smooth.__dict__)
    wide.density_ = copy.copy(too_smooth.density_)
    normal = (torch.tensor([value], dtype=torch.float64) for value in (1.0, 0.0, 3.0))
    wide.density_.calibration_ = LearnedMargin(YeoJohnson(1.0, 0.0, 1.0), *normal)
    grid = np.linspace(-200, 200, 40_001)
    density = np.exp(wide.log_prob(np.zeros((len(grid), 1)), grid))
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1, abs=2e-3)


def test_other_densities_have_nothing_to_calibrate_with(table, regressor):
    X = table[["a", "b"]]
    assert np.array_equal(
        regressor.predict_quantiles(X, [0.3]), regressor.density_.predict_quantiles(table, "y", [0.3])
    )
    with pytest.raises(InvalidInputError, match="calibrate"):
        RTBMRegressor(quick(), calibrate="yes").fit(X, table["y"])


def test_normal_scores_and_back(density):
    given = density.distribution_.conditional({0: torch.tensor([0.0, 1.0, np.nan]), 1: torch.zeros(3)})
    scores = torch.tensor([[-7.0, 0.2], [0.3, 0.9], [0.5, 7.0]], dtype=torch.float64)
    values = given.from_normal_scores(scores)
    assert torch.allclose(given.normal_scores(values.mT[..., None]).mT, scores, rtol=1e-9, atol=0)
    quantiles = given.icdf(torch.special.ndtr(scores[1]))[:, 1, 0]
    assert torch.allclose(values[1], quantiles, rtol=1e-12, atol=1e-12)
    with pytest.raises(InvalidInputError, match="shape"):
        given.from_normal_scores([[0.1]])


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda X, y: RTBMRegressor("committee").fit(X, y), "density must be"),
        (lambda X, y: RTBMRegressor(quick()).fit(X, np.ones(len(y))), "only one value"),
        (lambda X, y: RTBMRegressor(quick()).fit(X, y).predict_interval(X, 1.5), "coverage"),
        (lambda X, y: RTBMRegressor(quick()).fit(X, y).log_prob(X, np.full(len(y), np.nan)), "finite"),
        (lambda X, y: RTBMRegressor(quick()).fit(X * 0, y).predict(X), "nothing to predict from"),
    ],
)
def test_bad_regression_arguments(table, action, message):
    with pytest.raises(InvalidInputError, match=message):
        action(table[["a", "b"]].to_numpy()[:100], table["y"].to_numpy()[:100])


def test_predictions_by_name(density, table):
    rows = table.iloc[:20]
    mean, std = density.predict_mean(rows.drop(columns="y"), "y", return_std=True)
    np.testing.assert_array_equal(mean, density.predict_mean(rows, "y"))  # the target itself is not read
    given = density.conditional(rows[["a", "b"]])
    np.testing.assert_allclose(mean, given.mean[:, 0].numpy(), rtol=1e-12)
    np.testing.assert_allclose(std, given.stddev[:, 0].numpy(), rtol=1e-12)
    quantiles = density.predict_quantiles(rows, "y", [0.1, 0.9])
    assert quantiles.shape == (20, 2)
    one = density.conditional({"a": rows["a"].iloc[3], "b": rows["b"].iloc[3]})
    np.testing.assert_allclose(quantiles[3], one.quantile([0.1, 0.9]), rtol=1e-9)
    series = density.conditional({"a": rows["a"], "b": rows["b"]})
    torch.testing.assert_close(series.mean, given.mean)


@pytest.mark.filterwarnings("error:values")
def test_given_values_far_outside_of_the_data_are_extrapolations(density, table, tmp_path):
    low, high = table["a"].min(), table["a"].max()
    length = high - low
    for near in (0.0, low - 0.9 * length, high + 0.9 * length, (high + 0.5, None)):
        density.conditional({"a": near})
    far = high + 25.5 * length
    words = rf"values: a = {far:.6g} is outside of the training data, .* by 25.5 times the length of that range"
    save(density, tmp_path / "m.rtbm")
    for model in (density, load(tmp_path / "m.rtbm"), density.marginal(["y", "a"])):
        with pytest.warns(UserWarning, match=words) as caught:
            model.conditional({"a": far})
        assert len(caught) == 1
    with pytest.warns(UserWarning, match=rf"in 2 of 4 rows, at worst a = {far:.6g} is .* by 25.5 times") as caught:
        density.conditional({"a": [0.0, high + 2 * length, far, np.nan], "b": 0.0})
    assert len(caught) == 1


def test_ranges_far_outside_of_the_data_are_extrapolations():
    X = np.random.default_rng(0).uniform(size=(300, 2))
    model = quick().fit(X)
    words = r"values: feature 0 = 2.2 is .*, \S+ to \S+, by 1\.2\d* times .*\. The answer is an extrapolation"
    with pytest.warns(UserWarning, match=words):
        model.conditional({0: (2.2, None)})


def test_several_targets_at_once(density, table):
    rows = table.iloc[:20]
    mean, std = density.predict_mean(rows, ["y", "a"], return_std=True)
    assert mean.shape == std.shape == (20, 2)
    given = density.conditional(rows[["b"]])  # of a and y, in the order of the table
    np.testing.assert_allclose(mean, given.mean.numpy()[:, ::-1], rtol=1e-12)
    np.testing.assert_allclose(std, given.stddev.numpy()[:, ::-1], rtol=1e-12)
    np.testing.assert_array_equal(density.predict_mean(rows, ["y"])[:, 0], density.predict_mean(rows, "y"))


def test_imputation_by_mean_and_by_draws(density, table):
    rows = table.iloc[:300].copy()
    rows.iloc[:150, 2], rows.iloc[100:200, 0] = np.nan, np.nan
    filled = density.impute(rows).to_numpy()
    assert not np.isnan(filled).any()
    known = rows.notna().to_numpy()
    np.testing.assert_array_equal(filled[known], rows.to_numpy()[known])
    np.testing.assert_allclose(filled[:100, 2], density.predict_mean(rows.iloc[:100], "y"), rtol=1e-10)
    drawn = density.impute(rows, method="sample", random_state=1).to_numpy()
    np.testing.assert_array_equal(drawn, density.impute(rows, method="sample", random_state=1))
    given = density.conditional(rows[["a", "b"]].iloc[:100])
    assert stats.kstest(given.cdf(torch.from_numpy(drawn[:100, 2:])).numpy(), "uniform").pvalue > 1e-3
    both = density.conditional({"b": rows["b"].iloc[100:150]})  # a and y are drawn together
    assert abs(np.corrcoef(drawn[100:150, 0], drawn[100:150, 2])[0, 1]) > 0.7
    assert both.mean.shape == (50, 2)


@pytest.mark.parametrize(
    "options", [{}, {"n_components": 2, "bounds": {"income": (0, None)}}, {"n_hidden": 2, "phase": "II"}]
)
@pytest.mark.parametrize("columns", [["a", "b", "income"], ["income"]])
def test_rows_without_numbers_get_the_mean_or_a_draw(table, options, columns):
    frame = table.assign(income=np.exp(0.5 * table["y"]))[columns][:300]
    model = quick(**options, fallback=None, tol=1e-3).fit(frame)
    gaps = pd.concat([frame[:2], *[frame[:1] * np.nan] * 2000, frame[2:3]])
    filled = model.impute(gaps).to_numpy()
    np.testing.assert_array_equal(filled[[0, 1, -1]], frame[:3])
    mean = [float(model.marginal(name).distribution_.mean) for name in columns]
    np.testing.assert_allclose(filled[2:-1], np.tile(mean, (2000, 1)), rtol=1e-6)
    if len(columns) > 1:
        np.testing.assert_allclose(filled[2:3, 0], model.predict_mean(gaps[2:3], "a"), rtol=1e-6)
    drawn = model.impute(gaps, method="sample", random_state=1).to_numpy()
    np.testing.assert_array_equal(drawn[[0, 1, -1]], frame[:3])
    np.testing.assert_array_equal(drawn, model.impute(gaps, method="sample", random_state=1))
    others = model.sample(2000, random_state=2).to_numpy()
    for i in range(len(columns)):
        assert stats.ks_2samp(drawn[2:-1, i], others[:, i]).pvalue > 1e-3
    np.testing.assert_allclose(np.corrcoef(drawn[2:-1].T), np.corrcoef(others.T), atol=0.1)


def test_imputed_tables_have_the_distribution_of_the_data(density):
    draws = density.sample(3000, random_state=5).to_numpy()
    gaps = draws.copy()
    gaps[np.random.default_rng(0).random(draws.shape) < 0.3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # arrays for an estimator that was fitted to a frame
        filled = density.impute(gaps, method="sample", random_state=3)
    for i in range(3):
        assert stats.ks_2samp(filled[:, i], draws[:, i]).pvalue > 1e-3
    np.testing.assert_allclose(np.cov(filled.T), np.cov(draws.T), atol=0.1)


def test_frames_come_out_where_they_go_in_or_are_asked_for(density, table):
    model = (
        clone(density)
        .set_output(transform="pandas")
        .fit(table.iloc[:200].to_numpy())
        .set_feature_names(["a", "b", "y"])
    )
    assert list(model.sample(3).columns) == ["a", "b", "y"]
    rows = table.iloc[:3].copy()
    rows.iloc[0, 0] = np.nan
    assert list(model.impute(rows).columns) == ["a", "b", "y"]
    assert list(density.sample(3).columns) == ["a", "b", "y"]
    assert isinstance(clone(density).fit(table.iloc[:200].to_numpy()).sample(3), np.ndarray)


def test_marginals_take_arrays_without_warnings(density):
    marginal = density.marginal("y")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        log_prob = marginal.score_samples(np.zeros((2, 1)))
        marginal.score_samples(pd.DataFrame({"y": [0.0]}))
    np.testing.assert_allclose(marginal.pdf(np.zeros((2, 1))), np.exp(log_prob))
    half = marginal.cdf(np.reshape(marginal.quantile([0.25, 0.5]), (-1, 1)))
    np.testing.assert_allclose(half, [0.25, 0.5], atol=1e-10)


def test_bounds_by_name(table):
    frame = table.assign(income=np.exp(table["y"]))[["a", "income"]]
    model = quick(bounds={"income": (0, None)}).fit(frame)
    assert (model.sample(100)["income"] > 0).all()
    np.testing.assert_allclose(
        model.score_samples(frame), quick(bounds=[None, (0, None)]).fit(frame).score_samples(frame)
    )
    assert quick(bounds={1: (0, None)}).fit(frame).distribution_.maps[1].support == (0, np.inf)
    with pytest.raises(InvalidInputError, match="there is no feature 'wealth'"):
        quick(bounds={"wealth": (0, None)}).fit(frame)
    filled = model.impute(pd.DataFrame({"a": [0.0, 1.0], "income": [np.nan, np.nan]}))
    np.testing.assert_allclose(filled["income"], np.exp(np.array([0.0, 1.0]) + 0.34 / 2), rtol=0.15)


def test_machines_of_rows(density, table):
    probabilities = density.predict_proba(table.iloc[:50])
    expected = density.distribution_.responsibilities(torch.tensor(table.iloc[:50].to_numpy())).numpy()
    np.testing.assert_allclose(probabilities, expected, rtol=1e-9)
    np.testing.assert_array_equal(density.predict(table.iloc[:50]), probabilities.argmax(axis=1))
    gap = table.iloc[:1].copy()
    gap.iloc[0, 1] = np.nan
    part = density.distribution_.marginal([0, 2])
    expected = part.responsibilities(torch.tensor(gap[["a", "y"]].to_numpy())).numpy()
    np.testing.assert_allclose(density.predict_proba(gap), expected, rtol=1e-9)
    single = quick().fit(table)
    assert (single.predict_proba(table) == 1).all()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda d, t: d.predict_mean(t, "z"), "a feature must be"),
        (lambda d, t: d.impute(t, method="median"), "method must be"),
        (lambda d, t: d.conditional({"a": [1.0, 2.0], "b": [1.0]}).mean, None),
        (lambda d, t: d.conditional({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]}), "one length"),
        (lambda d, t: d.conditional({"a": [1.0, np.inf]}), "finite"),
        (lambda d, t: d.marginal("a").predict_mean(t[["a"]], "a"), "not all of"),
        (lambda d, t: d.predict_mean(t, ["a", "b", "y"]), "not all of"),
        (lambda d, t: d.predict_mean(t, []), "some features"),
        (lambda d, t: d.predict_quantiles(t, ["a", "b"]), "target must be one feature"),
        (lambda d, t: d.quantile(0.5), "one visible unit"),
    ],
)
def test_bad_prediction_arguments(density, table, action, message):
    if message is None:
        action(density, table.iloc[:3])
        return
    with pytest.raises(InvalidInputError, match=message):
        action(density, table.iloc[:3])


def test_default_densities_are_committees():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(60, 1))
    regressor = RTBMRegressor(random_state=0).fit(X, X[:, 0] + rng.normal(size=60))
    assert isinstance(regressor.density_, RTBMDensityCV)
    assert isinstance(RTBMOutlierDetector(random_state=0).fit(X).density_, RTBMDensityCV)


def test_regression_by_one_gaussian_is_linear_regression():
    x = datasets.correlated_gaussian.sample(500)
    model = RTBMRegressor(quick(fallback="gaussian")).fit(x[:, :1], x[:, 1])
    assert model.density_.is_gaussian_
    slope, intercept = np.polyfit(x[:, 0], x[:, 1], 1)
    np.testing.assert_allclose(model.predict(x[:, :1]), slope * x[:, 0] + intercept, atol=1e-6)
    assert isinstance(model.density_.distribution_, RTBMDistribution)


def test_densities_of_predictors_keep_the_names_of_columns():
    frame = load_iris(as_frame=True).data
    detector = RTBMOutlierDetector(quick()).fit(frame)
    assert detector.density_.predict_mean(frame[:3], frame.columns[0]).shape == (3,)
    assert np.array_equal(detector.score_samples(frame), detector.density_.score_samples(frame))
    regressor = RTBMRegressor(quick()).fit(frame.iloc[:, :3], frame.iloc[:, 3])
    assert list(regressor.density_.feature_names_in_) == list(frame.columns)
    regressor.fit(frame.iloc[:, :2], frame.iloc[:, 2:].to_numpy())
    assert list(regressor.density_.feature_names_in_)[2:] == ["target 0", "target 1"]
    assert regressor.predict(frame.iloc[:3, :2]).shape == (3, 2)


def test_conditions_are_checked():
    model = quick(n_init=2).fit(datasets.correlated_mixture.sample(100))
    for value in ("a", None, np.inf, np.nan, [1.0, np.inf], [[1.0]]):
        with pytest.raises(InvalidInputError, match="finite number"):
            model.conditional({0: value})
    with pytest.raises(InvalidInputError, match="once"):
        model.set_feature_names(["a", "b"]).conditional({"a": 1.0, 0: 2.0})


def test_many_rows_have_the_answers_of_few(density, regressor):
    rows = np.random.default_rng(1).normal(size=(2**17 + 20, 3))
    rows[-15:, 1] = np.nan
    for answer, n_features in (
        (density.score_samples, 3),
        (density.predict_proba, 3),
        (lambda X: density.predict_mean(X, "y"), 3),
        (density.impute, 3),
        (regressor.predict, 2),
    ):
        X = pd.DataFrame(rows[:, :n_features], columns=["a", "b", "y"][:n_features])
        many, few = np.asarray(answer(X)), np.asarray(answer(X.tail(30)))
        np.testing.assert_allclose(many[-30:], few, rtol=1e-10, atol=1e-12)
