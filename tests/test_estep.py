"""The E-step: its spellings against sums in 60 digits, values and gradients against theta functions and autograd."""

import math
import tracemalloc
from typing import Any, NamedTuple

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from families import Floats
from machines import exact_likelihood
from rtbm.errors import TooManyTermsError
from rtbm.theta.lattice import enumerate_points, nearest_point, reduce_factors, triangular_factors
from rtbm.training import FAILURES, ArrayBlocks, Family, Likelihood, Objective, Prior
from rtbm.training.estep.backends import e_step
from rtbm.training.estep.far import sum_far
from rtbm.training.machines import Machines, Sums
from rtbm.training.objective import Expectation
from rtbm.training.rows import TASK_ROWS, make_rows
from rtbm.training.states import list_states
from tolerances import ROUNDINGS, WORSE

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SPELLINGS = ["numba", "torch", "far", pytest.param("cuda", marks=needs_cuda)]
EPSILON = np.finfo(float).eps
LISTED, AROUND, SKIPPED = 1e-9, 5e-11, 1e-18
"""The share of P(row) that may be missing: states that are not listed, as promised; those not listed around far
rows, a few times exp(−25); and states that a block skips, many times exp(−45)."""
exact = np.vectorize(mpmath.mpf, otypes=[object])


class Rows(NamedTuple):
    x: Floats  # (n, d), NaN for gaps
    weights: Floats  # (n,)
    offsets: Floats  # (n, K)


class Exact(NamedTuple):
    """Sums of zzᵀ for z = (δ, ε, 1), the log of weight times density, and what rounding may do to them."""

    log_prob: float
    moments: Floats  # (K, g + d + 1, g + d + 1)
    log_joint: Floats  # (n, K)
    row_error: Floats  # (n,): of log P
    error: float
    moment_error: Floats
    largest: Floats  # (K, g + d + 1, g + d + 1): Σ w zzᵀ with the largest entries of z


def make_machines(K=1, d=1, g=1, seed=0, width=1.0, stiffness=1.5, scales=1.0, slope=1.0) -> Machines:
    rng = np.random.default_rng(seed)
    lower = lambda n: np.tril(0.3 * rng.normal(size=(K, n, n)), -1) + np.eye(n) * rng.uniform(0.7, 1.3, (K, n, 1))  # noqa: E731
    scales = np.broadcast_to(scales, d)[:, None]
    F, mean, L = slope * rng.normal(size=(K, d, g)), rng.normal(size=(K, d)), width * lower(d)
    log_weights = np.log(rng.dirichlet(np.ones(K)))
    centre, L_A = rng.normal(size=(K, g)), stiffness * lower(g)
    return Machines(log_weights, L_A, centre, scales * F, scales[:, 0] * mean, scales * L)


def make_data(machines: Machines, n=12, seed=0, far=1.0, gaps=0.0, offsets=0.0, idle=0.2) -> Rows:
    """Rows near states of the machines, and some at `far` times their noise or their steps."""
    rng, (K, d, g) = np.random.default_rng(seed), machines.F.shape
    k, size = rng.integers(0, K, n), np.where(np.arange(n) % 3 == 0, far, 1.0)[:, None]
    h = np.rint(machines.centre[k] + rng.normal(size=(n, g)) * np.where(rng.random((n, 1)) < 0.3, size, 1.0))
    noise = size * rng.normal(size=(n, d))
    x = machines.mean[k] + (machines.F[k] @ h[:, :, None] + machines.L[k] @ noise[:, :, None])[:, :, 0]
    x[rng.random((n, d)) < gaps] = np.nan
    weights = np.where(rng.random(n) < idle, 0.0, rng.uniform(0.1, 1.0, n))
    return Rows(x, weights, offsets * rng.normal(size=(n, K)))


def states_of(machines: Machines, limit: int = 2**16):
    return list_states(machines.L_A.mT, machines.centre, limit)


def integers_around(form: Any, centre: Any) -> Floats:
    """All h with (h − c)ᵀ form (h − c) at most 90 above the least one: the others have 3e-20 of the largest term.

    The form and c are long numbers, so that a skewed basis may be changed.
    """
    basis = exact(np.eye(len(centre)))
    while True:
        R = root_of(form)
        step = reduce_factors(R[None])[0] if len(R) else R
        if (step == np.eye(len(R))).all():
            break
        form, basis = step.T @ form @ step, basis @ step
    inner = invert(basis) @ centre
    origin = exact([mpmath.nint(part) for part in inner]).reshape(len(inner))
    rest = (inner - origin).astype(float)
    least = float(((R @ (nearest_point(R, rest) - rest)) ** 2).sum()) if len(R) else 0.0
    points = enumerate_points(R, least + 90.0, np.zeros(len(R)), rest) if len(R) else np.zeros((1, 0))
    return ((points + origin) @ basis.T).astype(float)


