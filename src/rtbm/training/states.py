"""Hidden states of machines: which of them matter, before any data are seen and for rows that are far out."""

import math
from typing import NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.errors import TooManyTermsError
from rtbm.theta.lattice import list_points, nearest_plane_matrix, reduce_factors, triangular_factors
from rtbm.theta.truncation import squared_radius

LOG_OMITTED = -40.0
"""The logarithm of the share of P(h) that a list of states omits. A smaller one makes lists longer, a larger one more
rows far."""
LARGEST_CENTRE = 1e9
"""Further out, differences of hidden states would lose digits: theta functions take over."""


class States(NamedTuple):
    """The states of K machines that matter, one machine after the other."""

    delta: Floats  # (S, g): h − centre
    log_prior: Floats  # (S,): log P(h)
    owner: np.ndarray  # (S,): the machine of each state
    first: np.ndarray  # (K + 1,): the first state of each machine, and S
    log_total: Floats  # (K,): log Σ exp(−½|Rδ|²) over the states
    log_omitted: Floats  # (K,): a bound on the logarithm of Σ P(h) over all other states

    def moments(self) -> tuple[Floats, Floats]:
        """E[δ] (K, g) and E[δδᵀ] (K, g, g)."""
        return self.expect(np.exp(self.log_prior))

    def expect(self, weights: Floats) -> tuple[Floats, Floats]:
        """Σ w δ (K, g) and Σ w δδᵀ (K, g, g) over the states of each machine, for weights (S,)."""
        weighted = weights[:, None] * self.delta
        first = np.add.reduceat(weighted, self.first[:-1])
        return first, np.add.reduceat(weighted[:, :, None] * self.delta[:, None], self.first[:-1])

    def total(self, weights: Floats) -> Floats:
        """Σ w (K,) over the states of each machine."""
        return np.add.reduceat(weights, self.first[:-1])


def list_states(root: Floats, centre: Floats, limit: int, log_omitted: float = LOG_OMITTED) -> States:
    """The integer vectors h that matter in Σ_h exp(−½|R(h − c)|²), for K sums with upper triangular roots R.

    They make up all but a share exp(log_omitted) of each sum, relative to its largest term. More than `limit` states of
    one machine are an error, which is raised before they are listed.

    Parameters
    ----------
    root, centre : (K, g, g), (K, g)
        R with a positive diagonal, and c.
    """
    K, g = centre.shape
    if not ((np.abs(centre) < LARGEST_CENTRE).all() and (np.diagonal(root, axis1=1, axis2=2) > 0).all()):
        raise TooManyTermsError(math.inf, limit)
    try:
        points, owner, log_bound = _list_points(root, centre, limit, log_omitted)
    except TooManyTermsError:  # in a skewed basis, the state that rounding finds may be far from the nearest one
        U = reduce_factors(root)
        if (np.eye(g) == U).all() or not (np.abs(U) < LARGEST_CENTRE).all():
            raise
        inner = np.linalg.solve(U, centre[:, :, None])[:, :, 0]
        points, owner, log_bound = _list_points(triangular_factors(root @ U), inner, limit, log_omitted)
        points = (U[owner] @ points[:, :, None])[:, :, 0]
    delta = points - centre[owner]
    log_prior = -0.5 * ((root[owner] @ delta[:, :, None])[:, :, 0] ** 2).sum(axis=1)
    first = np.searchsorted(owner, np.arange(K + 1))
    top = np.maximum.reduceat(log_prior, first[:-1])
    log_total = top + np.log(np.add.reduceat(np.exp(log_prior - top[owner]), first[:-1]))
    return States(delta, log_prior - log_total[owner], owner, first, log_total, log_bound - log_total)


def _list_points(root: Floats, centre: Floats, limit: int, log_omitted: float) -> tuple[Floats, np.ndarray, Floats]:
    """The states (S, g), the sums they are of (S,), and a bound on the logarithm of what is left out of each (K,)."""
    (K, g), left = centre.shape, np.zeros(centre.shape)
    plane, norms = nearest_plane_matrix(root), np.diagonal(root, axis1=1, axis2=2) ** 2
    for i in range(g - 1, -1, -1):  # nearest-plane rounding finds the state with which lengths are compared
        left[:, i] = centre[:, i] - np.rint(centre[:, i] + (plane[:, i] * left).sum(axis=1))
    log_bound = log_omitted - 0.5 * ((root @ left[:, :, None]) ** 2).sum(axis=(1, 2))
    points, owner = list_points(root, squared_radius(norms, log_bound), np.zeros((K, g)), centre, K * limit, 0)
    return points.astype(np.float64), owner, log_bound
