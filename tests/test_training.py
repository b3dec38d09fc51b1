"""The solvers: one objective, one kind of result, the same optimum."""

import math

import numpy as np
import pytest
import torch

from rtbm import datasets
from rtbm.errors import InvalidInputError
from rtbm.training import ArrayBlocks, Family, Monitor, Objective, Prior, make_solver, make_start
from rtbm.training.coordinates import MomentSums, independent_axes, local_widths, moments, quantiles, standardisation
from rtbm.training.objective import log_prob
from rtbm.training.solvers.base import CONVERGED, EARLY_STOPPING, MAX_ITER

N = 400


def problem(n_hidden=2, name="gamma", n_components=1, strength=1.0, n=N):
    x = datasets.DENSITIES[name].sample(n, seed=3)
    weights = np.ones(len(x))
    mean, (root, _) = moments(x, weights).mean, standardisation(moments(x, weights))
    z = (x - mean) @ np.linalg.inv(root).T
    family = Family(x.shape[1], n_hidden, n_components=n_components)
    prior = Prior(strength, local_widths(z, weights))
    return Objective(family, ArrayBlocks(torch.from_numpy(z), torch.from_numpy(weights)), prior), z, weights


def start_of(objective, z, weights, index=0, seed=0, labels=None):
    return make_start(objective.family, z, weights, index, seed, labels)


