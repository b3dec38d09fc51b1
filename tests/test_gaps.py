"""Tables with gaps: the Gaussian behind every fit, and what users see."""

import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine

from estimators import quick
from rtbm import InvalidInputError, RTBMDensityCV
from rtbm.estimators.checks import distinct_rows
from rtbm.training.coordinates import moments
from rtbm.training.gaussians import fill_gaps, gaussian_moments

rng = np.random.default_rng(0)
TABLES = {
    "one class of wine": load_wine().data[load_wine().target == 1],
    "iris": load_iris().data,
    "diabetes": np.delete(load_diabetes().data, 1, axis=1),
    "cancer": load_breast_cancer().data[:, :10],
    "independent": rng.standard_t(4, size=(300, 8)),
    "one factor": rng.normal(size=(300, 1)) + 0.1 * rng.normal(size=(300, 6)),
    "skewed": np.exp(rng.normal(size=(300, 5)) @ (0.4 * rng.normal(size=(5, 5)))),
}


def at_random(table, share, seed):
    return np.where(np.random.default_rng(seed).random(table.shape) < share, np.nan, table)


def by_halves(table, share, seed):
    """Half of the rows lack the first columns, and the others the last ones: some pairs are never seen together."""
    gaps, width = table.copy(), round(share * table.shape[1])
    gaps[::2, :width] = np.nan
    gaps[1::2, table.shape[1] - width :] = np.nan
    return gaps


def drop_outs(table, share, seed):
    """A row that lacks a column lacks all later ones as well."""
    last = np.random.default_rng(seed).uniform(1 - 2 * share, 1, len(table)) * table.shape[1]
    return np.where(np.arange(table.shape[1]) > last[:, None], np.nan, table)


def independent_log_prob(X, table):
    """log P of what is present in rows, by one normal distribution for each column of a table."""
    mean, variance = np.nanmean(table, axis=0), np.nanvar(table, axis=0)
    return -0.5 * np.nansum((X - mean) ** 2 / variance + np.log(2 * np.pi * variance), axis=1)


@pytest.mark.filterwarnings("ignore:.*linearly dependent:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize(
    ("pattern", "share"),
    [(at_random, 0.0), *((pattern, share) for pattern in (at_random, by_halves, drop_outs) for share in (0.2, 0.5))],
)
def test_fits_of_small_tables_are_not_behind_independent_normals(name, pattern, share):
    for n in (16, 53):
        table = np.random.default_rng(n).permutation(TABLES[name])
        rows, others = pattern(table[:n], share, n), table[n:]
        rows = rows[:, (np.isfinite(rows).sum(axis=0) > 4) & (np.nanstd(rows, axis=0) > 0)]
        if rows.shape[1] < table.shape[1]:
            continue
        model = quick().fit(rows)
        gain = model.score_samples(others) - independent_log_prob(others, rows)
        assert gain.mean() > -0.3 - 3 * gain.std() / math.sqrt(len(gain))


@pytest.mark.filterwarnings("ignore:.*linearly dependent:RuntimeWarning")
def test_correlations_are_found_behind_gaps():
    table = TABLES["cancer"]
    rows, others = at_random(table[:300], 0.5, 0), table[300:]
    model = quick().fit(rows)
    assert model.score(others) > independent_log_prob(others, rows).mean() + 5


def test_the_gaussian_of_a_table_with_gaps_maximises_the_likelihood():
    table = np.random.default_rng(0).multivariate_normal([1, 2, 3], [[1, 0.8, 0], [0.8, 2, 0.5], [0, 0.5, 1]], 4000)
    table[2000:, 0] = np.nan
    table[(table[:, 1] > 3) & (np.arange(4000) % 2 > 0), 2] = np.nan  # whether it is missing depends on another column
    gaussian, _ = gaussian_moments(table, np.ones(4000), moments(table, np.ones(4000)))

    def log_likelihood(mean, covariance):
        value = torch.tensor(0.0, dtype=torch.float64)
        for present in np.unique(~np.isnan(table), axis=0):
            rows = table[(~np.isnan(table) == present).all(axis=1)][:, present]
            normal = torch.distributions.MultivariateNormal(mean[present], covariance[present][:, present])
            value = value + normal.log_prob(torch.from_numpy(rows)).sum()
        return value / 4000

    mean, covariance = (torch.tensor(part, requires_grad=True) for part in gaussian)
    slopes = torch.autograd.grad(log_likelihood(mean, covariance), (mean, covariance))
    assert max(float(slope.abs().max()) for slope in slopes) < 0.02
    assert np.abs(gaussian.mean - [1, 2, 3]).max() < 0.1  # the mean of what is present is off by 0.2 in the last column


