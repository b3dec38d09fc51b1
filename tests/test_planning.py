"""Compiled plans against Python's integers, torch and NumPy."""

import subprocess
import sys
import textwrap
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from families import PHASES, Floats, matrices, typical, unimodular
from rtbm import log_theta, theta_moments
from rtbm.theta.block import planning
from rtbm.theta.block.poisson import find_basis, make_form, make_geometry
from rtbm.theta.lattice import change_basis, enumerate_points, exact_congruence, in_parts
from tolerances import LOG_THETA, MOMENTS, SAME

sizes = st.integers(1, 5)


@settings(max_examples=100)
@given(sizes.flatmap(lambda g: st.tuples(matrices(g), unimodular(g), st.integers(0, 10**4))))
def test_the_compiled_congruence_is_exact(case: tuple[Floats, np.ndarray, int]) -> None:
    Q, U, factor = case
    U = U.copy()
    U[:, -1] += factor * U[:, 0] * (len(U) > 1)
    assume(np.abs(U).max() < planning.SHORT)
    exact, parts = np.zeros((3, *Q.shape)), np.zeros((planning.N_MATRICES, *Q.shape))
    assert planning.congruence(Q, U.astype(float), exact)
    assert np.array_equal(exact[0], change_basis(Q, U))
    numerators, unit = exact_congruence(Q, U)
    planning.cut_in_parts(exact, parts)
    first, second, third = parts[planning.PERIODS : planning.PERIODS + 3]
    for i, j in np.ndindex(*Q.shape):
        true = Fraction(int(numerators[i, j]), unit)
        assert sum(map(Fraction, exact[:, i, j].tolist()), Fraction(0)) == true
        left = true - Fraction(float(first[i, j])) - Fraction(float(second[i, j]))
        assert abs(left - Fraction(float(third[i, j]))) <= abs(left) / 2**51
    for part, other in zip((first, second), in_parts(numerators, unit), strict=False):
        for column, like in zip(part.T, other.T, strict=True):
            step = Fraction(2) ** (int(np.frexp(np.abs(column).max())[1]) - 31)
            assert all((Fraction(float(x)) / step).denominator == 1 for x in column)  # so products do not round
            assert np.abs(column - like).max() <= 2.1 * float(step)  # ties may go either way


@settings(max_examples=60)
@given(sizes.flatmap(matrices), st.sampled_from(PHASES))
def test_a_compiled_plan_is_the_plain_one(Q: Floats, phase: str) -> None:
    geometry, is_first = make_geometry(Q, phase, 1e-12), phase == "I"
    U, o = geometry.basis.astype(np.int64), geometry.n_osc
    assert round(np.linalg.det(U)) in (-1, 1)
    assert np.array_equal(geometry.gram, change_basis(Q, U))
    basis, gram, t = find_basis(Q, is_first, 1e-12)
    assert o == (t if is_first else len(Q) - t)
    form = make_form(torch.from_numpy(geometry.gram), o, phase)
    for name, a, b in zip(form._fields, form, geometry.form, strict=True):
        size = max(1.0, float(a.abs().max()))
        assert torch.allclose(a, b, rtol=SAME, atol=SAME * size), name
    R, G = geometry.factor, geometry.form.G.numpy()
    assert (np.abs(R.T @ R - G) <= SAME * np.sqrt(np.outer(np.diag(G), np.diag(G)))).all()
    status, _, _, radius2, _, _ = planning.plan_sum(Q, is_first, 1e-12, -1, Q, Q)
    if status == planning.NOT_EXACT:  # the basis that Python's integers found is planned with
        radius2 = planning.plan_sum(Q, is_first, 1e-12, t, basis.astype(float), gram)[3]
    points = enumerate_points(R, radius2, np.where(np.arange(len(Q)) < o, 0.0, np.diag(R) / 2))
    half = [p for p in points.tolist() if next((n for n in p[:o] if n), 1) > 0]
    assert geometry.points.tolist() == half


@pytest.mark.parametrize("phase", PHASES)
def test_bases_with_long_integers_take_pythons(phase: str) -> None:
    skewed = np.array([[1.0, 1e8], [1e8, 1e16 + 2]])  # the diagonal matrix (1, 2), and U has an entry 1e8 > 2^26
    assert planning.plan_sum(skewed, phase == "I", 1e-12, -1, skewed, skewed)[0] == planning.NOT_EXACT
    values = [float(log_theta([0.0, 0.0], Q, phase=phase)) for Q in (skewed, np.diag([1.0, 2.0]))]
    assert abs(values[0] - values[1]) <= LOG_THETA


def test_where_numba_is_missing_everything_is_the_same() -> None:
    script = """
        import sys
        sys.modules["numba"] = None
        import numpy as np, rtbm
        from families import typical
        from rtbm.theta import kernels
        assert not kernels.AVAILABLE
        print(float(rtbm.log_theta([5.0], [[10.0]])), float(rtbm.DiscreteGaussian([[2.0]], [1.0]).mean))
        for g in (1, 2, 3, 5):
            for phase in ("I", "II"):
                plan = rtbm.ThetaPlan(typical(g, scale=3.0), phase=phase)
                print(plan.n_terms, float(plan.log_theta(np.full(g, 0.7))))
    """
    folder = str(__file__).rsplit("/", 1)[0]
    code = f"import sys; sys.path.insert(0, {folder!r})\n" + textwrap.dedent(script)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = iter(run.stdout.split("\n"))
    log_value, mean = map(float, next(lines).split())
    assert abs(log_value - float(log_theta([5.0], [[10.0]]))) <= LOG_THETA
    assert abs(mean + float(theta_moments([1.0], [[2.0]]).mean)) <= MOMENTS
    for g in (1, 2, 3, 5):
        for phase in PHASES:
            terms, value = next(lines).split()
            Q = typical(g, scale=3.0)
            assert int(terms) == len(make_geometry(Q, phase, 1e-12).points)
            assert abs(float(value) - float(log_theta(np.full(g, 0.7), Q, phase=phase))) <= LOG_THETA
