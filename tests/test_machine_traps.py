"""Cases that once went wrong, or could: stiff, soft, skewed, far away, empty, and asked in another order."""

import contextlib
import copy
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import MultivariateNormal, kl_divergence

from machines import D, dense, diagonal, exact_log_prob
from rtbm import (
    BoundedDistribution,
    DiscreteGaussian,
    InvalidInputError,
    NormalizerError,
    NotPositiveDefiniteError,
    RTBMDistribution,
    RTBMMixture,
    TooManyNodesError,
    nn,
)
from rtbm.distributions.dense import DenseMachine
from rtbm.distributions.integration.boxes import BoxQuadrature, IntervalSum, interval
from rtbm.distributions.integration.quantiles import invert_cdf
from rtbm.parameters import unpack
from rtbm.theta.chunks import run_threads
from tolerances import INTEGRAL, LOG_PROB, SAME, WORSE


def small_average() -> RTBMDistribution:
    """A grid machine whose probability lies far out in its Gaussian factor."""
    W, b_h = np.full((1, 8), 0.1) + np.linspace(0, 0.1, 8), np.full(8, math.pi) + np.linspace(-0.1, 0.1, 8)
    return RTBMDistribution([[1.0]], W, np.full(8, 0.1), [0.0], b_h, phase="II")


@pytest.mark.parametrize("first", ["mean", "variance", "log_prob", "sample", "cdf", "entropy"])
def test_moments_of_grid_machines_do_not_depend_on_what_was_asked_first(first: str) -> None:
    machine = small_average()
    arguments = {"log_prob": [[0.0]], "sample": [(3,)], "cdf": [[0.0]], "entropy": []}.get(first)
    asked = getattr(machine, first)
    if arguments is not None:
        asked(*arguments)
    assert float(machine.mean) == pytest.approx(float(machine.cumulant(1)), abs=1e-9)
    assert float(machine.variance) == pytest.approx(float(machine.cumulant(2)), abs=1e-8)
    x = torch.linspace(-45, 25, 70_001, dtype=D)[:, None]
    density = machine.log_prob(x).exp()
    assert float(density.sum()) * 1e-3 == pytest.approx(1, abs=1e-9)
    assert float((density * x[:, 0]).sum()) * 1e-3 == pytest.approx(float(machine.mean), abs=1e-8)


@pytest.mark.parametrize("step", [0.25, 0.125, 0.05])
def test_divergence_from_a_smooth_to_a_rippled_density(step: float) -> None:
    smooth = RTBMDistribution([[1.0]], [[0.0]], [[1.0]], [0.0], [0.0])
    comb = RTBMDistribution.from_lattice([[step**2]], [0.0], [[step]], [0.0], [[(step / 6) ** 2]])
    x = torch.linspace(-9, 9, 400_001, dtype=D)[:, None]
    expected = (smooth.log_prob(x).exp() * (smooth.log_prob(x) - comb.log_prob(x))).sum() * (x[1] - x[0])
    assert float((smooth.kl(comb) - expected).abs()) <= 1e-7
    normal = MultivariateNormal(torch.zeros(1, dtype=D), torch.eye(1, dtype=D))
    assert float((kl_divergence(normal, comb) - expected).abs()) <= 1e-7


@pytest.mark.parametrize("width", [0.1, 1e-3])
def test_entropy_of_a_mixture_of_wide_and_narrow_parts(width: float) -> None:
    parts = [
        RTBMDistribution.from_lattice([[1.0]], [0.0], [[0.0]], [m], [[s**2]]) for m, s in ((0.0, 1.0), (0.1, width))
    ]
    mixture = RTBMMixture([0.5, 0.5], parts)
    x = torch.cat([torch.linspace(-9, 9, 200_001, dtype=D), 0.1 + width * torch.linspace(-9, 9, 200_001, dtype=D)])
    x = x.sort().values[:, None]
    log_prob = mixture.log_prob(x)
    expected = torch.trapezoid(-log_prob.exp() * log_prob, x[:, 0])
    assert float((mixture.entropy() - expected).abs()) <= 1e-6


def test_divergence_in_float32_is_not_a_rough_estimate() -> None:
    machine = dense(1, 2)
    normal = MultivariateNormal(machine.mean, machine.covariance_matrix)
    single = MultivariateNormal(machine.mean.float(), machine.covariance_matrix.float())
    rounded = kl_divergence(machine.to(dtype=torch.float32), single)
    assert rounded.dtype == torch.float32
    assert float(rounded) == pytest.approx(float(kl_divergence(machine, normal)), abs=1e-5)


