"""The Gaussians that a fit has to beat."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from machines import gaussian_score
from rtbm import RTBMDensity, datasets


def fit(X, n_hidden=1, n_components=2, **options):
    return RTBMDensity(n_hidden, n_components=n_components, **{"n_init": 1, "random_state": 0, **options}).fit(X)


def test_a_large_machine_is_not_given_up_for_a_gaussian():
    X = datasets.gamma.sample(1600, seed=0)
    assert not fit(X, 2, 4).is_gaussian_
    assert fit(np.random.default_rng(0).normal(size=(1600, 1)), 2, 4).is_gaussian_


def test_a_mixture_of_gaussians_is_fitted_by_gaussians_if_told_so():
    X, others = (datasets.correlated_mixture.sample(2000, seed=seed) for seed in (0, 1))
    model, theirs = fit(X, fallback="gaussians"), GaussianMixture(2, tol=1e-8, random_state=0).fit(X)
    assert model.is_gaussian_
    assert model.n_parameters_ == 11
    assert model.score(others) == pytest.approx(theirs.score(others), abs=1e-3)  # the prior is the difference
    assert np.allclose(model.distribution_.mean, X.mean(axis=0), atol=0.01)
    assert model.transform(X).std(axis=0).min() > 0.1
    assert model.marginal([0]).n_parameters_ == 5
    machines = fit(X)
    assert not machines.is_gaussian_
    assert machines.n_parameters_ > 11
    assert machines.score(X) > model.score(X)


def test_without_prior_the_gaussians_have_the_maximum_of_the_likelihood():
    X = datasets.correlated_mixture.sample(2000, seed=0)
    X = np.concatenate([X, X[:500]])
    theirs = GaussianMixture(2, tol=1e-10, reg_covar=0, random_state=0).fit(X)
    model = fit(X, fallback="gaussians", regularization=0.0)
    assert model.is_gaussian_
    assert model.score(X) == pytest.approx(theirs.score(X), abs=1e-6)


def test_machines_that_see_more_than_gaussians_are_kept():
    X = datasets.uniform.sample(2000, seed=0)
    assert not fit(X, 2, fallback="gaussians").is_gaussian_


def test_data_of_one_gaussian_take_one():
    X = datasets.correlated_gaussian.sample(800, seed=0)
    model = fit(X, n_components=3, fallback="gaussians")
    assert model.is_gaussian_
    assert model.n_parameters_ == 5
    assert np.allclose(model.distribution_.covariance_matrix, np.cov(X.T, bias=True), rtol=1e-6)


def test_with_missing_entries_gaussians_are_rivals_too():
    X = datasets.correlated_mixture.sample(600, seed=0)
    X[:100, 0] = np.nan
    assert not fit(X).is_gaussian_
    assert fit(X, fallback="gaussians").n_parameters_ == 11
    X = datasets.correlated_gaussian.sample(600, seed=0)
    X[:100, 0] = np.nan
    assert fit(X, fallback="gaussians").n_parameters_ == 5


@pytest.mark.parametrize("phase", ["I", "II"])
@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("gaps", [0.0, 0.2])
def test_the_fit_has_the_likelihood_at_which_the_solver_ended(phase, n_components, gaps):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(centre, 0.3, (60, 2)) for centre in (-4, 0, 4)])
    X[rng.random(180) < gaps, 0] = np.nan
    weights = rng.uniform(0.5, 2.0, len(X))
    options = {"phase": phase, "n_components": n_components, "n_init": 2, "max_iter": 60}
    model = RTBMDensity(1, fallback=None, random_state=3, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, sample_weight=weights)
    lowest = min(result.history[-1].objective for result in model.results_)  # it holds the prior, which is above −0.01
    assert model.score(X, sample_weight=weights) > -lowest - 0.01


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
@pytest.mark.filterwarnings("ignore:.*cannot be evaluated:RuntimeWarning")  # without a prior, a machine becomes a spike
def test_clusters_without_width_do_no_harm():
    X = np.concatenate([np.full((40, 2), 3.0), np.random.default_rng(0).normal(size=(60, 2))])
    for strength in (0.0, 1.0):
        model = fit(X, n_components=3, fallback="gaussians", regularization=strength)
        assert model.score(X) > gaussian_score(X, X)


def test_machines_that_explain_nothing_do_not_run_away():
    for seed in (1, 2):
        X = datasets.correlated_gaussian.sample(600, seed=seed)
        model = fit(X, n_components=4, regularization=10.0, fallback=None)
        assert model.distribution_.weights.min() < 1e-6
        assert np.allclose(model.distribution_.covariance_matrix, np.cov(X.T), atol=0.3)
        assert model.score([[1e3, 1e3]]) < -1e4


@pytest.mark.parametrize("options", [{"n_components": 1}, {"n_components": 5, "solver": "em"}])
@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 9, 12])
def test_few_points_are_a_gaussian(n, options):
    rng = np.random.default_rng(1)
    X, test = rng.normal(size=(n, 1)), rng.normal(size=(2000, 1))
    assert fit(X, 2, **options, n_init=2).score(test) >= gaussian_score(X, test) - 1e-6
