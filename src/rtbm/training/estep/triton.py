"""The E-step on CUDA devices (Triton), for few columns.

A program has one warp. Each thread has a row at a time, with the states of a tile, or part of them, in its registers.
Sums over rows stay in registers until the program ends, so the order in which programs run does not matter.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.device import TRITON_AVAILABLE, exponential, jit
from rtbm.training.estep.torch import whiten
from rtbm.training.machines import Machines
from rtbm.training.rows import RowBlock
from rtbm.training.states import States

# mypy: disable-error-code="no-untyped-def"

if TRITON_AVAILABLE:
    import triton.language as tl

MOST_COLUMNS = 4
"""Most columns that the kernels serve. With more, a tile of states does not fit into the registers."""
MANY_ENTRIES, ENTRIES = 64, 16
"""States times columns of a tile, at most, if one tile holds all states, and else."""
ROWS, TILE_NUMBERS = 32, 256
"""Rows that a program works on at a time, one for each thread. If one tile holds all states, there are fewer: so many
that rows times states times columns are TILE_NUMBERS. With more, sums do not fit into the registers."""
PROGRAMS = 132 * 32  # programs for each tile


def is_served(x: Any, offsets: Any) -> bool:
    """Whether the kernels serve these rows."""
    return (
        TRITON_AVAILABLE and offsets is None and x.is_cuda and x.shape[1] <= MOST_COLUMNS and x.dtype == torch.float64
    )


def sum_rows(
    block: RowBlock,
    offsets: None,
    machines: Machines,
    states: States,
    log_far: Floats,
    wants_sums: bool,
    log_joint: Tensor | None,
) -> tuple[list[Floats], Any]:
    """The sums over a block, and which rows are far; see `torch.sum_rows`.

    The bound on what the list omits is that at the lattice itself, whatever the distance from it. So it marks some rows
    that are not far.
    """
    (K, d, g), far = machines.F.shape, torch.zeros(len(block.x), dtype=torch.int8, device=block.x.device)
    value, counts = np.zeros(1), np.zeros(len(states.delta))
    noise, cross, square = np.zeros((K, d)), np.zeros((K, d, g)), np.zeros((K, d, d))
    owner, delta = states.owner, states.delta
    for begin, end, pattern in block.segments:
        rows, present = slice(begin, end), np.flatnonzero(block.present[pattern])
        inner, basis, log_peak = whiten(machines, present)
        slopes = inner @ machines.F[:, present]
        centres = (slopes[owner] @ delta[:, :, None])[:, :, 0]
        bias = (machines.log_weights + log_peak)[owner] + states.log_prior
        tiles = _Tiles(inner, machines.origin[:, present], bias, centres, states)
        x = (
            block.x[rows][:, torch.from_numpy(present).to(far.device)].contiguous()
            if len(present) < d
            else block.x[rows]
        )
        joint = None if log_joint is None else log_joint[rows]
        log_floor = float((log_far + log_peak).max())
        total, own, moments, squares = tiles.sums(x, block.weights[rows], log_floor, wants_sums, far[rows], joint)
        value += total
        counts += own
        share = states.total(own)
        for k in range(K if wants_sums else 0):
            s = slice(*states.first[k : k + 2])
            noise[k] += basis[k] @ moments[s].sum(axis=0)
            cross[k] += basis[k] @ moments[s].T @ delta[s]
            known = basis[k] @ basis[k].T
            square[k] += basis[k] @ squares[k] @ basis[k].T + share[k] * (np.eye(d) - known)
    return [value, counts, noise, cross, square], far


class _Tiles:
    """States in tiles of S, each of one machine, and the constants of the machines.

    The last tile of a machine is filled up with states that never count.
    """

    def __init__(self, inverse: Floats, origin: Floats, bias: Floats, centres: Floats, states: States):
        (K, p, _), counts = inverse.shape, np.diff(states.first)
        self.K, self.P = K, max(1, 1 << (p - 1).bit_length())
        S = 1 << (int(counts.max()) - 1).bit_length()
        self.is_one = K == 1 and S * self.P <= MANY_ENTRIES
        self.S = S if self.is_one else min(S, ENTRIES // self.P)
        per_machine = -(-counts // self.S)
        self.machine = np.repeat(np.arange(K), per_machine)
        before = np.concatenate([[0], np.cumsum(per_machine)[:-1]]) * self.S
        self._place = (before - states.first[:-1])[states.owner] + np.arange(len(bias))
        n = len(self.machine) * self.S
        every_bias, every_centre = np.full(n, -1e300), np.zeros((self.P, n))
        every_bias[self._place], every_centre[:p, self._place] = bias, centres.T
        padded, padded_origin = np.zeros((K, self.P, self.P)), np.zeros((K, self.P))
        padded[:, :p, :p], padded_origin[:, :p] = inverse, origin
        # a tile: bias (S,), centres (P, S), inverse (P, P), origin (P,)
        by_tile = every_centre.reshape(self.P, -1, self.S).transpose(1, 0, 2).reshape(-1, self.P * self.S)
        parts = (
            every_bias.reshape(-1, self.S),
            by_tile,
            padded[self.machine].reshape(-1, self.P**2),
            padded_origin[self.machine],
        )
        self._numbers, self._p = np.concatenate(parts, axis=1), p

    def sums(
        self, x: Tensor, weights: Tensor, log_floor: float, wants_sums: bool, far: Tensor, log_joint: Tensor | None
    ) -> tuple[float, Floats, Floats, Floats]:
        """Σ w log P; and Σ r (S,) and Σ re (S, p) of the states, and Σ reeᵀ (K, p, p), for e = y − centre.

        Rows with a log P below the floor are left out, and marked in `far` (n,). `log_joint` (n, K) is filled in.
        """
        (n, p), tiles = x.shape, len(self.machine)
        numbers, machine = (torch.from_numpy(part).to(x.device) for part in (self._numbers, self.machine))
        is_one = self.is_one and log_joint is None
        sizes = self.P, self.S, max(1, TILE_NUMBERS // (self.S * self.P)) if is_one else ROWS
        programs = min(-(-n // sizes[2]), PROGRAMS)
        shares = x.new_empty(programs, tiles, (1 + self.P) * self.S + self.P**2)
        values = x.new_empty(programs)
        with torch.cuda.device_of(x):
            if is_one:
                _sum_tile[(programs,)](x, weights, numbers, values, shares, far, n, p, log_floor, *sizes, num_warps=1)
            else:
                wants_joint = log_joint is not None and self.K > 1  # that of one machine is log P
                joint, log_prob = log_joint if wants_joint else x.new_empty(1, 1), x.new_empty(n)
                _sum_tiles[(programs,)](
                    x, weights, numbers, machine, joint, log_prob, values, far, n, p, self.K, tiles, log_floor,
                    wants_joint, *sizes, num_warps=1,
                )  # fmt: skip
                if log_joint is not None and not wants_joint:
                    log_joint[:, 0] = log_prob
                if wants_sums:
                    _share_tiles[(programs, tiles)](
                        x, weights, numbers, log_prob, shares, far, n, p, tiles, self.P, self.S, ROWS // 2, num_warps=1
                    )
        if not (wants_sums or is_one):
            return (
                float(values.sum()),
                np.zeros(len(self._place)),
                np.zeros((len(self._place), p)),
                np.zeros((self.K, p, p)),
            )
        found = torch.cat([values.sum(dim=0, keepdim=True), shares.sum(dim=0).reshape(-1)]).cpu().numpy()
        by_tile = found[1:].reshape(tiles, -1)
        states, squares = np.split(by_tile, [(1 + self.P) * self.S], axis=1)
        columns = states.reshape(tiles, 1 + self.P, self.S).transpose(1, 0, 2).reshape(1 + self.P, -1)[:, self._place]
        of_machine = np.zeros((self.K, self.P, self.P))
        np.add.at(of_machine, self.machine, squares.reshape(tiles, self.P, self.P))
        return float(found[0]), columns[0], columns[1 : 1 + p].T, of_machine[:, :p, :p]


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
def _load_rows(x, weights, block, n, p, P: "tl.constexpr", ROWS: "tl.constexpr"):
    """Rows (P, ROWS) with zeros for columns that are not there, weights, row numbers, and which are valid."""
    rows = block.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, P)
    valid = rows < n
    points = tl.load(x + rows[None, :] * p + i[:, None], mask=valid[None, :] & (i < p)[:, None], other=0.0)
    return points, tl.load(weights + rows, mask=valid, other=0.0), rows, valid


@jit
def _log_terms(points, bias, centres, inverse, origin):
    """bias − ½|e|² (S, ROWS), and e = y − centre (P, S, ROWS)."""
    y = tl.sum(inverse * (points - origin)[None, :, :], axis=1)
    e = y[:, None, :] - centres
    return bias - 0.5 * tl.sum(e * e, axis=0), e


@jit
def _mark_far(far, rows, valid, log_prob, weight, log_floor):
    """log P and weights with 0 for rows that are far, which are marked."""
    is_near = log_prob >= log_floor
    tl.store(far + rows, tl.where(is_near, 0, 1).to(tl.int8), mask=valid)
    return tl.where(is_near, log_prob, 0.0), tl.where(is_near, weight, 0.0)


@jit
def _sum_tile(
    x, weights, numbers, values, shares, far, n, p, log_floor,
    P: "tl.constexpr", S: "tl.constexpr", ROWS: "tl.constexpr",
):  # fmt: skip
    """All sums, if there is one tile."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    bias, centres, inverse, origin = _load_tile(numbers, 0, P, S)
    total_log = tl.zeros((ROWS,), dtype=tl.float64)
    counts = tl.zeros((S, ROWS), dtype=tl.float64)
    moments = tl.zeros((P, S, ROWS), dtype=tl.float64)
    squares = tl.zeros((P, P, ROWS), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, ROWS), programs):
        points, weight, rows, valid = _load_rows(x, weights, block, n, p, P, ROWS)
        terms, e = _log_terms(points, bias, centres, inverse, origin)
        top = tl.max(terms, axis=0)
        terms = exponential(terms - top[None, :])
        total = tl.sum(terms, axis=0)
        log_prob, weight = _mark_far(far, rows, valid, top + tl.log(total), weight, log_floor)
        total_log += weight * log_prob
        terms = terms * (weight / total)[None, :]
        counts += terms
        moments += terms[None, :, :] * e
        squares += tl.sum(terms[None, None, :, :] * e[:, None, :, :] * e[None, :, :, :], axis=2)
    tl.store(values + program, tl.sum(total_log, axis=0))
    _store_shares(shares, program, 0, 1, counts, moments, squares, P, S)


