"""The GPU gives what the CPU gives. Without a GPU there is nothing to compare."""

import numpy as np
import pytest
import torch

from families import PHASES, typical
from rtbm import (
    DiscreteGaussian,
    InvalidInputError,
    MappedDistribution,
    RTBMDensity,
    RTBMDistribution,
    ThetaPlan,
    datasets,
    log_theta,
    nn,
    riemann_theta,
    riemann_theta_characteristics,
    theta_moments,
)
from rtbm.distributions import Interval, LearnedMargin, YeoJohnson
from rtbm.parameters import count, map_tensors, unpack
from rtbm.training import ArrayBlocks, Family, Likelihood
from tolerances import FLOAT32, LOG_THETA, MOMENTS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def arguments(g: int, n: int = 500) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(2).normal(size=(n, g)) * 3)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scale", [1.0, 6.0, 60.0])
@pytest.mark.parametrize("g", [1, 2, 3])
def test_moments(g: int, scale: float, phase: str) -> None:
    Q, z = torch.tensor(typical(g, scale=scale)), arguments(g)
    there, here = theta_moments(z.cuda(), Q.cuda(), phase=phase, order=3), theta_moments(z, Q, phase=phase, order=3)
    for a, b in zip(there, here, strict=True):
        assert torch.allclose(a.cpu(), b, rtol=1e-10, atol=MOMENTS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("g", [2, 4, 6])
def test_values_and_gradients(g: int, phase: str, dtype: torch.dtype) -> None:
    Q = torch.tensor(typical(g, scale=3.0)).to(dtype)
    z = arguments(g).to(dtype)
    results = []
    for device in ("cuda", "cpu"):
        inputs = [t.to(device, dtype if device == "cuda" else torch.float64).requires_grad_() for t in (z, Q)]
        value = log_theta(*inputs, phase=phase)
        results.append([value, *torch.autograd.grad(value.sum(), inputs)])
    error = LOG_THETA if dtype == torch.float64 else FLOAT32
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a.cpu().double(), b, rtol=10 * error, atol=10 * error)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("scale", [0.05, 8.0])  # in phase II, the first has terms up to exp(500)
@pytest.mark.parametrize("g", [2, 5])
def test_the_triton_pass_agrees_with_the_cpu(g: int, scale: float, phase: str) -> None:
    Q, z = torch.tensor(typical(g, scale=scale)), arguments(g)
    ((_, block),) = ThetaPlan(Q.cuda(), phase=phase).blocks
    there = [t.cuda().requires_grad_() for t in (z, Q)]
    assert block.supports("triton")
    expected = theta_moments(z, Q, phase=phase)
    for a, b in zip(block.moments(z.cuda(), Q.cuda(), 2, "triton"), expected, strict=False):
        assert torch.allclose(a.cpu(), b, rtol=1e-10, atol=MOMENTS)
    weights, here = torch.linspace(-1, 1, len(z), dtype=torch.float64), [t.clone().requires_grad_() for t in (z, Q)]
    found = torch.autograd.grad((weights.cuda() * block.log_theta(*there, "triton")).sum(), there)
    exact = torch.autograd.grad((weights * log_theta(*here, phase=phase)).sum(), here)
    for a, b in zip(found, exact, strict=True):
        assert torch.allclose(a.cpu(), b, rtol=1e-9, atol=1e-9 * max(1.0, float(b.abs().max())))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("g", [4, 6])
def test_the_product_agrees_with_the_cpu(g: int, phase: str) -> None:
    Q, z = torch.tensor(2 * np.pi * np.eye(g) + 0.1 * np.ones((g, g))), arguments(g)
    ((_, block),) = ThetaPlan(Q.cuda(), phase=phase).blocks
    there = [t.cuda().requires_grad_() for t in (z, Q)]
    assert block.supports("product")
    here = [t.clone().requires_grad_() for t in (z, Q)]
    weights = torch.linspace(-1, 1, len(z), dtype=torch.float64)
    values = block.log_theta(*there, "product"), log_theta(*here, phase=phase)
    assert torch.allclose(values[0].cpu(), values[1], rtol=0, atol=LOG_THETA)
    exact = torch.autograd.grad((weights * values[1]).sum(), here)
    for _ in range(2):  # a second backward pass finds the same
        found = torch.autograd.grad((weights.cuda() * values[0]).sum(), there, retain_graph=True)
        for a, b in zip(found, exact, strict=True):
            assert torch.allclose(a.cpu(), b, rtol=1e-9, atol=1e-9 * max(1.0, float(b.abs().max())))
    some = torch.eye(len(z), dtype=torch.float64)[:3].cuda()
    (batched,) = torch.autograd.grad(values[0], there[:1], some, is_grads_batched=True, retain_graph=True)
    (one,) = torch.autograd.grad(values[0][2], there[:1])
    assert torch.allclose(batched[2], one, rtol=1e-9, atol=1e-9)