def log_sum(logs: Any) -> Any:
    top = max(logs)
    return top + mpmath.log(mpmath.fsum(mpmath.exp(part - top) for part in logs))


def invert(matrix: Any) -> Any:
    found = mpmath.inverse(mpmath.matrix(matrix.tolist())).tolist() if len(matrix) else []
    return np.array(found, dtype=object).reshape(matrix.shape)


def root_of(form: Any) -> Floats:
    """The upper triangular factor of a positive definite matrix of long numbers."""
    found = mpmath.cholesky(mpmath.matrix(form.tolist())).T.tolist() if len(form) else []
    return np.array(found, dtype=float).reshape(form.shape)


class Terms(NamedTuple):
    """The states of one machine that matter for one row, and what rounding may do to them."""

    logs: Any  # (S,): of weight times P(h) times density, in long numbers
    log_peak: float
    z: Floats  # (S, g + d + 1): (δ, ε, 1)
    unknown: Floats  # (d, d): the covariance of ε
    of_z: Floats  # (S, g + d + 1), in units of the last digit, as the following
    of_logs: Floats  # (S,)
    of_unknown: float


def log_total(L_A: Floats, centre: Floats) -> tuple[Any, float]:
    """log Σ exp(−½|L_Aᵀδ|²), and what rounding may do to it."""
    root = exact(L_A)
    h = integers_around(root @ root.T, exact(centre))
    logs = -(((exact(h) - exact(centre)) @ root) ** 2).sum(axis=1) / mpmath.mpf(2)
    total = log_sum(logs)
    return total, np.exp((logs - total).astype(float)) @ prior_error(h, L_A, centre)


def prior_error(h: Floats, L_A: Floats, centre: Floats) -> Floats:
    """What rounding does to ½|L_Aᵀδ|² (S,)."""
    sizes = (np.abs(h) + np.abs(centre)) @ np.abs(L_A)
    return np.linalg.norm((h - centre) @ L_A, axis=1) * np.linalg.norm(sizes, axis=1)


def exact_terms(x: Floats, offset: float, machine: Machines, total: tuple[Any, float]) -> Terms:
    """The terms of one machine, in arrays without the first axis, for a row (d,)."""
    given, (d, g) = ~np.isnan(x), machine.F.shape
    log_weight, L_A, centre, F, mean, L = map(exact, machine)
    F, mean, L, x = F[given], mean[given], L[given], exact(x[given])
    precision, form, middle = invert(L @ L.T), L_A @ L_A.T, centre
    if given.any() and g:
        form = form + F.T @ precision @ F
        middle = centre + invert(form) @ F.T @ precision @ (x - mean - F @ centre)
    h = integers_around(form, middle)
    inverse = L.T @ precision if given.any() else exact(np.zeros((d, 0)))
    noise = (x - mean - exact(h) @ F.T) @ inverse.T if given.any() else exact(np.zeros((len(h), d)))
    log_det = mpmath.log(mpmath.det(mpmath.matrix((L @ L.T).tolist()))) if given.any() else mpmath.mpf(0)
    log_peak = log_weight - log_det / 2 - given.sum() * mpmath.log(2 * mpmath.pi) / 2 + offset
    delta = exact(h) - centre
    logs = log_peak - total[0] - (((delta @ L_A) ** 2).sum(axis=1) + (noise**2).sum(axis=1)) / mpmath.mpf(2)
    known = (inverse @ L).astype(float) if given.any() else np.zeros((d, d))
    # rounding: of all that is subtracted in ε, of the rows of L, of δ, and of logarithms by all that they are made of
    G, reach = np.abs(inverse.astype(float)), np.abs(h) + np.abs(machine.centre)
    parts = np.abs(x.astype(float)) + np.abs(machine.mean[given]) + reach @ np.abs(machine.F[given]).T
    by_L = 1 + np.linalg.norm(G @ np.linalg.norm(machine.L[given], axis=1))
    of_noise = by_L * np.linalg.norm(parts @ G.T, axis=1)
    delta, noise, one = delta.astype(float), noise.astype(float), np.ones((len(h), 1))
    of_logs = np.linalg.norm(noise, axis=1) * of_noise + np.abs(logs.astype(float)) + total[1] + 10 + d * by_L
    of_logs += prior_error(h, machine.L_A, machine.centre) + abs(offset) + abs(float(log_det)) + abs(float(total[0]))
    of_logs += np.abs(np.log(np.diagonal(machine.L))).sum() + abs(machine.log_weights)
    of_z = np.hstack([reach, np.repeat(of_noise[:, None], d, axis=1), one])
    return Terms(logs, float(log_peak), np.hstack([delta, noise, one]), np.eye(d) - known, of_z, of_logs, by_L)


