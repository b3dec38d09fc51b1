"""The discrete Gaussian against brute-force sums, and its samplers against its probabilities."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import kl_divergence

from families import typical
from rtbm import DiscreteGaussian, InvalidInputError, SamplingError
from rtbm.distributions.sampling.lattice import make_sampler
from tolerances import FLOAT32, MOMENTS, P_VALUE


def make(g: int, scale: float = 2.0, seed: int = 0) -> DiscreteGaussian:
    rng = np.random.default_rng(seed)
    return DiscreteGaussian(typical(g, seed, scale), rng.normal(size=g) * scale)


def box(g: int, reach: int = 12) -> torch.Tensor:
    return torch.tensor(list(itertools.product(range(-reach, reach + 1), repeat=g)), dtype=torch.float64)


@pytest.mark.parametrize("g", [1, 2, 3])
def test_moments_entropy_and_divergence_against_brute_force(g: int) -> None:
    p, q, points = make(g), make(g, 3.0, 1), box(g)
    log_p, log_q = p.log_prob(points), q.log_prob(points)
    weights = log_p.exp()
    assert abs(float(weights.sum()) - 1) <= MOMENTS
    mean = weights @ points
    assert torch.allclose(p.mean, mean, atol=MOMENTS)
    centred = points - mean
    assert torch.allclose(p.covariance_matrix, centred.mT @ (weights[:, None] * centred), atol=MOMENTS)
    assert torch.equal(p.variance, p.covariance_matrix.diagonal())
    assert abs(float(p.entropy() + (weights * log_p).sum())) <= MOMENTS
    assert abs(float(p.kl(q) - (weights * (log_p - log_q)).sum())) <= MOMENTS
    assert torch.equal(kl_divergence(p, q), p.kl(q))


def chi_square_p_value(observed: torch.Tensor, expected: torch.Tensor) -> float:
    """The Wilson-Hilferty approximation is close enough for a decision at 1e-4."""
    keep = expected > 8
    left_out = float((observed[~keep].sum() - expected[~keep].sum()) ** 2 / expected[~keep].sum().clamp(min=1))
    statistic = float(((observed - expected)[keep] ** 2 / expected[keep]).sum()) + left_out
    freedom = int(keep.sum())
    deviate = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(deviate / math.sqrt(2))


def sampler_of(hidden: DiscreteGaussian, **limits: int):
    """A sampler with other limits than the distribution's own."""
    A, a = hidden.A.numpy(), hidden.a.numpy()
    return make_sampler(A, -np.linalg.solve(A, a), torch.device("cpu"), **limits)


@pytest.mark.parametrize("max_listed", [2**18, 0], ids=["inversion", "klein"])
@pytest.mark.parametrize(("g", "scale"), [(1, 0.3), (1, 30.0), (2, 1.0), (2, 12.0), (3, 2.0)])
def test_samples_fit_the_probabilities(g: int, scale: float, max_listed: int) -> None:
    """By inversion of a list of points, and by Klein's sampler."""
    hidden = make(g, scale, seed=g)
    n = 100_000
    draws = sampler_of(hidden, max_listed=max_listed).sample(n, torch.Generator().manual_seed(5))
    reach = 12 if g < 3 else 8
    points = box(g, reach) + hidden.mean.round()
    expected = hidden.log_prob(points).exp() * n
    index = ((draws - hidden.mean.round() + reach) @ (2 * reach + 1.0) ** torch.arange(g - 1, -1, -1.0).double()).long()
    observed = torch.bincount(index, minlength=len(points)).double()
    assert chi_square_p_value(observed, expected) > P_VALUE


def test_samples_of_a_larger_lattice_match_the_moments() -> None:
    """Nine coupled units have too many points for a list."""
    hidden = make(9, 3.0)
    n = 100_000
    draws = hidden.sample((n,), generator=torch.Generator().manual_seed(1))
    error = (draws.mean(0) - hidden.mean) / (hidden.variance / n).sqrt()
    assert float(error.abs().max()) < 4.5
    assert torch.allclose(torch.cov(draws.mT), hidden.covariance_matrix, atol=0.02)
    assert abs(float(-hidden.log_prob(draws).mean() - hidden.entropy())) < 0.02


