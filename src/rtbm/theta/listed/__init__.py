"""The sum over a list of lattice points: the specification in torch, and the same compiled by numba and Triton."""
