"""Faults that reviews of the estimator have found, kept so that they do not come back."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import datasets as tables
from sklearn.exceptions import ConvergenceWarning, NotFittedError

import rtbm
from machines import gaussian_score
from rtbm import (
    RTBMDensity,
    RTBMDensityCV,
    RTBMFeatures,
    SpikeWarning,
    ThetaNetClassifier,
    ThetaNetRegressor,
    datasets,
)
from rtbm.errors import InvalidInputError
from rtbm.estimators.checks import distinct_rows
from rtbm.training import SOLVERS, make_family


def quick(n_hidden=2, **options):
    return RTBMDensity(n_hidden, **{"n_init": 2, "random_state": 0, **options})


def with_gaps(n, d, share, seed=1):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((n, d)) < share, np.nan, rng.normal(size=(n, d)))


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 9, 12])
def test_few_points_are_a_gaussian(n):
    rng = np.random.default_rng(1)
    X, test = rng.normal(size=(n, 1)), rng.normal(size=(2000, 1))
    assert quick().fit(X).score(test) >= gaussian_score(X, test) - 1e-6


def test_mixtures_of_data_with_many_gaps():
    X = with_gaps(60, 3, 0.7)
    model = quick(1, n_components=3, tol=1e-4).fit(X)
    assert np.isfinite(model.score(X[~np.isnan(X).all(axis=1)]))


def test_em_says_when_there_are_too_many_states():
    with pytest.raises(InvalidInputError, match=r"em.*lbfgs"):
        quick(9, solver="em").fit(np.random.default_rng(1).exponential(size=(300, 3)))


@pytest.mark.parametrize("solver", ["em", "lbfgs", "cma"])
@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning", "ignore:.*cannot be evaluated:RuntimeWarning")
def test_a_fit_that_returns_can_be_evaluated(solver):
    """Maximum likelihood of two values: the covariance goes to zero, as far as the solver lets it."""
    for seed in range(3):
        binary = np.random.default_rng(seed).integers(0, 2, (50, 1)).astype(float)
        options = {"max_iter": 60} if solver == "cma" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = quick(2, solver=solver, regularization=0, **options).fit(binary)
        assert np.isfinite(model.score(binary))
        assert np.isfinite(model.sample(10)).all()


def test_a_solver_goes_back_to_where_the_density_can_be_evaluated(monkeypatch):
    """A solver that ends at a covariance of 1e-60 after steps of 1e-10 each."""
    X = datasets.gamma.sample(100)

    class Shrinking(SOLVERS["em"]):
        def minimise(self, objective, start, monitor=None):
            vector = start
            for _ in range(6):
                monitor(vector, objective.value(vector))
                vector = torch.cat([vector[:-1], vector[-1:] - 5 * math.log(10)])
            return monitor.result(vector, "converged", 1, "em")

    monkeypatch.setitem(SOLVERS, "em", Shrinking)
    with pytest.warns(RuntimeWarning, match=r"ended at a density that cannot be evaluated.*raise regularization"):
        model = quick(2, solver="em", n_init=1, fallback=None).fit(X)
    assert np.isfinite(model.score(X))
    assert float(model.distribution_.lattice.covariance) > 0


def test_em_with_more_machines_than_points():
    few = np.random.default_rng(1).normal(size=(4, 1))
    assert np.isfinite(quick(2, solver="em", n_components=5).fit(few).score(few))


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_history_is_in_the_units_of_the_data(share):
    X = with_gaps(80, 2, share) * [100, 1]
    model = quick(fallback=None, regularization=0).fit(X)
    assert -model.history_[-1].objective == pytest.approx(model.score(X[~np.isnan(X).all(1)]), abs=0.05)


def test_what_is_present_in_rows_with_gaps_counts():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), np.full(400, np.nan)])
    X[:20, 1] = rng.normal(size=20) + X[:20, 0]
    X[20:, 0] += 3.0  # rows with a gap tell that the first feature has another mean
    model = quick(1, fallback=None).fit(X)
    assert float(model.distribution_.mean[0]) == pytest.approx(X[:, 0].mean(), abs=0.1)
    streamed = quick(1, n_init=1, fallback=None).fit([X[:10], X[10:]])
    assert float(streamed.distribution_.mean[0]) == pytest.approx(X[:, 0].mean(), abs=0.1)


def test_weights_are_repetitions_also_for_rows_with_gaps():
    X = with_gaps(60, 2, 0.3)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    options = {"validation_fraction": 0.2, "fallback": None}
    weighted = quick(1, **options).fit(X, sample_weight=weights)
    repeated = quick(1, **options).fit(np.repeat(X, weights, axis=0))
    assert np.array_equal(weighted.score_samples(X), repeated.score_samples(X))


def test_rows_without_numbers_are_no_observations():
    X = np.random.default_rng(0).normal(size=(50, 2))
    empty = np.full((30, 2), np.nan)
    assert quick(1).fit(np.vstack([X, empty])).summary_["n_observations"] == 50
    rows, weights = distinct_rows(np.vstack([X, X[:5], empty]), np.ones(85))
    assert len(rows) == 50
    assert weights.sum() == 55


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
    model = quick().fit(unit * X)
    assert np.allclose(model.quantile(p) / unit, quick().fit(X).quantile(p), rtol=1e-4, atol=1e-4)  # as fits differ
    assert np.allclose(model.cdf(model.quantile(p)[:, None]), p, rtol=1e-9, atol=0)


@pytest.mark.parametrize("size", [1e308, 1e-308, 5e-324])
def test_weights_at_the_ends_of_float64(size):
    X = np.random.default_rng(0).normal(size=(60, 2))
    plain, weights = quick(1).fit(X), np.full(60, size)
    assert plain.score(X, sample_weight=weights) == pytest.approx(plain.score(X), rel=1e-12)
    model = quick(1, n_components=2).fit(X, sample_weight=weights)
    assert np.isfinite(model.score(X, sample_weight=weights))
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 1, "n_components": 2, "n_init": 1}]
    committee = RTBMDensityCV(tried, cv=2, random_state=0).fit(X, sample_weight=weights)
    assert np.isfinite(committee.held_out_).all()


def test_draws_stay_strictly_inside_of_bounds():
    X = np.random.default_rng(0).beta(0.05, 0.05, size=(500, 1))
    X = X[(X[:, 0] > 0) & (X[:, 0] < 1)]
    with pytest.warns(RuntimeWarning, match="than float64 can tell"):
        draws = quick(bounds=(0, 1)).fit(X).sample(2000)
    assert draws.min() > 0
    assert draws.max() < 1


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


def test_a_failed_fit_leaves_nothing_behind():
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = quick(1).fit(X)
    with pytest.raises(InvalidInputError):
        model.set_params(bounds=(100, None)).fit(np.hstack([X, X[:, :1] ** 2]))
    with pytest.raises(NotFittedError):
        model.score(X)


def test_conditions_are_checked():
    model = quick(1).fit(datasets.correlated_mixture.sample(100))
    for value in ("a", None, np.inf, np.nan, [1.0, np.inf], [[1.0]]):
        with pytest.raises(InvalidInputError, match="finite number"):
            model.conditional({0: value})
    with pytest.raises(InvalidInputError, match="once"):
        model.set_feature_names(["a", "b"]).conditional({"a": 1.0, 0: 2.0})


def test_progress_says_what_it_shows(capsys):
    X = datasets.gamma.sample(60)
    quick(n_init=1, verbose=1).fit(X)
    assert "log L + prior" in capsys.readouterr().err
    quick(n_init=1, verbose=1).fit(datasets.gamma.sample(25_000))
    assert "all data" in capsys.readouterr().err


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_extreme_units_are_named(size):
    with pytest.raises(InvalidInputError, match="change the unit"):
        quick().fit(size * np.random.default_rng(0).normal(size=(30, 1)))


def spikes(X):
    """What the warning says about columns called a, b, …; nothing if there is none."""
    model = quick(1, n_init=1).set_params(max_iter=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X)
    return " ".join(str(w.message) for w in caught if issubclass(w.category, SpikeWarning))


def test_columns_that_make_spikes_are_named():
    rng = np.random.default_rng(0)
    continuous = rng.normal(size=1000)
    capped, sex = np.minimum(rng.normal(size=1000), 2.0), rng.integers(0, 2, 1000).astype(float)
    zeros = np.where(rng.random(1000) < 0.2, 0.0, rng.normal(size=1000))
    said = spikes(np.column_stack([continuous, capped, sex, rng.poisson(1.0, 1000), zeros]))
    assert "feature 0" not in said
    share = 100 * (capped == 2).mean()
    assert f"feature 1 ({len(np.unique(capped))} distinct values, {share:.2g} % of the rows are 2)" in said
    assert "feature 2 (2 distinct values" in said
    assert "feature 3" in said
    assert "% of the rows are 0)" in said.split("feature 4")[1]
    assert "Leave such columns out" in said


def test_rounded_data_are_no_spikes():
    rng = np.random.default_rng(0)
    assert spikes(rng.normal(size=(2000, 1)).round(1)) == ""
    assert spikes(rng.normal(50, 15, size=(5000, 1)).round()) == ""  # ages
    assert spikes(rng.exponential(size=(2000, 1)).round(1)) == ""
    assert spikes(rng.uniform(0, 20, size=(5000, 1)).round()) == ""
    assert spikes(tables.load_iris().data) == ""
    assert spikes(tables.load_wine().data) == ""


def test_a_committee_warns_of_spikes_once():
    X = np.random.default_rng(0).integers(0, 2, (60, 1)).astype(float)
    X = np.hstack([X, np.random.default_rng(1).normal(size=(60, 1))])
    with pytest.warns(SpikeWarning, match="feature 0") as caught:
        RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0).fit(X)
    assert len(caught) == 1


def test_constant_columns_are_named_all_at_once():
    X = np.random.default_rng(0).normal(size=(30, 4))
    X[:, [1, 3]] = 7.0
    for model in (quick(1), RTBMDensityCV(random_state=0)):
        with pytest.raises(InvalidInputError, match=r"feature 1, feature 3.*drop_constant=True"):
            model.fit(X)
    with pytest.raises(InvalidInputError, match=r"feature 9 and 2990 more.*nothing to fit"):
        quick(1, drop_constant=True).fit(np.ones((3, 3000)))
    with pytest.raises(InvalidInputError, match="drop_constant must be True or False"):
        quick(1, drop_constant="yes").fit(X)


def test_constant_columns_can_be_dropped(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 3))
    X[:, 1] = 7.0
    for kind in (quick(1), RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0)):
        model = kind.set_params(drop_constant=True, bounds=[None, (0, None), (-10, 10)]).fit(X)
        other = kind.__class__(**{**kind.get_params(), "drop_constant": False, "bounds": [None, (-10, 10)]})
        other.fit(X[:, [0, 2]])
        assert model.n_features_in_ == 3
        assert np.array_equal(model.score_samples(X), other.score_samples(X[:, [0, 2]]))
        draws = model.sample(5, random_state=1)
        assert np.array_equal(draws[:, [0, 2]], other.sample(5, random_state=1))
        assert (draws[:, 1] == 7).all()
        assert model.marginal(2).n_features_in_ == 1
        assert model.conditional({2: 0.5}).n_features_in_ == 1
        with pytest.raises(InvalidInputError, match="feature 1 has only one value"):
            model.marginal(1)
        rtbm.save(model, tmp_path / "model.rtbm")
        assert np.array_equal(rtbm.load(tmp_path / "model.rtbm").sample(5, random_state=1), draws)


def test_rows_without_numbers_do_not_count_in_the_mean():
    X = np.random.default_rng(0).normal(size=(50, 2))
    model = quick(1).fit(X)
    gaps = np.vstack([X, np.full((30, 2), np.nan)])
    for measure in (model.score, model.bic, model.aic):
        with pytest.warns(UserWarning, match="30 of 80 rows"):
            assert measure(gaps) == pytest.approx(measure(X))
    assert model.score(gaps, sample_weight=[1] * 50 + [0] * 30) == pytest.approx(model.score(X))
    with pytest.raises(InvalidInputError, match="no row with numbers"):
        model.score(np.full((3, 2), np.nan))


@pytest.mark.parametrize("size", [10**20, 10**9])
def test_sizes_are_checked_before_anything_is_allocated(size):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] > 0
    for fit in (
        lambda: RTBMDensity(size).fit(X),
        lambda: RTBMDensity(size, coupling="diagonal").fit(X),
        lambda: RTBMDensity(1, n_components=size).fit(X),
        lambda: RTBMDensity(size).fit([X, X]),
        lambda: RTBMDensityCV([{"n_hidden": size}]).fit(X),
        lambda: RTBMFeatures(n_hidden=size).fit(X),
        lambda: RTBMFeatures(patch="random", n_patches=size).fit(X),
        lambda: ThetaNetRegressor((3, size)).fit(X, X[:, 0]),
        lambda: ThetaNetClassifier(size).fit(X, y),
    ):
        with pytest.raises(
            InvalidInputError, match=r"(n_\w+|hidden_layer_sizes).*(below 2\^63|at most 22|limit is 1e\+08)"
        ):
            fit()


def test_dense_machines_have_few_hidden_units_and_diagonal_ones_many():
    X = np.random.default_rng(0).normal(size=(60, 1))
    with pytest.raises(InvalidInputError, match="n_hidden must be at most 22 for dense machines, got 23: take more"):
        RTBMDensity(23).fit(X)
    RTBMDensity(100, coupling="diagonal", n_init=1, max_iter=500, random_state=0).fit(X)
    with pytest.raises(InvalidInputError, match="n_hidden=1 and n_components=1 with 20000 or more features have 2e"):
        make_family(20_000, 1)
