"""The pass over the points on CUDA devices (Triton), for few features.

A program has one warp. Each thread has a point at a time, with the states of a tile, or part of them, in its registers.
Sums over points stay in registers until the program ends, so the order in which programs run does not matter.
"""

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.device import TRITON_AVAILABLE, exponential, jit
from rtbm.training.sums.dense import Sums, View, new_sums

if TRITON_AVAILABLE:
    import triton.language as tl

KERNEL_FEATURES = 4
"""Most features that the kernels serve. With more, a tile of states does not fit into the registers."""
MANY_ENTRIES, ENTRIES = 64, 16
"""States times features of a tile, at most, if one tile holds all states, and else."""
POINTS = 32
"""Points that a program works on at a time, one for each thread; fewer if one tile holds all states."""
PROGRAMS = 132 * 32  # programs for each tile
MOMENT_ROWS = 2**24
"""Points whose Σ y and Σ yyᵀ are found at a time by matrix products."""


def is_served(x: Tensor) -> bool:
    """Whether the kernels serve these points."""
    return TRITON_AVAILABLE and x.is_cuda and x.shape[1] <= KERNEL_FEATURES and x.dtype == torch.float64


def sum_points(
    x: Tensor, weights: Tensor, view: View, log_scale: float, wants_sums: bool = True, log_joint: Tensor | None = None
) -> Sums:
    """The sums over points x (n, p) with weights (n,), as `rtbm.training.sums.torch.sum_points` has them.

    For one machine Σ y and Σ yyᵀ are left 0: they follow from the mean and scatter of the points.
    """
    n, p = x.shape
    K = len(view.origin)
    tiles = _Tiles(view)
    numbers, machine = tiles.on(x.device)
    wants_rows = log_joint is not None or (wants_sums and K > 1)
    wants_joint = wants_rows and K > 1  # of one machine, it is log P
    sizes = tiles.P, tiles.S, POINTS // 2 // tiles.P if tiles.is_one and not wants_rows else POINTS
    programs = min(-(-n // sizes[2]), PROGRAMS)
    joint = log_joint if log_joint is not None else x.new_empty((n, K) if wants_joint else (1, 1))
    log_prob = x.new_empty(n if wants_rows or len(machine) > 1 else 1)
    means = x.new_empty(programs, 2)
    shares = x.new_empty(programs, len(machine), 1 + tiles.P, tiles.S)
    with torch.cuda.device_of(x):
        if tiles.is_one and not wants_rows:
            _sum_tile[(programs,)](x, weights, numbers, means, shares, n, p, log_scale, *sizes, num_warps=1)
        else:
            _sum_tiles[(programs,)](
                x, weights, numbers, machine, joint, log_prob, means, n, p, K, len(machine), log_scale, wants_joint,
                *sizes, num_warps=1,
            )  # fmt: skip
            if wants_sums:
                _share_tiles[(programs, len(machine))](
                    x, weights, numbers, machine, log_prob, shares, n, p, len(machine), *sizes, num_warps=1
                )
    if log_joint is not None and K == 1:
        log_joint[:, 0] = log_prob
    result = new_sums(K, p, view.delta.shape[1])
    if not wants_sums:
        result.log_prob[0], result.errors[0] = means.sum(dim=0).cpu().numpy()
        return result
    sums = torch.cat([means.sum(dim=0), shares.sum(dim=0).reshape(-1)]).cpu().numpy()
    result.log_prob[0], result.errors[0] = sums[:2]
    counts, moments = tiles.by_state(sums[2:])
    for k, own in enumerate(view.machine_states()):
        delta, count = view.delta[own], counts[own]
        result.shares[k], result.first[k] = count.sum(), count @ delta
        result.second[k], result.cross[k] = delta.T @ (count[:, None] * delta), moments[own, :p].T @ delta
        if K > 1:
            result.noise[k], result.square[k] = _squares(x, weights, view, joint[:, k] - log_prob, k)
    return result


def _squares(x: Tensor, weights: Tensor, view: View, log_share: Tensor, k: int) -> tuple[Floats, Floats]:
    """Σ y and Σ yyᵀ of machine k, which has shares exp(log_share) in the points."""
    inverse, origin = (torch.from_numpy(part[k]).to(x.device) for part in (view.inverse, view.origin))
    first, second = x.new_zeros(len(origin)), x.new_zeros(len(origin), len(origin))
    for points, w, share in zip(*(part.split(MOMENT_ROWS) for part in (x, weights, log_share)), strict=True):
        y, share = (points - origin) @ inverse.mT, w * share.exp()
        first, second = first + share @ y, second + y.mT @ (share[:, None] * y)
    return first.cpu().numpy(), second.cpu().numpy()


class _Tiles:
    """States in tiles of S, each of one machine, and the constants of the machines.

    The last tile of a machine is filled up with states that never count.
    """

    def __init__(self, view: View):
        p = view.inverse.shape[1]
        counts = np.diff(view.first)
        self.P = 1 << (p - 1).bit_length()
        S = 1 << (int(counts.max()) - 1).bit_length()
        self.is_one = len(counts) == 1 and S * self.P <= MANY_ENTRIES
        self.S = S if self.is_one else min(S, ENTRIES // self.P)
        per_machine = -(-counts // self.S)
        self.machine = np.repeat(np.arange(len(counts)), per_machine)
        before = np.concatenate([[0], np.cumsum(per_machine)[:-1]]) * self.S
        owner = np.repeat(np.arange(len(counts)), counts)
        self._place = before[owner] + np.arange(len(owner)) - view.first[:-1][owner]
        n = len(self.machine) * self.S
        bias, centres = np.full(n, -1e300), np.zeros((self.P, n))
        bias[self._place], centres[:p, self._place] = view.bias, view.centres.T
        K = len(counts)
        inverse, origin = np.zeros((K, self.P, self.P)), np.zeros((K, self.P))
        inverse[:, :p, :p], origin[:, :p] = view.inverse, view.origin
        # a tile: bias (S,), centres (P, S), inverse (P, P), origin (P,)
        tiles = [bias.reshape(-1, self.S)]
        tiles += [centres.reshape(self.P, -1, self.S).transpose(1, 0, 2).reshape(-1, self.P * self.S)]
        tiles += [inverse[self.machine].reshape(-1, self.P**2), origin[self.machine]]
        self._numbers = np.concatenate(tiles, axis=1)

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The constants (tiles, S + PS + P² + P) and the machine of each tile."""
        return torch.from_numpy(self._numbers).to(device), torch.from_numpy(self.machine).to(device)

    def by_state(self, sums: Floats) -> tuple[Floats, Floats]:
        """Σ 1 (S,) and Σ y (S, p) of each state, from those of the tiles (tiles, 1 + P, S)."""
        columns = sums.reshape(-1, 1 + self.P, self.S).transpose(1, 0, 2).reshape(1 + self.P, -1)[:, self._place]
        return columns[0], columns[1:].T


@jit
def _load_tile(numbers, tile, P: "tl.constexpr", S: "tl.constexpr"):
    """bias (S, 1), centres (P, S, 1), inverse (P, P, 1) and origin (P, 1) of a tile."""
    start = numbers + tile * (S + P * S + P * P + P)
    s, i = tl.arange(0, S), tl.arange(0, P)
    bias = tl.load(start + s)[:, None]
    centres = tl.load(start + S + i[:, None] * S + s[None, :])[:, :, None]
    inverse = tl.load(start + S + P * S + i[:, None] * P + i[None, :])[:, :, None]
    origin = tl.load(start + S + P * S + P * P + i)[:, None]
    return bias, centres, inverse, origin


@jit
def _load_points(x, weights, block, n, p, P: "tl.constexpr", POINTS: "tl.constexpr"):
    """Points (P, POINTS) with zeros for features that are not there, weights, row numbers, and which are valid."""
    rows = block.to(tl.int64) * POINTS + tl.arange(0, POINTS)
    i = tl.arange(0, P)
    valid = rows < n
    points = tl.load(x + rows[None, :] * p + i[:, None], mask=valid[None, :] & (i < p)[:, None], other=0.0)
    return points, tl.load(weights + rows, mask=valid, other=0.0), rows, valid


@jit
def _log_terms(points, bias, centres, inverse, origin):
    """bias − ½|y − centre|² (S, POINTS), and y (P, POINTS)."""
    y = tl.sum(inverse * (points - origin)[None, :, :], axis=1)
    difference = y[:, None, :] - centres
    return bias - 0.5 * tl.sum(difference * difference, axis=0), y


@jit
def _sum_tile(
    x, weights, numbers, means, shares, n, p, log_scale,
    P: "tl.constexpr", S: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """All sums, if there is one tile."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    bias, centres, inverse, origin = _load_tile(numbers, 0, P, S)
    total_log = tl.zeros((POINTS,), dtype=tl.float64)
    total_error = tl.zeros((POINTS,), dtype=tl.float64)
    counts = tl.zeros((S, POINTS), dtype=tl.float64)
    moments = tl.zeros((P, S, POINTS), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, POINTS), programs):
        points, weight, _, _ = _load_points(x, weights, block, n, p, P, POINTS)
        terms, y = _log_terms(points, bias, centres, inverse, origin)
        top = tl.max(terms, axis=0)
        terms = exponential(terms - top[None, :])
        total = tl.sum(terms, axis=0)
        log_prob = top + tl.log(total)
        total_log += weight * log_prob
        total_error += weight * tl.exp(tl.minimum(-log_prob - log_scale, 700.0))
        terms = terms * (weight / total)[None, :]
        counts += terms
        moments += terms[None, :, :] * y[:, None, :]
    tl.store(means + 2 * program, tl.sum(total_log, axis=0))
    tl.store(means + 2 * program + 1, tl.sum(total_error, axis=0))
    _store_shares(shares, program, 0, 1, counts, moments, P, S)


@jit
def _store_shares(shares, program, tile, n_tiles, counts, moments, P: "tl.constexpr", S: "tl.constexpr"):
    s, i = tl.arange(0, S), tl.arange(0, P)
    start = shares + (program.to(tl.int64) * n_tiles + tile) * (1 + P) * S
    tl.store(start + s, tl.sum(counts, axis=1))
    tl.store(start + S + i[:, None] * S + s[None, :], tl.sum(moments, axis=2))


@jit
def _sum_tiles(
    x, weights, numbers, machine, joint, log_probs, means, n, p, K, n_tiles, log_scale, WANTS_JOINT: "tl.constexpr",
    P: "tl.constexpr", S: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """log P of each point, and of each machine where that is wanted, and the first two sums."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total_log = tl.zeros((POINTS,), dtype=tl.float64)
    total_error = tl.zeros((POINTS,), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, POINTS), programs):
        points, weight, rows, valid = _load_points(x, weights, block, n, p, P, POINTS)
        top = tl.full((POINTS,), -1e300, dtype=tl.float64)
        total = tl.zeros((POINTS,), dtype=tl.float64)
        own_top, own_total, before = top, total, tl.load(machine)
        for tile in range(0, n_tiles):
            bias, centres, inverse, origin = _load_tile(numbers, tile, P, S)
            terms, _ = _log_terms(points, bias, centres, inverse, origin)
            highest = tl.max(terms, axis=0)
            part = tl.sum(exponential(terms - highest[None, :]), axis=0)
            higher = tl.maximum(top, highest)
            total = total * exponential(top - higher) + part * exponential(highest - higher)
            top = higher
            if WANTS_JOINT:
                now = tl.load(machine + tile)
                if now != before:
                    tl.store(joint + rows * K + before, own_top + tl.log(own_total), mask=valid)
                    own_top = tl.full((POINTS,), -1e300, dtype=tl.float64)
                    own_total = tl.zeros((POINTS,), dtype=tl.float64)
                    before = now
                higher = tl.maximum(own_top, highest)
                own_total = own_total * exponential(own_top - higher) + part * exponential(highest - higher)
                own_top = higher
        if WANTS_JOINT:
            tl.store(joint + rows * K + before, own_top + tl.log(own_total), mask=valid)
        log_prob = top + tl.log(total)
        tl.store(log_probs + rows, log_prob, mask=valid)
        total_log += weight * log_prob
        total_error += weight * tl.exp(tl.minimum(-log_prob - log_scale, 700.0))
    tl.store(means + 2 * program, tl.sum(total_log, axis=0))
    tl.store(means + 2 * program + 1, tl.sum(total_error, axis=0))


@jit
def _share_tiles(
    x, weights, numbers, machine, log_probs, shares, n, p, n_tiles,
    P: "tl.constexpr", S: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """Σ 1 and Σ y of the states of each tile, once log P is known."""
    program, programs, tile = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    bias, centres, inverse, origin = _load_tile(numbers, tile, P, S)
    counts = tl.zeros((S, POINTS), dtype=tl.float64)
    moments = tl.zeros((P, S, POINTS), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, POINTS), programs):
        points, weight, rows, valid = _load_points(x, weights, block, n, p, P, POINTS)
        log_prob = tl.load(log_probs + rows, mask=valid, other=0.0)
        terms, y = _log_terms(points, bias, centres, inverse, origin)
        terms = exponential(tl.minimum(terms - log_prob[None, :], 0.0)) * weight[None, :]
        counts += terms
        moments += terms[None, :, :] * y[:, None, :]
    _store_shares(shares, program, tile, n_tiles, counts, moments, P, S)
