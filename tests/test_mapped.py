"""Distributions of mapped columns: normalised, consistent with each other, and what estimators return."""

import math
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import quad

from machines import bounded, tensor
from rtbm import (
    InvalidInputError,
    MappedDistribution,
    RTBMDensity,
    RTBMDensityCV,
    RTBMDistribution,
    RTBMMixture,
    RTBMRegressor,
    SpikeWarning,
    datasets,
    load,
    save,
)
from rtbm.distributions import ColumnMap, Interval, LearnedMargin, StraightTails, YeoJohnson
from rtbm.distributions.integration.boxes import lower_tail

LINE = RTBMDistribution([[1.0]], [[0.7]], [[2.0]], [0.1], [0.2])
PLANE = RTBMDistribution([[1.0, 0.3], [0.3, 2.0]], [[0.7], [0.2]], [[2.0]], [0.1, -0.3], [0.2])
INF = math.inf


@pytest.mark.parametrize("bounds", [(0.0, INF), (-INF, 1.0), (-1.0, 3.0), (-INF, INF)])
def test_density_integrates_to_the_distribution_function(bounds):
    x = bounded(LINE, [bounds[0]], [bounds[1]])
    ends = x.icdf([0.1, 0.9])[:, 0].tolist()
    mass, _ = quad(lambda v: float(x.log_prob([v]).exp()), *ends, epsabs=1e-11, epsrel=1e-11)
    assert mass == pytest.approx(0.8, abs=1e-9)
    assert x.cdf([[ends[0]], [ends[1]]]).tolist() == pytest.approx([0.1, 0.9], abs=1e-9)


def test_outside_there_is_nothing():
    x = bounded(LINE, [0.0], [1.0])
    assert x.log_prob([[-1.0], [0.0], [1.0], [2.0]]).tolist() == [-INF] * 4
    assert x.cdf([[-1.0], [0.0], [1.0], [2.0]]).tolist() == pytest.approx([0.0, 0.0, 1.0, 1.0], abs=1e-14)
    draws = x.sample((1000,), generator=torch.Generator().manual_seed(0))
    assert bool(((draws > 0) & (draws < 1)).all())


def test_gradients():
    x = bounded(PLANE, [0.0, -1.0], [INF, 2.0])
    middle = torch.zeros(1, dtype=torch.float64, requires_grad=True)  # of a density that is symmetric about it
    normal = [[[1.0]], [0.0], [[0.0]]]
    assert torch.autograd.gradcheck(
        lambda m: bounded(RTBMDistribution.from_lattice(*normal, m, [[1.0]]), [0.0], [1.0]).mean, (middle,)
    )
    known = torch.tensor([0.3, 1.7], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda v: (x.conditional({0: v}).mean, x.conditional({0: v}).variance), (known,))


@pytest.mark.parametrize("bounds", [(0.0, INF), (-INF, 1.0), (-1.0, 3.0), (-1.0, 0.0), (-INF, INF)])
@pytest.mark.parametrize("width", [0.3, 2.0, 8.0])
def test_moments_are_integrals_over_quantiles(bounds, width):
    width = width if np.isfinite(bounds).all() else min(width, 2.0)  # the tails of wider log-normals count too much
    x = bounded(LINE.affine([[width]], [0.5 * width]), [bounds[0]], [bounds[1]])
    z = np.linspace(-8, 8, 2001)
    nodes = x.icdf(torch.special.ndtr(torch.from_numpy(z)))[:, 0].numpy()
    weights = (z[1] - z[0]) * np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    mean = weights @ nodes
    assert float(x.mean) == pytest.approx(mean, rel=1e-5)
    assert float(x.variance) == pytest.approx(weights @ (nodes - mean) ** 2, rel=1e-3)


@pytest.mark.parametrize(("place", "width"), [(1.7e9, 1.0), (1e5, 1e-3), (-1e5, 1e-3)])
def test_standard_deviations_far_from_a_bound(place, width):
    X = np.random.default_rng(0).multivariate_normal([0, 0], [[1.0, 0.8], [0.8, 1.0]], 300)
    free = RTBMDensity(1, n_init=1, random_state=0).fit(X)
    ends = (0, None) if place > 0 else (None, 0)
    digits = abs(place) / width * np.finfo(float).eps  # what the table itself has
    for bounds in (ends, (min(2 * place, 0), max(2 * place, 0))):
        model = RTBMDensity(1, bounds=bounds, n_init=1, random_state=0).fit(place + width * X)
        _, std = model.predict_mean(place + width * X[:5], 1, return_std=True)
        assert np.allclose(std / width, free.predict_mean(X[:5], 1, return_std=True)[1], rtol=1e-4 + 1e3 * digits)