def test_estimates_carry_derivatives() -> None:
    module = nn.RTBM(4, 2, generator=torch.Generator().manual_seed(0))
    module().estimate_entropy(generator=torch.Generator().manual_seed(0)).value.backward()
    slope = module.visible_centre.grad.clone(), module.visible_scale.grad.clone()
    assert float(slope[0].abs().max()) < 0.05  # a shift leaves the entropy alone, up to the Monte Carlo error
    assert float(slope[1].abs().max()) > 0.1


def test_tails_of_the_normal_distribution() -> None:
    x = torch.tensor([-5.0, -9.0, -20.0, -37.0], dtype=D)
    exact = torch.tensor([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x], dtype=D)
    assert torch.allclose(interval(x - math.inf, x), exact, rtol=1e-13)
    assert torch.allclose(interval(-x, -x + math.inf), exact, rtol=1e-13)


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
    p = torch.tensor([0.0, 0.3, 0.7, 1.0], dtype=D, requires_grad=True)
    inner = torch.tensor([0.3, 0.7], dtype=D, requires_grad=True)
    assert gradcheck(machine.icdf, [inner], rtol=1e-4)
    assert gradgradcheck(machine.icdf, [inner], rtol=1e-3, atol=1e-4)
    inputs = [part.clone().requires_grad_() for part in machine.natural[:-1]]
    quantiles = RTBMDistribution(*inputs).icdf(p)
    for gradient in torch.autograd.grad(quantiles[1], [*inputs, p]):
        assert bool(gradient.isfinite().all())


def test_probabilities_where_the_table_of_states_is_too_long() -> None:
    """In one dimension the density is integrated instead."""
    F = np.ones((1, 6)) + np.arange(6) * 0.1
    machine = RTBMDistribution.from_lattice(np.eye(6), np.zeros(6) + 0.01, F, [0.0], [[1.0]])
    edges = torch.linspace(-60, 0.4, 60_401, dtype=D)[:, None]
    density = machine.log_prob(edges).exp()
    assert float(machine.cdf([0.4])) == pytest.approx(float(torch.trapezoid(density, dx=1e-3)), abs=1e-7)
    assert float(machine.cdf(machine.icdf([0.3])[0])) == pytest.approx(0.3, abs=1e-12)


def test_a_box_in_three_dimensions_stays_small() -> None:
    machine = RTBMDistribution.from_lattice(0.3 * np.eye(3), [0.1, 0.2, 0.3], np.eye(3), [0.0, 0, 0], np.eye(3) + 0.3)
    draws = machine.sample((400_000,), torch.Generator().manual_seed(0))
    share = float((draws < 0).all(1).double().mean())
    assert float(machine.cdf([0.0, 0.0, 0.0])) == pytest.approx(share, abs=4e-3)


@pytest.mark.parametrize("centre", [0.0, 1e4, 1e6])
def test_a_pinned_state_far_away_keeps_its_digits(centre: float) -> None:
    """A is stiff and a large: only a few h matter, and where they are costs nothing."""
    rng = np.random.default_rng(0)
    rotation, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    A = (rotation * [500.0, 2000.0, 9000.0]) @ rotation.T
    A = (A + A.T) / 2
    shift = centre * np.array([1.0, -2.0, 3.0]) + np.array([0.3, 0.45, -0.4])
    a = -A @ shift
    F = rng.normal(size=(1, 3))
    machine = RTBMDistribution.from_lattice(A, a, F, [0.0], [[0.5]])
    for x in (-1.0, 0.7):
        v = F @ np.round(shift) + x
        assert float(machine.log_prob(v)) == pytest.approx(exact_log_prob(machine.lattice, v), abs=1e-8)


