"""Densities of single columns: one machine with two hidden units for each, all fitted together."""

import math
from typing import Annotated, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.errors import TooManyTermsError
from rtbm.training import machines as algebra
from rtbm.training.coordinates import SMALLEST_SAMPLE
from rtbm.training.family import Family
from rtbm.training.machines import LOG_TWO_PI, STIFFNESS, Machines, Prior, Sums
from rtbm.training.objective import ArrayBlocks, Likelihood
from rtbm.training.starts import OVERLAP, RANGE_TAIL
from rtbm.training.states import list_states

N_HIDDEN = 2
LEVELS = np.array([RANGE_TAIL, *np.arange(0.05, 1.0, 0.1), 1 - RANGE_TAIL])
NORMAL_GAPS: np.ndarray = np.diff(torch.special.ndtri(torch.from_numpy(LEVELS[1:-1])).numpy())
"""Quantiles of a column from which its start and its prior follow, and the distances of those of a normal distribution,
as in `coordinates.local_widths`."""
FAMILY = Family(1, N_HIDDEN)
NODES = 128
"""The number of weighted nodes, at most, to which a column is fitted. Fewer blur the density; more take longer."""
MAX_ITER, TOL = 100, 1e-4
"""The most iterations, and the gain of the mean log P below which, twice in a row, they end. Less changes little."""
ROOM = 512
"""The most states of a machine. Softer ones are not fitted."""


class ColumnDensities(NamedTuple):
    """The densities of d columns: machines for (x − centre)/scale."""

    vectors: Annotated[Floats, f"d {FAMILY.n_parameters}"]  # the members of FAMILY
    centre: Annotated[Floats, "d"]
    scale: Annotated[Floats, "d"]

    @classmethod
    def fit(cls, x: Floats, weights: Floats) -> "ColumnDensities":
        """Fit them to the columns of x (n, d), none of which is constant, with weights (n,). NaN is left out."""
        nodes, masses, quantiles = _make_nodes(x, weights)
        total = masses.sum(axis=1)
        centre = (masses * nodes).sum(axis=1) / total
        scale = np.sqrt((masses * (nodes - centre[:, None]) ** 2).sum(axis=1) / total)
        z = (nodes - centre[:, None]) / scale[:, None]
        quantiles = (quantiles - centre[:, None]) / scale[:, None]
        widths = np.median(np.diff(quantiles[:, 1:-1]) / NORMAL_GAPS, axis=1)
        widths = np.where((~np.isnan(x)).sum(axis=0) >= SMALLEST_SAMPLE, np.clip(widths, 0.05, 1.0), 1.0)
        return cls(_fit_all(_Objectives(z, masses / total[:, None], widths, total), _make_starts(quantiles)), centre, scale)

    def log_prob(self, x: Floats) -> Floats:
        """log P (n, d) of the entries of x (n, d); 0 where they are missing."""
        z, result = torch.from_numpy((x - self.centre) / self.scale), np.zeros(x.shape)
        for i, vector in enumerate(self.vectors):
            source = ArrayBlocks(z[:, i : i + 1].contiguous(), torch.ones(len(z), dtype=torch.float64))
            result[:, i] = Likelihood(FAMILY, source).log_prob(torch.from_numpy(vector)).numpy()
        return np.where(np.isnan(x), 0.0, result - np.log(self.scale))

    def normals(self, i: int) -> tuple[Floats, Floats, Floats]:
        """Column i as a sum of normals: their weights, centres and scales (S,), the largest weight first.

        Where hidden units are too soft for a list, the sum is one normal.
        """
        machine = FAMILY.machines(self.vectors[i])
        if _is_soft(machine).any():
            return np.ones(1), self.centre[i : i + 1], self.scale[i : i + 1]
        states = list_states(machine.L_A.mT, machine.centre, ROOM)
        order = np.argsort(-states.log_prior, kind="stable")
        places = machine.origin[0] + states.delta[order] @ machine.F[0, 0]
        weights = np.exp(states.log_prior[order])
        scales = np.full(len(order), self.scale[i] * machine.L[0, 0, 0])
        return weights / weights.sum(), self.centre[i] + self.scale[i] * places, scales