def test_long_sums_of_large_batches_take_the_product() -> None:
    ((_, block),) = ThetaPlan(torch.tensor(2 * np.pi * np.eye(6) + 0.1)).blocks
    z = torch.zeros(100_000, 6, dtype=torch.float64, device="cuda")
    assert block.choose(z) == "product"


def test_diagonal_complex_and_samples() -> None:
    diagonal, wide = torch.diag(torch.linspace(0.1, 60, 50, dtype=torch.float64)), arguments(50)
    there = ThetaPlan(diagonal.cuda()).log_theta(wide.cuda())
    assert torch.allclose(there.cpu(), log_theta(wide, diagonal), rtol=0, atol=50 * LOG_THETA)
    Q, z = torch.tensor(typical(3)), arguments(3)
    omega = 0.3 + 1j * Q
    assert torch.allclose(riemann_theta(z.cuda() + 0.1j, omega.cuda()).cpu(), riemann_theta(z + 0.1j, omega))
    for small in (omega, 1e-6 * omega):  # the second is Siegel-reduced
        here, there = (riemann_theta_characteristics(z.to(w.device) * 1e-3, w) for w in (small, small.cuda()))
        assert torch.allclose(there.cpu(), here, rtol=0, atol=1e-11 * float(here.abs().max()))
    hidden = DiscreteGaussian(Q.cuda(), torch.ones(3, dtype=torch.float64, device="cuda"))
    draws = hidden.sample((200_000,), generator=torch.Generator("cuda").manual_seed(0))
    assert draws.is_cuda
    assert ((draws.mean(0) - hidden.mean) / (hidden.variance / 200_000).sqrt()).abs().max() < 5


def test_devices_do_not_mix_silently() -> None:
    with pytest.raises(InvalidInputError, match=r"z is on cpu and Q on cuda"):
        log_theta(arguments(2), torch.tensor(typical(2)).cuda())


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n_hidden", [2, 6])
@pytest.mark.parametrize("is_diagonal", [False, True])
def test_machines(is_diagonal: bool, n_hidden: int, phase: str) -> None:
    rng = np.random.default_rng(0)
    free = unpack(torch.tensor(rng.normal(size=count(2, n_hidden, "dense")) * 0.5), 2, n_hidden)
    if is_diagonal:
        free = unpack(torch.tensor(rng.normal(size=count(2, n_hidden, "diagonal")) * 0.5), 2, n_hidden, "diagonal")
    here = RTBMDistribution.from_free(free, phase=phase)
    there = RTBMDistribution.from_free(map_tensors(free, torch.Tensor.cuda), phase=phase)
    v = here.sample((200,), torch.Generator().manual_seed(0))
    assert torch.allclose(there.log_prob(v.cuda()).cpu(), here.log_prob(v), rtol=0, atol=1e-10)
    for name in ("mean", "covariance_matrix"):
        assert torch.allclose(getattr(there, name).cpu(), getattr(here, name), atol=1e-9)
    for name in ("score_function", "hidden_mean"):
        assert torch.allclose(getattr(there, name)(v.cuda()).cpu(), getattr(here, name)(v), atol=1e-9)
    assert torch.allclose(there.cdf(v[:5].cuda()).cpu(), here.cdf(v[:5]), atol=1e-10)
    assert torch.allclose(there.entropy().cpu(), here.entropy(), atol=1e-8)
    gaps = torch.where(v > 1, torch.nan, v)
    assert torch.allclose(there.log_prob(gaps.cuda()).cpu(), here.log_prob(gaps), atol=1e-9)
    draws = there.sample((100_000,), torch.Generator("cuda").manual_seed(0))
    assert draws.is_cuda
    assert ((draws.mean(0) - there.mean) / (there.variance / 100_000).sqrt()).abs().max() < 5


