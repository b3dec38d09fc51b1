"""RTBMDensity: fits, bounds, missing entries, marginals, seeds, progress, settings and units."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from machines import gaussian_score
from rtbm import RTBMDensity, RTBMDensityCV, RTBMDistribution, RTBMMixture, datasets, nn
from rtbm.distributions import Interval
from rtbm.errors import InvalidInputError
from rtbm.estimators.density.bounds import make_bounds
from rtbm.estimators.progress import counting_bar, progress_bar
from rtbm.training import Family, Record

pd = pytest.importorskip("pandas")

GAMMA = datasets.gamma.sample(400, seed=1)
PLANE = datasets.correlated_mixture.sample(300, seed=1)


def quick(n_hidden=2, **options):
    return RTBMDensity(n_hidden, **{"n_init": 2, "random_state": 0, **options})


@pytest.mark.parametrize("name", list(datasets.DENSITIES))
@pytest.mark.slow
def test_defaults_are_good_on_the_densities_of_the_paper(name):
    density = datasets.DENSITIES[name]
    X, test = density.sample(seed=11), density.sample(5000, seed=12)
    model = RTBMDensity(density.n_hidden, n_components=density.n_components, random_state=11).fit(X)
    assert model.converged_
    assert model.score(test) >= gaussian_score(X, test) - 1e-6
    mean, std = model.distribution_.mean.numpy(), model.distribution_.stddev.numpy()
    n = 20_001 if len(mean) == 1 else 801
    axes = [np.linspace(m - 10 * s, m + 10 * s, n) for m, s in zip(mean, std, strict=True)]
    mesh = np.stack(np.meshgrid(*axes), axis=-1).reshape(-1, len(mean))
    cell = np.prod([axis[1] - axis[0] for axis in axes])
    assert np.exp(model.score_samples(mesh)).sum() * cell == pytest.approx(1, abs=1e-6)


def test_a_gaussian_is_fitted_by_a_gaussian_unless_told_otherwise():
    X = datasets.correlated_gaussian.sample(500, seed=0)
    model = quick().fit(X)
    assert model.is_gaussian_
    assert np.allclose(model.distribution_.covariance_matrix, np.cov(X.T, bias=True), rtol=1e-6)
    assert model.score(X) == pytest.approx(gaussian_score(X, X), abs=1e-7)
    assert model.transform(X).std(axis=0).min() > 0.1  # its hidden units still tell something
    free = quick(fallback=None).fit(X)
    assert not free.is_gaussian_
    assert free.score(X) > model.score(X)


def test_units_do_not_matter():
    X = datasets.gamma.sample(200, seed=0)
    model, scaled = quick().fit(X), quick().fit(1e6 * X - 3e8)
    assert scaled.score(1e6 * X - 3e8) == pytest.approx(model.score(X) - np.log(1e6), abs=1e-6)


@pytest.mark.parametrize("solver", ["lbfgs", "em"])
def test_missing_entries_are_integrated_out(solver):
    X = datasets.correlated_mixture.sample(150, seed=0)
    rng = np.random.default_rng(0)
    X[rng.random(X.shape) < 0.1] = np.nan
    X = X[~np.isnan(X).all(axis=1)]
    options = {"n_init": 1}
    model = quick(1, solver=solver, **options).fit(X)
    row = np.array([[1.0, np.nan]])
    assert model.score_samples(row)[0] == pytest.approx(model.marginal([0]).score_samples([[1.0]])[0], abs=1e-9)
    hidden = model.transform(row)
    draws = model.conditional({0: 1.0}).sample(4000, random_state=0)
    full = np.column_stack([np.ones(4000), draws[:, 0]])
    assert hidden[0] == pytest.approx(model.transform(full).mean(axis=0), abs=0.1)


def test_hidden_expectations_of_missing_entries_need_the_first_phase():
    model = quick(1, phase="II").fit(PLANE)
    with pytest.raises(InvalidInputError, match="phase"):
        model.transform([[np.nan, 1.0]])


@pytest.mark.parametrize("options", [{}, {"n_components": 2}])
def test_hidden_expectations_of_rows_without_numbers_are_those_of_all_rows(options):
    model = quick(2, fallback=None, tol=1e-3, **options).fit(PLANE)
    hidden = []
    for machine in model.distribution_.components if "n_components" in options else [model.distribution_]:
        v = machine.sample((4000,), generator=torch.Generator().manual_seed(0))
        hidden.append(machine.hidden_mean(v).mean(dim=0).numpy())
    found = model.transform([[np.nan, np.nan], [np.nan, 1.0], [np.nan, np.nan]])
    assert found[0] == pytest.approx(np.concatenate(hidden), abs=0.1)
    np.testing.assert_array_equal(found[0], found[2])
    np.testing.assert_allclose(found[1:2], model.transform([[np.nan, 1.0]]))


@pytest.mark.parametrize(
    ("bounds", "X"),
    [
        ((0, None), GAMMA),
        ((None, 25.0), GAMMA),
        ((0.0, 1.0), np.random.default_rng(0).beta(0.7, 2.0, (400, 1))),
        ([(0, None), None], np.column_stack([GAMMA[:300, 0], PLANE[:, 1]])),
    ],
)
def test_bounds_are_an_exact_change_of_variables(bounds, X):
    model = quick(bounds=bounds).fit(X)
    low, high = make_bounds(bounds, range(X.shape[1])).low, make_bounds(bounds, range(X.shape[1])).high
    draws = model.sample(2000, random_state=0)
    assert ((draws > low) & (draws < high)).all()
    outside = np.where(np.isfinite(low), low - 1, np.where(np.isfinite(high), high + 1, 0))[None]
    assert model.score_samples(outside)[0] == -np.inf
    if X.shape[1] == 1:
        above = np.isfinite(high[0]) and not np.isfinite(low[0])
        assert model.cdf(outside)[0] == pytest.approx(1.0 if above else 0.0, abs=1e-12)
        a, b = (low[0] if np.isfinite(low[0]) else -60.0), (high[0] if np.isfinite(high[0]) else 60.0)
        x = a + (b - a) * (np.arange(400_000) + 0.5) / 400_000
        total = np.exp(model.score_samples(x[:, None])).sum() * (x[1] - x[0])
        assert total == pytest.approx(1, abs=2e-3)
        assert kstest(draws[:, 0], lambda v: model.cdf(np.asarray(v)[:, None])).pvalue > 1e-4
    else:
        assert model.marginal([0]).sample(50).min() > 0
        assert model.conditional({1: 0.5}).score_samples([[-1.0]])[0] == -np.inf


@given(st.floats(-1e3, 1e3), st.floats(1e-2, 1e3), st.floats(0.01, 0.99))
def test_bounds_round_trip(low, width, share):
    x = torch.tensor(low + share * width, dtype=torch.float64)
    for interval in (Interval(low, low + width), Interval(low, math.inf)):
        y, log_slope = interval.to_line(x)
        assert float(interval.from_line(y)) == pytest.approx(float(x), rel=1e-9, abs=1e-9)
        step = 1e-6 * width
        slope = (interval.to_line(x + step)[0] - interval.to_line(x - step)[0]) / (2 * step)
        assert float(log_slope) == pytest.approx(float(slope.log()), abs=1e-4)


@pytest.mark.parametrize("bounds", [5, (1, 0), [(0, 1)], [(0, 1)] * 3, ("a", 1), [(0, 1, 2), None]])
def test_wrong_bounds_are_explained(bounds):
    with pytest.raises(InvalidInputError, match="bounds must be"):
        quick(bounds=bounds).fit(PLANE)


def test_pipelines_and_searches():
    X = datasets.three_gaussians.sample(300, seed=0)
    pipeline = make_pipeline(StandardScaler(), PCA(1), quick(1))
    pipeline.fit(X)
    assert pipeline.score(X) < 0
    assert pipeline.transform(X).shape == (300, 1)
    search = GridSearchCV(quick(), {"n_hidden": [1, 2]}, cv=2).fit(GAMMA)
    assert set(search.cv_results_["param_n_hidden"]) == {1, 2}


def test_features_have_the_names_of_columns():
    frame = pd.DataFrame(PLANE, columns=["mass", "charge"])
    model = quick(1).fit(frame)
    hidden = model.set_output(transform="pandas").transform(frame)
    assert list(hidden.columns) == ["rtbmdensity0"]
    assert model.marginal("charge").feature_names_in_ == ["charge"]
    assert model.conditional({"mass": 1.0}).feature_names_in_ == ["charge"]
    with pytest.raises(InvalidInputError, match="mass"):
        model.marginal(["weight"])


def test_marginals_and_conditionals_agree_with_the_joint_density():
    model = quick(1, n_components=2).fit(PLANE)
    row = np.array([[0.5, -1.0]])
    joint = model.score_samples(row)[0]
    first = model.marginal([0]).score_samples(row[:, :1])[0]
    second = model.conditional({0: 0.5}).score_samples(row[:, 1:])[0]
    assert joint == pytest.approx(first + second, abs=1e-9)
    swapped = model.marginal([1, 0])
    assert swapped.score_samples(row[:, ::-1])[0] == pytest.approx(joint, abs=1e-9)
    assert swapped.n_features_in_ == 2
    assert model.cdf([[50.0, 50.0]])[0] == pytest.approx(1, abs=1e-9)


def test_both_phases_and_the_module():
    densities = []
    for phase in ("I", "II"):
        model = quick(2, phase=phase, fallback=None, n_init=1).fit(GAMMA)
        assert isinstance(model.distribution_, RTBMDistribution)
        assert (model.distribution_.phase, model.distribution_.coupling) == (phase, "dense")
        assert isinstance(model.module_, nn.RTBM)
        assert torch.allclose(model.module_().log_prob(GAMMA), torch.from_numpy(model.score_samples(GAMMA)))
        assert model.transform(GAMMA).shape == (400, 2)
        assert model.n_parameters_ == model.module_.n_parameters
        densities.append(model.score_samples(GAMMA))
    assert np.allclose(*densities, atol=1e-7)
    mixture = quick(1, n_components=2).fit(PLANE)
    assert isinstance(mixture.distribution_, RTBMMixture)
    assert isinstance(mixture.module_, nn.MixtureOfRTBMs)
    assert mixture.transform(PLANE).shape == (300, 2)


def test_validation_and_what_is_told_about_the_fit():
    model = quick(3, validation_fraction=0.2, n_iter_no_change=5).fit(GAMMA)
    assert model.history_[-1].validation == pytest.approx(model.score(GAMMA), abs=0.3)
    assert model.n_iter_ == len(model.history_) - 1
    assert model.summary_["n_observations"] == 320
    assert len(model.results_) == 2
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        assert not quick(max_iter=2).fit(GAMMA).converged_


def test_information_criteria():
    for fallback, n_parameters in ((None, 9), ("gaussian", 2)):
        model = quick(fallback=fallback).fit(GAMMA)
        log_likelihood = model.score(GAMMA) * 400
        assert model.bic(GAMMA) == pytest.approx(-2 * log_likelihood + n_parameters * np.log(400))
        assert model.aic(GAMMA) == pytest.approx(-2 * log_likelihood + 2 * n_parameters)


def test_progress_is_shown_when_asked_for(capsys):
    quick(1, n_init=2, verbose=1, validation_fraction=0.3).fit(GAMMA)
    shown = capsys.readouterr().err
    assert "log L + prior" in shown
    assert "validation" in shown
    assert "start 2" in shown
    quick(1).fit(GAMMA)
    assert capsys.readouterr().err == ""
    quick(n_init=1, verbose=1).fit(datasets.gamma.sample(25_000))
    assert "all data" in capsys.readouterr().err


def test_wrong_data_are_explained():
    with pytest.raises(NotFittedError):
        RTBMDensity().score(GAMMA)
    with pytest.raises(InvalidInputError, match="only one value of feature 1"):
        quick().fit(np.column_stack([GAMMA[:, 0], np.ones(400)]))
    with pytest.raises(InvalidInputError, match="nothing but NaN"):
        quick().fit(np.column_stack([GAMMA[:, 0], np.full(400, np.nan)]))
    with pytest.raises(ValueError, match="minimum of 2"):
        quick().fit([[1.0]])
    with pytest.raises(ValueError, match=r"[Ss]ample.weight"):
        quick().fit(GAMMA, sample_weight=np.zeros(400))
    with pytest.raises(InvalidInputError, match="leaves"):
        quick(validation_fraction=0.9).fit(GAMMA[:5])
    with pytest.warns(RuntimeWarning, match="linearly dependent"):
        quick(1).fit(np.column_stack([GAMMA, 2 * GAMMA]))


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3))
def test_samples_follow_the_density(seed, n_hidden, n_init):
    X = np.random.default_rng(seed).gamma(2.0, size=(100, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # any machine will do
        model = RTBMDensity(n_hidden, n_init=n_init, random_state=seed, max_iter=20).fit(X)
    draws = model.sample(2000, random_state=seed)
    assert kstest(draws[:, 0], lambda v: model.cdf(np.asarray(v)[:, None])).pvalue > 1e-5


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["lbfgs", "em", "cma"])
def test_iterations_are_counted_from_the_start(solver):
    model = RTBMDensity(1, solver=solver, max_iter=3, tol=0, n_init=1, fallback=None, random_state=0).fit(GAMMA[:50])
    assert (model.n_iter_, model.history_[-1].step) == (3, 3)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_progress_ends_full_with_the_runs_that_there_were(capsys):
    with progress_bar(5) as report:
        for start, step in ((0, 0), (0, 1), (0, 0), (1, 0)):
            report(start, Record(step, 0.0, math.nan, 0.0))
    assert "3/3" in capsys.readouterr().err
    with counting_bar(5, "fitting", shown=True) as advance:
        advance()
        advance()
    assert "2/2" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"n_components": 2}])
def test_warm_starts_go_on_from_the_last_fit(options):
    X = datasets.cauchy.sample(600, seed=0)
    model = RTBMDensity(2, n_init=4, warm_start=True, random_state=0, **options).fit(X)
    first, score = model.n_iter_, model.score(X)
    assert not model.is_gaussian_
    model.fit(X)
    assert model.summary_["n_init"] == 1
    assert model.n_iter_ < max(first, 10)
    assert model.score(X) > score - 1e-4
    model.fit(1.1 * X + 0.1)  # the start is in the units of the data
    assert model.score(1.1 * X + 0.1) > score - np.log(1.1) - 0.05
    model.set_params(n_hidden=3).fit(X)
    assert model.summary_["n_init"] == 4


def test_em_says_when_there_are_too_many_states():
    with pytest.raises(InvalidInputError, match=r"em.*lbfgs"):
        quick(9, solver="em").fit(np.random.default_rng(1).exponential(size=(300, 3)))


def test_a_weight_of_zero_is_absence_in_scores_and_streams():
    X = np.random.default_rng(0).exponential(size=(60, 1))
    model = quick(1, bounds=(0, None)).fit(X)
    assert model.score([[1.0], [-1.0]], sample_weight=[1, 0]) == model.score([[1.0]])
    with pytest.raises(ValueError, match="Negative"):
        model.score([[1.0]], sample_weight=[-1])
    stream = {"n_init": 1, "bounds": (0, None), "fallback": None}
    outside = (np.array([[-1.0], [1e8]]), np.zeros(2))
    first = quick(**stream).fit([(X, np.ones(60))])
    second = quick(**stream).fit([outside, (X, np.ones(60)), outside])
    assert np.array_equal(first.score_samples(X), second.score_samples(X))
    quick(**stream).fit([X[:0], X])


@pytest.mark.parametrize("unit", [1e-38, 1e30, 1e38, 1e100])
def test_quantiles_follow_the_unit(unit):
    X = np.random.default_rng(0).normal(size=(300, 1)) + np.repeat([-3.0, 3.0], 150)[:, None]
    p = np.array([1e-6, 0.1, 0.5, 0.9])
    model, plain = quick(tol=1e-9).fit(unit * X), quick(tol=1e-9).fit(X)
    assert np.allclose(model.quantile(p) / unit, plain.quantile(p), rtol=1e-4, atol=1e-4)  # as fits differ
    assert np.allclose(model.cdf(model.quantile(p)[:, None]), p, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", [1e308, 1e-308, 5e-324])
def test_weights_at_the_ends_of_float64(size):
    X = np.random.default_rng(0).normal(size=(60, 2))
    plain, weights = quick(1).fit(X), np.full(60, size)
    assert plain.score(X, sample_weight=weights) == pytest.approx(plain.score(X), rel=1e-12)
    model = quick(1, n_components=2).fit(X, sample_weight=weights)
    assert model.score(X, sample_weight=weights) == pytest.approx(model.score(X), rel=1e-12)
    assert model.score(X) == pytest.approx(plain.score(X), abs=0.2)
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 1, "n_components": 2, "n_init": 1}]
    committee = RTBMDensityCV(tried, cv=2, random_state=0).fit(X, sample_weight=weights)
    assert committee.candidate_weights_.tolist() == [1.0, 0.0]  # the data are Gaussian


def test_heavy_tails_are_fitted():
    X = np.random.default_rng(1).standard_cauchy((1000, 1))
    model = quick(2).fit(X)
    assert model.converged_
    assert model.score(X) > gaussian_score(X, X) + 1


def test_iterations_are_not_exceeded():
    X = datasets.gamma.sample(200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert quick(3, max_iter=5, n_init=5).fit(X).n_iter_ <= 5
        assert quick(3, max_iter=40, n_init=5).fit(X).n_iter_ <= 40


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_units_are_named(size):
    with pytest.raises(InvalidInputError, match="change the unit"):
        quick().fit(size * np.random.default_rng(0).normal(size=(30, 1)))


def test_machines_have_few_hidden_units():
    X = np.random.default_rng(0).normal(size=(60, 1))
    with pytest.raises(InvalidInputError, match="n_hidden must be at most 22, got 23: take more"):
        RTBMDensity(23).fit(X)
    with pytest.raises(InvalidInputError, match="n_hidden=1 and n_components=1 with 20000 or more features have 2e"):
        Family(20_000, 1)