def test_hundreds_of_independent_units() -> None:
    q = torch.linspace(0.1, 8, 400, dtype=torch.float64)
    hidden = DiscreteGaussian(torch.diag(q), torch.linspace(-3, 3, 400, dtype=torch.float64))
    draws = hidden.sample((20_000,), generator=torch.Generator().manual_seed(2))
    error = (draws.mean(0) - hidden.mean) / (hidden.variance / 20_000).sqrt()
    assert float(error.abs().max()) < 5.0
    assert hidden.entropy() > 0


def test_seeds_shapes_and_dtypes() -> None:
    hidden = make(2)
    one, two = (hidden.sample((3, 4), generator=torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (3, 4, 2)
    assert hidden.sample().shape == (2,)
    assert hidden.sample(5).shape == (5, 2)
    mixed = DiscreteGaussian(torch.eye(2), np.zeros(2))
    assert mixed.log_prob([0, 1]).dtype == mixed.sample().dtype == torch.float64
    assert hidden.sample((0,)).shape == (0, 2)
    assert torch.equal(one, one.round())
    single = DiscreteGaussian(torch.eye(2), torch.zeros(2))
    assert single.sample((2,)).dtype == single.mean.dtype == torch.float32


def test_gradients_of_everything() -> None:
    factor = torch.linalg.cholesky(torch.tensor(typical(2))).requires_grad_()
    a = torch.tensor([3.3, -0.7], dtype=torch.float64, requires_grad=True)
    other = make(2, 3.0)

    def function(factor: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, ...]:
        p = DiscreteGaussian(factor @ factor.mT, a)
        return p.log_normalizer, p.log_prob([[1, -2], [0, 3]]), p.mean, p.covariance_matrix, p.entropy(), p.kl(other)

    assert gradcheck(function, (factor, a))
    assert gradgradcheck(function, (factor, a))


def test_gradients_do_not_depend_on_what_was_asked_before() -> None:
    A, a = torch.tensor(typical(2), requires_grad=True), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    fresh = torch.autograd.grad(DiscreteGaussian(A, a).log_prob([1, 0]), (A, a))
    asked = DiscreteGaussian(A, a)
    with torch.no_grad():
        assert not asked.mean.requires_grad
    for _ in range(2):
        for x, y in zip(torch.autograd.grad(asked.log_prob([1, 0]), (A, a)), fresh, strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("distance", [1e3, 1e6, 1e9])
def test_nothing_is_lost_far_from_zero(distance: float) -> None:
    A = np.array([[2.0, 0.25], [0.25, 1.5]])  # A times an integer point is exact
    centre = np.array([distance, -distance])
    here, there = DiscreteGaussian(A, [0.5, 0.25]), DiscreteGaussian(A, np.array([0.5, 0.25]) - A @ centre)
    h = torch.tensor([[1.0, -2.0], [0.0, 1.0]], dtype=torch.float64)
    assert abs(float(there.entropy() - here.entropy())) <= MOMENTS
    assert torch.allclose(there.log_prob(h + torch.tensor(centre)), here.log_prob(h), rtol=0, atol=MOMENTS)
    assert torch.allclose(there.mean - torch.tensor(centre), here.mean, rtol=0, atol=1e-15 * distance + MOMENTS)
    q = DiscreteGaussian(2 * A, -2 * A @ centre)
    assert abs(float(there.kl(q) - here.kl(DiscreteGaussian(2 * A, [0.0, 0.0])))) <= MOMENTS
    single = DiscreteGaussian(
        torch.tensor(A, dtype=torch.float32), -torch.tensor(A @ [300.0, -300.0], dtype=torch.float32)
    )
    assert abs(float(single.entropy()) - float(DiscreteGaussian(A, [0.0, 0.0]).entropy())) <= FLOAT32


def test_a_skewed_matrix_loses_nothing() -> None:
    for M in (1e3, 1e5, 1e7):
        A, a = np.array([[1.0, M], [M, M**2 + 1]]), np.array([0.3, 0.4 + 0.3 * M])
        skewed, plain = DiscreteGaussian(A, a), DiscreteGaussian(np.eye(2), [0.3, 0.4])
        U = torch.tensor([[1.0, -M], [0.0, 1.0]], dtype=torch.float64)  # UᵀAU = I
        h = torch.tensor([[1.0, -2.0], [0.0, 1.0]], dtype=torch.float64)
        rounding = MOMENTS + 1e-15 * M  # of 0.4 + 0.3 M
        assert abs(float(skewed.entropy() - plain.entropy())) <= rounding
        assert abs(float(skewed.log_normalizer - plain.log_normalizer)) <= rounding
        assert torch.allclose(skewed.log_prob(h @ U.mT), plain.log_prob(h), rtol=0, atol=rounding)
        draws = skewed.sample(20_000, generator=torch.Generator().manual_seed(0)) @ torch.linalg.inv(U).mT
        assert torch.allclose(draws.mean(0), plain.mean, atol=0.05)
        assert (
            abs(float(skewed.kl(DiscreteGaussian(A, 0 * a)) - plain.kl(DiscreteGaussian(np.eye(2), [0, 0]))))
            <= rounding
        )


def test_a_distribution_is_a_value() -> None:
    points = box(2, 9)
    A, a = torch.tensor(typical(2)), torch.zeros(2, dtype=torch.float64)
    hidden = DiscreteGaussian(A, a)
    before = hidden.log_prob(points)
    A.mul_(2)
    a.add_(1)
    assert torch.equal(hidden.log_prob(points), before)
    assert abs(float(before.exp().sum()) - 1) <= MOMENTS


def test_the_gradient_in_the_matrix_is_symmetric() -> None:
    A = torch.tensor([[2.0, 0.25], [0.25, 1.5]], dtype=torch.float64, requires_grad=True)
    hidden = DiscreteGaussian(A, [-2e3, 1.5e3])
    for function in (hidden.log_normalizer, hidden.log_prob([1000, -999]), hidden.entropy()):
        (gradient,) = torch.autograd.grad(function, A)
        assert torch.allclose(gradient, gradient.mT, rtol=1e-12)


def test_samples_of_twenty_units_in_blocks() -> None:
    """Together they would have too many points, and reject too often."""
    A = torch.block_diag(*[torch.tensor([[20.0, 7.0], [7.0, 20.0]], dtype=torch.float64)] * 10)
    hidden = DiscreteGaussian(A, torch.linspace(-40, 40, 20, dtype=torch.float64))
    draws = hidden.sample(50_000, generator=torch.Generator().manual_seed(3))
    error = (draws.mean(0) - hidden.mean).abs() / (hidden.variance / 50_000 + 1e-6).sqrt()
    assert float(error.max()) < 5.0


def test_errors() -> None:
    hidden = make(2)
    with pytest.raises(InvalidInputError, match="integers"):
        hidden.log_prob([0.5, 1.0])
    with pytest.raises(InvalidInputError, match="A must be symmetric"):
        DiscreteGaussian([[2.0, 0.5], [0.4, 1.0]], [0.0, 0.0])
    for a in (np.zeros((3, 2)), [0.0]):
        with pytest.raises(InvalidInputError, match=r"a must be one vector"):
            DiscreteGaussian(np.eye(2), a)
    for other in (make(3), torch.distributions.Normal(0.0, 1.0)):
        with pytest.raises(InvalidInputError, match="other must be a DiscreteGaussian with g = 2"):
            hidden.kl(other)


def test_a_sampler_that_would_not_finish_says_so() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 12))
    A = X @ X.T + 200 * np.eye(12)
    centre = rng.uniform(size=12)
    sampler = make_sampler(A, centre, torch.device("cpu"), max_listed=0, max_proposals=1000)
    with pytest.raises(SamplingError, match="proposals"):
        sampler.sample(10, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("centre", [0.0, 1e12, 1e14])
def test_hidden_states_far_from_zero(centre: float) -> None:
    """Probabilities, samples and divergences see the same bias, to the last digit."""
    p, q = DiscreteGaussian([[0.7]], [-0.7 * centre - 0.1]), DiscreteGaussian([[0.9]], [-0.9 * centre + 0.2])
    h, log_p = p.table()
    expected = (log_p.exp() * (log_p - q.log_prob(h))).sum()
    assert float((p.kl(q) - expected).abs()) <= 1e-10
    assert float(p.kl(p).abs()) <= 1e-12
    stiff = DiscreteGaussian([[20.1]], [-(20.1 * (centre + 0.5))])
    draws = stiff.sample((20_000,), torch.Generator().manual_seed(0))
    state, log_prob = stiff.table()
    share = (draws[:, 0] == state[0, 0]).double().mean()
    assert float((share - log_prob[0].exp()).abs()) <= 4 * 0.5 / math.sqrt(20_000)
