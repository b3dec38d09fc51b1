"""Committees of machines: what cross-validation chooses, and that they are densities like any other."""

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import KFold

from rtbm import RTBMDensity, RTBMDensityCV, datasets
from rtbm.distributions import ColumnMap, RTBMMixture
from rtbm.errors import InvalidInputError
from rtbm.estimators.density.candidates import EFFORT, ONE_FEATURE, SEVERAL_FEATURES, default_candidates
from rtbm.estimators.density.folds import Judge, fit_and_score
from rtbm.estimators.density.stacking import conditional_weights, near_best, stacking_weights

TWO = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_components": 2, "n_init": 1}]
SHORT = [{**candidate, "max_iter": 15} for candidate in TWO]
"""Where it does not matter whether fits have converged."""


@pytest.fixture(scope="module")
def gamma():
    return datasets.gamma.sample(400, seed=3)


@pytest.fixture(scope="module")
def model(gamma):
    return RTBMDensityCV(TWO, cv=3, margins=None, random_state=0).fit(gamma)


def test_a_committee_is_a_density(model):
    v = np.linspace(-30, 60, 20_001)[:, None]
    assert np.isclose(np.exp(model.score_samples(v)).sum() * (v[1] - v[0])[0], 1, atol=1e-6)
    assert isinstance(model.distribution_, RTBMMixture)
    assert np.isclose(model.candidate_weights_.sum(), 1)
    assert model.sample(5, random_state=1).shape == (5, 1)
    assert np.isclose(model.cdf([[60.0]])[0], 1)
    assert model.transform([[5.0]]).shape[1] == len(model.get_feature_names_out())
    assert np.isfinite(model.bic(v[9000:9100]))


def test_a_gaussian_loses_where_there_is_structure():
    X = datasets.three_gaussians.sample(600, seed=0)
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_init": 2}]
    model = RTBMDensityCV(tried, cv=3, margins=None, random_state=0).fit(X)
    assert model.candidate_weights_.tolist() == [0.0, 1.0]
    assert model.held_out_[1] > model.held_out_[0] + 0.05
    marginal, conditional = model.marginal([1]), model.conditional({1: 0.0})
    assert marginal.n_features_in_ == conditional.n_features_in_ == 1


def test_a_single_candidate(gamma):
    """It is fitted to all rows; by itself it is taken where the average is no better."""
    model = RTBMDensityCV(TWO, cv=3, combine="single", margins=None, random_state=0).fit(gamma)
    assert sorted(model.candidate_weights_) == [0.0, 1.0]
    chosen = int(model.candidate_weights_.argmax())
    assert chosen == model.held_out_.argmax()
    seed = int(np.random.RandomState(0).randint(2**31))
    alone = RTBMDensity(**TWO[chosen], random_state=seed).fit(gamma)
    assert np.allclose(model.score_samples(gamma), alone.score_samples(gamma), rtol=0, atol=1e-9)
    new = datasets.gamma.sample(20_000, seed=9)
    more = datasets.gamma.sample(1000, seed=1)
    tried = default_candidates(1000, 1)[:2]
    small, large = (RTBMDensityCV(tried, combine=way, random_state=0).fit(more) for way in ("auto", "stack"))
    assert small.combined_ == "single"
    assert small.n_parameters_ <= 15 < large.n_parameters_
    assert small.score(new) > large.score(new) - 0.01


def test_averages_stay_where_they_are_better():
    X = np.random.default_rng(0).normal(size=(60, 6)) ** 3
    model = RTBMDensityCV([{"n_hidden": 1, "n_components": 4, "n_init": 1, "fallback": None}], cv=3, random_state=0)
    assert model.fit(X).combined_ == "stack"
    assert model.summary_["behind_average"] > 0.01


def test_bounds_are_kept(gamma):
    model = RTBMDensityCV(TWO[:1], cv=2, bounds=(0, None), random_state=0).fit(gamma)
    assert model.score_samples([[-1.0]])[0] == -np.inf
    assert model.sample(200, random_state=0).min() > 0


