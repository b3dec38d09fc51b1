"""The two ways to a normaliser, the lattice sum and the integral over v, and what is out of reach of both."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from families import PHASES
from machines import D, dense, diagonal, waves
from rtbm import NormalizerError, RTBMDistribution, ThetaPlan, nn
from rtbm.distributions.diagonal import DiagonalMachine
from rtbm.parameters import Natural
from tolerances import LOG_PROB, WORSE


@pytest.mark.parametrize("n_visible", [1, 2, 3])
@given(data=st.data())
@settings(max_examples=10)
def test_the_integral_is_the_lattice_sum(n_visible: int, data: st.DataObject) -> None:
    """Two hidden units, where both ways are open. The integral is forced."""
    T, W, Q, b_v, b_h = (torch.tensor(part) for part in data.draw(waves(n_visible, 2, True)))
    natural = Natural(T, W, Q, b_v, b_h, "II")
    by_grid = DiagonalMachine(natural, 1e-12, max_lattice_units=0)
    assume(by_grid.grid is not None)  # a million nodes are enough
    log_normalizer = DiagonalMachine(natural, 1e-12).log_normalizer()
    assert float((by_grid.log_normalizer() - log_normalizer).abs()) <= LOG_PROB
    by_sum = RTBMDistribution(T, W, torch.diag(Q), b_v, b_h, phase="II")
    assert torch.allclose(by_grid.mean(), by_sum.mean, rtol=WORSE, atol=WORSE)
    assert torch.allclose(by_grid.covariance(), by_sum.covariance_matrix, rtol=100 * WORSE, atol=WORSE)


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6, 1e-9, 1e-12])
def test_tolerance_bounds_the_error(tolerance: float) -> None:
    natural = diagonal(2, 3, 1).to_phase("II").natural
    by_sum = DiagonalMachine(natural, 1e-14)
    by_grid = DiagonalMachine(natural, tolerance, max_lattice_units=0)
    assert float((by_grid.log_normalizer() - by_sum.log_normalizer()).abs()) <= 2 * tolerance


def test_a_small_average_is_found_by_going_further_out() -> None:
    """Stiff units half-way between two states: the average of the periodic factor is e^-60 of its largest value."""
    Q, W, b_h = np.array([0.1, 0.15, 0.2]), np.array([[0.02, 0.01, 0.03]]), np.full(3, math.pi)
    by_sum = RTBMDistribution([[1.0]], W, np.diag(Q), [0.0], b_h, phase="II")
    natural = Natural(*(torch.tensor(part) for part in (np.eye(1), W, Q, np.zeros(1), b_h)), "II")
    by_grid = DiagonalMachine(natural, 1e-12, max_lattice_units=0)
    v = torch.linspace(-3, 3, 7, dtype=D)[:, None]
    assert float(by_sum.log_normalizer) < -60
    assert torch.allclose(by_grid.log_density(v), by_sum.log_prob(v), rtol=0, atol=LOG_PROB)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("n_visible", "n_hidden"), [(1, 200), (2, 100)])
def test_hundreds_of_hidden_units(n_visible: int, n_hidden: int, phase: str) -> None:
    """∫P = 1 on another grid, and a step of an optimiser."""
    machine = diagonal(n_visible, n_hidden, phase=phase)
    T, W, Q, b_v, b_h = (part.clone().requires_grad_() for part in machine.natural[:-1])
    v = machine.sample((100,), generator=torch.Generator().manual_seed(0))
    RTBMDistribution(T, W, Q, b_v, b_h, phase=phase).log_prob(v).mean().backward()
    assert all(bool(part.grad.isfinite().all()) for part in (T, W, Q, b_v, b_h))
    assert torch.allclose(b_v.grad, machine.mean - v.mean(0), atol=WORSE * 10)  # an exponential family
    span = 9 * float(machine.to_phase("II").T.inverse().diagonal().max()) ** 0.5
    centre = -torch.linalg.solve(machine.to_phase("II").T, machine.to_phase("II").b_v)
    axis = torch.linspace(-span, span, 4001 if n_visible == 1 else 241, dtype=D)
    grid = torch.cartesian_prod(*[axis] * n_visible).reshape(-1, n_visible) + centre
    total = (machine.log_prob(grid) + n_visible * math.log(float(axis[1] - axis[0]))).logsumexp(0)
    assert abs(float(total)) <= 1e-9


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("make", [dense, diagonal])
def test_log_normalizer_and_free_energy(make, phase: str) -> None:
    """Z by the paper's formula: (2π)^{Nv/2} det T^{-1/2} exp(½b_vᵀT⁻¹b_v) θ̃."""
    machine = make(2, 2, phase=phase)
    T, W, Q, b_v, b_h, _ = machine.natural
    Q = torch.diag(Q) if Q.ndim == 1 else Q
    X = torch.linalg.solve(T, W)
    schur = Q - W.mT @ X if phase == "I" else Q + W.mT @ X
    plan = ThetaPlan((schur + schur.mT) / 2, phase=phase)
    log_Z = 0.5 * torch.logdet(2 * torch.pi * torch.linalg.inv(T)) + 0.5 * b_v @ torch.linalg.solve(T, b_v)
    log_Z = log_Z + plan.log_theta(b_h - X.mT @ b_v)
    assert float((machine.log_normalizer - log_Z).abs()) <= LOG_PROB
    v = machine.sample((10,), torch.Generator().manual_seed(0))
    assert torch.allclose(machine.log_prob(v), -machine.free_energy(v) - machine.log_normalizer, atol=LOG_PROB)


