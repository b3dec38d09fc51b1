"""Samples against the distribution function, the probabilities of hidden states and the moments."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from machines import dense, diagonal
from rtbm import DiscreteGaussian, InvalidInputError, RTBMDistribution, RTBMMixture
from test_discrete_gaussian import chi_square_p_value
from tolerances import P_VALUE

ONE_DIMENSIONAL = [
    pytest.param(dense(1, 2), id="dense"),
    pytest.param(dense(1, 3, 1, "II"), id="dense-II"),
    pytest.param(diagonal(1, 3), id="diagonal"),
    pytest.param(diagonal(1, 40), id="grid"),
    pytest.param(RTBMMixture([0.2, 0.8], [dense(1, 1, 3), diagonal(1, 6)]), id="mixture"),
]


@pytest.mark.parametrize("machine", ONE_DIMENSIONAL)
def test_draws_follow_the_distribution_function(machine) -> None:
    draws = machine.sample((20_000,), generator=torch.Generator().manual_seed(3))
    assert kstest(machine.cdf(draws), "uniform").pvalue > P_VALUE


@pytest.mark.parametrize("machine", [dense(2, 2), diagonal(2, 12, 1), diagonal(3, 5, 2)])
def test_draws_in_several_dimensions(machine: RTBMDistribution) -> None:
    """Moments, and in two dimensions the counts in a grid of boxes against their probabilities."""
    n = 100_000
    draws = machine.sample((n,), generator=torch.Generator().manual_seed(4))
    error = (draws.mean(0) - machine.mean) / (machine.variance / n).sqrt()
    assert float(error.abs().max()) < 4.5
    scale = float(machine.variance.max())
    assert torch.allclose(torch.cov(draws.mT), machine.covariance_matrix, atol=0.03 * scale)
    if machine.n_visible == 2:
        edges = torch.linspace(-1.5, 1.5, 5, dtype=draws.dtype)
        edges = torch.cat([edges.new_tensor([-math.inf]), edges, edges.new_tensor([math.inf])])
        low, high = torch.cartesian_prod(edges[:-1], edges[:-1]), torch.cartesian_prod(edges[1:], edges[1:])
        centred, deviation = machine.mean, machine.variance.sqrt()
        expected = n * machine.box_probability(centred + low * deviation, centred + high * deviation)
        x = (draws - centred) / deviation
        column = [torch.bucketize(x[:, i].contiguous(), edges[1:-1]) for i in range(2)]
        cell = column[0] * 6 + column[1]
        assert chi_square_p_value(torch.bincount(cell, minlength=36).double(), expected) > P_VALUE


@pytest.mark.parametrize("machine", [dense(1, 1), dense(2, 1, 2), diagonal(1, 1, phase="I")])
def test_hidden_states_follow_their_probabilities(machine: RTBMDistribution) -> None:
    n = 100_000
    v, h = machine.sample_joint((n,), torch.Generator().manual_seed(5))
    assert torch.equal(h, h.round())
    states = torch.arange(-30.0, 31.0, dtype=h.dtype)[:, None]
    expected = n * machine.hidden_log_prob(states).exp()
    assert float(expected.sum()) == pytest.approx(n)
    observed = torch.bincount((h[:, 0] + 30).long(), minlength=61).double()
    assert chi_square_p_value(observed, expected) > P_VALUE
    _, _, F, mean, covariance = machine.lattice
    noise = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (v - mean - h @ F.mT).mT, upper=False)
    for row in noise:
        assert kstest(row[:20_000], "norm").pvalue > P_VALUE


def test_hidden_states_of_a_grid_machine_follow_their_posterior() -> None:
    """Draws of v by cells and of h given v follow P(h), which comes from the lattice form."""
    machine = diagonal(1, 4, 3, "I")
    n = 100_000
    v, h = machine.sample_joint((n,), torch.Generator().manual_seed(6))
    assert torch.equal(h, h.round())
    states = torch.cartesian_prod(*[torch.arange(-4.0, 5.0, dtype=h.dtype)] * 4)
    expected = n * machine.hidden_log_prob(states).exp()
    inside = (h.abs() <= 4).all(1)
    index = ((h[inside] + 4) @ 9 ** torch.arange(3, -1, -1, dtype=h.dtype)).long()
    assert float(expected.sum()) == pytest.approx(float(inside.sum()), rel=0.01)
    assert chi_square_p_value(torch.bincount(index, minlength=9**4).double(), expected) > P_VALUE
    spread = (h - machine.hidden_mean(v)).std(0) / math.sqrt(n)
    assert bool(((h - machine.hidden_mean(v)).mean(0).abs() < 4.5 * spread).all())


@pytest.mark.parametrize("machine", [*ONE_DIMENSIONAL, pytest.param(dense(2, 2), id="two")])
def test_the_same_seed_gives_the_same_draws(machine) -> None:
    first, second, other = (machine.sample((5, 3), torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (5, 3, machine.n_visible)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert machine.sample().shape == (machine.n_visible,)
    assert machine.sample((0,)).shape == (0, machine.n_visible)


def test_the_second_phase_has_no_hidden_probabilities() -> None:
    machine = dense(1, 1, phase="II")
    for call in (
        lambda: machine.sample_joint((1,)),
        lambda: machine.hidden_log_prob([[0.0]]),
        lambda: machine.energy([0.0], [0.0]),
        lambda: machine.joint_log_prob([0.0], [0.0]),
        lambda: machine.visible_given([0.0]),
    ):
        with pytest.raises(InvalidInputError, match=r"needs phase I.*\.to_phase\(\"I\"\)"):
            call()


def test_draws_without_derivatives_say_so() -> None:
    with pytest.raises(NotImplementedError, match="discrete hidden states"):
        DiscreteGaussian([[1.0]], [0.0]).rsample((5,))


@pytest.mark.parametrize("bad", [-1, 2.5, None, "three", (2, -1)])
def test_sample_shapes(bad) -> None:
    machine = diagonal(1, 6)
    assert machine.sample(np.int64(3)).shape == (3, 1)
    with pytest.raises(InvalidInputError, match="sample_shape"):
        machine.sample(bad)
