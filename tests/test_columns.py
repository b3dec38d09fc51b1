"""Densities of single columns, which are fitted together."""

import numpy as np
import pytest
import torch

from rtbm import RTBMDensity
from rtbm.training.columns import FAMILY, ColumnDensities


def columns(n, seed=0):
    rng = np.random.default_rng(seed)
    first = np.where(rng.random(n) < 0.5, rng.normal(-2, 0.5, n), rng.normal(1, 1.0, n))
    return np.column_stack([first, rng.gamma(2.0, size=n), 5 + 0.1 * rng.standard_t(3, n)])


def test_log_prob_is_that_of_the_machines_near_and_far():
    X = columns(300)
    densities = ColumnDensities.fit(X, np.ones(300))
    points = np.vstack([X[:20], X[:3] + 50, X[:3] - 1e4])
    for i, vector in enumerate(densities.vectors):
        z = (points[:, i] - densities.centre[i]) / densities.scale[i]
        exact = FAMILY.distribution(torch.from_numpy(vector)).log_prob(torch.from_numpy(z[:, None])).numpy()
        found = densities.log_prob(points)[:, i]
        np.testing.assert_allclose(found, exact - np.log(densities.scale[i]), rtol=1e-8, atol=1e-8)


def test_fits_are_as_good_as_those_of_single_densities():
    X, test = columns(600), columns(4000, seed=1)
    found = ColumnDensities.fit(X, np.ones(600)).log_prob(test).mean(axis=0)
    for i, value in enumerate(found):
        density = RTBMDensity(2, n_init=1, tol=1e-4, fallback=None, random_state=0).fit(X[:, [i]])
        assert value > density.score(test[:, [i]]) - 0.02


def test_weights_repeat_rows():
    X, weights = columns(50), 1 + np.arange(50) % 3
    weighted = ColumnDensities.fit(X, weights.astype(float)).log_prob(X)
    repeated = ColumnDensities.fit(np.repeat(X, weights, axis=0), np.ones(weights.sum())).log_prob(X)
    np.testing.assert_allclose(weighted, repeated, atol=0.05)  # nodes differ a little


@pytest.mark.parametrize("n", [50, 200, 201])
def test_weights_that_fade(n):
    X = columns(n)
    for order in (np.arange(n), np.arange(n)[::-1]):
        weights = np.exp(-np.argsort(np.argsort(X[:, 0]))[order] / 4)
        assert np.isfinite(ColumnDensities.fit(X, weights).log_prob(X)).all()


def test_missing_entries_are_left_out_and_say_nothing():
    X, weights = columns(200), 1.0 + np.arange(200) % 2
    gaps = np.where(np.random.default_rng(1).random(X.shape) < 0.3, np.nan, X)
    gaps[:, 2] = np.where(np.arange(200) < 195, np.nan, X[:, 2])
    found = ColumnDensities.fit(gaps, weights).log_prob(np.vstack([X, gaps]))
    for i in range(3):
        known = ~np.isnan(gaps[:, i])
        alone = ColumnDensities.fit(gaps[known, i : i + 1], weights[known])
        np.testing.assert_allclose(found[:200, i], alone.log_prob(X[:, i : i + 1])[:, 0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[200:][np.isnan(gaps)], 0.0)
    np.testing.assert_array_equal(found[200:][~np.isnan(gaps)], found[:200][~np.isnan(gaps)])