@mpmath.workdps(60)
def exact_sums(data: Rows, machines: Machines) -> Exact:
    """The sums over all states that matter, from the definition. Errors are those of stable sums over stable terms."""
    (K, d, g), n, one_digit = machines.F.shape, len(data.x), ROUNDINGS * EPSILON
    each = [Machines(*(part[k] for part in machines)) for k in range(K)]
    totals = [log_total(machine.L_A, machine.centre) for machine in each]
    log_omitted, size = states_of(machines).log_omitted, (K, g + d + 1, g + d + 1)
    rows = [
        [exact_terms(x, offset, *of) for offset, *of in zip(offsets, each, totals, strict=True)]
        for x, offsets in zip(data.x, data.offsets.tolist(), strict=True)
    ]
    joint = np.array([[log_sum(terms.logs) for terms in row] for row in rows]).reshape(n, K)
    log_prob, row_error = np.array([log_sum(row) for row in joint]), np.zeros(n)
    moments, moment_error, largest = np.zeros(size), np.zeros(size), np.zeros(size)
    for i, row in enumerate(rows):
        shares = [np.exp((terms.logs - log_prob[i]).astype(float)) for terms in row]
        omitted = max(log_omitted[k] + terms.log_peak for k, terms in enumerate(row)) - float(log_prob[i])
        lost = min(math.exp(min(omitted, 0.0)), LISTED)
        row_error[i] = lost + one_digit * sum(share @ terms.of_logs for share, terms in zip(shares, row, strict=True))
        for k, (share, terms) in enumerate(zip(shares, row, strict=True)):
            weight, z = data.weights[i], np.abs(terms.z)
            own, half = (
                weight * share * (one_digit * terms.of_logs + row_error[i]),
                weight * share[:, None] * terms.of_z,
            )
            moments[k] += weight * (share[:, None] * terms.z).T @ terms.z
            moments[k, g:-1, g:-1] += weight * share.sum() * terms.unknown
            moment_error[k] += (own[:, None] * z).T @ z + one_digit * (half.T @ z + z.T @ half)
            moment_error[k, g:-1, g:-1] += own.sum() + one_digit * weight * share.sum() * terms.of_unknown
            biggest = np.maximum(z.max(axis=0), 1.0)
            largest[k] += weight * np.outer(biggest, biggest)
            moment_error[k] += (SKIPPED + lost) * weight * np.outer(biggest, biggest)
    error = float(data.weights @ (row_error + EPSILON * n * np.abs(log_prob.astype(float))))
    return Exact(float(data.weights @ log_prob), moments, joint.astype(float), row_error, error, moment_error, largest)


def sums_by(spelling: str, data: Rows, machines: Machines) -> tuple[Sums, Floats]:
    """The sums and the log of weight times density (n, K), by one spelling."""
    states = states_of(machines)
    if spelling == "far":
        return sum_far(data.x, data.weights, data.offsets, machines, states)
    block = make_rows(*map(torch.from_numpy, data[:2]))
    offsets, joint = data.offsets[block.order.numpy()], np.full(data.offsets.shape, np.nan)
    if spelling != "numba":
        device = "cuda" if spelling == "cuda" else "cpu"
        parts = (torch.as_tensor(part).to(device) for part in (block.x, block.weights, offsets, joint))
        x, weights, offsets, joint = parts
        block = block._replace(x=x, weights=weights)
    sums = e_step(block, machines, states, offsets if data.offsets.any() else None, log_joint=joint)
    back = np.empty(joint.shape)
    back[block.order.numpy()] = torch.as_tensor(joint).cpu().numpy()
    return sums, back


