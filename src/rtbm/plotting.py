"""Pictures of densities, of expectations and activation functions, and of images."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from rtbm.distributions import DiscreteGaussian, RTBMDistribution, RTBMMixture
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.nn import ThetaLayer
from rtbm.validation import as_real

Floats = NDArray[np.float64]

DARK, LIGHT, WARM, GREY = "#1b4965", "#5fa8d3", "#e07a5f", "#c8c8c8"
SMALLEST_COMPONENT = 0.005
"""Normal components of less weight are not drawn."""
MAX_FEATURES = 6


class Component(NamedTuple):
    """A normal distribution that a density is made of."""

    weight: float
    mean: Floats
    covariance: Floats


def plot_density(
    density: Any,
    data: ArrayLike | None = None,
    *,
    ax: Axes | None = None,
    components: bool = True,
    legend: bool = True,
    bins: int = 50,
) -> Axes:
    """Draw a density in one dimension, over a histogram of data.

    Parameters
    ----------
    density : estimator or distribution
        A fitted `RTBMDensity`, a machine or a mixture, of one feature.
    data : (n, 1) or (n,)
        For the histogram.
    ax : Axes
        Where to draw; by default a new figure.
    components : bool
        Whether to draw the normal distributions P(h)·N(v; mean + Fh, Σ) that a dense machine is made of.
    legend : bool
        Whether to say which line is which.
    bins : int
        Of the histogram.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
    >>> plot_density(machine).get_ylabel()
    'density'
    >>> plt.close()
    """
    _check_features(density, 1)
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    points = None if data is None else _rows(data, 1)
    if points is not None:
        ax.hist(points[:, 0], bins, density=True, color=GREY, label="data")
    v = np.linspace(*_limits(density, points)[0], 800)[:, None]
    ax.plot(v, np.exp(_log_prob(density, v)), color=WARM, lw=2, label="fit")
    if components:
        for i, part in enumerate(normal_components(density)):
            label = "P(h) × normal" if i == 0 else None
            ax.plot(v, _component_pdf(density, part, v), color=DARK, lw=0.7, label=label)
    ax.set(ylabel="density", xlabel=_names(density)[0], ylim=(0, None))
    if legend:
        ax.legend(frameon=False)
    return ax


def plot_joint(
    density: Any, data: ArrayLike | None = None, *, figure: Figure | None = None, bins: int = 50
) -> tuple[Axes, Axes, Axes]:
    """Draw a density in two dimensions: contours over data, and both projections beside them.

    Returns the axes of the contours, of the upper and of the right projection.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 1.0]], [[1.0], [0.0]], [[9.0]], [0.0, 0.0], [0.0])
    >>> joint, top, right = plot_joint(machine)
    >>> plt.close()
    """
    _check_features(density, 2)
    figure = plt.figure(figsize=(6.5, 6.5), layout="constrained") if figure is None else figure
    grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    joint = figure.add_subplot(grid[1, 0])
    top, right = figure.add_subplot(grid[0, 0], sharex=joint), figure.add_subplot(grid[1, 1], sharey=joint)
    points = None if data is None else _rows(data, 2)
    limits = _limits(density, points)
    _draw_contours(joint, density, points, limits)
    for i, ax in enumerate((top, right)):
        if points is not None:
            ax.hist(points[:, i], bins, density=True, color=GREY, orientation="vertical" if i == 0 else "horizontal")
        v = np.linspace(*limits[i], 400)[:, None]
        p = np.exp(_log_prob(density.marginal([i]), v))
        ax.plot(*((v[:, 0], p) if i == 0 else (p, v[:, 0])), color=WARM, lw=2)
        ax.tick_params(labelbottom=False, labelleft=False)
        ax.spines[["top", "right"]].set_visible(False)
    names = _names(density)
    joint.set(xlabel=names[0], ylabel=names[1])
    return joint, top, right


def plot_pairs(density: Any, data: ArrayLike | None = None, *, figure: Figure | None = None, bins: int = 40) -> Figure:
    """Draw a density in several dimensions: the marginals of one feature on the diagonal, of two below it."""
    d = _n_features(density)
    if d > MAX_FEATURES:
        raise InvalidInputError(
            f"density has {d} features, and at most {MAX_FEATURES} fit into one picture: draw a marginal of some"
        )
    figure = plt.figure(figsize=(2.2 * d, 2.2 * d), layout="constrained") if figure is None else figure
    axes, names = figure.subplots(d, d, squeeze=False), _names(density)
    points = None if data is None else _rows(data, d)
    for i in range(d):
        for j in range(d):
            ax = axes[i, j]
            if j > i:
                ax.set_visible(False)
            elif i == j:
                column = None if points is None else points[:, [i]]
                plot_density(density.marginal([i]), column, ax=ax, components=False, legend=False, bins=bins)
            else:
                pair = density.marginal([j, i])
                columns = None if points is None else points[:, [j, i]]
                _draw_contours(ax, pair, columns, _limits(pair, columns))
            ax.set(xlabel=names[j] if i == d - 1 else "", ylabel=names[i] if j == 0 and i > 0 else "")
    return figure


def plot_model(density: Any, data: ArrayLike | None = None) -> Figure:
    """The picture that suits the number of features: `plot_density`, `plot_joint` or `plot_pairs`."""
    d = _n_features(density)
    if d == 1:
        figure, ax = plt.subplots(figsize=(7, 4.5), layout="constrained")
        plot_density(density, data, ax=ax)
        return figure
    if d == 2:
        figure = plt.figure(figsize=(6.5, 6.5), layout="constrained")
        plot_joint(density, data, figure=figure)
        return figure
    return plot_pairs(density, data)


def normal_components(density: Any) -> list[Component]:
    """The normal distributions of weight above SMALLEST_COMPONENT that dense machines are made of, heaviest first.

    Diagonal machines with many hidden units have none that matter alone.
    """
    distribution = getattr(density, "distribution_", density)
    weights = distribution.weights.tolist() if isinstance(distribution, RTBMMixture) else [1.0]
    machines = distribution.components if isinstance(distribution, RTBMMixture) else [distribution]
    parts = [part for w, machine in zip(weights, machines, strict=True) for part in _machine_components(machine, w)]
    return sorted(parts, key=lambda part: -part.weight)


def plot_activations(network: Any, data: ArrayLike | None = None, *, figure: Any = None) -> Any:
    """Draw the activation functions E(h|v) that the theta units of a network have learned, a panel for each layer.

    Parameters
    ----------
    network : estimator or module
        A fitted `ThetaNetRegressor` or `ThetaNetClassifier`, or a torch module with theta layers of diagonal Q.
    data : (n, n_features)
        Inputs of the network: each function is then drawn where they lead, and else over two periods.
    figure : Figure or SubFigure
        Where to draw; by default a new figure, which is returned.

    Examples
    --------
    >>> import torch
    >>> from rtbm.plotting import plot_activations
    >>> network = torch.nn.Sequential(ThetaLayer(1, 3), torch.nn.Linear(3, 2), ThetaLayer(2, 2, phase="II"))
    >>> len(plot_activations(network).axes)
    2
    """
    module = getattr(network, "module_", network)
    if not isinstance(module, torch.nn.Module):
        raise InvalidInputError(f"network must be a fitted estimator or a torch module, got a {type(network).__name__}")
    layers = [part for part in module.modules() if isinstance(part, ThetaLayer) and part.hidden == "diagonal"]
    if not layers:
        raise InvalidInputError("network must have a theta layer with diagonal Q: there is nothing to draw")
    reached = _reached(module, layers, data)
    if figure is None:
        figure = plt.figure(figsize=(3.4 * len(layers), 3.2), layout="constrained")
    axes = figure.subplots(1, len(layers), squeeze=False)
    for number, (layer, ax) in enumerate(zip(layers, axes[0], strict=True), start=1):
        u = np.linspace(*reached[number - 1], 801)
        with torch.no_grad():
            E = layer.activation(torch.from_numpy(u).to(layer.weight)).double().cpu().numpy()
            q = layer.Q.detach().double().cpu().numpy()
        colours = plt.get_cmap("viridis")(np.linspace(0.1, 0.85, layer.out_features))
        for j in range(layer.out_features):
            label = f"q = {q[j]:.3g}" if layer.out_features <= MAX_FEATURES else None
            ax.plot(u[:, j], E[:, j], color=colours[j], label=label)
        ax.set(xlabel="u", title=f"layer {number} (phase {layer.phase})")
        if layer.out_features <= MAX_FEATURES:
            ax.legend(frameon=False, fontsize="small")
    axes[0, 0].set_ylabel("E(h|v)")
    return figure


def plot_expectations(machine: RTBMDistribution, interval: tuple[float, float], *, ax: Axes | None = None) -> Axes:
    """Draw E(h|v) of a machine with one visible unit over an interval of v, a line for each hidden unit.

    Examples
    --------
    >>> machine = RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
    >>> plot_expectations(machine, (-10.0, 10.0)).get_xlabel()
    'v'
    >>> plt.close()
    """
    _check_features(machine, 1)
    ax = plt.subplots(layout="constrained")[1] if ax is None else ax
    v = np.linspace(*interval, 801)[:, None]
    with torch.no_grad():
        E = machine.hidden_mean(v).double().cpu().numpy()
    colours = plt.get_cmap("viridis")(np.linspace(0.1, 0.7, machine.n_hidden))
    for j, colour in enumerate(colours):
        ax.plot(v[:, 0], E[:, j], color=colour)
    ax.set(xlabel="v", ylabel="E(h|v)")
    return ax


def plot_images(images: ArrayLike, titles: Sequence[str] = (), *, figure: Any = None) -> Any:
    """Draw images side by side, each on its own logarithmic scale, so that faint parts show.

    Parameters
    ----------
    images : (n, rows, columns)
        Non-negative pixels.
    titles : sequence of str
        One for each image, or none.
    figure : Figure or SubFigure
        Where to draw; by default a new one.

    Examples
    --------
    >>> from rtbm import datasets
    >>> jets = datasets.jets.load("test")
    >>> figure = plot_images(jets.images[:2], ["first", "second"])
    >>> plt.close(figure)
    """
    pictures = as_real(images, "images", finite=False).double().cpu().numpy()
    if pictures.ndim != 3 or not pictures.size or not np.isfinite(pictures).all() or pictures.min() < 0:
        raise InvalidInputError(
            f"images must be finite, non-negative and of shape (n, rows, columns), got shape {pictures.shape}"
        )
    if len(titles) not in (0, len(pictures)):
        raise InvalidInputError(f"titles must be {len(pictures)}, one for each image, or none, got {len(titles)}")
    if figure is None:
        figure = plt.figure(figsize=(2.6 * len(pictures), 2.8), layout="constrained")
    for i, (ax, picture) in enumerate(zip(np.ravel(figure.subplots(1, len(pictures))), pictures, strict=True)):
        scale = max(float(picture.max()), 1e-300)
        ax.imshow(np.log10(picture / scale + 1e-4), cmap="viridis", vmin=-4, vmax=0)
        ax.set(xticks=[], yticks=[], title=titles[i] if titles else "")
    return figure


def _reached(module: torch.nn.Module, layers: list[ThetaLayer], data: ArrayLike | None) -> list[tuple[Floats, Floats]]:
    """The ends of the interval of u in which each unit is drawn."""
    if data is None:
        spans = []
        for layer in layers:
            period = layer.Q.detach().double().cpu().numpy() if layer.phase == "I" else 2 * np.pi
            spans.append((-np.ones(layer.out_features) * period, np.ones(layer.out_features) * period))
        return spans
    seen: dict[ThetaLayer, Floats] = {}

    def note(layer: Any, inputs: Any, output: Any) -> None:
        u = torch.nn.functional.linear(inputs[0].to(layer.weight.dtype), layer.weight, layer.bias)
        seen[layer] = u.detach().double().cpu().numpy().reshape(-1, layer.out_features)

    rows = np.asarray(data, dtype=np.float64)
    if not rows.size or not np.isfinite(rows).all():
        raise InvalidInputError("data must hold rows of finite numbers")
    hooks = [layer.register_forward_hook(note) for layer in layers]
    modes = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad():
            module.eval()(torch.as_tensor(rows).to(next(module.parameters())))
    finally:
        for hook in hooks:
            hook.remove()
        for part, is_training in modes.items():
            part.training = is_training
    if len(seen) < len(layers):
        raise InvalidInputError("network has theta layers that data do not pass through: draw its parts one by one")
    return [(seen[layer].min(axis=0), seen[layer].max(axis=0)) for layer in layers]


def _machine_components(machine: RTBMDistribution, weight: float) -> list[Component]:
    if machine.hidden != "dense":
        return []
    lattice = machine.lattice
    try:
        states, log_prob = DiscreteGaussian(lattice.A, lattice.a).table()
    except TooManyTermsError:
        return []
    shares = weight * log_prob.exp()
    means, covariance = (lattice.mean + states @ lattice.F.mT).numpy(), lattice.covariance.numpy()
    return [
        Component(share, mean, covariance)
        for share, mean in zip(shares.tolist(), means, strict=True)
        if share > SMALLEST_COMPONENT
    ]


def _component_pdf(density: Any, part: Component, v: Floats) -> Floats:
    """The density of a component in one dimension; with bounds, in the user's coordinates."""
    bounds = getattr(density, "_bounds", None)
    line, log_slope = (v, 0.0) if bounds is None else bounds.to_line(v)
    variance = part.covariance[0, 0]
    exponent = -0.5 * (line[:, 0] - part.mean[0]) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    return part.weight * np.exp(exponent + log_slope)


