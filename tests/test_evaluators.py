"""Every evaluator against the reference sum and against each other: values, gradients, chunks, fallbacks."""

import itertools
import subprocess
import sys
import textwrap
import weakref

import numpy as np
import pytest
import torch

from families import PHASES, block_of, typical
from rtbm import ThetaPlan, log_theta, theta_moments
from rtbm.theta import kernels
from rtbm.theta.chunks import in_chunks, run_threads
from rtbm.theta.product import choose_split
from rtbm.theta.reference import reference_log_theta
from rtbm.theta.unit.columns import UnitColumns
from rtbm.theta.unit.torch import column_derivatives, unit_derivatives
from tolerances import FLOAT32, LOG_THETA, MOMENTS, SAME

EVALUATORS = ("list", "product", "numba")


def cases() -> list[tuple[int, float, str]]:
    return [(g, scale, phase) for g in (1, 2, 3, 4) for scale in (1.0, 4.0, 20.0) for phase in PHASES]


def arguments(g: int, n: int = 40, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, g)) * 2


@pytest.mark.parametrize("name", EVALUATORS)
@pytest.mark.parametrize(("g", "scale", "phase"), cases())
def test_values_against_the_reference_sum(name: str, g: int, scale: float, phase: str) -> None:
    Q, z = typical(g, scale=scale), arguments(g)
    plan = ThetaPlan(Q, phase=phase)
    block = block_of(plan)
    if not block.supports(name):
        assert (name, g) == ("product", 1)
        return
    value = block.log_theta(torch.tensor(z), plan.Q, name).numpy()
    cancellation = 1e-3 if phase == "II" and scale == 1.0 else 1.0  # there the reference loses digits, not we
    assert np.abs(value - reference_log_theta(z, Q, phase)).max() <= LOG_THETA / cancellation


@pytest.mark.parametrize("name", ["product", "numba"])
@pytest.mark.parametrize(("g", "scale", "phase"), [case for case in cases() if case[0] > 1])
def test_gradients_agree_with_the_list(name: str, g: int, scale: float, phase: str) -> None:
    Q, z = torch.tensor(typical(g, scale=scale), requires_grad=True), torch.tensor(arguments(g), requires_grad=True)
    plan = ThetaPlan(Q, phase=phase)
    weights = torch.linspace(-1, 2, len(z), dtype=torch.float64)
    expected, got = (
        torch.autograd.grad(block_of(plan).log_theta(z, Q, way) @ weights, (z, Q)) for way in ("list", name)
    )
    for a, b in zip(expected, got, strict=True):
        assert torch.allclose(a, b, rtol=SAME, atol=MOMENTS)


@pytest.mark.parametrize("phase", PHASES)
def test_moments_of_the_compiled_pass_agree_with_the_list(phase: str) -> None:
    for g in (1, 2, 3, 4):
        plan = ThetaPlan(typical(g, scale=3.0), phase=phase)
        z = torch.tensor(arguments(g, 200))
        compiled = plan.moments(z)
        for a, b in zip(block_of(plan).moments(z, plan.Q, 2, "list"), compiled[:3], strict=True):
            assert torch.allclose(a, b, rtol=SAME, atol=MOMENTS)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("g", [5, 6])
def test_split_product_in_higher_dimension(g: int, phase: str) -> None:
    Q = 2 * np.pi * np.eye(g) + 0.4 * (np.ones((g, g)) - np.eye(g))
    Q[0, 0] = 60.0 if phase == "I" else 0.5  # a wide spectrum: part of the coordinates is transformed
    plan = ThetaPlan(Q, phase=phase)
    block = block_of(plan)
    z = torch.tensor(arguments(g, 2000))
    assert 0 < block.lattice.n_osc < g
    assert block.choose(z) == "product"
    assert torch.allclose(plan.log_theta(z), block.log_theta(z, plan.Q, "list"), rtol=0, atol=LOG_THETA)
    for a, b in zip(block.moments(z, plan.Q, 2, "list"), block.moments(z, plan.Q, 2, "product"), strict=True):
        assert torch.allclose(a, b, rtol=SAME, atol=MOMENTS)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("g", "scale"), [(2, 1.0), (3, 4.0), (4, 20.0)])
def test_moments_of_the_split_product_and_their_gradients(g: int, scale: float, phase: str) -> None:
    Q, z = torch.tensor(typical(g, scale=scale), requires_grad=True), torch.tensor(arguments(g), requires_grad=True)
    results = []
    for name in ("list", "product"):
        moments = block_of(ThetaPlan(Q, phase=phase)).moments(z, Q, 2, name)
        gradients = torch.autograd.grad(sum((moment**2).sum() for moment in moments), (z, Q))
        results.append([*moments, *gradients])
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=SAME, atol=MOMENTS * max(1.0, float(a.detach().abs().max())))


