"""Exact samplers for P(n) ∝ exp(−½(n−c)ᵀA(n−c)) on the integer lattice."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import SamplingError, TooManyTermsError
from rtbm.theta.lattice import (
    Floats,
    Integers,
    cholesky,
    connected_components,
    enumerate_points,
    log_gauss_sum,
    nearest_plane_matrix,
    nearest_point,
    reduce_basis,
    squared_radius,
)

MAX_TABLE = 2**18
"""Up to this many lattice points the distribution is tabulated; beyond, the nearest-plane sampler takes over."""
LEFT_OUT = 1e-15  # total probability outside a table or window
MAX_PROPOSALS = 10**6
"""The nearest-plane sampler gives up when it accepts less than one proposal in this many."""
SMALLEST_ROUND = 4096
_ROUND_ELEMENTS = 2**22


class Table(NamedTuple):
    """All lattice points that matter, and their cumulative weights."""

    points: Tensor  # (terms, g)
    cumulative: Tensor  # (terms,), not normalised

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g), by inversion."""
        uniform = torch.rand(n, dtype=torch.float64, device=self.points.device, generator=generator)
        index = torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True)
        return self.points[index.clamp(max=len(self.points) - 1)]


class NearestPlane(NamedTuple):
    """Klein's sampler with an accept step that makes it exact.

    Coordinates are drawn from the last to the first, each from a one-dimensional discrete Gaussian around the centre
    that the earlier draws leave. A draw has probability Π_i exp(−½d_i(n_i−c_i)²)/ϑ_i(c_i), so accepting it with
    probability Π_i ϑ_i(c_i)/max ϑ_i gives exactly P(n). Where c_i does not depend on other draws, ϑ_i(c_i) is its
    own maximum, and nothing is rejected on its account.
    """

    basis: Tensor  # (g, g)
    norms: Tensor  # (g,)
    plane: Tensor  # (g, g)
    centre: Tensor  # (g,)
    log_largest: Tensor  # (g,)
    reach: list[int]

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g): rounds of proposals until enough are accepted."""
        g = len(self.norms)
        round_size = max(1, min(max(2 * n, SMALLEST_ROUND), _ROUND_ELEMENTS // (2 * max(self.reach) + 1)))
        accepted, proposed = [self.centre.new_zeros(0, g)], 0
        while sum(map(len, accepted)) < n:
            if proposed > MAX_PROPOSALS and sum(map(len, accepted)) * MAX_PROPOSALS < proposed:
                raise SamplingError(
                    f"{proposed} proposals gave {sum(map(len, accepted))} exact draws: A is too rigid for its size "
                    f"(g = {g}); a diagonal or block-diagonal A, or fewer units, can be sampled"
                )
            proposed += round_size
            points, log_accept = self._propose(round_size, generator)
            uniform = torch.rand(round_size, dtype=torch.float64, device=points.device, generator=generator)
            accepted.append(points[uniform.log() < log_accept])
        return torch.cat(accepted)[:n] @ self.basis.mT

    def _propose(self, n: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        g = len(self.norms)
        points = self.centre.new_zeros(n, g)
        log_accept = self.centre.new_zeros(n)
        for i in range(g - 1, -1, -1):
            centre = self.centre[i] + (self.centre[i + 1 :] - points[:, i + 1 :]) @ self.plane[i, i + 1 :]
            points[:, i], total = sample_integers(centre, self.norms[i], self.reach[i], generator)
            log_accept += total.log() - self.log_largest[i]
        return points, log_accept


def sample_integers(
    centre: Tensor, precision: Tensor, reach: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Independent draws (...) from exp(−½ precision (n − centre)²) on the integers, and the sums (...) of the weights.

    `precision` broadcasts against `centre` (...); `reach` is how far from the centre weights are not negligible.
    """
    window = torch.arange(-reach, reach + 1, dtype=torch.float64, device=centre.device)
    nearest = centre.round()
    weights = torch.exp(-0.5 * precision[..., None] * (window - (centre - nearest)[..., None]) ** 2)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[..., -1]
    uniform = torch.rand(centre.shape, dtype=torch.float64, device=centre.device, generator=generator)
    index = torch.searchsorted(cumulative, (uniform * total)[..., None], right=True)[..., 0]
    return nearest + window[index.clamp(max=len(window) - 1)], total