def test_what_cannot_be():
    with pytest.raises(InvalidInputError, match="low < high"):
        bounded(LINE, [1.0], [0.0])
    with pytest.raises(InvalidInputError, match="inside the bounds"):
        bounded(PLANE, [0.0, 0.0], [INF, INF]).conditional({0: -1.0})


def test_estimators_return_the_density_of_the_features_as_given():
    X = datasets.gamma.sample(200, seed=0)
    model = RTBMDensity(1, bounds=(0, None), n_init=1, random_state=0).fit(X)
    assert isinstance(model.distribution_, MappedDistribution)
    assert np.allclose(model.distribution_.log_prob(X), model.score_samples(X), rtol=0, atol=1e-12)
    assert model.distribution_.base.n_visible == 1
    free = RTBMDensity(1, n_init=1, random_state=0).fit(X)
    assert isinstance(free.distribution_, RTBMDistribution)


def touching():
    """Rows with values on bounds, and the same rows with those moved inside: halfway to the nearest other value."""
    X = np.random.default_rng(0).beta(2, 2, (120, 2)).round(3)
    X[:3, 0], X[3:5, 1] = 0.0, 1.0
    moved = X.copy()
    moved[:3, 0], moved[3:5, 1] = X[3:, 0].min() / 2, (1 + np.delete(X[:, 1], [3, 4]).max()) / 2
    return X, moved


QUICK = {"bounds": (0, 1), "atoms": None, "rounded": None, "random_state": 0}
WAYS = {
    "array": lambda X: RTBMDensity(1, n_init=1, **QUICK).fit(X),
    "blocks": lambda X: RTBMDensity(1, n_init=1, **QUICK).fit([X[:50], X[50:]]),
    "warm start": lambda X: RTBMDensity(1, n_init=1, warm_start=True, fallback=None, **QUICK).fit(X).fit(X),
    "committee": lambda X: RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, **QUICK).fit(X),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_values_on_a_bound_count_as_values_inside(way, tmp_path):
    X, moved = touching()
    with pytest.warns(UserWarning, match=r"on a bound, in feature 0 \(3\), feature 1 \(2\)"):
        model = WAYS[way](X)
    inside = WAYS[way](moved)
    assert np.array_equal(model.score_samples(X), inside.score_samples(moved))
    assert np.array_equal(model.transform(X), inside.transform(moved))
    assert np.array_equal(model.predict_mean(X, 1), inside.predict_mean(moved, 1))
    assert np.array_equal(model.impute([[0.0, np.nan]])[:, 1], inside.impute([[moved[0, 0], np.nan]])[:, 1])
    given, same = model.conditional({0: 0.0}), inside.conditional({0: moved[0, 0]})
    assert given.score([[0.5]]) == same.score([[0.5]])
    save(model, tmp_path / "model.rtbm")
    assert np.array_equal(load(tmp_path / "model.rtbm").score_samples(X), model.score_samples(X))


def test_a_bound_without_training_data_on_it_stays_outside():
    X, _ = touching()
    with pytest.warns(UserWarning, match="on a bound"):
        model = RTBMDensity(1, n_init=1, **QUICK).fit(X)
    assert model.score_samples([[1.0, 0.5]])[0] == -INF
    with pytest.raises(InvalidInputError, match="1 values are not inside"):
        model.conditional({0: 1.0})
    with pytest.raises(InvalidInputError, match="1 values are not inside"):
        model.transform([[0.5, 0.0]])
    with pytest.raises(InvalidInputError, match=r"1 values .* first is -0\.1 in row 1 of feature 0"):
        RTBMDensity(1, **QUICK).fit([[0.5, 0.5], [-0.1, 0.3], [0.0, 0.2]])


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
def test_values_on_both_bounds_alone_stay_apart():
    X = np.column_stack([np.arange(40) % 2, np.random.default_rng(0).normal(size=40)])
    with pytest.warns(UserWarning, match=r"on a bound, in feature 0 \(40\)"):
        model = RTBMDensity(1, n_init=1, **QUICK | {"bounds": [(0, 1), None]}).fit(X)
    assert np.isfinite(model.score(X))
    assert abs(model.predict_mean([[0.0, 0.1]], 1) - model.predict_mean([[1.0, 0.1]], 1)) > 0