def test_compiled_elementary_functions() -> None:
    rng = np.random.default_rng(0)
    for exponent, turns in zip(rng.uniform(-690, 700, 6400), rng.uniform(-0.5, 0.5, 6400), strict=True):
        assert abs(kernels.exponential(exponent) / np.exp(exponent) - 1) <= 2 * np.finfo(float).eps
        sine, cosine = kernels.sine_cosine(turns)
        assert abs(sine - np.sin(2 * np.pi * turns)) <= 8 * np.finfo(float).eps
        assert abs(cosine - np.cos(2 * np.pi * turns)) <= 8 * np.finfo(float).eps
    assert kernels.exponential(-1e9) < 1e-300


def test_without_numba_everything_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    Q, z = typical(4, scale=4.0), arguments(4, 300)
    compiled = log_theta(z, Q)
    monkeypatch.setattr(kernels, "AVAILABLE", False)
    assert block_of(ThetaPlan(Q)).choose(torch.tensor(z)) == "product"
    assert torch.allclose(log_theta(z, Q), compiled, rtol=0, atol=LOG_THETA)


@pytest.mark.parametrize("name", ["list", "product"])
def test_chunks_change_nothing(name: str) -> None:
    """A batch that takes several chunks, and the same rows in batches that take one each."""
    Q = torch.tensor(typical(3, scale=6.0), requires_grad=True)
    z = torch.tensor(arguments(3, 50_000), requires_grad=True)
    block = block_of(ThetaPlan(Q))
    assert len(z) * len(block.lattice.points) > 2 * 2**19

    def derivatives(batches: list[torch.Tensor]) -> list[torch.Tensor]:
        value = torch.cat([block.log_theta(batch, Q, name) for batch in batches])
        first = torch.autograd.grad(value.sum(), (z, Q), create_graph=True)
        second = torch.autograd.grad(sum((f**2).sum() for f in first), (z, Q))
        return [value, *first, *second]

    for a, b in zip(derivatives([z]), derivatives(list(z.split(500))), strict=True):
        assert torch.allclose(a, b, rtol=SAME, atol=SAME)


