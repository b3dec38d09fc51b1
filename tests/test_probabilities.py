"""Probabilities of intervals and boxes, distribution functions and quantiles of machines and mixtures."""

import math
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from machines import D, dense, diagonal
from rtbm import RTBMDistribution, RTBMMixture, TooManyNodesError
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.integration.boxes import BoxQuadrature, IntervalSum, interval, normal_box
from rtbm.distributions.integration.quantiles import invert_cdf
from test_moments import MACHINES
from tolerances import INTEGRAL, SAME, WORSE

LINES = [machine for machine in MACHINES if machine.values[0].n_visible == 1]
PLANES = [machine for machine in MACHINES if machine.values[0].n_visible == 2]
MANY_STATES = RTBMDistribution.from_lattice(0.8 * np.eye(3), [0.1, 0.2, 0.3], np.eye(3), [0.0, 0, 0], np.eye(3) + 0.3)
"""4,900 of them, of which the box probability takes 995, in 24 blocks."""


@pytest.mark.parametrize("machine", LINES)
def test_distribution_function_and_quantiles(machine: RTBMDistribution) -> None:
    v = torch.linspace(-4, 4, 41, dtype=D)[:, None]
    cdf = machine.cdf(v)
    edges = torch.linspace(-30, 4, 34001, dtype=D)
    density = machine.log_prob(edges[:, None]).exp()
    middle = machine.log_prob(edges[:-1, None] + 5e-4).exp()
    simpson = torch.cat([torch.zeros(1, dtype=D), ((density[1:] + density[:-1] + 4 * middle) / 6000).cumsum(0)])
    assert torch.allclose(cdf, simpson[26000::200], atol=1e-10)
    p = torch.tensor([1e-12, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-9], dtype=D)
    quantiles = machine.icdf(p)
    assert torch.allclose(machine.cdf(quantiles), p, rtol=1e-9, atol=1e-14)
    assert torch.equal(machine.icdf([0.0, 1.0]), torch.tensor([[-math.inf], [math.inf]], dtype=D))
    assert torch.allclose(machine.box_probability(v[:-1], v[1:]), cdf.diff(), atol=1e-13)
    assert float(machine.box_probability([-math.inf], [math.inf])) == pytest.approx(1, abs=1e-12)
    assert float(machine.box_probability([1.0], [0.0])) == 0.0


@pytest.mark.parametrize("machine", [dense(1, 2), diagonal(1, 8)])
def test_distribution_function_and_quantiles_carry_derivatives(machine: RTBMDistribution) -> None:
    v = torch.tensor([[-0.7], [0.2], [1.1]], dtype=D, requires_grad=True)
    (density,) = torch.autograd.grad(machine.cdf(v).sum(), v)
    assert torch.allclose(density[:, 0], machine.log_prob(v).exp(), atol=1e-11)
    p = torch.tensor([0.2, 0.7], dtype=D, requires_grad=True)
    quantile = machine.icdf(p)
    (slope,) = torch.autograd.grad(quantile.sum(), p)
    assert torch.allclose(slope, (-machine.log_prob(quantile)).exp(), rtol=1e-8)
    T, W, Q, b_v, b_h, phase = machine.natural
    b_v = b_v.clone().requires_grad_()
    assert gradcheck(lambda b_v: RTBMDistribution(T, W, Q, b_v, b_h, phase=phase).cdf([[0.3]]), [b_v], rtol=1e-4)


@pytest.mark.parametrize("machine", PLANES)
def test_boxes_in_two_dimensions(machine: RTBMDistribution) -> None:
    low, high = (
        torch.tensor([[-1.0, -0.5], [-math.inf, 0.0]], dtype=D),
        torch.tensor([[0.7, 1.2], [0.5, math.inf]], dtype=D),
    )
    found = machine.box_probability(low, high)
    x, weight = (torch.tensor(part) for part in np.polynomial.legendre.leggauss(20))
    for (a, c), (b, d), value in zip(low.clamp(-20, 20), high.clamp(-20, 20), found, strict=True):
        panels = [torch.linspace(float(s), float(e), int((e - s) * 1.5) + 2, dtype=D) for s, e in ((a, b), (c, d))]
        axes, weights = [], []
        for edges in panels:
            half = edges.diff()[:, None] / 2
            axes.append(((edges[:-1] + edges[1:])[:, None] / 2 + half * x).reshape(-1))
            weights.append((half * weight).reshape(-1))
        grid = torch.cartesian_prod(*axes)
        expected = machine.log_prob(grid).exp() @ torch.cartesian_prod(*weights).prod(1)
        assert float((value - expected).abs()) <= 1e-10
    if machine.n_visible < 3 and getattr(machine, "coupling", "dense") == "dense":
        marginal = machine.marginal(0)
        upper = torch.tensor([0.4, math.inf], dtype=D)
        assert torch.allclose(machine.cdf(upper), marginal.cdf(upper[:1]), atol=1e-12)