def test_stacking_finds_the_maximum():
    rng = np.random.default_rng(0)
    log_prob, weights = rng.normal(size=(200, 3)), rng.uniform(0.5, 2, 200)

    def loss(free, costs):
        shares = np.exp(free - np.logaddexp.reduce(free))
        return costs @ shares - weights @ np.log(np.exp(log_prob) @ shares)

    for costs in (np.zeros(3), np.array([0.0, 30.0, 5.0]), np.array([100.0, 120.0, 90.0])):
        best = minimize(loss, np.zeros(3), costs).x
        shares = stacking_weights(log_prob, weights, costs)
        assert np.allclose(shares, np.exp(best) / np.exp(best).sum(), atol=1e-3)
    assert np.allclose(stacking_weights(log_prob, weights, np.array([0.0, 1e6, 1e6])), [1, 0, 0], atol=1e-3)


def test_who_is_near_the_best():
    rng = np.random.default_rng(0)
    base = rng.normal(size=400)
    log_prob = np.column_stack([base, base - 0.01 + 0.3 * rng.normal(size=400), base - 1])
    assert near_best(log_prob, np.ones(400), 3.0) == [0, 1]
    assert near_best(log_prob, np.ones(400), 0.0) == [int(log_prob.mean(axis=0).argmax())]


@pytest.mark.parametrize("n_features", [1, 2])
def test_candidates_for_few_rows_are_not_replaced_by_gaussians(n_features):
    few, many = (default_candidates(n_rows, n_features) for n_rows in (200, 2000))
    assert all(candidate["fallback"] is None for candidate in few)
    assert any(candidate.get("fallback", "gaussian") is not None for candidate in many)
    assert all(few.count(candidate) == 1 for candidate in few)


def test_a_few_skewed_values_get_no_gaussian():
    X, new = datasets.gamma.sample(300, seed=1), datasets.gamma.sample(5000, seed=2)
    committee = RTBMDensityCV(random_state=0).fit(X)
    assert not committee.is_gaussian_
    assert committee.score(new) > RTBMDensity(1, random_state=0).fit(X).score(new)  # about one Gaussian


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("candidates", [ONE_FEATURE, SEVERAL_FEATURES])
def test_default_candidates_can_be_fitted(candidates):
    X = np.random.default_rng(0).normal(size=(60, 1 if candidates is ONE_FEATURE else 2))
    for candidate in candidates:
        assert np.isfinite(RTBMDensity(**{**EFFORT, **candidate, "max_iter": 1}).fit(X).score(X))


def test_a_committee_tells_about_its_fits(gamma):
    hasty = RTBMDensityCV([{"n_hidden": 2, "n_init": 1, "max_iter": 1, "fallback": None}], cv=2).fit(gamma)
    assert (hasty.converged_, hasty.n_iter_, hasty.is_gaussian_) == (False, 1, False)
    X = np.random.default_rng(0).normal(size=(100, 3))
    model = RTBMDensityCV([{"n_hidden": 2, "n_components": 2, "n_init": 1}], cv=2, combine="stack", random_state=0).fit(
        X
    )
    assert model.converged_
    assert model.is_gaussian_
    assert model.n_parameters_ == model.marginal([2, 1, 0]).n_parameters_ == 2 * (9 + 1) - 1
    assert model.marginal([0]).n_parameters_ == 2 * (2 + 1) - 1


def test_candidates_that_became_the_same_gaussian_count_once():
    X = np.random.default_rng(0).normal(size=(100, 2))
    tried = [{"n_hidden": n, "n_init": 1} for n in (1, 2)]
    model = RTBMDensityCV(tried, cv=2, combine="stack", random_state=0).fit(X)
    assert model.margins_ is None
    assert model.candidate_weights_.tolist() == [1.0, 0.0]
    assert len(model.distribution_.components) == 2


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
def test_rows_out_of_reach_do_not_hide_how_a_candidate_does(gamma):
    others = np.array([[5.0], [9.0], [1e160]])  # log P leaves float64 at the last one
    model = RTBMDensity(1, n_init=1, random_state=0)
    fit, log_prob, _ = fit_and_score(model, gamma, np.ones(len(gamma)), Judge([ColumnMap()], []), others)
    assert log_prob[:2] == pytest.approx(fit.score_samples(others[:2]), abs=1e-6)
    assert np.isfinite(log_prob).all()
    assert log_prob[2] < log_prob[:2].min() - 20


