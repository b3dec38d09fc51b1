"""Densities of single columns: one machine with two hidden units for each, all fitted in one compiled call."""

import math
from typing import Annotated, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.theta import kernels
from rtbm.theta.kernels import compiled
from rtbm.training.coordinates import SMALLEST_SAMPLE
from rtbm.training.families import Family, Prior
from rtbm.training.families.dense import OVERLAP, RANGE_TAIL, RIGIDITY, STIFFNESS
from rtbm.training.likelihood import log_prob
from rtbm.training.objective import Objective
from rtbm.training.solvers import SOLVERS
from rtbm.training.sums import ArrayBlocks
from rtbm.training.sums.dense import (
    LOG_TWO_PI,
    add_penalty,
    likelihood_gradient,
    make_view,
    new_sums,
    pack_machines,
    unpack_machines,
)
from rtbm.training.sums.states import sum_far, tabulate

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
FIT_OMITTED, OMITTED, ROOM = -50.0, -37.0, 512
"""Log of the share of hidden states that tables omit, in fits and afterwards, and the most states of a table. Fits omit
less, since they begin with machines that are far from some points."""
FAR = -20.0
"""Points whose log P is lower than the peak of a state by this much are summed over states of their own. For others,
OMITTED is negligible."""
FIT_SKIPPED, SKIPPED = 20.0, 37.0
"""States whose terms are at most exp(−SKIPPED) of the largest one are skipped, in fits and afterwards. Less costs
digits."""


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
        starts = _make_starts(quantiles)
        if kernels.AVAILABLE:
            return cls(_fit_all(z, masses / total[:, None], starts, widths, total), centre, scale)
        solver = SOLVERS["lbfgs"](max_iter=MAX_ITER, tol=TOL)
        for i, start in enumerate(starts):
            source = ArrayBlocks(torch.from_numpy(z[i][:, None]), torch.from_numpy(masses[i]))
            objective = Objective(FAMILY, source, Prior(1.0, widths[i : i + 1]))
            starts[i] = solver.minimise(objective, torch.from_numpy(start.copy())).vector.numpy()
        return cls(starts, centre, scale)

    def log_prob(self, x: Floats) -> Floats:
        """log P (n, d) of the entries of x (n, d); 0 where they are missing."""
        absent = np.isnan(x)
        z = np.ascontiguousarray(((np.where(absent, self.centre, x) - self.centre) / self.scale).T)
        log_prob, far = np.empty(z.shape), np.ones(z.shape, dtype=bool)
        if kernels.AVAILABLE:
            _log_prob_all(self.vectors, z, log_prob, far)
        for i in np.flatnonzero(far.any(axis=1)):
            log_prob[i, far[i]] = _far_log_prob(self.vectors[i], z[i, far[i]])
        return np.where(absent, 0.0, log_prob.T - np.log(self.scale))

    def normals(self, i: int) -> tuple[Floats, Floats, Floats]:
        """Column i as a sum of normals: their weights, centres and scales (S,), the largest weight first.

        Where hidden units are too soft for a table, the sum is one normal.
        """
        machines, states = _machines_and_states(self.vectors[i], OMITTED)
        if len(states.delta) == 0:
            return np.ones(1), self.centre[i : i + 1], self.scale[i : i + 1]
        order = np.argsort(-states.log_prior, kind="stable")
        places = machines.mean[0, 0] + (states.delta[order] + machines.centre[0]) @ machines.F[0, 0]
        weights = np.exp(states.log_prior[order])
        scales = np.full(len(order), self.scale[i] * machines.L[0, 0, 0])
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
    return pack_machines(np.zeros(len(low)), *parts)[: FAMILY.n_parameters * len(low)].reshape(len(low), -1)


@compiled
def _machines_and_states(vector, omitted):
    """A vector as `Machines`, of which there is one, and the table of its states, which is empty if it is too long."""
    one, n_hidden, room = np.int64(1), np.int64(N_HIDDEN), np.int64(ROOM)
    machines = unpack_machines(vector, one, one, n_hidden)
    return machines, tabulate(machines, np.full(1, omitted), room)


@compiled
def _fill_terms(x, places, log_prior, precision, skipped, terms):
    """Fill terms (S,) with P(x, s) for the states of a machine, relative to the largest; returns the log of that.

    `places` (S,) are the centres of the states, and `precision` is 1/L. The factor of N(v|h) is left out. Terms of at
    most exp(−skipped) are 0.
    """
    top = -np.inf
    for s in range(len(places)):
        noise = precision * (x - places[s])
        terms[s] = log_prior[s] - 0.5 * noise * noise
        top = max(top, terms[s])
    for s in range(len(places)):
        terms[s] = math.exp(terms[s] - top) if terms[s] > top - skipped else 0.0
    return top


