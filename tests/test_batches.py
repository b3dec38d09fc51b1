"""Batches of machines with parameters of their own, the head of a network, and draws with derivatives."""

import math

import numpy as np
import pytest
import torch

from machines import D, dense, diagonal
from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture
from rtbm.distributions import ConditionalDistribution, MappedDistribution, RTBMBatch
from rtbm.distributions.maps import Interval
from rtbm.errors import NotPositiveDefiniteError, TooManyTermsError
from rtbm.nn import RTBM, RTBMHead, ThetaLayer
from rtbm.parameters import Free, constrain, count, unpack
from rtbm.theta.reference import reference_log_theta
from rtbm.theta.rows import log_shifted_sums
from tolerances import INTEGRAL, LOG_PROB, LOG_THETA, SAME, WORSE, allowed

SIZES = ((1, 1), (1, 3), (2, 2), (3, 3))
COUPLINGS = ("dense", "diagonal")


def vectors(n: int, n_visible: int, n_hidden: int, coupling: str, spread: float = 0.7) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n_visible + n_hidden)
    return spread * torch.randn(n, count(n_visible, n_hidden, coupling), dtype=D, generator=generator)


@pytest.mark.parametrize("g", [1, 2, 3])
@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_sums_of_rows_equal_the_definition(g: int, scale: float) -> None:
    generator = torch.Generator().manual_seed(g)
    root = torch.randn(40, g + 1, g, dtype=D, generator=generator)
    root = root * (scale * torch.randn(40, 1, g, dtype=D, generator=generator)).exp()
    root[:, :g] += 0.5 * torch.eye(g, dtype=D)
    centre = 3 * torch.randn(40, g, dtype=D, generator=generator)
    found = log_shifted_sums(centre, root)
    for c, M, value in zip(centre, root, found, strict=True):
        Q = (M.mT @ M).numpy()
        c_near = (c - c.round()).numpy()
        expected = reference_log_theta((Q @ c_near)[None], Q)[0] - 0.5 * c_near @ Q @ c_near
        assert abs(float(value) - expected) <= allowed(expected) + LOG_THETA * float(np.abs(Q).max())


@pytest.mark.parametrize("reach", [3.0, 6.0])
def test_sums_of_wide_spectra_do_not_depend_on_the_basis(reach: float) -> None:
    generator = torch.Generator().manual_seed(1)
    scales = torch.tensor([-reach, 0.0, reach], dtype=D).exp()
    root = torch.linalg.qr(torch.randn(20, 4, 3, dtype=D, generator=generator)).Q * scales
    U = torch.tensor([[1.0, 3.0, -2.0], [0.0, 1.0, 5.0], [0.0, 0.0, 1.0]], dtype=D)
    centre = torch.rand(20, 3, dtype=D, generator=generator)
    direct, skewed = log_shifted_sums(centre, root), log_shifted_sums(centre @ U.inverse().mT, root @ U)
    bound = SAME * (1 + float((root**2).amax()))  # rounding of the centre, in units of Q
    assert torch.allclose(direct, skewed, rtol=SAME, atol=bound)


def test_sums_have_derivatives_and_no_silent_failures() -> None:
    root = torch.tensor([[[0.5, 0.2], [0.0, 0.8]], [[3.0, 1.0], [0.4, 4.0]]], dtype=D, requires_grad=True)
    centre = torch.tensor([[0.3, -0.2], [0.4, 7.1]], dtype=D, requires_grad=True)
    assert torch.autograd.gradcheck(log_shifted_sums, (centre, root))
    assert torch.autograd.gradgradcheck(log_shifted_sums, (centre, root))
    assert log_shifted_sums(centre[:0], root[:0]).shape == (0,)
    with pytest.raises(InvalidInputError, match="centre must be finite"):
        log_shifted_sums(1e30 * centre, root)


@pytest.mark.parametrize("root", [[[1.0, math.nan], [0, 1]], [[1, math.inf], [0, 1]], [[1, 1], [0, 0]], [[0.0], [0]]])
def test_matrices_without_a_sum_are_refused(root: list[list[float]]) -> None:
    with pytest.raises(NotPositiveDefiniteError, match="full column rank"):
        log_shifted_sums(torch.zeros(1, len(root[0])), torch.tensor([root]))


