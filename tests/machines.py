"""Machines to draw from, and their densities straight from the definition, in 40 digits."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from families import Floats, matrices
from rtbm import MappedDistribution, RTBMDistribution, RTBMMixture
from rtbm.distributions import Interval
from rtbm.parameters import Lattice
from rtbm.theta.lattice import cholesky, enumerate_points
from rtbm.training import Family
from tolerances import LOG_PROB, ROUNDINGS

mpmath = pytest.importorskip("mpmath")

D = torch.float64


def tensor(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=D)


def bounded(base: Any, low: Sequence[float], high: Sequence[float]) -> MappedDistribution:
    """The distribution of columns with bounds, whose logarithms or logits have the density `base`."""
    return MappedDistribution(base, [Interval(*ends) for ends in zip(low, high, strict=True)])


def rng_of(draw: st.DrawFn) -> np.random.Generator:
    return np.random.default_rng(draw(st.integers(0, 2**32 - 1)))


@st.composite
def lattices(
    draw: st.DrawFn, n_visible: int, n_hidden: int, smallest: float = -1.5, finest: float = -2.0
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """(A, a, F, mean, covariance): stiff and soft, fine and coarse, centred on and between lattice points."""
    rng = rng_of(draw)
    A = draw(matrices(n_hidden, smallest, 2.0, 3.0))
    centre = rng.normal(size=n_hidden) if draw(st.booleans()) else rng.integers(-2, 3, n_hidden) + 0.5
    F = rng.normal(size=(n_visible, n_hidden)) * 10.0 ** draw(st.floats(-1.0, 0.7))
    covariance = draw(matrices(n_visible, finest, 1.0, 2.0))
    return A, -A @ centre, F, rng.normal(size=n_visible), covariance


@st.composite
def waves(
    draw: st.DrawFn, n_visible: int, n_hidden: int, diagonal: bool = False
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """(T, W, Q, b_v, b_h) of phase II."""
    rng = rng_of(draw)
    T = draw(matrices(n_visible, -1.0, 1.0, 2.0))
    Q = 10.0 ** rng.uniform(-0.5, 1.5, n_hidden) if diagonal else draw(matrices(n_hidden, -0.5, 1.5, 2.0))
    W = rng.normal(size=(n_visible, n_hidden)) * 10.0 ** draw(st.floats(-1.0, 0.5))
    return T, W, Q, rng.normal(size=n_visible), rng.normal(size=n_hidden) * 3


def dense(n_visible: int, n_hidden: int, seed: int = 0, phase: str = "I") -> RTBMDistribution:
    """A machine with structure: several peaks, correlations, no symmetry."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_hidden, n_hidden))
    Y = rng.normal(size=(n_visible, n_visible))
    A = X @ X.T / n_hidden + np.eye(n_hidden)
    F, noise = rng.normal(size=(n_visible, n_hidden)) * 2, 0.2 * Y @ Y.T / n_visible + 0.3 * np.eye(n_visible)
    return RTBMDistribution.from_lattice(
        A, rng.normal(size=n_hidden), F, rng.normal(size=n_visible), noise, phase=phase
    )


def diagonal(n_visible: int, n_hidden: int, seed: int = 0, phase: str = "II") -> RTBMDistribution:
    rng = np.random.default_rng(seed)
    machine = RTBMDistribution(
        np.eye(n_visible) + 0.3,
        rng.normal(size=(n_visible, n_hidden)) * 1.5,
        rng.uniform(2, 12, n_hidden),
        rng.normal(size=n_visible),
        rng.normal(size=n_hidden),
        phase="II",
    )
    return machine.to_phase(phase)


def exact_log_prob(lattice: Lattice, v: Floats) -> list[float]:
    """log Σ_h P(h) N(v; mean + Fh, covariance) for rows v (n, Nv), by brute force in 40 digits."""
    A, a, F, mean, covariance = (np.asarray(part.detach()) for part in lattice)
    T = np.linalg.inv(covariance)
    posterior = A + F.T @ T @ F
    with mpmath.workdps(40):
        A_exact, a_exact, F_exact, mean_exact, exact = (
            mpmath.matrix(part.tolist()) for part in (A, a, F, mean, covariance)
        )
        precision, log_volume = mpmath.inverse(exact), mpmath.log(mpmath.det(2 * mpmath.pi * exact)) / 2

        def energy(h: mpmath.matrix) -> mpmath.mpf:
            return (h.T * A_exact * h)[0] / 2 + (a_exact.T * h)[0]

        def joint_energy(h: mpmath.matrix, difference: mpmath.matrix) -> mpmath.mpf:
            rest = difference - F_exact * h
            return energy(h) + (rest.T * precision * rest)[0] / 2

        prior = _sum(A, -np.linalg.solve(A, a), energy)
        results = []
        for row in v:
            centre = np.linalg.solve(posterior, F.T @ T @ (row - mean) - a)
            difference = mpmath.matrix(row.tolist()) - mean_exact
            joint = _sum(posterior, centre, partial(joint_energy, difference=difference))
            results.append(float(joint - prior - log_volume))
    return results


