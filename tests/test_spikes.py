"""Columns with few distinct values: they are named or refused, and fits to them can still be evaluated."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn import datasets as tables
from sklearn.exceptions import ConvergenceWarning

import rtbm
from machines import gaussian_score
from rtbm import InvalidInputError, RTBMDensity, RTBMDensityCV, SpikeWarning, datasets
from rtbm.training import SOLVERS


def quick(n_hidden=2, **options):
    return RTBMDensity(n_hidden, **{"n_init": 2, "random_state": 0, "atoms": None, "rounded": None, **options})


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
        RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, atoms=None, rounded=None, random_state=0).fit(X)
    assert len(caught) == 1


@pytest.mark.parametrize("solver", ["em", "lbfgs", "cma"])
@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning", "ignore:.*cannot be evaluated:RuntimeWarning")
def test_a_fit_that_returns_can_be_evaluated(solver):
    """Without a prior, the covariance of two values goes to zero as far as the solver lets it."""
    for seed in range(3):
        binary = np.random.default_rng(seed).integers(0, 2, (50, 1)).astype(float)
        options = {"max_iter": 60} if solver == "cma" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = quick(2, solver=solver, regularization=0, **options).fit(binary)
        gaussian = gaussian_score(binary, binary)
        assert model.score(binary) > gaussian + 1
        assert model.score(model.sample(100)) > gaussian


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
    assert -50 < model.score(X) < gaussian_score(X, X)
    assert float(model.distribution_.lattice.covariance) > 1e-60


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
