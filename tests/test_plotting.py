"""Pictures: what is drawn has the right numbers."""

import base64
import io
import re

import matplotlib
import matplotlib.image

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context
from sklearn.base import BaseEstimator

from estimators import quick
from machines import dense, diagonal
from rtbm import (
    DiscreteGaussian,
    InvalidInputError,
    MappedDistribution,
    RTBMDensity,
    RTBMDistribution,
    RTBMImputer,
    RTBMMixture,
    RTBMRegressor,
    ThetaNetRegressor,
    datasets,
    nn,
)
from rtbm.distributions import ColumnMap, Interval
from rtbm.plotting import (
    MAX_POINTS,
    N_DRAWS,
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
    model = RTBMDensity(2, n_init=1, random_state=0, bounds=(0, None), fallback=None).fit(GAMMA)
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


def test_names_are_drawn_as_they_are():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 2)), columns=["a$\\frac$\x1b", "b$"])
    figure = plot_model(RTBMDensity(1, n_init=1, random_state=0).fit(frame), frame.to_numpy())
    figure.savefig(io.BytesIO())  # raises if the names are taken for mathematics


def test_any_number_of_features():
    for d, n_axes in ((1, 1), (2, 3), (3, 6)):
        assert len(plot_model(dense(d, 1, seed=d)).axes) == n_axes
    with pytest.raises(InvalidInputError, match="at most"):
        plot_pairs(dense(7, 1))
    with pytest.raises(InvalidInputError, match="1 feature"):
        plot_density(dense(2, 1))
    with pytest.raises(InvalidInputError, match="data must have shape"):
        plot_density(dense(1, 1), np.zeros((5, 2)))