def test_boxes_under_a_normal_distribution() -> None:
    """Correlations up to a millionth below 1 against Sheppard's formula, and the orthant in three dimensions."""
    zero = torch.zeros(2, dtype=D)
    for rho in (1e-9, 0.3, -0.8, 0.99, -0.999999, 0.999999):
        C = torch.tensor([[1.0, rho], [rho, 1.0]], dtype=D)
        expected = 0.25 + math.asin(rho) / (2 * math.pi)
        assert abs(float(normal_box(zero - math.inf, zero, C)) - expected) <= 1e-12
        shifted = normal_box(torch.tensor([-1.0, -2.0], dtype=D), torch.tensor([0.5, 3.0], dtype=D), C)
        mirrored = normal_box(torch.tensor([-2.0, -1.0], dtype=D), torch.tensor([3.0, 0.5], dtype=D), C)
        assert float((shifted - mirrored).abs()) <= 1e-12
    C = torch.tensor([[1.0, 0.5, 0.2], [0.5, 1.0, -0.3], [0.2, -0.3, 1.0]], dtype=D)
    orthant = 0.125 + sum(math.asin(c) for c in (0.5, 0.2, -0.3)) / (4 * math.pi)
    assert abs(float(normal_box(torch.full((3,), -math.inf, dtype=D), torch.zeros(3, dtype=D), C)) - orthant) <= 1e-4


@pytest.mark.parametrize("machine", [dense(3, 2, 5), MANY_STATES])
def test_boxes_in_three_dimensions(machine: RTBMDistribution) -> None:
    draws = machine.sample((400_000,), generator=torch.Generator().manual_seed(0))
    for low, high in (
        (machine.mean - 1.0, machine.mean + 1.5),
        (torch.full_like(machine.mean, -math.inf), machine.mean),
    ):
        share = ((draws > low) & (draws < high)).all(1).double().mean()
        assert float((machine.box_probability(low, high) - share).abs()) <= 4 * 0.5 / math.sqrt(400_000) + 1e-4


def test_zeros_of_a_covariance_have_derivatives() -> None:
    gradients = []
    for off in (0.0, 1e-7, 1e-308):
        S = torch.tensor([[1.0, off], [off, 1.0]], dtype=D, requires_grad=True)
        RTBMDistribution.from_lattice([[4.0]], [0.3], [[1.0], [0.5]], [0.0, 0.0], S).cdf([[0.2, 0.1]]).sum().backward()
        gradients.append(S.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-10)
    assert float(gradients[0][0, 1].abs()) > 0.01


def near_singular(k: float, is_diagonal: bool = False) -> RTBMDistribution:
    """WᵀT⁻¹W reaches k² of Q in one direction, so that Q − WᵀT⁻¹W has an eigenvalue of the size of 1 − k²."""
    Q, K = np.diag([1.0, 2.0, 3.0]) + (0.0 if is_diagonal else 0.3), np.array([[0.6, 0.5, 0.62]])
    W = k * K / np.linalg.norm(K) @ np.linalg.cholesky(Q).T
    return RTBMDistribution([[1.0]], W, np.diag(Q) if is_diagonal else Q, [0.0], np.zeros(3))


