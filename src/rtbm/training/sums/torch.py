"""The pass over the points in plain torch: the specification of the others, on any device."""

import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.chunks import CPU_ELEMENTS, GPU_ELEMENTS
from rtbm.training.sums.dense import View

EXACT = "donot_use_mm_for_euclid_dist"
"""The mode of `torch.cdist` that subtracts before it squares. The others lose digits."""


def sum_points(
    x: Tensor, weights: Tensor, view: View, log_scale: float, wants_sums: bool = True, log_joint: Tensor | None = None
) -> Floats:
    """The sums over points x (n, p) with weights (n,): `numba.sum_chunks` says which, and they are complete here.

    Parameters
    ----------
    view : View
        The machines.
    log_scale : float
        The second sum is Σ w exp(−log P − log_scale).
    wants_sums : bool, default=True
        Whether more than the first two sums are wanted.
    log_joint : (n, K), default=None
        The log of weight times density of each machine is written to it.
    """
    K, p, _ = view.slopes.shape
    inverse, origin, bias, centres, delta = (
        torch.as_tensor(part, dtype=torch.float64, device=x.device)
        for part in (view.inverse, view.origin, view.bias, view.centres, view.delta)
    )
    parts = view.machine_states()
    result = x.new_zeros(view.n_sums, dtype=torch.float64)
    rows = max(1, (GPU_ELEMENTS if x.is_cuda else CPU_ELEMENTS) // max(len(bias), K * p))
    for begin in range(0, len(x), rows):
        points, w = x[begin : begin + rows], weights[begin : begin + rows]
        y = [(points - origin[k]) @ inverse[k].mT for k in range(K)]
        logits = [
            bias[s] - 0.5 * torch.cdist(y[k], centres[s], compute_mode=EXACT).square() for k, s in enumerate(parts)
        ]
        by_machine = torch.stack([part.logsumexp(1) for part in logits], 1)
        log_prob = by_machine.logsumexp(1)
        if log_joint is not None:
            log_joint[begin : begin + rows] = by_machine
        result[0] += w @ log_prob
        result[1] += w @ (-log_prob - log_scale).clamp(max=700.0).exp()
        if wants_sums:
            own = [
                _machine_sums(y[k], (logits[k] - log_prob[:, None]).exp() * w[:, None], delta[s])
                for k, s in enumerate(parts)
            ]
            result[2:] += torch.cat(own)
    return result.cpu().numpy()


def _machine_sums(y: Tensor, shares: Tensor, delta: Tensor) -> Tensor:
    """Σ 1, Σ δ, Σ δδᵀ, Σ y, Σ yδᵀ and Σ yyᵀ of a machine, from the shares (n, S) of its states in the points."""
    counts, mean, total = shares.sum(0), shares @ delta, shares.sum(1)
    parts = counts.sum()[None], counts @ delta, delta.mT @ (counts[:, None] * delta), total @ y, y.mT @ mean
    return torch.cat([part.reshape(-1) for part in (*parts, y.mT @ (total[:, None] * y))])
