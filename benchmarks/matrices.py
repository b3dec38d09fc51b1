"""The matrices that the benchmarks use."""

import numpy as np


def typical(g: int) -> np.ndarray:
    """XXᵀ + ½I with X uniform in [−1, 1]."""
    X = np.random.default_rng(g).uniform(-1, 1, (g, g))
    return X @ X.T + 0.5 * np.eye(g)


def worst(g: int) -> np.ndarray:
    """2πI, where neither the sum nor its Poisson dual is short, with a small coupling, so that it is one block."""
    E = np.random.default_rng(g).normal(size=(g, g)) * 0.05
    return 2 * np.pi * np.eye(g) + E + E.T


MATRICES = {"typical": typical, "worst": worst}
