"""Layers of theta units: numbers against mpmath, gradients against the paper, and the manners of a torch module."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

from families import PHASES
from rtbm import InvalidInputError, RTBMDistribution
from rtbm.nn import ThetaLayer, theta_unit, theta_units
from rtbm.nn.feedforward import make_network
from rtbm.nn.theta_layer import balanced_gain
from rtbm.theta import kernels
from rtbm.theta.constants import SERIES_LIMIT
from rtbm.theta.unit.torch import unit_derivatives
from tolerances import FLOAT32

mpmath = pytest.importorskip("mpmath")

ACCURACY = 1e-10
MACHINE = RTBMDistribution([[1.0]], [[0.1]], [[2.0]], [0.0], [0.0])


def exact(u: float, q: float, phase: str) -> list[float]:
    """E, its derivatives in u and in q by forty digits: the paper's −κ₁, κ and ρ, from plain sums."""
    with mpmath.workdps(40):
        period = mpmath.mpf(q) if phase == "I" else 2 * mpmath.pi
        n0 = mpmath.nint(mpmath.mpf(u) / period)
        s = mpmath.mpf(u) - n0 * period
        q = mpmath.mpf(q)
        if phase == "I":
            reach = int(mpmath.sqrt(200 / q)) + 4
            m = [mpmath.mpf(k) for k in range(-reach, reach + 1)]
            w = [mpmath.exp(-q * k * k / 2 + k * s) for k in m]
            shift = mpmath.mpf(0)
        else:  # a sum of Gaussians around the multiples of 2π: −log θ̃' = Σ w (s − 2πm)/q / Σ w
            reach = int(mpmath.sqrt(200 * q) / 6) + 4
            m = [(s - 2 * mpmath.pi * k) / q for k in range(-reach, reach + 1)]
            largest = min(x * x for x in m)
            w = [mpmath.exp(-q * (x * x - largest) / 2) for x in m]
            shift = 1 / q
        total = sum(w)
        e1, e2, e3 = (sum(a * b**k for a, b in zip(w, m, strict=True)) / total for k in (1, 2, 3))
        k1, k2, k3 = e1, e2 - e1**2, e3 - 3 * e1 * e2 + 2 * e1**3
        if phase == "I":
            first, second = n0 + k1, k2
            return [float(-first), float(-second), float((k3 + 2 * first * second) / 2)]
        by_u = shift - k2
        return [float(k1), float(by_u), float(k3 / 2 - k1 * by_u)]


def all_three(u: float, q: float, phase: str) -> list[float]:
    argument = torch.tensor([[u]], dtype=torch.float64, requires_grad=True)
    shape = torch.tensor([q], dtype=torch.float64, requires_grad=True)
    value = theta_unit(argument, shape, phase)
    return [float(part.detach()) for part in (value, *torch.autograd.grad(value.sum(), (argument, shape)))]


def plain(u: float, q: float, phase: str) -> list[float]:
    inputs = (torch.tensor([x], dtype=torch.float64) for x in (u, q))
    _, first, second, third = unit_derivatives(*inputs, phase, 3)
    sign = 0.5 if phase == "I" else -0.5
    return [float(-first), float(-second), float(sign * (third + 2 * first * second))]


@st.composite
def units(draw):
    """u and q: anywhere, near the middle of a step, and near a jump."""
    q = 10 ** draw(st.floats(-3, 3))
    kind = draw(st.sampled_from(["any", "small", "step", "jump"]))
    x = draw(st.floats(-1, 1))
    k = draw(st.integers(-1000, 1000))
    u = {"any": 1e6 * x, "small": 3 * q * x, "step": q * (k + 0.5) + 5 * x, "jump": (2 * k + 1) * np.pi + 5 * q * x}[
        kind
    ]
    return float(np.clip(u, -1e6, 1e6)), q


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("way", [all_three, plain])
@given(unit=units())
@settings(deadline=None, max_examples=150)
def test_values_and_gradients_are_accurate_also_for_extreme_arguments(way, phase, unit):
    u, q = unit
    got, expected, neighbour = way(u, q, phase), exact(u, q, phase), exact(np.nextafter(u, np.inf), q, phase)
    terms = [0.0, 0.0, 1e-16 * (2 * np.pi / q) ** 3 if phase == "II" else 0.0]  # rounding of what cancels at a jump
    for a, b, c, term in zip(got, expected, neighbour, terms, strict=True):
        assert abs(a - b) <= ACCURACY * max(1.0, abs(b)) + abs(b - c) + term  # c: what the last digit of u decides


