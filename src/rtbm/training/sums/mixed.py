"""The pass over rows with discrete columns: sums of machines, and counts of states by responsibilities."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from rtbm.common import Floats
from rtbm.training.sums.blocks import PointBlock
from rtbm.training.sums.passes import TablePass


class MixedPass(NamedTuple):
    """A pass over blocks of rows with numbers and states, of which either may be missing.

    Its vector can be added to those of other blocks. It holds `Sums` of the rows with numbers, in which log P is that
    of all rows with their states; and then the counts (S + 1, K) of states by the responsibilities of components, of
    which the last row counts all rows. Without machines, log P alone stands for the sums.
    """

    log_weights: Floats  # (K,)
    log_tables: Floats  # (S, K): the log probabilities of the states of all discrete columns
    machines: TablePass | None = None

    def __call__(self, blocks: Iterable[PointBlock]) -> Floats:
        """The vector of some blocks."""
        sums, counts = np.zeros(1 if self.machines is None else self.machines.size), np.zeros(self._shape)
        for block in blocks:
            log_joint = state_log_prob(block.places, self.log_tables)
            if self.machines is None or not len(block.present):
                log_joint += torch.from_numpy(self.log_weights).to(log_joint.device)
                sums[0] += float(torch.as_tensor(block.weights) @ log_joint.logsumexp(1))
            else:
                offsets = log_joint.numpy() if block.is_compiled else log_joint
                log_joint = torch.empty_like(log_joint)
                filled = log_joint.numpy() if block.is_compiled else log_joint
                self.machines.add(block._replace(offsets=offsets), sums, filled)
            shares = torch.as_tensor(block.weights)[:, None] * log_joint.softmax(1)
            counts += count_states(block.places, shares, self._shape[0]).cpu().numpy()
        return np.concatenate([sums, counts.reshape(-1)])

    @property
    def _shape(self) -> tuple[int, int]:
        return len(self.log_tables) + 1, len(self.log_weights)


def state_log_prob(places: Tensor, log_tables: Floats) -> Tensor:
    """The log probability (n, K) of the states of rows in each component; gaps count 0."""
    tables = torch.from_numpy(np.vstack([log_tables, np.zeros_like(log_tables[:1])]))
    return embedding_bag(places, tables.to(places.device), mode="sum")


def count_states(places: Tensor, shares: Tensor, size: int) -> Tensor:
    """The sums (size, K) of the shares (n, K) of rows with each state, and in the last row of all rows."""
    counts = shares.new_zeros(size, shares.shape[1])
    for column in places.unbind(1):
        counts.index_add_(0, column, shares)
    counts[-1] = shares.sum(0)
    return counts