def assert_right(data: Rows, machines: Machines, spellings=("numba", "torch", "far")) -> None:
    known, (_, _, g) = exact_sums(data, machines), machines.F.shape
    for spelling in spellings:
        sums, joint = sums_by(spelling, data, machines)
        omitted = AROUND if spelling == "far" else 0.0
        assert abs(sums.log_prob - known.log_prob) <= known.error + omitted * data.weights.sum(), spelling
        gram, cross, square = sums.moments()
        order = [*range(g), -1]
        found = np.zeros_like(known.moments)
        found[:, g:-1, g:-1] = square
        found[np.ix_(range(len(found)), order, order)] = gram
        found[:, g:-1, order] = cross
        found[:, order, g:-1] = cross.mT
        assert (np.abs(found - known.moments) <= known.moment_error + omitted * known.largest).all(), spelling
        top = known.log_joint.max(axis=1, keepdims=True)
        shares, expected = np.exp(joint - top), np.exp(known.log_joint - top)
        allowed = 2 * (known.row_error + omitted) * expected.sum(axis=1)
        assert (np.abs(shares - expected) <= allowed[:, None]).all(), spelling


SIZES = {"d": st.integers(0, 3), "g": st.integers(0, 2), "K": st.integers(1, 3), "seed": st.integers(0, 10**6)}


@settings(max_examples=20)
@given(
    sizes=st.fixed_dictionaries(SIZES),
    far=st.sampled_from([1.0, 10.0, 30.0, 100.0]),
    gaps=st.sampled_from([0.0, 0.4, 1.0]),
    offsets=st.sampled_from([0.0, 1.0, 100.0]),
    log_width=st.integers(-8, 1),
    exponents=st.lists(st.integers(-8, 8), min_size=3, max_size=3),
)
@example({"d": 1, "g": 1, "K": 1, "seed": 0}, 30.0, 0.0, 0.0, 0, [0, 0, 0])
@example({"d": 2, "g": 0, "K": 3, "seed": 0}, 100.0, 0.4, 1.0, 0, [0, 0, 0])
@example({"d": 0, "g": 0, "K": 3, "seed": 0}, 1.0, 0.0, 100.0, 0, [0, 0, 0])
@example({"d": 3, "g": 1, "K": 2, "seed": 0}, 1.0, 0.4, 0.0, 0, [8, 0, -8])
@example({"d": 3, "g": 2, "K": 2, "seed": 0}, 30.0, 0.4, 0.0, -8, [0, 0, 0])
def test_all_spellings_have_the_digits_that_the_numbers_determine(sizes, far, gaps, offsets, log_width, exponents):
    scales = 10.0 ** np.array(exponents[: sizes["d"]])
    machines = make_machines(**sizes, width=10.0**log_width, scales=scales)
    assert_right(make_data(machines, 4, sizes["seed"], far, gaps, offsets), machines)


@pytest.mark.parametrize(
    "kind",
    [
        {"g": 3, "stiffness": 2.5},
        {"d": 2, "g": 2, "stiffness": 0.5, "slope": 0.3},  # hundreds of states
        {"g": 1, "stiffness": 0.05, "slope": 0.2},  # on one line
        {"g": 1, "stiffness": 0.05, "slope": 20.0, "K": 2},
        {"d": 6, "g": 1, "K": 2},
    ],
)
@pytest.mark.parametrize("far", [1.0, 30.0])
def test_long_lists_and_wide_rows(kind, far):
    machines = make_machines(**kind)
    assert_right(make_data(machines, 4, far=far), machines)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_gives_the_same_on_many_rows(spelling):
    """In narrow blocks terms follow from one another, and in wide ones, beyond REACH, each is an exponential."""
    for seed, (n, far) in enumerate([(1, 1.0), (127, 1.0), (129, 100.0), (400, 1e3), (400, 3.0)]):
        machines = make_machines(2, 2, 2, seed, stiffness=0.8, slope=0.7)
        data = make_data(machines, n, seed, far, gaps=0.1, offsets=seed % 2)
        (here, joint), (there, other) = (sums_by(name, data, machines) for name in ("torch", spelling))
        size = np.abs(here.vector).max()
        assert np.abs(here.vector - there.vector).max() < LISTED * size
        assert np.abs(joint.max(axis=1) - other.max(axis=1)).max() < LISTED * np.abs(joint).max()