def test_gaps_are_filled_from_what_is_present():
    table = np.random.default_rng(0).multivariate_normal([0, 0], [[1, 0.9], [0.9, 1]], 2000)
    rows = at_random(table, 0.4, 1)
    gaussian, _ = gaussian_moments(rows, np.ones(2000), moments(rows, np.ones(2000)))
    filled = fill_gaps(rows, gaussian, seed=0)
    assert np.array_equal(filled[~np.isnan(rows)], rows[~np.isnan(rows)])
    assert np.allclose(np.cov(filled.T), np.cov(table.T), atol=0.1)


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
@pytest.mark.parametrize("options", [{"n_hidden": 1, "n_components": 3}, {"n_hidden": 2, "regularization": 0.1}])
def test_log_prob_of_rows_with_gaps_is_that_of_the_distribution(options):
    table = TABLES["iris"]
    model = quick(fallback=None, **options).fit(at_random(table, 0.2, 0))
    rows = np.concatenate([at_random(table, 0.4, 1), np.full((1, 4), np.nan), at_random(10 * table[:20], 0.4, 2)])
    exact = model.distribution_.log_prob(torch.from_numpy(rows)).numpy()
    assert np.allclose(model.score_samples(rows), exact, rtol=1e-11, atol=1e-10)
    if options.get("n_components", 1) > 1:
        shares = torch.stack([c.log_prob(torch.from_numpy(rows)) for c in model.distribution_.components], 1)
        shares = (shares + model.distribution_.logits).softmax(1)
        assert np.allclose(model.predict_proba(rows), shares.numpy(), atol=1e-10)


@pytest.mark.filterwarnings("ignore:.*linearly dependent:RuntimeWarning")
@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
def test_one_density_for_each_class_classifies_rows_with_gaps():
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    X = at_random(X, 0.2, 0)
    order = np.random.default_rng(1).permutation(len(X))
    train, test = order[:133], order[133:]
    models = [quick().fit(X[train][y[train] == k]) for k in range(3)]
    log_prob = np.stack([model.score_samples(X[test]) for model in models], axis=1)
    assert (log_prob.argmax(axis=1) == y[test]).mean() > 0.9


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
def test_a_committee_accepts_columns_that_are_constant_without_a_fold():
    table = np.random.default_rng(0).normal(size=(60, 3))
    table[:, 1] = 0.0
    table[[7, 8], 1] = [3.0, 4.0]
    table[:, 2] = np.nan
    table[:5, 2] = 1.0
    table[5:10, 2] = 2.0
    model = RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], random_state=0).fit(table)
    assert model.score(table) > independent_log_prob(table, table).mean()
    again = RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], random_state=0).fit(table)
    assert np.array_equal(model.score_samples(table), again.score_samples(table))


def test_mixtures_of_data_with_many_gaps():
    X = at_random(np.random.default_rng(1).normal(size=(60, 3)), 0.7, 1)
    X = X[~np.isnan(X).all(axis=1)]
    model = quick(1, n_components=3, tol=1e-4).fit(X)
    assert model.score(X) > independent_log_prob(X, X).mean() - 0.01


@pytest.mark.parametrize("share", [0.0, 0.3])
def test_history_is_in_the_units_of_the_data(share):
    X = at_random(np.random.default_rng(1).normal(size=(80, 2)), share, 1) * [100, 1]
    model = quick(2, n_init=2, fallback=None, regularization=0).fit(X)
    assert -model.history_[-1].objective == pytest.approx(model.score(X[~np.isnan(X).all(1)]), abs=0.05)


def test_what_is_present_in_rows_with_gaps_counts():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=400), np.full(400, np.nan)])
    X[:20, 1] = rng.normal(size=20) + X[:20, 0]
    X[20:, 0] += 3.0  # rows with a gap tell that the first feature has another mean
    model = quick(1, fallback=None).fit(X)
    assert float(model.distribution_.mean[0]) == pytest.approx(X[:, 0].mean(), abs=0.1)
    streamed = quick(1, fallback=None).fit([X[:10], X[10:]])
    assert float(streamed.distribution_.mean[0]) == pytest.approx(X[:, 0].mean(), abs=0.1)


def test_rows_without_numbers_are_no_observations():
    X = np.random.default_rng(0).normal(size=(50, 2))
    empty = np.full((30, 2), np.nan)
    assert quick(1).fit(np.vstack([X, empty])).summary_["n_observations"] == 50
    rows, weights = distinct_rows(np.vstack([X, X[:5], empty]), np.ones(85))
    assert len(rows) == 50
    assert weights.sum() == 55


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