@pytest.mark.parametrize("coupling", COUPLINGS)
@pytest.mark.parametrize(("n_visible", "n_hidden"), SIZES)
def test_rows_equal_single_machines(n_visible: int, n_hidden: int, coupling: str) -> None:
    rows = vectors(8, n_visible, n_hidden, coupling).requires_grad_()
    batch = RTBMBatch(unpack(rows, n_visible, n_hidden, coupling))
    v = batch.sample(generator=torch.Generator().manual_seed(0))
    log_prob = batch.log_prob(v)
    (gradient,) = torch.autograd.grad(log_prob.sum(), rows)
    mean, covariance = batch.mean, batch.covariance_matrix
    for i in range(len(batch)):
        machine = batch[i]
        assert isinstance(machine, RTBMDistribution)
        expected = machine.log_prob(v[i])
        (wanted,) = torch.autograd.grad(expected, rows)
        assert torch.allclose(log_prob[i], expected, rtol=0, atol=LOG_PROB)
        assert torch.allclose(gradient[i], wanted[i], rtol=WORSE, atol=WORSE)
        assert torch.allclose(mean[i], machine.mean, rtol=WORSE, atol=WORSE)
        assert torch.allclose(covariance[i], machine.covariance_matrix, rtol=WORSE, atol=WORSE)
    if coupling == "dense":
        lattice = constrain(unpack(rows.detach(), n_visible, n_hidden))
        machine = RTBMDistribution.from_lattice(*(part[2] for part in lattice))
        assert torch.allclose(log_prob[2], machine.log_prob(v[2]), rtol=0, atol=LOG_PROB)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_far_values_and_many_draws(coupling: str) -> None:
    batch = RTBMBatch(unpack(vectors(6, 2, 2, coupling).reshape(2, 3, -1), 2, 2, coupling))
    assert (batch.batch_shape, batch.event_shape) == ((2, 3), (2,))
    v = 40 * torch.randn(5, 1, 3, 2, dtype=D, generator=torch.Generator().manual_seed(0))
    log_prob = batch.log_prob(v)
    assert log_prob.shape == (5, 2, 3)
    expected = batch[1, 2].log_prob(v[4, 0, 2])
    assert torch.allclose(log_prob[4, 1, 2], expected, rtol=SAME, atol=LOG_PROB)
    assert batch[0].log_prob(v[0, 0]).shape == (3,)
    assert batch.sample((4, 5)).shape == (4, 5, 2, 3, 2)
    part = batch.marginal(1)
    assert torch.allclose(part[1, 0].log_prob([0.3]), batch[1, 0].marginal(1).log_prob([0.3]), atol=WORSE)


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_integrals_distribution_functions_and_quantiles(coupling: str) -> None:
    batch = RTBMBatch(unpack(vectors(5, 1, 2, coupling, 0.5), 1, 2, coupling))
    scale = float(batch.stddev.max())
    grid = scale * torch.linspace(-14, 14, 20001, dtype=D) + float(batch.mean.mean())
    density = batch.log_prob(grid[:, None, None]).exp()
    assert (density.sum(0) * (grid[1] - grid[0]) - 1).abs().max() <= INTEGRAL
    levels = torch.tensor([0.01, 0.5, 0.99], dtype=D)
    assert torch.allclose(batch.cdf(batch.icdf(levels)), levels[:, None].expand(-1, 5), rtol=0, atol=WORSE)
    draws = batch.sample((2000,), torch.Generator().manual_seed(0))
    uniform = batch.cdf(draws).sort(0).values
    steps = torch.arange(1, 2001, dtype=D)[:, None] / 2000
    assert float((uniform - steps).abs().max()) < 2.2 / math.sqrt(2000)  # Kolmogorov: probability below 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_heads(dtype: torch.dtype) -> None:
    head, same = (RTBMHead(3, 2, 2, dtype=dtype, generator=torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(head.linear.weight, same.linear.weight)
    features = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    batch = head(features)
    assert batch.dtype == dtype
    value = torch.zeros(4, 2, dtype=dtype)
    assert batch.log_prob(value).dtype == dtype
    batch.log_prob(value).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in head.parameters())
    if dtype == D:
        assert torch.autograd.gradcheck(
            lambda x, v: head(x).log_prob(v), (features.to(D).requires_grad_(), value.requires_grad_())
        )


def test_a_head_learns_noise_that_depends_on_the_features_better_than_a_normal_head() -> None:
    generator = torch.Generator().manual_seed(0)
    x = 2 * torch.rand(600, 1, dtype=D, generator=generator) - 1
    side = (torch.rand(600, 1, dtype=D, generator=generator) < 0.5).to(D) * 2 - 1
    y = x.sin() + side * (1 + x) * 0.6 + (0.1 + 0.15 * x.abs()) * torch.randn(600, 1, dtype=D, generator=generator)
    features = torch.cat([x, x**2, x**3], 1)
    train, test = slice(0, 400), slice(400, 600)

    def fit(head: torch.nn.Module, log_prob) -> float:
        optimizer = torch.optim.Adam(head.parameters(), lr=0.03)
        for _ in range(80):
            optimizer.zero_grad()
            loss = -log_prob(head(features[train]), y[train]).mean()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            return float(log_prob(head(features[test]), y[test]).mean())

    torch.manual_seed(0)
    normal = fit(
        torch.nn.Linear(3, 2, dtype=D),
        lambda out, v: torch.distributions.Normal(out[:, :1], out[:, 1:].exp()).log_prob(v)[:, 0],
    )
    machine = fit(RTBMHead(3, 1, 1, generator=generator), lambda batch, v: batch.log_prob(v))
    assert machine > normal + 0.1


def test_bad_batches() -> None:
    free = unpack(vectors(3, 1, 2, "dense"), 1, 2)
    with pytest.raises(InvalidInputError, match=r"for one machine use RTBMDistribution\.from_free"):
        RTBMBatch(unpack(vectors(3, 1, 2, "dense")[0], 1, 2))
    with pytest.raises(InvalidInputError, match=r"free must be an rtbm.parameters.Free, got a Tensor"):
        RTBMBatch(vectors(3, 1, 2, "dense"))  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match=r"free.visible_centre must have shape \(3, 1\)"):
        RTBMBatch(free._replace(visible_centre=torch.zeros(3, 2, dtype=D)))
    with pytest.raises(InvalidInputError, match=r"free.weights must be finite"):
        RTBMBatch(free._replace(weights=free.weights * math.nan))
    with pytest.raises(InvalidInputError, match="Cholesky factors of these free parameters"):
        RTBMBatch(free._replace(visible_scale=free.visible_scale + 1000))
    with pytest.raises(InvalidInputError, match="value must broadcast to the batch"):
        RTBMBatch(free).log_prob(torch.zeros(2, 1))
    with pytest.raises(InvalidInputError, match=r"features must be a tensor of shape \(rows, …, 3\), got \(4, 2\)"):
        RTBMHead(3, 1, 1)(torch.zeros(4, 2))
    wide = RTBMBatch(free._replace(hidden_scale=torch.tensor([[-9.0, 0.0, -9.0]], dtype=D).expand(3, -1)))
    assert bool(wide.log_prob(torch.zeros(3, 1, dtype=D)).isfinite().all())
    with pytest.raises(TooManyTermsError, match=r"take the machine of one row, batch\[i\]"):
        wide.sample()