def _sum(form: Floats, centre: Floats, energy) -> mpmath.mpf:
    R = cholesky((form + form.T) / 2)
    points = enumerate_points(R, 120.0, 0.5 * np.sqrt(np.diag(form)), centre, limit=2000)  # 100 µs each, in 40 digits
    energies = [energy(mpmath.matrix(h.tolist())) for h in points]
    lowest = min(energies)
    return mpmath.log(mpmath.fsum(mpmath.exp(lowest - e) for e in energies)) - lowest


def exact_likelihood(
    family: Family, vector: torch.Tensor, x: torch.Tensor, weights: torch.Tensor
) -> tuple[float, Floats, torch.Tensor]:
    """Σ weights·log P by theta functions, its gradient by autograd, and log P (n,) itself."""
    free = vector.clone().requires_grad_()
    log_prob = family.distribution(free).log_prob(x)
    value = weights @ log_prob
    (gradient,) = torch.autograd.grad(value, free)
    return float(value.detach()), gradient.numpy(), log_prob.detach()


def rounding_bound(terms: Callable[..., Sequence[torch.Tensor]], parameters: Iterable[Any]) -> torch.Tensor:
    """How far a sum of terms(*parameters), each (n,), may be from another way to the same number.

    Rounding errors of a stable computation are like a relative error ε of each parameter as a whole. So each term
    carries ε Σ_p |p| |∂ term/∂p|, its condition number, and ε |term|; terms that cancel do not lose their errors.
    """
    leaves = [torch.as_tensor(part, dtype=D).clone().requires_grad_() for part in parameters]
    sizes = []
    for term in terms(*leaves):
        for value in term:
            gradients = torch.autograd.grad(value, leaves, retain_graph=True, materialize_grads=True)
            size = sum(float(p.detach().norm() * g.norm()) for p, g in zip(leaves, gradients, strict=True))
            sizes.append(size + abs(float(value.detach())))
    return LOG_PROB + ROUNDINGS * np.finfo(float).eps * torch.tensor(sizes, dtype=D).reshape(-1, len(term)).sum(0)


def log_prob_bound(machine: RTBMDistribution, v: Any) -> torch.Tensor:
    """How far two ways to log P(v) (n,), v (n, Nv), of a machine may be apart.

    Machines take their natural parameters to the lattice form, so both are rounded.
    """
    *natural, phase = machine.natural
    forms = (partial(RTBMDistribution, phase=phase), natural), (RTBMDistribution.from_lattice, machine.lattice)
    return sum(
        rounding_bound(lambda *given, make=make: [make(*given[:-1]).log_prob(given[-1])], (*parameters, v))
        for make, parameters in forms
    )


def integral(machine, function=None, spacing: float = 0.55) -> torch.Tensor:
    """∫ P(v) function(v) dv in one or two dimensions, on a lattice that resolves the narrowest peak."""
    if isinstance(machine, RTBMMixture):
        parts = zip(machine.weights, machine.components, strict=True)
        return sum(weight * integral(component, function, spacing) for weight, component in parts)
    lattice = [np.asarray(part.detach().double()) for part in machine.lattice]
    A, a, F, mean, covariance = lattice
    envelope = covariance + F @ np.linalg.solve(A, F.T)
    centre = mean - F @ np.linalg.solve(A, a)
    L = np.linalg.cholesky(envelope)
    half = np.linalg.solve(L, covariance)
    squares, directions = np.linalg.eigh(np.linalg.solve(L, half.T))
    reach = 9 + 0.6 * np.sqrt(np.diag(A)).max()  # P may sit at lattice points away from the Gaussian's centre
    axes = [np.arange(-reach, reach, spacing * s) for s in np.sqrt(squares)]
    x = np.stack(np.meshgrid(*axes), -1).reshape(-1, len(mean))
    v = torch.tensor(centre + x @ (L @ directions).T)
    cell = np.prod(spacing * np.sqrt(squares)) * np.linalg.det(L)
    weights = machine.log_prob(v).double().exp() * cell
    return weights.sum() if function is None else torch.tensordot(weights, function(v), 1)


def gaussian_score(X: Floats, test: Floats) -> float:
    """The mean log-likelihood of new points under the Gaussian of a sample."""
    covariance = np.atleast_2d(np.cov(X.T, bias=True))
    noise = np.linalg.solve(np.linalg.cholesky(covariance), (test - X.mean(0)).T)
    return float(-0.5 * (noise**2).sum(0).mean() - 0.5 * np.linalg.slogdet(2 * np.pi * covariance)[1])