@pytest.mark.parametrize("phase", PHASES)
def test_both_sums_meet_at_the_threshold(phase):
    edge = SERIES_LIMIT if phase == "I" else 4 * np.pi**2 / SERIES_LIMIT
    u = torch.linspace(-20, 20, 1001, dtype=torch.float64)[:, None]
    shapes = (torch.tensor([edge * (1 + e)], dtype=torch.float64) for e in (-1e-13, 1e-13))
    below, above = (theta_unit(u, q, phase) for q in shapes)
    assert (below - above).abs().max() < 1e-11


@pytest.mark.filterwarnings("ignore:`torch.jit.script")  # torch's own forward mode
@pytest.mark.parametrize("phase", PHASES)
def test_gradients_of_all_orders(phase):
    u = 5 * torch.randn(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u[0] = 0.0
    q = torch.tensor([0.5, 3.0, 9.0, 14.0, 40.0], dtype=torch.float64)
    inputs = (u.requires_grad_(), q.requires_grad_())

    def function(u, q):
        return theta_unit(u, q, phase)

    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs)


@pytest.mark.parametrize("phase", PHASES)
def test_gradients_of_dense_units(phase):
    generator = torch.Generator().manual_seed(1)
    u = torch.randn(3, 2, dtype=torch.float64, generator=generator).requires_grad_()
    root = torch.randn(2, 2, dtype=torch.float64, generator=generator).requires_grad_()

    def function(u, root):
        return theta_units(u, root @ root.mT + 2 * torch.eye(2, dtype=torch.float64), phase)

    assert torch.autograd.gradcheck(function, (u, root))
    assert torch.autograd.gradgradcheck(function, (u, root))


