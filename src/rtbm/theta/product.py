"""The split product, for long lists: the lattice sum as a matrix product over two short ones, in torch.

The coordinates m = (a, b) are cut in two, and the terms summed are all pairs of a list of a and a list of b::

    Z = Re Σ_ba C_ba E_a(x) E_b(x)      E_a = Π_j exp(a_j x_j − ½a_j²G_jj), with exp(i·a_j x_j) where j oscillates

C holds what couples the two. With f(x), the real and imaginary parts of E, it is one real form Z = f_bᵀ M f_a:

    all positive     f = E                                   M = C
    all oscillate    f = (cos, sin), side by side            M = (C⁺, −C⁻), for one of each pair ±b: C± = C_b ± C_−b
    both kinds       f = (Re E, Im E), one below the other   M = ((Re C, −Im C), (−Im C, −Re C))
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Integers
from rtbm.theta.chunks import in_chunks
from rtbm.theta.listed.torch import half_square
from rtbm.theta.local import Local, LocalSum
from rtbm.theta.poisson import Form

MAX_COUPLING = 2**24
"""The largest number of entries of the coupling matrix: 128 MiB."""

ENTRY = 25
"""An entry of a list takes as long as this number of pairs. Speed only."""


class Split(NamedTuple):
    """Two lists over the first and the last coordinates, whose pairs cover all points that are needed."""

    first: Integers  # (terms_a, a): one of each pair ±, in the oscillating coordinates
    last: Integers  # (terms_b, g − a): so too if all coordinates oscillate

    @property
    def entries(self) -> int:
        """The numbers of both lists."""
        return len(self.first) + len(self.last)

    @property
    def pairs(self) -> int:
        """The terms that are summed."""
        return len(self.first) * len(self.last)


def choose_split(points: Integers, n_osc: int) -> Split:
    """Cut the coordinates in two so that the lists are short and have few pairs."""
    g = points.shape[1]
    third = max(1, g // 3)  # closer to the ends, one of the lists is long
    candidates = []
    for cut in range(third, g - third + 1):
        first, last, paired = points[:, :cut], points[:, cut:], max(n_osc - cut, 0)
        if paired and n_osc < g:  # the list of b holds both signs
            last = np.concatenate([last, last * np.where(np.arange(g - cut) < paired, -1, 1)])
            paired = 0
        candidates.append(Split(_distinct(first, 0), _distinct(last, paired)))
    return min(candidates, key=lambda split: split.pairs + ENTRY * split.entries)


def _distinct(points: Integers, n_paired: int) -> Integers:
    """The distinct points (terms, g) in lexical order; one of each pair ±m of the first n_paired coordinates."""
    sign = np.zeros(len(points), dtype=np.int64)  # of the first coordinate that is not zero
    for column in points.T[:n_paired]:
        sign = np.where(sign == 0, np.sign(column), sign)
    points = np.where((sign < 0)[:, None] & (np.arange(points.shape[1]) < n_paired), -points, points)
    lowest = points.min(axis=0)
    spans = points.max(axis=0) - lowest + 1
    if np.log2(spans).sum() > 62:
        return np.unique(points, axis=0)
    keys = (points - lowest) @ np.append(spans[:0:-1].cumprod()[::-1], 1)  # a point as one integer
    return points[np.unique(keys, return_index=True)[1]]


class SplitProduct:
    """The split product of a lattice sum. It serves any phase and device, and is differentiable to any order."""

    def __init__(self, lattice: LocalSum):
        self.lattice = lattice

    @cached_property
    def split(self) -> Split:
        """The two lists."""
        return choose_split(self.lattice.points, self.lattice.n_osc)

    @cached_property
    def largest_exponent(self) -> float:
        """A bound for the exponents of all factors; infinite if the coupling does not fit in memory.

        In the cell |x_j| ≤ ½Σ_i|R_ij|R_ii, so a factor exp(px − ½p²G_jj) is at most exp(½x²/G_jj). What couples the
        coordinates is bounded by the largest entries of the lists.
        """
        if self.split.pairs > MAX_COUPLING:
            return np.inf
        G, R = self.lattice.form.G, self.lattice.factor
        diagonal, largest = G.diagonal(), 0.5 * (np.abs(R).T @ R.diagonal())
        reach = np.concatenate([np.abs(part).max(axis=0) for part in self.split])
        coupled = 0.5 * reach @ np.abs(G - np.diag(diagonal)) @ reach
        return float((largest**2 / (2 * diagonal))[self.lattice.n_osc :].sum() + coupled)

    def lists(self, device: torch.device) -> list[Tensor]:
        """Both lists as tensors."""
        named = zip(self.split._fields, self.split, strict=True)
        return [self.lattice.tensor(name, device, points) for name, points in named]

    def log_sum(self, local: Local) -> Tensor:
        """log Z (points,) for local arguments x (points, g)."""
        (first, last), g, o = self.lists(local.x.device), self.lattice.g, self.lattice.n_osc
        a, own = first.shape[1], self._own(local.form)

        def chunk(x: Tensor, M: Tensor) -> Tensor:
            f_a, f_b = table(x[:, :a], first, own[:a], min(o, a)), table(x[:, a:], last, own[a:], max(o - a, 0))
            if not o:
                f_a, f_b = f_a[:1], f_b[:1]
            elif o < g:
                f_a, f_b = f_a.reshape(1, -1, len(x)), f_b.reshape(1, -1, len(x))
            return (torch.bmm(M, f_a) * f_b).sum(dim=(0, 1)).log()

        return in_chunks(chunk, local.x, [self.couple(local.form)], 4 * self.split.entries)

    def couple(self, form: Form) -> Tensor:
        """The matrices M (parts, terms_b, terms_a)."""
        (first, last), o, own = self.lists(form.G.device), self.lattice.n_osc, self._own(form)
        a = first.shape[1]
        multiplicity = 1 + (first[:, :o] != 0).any(dim=1).to(first.dtype)  # the list has one of each pair ±m

        def halves(matrix: Tensor, last: Tensor) -> Tensor:
            cross = last @ matrix[a:, :a] @ first.mT
            return half_square(last, matrix[a:, a:])[:, None] + cross + half_square(first, matrix[:a, :a])

        def sizes(last: Tensor) -> Tensor:
            return multiplicity * (-halves(form.G - torch.diag(own), last)).exp()

        if not o:
            return sizes(last)[None]
        if o < self.lattice.g:
            size, angle = sizes(last), halves(form.Psi, last)
            real, imaginary = size * angle.cos(), size * angle.sin()
            return torch.cat([torch.cat([real, -imaginary], dim=1), torch.cat([-imaginary, -real], dim=1)])[None]
        there, back = sizes(last), sizes(-last)
        weight = 0.5 + 0.5 * (last != 0).any(dim=1, keepdim=True).to(last.dtype)  # b = −b counts once
        return torch.stack([weight * (there + back), back - there])

    def _own(self, form: Form) -> Tensor:
        """The diagonal of G that is in E, where coordinates are positive, and not in C."""
        return form.G.detach().diagonal() * (torch.arange(self.lattice.g, device=form.G.device) >= self.lattice.n_osc)


def table(x: Tensor, points: Tensor, own: Tensor, n_osc: int) -> Tensor:
    """The real and imaginary part of E (2, terms, N) for points (terms, k) and x (N, k)."""
    angle = points[:, :n_osc] @ x[:, :n_osc].mT
    parts = torch.stack([angle.cos(), angle.sin()])
    if n_osc == points.shape[1]:
        return parts
    growing = points[:, n_osc:]
    return parts * (growing @ x[:, n_osc:].mT - (0.5 * growing**2 @ own[n_osc:])[:, None]).exp()
