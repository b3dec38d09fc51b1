"""The modules: distributions out, gradients in, and nothing an optimiser can break."""

import copy

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from families import PHASES
from machines import D, dense, diagonal
from rtbm import InvalidInputError, RTBMDistribution, nn
from rtbm.parameters import count, pack
from tolerances import LOG_PROB, SAME

KINDS = ("dense", "diagonal")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("coupling", KINDS)
def test_a_module_gives_a_distribution(coupling: str, phase: str) -> None:
    module = nn.RTBM(2, 3, coupling=coupling, phase=phase, generator=torch.Generator().manual_seed(0))
    machine = module()
    assert isinstance(machine, RTBMDistribution)
    assert (machine.coupling, machine.phase, machine.n_visible, machine.n_hidden) == (coupling, phase, 2, 3)
    machine.log_prob(torch.zeros(5, 2, dtype=D)).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in module.parameters())
    vector = parameters_to_vector(module.parameters())
    assert torch.equal(vector, pack(module.free))
    assert len(vector) == module.n_parameters == count(2, 3, coupling)


@pytest.mark.parametrize("coupling", KINDS)
def test_initial_values_are_repeatable_and_of_the_size_of_standard_data(coupling: str) -> None:
    first, second, other = (
        nn.RTBM(2, 4, coupling=coupling, generator=torch.Generator().manual_seed(s)) for s in (0, 0, 1)
    )
    assert torch.equal(pack(first.free), pack(second.free))
    assert not torch.equal(pack(first.free), pack(other.free))
    variances = torch.stack([nn.RTBM(1, 3, coupling=coupling)().variance.detach() for _ in range(20)])
    assert 0.2 < float(variances.mean()) < 5


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("coupling", KINDS)
def test_there_and_back(coupling: str, phase: str) -> None:
    machine = (dense if coupling == "dense" else diagonal)(2, 2, 1, phase)
    module = nn.RTBM.from_distribution(machine)
    v = machine.sample((20,), torch.Generator().manual_seed(0))
    assert torch.allclose(module().log_prob(v), machine.log_prob(v), rtol=0, atol=LOG_PROB)
    assert torch.allclose(module().hidden_mean(v), machine.hidden_mean(v), atol=LOG_PROB)


@pytest.mark.parametrize("coupling", KINDS)
def test_state_dict_copy_and_dtype(coupling: str) -> None:
    module = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(0))
    other = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(1))
    other.load_state_dict(module.state_dict())
    v = torch.linspace(-1, 1, 7, dtype=D)[:, None]
    assert torch.equal(other().log_prob(v), module().log_prob(v))
    assert torch.equal(copy.deepcopy(module)().log_prob(v), module().log_prob(v))
    single = copy.deepcopy(module).float()
    assert single().log_prob(v.float()).dtype == torch.float32
    assert torch.allclose(single().log_prob(v), module().log_prob(v), atol=1e-4)


@pytest.mark.parametrize("coupling", KINDS)
def test_a_distribution_does_not_change_when_its_module_learns(coupling: str) -> None:
    module = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(0))
    v = torch.linspace(-1, 1, 7, dtype=D)[:, None]
    machine = module()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3)
    fresh = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(0))()
    assert torch.equal(machine.log_prob(v), fresh.log_prob(v))
    assert not torch.equal(module().log_prob(v), machine.log_prob(v))


@pytest.mark.parametrize("coupling", KINDS)
def test_training_raises_the_likelihood_and_stays_normalised(coupling: str) -> None:
    generator = torch.Generator().manual_seed(0)
    noise = 0.3 * torch.randn(600, 1, generator=generator, dtype=D)
    data = noise + torch.tensor([-1.0, 1.0], dtype=D).repeat(300)[:, None]
    module = nn.RTBM(1, 2 if coupling == "dense" else 6, coupling=coupling, generator=generator)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = -module().log_prob(data).mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    gaussian = 0.5 * float(torch.log(2 * torch.pi * data.var())) + 0.5
    assert losses[-1] < min(losses[0], gaussian) - 0.1
    grid = torch.linspace(-12, 12, 24001, dtype=D)[:, None]
    with torch.no_grad():
        assert abs(float(module().log_prob(grid).exp().sum()) * 1e-3 - 1) <= 1e-9


def test_mixtures() -> None:
    module = nn.MixtureOfRTBMs(3, 1, 2, phase="II", generator=torch.Generator().manual_seed(0))
    mixture = module()
    assert torch.allclose(mixture.weights, torch.full((3,), 1 / 3, dtype=D))
    v = torch.linspace(-2, 2, 9, dtype=D)[:, None]
    mixture.log_prob(v).sum().backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())
    assert sum(p.numel() for p in module.parameters()) == 3 * (count(1, 2) + 1)
    again = nn.MixtureOfRTBMs.from_distribution(mixture)()
    assert torch.allclose(again.log_prob(v), mixture.log_prob(v), atol=SAME)
    assert len({float(c.mean.detach()) for c in mixture.components}) == 3


def test_bad_arguments() -> None:
    with pytest.raises(InvalidInputError, match="n_hidden must be an integer of at least 1, got 0"):
        nn.RTBM(1, 0)
    with pytest.raises(InvalidInputError, match="coupling must be one of 'dense', 'diagonal', got 'full'"):
        nn.RTBM(1, 1, coupling="full")
    with pytest.raises(InvalidInputError, match="phase must be one of 'I', 'II', got 'III'"):
        nn.RTBM(1, 1, phase="III")
    with pytest.raises(InvalidInputError, match=r"dtype must be torch\.float32 or torch\.float64, got torch\.float16"):
        nn.RTBM(1, 1, dtype=torch.float16)
    module = nn.RTBM(1, 1)
    with torch.no_grad():
        module.visible_scale.fill_(float("nan"))
    with pytest.raises(InvalidInputError, match="must be finite"):
        module()


@pytest.mark.parametrize("coupling", KINDS)
def test_without_gradients_there_is_no_graph(coupling: str) -> None:
    module = nn.RTBM(1, 2, coupling=coupling)
    with torch.no_grad():
        machine = module()
    v = torch.zeros(3, 1, dtype=D)
    assert not any(x.requires_grad for x in (machine.log_prob(v), machine.mean, machine.cdf(v), machine.natural.W))
    copied = RTBMDistribution.from_natural(module().natural)
    assert copied.log_prob(v).requires_grad
    with torch.no_grad():
        assert not RTBMDistribution.from_natural(module().natural).mean.requires_grad
