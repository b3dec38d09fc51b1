"""The E-step in plain torch: the specification of the others, on any device."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta.chunks import CPU_ELEMENTS, GPU_ELEMENTS
from rtbm.training.machines import LOG_TWO_PI, Machines
from rtbm.training.rows import RowBlock
from rtbm.training.states import States

EXACT = "donot_use_mm_for_euclid_dist"
"""The mode of `torch.cdist` that subtracts before it squares. The others lose digits."""


def whiten(machines: Machines, present: np.ndarray) -> tuple[Floats, Floats, Floats]:
    """How machines see rows whose entries `present` (p,) are given.

    Returns inverse (K, p, p) and basis (K, d, p): of ε, basis @ y is known, with y = inverse (x − origin). The third is
    the log of the highest value of P(v|h) (K,).
    """
    basis, root = np.linalg.qr(machines.L[:, present].mT)  # of the rows of L, not of LLᵀ: that keeps all digits
    log_peak = -0.5 * len(present) * LOG_TWO_PI - np.log(np.abs(root.diagonal(axis1=1, axis2=2))).sum(axis=1)
    return np.linalg.inv(root).mT, basis, log_peak


def sum_rows(
    block: RowBlock,
    offsets: Tensor | None,
    machines: Machines,
    states: States,
    log_far: Floats,
    wants_sums: bool,
    log_joint: Any,
) -> tuple[list[Floats], Tensor]:
    """The sums over a block (Σ w log P, counts of states, noise, cross and square), and which rows are far (n,)."""
    (K, d, g), S, device = machines.F.shape, len(states.delta), torch.as_tensor(block.x).device
    far = torch.zeros(len(block.x), dtype=torch.bool, device=device)

    def on(array: Any) -> Tensor:
        return torch.as_tensor(array, dtype=torch.float64, device=device)

    delta, origin = on(states.delta), on(machines.origin)
    own = [slice(*states.first[k : k + 2]) for k in range(K)]
    value, counts = on(np.zeros(1)), on(np.zeros(S))
    noise, cross, square = (on(np.zeros(shape)) for shape in ((K, d), (K, d, g), (K, d, d)))
    size = max(1, (GPU_ELEMENTS if device.type == "cuda" else CPU_ELEMENTS) // max(S, K * d))
    for begin, end, pattern in block.segments:
        present = np.flatnonzero(block.present[pattern])
        inverse, basis, log_peak = map(on, whiten(machines, present))
        inverse, known = basis @ inverse, basis @ basis.mT
        slopes = inverse @ on(machines.F[:, present])
        planes = torch.linalg.qr(slopes)[0]
        bias = on(machines.log_weights + log_peak.cpu().numpy())
        given = torch.from_numpy(present).to(device)
        for start in range(begin, end, size):
            rows = slice(start, min(start + size, end))
            x, weights = torch.as_tensor(block.x)[rows][:, given], torch.as_tensor(block.weights)[rows]
            y = [(x - origin[k, given]) @ inverse[k].mT for k in range(K)]
            added = torch.zeros(len(x), K, device=device) if offsets is None else torch.as_tensor(offsets)[rows]
            prior = on(states.log_prior)
            terms = [
                (bias[k] + prior[own[k]]) + added[:, k, None]
                - 0.5 * torch.cdist(y[k], delta[own[k]] @ slopes[k].mT, compute_mode=EXACT).square()
                for k in range(K)
            ]  # fmt: skip
            by_machine = torch.stack([part.logsumexp(1) for part in terms], 1)
            log_prob = by_machine.logsumexp(1)
            across = torch.stack([(y[k] - y[k] @ planes[k] @ planes[k].mT).square().sum(1) for k in range(K)], 1)
            bound = (on(log_far) + log_peak + added - 0.5 * across).amax(1)
            is_far = ~(log_prob >= bound)
            far[rows] = is_far
            if log_joint is not None:
                torch.as_tensor(log_joint)[rows] = by_machine
            weights = weights.masked_fill(is_far, 0.0)
            value += weights @ log_prob.masked_fill(is_far, 0.0)
            for k in range(K if wants_sums else 0):
                share = (terms[k] - log_prob[:, None]).exp().masked_fill(is_far[:, None], 0.0) * weights[:, None]
                counts[own[k]] += share.sum(0)
                for s, at in enumerate(range(own[k].start, own[k].stop)):
                    epsilon = y[k] - slopes[k] @ delta[at]
                    mean = share[:, s] @ epsilon
                    noise[k] += mean
                    cross[k] += mean[:, None] * delta[at]
                    square[k] += epsilon.mT @ (share[:, s, None] * epsilon)
                square[k] += share.sum() * (torch.eye(d, device=device) - known[k])
    return [part.cpu().numpy() for part in (value, counts, noise, cross, square)], far
