"""Exact expectation maximisation for dense machines: P(h|v) is a finite sum, so the expectations have no error."""

from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.errors import InvalidInputError, TooManyTermsError
from rtbm.parameters import Lattice, pack, symmetric, unconstrain
from rtbm.training.family import FAILURES, TOLERANCE
from rtbm.training.objective import RIGIDITY, STIFFNESS, Objective, Prior
from rtbm.training.result import CONVERGED, EARLY_STOPPING, MAX_ITER, STALLED, Result, Watch
from rtbm.training.tables import StateMixture, Statistics

NEWTON_STEPS = 3
SMALLEST_COMPONENT = 1e-3
"""A machine of a mixture that explains fewer points than this is left alone."""
_DAMPING = 1e-9
_STEPS = 0.5 ** torch.arange(12, dtype=torch.float64)


class Expectations(NamedTuple):
    """What the data say about the hidden states of one machine, as sums over points."""

    states: Tensor  # (S, Nh)
    counts: Tensor  # (S,): how often each state occurred
    sums: Tensor  # (S, Nv): Σ v where it occurred
    squares: Tensor  # (Nv, Nv): Σ v vᵀ


def em(objective: Objective, start: Tensor, watch: Watch, *, max_iter: int, tol: float) -> Result:
    """Minimise by expectation maximisation: the objective never rises, and there is no step size to choose.

    E-step: P(h|v) for every state of a table and every point. M-step: F, mean and Σ by weighted regression of v on h
    (with the prior of Σ), the weights of a mixture by counting, and A and a by Newton's method on a convex function.
    """
    if objective.family.hidden != "dense":
        raise InvalidInputError('solver="em" needs hidden="dense": the states of a diagonal machine are not few')
    if bool(objective.x.isnan().any()):
        raise InvalidInputError('solver="em" takes no NaN entries: use solver="lbfgs" or "adam"')
    vector, value, reason = start, objective.value(start), MAX_ITER
    watch(vector, value)
    _check_tables(objective, start)
    for _ in range(max_iter):
        try:
            updated = _step(objective, vector)
        except FAILURES:  # hidden units too soft for a table, or a covariance of zero
            reason = STALLED
            break
        previous, value = value, objective.value(updated)
        if value > previous + TOLERANCE:
            reason = STALLED
            break
        vector = updated
        if watch(vector, value):
            reason = EARLY_STOPPING
            break
        if previous - value < tol * max(1.0, abs(value)):
            reason = CONVERGED
            break
    return watch.result(vector, reason, objective.evaluations, "em")


def _check_tables(objective: Objective, start: Tensor) -> None:
    try:
        objective.family.tabulate(start, objective.x)
    except TooManyTermsError as error:
        raise InvalidInputError(
            f'solver="em" sums over tables of hidden states, which would need about {error.terms} states here, more '
            f'than {error.limit}: use fewer hidden units, or solver="lbfgs"'
        ) from None


def _step(objective: Objective, vector: Tensor) -> Tensor:
    """One E-step and one M-step."""
    family, x = objective.family, objective.x
    machines, logits = family.split(vector)
    _, _, mixtures = family.tabulate(vector, x)
    evaluated = [mixture.evaluate(x) for mixture in mixtures]
    log_joint = torch.stack([log_prob for log_prob, _ in evaluated], 1) + logits.log_softmax(0)
    shares = log_joint.softmax(1) * (objective.weights * objective.total)[:, None]
    updated = []
    for k, (mixture, (_, posterior)) in enumerate(zip(mixtures, evaluated, strict=True)):
        if float(shares[:, k].sum()) < SMALLEST_COMPONENT:  # too few points to say anything: it stays as it is
            updated.append(machines[k])
            continue
        expectations = _expectations(mixture, mixture.statistics(x, shares[:, k], posterior))
        updated.append(_maximise(expectations, mixture, objective.prior))
    return family.join(updated, shares.sum(0).clamp(min=1e-300).log())


def _expectations(mixture: StateMixture, statistics: Statistics) -> Expectations:
    """The statistics in the coordinates of the data."""
    L = mixture.machine.L
    return Expectations(mixture.states, statistics.counts, statistics.sums @ L.mT, L @ statistics.squares @ L.mT)


def _maximise(data: Expectations, mixture: StateMixture, prior: Prior) -> Tensor:
    """The machine that fits the expectations best, as a vector."""
    F, mean, covariance = _regression(data, prior)
    A, centre = mixture.machine.L_A @ mixture.machine.L_A.mT, mixture.machine.centre
    A, a = _fit_prior(data, A, -A @ centre)
    return pack(unconstrain(Lattice(A, a, F, mean, covariance)))


