"""Distributions with bounds: normalised, consistent with each other, and what estimators with bounds return."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from rtbm import BoundedDistribution, InvalidInputError, RTBMDensity, RTBMDistribution, datasets

LINE = RTBMDistribution([[1.0]], [[0.7]], [[2.0]], [0.1], [0.2])
PLANE = RTBMDistribution([[1.0, 0.3], [0.3, 2.0]], [[0.7], [0.2]], [[2.0]], [0.1, -0.3], [0.2])
INF = math.inf


@pytest.mark.parametrize("bounds", [(0.0, INF), (-INF, 1.0), (-1.0, 3.0), (-INF, INF)])
def test_density_integrates_to_the_distribution_function(bounds):
    x = BoundedDistribution(LINE, [bounds[0]], [bounds[1]])
    ends = x.icdf([0.1, 0.9])[:, 0].tolist()
    mass, _ = quad(lambda v: float(x.log_prob([v]).exp()), *ends, epsabs=1e-11, epsrel=1e-11)
    assert mass == pytest.approx(0.8, abs=1e-9)
    assert x.cdf([[ends[0]], [ends[1]]]).tolist() == pytest.approx([0.1, 0.9], abs=1e-9)


def test_outside_there_is_nothing():
    x = BoundedDistribution(LINE, [0.0], [1.0])
    assert x.log_prob([[-1.0], [0.0], [1.0], [2.0]]).tolist() == [-INF] * 4
    assert x.cdf([[-1.0], [0.0], [1.0], [2.0]]).tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-14)
    draws = x.sample((1000,), generator=torch.Generator().manual_seed(0))
    assert bool(((draws > 0) & (draws < 1)).all())


def test_marginals_and_conditionals_multiply_to_the_joint_density():
    x = BoundedDistribution(PLANE, [0.0, -INF], [INF, 2.0])
    point = torch.tensor([0.7, 1.3], dtype=torch.float64)
    for i in (0, 1):
        split = x.marginal(i).log_prob(point[i : i + 1]) + x.conditional({i: point[i]}).log_prob(point[1 - i : 2 - i])
        assert float(split) == pytest.approx(float(x.log_prob(point)), abs=1e-10)
    gap = torch.stack([point[0], torch.tensor(math.nan, dtype=torch.float64)])
    assert float(x.log_prob(gap)) == pytest.approx(float(x.marginal(0).log_prob(point[:1])), abs=1e-10)


def test_gradients():
    x = BoundedDistribution(PLANE, [0.0, -1.0], [INF, 2.0])
    points = torch.tensor([[0.7, 1.3], [2.0, -0.5]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(x.log_prob, (points,))


def test_what_cannot_be():
    with pytest.raises(InvalidInputError, match="low < high"):
        BoundedDistribution(LINE, [1.0], [0.0])
    with pytest.raises(InvalidInputError, match="inside the bounds"):
        BoundedDistribution(PLANE, [0.0, 0.0], [INF, INF]).conditional({0: -1.0})


def test_estimators_return_the_density_of_the_features_as_given():
    X = datasets.gamma.sample(200, seed=0)
    model = RTBMDensity(1, bounds=(0, None), n_init=1, random_state=0).fit(X)
    assert isinstance(model.distribution_, BoundedDistribution)
    assert np.allclose(model.distribution_.log_prob(X), model.score_samples(X), rtol=0, atol=1e-12)
    assert model.distribution_.base.n_visible == 1
    free = RTBMDensity(1, n_init=1, random_state=0).fit(X)
    assert isinstance(free.distribution_, RTBMDistribution)


def test_modules_are_made_once():
    model = RTBMDensity(1, n_init=1, random_state=0).fit(datasets.gamma.sample(50))
    assert model.module_ is model.module_
    assert model.fit(datasets.gamma.sample(60)).module_ is model.module_
