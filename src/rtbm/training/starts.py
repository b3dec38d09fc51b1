"""The choice among starts of a fit, on standardised data, which have mean 0 and covariance 1."""

import math

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.training.coordinates import moments, standardisation
from rtbm.training.families import Family


def make_start(
    family: Family,
    x: Floats,
    weights: Floats,
    index: int,
    seed: int,
    labels: np.ndarray | None = None,
) -> Tensor:
    """The vector of start number `index`: the same for the same seed.

    Parameters
    ----------
    x, weights : (n, Nv), (n,)
        Standardised data.
    labels : (n,)
        For mixtures: the cluster of each point. A machine starts in each.
    """
    rng = np.random.default_rng([seed, index])
    if family.n_components == 1:
        return family.start(x, weights, index, rng)
    machines, logits = [], []
    for k in range(family.n_components):
        mine = np.ones(len(x), dtype=bool) if labels is None else labels == k
        if mine.sum() <= x.shape[1]:
            mine = np.ones(len(x), dtype=bool)  # too small a cluster to have a shape
        machines.append(_cluster_start(family, x[mine], weights[mine], index, rng))
        logits.append(math.log(weights[mine].sum() / weights.sum()))
    return family.join(machines, torch.tensor(logits, dtype=torch.float64))


def _cluster_start(family: Family, x: Floats, weights: Floats, index: int, rng: np.random.Generator) -> Tensor:
    """A start for the points of one cluster, in its own standard coordinates, and back."""
    local_moments = moments(x, weights)
    mean, (root, _) = local_moments.mean, standardisation(local_moments, floor=1e-3)
    local = (x - mean) @ np.linalg.inv(root).T
    return family.single().affine(family.start(local, weights, index, rng), root, mean)
