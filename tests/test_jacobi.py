"""Jacobi's theta functions against mpmath and FLINT, and their identities."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oracle import flint, mpmath, precision
from rtbm import InvalidInputError, jacobi_theta
from tolerances import SAME, WORSE

real = st.floats(-3, 3)


@settings(max_examples=50)
@given(real, st.floats(-2, 2), real, st.floats(-8, 1))
def test_flints_values(x: float, p: float, shift: float, log_height: float) -> None:
    """z = x + iy with y = p Im τ: the error of w is relative to (Im τ)^−½ at most."""
    tau = complex(shift, 10.0**log_height)
    z = complex(x, p * tau.imag)
    with precision(1000):
        factor = (-flint.acb.pi() * flint.acb(z.imag) ** 2 / flint.acb(tau.imag)).exp()
        expected = [complex((value * factor).mid()) for value in flint.acb(z).modular_theta(flint.acb(tau))]
    for n in (1, 2, 3, 4):
        _, w = jacobi_theta(n, z, tau, parts=True)
        assert abs(complex(w) - expected[n - 1]) <= 1e-12 + 1e-14 * (1 + abs(p)) * max(1.0, tau.imag**-0.5)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize("derivative", [0, 1, 2, 3])
@pytest.mark.parametrize("tau", [0.3 + 0.9j, -7.2 + 0.05j])
def test_mpmaths_values_in_dlmfs_convention(n: int, derivative: int, tau: complex) -> None:
    z = 0.4 + 0.01j
    with mpmath.workdps(40):
        q = mpmath.exp(1j * mpmath.pi * mpmath.mpc(tau))
        expected = complex(mpmath.jtheta(n, z, q, derivative))
    ours = complex(jacobi_theta(n, z / np.pi, tau, derivative=derivative)) / np.pi**derivative
    assert abs(ours - expected) <= WORSE * max(1.0, abs(expected))


@settings(max_examples=50)
@given(real, st.floats(-1.5, 1))
def test_identities_at_zero(shift: float, log_height: float) -> None:
    """θ₁′ = π θ₂θ₃θ₄ and θ₃⁴ = θ₂⁴ + θ₄⁴, where each may be as large as (Im τ)^−½."""
    tau = complex(shift, 10.0**log_height)
    two, three, four = (complex(jacobi_theta(n, 0.0, tau)) for n in (2, 3, 4))
    size = max(1.0, tau.imag**-0.5)
    assert abs(three**4 - two**4 - four**4) <= SAME * size**4
    assert abs(complex(jacobi_theta(1, 0.0, tau, derivative=1)) - np.pi * two * three * four) <= SAME * size**3


def test_parity_and_batches() -> None:
    z, tau = torch.linspace(-1, 1, 5, dtype=torch.float64), torch.tensor([[1j], [0.2 + 1e-7j]])
    for n, sign in ((1, -1), (2, 1), (3, 1), (4, 1)):
        values = jacobi_theta(n, z, tau)
        assert values.shape == (2, 5)
        assert torch.allclose(values.flip(1), sign * values, rtol=0, atol=SAME * float(values.abs().max()))


def test_errors() -> None:
    with pytest.raises(InvalidInputError, match="n must be one of 1, 2, 3, 4, got 5"):
        jacobi_theta(5, 0.0, 1j)
    with pytest.raises(InvalidInputError, match="derivative must be an integer of at least 0"):
        jacobi_theta(1, 0.0, 1j, derivative=-1)
    with pytest.raises(InvalidInputError, match="imaginary part of tau must be positive, got 0"):
        jacobi_theta(1, 0.0, 1.0)
    with pytest.raises(InvalidInputError, match=r"z \(2,\) and tau \(3,\)"):
        jacobi_theta(1, [0.0, 0.0], [1j, 1j, 1j])
