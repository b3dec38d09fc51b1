"""Identities of the theta function, over drawn cases: each would break if a basis, a phase or a sum were wrong."""

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families import PHASES, Floats, block_of, matrices, problems, unimodular
from rtbm import ThetaPlan, log_theta, riemann_theta, theta_moments
from tolerances import MOMENTS, SAME, WORSE, allowed

MILD = {"smallest": -1.0, "largest": 2.0, "spread": 2.0}
sizes = st.integers(1, 4)


def value(z: Floats, Q: Floats, phase: str = "I") -> float:
    return float(log_theta(z, Q, phase=phase))


def draw_shift(data: st.DataObject) -> tuple[Floats, Floats, np.ndarray]:
    """An argument, a matrix and an integer vector to shift by."""
    g = data.draw(sizes)
    n = np.array(data.draw(st.lists(st.integers(-5, 5), min_size=g, max_size=g)))
    return np.random.default_rng(g).normal(size=g), data.draw(matrices(g, **MILD)), n


@settings(max_examples=60)
@given(sizes.flatmap(problems))
def test_even(problem: tuple[Floats, Floats, str]) -> None:
    z, Q, phase = problem
    assert abs(value(z, Q, phase) - value(-z, Q, phase)) <= allowed(value(z, Q, phase))


@settings(max_examples=60)
@given(st.data())
def test_quasi_periodic_in_phase_one(data: st.DataObject) -> None:
    z, Q, n = draw_shift(data)
    expected = value(z, Q) + n @ z + 0.5 * n @ Q @ n
    assert abs(value(z + Q @ n, Q) - expected) <= SAME * max(1, abs(expected))


@settings(max_examples=60)
@given(st.data())
def test_periodic_in_phase_two(data: st.DataObject) -> None:
    z, Q, n = draw_shift(data)
    difference = value(z + 2 * np.pi * n, Q, "II") - value(z, Q, "II")
    slope = float(theta_moments(z, Q, phase="II", order=1).mean.abs().sum())
    assert abs(difference) <= SAME + 1e-14 * slope  # adding 2πn rounds z


@settings(max_examples=60)
@given(st.data())
def test_poisson_duality(data: st.DataObject) -> None:
    g = data.draw(sizes)
    Q = data.draw(matrices(g, **MILD))
    z = np.random.default_rng(g).normal(size=g)
    inverse = np.linalg.inv(Q)
    dual = (4 * np.pi**2 * (inverse + inverse.T) / 2, 2 * np.pi * inverse @ z)
    rounding = 4e-16 * np.linalg.cond(Q) * (1 + z @ inverse @ z)  # of the inverse
    constant = 0.5 * g * math.log(2 * math.pi) - 0.5 * np.linalg.slogdet(Q)[1]
    assert abs(value(z, Q) - (constant + 0.5 * z @ inverse @ z + value(dual[1], dual[0], "II"))) <= MOMENTS + rounding
    assert abs(value(z, Q, "II") - (constant - 0.5 * z @ inverse @ z + value(dual[1], dual[0]))) <= MOMENTS + rounding


@settings(max_examples=60)
@given(st.data())
def test_unimodular_invariance(data: st.DataObject) -> None:
    g = data.draw(st.integers(2, 4))
    Q = np.round(data.draw(matrices(g, **MILD)) * 2**20) / 2**20  # so that UᵀQU is exact in floating point
    z = np.round(np.random.default_rng(g).normal(size=g) * 2**20) / 2**20
    U = data.draw(unimodular(g))
    for phase in PHASES:
        assert abs(value(U.T @ z, U.T @ Q @ U, phase) - value(z, Q, phase)) <= allowed(value(z, Q, phase))


@settings(max_examples=40)
@given(st.data())
def test_block_diagonal_matrices_factorise(data: st.DataObject) -> None:
    parts = [data.draw(matrices(g, **MILD)) for g in data.draw(st.lists(st.integers(1, 3), min_size=2, max_size=4))]
    g = sum(len(p) for p in parts)
    order = np.random.default_rng(g).permutation(g)
    Q = np.zeros((g, g))
    edges = np.cumsum([0, *map(len, parts)])
    for part, a, b in zip(parts, edges[:-1], edges[1:], strict=True):
        Q[a:b, a:b] = part
    z = np.random.default_rng(g).normal(size=(3, g))
    for phase in PHASES:
        whole = theta_moments(z[:, order], Q[np.ix_(order, order)], phase=phase, order=3)
        pieces = [
            theta_moments(z[:, a:b], part, phase=phase, order=3)
            for part, a, b in zip(parts, edges[:-1], edges[1:], strict=True)
        ]
        assert torch.allclose(whole.log_theta, sum(p.log_theta for p in pieces), rtol=0, atol=SAME)
        mean = torch.cat([p.mean for p in pieces], dim=1)[:, order]
        assert torch.allclose(whole.mean, mean, rtol=SAME, atol=MOMENTS)
        covariance = torch.stack([torch.block_diag(*(p.covariance[i] for p in pieces)) for i in range(3)])
        assert torch.allclose(whole.covariance, covariance[:, order][:, :, order], rtol=SAME, atol=MOMENTS)
        third = torch.zeros(3, g, g, g, dtype=torch.float64)
        for p, a, b in zip(pieces, edges[:-1], edges[1:], strict=True):
            third[:, a:b, a:b, a:b] = p.third
        assert torch.allclose(whole.third, third[:, order][:, :, order][:, :, :, order], rtol=MOMENTS, atol=MOMENTS)


@settings(max_examples=30)
@given(st.data())
def test_heat_equation(data: st.DataObject) -> None:
    """∂θ̃/∂Q_jk = −½∂²θ̃/∂z_j∂z_k (phase I), with the other sign in phase II: two derivatives computed separately."""
    g = data.draw(st.integers(1, 3))
    Q = torch.tensor(data.draw(matrices(g, **MILD)), requires_grad=True)
    z = torch.tensor(np.random.default_rng(g).normal(size=g))
    for phase, sign in (("I", -0.5), ("II", 0.5)):
        by_terms = block_of(ThetaPlan(Q, phase=phase)).log_theta(z[None], Q, "list")
        (by_Q,) = torch.autograd.grad(by_terms.sum(), Q)
        moments = theta_moments(z, Q.detach(), phase=phase)  # from the compiled pass
        second = moments.covariance + torch.outer(moments.mean, moments.mean)
        assert torch.allclose(by_Q, sign * second, rtol=MOMENTS, atol=MOMENTS)


@settings(max_examples=30)
@given(st.data())
def test_the_complex_function_contains_the_real_one(data: st.DataObject) -> None:
    g = data.draw(st.integers(1, 3))
    Q = data.draw(matrices(g, **MILD))
    z = np.random.default_rng(g).normal(size=g)
    for phase, factor in (("I", -1j), ("II", 1.0)):
        u, w = riemann_theta(z * factor / (2 * np.pi), 1j * Q / (2 * np.pi), parts=True)
        if abs(w) > 1e-3:
            assert abs(float(u + w.real.log()) - value(z, Q, phase)) <= WORSE
            assert abs(float(w.imag)) <= SAME
