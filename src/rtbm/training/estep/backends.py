"""Which spelling of the E-step serves a block of rows, and what is added for rows that are far out."""

import math
from typing import Any

import numpy as np
import torch

from rtbm.theta.chunks import run_threads
from rtbm.training.estep import numba, triton
from rtbm.training.estep import torch as specification
from rtbm.training.estep.far import sum_far
from rtbm.training.machines import Machines, Sums
from rtbm.training.rows import RowBlock
from rtbm.training.states import States

LOG_LOSS = math.log(1e-9)
"""The logarithm of the share of P(row) that the list of states may omit. Rows that may lose more are far, and are
summed over states around themselves. More would cost digits, less makes more rows far."""


def e_step(
    block: RowBlock,
    machines: Machines,
    states: States,
    offsets: Any = None,
    wants_sums: bool = True,
    log_joint: Any = None,
) -> Sums:
    """The sums over the rows of a block.

    Parameters
    ----------
    offsets : (n, K), default=None
        Added to the log density of each machine at each row.
    wants_sums : bool, default=True
        Whether more than Σ w log P is wanted.
    log_joint : (n, K), default=None
        The log of weight times density of each machine is written to it.
    """
    (K, d, g), origin = machines.F.shape, machines.origin
    log_far = machines.log_weights + states.log_omitted - LOG_LOSS if g else np.full(K, -np.inf)
    if block.is_compiled:
        far = np.zeros(len(block.x), dtype=bool)
        tasks = len(block.tasks)
        shapes = (1,), (len(states.delta),), (K, d), (K, d, g), (K, d, d)
        out = [np.zeros((tasks, *shape)) for shape in shapes]
        none = np.empty((0, 0))
        arrays = none if offsets is None else offsets, none if log_joint is None else log_joint

        def run(begin: int, end: int) -> None:
            for task in range(begin, end):
                numba.sum_rows(
                    block.x, block.weights, arrays[0], block.tasks[task], block.present, machines, origin,
                    states, log_far, wants_sums, far, arrays[1], *(part[task] for part in out),
                )  # fmt: skip

        run_threads(run, len(block.tasks), work=len(block.x))
        parts = [part.sum(axis=0) for part in out]
    else:
        backend = triton if triton.is_served(block.x, offsets) else specification
        parts, marks = backend.sum_rows(block, offsets, machines, states, log_far, wants_sums, log_joint)
        far = marks.bool().cpu().numpy() if bool(marks.any()) else np.zeros(0, dtype=bool)
    value, counts, *moments = parts
    sums = Sums(float(value[0]), states.total(counts), *states.expect(counts), *moments)
    if not far.any():
        return sums
    rows = torch.from_numpy(np.flatnonzero(far))
    x, weights = block.with_gaps()[rows].cpu().numpy(), torch.as_tensor(block.weights).cpu().numpy()[far]
    given = np.zeros((1, K)) if offsets is None else torch.as_tensor(offsets).cpu().numpy()[far]
    more, joint = sum_far(x, weights, given, machines, states)
    if log_joint is not None:
        torch.as_tensor(log_joint)[rows] = torch.from_numpy(joint).to(torch.as_tensor(log_joint))
    return sums.plus(more)
