"""What the solvers minimise: the negative mean log-likelihood, and a prior that keeps it from chasing single points."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.distributions.missing import missing_patterns
from rtbm.parameters import unpack
from rtbm.training.family import FAILURES, Family
from rtbm.training.tables import Factors, factors_of

RIGIDITY, STIFFNESS = 0.02, 10.0
"""The prior on A, weak, with its mode at STIFFNESS · 1: hidden units that want to be binary, or that have nothing to
do, would otherwise wander off to infinity or to zero."""
BITS = 40.0
"""The same where hidden units are to be binary: other values have probabilities of exp(−40)."""
STEEPEST = 3.0
"""The slope and the curvature of log P, for standardised data, from which on a smooth machine finds them large."""
RIPPLES = 0.2
"""The prior on the ripples of diagonal machines, relative to that on the covariance of dense ones."""


class Prior(NamedTuple):
    """A penalty on fine structure, in units of observations: it plays the part of a bandwidth.

    Dense machines, with Σ the covariance of v given h and s the widths of the data along the axes::

        penalty = strength Σ_i s_i² (Σ⁻¹)_ii + RIGIDITY (tr A − STIFFNESS log det A)

    Diagonal machines: their ripples have amplitudes of order exp(−q/2) and frequencies w, and::

        penalty = RIPPLES strength Σ_j exp(−q_j/2)(1 + Σ_i s_i² w_ij²)

    With `steps`, the hidden units of a dense machine are binary, the mode of A is BITS · 1, and uneven weights of
    neighbouring Gaussians are penalised: with t = A(½ − centre) the tilt of the units, and f the steps of a ladder of
    Gaussians at equal distances::

        penalty += ½ smoothness (Σ_i (t_i/f_i)² + Σ_{i<j} (A_ij/f_i f_j)²)/STEEPEST² + ½ smoothness Σ_i log²(|F_i|/f_i)

    It is divided by the number of observations, and so fades as they become many.
    """

    strength: float
    widths: Tensor  # (Nv,)
    smoothness: float = 0.0
    steps: Tensor | None = None  # (Nh,)

    def penalty(self, family: Family, vector: Tensor) -> Tensor:
        """The penalty of a member of a family."""
        machines, _ = family.split(vector)
        return sum((self._of_machine(family, machine) for machine in machines), vector.new_zeros(()))

    def _of_machine(self, family: Family, vector: Tensor) -> Tensor:
        if family.hidden == "dense":
            machine = factors_of(vector, family.n_visible, family.n_hidden)
            root = torch.linalg.solve_triangular(machine.L, torch.diag(self.widths), upper=False)
            stiffness = STIFFNESS if self.steps is None else BITS
            rigidity = machine.L_A.square().sum() - 2 * stiffness * machine.L_A.diagonal().log().sum()
            return self.strength * root.square().sum() + RIGIDITY * rigidity + self._unevenness(machine)
        free = unpack(vector, family.n_visible, family.n_hidden, "diagonal")
        energy = 1 + self.widths.square() @ free.weights.square()
        return RIPPLES * self.strength * ((-0.5 * free.hidden_scale.exp()).exp() * energy).sum()

    def _unevenness(self, machine: Factors) -> Tensor:
        if self.steps is None:
            return machine.centre.new_zeros(())
        A = machine.L_A @ machine.L_A.mT
        tilt = (A @ (0.5 - machine.centre)) / self.steps
        coupling = (A / torch.outer(self.steps, self.steps)).triu(1)
        uneven = (tilt.square().sum() + coupling.square().sum()) / STEEPEST**2
        return 0.5 * self.smoothness * (uneven + (machine.F.norm(dim=0) / self.steps).log().square().sum())


class Objective:
    """The negative mean log-likelihood of weighted data plus prior, as a function of a vector.

    Parameters
    ----------
    family : Family
        What is fitted.
    x : (n, Nv)
        The data; NaN entries are integrated out.
    weights : (n,)
        Positive.
    prior : Prior
        Divided by the sum of the weights.
    """

    def __init__(self, family: Family, x: Tensor, weights: Tensor, prior: Prior):
        self.family, self.x, self.prior = family, x, prior
        self._patterns = missing_patterns(x)
        self.total = float(weights.sum())
        self.weights = weights / self.total
        self.evaluations = 0

    def __call__(self, vector: Tensor) -> Tensor:
        """The value (), differentiable in the vector."""
        with np.errstate(all="ignore"):  # trial steps may leave float64, and count as infinite then
            log_prob = self.family.log_prob(vector, self.x, self._patterns)
        return self.prior.penalty(self.family, vector) / self.total - self.weights @ log_prob

    @torch.no_grad()
    def value(self, vector: Tensor) -> float:
        """The value alone; infinite where the parameters leave float64."""
        self.evaluations += 1
        try:
            value = float(self(vector))
        except FAILURES:
            return math.inf
        return value if math.isfinite(value) else math.inf

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""
        self.evaluations += 1
        free = vector.detach().requires_grad_()
        try:
            value = self(free)
            (gradient,) = torch.autograd.grad(value, free)
        except FAILURES:
            return math.inf, torch.zeros_like(vector)
        if not (math.isfinite(float(value.detach())) and bool(torch.isfinite(gradient).all())):
            return math.inf, torch.zeros_like(vector)
        return float(value.detach()), gradient
