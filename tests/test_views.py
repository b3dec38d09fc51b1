"""Marginals, conditionals, affine images and missing entries: all of them are machines again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from families import PHASES
from machines import D, dense, diagonal, lattices, log_prob_bound, waves
from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture, nn
from tolerances import INTEGRAL, LOG_PROB, WORSE

MACHINES = [
    pytest.param(dense(3, 2), id="dense-I"),
    pytest.param(dense(3, 2, 1, "II"), id="dense-II"),
    pytest.param(RTBMDistribution(*dense(3, 2, 4, "II").natural[:-1], phase="II"), id="natural-II"),
    pytest.param(diagonal(3, 2, 2), id="diagonal-II"),
    pytest.param(diagonal(3, 3, 3, "I"), id="diagonal-I"),
    pytest.param(RTBMMixture([0.3, 0.7], [dense(3, 2), dense(3, 1, 5, "II")]), id="mixture"),
]
NAN = float("nan")


@pytest.mark.parametrize("known", [[0], [2], [0, 1], [2, 0]])
@pytest.mark.parametrize("machine", MACHINES)
def test_joint_is_marginal_times_conditional(machine, known: list[int]) -> None:
    v = machine.sample((4,), generator=torch.Generator().manual_seed(0))
    free = [i for i in range(3) if i not in known]
    for row in v:
        conditional = machine.conditional({i: row[i] for i in known})
        parts = machine.marginal(known).log_prob(row[known]) + conditional.log_prob(row[free])
        assert torch.allclose(parts, machine.log_prob(row), rtol=0, atol=LOG_PROB)
        assert type(conditional) is type(machine)
    if isinstance(machine, RTBMDistribution):
        assert machine.marginal(known).phase == conditional.phase == machine.phase
        assert conditional.coupling == machine.coupling


@given(data=st.data())
@settings(max_examples=15)
def test_the_same_for_drawn_machines(data: st.DataObject) -> None:
    phase = data.draw(st.sampled_from(PHASES))
    if phase == "I":
        machine = RTBMDistribution.from_lattice(*data.draw(lattices(2, 2, smallest=-1.0, finest=-1.0)))
    else:
        machine = RTBMDistribution(*data.draw(waves(2, 2)), phase="II")
    v = machine.sample((), generator=torch.Generator().manual_seed(0))
    for i in range(2):
        conditional = machine.conditional({i: float(v[i])})
        parts = machine.marginal(i).log_prob(v[i : i + 1]) + conditional.log_prob(v[1 - i : 2 - i])
        bound = log_prob_bound(machine, v[None])
        assert float((parts - machine.log_prob(v)).abs()) <= bound


@pytest.mark.parametrize("form", [np.diag, np.array], ids=["matrix", "vector"])
@pytest.mark.parametrize("size", [(2, 3), (3, 3), (2, 5)])
def test_the_same_for_nearly_singular_machines(size: tuple[int, int], form) -> None:
    """Phase I with an eigenvalue of Q − WᵀT⁻¹W near 1e-8: the error is what rounding of T would make."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        Q, T = rng.uniform(1, 5, size[1]), np.eye(size[0]) + 0.3
        left, singular, right = np.linalg.svd(rng.normal(size=size), full_matrices=False)
        whitened = left * (singular / singular[0] * np.sqrt(1 - 1e-8)) @ right
        W = np.linalg.cholesky(T) @ whitened * np.sqrt(Q)
        biases = rng.normal(size=size[0]) * 0.3, rng.normal(size=size[1]) * 0.3
        machine = RTBMDistribution(T, W, form(Q), *biases)
        spread = float(torch.linalg.eigvalsh(machine.covariance_matrix)[-1]) ** 0.5
        for row in machine.sample((2,), torch.Generator().manual_seed(0)):
            conditional = machine.conditional({0: row[0]})
            parts = machine.marginal(0).log_prob(row[:1]) + conditional.log_prob(row[1:])
            rounding = np.finfo(float).eps * np.linalg.norm(T, 2) * float(row.norm()) * spread
            assert float((parts - machine.log_prob(row)).abs()) <= LOG_PROB + 2 * rounding


