"""Score matching for diagonal machines: no normaliser is needed, so the number of visible units does not matter."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rtbm.errors import InvalidInputError
from rtbm.parameters import Natural, constrain, unpack
from rtbm.theta import ThetaPlan
from rtbm.training.family import FAILURES, Family
from rtbm.training.objective import Objective
from rtbm.training.solvers.base import Monitor, Result, Solver
from rtbm.training.solvers.lbfgs import lbfgs


def check_diagonal(family: Family, x: Tensor, solver: str) -> None:
    """Check that a family is one diagonal machine, and that nothing is missing in the data."""
    if family.coupling != "diagonal" or family.n_components > 1:
        raise InvalidInputError(
            f'solver="{solver}" is for one machine with coupling="diagonal", got coupling="{family.coupling}" and '
            f'{family.n_components} components: use solver="lbfgs" or "adam"'
        )
    if bool(x.isnan().any()):
        raise InvalidInputError(f'solver="{solver}" takes no NaN entries: use solver="lbfgs" or "adam"')


@dataclass(frozen=True)
class ScoreMatching(Solver):
    """Minimise the score-matching objective by L-BFGS."""

    max_iter: int = 500
    name: ClassVar[str] = "score_matching"
    maximises_likelihood: ClassVar[bool] = False

    def _minimise(self, objective: Objective, start: Tensor, monitor: Monitor) -> Result:
        check_diagonal(objective.family, objective.x, self.name)
        matching = ScoreMatchingObjective.like(objective)
        return lbfgs(matching, start, monitor, max_iter=self.max_iter, tol=self.tol, name=self.name)


class ScoreMatchingObjective(Objective):
    """Hyvärinen's objective: the mean of ½|∇ log P|² + Δ log P, with the same prior as the likelihood.

    For a diagonal phase II machine, with u = Wᵀv + b_h and ϑ_i(u) = θ̃(iu|q_i)::

        ∇ log P = −Tv − b_v + W ∇ log ϑ(u)        Δ log P = −tr T + Σ_i |w_i|² (log ϑ_i)''(u_i)
    """

    @classmethod
    def like(cls, objective: Objective) -> "ScoreMatchingObjective":
        """Score matching on the data of another objective."""
        return cls(objective.family, objective.source, objective.prior)

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""
        self.evaluations += 1
        free = vector.detach().requires_grad_()
        try:
            value = self.match(free)
            (gradient,) = torch.autograd.grad(value, free)
        except FAILURES:
            return math.inf, torch.zeros_like(vector)
        penalty, by_penalty = self._penalty(vector)
        gradient += torch.from_numpy(by_penalty).to(gradient)
        total = float(value.detach()) + penalty
        if not (math.isfinite(total) and bool(torch.isfinite(gradient).all())):
            return math.inf, torch.zeros_like(vector)
        return total, gradient

    def value(self, vector: Tensor) -> float:
        """The value alone."""
        return float(self.match(vector.detach()).detach()) + self._penalty(vector)[0]

    def match(self, vector: Tensor) -> Tensor:
        """The value () without the prior, differentiable in the vector."""
        natural = constrain(unpack(vector, self.family.n_visible, self.family.n_hidden, "diagonal"))
        assert isinstance(natural, Natural)
        T, W, Q, b_v, b_h, _ = natural
        slope, curvature = _derivatives(self.x @ W + b_h, Q)
        score = slope @ W.mT - self.x @ T - b_v
        laplacian = curvature @ W.square().sum(0) - T.trace()
        return self.weights @ (0.5 * score.square().sum(1) + laplacian)


def _derivatives(u: Tensor, Q: Tensor) -> tuple[Tensor, Tensor]:
    """First and second derivatives of log θ̃(iu|q) for each unit (n, Nh), differentiable."""
    needs = u if u.requires_grad else u.detach().requires_grad_()
    with torch.enable_grad():
        log_theta = ThetaPlan(Q, phase="II").log_theta(needs)
        (slope,) = torch.autograd.grad(log_theta.sum(), needs, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), needs, create_graph=True)
    return slope, curvature
