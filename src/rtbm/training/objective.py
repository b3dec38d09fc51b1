"""What the solvers minimise: the negative mean log-likelihood, and a prior that keeps it from chasing single points."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.family import FAILURES, Family
from rtbm.training.statistics import Evaluation, Likelihood, Memory, Source, SourceLikelihood, dense, information

RIGIDITY, STIFFNESS = 0.02, 10.0
"""The prior on A, weak, with its mode at STIFFNESS · 1: hidden units that want to be binary, or that have nothing to
do, would otherwise wander off to infinity or to zero."""
BITS = 40.0
"""The same where hidden units are to be binary: other values have probabilities of exp(−40)."""
STEEPEST = 3.0
"""The slope and the curvature of log P, for standardised data, from which on a smooth machine finds them large."""
HOPELESS = 10.0
"""A trial step that is certain to be so much worse than the best one is not evaluated."""
SUM_BITS, COORDINATE_BITS = 34, 24
"""Values and gradients of sums over data in several places are rounded to multiples of 2^−SUM_BITS, and coordinates of
L-BFGS there to so many bits. The order of summation changes the last bits of sums, and L-BFGS would magnify that."""
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
    widths: Floats  # (Nv,)
    smoothness: float = 0.0
    steps: Floats | None = None  # (Nh,)

    def penalty(self, family: Family, vector: Floats) -> tuple[float, Floats]:
        """The penalty of a member of a family, and its derivative in the vector."""
        gradient = np.zeros(len(vector))
        if family.coupling != "dense":
            return self._ripples(family, vector, gradient), gradient
        steps = np.empty(0) if self.steps is None else self.steps
        sizes = family.n_components, family.n_visible, family.n_hidden
        _, L_A, centre, F, _, L = dense.unpack_machines(vector, *sizes)
        stiffness = BITS if len(steps) else STIFFNESS
        value = dense.add_penalty(
            L_A, centre, F, L, self.strength, self.widths, RIGIDITY, stiffness, self.smoothness, STEEPEST, steps,
            gradient,
        )  # fmt: skip
        return value, gradient

    def _ripples(self, family: Family, vector: Floats, gradient: Floats) -> float:
        """The penalty of diagonal machines; its derivative is added to the gradient."""
        d, g, size = family.n_visible, family.n_hidden, family.n_machine_parameters
        value = 0.0
        for begin in range(0, family.n_components * size, size):
            q, W = np.exp(vector[begin : begin + g]), vector[begin + 2 * g : begin + (2 + d) * g].reshape(d, g)
            amplitude = RIPPLES * self.strength * np.exp(-0.5 * q)
            energy = 1 + self.widths**2 @ W**2
            value += float(amplitude @ energy)
            gradient[begin : begin + g] -= 0.5 * q * amplitude * energy
            gradient[begin + 2 * g : begin + (2 + d) * g] += (2 * amplitude * self.widths[:, None] ** 2 * W).ravel()
        return value


class Scaling(NamedTuple):
    """Coordinates u of vectors around an origin, in which problems are well conditioned; see `apply_scaling`.

    A step of length 1 against the gradient is the step that the expected information suggests.
    """

    origin: Floats
    value: float  # of the objective at the origin
    gradient: Floats
    length: float
    hidden: Floats
    visible: Floats
    shares: Floats
    centre: Floats
    L: Floats

    def to_vector(self, u: Floats) -> Floats:
        """The vector of coordinates u."""
        result = self.origin.copy()
        information.apply_scaling(self.length * u, *self[4:], result)
        return result

    def to_scaled(self, gradient: Floats) -> Floats:
        """The derivative in u, from that in the vector."""
        result = np.empty(len(gradient))
        information.scale_gradient(gradient, *self[4:], result)
        return self.length * result


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
    source : Memory
        The blocks of the data with weights of sum 1, if they are known.
    """

    def __init__(self, family: Family, x: Tensor, weights: Tensor, prior: Prior, source: Memory | None = None):
        self.family, self.x, self.prior = family, x, prior
        self.total = float(weights.sum())
        self.weights = weights / self.total
        self.likelihood: Any = Likelihood(family, x, self.weights, source)
        self.device, self.evaluations = x.device, 0
        self._lowest, self._is_complete = math.inf, not bool(x.isnan().any())

    def value(self, vector: Tensor) -> float:
        """The value alone; infinite where the parameters leave float64."""
        self.evaluations += 1
        try:
            with np.errstate(all="ignore"):  # trial steps may leave float64
                penalty, _ = self._penalty(vector)
                value = math.inf if self._is_hopeless(vector, penalty) else penalty - self.likelihood.value(vector)
        except FAILURES:
            return math.inf
        return self._noted(value)

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""
        self.evaluations += 1
        try:
            with np.errstate(all="ignore"):
                penalty, by_penalty = self._penalty(vector)
                if self._is_hopeless(vector, penalty):
                    return math.inf, torch.zeros_like(vector)
                value, gradient = self.likelihood.with_gradient(vector)
        except FAILURES:
            return math.inf, torch.zeros_like(vector)
        by_penalty -= gradient
        if not (math.isfinite(penalty - value) and math.isfinite(float(by_penalty.sum()))):
            return math.inf, torch.zeros_like(vector)
        return self._noted(penalty - value), torch.from_numpy(by_penalty).to(vector.device)

    def _noted(self, value: float) -> float:
        if not math.isfinite(value):
            return math.inf
        self._lowest = min(self._lowest, value)
        return value

    def _is_hopeless(self, vector: Tensor, penalty: float) -> bool:
        """Whether the value is certain to exceed the lowest so far by HOPELESS: no density exceeds its highest peak.

        Trial steps of a line search may be so wild that the sums behind them are very long.
        """
        if penalty < 1.0 or self.family.coupling != "dense" or not (self._is_complete and math.isfinite(self._lowest)):
            return False
        d, size = self.family.n_visible, self.family.n_machine_parameters
        widths = vector.detach().cpu().numpy()[: self.family.n_components * size].reshape(-1, size)
        diagonal = np.cumsum(np.arange(1, d + 1)) - 1 - d * (d + 1) // 2  # the logarithms of the diagonal of L
        log_peak = -float(widths[:, diagonal].sum(axis=1).min()) - 0.5 * d * math.log(2 * math.pi)
        return penalty - log_peak > self._lowest + HOPELESS

    def evaluate(self, vector: Tensor) -> tuple[float, Evaluation]:
        """The value, and the sums over the data behind it. A TooManyTermsError says that tables are too long."""
        self.evaluations += 1
        with np.errstate(all="ignore"):
            evaluation = self.likelihood.evaluate(vector)
            return self._noted(self._penalty(vector)[0] - evaluation.log_likelihood), evaluation

    @property
    def is_scaled(self) -> bool:
        """Whether solvers use the information that EM expects: for mixtures of dense machines on several features."""
        return self.family.coupling == "dense" and min(self.family.n_visible, self.family.n_components) > 1

    def scaling(self, vector: Tensor) -> "Scaling | None":
        """Coordinates around a vector in which the information that EM expects is 1; None if there are none."""
        if not self.is_scaled:
            return None
        try:
            value, evaluation = self.evaluate(vector)
            machines, states, _, residuals = evaluation
            hidden, visible = information.find_scaling(
                residuals, evaluation.parts().gram, machines.log_weights, machines.L_A, *states[:3], self.total,
                RIGIDITY, STIFFNESS,
            )  # fmt: skip
        except FAILURES:
            return None
        gradient = self._penalty(vector)[1] - evaluation.gradient()
        shares = np.maximum(residuals[:, 0], 1 / self.total)
        unit = Scaling(
            vector.detach().cpu().numpy(), value, gradient, 1.0, hidden, visible, shares, machines.centre, machines.L
        )
        return unit._replace(length=float(np.linalg.norm(unit.to_scaled(gradient))) or 1.0)

    def _penalty(self, vector: Tensor) -> tuple[float, Floats]:
        """The prior's share in the objective, and its derivative."""
        value, gradient = self.prior.penalty(self.family, vector.detach().cpu().numpy())
        return value / self.total, gradient / self.total


