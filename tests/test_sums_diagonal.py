"""The sums for diagonal machines against autograd through theta functions: values, gradients, fallbacks."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from machines import exact_likelihood
from rtbm.distributions.integration.grid import MAX_GRID_NODES
from rtbm.theta import kernels
from rtbm.training import Family, Likelihood, make_family
from rtbm.training.likelihood import FAILURES
from rtbm.training.sums import ArrayBlocks, make_blocks
from rtbm.training.sums.diagonal import UnitMachine, compress, make_pass

compiled_only = pytest.mark.skipif(not kernels.AVAILABLE, reason="needs numba")
SIZES = [(1, 1, 1), (1, 2, 1), (1, 5, 1), (1, 40, 1), (2, 3, 1), (2, 6, 1), (1, 4, 2), (2, 4, 2), (1, 5, 3), (2, 2, 3)]


def random_vector(family: Family, seed: int, low: float = 4.0, high: float = 60.0) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    d, g = family.n_visible, family.n_hidden
    row, column = np.tril_indices(d)
    machines = []
    for _ in range(family.n_components):
        log_q = rng.uniform(math.log(low), math.log(high), g)
        width = np.where(row == column, 0.2 * rng.normal(size=len(row)), 0.3 * rng.normal(size=len(row)))
        weights = 2 * rng.normal(size=d * g)
        parts = (log_q, rng.uniform(-0.7, 0.7, g), weights, 0.5 * rng.normal(size=d), width)
        machines.append(torch.from_numpy(np.concatenate(parts)))
    return family.join(machines, torch.from_numpy(0.5 * rng.normal(size=family.n_components)))


def random_data(n: int, d: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    weights = torch.from_numpy(rng.uniform(0.1, 1.0, n))
    return torch.from_numpy(1.3 * rng.normal(size=(n, d))), weights / weights.sum()


def assert_exact(family: Family, vector: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> None:
    value, gradient, log_prob = exact_likelihood(family, vector, x, weights)
    likelihood = Likelihood(family, ArrayBlocks(x, weights))
    ours, by_vector = likelihood.with_gradient(vector)
    scale = 1 + abs(value)
    assert abs(ours - value) < 1e-12 * scale
    assert abs(likelihood.value(vector) - value) < 1e-12 * scale
    assert np.abs(by_vector - gradient).max() < 1e-10 * (1 + np.abs(gradient).max())
    assert torch.allclose(likelihood.log_prob(vector), log_prob, rtol=1e-12, atol=1e-11)


def is_served(family: Family, vector: torch.Tensor, x: torch.Tensor, weights: torch.Tensor) -> bool:
    sums = make_pass(vector.numpy(), (family.n_components, family.n_visible, family.n_hidden), True)
    return sums is not None and sums.sums(make_blocks(x, weights)[0]) is not None


@pytest.mark.parametrize(("d", "g", "n_components"), SIZES)
@pytest.mark.parametrize(("low", "high"), [(4.0, 60.0), (0.05, 500.0)])
def test_values_and_gradients_are_those_of_theta_functions(d, g, n_components, low, high):
    family = make_family(d, g, n_components=n_components, coupling="diagonal")
    vector = random_vector(family, 10 * g + d, low, high)
    x, weights = random_data(333, d, g)
    assert is_served(family, vector, x, weights)
    assert_exact(family, vector, x, weights)


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 3), st.floats(0.05, 20.0), st.floats(1.0, 25.0))
def test_random_machines_in_one_dimension(seed, g, n_components, low, ratio):
    family = make_family(1, g, n_components=n_components, coupling="diagonal")
    x, weights = random_data(150, 1, seed)
    assert_exact(family, random_vector(family, seed, low, low * ratio), x, weights)


@pytest.mark.parametrize("q", [0.05, 1.0, 3.14159, 3.1416, 9.99, 10.0, 80.0, 500.0])
def test_each_series_has_all_digits(q):
    family = make_family(1, 5, coupling="diagonal")
    x, weights = random_data(200, 1, 3)
    assert_exact(family, random_vector(family, 7, q, q), x, weights)


UNUSUAL = {
    "far outliers": (400, [3, 77, 200], [40.0, -300.0, 1000.0]),
    "many periods": (20, [0], [1e8]),
    "equal rows": (100, slice(None), [0.3]),
}


@pytest.mark.parametrize(("d", "n_components"), [(1, 1), (1, 3), (2, 1), (2, 2)])
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_rows(kind, d, n_components):
    family = make_family(d, 5, n_components=n_components, coupling="diagonal")
    n, rows, values = UNUSUAL[kind]
    x, weights = random_data(n, d, 4)
    x[rows] = torch.tensor(values, dtype=torch.float64)[:, None]
    assert_exact(family, random_vector(family, 5), x, weights)


@pytest.mark.parametrize("n_components", [1, 2])
@pytest.mark.parametrize("share", ["some", "all"])
def test_rows_with_gaps_take_theta_functions(share, n_components):
    family = make_family(2, 4, n_components=n_components, coupling="diagonal")
    x, weights = random_data(60, 2, 4)
    if share == "some":
        x[::7, 0] = x[3, 1] = math.nan
    else:
        x[:, 1] = math.nan
    assert_exact(family, random_vector(family, 3), x, weights)


def test_weights_of_zero_drop_points():
    family = make_family(1, 5, coupling="diagonal")
    x, weights = random_data(300, 1, 0)
    weights[::3] = 0.0
    weights /= weights.sum()
    vector, kept = random_vector(family, 5), weights > 0
    ours, gradient = Likelihood(family, ArrayBlocks(x, weights)).with_gradient(vector)
    theirs, by_vector = Likelihood(family, ArrayBlocks(x[kept], weights[kept])).with_gradient(vector)
    assert abs(ours - theirs) < 1e-12
    assert np.allclose(gradient, by_vector, rtol=1e-11, atol=1e-12)


@compiled_only
@pytest.mark.parametrize(("d", "g", "n_components", "n"), [(1, 40, 1, 9000), (2, 30, 1, 20000), (2, 20, 3, 9000)])
def test_threads_change_nothing(d, g, n_components, n, set_threads):
    family = make_family(d, g, n_components=n_components, coupling="diagonal")
    vector = random_vector(family, 1, 8.0, 60.0)
    x, weights = random_data(n, d, 2)
    results = []
    for threads in (1, 2):
        set_threads(threads)
        likelihood = Likelihood(family, ArrayBlocks(x, weights))
        results.append((*likelihood.with_gradient(vector), likelihood.log_prob(vector)))
    (value, gradient, log_prob), (value2, gradient2, log_prob2) = results
    assert value == value2
    assert (gradient == gradient2).all()
    assert (log_prob == log_prob2).all()


@pytest.mark.parametrize(("index", "value"), [(0, 800.0), (0, -800.0), (-1, 500.0), (-1, -500.0), (0, math.nan)])
def test_machines_that_leave_float64_raise_the_errors_of_distributions(index, value):
    family = make_family(1, 4, coupling="diagonal")
    x, weights = random_data(20, 1, 4)
    vector = random_vector(family, 3)
    vector[index] = value
    likelihood = Likelihood(family, ArrayBlocks(x, weights))
    for function in (likelihood.value, likelihood.with_gradient, likelihood.log_prob):
        with pytest.raises(FAILURES):
            function(vector)


def test_without_numba(monkeypatch):
    monkeypatch.setattr(kernels, "AVAILABLE", False)
    family = make_family(1, 4, coupling="diagonal")
    x, weights = random_data(30, 1, 4)
    likelihood = Likelihood(family, ArrayBlocks(x, weights))
    vector = random_vector(family, 3)
    value, gradient, _ = exact_likelihood(family, vector, x, weights)
    ours, by_vector = likelihood.with_gradient(vector)
    assert abs(ours - value) < 1e-14
    assert np.allclose(by_vector, gradient, rtol=1e-13, atol=1e-15)


@compiled_only
@pytest.mark.parametrize(("d", "g"), [(1, 2), (1, 8), (2, 3), (2, 5), (3, 4)])
@pytest.mark.parametrize("small", [1.0, 1e-3])
def test_normalisers_from_grids(d, g, small):
    """Also where W is small, and the mean of the periodic factor much less than 1: the first grid does not reach."""
    family = make_family(d, g, coupling="diagonal")
    vector = random_vector(family, g, 0.05 if small < 1 else 3.0, 0.3 if small < 1 else 30.0)
    vector[2 * g : 2 * g + d * g] *= small
    machine = UnitMachine(vector.numpy(), d, g)
    ours, by_vector = machine.integrate(MAX_GRID_NODES, True)
    theirs, expected = machine.differentiate(True)
    assert abs(ours - theirs) < 1e-12 * (1 + abs(theirs))
    assert np.allclose(by_vector, expected, rtol=0, atol=1e-10 * (1 + np.abs(expected).max()))


def test_compressed_points_have_the_same_sums():
    rng = np.random.default_rng(0)
    x, weights = np.sort(rng.normal(size=(3000, 1)), axis=0), rng.uniform(size=3000)
    nodes, shares = compress(x, weights, 0.5)
    assert len(nodes) < 500
    for function in (np.ones_like, np.square, np.cos, lambda t: 1 / (1 + t**2)):
        assert abs(weights @ function(x) - shares @ function(nodes)) < 1e-11


@compiled_only
def test_many_points_on_a_line():
    family = make_family(1, 20, coupling="diagonal")
    x, weights = random_data(30000, 1, 0)
    x[:5] = torch.tensor([[-50.0], [30.0], [7.0], [7.0], [300.0]], dtype=torch.float64)
    for seed, (low, high) in enumerate([(4.0, 60.0), (0.5, 4.0), (0.05, 500.0), (100.0, 500.0)]):
        assert_exact(family, random_vector(family, seed, low, high), x, weights)
