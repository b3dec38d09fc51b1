"""Points with missing entries, grouped by which entries are missing."""

from typing import NamedTuple

import torch
from torch import Tensor

CODED_FEATURES = 52
"""Up to this many features, a pattern of missing entries is one float64 number without rounding. More would collide."""


class Pattern(NamedTuple):
    """Points with the same missing entries."""

    rows: Tensor  # (m,): their indices
    present: Tensor  # (p,): the indices of the entries that are present
    points: Tensor  # (m, p): those entries


def missing_patterns(x: Tensor) -> list[Pattern]:
    """The points x (n, d), grouped by the entries that are NaN; an empty list if none is.

    Examples
    --------
    >>> x = torch.tensor([[1.0, torch.nan], [2.0, 3.0], [4.0, torch.nan]])
    >>> [(pattern.rows.tolist(), pattern.present.tolist()) for pattern in missing_patterns(x)]
    [([1], [0, 1]), ([0, 2], [0])]
    """
    absent = x.detach().isnan()
    if not bool(absent.any()):
        return []
    if x.shape[1] <= CODED_FEATURES:
        powers = 2.0 ** torch.arange(x.shape[1], dtype=torch.float64, device=x.device)
        _, group = (absent.double() @ powers).unique(return_inverse=True)
    else:
        _, group = absent.unique(dim=0, return_inverse=True)
    order = group.argsort(stable=True)
    result = []
    for rows in order.split(group.bincount().tolist()):
        present = (~absent[rows[0]]).nonzero()[:, 0]
        result.append(Pattern(rows, present, x[rows][:, present]))
    return result
