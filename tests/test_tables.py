"""Sums over tables of hidden states against theta functions: values, derivatives, and the bound on what is left out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rtbm.errors import TooManyTermsError
from rtbm.lattice import log_tail
from rtbm.parameters import count
from rtbm.training import Family
from rtbm.training.family import TOLERANCE
from rtbm.training.tables import TabulatedMachine
from tolerances import SAME

vectors = st.integers(0, 10**6)


def random_vector(family: Family, seed: int, scale: float = 0.7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    vector = scale * torch.randn(family.n_parameters, dtype=torch.float64, generator=generator)
    machines, logits = family.split(vector)
    for machine in machines:
        machine[0] += 1.0  # hidden units that are not too soft: tables stay moderate
    return family.join(machines, logits)


def points(n: int, d: int, seed: int) -> torch.Tensor:
    return 1.5 * torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@given(vectors, st.integers(1, 2), st.integers(1, 3), st.integers(1, 2))
def test_values_and_gradients_are_those_of_theta_functions(seed, n_visible, n_hidden, n_components):
    family = Family(n_visible, n_hidden, n_components=n_components)
    vector = random_vector(family, seed).requires_grad_()
    x = points(40, n_visible, seed)
    try:
        log_prob, _, _ = family.tabulate(vector, x)
    except TooManyTermsError:
        return
    exact = family.distribution(vector).log_prob(x)
    assert float((log_prob - exact).detach().abs().mean()) < TOLERANCE
    weights = torch.linspace(0.5, 1.5, 40, dtype=torch.float64) / 40
    ours, theirs = (torch.autograd.grad(weights @ value, vector)[0] for value in (log_prob, exact))
    assert torch.allclose(ours, theirs, atol=1e-5, rtol=1e-5)


def test_a_generous_table_has_all_digits():
    family = Family(1, 2)
    vector = random_vector(family, 3).requires_grad_()
    x = points(50, 1, 0)
    machine = TabulatedMachine(1, 2)
    machine.allow(-30.0)  # leave out e^30 times less than usual
    log_prob, _, _ = machine.log_prob(vector, x)
    exact = family.distribution(vector).log_prob(x)
    assert torch.allclose(log_prob, exact, atol=SAME, rtol=0)
    ours, theirs = (torch.autograd.grad(value.mean(), vector)[0] for value in (log_prob, exact))
    assert torch.allclose(ours, theirs, atol=1e-10, rtol=1e-10)


@given(vectors)
def test_the_table_follows_the_parameters(seed):
    family = Family(1, 2)
    x = points(30, 1, seed)
    vector = random_vector(family, seed)
    for step in range(6):
        moved = vector + 0.4 * step * random_vector(family, seed + 1)
        try:
            log_prob, _, _ = family.tabulate(moved, x)
        except TooManyTermsError:
            continue
        exact = family.distribution(moved).log_prob(x)
        assert float((log_prob - exact).abs().mean()) < TOLERANCE


def test_points_far_out_are_right():
    family = Family(1, 2)
    x = torch.tensor([[0.0], [30.0], [-25.0]], dtype=torch.float64)
    vector = random_vector(family, 1)
    assert torch.allclose(family.log_prob(vector, x), family.distribution(vector).log_prob(x), rtol=1e-7)


def test_points_too_far_for_a_table_are_evaluated_one_by_one():
    family = Family(1, 3)
    vector = torch.zeros(family.n_parameters, dtype=torch.float64)
    vector[:6] = torch.tensor([1.15, 0, 1.15, 0, 0, 1.15])  # A = 10
    vector[9:12] = torch.tensor([1.0, 0.5, 0.25])
    vector[-1] = -1.5
    x = torch.cat([points(200, 1, 0), torch.tensor([[400.0], [-300.0]], dtype=torch.float64)]).requires_grad_(False)
    free = vector.requires_grad_()
    for _ in range(2):  # the second time it knows
        log_prob, exact = family.log_prob(free, x), family.distribution(free).log_prob(x)
        assert torch.allclose(log_prob, exact, rtol=1e-9, atol=1e-6)
        ours, theirs = (torch.autograd.grad(value.sum(), free)[0] for value in (log_prob, exact))
        assert torch.allclose(ours, theirs, rtol=1e-5)
    assert family._has_far_points


def test_soft_machines_fall_back_to_theta_functions():
    family = Family(1, 4)
    vector = torch.zeros(family.n_parameters, dtype=torch.float64)
    vector[:10] = -3.0 * torch.tensor([1, 0, 1, 0, 0, 1, 0, 0, 0, 1], dtype=torch.float64)  # A = e⁻⁶
    x = points(5, 1, 0)
    with pytest.raises(TooManyTermsError):
        family.tabulate(vector, x)
    assert torch.isfinite(family.log_prob(vector, x)).all()


@pytest.mark.parametrize("n_components", [1, 2])
def test_missing_entries_are_integrated_out(n_components):
    family = Family(3, 2, n_components=n_components)
    vector = random_vector(family, 5).requires_grad_()
    x = points(12, 3, 0)
    x[2, 0] = x[3, 1] = x[4, :2] = x[5, :] = math.nan
    log_prob, exact = family.tabulate(vector, x)[0], family.distribution(vector).log_prob(x)
    assert torch.allclose(log_prob, exact, atol=1e-6)
    assert float(log_prob[5].detach()) == 0.0
    ours, theirs = (torch.autograd.grad(value.sum(), vector)[0] for value in (log_prob, exact))
    assert torch.allclose(ours, theirs, atol=1e-5)


@given(st.floats(0.5, 30), st.floats(0.5, 30), st.floats(1, 200))
def test_log_tail_bounds_the_tail(a, b, radius2):
    n = np.arange(-60, 61)
    squares = a * n[:, None] ** 2 + b * n[None, :] ** 2
    tail = np.exp(-0.5 * squares[squares > radius2]).sum()
    assert tail <= math.exp(log_tail(np.array([a, b]), radius2)) * (1 + 1e-9)


def test_a_family_counts_and_splits_its_parameters():
    family = Family(2, 3, n_components=2)
    assert family.n_parameters == 2 * count(2, 3) + 2
    assert family.n_degrees_of_freedom == 2 * count(2, 3) + 1
    vector = random_vector(family, 0)
    assert torch.equal(family.join(*family.split(vector)), vector)
    back = family.vector(family.distribution(vector))
    x = points(7, 2, 0)
    assert torch.allclose(family.log_prob(back, x), family.log_prob(vector, x), atol=1e-9)
    assert torch.allclose(family.module(vector)().log_prob(x), family.distribution(vector).log_prob(x), atol=1e-10)