@pytest.mark.parametrize("skew", [17, 1025])
def test_another_basis_of_the_hidden_units_changes_nothing(skew: int) -> None:
    """Powers of two and small integers: the change of basis itself is exact."""
    A, a, F = np.array([[2.0, 0.5], [0.5, 1.0]]), np.array([0.25, -0.5]), np.array([[1.5, -0.25]])
    U = np.array([[1, skew], [0, 1]]) @ np.array([[1, 0], [3, 1]])
    plain = RTBMDistribution.from_lattice(A, a, F, [0.5], [[0.25]])
    skewed = RTBMDistribution.from_lattice(U.T @ A @ U, U.T @ a, F @ U, [0.5], [[0.25]])
    v = plain.sample((20,), torch.Generator().manual_seed(0))
    assert torch.allclose(skewed.log_prob(v), plain.log_prob(v), atol=LOG_PROB)
    assert torch.allclose(skewed.mean, plain.mean, atol=WORSE)
    assert torch.allclose(skewed.covariance_matrix, plain.covariance_matrix, atol=WORSE)
    assert torch.allclose(skewed.log_mgf(v), plain.log_mgf(v), atol=WORSE)
    assert torch.allclose(skewed.cdf(v), plain.cdf(v), atol=WORSE)
    T, W, Q, b_v, b_h = [[1.0]], F, A, [0.5], a
    plain = RTBMDistribution(T, W, Q, b_v, b_h, phase="II")
    skewed = RTBMDistribution(T, W @ U, U.T @ Q @ U, b_v, U.T @ b_h, phase="II")
    for name in ("log_prob", "log_mgf", "cdf", "score_function"):
        assert torch.allclose(getattr(skewed, name)(v), getattr(plain, name)(v), atol=WORSE)
    assert torch.allclose(skewed.mean, plain.mean, atol=WORSE)
    assert torch.allclose(skewed.covariance_matrix, plain.covariance_matrix, atol=WORSE)


def test_machines_made_in_inference_mode_can_be_differentiated() -> None:
    with torch.inference_mode():
        kinds = [make(2, 2, phase=phase) for make in (dense, diagonal) for phase in ("I", "II")]
        machines = [RTBMDistribution.from_natural(machine.natural) for machine in kinds]
        machines += [nn.RTBM(2, 2)(), nn.RTBM(2, 2, coupling="diagonal")()]
        cumulants = [machine.cumulant(2) for machine in machines]
    for machine, cumulant in zip(machines, cumulants, strict=True):
        v = torch.zeros(3, 2, dtype=D, requires_grad=True)
        machine.log_prob(v).sum().backward()
        assert torch.allclose(v.grad, machine.score_function(v.detach()), atol=WORSE)
        assert torch.allclose(cumulant, machine.covariance_matrix, atol=WORSE)


@pytest.mark.parametrize("machine", [dense(2, 2), diagonal(2, 6, phase="I"), RTBMMixture([1.0], [diagonal(2, 6)])])
def test_empty_batches(machine) -> None:
    empty = torch.zeros(0, 2, dtype=D)
    for name in ("log_prob", "cdf", "log_mgf"):
        assert getattr(machine, name)(empty).shape == (0,)
    assert machine.score_function(empty).shape == (0, 2)
    assert machine.sample((0,)).shape == (0, 2)
    assert machine.hidden_mean(empty).shape[0] == 0
    if isinstance(machine, RTBMMixture):
        assert machine.responsibilities(empty).shape == (0, 1)
    else:
        assert machine.sample_joint((0,))[1].shape == (0, machine.n_hidden)


def test_zero_weights() -> None:
    parts = [dense(2, 2), dense(2, 1, 1)]
    mixture = RTBMMixture([0.0, 1.0], parts)
    v = parts[1].sample((5,), torch.Generator().manual_seed(0))
    assert torch.allclose(mixture.log_prob(v), parts[1].log_prob(v), atol=LOG_PROB)
    assert torch.allclose(mixture.marginal(0).mean, parts[1].mean[:1])
    assert torch.allclose(mixture.conditional({0: 1.0}).mean, parts[1].conditional({0: 1.0}).mean)
    assert torch.allclose(mixture.affine(np.eye(2)).to_phase("II").mean, parts[1].mean, atol=WORSE)
    assert torch.allclose(
        nn.MixtureOfRTBMs.from_distribution(mixture)().log_prob(v), parts[1].log_prob(v), atol=LOG_PROB
    )
    assert float((mixture.entropy() - parts[1].entropy()).abs()) <= INTEGRAL * 10


def test_free_parameters_that_went_too_far_say_so() -> None:
    for vector in ([0.0, 0, 0, 0, -400.0], [0.0, 0, 0, 0, 800.0]):
        with pytest.raises(InvalidInputError, match="free parameters"):
            RTBMDistribution.from_free(unpack(torch.tensor(vector, dtype=D), 1, 1))
    with pytest.raises(NotPositiveDefiniteError, match="take smaller steps, or regularise"):
        RTBMDistribution.from_free(unpack(torch.tensor([0.0, 1e9, 0.0, 0, 0, 0, 0, 0, 0.0], dtype=D), 1, 2))
    rng = np.random.default_rng(0)
    for hidden in ("dense", "diagonal"):
        for scale in (3.0, 5.0, 8.0):
            for _ in range(6):
                module = nn.RTBM(2, 3, coupling=hidden)
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.copy_(torch.tensor(rng.normal(size=parameter.shape) * scale))
                with contextlib.suppress(InvalidInputError, NormalizerError):  # said in our own words
                    assert bool(module().log_prob(torch.zeros(2, dtype=D)).isfinite())