@pytest.mark.parametrize("machine", MACHINES)
def test_marginal_is_the_integral(machine) -> None:
    points = machine.marginal([1, 2]).sample((3,), generator=torch.Generator().manual_seed(1))
    x = torch.linspace(-40, 40, 8001, dtype=D)
    for row in points:
        joint = torch.cat([x[:, None], row.expand(len(x), 2)], 1)
        total = machine.log_prob(joint).exp().sum() * (x[1] - x[0])
        assert torch.allclose(machine.marginal([1, 2]).log_prob(row).exp(), total, rtol=1e-8)
        assert torch.allclose(machine.marginal([2, 1]).log_prob(row.flip(0)).exp(), total, rtol=1e-8)


@pytest.mark.parametrize("machine", MACHINES)
def test_affine_is_a_change_of_variables(machine) -> None:
    rng = np.random.default_rng(0)
    M, c = torch.tensor(rng.normal(size=(3, 3))), torch.tensor(rng.normal(size=3))
    image = machine.affine(M, c)
    v = machine.sample((20,), generator=torch.Generator().manual_seed(0))
    expected = machine.log_prob(v) - torch.linalg.slogdet(M).logabsdet
    assert torch.allclose(image.log_prob(v @ M.mT + c), expected, rtol=0, atol=LOG_PROB * 10)
    assert torch.allclose(image.mean, M @ machine.mean + c, atol=WORSE)
    assert torch.allclose(image.covariance_matrix, M @ machine.covariance_matrix @ M.mT, atol=WORSE * 100)
    flat = machine.affine(M[:2])
    assert flat.n_visible == 2
    assert torch.allclose(flat.covariance_matrix, M[:2] @ machine.covariance_matrix @ M[:2].mT, atol=WORSE * 100)
    if isinstance(machine, RTBMDistribution):
        assert image.coupling == machine.coupling


@pytest.mark.parametrize(
    "machine", [*MACHINES, pytest.param(diagonal(3, 6, 1), id="grid"), pytest.param(diagonal(2, 30, 4), id="grid-30")]
)
def test_missing_entries_are_integrated_out(machine) -> None:
    n = machine.n_visible
    v = machine.sample((7,), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[(i >> j) % 2 == 1 for j in range(n)] for i in range(7)])
    value = machine.log_prob(torch.where(mask, NAN, v))
    for row, missing, found in zip(v, mask, value, strict=True):
        present = (~missing).nonzero()[:, 0].tolist()
        if not present:
            assert float(found) == 0.0
        elif isinstance(machine, RTBMMixture) or machine.n_hidden <= 3:
            assert torch.allclose(found, machine.marginal(present).log_prob(row[present]), rtol=0, atol=LOG_PROB)
        elif (gaps := len(missing) - len(present)) in (1, 2):  # by the trapezoidal rule over what is missing
            axis = torch.linspace(-14, 14, 561 if gaps == 2 else 1401, dtype=D)
            x = row.repeat(len(axis) ** gaps, 1)
            x[:, missing] = torch.cartesian_prod(*[axis] * gaps).reshape(-1, gaps)
            total = machine.log_prob(x).logsumexp(0) + gaps * np.log(float(axis[1] - axis[0]))
            assert torch.allclose(found, total, rtol=0, atol=1e-9)


def test_missing_entries_carry_derivatives() -> None:
    machine = dense(2, 2)
    T, W, Q, b_v, b_h, _ = (p.clone().requires_grad_() if isinstance(p, torch.Tensor) else p for p in machine.natural)
    v = torch.tensor([[0.3, NAN], [0.1, 0.2], [NAN, NAN]], dtype=D, requires_grad=True)
    RTBMDistribution(T, W, Q, b_v, b_h).log_prob(v).sum().backward()
    assert W.grad.isfinite().all()
    assert bool(v.grad[1].isfinite().all() & v.grad[0, 0].isfinite())
    assert torch.allclose(v.grad[0, 0], machine.marginal(0).score_function([0.3])[0], atol=WORSE)