@pytest.mark.parametrize("coupling", ["diagonal", "dense"])
@pytest.mark.parametrize("phase", PHASES)
def test_layer_is_the_expectation_of_a_machine(phase, coupling):
    Q = torch.tensor([2.0, 5.0]).double() if coupling == "diagonal" else torch.tensor([[2.0, 0.5], [0.5, 5.0]]).double()
    W = torch.tensor([[0.4, -0.3], [0.1, 0.6]]).double()
    machine = RTBMDistribution(torch.eye(2).double(), W, Q, [0.1, 0.2], [0.3, -0.4], phase=phase)
    v = torch.randn(3, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    layer = ThetaLayer.from_distribution(machine)
    assert (layer.coupling, layer.phase) == (coupling, phase)
    assert torch.allclose(layer(v), machine.hidden_mean(v), atol=1e-12)


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("coupling", ["diagonal", "dense"])
@pytest.mark.parametrize("phase", PHASES)
def test_torch_func(phase, coupling):
    layer = ThetaLayer(
        3, 2, coupling=coupling, phase=phase, dtype=torch.float64, generator=torch.Generator().manual_seed(3)
    )
    v = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    parameters = {name: parameter.detach() for name, parameter in layer.named_parameters()}

    def call(parameters, v):
        return functional_call(layer, parameters, (v,))

    assert torch.allclose(vmap(layer)(v), layer(v))
    jacobian = vmap(jacrev(lambda row: call(parameters, row)))(v)
    expected = torch.autograd.functional.jacobian(lambda x: layer(x).sum(dim=0), v).permute(1, 0, 2)
    assert torch.allclose(jacobian, expected)
    by_sample = vmap(grad(lambda p, row: call(p, row).square().sum()), (None, 0))(parameters, v)
    together = grad(lambda p: call(p, v).square().sum())(parameters)
    for name in parameters:
        assert torch.allclose(by_sample[name].sum(dim=0), together[name])
    ensemble = {name: torch.stack([value, 0.9 * value]) for name, value in parameters.items()}
    both = vmap(call, (0, None))(ensemble, v)
    assert torch.allclose(both[1], call({name: 0.9 * value for name, value in parameters.items()}, v))
    if coupling == "diagonal":
        assert torch.allclose(jacfwd(lambda x: layer(x).sum(dim=0))(v), jacrev(lambda x: layer(x).sum(dim=0))(v))

        def energy(x):
            return layer(x).square().sum()

        assert torch.allclose(hessian(energy)(v), torch.autograd.functional.hessian(energy, v))
    else:
        assert jacrev(jacrev(lambda x: layer(x).square().sum()))(v).shape == (4, 3, 4, 3)


@pytest.mark.filterwarnings("ignore:The .grad attribute", "ignore:.*should not be instantiated")  # torch's own
@pytest.mark.parametrize("coupling", ["diagonal", "dense"])
def test_compile(coupling):
    network = torch.nn.Sequential(
        ThetaLayer(3, 4, coupling=coupling, generator=torch.Generator().manual_seed(5)), torch.nn.Linear(4, 1)
    )
    v = torch.randn(6, 3, generator=torch.Generator().manual_seed(6))
    compiled = torch.compile(network, backend="aot_eager", fullgraph=coupling == "diagonal")
    assert torch.allclose(compiled(v), network(v), atol=1e-5)
    gradients = [torch.autograd.grad(f(v).sum(), list(network.parameters())) for f in (compiled, network)]
    for a, b in zip(*gradients, strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("phase", PHASES)
def test_kernels_give_what_plain_torch_gives(phase, monkeypatch):
    rng = np.random.default_rng(7)
    q = torch.tensor(10 ** rng.uniform(-1, 2, size=300))
    for shape in [(1, 300), (130, 300), (257, 2), (1000, 1)]:
        leaves = [torch.tensor(rng.normal(size=shape) * 20).requires_grad_(), q[: shape[1]].clone().requires_grad_()]
        weights = torch.tensor(rng.normal(size=shape))
        value = theta_unit(*leaves, phase)
        fast = [value, *torch.autograd.grad(value, leaves, weights)]
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "AVAILABLE", False)
            value = theta_unit(*leaves, phase)
            slow = [value, *torch.autograd.grad(value, leaves, weights)]
        for a, b in zip(fast, slow, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-11)


def test_threads_change_nothing_but_the_last_digit(set_threads):
    u, q = torch.randn(1000, 40, dtype=torch.float64).requires_grad_(), torch.linspace(2, 18, 40).double()
    q.requires_grad_()
    alone = torch.autograd.grad(theta_unit(u, q).square().sum(), (u, q))
    set_threads(2)
    together = torch.autograd.grad(theta_unit(u, q).square().sum(), (u, q))
    assert torch.equal(alone[0], together[0])
    assert torch.allclose(alone[1], together[1], rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_other_types(dtype):
    layer = ThetaLayer(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    v = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    expected = layer(v)
    small = ThetaLayer(3, 4, dtype=dtype)
    small.load_state_dict(layer.state_dict())
    result = small(v)
    assert result.dtype == dtype
    result.sum().backward()
    assert small.weight.grad.dtype == dtype
    tolerance = 10 * FLOAT32 if dtype == torch.float32 else 100 * torch.finfo(dtype).eps
    assert torch.allclose(result.double(), expected, atol=tolerance)


def test_autocast_changes_nothing():
    layer, v = ThetaLayer(3, 4), torch.randn(5, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(v), layer(v.clone()))
        result = torch.nn.Sequential(torch.nn.Linear(3, 3), layer, torch.nn.Linear(4, 1))(v)
        assert result.isfinite().all()
        result.sum().backward()
    inside = layer(v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer(v), inside)


def test_shapes_and_empty_batches():
    layer = ThetaLayer(3, 4)
    for shape in [(3,), (5, 3), (2, 5, 3), (0, 3), (2, 0, 3)]:
        v = torch.zeros(shape, requires_grad=True)
        result = layer(v)
        assert result.shape == (*shape[:-1], 4)
        result.sum().backward()
        assert v.grad.shape == shape


def test_state_dict_knows_the_kind_and_holds_tensors_only():
    layer, other = ThetaLayer(3, 4), ThetaLayer(3, 4)
    buffer = io.BytesIO()
    torch.save(layer.state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert all(isinstance(value, torch.Tensor) for value in state.values())
    other.load_state_dict(state)
    v = torch.randn(2, 3)
    assert torch.equal(other(v), layer(v))
    with pytest.raises(InvalidInputError, match="another coupling"):
        ThetaLayer(3, 4, phase="II").load_state_dict(state)


def test_q_is_positive_wherever_an_optimiser_goes():
    layer = ThetaLayer(2, 3, coupling="dense", dtype=torch.float64)
    with torch.no_grad():
        layer.hidden_scale.normal_(generator=torch.Generator().manual_seed(0)).mul_(3)
    assert torch.linalg.eigvalsh(layer.Q).min() > 0


def test_dropout_only_in_training():
    layer = ThetaLayer(3, 1000, dropout=0.5)
    v = torch.ones(1, 3)
    full = layer.eval()(v)
    torch.manual_seed(0)
    part = layer.train()(v)
    kept = part != 0
    assert 0.4 < kept.float().mean() < 0.6
    assert torch.allclose(part[kept], 2 * full[kept])


@pytest.mark.parametrize("phase", PHASES)
def test_balanced_layers_keep_the_variance(phase):
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(2000, 50, dtype=torch.float64, generator=generator)
    options = {"generator": generator, "dtype": torch.float64, "phase": phase}
    layers = [ThetaLayer(50, 50, **options) for _ in range(10)]
    for layer in layers:
        v = layer(v)
        assert 0.7 < v.var(dim=0).mean() < 1.4
    gain = balanced_gain(layers[0].Q.detach(), phase)
    u = gain * torch.randn(200_000, 50, dtype=torch.float64, generator=generator)
    assert torch.allclose(layers[0].activation(u).square().mean(dim=0), torch.ones(50).double(), atol=0.02)


def test_the_papers_initialisation():
    layer = ThetaLayer(4, 2000, initialization="paper", generator=torch.Generator().manual_seed(0))
    assert 2 <= layer.Q.min() < 2.1
    assert 17.9 < layer.Q.max() <= 18.01
    assert layer.weight.abs().max() <= 0.5


def test_the_generator_decides():
    layers = [ThetaLayer(3, 2, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(layers[0].weight, layers[1].weight)
    assert not torch.equal(layers[0].weight, layers[2].weight)


def test_networks_mix_layers():
    network = make_network(2, [3, 4, 1], ["theta-II", "tanh", "theta"], dropout=0.1)
    kinds = [type(module).__name__ for module in network]
    assert kinds == ["ThetaLayer", "Linear", "Tanh", "Dropout", "ThetaLayer"]
    assert (network[0].phase, network[0].dropout, network[4].phase, network[4].dropout) == ("II", 0.1, "I", 0.0)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: ThetaLayer(0, 2), "in_features"),
        (lambda: ThetaLayer(2, 2, coupling="sparse"), "coupling"),
        (lambda: ThetaLayer(2, 2, phase="III"), "phase"),
        (lambda: ThetaLayer(2, 2, initialization="xavier"), "initialization"),
        (lambda: ThetaLayer(2, 2, dropout=1.0), "dropout"),
        (lambda: ThetaLayer(2, 2, dtype=torch.int64), "dtype"),
        (lambda: ThetaLayer.from_distribution(3), "distribution"),
        (lambda: theta_unit([1.0], torch.ones(1)), "u must be"),
        (lambda: theta_unit(torch.ones(1), torch.ones(1, dtype=torch.int64)), "q must be"),
        (lambda: theta_unit(torch.ones(3), torch.ones(2)), "broadcast"),
        (lambda: theta_unit(torch.ones(3), torch.ones(3), "i"), "phase"),
        (lambda: make_network(1, [2], ["theta", "tanh"]), "activation"),
        (lambda: make_network(1, [2], ["sigmoid"]), "activation"),
        (lambda: balanced_gain(torch.tensor([3.0]), "II"), "at most"),
        (lambda: ThetaLayer.from_distribution(MACHINE, phase="II"), "phase"),
        (lambda: theta_units([1.0], torch.eye(1)), "u must be"),
        (lambda: theta_units(torch.ones(3), torch.eye(2)), "shape"),
        (lambda: make_network(2, [3, 1], ["tanh", "linear"], hiden="dense"), "hiden"),
        (lambda: make_network(2, [3, 1], ["tanh", "linear"], dropout=1.5), "dropout"),
    ],
)
def test_clear_errors(call, match):
    with pytest.raises(InvalidInputError, match=match):
        call()


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
@pytest.mark.parametrize("phase", PHASES)
def test_all_mixtures_of_forward_and_reverse_mode(phase):
    x, q = torch.tensor([1.3], dtype=torch.float64), torch.tensor([5.0], dtype=torch.float64)
    for argument in range(2):

        def function(value, argument=argument):
            return theta_unit(*((value, q) if argument == 0 else (x, value)), phase).sum()

        point = (x, q)[argument]
        second = [a(b(function))(point) for a in (jacfwd, jacrev) for b in (jacfwd, jacrev)]
        third = [a(b(c(function)))(point) for a in (jacfwd, jacrev) for b in (jacfwd, jacrev) for c in (jacfwd, jacrev)]
        for results in (second, third):
            assert results[0].abs() > 1e-4
            assert all(torch.allclose(result, results[0]) for result in results)


@pytest.mark.parametrize("phase", PHASES)
def test_q_that_is_not_positive_gives_nan(phase, monkeypatch):
    u = torch.tensor([[1.3, 0.0]] * 3, dtype=torch.float64)
    for available in (True, False):
        monkeypatch.setattr(kernels, "AVAILABLE", available and kernels.AVAILABLE)
        for bad in (-1.0, -0.0, 0.0, -np.inf, np.nan):
            assert theta_unit(u, torch.tensor([bad, bad], dtype=torch.float64), phase).isnan().all()


def test_non_finite_entries_stay_in_their_place():
    u = torch.randn(130, 130, dtype=torch.float64).requires_grad_()
    q, weights = torch.full((130,), 5.0, dtype=torch.float64).requires_grad_(), torch.ones(130, 130).double()
    weights[64, 128] = torch.nan
    (by_q,) = torch.autograd.grad(theta_unit(u, q), q, weights)
    assert by_q.isnan().nonzero().tolist() == [[128]]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("phase", PHASES)
def test_nan_and_infinity_give_nan(phase, bad):
    u = torch.full((2, 2), bad, dtype=torch.float64, requires_grad=True)
    value = theta_unit(u, torch.tensor([3.0, 20.0], dtype=torch.float64), phase)
    assert value.isnan().all()
    assert torch.autograd.grad(value.sum(), u)[0].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dense_layers_keep_their_type_also_under_autocast(dtype):
    layer = ThetaLayer(3, 2, coupling="dense", dtype=dtype, generator=torch.Generator().manual_seed(0))
    v = torch.randn(4, 3, dtype=dtype)
    assert layer(v).dtype == dtype
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.activation(v[:, :2]), layer.activation(v[:, :2].clone()))
        inside = layer.activation(v[:, :2])
    assert torch.equal(inside, layer.activation(v[:, :2]))


def test_meta_device():
    layer = ThetaLayer(3, 2, device="meta")
    assert layer(torch.empty(5, 3, device="meta")).shape == (5, 2)
    with torch.device("meta"):
        assert ThetaLayer(2, 2).weight.is_meta
    assert ThetaLayer(2, 2).weight.isfinite().all()
    layer = torch.nn.utils.skip_init(ThetaLayer, 3, 2)
    layer.reset_parameters()
    assert layer.weight.isfinite().all()


def test_batched_gradients():
    layer, v = ThetaLayer(3, 2, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    plain = torch.autograd.functional.jacobian(layer, v)
    assert torch.allclose(torch.autograd.functional.jacobian(layer, v, vectorize=True), plain)
