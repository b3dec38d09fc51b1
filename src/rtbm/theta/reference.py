"""The definition: θ̃ summed term by term. Every evaluator is tested against it."""

import math

import numpy as np
from numpy.typing import ArrayLike

from rtbm.common import Floats
from rtbm.theta.lattice import cholesky, enumerate_points
from rtbm.theta.truncation import log_gauss_sum, squared_radius


def reference_log_theta(z: ArrayLike, Q: ArrayLike, phase: str = "I", tolerance: float = 1e-12) -> Floats:
    """log Σ_{n∈ℤ^g} exp(−½nᵀQn + nᵀz), or with iz for z in phase "II", over the integers around the largest term.

    Parameters
    ----------
    z : (points, g)
    Q : (g, g)

    Returns
    -------
    (points,) array. No reduction, no Poisson summation: slow, and phase II loses digits where θ̃ is small.

    >>> reference_log_theta([[5.0]], [[10.0]]).round(6)  # the terms n = 0 and n = 1 are both 1
    array([0.693193])
    """
    z, Q = np.asarray(z, float), np.asarray(Q, float)
    w = z if phase == "I" else 1j * z
    R = cholesky(Q)
    norms = np.diag(R) ** 2
    log_smallest = log_gauss_sum(norms, 0.5).sum() if phase == "I" else 0.0
    radius2 = squared_radius(norms, log_smallest + math.log(tolerance))
    around = enumerate_points(R, radius2, abs(R).sum(1) / 2)  # reaches from any centre in the unit cell
    n = around + np.rint(np.linalg.solve(Q, w.real.T).T)[:, None]
    exponents = -0.5 * ((n @ Q) * n).sum(2) + (n * w[:, None]).sum(2)
    largest = exponents.real.max(1)
    return largest + np.log(np.exp(exponents - largest[:, None]).sum(1).real)
