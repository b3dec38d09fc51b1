"""The sum over a list of terms, in plain differentiable torch.

It is log Z = log Σ_m exp(…) of `block.poisson` for the local argument x (points, g). Oscillating coordinates come
first. The list holds one of each pair ±m of oscillating coordinates, counted twice.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.theta.block.cost import LIST_POINT, LIST_TERM
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.poisson import Form
from rtbm.theta.block.tensors import BlockTensors
from rtbm.theta.chunks import in_chunks
from rtbm.theta.derivatives import Derivatives

LARGEST_FLOAT32_EXPONENT = 4.0
"""Sums with larger exponents are computed in float64. In float32, exponents that cancel would lose the last digits."""


class ListSum(Evaluator):
    """One exponential or cosine for each term. It serves every block, device and order of derivatives."""

    name = "list"

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """An exponential or cosine for every term."""
        return n_points * (LIST_POINT + self.n_terms * LIST_TERM)

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        form, (s, centre, offset) = self.tensors.form(Q), self.tensors.recentre(z, Q)
        dtype = dtype_for(z, self.tensors)
        terms = self._terms(dtype, z.device)

        def series(rows: Tensor, *constants: Tensor) -> Derivatives:
            if order == 0:
                return (list_log_sum(rows, Form(*constants), terms),)
            return list_cumulants(rows, Form(*constants), terms, order)

        x, constants = (s @ form.B.mT).to(dtype), [matrix.to(dtype) for matrix in form]
        log_sum, *derivatives = in_chunks(series, x, constants, len(terms.points))
        value = offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + log_sum
        return value, *to_z(s, centre, form, self.tensors.basis(z.device), derivatives)

    def _terms(self, dtype: torch.dtype, device: torch.device) -> "Terms":
        points = self.tensors.constant("points", self.tensors.geometry.points, device, dtype)
        o = self.tensors.geometry.n_osc
        return Terms(points, 1 + (points[:, :o] != 0).any(dim=1).to(dtype), o)


def to_z(s: Tensor, centre: Tensor, form: Form, U: Tensor, derivatives: list[Tensor]) -> Derivatives:
    """Derivatives of log Z in x as derivatives of log θ̃ in z."""
    if not derivatives:
        return ()
    M = form.B @ U.mT
    return (
        *(centre + ((s @ form.K) @ U.mT + first.double() @ M) for first in derivatives[:1]),
        *(U @ form.K @ U.mT + M.mT @ second.double() @ M for second in derivatives[1:2]),
        *(torch.einsum("nabc,ai,bj,ck->nijk", third.double(), M, M, M) for third in derivatives[2:3]),
    )


def dtype_for(z: Tensor, tensors: BlockTensors) -> torch.dtype:
    """The type of z, or float64 where an exponent is large enough to cost digits."""
    return torch.float64 if tensors.geometry.largest_exponent > LARGEST_FLOAT32_EXPONENT else z.dtype


class Terms(NamedTuple):
    """A list of lattice points as tensors."""

    points: Tensor  # (terms, g)
    multiplicity: Tensor  # (terms,): 1 or 2
    n_osc: int


def list_log_sum(x: Tensor, form: Form, terms: Terms) -> Tensor:
    """log Z with one exponential or cosine for each term."""
    o, points = terms.n_osc, terms.points
    amplitude = terms.multiplicity.log() - half_square(points, form.G)
    phase = x[:, :o] @ points[:, :o].mT + half_square(points, form.Psi)
    if o == points.shape[1]:
        return (phase.cos() @ amplitude.exp()).log()
    exponent = amplitude + x[:, o:] @ points[:, o:].mT
    shift = exponent.detach().amax(dim=1)
    summands = (exponent - shift[:, None]).exp()
    return ((summands * phase.cos()) if o else summands).sum(dim=1).log() + shift


def list_cumulants(x: Tensor, form: Form, terms: Terms, order: int) -> Derivatives:
    """log Z and its first `order` (≤ 3) derivatives in x: cumulants of m, with m → im where it oscillates."""
    o, points = terms.n_osc, terms.points
    exponent = terms.multiplicity.log() - half_square(points, form.G) + x[:, o:] @ points[:, o:].mT
    shift = exponent.detach().amax(dim=1)
    weights, m = (exponent - shift[:, None]).exp(), points
    if o:
        weights = torch.polar(weights, x[:, :o] @ points[:, :o].mT + half_square(points, form.Psi))
        m = with_unit(points, o)
    total = real_part(weights.sum(dim=1))
    weights = weights / total[:, None]

    raw = [_weighted_power(weights, m, k) for k in range(1, order + 1)]
    return total.log() + shift, *cumulants(raw)


def _weighted_power(weights: Tensor, m: Tensor, order: int) -> Tensor:
    """Re Σ_t weights_nt m_t ⊗ … ⊗ m_t: a matrix product for each leading index; no temporary exceeds `weights`."""
    if order == 1:
        return real_part(weights @ m)
    return torch.stack([_weighted_power(weights * m[:, i], m, order - 1) for i in range(m.shape[1])], dim=1)


def cumulants(raw: list[Tensor]) -> list[Tensor]:
    """Cumulants of order 1, 2, … from the raw moments of these orders."""
    found = raw[:1]
    if len(raw) > 1:
        found.append(raw[1] - raw[0][:, :, None] * raw[0][:, None, :])
    if len(raw) > 2:
        pair = torch.einsum("nij,nk->nijk", raw[1], raw[0])
        triple = torch.einsum("ni,nj,nk->nijk", raw[0], raw[0], raw[0])
        found.append(raw[2] - pair - pair.permute(0, 1, 3, 2) - pair.permute(0, 3, 1, 2) + 2 * triple)
    return found


def half_square(points: Tensor, matrix: Tensor) -> Tensor:
    """½mᵀ·matrix·m for every row m of `points`."""
    return 0.5 * ((points @ matrix) * points).sum(dim=1)


def with_unit(m: Tensor, n_osc: int) -> Tensor:
    """m → im in the first n_osc coordinates."""
    if not n_osc:
        return m
    oscillates = torch.arange(m.shape[1], device=m.device) < n_osc
    return torch.complex(m * ~oscillates, m * oscillates)


def real_part(x: Tensor) -> Tensor:
    """x itself if it is real."""
    return x.real if x.is_complex() else x
