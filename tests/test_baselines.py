"""The estimators that machines are compared with: they are densities, and as good as they can be."""

import numpy as np
import pytest

from experiments import baselines
from experiments.tables import mixed
from rtbm import datasets


@pytest.mark.slow
def test_the_binary_machine_is_normalised_and_fits():
    X, others = datasets.gamma.sample(800, seed=0), datasets.gamma.sample(2000, seed=1)
    model = baselines.BinaryBoltzmann(seed=0).fit(X)
    v = np.linspace(-20, 60, 8001)[:, None]
    assert np.isclose(np.exp(model.score_samples(v)).sum() * 0.01, 1, atol=1e-4)
    gaussian = baselines.gaussian_mixture(X, 1, 0, quick=True)
    assert model.score_samples(others).mean() > gaussian.score(others) + 0.02
    assert model.n_iter_ > 10
    again = baselines.BinaryBoltzmann(seed=0).fit(X)
    assert np.array_equal(again.score_samples(v), model.score_samples(v))


@pytest.mark.slow
def test_the_binary_machine_in_two_dimensions():
    X = datasets.three_gaussians.sample(500, seed=0)
    model = baselines.BinaryBoltzmann(max_iter=60, seed=0).fit(X)
    axis = np.linspace(-10, 10, 201)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    assert np.isclose(np.exp(model.score_samples(grid)).sum() * 0.01, 1, atol=1e-3)


@pytest.mark.skipif(not baselines.FLOW, reason="needs zuko")
def test_the_flow_is_normalised_and_leaves_the_global_generator_alone():
    import torch

    X = datasets.gamma.sample(600, seed=0)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = baselines.SplineFlow(120, seed=0).fit(X)
    assert torch.equal(torch.rand(3), expected)
    v = np.linspace(-30, 80, 11_001)[:, None]
    assert np.isclose(np.exp(model.score_samples(v)).sum() * 0.01, 1, atol=0.01)
    assert np.array_equal(baselines.SplineFlow(120, seed=0).fit(X).score_samples(v), model.score_samples(v))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.slow
def test_tuned_estimators_are_no_worse_than_bad_guesses(quick):
    X, others = datasets.three_gaussians.sample(400, seed=0), datasets.three_gaussians.sample(2000, seed=1)
    mixture, kernel = baselines.tuned_gaussian_mixture(X, 0, quick), baselines.tuned_kernels(X, 0, quick)
    assert mixture.n_components >= 3
    assert mixture.score(others) > baselines.gaussian_mixture(X, 1, 0, quick).score(others) + 0.05
    scores = [baselines.kernels(X, width).score_samples(others).mean() for width in (0.05, kernel.bandwidth, 3.0)]
    assert scores[1] > max(scores[0], scores[2])


@pytest.mark.parametrize("method", mixed.METHODS)
def test_densities_of_mixed_rows_have_the_sum_one(method):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    group, is_zero = rng.integers(3, size=200), rng.random(200) < 0.3
    train = pd.DataFrame({"x": np.where(is_zero, 0.0, rng.normal(group + 2.0)), "group": pd.Categorical(group)})
    x = np.linspace(-8, 8, 801)  # in units of the deviation, around the mean
    data = mixed.prepare(train, train)
    atom = data.atoms["x"][0]
    rows = [{"x": value, "group": level} for level in range(3) for value in (atom, *x)]
    test = pd.DataFrame(rows).astype({"group": data.train["group"].dtype})
    probability = np.exp(mixed.METHODS[method](data._replace(test=test), 0, True)).reshape(3, -1)
    total = probability[:, 0].sum() + probability[:, 1:].sum() * (x[1] - x[0])
    # kernel margins of vine copulas end where their grid does, and their integrals at atoms are averages over draws
    assert abs(total - 1) < (0.05 if method == "vine copula" else 1e-3)
