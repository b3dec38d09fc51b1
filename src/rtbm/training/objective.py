"""What the solvers minimise: the negative mean log-likelihood, and a prior that prevents peaks at single points."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.family import FAILURES, Family
from rtbm.training.scaling import Scaling, find_scaling
from rtbm.training.statistics import ArraySource, Evaluation, Likelihood, Source, dense
from rtbm.training.statistics.hidden import HiddenFamily

RIGIDITY, STIFFNESS = 0.02, 10.0
"""The strength of the prior on A, and its mode STIFFNESS · 1. Without it, A goes to infinity for hidden units with two
states, and to zero for hidden units without effect. A stronger one biases fits to few observations."""
BITS = 40.0
"""The mode of A for binary hidden units. Other states then have probabilities of exp(−40); less lets them matter."""
STEEPEST = 3.0
"""The slope and curvature of log P, for standardised data, that `smoothness` penalises by ½. Less is smoother."""
HOPELESS_RISE = 10.0
"""A trial step is not evaluated if its objective exceeds the lowest one by more than this for certain."""
SUM_BITS, COORDINATE_BITS = 34, 24
"""Values and gradients of sums over data in several places are rounded to multiples of 2^−SUM_BITS, and coordinates of
L-BFGS there to so many bits. The order of summation changes the last bits of sums, and L-BFGS would magnify that."""
RIPPLES = 0.2
"""The prior on the ripples of diagonal machines, relative to that on the covariance of dense ones. More is smoother."""


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
        machines = dense.unpack_machines(vector, family.n_components, family.n_visible, family.n_hidden)
        stiffness = STIFFNESS if self.steps is None else BITS
        value = dense.add_penalty(machines, self.strength, self.widths, RIGIDITY, stiffness, gradient)
        if self.steps is not None:
            value += self._unevenness(machines, self.steps, gradient)
        return value, gradient

    def _unevenness(self, machines: dense.Machines, steps: Floats, gradient: Floats) -> float:
        """The penalty for uneven weights of neighbouring Gaussians; its derivative is added to the gradient."""
        L_A, centre, F = machines.L_A, machines.centre, machines.F
        (K, _, g), factor = F.shape, self.smoothness / STEEPEST**2
        row, column = dense.lower_triangle(g)
        A, lever = L_A @ L_A.mT, 0.5 - centre
        tilt = (A @ lever[:, :, None])[:, :, 0] / steps
        coupling = np.triu(A / np.outer(steps, steps), 1)
        by_A = factor * ((tilt / steps)[:, :, None] * lever[:, None] + coupling / np.outer(steps, steps))
        by_L = ((by_A + by_A.mT) @ L_A)[:, row, column] * np.where(row == column, L_A[:, row, column], 1.0)
        norm2 = (F**2).sum(axis=1)
        stretch = 0.5 * np.log(norm2) - np.log(steps)
        by_centre = -factor * (A @ (tilt / steps)[:, :, None])[:, :, 0]
        by_F = self.smoothness * (stretch / norm2)[:, None] * F
        parts = np.concatenate([by_L, by_centre, by_F.reshape(K, -1)], axis=1)
        gradient[: len(gradient) - (K if K > 1 else 0)].reshape(K, -1)[:, : parts.shape[1]] += parts
        squares = (tilt**2).sum() + (coupling**2).sum()
        return 0.5 * float(factor * squares + self.smoothness * (stretch**2).sum())

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


class Objective:
    """The negative mean log-likelihood of weighted data plus prior, as a function of a vector.

    Values and gradients over data that are not in memory are rounded: see SUM_BITS.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Source
        The data: an `ArraySource`, or blocks elsewhere, whose weights have sum 1.
    prior : Prior
        Divided by the sum of the weights.
    total : float, default=None
        The sum of the weights as they were given; None for that of an `ArraySource`.
    device : str or torch.device, default=None
        Where vectors are; None for the device of an `ArraySource`, or else the CPU.
    omitted : float, default=None
        As in `Likelihood`.
    """

    def __init__(
        self,
        family: Family,
        source: Source,
        prior: Prior,
        total: float | None = None,
        device: str | None = None,
        omitted: float | None = None,
    ):
        self.family, self.source, self.prior = family, source, prior
        self.total, self._is_rounded, self._is_complete = total or 1.0, True, False
        self.device = torch.device(device or "cpu")
        if isinstance(source, ArraySource):
            self.x, self.weights, self.device = source.x, source.weights, source.x.device
            self.total, self._is_rounded = total or source.total, False
            self._is_complete = not bool(source.x.isnan().any())
        self.likelihood = Likelihood(family, source, omitted=omitted)
        self.evaluations, self._lowest = 0, math.inf

    def value(self, vector: Tensor) -> float:
        """The value alone; infinite where the parameters leave float64."""
        return self._noted(self._attempt(vector, wants_gradient=False)[0])

    def with_gradient(self, vector: Tensor) -> tuple[float, Tensor]:
        """Value and gradient; the value is infinite where the parameters leave float64."""
        value, gradient = self._attempt(vector, wants_gradient=True)
        if not (math.isfinite(value) and math.isfinite(float(gradient.sum()))):
            return math.inf, torch.zeros_like(vector)
        value = self._noted(value)
        if self._is_rounded:
            value, gradient = float(_round_sums(np.array(value))), _round_sums(gradient)
        return value, torch.from_numpy(gradient).to(vector.device)

    def _attempt(self, vector: Tensor, wants_gradient: bool) -> tuple[float, Floats]:
        """The value, infinite if it fails or is hopeless, and the gradient if it is wanted."""
        self.evaluations += 1
        try:
            with np.errstate(all="ignore"):  # trial steps may leave float64
                penalty, by_penalty = self._penalty(vector)
                if self._is_hopeless(vector, penalty):
                    return math.inf, by_penalty
                value, gradient = self.likelihood.with_gradient(vector, wants_gradient)
        except FAILURES:
            return math.inf, np.zeros(0)
        return penalty - value, by_penalty - gradient if wants_gradient else gradient

    def _noted(self, value: float) -> float:
        if not math.isfinite(value):
            return math.inf
        self._lowest = min(self._lowest, value)
        return value

    def _is_hopeless(self, vector: Tensor, penalty: float) -> bool:
        """Whether the value certainly exceeds the lowest so far by HOPELESS_RISE: no density exceeds its highest peak.

        Trial steps of a line search may be so wild that the sums behind them are very long.
        """
        if not (
            self._is_complete and self.family.coupling == "dense" and penalty >= 1.0 and math.isfinite(self._lowest)
        ):
            return False
        d, size = self.family.n_visible, self.family.n_machine_parameters
        widths = vector.detach().cpu().numpy()[: self.family.n_components * size].reshape(-1, size)
        diagonal = np.cumsum(np.arange(1, d + 1)) - 1 - d * (d + 1) // 2  # the logarithms of the diagonal of L
        log_peak = -float(widths[:, diagonal].sum(axis=1).min()) - 0.5 * d * math.log(2 * math.pi)
        return penalty - log_peak > self._lowest + HOPELESS_RISE

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

    def scaling(self, vector: Tensor) -> Scaling | None:
        """Coordinates around a vector in which the information that EM expects is 1; None if there are none."""
        if not self.is_scaled:
            return None
        origin = vector.detach().cpu().numpy()
        if self._is_rounded:
            origin = _keep_bits(origin)
            vector = torch.from_numpy(origin).to(vector.device)
        try:
            value, evaluation = self.evaluate(vector)
            hidden = HiddenFamily(evaluation.states, RIGIDITY / self.total, STIFFNESS)
            gradient = self._penalty(vector)[1] - evaluation.gradient()
            scaling = find_scaling(origin, value, gradient, evaluation, self.total, hidden)
        except FAILURES:
            return None
        if not self._is_rounded:
            return scaling
        sums = float(_round_sums(np.array(value))), _round_sums(gradient)
        return Scaling(origin, *sums, float(_keep_bits(np.array(scaling.length))), *map(_keep_bits, scaling[4:]))

    def _penalty(self, vector: Tensor) -> tuple[float, Floats]:
        """The prior's share in the objective, and its derivative."""
        value, gradient = self.prior.penalty(self.family, vector.detach().cpu().numpy())
        return value / self.total, gradient / self.total


def _round_sums(values: Floats) -> Floats:
    """Multiples of 2^−SUM_BITS, or SUM_BITS bits of numbers above 1."""
    exponents = np.maximum(np.frexp(values)[1], 0) - SUM_BITS
    return np.ldexp(np.round(np.ldexp(values, -exponents)), exponents)


def _keep_bits(values: Floats) -> Floats:
    """The first COORDINATE_BITS bits of numbers."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissas, COORDINATE_BITS)), exponents - COORDINATE_BITS)
