"""Siegel reduction and the modular transformation of the theta function, against FLINT and against identities."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from families import make_omega, make_z
from oracle import flint, flint_matrix, flint_part, precision, rounded
from rtbm import InvalidInputError, NotPositiveDefiniteError, is_siegel_reduced, riemann_theta, siegel_reduce
from tolerances import SAME, WORSE

seeds = st.integers(0, 10**6)
genera = pytest.mark.parametrize("g", [1, 2, 3, 4])


def size_of(omega: np.ndarray) -> float:
    """(det Im Ω′ / det Im Ω)^¼: how large w becomes, in units of which the error is stated."""
    reduced, _ = siegel_reduce(omega)
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (reduced.numpy().imag, omega.imag)]
    return max(1.0, float(np.exp((logs[0] - logs[1]) / 4)))


def random_word(rng: np.random.Generator, g: int, length: int) -> np.ndarray:
    """A symplectic matrix (2g, 2g) of Python integers: a word in translations, changes of basis and inversions."""
    M = np.eye(2 * g, dtype=int).astype(object)
    for _ in range(length):
        step = np.eye(2 * g, dtype=int).astype(object)
        kind, i, j = rng.integers(3), *rng.integers(g, size=2)
        if kind == 0:
            step[i, g + j] = step[j, g + i] = int(rng.integers(-3, 4))
        elif kind == 1 and i != j:
            k = int(rng.integers(-2, 3))
            step[i, j], step[g + j, g + i] = k, -k
        else:
            step[[i, g + i]] = step[[g + i, i]] * np.array([[1], [-1]])
        M = step @ M
    return M


def act(M: np.ndarray, omega: np.ndarray) -> tuple["flint.acb_mat", "flint.acb_mat"]:
    """MΩ and CΩ + D, in FLINT's arithmetic."""
    g = len(omega)
    A, B, C, D = (flint_matrix(M[i : i + g, j : j + g].astype(float)) for i in (0, g) for j in (0, g))
    tau = flint_matrix(omega)
    return (A * tau + B) * (C * tau + D).inv(), C * tau + D


@genera
@settings(max_examples=25)
@given(seed=seeds, small=st.floats(-12, 1), large=st.floats(-1, 6))
def test_the_reduction_is_symplectic_and_rounds_once(g: int, seed: int, small: float, large: float) -> None:
    omega = make_omega(np.random.default_rng(seed), g, small, large)
    reduced, M = siegel_reduce(omega)
    J = np.kron([[0, 1], [-1, 0]], np.eye(g, dtype=int)).astype(object)
    exact = M.numpy().astype(object)
    assert (exact.T @ J @ exact == J).all()
    assert is_siegel_reduced(reduced)
    assert float(torch.linalg.det(reduced.imag)) >= (1 - SAME) * np.linalg.det(omega.imag)
    with precision(600):
        expected = rounded(act(exact, omega)[0])
    for ours, theirs in ((reduced.numpy().real, expected.real), (reduced.numpy().imag, expected.imag)):
        assert (abs(ours - theirs) <= np.spacing(abs(theirs))).all()


@settings(max_examples=50)
@given(st.integers(1, 4), seeds)
def test_a_reduced_matrix_stays(g: int, seed: int) -> None:
    reduced, _ = siegel_reduce(make_omega(np.random.default_rng(seed), g, -2.0))
    again, _ = siegel_reduce(reduced)
    assert np.isclose(float(torch.linalg.det(again.imag)), float(torch.linalg.det(reduced.imag)), rtol=WORSE)


def test_what_is_not_reduced() -> None:
    for omega in ([[0.6 + 2j]], [[0.5j]], [[2j, 1.5j], [1.5j, 2j]], [[3j, 0j], [0j, 2j]], [[2j, 0.6], [0.6, 2j]]):
        assert not is_siegel_reduced(omega)
        assert is_siegel_reduced(siegel_reduce(omega)[0])


