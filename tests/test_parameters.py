"""The maps between natural, lattice and free parameters: round trips, batches, derivatives."""

import contextlib

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from families import PHASES
from machines import D, lattices, waves
from rtbm import InvalidInputError, NormalizerError, NotPositiveDefiniteError, RTBMDistribution, nn
from rtbm.parameters import (
    Lattice,
    Natural,
    change_phase,
    constrain,
    continuous_limit,
    count,
    from_log_cholesky,
    lattice_to_natural,
    log_cholesky,
    natural_to_lattice,
    pack,
    unconstrain,
    unpack,
)
from tolerances import ROUNDINGS, SAME, WORSE

SIZES = [(1, 1), (1, 3), (2, 2), (3, 1)]
KINDS = ("dense", "diagonal")


def close(first: tuple, second: tuple, tolerance: float) -> bool:
    return all(
        torch.allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, float(y.abs().max())))
        for x, y in zip(first, second, strict=True)
        if isinstance(x, torch.Tensor)
    )


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("size", SIZES)
@given(data=st.data())
@settings(max_examples=20)
def test_lattice_to_natural_and_back(size: tuple[int, int], phase: str, data: st.DataObject) -> None:
    lattice = Lattice(*(torch.tensor(part) for part in data.draw(lattices(*size, smallest=-1.0, finest=-1.0))))
    condition = max(float(torch.linalg.cond(lattice.A)), float(torch.linalg.cond(lattice.covariance)))
    scale = float(1 + (lattice.F.abs().max() ** 2 / torch.linalg.eigvalsh(lattice.covariance)[0]))
    back = natural_to_lattice(lattice_to_natural(lattice, phase))
    assert close(back, lattice, SAME * condition * scale)


@pytest.mark.parametrize("soft", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("size", [(1, 3), (2, 3), (3, 3), (2, 5)])
def test_a_soft_form_loses_half_of_the_digits_of_its_condition(size: tuple[int, int], soft: float) -> None:
    """Phase II with one soft direction of T: A = 4π²(Q + WᵀT⁻¹W)⁻¹ to rounding times the root of its condition."""
    rng = np.random.default_rng(size)
    axes, _ = np.linalg.qr(rng.normal(size=(size[0], size[0])))
    T = (axes * np.array([soft] + [1.0] * (size[0] - 1))) @ axes.T
    W, Q = rng.normal(size=size), rng.uniform(2, 12, size[1])
    parts = (T + T.T) / 2, W, Q, rng.normal(size=size[0]), rng.normal(size=size[1])
    A = natural_to_lattice(Natural(*map(torch.tensor, parts), phase="II")).A
    with mpmath.workdps(60):
        T_mp, W_mp = mpmath.matrix(parts[0].tolist()), mpmath.matrix(W.tolist())
        exact = 4 * mpmath.pi**2 * mpmath.inverse(mpmath.diag(Q.tolist()) + W_mp.T * mpmath.inverse(T_mp) * W_mp)
        error = np.array((mpmath.matrix(A.tolist()) - exact).tolist(), dtype=float)
    rounding = np.finfo(float).eps * float(torch.linalg.norm(A, 2)) * float(torch.linalg.cond(A)) ** 0.5
    assert np.abs(error).max() <= 10 * rounding


@pytest.mark.parametrize("is_diagonal", [False, True])
@pytest.mark.parametrize("size", SIZES)
@given(data=st.data())
@settings(max_examples=20)
def test_phases_there_and_back(size: tuple[int, int], is_diagonal: bool, data: st.DataObject) -> None:
    natural = Natural(*(torch.tensor(part) for part in data.draw(waves(*size, is_diagonal))), phase="II")
    image = change_phase(natural)
    assert image.phase == "I"
    assert image.is_diagonal == is_diagonal
    conditions = [float(torch.linalg.cond(T)) for T in (image.T, natural.T)]
    if not is_diagonal:
        conditions += [float(torch.linalg.cond(Q)) for Q in (image.Q, natural.Q)]
    tolerance = WORSE + ROUNDINGS * np.finfo(float).eps * max(conditions)
    assert close(change_phase(image), natural, tolerance)
    assert close(natural_to_lattice(image), natural_to_lattice(natural), tolerance)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_every_vector_is_a_machine(size: tuple[int, int], kind: str) -> None:
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 2.0):
        vector = torch.tensor(rng.normal(size=count(*size, kind)) * scale)
        machine = constrain(unpack(vector, *size, kind))
        assert torch.allclose(pack(unconstrain(machine)), vector, rtol=WORSE, atol=WORSE)
        distribution = RTBMDistribution.from_free(unpack(vector, *size, kind))
        assert distribution.coupling == kind
        assert bool(distribution.log_prob(torch.zeros(size[0], dtype=D)).isfinite())


