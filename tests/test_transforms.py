"""log_prob under torch.func and torch.compile."""

from collections.abc import Callable

import pytest
import torch

from machines import D, dense, diagonal
from rtbm import InvalidInputError, RTBMDistribution, RTBMMixture, nn
from tolerances import LOG_PROB, WORSE

MACHINES = [
    pytest.param(dense(2, 2), id="dense"),
    pytest.param(dense(1, 2, phase="II"), id="phase II"),
    pytest.param(diagonal(2, 2), id="diagonal"),
]


def points(machine: RTBMDistribution) -> torch.Tensor:
    return machine.sample((4,), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("machine", MACHINES)
def test_torch_func_follows_the_density_of_a_machine(machine: RTBMDistribution) -> None:
    v = points(machine)
    score = machine.score_function(v)
    by_rows = torch.func.vmap(machine.log_prob)(v)
    assert torch.allclose(by_rows, machine.log_prob(v), rtol=0, atol=LOG_PROB)
    for one_gradient in (torch.func.grad, torch.func.jacrev, torch.func.jacfwd):
        found = torch.func.vmap(one_gradient(machine.log_prob))(v)
        assert torch.allclose(found, score, rtol=WORSE, atol=WORSE)
    tangent = torch.ones_like(v)
    value, slope = torch.func.jvp(machine.log_prob, (v,), (tangent,))
    assert torch.allclose(value, machine.log_prob(v), rtol=0, atol=LOG_PROB)
    assert torch.allclose(slope, (score * tangent).sum(1), rtol=WORSE, atol=WORSE)
    x = v[:1].clone().requires_grad_()
    (first,) = torch.autograd.grad(machine.log_prob(x).sum(), x, create_graph=True)
    rows = [torch.autograd.grad(part, x, retain_graph=True)[0][0] for part in first[0]]
    assert torch.allclose(torch.func.hessian(machine.log_prob)(v[0]), torch.stack(rows), rtol=WORSE, atol=WORSE)


@pytest.mark.parametrize("coupling", ["dense", "diagonal"])
def test_torch_func_follows_the_parameters_of_a_module(coupling: str) -> None:
    module = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(0))
    v = torch.linspace(-1, 1, 3, dtype=D)[:, None]

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(module, parameters, ()).log_prob(v).mean()

    found = torch.func.grad(loss)({name: p.detach() for name, p in module.named_parameters()})
    module().log_prob(v).mean().backward()
    for name, parameter in module.named_parameters():
        assert torch.allclose(found[name], parameter.grad, rtol=WORSE, atol=WORSE)


@pytest.mark.parametrize("machine", MACHINES)
def test_compiled_densities_have_no_graph_breaks(machine: RTBMDistribution) -> None:
    v = points(machine).requires_grad_()
    torch.compiler.reset()
    compiled: Callable[[torch.Tensor], torch.Tensor] = torch.compile(
        machine.log_prob, backend="aot_eager", fullgraph=True
    )
    found = compiled(v)
    assert torch.allclose(found, machine.log_prob(v), rtol=0, atol=LOG_PROB)
    (gradient,) = torch.autograd.grad(found.sum(), v)
    assert torch.allclose(gradient, machine.score_function(v.detach()), rtol=WORSE, atol=WORSE)
    assert compiled(v.detach().float()).dtype == D  # the parameters' dtype is wider


@pytest.mark.parametrize("coupling", ["dense", "diagonal"])
def test_a_compiled_loss_learns_the_parameters_of_a_module(coupling: str) -> None:
    module = nn.RTBM(1, 2, coupling=coupling, generator=torch.Generator().manual_seed(0))
    v = torch.linspace(-1, 1, 5, dtype=D)[:, None]
    torch.compiler.reset()
    compiled = torch.compile(lambda x: -module().log_prob(x).mean(), backend="aot_eager", fullgraph=True)
    compiled(v).backward()
    gradients = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    (-module().log_prob(v).mean()).backward()
    for found, parameter in zip(gradients, module.parameters(), strict=True):
        assert torch.allclose(found, parameter.grad, rtol=WORSE, atol=WORSE)
    with torch.no_grad():
        module.visible_scale.fill_(float("nan"))
    with pytest.raises((InvalidInputError, torch.linalg.LinAlgError), match=r"must be finite|not positive-definite"):
        compiled(v)


@pytest.mark.parametrize("machine", MACHINES)
def test_operators_return_what_the_compiler_expects(machine: RTBMDistribution) -> None:
    parameters = [part.clone() for part in machine._evaluator.parameters]  # strides, dtypes and memory are checked
    settings = (machine._evaluator.coupling, machine._evaluator.tolerance)
    v = points(machine)
    for rows in (v, v.T.contiguous().T, v.reshape(2, 2, -1).transpose(0, 1)):
        checks = ("test_schema", "test_autograd_registration", "test_faketensor")
        grad = torch.ones(rows.shape[:-1], dtype=D)
        torch.library.opcheck(torch.ops.rtbm.log_prob.default, (rows, parameters, *settings), test_utils=checks)
        torch.library.opcheck(
            torch.ops.rtbm.log_prob_gradients.default, (grad, rows, parameters, *settings), test_utils=checks
        )


def test_what_is_not_followed_says_so() -> None:
    machine = dense(1, 1)
    mixture = RTBMMixture([0.5, 0.5], [machine, machine])
    with pytest.raises(NotImplementedError, match="follow log_prob of one machine"):
        torch.func.vmap(mixture.log_prob)(torch.zeros(2, 1, dtype=D))
    with pytest.raises(InvalidInputError, match=r"value must be a tensor of shape \(\.\.\., 1\) here"):
        torch.func.vmap(machine.log_prob)(torch.zeros(2, 3, dtype=D))