def reach_of(precision: Floats, count: int = 1) -> Integers:
    """How far from its centre a one-dimensional discrete Gaussian must be followed, for each precision (...)."""
    radius2 = squared_radius(precision[..., None], log_gauss_sum(precision, 0.5), LEFT_OUT / count)
    return np.ceil(np.sqrt(radius2 / precision) + 0.5).astype(np.int64)


class Independent(NamedTuple):
    """Samplers for groups of coordinates that do not depend on each other."""

    groups: list[tuple[Tensor, Table | NearestPlane]]
    g: int

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g)."""
        draws = torch.empty(n, self.g, dtype=torch.float64, device=self.groups[0][0].device)
        for indices, sampler in self.groups:
            draws[:, indices] = sampler.sample(n, generator)
        return draws


def make_sampler(A: Floats, centre: Floats, device: torch.device) -> Independent:
    """An exact sampler for the form A (g, g) and centre c (g,), block by block; single coordinates go together."""
    components = connected_components(A != 0)
    groups = [c for c in components if len(c) > 1]
    single = [c[0] for c in components if len(c) == 1]
    if single:
        groups.append(np.array(single))
    samplers = [(torch.as_tensor(c, device=device), _block_sampler(A[np.ix_(c, c)], centre[c], device)) for c in groups]
    return Independent(samplers, len(A))


def tabulate(A: Floats, centre: Floats, limit: int) -> tuple[Floats, Floats]:
    """All lattice points (terms, g) that matter, the likeliest first, and log P up to a constant (terms,).

    More than `limit` points are a TooManyTermsError.
    """
    U, reduced = reduce_basis(A)
    return _tabulate(U, cholesky(reduced), np.linalg.solve(U, centre), limit)


def _tabulate(U: Integers, R: Floats, centre: Floats, limit: int) -> tuple[Floats, Floats]:
    closest = 0.5 * float(((R @ (nearest_point(R, centre) - centre)) ** 2).sum())
    radius2 = float(squared_radius(np.diag(R) ** 2, -closest, LEFT_OUT))
    points = enumerate_points(R, radius2, np.zeros(len(R)), centre, limit)
    energy = 0.5 * (((points - centre) @ R.T) ** 2).sum(axis=1)
    order = np.argsort(energy, kind="stable")
    return (points[order] @ U.T).astype(float), energy.min() - energy[order]


def _block_sampler(A: Floats, centre: Floats, device: torch.device) -> Table | NearestPlane:
    U, reduced = reduce_basis(A)
    R, local = cholesky(reduced), np.linalg.solve(U, centre)
    try:
        points, log_weights = _tabulate(U, R, local, MAX_TABLE)
    except TooManyTermsError:
        return _make_nearest_plane(U, R, local, device)
    cumulative = np.cumsum(np.exp(log_weights))
    return Table(torch.as_tensor(points, device=device), torch.as_tensor(cumulative, device=device))


def _make_nearest_plane(U: Integers, R: Floats, centre: Floats, device: torch.device) -> NearestPlane:
    norms, plane = np.diag(R) ** 2, nearest_plane_matrix(R)
    reach = reach_of(norms, len(norms))
    log_largest = log_gauss_sum(norms)
    for i in np.flatnonzero(~plane.any(axis=1)):
        window = np.arange(-reach[i], reach[i] + 1) - (centre[i] - np.rint(centre[i]))
        log_largest[i] = np.log(np.exp(-0.5 * norms[i] * window**2).sum())
    slack = 1e-12  # an upper bound despite rounding; the sampler stays exact
    arrays = (U.astype(float), norms, plane, centre, log_largest + slack)
    basis, norms_, plane_, centre_, largest = (torch.as_tensor(array, device=device) for array in arrays)
    return NearestPlane(basis, norms_, plane_, centre_, largest, reach.tolist())