def _make_nodes(x: Floats, weights: Floats) -> tuple[Floats, Floats, Floats]:
    """Means and weights (d, NODES) of groups of neighbouring entries of each column, and its quantiles at LEVELS.

    Groups are small in the tails, where they hold single entries, and largest at the median.
    """
    d, order = x.shape[1], np.argsort(x.T, axis=1, kind="stable")  # NaN last
    x = np.take_along_axis(x.T, order, axis=1)
    w, x = np.where(np.isnan(x), 0.0, weights[order]), np.fmax.accumulate(x, axis=1)
    below = np.cumsum(w, axis=1)
    total = below[:, -1:]
    share = np.minimum((below - 0.5 * w) / total, 1.0)  # rounding may lead beyond
    place = np.minimum((NODES * (2 / math.pi) * np.arcsin(np.sqrt(share))).astype(np.int64), NODES - 1)
    group = place + NODES * np.arange(d)[:, None]
    masses, sums = (np.bincount(group.ravel(), of.ravel(), NODES * d).reshape(d, NODES) * 1.0 for of in (w, w * x))
    middle = np.broadcast_to((w * x).sum(axis=1)[:, None] / total, sums.shape)
    nodes = np.divide(sums, masses, out=middle.copy(), where=masses > 0)
    return nodes, masses, np.stack([np.interp(LEVELS, share[i], x[i]) for i in range(d)])


def _make_starts(quantiles: Floats) -> Floats:
    """The first vectors (d, n_parameters) for quantiles (d, len(LEVELS)) of columns: see `evenly_spaced`."""
    low, high = quantiles[:, 0], np.maximum(quantiles[:, -1], quantiles[:, 0] + 0.1)
    steps, spacing = 0.5 ** np.arange(1, N_HIDDEN + 1), (high - low) / 2**N_HIDDEN
    F = np.outer(high - low - spacing, steps / steps.sum())
    L_A = np.broadcast_to(math.sqrt(STIFFNESS) * np.eye(N_HIDDEN), (len(low), N_HIDDEN, N_HIDDEN))
    mean, width = 0.5 * (low + high - F.sum(axis=1)), np.minimum(1.0, OVERLAP * spacing)
    parts = L_A, np.full(F.shape, 0.5), F[:, None], mean[:, None], width[:, None, None]
    return algebra.pack(Machines(np.zeros(len(low)), *parts))[: F.shape[0] * FAMILY.n_parameters].reshape(len(low), -1)


def _is_soft(machines: Machines) -> Floats:
    """Which machines (d,) have too many states: their number goes as 1/√det A."""
    return ~(machines.L_A.diagonal(axis1=1, axis2=2).prod(axis=1) > 0.5)


