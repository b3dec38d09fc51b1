"""The likelihood and its derivatives from one pass over the data: the same sums by torch, numba and Triton."""

from rtbm.training.statistics.likelihood import (
    Block,
    Evaluation,
    Likelihood,
    Memory,
    Source,
    SourceLikelihood,
    make_blocks,
)

__all__ = ["Block", "Evaluation", "Likelihood", "Memory", "Source", "SourceLikelihood", "make_blocks"]
