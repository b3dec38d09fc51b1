"""The pass over the points in plain torch: the specification of the others, on any device."""

from typing import Any

import torch
from torch import Tensor

from rtbm.theta.chunks import CPU_ELEMENTS, GPU_ELEMENTS
from rtbm.training.sums.dense import Sums, View, new_sums, unpack_sums

EXACT = "donot_use_mm_for_euclid_dist"
"""The mode of `torch.cdist` that subtracts before it squares. The others lose digits."""


def sum_points(
    x: Tensor,
    weights: Tensor,
    view: View,
    log_scale: float,
    wants_sums: bool = True,
    log_joint: Tensor | None = None,
    offsets: Tensor | None = None,
) -> Sums:
    """The sums over points x (n, p) with weights (n,), of their y. Of the errors, only the first one is filled in.

    Parameters
    ----------
    view : View
        The machines.
    log_scale : float
        The first error is Σ w exp(−log P − log_scale).
    wants_sums : bool, default=True
        Whether more than log P and the error are wanted.
    log_joint : (n, K), default=None
        The log of weight times density of each machine is written to it.
    offsets : (n, K), default=None
        The density of machine k at point i is multiplied by exp(offsets[i, k]).
    """
    K, p, g = view.slopes.shape
    inverse, origin, bias, centres, delta = (
        torch.as_tensor(part, dtype=torch.float64, device=x.device)
        for part in (view.inverse, view.origin, view.bias, view.centres, view.delta)
    )
    parts = view.machine_states()
    result: Any = Sums._make(x.new_zeros(part.shape, dtype=torch.float64) for part in new_sums(K, p, g))
    rows = max(1, (GPU_ELEMENTS if x.is_cuda else CPU_ELEMENTS) // max(len(bias), K * p))
    for begin in range(0, len(x), rows):
        points, w = x[begin : begin + rows], weights[begin : begin + rows]
        y = [(points - origin[k]) @ inverse[k].mT for k in range(K)]
        logits = [
            bias[s] - 0.5 * torch.cdist(y[k], centres[s], compute_mode=EXACT).square() for k, s in enumerate(parts)
        ]
        if offsets is not None:
            logits = [part + offsets[begin : begin + rows, k, None] for k, part in enumerate(logits)]
        by_machine = torch.stack([part.logsumexp(1) for part in logits], 1)
        log_prob = by_machine.logsumexp(1)
        if log_joint is not None:
            log_joint[begin : begin + rows] = by_machine
        result.log_prob[0] += w @ log_prob
        result.errors[0] += w @ (-log_prob - log_scale).clamp(max=700.0).exp()
        for k, s in enumerate(parts if wants_sums else []):
            shares = (logits[k] - log_prob[:, None]).exp() * w[:, None]
            counts, mean, total = shares.sum(0), shares @ delta[s], shares.sum(1)
            result.shares[k] += counts.sum()
            result.first[k] += counts @ delta[s]
            result.second[k] += delta[s].mT @ (counts[:, None] * delta[s])
            result.noise[k] += total @ y[k]
            result.cross[k] += y[k].mT @ mean
            result.square[k] += y[k].mT @ (total[:, None] * y[k])
    return unpack_sums(torch.cat([part.reshape(-1) for part in result]).cpu().numpy(), K, p, g)