def test_targets_on_a_bound():
    X, moved = touching()
    density = RTBMDensity(1, n_init=1, **QUICK)
    with pytest.warns(UserWarning, match="on a bound"):
        model = RTBMRegressor(density).fit(X[:, :1], X[:, 1])
    inside = RTBMRegressor(density).fit(moved[:, :1], moved[:, 1])
    assert np.array_equal(model.log_prob(X[:, :1], X[:, 1]), inside.log_prob(moved[:, :1], moved[:, 1]))


@pytest.mark.parametrize("bounds", [(1.0, INF), (0.0, INF), (-INF, 1.0), (0.0, 2.0), (-2.0, 0.0)])
def test_lost_probability(bounds):
    width = 50.0 if np.abs(bounds).max() < INF or 0.0 not in bounds else 400.0
    line = LINE.affine([[width]])
    x = bounded(line, [bounds[0]], [bounds[1]])
    ends = x.icdf([1e-12, 1 - 1e-12])  # both cut off by float64
    lost = float(x.cdf(ends)[0] + 1 - x.cdf(ends)[1])
    assert lost > 1e-3
    assert float(x.lost_probability()) == pytest.approx(lost, rel=1e-2)  # quantiles round to the nearest number
    assert float(bounded(LINE, [bounds[0]], [bounds[1]]).lost_probability()) == 0.0


def test_outliers_that_take_probability_out_of_float64_are_named():
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": 30 + rng.gamma(2.0, size=40), "income": 1 + rng.gamma(2.0, size=40)})
    RTBMDensity(1, n_init=1, bounds=[(30, None), (1, None)], random_state=0).fit(X)
    X.loc[0, "income"] = 1e200
    with pytest.warns(RuntimeWarning, match=r"than float64 can tell, .* in income \("):
        RTBMDensity(1, n_init=1, bounds=[(30, None), (1, None)], random_state=0).fit(X)
    with pytest.warns(RuntimeWarning, match=r"than float64 can tell, .* in income \(") as seen:
        RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, bounds=(1, None), random_state=0).fit(X)
    assert len(seen) == 1


def test_modules_are_made_once():
    model = RTBMDensity(1, n_init=1, random_state=0).fit(datasets.gamma.sample(50))
    assert model.module_ is model.module_
    assert model.fit(datasets.gamma.sample(60)).module_ is model.module_


def test_draws_stay_strictly_inside_of_bounds():
    X = np.random.default_rng(0).beta(0.05, 0.05, size=(500, 1))
    X = X[(X[:, 0] > 0) & (X[:, 0] < 1)]
    with pytest.warns(RuntimeWarning, match="than float64 can tell"):
        draws = RTBMDensity(2, n_init=2, **QUICK).fit(X).sample(2000)
    assert draws.min() > 0
    assert draws.max() < 1


