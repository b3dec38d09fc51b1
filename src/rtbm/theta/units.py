"""Units: one-dimensional theta functions as activation functions, E(h|v) at every entry of a tensor.

Written plainly in torch here; `unit_kernels` (CPU) and `unit_triton` (CUDA) compute the same in one pass.

Every unit is a wrapped Gaussian: with t = u/q, a = q in phase I, and t = u/2π, a = 4π²/q in phase II, its free energy
is, up to terms without a period,

    log Σ_m exp(−½a(m − t)²),  |t| ≤ ½ after recentring

For a > 4π the terms m = −3 … 3 are summed; below, the cosines of the Poisson dual. Both reach the last digit.
"""

import math

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.diagonal import cumulants
from rtbm.theta.geometry import TWO_PI_PARTS

THRESHOLD = 4 * math.pi
"""Above this a, exponentials are summed, and cosines below."""
N_COSINES = 5
N_EXPONENTIALS = 3


def unit_cumulants(u: Tensor, q: Tensor, phase: str, order: int) -> list[Tensor]:
    """The first `order` ≤ 3 derivatives of log θ̃(u|q), or of log θ̃(iu|q) in phase II, in u, as float64.

    u and q have shapes that broadcast. Plain torch: differentiable to any order, in both.
    """
    u, q = u.double(), torch.where(q > 0, q, math.nan).double()
    first = phase == "I"
    is_wave = (q < THRESHOLD) if first else (q > TWO_PI**2 / THRESHOLD)
    period, period_low, period_lower = _period(q, first)
    n0 = (u / (q if first else TWO_PI)).detach().round()
    exact = u - n0 * period
    s = exact - n0 * period_low
    rest = (((exact - s) - n0 * period_low) - n0 * period_lower).detach()

    factor = TWO_PI / q
    angle, decay = (factor * s, factor * TWO_PI) if first else (s, q)
    waves = _cosine_moments(torch.where(is_wave, angle, 0.0), torch.where(is_wave, decay, THRESHOLD), order)
    edges = {}  # m(s − ½m·period)·scale, without rounding where it is near 0
    for m in [m for m in range(-N_EXPONENTIALS, N_EXPONENTIALS + 1) if m]:
        edge = m * ((s - 0.5 * m * period) + (rest - 0.5 * m * period_low))
        edges[m] = torch.where(is_wave, -THRESHOLD, edge if first else factor * edge)
    steps = _exponential_moments(edges, order)

    sign = 1 if first else -1
    derivatives = []
    for k, (wave, step) in enumerate(zip(cumulants(waves), cumulants(steps), strict=True), start=1):
        transformed, kept = (wave, step) if first else (step, wave)
        transformed = factor**k * transformed
        if k <= 2:
            transformed = transformed + sign * (s / q if k == 1 else 1 / q)
        derivatives.append(torch.where(is_wave == first, transformed, kept))
    if first:
        derivatives[0] = derivatives[0] + n0
    return derivatives


def _period(q: Tensor, first: bool) -> tuple[Tensor | float, Tensor | float, float]:
    """The period as a sum; the products of its first part with integers below 2^20 are exact."""
    if not first:
        return TWO_PI_PARTS
    high = q.detach().float().double()  # 24 bits
    return high, q - high, 0.0


def _cosine_moments(angle: Tensor, decay: Tensor, order: int) -> list[Tensor]:
    """The derivatives of S = 1 + Σ_m 2exp(−½m²·decay) cos(m·angle) in the angle, divided by S."""
    sums = [torch.ones_like(angle), *(torch.zeros_like(angle) for _ in range(order))]
    for m in range(1, N_COSINES + 1):
        size = 2 * torch.exp(-0.5 * m**2 * decay)
        cosine, sine = torch.cos(m * angle), torch.sin(m * angle)
        turned = (cosine, -sine, -cosine, sine)
        sums = [total + m**k * size * turned[k] for k, total in enumerate(sums)]
    return [total / sums[0] for total in sums[1:]]


def _exponential_moments(exponents: dict[int, Tensor], order: int) -> list[Tensor]:
    """The moments of m under exp(exponent of m), which is 0 for m = 0."""
    terms = {m: exponent.exp() for m, exponent in exponents.items()}
    total = 1 + sum(terms.values())
    return [sum(m**k * term for m, term in terms.items()) / total for k in range(1, order + 1)]