@pytest.mark.parametrize("kind", KINDS)
def test_batches_of_machines(kind: str) -> None:
    vectors = torch.tensor(np.random.default_rng(1).normal(size=(4, 3, count(2, 3, kind))))
    batch = constrain(unpack(vectors, 2, 3, kind))
    single = constrain(unpack(vectors[1, 2], 2, 3, kind))
    assert close([part[1, 2] for part in batch if isinstance(part, torch.Tensor)], [*single][:5], SAME)
    natural = lattice_to_natural(batch) if isinstance(batch, Lattice) else batch
    alone = lattice_to_natural(single) if isinstance(single, Lattice) else single
    for function in (change_phase, natural_to_lattice):
        for many, one in zip(function(natural), function(alone), strict=True):
            assert many == one if isinstance(one, str) else torch.allclose(many[1, 2], one, rtol=WORSE, atol=WORSE)
    assert torch.allclose(pack(unconstrain(batch)), vectors, rtol=WORSE, atol=WORSE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", PHASES)
def test_maps_are_twice_differentiable(phase: str, kind: str) -> None:
    vector = torch.tensor(np.random.default_rng(2).normal(size=count(2, 2, kind)) * 0.5, requires_grad=True)

    def everything(vector: torch.Tensor) -> torch.Tensor:
        machine = constrain(unpack(vector, 2, 2, kind))
        lattice = machine if isinstance(machine, Lattice) else natural_to_lattice(machine)
        natural = lattice_to_natural(lattice, phase)
        parts = [*change_phase(natural)[:5], *natural_to_lattice(natural), *continuous_limit(lattice)]
        return torch.cat([part.reshape(-1) for part in [*parts, pack(unconstrain(natural))]])

    assert gradcheck(everything, [vector], rtol=1e-4, atol=1e-6)
    assert gradgradcheck(everything, [vector], rtol=1e-3, atol=1e-4)


def test_counts_match_the_parameters_of_the_paper() -> None:
    for n_visible, n_hidden in SIZES:
        natural = n_visible * (n_visible + 1) // 2 + n_visible * n_hidden + n_visible + n_hidden
        assert count(n_visible, n_hidden) == natural + n_hidden * (n_hidden + 1) // 2
        assert count(n_visible, n_hidden, "diagonal") == natural + n_hidden


def test_log_cholesky() -> None:
    matrix = torch.tensor([[4.0, 2.0, 1.0], [2.0, 5.0, 3.0], [1.0, 3.0, 6.0]], dtype=D)
    assert torch.allclose(from_log_cholesky(log_cholesky(matrix)), matrix, atol=SAME)


def test_wrong_lengths_are_named() -> None:
    with pytest.raises(InvalidInputError, match=r"vector must have shape \(\.\.\., 5\) for 1 visible and 1 hidden"):
        unpack(torch.zeros(4), 1, 1)
    with pytest.raises(InvalidInputError, match="coupling must be one of 'dense', 'diagonal', got 'sparse'"):
        count(1, 1, "sparse")


def test_large_free_parameters_give_a_density_or_an_error_of_ours() -> None:
    for vector in ([0.0, 0, 0, 0, -400.0], [0.0, 0, 0, 0, 800.0]):
        with pytest.raises(InvalidInputError, match="free parameters"):
            RTBMDistribution.from_free(unpack(torch.tensor(vector, dtype=D), 1, 1))
    with pytest.raises(NotPositiveDefiniteError, match="take smaller steps, or regularise"):
        RTBMDistribution.from_free(unpack(torch.tensor([0.0, 1e9, 0.0, 0, 0, 0, 0, 0, 0.0], dtype=D), 1, 2))
    rng = np.random.default_rng(0)
    for hidden in ("dense", "diagonal"):
        for scale in (3.0, 5.0, 8.0):
            for _ in range(6):
                module = nn.RTBM(2, 3, coupling=hidden)
                with torch.no_grad():
                    for parameter in module.parameters():
                        parameter.copy_(torch.tensor(rng.normal(size=parameter.shape) * scale))
                with contextlib.suppress(InvalidInputError, NormalizerError):  # said in our own words
                    assert bool(module().log_prob(torch.zeros(2, dtype=D)).isfinite())


def test_free_parameters_are_checked() -> None:
    free = nn.RTBM(1, 2).free
    with pytest.raises(InvalidInputError, match=r"free\.weights must have shape .* take one of a batch"):
        RTBMDistribution.from_free(free._replace(weights=free.weights[None]))
    with pytest.raises(InvalidInputError, match=r"free\.visible_centre must have shape \(1,\), got \(2,\)"):
        RTBMDistribution.from_free(free._replace(visible_centre=torch.zeros(2)))
    with pytest.raises(InvalidInputError, match=r"free must be an rtbm\.parameters\.Free, got a Tensor"):
        RTBMDistribution.from_free(torch.zeros(9))
    with pytest.raises(InvalidInputError, match=r"free must be an rtbm\.parameters\.Free of a dense machine"):
        nn.RTBM(1, 1).load_free(nn.RTBM(1, 1, coupling="diagonal").free)
    with pytest.raises(InvalidInputError, match=r"free\.hidden_scale must have shape \(6,\), got \(1,\)"):
        nn.RTBM(2, 3).load_free(nn.RTBM(1, 1).free)
    with pytest.raises(InvalidInputError, match="the state belongs to a machine with coupling='diagonal'"):
        nn.RTBM(1, 1).load_state_dict(nn.RTBM(1, 1, coupling="diagonal").state_dict())
