"""The likelihood of machines, from a handful of sums over the data."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions.missing import missing_patterns
from rtbm.errors import TooManyTermsError
from rtbm.theta import kernels
from rtbm.theta.chunks import run_threads
from rtbm.training.statistics import dense, numba, triton
from rtbm.training.statistics import torch as reference
from rtbm.training.statistics.dense import Machines, States, View
from rtbm.training.statistics.diagonal import DiagonalEvaluation, DiagonalLikelihood

TOLERANCE = 1e-7
"""Bounds the error of the mean log P that comes from hidden states that are left out."""
MAX_STATES, MAX_STATES_WIDE = 2**16, 2**11
"""Beyond this many states of a machine theta functions are the faster way: for up to two features, where most states
are far from a block of points and are skipped, and for more."""
SCATTER_ROWS = 2**22
"""Points whose second moments are found at a time."""
STRIP = 256
"""Points that are sorted by two features are in squares of about this many."""
MANY_POINTS, CELL_POINTS, CELL_RANGE = 2**15, 64, 4.0
"""From so many points on they are not sorted but counted into cells, which have about CELL_POINTS points each and cover
CELL_RANGE standard deviations to either side. That takes a tenth of the time."""
FEW_STATES = 64
"""The room that tables of all machines are given first."""
MARGIN, SURPLUS = 3.0, 6.0
"""Tables aim at exp(−MARGIN) of the tolerance, and are made shorter when they are beyond exp(−SURPLUS) of it."""
FAR_STATES = 2**12
"""States of all machines that a point may have that is too far out for the tables."""
LEAST, FIRST, MOST = -60.0, math.log(1e-9), math.log(1e-3)
"""Logarithm of what a table may leave out: the lower limit, the first value, the upper limit. Points that need longer
tables have lists of their own."""


class Block(NamedTuple):
    """Points with the same entries present, and what does not change while machines are fitted to them."""

    rows: Any  # (n,): their numbers in the data, or slice(None) for all in their order
    present: np.ndarray  # (p,)
    points: Any  # (n, p): an array for the compiled pass, else a tensor
    weights: Any  # (n,)
    total: float  # Σ w
    mean: Floats  # (p,)
    scatter: Floats  # (p, p): Σ w (x − mean)(x − mean)ᵀ

    @property
    def is_compiled(self) -> bool:
        """Whether the compiled pass serves these points."""
        return isinstance(self.points, np.ndarray)


def make_blocks(x: Tensor, weights: Tensor) -> list[Block]:
    """The blocks of data x (n, d) with weights (n,); NaN entries are missing, and rows without entries are left out.

    For the compiled pass, points are sorted along the first two features: it skips states that are far from all points
    of a small block, and neighbours have more of them in common.
    """
    patterns = missing_patterns(x)
    if not patterns:
        return [_make_block(slice(None), np.arange(x.shape[1]), x, weights)] if len(x) else []
    return [
        _make_block(rows.cpu().numpy(), present.cpu().numpy(), points, weights[rows])
        for rows, present, points in patterns
        if len(present)
    ]


def _make_block(rows: Any, present: np.ndarray, points: Tensor, weights: Tensor) -> Block:
    total = float(weights.sum())
    mean = (weights @ points) / total
    scatter = torch.zeros_like(mean).repeat(len(mean), 1)
    for part, w in zip(points.split(SCATTER_ROWS), weights.split(SCATTER_ROWS), strict=True):
        centred = part - mean
        scatter += centred.mT @ (w[:, None] * centred)
    moments = total, mean.cpu().numpy(), scatter.cpu().numpy()
    if points.is_cuda or not kernels.AVAILABLE:
        return Block(rows, present, points.contiguous(), weights.contiguous(), *moments)
    order = _order(points).numpy()
    rows = order if isinstance(rows, slice) else rows[order]
    return Block(rows, present, points.numpy().take(order, axis=0), weights.numpy().take(order), *moments)


def _order(points: Tensor) -> Tensor:
    """The rows in the order of strips of the first feature, and of the second one within."""
    if len(points) >= MANY_POINTS:
        return _order_by_cells(points[:, :2])
    first = points[:, 0].argsort(stable=True)
    if points.shape[1] == 1 or len(points) <= STRIP:
        return first
    n_strips = max(1, round(math.sqrt(len(points) / STRIP)))
    strip = torch.empty_like(first)
    strip[first] = torch.arange(len(first), device=first.device) * n_strips // len(first)
    second = points[:, 1].argsort(stable=True)
    return second[strip[second].argsort(stable=True)]


def _order_by_cells(points: Tensor) -> Tensor:
    """The same without sorting, for many points (n, 1 or 2): cells within CELL_RANGE standard deviations."""
    variance, mean = torch.var_mean(points, 0)
    deviation = variance.sqrt().clamp(min=1e-300)
    n_cells = max(1, round((len(points) / CELL_POINTS) ** (1 / points.shape[1])))
    low, scale = mean - CELL_RANGE * deviation, 0.5 * n_cells / (CELL_RANGE * deviation)
    return torch.from_numpy(numba.order_by_cells(points.numpy(), low.numpy(), scale.numpy(), n_cells))


def sum_points(
    block: Block,
    view: View,
    states: States,
    log_scale: float,
    wants_sums: bool,
    log_joint: Any = None,
    lowest: float = -math.inf,
    far: np.ndarray | None = None,
) -> Floats:
    """The sums over the points of a block, by the fastest way there is for their device.

    `log_joint` (n, K) is filled with the log of weight times density of each machine. Points whose log P is below
    `lowest` are left out, and marked in `far` (n,).
    """
    (p, g), K = view.slopes.shape[1:], len(view.origin)
    if not block.is_compiled:
        backend = triton if triton.is_served(block.points) else reference
        weights = block.weights
        if far is not None:
            joint = block.points.new_empty(len(block.points), K) if log_joint is None else log_joint
            backend.sum_points(block.points, weights, view, states, log_scale, wants_sums=False, log_joint=joint)
            is_far = ~(joint.logsumexp(1) >= lowest)
            far[:] = is_far.cpu().numpy()
            weights = torch.where(is_far, 0.0, weights)
        sums = backend.sum_points(
            block.points, weights, view, states, log_scale, wants_sums=wants_sums, log_joint=log_joint
        )
        return _completed(sums, block, view) if wants_sums and K == 1 else sums
    n = len(block.points)
    n_chunks = -(-n // numba.CHUNK)
    out = np.zeros((n_chunks, 2 + K * (1 + g + g * g + p + p * g + p * p)))
    joint = np.empty((0, 0)) if log_joint is None else log_joint
    marks = np.empty(0, dtype=bool) if far is None else far
    width = numba.width_for(len(states.delta))

    def run(begin: int, end: int) -> None:
        numba.sum_chunks(
            block.points, block.weights, begin, end, width, *view[:5], states.delta, states.first, log_scale,
            wants_sums, lowest, marks, out, joint,
        )  # fmt: skip

    run_threads(run, n_chunks, work=n)
    sums = out.sum(axis=0)
    return _completed(sums, block, view) if wants_sums and K == 1 else sums


def _completed(sums: Floats, block: Block, view: View) -> Floats:
    """The sums of one machine with Σ y and Σ yyᵀ, which follow from the mean and scatter of the points."""
    numba.complete_moments(sums, view.inverse, view.origin, view.slopes, block.total, block.mean, block.scatter)
    return sums


class Source(Protocol):
    """Data in blocks, wherever they are."""

    def add(self, function: "BlockSums | LikelihoodSums") -> Floats:
        """The sums of a function over all blocks."""


class Memory:
    """Blocks in memory."""

    def __init__(self, blocks: Iterable[Block]):
        self.blocks = list(blocks)

    def add(self, function: "BlockSums | LikelihoodSums") -> Floats:
        """The sums of a function over all blocks."""
        return function(self.blocks)


class BlockSums(NamedTuple):
    """What one step adds up over blocks, and can be added up over processes.

    Σ w log P, Σ w/P, the same times the highest peak of each machine (K,), and the residuals of `add_residuals`.
    """

    machines: Machines
    states: States
    log_scales: Floats  # (1 + K,): the logarithms of what the sums after the first are divided by
    wants_sums: bool = True
    is_limited: bool = False  # whether tables are shorter than they should be, and some points too far out for them

    def view(self, present: np.ndarray) -> View:
        """How the machines see points with these entries."""
        log_weights, _, centre, F, mean, L = self.machines
        return View(*numba.view(log_weights, centre, F, mean, L, *self.states[:3], present))

    def __call__(self, blocks: Iterable[Block]) -> Floats:
        """The sums over some blocks."""
        log_weights, _, centre, F, mean, L = self.machines
        K, d, g = F.shape
        size = 1 + g + g * g + d + d * g + d * d if self.wants_sums else 0
        result = np.zeros(2 + K + K * size)
        residuals = result[2 + K :].reshape(K if size else 0, size)
        for block in blocks:
            if block.is_compiled and len(block.points) <= numba.CHUNK and not self.is_limited:
                numba.sum_block(
                    *block[2:4], block.present, *block[4:7], log_weights, centre, F, mean, L, *self.states[:3],
                    self.log_scales, result, residuals,
                )  # fmt: skip
                continue
            view = self.view(block.present)
            numba.add_sums(self.sum(block, view), self.log_scales, view, result, residuals)
        return result

    def sum(self, block: Block, view: View, log_joint: Any = None) -> Floats:
        """The sums over one block, with points that are too far out for the tables by lists of their own."""
        log_scale = float(self.log_scales[0])
        if not self.is_limited:
            return sum_points(block, view, self.states, log_scale, self.wants_sums, log_joint)
        far = np.zeros(len(block.points), dtype=bool)
        missing = self.machines.log_weights + self.states.log_left_out + view.log_peak
        lowest = float(np.logaddexp.reduce(missing)) - math.log(TOLERANCE)
        sums = sum_points(block, view, self.states, log_scale, self.wants_sums, log_joint, lowest, far)
        if far.any():
            self._add_far(block, view, far, sums, log_joint)
        return sums

    def _add_far(self, block: Block, view: View, far: np.ndarray, sums: Floats, log_joint: Any) -> None:
        points, weights = (part[far] if block.is_compiled else part[torch.from_numpy(far)] for part in block[2:4])
        if not block.is_compiled:
            points, weights = points.cpu().numpy(), weights.cpu().numpy()
        joint = np.empty((len(points) if log_joint is not None else 0, len(view.log_peak)))
        log_factors = self.machines.log_weights + view.log_peak
        if not dense.sum_far(
            np.ascontiguousarray(points), weights, self.machines.L_A, self.machines.centre, self.states.log_prior,
            self.states.delta, self.states.first, *view[:3], log_factors, self.wants_sums, FAR_STATES, sums, joint,
        ):  # fmt: skip
            raise TooManyTermsError(math.inf, FAR_STATES)
        if log_joint is not None:
            log_joint[far] = joint if block.is_compiled else torch.from_numpy(joint).to(log_joint.device)


class Parts(NamedTuple):
    """The residuals of machines as matrices, with the design (δ, 1)."""

    gram: Floats  # (K, g + 1, g + 1): Σ (δ, 1)(δ, 1)ᵀ
    cross: Floats  # (K, d, g + 1): Σ ε(δ, 1)ᵀ
    square: Floats  # (K, d, d): Σ εεᵀ


class Evaluation(NamedTuple):
    """The outcome of one pass over the data."""

    machines: Machines
    states: States
    log_likelihood: float  # Σ w log P
    residuals: Floats  # (K, 1 + g + g² + d(1 + g + d)): see `add_residuals`

    def parts(self) -> Parts:
        """The residuals as matrices."""
        K, d, g = self.machines.F.shape
        total, first, second, noise, cross, square = np.split(
            self.residuals, np.cumsum([1, g, g * g, d, d * g]), axis=1
        )
        gram = np.empty((K, g + 1, g + 1))
        gram[:, :g, :g], gram[:, :g, g], gram[:, g, :g] = second.reshape(K, g, g), first, first
        gram[:, g, g] = total[:, 0]
        cross = np.concatenate([cross.reshape(K, d, g), noise[:, :, None]], axis=2)
        return Parts(gram, cross, square.reshape(K, d, d))

    def gradient(self) -> Floats:
        """The derivative of Σ w log P in the vector of free parameters."""
        machines, states = self.machines, self.states
        K, d, g = machines.F.shape
        n_machine = g * (g + 1) // 2 + g + d * g + d + d * (d + 1) // 2
        result = np.empty(K * n_machine + (K if K > 1 else 0))
        dense.likelihood_gradient(
            self.residuals, machines.L_A, machines.centre, machines.L, states.mean, states.second,
            machines.log_weights, result,
        )  # fmt: skip
        return result


class Tables:
    """Tables of hidden states that follow machines while these are fitted, as long as the data need them.

    Parameters
    ----------
    n_machines, n_visible, n_hidden : int
        The sizes of the machines.
    """

    def __init__(self, n_machines: int, n_visible: int, n_hidden: int):
        self._sizes = n_machines, n_visible, n_hidden
        self._allowed = np.full(n_machines, FIRST)
        self._log_scales = np.zeros(1 + n_machines)
        self._room, self._limit = FEW_STATES, MAX_STATES if n_visible <= 2 else MAX_STATES_WIDE
        self._is_limited = False

    def evaluate(self, vector: Floats, source: Source, wants_sums: bool = True) -> Evaluation:
        """One pass over data whose weights have sum 1, or more until the tables are long enough.

        The mean log P is right to TOLERANCE. A TooManyTermsError says that this takes more states than are worth it, or
        that the parameters leave float64.
        """
        machines = Machines(*dense.unpack_machines(vector, *self._sizes))
        K = len(machines.F)
        for _ in range(4):
            states, is_limited = self._longest(machines)
            sums = source.add(BlockSums(machines, states, self._log_scales, wants_sums, is_limited))
            if not math.isfinite(sums[0]):
                break
            if is_limited or dense.adjust(
                machines.log_weights, states.log_left_out, sums[1 : 2 + K], self._log_scales, self._allowed,
                math.log(TOLERANCE), MARGIN, SURPLUS, LEAST, MOST,
            ):  # fmt: skip
                residuals = sums[2 + K :].reshape(K, -1) if wants_sums else sums[:0]
                return Evaluation(machines, states, float(sums[0]), residuals)
            self._is_limited = bool((self._allowed <= LEAST).any())
        raise TooManyTermsError(math.inf, self._limit)

    def _longest(self, machines: Machines) -> tuple[States, bool]:
        """Tables that leave out what is allowed, or the longest possible ones, and whether they are shorter than that.

        Then points may be too far out for them. They are few, and so tables stay as they are once that has happened.
        """
        while True:
            try:
                return self._tabulate(machines, self._allowed), self._is_limited
            except TooManyTermsError:
                if (self._allowed >= MOST).all():
                    self._allowed, self._is_limited = np.full(len(self._allowed), FIRST), False
                    raise
                self._allowed, self._is_limited = np.minimum(self._allowed + 3.0, MOST), True

    def _tabulate(self, machines: Machines, allowed: Floats) -> States:
        """The tables of machines, in as much room as they take."""
        while True:
            states = States(*dense.tabulate(machines.L_A, machines.centre, allowed, self._room))
            if len(states.delta):
                return states
            if self._room == self._limit:
                self._room = FEW_STATES
                raise TooManyTermsError(math.inf, self._limit)
            self._room = min(4 * self._room, self._limit)

    def log_joint(self, vector: Floats, blocks: list[Block], n: int, device: torch.device) -> Tensor:
        """The log of weight times density of each machine (n, K), with the tables of the last evaluation."""
        machines = Machines(*dense.unpack_machines(vector, *self._sizes))
        states, is_limited = self._longest(machines)
        function = BlockSums(machines, states, self._log_scales, False, is_limited)
        result = torch.from_numpy(machines.log_weights).to(device).repeat(n, 1)
        for block in blocks:
            values = torch.empty(len(block.points), len(machines.F), dtype=torch.float64, device=device)
            function.sum(block, function.view(block.present), values.numpy() if block.is_compiled else values)
            rows = block.rows if isinstance(block.rows, slice) else torch.from_numpy(block.rows).to(device)
            result[rows] = values
        return result


class Family(Protocol):
    """What is fitted: see `rtbm.training.family.Family`."""

    n_visible: int
    n_hidden: int
    n_components: int
    coupling: str

    def distribution(self, vector: Tensor) -> Any:
        """The distribution of a vector; gradients flow to it."""


class Likelihood:
    """The mean log P of a family on weighted data, as a function of the vector of its free parameters.

    Dense machines are summed over tables of hidden states, and points that are too far out for these over states of
    their own. If hidden units are too soft for that, theta functions serve. Diagonal machines have a compiled pass of
    their own. Points with gaps take theta functions there, and so do points on a GPU, unless there is one machine with
    one feature.

    Parameters
    ----------
    family : Family
        What is fitted.
    x, weights : (n, Nv), (n,)
        The data; NaN entries are integrated out. Weights have sum 1.
    source : Memory
        Their blocks, if they are known.
    """

    def __init__(self, family: Family, x: Tensor, weights: Tensor, source: Memory | None = None):
        self.family, self.x, self.weights = family, x, weights
        if source is not None:
            self._source = source
        self._tables = Tables(family.n_components, family.n_visible, family.n_hidden)
        self._incomplete = torch.empty(0, dtype=torch.long, device=x.device)

    def value(self, vector: Tensor) -> float:
        """The mean log P."""
        with torch.no_grad():
            near = self._tabulated(vector, wants_sums=False)
            if near is None:
                return float(self._theta(vector))
            return near.log_likelihood + (
                float(self._theta(vector, self._incomplete)) if len(self._incomplete) else 0.0
            )

    def with_gradient(self, vector: Tensor) -> tuple[float, Floats]:
        """The mean log P, and its derivative."""
        near = self._tabulated(vector)
        if near is None:
            return self._differentiate(vector)
        value, gradient = near.log_likelihood, near.gradient()
        if len(self._incomplete):
            far, by_far = self._differentiate(vector, self._incomplete)
            return value + far, gradient + by_far
        return value, gradient

    def evaluate(self, vector: Tensor) -> Evaluation:
        """The sums over all data, for expectation maximisation. A TooManyTermsError says that tables are too long."""
        return self._tables.evaluate(_numpy(vector), self._source)

    def log_joint(self, vector: Tensor) -> Tensor:
        """The log of weight times density of each dense machine (n, K), or a TooManyTermsError."""
        return self._tables.log_joint(_numpy(vector), self._source.blocks, len(self.x), self.x.device)

    def log_prob(self, vector: Tensor) -> Tensor:
        """log P (n,) of each point."""
        with torch.no_grad():
            result = self._log_prob(vector)
            if result is None:
                return self.family.distribution(vector).log_prob(self.x)
            if len(self._incomplete):
                result[self._incomplete] = self.family.distribution(vector).log_prob(self.x[self._incomplete])
            return result

    def _log_prob(self, vector: Tensor) -> Tensor | None:
        """log P (n,), with zeros for points with gaps of diagonal machines; None if theta functions have to serve."""
        if self.family.coupling == "dense":
            return None if self._tabulated(vector, wants_sums=False) is None else self.log_joint(vector).logsumexp(1)
        near = None if self._diagonal is None else self._diagonal.log_prob(_numpy(vector))
        if near is None:
            return None
        result = self.x.new_zeros(len(self.x))
        result[~self.x.isnan().any(1)] = torch.from_numpy(near).to(result.device)
        return result

    def _tabulated(self, vector: Tensor, wants_sums: bool = True) -> Evaluation | DiagonalEvaluation | None:
        """The sums over all points (without gaps, if machines are diagonal); None if theta functions have to serve."""
        if self.family.coupling != "dense":
            return None if self._diagonal is None else self._diagonal.evaluate(_numpy(vector), wants_sums)
        try:
            return self._tables.evaluate(_numpy(vector), self._source, wants_sums)
        except TooManyTermsError:
            return None

    @cached_property
    def _diagonal(self) -> DiagonalLikelihood | None:
        """The compiled pass for diagonal machines, over the points without gaps.

        One machine with one feature needs the data only once, whatever device they are on.
        """
        complete = ~self.x.isnan().any(1)
        is_elsewhere = self.x.is_cuda and self.family.n_visible * self.family.n_components > 1
        if not kernels.AVAILABLE or is_elsewhere or not bool(complete.any()):
            return None
        self._incomplete = (~complete).nonzero()[:, 0]
        x, weights = (self.x[complete], self.weights[complete]) if len(self._incomplete) else (self.x, self.weights)
        return DiagonalLikelihood(x.cpu(), weights.cpu(), self.family.n_components, self.family.n_hidden)

    @cached_property
    def _source(self) -> Memory:
        return Memory(make_blocks(self.x, self.weights))

    def _differentiate(self, vector: Tensor, rows: Tensor | None = None) -> tuple[float, Floats]:
        free = vector.detach().requires_grad_()
        value = self._theta(free, rows)
        (gradient,) = torch.autograd.grad(value, free)
        return float(value.detach()), gradient.cpu().numpy()

    def _theta(self, vector: Tensor, rows: Tensor | None = None) -> Tensor:
        x, weights = (self.x, self.weights) if rows is None else (self.x[rows], self.weights[rows])
        return weights @ self.family.distribution(vector).log_prob(x)


@dataclass(frozen=True)
class LikelihoodSums:
    """Σ w log P over blocks and its derivative in the vector, by whichever way serves each block.

    For what tables of hidden states do not serve: diagonal machines and soft hidden units.
    """

    family: Family
    vector: Floats

    def __call__(self, blocks: Iterable[Block]) -> Floats:
        """The sums over some blocks (1 + n_parameters,)."""
        result = np.zeros(1 + len(self.vector))
        for block in blocks:
            points, weights = torch.as_tensor(block.points), torch.as_tensor(block.weights)
            x = points.new_full((len(points), self.family.n_visible), math.nan)
            x[:, torch.as_tensor(block.present, device=x.device)] = points
            vector = torch.from_numpy(self.vector).to(x.device)
            value, gradient = Likelihood(self.family, x, weights / block.total).with_gradient(vector)
            result[0] += block.total * value
            result[1:] += block.total * gradient
        return result


class SourceLikelihood:
    """The mean log P of a family on data of which nothing but sums is known, as a function of the vector.

    Parameters
    ----------
    family : Family
        What is fitted.
    source : Source
        The data in blocks. Their weights have sum 1.
    """

    def __init__(self, family: Family, source: Source):
        self.family, self._source = family, source
        self._tables = Tables(family.n_components, family.n_visible, family.n_hidden)

    def value(self, vector: Tensor) -> float:
        """The mean log P."""
        near = self._tabulated(vector, wants_sums=False)
        return self._by_block(vector)[0] if near is None else near.log_likelihood

    def with_gradient(self, vector: Tensor) -> tuple[float, Floats]:
        """The mean log P, and its derivative."""
        near = self._tabulated(vector)
        return self._by_block(vector) if near is None else (near.log_likelihood, near.gradient())

    def evaluate(self, vector: Tensor) -> Evaluation:
        """The sums over all data, for expectation maximisation. A TooManyTermsError says that tables are too long."""
        return self._tables.evaluate(_numpy(vector), self._source)

    def _tabulated(self, vector: Tensor, wants_sums: bool = True) -> Evaluation | None:
        if self.family.coupling != "dense":
            return None
        try:
            return self._tables.evaluate(_numpy(vector), self._source, wants_sums)
        except TooManyTermsError:
            return None

    def _by_block(self, vector: Tensor) -> tuple[float, Floats]:
        sums = self._source.add(LikelihoodSums(self.family, _numpy(vector)))
        return float(sums[0]), sums[1:]


def _numpy(vector: Tensor) -> Floats:
    return np.ascontiguousarray(vector.detach().cpu().numpy(), dtype=np.float64)