def test_a_flat_column_with_sharp_edges_gets_a_learned_map():
    X, others = datasets.uniform.sample(2000, seed=0), datasets.uniform.sample(5000, seed=1)
    tried = [{"n_hidden": 3, "n_init": 1}]
    mapped, plain = (RTBMDensityCV(tried, cv=2, margins=margins, random_state=0).fit(X) for margins in ("auto", None))
    assert mapped.margins_ == "learned"
    assert mapped.score(others) > plain.score(others) + 0.005


def test_splitters_and_pairs_of_rows(gamma):
    by_splitter = RTBMDensityCV(TWO, cv=KFold(3, shuffle=True, random_state=1), random_state=0).fit(gamma)
    pairs = list(KFold(3, shuffle=True, random_state=1).split(gamma))
    by_pairs = RTBMDensityCV(TWO, cv=pairs, random_state=0).fit(gamma)
    assert np.array_equal(by_splitter.score_samples(gamma), by_pairs.score_samples(gamma))
    for wrong in (pairs[:2], [(0, 1)], "three", [*pairs, pairs[0]]):
        with pytest.raises(InvalidInputError, match="cv must"):
            RTBMDensityCV(TWO, cv=wrong, random_state=0).fit(gamma)


def test_many_rows_are_judged_on_a_sample_and_fitted_all():
    X = datasets.gamma.sample(26_000, seed=0)
    model = RTBMDensityCV(SHORT, cv=3, random_state=0).fit(X)
    assert model.summary_["n_observations"] == len(X)
    assert len(model.summary_["members"]) == (model.candidate_weights_ > 0).sum()  # one fit each, not one for each fold
    assert model.score(X) == pytest.approx(np.log(datasets.gamma.pdf(X)).mean(), abs=0.01)


def test_clusters_of_nearly_dependent_columns():
    rng = np.random.default_rng(0)
    maps = rng.normal(size=(4, 2, 10))  # each cluster lies near a plane of its own

    def draw(n):
        cluster = rng.integers(0, 4, n)
        return np.einsum("nk,nkd->nd", rng.normal(size=(n, 2)), maps[cluster]) + 0.03 * rng.normal(size=(n, 10))

    X, new = draw(400), draw(400)
    model = RTBMDensityCV(random_state=0).fit(X)  # more parameters than rows: cross-validation decides, not a criterion
    assert model.score(new) > GaussianMixture(4, n_init=3, random_state=0).fit(X).score(new) - 0.5
    assert model.score(new) > GaussianMixture(1).fit(X).score(new) + 3


def test_targets_judge_candidates_by_what_they_predict():
    rng = np.random.default_rng(0)
    x = rng.choice([0.0, 1.0, 2.0, 3.0], 400) + 1e-3 * rng.normal(size=400)  # sharp machines gain much on x alone
    X = np.column_stack([x, 0.5 * x + rng.normal(size=400)])
    tried = [
        {"n_hidden": 1, "n_init": 1},
        {"n_hidden": 1, "n_components": 6, "n_init": 1, "regularization": 1e-3, "fallback": None},
    ]
    joint, given = (RTBMDensityCV(tried, cv=3, targets=t, random_state=0).fit(X) for t in (None, [1]))
    assert joint.held_out_[1] > joint.held_out_[0] + 1  # all columns
    assert abs(given.held_out_[0] - given.held_out_[1]) < 0.5  # the target alone
    exact = -0.5 * np.log(2 * np.pi) - 0.5
    assert abs(given.held_out_[0] - exact) < 0.15
    assert given.candidate_weights_[0] > joint.candidate_weights_[0]


