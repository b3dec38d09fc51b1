"""The paper's formulas, as printed, against autograd, integrals and the library (docs/reproduction/errata.md).

The paper's ∇ acts on z/2πi, so that (2πi)⁻¹∇ is plain ∂/∂z, and its derivatives by a matrix are those by the
independent entries of a symmetric matrix.
"""

import numpy as np
import pytest
import torch

from families import PHASES
from machines import D, dense, integral
from rtbm import ContinuousBoltzmannMachine, RTBMDistribution, datasets, theta_moments
from rtbm.nn import theta_units
from tolerances import INTEGRAL, WORSE


def entries(matrix: torch.Tensor) -> torch.Tensor:
    """Derivatives by the independent entries of a symmetric matrix, from those by all entries."""
    return matrix + matrix.mT - torch.diag(matrix.diagonal())


class Setup:
    """θ_a, θ_b and their derivatives at one v, in phase I."""

    def __init__(self, n_visible: int, n_hidden: int, diagonal_T: bool = False):
        machine = dense(n_visible, n_hidden, 3)
        if diagonal_T:
            A, a, F, mean, covariance = machine.lattice
            machine = RTBMDistribution.from_lattice(A, a, F, mean, torch.diag(covariance.diagonal()))
        self.inputs = [part.clone().requires_grad_() for part in machine.natural[:-1]]
        self.T, self.W, self.Q, self.b_v, self.b_h = (part.detach() for part in self.inputs)
        self.v = machine.sample((), generator=torch.Generator().manual_seed(1))
        self.P = RTBMDistribution(*self.inputs).log_prob(self.v).exp()
        self.gradients = torch.autograd.grad(self.P, self.inputs, retain_graph=True)
        self.T_inverse = torch.linalg.inv(self.T)
        u = self.W.mT @ self.v + self.b_h
        self.a = theta_moments(u, self.Q)
        schur = self.Q - self.W.mT @ self.T_inverse @ self.W
        self.b = theta_moments(self.b_h - self.W.mT @ self.T_inverse @ self.b_v, (schur + schur.mT) / 2)
        self.D_a, self.D_b = self.a.mean, self.b.mean
        self.H_a, self.H_b = (m.covariance + torch.outer(m.mean, m.mean) for m in (self.a, self.b))  # ∇∇θ/θ