def test_a_conditional_of_a_mixture_reweights_its_components() -> None:
    left, right = dense(2, 1, 0), dense(2, 1, 1).affine(np.eye(2), [6.0, 0.0])
    mixture = RTBMMixture([0.5, 0.5], [left, right])
    near_left = mixture.conditional({0: float(left.mean[0])})
    evidence = torch.stack([c.marginal(0).log_prob(left.mean[:1]) for c in (left, right)])
    assert torch.allclose(near_left.weights, evidence.softmax(0), atol=WORSE)
    assert float(near_left.weights[0]) > 0.9


@pytest.mark.parametrize("machine", [MACHINES[0].values[0], MACHINES[5].values[0]])
def test_bad_indices_and_values(machine) -> None:
    with pytest.raises(InvalidInputError, match=r"indices must be between 0 and 2 for 3 visible units, got \[3\]"):
        machine.marginal(3)
    with pytest.raises(InvalidInputError, match=r"indices must not repeat, got \[0, 0\]"):
        machine.marginal([0, 0])
    with pytest.raises(InvalidInputError, match="indices must name at least one coordinate"):
        machine.marginal([])
    with pytest.raises(InvalidInputError, match="indices must be integers, got"):
        machine.marginal([0.5])
    with pytest.raises(InvalidInputError, match="values must leave at least one coordinate free"):
        machine.conditional({0: 1.0, 1: 0.0, 2: 0.0})
    with pytest.raises(InvalidInputError, match=r"values\[0\] must be finite"):
        machine.conditional({0: NAN})
    with pytest.raises(InvalidInputError, match="values must be a mapping"):
        machine.conditional([0.0])
    with pytest.raises(InvalidInputError, match=r"M must have shape \(n, 3\) with 1 ≤ n ≤ 3, got \(2, 2\)"):
        machine.affine(np.eye(2))
    with pytest.raises(InvalidInputError, match="M must have full row rank"):
        machine.affine(np.ones((2, 3)))
    assert machine.conditional({}) is machine
    if isinstance(machine, RTBMDistribution):
        assert torch.equal(machine.marginal(-1).mean, machine.marginal(2).mean)


def test_components_of_weight_zero_are_absent() -> None:
    parts = [dense(2, 2), dense(2, 1, 1)]
    mixture = RTBMMixture([0.0, 1.0], parts)
    v = parts[1].sample((5,), torch.Generator().manual_seed(0))
    assert torch.allclose(mixture.log_prob(v), parts[1].log_prob(v), atol=LOG_PROB)
    assert torch.allclose(mixture.marginal(0).mean, parts[1].mean[:1])
    assert torch.allclose(mixture.conditional({0: 1.0}).mean, parts[1].conditional({0: 1.0}).mean)
    assert torch.allclose(mixture.affine(np.eye(2)).to_phase("II").mean, parts[1].mean, atol=WORSE)
    assert torch.allclose(
        nn.MixtureOfRTBMs.from_distribution(mixture)().log_prob(v), parts[1].log_prob(v), atol=LOG_PROB
    )
    assert float((mixture.entropy() - parts[1].entropy()).abs()) <= INTEGRAL * 10


def test_units_do_not_matter_for_affine_maps() -> None:
    machine = dense(2, 2)
    scaled = machine.affine([[1e-8, 0.0], [0.0, 1e8]])
    assert torch.allclose(scaled.mean / machine.mean, torch.tensor([1e-8, 1e8], dtype=D), rtol=1e-9)


def test_indices_may_be_numbers_and_arrays_of_numpy() -> None:
    machine = dense(3, 1)
    mixture = RTBMMixture([1.0], [machine])
    for each in (machine, mixture):
        assert torch.allclose(each.marginal(np.int64(1)).mean, machine.mean[1:2])
        assert torch.allclose(each.marginal(np.array([2, 0])).mean, machine.mean[[2, 0]])
        for wrong in ([True, False], None, "1"):
            with pytest.raises(InvalidInputError, match="indices must be integers"):
                each.marginal(wrong)