def test_free_parameters_are_checked() -> None:
    free = nn.RTBM(1, 2).free
    with pytest.raises(InvalidInputError, match=r"free\.weights must have shape .* take one of a batch"):
        RTBMDistribution.from_free(free._replace(weights=free.weights[None]))
    with pytest.raises(InvalidInputError, match=r"free\.visible_centre must have shape \(1,\), got \(2,\)"):
        RTBMDistribution.from_free(free._replace(visible_centre=torch.zeros(2)))
    with pytest.raises(InvalidInputError, match=r"free must be an rtbm\.parameters\.Free, got a Tensor"):
        RTBMDistribution.from_free(torch.zeros(9))
    with pytest.raises(InvalidInputError, match=r"free must be an rtbm\.parameters\.Free of a dense machine"):
        nn.RTBM(1, 1).load_free(nn.RTBM(1, 1, coupling="diagonal").free)
    with pytest.raises(InvalidInputError, match=r"free\.hidden_scale must have shape \(6,\), got \(1,\)"):
        nn.RTBM(2, 3).load_free(nn.RTBM(1, 1).free)
    with pytest.raises(InvalidInputError, match="the state belongs to a machine with coupling='diagonal'"):
        nn.RTBM(1, 1).load_state_dict(nn.RTBM(1, 1, coupling="diagonal").state_dict())


def test_machines_out_of_reach() -> None:
    wide = diagonal(6, 60)
    assert nn.RTBM.from_distribution(wide)().score_function(np.zeros(6)).shape == (6,)
    for call in (lambda: wide.mean, lambda: wide.cdf(np.zeros(6)), lambda: wide.log_mgf(np.zeros(6))):
        with pytest.raises(NormalizerError, match=r"need no normaliser\. Use fewer hidden units"):
            call()
    with pytest.raises(NormalizerError, match="fewer hidden units, or a diagonal Q"):
        nn.RTBM(1, 30)().log_prob([0.0])
    with pytest.raises(NormalizerError, match="log_prob with NaN for the other coordinates"):
        diagonal(2, 30).marginal(0).log_prob([0.0])


def test_units_do_not_matter_for_affine_maps() -> None:
    machine = dense(2, 2)
    scaled = machine.affine([[1e-8, 0.0], [0.0, 1e8]])
    assert torch.allclose(scaled.mean / machine.mean, torch.tensor([1e-8, 1e8], dtype=D), rtol=1e-9)


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


def test_values_do_not_change() -> None:
    machine = dense(2, 2)
    before = machine.log_prob(np.zeros(2))
    machine.lattice.mean.add_(5)
    machine.natural.T.add_(1)
    machine.T.add_(1)
    assert torch.equal(machine.log_prob(np.zeros(2)), before)
    with pytest.raises(AttributeError):
        machine.phase = "II"


@pytest.mark.parametrize(
    "machine", [dense(2, 2), diagonal(2, 6), RTBMMixture([0.4, 0.6], [dense(2, 1), diagonal(2, 6)])]
)
def test_copies(machine) -> None:
    v = machine.sample((4,), torch.Generator().manual_seed(0))
    for other in (copy.deepcopy(machine), pickle.loads(pickle.dumps(machine)), machine.detach(), machine.to("cpu")):
        assert torch.equal(other.log_prob(v), machine.log_prob(v))
        assert repr(other) == repr(machine)
    single = machine.to(dtype=torch.float32)
    assert single.dtype == single.mean.dtype == torch.float32
    assert single.log_prob([0.1, 0.2]).dtype == torch.float32  # numbers have no dtype of their own
    assert single.log_prob(v).dtype == torch.float64
    assert machine.device == torch.device("cpu")
    with pytest.raises(NotImplementedError, match="machines are not batched"):
        machine.expand((3,))
    module = nn.RTBM(2, 2)
    assert module().detach().mean.requires_grad is False


def test_draws_without_derivatives_say_so() -> None:
    plane = dense(2, 2)
    given = plane.conditional({0: torch.zeros(3, dtype=D)})
    bounded = BoundedDistribution(plane, [0.0, 0.0], [1.0, 1.0])
    for distribution in (plane, RTBMMixture([1.0], [plane]), given, bounded, DiscreteGaussian([[1.0]], [0.0])):
        with pytest.raises(NotImplementedError, match="discrete hidden states"):
            distribution.rsample((5,))