@pytest.mark.parametrize("is_diagonal", [False, True])
@pytest.mark.parametrize("k", [0.0, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999])
def test_intervals_take_bounded_work(k: float, is_diagonal: bool) -> None:
    """Intervals agree with the density, and take seconds, however many hidden states there are."""
    machine = near_singular(k, is_diagonal)
    edges = machine.mean + torch.linspace(-30, 30, 101, dtype=D)[:, None]  # the finest detail has width 1
    by_box = machine.box_probability(edges[:-1], edges[1:])
    x, weight = (torch.as_tensor(part) for part in np.polynomial.legendre.leggauss(12))
    half = (edges[1:] - edges[:-1]) / 2
    nodes = (edges[1:] + edges[:-1]) / 2 + half * x
    by_density = (machine.log_prob(nodes.reshape(-1, 1)).exp().reshape(nodes.shape) * half) @ weight
    assert torch.allclose(by_box, by_density, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("k", [0.9, 0.999, 0.99999])
def test_a_sum_over_states_and_an_integral_give_the_same_probabilities(k: float) -> None:
    machine = DenseMachine(near_singular(k).lattice, 1e-12)
    (mean,), (width,) = machine.mean(), machine.covariance()[0].sqrt()
    v = mean + width * torch.tensor([[-6.0], [-2.0], [0.0], [0.1], [3.0]], dtype=D)
    integral = BoxQuadrature(machine.log_density, machine.envelope(), lambda: False)
    points, log_prob = machine.prior.table(2**22)
    centres = (machine.lattice.mean + points @ machine.lattice.F.mT)[:, 0]
    states = IntervalSum(centres, log_prob.softmax(0), machine.lattice.covariance[0, 0].sqrt())
    for low, high in ((v - math.inf, v), (v, v + math.inf), (v - width, v), (v - width / 1e3, v)):
        assert torch.allclose(integral.box(low, high), states.box(low, high), rtol=1e-6, atol=1e-13)


def test_probabilities_where_the_table_of_states_is_too_long() -> None:
    """In one dimension the density is integrated instead."""
    F = np.ones((1, 6)) + np.arange(6) * 0.1
    machine = RTBMDistribution.from_lattice(np.eye(6), np.zeros(6) + 0.01, F, [0.0], [[1.0]])
    edges = torch.linspace(-60, 0.4, 60_401, dtype=D)[:, None]
    density = machine.log_prob(edges).exp()
    assert float(machine.cdf([0.4])) == pytest.approx(float(torch.trapezoid(density, dx=1e-3)), abs=1e-7)
    assert float(machine.cdf(machine.icdf([0.3])[0])) == pytest.approx(0.3, abs=1e-12)


@pytest.mark.parametrize("shift", [1e6, 1e9])
def test_quadrature_far_from_zero(shift: float) -> None:
    grid = diagonal(1, 6)
    assert float(grid.affine([[1.0]], [shift]).cdf([shift + 0.25])) == pytest.approx(float(grid.cdf([0.25])), abs=1e-6)
    fine = [3e-4 * np.eye(2), [0, 0], [[0.01, 0.01 * 2**0.5]]]
    here, there = (RTBMDistribution.from_lattice(*fine, [mean], [[1e-4]]) for mean in (0.0, shift))
    assert float(there.cdf([shift + 0.25])) == pytest.approx(float(here.cdf([0.25])), abs=1e-6)
    pickle.dumps(there)


def test_quadrature_says_when_it_is_too_much() -> None:
    machine = RTBMDistribution.from_lattice(1e-6 * np.eye(2), [0, 0], [[1, 2**0.5]], [0.0], [[1e-8]])
    with pytest.raises(TooManyNodesError, match="the integral over v would need about"):
        machine.cdf([0.3])


def test_tails_of_the_normal_distribution() -> None:
    x = torch.tensor([-5.0, -9.0, -20.0, -37.0], dtype=D)
    exact = torch.tensor([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x], dtype=D)
    assert torch.allclose(interval(x - math.inf, x), exact, rtol=1e-13)
    assert torch.allclose(interval(-x, -x + math.inf), exact, rtol=1e-13)


def test_tails_of_a_grid_machine() -> None:
    """Without couplings it is a standard normal distribution, whatever its units."""
    machine = RTBMDistribution([[1.0]], np.zeros((1, 6)), np.full(6, 3.0), [0.0], np.zeros(6), phase="II")
    x = torch.tensor([-7.0, -9.0, -12.0, -20.0], dtype=D)
    exact = torch.tensor([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x], dtype=D)
    assert torch.allclose(machine.cdf(x[:, None]), exact, rtol=1e-10)
    assert torch.allclose(machine.icdf(exact)[:, 0], x, rtol=1e-10)
    assert torch.allclose(machine.box_probability(-x[:, None], [math.inf]), exact, rtol=1e-10)


@pytest.mark.parametrize(
    "machine", [dense(1, 2), diagonal(1, 40), RTBMMixture([0.5, 0.5], [dense(1, 1), dense(1, 2, 3)])]
)
def test_quantiles_in_the_tails(machine) -> None:
    p = torch.tensor([1e-14, 1e-10, 1e-4, 0.5, 1 - 1e-4, 1 - 1e-10, 1 - 1e-14, 1 - 2**-53], dtype=D)
    v = machine.icdf(p)
    assert bool((v[:, 0].diff() > 0).all())
    assert float(v.abs().max()) < 60
    assert torch.allclose(machine.cdf(v[:4]), p[:4], rtol=1e-2)
    survival = machine.box_probability(v[4:], torch.full_like(v[4:], math.inf))
    assert torch.allclose(survival[:3], 1 - p[4:7], rtol=2e-2)
    assert torch.allclose(machine.icdf(machine.cdf(v[2:5])), v[2:5], atol=1e-9)


@pytest.mark.parametrize("width", [1.0, 0.1, 1e-5])
def test_quantiles_take_few_evaluations(width: float) -> None:
    """A comb of 21 teeth: all quantiles at once, and none again that is found."""
    weights = torch.full((21,), 1 / 21, dtype=D)
    teeth = IntervalSum(torch.arange(-10.0, 11, dtype=D), weights, torch.tensor(width, dtype=D))
    evaluated = []

    def tail(v: torch.Tensor, upper: torch.Tensor) -> torch.Tensor:
        evaluated.append(len(v))
        return teeth.box(torch.where(upper, v, -math.inf)[:, None], torch.where(upper, math.inf, v)[:, None])

    def density(v: torch.Tensor) -> torch.Tensor:
        z = (v[:, None] - torch.arange(-10.0, 11, dtype=D)) / width
        return torch.exp(-0.5 * z**2).mean(1) / (width * math.sqrt(2 * math.pi))

    p = torch.linspace(0.0005, 0.9995, 1000, dtype=D)
    v = invert_cdf(p, tail, density, -20.0, 20.0, width)
    assert sum(evaluated) <= 40 * len(p)  # about two for each halving, down to teeth of 1e-6 of the range
    assert torch.allclose(tail(v, p > 0.5), torch.minimum(p, 1 - p), rtol=0, atol=1e-15 * 20 / width + 1e-15)


def test_derivatives_of_quantiles() -> None:
    machine = dense(1, 2)
    p = torch.tensor([0.3, 0.7], dtype=D, requires_grad=True)
    assert gradcheck(machine.icdf, [p], rtol=1e-4)
    assert gradgradcheck(machine.icdf, [p], rtol=1e-3, atol=1e-4)
    inputs = [part.clone().requires_grad_() for part in machine.natural[:-1]]

    def quantiles(T, W, Q, b_v, b_h) -> torch.Tensor:
        return RTBMDistribution(T, W, (Q + Q.mT) / 2, b_v, b_h).icdf([0.0, 0.3, 0.7, 1.0])

    assert gradcheck(lambda *parts: quantiles(*parts)[1:3], inputs, rtol=1e-4, atol=1e-6)
    with_ends = torch.autograd.grad(quantiles(*inputs)[1], inputs)
    alone = torch.autograd.grad(RTBMDistribution(*inputs).icdf([0.3])[0], inputs)
    for gradient, expected in zip(with_ends, alone, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=WORSE, atol=WORSE)


@pytest.mark.parametrize("machine", [dense(1, 2), dense(2, 2), diagonal(1, 6), diagonal(2, 6)])
@pytest.mark.parametrize("unit", [1e-100, 1e-30, 1e30, 1e38, 1e100])
def test_units_do_not_matter_for_probabilities(machine, unit: float) -> None:
    scaled = machine.affine(unit * torch.eye(machine.n_visible, dtype=D))
    rows = machine.sample((5,), torch.Generator().manual_seed(0))
    torch.testing.assert_close(scaled.cdf(unit * rows), machine.cdf(rows), rtol=0, atol=INTEGRAL)
    line, scaled_line = machine.marginal(0), scaled.marginal(0)
    p = torch.tensor([1e-9, 0.1, 0.5, 0.9, 1 - 1e-9], dtype=D)
    torch.testing.assert_close(scaled_line.icdf(p) / unit, line.icdf(p), rtol=WORSE, atol=WORSE)
    torch.testing.assert_close(scaled_line.cdf(scaled_line.icdf(p)), p, rtol=0, atol=SAME)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((0, 1e-12), (1e12, 1)),
        ((0, 1), (1e30, 1e29)),
        ((5, 1e-9), (0, 1e9)),
        ((0, 1e-20), (0, 1e20)),
        ((1, 1), (1e90, 1e80)),
    ],
)
def test_quantiles_of_parts_that_differ_much_in_size(first, second) -> None:
    parts = [RTBMDistribution.from_lattice([[1.0]], [0.0], [[0.0]], [m], [[s**2]]) for m, s in (first, second)]
    mixture = RTBMMixture([0.5, 0.5], parts)
    p = torch.tensor([1e-9, 0.01, 0.1, 0.2, 0.4, 0.49, 0.51, 0.6, 0.9, 0.999], dtype=D)
    quantiles = mixture.icdf(p)
    rounding = mixture.log_prob(quantiles).exp() * quantiles[:, 0].abs() * torch.finfo(D).eps
    assert bool(((mixture.cdf(quantiles) - p).abs() < SAME + 8 * rounding).all())
