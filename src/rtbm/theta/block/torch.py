"""Two evaluators in plain differentiable torch: a list of terms, and a split matrix product.

Both sum log Z = log Σ_m exp(…) of `block.poisson` for the local argument x (points, g). Oscillating coordinates come
first. The lists hold one of each pair ±m of oscillating coordinates, counted twice.
"""

from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from rtbm.theta import kernels
from rtbm.theta.block import cost
from rtbm.theta.block.cost import (
    FUSED_TERM,
    LIST_POINT,
    LIST_TERM,
    SMALLEST_SPLIT,
    SPLIT_SETUP,
    SplitLists,
    choose_split,
    split_exponent,
)
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.numba import MAX_EXPONENT, fill_table
from rtbm.theta.block.poisson import Form
from rtbm.theta.block.tensors import CPU, BlockTensors
from rtbm.theta.chunks import in_chunks
from rtbm.theta.derivatives import Derivatives

MAX_EXPONENT_FLOAT32 = 60.0
"""Split products with larger exponents are computed in float64. Beyond 88, factors would overflow float32."""
LARGEST_FLOAT32_EXPONENT = 4.0
"""Sums with larger exponents are computed in float64. In float32, exponents that cancel would lose the last digits."""


class ListSum(Evaluator):
    """One exponential or cosine for each term. It serves every block, device and order of derivatives."""

    name = "list"

    def cost(self, n_points: int) -> float:
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


class SplitProduct(Evaluator):
    """Exponentials for two short lists, and a matrix product for their pairs. It serves up to two derivatives.

    Third ones go through the list.
    """

    name = "split"

    def __init__(self, tensors: BlockTensors, list_sum: ListSum):
        super().__init__(tensors)
        self._list_sum = list_sum

    def supports(self, device: torch.device) -> bool:
        """Whether no factor overflows."""
        return self.tensors.g > 1 and self._exponent < MAX_EXPONENT

    def pays(self, z: Tensor) -> bool:
        """Batches of sums with many terms only: others take less time than the setup."""
        return self.may_pay(len(z)) and self.supports(z.device)

    def may_pay(self, n_points: int) -> bool:
        """Whether it is worth while to look for a split."""
        return n_points > 1 and self.n_terms > SMALLEST_SPLIT and n_points * self.n_terms * FUSED_TERM > SPLIT_SETUP

    def cost(self, n_points: int) -> float:
        """Two short lists and a matrix product."""
        first, last = (len(part) for part in self._lists)
        fill = cost.FILL_COMPILED if kernels.AVAILABLE else cost.FILL_TORCH
        each = cost.SPLIT_POINT + (first + last) * fill + first * last * cost.PRODUCT_TERM
        return n_points * each + first * last * LIST_TERM + SPLIT_SETUP

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        if order > 2:
            return self._list_sum.moments(z, Q, order)
        form, (s, centre, offset) = self.tensors.form(Q), self.tensors.recentre(z, Q)
        dtype = torch.float64 if self._exponent > MAX_EXPONENT_FLOAT32 else dtype_for(z, self.tensors)
        split = self._split(dtype, z.device)

        def series(rows: Tensor, *constants: Tensor) -> Derivatives:
            if order == 0:
                return (split_log_sum(rows, SplitFactors(*constants), split),)
            return split_cumulants(rows, SplitFactors(*constants), split, order)

        x = (s @ form.B.mT).to(dtype)
        factors = split_factors(Form(*(matrix.to(dtype) for matrix in form)), split)
        width = (len(split.first) + len(split.last)) * (1 + order)
        log_sum, *derivatives = in_chunks(series, x, factors, width)
        value = offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + log_sum
        return value, *to_z(s, centre, form, self.tensors.basis(z.device), derivatives)

    @cached_property
    def _lists(self) -> SplitLists:
        return choose_split(self.tensors.geometry.points, self.tensors.geometry.n_osc)

    @cached_property
    def _exponent(self) -> float:
        geometry = self.tensors.geometry
        return split_exponent(self._lists, self.tensors.fixed_form(CPU).G.numpy(), geometry.factor, geometry.n_osc)

    def _split(self, dtype: torch.dtype, device: torch.device) -> "Split":
        first = self.tensors.constant("first", self._lists.first, device, dtype)
        last = self.tensors.constant("last", self._lists.last, device, dtype)
        o = self.tensors.geometry.n_osc
        return Split(first, last, 1 + (first[:, :o] != 0).any(dim=1).to(dtype), o)


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
    Ea, Eb, coupling = _split_tables(x, factors, split)
    real, imaginary = _complex_matmul(coupling, Ea)
    products = real * Eb[0]
    if imaginary is not None and Eb[1] is not None:
        products = torch.addcmul(products, imaginary, Eb[1], value=-1)
    return (products.new_ones(len(products)) @ products).log()  # faster than a sum over the first dimension