def test_lines_of_states_are_as_exact_as_single_ones():
    machines = make_machines(2, 1, 1, stiffness=0.03, slope=0.05)
    data = make_data(machines, 500, offsets=1.0)
    by_line, single = (sums_by(spelling, data, machines)[0].vector for spelling in ("numba", "torch"))
    assert np.allclose(by_line, single, rtol=1e-12, atol=1e-12 * np.abs(by_line).max())


def test_skewed_bases_are_reduced():
    U = np.array([[1.0, 40.0, 3.0], [0.0, 1.0, -70.0], [0.0, 0.0, 1.0]])
    plain = make_machines(1, 2, 3, stiffness=2.0)
    root = triangular_factors(plain.L_A[0].T @ U)
    centre = np.linalg.solve(U, plain.centre[0])
    skewed = plain._replace(L_A=root.T[None], centre=centre[None], F=plain.F @ U)
    data = make_data(plain, 5, far=10.0)
    assert_right(data, skewed)
    found, same = (sums_by("numba", data, machines)[0].log_prob for machines in (skewed, plain))
    assert math.isclose(found, same, rel_tol=1e-9)


def test_narrow_columns_that_are_missing_cost_no_digits():
    machines = make_machines(2, 4, 2)
    for narrow in range(4):
        width = np.where(np.arange(4) == narrow, 1e-9, 1.0)
        diagonal = np.where(np.eye(4, dtype=bool), width, 1.0)
        data = make_data(machines, 4, narrow, gaps=0.2)
        data.x[:, narrow] = np.nan
        assert_right(data, machines._replace(L=machines.L * diagonal))


@pytest.mark.parametrize("stiffness", [1e-2, 1e-5, 1e-100, 0.0])
def test_too_many_states_are_known_before_they_take_memory(stiffness):
    root = np.broadcast_to(stiffness * np.eye(4), (3, 4, 4))
    tracemalloc.start()
    with pytest.raises(TooManyTermsError):
        list_states(root, np.full((3, 4), 0.3), 2**12)
    assert tracemalloc.get_traced_memory()[1] < 2**22
    tracemalloc.stop()