def test_out_of_reach_says_what_to_do() -> None:
    machine = diagonal(6, 60)
    v = np.zeros((3, 6))
    with pytest.raises(NormalizerError, match=r"60 hidden units.*there are 6.*need no normaliser"):
        machine.log_prob(v)
    for call in (lambda: machine.mean, lambda: machine.cdf(v), lambda: machine.log_mgf(v)):
        with pytest.raises(NormalizerError, match=r"need no normaliser\. Use fewer hidden units"):
            call()
    with pytest.raises(NormalizerError, match="fewer hidden units, or a diagonal Q"):
        nn.RTBM(1, 30)().log_prob([0.0])
    with pytest.raises(NormalizerError, match="log_prob with NaN for the other coordinates"):
        diagonal(2, 30).marginal(0).log_prob([0.0])
    module = nn.RTBM.from_distribution(machine)
    assert torch.allclose(module().score_function(v), machine.score_function(v), atol=WORSE)
    assert machine.free_energy(v).shape == (3,)
    assert machine.hidden_mean(v).shape == (3, 60)


def test_many_visible_units_with_few_hidden_ones_take_the_lattice_sum() -> None:
    machine = diagonal(20, 4)
    other = RTBMDistribution(*machine.natural._replace(Q=torch.diag(machine.Q))[:-1], phase="II")
    v = machine.sample((5,), torch.Generator().manual_seed(0))
    assert torch.allclose(machine.log_prob(v), other.log_prob(v), rtol=0, atol=LOG_PROB)


def test_a_grid_that_grows_too_large_gives_way_to_the_lattice_sum() -> None:
    scale = 8.1
    W = scale * np.array([[1, 0, 0, 0.3], [0, 1, 0, 0.1], [0, 0, 1, 0.2]])
    parts = 8 * np.eye(3), W, np.full(4, 0.3), np.zeros(3), np.full(4, np.pi)
    by_vector = RTBMDistribution(*parts, phase="II")
    by_matrix = RTBMDistribution(*parts[:2], np.diag(parts[2]), *parts[3:], phase="II")
    assert float(by_vector.log_prob(np.zeros(3))) == pytest.approx(float(by_matrix.log_prob(np.zeros(3))), abs=1e-9)
    assert torch.allclose(by_vector.mean, by_matrix.mean, atol=1e-9)