@jit
def _store_shares(shares, program, tile, n_tiles, counts, moments, squares, P: "tl.constexpr", S: "tl.constexpr"):
    s, i = tl.arange(0, S), tl.arange(0, P)
    start = shares + (program.to(tl.int64) * n_tiles + tile) * ((1 + P) * S + P * P)
    tl.store(start + s, tl.sum(counts, axis=1))
    tl.store(start + S + i[:, None] * S + s[None, :], tl.sum(moments, axis=2))
    tl.store(start + (1 + P) * S + i[:, None] * P + i[None, :], tl.sum(squares, axis=2))


@jit
def _sum_tiles(
    x, weights, numbers, machine, joint, log_probs, values, far, n, p, K, n_tiles, log_floor, WANTS_JOINT:
    "tl.constexpr", P: "tl.constexpr", S: "tl.constexpr", ROWS: "tl.constexpr",
):  # fmt: skip
    """log P of each row, and of each machine where that is wanted, and Σ w log P."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    total_log = tl.zeros((ROWS,), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, ROWS), programs):
        points, weight, rows, valid = _load_rows(x, weights, block, n, p, P, ROWS)
        top = tl.full((ROWS,), -1e300, dtype=tl.float64)
        total = tl.zeros((ROWS,), dtype=tl.float64)
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
                    own_top = tl.full((ROWS,), -1e300, dtype=tl.float64)
                    own_total = tl.zeros((ROWS,), dtype=tl.float64)
                    before = now
                higher = tl.maximum(own_top, highest)
                own_total = own_total * exponential(own_top - higher) + part * exponential(highest - higher)
                own_top = higher
        if WANTS_JOINT:
            tl.store(joint + rows * K + before, own_top + tl.log(own_total), mask=valid)
        log_prob = top + tl.log(total)
        tl.store(log_probs + rows, log_prob, mask=valid)
        log_prob, weight = _mark_far(far, rows, valid, log_prob, weight, log_floor)
        total_log += weight * log_prob
    tl.store(values + program, tl.sum(total_log, axis=0))


@jit
def _share_tiles(
    x, weights, numbers, log_probs, shares, far, n, p, n_tiles,
    P: "tl.constexpr", S: "tl.constexpr", ROWS: "tl.constexpr",
):  # fmt: skip
    """The sums over the states of each tile, once log P is known."""
    program, programs, tile = tl.program_id(0), tl.num_programs(0), tl.program_id(1)
    bias, centres, inverse, origin = _load_tile(numbers, tile, P, S)
    counts = tl.zeros((S, ROWS), dtype=tl.float64)
    moments = tl.zeros((P, S, ROWS), dtype=tl.float64)
    squares = tl.zeros((P, P, ROWS), dtype=tl.float64)
    for block in range(program, tl.cdiv(n, ROWS), programs):
        points, weight, rows, valid = _load_rows(x, weights, block, n, p, P, ROWS)
        log_prob = tl.load(log_probs + rows, mask=valid, other=0.0)
        is_far = tl.load(far + rows, mask=valid, other=0)
        terms, e = _log_terms(points, bias, centres, inverse, origin)
        terms = exponential(tl.minimum(terms - log_prob[None, :], 0.0)) * weight[None, :]
        terms = tl.where((is_far > 0)[None, :], 0.0, terms)
        counts += terms
        moments += terms[None, :, :] * e
        squares += tl.sum(terms[None, None, :, :] * e[:, None, :, :] * e[None, :, :, :], axis=2)
    _store_shares(shares, program, tile, n_tiles, counts, moments, squares, P, S)
