"""ThetaNetRegressor and ThetaNetClassifier: seeds, solvers, starts, weights and errors."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.exceptions import ConvergenceWarning
from torch.nn.utils import vector_to_parameters

from rtbm import InvalidInputError, ThetaNetClassifier, ThetaNetRegressor
from rtbm.estimators.progress import watch_fits
from rtbm.nn import ThetaLayer
from rtbm.nn.feedforward import make_network
from rtbm.training.network_starts import find_sinusoids, start_at_sinusoids
from rtbm.training.networks import NETWORK_SOLVERS, NetworkObjective, log_loss, squared_error

T = np.linspace(0, 30, 150)[:, None]
WAVE = 0.1 * T[:, 0] + np.sin(2 * T[:, 0])
NOISY = WAVE + 0.3 * np.random.default_rng(0).normal(size=150)
IRIS = load_iris(return_X_y=True)


def quick(sizes=(3,), **options):
    return ThetaNetRegressor(sizes, **{"n_init": 2, "max_iter": 40, "tol": 1e-3, "random_state": 0, **options})


def quick_classifier(sizes=(3,), **options):
    return ThetaNetClassifier(sizes, **{"n_init": 2, "max_iter": 40, "tol": 1e-3, "random_state": 0, **options})


def test_a_trend_with_a_wave_is_learned_and_continued():
    model = ThetaNetRegressor((3,), random_state=0).fit(T, NOISY)
    ahead = T + 30
    truth = 0.1 * ahead[:, 0] + np.sin(2 * ahead[:, 0])
    assert np.mean((model.predict(T) - WAVE) ** 2) < 0.02
    assert np.mean((model.predict(ahead) - truth) ** 2) < 0.05
    assert model.score(T, WAVE) > 0.98


@pytest.mark.parametrize("solver", ["lbfgs", "adam", "cma"])
def test_solvers_lower_the_loss(solver):
    model = quick(initialization="balanced", solver=solver, n_init=1, max_iter=60, tol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(T, NOISY)
    assert model.history_[-1].objective < 0.9 * model.history_[0].objective
    assert model.summary_["solver"] == solver
    assert model.n_iter_ == len(model.history_) - 1


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_early_stopping_keeps_the_best_on_validation_data():
    model = quick(validation_fraction=0.3, n_iter_no_change=3, max_iter=500, tol=0.0, initialization="balanced")
    model.fit(T, NOISY)
    best = max(record.validation for record in model.history_)
    assert max(result.validation for result in model.results_) == best
    assert model.summary_["reason"] == "early stopping"


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear", "theta-II", ("theta", "tanh"), ("tanh", "theta-II")])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_layers_can_be_mixed(activation):
    model = quick((3, 2), activation=activation).fit(T, NOISY)
    assert model.predict(T).shape == (150,)
    n_theta = sum(isinstance(module, ThetaLayer) for module in model.module_)
    names = [activation] * 2 if isinstance(activation, str) else activation
    assert n_theta == sum(name.startswith("theta") for name in names)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_module_takes_the_features_as_they_are():
    model = quick().fit(1000 + 50 * T, 7 + 3 * NOISY)
    X = torch.tensor(1000 + 50 * T)
    assert np.allclose(model.module_(X).detach().numpy()[:, 0], model.predict(X.numpy()))
    assert model.module_[0].weight.requires_grad
    shifted = quick().fit(T, NOISY)
    assert np.allclose(model.predict(1000 + 50 * T), 7 + 3 * shifted.predict(T), rtol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["lbfgs", "adam", "cma"])
def test_looking_at_a_training_does_not_change_it(solver):
    X, y = 100 + T, 5 + NOISY
    expected, seen = quick(solver=solver, max_iter=10).fit(X, y), []

    def look(iteration):
        first, second = (iteration.model()(torch.from_numpy(X)).detach().numpy() for _ in range(2))
        np.testing.assert_array_equal(first, second)
        seen.append(first[:, 0])

    with watch_fits(look):
        model = quick(solver=solver, max_iter=10).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), expected.predict(X))
    assert any(np.array_equal(outputs, model.predict(X)) for outputs in seen)


def test_results_are_in_standardised_coordinates():
    X, y = 100 + T, 5 + NOISY
    model = quick().fit(X, y)
    best = min(model.results_, key=lambda result: result.objective)
    network = make_network(1, (3, 1), ("theta", "linear"), dtype=torch.float64)
    vector_to_parameters(best.vector, network.parameters())
    outputs = network(torch.from_numpy((X - X.mean()) / X.std())).detach().numpy()[:, 0]
    np.testing.assert_allclose(outputs * y.std() + y.mean(), model.predict(X), rtol=1e-8)


def test_the_papers_network_has_38_parameters():
    model = quick((3, 3, 2), output_activation="theta", max_iter=2).fit(T, NOISY)
    assert model.n_parameters_ == 38 == sum(p.numel() for p in model.module_.parameters())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_several_outputs():
    Y = np.column_stack([NOISY, np.cos(T[:, 0])])
    model = quick((4,)).fit(T, Y)
    assert model.predict(T).shape == (150, 2)
    assert quick((4,)).fit(T, Y[:, :1]).predict(T).shape == (150, 1)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("loss", ["log_loss", "squared_error"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_probabilities(loss, n_classes):
    X, y = IRIS
    X, y = X[y < n_classes], np.array(["a", "b", "c"])[y[y < n_classes]]
    model = quick_classifier(loss=loss).fit(X, y)
    p = model.predict_proba(X)
    assert p.shape == (len(X), n_classes)
    assert np.allclose(p.sum(axis=1), 1)
    assert (p >= 0).all()
    assert np.array_equal(model.classes_[p.argmax(axis=1)], model.predict(X))
    assert model.score(X, y) > 0.9
    assert model.decision_function(X).shape == ((len(X),) if n_classes == 2 else (len(X), 3))


def test_errors_that_depend_on_the_data():
    X, y = IRIS
    with pytest.raises(InvalidInputError, match="one class"):
        quick_classifier().fit(X[:10], y[:10])
    with pytest.raises(InvalidInputError, match="validation_fraction"):
        quick(validation_fraction=0.5).fit(np.ones((4, 1)), np.ones(4))


def test_sinusoids_are_found_and_noise_has_none():
    rng = np.random.default_rng(2)
    x = rng.uniform(-2, 2, size=(400, 2))
    direction = np.array([0.0, 1.0])
    y = (x @ [1.0, 0.5] + np.sin(7 * x @ direction + 0.4))[:, None]
    (sinusoid,) = find_sinusoids(x, y, np.ones(400), 1, rng, greedy=True)
    assert abs(abs(sinusoid.direction @ direction) - 1) < 0.05
    assert abs(sinusoid.frequency - 7) < 0.2
    assert find_sinusoids(x, rng.normal(size=(400, 1)), np.ones(400), 2, rng, greedy=True) == []


@pytest.mark.parametrize("phase", ["theta", "theta-II"])
def test_tuned_networks_start_at_the_sinusoid(phase):
    x = np.linspace(-1.7, 1.7, 300)[:, None]
    y = 0.5 * x + np.sin(11 * x + 1)
    network = make_network(1, [3, 2, 1], [phase, "theta", "linear"], dtype=torch.float64)
    assert start_at_sinusoids(network, x, y, np.ones(300), seed=0, greedy=True)
    with torch.no_grad():
        error = (network(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean()
    assert error < 0.02


@pytest.mark.parametrize(
    ("sizes", "names"), [([3, 1], ["tanh", "linear"]), ([3, 2, 1], ["theta", "tanh", "linear"]), ([1], ["theta"])]
)
def test_networks_that_cannot_be_tuned_are_left_alone(sizes, names):
    network = make_network(1, sizes, names, dtype=torch.float64)
    before = [parameter.clone() for parameter in network.parameters()]
    assert not start_at_sinusoids(network, T, np.sin(T), np.ones(150), seed=0, greedy=True)
    assert all(torch.equal(a, b) for a, b in zip(before, network.parameters(), strict=True))


def test_objective_and_its_gradient():
    generator = torch.Generator().manual_seed(0)
    network = make_network(2, [3, 2], ["theta", "linear"], dtype=torch.float64, generator=generator)
    x, target = (torch.randn(20, 2, dtype=torch.float64, generator=generator) for _ in range(2))
    weights = torch.rand(20, dtype=torch.float64, generator=generator)
    objective = NetworkObjective(network, squared_error, x, target, weights, alpha=2.0)
    start = objective.start()
    value, gradient = objective.with_gradient(start)
    assert objective.value(start) == pytest.approx(value)
    step = 1e-6 * torch.randn(len(start), dtype=torch.float64, generator=generator)
    difference = objective.value(start + step) - objective.value(start - step)
    assert difference / 2 == pytest.approx(float(gradient @ step), rel=1e-5)
    slopes = [network[0].weight / network[0].Q[:, None], network[1].weight]
    penalty = sum(float(slope.detach().square().sum()) for slope in slopes) / float(weights.sum())
    plain = NetworkObjective(network, squared_error, x, target, weights).value(start)
    assert value - plain == pytest.approx(penalty)


def test_log_loss_of_one_output_is_that_of_two():
    z, y = torch.randn(10, 1, generator=torch.Generator().manual_seed(0)), torch.tensor([[0.0], [1.0]] * 5)
    both = log_loss(torch.cat([torch.zeros(10, 1), z], dim=1), torch.cat([1 - y, y], dim=1))
    assert torch.allclose(log_loss(z, y), both, atol=1e-6)


def test_parameters_beyond_float64_are_turned_back_from():
    network = make_network(1, [2, 1], ["theta", "linear"], dtype=torch.float64)
    x = torch.linspace(-1, 1, 30, dtype=torch.float64)[:, None]
    objective = NetworkObjective(network, squared_error, x, x**2, torch.ones(30, dtype=torch.float64))
    start = objective.start()
    far = start.clone()
    far[-5:] = 1e3  # e^1000 is not a float64
    assert objective.value(far) == np.inf
    result = NETWORK_SOLVERS["lbfgs"](max_iter=5).minimise(objective, start)
    assert result.objective < objective.value(start)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_adam_minimises_what_lbfgs_minimises_also_with_weights():
    rng = np.random.default_rng(3)
    X = np.concatenate([np.zeros((900, 1)), rng.normal(size=(100, 1))])  # 900 repetitions, which are merged
    y = np.concatenate([np.zeros(900, dtype=int), np.ones(100, dtype=int)])
    models = [
        ThetaNetClassifier((), solver=solver, n_init=1, random_state=0, batch_size=16).fit(X, y)
        for solver in ("lbfgs", "adam")
    ]
    shares = [model.predict_proba(X)[:, 1].mean() for model in models]
    assert abs(shares[0] - 0.1) < 0.01
    assert abs(shares[1] - 0.1) < 0.03
    assert models[1].loss_ == pytest.approx(models[0].loss_, rel=0.05)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_large_targets_of_other_outputs_are_learned():
    y = 1e6 * (WAVE - WAVE.min() + 1)
    model = ThetaNetRegressor((3,), output_activation="relu", n_init=2, random_state=0).fit(T, y)
    assert model.n_iter_ > 10
    assert model.loss_ < 0.5 * model.history_[0].objective


def test_classes_of_weight_zero_are_absent():
    X, y = IRIS
    model = quick_classifier(max_iter=5, tol=0.1).fit(X, y, sample_weight=(y != 1).astype(float))
    assert model.classes_.tolist() == [0, 2]
    with pytest.raises(InvalidInputError, match="one class: 0"):
        quick_classifier().fit(X, y, sample_weight=(y == 0).astype(float))


def test_every_class_keeps_a_row_for_training():
    X, y = IRIS
    kept = np.concatenate([np.arange(50), [50, 51]])
    model = quick_classifier(max_iter=5, tol=0.1, validation_fraction=0.5).fit(X[kept], y[kept])
    assert model.predict_proba(X).shape == (150, 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_probabilities_and_labels_agree_far_away():
    X, y = IRIS
    model = quick_classifier(loss="squared_error", alpha=0.01).fit(X, y)
    far = (X - X.mean(axis=0)) * 3 + X.mean(axis=0)
    assert np.array_equal(model.classes_[model.predict_proba(far).argmax(axis=1)], model.predict(far))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_predictions_do_not_depend_on_the_mode_of_the_module():
    model = quick(solver="adam", dropout=0.3, max_iter=2).fit(T, NOISY)
    before = model.predict(T)
    model.module_.train()
    assert np.array_equal(model.predict(T), before)
    assert model.module_.training


@pytest.mark.parametrize("factor", [1e-150, 1e160])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_extreme_units(factor):
    plain, model = quick().fit(T, NOISY), quick().fit(factor * T, factor * NOISY)
    assert np.allclose(model.predict(factor * T) / factor, plain.predict(T), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_weights_at_the_end_of_float64():
    model = quick(alpha=0.0).fit(T, NOISY, sample_weight=np.full(150, 1e308))
    assert np.allclose(model.predict(T), quick(alpha=0.0).fit(T, NOISY).predict(T), rtol=1e-4, atol=1e-4)


def test_numbers_of_numpy_are_taken():
    assert quick(solver="adam", batch_size=np.int64(8), max_iter=np.int64(2), sizes=np.array([2])).fit(T, NOISY)


def test_starts_that_disagree_beyond_the_data_are_reported():
    rng = np.random.default_rng(0)
    x = np.linspace(0, 10, 60)[:, None]
    sure = ThetaNetRegressor((2,), n_init=3, random_state=0).fit(x, 0.5 * x[:, 0] + 0.1 * rng.normal(size=60))
    sure.predict([[15.0]])
    unsure = ThetaNetRegressor((6, 4), n_init=6, max_iter=60, tol=1e-4, random_state=0)
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        unsure.fit(x, rng.normal(size=60))
    unsure.predict(x)  # inside the data there is nothing to say
    with pytest.warns(UserWarning, match="rows lie beyond the training data"):
        unsure.predict(np.linspace(20, 60, 30)[:, None])