def split_cumulants(x: Tensor, factors: SplitFactors, split: Split, order: int) -> Derivatives:
    """log Z and its first `order` (≤ 2) derivatives in x, see `list_cumulants`.

    E_b ∘ (C E_a) are the weights of the last coordinates, and E_a ∘ (Cᵀ E_b) those of the first ones. What couples
    the two takes E_b ∘ (C (m ∘ E_a)) for each first coordinate m.
    """
    a, o = split.first.shape[1], split.n_osc
    Ea, Eb, coupling = _split_tables(x, factors, split)
    first, last = (_with_unit(m, n) for m, n in ((split.first, min(o, a)), (split.last, max(o - a, 0))))
    by_last = _weights(Eb, _complex_matmul(coupling, Ea))
    by_first = _weights(Ea, _complex_matmul((coupling[0].mT, None if coupling[1] is None else coupling[1].mT), Eb))
    total = _real(by_last.sum(dim=0))
    raw = [torch.cat([_average(by_first, first), _average(by_last, last)], dim=1)]
    if order > 1:
        ours, theirs = _average(by_first, _pairs(first)), _average(by_last, _pairs(last))
        cross = []
        for i in range(a):
            m = split.first[:, i, None]
            tilted = (m * Ea[0], None if Ea[1] is None else m * Ea[1])
            weights = _weights(Eb, _complex_matmul(coupling, tilted))
            cross.append(_average(weights, last * (1j if i < o else 1.0)))
        mixed = torch.stack(cross, dim=1)
        upper = torch.cat([ours.reshape(len(x), a, a), mixed], dim=2)
        lower = torch.cat([mixed.mT, theirs.reshape(len(x), *[split.last.shape[1]] * 2)], dim=2)
        raw.append(torch.cat([upper, lower], dim=1))
    raw = [moment / total.reshape(-1, *[1] * (moment.ndim - 1)) for moment in raw]
    return total.log(), *_tensor_cumulants(raw)


Parts: TypeAlias = tuple[Tensor, Tensor | None]
"""Real and imaginary part; None if that is zero."""


def _split_tables(x: Tensor, factors: SplitFactors, split: Split) -> tuple[Parts, Parts, Parts]:
    """E_a (terms_a, N), E_b (terms_b, N) and C (terms_b, terms_a)."""
    a, o = split.first.shape[1], split.n_osc
    d = factors.curvature
    Ea = exponentials(x[:, :a], factors.first_size, factors.first_angle, split.first, d[:a], min(o, a))
    Eb = exponentials(x[:, a:], factors.last_size, factors.last_angle, split.last, d[a:], max(o - a, 0))
    return Ea, Eb, (factors.real, factors.imaginary if factors.imaginary.numel() else None)


def _weights(a: Parts, b: Parts) -> Tensor:
    """The product of two tables, entry by entry; complex if one of them is."""
    if a[1] is None:
        return a[0] * b[0] if b[1] is None else torch.complex(a[0] * b[0], a[0] * b[1])
    if b[1] is None:
        return torch.complex(a[0] * b[0], a[1] * b[0])
    return torch.complex(a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0])


def _average(weights: Tensor, m: Tensor) -> Tensor:
    """Re Σ_t weights_tn m_tk: (N, k)."""
    if m.is_complex() and weights.is_complex():
        return (weights.real.mT @ m.real) - (weights.imag.mT @ m.imag)
    return _real(weights).mT @ _real(m)


def _pairs(m: Tensor) -> Tensor:
    """All products of two coordinates: (terms, k²)."""
    return (m[:, :, None] * m[:, None, :]).flatten(1)


def _with_unit(m: Tensor, n_osc: int) -> Tensor:
    """m → im in the first n_osc coordinates."""
    if not n_osc:
        return m
    oscillates = torch.arange(m.shape[1], device=m.device) < n_osc
    return torch.complex(m * ~oscillates, m * oscillates)


def _real(x: Tensor) -> Tensor:
    return x.real if x.is_complex() else x


