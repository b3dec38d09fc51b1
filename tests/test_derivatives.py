"""Derivatives by autograd, to second order of everything public, in both phases."""

import pytest
import torch
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from families import PHASES, block_of, typical
from rtbm import ThetaPlan, log_theta, theta_moments
from tolerances import MOMENTS, SAME

CASES = [(1, 1.0), (2, 1.0), (2, 8.0), (2, 30.0), (3, 4.0)]


def inputs(g: int, scale: float, n: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(g)
    z = torch.randn(n, g, dtype=torch.float64, generator=generator)
    factor = torch.linalg.cholesky(torch.tensor(typical(g, scale=scale)))
    return z.requires_grad_(), factor.requires_grad_()


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("g", "scale"), CASES)
def test_log_theta(g: int, scale: float, phase: str) -> None:
    def function(z: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return log_theta(z, factor @ factor.mT, phase=phase)

    assert gradcheck(function, inputs(g, scale))
    assert gradgradcheck(function, inputs(g, scale))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("name", ["list", "product", "numba"])
@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_every_evaluator_twice(scale: float, name: str, phase: str) -> None:
    def function(z: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        Q = factor @ factor.mT
        return block_of(ThetaPlan(Q, phase=phase)).log_theta(z, Q, name)

    assert gradcheck(function, inputs(2, scale))
    assert gradgradcheck(function, inputs(2, scale))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize(("g", "scale"), [(1, 1.0), (2, 3.0)])
def test_theta_moments(g: int, scale: float, order: int, phase: str) -> None:
    def function(z: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return theta_moments(z, factor @ factor.mT, phase=phase, order=order)[: order + 1]

    assert gradcheck(function, inputs(g, scale))
    assert gradgradcheck(function, inputs(g, scale))


@pytest.mark.parametrize("phase", PHASES)
def test_diagonal_given_as_a_vector(phase: str) -> None:
    q = torch.tensor([0.3, 2.0, 9.0, 40.0], dtype=torch.float64, requires_grad=True)
    z = (inputs(4, 1.0)[0].detach() * torch.tensor([[1.0], [3.0]])).requires_grad_()

    def function(z: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return theta_moments(z, q, phase=phase, order=3)

    assert gradcheck(function, (z, q))
    assert gradgradcheck(function, (z, q))
    assert gradcheck(lambda z, q: log_theta(z, q, phase=phase), (z, q))
    assert gradgradcheck(lambda z, q: log_theta(z, q, phase=phase), (z, q))
    assert gradcheck(lambda z: log_theta(z, q.detach(), phase=phase), (z,))
    assert gradcheck(lambda q: log_theta(z.detach(), q, phase=phase), (q,))
    for a, b in zip(function(z, q), theta_moments(z, torch.diag(q.detach()), phase=phase, order=3), strict=True):
        assert torch.allclose(a, b, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("phase", PHASES)
def test_zeros_of_a_matrix_have_derivatives_too(phase: str) -> None:
    """At a diagonal Q the derivative by Q_01 is ∓½E[n₀]E[n₁], not zero."""

    def function(z: torch.Tensor, off_diagonal: torch.Tensor) -> torch.Tensor:
        Q = torch.diag(torch.tensor([1.0, 2.0, 0.7], dtype=torch.float64)) + off_diagonal + off_diagonal.mT
        return log_theta(z, Q, phase=phase)

    z, _ = inputs(3, 1.0)
    zeros = torch.zeros(3, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(function, (z, zeros))
    assert gradgradcheck(function, (z, zeros))
    (gradient,) = torch.autograd.grad(function(z, zeros).sum(), zeros)
    assert abs(float(gradient[0, 1])) > 0.01


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize(("g", "scale"), CASES)
def test_moments_are_the_derivatives(g: int, scale: float, phase: str) -> None:
    z, factor = inputs(g, scale)
    Q = (factor @ factor.mT).detach()
    moments = theta_moments(z.detach(), Q, phase=phase, order=3)
    (mean,) = torch.autograd.grad(log_theta(z, Q, phase=phase).sum(), z, create_graph=True)
    rows = [torch.autograd.grad(mean[:, i].sum(), z, create_graph=True)[0] for i in range(g)]
    third = [[torch.autograd.grad(row[:, j].sum(), z, retain_graph=True)[0] for j in range(g)] for row in rows]
    assert torch.allclose(moments.mean, mean, rtol=SAME, atol=SAME)
    assert torch.allclose(moments.covariance, torch.stack(rows, 1), rtol=SAME, atol=SAME)
    assert torch.allclose(moments.third, torch.stack([torch.stack(t, 1) for t in third], 1), rtol=MOMENTS, atol=MOMENTS)


def test_the_gradient_in_q_is_symmetric_and_float32_stays_float32() -> None:
    Q = torch.tensor(typical(3), dtype=torch.float32, requires_grad=True)
    z = torch.randn(5, 3, requires_grad=True)
    log_theta(z, Q).sum().backward()
    assert Q.grad is not None
    assert z.grad is not None
    assert torch.equal(Q.grad, Q.grad.mT)
    assert Q.grad.dtype == z.grad.dtype == torch.float32


@pytest.mark.parametrize("q", [torch.eye(2) * 3 + 1, torch.tensor([2.0, 5.0])])
@pytest.mark.parametrize("n", [1, 3])
def test_tangents_of_forward_mode_are_not_lost(q: torch.Tensor, n: int) -> None:
    plan, z = ThetaPlan(q.double()), torch.ones(n, 2, dtype=torch.float64)
    with forward_ad.dual_level():
        assert torch.isfinite(plan.log_theta(z)).all()
        with pytest.raises(NotImplementedError, match="forward mode"):
            plan.log_theta(forward_ad.make_dual(z, torch.ones_like(z)))