def exact_second_moment(distribution) -> torch.Tensor:
    return (distribution.covariance_matrix.diagonal() + distribution.mean**2).sum()


def machine_of(parameters: torch.Tensor, n_visible: int = 2, coupling: str = "dense") -> RTBMDistribution:
    return RTBMDistribution.from_free(unpack(parameters, n_visible, 1, coupling))


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_gradients_of_draws_estimate_gradients_of_expectations(coupling: str) -> None:
    parameters = vectors(1, 2, 1, coupling)[0].requires_grad_()
    draws = machine_of(parameters, 2, coupling).rsample((20_000,), torch.Generator().manual_seed(0))
    assert torch.equal(draws, machine_of(parameters, 2, coupling).sample((20_000,), torch.Generator().manual_seed(0)))
    estimates = []
    for part in (draws**2).sum(1).reshape(20, 1000).mean(1):
        (gradient,) = torch.autograd.grad(part, parameters, retain_graph=True)
        estimates.append(gradient)
    (exact,) = torch.autograd.grad(exact_second_moment(machine_of(parameters, 2, coupling)), parameters)
    error = torch.stack(estimates).std(0) / math.sqrt(20)
    assert bool(((torch.stack(estimates).mean(0) - exact).abs() < 5 * error + WORSE).all())
    assert float(exact.abs().max()) > 10 * float(error.max())


def test_gradients_of_draws_follow_the_quantiles_in_one_dimension() -> None:
    parameters = vectors(1, 1, 2, "dense")[0].requires_grad_()
    machine = RTBMDistribution.from_free(unpack(parameters, 1, 2))
    draws = machine.rsample((5,), torch.Generator().manual_seed(0))
    levels = machine.cdf(draws.detach()).detach()
    quantiles = machine.icdf(levels)
    for draw, quantile in zip(draws[:, 0], quantiles[:, 0], strict=True):
        first, second = (torch.autograd.grad(x, parameters, create_graph=True)[0] for x in (draw, quantile))
        assert torch.allclose(first, second, rtol=WORSE, atol=WORSE)
        curves = [torch.autograd.grad(x.sum(), parameters, retain_graph=True)[0] for x in (first, second)]
        assert torch.allclose(*curves, rtol=1e-6, atol=1e-6)


