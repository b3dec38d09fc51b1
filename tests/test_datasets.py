"""The paper's densities: formulas that integrate to one, samplers that follow them, seeds that repeat."""

import math

import numpy as np
import pytest
import torch

from rtbm import InvalidInputError
from rtbm.datasets import DENSITIES, TargetDensity, custom, gamma, gaussian_mixture
from test_discrete_gaussian import chi_square_p_value
from tolerances import P_VALUE

PAPER = {  # samples, hidden units and components of the paper's captions
    "gamma": (2000, 2, 1),
    "cauchy": (1000, 3, 1),
    "cauchy_mixture": (1000, 3, 2),
    "gaussian_mixture": (5000, 3, 1),
    "custom": (5000, 4, 1),
    "uniform": (5000, 3, 1),
    "correlated_gaussian": (5000, 1, 1),
    "correlated_mixture": (5000, 1, 2),
    "three_gaussians": (5000, 2, 1),
}


@pytest.mark.parametrize("density", DENSITIES.values(), ids=lambda d: d.name)
def test_formula_and_sampler_agree(density: TargetDensity) -> None:
    """Counts in boxes against the integral of the formula over them, all within the limit."""
    n, edge = 40_000, 8.0 if density.n_features == 2 else 20.0
    draws = density.sample(n, seed=3)
    assert draws.shape == (n, density.n_features)
    assert float(np.abs(draws).max()) < 20
    bins, fine = 16 if density.n_features == 2 else 80, 10
    grid = -edge + 2 * edge * (np.arange(bins * fine) + 0.5) / (bins * fine)
    mesh = np.stack(np.meshgrid(*[grid] * density.n_features, indexing="ij"), -1).reshape(-1, density.n_features)
    cells = density.pdf(mesh).reshape([bins, fine] * density.n_features)
    axes = tuple(range(1, 2 * density.n_features, 2))
    expected = cells.sum(axis=axes) * (2 * edge / (bins * fine)) ** density.n_features
    observed, _ = np.histogramdd(draws, bins, [(-edge, edge)] * density.n_features)
    inside = expected.sum()
    share = inside if density.n_features == 2 else 1.0
    expected = torch.tensor(expected.reshape(-1) / inside * share * n)
    assert chi_square_p_value(torch.tensor(observed.reshape(-1)), expected) > P_VALUE
    assert inside == pytest.approx(1, abs=0.25 if "cauchy" in density.name else 2e-3)


@pytest.mark.parametrize("density", DENSITIES.values(), ids=lambda d: d.name)
def test_sizes_are_those_of_the_paper(density: TargetDensity) -> None:
    assert (density.n_samples, density.n_hidden, density.n_components) == PAPER[density.name]
    assert len(density.sample()) == density.n_samples
    assert np.array_equal(density.sample(50, seed=1), density.sample(50, seed=1))
    assert not np.array_equal(density.sample(50, seed=1), density.sample(50, seed=2))


def test_single_values() -> None:
    assert gamma.pdf([[6.5]])[0] == pytest.approx(6.5**6.5 * math.exp(-6.5) / math.gamma(7.5))
    assert gamma.pdf([[-1.0]])[0] == 0.0
    assert custom.pdf([[0.0], [2.0], [3.0], [5.0]]) == pytest.approx(np.array([2, 1, 2, 0]) / 6.55228475, rel=1e-8)
    assert gaussian_mixture.pdf([[-5.0]])[0] == pytest.approx(
        (0.6 / 3 + 0.1 / 2 * math.exp(-49 / 8) + 0.3 / 5 * math.exp(-2)) / math.sqrt(2 * math.pi)
    )
    with pytest.raises(InvalidInputError, match=r"x must have shape \(\.\.\., 1\), got \(1, 2\)"):
        gamma.pdf([[1.0, 2.0]])
    with pytest.raises(InvalidInputError, match="n must be an integer of at least 0, got -1"):
        gamma.sample(-1)