POWER = YeoJohnson(0.4, 1.0, 2.0)
MAPS = {
    "none": ColumnMap(),
    "half line": Interval(-1.0, INF),
    "half line to the left": Interval(-INF, 2.0),
    "interval": Interval(-1.0, 3.0),
    "straight power": YeoJohnson(1.0, 0.5, 0.7),
    "power": POWER,
    "logarithm": YeoJohnson(0.0, 0.0, 1.0),
    "logarithm to the left": YeoJohnson(2.0, 0.0, 1.0),
    "margin": LearnedMargin(POWER, tensor(0.5, 0.3, 0.2), tensor(0.0, 1.0, -2.0), tensor(0.7, 0.7, 0.7)),
    "power with straight tails": StraightTails(YeoJohnson(0.1, 1.0, 2.0), -1.0, 4.0),
    "half line with a straight tail": StraightTails(Interval(-1.0, INF), -INF, 1.5),
    "half line to the left with a straight tail": StraightTails(Interval(-INF, 2.0), 0.5, INF),
    "margin with straight tails": LearnedMargin(
        StraightTails(POWER, -2.0, 3.0), tensor(0.5, 0.5), tensor(-1.0, 1.0), tensor(0.6, 0.6)
    ),
    "margin with a gap": LearnedMargin(POWER, tensor(0.5, 0.5), tensor(-3.0, 3.0), tensor(0.3, 0.3)),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_and_their_inverses(name):
    y = torch.linspace(-6, 6, 241, dtype=torch.float64)
    x = MAPS[name].from_line(y)
    assert bool((x.diff() > 0).all())
    line, log_slope = MAPS[name].to_line(x)
    steps = (x.abs() + 1) * 1e-15 * log_slope.exp()  # what a rounding of x does to y
    assert bool(((line - y).abs() <= 1e-12 * (1 + y.abs()) + 4 * steps).all())
    free = x[1:-1].clone().requires_grad_()
    slope = torch.autograd.grad(MAPS[name].to_line(free)[0].sum(), free)[0]
    assert torch.allclose(slope.log(), log_slope[1:-1], rtol=0, atol=1e-9)
    back = y.clone().requires_grad_()
    inverse = torch.autograd.grad(MAPS[name].from_line(back).sum(), back)[0]
    steep = log_slope > -20  # between the two parts of a margin with a gap, x depends on roundings of y
    assert torch.allclose(inverse.log()[steep], -log_slope[steep], rtol=0, atol=1e-6)
    nan = torch.tensor(math.nan, dtype=torch.float64)
    assert bool(MAPS[name].to_line(nan)[0].isnan())


def test_far_tails_of_a_margin_stay_finite():
    margin = LearnedMargin(YeoJohnson(1.0, 0.0, 1.0), tensor(0.9, 0.1), tensor(0.0, 5.0), tensor(1.0, 1.0))
    x = tensor(-1e3, -50.0, -9.0, 30.0, 45.0, 1e4)
    y, log_slope = margin.to_line(x)
    assert bool((y.isfinite() & log_slope.isfinite()).all())
    assert bool((y.diff() > 0).all())
    assert y[0].item() == pytest.approx(-1e3, abs=1e-3)  # Φ(y) = 0.9 Φ(x)
    assert y[-1].item() == pytest.approx(1e4 - 5, abs=1e-3)
    for value, score in zip(x[1:5].tolist(), y[1:5].tolist(), strict=True):
        tail = float(margin.weights @ lower_tail(math.copysign(1, -value) * (value - margin.centres)))
        assert float(lower_tail(tensor(-abs(score)))) == pytest.approx(tail, rel=1e-9)


def mapped_plane(first, second):
    return MappedDistribution(PLANE, [MAPS[first], MAPS[second]])


PAIRS = [
    ("power", "margin"),
    ("margin with a gap", "half line"),
    ("logarithm", "none"),
    ("half line", "half line to the left"),
    ("half line", "interval"),
    ("half line with a straight tail", "power with straight tails"),
    ("half line to the left with a straight tail", "margin with straight tails"),
]


@pytest.mark.parametrize("pair", PAIRS)
def test_mapped_densities_are_consistent(pair):
    x = mapped_plane(*pair)
    rows = x.sample((4,), generator=torch.Generator().manual_seed(0))
    for i in (0, 1):
        given = x.conditional({i: rows[:, i]})
        split = x.marginal(i).log_prob(rows[:, i : i + 1]) + given.log_prob(rows[:, 1 - i : 2 - i])
        assert torch.allclose(split, x.log_prob(rows), rtol=0, atol=1e-9)
        one = x.conditional({i: rows[0, i]})
        assert torch.allclose(one.mean, given.mean[0], rtol=1e-9, atol=1e-9)
        quantiles = given.icdf([0.01, 0.5, 0.99])
        assert torch.allclose(given.cdf(quantiles), tensor(0.01, 0.5, 0.99)[:, None].expand(3, 4), rtol=0, atol=1e-10)
        line = x.marginal(i)
        gaps = torch.where(torch.arange(2) == i, rows, math.nan)
        assert torch.allclose(x.log_prob(gaps), line.log_prob(rows[:, i : i + 1]), rtol=0, atol=1e-10)
        ends = line.icdf([0.001, 0.999])[:, 0].tolist()
        mass, _ = quad(lambda v, line=line: float(line.log_prob([v]).exp()), *ends, limit=500, epsabs=1e-9)
        assert mass == pytest.approx(0.998, abs=1e-7)
    points = rows.clone().requires_grad_()
    assert torch.autograd.gradcheck(x.log_prob, (points,))
    (slope,) = torch.autograd.grad(x.log_prob(points).sum(), points)
    assert torch.allclose(x.score_function(rows), slope)
    corner = rows[:1]
    box = x.box_probability(torch.full_like(corner, -INF), corner)
    assert torch.allclose(box, x.cdf(corner), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name", sorted(set(MAPS) - {"none", "half line", "half line to the left", "interval", "logarithm"})
)
@pytest.mark.parametrize("width", [0.05, 0.5, 1.0])
def test_means_and_variances_of_mapped_columns(name, width):
    width = min(width, 0.5) if name == "logarithm to the left" else width  # the tails of wider ones count too much
    x = MappedDistribution(LINE.affine([[width]], [0.3]), [MAPS[name]])
    ends = x.icdf([1e-13, 1 - 1e-13])[:, 0].tolist()
    knots = [knot for knot in MAPS[name].knots if ends[0] < knot < ends[1]]
    edges = np.unique(
        np.concatenate([np.linspace(*ends, 60), knots, x.icdf(np.linspace(0.01, 0.99, 60))[:, 0].numpy()])
    )
    nodes, weights = np.polynomial.legendre.leggauss(30)
    points = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (1 + nodes)).ravel()
    masses = (0.5 * np.diff(edges)[:, None] * weights).ravel() * x.log_prob(points[:, None]).exp().numpy()
    mean = masses @ points
    variance = masses @ (points - mean) ** 2
    assert float(x.mean) == pytest.approx(mean, abs=1e-9 * (1 + math.sqrt(variance)))
    assert float(x.variance) == pytest.approx(variance, rel=1e-8)