def _draw_contours(ax: Axes, density: Any, points: Floats | None, limits: list[tuple[float, float]]) -> None:
    if points is not None:
        ax.plot(*points[:: max(1, len(points) // 5000)].T, ".", ms=2, alpha=0.25, color=DARK, rasterized=True)
    x, y = (np.linspace(*limit, 150) for limit in limits)
    mesh = np.stack(np.meshgrid(x, y), axis=-1)
    p = np.exp(_log_prob(density, mesh.reshape(-1, 2))).reshape(mesh.shape[:2])
    levels = p.max() * np.array([0.003, 0.01, 0.03, 0.1, 0.2, 0.4, 0.6, 0.8])
    ax.contour(x, y, p, levels, colors=WARM, linewidths=1.0)
    ax.set(xlim=limits[0], ylim=limits[1])


def _limits(density: Any, points: Floats | None) -> list[tuple[float, float]]:
    """Where to draw each feature: the range of the data, or of a sample of the density."""
    if points is None:
        if hasattr(density, "score_samples"):
            points = density.sample(4000, random_state=0)
        else:
            points = density.sample((4000,), generator=torch.Generator(density.device).manual_seed(0)).cpu().numpy()
    low, high = np.nanmin(points, axis=0), np.nanmax(points, axis=0)
    margin = 0.03 * (high - low)
    bounds = getattr(density, "_bounds", None)
    low, high = low - margin, high + margin
    if bounds is not None:
        low, high = np.maximum(low, bounds.low), np.minimum(high, bounds.high)
    return [(float(a), float(b)) for a, b in zip(low, high, strict=True)]


def _log_prob(density: Any, rows: Floats) -> Floats:
    if hasattr(density, "score_samples"):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return density.score_samples(rows)
    with torch.no_grad():
        return density.log_prob(rows).cpu().numpy()


def _rows(data: ArrayLike, d: int) -> Floats:
    rows = np.asarray(data, dtype=np.float64)
    rows = rows[:, None] if rows.ndim == 1 else rows
    if rows.ndim != 2 or rows.shape[1] != d:
        raise InvalidInputError(f"data must have shape (n, {d}) like the density, got {rows.shape}")
    return rows


def _n_features(density: Any) -> int:
    return getattr(density, "distribution_", density).n_visible


def _check_features(density: Any, d: int) -> None:
    if _n_features(density) != d:
        raise InvalidInputError(f"density must have {d} feature(s) for this picture, got {_n_features(density)}")


def _names(density: Any) -> list[str]:
    names = getattr(density, "feature_names_in_", None)
    d = _n_features(density)
    return [f"v{i + 1}" if d > 1 else "v" for i in range(d)] if names is None else [str(name) for name in names]