class _Objectives(NamedTuple):
    """The negative mean log P plus prior of the machines of several columns."""

    z: Floats  # (d, NODES)
    weights: Floats  # (d, NODES), of sum 1
    widths: Floats  # (d,)
    total: Floats  # (d,): the numbers of observations

    def of(self, chosen: np.ndarray) -> "_Objectives":
        """Those of some columns."""
        return _Objectives(*(part[chosen] for part in self))

    @np.errstate(all="ignore")  # trial steps may leave float64
    def evaluate(self, vectors: Floats) -> tuple[Floats, Floats]:
        """The values (d,), and the gradients (d, n_parameters). They are infinite where machines are too soft."""
        values, gradients = np.full(len(vectors), np.inf), np.zeros(vectors.shape)
        machines = algebra.unpack(vectors.ravel(), len(vectors), 1, N_HIDDEN)
        known = np.isfinite(vectors).all(axis=1) & (np.abs(vectors).max(axis=1) < 100) & ~_is_soft(machines)
        if known.any():
            try:
                values[known], gradients[known] = self.of(known)._evaluate(vectors[known])
            except TooManyTermsError:  # one of them has too many states
                parts = np.array_split(np.flatnonzero(known), 2) if known.sum() > 1 else []
                for part in parts:
                    values[part], gradients[part] = self.of(part).evaluate(vectors[part])
        return values, np.where(np.isfinite(values)[:, None], gradients, 0.0)

    def _evaluate(self, vectors: Floats) -> tuple[Floats, Floats]:
        K = len(vectors)
        machines = algebra.unpack(vectors.ravel(), K, 1, N_HIDDEN)._replace(log_weights=np.zeros(K))
        states = list_states(machines.L_A.mT, machines.centre, ROOM)
        owner, width = states.owner, machines.L[:, 0, 0]
        places = machines.origin[owner, 0] + (states.delta * machines.F[owner, 0]).sum(axis=1)
        noise = (self.z[owner] - places[:, None]) / width[owner, None]
        logs = states.log_prior[:, None] - 0.5 * noise**2
        top = np.maximum.reduceat(logs, states.first[:-1])
        terms = np.exp(logs - top[owner])
        sums = np.add.reduceat(terms, states.first[:-1])
        log_prob = (self.weights * (top + np.log(sums))).sum(axis=1) - np.log(width) - 0.5 * LOG_TWO_PI
        shares = terms * (self.weights / sums)[owner]
        counts, noises = shares.sum(axis=1), (shares * noise).sum(axis=1)
        by_noise = states.total(noises)[:, None], states.expect(noises)[0][:, None]
        square = states.total((shares * noise**2).sum(axis=1))[:, None, None]
        all_sums = Sums(0.0, states.total(counts), *states.expect(counts), *by_noise, square)
        penalty, by_penalty = algebra.penalty(machines, Prior(1.0, self.widths[:, None]))
        gradient = algebra.gradient(machines, states, all_sums)
        by_penalty, gradient = (part[: vectors.size].reshape(vectors.shape) for part in (by_penalty, gradient))
        return penalty / self.total - log_prob, by_penalty / self.total[:, None] - gradient


def _fit_all(objectives: _Objectives, starts: Floats) -> Floats:
    """The vectors (d, n_parameters) that BFGS finds from the starts, for all columns at once."""
    vectors, size = starts.copy(), starts.shape[1]
    values, gradients = objectives.evaluate(vectors)
    inverses = np.eye(size) / np.maximum(1.0, np.linalg.norm(gradients, axis=1))[:, None, None]
    n_small, active = np.zeros(len(vectors), dtype=int), np.arange(len(vectors))
    for iteration in range(MAX_ITER):
        value, gradient, inverse = values[active], gradients[active], inverses[active]
        direction = -(inverse @ gradient[:, :, None])[:, :, 0]
        slope, step = (direction * gradient).sum(axis=1), np.ones(len(active))
        trial, trial_value, trial_gradient = vectors[active], np.full(len(active), np.inf), gradient.copy()
        missing = np.ones(len(active), dtype=bool)
        for _ in range(20):  # of each column's step, until it improves enough
            trial[missing] = vectors[active[missing]] + step[missing, None] * direction[missing]
            trial_value[missing], trial_gradient[missing] = objectives.of(active[missing]).evaluate(trial[missing])
            missing &= ~(trial_value <= value + 1e-4 * step * slope)
            if not missing.any():
                break
            step[missing] *= 0.5
        gain = value - trial_value
        moved, change = trial - vectors[active], trial_gradient - gradient
        along = (moved * change).sum(axis=1)
        if iteration == 0:
            first = np.where(along > 1e-12, along / np.maximum((change**2).sum(axis=1), 1e-300), 1.0)
            inverse = np.where((along > 1e-12)[:, None, None], first[:, None, None] * np.eye(size), inverse)
        turned, over = (inverse @ change[:, :, None])[:, :, 0], 1 / np.maximum(along, 1e-12)[:, None, None]
        outer = moved[:, :, None] * moved[:, None]
        cross = turned[:, :, None] * moved[:, None]
        updated = inverse + over * (1 + (change * turned).sum(axis=1)[:, None, None] * over) * outer
        updated -= over * (cross + cross.mT)
        inverses[active] = np.where((along > 1e-12)[:, None, None], updated, inverse)
        better = gain > 0
        kept = active[better]
        vectors[kept], values[kept], gradients[kept] = trial[better], trial_value[better], trial_gradient[better]
        is_small = gain < TOL * np.maximum(1.0, np.abs(trial_value))
        n_small[active] = np.where(is_small, n_small[active] + 1, 0)
        active = active[better & (n_small[active] < 2)]
        if not len(active):
            break
    return vectors