def test_weights_for_targets_maximise_their_likelihood():
    rng = np.random.default_rng(1)
    joint, given = rng.normal(size=(2, 50, 3))
    weights, costs = rng.uniform(0.5, 2, 50), np.array([0.0, 0.3, 0.1])
    shares = conditional_weights(joint, given, weights, costs)

    def value(s):
        return weights @ (np.log(np.exp(joint) @ s) - np.log(np.exp(given) @ s)) - costs @ s

    others = rng.dirichlet(np.ones(3), 200)
    assert shares.sum() == pytest.approx(1)
    assert value(shares) >= max(map(value, others)) - 1e-6


def test_a_committee_says_how_long_it_will_take(capsys):
    RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, random_state=0, verbose=1).fit(
        np.random.default_rng(0).normal(size=(50, 2))
    )
    assert "1 candidates, 2 folds, about 0 s" in capsys.readouterr().err


def test_one_gap_does_not_change_what_folds_say():
    X = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.95], [0.95, 1]], 300)
    model = RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], margins=None, random_state=0)
    complete = model.fit(X).held_out_[0]
    X[0, 1] = np.nan
    assert model.fit(X).held_out_[0] == pytest.approx(complete, abs=0.02)


# Tables of few distinct rows


def few_cells(kind):
    """A table, its different rows, and the share of each."""
    rng = np.random.default_rng(0)
    if kind == "booleans":
        a = rng.random(200) < 0.3
        table = pd.DataFrame({"a": a, "b": np.where(rng.random(200) < 0.8, a, ~a)})
    else:
        a = rng.choice(4, 5000, p=[0.4, 0.3, 0.2, 0.1])
        b = (rng.random(5000) < np.array([0.8, 0.5, 0.3, 0.6])[a]).astype(int)
        names = (
            rng.normal(size=(4, 2)) if kind == "numbers" else np.array([["w", "u"], ["x", "v"], ["y", "-"], ["z", "-"]])
        )
        table = pd.DataFrame({"a": names[a, 0], "b": names[b, 1]})
    counts = table.value_counts()
    return table, counts.index.to_frame(index=False), counts.to_numpy() / len(table)


@pytest.mark.parametrize("kind", ["categories", "booleans"])
def test_a_table_of_few_cells_has_their_shares(kind):
    table, cells, shares = few_cells(kind)
    model = RTBMDensityCV(TWO, random_state=0).fit(table)
    assert np.abs(model.cell_probability(cells) - shares).max() < 0.03
    assert model.score(table) == pytest.approx(shares @ np.log(shares), abs=0.02)
    assert model.held_out_.max() == pytest.approx(shares @ np.log(shares), abs=0.05)
    counted = RTBMDensityCV(TWO, random_state=0).fit(cells, sample_weight=shares * len(table))
    assert np.allclose(counted.score_samples(cells), model.score_samples(cells), rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
def test_numbers_of_few_distinct_rows():
    table, cells, shares = few_cells("numbers")
    model = RTBMDensityCV(TWO, random_state=0).fit(table)
    assert np.isfinite(model.score(table))
    nearest = (
        np.abs(model.sample(5000, random_state=0).to_numpy()[:, None] - cells.to_numpy()).sum(axis=2).argmin(axis=1)
    )
    assert np.abs(np.bincount(nearest, minlength=len(cells)) / 5000 - shares).max() < 0.15
    with pytest.raises(
        InvalidInputError, match="5 folds need 10 rows or more, got 8 that differ, with weights of sum 8"
    ):
        RTBMDensityCV(TWO, random_state=0).fit(cells)


def test_copies_of_a_row_of_numbers_stay_in_one_fold():
    """Else each fit would have seen the rows that judge it, and the sharpest would win."""
    X = np.repeat(np.random.default_rng(0).normal(size=(60, 2)), 5, axis=0)
    sharp = {"n_hidden": 1, "n_components": 8, "n_init": 1, "regularization": 1e-3, "fallback": None}
    model = RTBMDensityCV([TWO[0], sharp], margins=None, random_state=0).fit(X)
    assert model.held_out_[0] > model.held_out_[1]