def test_covariances_of_mapped_columns():
    normal = RTBMDistribution([[1.0, -0.6], [-0.6, 1.0]], [[0.0], [0.0]], [[9.0]], [0.0, 0.0], [0.0])
    y = torch.linalg.inv(torch.tensor([[1.0, -0.6], [-0.6, 1.0]], dtype=torch.float64))
    lognormal = MappedDistribution(normal, [Interval(0.0, INF)] * 2).covariance_matrix
    expected = (0.5 * (y.diagonal()[:, None] + y.diagonal())).exp() * y.expm1()
    assert torch.allclose(lognormal, expected, rtol=1e-9)
    plain = MappedDistribution(PLANE, [ColumnMap(), YeoJohnson(1.0, 0.0, 1.0)]).covariance_matrix
    assert torch.allclose(plain, PLANE.covariance_matrix, rtol=1e-9)
    margins = [MAPS["margin"], YeoJohnson(0.3, 0.1, 0.8)]
    x = MappedDistribution(PLANE, margins)
    swapped = MappedDistribution(PLANE.marginal([1, 0]), margins[::-1])
    assert torch.allclose(x.covariance_matrix, swapped.covariance_matrix.flip(0, 1), rtol=1e-8)
    draws = x.sample((100_000,), torch.Generator().manual_seed(0)).T
    assert torch.allclose(draws.cov(), x.covariance_matrix, rtol=0.05, atol=0.01)
    with pytest.raises(InvalidInputError, match="batch"):
        x.conditional({0: torch.zeros(2)}).covariance_matrix  # noqa: B018


