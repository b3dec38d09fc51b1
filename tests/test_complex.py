"""The complex theta function: FLINT's values and characteristics, derivatives of any order, overflow."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from oracle import flint_all, flint_part
from rtbm import InvalidInputError, riemann_theta
from rtbm.theta.lattice import reduce_basis
from tolerances import SAME, WORSE

ERROR = SAME


def make_omega(g: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(2, g, g))
    return X + X.T + 1j * (Y @ Y.T + 0.3 * np.eye(g))


def make_z(g: int, seed: int, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed + 1)
    return size * (rng.normal(size=g) + 1j * rng.normal(size=g))


@pytest.mark.parametrize("g", [1, 2, 3])
@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 5.0))
def test_values_and_all_half_characteristics(g: int, seed: int, size: float) -> None:
    z, omega = make_z(g, seed, size), make_omega(g, seed)
    exact, expected = flint_all(z, omega)
    halves = [np.array(c) / 2 for c in itertools.product((0, 1), repeat=g)]
    for index, (alpha, beta) in enumerate(itertools.product(halves, halves)):
        u, w = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
        assert abs(complex(w) - expected[index]) <= ERROR * max(1.0, size * 10)
        assert abs(float(u) - exact) <= 1e-14 * exact


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), size=st.floats(0.01, 300.0), skew=st.integers(-300, 300))
def test_skewed_matrices_and_large_arguments(seed: int, size: float, skew: int) -> None:
    z, omega = make_z(2, seed, size), make_omega(2, seed) * (0.2 + 0.2j)
    omega = (np.round(omega.real * 64) + 1j * np.round(make_omega(2, seed + 1).imag * 64)) / 64
    U = np.array([[1, skew], [0, 1]])
    u, w = riemann_theta(z @ U, U.T @ omega @ U, parts=True)
    exact, expected = flint_all(z @ U, U.T @ omega @ U)
    assert abs(complex(w) - expected[0]) <= ERROR + 1e-14 * exact
    assert abs(float(u) - exact) <= 1e-14 * exact


def test_a_large_real_part_of_omega() -> None:
    expected = flint_part(np.array([0.1]), np.array([[1e15 + 1j]]), np.zeros(1), np.zeros(1))
    assert abs(complex(riemann_theta([0.1], [[1e15 + 1j]])) - expected) <= ERROR


@pytest.mark.parametrize("g", [1, 2, 3])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    sizes=st.tuples(st.floats(0, 15), st.floats(0, 14), st.floats(-1, 3)),
    condition=st.floats(0, 12),
)
def test_rounding_grows_with_the_lattice_point_alone(
    g: int, seed: int, sizes: tuple[float, float, float], condition: float
) -> None:
    """The stated bound: real parts up to 1e15, any characteristic, and skewed matrices do not matter."""
    rng = np.random.default_rng(seed)
    real, (argument, centre, alpha, beta) = rng.normal(size=(g, g)), rng.normal(size=(4, g))
    X = rng.normal(size=(g, g))
    imaginary, U = X @ X.T + 0.3 * np.eye(g), np.eye(g)
    while g > 1 and np.linalg.cond(U.T @ imaginary @ U) < 10.0 ** (condition - 2):
        i, j = rng.permutation(g)[:2]
        U[:, i] += rng.integers(-9, 10) * U[:, j]
    skewed = U.T @ imaginary @ U
    omega = 10.0 ** sizes[0] * (real + real.T) + 1j * (skewed + skewed.T) / 2
    z = 10.0 ** sizes[1] * argument + 10.0 ** sizes[2] * 1j * (centre @ imaginary @ U)
    assume(np.linalg.cond(skewed) < 1e13)
    _, w = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
    largest = float(np.linalg.norm(np.linalg.solve(reduce_basis(omega.imag)[1], z.imag @ reduce_basis(omega.imag)[0])))
    bound = 1e-12 + g * 1e-14 * (1 + largest)
    assert abs(complex(w) - flint_part(z, omega, alpha, beta)) <= bound


def test_periods_of_omega_and_z_leave_derivatives_and_gradients_unchanged() -> None:
    """Ω + 2k, with 2k even on the diagonal, and z + integers: the numbers are binary fractions, so nothing rounds."""
    z, omega = np.round(make_z(2, 4) * 64) / 64, np.round(make_omega(2, 4) * 64) / 64
    moved, far = omega + 2.0**40 * np.array([[2, 1], [1, -4]]), z + np.array([3e10, -(2.0**41)])
    results = []
    for argument, matrix in ((z, omega), (far, moved)):
        z_free, free = torch.tensor(argument[None], requires_grad=True), torch.tensor(matrix, requires_grad=True)
        _, w = riemann_theta(z_free, free, derivatives=[[0.3, -1j]], parts=True)
        gradients = torch.autograd.grad(w.real.sum() + 2 * w.imag.sum(), (z_free, free))
        results.append([w.detach(), *gradients])
    for here, there in zip(*results, strict=True):
        assert torch.allclose(here, there, rtol=SAME, atol=SAME * float(here.abs().max()))


@pytest.mark.parametrize("z", [1e17, 1e17j, -3e20 + 2e18j])
def test_arguments_beyond_the_integers_of_float64(z: complex) -> None:
    argument, omega, characteristic = np.array([z]), np.array([[0.2 + 1.3j]]), ([0.3], [0.1])
    _, w = riemann_theta(argument, omega, characteristic=characteristic, parts=True)
    assert abs(complex(w) - flint_part(argument, omega, *map(np.array, characteristic))) <= ERROR


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("characteristic", [None, ([0.5, 0.25], [0.1, 0.0])])
def test_directional_derivatives_of_any_order(order: int, characteristic: object) -> None:
    """Against a Taylor coefficient of t ↦ θ(z + t·d), from a fast Fourier transform on a circle."""
    z, omega, direction = make_z(2, 3, 0.3), make_omega(2, 3), np.array([0.7, -0.4 + 0.2j])
    points, radius = 64, 0.5
    circle = radius * np.exp(2j * np.pi * np.arange(points) / points)
    values = riemann_theta(z + circle[:, None] * direction, omega, characteristic=characteristic).numpy()
    coefficient = np.fft.fft(values)[order] / points / radius**order
    derivative = riemann_theta(z, omega, derivatives=[direction] * order, characteristic=characteristic)
    expected = coefficient * np.prod(np.arange(1, order + 1))
    assert abs(complex(derivative) - expected) <= WORSE * max(1.0, abs(expected))


def test_mixed_derivatives_commute_and_are_linear() -> None:
    z, omega = make_z(3, 5), make_omega(3, 5)
    a, b, c = np.random.default_rng(0).normal(size=(3, 3))

    def derivative(*directions: np.ndarray) -> complex:
        return complex(riemann_theta(z, omega, derivatives=directions, parts=True)[1])

    assert abs(derivative(a, b, c) - derivative(c, a, b)) <= WORSE * abs(derivative(a, b, c))
    total = derivative(a + 2 * b, c)
    assert abs(total - derivative(a, c) - 2 * derivative(b, c)) <= WORSE * abs(total)


def test_parts_never_overflow_and_the_plain_value_says_so() -> None:
    u, w = riemann_theta([300j, 1e4j], 1j * np.eye(2), parts=True)
    assert float(u) > 1e8
    assert torch.isfinite(w.abs())
    with pytest.raises(InvalidInputError, match="parts=True"):
        riemann_theta([300j, 1e4j], 1j * np.eye(2))


def test_batches_and_zeros() -> None:
    z = np.array([make_z(2, s) for s in range(6)])
    omega = make_omega(2, 1)
    batch = riemann_theta(z.reshape(2, 3, 2), omega)
    assert batch.shape == (2, 3)
    assert all(torch.allclose(batch.reshape(-1)[i], riemann_theta(z[i], omega)) for i in range(6))
    assert riemann_theta(z[:0], omega).shape == (0,)
    _, odd = riemann_theta([0.0], [[1j]], characteristic=([0.5], [0.5]), parts=True)
    assert abs(complex(odd)) <= 1e-15  # θ₁(0) = 0


def test_near_and_far_points_of_a_batch() -> None:
    """With some far away, all are located in Python integers: FLINT's values."""
    omega, rng = make_omega(2, 7), np.random.default_rng(0)
    alpha, beta = rng.normal(size=(2, 2))
    sizes = np.array([[1.0], [1e3], [1e6], [1.0], [1e9]])
    z = rng.normal(size=(5, 2)) * sizes + 1j * sizes[::-1] * rng.normal(size=(5, 2))
    _, w = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
    for point, value in zip(z, w.tolist(), strict=True):
        far = np.linalg.norm(np.linalg.solve(omega.imag, point.imag))
        assert abs(value - flint_part(point, omega, alpha, beta)) <= 1e-12 + 1e-14 * (1 + far)