def list_cumulants(x: Tensor, form: Form, terms: Terms, order: int) -> Derivatives:
    """log Z and its first `order` (≤ 3) derivatives in x: cumulants of m, with m → im where it oscillates."""
    o, points = terms.n_osc, terms.points
    exponent = terms.multiplicity.log() - half_square(points, form.G) + x[:, o:] @ points[:, o:].mT
    shift = exponent.detach().amax(dim=1)
    weights, m = (exponent - shift[:, None]).exp(), points
    if o:
        weights = torch.polar(weights, x[:, :o] @ points[:, :o].mT + half_square(points, form.Psi))
        m = _with_unit(points, o)
    total = _real(weights.sum(dim=1))
    weights = weights / total[:, None]

    raw = [_weighted_power(weights, m, k) for k in range(1, order + 1)]
    return total.log() + shift, *_tensor_cumulants(raw)


def _weighted_power(weights: Tensor, m: Tensor, order: int) -> Tensor:
    """Re Σ_t weights_nt m_t ⊗ … ⊗ m_t: a matrix product for each leading index; no temporary exceeds `weights`."""
    if order == 1:
        return _real(weights @ m)
    return torch.stack([_weighted_power(weights * m[:, i], m, order - 1) for i in range(m.shape[1])], dim=1)


def _tensor_cumulants(raw: list[Tensor]) -> list[Tensor]:
    cumulants = raw[:1]
    if len(raw) > 1:
        cumulants.append(raw[1] - raw[0][:, :, None] * raw[0][:, None, :])
    if len(raw) > 2:
        pair = torch.einsum("nij,nk->nijk", raw[1], raw[0])
        triple = torch.einsum("ni,nj,nk->nijk", raw[0], raw[0], raw[0])
        cumulants.append(raw[2] - pair - pair.permute(0, 1, 3, 2) - pair.permute(0, 3, 1, 2) + 2 * triple)
    return cumulants


def _complex_matmul(a: Parts, b: Parts) -> Parts:
    real, imaginary = a[0] @ b[0], None
    if a[1] is not None:
        imaginary = a[1] @ b[0]
    if b[1] is not None:
        cross = a[0] @ b[1]
        imaginary = cross if imaginary is None else imaginary + cross
        if a[1] is not None:
            real = real - a[1] @ b[1]
    return real, imaginary


def half_square(points: Tensor, matrix: Tensor) -> Tensor:
    """½mᵀ·matrix·m for every row m of `points`."""
    return 0.5 * ((points @ matrix) * points).sum(dim=1)


def exponentials(
    x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, n_osc: int
) -> tuple[Tensor, Tensor | None]:
    """Real and imaginary part, both (terms, N), of exp(log_size + i·angle + m·x) for points m (terms, g) and x (N, g).

    The first n_osc coordinates of x stand for ix; without them the imaginary part is None. In double precision on the
    CPU the table is filled with powers by a compiled kernel; otherwise every entry takes torch's exp, cos and sin.
    `curvature` (g,), the diagonal of G, does not change the result: the kernel multiplies factors exp(px − ½p²G_jj),
    which stay small where exp(px) would overflow.
    """
    real, imaginary = _Exponentials.apply(x, log_size, angle, points, curvature, n_osc)
    return real, (imaginary if n_osc else None)


class _Exponentials(torch.autograd.Function):
    """The derivatives are the exponentials themselves, so nothing but the result is kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, curvature: Tensor, n_osc: int
    ) -> Any:
        compiled = kernels.AVAILABLE and x.dtype == torch.float64 and not x.is_cuda
        if compiled:
            real, imaginary = fill_table(x, log_size, angle, points, curvature, n_osc)
        else:
            real, imaginary = _evaluate(x, log_size, angle, points, n_osc)
        ctx.save_for_backward(points, real, imaginary)
        ctx.n_osc = n_osc
        return real, imaginary

    @staticmethod
    def backward(ctx: Any, grad_real: Tensor, grad_imaginary: Tensor) -> Any:
        points, real, imaginary = ctx.saved_tensors
        o = ctx.n_osc
        by_size = grad_real * real
        if not o:
            return by_size.mT @ points, by_size.sum(dim=1), None, None, None, None
        by_size = by_size + grad_imaginary * imaginary
        by_angle = grad_imaginary * real - grad_real * imaginary
        grad_x = torch.cat([by_angle.mT @ points[:, :o], by_size.mT @ points[:, o:]], dim=1)
        return grad_x, by_size.sum(dim=1), by_angle.sum(dim=1), None, None, None


def _evaluate(x: Tensor, log_size: Tensor, angle: Tensor, points: Tensor, o: int) -> tuple[Tensor, Tensor]:
    exponent = log_size[:, None] if o == points.shape[1] else points[:, o:] @ x[:, o:].mT + log_size[:, None]
    size = exponent.exp()
    if not o:
        return size, size.new_empty(0, 0)
    turned = points[:, :o] @ x[:, :o].mT + angle[:, None]
    return size * turned.cos(), size * turned.sin()
