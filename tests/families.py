"""Families of theta functions to draw from: wide spectra, skewed bases, boundary points, large arguments."""

from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.typing import NDArray

from rtbm import ThetaPlan

Floats = NDArray[np.float64]
PHASES = ("I", "II")


@st.composite
def unimodular(draw: st.DrawFn, g: int) -> NDArray[np.int64]:
    """A product of a few elementary steps: column i gets a multiple of column j."""
    U = np.eye(g, dtype=np.int64)
    if g > 1:
        steps = draw(
            st.lists(st.tuples(st.integers(0, g - 1), st.integers(1, g - 1), st.integers(-3, 3)), max_size=2 * g)
        )
        for i, shift, factor in steps:
            U[:, i] += factor * U[:, (i + shift) % g]
    return U


@st.composite
def matrices(draw: st.DrawFn, g: int, smallest: float = -3.0, largest: float = 4.0, spread: float = 6.0) -> Floats:
    """Eigenvalues 10^smallest … 10^largest, condition up to 10^spread, rotated and then skewed by a unimodular U."""
    low = draw(st.floats(smallest, largest))
    high = min(largest, low + draw(st.floats(0.0, spread)))
    exponents = draw(st.lists(st.floats(low, high), min_size=g, max_size=g))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rotation, _ = np.linalg.qr(rng.normal(size=(g, g)))
    U = draw(unimodular(g))
    Q = U.T @ ((rotation * 10.0 ** np.array(exponents)) @ rotation.T) @ U
    Q = (Q + Q.T) / 2
    assume(np.linalg.cond(Q) < 1e12)  # beyond, rounding of the entries decides whether Q is positive definite
    return Q


@st.composite
def problems(draw: st.DrawFn, g: int) -> tuple[Floats, Floats, str]:
    """(z, Q, phase), with |z| up to 1e4 or z on the boundary of a cell, where the largest terms tie."""
    phase = draw(st.sampled_from(PHASES))
    Q = draw(matrices(g))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    if draw(st.booleans()):
        z = rng.normal(size=g)
        z *= 10.0 ** draw(st.floats(-2.0, 4.0)) / np.linalg.norm(z)
    elif phase == "I":
        z = Q @ (rng.integers(-3, 4, g) + 0.5 * rng.integers(0, 2, g))
    else:
        z = np.pi * rng.integers(-3, 4, g)
    return z, Q, phase


def block_of(plan: ThetaPlan) -> Any:
    """The block of a plan that has one."""
    ((_, block),) = plan.blocks
    return block


def make_omega(rng: np.random.Generator, g: int, small: float = 0.0, large: float = 0.0) -> NDArray[np.complex128]:
    """Im Ω of size 10^small, and Re Ω of size 10^large."""
    X, Y = rng.normal(size=(2, g, g))
    return 10.0**large * (X + X.T) + 1j * 10.0**small * (Y @ Y.T + 0.1 * np.eye(g))


def make_z(rng: np.random.Generator, omega: NDArray[np.complex128], periods: float = 1.0) -> NDArray[np.complex128]:
    """Ωp + q with p and q of size `periods`, but for the real part of Ω."""
    return periods * (rng.normal(size=len(omega)) + 1j * (omega.imag @ rng.normal(size=len(omega))))


def typical(g: int, seed: int = 0, scale: float = 1.0) -> Floats:
    """XXᵀ + ½I with X uniform in [−1, 1], times `scale`."""
    X = np.random.default_rng(seed).uniform(-1, 1, (g, g))
    return scale * (X @ X.T + 0.5 * np.eye(g))
