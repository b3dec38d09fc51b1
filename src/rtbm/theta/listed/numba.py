"""The sum over a list of lattice points in one compiled CPU pass: from the argument to log θ̃, mean and covariance.

A work space holds rows of points, so that the compiler makes SIMD code: a coordinate of 128 points is one row.
"""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.theta.chunks import run_threads
from rtbm.theta.constants import TWO_PI_PARTS
from rtbm.theta.derivatives import Derivatives
from rtbm.theta.kernels import ROUND, ROW_WIDTH, compiled, exponential, sine_cosine
from rtbm.theta.local import LocalSum

EXPONENT_BITS = 0x7FF << 52
"""The bits of a float64 that hold its exponent."""


class NumbaList:
    """log θ̃ of near arguments, and its first two derivatives, without graph; see `derivatives.CompiledSum`."""

    def __init__(self, lattice: LocalSum):
        self.lattice = lattice

    def start(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,), and what `list_pass` finds, with derivatives divided by Z."""
        argument, lattice = z.detach().double().contiguous().numpy(), self.lattice
        N, g = argument.shape
        found = np.empty((2 + (3 * g if order > 0 else 0) + (g * g if order > 1 else 0), N))
        M, numbers = np.split(lattice.numbers, [8 * g * g])
        fixed = M.reshape(8, g, g), numbers, lattice.terms, lattice.n_osc, lattice.phase == "I", order, found
        run_threads(lambda start, stop: list_pass(argument, start, stop, *fixed), N)
        rows = torch.from_numpy(found)
        rows[2 + 2 * g :] /= rows[1]
        return rows[0] + rows[1].log(), rows

    def moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (points,) for z (points, g), and up to `order` ≤ 2 mean (points, g) and covariance (points, g, g)."""
        value, rows = self.start(z, order)
        if order == 0:
            return (value,)
        mean, first, second = self._local_moments(rows)
        if order == 1:
            return value, mean.mT.contiguous()
        _, _, back, curvature = self._matrices
        central = full(second.permute(2, 0, 1)) - first.mT[:, :, None] * first.mT[:, None, :]
        return value, mean.mT.contiguous(), curvature + (central @ back.mT).mT @ back.mT

    def gradients(self, z: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor | None]:
        """See `derivatives.CompiledSum`: by the heat equation ∂θ̃/∂Q = ∓½∂²θ̃/∂z², with the upper sign in phase I."""
        mean, first, second = self._local_moments(kept[0])
        if not len(second):
            return (grad * mean).mT, None
        _, _, back, curvature = self._matrices
        central = full(second @ grad) - (grad * first) @ first.mT
        total = back @ central @ back.mT + grad.sum() * curvature + (grad * mean) @ mean.mT
        return (grad * mean).mT, (-0.5 if self.lattice.phase == "I" else 0.5) * total

    def _local_moments(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean U(n₀ + Ks) + back·first (g, points), and the first (g, points) and second derivatives in x."""
        g, (U, to_slope, back, _) = self.lattice.g, self._matrices
        n0, x, first, second = rows[2:].split([g, g, g, len(rows) - 2 - 3 * g])
        return U @ n0 + (to_slope @ x + back @ first), first, second.reshape(-1, g, rows.shape[1])

    @property
    def _matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """U, UK as it acts on x, back and curvature, see `LatticeSum.numbers`."""
        numbers, g = self.lattice.tensor("numbers", torch.device("cpu")), self.lattice.g
        M = numbers[: 8 * g * g].reshape(8, g, g)
        return M[0], M[0] * numbers[8 * g * g : -2], M[6], M[7]


def full(triangle: Tensor) -> Tensor:
    """Symmetric matrices (…, g, g) from their lower triangles."""
    return triangle.tril() + triangle.tril(-1).mT


@compiled
def add_row(w, target, factor, source):
    """Row target += factor · row source."""
    if factor != 0.0:
        for b in range(w.shape[1]):
            w[target, b] += factor * w[source, b]


@compiled
def localise(z, begin, count, M, numbers, n_osc, is_first, w):
    """The local arguments of the points begin…begin + count: `local.LocalSum.localise` for near arguments.

    The first rows of w become log θ̃ − log Z, a row for Z, n₀ (in phase II 0) and x, in turns where it oscillates; the
    next ones are work space.
    """
    g = M.shape[1]
    n0, x, c, low, s, whole = 2, 2 + g, 2 + 3 * g, 2 + 4 * g, 2 + 5 * g, 2 + 6 * g
    spare = np.int64(0)
    w[:] = 0.0
    for i in range(g):
        for b in range(count):
            w[c + i, b] = z[begin + b, i]
        if not is_first:  # z modulo 2π, and its rounding error
            for b in range(w.shape[1]):
                periods = (w[c + i, b] * (1 / TWO_PI) + ROUND) - ROUND
                exact = w[c + i, b] - periods * TWO_PI_PARTS[0]
                w[c + i, b] = exact - periods * TWO_PI_PARTS[1]
                w[low + i, b] = ((exact - w[c + i, b]) - periods * TWO_PI_PARTS[1]) - periods * TWO_PI_PARTS[2]
        for b in range(w.shape[1]):
            w[spare, b] = max(w[spare, b], abs(w[c + i, b]))
    bits = w.view(np.int64)
    for b in range(w.shape[1]):  # the power of two below the largest coordinate
        bits[spare, b] &= EXPONENT_BITS
        w[spare, b] *= numbers[g]
    for j in range(g):  # zU as an exact part s, and a rest: in x, until x is known
        for b in range(w.shape[1]):
            coarse = (w[c + j, b] + w[spare, b]) - w[spare, b]
            w[low + j, b] += w[c + j, b] - coarse
            w[c + j, b] = coarse
        for i in range(g):
            add_row(w, s + i, M[0, j, i], c + j)
            add_row(w, x + i, M[0, j, i], low + j)
    for i in range(g):
        for b in range(w.shape[1]):
            w[whole + i, b] = w[s + i, b] + w[x + i, b]
    for i in range(g - 1, -1, -1):  # nearest plane: c becomes what is left of the lattice coordinates
        w[c + i] = 0.0
        for j in range(g):
            add_row(w, c + i, M[1, i, j], whole + j)
        w[spare] = w[c + i]
        for j in range(i + 1, g):
            add_row(w, spare, M[2, i, j], c + j)
        for b in range(w.shape[1]):
            w[n0 + i, b] = (w[spare, b] + ROUND) - ROUND
            w[c + i, b] -= w[n0 + i, b]
    for i in range(g):
        for j in range(g):
            add_row(w, s + i, -M[3, j, i], n0 + j)
        for j in range(g):
            add_row(w, x + i, -M[4, j, i], n0 + j)
        add_row(w, s + i, 1.0, x + i)
    w[spare] = numbers[g + 1]
    if not is_first:
        w[n0 : n0 + g] = 0.0
    for i in range(g):
        w[x + i] = 0.0
        for j in range(g):
            add_row(w, x + i, M[5, i, j], s + j)
        for b in range(w.shape[1]):
            offset = w[n0 + i, b] * (w[whole + i, b] + w[s + i, b])
            w[spare, b] += 0.5 * (numbers[i] * w[s + i, b] * w[x + i, b] + offset)


@compiled
def list_pass(z, start, stop, M, numbers, terms, n_osc, is_first, order, found):
    """Fill the columns start…stop of `found`: log θ̃ − log Z, Z, and for order ≥ 1, n₀, x and the derivatives of Z in x.

    Those of order 2 fill the lower triangle. They are rows of the work space w, as in `localise`.
    """
    g = M.shape[1]
    x, first, second = 2 + g, 2 + 2 * g, 2 + 3 * g
    argument = max(len(found), 2 + 7 * g)
    size, sines = argument + 1, argument + 2
    w = np.zeros((argument + 3, min(ROW_WIDTH, stop - start)))
    for begin in range(start, stop, ROW_WIDTH):
        count = min(ROW_WIDTH, stop - begin)
        localise(z, begin, count, M, numbers, n_osc, is_first, w)
        w[first:] = 0.0
        w[1] = 1.0
        for t in range(len(terms)):
            oscillates, grows, log_size = False, False, terms[t, g]
            for j in range(g):
                oscillates |= terms[t, j] != 0.0 and j < n_osc
                grows |= terms[t, j] != 0.0 and j >= n_osc
            w[size] = math.exp(log_size)
            if grows:
                w[argument] = log_size
                for j in range(n_osc, g):
                    add_row(w, argument, terms[t, j], x + j)
                for b in range(w.shape[1]):
                    w[size, b] = exponential(w[argument, b])
            if oscillates:
                w[argument] = terms[t, g + 1]
                for j in range(n_osc):
                    add_row(w, argument, terms[t, j], x + j)
                for b in range(w.shape[1] if order > 0 else 0):
                    sine, cosine = sine_cosine(w[argument, b] - ((w[argument, b] + ROUND) - ROUND))
                    w[sines, b] = -w[size, b] * sine
                    w[size, b] *= cosine
                for b in range(w.shape[1] if order == 0 else 0):  # without sine
                    w[size, b] *= sine_cosine(w[argument, b] - ((w[argument, b] + ROUND) - ROUND))[1]
            add_row(w, np.int64(1), 1.0, size)
            for i in range(g if order > 0 else 0):
                add_row(w, first + i, terms[t, i], sines if i < n_osc else size)
                for j in range(i + 1 if order > 1 else 0):
                    product = terms[t, i] * terms[t, j] * (-1.0 if i < n_osc else 1.0)
                    add_row(w, second + i * g + j, product, sines if j < n_osc <= i else size)
        for i in range(len(found)):
            for b in range(count):
                found[i, begin + b] = w[i, b]
