"""Probabilities of boxes under a normal distribution."""

import functools
import math

import numpy as np
import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

REACH = 8.5
"""Beyond so many standard deviations there is less than 2e-17 of a normal distribution."""
GAUSS_POINTS = 28
QUASI_POINTS = 2**12
MANY_NODES = 1000
"""More nodes a box than this mean that it is a quasi-Monte Carlo sum."""


def nodes_per_box(covariance: Tensor) -> int:
    """How many numbers the probability of one box takes."""
    n = len(covariance)
    if _is_diagonal(covariance):
        return n
    return 7 * GAUSS_POINTS if n == 2 else n * QUASI_POINTS


def _is_diagonal(matrix: Tensor) -> bool:
    """Whether a matrix may be treated as diagonal: not if its zeros are to be differentiated."""
    if torch.is_grad_enabled() and matrix.requires_grad and len(matrix) > 1:
        return False
    return not bool((matrix.detach() - torch.diag(matrix.detach().diagonal())).any())


def normal_box(low: Tensor, high: Tensor, covariance: Tensor) -> Tensor:
    """P(low < x < high) (...) for x ~ N(0, covariance) and bounds (..., n), which may be infinite.

    One dimension, and diagonal covariances, are exact. In two dimensions the remaining integral is done by
    Gauss-Legendre quadrature between the places where the integrand bends, to about 1e-13. From three on it is a
    quasi-Monte Carlo sum with a fixed seed, good to about 1e-4.

    Examples
    --------
    >>> C = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    >>> zero = torch.zeros(2, dtype=torch.float64)
    >>> normal_box(zero - torch.inf, zero, C)  # ¼ + arcsin(½)/2π
    tensor(0.3333, dtype=torch.float64)
    """
    scale = covariance.diagonal().sqrt()
    low, high = ((x.clamp(-1e30, 1e30) / scale).clamp(-100, 100) for x in (low, high))  # ∞ has no derivatives
    correlation = covariance / scale[:, None] / scale
    if _is_diagonal(covariance):
        return functools.reduce(torch.mul, interval(low, high).unbind(-1))  # prod has no second derivative at 0
    if len(scale) == 2:
        return _two(low, high, correlation[0, 1])
    return _quasi(low, high, torch.linalg.cholesky(correlation))


def interval(low: Tensor, high: Tensor) -> Tensor:
    """P(low < x < high) for a standard normal x, accurate in both tails."""
    flip = low > 0
    below, above = torch.where(flip, -high, low), torch.where(flip, -low, high)
    return (_lower_tail(above) - _lower_tail(below)).clamp(min=0)


def _lower_tail(x: Tensor) -> Tensor:
    return 0.5 * torch.special.erfc(-math.sqrt(0.5) * x)  # torch's ndtr has no digits left below −8


def _two(low: Tensor, high: Tensor, rho: Tensor) -> Tensor:
    """∫ φ(x) P(low₂ < y < high₂ | x) dx: P bends where the line ρx meets a bound, over a width √(1−ρ²)/ρ."""
    rest = ((1 - rho) * (1 + rho)).sqrt()
    start, stop = low[..., :1].clamp(-REACH, REACH), high[..., :1].clamp(-REACH, REACH)
    with torch.no_grad():
        slope = torch.where(rho.abs() < 1e-200, 1e-200, rho)
        bends = torch.cat([low[..., 1:], high[..., 1:]], -1) / slope
        spread = REACH * rest / slope.abs()
        inner = torch.cat([torch.zeros_like(start), bends, bends - spread, bends + spread], -1)
    edges = torch.cat([start, inner.clamp(start.detach(), stop.detach()).sort(-1).values, stop], -1)
    x, weight = (torch.as_tensor(array, device=low.device) for array in np.polynomial.legendre.leggauss(GAUSS_POINTS))
    half = (edges[..., 1:] - edges[..., :-1])[..., None] / 2
    node = (edges[..., 1:] + edges[..., :-1])[..., None] / 2 + half * x
    inside = interval((low[..., 1, None, None] - rho * node) / rest, (high[..., 1, None, None] - rho * node) / rest)
    density = torch.exp(-0.5 * node**2) / math.sqrt(2 * math.pi)
    return (half * weight * density * inside).sum((-2, -1)).clamp(min=0)


def _quasi(low: Tensor, high: Tensor, L: Tensor) -> Tensor:
    """Genz's transformation to a cube, one coordinate after the other; the last is an interval again."""
    n = len(L)
    cube = SobolEngine(n - 1, scramble=True, seed=0).draw(QUASI_POINTS, dtype=torch.float64).to(low.device)
    drawn = low.new_zeros(*low.shape[:-1], QUASI_POINTS, 0)
    product = low.new_ones(*low.shape[:-1], QUASI_POINTS)
    for i in range(n):
        shift = drawn @ L[i, :i] if i else torch.zeros_like(product)
        below, above = (low[..., i, None] - shift) / L[i, i], (high[..., i, None] - shift) / L[i, i]
        inside = interval(below, above)
        product = product * inside
        if i < n - 1:
            level = (_lower_tail(below) + cube[:, i] * inside).clamp(1e-300, 1 - 1e-16)
            drawn = torch.cat([drawn, torch.special.ndtri(level)[..., None]], -1)
    return product.mean(-1)