def random_vector(family: Family, seed: int, scale: float = 0.6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    machines, logits = family.split(scale * torch.randn(family.n_parameters, dtype=torch.float64, generator=generator))
    for machine in machines:
        machine[0] += 1.0
    return family.join(machines, logits)


def points(n: int, d: int, seed: int, gaps: float = 0.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(n, d, dtype=torch.float64, generator=generator)
    x[torch.rand(n, d, generator=generator) < gaps] = torch.nan
    return x


def weights(n: int, seed: int) -> torch.Tensor:
    w = torch.rand(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) + 0.1
    return w / w.sum()


def assert_as_theta_functions(family, vector, x, w, allowed=WORSE):
    likelihood = Likelihood(family, ArrayBlocks(x, w))
    value, gradient = likelihood.with_gradient(vector)
    known, expected, log_prob = exact_likelihood(family, vector, x, w)
    assert abs(value - known) < allowed * max(1.0, abs(known))
    assert np.allclose(gradient, expected, rtol=0, atol=10 * allowed * max(1.0, np.abs(expected).max()))
    assert torch.allclose(likelihood.log_prob(vector), log_prob, rtol=allowed, atol=allowed)
    assert math.isclose(likelihood.value(vector), value, rel_tol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.sampled_from([0.0, 0.3]))
@example(310, 3, 3, 2, 0.0)  # soft
def test_values_and_gradients_are_those_of_theta_functions(seed, d, g, K, gaps):
    family, x = Family(d, g, n_components=K), points(40, d, seed, gaps)
    x[0] *= 40
    assert_as_theta_functions(family, random_vector(family, seed), x, weights(40, seed))


@pytest.mark.parametrize("compiled", [True, False])
def test_rows_far_out_and_many_features(compiled, monkeypatch):
    monkeypatch.setattr("rtbm.theta.kernels.AVAILABLE", compiled)
    line, wide = Family(1, 2, n_components=2), Family(12, 1, n_components=3)
    far = torch.tensor([[2000.0], [-3000.0]], dtype=torch.float64)
    assert_as_theta_functions(line, random_vector(line, 0), torch.cat([points(200, 1, 0), far]), weights(202, 0))
    x = torch.cat([points(60, 12, 0), 40 * points(4, 12, 1)])
    assert_as_theta_functions(wide, random_vector(wide, 0, 0.15), x, weights(64, 0))


@pytest.mark.parametrize("gaps", [0.0, 0.3])
def test_soft_units_take_theta_functions(gaps):
    family = Family(3, 3, n_components=2)
    vector, x = random_vector(family, 0), points(20, 3, 0, gaps)
    vector[[0, 2, 5]] = -4.0  # A of about exp(−8): far too many states
    with pytest.raises(TooManyTermsError):
        Expectation.of(family.machines(vector))
    assert_as_theta_functions(family, vector, x, weights(20, 0))
    vector[[0, 2, 5]] = 0.1  # where both serve
    x[0], w = 3 * x[0], weights(20, 0)
    assert_as_theta_functions(family, vector, x, w)


@pytest.mark.parametrize(("d", "g", "K", "gaps"), [(1, 2, 1, 0.0), (2, 1, 3, 0.3), (2, 2, 2, 0.0)])
def test_gradients_are_those_of_the_value_and_em_never_raises_it(d, g, K, gaps):
    family, x = Family(d, g, n_components=K), points(60, d, 1, gaps)
    objective = Objective(family, ArrayBlocks(x, 60 * weights(60, 1)), Prior(1.0, np.ones(d)))
    vector = random_vector(family, 2)
    gradient = objective.with_gradient(vector)[1]
    for i in range(len(vector)):
        step = torch.zeros_like(vector)
        step[i] = 1e-5
        slope = (objective.value(vector + step) - objective.value(vector - step)) / 2e-5
        assert slope == pytest.approx(float(gradient[i]), abs=1e-6)
    values = []
    for _ in range(30):
        value, evaluation = objective.evaluate(vector)
        values.append(value)
        vector = objective.maximise(evaluation)
    assert max(np.diff(values)) < 1e-9
    assert values[-1] < values[0] - 0.01


@pytest.mark.parametrize("n", [1, 257, 2 * TASK_ROWS + 5000])
def test_threads_and_the_order_in_memory_change_no_bit(n, set_threads):
    family = Family(2, 2, n_components=2)
    x, w, vector = points(n, 2, 1, 0.1), weights(n, 2), random_vector(family, 3)
    results = []
    for threads, rows in ((1, x), (2, x), (2, x.T.contiguous().T)):
        set_threads(threads)
        likelihood = Likelihood(family, ArrayBlocks(rows, w))
        value, gradient = likelihood.with_gradient(vector)
        results.append(np.array([value, *gradient, *likelihood.log_prob(vector)]))
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_the_sums_of_parts_add_up():
    machines = make_machines(3, 2, 1)
    data = make_data(machines, 400, gaps=0.2, far=30.0)
    halves = (Rows(*(part[rows] for part in data)) for rows in (slice(150), slice(150, 400)))
    whole = sums_by("numba", data, machines)[0].vector
    added = sum(sums_by("numba", half, machines)[0].vector for half in halves)
    assert np.allclose(added, whole, rtol=0, atol=1e-13 * np.abs(whole).max())
    assert (Sums.of_vector(whole, 3, 2, 1).vector == whole).all()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("g", [0, 1, 2])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_parameters_that_are_no_numbers_are_refused(g, value, compiled, monkeypatch):
    monkeypatch.setattr("rtbm.theta.kernels.AVAILABLE", compiled)
    source, machines = ArrayBlocks(points(30, 2, 0), weights(30, 0)), make_machines(2, 2, g)
    for name, part in machines._asdict().items():
        for place in np.ndindex(part.shape):
            if name in ("L_A", "L") and place[1] < place[2]:
                continue
            changed = part.copy()
            changed[place] = value
            if name == "log_weights" and value == -math.inf:
                continue  # an empty machine
            with np.errstate(all="ignore"), pytest.raises(FAILURES):
                Expectation.of(machines._replace(**{name: changed})).evaluate(source)


def test_extreme_parameters_are_right_or_refused():
    family = Family(1, 1, n_components=2)
    x, w = points(50, 1, 0), weights(50, 0)
    for size in (-40.0, -10.0, 10.0, 40.0, math.nan):
        for i in range(family.n_parameters):
            vector = random_vector(family, 0)
            vector[i] = size
            likelihood = Likelihood(family, ArrayBlocks(x, w))
            try:
                known = float(w @ family.distribution(vector).log_prob(x))
                found = likelihood.value(vector)
            except FAILURES:
                continue
            if math.isfinite(known):
                assert math.isclose(found, known, rel_tol=1e-6, abs_tol=1e-6)
            else:
                assert not math.isfinite(found)
