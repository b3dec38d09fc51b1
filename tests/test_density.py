"""P(v) against its definition in 40 digits, its integral, its two phases, and the object that holds it."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from families import PHASES, Floats
from machines import D, dense, diagonal, exact_log_prob, integral, lattices, log_prob_bound, rounding_bound, waves
from rtbm import RTBMDistribution, RTBMMixture, TooManyTermsError, log_theta, nn
from tolerances import FLOAT32, INTEGRAL, LOG_PROB, SAME, WORSE

SIZES = [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3), (3, 2)]


def some_points(machine: RTBMDistribution, seed: int = 0, n: int = 3) -> Floats:
    """Points where there is probability, and one where there is little."""
    draws = machine.sample((n,), generator=torch.Generator().manual_seed(seed))
    return np.vstack([draws.numpy(), draws.numpy()[:1] + 4 * np.sqrt(machine.variance.numpy())])


@pytest.mark.parametrize(("n_visible", "n_hidden"), SIZES)
@given(data=st.data())
@settings(max_examples=12)
def test_lattice_form_against_the_definition(n_visible: int, n_hidden: int, data: st.DataObject) -> None:
    machine = RTBMDistribution.from_lattice(*data.draw(lattices(n_visible, n_hidden, 0.5 * n_hidden - 1.5)))
    v = some_points(machine)
    try:
        exact = exact_log_prob(machine.lattice, v)
    except TooManyTermsError:
        reject()
    for point, value, bound in zip(v, exact, log_prob_bound(machine, v), strict=True):
        assert abs(float(machine.log_prob(point)) - value) <= bound


@pytest.mark.parametrize(("n_visible", "n_hidden"), SIZES)
@given(data=st.data())
@settings(max_examples=8)
def test_the_paper_formula_in_both_phases(n_visible: int, n_hidden: int, data: st.DataObject) -> None:
    """P(v) as printed, theta function by theta function."""
    phase = data.draw(st.sampled_from(PHASES))
    T, W, Q, b_v, b_h = (torch.tensor(part) for part in data.draw(waves(n_visible, n_hidden)))
    if phase == "I":
        T = T + W @ torch.linalg.solve(Q, W.mT)  # so that Q − WᵀT⁻¹W is positive definite
    machine = RTBMDistribution(T, W, Q, b_v, b_h, phase=phase)
    v = torch.tensor(some_points(machine))

    def printed(T, W, Q, b_v, b_h, v):
        T_inverse = torch.linalg.inv(T)
        schur = Q + (-1.0 if phase == "I" else 1.0) * W.mT @ T_inverse @ W
        constants = (
            0.5 * torch.logdet(T / (2 * torch.pi)),
            -0.5 * b_v @ T_inverse @ b_v,
            -log_theta(b_h - W.mT @ T_inverse @ b_v, (schur + schur.mT) / 2, phase=phase),
        )
        of_points = -0.5 * ((v @ T) * v).sum(1), -v @ b_v, log_theta(v @ W + b_h, Q, phase=phase)
        return *of_points, *(term.expand(len(v)) for term in constants)

    parameters = (T, W, Q, b_v, b_h, v)
    difference = machine.log_prob(v) - sum(printed(*parameters))
    bound = rounding_bound(printed, parameters) + log_prob_bound(machine, v)
    assert bool((difference.abs() <= bound).all())


@pytest.mark.parametrize(
    ("n_visible", "n_hidden", "is_diagonal"),
    [(*size, False) for size in SIZES] + [(1, 2, True), (1, 6, True), (2, 5, True)],
)
@given(data=st.data())
@settings(max_examples=8)
def test_both_phases_give_one_density(n_visible: int, n_hidden: int, is_diagonal: bool, data: st.DataObject) -> None:
    """A phase II machine and its phase I image, built anew from the image's own numbers."""
    second = RTBMDistribution(*data.draw(waves(n_visible, n_hidden, is_diagonal)), phase="II")
    T, W, Q, b_v, b_h, phase = second.to_phase("I").natural
    assert phase == "I"
    first = RTBMDistribution(T, W, Q, b_v, b_h)
    v = some_points(second)
    bound = log_prob_bound(first, v) + log_prob_bound(second, v)
    for image in (first, second.to_phase("I")):
        assert bool(((image.log_prob(v) - second.log_prob(v)).abs() <= bound).all())
    again = first.to_phase("II").natural
    for mine, given_part in zip(again[:-1], second.natural[:-1], strict=True):
        assert torch.allclose(mine, given_part, rtol=1e-8, atol=1e-8)


INTEGRABLE = {
    **{f"a line, {g} units": (lattices(1, g, smallest=-3.0, finest=-4.0), "I", 15) for g in (1, 2, 3)},
    **{f"a plane, {g} units": (lattices(2, g, smallest=-1.0, finest=-1.5), "I", 8) for g in (1, 2)},
    **{f"a line, {g} units, phase II": (waves(1, g, g == 5), "II", 10) for g in (2, 5)},
}
"""Parameters, phase and number of examples."""


@pytest.mark.parametrize("kind", INTEGRABLE)
def test_integrals_are_one(kind: str) -> None:
    parameters, phase, examples = INTEGRABLE[kind]
    make = RTBMDistribution.from_lattice if phase == "I" else partial(RTBMDistribution, phase="II")

    @settings(max_examples=examples)
    @given(parameters)
    def check(drawn: tuple[Floats, ...]) -> None:
        assert abs(float(integral(make(*drawn))) - 1) <= INTEGRAL

    check()