def test_gradients_of_conditional_means_of_mixtures():
    mixture = RTBMMixture([0.4, 0.6], [PLANE, PLANE.affine(torch.eye(2, dtype=torch.float64), tensor(6.0, -3.0))])
    places, step = tensor(-6.0, 0.0, 0.4, 8.0), 1e-5
    for own in (YeoJohnson(0.3, 0.1, 0.8), MAPS["margin"]):
        x, known = MappedDistribution(mixture, [ColumnMap(), own]), places.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(x.conditional({0: known}).mean.sum(), known)
        ends = [x.conditional({0: places + d}).mean[:, 0] for d in (-step, step)]
        assert torch.allclose(gradient, (ends[1] - ends[0]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_covariances_of_narrow_components_and_of_float32():
    narrow = RTBMMixture([0.5, 0.5], [PLANE, PLANE.affine(1e-5 * torch.eye(2, dtype=torch.float64), tensor(1.0, 1.0))])
    maps = [YeoJohnson(1.0, 0.0, 1.0)] * 2
    found = MappedDistribution(narrow, maps).covariance_matrix
    assert torch.allclose(found, narrow.covariance_matrix, rtol=1e-8)
    single = MappedDistribution(PLANE.to(dtype=torch.float32), maps).covariance_matrix
    assert torch.allclose(single.double(), PLANE.covariance_matrix, rtol=1e-5)


def test_entropy_and_divergence_of_mapped_columns():
    x, y = mapped_plane("power", "none"), mapped_plane("none", "none")
    value, error = x.estimate_entropy(20_000, torch.Generator().manual_seed(0))
    rows = x.sample((20_000,), torch.Generator().manual_seed(1))
    assert abs(float(value) + float(x.log_prob(rows).mean())) < 6 * float(error)
    assert float(x.estimate_kl(x, 100)[0]) == 0.0
    assert float(x.estimate_kl(y, 5000, torch.Generator().manual_seed(0))[0]) > 0


def skewed(n, seed=0):
    """Three dependent log-normal columns."""
    covariance = [[1.0, 0.7, 0.3], [0.7, 1.0, 0.2], [0.3, 0.2, 1.0]]
    return np.exp(np.random.default_rng(seed).multivariate_normal([0, 0, 0], covariance, n))


@pytest.mark.parametrize("margins", ["yeo-johnson", "learned"])
def test_margins_describe_skewed_columns(margins):
    X, new = skewed(400), skewed(2000, seed=1)
    plain = RTBMDensity(1, n_init=1, random_state=0).fit(X)
    model = RTBMDensity(1, margins=margins, n_init=1, random_state=0).fit(X)
    assert model.score(new) > plain.score(new) + 1
    assert np.allclose(model.distribution_.log_prob(new), model.score_samples(new), rtol=0, atol=1e-9)
    scaled = RTBMDensity(1, margins=margins, n_init=1, random_state=0).fit(1000 * X - 5)
    assert scaled.score(1000 * new - 5) == pytest.approx(model.score(new) - 3 * math.log(1000), abs=1e-3)
    part = model.marginal([2, 0])
    assert np.allclose(part.score_samples(new[:, [2, 0]]), model.score_samples(np.where([0, 1, 0], np.nan, new)))
    holes = X.copy()
    holes[::3, 1] = np.nan
    assert np.isfinite(model.impute(holes)).all()
    gaps = RTBMDensity(1, margins=margins, n_init=1, random_state=0).fit(holes)
    assert gaps.score(new) > plain.score(new) + 1


def test_margins_of_blocks_are_those_of_the_sample():
    X = skewed(30_000)
    model = RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0).fit([X[:11_000], X[11_000:]])
    array = RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0).fit(X)
    assert model.score(X) == pytest.approx(array.score(X), abs=1e-12)
    assert model.score(X) > RTBMDensity(1, n_init=1, random_state=0).fit(X).score(X) + 1


def test_columns_that_keep_their_map():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 4, 300), rng.beta(2, 5, 300), rng.gamma(1.0, size=300)]).astype(float)
    model = RTBMDensity(1, margins="learned", n_init=1, **QUICK | {"bounds": [None, (0, 1), None]})
    with pytest.warns(SpikeWarning):
        model.fit(X)
    kinds = [type(own) for own in model.distribution_.maps]
    assert kinds == [ColumnMap, Interval, LearnedMargin]  # straight tails are for half lines and powers


def test_margins_that_cannot_be():
    with pytest.raises(InvalidInputError, match="margins must be"):
        RTBMDensity(margins="copula").fit(skewed(50))
    with pytest.raises(InvalidInputError, match="margins must be"):
        RTBMDensityCV(margins="power").fit(skewed(50))
    with pytest.raises(InvalidInputError, match="maps must be 2 ColumnMaps"):
        MappedDistribution(PLANE, [ColumnMap()])


def test_committees_choose_margins():
    X, new = skewed(300), skewed(2000, seed=1)
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 1, "n_components": 2, "n_init": 1}]
    model = RTBMDensityCV(tried, cv=3, random_state=0).fit(X)
    assert model.margins_ == "log"
    assert (model.sample(10_000, random_state=0) > 0).all()
    assert model.score(new) > RTBMDensityCV(tried, cv=3, margins=None, random_state=0).fit(X).score(new) + 0.5
    normal = np.random.default_rng(0).normal(size=(300, 2))
    assert RTBMDensityCV(tried, cv=3, random_state=0).fit(normal @ [[1.0, 0.5], [0.0, 0.02]]).margins_ is None


