"""The sum over the lattice for a reduced Ω and a small argument: a grid of characteristics, derivatives of any order."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.theta.exact import nearest_plane
from rtbm.theta.lattice import cholesky, enumerate_points, nearest_plane_matrix
from rtbm.theta.truncation import estimate_count, squared_radius


class Directions(NamedTuple):
    """What derivatives of exp(q(z))·θ(z) in k directions take, with a quadratic q. All are divided by 2πi."""

    slopes: Tensor  # (points, k): derivatives of q
    vectors: Tensor  # (k, g): the directions
    pairs: Tensor  # (k, k): second derivatives of q, divided by 2πi once more


class Series:
    """θ[a,b](z|Ω) for every a (k, g) of `alphas` and every b (m, g) of `betas`.

    Im Ω must be reduced, and Re Ω and z small: then rounding is harmless.
    """

    def __init__(self, omega: NDArray[Any], alphas: Floats, betas: Floats, tolerance: float, order: int):
        self.alphas, self.betas = alphas, betas
        self.R = cholesky(TWO_PI * omega.imag)
        norms, log_bound = np.diag(self.R) ** 2, math.log(tolerance)
        self.radius2 = squared_radius(norms, log_bound)
        for _ in range(3 if order else 0):  # beyond the radius, ‖n‖^order grows slower than the margin it is given
            self.radius2 = squared_radius(norms, log_bound - 0.5 * order * math.log(self.radius2))
        is_finite = math.isfinite(self.radius2)
        count = estimate_count(norms, self.radius2, np.sqrt(norms)) if is_finite else math.inf
        self.expected = len(alphas) * count  # how many terms there will be: an estimate

    @cached_property
    def offsets(self) -> Integers:
        """The terms (terms, g), relative to the lattice point in the middle."""
        return enumerate_points(self.R, self.radius2, np.diag(self.R) / 2)

    @property
    def width(self) -> int:
        """Numbers that a point needs at the same time."""
        return len(self.alphas) * (4 * len(self.offsets) + len(self.betas))

    def evaluate(self, z: Tensor, omega: Tensor, directions: Directions) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, k·m) for the rows of z."""
        alphas, betas, offsets, plane = (
            torch.as_tensor(array, dtype=torch.float64, device=z.device)
            for array in (self.alphas, self.betas, self.offsets, nearest_plane_matrix(self.R))
        )
        factor = torch.linalg.cholesky(omega.imag)
        solved = torch.cholesky_solve(z.imag.mT, factor).mT
        centres = (solved.detach()[:, None] + alphas).flatten(0, 1)
        n = alphas.repeat(len(z), 1) - nearest_plane(centres, plane)
        u = torch.pi * (z.imag * solved).sum(1)
        # the exponent of n + δ is ½nᵀΩn + n·z + δ·(z + Ωn) + ½δᵀΩδ, with a small z + Ωn
        z = z.repeat_interleave(len(alphas), 0)
        moved = z + n.to(z.dtype) @ omega
        whitened = torch.linalg.solve_triangular(factor, moved.imag.mT, upper=False)
        middle = torch.complex((n * (z.real + moved.real)).sum(1), (whitened**2).sum(0))
        delta = offsets.to(z.dtype)
        exponents = moved @ delta.mT + 0.5 * (middle[:, None] + ((delta @ omega) * delta).sum(1))
        terms = torch.exp(2j * torch.pi * exponents)
        if len(directions.vectors):
            slopes = directions.slopes.repeat_interleave(len(alphas), 0) + n.to(z.dtype) @ directions.vectors.mT
            factors = [s[:, None] + delta @ v for s, v in zip(slopes.mT, directions.vectors, strict=True)]
            terms = terms * (2j * torch.pi) ** len(factors) * _gaussian_derivative(factors, directions.pairs)
        sums = terms @ _unit(offsets @ betas.mT) * _unit(n @ betas.mT)
        return u, sums.reshape(-1, len(alphas) * len(betas))


def _unit(turns: Tensor) -> Tensor:
    """exp(2πi·turns)."""
    return torch.polar(torch.ones_like(turns), TWO_PI * turns)


def _gaussian_derivative(slopes: Sequence[Tensor], pairs: Tensor) -> Any:
    """The derivative of exp(quadratic) over exp(quadratic): products of slopes and pairs, over all ways to pair up."""
    if not slopes:
        return 1.0
    total = slopes[0] * _gaussian_derivative(slopes[1:], pairs[1:, 1:])
    for j in range(1, len(slopes)):
        others = [i for i in range(1, len(slopes)) if i != j]
        total = total + pairs[0, j] * _gaussian_derivative([slopes[i] for i in others], pairs[others][:, others])
    return total
