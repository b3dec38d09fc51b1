"""Two evaluators of log Σ_m exp(…), in plain differentiable torch: a list of terms, and a split matrix product.

Both take the local argument x (points, g) and a `Form` (see `geometry`), and return log Z (points,). Oscillating
coordinates come first. The lists hold one of each pair ±m of oscillating coordinates, counted twice.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from rtbm.theta.exponentials import exponentials, half_square
from rtbm.theta.geometry import Form


class Terms(NamedTuple):
    """A list of lattice points as tensors."""

    points: Tensor  # (terms, g)
    multiplicity: Tensor  # (terms,): 1 or 2
    n_osc: int


class Split(NamedTuple):
    """Two lists over the first and the last coordinates, whose product set covers the points that are needed."""

    first: Tensor  # (terms_a, a)
    last: Tensor  # (terms_b, g − a)
    multiplicity: Tensor  # (terms_a,): 1 or 2
    n_osc: int


class SplitFactors(NamedTuple):
    """The coupling matrix C of the two lists (terms_b, terms_a), and log-size and angle of their own terms at x = 0."""

    real: Tensor
    imaginary: Tensor  # empty if C is real
    first_size: Tensor
    first_angle: Tensor
    last_size: Tensor
    last_angle: Tensor
    curvature: Tensor  # the diagonal of G


Derivatives: TypeAlias = tuple[Tensor, ...]
"""A logarithm and its first derivatives: entry k is of order k and has k trailing dimensions."""


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


def split_factors(form: Form, split: Split) -> SplitFactors:
    """What the split product needs beside x, computed once for all blocks of rows."""
    a, o = split.first.shape[1], split.n_osc
    size = torch.exp(-split.last @ form.G[a:, :a] @ split.first.mT) * split.multiplicity
    imaginary = size[:0]
    if 0 < o < form.G.shape[0]:
        angle = split.last @ form.Psi[a:, :a] @ split.first.mT
        size, imaginary = size * angle.cos(), size * angle.sin()
    return SplitFactors(
        size,
        imaginary,
        -half_square(split.first, form.G[:a, :a]),
        half_square(split.first, form.Psi[:a, :a]),
        -half_square(split.last, form.G[a:, a:]),
        half_square(split.last, form.Psi[a:, a:]),
        form.G.diagonal(),
    )


def split_log_sum(x: Tensor, factors: SplitFactors, split: Split) -> Tensor:
    """log Z as Σ E_b ∘ (C E_a): exponentials for the two short lists, and a matrix product for the rest."""
    a, o = split.first.shape[1], split.n_osc
    d = factors.curvature
    Ea = exponentials(x[:, :a], factors.first_size, factors.first_angle, split.first, d[:a], min(o, a))
    Eb = exponentials(x[:, a:], factors.last_size, factors.last_angle, split.last, d[a:], max(o - a, 0))
    coupling = (factors.real, factors.imaginary if factors.imaginary.numel() else None)
    real, imaginary = _complex_matmul(coupling, Ea)
    products = real * Eb[0]
    if imaginary is not None and Eb[1] is not None:
        products = torch.addcmul(products, imaginary, Eb[1], value=-1)
    return (products.new_ones(len(products)) @ products).log()  # faster than a sum over the first dimension


def list_cumulants(x: Tensor, form: Form, terms: Terms, order: int) -> Derivatives:
    """log Z and its first `order` (≤ 3) derivatives in x: cumulants of m, with m → im where it oscillates."""
    o, points = terms.n_osc, terms.points
    exponent = terms.multiplicity.log() - half_square(points, form.G) + x[:, o:] @ points[:, o:].mT
    shift = exponent.detach().amax(dim=1)
    weights, m = (exponent - shift[:, None]).exp(), points
    if o:
        weights = torch.polar(weights, x[:, :o] @ points[:, :o].mT + half_square(points, form.Psi))
        oscillates = torch.arange(points.shape[1], device=x.device) < o
        m = torch.complex(points * ~oscillates, points * oscillates)
    total = weights.sum(dim=1)
    total = total.real if o else total
    weights = weights / total[:, None]

    raw = [_weighted_power(weights, m, k) for k in range(1, order + 1)]
    return total.log() + shift, *_raw_to_cumulants(raw)


def _weighted_power(weights: Tensor, m: Tensor, order: int) -> Tensor:
    """Re Σ_t weights_nt m_t ⊗ … ⊗ m_t: a matrix product for each leading index; no temporary exceeds `weights`."""
    if order == 1:
        product = weights @ m
        return product.real if product.is_complex() else product
    return torch.stack([_weighted_power(weights * m[:, i], m, order - 1) for i in range(m.shape[1])], dim=1)


def _raw_to_cumulants(raw: list[Tensor]) -> list[Tensor]:
    cumulants = raw[:1]
    if len(raw) > 1:
        cumulants.append(raw[1] - raw[0][:, :, None] * raw[0][:, None, :])
    if len(raw) > 2:
        pair = torch.einsum("nij,nk->nijk", raw[1], raw[0])
        triple = torch.einsum("ni,nj,nk->nijk", raw[0], raw[0], raw[0])
        cumulants.append(raw[2] - pair - pair.permute(0, 1, 3, 2) - pair.permute(0, 3, 1, 2) + 2 * triple)
    return cumulants


def _complex_matmul(a: tuple[Tensor, Tensor | None], b: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    real, imaginary = a[0] @ b[0], None
    if a[1] is not None:
        imaginary = a[1] @ b[0]
    if b[1] is not None:
        cross = a[0] @ b[1]
        imaginary = cross if imaginary is None else imaginary + cross
        if a[1] is not None:
            real = real - a[1] @ b[1]
    return real, imaginary


def gradients_with_graph(
    value: Tensor, inputs: tuple[Tensor, ...], needed: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """The gradients of `value` in the inputs that need one, None for the others, ready to be differentiated again."""
    wanted = [tensor for tensor, need in zip(inputs, needed, strict=False) if need]
    derivatives = iter(torch.autograd.grad(value, wanted, grad, create_graph=True))
    return [next(derivatives) if need else None for _, need in zip(inputs, needed, strict=False)]