def labels(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_contours_enclose_the_share_that_the_legend_says():
    gaussian = RTBMDistribution.from_lattice([[50.0]], [0.0], [[0.0], [0.0]], [1.0, 2.0], [[2.0, 0.5], [0.5, 1.0]])
    joint, _, _ = plot_joint(gaussian)
    peak = 1 / (2 * np.pi * np.sqrt(2.0 - 0.25))  # of a Gaussian, of which a share q is where p > (1 − q)·peak
    outside = joint.collections[-1].levels / peak
    expected = np.array([0.01, 0.1, 0.5])
    assert (np.abs(outside - expected) < 4 * np.sqrt(expected * (1 - expected) / N_DRAWS)).all()
    assert labels(joint.figure) == ["fit, 50 % inside", "fit, 90 % inside", "fit, 99 % inside"]


def test_of_many_rows_some_are_drawn_and_all_are_counted():
    X = np.random.default_rng(0).uniform(size=(MAX_POINTS + 1, 3))
    X[0] = 1e6
    figure = plot_model(dense(3, 1, seed=3), X)
    points = figure.axes[1].get_lines()[0]
    assert len(points.get_xdata()) == MAX_POINTS
    assert set(points.get_xdata()) <= set(X[:, 0])
    assert "5,000 of 5,001 rows (1 beyond the axes)" in labels(figure)
    assert "histogram of 5,001 rows (1 beyond the axes)" in labels(figure)
    assert figure.axes[0].get_xlim()[1] < 100  # an outlier does not set the axes
    assert figure.get_suptitle() == "Machine with 1 hidden unit"


def test_rows_with_missing_entries_are_drawn():
    X = np.random.default_rng(0).normal(size=(50, 2))
    X[:10, 0] = np.nan
    joint, top, _ = plot_joint(dense(2, 1, seed=0), X)
    assert np.isfinite(joint.get_xlim()).all()
    heights, edges, _ = top.patches[0].get_data()
    assert heights @ np.diff(edges) == pytest.approx(1)
    assert edges[[0, -1]] == pytest.approx([np.nanmin(X[:, 0]), np.nanmax(X[:, 0])])  # no bar where there are no data


def test_densities_whose_draws_are_frames_are_drawn():
    pytest.importorskip("pandas")
    model = RTBMDensity(1, n_init=1, random_state=0).fit(datasets.correlated_mixture.sample(100))
    expected = plot_model(model).axes[0].get_xlim()
    assert plot_model(model.set_output(transform="pandas")).axes[0].get_xlim() == expected


def test_axes_end_at_the_bounds():
    X = np.random.default_rng(0).beta([0.8, 3, 2], [0.8, 2, 2], (200, 3))
    model = RTBMDensity(1, bounds=(0, 1), n_init=1, max_iter=20, tol=1e-2, random_state=0).fit(X)
    pair = model.marginal([0, 1])
    axes = [*plot_pairs(model, X).axes, *plot_pairs(model).axes, *plot_joint(pair, X[:, :2])[:2]]
    axes.append(plot_density(model.marginal([0]), X[:, :1]))
    for ax in axes:
        low, high = ax.get_xlim()
        assert 0 <= low < high <= 1
    low, high = plot_joint(pair)[2].get_ylim()
    assert 0 <= low < high <= 1


@pytest.mark.parametrize("n_machines", [1, 3])
def test_sums_of_components_are_the_density(n_machines):
    machines = [dense(3, 2, seed=seed) for seed in range(n_machines)]
    model = RTBMMixture(np.full(n_machines, 1 / n_machines), machines)
    figure = plot_pairs(model)
    curve = figure.axes[0].get_lines()[0].get_xydata()
    assert curve[:, 1] == pytest.approx(model.marginal([0]).log_prob(curve[:, :1].copy()).exp().numpy(), abs=1e-9)


def test_many_components_are_not_drawn():
    machine = RTBMDistribution.from_lattice([[0.01]], [0.0], [[1.0]], [0.0], [[0.1]])
    assert len(normal_components(machine)) > 20
    assert [curve.get_label() for curve in plot_density(machine).get_lines()] == ["fit"]


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


def shown(thing):
    """What a notebook shows."""
    bundle = thing._repr_mimebundle_() if isinstance(thing, BaseEstimator) else {"text/html": thing._repr_html_()}
    return bundle.get("text/html")


def pictures(html):
    """The sizes of the pictures in a page, which are part of it."""
    found = [base64.b64decode(code) for code in re.findall(r'src="data:image/png;base64,([^"]*)"', html)]
    assert len(found) == html.count("<img ")
    return [matplotlib.image.imread(io.BytesIO(picture), format="png").shape[:2] for picture in found]


def test_notebooks_show_parameters_a_picture_and_the_summary():
    model = quick()
    assert pictures(shown(model)) == []
    html = shown(model.fit(GAMMA))
    assert "random_state" in html
    assert "free parameters" in html
    assert "1 machine with 1 hidden unit" in html
    [(height, width)] = pictures(html)
    assert 100 < height < width < 800
    assert len(html) < 150_000
    assert pictures(model._repr_html_()) == [(height, width)]
    with config_context(display="text"):
        assert shown(model) is None
    assert plt.get_fignums() == []


def test_notebooks_show_names_and_levels_as_text():
    tag = "<script>alert(1)</script>"
    frame = pd.DataFrame({tag: GAMMA[:40, 0], "kind": [f"{tag}{i % 2}" for i in range(40)]})
    model = quick(categorical_features=["kind"]).fit(frame)
    for thing in (model, model.distribution_, RTBMImputer(model).fit(frame)):
        assert tag not in shown(thing)
    assert "&lt;script&gt;" in shown(model)
    assert len(pictures(shown(model))) == 1  # of the column of numbers


def test_without_a_picture_notebooks_show_the_summary_alone():
    rng = np.random.default_rng(0)
    many = quick().fit(rng.normal(size=(60, 7)))
    levels = pd.DataFrame({"a": rng.choice(["x", "y"], 50), "b": rng.choice(["x", "y"], 50)})
    for model in (many, quick().fit(levels)):
        html = shown(model)
        assert pictures(html) == []
        assert "free parameters" in html
    assert len(pictures(shown(many.marginal([0, 1, 2])))) == 1


def test_notebooks_show_networks_and_regressors():
    t = np.linspace(0, 6, 60)[:, None]
    network = ThetaNetRegressor((2,), n_init=1, max_iter=300, tol=1e-2, random_state=0).fit(t, np.sin(t[:, 0]))
    plain = ThetaNetRegressor((2,), activation="tanh", n_init=1, max_iter=300, tol=1e-2, random_state=0)
    regressor = RTBMRegressor(quick()).fit(t, np.sin(t[:, 0]))
    for model, count in ((network, 1), (plain.fit(t, np.sin(t[:, 0])), 0), (regressor, 1)):
        assert len(pictures(shown(model))) == count
        assert "free parameters" in shown(model)


def test_notebooks_show_distributions_as_short_tables():
    machine = dense(2, 2, seed=1)
    mapped = MappedDistribution(machine, [Interval(0.0, np.inf), ColumnMap()])
    batch = machine.conditional({0: torch.tensor([0.1, 0.2])})
    mixture = RTBMMixture([0.4, 0.6], [machine, machine])
    for thing in (machine, mixture, mapped, batch, DiscreteGaussian([[2.0]], [0.3])):
        assert type(thing).__name__ in shown(thing)
        assert len(shown(thing)) < 2000
    assert "Interval, ColumnMap" in shown(mapped)
    assert "(2,)" in shown(batch)
    assert f"{float(machine.mean[0]):.6g}" in shown(machine)
    many_states = diagonal(1, 200)
    assert "200" in shown(many_states)