class SourceObjective(Objective):
    """The same for data of which nothing but sums is known, wherever they are.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Source
        The data in blocks. Their weights have sum 1.
    total : float
        The sum of the weights as they were given: the prior is divided by it.
    prior : Prior
        See `Objective`.
    device : str or torch.device
        Where vectors are.
    """

    def __init__(self, family: Family, source: Source, total: float, prior: Prior, device: Any = "cpu"):
        self.family, self.prior, self.total = family, prior, total
        self.likelihood = SourceLikelihood(family, source)
        self.device, self.evaluations = torch.device(device), 0
        self._lowest, self._is_complete = math.inf, False

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient, rounded; the value is infinite where the parameters leave float64."""
        value, gradient = super().with_gradient(vector)
        if not math.isfinite(value):
            return value, gradient
        rounded = torch.from_numpy(_round_sums(gradient.cpu().numpy())).to(gradient.device)
        return float(_round_sums(np.array(value))), rounded

    def scaling(self, vector: Tensor) -> "Scaling | None":
        """Rounded coordinates around a rounded vector; None if there are none."""
        near = torch.from_numpy(_keep_bits(vector.detach().cpu().numpy())).to(vector.device)
        exact = super().scaling(near)
        if exact is None:
            return None
        origin, value, gradient, length, *parts = exact
        sums = float(_round_sums(np.array(value))), _round_sums(gradient)
        return Scaling(origin, *sums, float(_keep_bits(np.array(length))), *map(_keep_bits, parts))


def _round_sums(values: Floats) -> Floats:
    """Multiples of 2^−SUM_BITS, or SUM_BITS bits of numbers above 1."""
    exponents = np.maximum(np.frexp(values)[1], 0) - SUM_BITS
    return np.ldexp(np.round(np.ldexp(values, -exponents)), exponents)


def _keep_bits(values: Floats) -> Floats:
    """The first COORDINATE_BITS bits of numbers."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissas, COORDINATE_BITS)), exponents - COORDINATE_BITS)
