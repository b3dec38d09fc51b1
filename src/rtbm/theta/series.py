"""The sum over the lattice for a reduced Ω and a small argument, for a grid of characteristics."""

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI, Floats, Integers
from rtbm.theta.exact import nearest_plane
from rtbm.theta.lattice import cholesky, enumerate_points, nearest_plane_matrix
from rtbm.theta.truncation import estimate_count, squared_radius


class Series:
    """w[a,b](z|Ω) for characteristics (a, b) (m, 2g): every different a takes a sum, which serves all b.

    Im Ω must be reduced, and Re Ω and z small: then rounding is harmless. The terms are the lattice points around the
    largest one of each row.
    """

    def __init__(self, form: Floats, characteristics: Floats, tolerance: float, order: int):
        (self.alphas, rows), (self.betas, columns) = (
            np.unique(half, axis=0, return_inverse=True) for half in np.split(characteristics, 2, axis=1)
        )
        self.columns = rows.ravel() * len(self.betas) + columns.ravel()
        self.R = cholesky(TWO_PI * form)
        norms, self.radius2 = np.diag(self.R) ** 2, 1.0
        for _ in range(4 if order else 1):  # beyond the radius, ‖n‖^order grows slower than the margin it is given
            self.radius2 = squared_radius(norms, math.log(tolerance) - 0.5 * order * math.log(self.radius2))
        # how many terms a point will have: an estimate, which is NaN if there are too many for float64
        self.expected = len(self.alphas) * estimate_count(norms, self.radius2, np.sqrt(norms))

    @cached_property
    def offsets(self) -> Integers:
        """The terms (terms, g), relative to the lattice point in the middle."""
        return enumerate_points(self.R, self.radius2, np.diag(self.R) / 2)

    @property
    def width(self) -> int:
        """Numbers that a point needs at the same time."""
        return len(self.alphas) * (4 * len(self.offsets) + len(self.betas))

    def evaluate(
        self, z: Tensor, omega: Tensor, slopes: Tensor, directions: Tensor, pairs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """u (points,) and w (points, m) for the rows of z, with derivatives of exp(2πi q(z)) w in `directions`.

        The quadratic q is zero at z, and has the derivatives `slopes` (points, order). Its second derivatives, divided
        by 2πi, are `pairs`.
        """
        alphas, betas, offsets, plane = (
            torch.as_tensor(array).to(z.real)
            for array in (self.alphas, self.betas, self.offsets, nearest_plane_matrix(self.R))
        )
        factor = torch.linalg.cholesky(omega.imag)
        p = torch.cholesky_solve(z.imag.mT, factor).mT
        u = torch.pi * (z.imag * p).sum(1)
        n = alphas.repeat(len(z), 1) - nearest_plane((p.detach()[:, None] + alphas).flatten(0, 1), plane)
        z, slopes = (x.repeat_interleave(len(alphas), 0) for x in (z, slopes))
        # the exponent of n + δ is ½nᵀΩn + n·z + δ·(z + Ωn) + ½δᵀΩδ, with a small z + Ωn
        moved = z + n.to(z.dtype) @ omega
        whitened = torch.linalg.solve_triangular(factor, moved.imag.mT, upper=False)
        middle = torch.complex((n * (z.real + moved.real)).sum(1), (whitened**2).sum(0))
        delta = offsets.to(z.dtype)
        exponents = torch.addmm(0.5 * ((delta @ omega) * delta).sum(1), moved, delta.mT) + 0.5 * middle[:, None]
        terms = wave(exponents.real, torch.exp(-TWO_PI * exponents.imag))
        if len(directions):
            slopes = slopes + n.to(z.dtype) @ directions.mT
            factors = [s[:, None] + v for s, v in zip(slopes.mT, directions @ delta.mT, strict=True)]

            def derivative(chosen: list[int]) -> Any:  # of exp(quadratic) over exp(quadratic), by all ways to pair up
                if not chosen:
                    return (2j * torch.pi) ** len(factors)
                first, *rest = chosen
                paired = (pairs[first, j] * derivative([i for i in rest if i != j]) for j in rest)
                return sum(paired, factors[first] * derivative(rest))

            terms = terms * derivative([*range(len(factors))])
        sums = terms @ wave(offsets @ betas.mT) * wave(n @ betas.mT)
        return u, sums.reshape(len(u), len(alphas) * len(betas))[:, self.columns]


def wave(turns: Tensor, size: Any = 1.0) -> Tensor:
    """size·exp(2πi·turns): faster than torch.polar."""
    angle = TWO_PI * turns
    return torch.complex(size * torch.cos(angle), size * torch.sin(angle))