@compiled
def _objective(vector, z, weights, total, width, gradient):
    """The negative mean log P plus prior of a machine, and its gradient; infinite where its table is too long."""
    machines, states = _machines_and_states(vector, FIT_OMITTED)
    if len(states.delta) == 0:
        return np.inf
    gradient[:] = 0.0
    penalty = add_penalty(machines, 1.0, width, RIGIDITY, STIFFNESS, gradient)
    delta, precision, squares, value = states.delta, 1 / machines.L[0, 0, 0], 0.0, 0.0
    places = machines.mean[0, 0] + (delta + machines.centre[0]) @ machines.F[0, 0]
    terms, counts, noises = np.empty(len(places)), np.zeros(len(places)), np.zeros(len(places))
    for b in range(len(z)):
        if weights[b] == 0.0:
            continue
        top = _fill_terms(z[b], places, states.log_prior, precision, FIT_SKIPPED, terms)
        all_terms = terms.sum()
        value += weights[b] * (top + math.log(all_terms))
        for s in range(len(places)):
            share, noise = weights[b] / all_terms * terms[s], precision * (z[b] - places[s])
            counts[s] += share
            noises[s] += share * noise
            squares += share * noise * noise
    n_machines, d, g = machines.F.shape
    sums = new_sums(n_machines, d, g)
    sums.shares[0], sums.noise[0, 0], sums.square[0, 0, 0] = counts.sum(), noises.sum(), squares
    sums.first[0], sums.cross[0, 0] = counts @ delta, noises @ delta
    for i in range(N_HIDDEN):
        sums.second[0, i] = (counts * delta[:, i]) @ delta
    gradient[:] = gradient / total - likelihood_gradient(sums, machines, states)
    return penalty / total - value - math.log(precision) + 0.5 * LOG_TWO_PI


def _fit_all(z, weights, starts, widths, total):
    """Minimise the objective of each column from its start, by BFGS: the vectors (d, n_parameters).

    z and weights (d, NODES) are standardised nodes and their weights, of sum 1, and `total` (d,) the numbers of
    observations.
    """
    size, vectors = starts.shape[1], starts.copy()
    gradient, trial_gradient = np.empty(size), np.empty(size)
    for i in range(len(z)):
        width, vector, n_small = widths[i : i + 1], starts[i].copy(), 0
        value = _objective(vector, z[i], weights[i], total[i], width, gradient)
        inverse = np.eye(size) / max(1.0, math.sqrt((gradient**2).sum()))
        for iteration in range(MAX_ITER):
            direction = -(inverse @ gradient)
            slope = direction @ gradient
            step, trial, trial_value = 2.0, vector, np.inf
            for _ in range(20):
                step *= 0.5
                trial = vector + step * direction
                trial_value = _objective(trial, z[i], weights[i], total[i], width, trial_gradient)
                if trial_value <= value + 1e-4 * step * slope:
                    break
            gain = value - trial_value
            if not gain > 0:
                break
            moved, change = step * direction, trial_gradient - gradient
            along = moved @ change
            if along > 1e-12:
                if iteration == 0:
                    inverse = np.eye(size) * (along / (change @ change))
                turned = inverse @ change
                factor = (1 + (change @ turned) / along) / along
                inverse += factor * np.outer(moved, moved)
                inverse -= (np.outer(turned, moved) + np.outer(moved, turned)) / along
            vector, value = trial, trial_value
            gradient[:] = trial_gradient
            n_small = n_small + 1 if gain < TOL * max(1.0, abs(value)) else 0
            if n_small == 2:
                break
        vectors[i] = vector
    return vectors


@compiled
def _log_prob_all(vectors, z, log_prob, far):
    """Fill log_prob (d, n) with log P of z (d, n), and `far` (d, n) with where that would take a longer table."""
    for i in range(len(z)):
        machines, states = _machines_and_states(vectors[i], OMITTED)
        if len(states.delta) == 0:
            continue
        precision, terms = 1 / machines.L[0, 0, 0], np.empty(len(states.delta))
        places = machines.mean[0, 0] + (states.delta + machines.centre[0]) @ machines.F[0, 0]
        log_peak = math.log(precision) - 0.5 * LOG_TWO_PI
        for j in range(z.shape[1]):
            top = _fill_terms(z[i, j], places, states.log_prior, precision, SKIPPED, terms)
            far[i, j] = not top > FAR
            log_prob[i, j] = log_peak + top + math.log(terms.sum())


def _far_log_prob(vector: Floats, z: Floats) -> Floats:
    """log P (n,) of points (n,) that are far from their machine, or of one whose hidden units are soft."""
    machines, states = _machines_and_states(vector, OMITTED)
    if kernels.AVAILABLE and len(states.delta):
        view = make_view(machines, states, np.zeros(1, dtype=np.int64))
        y = (z[None, :, None] - view.origin) @ view.inverse
        form = machines.L_A @ machines.L_A.mT + view.slopes.mT @ view.slopes
        shift = np.ascontiguousarray(np.linalg.solve(form, (y @ view.slopes).mT).mT)
        sums = new_sums(1, 1, N_HIDDEN)
        joint, ones = np.empty((len(z), 1)), np.ones(len(z))
        if sum_far(
            ones, np.empty((0, 0)), y, shift, np.linalg.cholesky(form), machines, states, view, False, ROOM, sums, joint
        ):
            return joint[:, 0]
    return log_prob(FAMILY, torch.from_numpy(vector), torch.from_numpy(z[:, None].copy())).numpy()
