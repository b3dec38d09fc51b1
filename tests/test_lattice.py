"""Reduction, enumeration and the certified radius, each against something independent of it."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from families import Floats, matrices
from rtbm import TooManyTermsError, log_theta
from rtbm.theta.lattice import (
    change_basis,
    cholesky,
    enumerate_points,
    exact_integers,
    exact_inverse,
    nearest_point,
    reduce_basis,
)
from rtbm.theta.truncation import estimate_count, log_gauss_sum, squared_radius

sizes = st.integers(1, 5)


@settings(max_examples=60)
@given(sizes.flatmap(matrices))
def test_reduction_is_unimodular_and_short(Q: Floats) -> None:
    U, reduced = reduce_basis(Q)
    assert round(np.linalg.det(U)) in (-1, 1)
    assert np.array_equal(reduced, change_basis(Q, U))
    R = cholesky(reduced)
    d = np.diag(R) ** 2
    ratios = R / np.diag(R)[:, None]
    assert (np.abs(np.triu(ratios, 1)) <= 0.5 + 1e-9).all()
    assert (d[1:] >= (0.99 - 0.25 - 1e-9) * d[:-1]).all()


@settings(max_examples=40)
@given(st.integers(1, 6).flatmap(matrices))
def test_the_exact_inverse_is_exact(Q: Floats) -> None:
    exact, unit = exact_integers(Q)
    inverse, determinant = exact_inverse(exact)
    assert (exact @ inverse == determinant * np.eye(len(Q), dtype=int).astype(object)).all()
    assert ((exact / unit).astype(float) == Q).all()


@settings(max_examples=40)
@given(st.integers(1, 3).flatmap(lambda g: matrices(g, smallest=-0.5, largest=0.5, spread=1)), st.floats(0.5, 8))
def test_enumeration_finds_exactly_the_points_of_the_ellipsoid(Q: Floats, radius2: float) -> None:
    _, Q = reduce_basis(Q)
    R, g = cholesky(Q), len(Q)
    centre = np.random.default_rng(g).uniform(-1, 1, g)
    found = {tuple(p) for p in enumerate_points(R, radius2, np.zeros(g), centre)}
    reach = int(np.sqrt(radius2 / np.linalg.eigvalsh(Q)[0])) + 2
    for point in itertools.product(range(-reach, reach + 1), repeat=g):
        length2 = ((R @ (np.array(point) - centre)) ** 2).sum()
        if abs(length2 - radius2) > 1e-6 * radius2:
            assert (point in found) == (length2 < radius2)


@settings(max_examples=40)
@given(st.integers(1, 3).flatmap(lambda g: matrices(g, smallest=-0.5, largest=1.5, spread=2)), st.floats(1e-8, 1e-1))
def test_the_tail_beyond_the_radius_is_below_the_tolerance(Q: Floats, tolerance: float) -> None:
    _, Q = reduce_basis(Q)
    R, g = cholesky(Q), len(Q)
    norms = np.diag(R) ** 2
    smallest = float(log_gauss_sum(norms, 0.5).sum())
    radius2 = squared_radius(norms, smallest + math.log(tolerance))
    everything = enumerate_points(R, radius2 + 60, np.diag(R) / 2)
    for seed in range(3):
        c = np.random.default_rng(seed).uniform(-0.5, 0.5, g)
        c = c - nearest_point(R, c)
        length2 = (((everything - c) @ R.T) ** 2).sum(axis=1)
        terms = np.exp(-0.5 * length2)
        assert terms.sum() >= np.exp(smallest) * (1 - 1e-12)
        assert terms.sum() <= np.exp(float(log_gauss_sum(norms).sum())) * (1 + 1e-12)
        assert terms[length2 > radius2].sum() <= tolerance * terms.sum()
        inside = {tuple(p) for p in enumerate_points(R, radius2, np.diag(R) / 2)}
        assert {tuple(p) for p in everything[length2 <= radius2]} <= inside


@settings(max_examples=60)
@given(st.floats(-3, 4), st.sampled_from([0.0, 0.5]))
def test_one_dimensional_sums(log_a: float, shift: float) -> None:
    a = 10.0**log_a
    k = np.arange(-600, 601) - shift
    exponents = -0.5 * a * k**2
    expected = exponents.max() + np.log(np.exp(exponents - exponents.max()).sum())
    assert abs(float(log_gauss_sum(a, shift)) - expected) <= 1e-12 * max(1.0, abs(expected))


def test_the_estimate_is_close_where_there_are_many_points() -> None:
    norms = np.array([0.5, 0.7, 1.1])
    count = len(enumerate_points(np.diag(np.sqrt(norms)), 60.0, np.sqrt(norms) / 2))
    assert 0.9 < estimate_count(norms, 60.0, np.sqrt(norms)) / count < 1.1


def test_a_hopeless_sum_says_how_many_terms_it_needs() -> None:
    Q = 2 * np.pi * np.eye(16) + 0.1
    with pytest.raises(TooManyTermsError, match="terms") as caught:
        log_theta(np.zeros(16), Q)
    assert caught.value.terms > caught.value.limit > 10**6