def _regression(data: Expectations, prior: Prior) -> tuple[Tensor, Tensor, Tensor]:
    """F, mean and covariance of v given h: weighted least squares, and the prior's share in the covariance."""
    design = torch.cat([data.states, torch.ones_like(data.states[:, :1])], 1)
    gram, cross = design.mT @ (data.counts[:, None] * design), data.sums.mT @ design
    coefficients = cross @ torch.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    residual = data.squares - coefficients @ cross.mT - cross @ coefficients.mT + coefficients @ gram @ coefficients.mT
    floor = torch.diag(2 * prior.strength * prior.widths.square())
    covariance = (symmetric(residual) + floor) / data.counts.sum()
    return coefficients[:, :-1], coefficients[:, -1], covariance


def _fit_prior(data: Expectations, A: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """Improve A and a for P(h) ∝ exp(−½hᵀAh − aᵀh) given the counts, by damped Newton steps.

    The log-likelihood is concave in (A, a), an exponential family with statistics h and hhᵀ, and so is the prior on A.
    """
    problem = _HiddenProblem(data)
    natural = problem.pack(A, a)
    for _ in range(NEWTON_STEPS):
        gradient, hessian = problem.derivatives(natural)
        hessian.diagonal().add_(_DAMPING * float(hessian.diagonal().max()) + 1e-12)
        natural = problem.search(natural, torch.linalg.solve(hessian, gradient))
    return problem.unpack(natural)


class _HiddenProblem:
    """The concave function of (A, a) of an M-step. States are taken relative to their mean, for better conditioning."""

    def __init__(self, data: Expectations):
        self.counts, g = data.counts, data.states.shape[1]
        self.row, self.column = torch.tril_indices(g, g, device=data.counts.device)
        self.centre = (data.counts @ data.states) / data.counts.sum()
        states = data.states - self.centre
        half = torch.where(self.row == self.column, 0.5, 1.0)  # in ½hᵀAh an off-diagonal entry occurs twice
        self.statistics = torch.cat([-states[:, self.row] * states[:, self.column] * half, -states], 1)
        self.directions = states.new_zeros(len(self.row), g, g)  # the matrices that the entries of A multiply
        index = torch.arange(len(self.row), device=states.device)
        self.directions[index, self.row, self.column] = 1.0
        self.directions[index, self.column, self.row] = 1.0

    def pack(self, A: Tensor, a: Tensor) -> Tensor:
        return torch.cat([A[self.row, self.column], a + A @ self.centre])

    def unpack(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        A = self.matrix(natural)
        return A, natural[len(self.row) :] - A @ self.centre

    def matrix(self, natural: Tensor) -> Tensor:
        return torch.tensordot(natural[: len(self.row)], self.directions, 1)

    def value(self, natural: Tensor) -> float:
        A = self.matrix(natural)
        prior = RIGIDITY * (A.trace() - STIFFNESS * torch.logdet(A))
        return float(self.counts @ (self.statistics @ natural).log_softmax(0) - prior)

    def derivatives(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient, and the negative of the matrix of second derivatives."""
        probabilities = (self.statistics @ natural).softmax(0)
        centred = self.statistics - probabilities @ self.statistics
        gradient = self.counts @ centred
        hessian = self.counts.sum() * centred.mT @ (probabilities[:, None] * centred)
        inverse, n = torch.linalg.inv(self.matrix(natural)), len(self.row)
        scaled = inverse @ self.directions
        traces = scaled.diagonal(dim1=1, dim2=2).sum(1)
        gradient[:n] += RIGIDITY * (STIFFNESS * traces - self.directions.diagonal(dim1=1, dim2=2).sum(1))
        hessian[:n, :n] += RIGIDITY * STIFFNESS * torch.einsum("iab,jba->ij", scaled, scaled)
        return gradient, hessian

    def search(self, natural: Tensor, step: Tensor) -> Tensor:
        """The first of the steps 1, ½, ¼, … that improves, and changes A no more than its table allows."""
        present, old = self.value(natural), self.matrix(natural)
        for size in _STEPS.tolist():
            candidate = natural + size * step
            if (
                float(torch.linalg.eigvalsh(self.matrix(candidate) - 0.5 * old)[0]) > 0
                and self.value(candidate) >= present
            ):
                return candidate
        return natural