@pytest.mark.parametrize("g", [1, 2, 3])  # FLINT takes seconds beyond
@settings(max_examples=25)
@given(seed=seeds, small=st.floats(-12, -6), large=st.floats(-1, 6), argument=st.floats(-1, 6))
def test_values_of_badly_reduced_matrices(g: int, seed: int, small: float, large: float, argument: float) -> None:
    """The stated bound: rounding is relative to the size of w alone, for any Re Ω, z and characteristic."""
    rng = np.random.default_rng(seed)
    omega = make_omega(rng, g, small, large)
    z, (alpha, beta) = make_z(rng, omega, 10.0**argument), rng.normal(size=(2, g))
    u, w = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
    assert abs(complex(w) - flint_part(z, omega, alpha, beta)) <= 1e-12 + g * 1e-14 * size_of(omega)
    with precision(600):
        y = flint_matrix(z.imag)
        exact = np.pi * rounded(y.transpose() * flint_matrix(omega.imag).solve(y))[0, 0].real
    assert abs(float(u) - exact) <= 1e-15 * exact


@genera
@settings(max_examples=15)
@given(seed=seeds, small=st.floats(-6, 0))
def test_values_on_both_sides_of_the_decision(g: int, seed: int, small: float) -> None:
    """Whether or not a reduction pays, the error is at most that of the direct sum of its absolute terms."""
    rng = np.random.default_rng(seed)
    omega = make_omega(rng, g, small)
    z, (alpha, beta) = make_z(rng, omega), rng.normal(size=(2, g))
    _, w = riemann_theta(z, omega, characteristic=(alpha, beta), parts=True)
    terms = size_of(1j * omega.imag) ** 2  # Σ exp(−π nᵀIm(Ω)n) ≈ (det Im Ω)^−½ at most
    bound = 1e-12 + g * 1e-14 * terms * (1 + np.linalg.norm(np.linalg.solve(omega.imag, z.imag)))
    assert abs(complex(w) - flint_part(z, omega, alpha, beta)) <= bound


@genera
@settings(max_examples=20)
@given(seed=seeds, length=st.integers(1, 30))
def test_the_modular_group_acts_up_to_an_eighth_root_of_unity(g: int, seed: int, length: int) -> None:
    """θ(z|Ω)⁸ = det(CΩ+D)⁻⁴ exp(−8πi zᵀ(CΩ+D)⁻¹Cz) θ[α,β]((CΩ+D)⁻ᵀz|MΩ)⁸ for a word M that leads from Ω back."""
    rng = np.random.default_rng(seed)
    M = random_word(rng, g, length)
    with precision(600):
        omega = rounded(act(M, make_omega(rng, g))[0])
    omega = (omega + omega.T) / 2
    assume(np.linalg.eigvalsh(omega.imag)[0] > 1e-12 * abs(omega).max())  # else rounding of the entries decides
    A, B, C, D = (M[i : i + g, j : j + g] for i in (0, g) for j in (0, g))
    A, B, C, D = D.T, -B.T, -C.T, A.T  # of the inverse
    back = np.block([[A, B], [C, D]])
    z = omega @ rng.uniform(-0.5, 0.5, g) + rng.uniform(-0.5, 0.5, g)
    with precision(600):
        moved, cocycle = act(back, omega)
        image = cocycle.transpose().inv() * flint_matrix(z)
        exponent = rounded(
            flint_matrix(z).transpose() * cocycle.inv() * flint_matrix(C.astype(float)) * flint_matrix(z)
        )
        turns = 4 * exponent[0, 0].real % 1  # w has the phase of the exponential only
        determinant = complex(rounded(flint_matrix(np.ones((1, 1))) * cocycle.det())[0, 0])
    argument, near = rounded(image)[:, 0], rounded(moved)
    near = (near + near.T) / 2
    characteristic = (np.diag(C @ D.T).astype(float) / 2, np.diag(A @ B.T).astype(float) / 2)
    _, w = riemann_theta(z, omega, parts=True)
    _, there = riemann_theta(argument, near, characteristic=characteristic, parts=True)
    expected = determinant**-4 * np.exp(-2j * np.pi * turns) * complex(there) ** 8
    size = abs(determinant) ** -0.5
    periods = np.linalg.norm(np.linalg.solve(near.imag, argument.imag))
    rounding = 1e-14 * g * (1 + periods) * (1 + np.linalg.norm(argument) + periods)  # of (argument, near)
    assert abs(complex(w) ** 8 - expected) <= 8 * size**8 * max(1.0, abs(complex(there))) ** 7 * (1e-12 + rounding)