@pytest.mark.parametrize(("n_visible", "n_hidden"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_gradients_of_the_density(n_visible: int, n_hidden: int) -> None:
    s = Setup(n_visible, n_hidden)
    P = s.P.detach()
    _, by_W, by_Q, by_b_v, by_b_h = s.gradients
    assert torch.allclose(by_b_h, P * (s.D_a - s.D_b), atol=WORSE)
    assert torch.allclose(by_b_v, P * (-s.v - s.T_inverse @ s.b_v + s.T_inverse @ s.W @ s.D_b), atol=WORSE)
    halves = torch.ones(n_hidden, n_hidden, dtype=D) - 0.5 * torch.eye(n_hidden, dtype=D)  # (1+δ)⁻¹
    assert torch.allclose(entries(by_Q), -P * halves * (s.H_a - s.H_b), atol=WORSE)
    printed = torch.outer(s.v, s.D_a) + torch.outer(s.T_inverse @ s.b_v, s.D_b)
    both = 0.5 * (s.T_inverse @ s.W @ s.H_b + (s.H_b @ s.W.mT @ s.T_inverse).mT)
    assert torch.allclose(by_W, P * (printed - both), atol=WORSE)


@pytest.mark.parametrize("n_hidden", [1, 2])
def test_gradient_by_a_diagonal_T(n_hidden: int) -> None:
    s = Setup(2, n_hidden, diagonal_T=True)
    t = s.T.diagonal()
    printed = (1 / t + s.b_v**2 / t**2 - s.v**2) / 2 - s.b_v / t**2 * (s.W @ s.D_b)
    printed = printed + 0.5 * (s.W @ s.H_b @ s.W.mT).diagonal() / t**2
    assert torch.allclose(s.gradients[0].diagonal(), s.P.detach() * printed, atol=WORSE)


def test_the_printed_hessian_factor_is_right_for_one_hidden_unit_only() -> None:
    """H_b with (1+δ)⁻¹, as printed, in ∂P/∂W: right for Nh = 1, wrong for Nh = 2."""
    for n_hidden, is_right in ((1, True), (2, False)):
        s = Setup(2, n_hidden)
        halves = torch.ones(n_hidden, n_hidden, dtype=D) - 0.5 * torch.eye(n_hidden, dtype=D)
        H = halves * s.H_b
        printed = torch.outer(s.v, s.D_a) + torch.outer(s.T_inverse @ s.b_v, s.D_b)
        printed = printed - (H @ s.W.mT @ s.T_inverse).mT - s.T_inverse @ s.W @ H
        assert torch.allclose(s.gradients[1], s.P.detach() * printed, atol=WORSE) == is_right


@pytest.mark.parametrize("of_layer", [False, True], ids=["machine", "layer"])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("n_hidden", [1, 2, 3])
def test_gradients_of_the_expectation(n_hidden: int, phase: str, of_layer: bool) -> None:
    """Appendix B.1: ∂E_i/∂b_j = κ_ji, ∂E_i/∂W_jk = κ_ki v_j, ∂E_i/∂Q_jk = ρ_jki / (1 + δ_jk).

    In phase II the rotation to the real axis changes the sign of ρ.
    """
    machine = dense(2, n_hidden, 3, phase)
    T, W, Q, b_v, b_h = (part.clone().requires_grad_() for part in machine.natural[:-1])
    v = machine.sample((), generator=torch.Generator().manual_seed(1))
    if of_layer:
        expectation = theta_units(W.mT @ v + b_h, Q, phase)
    else:
        expectation = RTBMDistribution(T, W, Q, b_v, b_h, phase=phase).hidden_mean(v)
    _, mean, covariance, third = theta_moments(W.mT @ v + b_h, Q, phase=phase, order=3)
    second = covariance + torch.outer(mean, mean)
    raw = third + torch.einsum("ij,k->ijk", covariance, mean) + torch.einsum("ik,j->ijk", covariance, mean)
    raw = raw + torch.einsum("jk,i->ijk", covariance, mean) + torch.einsum("i,j,k->ijk", mean, mean, mean)  # ∇∇∇θ/θ
    kappa = -(second - torch.outer(mean, mean))
    rho = raw - torch.einsum("jk,i->jki", second, mean)
    sign = 1.0 if phase == "I" else -1.0
    halves = torch.ones(n_hidden, n_hidden, dtype=D) - 0.5 * torch.eye(n_hidden, dtype=D)
    for i in range(n_hidden):
        by_W, by_Q, by_b_h = torch.autograd.grad(expectation[i], [W, Q, b_h], retain_graph=True)
        assert torch.allclose(by_b_h, kappa[:, i], atol=WORSE)
        assert torch.allclose(by_W, torch.outer(v, kappa[:, i]), atol=WORSE)
        assert torch.allclose(entries(by_Q), sign * halves * rho[:, :, i], atol=WORSE)


@pytest.mark.parametrize(("n_visible", "n_hidden"), [(1, 1), (1, 2), (2, 2)])
def test_moments(n_visible: int, n_hidden: int) -> None:
    """Appendix C, from θ_b alone; the second moment is printed right."""
    s = Setup(n_visible, n_hidden)
    machine = RTBMDistribution(s.T, s.W, s.Q, s.b_v, s.b_h)
    shift = s.T_inverse @ s.b_v  # which is left out in a notebook of the authors
    first = s.T_inverse @ s.W @ s.D_b - shift
    assert float(shift.abs().max()) > 0.1
    assert torch.allclose(machine.mean, first, atol=WORSE)
    assert torch.allclose(integral(machine, lambda v: v), first, atol=100 * INTEGRAL)
    X = s.T_inverse @ s.W
    second = torch.outer(first, first) + s.T_inverse + X @ (s.H_b - torch.outer(s.D_b, s.D_b)) @ X.mT
    assert torch.allclose(machine.covariance_matrix + torch.outer(machine.mean, machine.mean), second, atol=WORSE)
    assert torch.allclose(integral(machine, lambda v: torch.einsum("ni,nj->nij", v, v)), second, atol=100 * INTEGRAL)


def test_derivative_by_the_visible_bias_is_mean_minus_v() -> None:
    s = Setup(2, 2)
    machine = RTBMDistribution(s.T, s.W, s.Q, s.b_v, s.b_h)
    assert torch.allclose(s.gradients[3] / s.P.detach(), machine.mean - s.v, atol=WORSE)


def test_the_continuous_machine_of_appendix_a() -> None:
    """P(v) with the missing −B_vᵀv put back; the partition function and the covariance are printed right."""
    s = Setup(2, 2)
    machine = ContinuousBoltzmannMachine(s.T, s.W, s.Q, s.b_v, s.b_h)
    Q_inverse = torch.linalg.inv(s.Q)
    precision = s.T - s.W @ Q_inverse @ s.W.mT
    full = torch.cat([torch.cat([s.Q, s.W.mT], 1), torch.cat([s.W, s.T], 1)])
    B = torch.cat([s.b_h, s.b_v])
    assert torch.allclose(torch.det(full), torch.det(s.Q) * torch.det(precision))
    exponent = -0.5 * s.v @ precision @ s.v + s.b_h @ Q_inverse @ s.W.mT @ s.v - s.b_v @ s.v
    exponent = exponent - 0.5 * B @ torch.linalg.solve(full, B) + 0.5 * s.b_h @ Q_inverse @ s.b_h
    expected = exponent + 0.5 * torch.logdet(precision / (2 * torch.pi))
    assert torch.allclose(machine.log_prob(s.v), expected, atol=WORSE)
    log_Z = 2 * torch.log(torch.tensor(2 * torch.pi, dtype=D)) - 0.5 * torch.logdet(full)
    assert torch.allclose(machine.log_normalizer, log_Z + 0.5 * B @ torch.linalg.solve(full, B), atol=WORSE)
    u = s.W.mT @ s.v + s.b_h
    F = 0.5 * s.v @ s.T @ s.v + s.b_v @ s.v - torch.log(torch.tensor(2 * torch.pi, dtype=D))
    F = F + 0.5 * torch.logdet(s.Q) - 0.5 * u @ Q_inverse @ u
    assert torch.allclose(machine.free_energy(s.v), F, atol=WORSE)
    assert not torch.allclose(machine.log_prob(s.v), expected + s.b_v @ s.v, atol=1e-3)  # P(v) as printed
    assert not torch.allclose(machine.free_energy(s.v), F - torch.logdet(s.Q), atol=1e-3)  # F(v) as printed


def test_the_expectation_is_the_derivative_of_the_free_energy() -> None:
    """E(h|v) = ∂F/∂B_h; the paper prints the opposite sign, before its equation for E(h|v), which is right."""
    T, W, Q, b_v, b_h, _ = dense(2, 2, 3).natural
    b_h.requires_grad_()
    machine = RTBMDistribution(T, W, Q, b_v, b_h)
    v = torch.tensor([0.3, -0.8], dtype=D)
    (slope,) = torch.autograd.grad(machine.free_energy(v), b_h)
    assert torch.allclose(slope, machine.hidden_mean(v).detach(), atol=WORSE)
    assert float(slope.abs().max()) > 0.1


def test_the_gamma_density_decays() -> None:
    """β^α x^(α−1) e^(−βx)/Γ(α), with α = 7.5 and β = 1; the paper prints e^(βx), which has no integral."""
    x = np.linspace(0, 80, 80_001)[:, None]
    assert np.isclose(datasets.gamma.pdf(x).sum() * 0.001, 1, atol=1e-9)
    ratio = datasets.gamma.pdf(x[2000:3000]) / (x[2000:3000, 0] ** 6.5 * np.exp(-x[2000:3000, 0]))
    assert np.allclose(ratio, ratio[0])