def test_solvers_for_dense_machines_find_the_same_optimum():
    objective, z, weights = problem()
    best = make_solver("lbfgs", tol=1e-12).minimise(objective, start_of(objective, z, weights))
    noise = torch.randn(len(best.vector), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    near = best.vector + 0.05 * noise  # so that all see the same optimum
    settings = {"lbfgs": 300, "em": 2000, "cma": 150}
    found = {
        name: make_solver(name, max_iter=max_iter, tol=1e-10, seed=1).minimise(objective, near)
        for name, max_iter in settings.items()
    }
    assert objective.value(near) - best.objective > 2e-3
    for name, result in found.items():
        assert result.solver == name
        assert objective.value(result.vector) == pytest.approx(best.objective, abs=2e-4), name
        assert result.objective == pytest.approx(objective.value(result.vector), abs=1e-9)
        assert result.seconds >= result.history[-1].seconds > 0
        assert result.evaluations > 0
        assert [record.step for record in result.history] == list(range(len(result.history)))


def test_em_never_rises_and_its_end_is_stationary():
    for n_components in (1, 2):
        objective, z, weights = problem(name="cauchy_mixture", n_hidden=1, n_components=n_components)
        labels = (z[:, 0] > 0).astype(int)
        result = make_solver("em", max_iter=3000, tol=1e-11).minimise(
            objective, start_of(objective, z, weights, labels=labels)
        )
        values = [record.objective for record in result.history]
        assert max(np.diff(values)) < 1e-7
        _, gradient = objective.with_gradient(result.vector)
        assert float(gradient.abs().max()) < 1e-3


def test_the_same_seed_gives_the_same_result():
    objective, z, weights = problem(2, n=100)
    start, solver = start_of(objective, z, weights), make_solver("cma", max_iter=5, seed=4)
    first, second = (solver.minimise(objective, start).vector for _ in range(2))
    assert torch.equal(first, second)


def test_a_start_that_leaves_float64_is_survived():
    objective, z, weights = problem()
    vector = start_of(objective, z, weights)
    vector[-1] = 400.0
    value, gradient = objective.with_gradient(vector)
    assert value == math.inf or math.isfinite(value)
    assert torch.isfinite(gradient).all()
    far = start_of(objective, z, weights) * 30
    result = make_solver("lbfgs", max_iter=50).minimise(objective, far)
    assert torch.isfinite(result.vector).all()


def test_validation_stops_early_and_keeps_the_best():
    objective, z, weights = problem(4, strength=0.0, n=60)
    test = torch.from_numpy((datasets.gamma.sample(500, seed=8) - 7.5) / 2.7)

    def validate(vector):
        return float(log_prob(objective.family, vector, test).mean())

    result = make_solver("lbfgs").minimise(objective, start_of(objective, z, weights), Monitor(validate, patience=10))
    assert result.reason == EARLY_STOPPING
    assert result.validation == max(record.validation for record in result.history)
    assert validate(result.vector) == pytest.approx(result.validation, abs=1e-7)


def test_iterations_that_are_used_up_are_told():
    objective, z, weights = problem()
    result = make_solver("lbfgs", max_iter=2).minimise(objective, start_of(objective, z, weights))
    assert result.reason == MAX_ITER
    assert not result.converged
    assert make_solver("lbfgs").minimise(objective, start_of(objective, z, weights)).reason == CONVERGED


def test_unknown_solvers_are_refused():
    with pytest.raises(InvalidInputError, match="solver must be one of"):
        make_solver("newton")


def test_the_gaussian_member_is_the_standard_normal():
    x = torch.randn(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(x).sum(1)
    for n_hidden in (1, 3):
        for n_components in (1, 2):
            family = Family(2, n_hidden, n_components=n_components)
            assert torch.allclose(log_prob(family, family.gaussian(), x), normal, atol=1e-6)


def test_standardisation_whitens_and_is_undone():
    x = datasets.correlated_gaussian.sample(500, seed=0) * [3.0, 0.1] + [100.0, -5.0]
    weights = np.linspace(0.5, 1.5, 500)
    mean, (root, _) = moments(x, weights).mean, standardisation(moments(x, weights))
    z = (x - mean) @ np.linalg.inv(root).T
    assert np.allclose(weights @ z / 500, 0, atol=1e-10)
    assert np.allclose((z.T * weights) @ z / 500, np.eye(2), atol=1e-10)
    assert np.allclose(mean + z @ root.T, x)


def test_moments_add_up_over_parts_and_leave_out_what_is_missing():
    rng = np.random.default_rng(0)
    x, weights = rng.normal([1e6, 0.0, -3.0], size=(60, 3)), rng.random(60)
    whole = moments(x, weights)
    assert np.allclose(whole.mean, np.average(x, axis=0, weights=weights))
    assert np.allclose(whole.covariance, np.cov(x.T, aweights=weights, bias=True), rtol=1e-6)
    first, second, third = (MomentSums.of(x[i::3], weights[i::3]) for i in range(3))
    assert np.allclose(first.plus(second).plus(third).moments().covariance, whole.covariance, rtol=1e-6)
    x[::4, 0] = np.nan
    present = ~np.isnan(x[:, 0])
    assert np.allclose(moments(x, weights).mean[0], np.average(x[present, 0], weights=weights[present]))
    assert np.allclose(moments(x, weights).covariance[1:, 1:], np.cov(x[:, 1:].T, aweights=weights, bias=True))


def test_independent_axes_find_the_direction_with_structure():
    rng = np.random.default_rng(0)
    angle = 0.7
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    two_peaks = rng.choice([-1.0, 1.0], 3000) + 0.2 * rng.standard_normal(3000)
    z = np.stack([rng.standard_normal(3000), two_peaks / two_peaks.std()], 1) @ turn.T
    axes = independent_axes(z, np.ones(3000))
    assert np.allclose(axes.T @ axes, np.eye(2), atol=1e-10)
    assert abs(axes[:, 0] @ turn[:, 1]) > 0.99


def test_weighted_quantiles():
    x, p = np.random.default_rng(0).standard_normal((1001, 2)), np.array([0.01, 0.25, 0.5, 0.9])
    assert np.allclose(quantiles(x, np.ones(1001), p), np.quantile(x, p, axis=0, method="hazen"))
    heavy = quantiles(np.array([[1.0], [2.0], [3.0]]), np.array([1.0, 98.0, 1.0]), np.array([0.2, 0.5, 0.8]))
    assert np.abs(heavy - 2.0).max() < 0.7
    assert quantiles(np.full((3, 1), np.nan), np.ones(3), p).tolist() == [[0.0]] * 4


def test_narrow_peaks_in_a_wide_range_have_small_widths():
    rng = np.random.default_rng(0)
    peaks = rng.choice([-1.0, 1.0], 4000) + 0.05 * rng.standard_normal(4000)
    x = np.stack([rng.standard_normal(4000), peaks], 1)
    wide, narrow = local_widths(x, np.ones(4000))
    assert wide > 0.9
    assert narrow < 0.2


def test_expectation_maximisation_at_the_beginning_does_not_use_up_or_hide_iterations():
    x = np.random.default_rng(0).normal(size=(300, 2)) + 3.0 * (np.arange(300) % 2)[:, None]
    family = Family(2, 1, n_components=2)
    start = make_start(family, x, np.ones(300), 0, 0, np.arange(300) % 2)
    for max_iter in (5, 25, 40):
        objective = Objective(
            family, ArrayBlocks(torch.from_numpy(x), torch.ones(300).double()), Prior(1.0, np.ones(2))
        )
        result = make_solver("lbfgs", max_iter, tol=1e-12).minimise(objective, start)
        assert result.history[-1].step <= max_iter
        assert result.converged == (result.history[-1].step < max_iter)
