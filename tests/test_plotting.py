"""Pictures: what is drawn has the right numbers."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from machines import dense, diagonal
from rtbm import InvalidInputError, RTBMDensity, RTBMMixture, datasets, nn
from rtbm.plotting import (
    normal_components,
    plot_activations,
    plot_density,
    plot_images,
    plot_joint,
    plot_model,
    plot_pairs,
)

GAMMA = datasets.gamma.sample(300)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def line(ax, label):
    return next(curve for curve in ax.get_lines() if curve.get_label() == label).get_xydata()


def test_components_add_up_to_the_density():
    machine = dense(1, 2, seed=1)
    v = np.linspace(-3, 3, 50)[:, None]
    parts = normal_components(RTBMMixture([0.4, 0.6], [machine, machine]))
    assert sum(part.weight for part in parts) == pytest.approx(1, abs=0.2)
    assert normal_components(diagonal(1, 4)) == []
    total = sum(
        part.weight
        * np.exp(-0.5 * (v[:, 0] - part.mean[0]) ** 2 / part.covariance[0, 0])
        / np.sqrt(2 * np.pi * part.covariance[0, 0])
        for part in normal_components(machine)
    )
    exact = machine.log_prob(v).exp().numpy()
    assert np.all(total <= exact * (1 + 1e-9))
    assert total == pytest.approx(exact, rel=0.3, abs=0.02)


def test_one_dimension_with_bounds():
    model = RTBMDensity(2, n_init=1, random_state=0, bounds=(0, None)).fit(GAMMA)
    ax = plot_density(model, GAMMA)
    curve = line(ax, "fit")
    assert np.allclose(curve[1:, 1], np.exp(model.score_samples(curve[1:, :1])))
    assert curve[:, 0].min() >= 0
    parts = [c.get_ydata() for c in ax.get_lines() if c.get_label() != "fit"]
    assert np.sum(parts, axis=0)[1:] == pytest.approx(curve[1:, 1], abs=0.02)


def test_two_dimensions_with_projections():
    machine = dense(2, 2, seed=0)
    joint, top, right = plot_joint(machine, machine.sample((500,), generator=torch.Generator().manual_seed(0)))
    curve = top.get_lines()[0].get_xydata()
    assert np.allclose(curve[:, 1], machine.marginal([0]).log_prob(curve[:, :1].copy()).exp())
    swapped = right.get_lines()[0].get_xydata()
    assert np.allclose(swapped[:, 0], machine.marginal([1]).log_prob(swapped[:, 1:].copy()).exp())
    assert joint.collections


def test_any_number_of_features():
    for d, n_axes in ((1, 1), (2, 3), (3, 9)):
        assert len(plot_model(dense(d, 1, seed=d)).axes) == n_axes
    with pytest.raises(InvalidInputError, match="at most"):
        plot_pairs(dense(7, 1))
    with pytest.raises(InvalidInputError, match="1 feature"):
        plot_density(dense(2, 1))
    with pytest.raises(InvalidInputError, match="data must have shape"):
        plot_density(dense(1, 1), np.zeros((5, 2)))


def test_activations_of_networks():
    network = torch.nn.Sequential(
        nn.ThetaLayer(1, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2), nn.ThetaLayer(2, 2, phase="II")
    )
    mean = network[1].running_mean.clone()
    data = np.linspace(-3, 3, 50)[:, None]
    figure = plot_activations(network, data)
    assert [ax.get_title() for ax in figure.axes] == ["layer 1 (phase I)", "layer 2 (phase II)"]
    lines = figure.axes[0].get_lines()
    assert len(lines) == 3
    u = network[0].weight[0, 0].item() * data[:, 0]
    assert lines[0].get_xdata().min() == pytest.approx(u.min(), rel=1e-5)
    assert torch.equal(network[1].running_mean, mean)
    assert network.training
    for bad, match in ((torch.nn.Linear(1, 1), "theta layer"), (3, "torch module")):
        with pytest.raises(InvalidInputError, match=match):
            plot_activations(bad)
    with pytest.raises(InvalidInputError, match="finite"):
        plot_activations(network, [[np.nan]])


def test_images_side_by_side():
    pictures = np.arange(2 * 3 * 4, dtype=float).reshape(2, 3, 4)
    figure = plot_images(pictures, ["a", "b"])
    assert [ax.get_title() for ax in figure.axes] == ["a", "b"]
    assert figure.axes[1].images[0].get_array().shape == (3, 4)
    plt.close(figure)
    plt.close(plot_images(np.zeros((1, 2, 2))))
    for bad in (pictures[0], -pictures, np.full((1, 2, 2), np.nan), np.zeros((1, 0, 3)), "ab", 1j * pictures):
        with pytest.raises(InvalidInputError, match="images must be"):
            plot_images(bad)
    with pytest.raises(InvalidInputError, match="titles must be 2"):
        plot_images(pictures, ["a"])