@pytest.mark.parametrize("small", [-7.0, 0.0])
@genera
@settings(max_examples=20)
@given(seed=seeds)
def test_quasi_periodicity(g: int, small: float, seed: int) -> None:
    """On binary fractions, so that z + m + Ωn does not round; and w changes by a phase alone."""
    rng = np.random.default_rng(seed)
    omega = np.round(make_omega(rng, g, small, 1.0) * 2.0**40) / 2.0**40
    z = np.round(make_z(rng, omega) * 2.0**40) / 2.0**40
    m, n = rng.integers(-5, 6, (2, g))
    alpha, beta = np.round(rng.normal(size=(2, g)) * 64) / 64
    w, moved = (
        complex(riemann_theta(x, omega, characteristic=(alpha, beta), parts=True)[1]) for x in (z, z + m + omega @ n)
    )
    X, x, a, b = (np.vectorize(Fraction, otypes=[object])(v) for v in (omega.real, z.real, alpha, beta))
    N, turns = n.astype(object), a @ m.astype(object)
    turns = float((turns - b @ N - N @ X @ N / 2 - N @ x) % 1)
    assert abs(moved - w * np.exp(2j * np.pi * turns)) <= 2e-12 + 2e-14 * g * size_of(omega)


@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_derivatives_of_a_badly_reduced_matrix(g: int, order: int) -> None:
    rng = np.random.default_rng(10 * g + order)
    omega = make_omega(rng, g, -6.0, 1.0)
    z, (alpha, beta) = make_z(rng, omega), rng.normal(size=(2, g))
    direction = rng.normal(size=g) + 1j * rng.normal(size=g)
    directions = np.array([direction] * order)
    _, w = riemann_theta(z, omega, derivatives=directions, characteristic=(alpha, beta), parts=True)
    width = np.sqrt((direction.conj() @ np.linalg.solve(2 * np.pi * omega.imag, direction)).real)
    centre = np.linalg.norm(np.linalg.solve(omega.imag, z.imag)) * np.linalg.norm(direction)
    units = (2 * np.pi * (width + centre)) ** order  # as the docstring of `tolerance` has it
    expected = flint_part(z, omega, alpha, beta, derivative=directions)
    assert abs(complex(w) - expected) <= units * (1e-12 + 1e-13 * g * size_of(omega))


@pytest.mark.parametrize("tolerance", [1e-2, 1e-5, 1e-8])
@settings(max_examples=20)
@given(seed=seeds, g=st.integers(1, 4), order=st.integers(0, 2))
def test_tolerance_bounds_the_truncation_error(tolerance: float, seed: int, g: int, order: int) -> None:
    rng = np.random.default_rng(seed)
    omega, direction = make_omega(rng, g, -5.0), rng.normal(size=g)
    z = np.array([make_z(rng, omega) for _ in range(5)])
    (_, rough), (_, fine) = (
        riemann_theta(z, omega, derivatives=[direction] * order, tolerance=t, parts=True) for t in (tolerance, 1e-14)
    )
    width = np.sqrt(direction @ np.linalg.solve(2 * np.pi * omega.imag, direction))
    centre = abs(np.linalg.solve(omega.imag, z.imag.T).T @ direction)
    units = torch.tensor((2 * np.pi * (width + centre)) ** order)
    assert ((rough - fine).abs() <= units * (tolerance + 1e-13 * g * size_of(omega))).all()


def test_mixed_derivatives_are_those_of_autograd() -> None:
    rng = np.random.default_rng(0)
    omega, directions = torch.tensor(make_omega(rng, 2, -6.0)), rng.normal(size=(3, 2))
    z = torch.tensor(make_z(rng, omega.numpy()), requires_grad=True)
    for k in range(3):
        lower = riemann_theta(z, omega, derivatives=directions[:k])
        (real,) = torch.autograd.grad(lower.real, z)
        higher = riemann_theta(z, omega, derivatives=directions[: k + 1])
        by_autograd = (real.conj().resolve_conj() * torch.tensor(directions[k])).sum()  # torch's is conjugate
        assert abs(by_autograd - higher) <= WORSE * abs(higher)


