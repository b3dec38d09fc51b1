"""The likelihood and its derivatives from one pass over the data: the same sums by torch, numba and Triton."""

from rtbm.training.statistics.blocks import ArraySource, Block, Source, make_blocks
from rtbm.training.statistics.sums import Evaluation
from rtbm.training.statistics.tables_or_theta import FAILURES, Likelihood

__all__ = ["FAILURES", "ArraySource", "Block", "Evaluation", "Likelihood", "Source", "make_blocks"]
