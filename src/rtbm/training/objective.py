"""What the solvers minimise: the negative mean log-likelihood, and a prior that prevents peaks at single points."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.families import Family, Prior
from rtbm.training.families.scaling import Scaling
from rtbm.training.likelihood import FAILURES, Likelihood
from rtbm.training.sums import ArrayBlocks, Blocks, Evaluation

HOPELESS_RISE = 10.0
"""A trial step is not evaluated if its objective exceeds the lowest one by more than this for certain."""
SUM_BITS, COORDINATE_BITS = 34, 24
"""Values and gradients of sums over data in several places are rounded to multiples of 2^−SUM_BITS, and coordinates of
L-BFGS there to their first COORDINATE_BITS bits. The order of summation changes the last bits of sums, and L-BFGS would
magnify that."""


class Objective:
    """The negative mean log-likelihood of weighted data plus prior, as a function of a vector.

    Values and gradients over data that are not in memory are rounded: see SUM_BITS.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Blocks
        The data: an `ArrayBlocks`, or blocks elsewhere, whose weights have sum 1.
    prior : Prior
        Divided by the sum of the weights.
    total : float, default=None
        The sum of the weights as they were given; None for that of an `ArrayBlocks`.
    device : str or torch.device, default=None
        Where vectors are; None for the device of an `ArrayBlocks`, or else the CPU.
    omitted : float, default=None
        As in `Likelihood`.
    """

    family: Family
    source: Blocks
    prior: Prior
    total: float
    device: torch.device
    x: Tensor
    weights: Tensor
    likelihood: Likelihood
    evaluations: int

    def __init__(
        self,
        family: Family,
        source: Blocks,
        prior: Prior,
        total: float | None = None,
        device: str | None = None,
        omitted: float | None = None,
    ):
        self.family, self.source, self.prior = family, source, prior
        self.total, self._is_rounded, self._is_complete = total or 1.0, True, False
        self.device = torch.device(device or "cpu")
        if isinstance(source, ArrayBlocks):
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
        if not (self._is_complete and penalty >= 1.0 and math.isfinite(self._lowest)):
            return False
        log_peak = self.family.highest_log_peak(vector.detach().cpu().numpy())
        return penalty - log_peak > self._lowest + HOPELESS_RISE

    def evaluate(self, vector: Tensor) -> tuple[float, Evaluation]:
        """The value, and the sums over the data behind it. A TooManyTermsError says that tables are too long."""
        self.evaluations += 1
        with np.errstate(all="ignore"):
            evaluation = self.likelihood.evaluate(vector)
            return self._noted(self._penalty(vector)[0] - evaluation.log_likelihood), evaluation

    def maximise(self, evaluation: Evaluation) -> Tensor:
        """The vector after an M-step of expectation maximisation, from the sums of an evaluation."""
        vector = self.family.maximise(evaluation, self.prior, self.total)
        return torch.from_numpy(vector).to(self.device)

    @property
    def is_scaled(self) -> bool:
        """Whether solvers begin with EM, and use the expected complete-data information."""
        return self.family.is_scaled

    def scaling(self, vector: Tensor) -> Scaling | None:
        """Coordinates around a vector in which EM's expected information is the identity; None if there are none."""
        if not self.family.is_scaled:
            return None
        origin = vector.detach().cpu().numpy()
        if self._is_rounded:
            origin = _keep_bits(origin)
            vector = torch.from_numpy(origin).to(vector.device)
        try:
            value, evaluation = self.evaluate(vector)
            gradient = self._penalty(vector)[1] - evaluation.gradient()
            scaling = self.family.scaling(origin, value, gradient, evaluation, self.total)
        except FAILURES:
            return None
        if not self._is_rounded:
            return scaling
        sums = float(_round_sums(np.array(value))), _round_sums(gradient)
        return Scaling(origin, *sums, float(_keep_bits(np.array(scaling.length))), *map(_keep_bits, scaling[4:]))

    def _penalty(self, vector: Tensor) -> tuple[float, Floats]:
        """The prior's share in the objective, and its derivative."""
        value, gradient = self.family.penalty(vector.detach().cpu().numpy(), self.prior)
        return value / self.total, gradient / self.total


def _round_sums(values: Floats) -> Floats:
    """Multiples of 2^−SUM_BITS, or SUM_BITS bits of numbers above 1."""
    exponents = np.maximum(np.frexp(values)[1], 0) - SUM_BITS
    return np.ldexp(np.round(np.ldexp(values, -exponents)), exponents)


def _keep_bits(values: Floats) -> Floats:
    """The first COORDINATE_BITS bits of numbers."""
    mantissas, exponents = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(mantissas, COORDINATE_BITS)), exponents - COORDINATE_BITS)
