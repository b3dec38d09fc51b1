"""All half-integer characteristics and theta constants, against FLINT and Riemann's relations."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from families import make_omega, make_z
from oracle import flint_all
from rtbm import (
    InvalidInputError,
    NotPositiveDefiniteError,
    riemann_theta,
    riemann_theta_characteristics,
    siegel_reduce,
    theta_constants,
)
from tolerances import WORSE

seeds = st.integers(0, 10**6)


def bound(omega: np.ndarray, z: np.ndarray) -> float:
    """The stated error of w. Direct sums lose as many digits as their absolute terms, (det Im Ω)^−½ at most, have."""
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (siegel_reduce(1j * omega.imag)[0].numpy().imag, omega.imag)]
    far = np.linalg.norm(np.linalg.solve(omega.imag, z.imag))
    return 1e-12 + 1e-14 * len(omega) * (1 + far) * max(1.0, float(np.exp((logs[0] - logs[1]) / 2)))


def characteristics(g: int) -> np.ndarray:
    """(4^g, 2, g), in FLINT's order."""
    return np.array([[int(bit) for bit in f"{k:0{2 * g}b}"] for k in range(4**g)]).reshape(-1, 2, g)


@pytest.mark.parametrize("g", [1, 2, 3])
@settings(max_examples=25)
@given(seed=seeds, small=st.floats(-8, 0))
def test_values(g: int, seed: int, small: float) -> None:
    rng = np.random.default_rng(seed)
    omega = make_omega(rng, g, small)
    z = make_z(rng, omega)
    _, w = riemann_theta_characteristics(z, omega, parts=True)
    assert abs(w.numpy() - flint_all(z, omega)[1]).max() <= bound(omega, z)


@pytest.mark.parametrize("small", [-7.0, 0.0])
@pytest.mark.parametrize("g", [1, 2, 3])
def test_one_by_one_with_derivatives(g: int, small: float) -> None:
    rng = np.random.default_rng(g)
    omega = make_omega(rng, g, small)
    z, directions = np.array([make_z(rng, omega) for _ in range(3)]), rng.normal(size=(2, g))
    for order in range(3):
        u, w = riemann_theta_characteristics(z, omega, derivatives=directions[:order], parts=True)
        for column, (a, b) in enumerate(characteristics(g) / 2):
            one = riemann_theta(z, omega, derivatives=directions[:order], characteristic=(a, b), parts=True)
            assert torch.allclose(u, one[0])
            assert float((w[:, column] - one[1]).abs().max()) <= WORSE * float(w.abs().max())


@pytest.mark.parametrize("g", [1, 2, 3])
@settings(max_examples=20)
@given(seed=seeds, small=st.floats(-8, 0))
def test_riemanns_quartic_relation(g: int, seed: int, small: float) -> None:
    """Σ_ab Π_i θ_ab(x_i) = 2^g Π_i θ(x′_i), where x′ = Hx/2 with Hadamard's H. It keeps Σu, so it holds for w too."""
    rng = np.random.default_rng(seed)
    omega = make_omega(rng, g, small)
    x = np.array([make_z(rng, omega) for _ in range(4)])
    H = np.array([[1, 1, 1, 1], [1, 1, -1, -1], [1, -1, 1, -1], [1, -1, -1, 1]])
    x = np.round(x / 2.0**-60) * 2.0**-60  # so that x′ hardly rounds
    moved = H @ x / 2
    left = riemann_theta_characteristics(x, omega, parts=True)[1].prod(0).sum()
    _, right = riemann_theta(moved, omega, parts=True)
    sizes = riemann_theta(np.zeros(g), 1j * omega.imag).abs()  # bounds every w
    slope = 2 * np.pi * np.sqrt(np.linalg.eigvalsh(omega.imag)[0]) ** -1 * np.spacing(abs(x).max())  # of x′, as rounded
    error = sum(bound(omega, z) for z in (*x, *moved)) + float(sizes) * slope
    assert abs(complex(left - 2**g * right.prod())) <= 4**g * error * float(sizes.clamp(min=1.0)) ** 3


@pytest.mark.parametrize("small", [-6.0, 0.0])
@pytest.mark.parametrize("g", [1, 2, 3])
def test_theta_constants(g: int, small: float) -> None:
    rng = np.random.default_rng(g)
    omegas = np.array([make_omega(rng, g, small) for _ in range(3)])
    constants = theta_constants(omegas)
    assert constants.shape == (3, 4**g)
    is_odd = (characteristics(g).prod(1).sum(1) % 2).astype(bool)
    assert is_odd.sum() == 2 ** (g - 1) * (2**g - 1)
    assert (constants[:, is_odd] == 0).all()
    for omega, values in zip(omegas, constants.numpy(), strict=True):
        assert abs(values - flint_all(np.zeros(g, dtype=complex), omega)[1]).max() <= bound(omega, np.zeros(g))


def test_gradients() -> None:
    rng = np.random.default_rng(0)
    omega = torch.tensor(make_omega(rng, 2, 0.0), requires_grad=True)
    z = torch.tensor(make_z(rng, omega.detach().numpy())[None], requires_grad=True)
    assert gradcheck(lambda z, w: riemann_theta_characteristics(z, (w + w.mT) / 2, parts=True), (z, omega))


def test_shapes_and_errors() -> None:
    omega = 1j * np.eye(2)
    assert riemann_theta_characteristics(np.zeros((3, 5, 2)), omega).shape == (3, 5, 16)
    assert riemann_theta_characteristics(np.zeros((0, 2)), omega).shape == (0, 16)
    with pytest.raises(InvalidInputError, match="parts=True"):
        riemann_theta_characteristics([100j, 0.0], omega)
    with pytest.raises(InvalidInputError, match=r"z must have shape \(..., 2\)"):
        riemann_theta_characteristics([0.0], omega)
    with pytest.raises(NotPositiveDefiniteError, match="imaginary part of omega"):
        theta_constants(np.eye(2))
    with pytest.raises(InvalidInputError, match=r"omega must have shape \(..., g, g\)"):
        theta_constants(1j)
