"""The density of a dense machine over a finite table of hidden states: fast, with its own derivatives, and certified.

Over all h with |L_Aᵀ(h − centre)| ≤ radius the machine is a Gaussian mixture with one covariance, and the density and
its derivatives are a few matrix products. What the table leaves out is bounded, and when the bound exceeds a tolerance
(because an optimiser has moved the machine, or a point lies far out) the table is made anew or given up.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rtbm.distributions.missing import Pattern, missing_patterns
from rtbm.errors import TooManyTermsError
from rtbm.lattice import Floats, cholesky, enumerate_points, log_tail, reduce_basis, squared_radius
from rtbm.parameters import TWO_PI, log_cholesky, shapes_of, triangle_of
from rtbm.theta.chunks import CPU_ELEMENTS, GPU_ELEMENTS

MAX_STATES = 1024
"""Beyond this many states a theta function is the faster way."""
SHORT = 128
"""A table of so many states is not worth making anew to have fewer."""
LARGEST_CENTRE = 1e9
"""Further out, differences of hidden states would lose digits."""
KEPT_BLOCKS = 8
"""P(h given x) (points × states) is kept for derivatives up to so many blocks of moderate size; more is made again."""
NEGLIGIBLE = -600.0
"""Terms whose logarithm is further below the largest count as this: exponentials that underflow are slow."""

# Logarithms of what tables leave out, as a share of all: in the first one, at least, at most, and how much less than is
# allowed a new table leaves out, or an old one before it is replaced.
_FIRST, _LEAST, _MOST = math.log(1e-9), -600.0, math.log(1e-3)
_MARGIN, _SURPLUS = 2.0, 60.0
_SLACK = 1.15  # the radius of a table is so much larger than needed, because the optimiser will move


class Factors(NamedTuple):
    """A machine by its Cholesky factors: A = L_A L_Aᵀ, covariance = L Lᵀ."""

    L_A: Tensor  # (Nh, Nh)
    centre: Tensor  # (Nh,)
    F: Tensor  # (Nv, Nh)
    mean: Tensor  # (Nv,)
    L: Tensor  # (Nv, Nv)


def factors_of(vector: Tensor, n_visible: int, n_hidden: int) -> Factors:
    """The factors in a vector of free parameters of a dense machine."""
    shapes = shapes_of(n_visible, n_hidden)
    scale, centre, F, mean, width = vector.split([math.prod(shape) for shape in shapes])
    return Factors(triangle_of(scale), centre, F.reshape(shapes[2]), mean, triangle_of(width))


class Table:
    """Every h with |L_Aᵀ(h − centre)| ≤ radius."""

    def __init__(self, L_A: Floats, centre: Floats, radius: float, device: torch.device):
        if not float(np.abs(centre).max()) < LARGEST_CENTRE:
            raise TooManyTermsError(math.inf, MAX_STATES, "the centre of P(h) is too far from zero for a table")
        self._L_inverse, self._centre, self._L, self._radius = np.linalg.inv(L_A), centre, L_A, radius
        basis, reduced = reduce_basis(L_A @ L_A.T)
        local = np.linalg.solve(basis, centre)
        points = enumerate_points(cholesky(reduced), radius**2, np.zeros(len(L_A)), local, limit=MAX_STATES)
        self.states = torch.as_tensor(points @ basis.T, dtype=torch.float64, device=device)

    def log_left_out(self, L_A: Floats, centre: Floats) -> float:
        """A bound on log Σ exp(−½|L_Aᵀ(h − centre)|²) over the h that are not here, for a machine that has moved.

        With s the smallest singular value of L₀⁻¹L, such an h is at least s(radius − |L₀ᵀ(centre − centre₀)|) away.
        """
        moved = float(np.linalg.norm((centre - self._centre) @ self._L))
        shrunk = float(np.linalg.svd(self._L_inverse @ L_A, compute_uv=False)[-1])
        return log_tail(np.diag(L_A) ** 2, max(0.0, shrunk * (self._radius - moved)) ** 2)


class TabulatedMachine:
    """A dense machine over a table of states that follows its parameters.

    Parameters
    ----------
    n_visible, n_hidden : int
        The numbers of units.
    """

    def __init__(self, n_visible: int, n_hidden: int):
        self.n_visible, self.n_hidden = n_visible, n_hidden
        self._table: Table | None = None
        self._left_out = self._allowed = _FIRST  # log Σ over states left out, less a bound on log Σ over all of them

    def log_prob(
        self, vector: Tensor, x: Tensor, patterns: list[Pattern] | None = None
    ) -> tuple[Tensor, float, "StateMixture"]:
        """log P (n,) of points x (n, Nv), differentiable in the vector, a bound on the log of what is missing, and the
        Gaussian mixture behind it. `patterns` are those of `missing_patterns(x)`, if they are known.

        The bound is on a density: no term that was left out exceeds its weight times the highest peak. A table of more
        than MAX_STATES states is a TooManyTermsError.
        """
        machine = factors_of(vector.detach(), self.n_visible, self.n_hidden)
        states, log_left_out = self._states(machine)
        mixture = StateMixture(machine, states)
        patterns = missing_patterns(x) if patterns is None else patterns
        if patterns:
            log_prob, log_peak = _incomplete_log_prob(vector, self.n_visible, self.n_hidden, states, patterns)
        else:
            log_prob, log_peak = _LogProb.apply(vector, x, mixture), -float(mixture.log_volume)
        return log_prob, log_left_out - float(mixture.log_sum) + log_peak, mixture

    def allow(self, slack: float) -> None:
        """Tell by how much, as a logarithm, the last table could have left out more (or less, if negative)."""
        self._allowed = min(max(self._left_out + slack, _LEAST), _MOST)

    def _states(self, machine: Factors) -> tuple[Tensor, float]:
        """The states of the present table, or of a new one where that does not fit, and a bound on log Σ left out."""
        L_A, centre = (part.cpu().numpy() for part in machine[:2])
        norms = np.diag(L_A) ** 2
        log_smallest = -0.125 * float(norms.sum())  # some point of the lattice is as near as that
        if self._table is not None:
            self._left_out = self._table.log_left_out(L_A, centre) - log_smallest
        if self._table is None or self._left_out > self._allowed or self._is_wasteful():
            radius2 = float(squared_radius(norms, log_smallest, math.exp(self._allowed - _MARGIN)))
            self._table = Table(L_A, centre, _SLACK * math.sqrt(radius2), machine.L_A.device)
            self._left_out = self._table.log_left_out(L_A, centre) - log_smallest
        return self._table.states, self._left_out + log_smallest

    def _is_wasteful(self) -> bool:
        """Whether the table is long, and leaves out far less than is allowed."""
        is_long = self._table is not None and len(self._table.states) > SHORT
        return is_long and self._left_out < self._allowed - _SURPLUS


class _LogProb(torch.autograd.Function):
    """log P (n,) over given states, with derivatives in closed form."""

    @staticmethod
    def forward(ctx: Any, vector: Tensor, x: Tensor, mixture: "StateMixture") -> Tensor:
        log_prob, ctx.posterior = mixture.evaluate(x)
        ctx.x, ctx.mixture = x, mixture
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.mixture.gradient(ctx.mixture.statistics(ctx.x, weights, ctx.posterior)), None, None


def _incomplete_log_prob(
    vector: Tensor, n_visible: int, n_hidden: int, states: Tensor, patterns: list[Pattern]
) -> tuple[Tensor, float]:
    """log P (n,) of what is present in points with NaN entries, and the log of the highest peak of them all."""
    values, log_peak = [], -math.inf
    machine = factors_of(vector, n_visible, n_hidden)
    for rows, present, points in patterns:
        if not len(present):
            values.append(vector.new_zeros(len(rows)))
            continue
        marginal = vector if len(present) == n_visible else _marginal(machine, vector, present)
        mixture = StateMixture(factors_of(marginal.detach(), len(present), n_hidden), states)
        values.append(_LogProb.apply(marginal, points, mixture))
        log_peak = max(log_peak, -float(mixture.log_volume))
    order = torch.cat([pattern.rows for pattern in patterns])
    return vector.new_zeros(len(order)).index_copy(0, order, torch.cat(values)), log_peak


def _marginal(machine: Factors, vector: Tensor, present: Tensor) -> Tensor:
    """The free parameters of a marginal: those of P(h), and the rows and columns of the rest that are present."""
    L_A, centre, F, mean, L = machine
    n_hidden_parameters = len(L_A) * (len(L_A) + 1) // 2 + len(centre)
    width = log_cholesky((L @ L.mT)[present][:, present])
    return torch.cat([vector[:n_hidden_parameters], F[present].reshape(-1), mean[present], width])


class Statistics(NamedTuple):
    """What the points say about the states, as sums over points with weights: all that derivatives and EM need."""

    counts: Tensor  # (S,): Σ_n w_n P(h|x_n)
    sums: Tensor  # (S, Nv): Σ_n w_n P(h|x_n) y_n
    squares: Tensor  # (Nv, Nv): Σ_n w_n y_n y_nᵀ
    total: Tensor  # Σ_n w_n


class StateMixture:
    """The Gaussian mixture of a machine over given states (S, Nh), in coordinates y = L⁻¹x."""

    def __init__(self, machine: Factors, states: Tensor):
        self.machine, self.states = machine, states
        L_A, centre, F, mean, L = machine
        eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
        self.L_inverse = torch.linalg.solve_triangular(L, eye, upper=False)
        self.distance = (states - centre) @ L_A
        log_weights = -0.5 * self.distance.square().sum(1)
        self.log_sum = log_weights.logsumexp(0)
        self.log_prior = log_weights - self.log_sum
        self.means = (states @ F.mT + mean) @ self.L_inverse.mT
        self.log_volume = L.diagonal().log().sum() + 0.5 * len(L) * math.log(TWO_PI)
        self._bias = self.log_prior - 0.5 * self.means.square().sum(1)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """log P (n,) at points x (n, Nv), and P(h|x) (n, S) unless that is too much to keep; then it is empty."""
        size = self._block_rows(x)
        if len(x) <= KEPT_BLOCKS * size:
            return self._evaluate(x)
        return torch.cat([self._evaluate(part)[0] for part in x.split(size)]), x.new_empty(0)

    def _block_rows(self, x: Tensor) -> int:
        return max(1, (GPU_ELEMENTS if x.is_cuda else CPU_ELEMENTS) // len(self.states))

    def _evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ self.L_inverse.mT
        logits = torch.addmm(self._bias, y, self.means.mT)
        top = logits.amax(1)
        terms = logits.sub_(top[:, None]).clamp_(min=NEGLIGIBLE).exp_()
        total = terms.sum(1)
        return total.log() + top - 0.5 * y.square().sum(1) - self.log_volume, terms.div_(total[:, None])

    def statistics(self, x: Tensor, weights: Tensor, posterior: Tensor) -> Statistics:
        """The sums over points x (n, Nv) with weights (n,); `posterior` as `evaluate` returned it."""
        size = len(x) if len(posterior) else self._block_rows(x)
        counts, sums = torch.zeros_like(self.log_prior), torch.zeros_like(self.means)
        squares = torch.zeros_like(self.L_inverse)
        for part, w in zip(x.split(size), weights.split(size), strict=True):
            y = part @ self.L_inverse.mT
            share, weighted = posterior if len(posterior) else self._evaluate(part)[1], w[:, None] * y
            counts, sums, squares = counts + w @ share, sums + share.mT @ weighted, squares + y.mT @ weighted
        return Statistics(counts, sums, squares, weights.sum())

    def gradient(self, statistics: Statistics) -> Tensor:
        """The derivative of Σ_n w_n log P(x_n) in the vector of free parameters."""
        L_A, centre, _, _, L = self.machine
        counts, sums, squares, total = statistics
        excess = counts - total * self.log_prior.exp()
        d_means = (sums - counts[:, None] * self.means) @ self.L_inverse
        cross = sums.mT @ self.means
        residual = squares - cross - cross.mT + self.means.mT @ (counts[:, None] * self.means)
        pulled = excess[:, None] * self.distance
        d_L_A = -(self.states - centre).mT @ pulled
        d_L = self.L_inverse.mT @ residual - total * torch.diag(1 / L.diagonal())
        return torch.cat(
            [
                _free_part(d_L_A, L_A),
                L_A @ pulled.sum(0),
                (d_means.mT @ self.states).reshape(-1),
                d_means.sum(0),
                _free_part(d_L, L),
            ]
        )


def _free_part(gradient: Tensor, factor: Tensor) -> Tensor:
    """The derivative in a log-Cholesky vector, from that in the factor."""
    row, column = torch.tril_indices(*factor.shape)
    scale = torch.where((row == column).to(factor.device), factor[row, column], 1.0)
    return gradient[row, column] * scale
