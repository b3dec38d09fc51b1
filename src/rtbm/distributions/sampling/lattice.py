"""Exact samplers for the discrete Gaussian P(n) ∝ exp(−½(n−c)ᵀA(n−c)) on the integer lattice."""

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats, Integers
from rtbm.errors import SamplingError, TooManyTermsError
from rtbm.theta.lattice import (
    cholesky,
    connected_components,
    enumerate_points,
    nearest_plane_matrix,
    nearest_point,
    reduce_basis,
)
from rtbm.theta.truncation import log_gauss_sum, squared_radius

MAX_LISTED_POINTS = 2**18
"""Up to this many lattice points are listed and sampled by inversion; beyond, Klein's sampler takes over. A larger
limit takes more memory, and rejects fewer proposals."""
SAMPLER_TAIL = 1e-15
"""Total probability outside the points that a sampler can draw. A larger number is faster and less exact."""
MAX_PROPOSALS = 10**6
"""Klein's sampler gives up when it accepts less than one proposal in this many."""
SMALLEST_ROUND, ROUND_ELEMENTS = 4096, 2**22
"""Proposals in a round of Klein's sampler, at least, and the numbers that it holds at once, at most. Larger ones take
more memory and fewer rounds."""


class InversionSampler(NamedTuple):
    """Draws from a list of all lattice points that matter, by inversion of their cumulative weights."""

    points: Tensor  # (terms, g)
    cumulative: Tensor  # (terms,), not normalised

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g)."""
        uniform = torch.rand(n, dtype=torch.float64, device=self.points.device, generator=generator)
        index = torch.searchsorted(self.cumulative, uniform * self.cumulative[-1], right=True)
        return self.points[index.clamp(max=len(self.points) - 1)]


class KleinSampler(NamedTuple):
    """Klein's nearest-plane sampler with an accept step that makes it exact.

    Coordinates are drawn from the last to the first, each from a one-dimensional discrete Gaussian around the centre
    that the earlier draws leave. A draw has probability Π_i exp(−½d_i(n_i−c_i)²)/ϑ_i(c_i), so accepting it with
    probability Π_i ϑ_i(c_i)/max ϑ_i gives exactly P(n). Where c_i does not depend on other draws, ϑ_i(c_i) is its
    own maximum, and that coordinate rejects nothing.
    """

    basis: Tensor  # (g, g)
    norms: Tensor  # (g,)
    plane: Tensor  # (g, g)
    centre: Tensor  # (g,)
    log_largest: Tensor  # (g,)
    reach: list[int]
    max_proposals: int = MAX_PROPOSALS

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g): rounds of proposals until enough are accepted."""
        g = len(self.norms)
        round_size = max(1, min(max(2 * n, SMALLEST_ROUND), ROUND_ELEMENTS // (2 * max(self.reach) + 1)))
        accepted, proposed = [self.centre.new_zeros(0, g)], 0
        while sum(map(len, accepted)) < n:
            if proposed > self.max_proposals and sum(map(len, accepted)) * self.max_proposals < proposed:
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


class BlockSampler(NamedTuple):
    """Samplers for groups of coordinates that are independent of each other."""

    groups: list[tuple[Tensor, InversionSampler | KleinSampler]]
    g: int

    def sample(self, n: int, generator: torch.Generator | None) -> Tensor:
        """n independent draws (n, g)."""
        draws = torch.empty(n, self.g, dtype=torch.float64, device=self.groups[0][0].device)
        for indices, sampler in self.groups:
            draws[:, indices] = sampler.sample(n, generator)
        return draws


def make_sampler(
    A: Floats,
    centre: Floats,
    device: torch.device,
    *,
    max_listed: int = MAX_LISTED_POINTS,
    max_proposals: int = MAX_PROPOSALS,
) -> BlockSampler:
    """An exact sampler for the matrix A (g, g) and the centre c (g,).

    Each block of A that is coupled has a sampler of its own. All coordinates without couplings share one. Blocks with
    more than `max_listed` points are sampled by Klein's sampler, which raises a SamplingError when it accepts less than
    one proposal in `max_proposals`.
    """
    components = connected_components(A != 0)
    groups = [c for c in components if len(c) > 1]
    single = [c[0] for c in components if len(c) == 1]
    if single:
        groups.append(np.array(single))
    samplers: list[tuple[Tensor, InversionSampler | KleinSampler]] = []
    for c in groups:
        block, local = A[np.ix_(c, c)], centre[c]
        sampler: InversionSampler | KleinSampler
        try:
            points, log_weights = list_points(block, local, max_listed)
            arrays = points, np.cumsum(np.exp(log_weights))
            sampler = InversionSampler(*(torch.as_tensor(array, device=device) for array in arrays))
        except TooManyTermsError:
            sampler = _make_klein_sampler(block, local, device, max_proposals)
        samplers.append((torch.as_tensor(c, device=device), sampler))
    return BlockSampler(samplers, len(A))


def list_points(A: Floats, centre: Floats, limit: int) -> tuple[Floats, Floats]:
    """All lattice points (terms, g) that matter, the likeliest first, and log P up to a constant (terms,).

    More than `limit` points raise a TooManyTermsError.
    """
    U, R, centre = _reduce(A, centre)
    closest = 0.5 * float(((R @ (nearest_point(R, centre) - centre)) ** 2).sum())
    radius2 = squared_radius(np.diag(R) ** 2, math.log(SAMPLER_TAIL) - closest)
    points = enumerate_points(R, radius2, np.zeros(len(R)), centre, limit)
    energy = 0.5 * (((points - centre) @ R.T) ** 2).sum(axis=1)
    order = np.argsort(energy, kind="stable")
    return (points[order] @ U.T).astype(float), energy.min() - energy[order]


def _reduce(A: Floats, centre: Floats) -> tuple[Integers, Floats, Floats]:
    """A reduced basis U, and in that basis the Cholesky factor of A and the centre."""
    U, reduced = reduce_basis(A)
    return U, cholesky(reduced), np.linalg.solve(U, centre)


def _make_klein_sampler(A: Floats, centre: Floats, device: torch.device, max_proposals: int) -> KleinSampler:
    U, R, centre = _reduce(A, centre)
    norms, plane = np.diag(R) ** 2, nearest_plane_matrix(R)
    reach = reach_of(norms, len(norms))
    log_largest = log_gauss_sum(norms)
    for i in np.flatnonzero(~plane.any(axis=1)):
        window = np.arange(-reach[i], reach[i] + 1) - (centre[i] - np.rint(centre[i]))
        log_largest[i] = np.log(np.exp(-0.5 * norms[i] * window**2).sum())
    slack = 1e-12  # keeps the bound above the sum despite rounding; the sampler stays exact
    arrays = (U.astype(float), norms, plane, centre, log_largest + slack)
    basis, norms_, plane_, centre_, largest = (torch.as_tensor(array, device=device) for array in arrays)
    return KleinSampler(basis, norms_, plane_, centre_, largest, reach.tolist(), max_proposals)


def sample_integers(
    centre: Tensor, precision: Tensor, reach: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Independent draws (...) from exp(−½ precision (n − centre)²) on the integers, and the sums (...) of the weights.

    `precision` broadcasts against `centre` (...). `reach` is the distance from the centre beyond which weights are
    negligible; see `reach_of`.
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
    """The distance from its centre up to which a one-dimensional discrete Gaussian matters, per precision (...).

    The probability beyond is SAMPLER_TAIL divided by `count`.
    """
    log_bounds = log_gauss_sum(precision, 0.5) + math.log(SAMPLER_TAIL / count)
    pairs = zip(precision.flat, log_bounds.flat, strict=True)
    radius2 = np.array([squared_radius(np.array([d]), bound) for d, bound in pairs]).reshape(precision.shape)
    return np.ceil(np.sqrt(radius2 / precision) + 0.5).astype(np.int64)