@pytest.mark.parametrize("bad", [-1, 2.5, None, "three", (2, -1)])
def test_sample_shapes(bad) -> None:
    machine = diagonal(1, 6)
    assert machine.sample(np.int64(3)).shape == (3, 1)
    with pytest.raises(InvalidInputError, match="sample_shape"):
        machine.sample(bad)


def test_indices_of_other_kinds() -> None:
    machine = dense(3, 1)
    mixture = RTBMMixture([1.0], [machine])
    for each in (machine, mixture):
        assert torch.allclose(each.marginal(np.int64(1)).mean, machine.mean[1:2])
        assert torch.allclose(each.marginal(np.array([2, 0])).mean, machine.mean[[2, 0]])
        for wrong in ([True, False], None, "1"):
            with pytest.raises(InvalidInputError, match="indices must be integers"):
                each.marginal(wrong)


def test_rows_are_split_without_rounding() -> None:
    for rows in (1, 5, 2**24 + 1, 2**24 + 3, 2**25 + 3):
        seen = []
        run_threads(lambda start, stop: seen.append((start, stop)), rows, work=10**9)  # noqa: B023
        seen.sort()
        assert seen[0][0] == 0
        assert seen[-1][1] == rows
        assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))


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


def test_tails_of_a_grid_machine() -> None:
    """Without couplings it is a standard normal distribution, whatever its units."""
    machine = RTBMDistribution([[1.0]], np.zeros((1, 6)), np.full(6, 3.0), [0.0], np.zeros(6), phase="II")
    x = torch.tensor([-7.0, -9.0, -12.0, -20.0], dtype=D)
    exact = torch.tensor([0.5 * math.erfc(-float(v) / math.sqrt(2)) for v in x], dtype=D)
    assert torch.allclose(machine.cdf(x[:, None]), exact, rtol=1e-10)
    assert torch.allclose(machine.icdf(exact)[:, 0], x, rtol=1e-10)
    assert torch.allclose(machine.box_probability(-x[:, None], [math.inf]), exact, rtol=1e-10)


def test_zeros_of_a_covariance_have_derivatives() -> None:
    gradients = []
    for off in (0.0, 1e-7, 1e-308):
        S = torch.tensor([[1.0, off], [off, 1.0]], dtype=D, requires_grad=True)
        RTBMDistribution.from_lattice([[4.0]], [0.3], [[1.0], [0.5]], [0.0, 0.0], S).cdf([[0.2, 0.1]]).sum().backward()
        gradients.append(S.grad)
    assert torch.allclose(gradients[0], gradients[1], atol=1e-6)
    assert torch.allclose(gradients[0], gradients[2], atol=1e-10)
    assert float(gradients[0][0, 1].abs()) > 0.01


def test_a_grid_that_grows_too_large_gives_way_to_the_lattice_sum() -> None:
    scale = 8.1
    W = scale * np.array([[1, 0, 0, 0.3], [0, 1, 0, 0.1], [0, 0, 1, 0.2]])
    parts = 8 * np.eye(3), W, np.full(4, 0.3), np.zeros(3), np.full(4, np.pi)
    by_vector = RTBMDistribution(*parts, phase="II")
    by_matrix = RTBMDistribution(*parts[:2], np.diag(parts[2]), *parts[3:], phase="II")
    assert float(by_vector.log_prob(np.zeros(3))) == pytest.approx(float(by_matrix.log_prob(np.zeros(3))), abs=1e-9)
    assert torch.allclose(by_vector.mean, by_matrix.mean, atol=1e-9)


@pytest.mark.parametrize("centre", [0.0, 1e12, 1e14])
def test_hidden_states_far_from_zero(centre: float) -> None:
    """Probabilities, samples and divergences see the same bias, to the last digit."""
    p, q = DiscreteGaussian([[0.7]], [-0.7 * centre - 0.1]), DiscreteGaussian([[0.9]], [-0.9 * centre + 0.2])
    h, log_p = p.table()
    expected = (log_p.exp() * (log_p - q.log_prob(h))).sum()
    assert float((p.kl(q) - expected).abs()) <= 1e-10
    assert float(p.kl(p).abs()) <= 1e-12
    stiff = DiscreteGaussian([[20.1]], [-(20.1 * (centre + 0.5))])
    draws = stiff.sample((20_000,), torch.Generator().manual_seed(0))
    state, log_prob = stiff.table()
    share = (draws[:, 0] == state[0, 0]).double().mean()
    assert float((share - log_prob[0].exp()).abs()) <= 4 * 0.5 / math.sqrt(20_000)
