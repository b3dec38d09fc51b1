"""Rows that are far from all listed states: each is summed over states around itself."""

import numpy as np

from rtbm.common import Floats
from rtbm.training.estep.torch import whiten
from rtbm.training.machines import Machines, Sums
from rtbm.training.states import States, list_states

LOG_OMITTED = -25.0
"""The logarithm of what a list for one row omits, relative to its largest term. A larger value costs digits."""
LIMIT = 2**12  # states for a row and a machine, on average. Beyond, theta functions serve
AT_ONCE = 2**13  # rows times machines, whose lists are in memory together


def sum_far(x: Floats, weights: Floats, offsets: Floats, machines: Machines, states: States) -> tuple[Sums, Floats]:
    """The sums over rows x (n, d), in which missing entries are NaN, and the log of weight times density (n, K)."""
    patterns, pattern = np.unique(~np.isnan(x), axis=0, return_inverse=True)
    K = len(machines.mean)
    sums, log_joint = Sums.zeros(*machines.F.shape), np.empty((len(x), K))
    offsets = np.broadcast_to(offsets, log_joint.shape)
    for number, present in enumerate(patterns):
        mine = np.flatnonzero(pattern.ravel() == number)
        for rows in np.array_split(mine, -(-len(mine) * K // AT_ONCE)):
            own, log_joint[rows] = _sum_pattern(
                x[rows][:, present], weights[rows], offsets[rows], np.flatnonzero(present), machines, states
            )
            sums = sums.plus(own)
    return sums, log_joint


def _sum_pattern(
    x: Floats, weights: Floats, offsets: Floats, present: np.ndarray, machines: Machines, states: States
) -> tuple[Sums, Floats]:
    """The same for rows with the same entries present.

    P(h|y) is a discrete Gaussian: in exp(−½|L_Aᵀδ|² − ½|y − Gδ|²), the centre is that of least squares.
    """
    (n, K), (_, d, g) = offsets.shape, machines.F.shape
    inner, basis, log_peak = whiten(machines, present)
    inverse, known = basis @ inner, basis @ basis.mT
    slopes = inverse @ machines.F[:, present]
    y = (x[:, None] - machines.origin[:, present])[:, :, None] @ inverse.mT  # (n, K, 1, d)
    plane, root = np.linalg.qr(np.concatenate([machines.L_A.mT, slopes], axis=1))
    signs = np.where(root.diagonal(axis1=1, axis2=2) < 0, -1.0, 1.0)[:, :, None]
    root = root * signs
    shift = np.linalg.solve(root, signs * (plane[:, g:].mT @ y.mT))[:, :, :, 0]  # (n, K, g)
    centre = (machines.centre + shift).reshape(n * K, g)
    around = list_states(np.broadcast_to(root, (n, K, g, g)).reshape(n * K, g, g), centre, LIMIT, LOG_OMITTED)
    row, k = np.divmod(around.owner, K)
    delta = np.rint(around.delta + centre[around.owner]) - machines.centre[k]
    noise = y[row, k, 0] - (slopes[k] @ delta[:, :, None])[:, :, 0]
    prior = ((machines.L_A.mT[k] @ delta[:, :, None])[:, :, 0] ** 2).sum(axis=1)
    logs = (machines.log_weights + log_peak - states.log_total)[k] + offsets[row, k]
    logs -= 0.5 * (prior + (noise**2).sum(axis=1))
    top = np.maximum.reduceat(logs, around.first[:-1])
    log_joint = (top + np.log(np.add.reduceat(np.exp(logs - top[around.owner]), around.first[:-1]))).reshape(n, K)
    log_prob = np.logaddexp.reduce(log_joint, axis=1)
    share = weights[row] * np.exp(logs - log_prob[row])
    counts = np.bincount(k, share, K).astype(np.float64)
    by_machine = (k[None] == np.arange(K)[:, None]) * share  # (K, S)
    z = np.hstack([delta, noise])
    second = (by_machine[:, None] * z.T) @ z
    first = by_machine @ z
    square = second[:, g:, g:] + counts[:, None, None] * (np.eye(d) - known)
    return (
        Sums(
            float(weights @ log_prob), counts, first[:, :g], second[:, :g, :g], first[:, g:], second[:, g:, :g], square
        ),
        log_joint,
    )
