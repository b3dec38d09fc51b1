"""The sums over the data: against 40-digit arithmetic, against autograd of theta functions, and between backends."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rtbm.training.sums.dense import Sums, View
from rtbm.training.sums.passes import bound_left_out, sum_points
from rtbm.training.sums.states import tabulate
from rtbm.training.sums.tables import TABLE_TOLERANCE as TOLERANCE
from rtbm.training.sums.tables import Tables

from machines import exact_likelihood
from rtbm.errors import TooManyTermsError
from rtbm.training import Family, Likelihood
from rtbm.training.sums import ArrayBlocks, dense, make_blocks
from rtbm.training.sums import torch as reference
from tolerances import ROUNDINGS

EPSILON = np.finfo(float).eps


def random_vector(family: Family, seed: int, scale: float = 0.6, stiffness: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    machines, logits = family.split(scale * torch.randn(family.n_parameters, dtype=torch.float64, generator=generator))
    for machine in machines:
        machine[0] += stiffness
    return family.join(machines, logits)


def points(n: int, d: int, seed: int, gaps: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(n, d, dtype=torch.float64, generator=generator)
    x[torch.rand(n, d, generator=generator) < gaps] = torch.nan
    return x


def weights(n: int, seed: int) -> torch.Tensor:
    w = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
    return w / w.sum()


def prepared(family: Family, vector: torch.Tensor, allowed: float = -60.0) -> View:
    sizes = family.n_components, family.n_visible, family.n_hidden
    machines = dense.unpack_machines(vector.numpy(), *sizes)
    states = tabulate(machines, np.full(sizes[0], allowed), 4096)
    return dense.make_view(machines, states, np.arange(sizes[1]))


def likelihood_of(family: Family, x: torch.Tensor, w: torch.Tensor, **limits: float) -> Likelihood:
    return Likelihood(family, ArrayBlocks(x, w), **limits)


@mpmath.workdps(40)
def exact_sums(x: torch.Tensor, w: torch.Tensor, view: View) -> Sums:
    """The sums of the specification in 40 digits."""
    K, p, g = view.slopes.shape
    exact = mpmath.mpf
    result = Sums._make(np.full(part.shape, exact(0)) for part in dense.new_sums(K, p, g))
    for row, weight in zip(x.tolist(), w.tolist(), strict=True):
        terms, ys = [], []
        for k in range(K):
            difference = [exact(a) - exact(b) for a, b in zip(row, view.origin[k].tolist(), strict=True)]
            y = [sum(exact(m) * v for m, v in zip(line, difference, strict=True)) for line in view.inverse[k].tolist()]
            ys.append(y)
            for s in range(view.first[k], view.first[k + 1]):
                square = sum((a - exact(c)) ** 2 for a, c in zip(y, view.centres[s].tolist(), strict=True))
                terms.append(mpmath.exp(exact(float(view.bias[s])) - square / 2))
        total = sum(terms)
        result.log_prob[0] += exact(weight) * mpmath.log(total)
        result.errors[0] += exact(weight) / total
        for k in range(K):
            y = np.array(ys[k])
            for s in range(view.first[k], view.first[k + 1]):
                share, delta = exact(weight) * terms[s] / total, np.array([exact(part) for part in view.delta[s]])
                result.shares[k] += share
                result.first[k] += share * delta
                result.second[k] += share * np.outer(delta, delta)
                result.noise[k] += share * y
                result.cross[k] += share * np.outer(y, delta)
                result.square[k] += share * np.outer(y, y)
    return Sums._make(part.astype(float) for part in result)


@pytest.mark.parametrize(("d", "g", "K"), [(1, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 3), (3, 2, 2)])
@pytest.mark.parametrize("far", [1.0, 30.0])
def test_sums_have_all_digits(d, g, K, far):
    family = Family(d, g, n_components=K)
    x, w = points(25, d, 3), weights(25, 4)
    x[:3] *= far
    view = prepared(family, random_vector(family, 5), -45.0)
    exact = exact_sums(x, w, view)
    by_torch = reference.sum_points(x, w, view, 0.0)
    by_numba = sum_points(make_blocks(x, w)[0], view, 0.0, True)
    for sums in (by_torch, by_numba):
        assert abs(sums.log_prob[0] - exact.log_prob[0]) < 1e-12 * abs(exact.log_prob[0])
        assert sums.errors[0] >= min(exact.errors[0], 1e300) * (1 - 1e-12)  # a bound
        largest = max(np.abs(part).max() for part in exact[2:])
        for part, expected in zip(sums[2:], exact[2:], strict=True):
            assert np.allclose(part, expected, rtol=0, atol=1e-12 * largest)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.3]))
def test_values_and_gradients_are_those_of_theta_functions(seed, d, g, K, gaps):
    family = Family(d, g, n_components=K)
    vector, x, w = random_vector(family, seed), points(40, d, seed, gaps), weights(40, seed)
    value, gradient = likelihood_of(family, x, w).with_gradient(vector)
    exact, expected, _ = exact_likelihood(family, vector, x, w)
    assert abs(value - exact) < TOLERANCE
    assert np.allclose(gradient, expected, rtol=1e-5, atol=1e-5)
    assert abs(likelihood_of(family, x, w).value(vector) - value) < TOLERANCE


@pytest.mark.parametrize(("d", "g", "K", "gaps"), [(1, 2, 1, 0.0), (2, 1, 4, 0.0), (3, 2, 2, 0.2), (2, 3, 1, 0.3)])
def test_gradients_have_ten_digits_where_tables_are_generous(d, g, K, gaps):
    family = Family(d, g, n_components=K)
    assert_ten_digits(family, random_vector(family, 1), points(300, d, 2, gaps), weights(300, 3), tolerance=1e-14)


def test_short_tables_have_the_normaliser_of_all_states():
    family = Family(3, 3, n_components=2)  # soft, with more states than tables for three features hold
    assert_ten_digits(family, random_vector(family, 310), points(40, 3, 310, 0.0), weights(40, 310), tolerance=1e-13)


def assert_ten_digits(family, vector, x, w, tolerance):
    value, gradient = likelihood_of(family, x, w, tolerance=tolerance).with_gradient(vector)
    exact, expected, _ = exact_likelihood(family, vector, x, w)
    assert abs(value - exact) < 1e-11
    assert np.allclose(gradient, expected, rtol=0, atol=1e-10 * max(1.0, np.abs(expected).max()))


@given(st.integers(0, 10**6))
def test_tables_follow_the_machines(seed):
    family = Family(1, 2)
    likelihood = likelihood_of(family, points(30, 1, seed), weights(30, seed))
    for step in range(6):
        moved = random_vector(family, seed) + 0.4 * step * random_vector(family, seed + 1)
        exact = float(likelihood.source.weights @ family.distribution(moved).log_prob(likelihood.source.x))
        assert abs(likelihood.value(moved) - exact) < TOLERANCE


@pytest.mark.parametrize("limit", [64, 2**16])
def test_points_far_out_are_right(limit):
    family = Family(1, 2, n_components=2)
    x = torch.cat([points(200, 1, 0), torch.tensor([[2000.0], [-3000.0]], dtype=torch.float64)])
    likelihood, vector = likelihood_of(family, x, weights(202, 0), max_states=limit), random_vector(family, 0)
    exact, expected, log_prob = exact_likelihood(family, vector, x, weights(202, 0))
    value, gradient = likelihood.with_gradient(vector)
    assert math.isclose(value, exact, rel_tol=1e-9)
    assert np.allclose(gradient, expected, rtol=1e-6)
    assert torch.allclose(likelihood.log_prob(vector), log_prob, rtol=1e-9, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_points_of_many_features_are_right(seed):
    """Peaks are high in many dimensions, and few points are near them."""
    d, scale = 12, 0.15
    family = Family(d, 1, n_components=3)
    x = torch.cat([points(60, d, seed), 40 * points(4, d, seed + 1)])
    vector = random_vector(family, seed, scale)
    likelihood = likelihood_of(family, x, weights(64, seed), max_states=4)
    _, expected, log_prob = exact_likelihood(family, vector, x, weights(64, seed))
    assert torch.allclose(likelihood.log_prob(vector), log_prob, rtol=1e-9, atol=1e-5)
    gradient = likelihood.with_gradient(vector)[1]
    assert np.allclose(gradient, expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_on_what_tables_leave_out_holds(seed):
    family, x = Family(5, 2, n_components=2), 2 * points(100, 5, seed)
    machines = dense.unpack_machines(random_vector(family, seed).numpy(), 2, 5, 2)
    short, long = (tabulate(machines, np.full(2, allowed), 2**14) for allowed in (-4.0, -80.0))
    views = [dense.make_view(machines, states, np.arange(5)) for states in (short, long)]
    joints = [torch.empty(100, 2, dtype=torch.float64) for _ in views]
    for view, joint in zip(views, joints, strict=True):
        reference.sum_points(x, torch.ones(100, dtype=torch.float64), view, 0.0, log_joint=joint)
    # tables normalise P(h) over their own states, so the weights of the short one are larger by what it leaves out
    joints[0] += torch.from_numpy(np.log1p(-np.exp(short.log_left_out).clip(max=0.5)))
    missing = (joints[1].logsumexp(1).exp() - joints[0].logsumexp(1).exp()).clamp(min=0)
    left_out = machines.log_weights + short.log_left_out + views[0].log_peak + math.log(2)
    bound = bound_left_out(x, views[0], left_out, np.linalg.qr(views[0].slopes)[0])
    assert bool((missing <= bound.exp() * (1 + 1e-9)).all())
    assert bool((missing > 0).any())


def test_units_too_soft_for_a_table_take_theta_functions():
    family = Family(3, 3)
    vector = random_vector(family, 0)
    vector[[0, 2, 5]] = -4.0  # A of about exp(−8): far too many states
    x, w = points(20, 3, 0), weights(20, 0)
    with pytest.raises(TooManyTermsError):
        Tables((1, 3, 3)).evaluate(vector.numpy(), ArrayBlocks(x, w))
    exact = float(w @ family.distribution(vector).log_prob(x))
    assert math.isclose(likelihood_of(family, x, w).value(vector), exact, rel_tol=1e-9)


@pytest.mark.parametrize("n", [1, 255, 256, 257, 20_000, 50_001])
def test_the_number_of_threads_and_the_length_of_blocks_do_not_matter(n, set_threads):
    family = Family(2, 2, n_components=2)
    x, w, vector = points(n, 2, 1), weights(n, 2), random_vector(family, 3)
    results = []
    for threads in (1, 2):
        set_threads(threads)
        results.append(likelihood_of(family, x, w).with_gradient(vector))
    assert results[0][0] == results[1][0]
    assert (results[0][1] == results[1][1]).all()
    if n < 300:
        exact = float(w @ family.distribution(vector).log_prob(x))
        assert abs(results[0][0] - exact) < TOLERANCE


def test_the_sums_of_parts_add_up():
    family = Family(2, 1, n_components=3)
    x, w, vector = points(400, 2, 1), weights(400, 2), random_vector(family, 3)
    view = prepared(family, vector)
    whole = sum_points(make_blocks(x, w)[0], view, 0.0, True)
    parts = [sum_points(make_blocks(x[rows], w[rows])[0], view, 0.0, True) for rows in (slice(150), slice(150, 400))]
    largest = max(np.abs(part).max() for part in whole[2:])
    for part, *others in zip(whole[2:], *(sums[2:] for sums in parts), strict=True):
        assert np.allclose(part, sum(others), rtol=0, atol=ROUNDINGS * EPSILON * 400 * largest)


def test_extreme_parameters_are_survived_or_refused():
    family = Family(1, 1)
    x, w = points(50, 1, 0), weights(50, 0)
    for size in (-40.0, -10.0, 10.0, 40.0):
        for i in range(family.n_parameters):
            vector = random_vector(family, 0)
            vector[i] = size
            try:
                exact = float(w @ family.distribution(vector).log_prob(x))
            except (ArithmeticError, ValueError, RuntimeError):
                continue
            if math.isfinite(exact):
                assert math.isclose(likelihood_of(family, x, w).value(vector), exact, rel_tol=1e-6, abs_tol=1e-6)


def test_rows_are_grouped_by_what_is_missing():
    x = points(200, 2, 0)
    x[:30, 0] = x[30:40, 1] = torch.nan
    x[40] = torch.nan
    blocks = make_blocks(x, weights(200, 0))
    found = sorted((len(block.points), block.present.tolist(), block.has_gaps) for block in blocks)
    assert found == [(10, [0, 1], True), (30, [1], False), (159, [0, 1], False)]  # few rows have gaps of their own