@pytest.mark.parametrize("small", [1e-4, 1e-6, 1e-8, 1e-10])
def test_nearly_singular_machines(small: float) -> None:
    """More hidden than visible units and a tiny A: FᵀΣ⁻¹F is singular, and Q nearly so."""
    root = np.sqrt(small)
    A = small * np.array([[1.0, 0.3], [0.3, 2.0]])
    F = np.array([[1.0, (1 + np.sqrt(5)) / 2]]) * root  # as fine as A is soft, so that the density has width 1
    machine = RTBMDistribution.from_lattice(A, -A @ [0.3, 0.1], F, [0.1], [[small]])
    v = np.linspace(-1, 1, 2001)[:, None]
    assert abs(float(integral(machine, spacing=0.8)) - 1) <= INTEGRAL
    exact = machine.continuous_limit().log_prob(torch.tensor(v))  # a lattice this fine cannot be told from the reals
    assert float((machine.log_prob(v) - exact).abs().max()) < LOG_PROB


def test_a_comb_with_narrow_teeth() -> None:
    """Σ^½ is 1e-5 of the spacing: log P falls by 10^9 between teeth, and its digits are right on them."""
    machine = RTBMDistribution.from_lattice([[0.01]], [0.0], [[1.0]], [0.0], [[1e-10]])
    teeth = torch.arange(-20, 21, dtype=D)[:, None]
    expected = machine.hidden_log_prob(teeth) - 0.5 * np.log(2 * np.pi * 1e-10)
    assert torch.allclose(machine.log_prob(teeth), expected, rtol=0, atol=1e-12)
    assert float(machine.log_prob([0.5])) == pytest.approx(-0.125e10, rel=1e-8)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("make", [dense, diagonal])
def test_float32_is_float64_rounded(make, phase: str) -> None:
    machine = make(2, 2, phase=phase)
    single = RTBMDistribution(*(part.float() for part in machine.natural[:-1]), phase=phase)
    assert single.mean.dtype == single.sample((2,)).dtype == torch.float32
    v = machine.sample((100,), generator=torch.Generator().manual_seed(0))
    value = single.log_prob(v.float())
    assert value.dtype == torch.float32
    exact = RTBMDistribution(*(part.float().double() for part in machine.natural[:-1]), phase=phase)
    assert torch.allclose(value.double(), exact.log_prob(v.float().double()), rtol=FLOAT32, atol=FLOAT32)


def test_leading_shapes_and_array_likes() -> None:
    machine = dense(2, 2)
    v = np.random.default_rng(0).normal(size=(4, 5, 2))
    value = machine.log_prob(v)
    assert value.shape == (4, 5)
    assert float(machine.log_prob(v[1, 2].tolist())) == pytest.approx(float(value[1, 2]), abs=1e-13)
    assert machine.log_prob(v[:0]).shape == (0, 5)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("make", "n_hidden"), [(dense, 2), (diagonal, 2), (diagonal, 5)])
def test_derivatives_to_second_order(make, n_hidden: int, phase: str) -> None:
    machine = make(2, n_hidden, phase=phase)
    v = machine.sample((3,), generator=torch.Generator().manual_seed(1))
    inputs = [part.detach().clone().requires_grad_() for part in (v, *machine.natural[:-1])]

    def log_prob(v: torch.Tensor, T, W, Q, b_v, b_h) -> torch.Tensor:
        Q = (Q + Q.mT) / 2 if Q.ndim == 2 else Q
        return RTBMDistribution((T + T.mT) / 2, W, Q, b_v, b_h, phase=phase).log_prob(v)

    assert gradcheck(log_prob, inputs, rtol=1e-4, atol=1e-6)
    assert gradgradcheck(log_prob, inputs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("make", "n_hidden"), [(dense, 2), (diagonal, 2), (diagonal, 5)])
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_gradients_do_not_depend_on_what_was_asked_before(context, make, n_hidden: int, phase: str) -> None:
    machine = make(1, n_hidden, phase=phase)

    def gradients(warm_up: bool) -> list[torch.Tensor]:
        inputs = [part.clone().requires_grad_() for part in machine.natural[:-1]]
        fresh = RTBMDistribution(*inputs, phase=phase)
        v = torch.tensor([[0.2], [1.3]], dtype=D)
        if warm_up:
            with context():
                fresh.log_prob(v), fresh.sample((3,)), fresh.mean, fresh.cdf(v), fresh.entropy(), fresh.natural
        total = fresh.log_prob(v).sum() + fresh.mean.sum() + fresh.cdf(v).sum() + fresh.entropy()
        return list(torch.autograd.grad(total, inputs))

    for cold, warm in zip(gradients(False), gradients(True), strict=True):
        assert torch.allclose(cold, warm, rtol=SAME, atol=SAME)


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
        assert float(machine.log_prob(v)) == pytest.approx(exact_log_prob(machine.lattice, v[None])[0], abs=1e-8)


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


def test_changing_what_a_machine_was_given_or_returns_does_not_change_it() -> None:
    given = [part.clone() for part in dense(2, 2).natural[:-1]]
    machine = RTBMDistribution(*given)
    before = machine.log_prob(np.zeros(2))
    for part in (*given, machine.lattice.mean, machine.natural.T, machine.T):
        part.add_(1)
    assert torch.equal(machine.log_prob(np.zeros(2)), before)
    assert torch.equal(machine.T, dense(2, 2).T)
    with pytest.raises(AttributeError):
        machine.phase = "II"


@pytest.mark.parametrize(
    "machine", [dense(2, 2), diagonal(2, 6), RTBMMixture([0.4, 0.6], [dense(2, 1), diagonal(2, 6)])]
)
def test_copies_are_the_same_density(machine) -> None:
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