def test_modules_train() -> None:
    data = torch.randn(500, 1, dtype=torch.float64, device="cuda")
    for hidden in ("dense", "diagonal"):
        module = nn.MixtureOfRTBMs(2, 1, 5, coupling=hidden, device="cuda")
        (-module().log_prob(data).mean()).backward()
        assert all(p.grad.is_cuda and bool(p.grad.isfinite().all()) for p in module.parameters())


def test_fits() -> None:
    estimators = pytest.importorskip("rtbm.estimators")
    X = datasets.correlated_mixture.sample(500, seed=0)
    for options in ({"n_components": 2}, {"n_hidden": 3}, {"solver": "em"}):
        settings = {"n_hidden": 1, "n_init": 1, "random_state": 0, "fallback": None, "tol": 1e-9, **options}
        here, there = (estimators.RTBMDensity(**settings, device=device).fit(X) for device in (None, "cuda"))
        assert there.distribution_.device.type == "cuda"
        assert there.score(X) == pytest.approx(here.score(X), abs=1e-4)
        assert there.transform(X).shape == here.transform(X).shape
        assert there.sample(10).shape == (10, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("shape", [(300, 7), (1000, 1), (5, 300), (0, 4)])
def test_theta_units(shape: tuple[int, int], phase: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(4)
    q = torch.tensor(10 ** rng.uniform(-2 if dtype == torch.float64 else -0.5, 2, size=shape[1]), dtype=dtype)
    u = torch.tensor(rng.normal(size=shape), dtype=dtype) * torch.maximum(q, torch.tensor(3.0))
    grad = torch.tensor(rng.normal(size=shape), dtype=dtype)
    results = []
    for device in ("cpu", "cuda"):
        leaves = [tensor.to(device).requires_grad_() for tensor in (u, q)]
        value = nn.theta_unit(*leaves, phase)
        results.append([value, *torch.autograd.grad(value, leaves, grad.to(device))])
    for here, there in zip(*results, strict=True):
        scale = here.detach().abs().amax(dim=0).clamp(min=1) if here.numel() else 1.0
        assert ((there.cpu() - here).abs() / scale <= (1e-10 if dtype == torch.float64 else 4 * FLOAT32)).all()


@pytest.mark.parametrize("phase", PHASES)
def test_extreme_theta_units(phase: str) -> None:
    rng = np.random.default_rng(5)
    q = torch.tensor(10 ** rng.uniform(-3, 3, size=200))
    u = torch.tensor(rng.uniform(-1e6, 1e6, size=(100, 200)))
    here, there = nn.theta_unit(u, q, phase), nn.theta_unit(u.cuda(), q.cuda(), phase)
    assert torch.allclose(there.cpu(), here, rtol=1e-10, atol=1e-10)


def test_theta_layer_under_autocast_and_compile() -> None:
    layer = nn.ThetaLayer(4, 3, generator=torch.Generator().manual_seed(0)).cuda()
    v = torch.randn(20, 4, device="cuda")
    expected = layer(v)
    with torch.autocast("cuda"):
        assert torch.equal(layer(v), expected)
    assert torch.allclose(torch.compile(layer)(v), expected, atol=1e-5)


@pytest.mark.parametrize(("d", "g", "K"), [(1, 2, 1), (2, 2, 1), (1, 4, 1), (2, 4, 1), (3, 2, 1), (2, 1, 3), (5, 2, 2)])
def test_sums_over_the_data(d: int, g: int, K: int) -> None:
    family = Family(d, g, n_components=K)
    generator = torch.Generator().manual_seed(0)
    vector = 0.5 * torch.randn(family.n_parameters, dtype=torch.float64, generator=generator)
    x = 1.5 * torch.randn(5000, d, dtype=torch.float64, generator=generator)
    x[0] *= 30
    weights = torch.rand(5000, dtype=torch.float64, generator=generator)
    weights /= weights.sum()
    sources = [ArrayBlocks(x.to(device), weights.to(device)) for device in ("cpu", "cuda")]
    here, there = (Likelihood(family, source) for source in sources)
    value, gradient = here.with_gradient(vector)
    other, by_gpu = there.with_gradient(vector.cuda())
    assert abs(value - other) < 1e-11
    assert np.allclose(gradient, by_gpu, rtol=0, atol=1e-10 * max(1.0, np.abs(gradient).max()))
    assert torch.allclose(here.log_prob(vector), there.log_prob(vector.cuda()).cpu(), rtol=0, atol=1e-9)


def test_blocks_are_fitted_there() -> None:
    X = datasets.correlated_mixture.sample(2000, seed=1)
    scores = [
        RTBMDensity(1, n_components=2, n_init=1, random_state=0, device=device).fit([X[:700], X[700:]]).score(X)
        for device in (None, "cuda")
    ]
    assert abs(scores[0] - scores[1]) < 1e-6


@pytest.mark.parametrize("n_components", [1, 2])
def test_fits_are_those_of_the_cpu(n_components: int) -> None:
    X = datasets.correlated_mixture.sample(2000, seed=1)
    options = {"n_components": n_components, "n_init": 1, "random_state": 0}
    models = [RTBMDensity(1, device=device, **options).fit(X) for device in (None, "cuda")]
    scores = [model.score(X) for model in models]
    assert abs(scores[0] - scores[1]) < 1e-6


def test_mapped_columns() -> None:
    generator = torch.Generator().manual_seed(0)
    power = YeoJohnson(0.4, 1.0, 2.0)
    normals = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, -2.0], [0.7, 0.7, 0.7]], dtype=torch.float64)
    maps = [power, LearnedMargin(power, *normals), Interval(-1.0, float("inf"))]
    lattice = (
        3 * torch.eye(2, dtype=torch.float64), torch.tensor([0.1, 0.2], dtype=torch.float64),
        torch.randn(3, 2, dtype=torch.float64, generator=generator), torch.zeros(3, dtype=torch.float64),
        0.5 * torch.eye(3, dtype=torch.float64),
    )  # fmt: skip
    here, there = (
        MappedDistribution(RTBMDistribution.from_lattice(*(part.to(device) for part in lattice)), maps)
        for device in ("cpu", "cuda")
    )
    x, p = here.sample((200,), generator), torch.tensor([0.1, 0.9], dtype=torch.float64)
    given = here.conditional({0: x[:, 0], 2: x[:, 2]})
    same = there.conditional({0: x[:, 0].cuda(), 2: x[:, 2].cuda()})
    pairs = [
        (here.log_prob(x), there.log_prob(x.cuda())),
        (here.score_function(x), there.score_function(x.cuda())),
        (here.mean, there.mean),
        (given.icdf(p), same.icdf(p.cuda())),
        (given.mean, same.mean),
        (given.variance, same.variance),
    ]
    for cpu, gpu in pairs:
        assert torch.allclose(cpu, gpu.cpu(), rtol=1e-9, atol=1e-10)
    assert there.sample((5,)).is_cuda


