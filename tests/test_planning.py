"""Plans of lattice sums: bases, matrices and lists; sizes without coordinates; plans without numba."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families import PHASES, Floats, block_of, matrices, typical
from rtbm import InvalidInputError, NotPositiveDefiniteError, ThetaPlan, log_theta, theta_moments
from rtbm.theta.lattice import change_basis, enumerate_points
from rtbm.theta.poisson import LatticeSum, find_radius2, make_form
from tolerances import LOG_THETA, MOMENTS, SAME

sizes = st.integers(1, 5)


@settings(max_examples=60)
@given(sizes.flatmap(matrices), st.sampled_from(PHASES))
def test_a_plan_holds_what_its_sum_needs(Q: Floats, phase: str) -> None:
    lattice = LatticeSum(Q, phase, 1e-12)
    U, o = lattice.basis, lattice.n_osc
    assert round(np.linalg.det(U)) in (-1, 1)
    assert np.array_equal(lattice.gram, change_basis(Q, U))
    form = make_form(torch.from_numpy(lattice.gram), o, phase)
    for name, a, b in zip(form._fields, form, lattice.form, strict=True):
        size = max(1.0, float(a.abs().max()))
        assert torch.allclose(a, torch.as_tensor(b), rtol=SAME, atol=SAME * size), name
    R, G = lattice.factor, lattice.form.G
    assert (np.abs(R.T @ R - G) <= SAME * np.sqrt(np.outer(np.diag(G), np.diag(G)))).all()
    oscillates = np.arange(len(Q)) < o
    radius2 = find_radius2(np.diag(R) ** 2, oscillates, 1e-12)
    points = enumerate_points(R, float(radius2), np.where(oscillates, 0.0, np.diag(R) / 2))
    half = [p for p in points.tolist() if next((n for n in p[:o] if n), 1) > 0]
    assert lattice.points.tolist() == half
    assert len(lattice.terms) == len(half) - 1


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("shape", [(0,), (0, 0)])
def test_without_coordinates_the_function_is_one(shape: tuple[int, ...], phase: str) -> None:
    Q, z = torch.zeros(shape, dtype=torch.float64), torch.zeros(3, 2, 0, dtype=torch.float64, requires_grad=True)
    plan = ThetaPlan(Q, phase=phase)
    assert (plan.g, plan.n_terms, plan.blocks) == (0, 0, [])
    value = log_theta(z, Q, phase=phase)
    assert torch.equal(value, torch.zeros(3, 2, dtype=torch.float64))
    value.sum().backward()
    moments = theta_moments(z, Q, phase=phase, order=3)
    assert [tuple(m.shape) for m in moments] == [(3, 2), (3, 2, 0), (3, 2, 0, 0), (3, 2, 0, 0, 0)]
    assert float(log_theta([], Q, phase=phase)) == 0.0
    with pytest.raises(InvalidInputError, match="z must have shape"):
        log_theta([1.0], Q)
    with pytest.raises(NotPositiveDefiniteError):
        ThetaPlan([[0.0]])


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
            plan = ThetaPlan(typical(g, scale=3.0), phase=phase)
            assert int(terms) == len(block_of(plan).lattice.points)
            assert abs(float(value) - float(plan.log_theta(np.full(g, 0.7)))) <= LOG_THETA