def test_autograd_in_z_and_omega() -> None:
    z = torch.tensor(make_z(2, 1)[None], requires_grad=True)
    omega = torch.tensor(make_omega(2, 1), requires_grad=True)
    assert gradcheck(lambda z, w: riemann_theta(z, (w + w.mT) / 2, parts=True), (z, omega))
    assert gradgradcheck(lambda z, w: riemann_theta(z, (w + w.mT) / 2, parts=True)[1], (z, omega))
    alpha, beta = torch.tensor(np.random.default_rng(0).normal(size=(2, 2)), requires_grad=True)
    assert gradcheck(lambda *c: riemann_theta(z.detach(), omega.detach(), characteristic=c, parts=True), (alpha, beta))

    def derivative(z: torch.Tensor, w: torch.Tensor, *characteristic: torch.Tensor) -> torch.Tensor:
        directions = [[0.3, -0.2j]]
        return riemann_theta(z, (w + w.mT) / 2, derivatives=directions, characteristic=characteristic, parts=True)[1]

    assert gradcheck(derivative, (z, omega, alpha, beta))
    assert gradgradcheck(derivative, (z, omega, alpha, beta))
    (by_z,) = torch.autograd.grad(riemann_theta(z, omega.detach()).real.sum(), z)
    gradient = [complex(riemann_theta(z.detach()[0], omega.detach(), derivatives=[d])) for d in np.eye(2)]
    assert np.allclose(by_z.conj().resolve_conj().numpy()[0], gradient)
