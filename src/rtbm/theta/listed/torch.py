"""The sum over a list of lattice points in plain torch, differentiable to any order. It serves every Q and device."""

from torch import Tensor

from rtbm.theta.chunks import in_chunks
from rtbm.theta.local import Local, LocalSum


def log_sum(local: Local, lattice: LocalSum) -> Tensor:
    """log Z = log Σ_m exp(…) of `poisson` for local arguments x (points, g): one exponential or cosine for each term.

    The list holds one of each pair ±m of oscillating coordinates, counted twice.
    """
    points, o = lattice.tensor("points", local.x.device), lattice.n_osc
    multiplicity = 1 + (points[:, :o] != 0).any(dim=1).to(points.dtype)

    def chunk(x: Tensor, G: Tensor, Psi: Tensor) -> Tensor:
        exponent = multiplicity.log() - half_square(points, G) + x[:, o:] @ points[:, o:].mT
        shift = exponent.detach().amax(dim=1)
        terms = (exponent - shift[:, None]).exp()
        if o:
            terms = terms * (x[:, :o] @ points[:, :o].mT + half_square(points, Psi)).cos()
        return terms.sum(dim=1).log() + shift

    return in_chunks(chunk, local.x, [local.form.G, local.form.Psi], len(points))


def half_square(points: Tensor, matrix: Tensor) -> Tensor:
    """½mᵀ·matrix·m for every row m of `points`."""
    return 0.5 * ((points @ matrix) * points).sum(dim=1)
