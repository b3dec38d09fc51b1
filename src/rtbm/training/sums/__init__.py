"""The sums of one pass over the data, from which likelihood and derivatives follow: by torch, numba and Triton."""

from rtbm.training.sums.blocks import ArrayBlocks, Blocks, Pass, PointBlock, make_blocks
from rtbm.training.sums.passes import Evaluation

__all__ = ["ArrayBlocks", "Blocks", "Evaluation", "Pass", "PointBlock", "make_blocks"]