def test_margins_are_fitted_there() -> None:
    X = np.exp(datasets.correlated_mixture.sample(2000, seed=1) / 3)
    models = [
        RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0, device=device).fit(X)
        for device in (None, "cuda")
    ]
    assert abs(models[0].score(X) - models[1].score(X)) < 1e-6
    assert np.allclose(models[0].predict_mean(X[:20], 1), models[1].predict_mean(X[:20], 1), atol=1e-4)


def test_categories_are_fitted_there() -> None:
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 3, 1500)
    X = np.column_stack([rng.normal(size=(1500, 2)) + 3 * kind[:, None], np.where(rng.random(1500) < 0.2, 0, kind)])
    X[rng.random(X.shape) < 0.05] = np.nan
    options = {"n_components": 3, "n_init": 1, "random_state": 0, "categorical_features": [2]}
    here, there = (RTBMDensity(1, device=device, **options).fit(X) for device in (None, "cuda"))
    assert abs(here.score(X) - there.score(X)) < 1e-5
    assert np.allclose(here.predict_proba(X[:50], 2), there.predict_proba(X[:50], 2), atol=1e-3)
    assert there.sample(5, random_state=0).shape == (5, 3)


def test_atoms_are_fitted_there() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [np.where(rng.random(1500) < 0.3, 0.0, rng.gamma(2.0, size=1500)), rng.normal(size=1500).round(1)]
    )
    options = {"n_components": 2, "n_init": 1, "random_state": 0, "margins": "yeo-johnson"}
    here, there = (RTBMDensity(1, device=device, **options).fit(X) for device in (None, "cuda"))
    assert there.columns_.atoms[0] == [0.0]
    assert abs(here.score(X) - there.score(X)) < 1e-5
    assert np.allclose(here.cell_probability(X[:20]), there.cell_probability(X[:20]), atol=1e-4)
    assert np.allclose(here.cell_probability(X[:20], 1), there.cell_probability(X[:20], 1), atol=1e-4)
    ranges = [model.conditional({1: (0.0, 1.0)}).distribution_.mean.cpu() for model in (here, there)]
    assert torch.allclose(*ranges, atol=1e-3)
    assert torch.allclose(*(m.distribution_.covariance_matrix.cpu() for m in (here, there)), atol=1e-2)
    assert there.sample(5, random_state=0).shape == (5, 2)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_mixed_tables() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(0, 3, 900)
    rows = np.column_stack([3.0 * group + rng.normal(size=900), rng.normal(size=900), group, rng.integers(0, 2, 900)])
    rows = np.where(rng.random(rows.shape) < 0.1, np.nan, rows)
    options = {"n_components": 3, "n_init": 1, "max_iter": 30, "categorical_features": [2, 3], "random_state": 0}
    here, there = (RTBMDensity(1, **options, device=device).fit(rows) for device in (None, "cuda"))
    assert np.allclose(here.score_samples(rows), there.score_samples(rows), rtol=0, atol=1e-6)
    parts = RTBMDensity(1, **options, device="cuda").fit([rows[:100], rows[100:]])
    assert np.allclose(parts.score_samples(rows), there.score_samples(rows), rtol=0, atol=1e-6)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_compiled_loss_learns(backend: str) -> None:
    module = nn.RTBM(2, 2, generator=torch.Generator().manual_seed(0)).to("cuda")
    v = torch.linspace(-1, 1, 10, dtype=torch.float64, device="cuda").reshape(5, 2)
    expected = torch.autograd.grad(module().log_prob(v).mean(), list(module.parameters()))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: module().log_prob(x).mean(), backend=backend, fullgraph=True)
    with torch.cuda.stream(torch.cuda.Stream()):
        found = torch.autograd.grad(compiled(v), list(module.parameters()))
    torch.cuda.synchronize()
    for here, there in zip(found, expected, strict=True):
        assert torch.allclose(here, there, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("coupling", ["dense", "diagonal"])
def test_heads_of_networks(coupling: str) -> None:
    generator = torch.Generator().manual_seed(0)
    head = nn.RTBMHead(3, 2, 2, coupling=coupling, generator=generator)
    features, targets = torch.randn(200, 3, generator=generator).double(), torch.randn(200, 2, generator=generator)
    found = []
    for device in ("cpu", "cuda"):
        batch = head.to(device)(features.to(device))
        log_prob = batch.log_prob(targets.to(device))
        (gradient,) = torch.autograd.grad(log_prob.mean(), head.linear.weight)
        found.append([log_prob, gradient, batch.mean, batch.covariance_matrix])
        assert batch.sample().device.type == device
    for here, there in zip(*found, strict=True):
        assert torch.allclose(here, there.cpu(), rtol=1e-10, atol=1e-11)


def test_draws_with_derivatives() -> None:
    means = []
    for device in ("cpu", "cuda"):
        A, a, F, mean, covariance = (
            torch.tensor(value, dtype=torch.float64, device=device, requires_grad=True)
            for value in ([[8.0]], [-4.0], [[2.0], [1.0]], [0.5, -0.5], [[1.0, 0.3], [0.3, 2.0]])
        )
        machine = RTBMDistribution.from_lattice(A, a, F, mean, covariance)
        draws = machine.rsample((20_000,), torch.Generator(device).manual_seed(0))
        gradients = torch.autograd.grad(draws.square().sum(1).mean(), (A, F, mean, covariance))
        exact = torch.autograd.grad((machine.mean.square() + machine.variance).sum(), (A, F, mean, covariance))
        for drawn, expected in zip(gradients, exact, strict=True):
            assert drawn.device.type == device
            assert torch.allclose(drawn, expected, rtol=0.1, atol=0.2)
        means.append(torch.cat([gradient.reshape(-1).cpu() for gradient in gradients]))
    assert torch.allclose(*means, rtol=0.1, atol=0.2)  # the draws differ
