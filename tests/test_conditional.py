"""Conditionals of many rows at once: the same as one row at a time, and consistent with each other."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

import rtbm
from machines import bounded
from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture
from rtbm.distributions.integration.normal_sums import NormalSums

LEVELS = [1e-6, 0.05, 0.5, 0.95, 1 - 1e-6]


def lattice_machine(seed, n_visible, n_hidden, stiffness=1.0, phase="I"):
    rng = np.random.default_rng(seed)
    root, noise = rng.normal(size=(n_hidden, n_hidden)), rng.normal(size=(n_visible, n_visible))
    A = stiffness * (root @ root.T + np.eye(n_hidden))
    covariance = 0.2 * noise @ noise.T + 0.1 * np.eye(n_visible)
    F, mean = rng.normal(size=(n_visible, n_hidden)), rng.normal(size=n_visible)
    return RTBMDistribution.from_lattice(A, rng.normal(size=n_hidden), F, mean, covariance, phase=phase)


def natural_machine(seed, n_visible, n_hidden):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n_hidden, n_hidden))
    Q, T = root @ root.T + np.eye(n_hidden), 1.5 * np.eye(n_visible)
    W, b_v, b_h = rng.normal(size=(n_visible, n_hidden)), rng.normal(size=n_visible), rng.normal(size=n_hidden)
    return RTBMDistribution(T, W, Q, b_v, b_h, phase="II")


DENSITIES = {
    "dense": lambda: lattice_machine(0, 3, 2),
    "soft": lambda: lattice_machine(1, 3, 2, stiffness=0.05),
    "stiff": lambda: lattice_machine(2, 3, 2, stiffness=30.0),
    "phase II": lambda: natural_machine(3, 3, 2),
    "diagonal": lambda: RTBMDistribution(
        np.eye(3), [[0.9, 0.2], [0.1, 0.5], [0.3, 0.3]], [2.0, 1.5], [0.1, 0.2, 0.3], [0.4, 0.1], phase="II"
    ),
    "mixture": lambda: RTBMMixture([0.2, 0.5, 0.3], [lattice_machine(seed, 3, 1 + seed % 2) for seed in (4, 5, 6)]),
}


@pytest.fixture(params=DENSITIES)
def density(request):
    return DENSITIES[request.param]()


def draws(density, n=12):
    return density.sample((n,), torch.Generator().manual_seed(0))


def test_rows_agree_with_one_conditional_each(density):
    v = draws(density)
    known = {2: v[:, 2], 0: v[:, 0]}
    given = density.conditional(known)
    mean, covariance = given.mean, given.covariance_matrix
    log_prob, cdf, quantile = given.log_prob(v[:, 1:2]), given.cdf(v[:, 1:2]), given.icdf(LEVELS)
    for i, row in enumerate(v):
        one = density.conditional({0: row[0], 2: row[2]})
        torch.testing.assert_close(mean[i], one.mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(covariance[i], one.covariance_matrix, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(log_prob[i], one.log_prob(row[1:2]), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(cdf[i], one.cdf(row[1:2]), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(quantile[:, i], one.icdf(LEVELS), rtol=1e-9, atol=1e-9)


def test_several_unknown_coordinates(density):
    v = draws(density)
    given = density.conditional({1: v[:, 1]})
    for i, row in enumerate(v):
        one = density.conditional({1: row[1]})
        torch.testing.assert_close(given.mean[i], one.mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(given.covariance_matrix[i], one.covariance_matrix, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(given.marginal(1).cdf(row[2:])[i], one.marginal(1).cdf(row[2:]), rtol=0, atol=1e-10)


def test_missing_values_are_integrated_out(density):
    v = draws(density, 6)
    known = {0: v[:, 0].clone(), 1: v[:, 1].clone()}
    known[0][:2], known[1][1:3] = math.nan, math.nan  # rows: gap in 0, in both, in 1, none
    given = density.conditional(known)
    mean, quantile, log_prob = given.mean, given.icdf([0.1, 0.8]), given.log_prob(v[:, 2:])
    for i in range(6):
        present = [k for k in (0, 1) if not known[k][i].isnan()]
        one = density.marginal([*present, 2]).conditional({j: v[i, k] for j, k in enumerate(present)})
        torch.testing.assert_close(mean[i], one.mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(quantile[:, i], one.icdf([0.1, 0.8]), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(log_prob[i], one.log_prob(v[i, 2:]), rtol=1e-10, atol=1e-10)


def test_quantiles_invert_the_distribution_function(density):
    v = draws(density, 50)
    given = density.conditional({0: v[:, 0], 1: v[:, 1]})
    p = torch.tensor([1e-9, 1e-3, 0.3, 0.7, 1 - 1e-3, 1 - 1e-9], dtype=torch.float64)
    back = given.cdf(given.icdf(p))
    torch.testing.assert_close(back, p[:, None].expand(-1, 50), rtol=0, atol=1e-12)
    ends = given.icdf([0.0, 1.0])
    assert bool((ends[0] == -math.inf).all()), ends
    assert bool((ends[1] == math.inf).all()), ends


def test_samples_have_the_conditional_distribution(density):
    v = draws(density, 4000)
    given = density.conditional({0: v[:, 0], 1: v[:, 1]})
    drawn = given.sample((), torch.Generator().manual_seed(1))
    assert stats.kstest(given.cdf(drawn).numpy(), "uniform").pvalue > 1e-3
    assert stats.kstest(given.cdf(v[:, 2:]).numpy(), "uniform").pvalue > 1e-3  # v came from the joint density
    again = given.sample((), torch.Generator().manual_seed(1))
    assert torch.equal(drawn, again)


def test_joint_samples_have_the_conditional_moments(density):
    row = draws(density, 1)
    given = density.conditional({0: row[:, 0]})
    drawn = given.sample((20000,), torch.Generator().manual_seed(2))[:, 0].numpy()
    error = np.sqrt(given.variance[0].numpy() / 20000)
    assert (np.abs(drawn.mean(0) - given.mean[0].numpy()) < 5 * error).all()
    covariance = given.covariance_matrix[0].numpy()
    assert np.abs(np.cov(drawn.T) - covariance).max() < 0.1 * np.abs(covariance).max()


@pytest.mark.parametrize("far", [50.0, 1e4])
def test_rows_far_outside_of_the_data_have_finite_answers(density, far):
    given = density.conditional({0: torch.tensor([far, -far]), 1: torch.tensor([-far, far])})
    for result in (given.mean, given.variance, given.icdf([0.01, 0.99])):
        assert bool(result.isfinite().all()), result
    assert bool((given.icdf([0.01])[0] < given.icdf([0.99])[0]).all())


def test_shapes_follow_the_values():
    density = lattice_machine(0, 3, 2)
    given = density.conditional({0: torch.zeros(4, 1), 1: torch.zeros(5)})
    assert given.batch_shape == (4, 5)
    assert given.event_shape == (1,)
    assert given.mean.shape == (4, 5, 1)
    assert given.covariance_matrix.shape == (4, 5, 1, 1)
    assert given.log_prob(torch.zeros(7, 4, 5, 1)).shape == (7, 4, 5)
    assert given.cdf(torch.zeros(5, 1)).shape == (4, 5)
    assert given.icdf(torch.full((2, 3), 0.5)).shape == (2, 3, 4, 5, 1)
    assert given.sample((6,)).shape == (6, 4, 5, 1)
    assert density.conditional({0: 1.0}).mean.shape == (2,)
    assert density.conditional({}).mean.shape == (3,)
    empty = density.conditional({0: torch.zeros(0), 1: torch.zeros(0)})
    assert empty.mean.shape == (0, 1)
    assert empty.icdf([0.5]).shape == (1, 0, 1)
    assert empty.cdf(torch.zeros(0, 1)).shape == (0,)
    assert empty.log_prob(torch.zeros(0, 1)).shape == (0,)
    assert empty.sample((2,)).shape == (2, 0, 1)


def test_gradients_reach_values_and_parameters():
    F = torch.tensor([[0.7], [0.4]], dtype=torch.float64, requires_grad=True)
    x = torch.tensor([0.3, -1.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([0.2, 0.7], dtype=torch.float64, requires_grad=True)

    def results(F, x, p):
        density = RTBMDistribution.from_lattice([[2.0]], [0.3], F, [0.1, 0.2], [[0.5, 0.1], [0.1, 0.4]])
        given = density.conditional({0: x})
        return given.mean, given.covariance_matrix, given.icdf(p), given.cdf([[0.4], [0.1]]), given.log_prob([[0.1]])

    assert torch.autograd.gradcheck(results, (F, x, p), atol=1e-6)


def test_compiled_and_plain_sums_agree():
    rng = np.random.default_rng(0)
    weights = torch.from_numpy(np.sort(rng.dirichlet(np.full(30, 0.1), 20))[:, ::-1].copy())
    sums = NormalSums(
        weights, torch.from_numpy(rng.normal(size=(20, 30))), torch.from_numpy(rng.gamma(2, size=(20, 30)))
    )
    x, row = torch.from_numpy(rng.normal(0, 30, 500)), torch.from_numpy(rng.integers(0, 20, 500))
    for upper in (torch.zeros(500, dtype=torch.bool), torch.ones(500, dtype=torch.bool)):
        compiled = sums.tail_and_density(x, upper, row)
        plain = sums.tail_and_density(x.clone().requires_grad_(), upper, row)
        for ours, theirs in zip(compiled, plain, strict=True):
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-300)


def test_bounded_conditionals():
    base = lattice_machine(7, 3, 2)
    inf = math.inf
    inside = bounded(base, [0.0, -inf, -1.0], [inf, inf, 1.0])
    x = inside.sample((5,), torch.Generator().manual_seed(0))
    given = inside.conditional({0: x[:, 0], 1: x[:, 1]})
    for i, row in enumerate(x):
        one = inside.conditional({0: row[0], 1: row[1]})
        torch.testing.assert_close(given.log_prob(x[:, 2:])[i], one.log_prob(row[2:]), rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(given.icdf([0.1, 0.9])[:, i], one.icdf([0.1, 0.9]), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(given.mean[i], one.mean, rtol=1e-9, atol=1e-9)
    p = torch.linspace(0, 1, 20001, dtype=torch.float64)[1:-1]
    torch.testing.assert_close(given.mean, given.icdf(p).mean(0), rtol=0, atol=1e-4)


def test_mean_of_a_log_normal():
    base = RTBMDistribution([[4.0]], [[0.0]], [[9.0]], [0.0], [0.0])  # a normal with variance ¼
    x = bounded(base, [0.0], [math.inf])
    assert float(x.mean) == pytest.approx(math.exp(1 / 8), rel=1e-12)
    assert float(x.variance) == pytest.approx(math.exp(1 / 4) * (math.exp(1 / 4) - 1), rel=1e-10)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda d: d.conditional({0: [1.0, 2.0], 1: [1.0, 2.0, 3.0]}), "broadcast"),
        (lambda d: d.conditional({0: [1.0, math.inf]}), r"values\[0\] must be finite"),
        (lambda d: d.conditional({0: math.nan}), r"values\[0\] must be finite"),
        (lambda d: d.conditional({0: [1.0]}).icdf(0.5), "one coordinate"),
        (lambda d: d.conditional({0: [1.0], 1: [2.0]}).icdf(1.5), "between 0 and 1"),
        (lambda d: d.conditional({0: [1.0, 2.0]}).log_prob(torch.zeros(3, 2)), "broadcast"),
        (lambda d: d.conditional({0: [1.0], 1: [1.0], 2: [1.0]}), "leave at least one"),
        (lambda d: d.conditional({3: [1.0]}), "indices"),
    ],
)
def test_bad_arguments(action, message):
    with pytest.raises(InvalidInputError, match=message):
        action(lattice_machine(0, 3, 2))


def test_large_diagonal_machines_are_refused():
    density = RTBMDistribution(np.eye(2), np.full((2, 40), 0.3), np.full(40, 0.5), [0.0, 0.0], np.zeros(40), phase="II")
    with pytest.raises(rtbm.errors.TooManyTermsError, match="hidden units"):
        _ = density.conditional({0: torch.zeros(3)}).mean