@pytest.mark.parametrize("g", [1, 2, 3])
def test_heat_equation_of_a_badly_reduced_matrix(g: int) -> None:
    """∂θ/∂Ω_jk = ∂²θ/∂z_j∂z_k / 4πi for a symmetric gradient: autograd against directional derivatives."""
    rng = np.random.default_rng(g)
    omega = torch.tensor(make_omega(rng, g, -6.0), requires_grad=True)
    z = torch.tensor(make_z(rng, omega.detach().numpy()))
    (gradient,) = torch.autograd.grad(riemann_theta(z, omega).real, omega)
    second = torch.stack(
        [riemann_theta(z, omega.detach(), derivatives=[d, e]) for d in np.eye(g) for e in np.eye(g)]
    ).reshape(g, g)
    expected = second / (4j * torch.pi)
    assert float((gradient.conj() - expected).abs().max()) <= WORSE * float(expected.abs().max())


def test_gradients_through_the_reduction() -> None:
    """In units of the widths of Ω, so that finite differences of a fixed step see it."""
    rng = np.random.default_rng(2)
    base, scale = torch.tensor(make_omega(rng, 2)), 1e-6
    z = torch.tensor(rng.normal(size=(1, 2)) + 1j * rng.normal(size=(1, 2)), requires_grad=True)
    step = torch.zeros(2, 2, dtype=torch.complex128, requires_grad=True)

    def parts(z: torch.Tensor, step: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        omega = scale * (base + (step + step.mT) / 2)
        u, w = riemann_theta(scale * z, omega, parts=True)
        return u * 1e3, w * 1e-3

    assert gradcheck(parts, (z, step))
    assert gradgradcheck(lambda z, step: parts(z, step)[1], (z, step))


def test_a_characteristic_that_requires_a_gradient_keeps_it() -> None:
    alpha, beta = (torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (0.2, 0.3))
    assert gradcheck(
        lambda a, b: riemann_theta([0.1], [[1e-5j]], characteristic=(a, b), parts=True)[1] * 1e-3, (alpha, beta)
    )


def test_batches_of_matrices() -> None:
    rng = np.random.default_rng(3)
    omegas = np.array([[make_omega(rng, 2, small)] for small in (0.0, -7.0, -3.0)])
    z = rng.normal(size=(3, 5, 2)) * 0.1
    free = torch.tensor(omegas, requires_grad=True)
    values = riemann_theta(z, free)
    assert values.shape == (3, 5)
    for i in range(3):
        for j in range(5):
            assert torch.allclose(values[i, j], riemann_theta(z[i, j], omegas[i, 0]), rtol=SAME)
    assert riemann_theta(z[0, 0], omegas).shape == (3, 1)
    assert riemann_theta(z[:, :0], omegas).shape == (3, 0)
    (gradient,) = torch.autograd.grad(values.real.sum(), free)
    one = torch.tensor(omegas[1, 0], requires_grad=True)
    (alone,) = torch.autograd.grad(riemann_theta(z[1], one).real.sum(), one)
    assert torch.allclose(gradient[1, 0], alone, rtol=SAME)


def test_errors() -> None:
    good = np.array([[1j]])
    with pytest.raises(InvalidInputError, match=r"shapes of z \(2, 1\) and omega \(3, 1, 1\) do not broadcast"):
        riemann_theta(np.zeros((2, 1)), np.array([good] * 3))
    with pytest.raises(NotPositiveDefiniteError, match=r"imaginary part of omega\[1\]"):
        riemann_theta([0.0], np.array([good, -good]))
    for empty in (1j, np.zeros((0, 1, 1))):
        with pytest.raises(InvalidInputError, match=r"omega must have shape \(..., g, g\)"):
            riemann_theta([0.0], empty, characteristic=([0.5], [0.5]))
    with pytest.raises(InvalidInputError, match=r"omega\[0\] must be one square matrix"):
        riemann_theta([0.0], np.ones((1, 2, 1)))
    with pytest.raises(InvalidInputError, match="omega must be one square matrix"):
        siegel_reduce([1j])
    with pytest.raises(InvalidInputError, match="imaginary part of omega is too small"):
        siegel_reduce([[1e-310j]])
    with pytest.raises(NotPositiveDefiniteError, match="imaginary part of omega"):
        is_siegel_reduced([[1.0]])
    with pytest.raises(InvalidInputError, match="beyond int64"):
        siegel_reduce([[1e20 + 1j]])
    assert torch.isfinite(riemann_theta([0.0], [[1e20 + 1e-20j]]).abs())