@pytest.mark.filterwarnings("ignore:the 2 features are linearly dependent:RuntimeWarning")
@pytest.mark.parametrize("margins", ["yeo-johnson", "learned"])
def test_means_of_rows_do_not_depend_on_other_rows(margins):
    """Also where columns are nearly functions of each other, and where a row is far away."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    narrow = RTBMDensity(1, margins=margins, n_init=1, random_state=0)
    X = np.column_stack([x, x + 1e-4 * rng.normal(size=300)])
    together = narrow.fit(X).predict_mean(X, 1)
    assert np.sqrt(np.mean((together - X[:, 1]) ** 2)) < 2e-3
    assert np.allclose(together[:3], [narrow.predict_mean(X[i : i + 1], 1)[0] for i in range(3)], rtol=0, atol=1e-9)
    X = rng.multivariate_normal([1000, 1000], [[1, 0.9], [0.9, 1]], 300)
    model = RTBMDensity(1, margins=margins, n_init=1, random_state=0).fit(X)
    rows = np.array([[1001.0, np.nan], [1060.0, np.nan], [1200.0, np.nan]])  # the map of the last is beyond y = 37
    mean, deviation = model.predict_mean(rows, 1, return_std=True)
    median = model.predict_quantiles(rows, 1, [0.5])[:, 0]
    assert np.allclose(mean, median, rtol=0, atol=0.05)
    assert np.allclose(deviation, 0.42, rtol=0, atol=0.05)
    assert model.predict_mean(rows[:1], 1)[0] == pytest.approx(mean[0], abs=1e-9)


def test_a_warm_start_with_other_margins_is_a_new_start():
    X = 1e4 * skewed(300)
    model = RTBMDensity(2, warm_start=True, n_init=2, random_state=0).fit(X)
    for margins in ("learned", None):
        fresh = RTBMDensity(2, margins=margins, n_init=2, random_state=0).fit(X)
        assert model.set_params(margins=margins).fit(X).score(X) == pytest.approx(fresh.score(X), abs=1e-9)


def test_maps_count_as_parameters():
    X = skewed(200)
    sizes = [RTBMDensity(1, margins=m, n_init=1, random_state=0).fit(X).n_parameters_ for m in (None, "yeo-johnson")]
    assert sizes[1] == sizes[0] + 3


def test_units_in_which_squares_leave_float64():
    X = np.random.default_rng(0).normal(size=(200, 2))
    X[:160, 0] = 0.0  # the quartiles are the same
    for unit in (1e-200, 1e160):
        with pytest.raises(InvalidInputError, match="change the unit"), warnings.catch_warnings(action="ignore"):
            RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0).fit(unit * X)


def test_numbers_that_a_logarithm_does_not_reach():
    X = skewed(150)
    model = RTBMDensity(1, margins="log", n_init=1, random_state=0).fit(X)
    rows = np.array([[0.0, 1.0, np.nan], [-1.0, 1.0, np.nan], [2.0, 1.0, np.nan]])
    with pytest.warns(UserWarning, match="feature 0 has numbers that are not positive"):
        found = model.predict_mean(rows, 2)
    gaps = np.where(rows <= 0, np.nan, rows)
    assert np.allclose(found, model.predict_mean(gaps, 2), rtol=1e-9)
    with pytest.warns(UserWarning, match="feature 0 has numbers that are not positive"):
        filled = model.impute(rows)
    assert np.array_equal(filled[:, :2], rows[:, :2])
    assert np.allclose(filled[:, 2], found, rtol=1e-9)
    assert model.score_samples(X[:1] * [[-1, 1, 1]]).tolist() == [-INF]


def test_draws_of_rounded_logarithms_are_positive():
    x = np.unique(np.random.default_rng(0).lognormal(-1, 3, 200).round(1))[1:]
    model = RTBMDensity(1, margins="log", n_init=1, random_state=0).fit(np.c_[x, x[::-1] ** 0.1])
    draws = model.sample(5000, random_state=1)
    assert draws[:, 0].min() > 0
    assert np.isfinite(model.score_samples(draws)).all()


def test_columns_that_could_be_zero_have_no_logarithm():
    x = np.random.default_rng(0).geometric(0.3, 300).astype(float)  # the next lower count is 0
    model = RTBMDensity(1, margins="log", n_init=1, random_state=0)
    rows = np.c_[x, np.random.default_rng(1).lognormal(size=300)]
    assert [own.support[0] for own in model.fit(rows).distribution_.maps] == [-INF, 0]
    assert [own.support[0] for own in model.fit(rows + np.array([5.0, 0.0])).distribution_.maps] == [0, 0]
