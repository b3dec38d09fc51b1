"""Pictures of densities, expectations, activation functions and images.

Of tables with categories and atoms, pictures show the columns of numbers, and of these the numbers that are no atoms.
"""

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from rtbm.common import TWO_PI, Floats
from rtbm.distributions import (
    CategoryColumn,
    ColumnMap,
    DiscreteGaussian,
    MixedDistribution,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.distributions.maps import to_line
from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.nn import ThetaLayer
from rtbm.paths import printable
from rtbm.validation import as_real

DARK, LIGHT, WARM, GREY = "#1b4965", "#5fa8d3", "#e07a5f", "#c8c8c8"
"""The colours of all pictures."""
SMALLEST_COMPONENT = 0.005
"""Smallest weight of a normal component that is drawn. Smaller ones would lie on the axis."""
MAX_COMPONENTS = 20
"""Most normal components that are drawn; more could not be told apart, so then none are."""
DRAWN_WEIGHT = 0.5
"""Least weight of all components that are drawn. A committee has many small ones, of which a few would tell nothing."""
MAX_PANELS = 6
"""Most features of a picture of pairs, and most units with a legend; more would be too small to read."""
MAX_POINTS = 5000
"""Most rows that are drawn as points. A picture of a million rows takes as long as one of these."""
N_DRAWS = 4000
"""Draws from a density that set the axes and the levels of contours. More make both more accurate, and slower."""
CONTOUR_WIDTHS = {0.99: 0.8, 0.9: 1.4, 0.5: 2.2}
"""Line widths of the contours, by the share of the probability that each encloses."""
OUTLIER_SHARE = 0.001
"""Share of the rows, on either side of a feature, that does not extend the axes."""
MAX_NORMALS, FAINTEST, INVISIBLE_SHARE = 2000, 1e-12, 1e-5
"""Most normal components that are summed one by one, the smallest weight of one that counts, and the probability that
their sum may leave out. Up to this number the sum is faster than log θ̃ of each machine."""


SMALLEST_TAIL, UNUSUAL = 1e-12, 0.05
"""Pictures show smaller tail probabilities as SMALLEST_TAIL, and what is normal where they are below UNUSUAL."""
EXPLAINED = ("p_value", "alone", "expected", "low", "high")


class NormalPart(NamedTuple):
    """A normal distribution in a sum that makes up a density."""

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
    data : (n, 1) or (n,), default=None
        Data for the histogram.
    ax : Axes, default=None
        Where to draw; by default in a new figure.
    components : bool, default=True
        Whether to draw the normal components P(h)·N(v; mean + Fh, Σ) of dense machines, if there are at most 20.
    legend : bool, default=True
        Whether to draw a legend.
    bins : int, default=50
        Number of bins of the histogram.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
    >>> plot_density(machine).get_ylabel()
    'density'
    >>> plt.close()
    """
    density, data = _numbers(density, data)
    _check_features(density, 1)
    ax = plt.subplots(figsize=(7, 4.5), layout="constrained")[1] if ax is None else ax
    subject = _Subject(density, data)
    _draw_line(ax, subject, 0, bins)
    if components:
        v = np.linspace(*subject.limits[0], 800)[:, None]
        parts = normal_components(density)
        telling = len(parts) <= MAX_COMPONENTS and sum(part.weight for part in parts) > DRAWN_WEIGHT
        for i, part in enumerate(parts if telling else []):
            label = "its components" if i == 0 else None
            ax.plot(v, _sum_of_normals([part], subject.maps, [0], v), color=DARK, lw=0.7, label=label)
    ax.set(ylabel="density", xlabel=subject.names[0])
    if legend:
        ax.legend(frameon=False)
    return ax


def plot_joint(
    density: Any, data: ArrayLike | None = None, *, figure: Any = None, bins: int = 50, legend: bool = True
) -> tuple[Axes, Axes, Axes]:
    """Draw a density in two dimensions: contours over data, and both projections beside them.

    The contours enclose 50, 90 and 99 % of the probability in the smallest area. At most 5000 rows are drawn as points.
    Returns the axes of the contours, of the upper projection and of the right one.

    Examples
    --------
    >>> import rtbm
    >>> machine = rtbm.RTBMDistribution([[1.0, 0.2], [0.2, 1.0]], [[1.0], [0.0]], [[9.0]], [0.0, 0.0], [0.0])
    >>> joint, top, right = plot_joint(machine)
    >>> plt.close()
    """
    density, data = _numbers(density, data)
    _check_features(density, 2)
    figure = plt.figure(figsize=(6.5, 7), layout="constrained") if figure is None else figure
    grid = figure.add_gridspec(2, 2, width_ratios=(4, 1), height_ratios=(1, 4))
    joint = figure.add_subplot(grid[1, 0])
    top, right = figure.add_subplot(grid[0, 0], sharex=joint), figure.add_subplot(grid[1, 1], sharey=joint)
    subject = _Subject(density, data)
    _draw_contours(joint, subject, [0, 1], 150)
    for i, ax in enumerate((top, right)):
        _draw_line(ax, subject, i, bins, upright=i == 0)
        ax.tick_params(labelbottom=False, labelleft=False)
        ax.spines[["top", "right"]].set_visible(False)
    joint.set(xlabel=subject.names[0], ylabel=subject.names[1])
    if legend:
        _figure_legend(figure, [joint], loc="outside lower center", ncols=2)
    return joint, top, right


def plot_pairs(
    density: Any, data: ArrayLike | None = None, *, figure: Any = None, bins: int = 40, legend: bool = True
) -> Any:
    """Draw a density in several dimensions: the marginals of one feature on the diagonal, of two below it.

    Contours and points are as in `plot_joint`. Returns the figure.
    """
    density, data = _numbers(density, data)
    d = _n_features(density)
    if d > MAX_PANELS:
        raise InvalidInputError(
            f"density has {d} features, and at most {MAX_PANELS} fit into one picture: draw a marginal of some"
        )
    figure = plt.figure(figsize=(2.0 * d, 2.0 * d), layout="constrained") if figure is None else figure
    grid, subject = figure.add_gridspec(d, d), _Subject(density, data)
    for i in range(d):
        for j in range(i + 1):
            ax = figure.add_subplot(grid[i, j])
            if i == j:
                _draw_line(ax, subject, i, bins)
                ax.set_yticks([])
            else:
                _draw_contours(ax, subject, [j, i], 80)
            ax.tick_params(labelbottom=i == d - 1, labelleft=j == 0)
            ax.set(xlabel=subject.names[j] if i == d - 1 else "", ylabel=subject.names[i] if j == 0 and i > 0 else "")
    if legend:
        _figure_legend(figure, figure.axes[:2], loc="upper right", bbox_to_anchor=(1, 0.96))  # below the title
    return figure


def plot_model(density: Any, data: ArrayLike | None = None) -> Figure:
    """Draw a density by `plot_density`, `plot_joint` or `plot_pairs`, according to its features, with a title."""
    density, data = _numbers(density, data)
    d = _n_features(density)
    if d == 1:
        figure: Any = plot_density(density, data).figure
    else:
        figure = plot_joint(density, data)[0].figure if d == 2 else plot_pairs(density, data)
    machines = _machines(density)
    several, n_hidden = len(machines) > 1, machines[0][1].n_hidden
    kind = "Committee" if hasattr(density, "candidate_weights_") else "Mixture"
    title = f"{kind} of {len(machines)} machines" if several else f"Machine with {n_hidden} hidden unit"
    title += "s" * (not several and n_hidden > 1)
    figure.suptitle("Gaussian" + "s" * several if getattr(density, "is_gaussian_", False) else title)
    return figure


def normal_components(density: Any, smallest: float = SMALLEST_COMPONENT) -> list[NormalPart]:
    """The normal components of dense machines with a weight above `smallest`, heaviest first.

    Diagonal machines, dense ones with more than MAX_NORMALS components, and tables with atoms give none.
    """
    parts: list[NormalPart] = []
    if isinstance(_distribution(density), MixedDistribution):
        return parts
    for weight, machine in _machines(density):
        if machine.coupling != "dense":
            continue
        A, a, F, mean, covariance = machine.lattice
        try:
            states, log_prob = DiscreteGaussian(A, a).table(MAX_NORMALS)
        except TooManyTermsError:
            continue
        means, noise = (mean + states @ F.mT).cpu().numpy(), covariance.cpu().numpy()
        shares = (weight * log_prob.exp()).tolist()
        parts += [NormalPart(share, m, noise) for share, m in zip(shares, means, strict=True) if share > smallest]
    return sorted(parts, key=lambda part: -part.weight)


def plot_activations(network: Any, data: ArrayLike | None = None, *, figure: Any = None) -> Any:
    """Draw the activation functions E(h|v) that the theta units of a network have learned, a panel for each layer.

    Parameters
    ----------
    network : estimator or module
        A fitted `ThetaNetRegressor` or `ThetaNetClassifier`, or a torch module with theta layers of diagonal Q.
    data : (n, n_features), default=None
        Inputs of the network: each function is drawn over the arguments that they cause, or else over two periods.
    figure : Figure or SubFigure, default=None
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
    curves = activation_curves(module, data)
    if figure is None:
        figure = plt.figure(figsize=(3.4 * len(curves), 3.2), layout="constrained")
    axes = figure.subplots(1, len(curves), squeeze=False)
    for number, ((phase, q, u, E), ax) in enumerate(zip(curves, axes[0], strict=True), start=1):
        ax.set_prop_cycle(color=plt.get_cmap("viridis")(np.linspace(0.1, 0.85, len(q))))
        lines = ax.plot(u, E)
        ax.set(xlabel="u", title=f"layer {number} (phase {phase})")
        if len(q) <= MAX_PANELS:
            ax.legend(lines, [f"q = {size:.3g}" for size in q], frameon=False, fontsize="small")
    axes[0, 0].set_ylabel("E(h|v)")
    return figure


class ActivationCurves(NamedTuple):
    """The activation functions of a theta layer: its phase, q (units,), arguments u and E(h|v) (points, units)."""

    phase: str
    q: Floats
    u: Floats
    E: Floats


def activation_curves(module: torch.nn.Module, data: ArrayLike | None = None) -> list[ActivationCurves]:
    """The activation functions of the theta layers with diagonal Q, over the arguments that `plot_activations` draws.

    Examples
    --------
    >>> [curves.E.shape for curves in activation_curves(torch.nn.Sequential(ThetaLayer(1, 3)))]
    [(801, 3)]
    """
    layers = [part for part in module.modules() if isinstance(part, ThetaLayer) and part.coupling == "diagonal"]
    if not layers:
        raise InvalidInputError("network must have a theta layer with diagonal Q: there is nothing to draw")
    curves = []
    for layer, ends in zip(layers, _reached(module, layers, data), strict=True):
        u = np.linspace(*ends, 801)
        with torch.no_grad():
            E = layer.activation(torch.from_numpy(u).to(layer.weight)).double().cpu().numpy()
        curves.append(ActivationCurves(layer.phase, layer.Q.detach().double().cpu().numpy(), u, E))
    return curves


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
    ax.set_prop_cycle(color=colours)
    ax.plot(v, E)
    ax.set(xlabel="v", ylabel="E(h|v)")
    return ax


def plot_explanation(detector: Any, row: Any, *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Draw how unusual each cell of a row is, alone and given the usual rest, and what would be normal there.

    Bars are −log₁₀ of the tail probabilities of `explain`: 2 is one in a hundred. The text beside a bar is the interval
    of normal values, or the likeliest level, for cells whose tail probability is below 0.05. The culprits of a data
    frame are at the top.

    Parameters
    ----------
    detector : RTBMOutlierDetector
        A fitted detector.
    row : (1, n_features)
        One row, an array or a data frame.
    ax : Axes, default=None
        Where to draw; by default in a new figure.
    legend : bool, default=True
        Whether to draw a legend.

    Examples
    --------
    >>> import rtbm
    >>> X = rtbm.datasets.correlated_gaussian.sample(500)
    >>> detector = rtbm.RTBMOutlierDetector(rtbm.RTBMDensity(1, random_state=0)).fit(X)
    >>> plot_explanation(detector, [[1.5, -1.5]]).get_xlabel()
    '−log₁₀ of the tail probability'
    >>> plt.close()
    """
    if len(row) != 1:
        raise InvalidInputError(f"row must be one row, got {len(row)}: pass a slice, as in X[3:4]")
    found = detector.explain(row)
    is_frame = hasattr(row, "columns")
    numbers = getattr(detector, "feature_names_in_", range(detector.n_features_in_))
    names = list(found["column"] if is_frame else numbers)
    cells = list(found["value"]) if is_frame else list(np.asarray(row, dtype=object)[0])
    parts = {name: list(found[name]) if is_frame else list(getattr(found, name)[0]) for name in EXPLAINED}
    ax = plt.subplots(figsize=(7, 1 + 0.45 * len(names)), layout="constrained")[1] if ax is None else ax
    place, lengths = np.arange(len(names)), {}
    for name, colour, label, shift in (("alone", GREY, "alone", -0.2), ("p_value", WARM, "given the usual ones", 0.2)):
        p = np.array(parts[name], dtype=np.float64)
        lengths[name] = np.nan_to_num(-np.log10(np.maximum(p, SMALLEST_TAIL)))
        ax.barh(place + shift, lengths[name], 0.38, color=colour, label=label)
    for i in np.flatnonzero(np.array(parts["p_value"], dtype=np.float64) < UNUSUAL):
        low, high, expected = (_shown(parts[name][i]) for name in ("low", "high", "expected"))
        text = f" normal: {low} to {high}" if low else f" normal: {expected}"
        ax.text(max(length[i] for length in lengths.values()), float(i), text, va="center", fontsize=8)
    titles = [f"{name} = {_shown(cell) or 'unknown'}" for name, cell in zip(names, cells, strict=True)]
    ax.set(yticks=place, yticklabels=titles, xlabel="−log₁₀ of the tail probability")
    ax.set_xlim(0, 3 * max(1.0, *(length.max() for length in lengths.values())))
    ax.invert_yaxis()
    if legend:
        ax.legend(frameon=False)
    return ax


def _shown(value: Any) -> str:
    """A number, level or date as text; empty for gaps."""
    if value is None or value != value:
        return ""
    if hasattr(value, "isoformat"):
        return str(value)[:10]
    return f"{value:.4g}" if isinstance(value, float | np.floating) else str(value)


def plot_images(images: ArrayLike, titles: Sequence[str] = (), *, figure: Any = None) -> Any:
    """Draw images side by side, each on its own logarithmic scale, so that faint parts are visible.

    Parameters
    ----------
    images : (n, rows, columns)
        Non-negative pixels.
    titles : sequence of str, default=()
        One title for each image, or none.
    figure : Figure or SubFigure, default=None
        Where to draw; by default a new figure.

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
    """For each layer the ends of the intervals of u over which its units are drawn."""
    if data is None:
        sizes = [layer.Q.detach().double().cpu().numpy() for layer in layers]
        periods = [q if layer.phase == "I" else np.full_like(q, TWO_PI) for layer, q in zip(layers, sizes, strict=True)]
        return [(-period, period) for period in periods]
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


class MarginalDensities:
    """The densities of some features of a density, summed over normal components where these are few.

    Examples
    --------
    >>> machine = RTBMDistribution([[1.0]], [[1.0]], [[9.0]], [0.0], [0.0])
    >>> bool(abs(MarginalDensities(machine)([0], np.zeros((1, 1)))[0] - machine.log_prob([0.0]).exp()) < 1e-9)
    True
    """

    def __init__(self, density: Any):
        self._density, self._d = density, _n_features(density)
        self._maps, self._atoms = _maps(density), _atoms(density)
        normals = normal_components(density, FAINTEST)
        is_complete = len(normals) <= MAX_NORMALS and sum(part.weight for part in normals) > 1 - INVISIBLE_SHARE
        self._normals = normals if is_complete else None

    def __call__(self, features: list[int], rows: Floats) -> Floats:
        """The density (n,) of some features at rows (n, len(features)); at an atom, that of numbers beside it."""
        if self._normals is not None:
            return _sum_of_normals(self._normals, self._maps, features, rows)
        rows = np.column_stack([
            np.where(np.isin(column, self._atoms[i]), np.nextafter(column, np.inf), column)
            for i, column in zip(features, rows.T, strict=True)
        ])  # fmt: skip
        density = self._density if len(features) == self._d else self._density.marginal(features)
        if not hasattr(density, "score_samples"):
            with torch.no_grad():
                return density.log_prob(rows).exp().cpu().numpy()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")
            return np.exp(density.score_samples(rows))


class _Subject:
    """A density to draw and rows of data: what all panels of a picture share."""

    def __init__(self, density: Any, data: ArrayLike | None):
        self.density, d = density, _n_features(density)
        default = [f"v{i + 1}" if d > 1 else "v" for i in range(d)]
        names = getattr(density, "feature_names_in_", default)
        self.names = [printable(name).replace("$", r"\$") for name in names]  # else dollars begin mathematics
        self.maps, self.atoms = _maps(density), _atoms(density)
        self.draws, self.pdf = self._draw(), MarginalDensities(density)
        self.rows = None if data is None else np.asarray(data, dtype=np.float64)
        if self.rows is not None:
            self.rows = self.rows[:, None] if self.rows.ndim == 1 else self.rows
            if self.rows.shape[1:] != (d,):
                raise InvalidInputError(f"data must have shape (n, {d}) like the density, got {self.rows.shape}")
        self.limits = [self._interval(i) for i in range(d)]

    def _draw(self) -> Floats:
        """N_DRAWS draws from the density with a fixed seed."""
        distribution = _distribution(self.density)
        generator = torch.Generator(distribution.device).manual_seed(0)
        return distribution.sample((N_DRAWS,), generator=generator).double().cpu().numpy()

    def column(self, i: int) -> Floats:
        """The data of a feature without missing ones; draws from the density if there are none."""
        column = (self.draws if self.rows is None else self.rows)[:, i]
        known = column[~np.isnan(column)]
        return known if len(known) else self.draws[:, i]

    def smooth_draws(self, features: list[int]) -> Floats:
        """The draws of some features without atoms."""
        is_atom = np.column_stack([np.isin(self.draws[:, i], self.atoms[i]) for i in features]).any(axis=1)
        return self.draws[~is_atom][:, features]

    @cached_property
    def points(self) -> Floats:
        """At most MAX_POINTS rows, chosen with a fixed seed."""
        rows: Any = self.rows
        chosen = np.random.default_rng(0).choice(len(rows), min(len(rows), MAX_POINTS), replace=False)
        return rows[chosen]

    @cached_property
    def n_rows(self) -> str:
        """The number of rows, and of those outside the axes, in words."""
        rows: Any = self.rows
        low, high = np.array(self.limits).T
        beyond = int(((rows < low) | (rows > high)).any(axis=1).sum())
        return f"{len(rows):,} row{'s' * (len(rows) != 1)}" + (f" ({beyond:,} beyond the axes)" if beyond else "")

    def _interval(self, i: int) -> tuple[float, float]:
        """The axis of a feature: it spans the data and the draws, with a margin and without outliers, in the bounds."""
        ends = []
        for column in (self.column(i), self.draws[:, i]):
            low, high = np.quantile(column, [OUTLIER_SHARE, 1 - OUTLIER_SHARE])
            margin = 0.1 * (high - low) or 0.5
            ends.append(
                (max(low - margin, column.min() - 0.3 * margin), min(high + margin, column.max() + 0.3 * margin))
            )
        low, high = np.min(ends), np.max(ends)
        first, last = self.maps[i].support
        low, high = max(low, first), min(high, last)
        return float(low), float(high)


def _draw_line(ax: Axes, subject: _Subject, i: int, bins: int, upright: bool = True) -> None:
    """Draw the density of one feature over a histogram; if not upright, the feature is on the vertical axis."""
    limits = subject.limits[i]
    if subject.rows is not None:
        column = subject.column(i)
        ends = max(limits[0], column.min()), min(limits[1], column.max())
        counts, edges = np.histogram(column[~np.isin(column, subject.atoms[i])], bins, ends)
        heights, label = counts / (len(column) * np.diff(edges)), f"histogram of {subject.n_rows}"
        orientation: Any = "vertical" if upright else "horizontal"
        ax.stairs(heights, edges, fill=True, color=GREY, orientation=orientation, label=label)
    v = np.linspace(*limits, 800)
    p = subject.pdf([i], v[:, None])
    ax.plot(*((v, p) if upright else (p, v)), color=WARM, lw=2, label="fit")
    ax.set(**dict(zip(("xlim", "ylim") if upright else ("ylim", "xlim"), (limits, (0, None)), strict=True)))


def _draw_contours(ax: Axes, subject: _Subject, features: list[int], n_steps: int) -> None:
    """Draw contours of two features that enclose shares of the probability, over the data as points.

    The level that encloses a share q is the (1 − q)-quantile of the density at its own draws.
    """
    if subject.rows is not None:
        points = subject.points
        label = ("" if len(points) == len(subject.rows) else f"{len(points):,} of ") + subject.n_rows
        ax.plot(*points[:, features].T, ".", ms=2, alpha=0.25, color=DARK, rasterized=True, label=label)
    x, y = (np.linspace(*subject.limits[i], n_steps) for i in features)
    mesh = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    p = subject.pdf(features, np.concatenate([mesh, subject.smooth_draws(features)]))
    levels = np.quantile(p[len(mesh) :], [1 - mass for mass in CONTOUR_WIDTHS])
    widths = list(CONTOUR_WIDTHS.values())
    ax.contour(x, y, p[: len(mesh)].reshape(n_steps, n_steps), levels, colors=WARM, linewidths=widths)
    for mass, width in reversed(CONTOUR_WIDTHS.items()):
        ax.plot([], [], color=WARM, lw=width, label=f"fit, {100 * mass:g} % inside")
    ax.set(xlim=subject.limits[features[0]], ylim=subject.limits[features[1]])


def _figure_legend(figure: Any, axes: Sequence[Axes], **options: Any) -> None:
    handles = [handle for ax in axes for handle in ax.get_legend_handles_labels()[0]]
    legend = figure.legend(handles=handles, frameon=False, markerscale=5, **options)
    for handle in legend.legend_handles:
        handle.set_alpha(1)


def _machines(density: Any) -> list[tuple[float, RTBMDistribution]]:
    """The machines of a density, and their weights."""
    distribution = _distribution(density)
    distribution = getattr(distribution, "base", distribution)
    if isinstance(distribution, RTBMMixture | MixedDistribution):
        return list(zip(distribution.weights.tolist(), distribution.components, strict=True))
    return [(1.0, distribution)]


def _sum_of_normals(parts: list[NormalPart], maps: list[ColumnMap], features: list[int], rows: Floats) -> Floats:
    """The density (n,) of some features of a sum of normal distributions, in the coordinates of the data.

    The exponents are quadratic polynomials in the rows, so one matrix product computes all of them.
    """
    line, log_slope = (part.numpy() for part in to_line([maps[i] for i in features], torch.from_numpy(rows)))
    weights, means, covariances = (np.array(values) for values in zip(*parts, strict=True))
    precisions = np.linalg.inv(covariances[:, features][:, :, features])
    centre = weights @ means[:, features] / weights.sum()
    means, line = means[:, features] - centre, line - centre
    slopes = np.einsum("kij,kj->ki", precisions, means)
    constants = np.log(weights) + 0.5 * (
        np.linalg.slogdet(precisions / TWO_PI)[1] - np.einsum("ki,ki->k", slopes, means)
    )
    coefficients = np.column_stack([constants, slopes, -0.5 * precisions.reshape(len(parts), -1)]).T
    total = np.empty(len(line))
    for block in np.array_split(np.arange(len(line)), 1 + len(line) * len(parts) // 1_000_000):
        x = line[block]
        squares = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
        total[block] = np.exp(np.column_stack([np.ones(len(x)), x, squares]) @ coefficients).sum(axis=1)
    return total * np.exp(log_slope.sum(axis=1))


def _distribution(density: Any) -> Any:
    """The distribution of an estimator, or the distribution that was given itself."""
    return getattr(density, "distribution_", density)


def _numbers(density: Any, data: Any) -> tuple[Any, Any]:
    """The density of the columns of numbers, without those that were left out as constant, and the data of these."""
    total = getattr(density, "n_features_in_", _n_features(density))
    kept = [*getattr(density, "_kept", range(total))]
    columns = _columns(density) or [None] * len(kept)
    numbers = [i for i, column in zip(kept, columns, strict=True) if not isinstance(column, CategoryColumn)]
    if not numbers:
        raise InvalidInputError("density has columns of categories alone: there are no numbers to draw")
    if len(numbers) == total:
        return density, data
    return density.marginal(numbers), None if data is None else np.asarray(data)[:, numbers]


def _columns(density: Any) -> list[Any]:
    """The columns of a table with categories or atoms; none for other densities."""
    distribution = _distribution(density)
    return distribution.columns if isinstance(distribution, MixedDistribution) else []


def _maps(density: Any) -> list[ColumnMap]:
    """The map of each feature to the real line."""
    maps = [column.map for column in _columns(density)]
    return maps or getattr(_distribution(density), "maps", [ColumnMap()] * _n_features(density))


def _atoms(density: Any) -> list[Any]:
    """The atoms of each feature."""
    return [column.atoms for column in _columns(density)] or [()] * _n_features(density)


def _n_features(density: Any) -> int:
    return _distribution(density).n_visible


def _check_features(density: Any, d: int) -> None:
    if _n_features(density) != d:
        raise InvalidInputError(f"density must have {d} feature(s) for this picture, got {_n_features(density)}")
