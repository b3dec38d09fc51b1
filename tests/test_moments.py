"""Moments, cumulants, scores, entropies and divergences against numerical integration and against each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.distributions import MultivariateNormal, kl_divergence

from families import PHASES
from machines import D, dense, diagonal, integral, lattices
from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture, TooManyNodesError, nn
from tolerances import INTEGRAL, LOG_PROB, MOMENTS, WORSE

MACHINES = [
    pytest.param(dense(1, 2), id="dense-1-2"),
    pytest.param(dense(2, 2, 1), id="dense-2-2"),
    pytest.param(dense(2, 3, 2, "II"), id="dense-2-3-II"),
    pytest.param(diagonal(1, 3), id="diagonal-1-3"),
    pytest.param(diagonal(1, 8), id="diagonal-1-8"),
    pytest.param(diagonal(2, 5, 3, "I"), id="diagonal-2-5-I"),
    pytest.param(RTBMMixture([0.3, 0.7], [dense(1, 2), diagonal(1, 5, 4)]), id="mixture-1"),
    pytest.param(RTBMMixture([0.6, 0.4], [dense(2, 1), dense(2, 2, 7, "II")]), id="mixture-2"),
]


@pytest.mark.parametrize("machine", MACHINES)
def test_mean_covariance_and_cumulants_by_integration(machine: RTBMDistribution) -> None:
    mean = integral(machine, lambda v: v)
    assert torch.allclose(machine.mean, mean, atol=INTEGRAL)
    centred = lambda v: v - mean  # noqa: E731
    second = integral(machine, lambda v: torch.einsum("ni,nj->nij", centred(v), centred(v)))
    assert torch.allclose(machine.covariance_matrix, second, atol=10 * INTEGRAL)
    assert torch.equal(machine.variance, machine.covariance_matrix.diagonal())
    third = integral(machine, lambda v: torch.einsum("ni,nj,nk->nijk", *[centred(v)] * 3))
    scale = float(machine.variance.max()) ** 2 + 1
    assert torch.allclose(machine.cumulant(1), mean, atol=INTEGRAL)
    assert torch.allclose(machine.cumulant(2), second, atol=10 * INTEGRAL)
    assert torch.allclose(machine.cumulant(3), third, atol=10 * INTEGRAL * scale)
    fourth = integral(machine, lambda v: centred(v)[:, 0] ** 4) - 3 * second[0, 0] ** 2
    assert float((machine.cumulant(4)[0, 0, 0, 0] - fourth).abs()) <= 100 * INTEGRAL * scale


@pytest.mark.parametrize("machine", MACHINES)
def test_moment_generating_function_by_integration(machine: RTBMDistribution) -> None:
    t = torch.tensor([[0.3], [-0.4]], dtype=D).expand(2, machine.n_visible)
    expected = integral(machine, lambda v: (v @ t.mT).exp(), spacing=0.5).log()
    assert torch.allclose(machine.log_mgf(t), expected, atol=WORSE * 10)


@given(data=st.data())
@settings(max_examples=15)
def test_moments_of_drawn_machines(data: st.DataObject) -> None:
    machine = RTBMDistribution.from_lattice(*data.draw(lattices(1, 2, smallest=-2.0, finest=-3.0)))
    mean = integral(machine, lambda v: v)
    scale = float(machine.variance) ** 0.5 + abs(float(mean))
    assert abs(float(machine.mean - mean)) <= INTEGRAL * scale
    assert abs(float(machine.variance - integral(machine, lambda v: (v[:, 0] - mean) ** 2))) <= 10 * INTEGRAL * scale**2


@pytest.mark.parametrize("machine", MACHINES)
def test_score_and_laplacian_are_derivatives_of_log_prob(machine: RTBMDistribution) -> None:
    v = machine.sample((50,), generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(machine.log_prob(v).sum(), v)
    score = machine.score_function(v)
    assert torch.allclose(score, gradient, rtol=WORSE, atol=WORSE)
    assert gradcheck(machine.score_function, [v[:3].detach().requires_grad_()], rtol=1e-4, atol=1e-6)
    if getattr(machine, "coupling", None) == "dense":  # Laplacian = −tr T + tr(W Cov[h|v] Wᵀ) in phase I
        first = machine.to_phase("I")
        trace = sum(torch.autograd.grad(score[:, i].sum(), v, retain_graph=True)[0][:, i] for i in range(v.shape[1]))
        draws = [torch.autograd.functional.jacobian(first.hidden_mean, x) for x in v.detach()[:5]]
        expected = [-first.T.trace() - (first.W @ jacobian).trace() for jacobian in draws]
        assert torch.allclose(trace[:5], torch.stack(expected), rtol=WORSE, atol=100 * WORSE)


@pytest.mark.parametrize("machine", MACHINES)
def test_entropy_and_divergence(machine: RTBMDistribution) -> None:
    entropy = machine.entropy()
    expected = integral(machine, lambda v: -machine.log_prob(v), spacing=0.2)
    assert float((entropy - expected).abs()) <= 10 * INTEGRAL
    value, error = machine.estimate_entropy(20_000, torch.Generator().manual_seed(0))
    assert float((value - entropy).abs()) <= 4.5 * float(error)
    normal = MultivariateNormal(machine.mean, machine.covariance_matrix)
    divergence = kl_divergence(machine, normal)
    assert float((divergence - (normal.entropy() - entropy)).abs()) <= 100 * INTEGRAL  # moments match
    assert float(divergence) > 0
    value, error = machine.estimate_kl(normal, 20_000, torch.Generator().manual_seed(0))
    assert float((value - divergence).abs()) <= 4.5 * float(error)
    assert float(kl_divergence(machine, machine.to_phase("I").to_phase("II")).abs()) <= INTEGRAL
    axis = torch.linspace(-8, 8, 6401 if machine.n_visible == 1 else 801, dtype=D)
    x = torch.cartesian_prod(*[axis] * machine.n_visible).reshape(-1, machine.n_visible)
    weights = (-0.5 * x.square().sum(1)).softmax(0)
    v = machine.mean + x @ normal.scale_tril.mT
    expected = weights @ (normal.log_prob(v) - machine.log_prob(v))
    assert float((kl_divergence(normal, machine) - expected).abs()) <= 1e-7


def test_beyond_three_features_entropy_and_divergence_are_estimates_with_errors() -> None:
    """Nothing falls back silently: the integrals raise and name the estimates."""
    machine = dense(4, 2)
    same = RTBMMixture([1.0], [machine])
    normal = MultivariateNormal(machine.mean, machine.covariance_matrix)
    with pytest.raises(InvalidInputError, match=r"at most 3 visible units, this distribution has 4: estimate_entropy"):
        machine.entropy()
    for p, q in ((machine, same), (machine, normal), (normal, machine)):
        with pytest.raises(InvalidInputError, match=r"this distribution has 4: estimate_kl\(\) gives a Monte Carlo"):
            kl_divergence(p, q)
    first, second = (machine.estimate_entropy(100_000, torch.Generator().manual_seed(seed)) for seed in (0, 7))
    assert float((first.value - second.value).abs()) <= 4.5 * float((first.error**2 + second.error**2).sqrt())
    assert torch.equal(first.value, machine.estimate_entropy(100_000, torch.Generator().manual_seed(0)).value)
    value, error = machine.estimate_kl(same)
    assert float(value.abs()) <= 1e-12
    assert float(error) <= 1e-12


def test_a_density_too_fine_for_a_grid_says_what_to_do() -> None:
    fine = RTBMDistribution.from_lattice([[1e-8]], [0.0], [[1.0]], [0.0], [[1e-2]])
    with pytest.raises(TooManyNodesError, match=r"resolves the integrand of entropy\(\): estimate_entropy\(\) gives"):
        fine.entropy()
    value, error = fine.estimate_entropy(20_000, torch.Generator().manual_seed(0))
    expected = 0.5 * math.log(2 * math.pi * math.e * 1e-2) + 0.5 * math.log(2 * math.pi * math.e * 1e8)
    assert float((value - expected).abs()) <= 4.5 * float(error)


def test_entropy_is_differentiable() -> None:
    machine = dense(1, 1)
    T, W, Q, b_v, b_h, _ = machine.natural
    inputs = [part.clone().requires_grad_() for part in (W, b_h)]
    assert gradcheck(lambda W, b_h: RTBMDistribution(T, W, Q, b_v, b_h).entropy(), inputs, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("make", "n_hidden"), [(dense, 2), (diagonal, 2), (diagonal, 4)])
def test_everything_is_differentiable_in_the_parameters(make, n_hidden: int, phase: str) -> None:
    machine = make(2, n_hidden, 2, phase)
    inputs = [part.clone().requires_grad_() for part in machine.natural[1:5]]
    v = machine.sample((2,), torch.Generator().manual_seed(0))
    other = make(2, n_hidden, 3, phase)

    def results(W, Q, b_v, b_h) -> tuple[torch.Tensor, ...]:
        m = RTBMDistribution(machine.T, W, (Q + Q.mT) / 2 if Q.ndim == 2 else Q, b_v, b_h, phase=phase)
        values = (
            m.mean,
            m.covariance_matrix,
            m.log_mgf(0.1 * v),
            m.score_function(v),
            m.hidden_mean(v),
            m.log_normalizer,
        )
        views = m.conditional({0: 0.3}).log_prob(v[:, 1:]), m.affine([[1.0, 2.0], [0.0, 1.0]]).log_prob(v)
        return *values, *views, m.cumulant(3)[0, 0], m.box_probability(v[:1] - 1, v[:1] + 1), m.kl(other)

    assert gradcheck(results, inputs, rtol=1e-3, atol=1e-5, fast_mode=True)


@pytest.mark.parametrize("phase", PHASES)
def test_hidden_mean_is_a_sum_over_states(phase: str) -> None:
    """E(h|v) as printed: a weighted sum over h, with complex weights in phase II."""
    machine = dense(2, 2, 3, phase)
    v = machine.sample((20,), generator=torch.Generator().manual_seed(0))
    _, W, Q, _, b_h, _ = machine.natural
    h = torch.cartesian_prod(*[torch.arange(-25.0, 26.0, dtype=D)] * 2)
    energy, u = 0.5 * ((h @ Q) * h).sum(1), (v @ W + b_h) @ h.mT
    if phase == "I":
        expected = (-energy - u).softmax(1) @ h
    else:
        weights = torch.exp(-energy - 1j * u)
        mean = (weights @ h.to(weights.dtype)) / weights.sum(1, keepdim=True)
        assert float(mean.real.abs().max()) <= 1e-9
        expected = -mean.imag  # rotated to the real axis
    assert torch.allclose(machine.hidden_mean(v), expected, atol=1e-9)


@pytest.mark.parametrize("machine", [dense(2, 2), diagonal(2, 2, phase="I"), diagonal(1, 5, phase="I")])
def test_hidden_probabilities(machine: RTBMDistribution) -> None:
    """P(h)P(v|h) = P(h|v)P(v), and P(h) is what the lattice form says."""
    v, h = machine.sample_joint((200,), torch.Generator().manual_seed(0))
    A, a = machine.lattice[:2]
    joint = machine.joint_log_prob(v, h)
    assert torch.allclose(joint, machine.hidden_log_prob(h) + machine.visible_given(h).log_prob(v), atol=LOG_PROB * 10)
    assert torch.allclose(joint, machine.hidden_log_prob(h, v) + machine.log_prob(v), atol=LOG_PROB * 10)
    ratio = machine.hidden_log_prob(h[1:]) - machine.hidden_log_prob(h[:-1])
    energy = -0.5 * ((h @ A) * h).sum(1) - h @ a
    assert torch.allclose(ratio, energy.diff(), atol=MOMENTS * 10)
    assert machine.hidden_log_prob(h[:3, None], v[:4]).shape == (3, 4)


@pytest.mark.parametrize("machine", [dense(2, 2), dense(1, 1, 4), diagonal(2, 2, phase="I"), diagonal(1, 5, phase="I")])
def test_energy_and_joint_probability(machine: RTBMDistribution) -> None:
    """P(v, h) = exp(−E)/Z, with E as printed; P(v|h) is its normal distribution in v."""
    v, h = machine.sample_joint((200,), torch.Generator().manual_seed(0))
    T, W, Q, b_v, b_h, _ = machine.natural
    Q = torch.diag(Q) if Q.ndim == 1 else Q
    x, A, B = torch.cat([h, v], 1), torch.cat([torch.cat([Q, W.mT], 1), torch.cat([W, T], 1)]), torch.cat([b_h, b_v])
    energy = 0.5 * ((x @ A) * x).sum(1) + x @ B
    size = WORSE * float(((x.abs() @ A.abs()) * x.abs()).sum(1).max())
    assert torch.allclose(machine.energy(v, h), energy, atol=size)
    assert torch.allclose(machine.joint_log_prob(v, h), -energy - machine.log_normalizer, atol=size)
    given = machine.visible_given(h)
    assert torch.allclose(given.mean, -(b_v + h @ W.mT) @ torch.linalg.inv(T), atol=size)
    assert torch.allclose(given.covariance_matrix, torch.linalg.inv(T).expand(200, -1, -1), atol=WORSE)
    assert machine.energy(v[:3, None], h[:4]).shape == machine.joint_log_prob(v[:3, None], h[:4]).shape == (3, 4)


def test_joint_probabilities_have_derivatives_and_a_dtype() -> None:
    machine = dense(2, 2)
    v, h = machine.sample_joint((5,), torch.Generator().manual_seed(0))
    A, a, F, mean, covariance = machine.lattice

    def function(L_A, a, F, L, v):
        again = RTBMDistribution.from_lattice(L_A @ L_A.mT, a, F, mean, L @ L.mT)
        return again.energy(v, h), again.joint_log_prob(v, h), again.visible_given(h).log_prob(v)

    inputs = torch.linalg.cholesky(A), a, F, torch.linalg.cholesky(covariance), v
    assert gradcheck(function, [part.clone().requires_grad_() for part in inputs])
    small = machine.to(dtype=torch.float32)
    assert small.joint_log_prob(v.float(), h.float()).dtype == small.visible_given(h).mean.dtype == torch.float32


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