def test_draws_keep_their_conditional_probabilities() -> None:
    parameters = vectors(1, 2, 1, "dense")[0]
    direction = vectors(2, 2, 1, "dense")[1]
    step = 1e-5
    draws = machine_of(parameters).sample((6,), torch.Generator().manual_seed(0))
    time = torch.zeros((), dtype=D, requires_grad=True)
    moved = machine_of(parameters + time * direction).rsample((6,), torch.Generator().manual_seed(0))
    slope = torch.stack([torch.autograd.grad(x, time, retain_graph=True)[0] for x in moved.reshape(-1)]).reshape(6, 2)

    def probabilities(t: float) -> torch.Tensor:
        machine, v = machine_of(parameters + t * direction), draws + t * slope
        second = machine.conditional({0: v[:, 0]}).cdf(v[:, 1:])
        return torch.stack([machine.marginal(0).cdf(v[:, :1]), second], 1)

    change = (probabilities(step) - probabilities(-step)) / (2 * step)
    assert float(change.abs().max()) < 1e-8


def test_draws_of_mixtures_maps_and_batches_have_derivatives() -> None:
    logits = torch.tensor([0.4, -0.3], dtype=D, requires_grad=True)
    parts = [machine_of(x, 1) for x in vectors(2, 1, 1, "dense")]
    mixture = RTBMMixture.from_logits(logits, parts)
    draws = mixture.rsample((4000,), torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(draws.mean(), logits, retain_graph=True)
    (exact,) = torch.autograd.grad(mixture.mean.sum(), logits)
    assert torch.allclose(gradient, exact, rtol=0.2)
    mapped = MappedDistribution(mixture, [Interval(0.0, math.inf)])
    assert mapped.rsample((3,)).requires_grad
    rows = vectors(3, 2, 1, "dense").requires_grad_()
    batch = RTBMBatch(unpack(rows, 2, 1))
    drawn = batch.rsample((2000,), torch.Generator().manual_seed(0))
    assert drawn.shape == (2000, 3, 2)
    (gradient,) = torch.autograd.grad(drawn.mean(0).sum(), rows, retain_graph=True)
    (exact,) = torch.autograd.grad(batch.mean.sum(), rows)
    assert torch.allclose(gradient, exact, atol=0.15 * float(exact.abs().max()))
    with torch.no_grad():
        assert not mixture.rsample((3,)).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_was_computed_without_gradients_does_not_hide_them(mode: type) -> None:
    x = vectors(1, 2, 1, "dense")[0].requires_grad_()
    rows, v = vectors(3, 2, 1, "dense").requires_grad_(), torch.ones(3, 2, dtype=D)

    def conditional() -> ConditionalDistribution:
        return RTBMDistribution.from_free(unpack(x, 2, 1)).conditional({0: torch.linspace(-1, 1, 3, dtype=D)})

    for make, ask, over in (
        (conditional, lambda d: d.mean, x),
        (lambda: RTBMBatch(unpack(rows, 2, 1)), lambda d: d.log_prob(v), rows),
    ):
        (expected,) = torch.autograd.grad(ask(make()).sum(), over)
        seen = make()
        with mode():
            ask(seen)
        (found,) = torch.autograd.grad(ask(seen).sum(), over)
        assert torch.allclose(found, expected, rtol=WORSE, atol=WORSE)
    machine = RTBM(2, 2, coupling="diagonal")()
    with mode():
        for part in (machine.conditional({0: 0.3}), machine.affine(torch.eye(2, dtype=D))):
            assert part.mean.isfinite().all()
    (exact,) = torch.autograd.grad(conditional().mean.sum(), x)
    draws = conditional().rsample((20_000,), torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(draws.mean(0).sum(), x)
    assert torch.allclose(gradient, exact, atol=0.05 * float(exact.abs().max()))


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_batches_of_no_rows(coupling: str) -> None:
    head = RTBMHead(3, 1, 2, coupling=coupling)
    batch = head(torch.zeros(0, 3))
    assert batch.log_prob(torch.zeros(0, 1)).shape == (0,)
    assert batch.rsample((2,)).shape == (2, 0, 1)
    batch.log_prob(torch.zeros(0, 1)).sum().backward()
    layer = ThetaLayer(3, 2, coupling=coupling)
    layer(torch.zeros(0, 3)).sum().backward()


def test_draws_with_too_many_states_say_so() -> None:
    with pytest.raises(NotImplementedError, match=r"icdf\(torch.rand\(n\)\)"):
        diagonal(1, 40).rsample((3,))
    assert dense(1, 1).rsample((3,)).shape == (3, 1)
    assert Free._fields[-1] == "coupling"
