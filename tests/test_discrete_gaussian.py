"""The discrete Gaussian against brute-force sums, and its samplers against its probabilities."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.distributions import kl_divergence

from families import typical
from rtbm import DiscreteGaussian, InvalidInputError, SamplingError
from rtbm.distributions import lattice_samplers
from rtbm.distributions.lattice_samplers import NearestPlane, Table
from tolerances import MOMENTS, P_VALUE


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


@pytest.mark.parametrize("sampler", [Table, NearestPlane])
@pytest.mark.parametrize(("g", "scale"), [(1, 0.3), (1, 30.0), (2, 1.0), (2, 12.0), (3, 2.0)])
def test_samples_fit_the_probabilities(g: int, scale: float, sampler: type, monkeypatch: pytest.MonkeyPatch) -> None:
    if sampler is NearestPlane:
        monkeypatch.setattr(lattice_samplers, "MAX_TABLE", 0)
    hidden = make(g, scale, seed=g)
    n = 100_000
    draws = hidden.sample((n,), generator=torch.Generator().manual_seed(5))
    assert isinstance(hidden._sampler, sampler)
    reach = 12 if g < 3 else 8
    points = box(g, reach) + hidden.mean.round()
    expected = hidden.log_prob(points).exp() * n
    index = ((draws - hidden.mean.round() + reach) @ (2 * reach + 1.0) ** torch.arange(g - 1, -1, -1.0).double()).long()
    observed = torch.bincount(index, minlength=len(points)).double()
    assert chi_square_p_value(observed, expected) > P_VALUE


def test_larger_lattices_use_the_accept_step_and_match_the_moments() -> None:
    hidden = make(9, 3.0)
    n = 100_000
    draws = hidden.sample((n,), generator=torch.Generator().manual_seed(1))
    assert isinstance(hidden._sampler, NearestPlane)
    error = (draws.mean(0) - hidden.mean) / (hidden.variance / n).sqrt()
    assert float(error.abs().max()) < 4.5
    assert torch.allclose(torch.cov(draws.mT), hidden.covariance_matrix, atol=0.02)
    assert abs(float(-hidden.log_prob(draws).mean() - hidden.entropy())) < 0.02


def test_hundreds_of_independent_units() -> None:
    q = torch.linspace(0.1, 8, 200, dtype=torch.float64)
    hidden = DiscreteGaussian(torch.diag(q), torch.linspace(-3, 3, 200, dtype=torch.float64))
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
    assert hidden.sample((0,)).shape == (0, 2)
    assert torch.equal(one, one.round())
    single = DiscreteGaussian(torch.eye(2), torch.zeros(2))
    assert single.sample((2,)).dtype == single.mean.dtype == torch.float32


def test_gradients_reach_the_parameters() -> None:
    A, a = torch.tensor(typical(2), requires_grad=True), torch.zeros(2, dtype=torch.float64, requires_grad=True)
    hidden = DiscreteGaussian(A, a)
    (hidden.entropy() + hidden.log_prob([1, -2]) + hidden.mean.sum()).backward()
    assert A.grad is not None
    assert a.grad is not None
    assert A.grad.abs().sum() > 0
    assert a.grad.abs().sum() > 0


def test_errors() -> None:
    hidden = make(2)
    with pytest.raises(InvalidInputError, match="integers"):
        hidden.log_prob([0.5, 1.0])
    with pytest.raises(InvalidInputError, match=r"a must be one vector"):
        DiscreteGaussian(np.eye(2), np.zeros((3, 2)))
    with pytest.raises(InvalidInputError, match="same dimension"):
        hidden.kl(make(3))


def test_a_sampler_that_would_not_finish_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice_samplers, "MAX_TABLE", 0)
    monkeypatch.setattr(lattice_samplers, "MAX_PROPOSALS", 1000)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 12))
    A = X @ X.T + 200 * np.eye(12)
    sampler = lattice_samplers.make_sampler(A, rng.uniform(size=12), torch.device("cpu"))
    with pytest.raises(SamplingError, match="proposals"):
        sampler.sample(10, torch.Generator().manual_seed(0))
