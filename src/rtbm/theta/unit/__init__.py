"""Theta functions of one dimension: the specification in torch, and the same sums compiled by numba and Triton."""
