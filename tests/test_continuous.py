"""The continuous Boltzmann machine, and the RTBM that tends to it when its lattice becomes fine."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch.distributions import MultivariateNormal, kl_divergence

from machines import D, dense, diagonal
from rtbm import ContinuousBoltzmannMachine, InvalidInputError, NotPositiveDefiniteError, RTBMDistribution
from tolerances import LOG_PROB, P_VALUE, WORSE


def refined(machine: RTBMDistribution, step: float) -> RTBMDistribution:
    """The same continuous limit, with hidden states in steps of `step` instead of 1."""
    A, a, F, mean, covariance = machine.lattice
    return RTBMDistribution.from_lattice(step**2 * A, step * a, step * F, mean, covariance)


@pytest.mark.parametrize(("n_visible", "n_hidden"), [(1, 1), (1, 2), (2, 2), (2, 3)])
def test_a_fine_lattice_is_the_continuous_machine(n_visible: int, n_hidden: int) -> None:
    machine = dense(n_visible, n_hidden, 1)
    limit = machine.continuous_limit()
    v = limit.sample((100,), generator=torch.Generator().manual_seed(0))
    stiffest = float(torch.linalg.eigvalsh(machine.to_phase("I").Q)[-1])
    errors = []
    for step in (1.0, 0.5, 0.25, 0.125):
        fine = refined(machine, step)
        assert torch.allclose(fine.continuous_limit().mean, limit.mean, atol=WORSE)
        errors.append(float((fine.log_prob(v) - limit.log_prob(v)).abs().max()))
        # the first term that Poisson summation leaves out, for each of the two theta functions
        bound = 4 * 3**n_hidden * math.exp(-2 * math.pi**2 / (step**2 * stiffest))
        assert errors[-1] <= bound + LOG_PROB or bound > 0.5
    assert errors[0] > 1e-5
    finest = refined(machine, 0.4 / math.sqrt(stiffest))
    assert float((finest.log_prob(v) - limit.log_prob(v)).abs().max()) <= LOG_PROB
    assert torch.allclose(finest.mean, limit.mean, atol=WORSE)
    assert torch.allclose(finest.covariance_matrix, limit.covariance_matrix, atol=WORSE)


def test_it_is_the_marginal_of_a_joint_gaussian() -> None:
    machine = dense(2, 2).continuous_limit()
    full = torch.cat([torch.cat([machine.Q, machine.W.mT], 1), torch.cat([machine.W, machine.T], 1)])
    joint = MultivariateNormal(-torch.linalg.solve(full, torch.cat([machine.b_h, machine.b_v])), precision_matrix=full)
    assert torch.allclose(machine.mean, joint.mean[2:], atol=WORSE)
    assert torch.allclose(machine.covariance_matrix, joint.covariance_matrix[2:, 2:], atol=WORSE)
    again = ContinuousBoltzmannMachine(machine.T, machine.W, machine.Q, machine.b_v, machine.b_h)
    assert torch.allclose(again.covariance_matrix, machine.covariance_matrix, atol=WORSE)
    assert float(kl_divergence(again, machine).abs()) <= WORSE
    v = machine.sample((50,), torch.Generator().manual_seed(0))
    gain = joint.covariance_matrix[:2, 2:] @ torch.linalg.inv(joint.covariance_matrix[2:, 2:])
    assert torch.allclose(machine.hidden_mean(v), joint.mean[:2] + (v - machine.mean) @ gain.mT, atol=WORSE)


def test_the_steps_of_an_rtbm_follow_the_straight_line() -> None:
    machine = diagonal(1, 1, phase="I")
    v = torch.linspace(-50, 50, 101, dtype=D)[:, None]
    assert float((machine.hidden_mean(v) - machine.continuous_limit().hidden_mean(v)).abs().max()) < 0.51


def test_samples_and_errors() -> None:
    machine = ContinuousBoltzmannMachine([[2.0]], [[1.0]], [[1.0]], [1.0], [0.0])
    draws = machine.sample((20_000,), torch.Generator().manual_seed(0))
    assert kstest(draws[:, 0] + 1, "norm").pvalue > P_VALUE
    assert machine.sample(3).shape == (3, 1)
    with pytest.raises(NotPositiveDefiniteError, match="T − WQ⁻¹Wᵀ must be positive definite"):
        ContinuousBoltzmannMachine([[1.0]], [[2.0]], [[1.0]], [0.0], [0.0])
    with pytest.raises(InvalidInputError, match=r"W must have shape \(1, 1\), got \(2, 1\)"):
        ContinuousBoltzmannMachine([[1.0]], np.ones((2, 1)), [[1.0]], [0.0], [0.0])