def test_recomputed_chunks_have_the_same_derivatives() -> None:
    rows = torch.tensor(arguments(3, 30), requires_grad=True)
    matrix = torch.tensor(typical(3), requires_grad=True)

    def derivatives(**limits: int) -> tuple[int, list[torch.Tensor]]:
        calls = []

        def function(rows: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            calls.append(len(rows))
            return (rows @ matrix).sin().sum(dim=1), (rows * rows) @ matrix

        value, square = in_chunks(function, rows, [matrix], 3, **limits)
        first = torch.autograd.grad(value.sum() + (square**2).sum(), (rows, matrix), create_graph=True)
        second = torch.autograd.grad(sum((f**2).sum() for f in first), (rows, matrix))
        return len(calls), [value, square, *first, *second]

    _, whole = derivatives()
    kept, in_pieces = derivatives(elements=3, graph_chunks=30)
    recomputed, with_less_memory = derivatives(elements=3, graph_chunks=29)
    assert kept == 30
    assert recomputed > kept
    for results in (in_pieces, with_less_memory):
        for a, b in zip(whole, results, strict=True):
            assert torch.allclose(a, b, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("Q", [typical(2), typical(4, scale=8.0)], ids=["numba", "product"])
def test_threads_change_nothing(Q: np.ndarray, set_threads) -> None:
    z = arguments(len(Q), 50_000)
    one = log_theta(z, Q)
    set_threads(2)
    assert torch.allclose(log_theta(z, Q), one, rtol=0, atol=LOG_THETA)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("Q", [typical(2, scale=4.0), typical(5), typical(4, scale=20.0), np.eye(3) + 0.1])
def test_split_lists_cover_all_points(Q: np.ndarray, phase: str) -> None:
    block = block_of(ThetaPlan(Q, phase=phase))
    points, o = block.lattice.points, block.lattice.n_osc
    first, last = choose_split(points, o)
    cut = first.shape[1]
    mirrored = last * np.where(np.arange(cut, len(Q)) < o, -1, 1)
    paired = (mirrored != last).any(axis=1)
    assert len(np.unique(np.concatenate([last, mirrored[paired]]), axis=0)) == len(last) + paired.sum()
    heads, tails = ({tuple(row) for row in rows.tolist()} for rows in (first, np.concatenate([last, mirrored])))
    assert all(tuple(row[:cut]) in heads and tuple(row[cut:]) in tails for row in points.tolist())


def test_split_lists_of_many_coordinates() -> None:
    """The digits of a point of 60 coordinates do not fit in one integer."""
    points = np.concatenate(
        [np.zeros((1, 60), dtype=np.int64), np.eye(60, dtype=np.int64), -np.eye(60, dtype=np.int64)]
    )
    first, last = choose_split(points, 0)
    for rows in (first, last):
        assert len(rows) == 1 + 2 * rows.shape[1]
        assert np.array_equal(rows, np.unique(rows, axis=0))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scale", [1.0, 3.4, 5.1, 12.0])
def test_float32_does_not_overflow_in_the_split_product(scale: float, phase: str) -> None:
    D4 = np.array([[2.0, -1, 0, 0], [-1, 2, -1, -1], [0, -1, 2, 0], [0, -1, 0, 2]])
    for matrix in (scale * D4, scale * (np.eye(6) + 1)):
        z = arguments(len(matrix), 3000).astype(np.float32)
        single = ThetaPlan(torch.tensor(matrix, dtype=torch.float32), phase=phase)
        double = ThetaPlan(single.Q.double(), phase=phase)
        for order in (0, 1):
            there, here = single.moments(torch.tensor(z), order), double.moments(torch.tensor(z).double(), order)
            for a, b in zip(there[: order + 1], here[: order + 1], strict=True):
                assert a.dtype == torch.float32
                assert torch.allclose(a.double(), b, rtol=5 * FLOAT32, atol=5 * FLOAT32)


@pytest.mark.parametrize("inside", [False, True], ids=["made outside", "made inside"])
@pytest.mark.parametrize("Q", [np.array([[1.0, 0.3], [0.3, 2.0]]), 2 * np.pi * np.eye(5) + 0.4], ids=["two", "five"])
def test_plans_in_inference_mode_can_be_trained_with(Q: np.ndarray, inside: bool) -> None:
    matrix, z = torch.tensor(Q, requires_grad=True), torch.tensor(arguments(len(Q), 200))
    plan = None if inside else ThetaPlan(matrix)
    with torch.inference_mode():
        plan = plan or ThetaPlan(Q)
        value, mean = plan.log_theta(z), plan.moments(z, order=1).mean
        assert theta_moments(z.float(), Q.astype(np.float32), order=3).third.dtype == torch.float32
    learned = z.clone().requires_grad_()
    again = plan.log_theta(learned)
    gradients = torch.autograd.grad(again.sum(), (learned,) if inside else (learned, matrix))
    assert torch.allclose(again, value)
    assert torch.allclose(gradients[0], mean)
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_many_coordinates() -> None:
    g = 45
    Q, z = 30 * np.eye(g) + 0.1, arguments(g, 50)
    plan = ThetaPlan(Q, phase="II")
    by_list = block_of(plan).log_theta(torch.tensor(z), plan.Q, "list")
    assert torch.allclose(plan.log_theta(z), by_list, rtol=0, atol=LOG_THETA)


def test_any_batch_shape_and_array_like() -> None:
    Q, z = typical(2), arguments(2, 24)
    flat = log_theta(z, Q)
    assert torch.equal(log_theta(z.reshape(2, 3, 4, 2), Q), flat.reshape(2, 3, 4))
    assert torch.allclose(log_theta(z[0].tolist(), Q.tolist()), flat[0], rtol=1e-14)
    assert torch.equal(log_theta(z[::-1], Q), flat.flip(0))
    empty = torch.zeros(0, 2, dtype=torch.float64, requires_grad=True)
    log_theta(empty, Q).sum().backward()
    assert log_theta(z[:0], Q).shape == (0,)
    assert log_theta(z[:0].reshape(0, 5, 2), Q).shape == (0, 5)
    moments = theta_moments(z.reshape(2, 12, 2), Q, order=3)
    assert [tuple(m.shape) for m in moments] == [(2, 12), (2, 12, 2), (2, 12, 2, 2), (2, 12, 2, 2, 2)]
    assert theta_moments(z, Q, order=0)[1:] == (None, None, None)


def test_any_layout_in_memory() -> None:
    Q, z = torch.tensor(typical(3)), torch.tensor(arguments(3, 5))
    plan, expected = ThetaPlan(Q), log_theta(z, Q.clone().requires_grad_()).detach()
    negated = torch.complex(torch.zeros_like(z), -z).conj().imag
    assert negated.is_neg()
    for same in (z, z.mT.contiguous().mT, negated, torch.stack([z, z])[1], torch.cat([z, z], dim=1)[:, 3:]):
        assert torch.allclose(plan.log_theta(same), expected, rtol=0, atol=LOG_THETA)
    many = z.repeat(2**13, 1)  # several threads
    for same, value in ((z[0].expand(4, 3), expected[0]), (many, expected.repeat(2**13))):
        assert torch.allclose(plan.log_theta(same), value, rtol=0, atol=LOG_THETA)


def test_a_plan_that_is_dropped_leaves_no_memory() -> None:
    block = weakref.ref(block_of(ThetaPlan(typical(2))))
    assert block() is None


def test_cost_model_uses_each_evaluator_where_it_pays() -> None:
    def chosen(Q: np.ndarray, n: int) -> str:
        block = block_of(ThetaPlan(Q))
        return block.choose(torch.zeros(n, len(Q), dtype=torch.float64))

    crowded = 2 * np.pi * np.eye(6) + 0.3 * np.ones((6, 6))
    assert chosen(typical(2), 10_000) == "numba"
    assert chosen(crowded, 1) == "numba"
    assert chosen(600 * crowded, 1) == "list"
    assert chosen(crowded, 10_000) == "product"


@pytest.mark.slow
def test_memory_stays_bounded_for_a_million_points() -> None:
    script = """
        import resource, torch
        from rtbm import log_theta
        torch.manual_seed(0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        X = torch.rand(4, 4, dtype=torch.float64) * 2 - 1
        Q = (SCALE * (X @ X.T + 0.5 * torch.eye(4))).requires_grad_()
        z = torch.randn(10**6, 4, dtype=torch.float64, requires_grad=True)
        log_theta(z, Q).sum().backward()
        assert z.grad.isfinite().all() and Q.grad.isfinite().all()
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
    """
    for scale in ("1.0", "8.0"):  # the compiled pass, and the split product
        code = textwrap.dedent(script).replace("SCALE", scale)
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert float(run.stdout) < 2.0, "GiB"


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("reach", [1.0, 1e3, 1e6])
def test_the_compiled_diagonal_pass_is_the_torch_one(phase: str, reach: float) -> None:
    rng = np.random.default_rng(0)
    q = torch.tensor(10.0 ** rng.uniform(-2, 4, 150))
    z = torch.tensor(rng.normal(size=(300, 150)) * reach)
    z[:50] = (z[:50] / q).round() * q + q / 2 if phase == "I" else z[:50].round() * np.pi  # between two lattice points
    columns = UnitColumns(q.numpy(), phase)
    expected, found = column_derivatives(z, q, phase, 2, is_far=False), columns.moments(z, q, 2)
    assert torch.equal(columns.moments(z, q, 0)[0], columns.log_theta(z, q))
    size = expected[0].abs().sum(1).clamp(min=1)
    assert float(((found[0] - expected[0].sum(1)) / size).abs().max()) <= LOG_THETA
    scale = (1 + 1 / q) ** 0.5
    for k in (1, 2):
        error = (found[k] - expected[k]).abs() / (1 + expected[k].abs()) / scale ** (2 * k)
        assert float(error.max()) <= MOMENTS


@pytest.mark.parametrize("phase", PHASES)
def test_choosing_by_entry_is_choosing_by_column(phase: str) -> None:
    q = torch.tensor(np.geomspace(0.01, 1000, 40))
    z = torch.tensor(arguments(40, 50) * 20)
    for by_entry, by_column in zip(
        unit_derivatives(z, q, phase, 3), column_derivatives(z, q, phase, 3, is_far=False), strict=True
    ):
        assert torch.equal(by_entry, by_column)
    values = torch.stack([log_theta(z[:, j : j + 1], q[j : j + 1, None], phase=phase) for j in range(40)], dim=1)
    assert torch.allclose(unit_derivatives(z, q, phase, 0)[0], values, rtol=SAME, atol=LOG_THETA)


@pytest.mark.parametrize("q", [1e-60, 1e-100, 1e-200, 1e-290])
def test_the_narrowest_wells_of_phase_two_are_parabolas(q: float) -> None:
    moments = theta_moments([[1.0]], [q], phase="II")
    for derivative, expected in zip(moments[:3], (-0.5 / q, -1 / q, -1 / q), strict=True):
        assert float(derivative) == pytest.approx(expected, rel=SAME)


def test_threads_take_all_rows_once() -> None:
    for rows in (1, 5, 2**24 + 1, 2**24 + 3, 2**25 + 3):
        seen = []
        run_threads(lambda start, stop: seen.append((start, stop)), rows, work=10**9)  # noqa: B023
        seen.sort()
        assert seen[0][0] == 0
        assert seen[-1][1] == rows
        assert all(a[1] == b[0] for a, b in itertools.pairwise(seen))
