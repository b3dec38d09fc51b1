"""The sums of one pass over blocks of points, from tables of hidden states, and what follows from them."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from rtbm.common import Floats
from rtbm.errors import TooManyTermsError
from rtbm.theta.chunks import run_threads
from rtbm.training.sums import dense, gaps, numba, triton
from rtbm.training.sums import torch as reference
from rtbm.training.sums.blocks import PointBlock, split_patterns
from rtbm.training.sums.dense import Machines, States, Sums, View, n_sums, unpack_sums
from rtbm.training.sums.states import sum_far

FAR_STATES = 2**12
"""The most states, of all machines, for a point that is too far out for the tables. Beyond, theta functions serve."""


def sum_points(
    block: PointBlock,
    view: View,
    log_scale: float,
    wants_sums: bool,
    log_joint: Any = None,
    left_out: Floats | None = None,
    far: np.ndarray | None = None,
) -> Sums:
    """The sums over the points of a block, by the fastest backend for their device; see `numba.sum_chunks`.

    `log_joint` (n, K) is filled with the log of weight times density of each machine. Points for which
    states outside the tables matter are left out, and marked in `far` (n,): see `numba.bound_left_out`.
    """
    K, p, g = view.slopes.shape
    directions = np.empty((0, 0, 0)) if left_out is None else np.ascontiguousarray(np.linalg.qr(view.slopes)[0])
    if block.is_compiled:
        n = len(block.points)
        n_chunks = -(-n // numba.CHUNK_POINTS)
        out = np.zeros((n_chunks, n_sums(K, p, g)))
        joint = np.empty((0, 0)) if log_joint is None else log_joint
        marks = np.empty(0, dtype=bool) if far is None else far
        bound = np.empty(0) if left_out is None else left_out

        def run(begin: int, end: int) -> None:
            numba.sum_chunks(
                block.points, block.weights, block.given_offsets, begin, end, view, log_scale, wants_sums, bound,
                directions, marks, out, joint,
            )  # fmt: skip

        run_threads(run, n_chunks, work=n)
        sums = unpack_sums(out.sum(axis=0), K, p, g)
    else:
        if block.offsets is None and triton.is_served(block.points):
            backend: Any = triton.sum_points
        else:
            backend = partial(reference.sum_points, offsets=block.offsets)
        weights = block.weights
        if left_out is not None and far is not None:
            joint = block.points.new_empty(len(block.points), K) if log_joint is None else log_joint
            backend(block.points, weights, view, log_scale, wants_sums=False, log_joint=joint)
            is_far = ~(joint.logsumexp(1) >= bound_left_out(block.points, view, left_out, directions))
            far[:] = is_far.cpu().numpy()
            weights = torch.where(is_far, 0.0, weights)
        sums = backend(block.points, weights, view, log_scale, wants_sums, log_joint)
    if wants_sums and K == 1:  # Σ y and Σ yyᵀ follow from the moments of the points
        dense.complete_moments(sums, view, block.total, block.mean, block.scatter)
    return sums


def bound_left_out(x: torch.Tensor, view: View, left_out: Floats, directions: Floats) -> torch.Tensor:
    """The bound (n,) of `numba.bound_left_out` for points x (n, p)."""
    inverse, origin, plane, peak = (
        torch.as_tensor(part, dtype=torch.float64, device=x.device)
        for part in (view.inverse, view.origin, directions, left_out)
    )
    y = (x - origin[:, None]) @ inverse.mT
    distance = (numba.ROUNDED * y.square().sum(2) - (y @ plane).square().sum(2)).clamp(min=0)
    return (peak[:, None] - 0.5 * distance).amax(0)


class TablePass(NamedTuple):
    """A pass over blocks with tables of hidden states. Its vector of `Sums` can be added to those of other blocks."""

    machines: Machines
    states: States
    log_scales: Floats  # (1 + K,): the logarithms of what the errors are divided by
    wants_sums: bool = True
    far_tolerance: float = 0.0
    """If positive, tables are shorter than they should be. A point that loses more than this share of its density is
    summed over states of its own."""

    def __call__(self, blocks: Iterable[PointBlock]) -> Floats:
        """The vector of the sums over some blocks."""
        vector = np.zeros(self.size)
        for block in blocks:
            self.add(block, vector)
        return vector

    @property
    def size(self) -> int:
        """The length of the vector."""
        return int(n_sums(*self.machines.F.shape))

    def add(self, block: PointBlock, vector: Floats, log_joint: Any = None) -> None:
        """Add the sums over a block to a vector, and fill `log_joint` (n, K), if it is given: see `log_joint`."""
        if block.has_gaps:
            vector += self._sum_gaps(block, log_joint)
        elif (
            block.is_compiled
            and len(block.points) <= numba.CHUNK_POINTS
            and not self.far_tolerance
            and log_joint is None
        ):
            numba.sum_block(
                block.points, block.weights, block.given_offsets, block.present, block.total, block.mean,
                block.scatter, self.machines, self.states, self.log_scales, self.wants_sums, vector,
            )  # fmt: skip
        else:
            view = dense.make_view(self.machines, self.states, block.present)
            sums = self._sum(block, view, log_joint)
            dense.add_sums(sums, self.log_scales, view, self.wants_sums, self.unpack(vector))

    def unpack(self, vector: Floats) -> Sums:
        """The sums in a vector."""
        return unpack_sums(vector, *self.machines.F.shape)

    def log_joint(self, block: PointBlock) -> Any:
        """The log of weight times density of each machine (n, K) at the points of a block: an array or a tensor."""
        shape = len(block.points), len(self.machines.F)
        values = np.empty(shape) if block.is_compiled else block.points.new_empty(shape)
        self._replace(wants_sums=False).add(block, np.zeros(self.size), values)
        return values

    def _sum_gaps(self, block: PointBlock, log_joint: Floats | None = None) -> Floats:
        """The vector of the sums over a block of points with gaps of their own."""
        n, joint = len(block.points), np.empty((0, 0)) if log_joint is None else log_joint
        far, log_omitted = np.zeros(n if self.far_tolerance else 0, dtype=bool), self._log_omitted()
        n_chunks = -(-n // numba.CHUNK_POINTS)
        sums = np.zeros((n_chunks, n_sums(*self.machines.F.shape)))

        def run(begin: int, end: int) -> None:
            for chunk in range(begin, end):
                rows = chunk * numba.CHUNK_POINTS, min((chunk + 1) * numba.CHUNK_POINTS, n)
                gaps.sum_rows(
                    block.points, block.weights, block.given_offsets, *rows, self.machines, self.states,
                    self.log_scales, self.wants_sums, log_omitted, far, self.unpack(sums[chunk]), joint,
                )  # fmt: skip

        run_threads(run, n_chunks, work=n)
        result: Floats = sums.sum(axis=0)
        for part in split_patterns(block, far) if far.any() else []:
            result += self([part])
            if log_joint is not None:
                log_joint[part.rows] = self.log_joint(part)
        return result

    def _log_omitted(self) -> Floats:
        """The log of the weight (K,) of the states outside the tables of each machine, divided by the tolerance."""
        weights = self.machines.log_weights + self.states.log_left_out
        return weights + math.log(len(weights) / self.far_tolerance) if self.far_tolerance else weights

    def _sum(self, block: PointBlock, view: View, log_joint: Any = None) -> Sums:
        """The sums over one block, with points that are too far out for the tables over states of their own."""
        log_scale = float(self.log_scales[0])
        if not self.far_tolerance:
            return sum_points(block, view, log_scale, self.wants_sums, log_joint)
        far = np.zeros(len(block.points), dtype=bool)
        left_out = self._log_omitted() + view.log_peak
        sums = sum_points(block, view, log_scale, self.wants_sums, log_joint, left_out, far)
        if far.any():
            x, weights, offsets = (
                torch.as_tensor(part)[torch.from_numpy(far)[: len(part)]].cpu().numpy()
                for part in (block.points, block.weights, block.given_offsets)
            )
            joint = np.empty((len(x) if log_joint is not None else 0, len(view.log_peak)))
            y = (x - view.origin[:, None]) @ view.inverse.mT
            form = self.machines.L_A @ self.machines.L_A.mT + view.slopes.mT @ view.slopes
            shift = np.ascontiguousarray(np.linalg.solve(form, (y @ view.slopes).mT).mT)
            root = np.linalg.cholesky(form)
            if not sum_far(
                weights,
                offsets,
                y,
                shift,
                root,
                self.machines,
                self.states,
                view,
                self.wants_sums,
                FAR_STATES,
                sums,
                joint,
            ):
                raise TooManyTermsError(math.inf, FAR_STATES)
            if log_joint is not None:
                log_joint[far] = joint if block.is_compiled else torch.from_numpy(joint).to(log_joint.device)
        return sums


class Evaluation(NamedTuple):
    """The outcome of one pass over the data."""

    machines: Machines
    states: States
    sums: Sums
    counts: Floats | None = None  # (S + 1, K): those of discrete columns, see `MixedPass`

    @property
    def log_likelihood(self) -> float:
        """Σ w log P."""
        return float(self.sums.log_prob[0])

    def moments(self) -> tuple[Floats, Floats, Floats]:
        """Σ zzᵀ (K, g + 1, g + 1), Σ εzᵀ (K, d, g + 1) and Σ εεᵀ (K, d, d), for z = (δ, 1)."""
        K, d, g = self.machines.F.shape
        gram, cross = np.empty((K, g + 1, g + 1)), np.empty((K, d, g + 1))
        gram[:, :g, :g], gram[:, g, g] = self.sums.second, self.sums.shares
        gram[:, :g, g] = gram[:, g, :g] = self.sums.first
        cross[:, :, :g], cross[:, :, g] = self.sums.cross, self.sums.noise
        return gram, cross, self.sums.square

    def gradient(self) -> Floats:
        """The derivative of Σ w log P in the vector of free parameters."""
        return dense.likelihood_gradient(self.sums, self.machines, self.states)
