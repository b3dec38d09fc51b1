"""Diagonal Q: one-dimensional theta functions, all columns of a batch at once."""

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.chunks import in_chunks
from rtbm.theta.geometry import (
    TWO_PI,
    Periods,
    in_two_parts,
    largest_entry,
    remove_periods,
    two_pi_periods,
    with_derivatives,
)
from rtbm.theta.lattice import DIGIT, log_gauss_sum, squared_radius
from rtbm.theta.series import Derivatives


class Diagonal:
    """Sums for the diagonal entries q (g,): each column is summed as in `geometry`, with g = 1.

    A column oscillates where its terms exp(−½bm²) have b ≥ π: there the sum stays above 0.58, and four terms are
    enough for 1e-12. Elsewhere its terms are positive.
    """

    def __init__(self, q: Floats, phase: str, tolerance: float):
        self.phase = phase
        self._near_argument = DIGIT * (q.min() if phase == "I" else TWO_PI)
        dual = TWO_PI**2 / q
        oscillating, positive = (dual, q) if phase == "I" else (q, dual)
        self.oscillates = oscillating >= np.pi
        b, a = oscillating[self.oscillates, None], positive[~self.oscillates, None]
        smallest = 0.5 * np.log(TWO_PI / b[:, 0]) + log_gauss_sum(TWO_PI**2 / b[:, 0], 0.5)
        self.n_cosines = _longest(np.sqrt(squared_radius(b, smallest, tolerance) / b[:, 0]))
        self.n_exponentials = _longest(
            np.sqrt(squared_radius(a, log_gauss_sum(a[:, 0], 0.5), tolerance) / a[:, 0]) + 0.5
        )

    @property
    def n_terms(self) -> int:
        """The number of terms in all columns together."""
        columns = int(self.oscillates.sum())
        return columns * (self.n_cosines + 1) + (len(self.oscillates) - columns) * (2 * self.n_exponentials + 1)

    def is_far(self, z: Tensor) -> bool:
        """Whether recentring takes more than one step, see `remove_periods`."""
        return z.numel() > 0 and largest_entry(z) > self._near_argument

    def moments(self, z: Tensor, q: Tensor, order: int) -> Derivatives:
        """log θ̃ of every column of z (points, g) and its first `order` derivatives, each (points, g)."""
        osc = torch.as_tensor(self.oscillates, device=z.device)
        sides = [
            self._columns(z[:, columns], q[columns], oscillates, order)
            for columns, oscillates in ((osc, True), (~osc, False))
        ]
        back = torch.cat([osc.nonzero()[:, 0], (~osc).nonzero()[:, 0]]).argsort()
        return tuple(torch.cat(pair, dim=1)[:, back] for pair in zip(*sides, strict=True))

    def _columns(self, z: Tensor, q: Tensor, oscillates: bool, order: int) -> Derivatives:
        terms = self.n_cosines if oscillates else 2 * self.n_exponentials + 1
        return in_chunks(lambda rows, q: self._series(rows, q, oscillates, order), z, [q], max(1, z.shape[1] * terms))

    def _series(self, z: Tensor, q: Tensor, oscillates: bool, order: int) -> Derivatives:
        is_first_phase = self.phase == "I"
        with torch.no_grad():
            periods = Periods(1 / q, in_two_parts(q)) if is_first_phase else two_pi_periods(z.device)
            n0, high, low = remove_periods(z, torch.zeros_like(z), periods, self.is_far(z))
        s = with_derivatives(high + low, z - q * n0 if is_first_phase else z)
        if is_first_phase:
            value, mean = 0.5 * n0 * (z + s), n0
        else:
            value, mean = torch.zeros_like(z), torch.zeros_like(z)
        b, a, second = torch.ones_like(q), q, torch.zeros_like(q)
        if oscillates == is_first_phase:  # this column is Poisson-transformed
            sign = 1.0 if is_first_phase else -1.0
            b, a, second = TWO_PI / q, TWO_PI**2 / q, sign / q
            value = value + 0.5 * second * s**2 + 0.5 * torch.log(TWO_PI / q)
            mean = mean + second * s
        evaluate = self._cosines if oscillates else self._exponentials
        series = evaluate(b * s, a, order)
        smooth = (value, mean, second, torch.zeros_like(q))
        return tuple(smooth[k] + b**k * series[k] for k in range(order + 1))

    def _exponentials(self, x: Tensor, a: Tensor, order: int) -> list[Tensor]:
        m = torch.arange(-self.n_exponentials, self.n_exponentials + 1, dtype=x.dtype, device=x.device)
        exponent = m * x[..., None] - 0.5 * a[:, None] * m**2
        weights = exponent.softmax(dim=-1)
        return [exponent.logsumexp(dim=-1), *cumulants([(weights * m**k).sum(-1) for k in range(1, order + 1)])]

    def _cosines(self, x: Tensor, b: Tensor, order: int) -> list[Tensor]:
        m = torch.arange(1, self.n_cosines + 1, dtype=x.dtype, device=x.device)
        size = 2 * torch.exp(-0.5 * b[:, None] * m**2)
        angle = m * x[..., None]
        cosines = size * angle.cos()
        total = 1 + cosines.sum(-1)
        raw = []
        if order:
            sines = size * angle.sin()
            raw = [-(m * sines).sum(-1), -(m**2 * cosines).sum(-1), (m**3 * sines).sum(-1)][:order]
        return [total.log(), *cumulants([moment / total for moment in raw])]


def cumulants(raw: list[Tensor]) -> list[Tensor]:
    """Cumulants of up to three moments."""
    result = raw[:1]
    if len(raw) > 1:
        result.append(raw[1] - raw[0] ** 2)
    if len(raw) > 2:
        result.append(raw[2] - 3 * raw[1] * raw[0] + 2 * raw[0] ** 3)
    return result


def _longest(reach: Floats) -> int:
    return int(np.floor(reach).max(initial=0))
