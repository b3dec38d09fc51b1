"""The split product: two short lists of half the coordinates, and a matrix product for their pairs.

A point m = (a, b) has its first coordinates a in one list and its last ones b in the other. The sum of `block.poisson`
is

    Σ_ba C_ba E_a E_b,    E_a = exp(a·x),    E_b = exp(b·x),    with x → ix where a coordinate oscillates

and the coupling C holds what does not depend on x. A change of the sign of b where it oscillates, b → −b, makes E_b its
conjugate. So one of each pair ±b is listed, and with C± = C_ba ± C_−ba the pair adds

    Re(C⁺E_a) Re E_b − Im(C⁻E_a) Im E_b
"""

from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rtbm.common import Floats
from rtbm.theta import kernels
from rtbm.theta.block import planning
from rtbm.theta.block.cost import (
    COMPILED_PRODUCT,
    CUDA_PRODUCT,
    CUDA_SPLIT_SETUP,
    FUSED_TERM,
    PRODUCT_DERIVATIVES,
    SMALLEST_SPLIT,
    SPLIT_SETUP,
    TORCH_PRODUCT,
    ProductCost,
    SplitLists,
    choose_split,
    split_exponent,
)
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.numba import MAX_EXPONENT
from rtbm.theta.block.poisson import Form
from rtbm.theta.block.tables import FILL_PIECE, fill_table, first_pass, last_pass
from rtbm.theta.block.tensors import CPU, BlockTensors
from rtbm.theta.block.torch import ListSum, cumulants, dtype_for, half_square, real_part, to_z, with_unit
from rtbm.theta.chunks import in_chunks, run_threads
from rtbm.theta.derivatives import Derivatives, wants_graph

MAX_EXPONENT_FLOAT32 = 60.0
"""Split products with larger exponents are computed in float64. Beyond 88, factors would overflow float32."""
CHUNK_ENTRIES = 2**21  # entries of the tables and products of a chunk of points on the CPU, for each thread: 16 MiB


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

    def pays(self, n_points: int, device: torch.device) -> bool:
        """Batches of sums with many terms only: others take less time than the setup."""
        return self.may_pay(n_points) and self.supports(device)

    def may_pay(self, n_points: int) -> bool:
        """Whether it is worth while to look for a split."""
        return n_points > 1 and self.n_terms > SMALLEST_SPLIT and n_points * self.n_terms * FUSED_TERM > SPLIT_SETUP

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """Two short lists and a matrix product."""
        values = COMPILED_PRODUCT if kernels.AVAILABLE else TORCH_PRODUCT
        each = CUDA_PRODUCT if device.type == "cuda" else PRODUCT_DERIVATIVES if derivatives else values
        return n_points * self.cost_of(each) + (CUDA_SPLIT_SETUP if device.type == "cuda" else SPLIT_SETUP)

    def cost_of(self, each: ProductCost) -> float:
        """The cost of a point for these lists."""
        return each.of(*map(len, self._lists))

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """See `Evaluator`."""
        is_compiled = kernels.AVAILABLE and z.dtype == torch.float64 and z.is_cpu
        if not is_compiled or wants_graph(z, Q) or self.tensors.is_far(z):
            return self.moments(z, Q, 0)[0]
        rows, value, terms = z.detach().contiguous().numpy(), np.empty(len(z)), sum(map(len, self._lists))
        size = max(1, CHUNK_ENTRIES // (2 * terms))

        def run(start: int, stop: int) -> None:
            for begin in range(start, stop, size):
                chunk = slice(begin, min(begin + size, stop))
                self._sum_chunk(rows[chunk], value[chunk])

        run_threads(run, len(z), len(z) * terms // FILL_PIECE, uses_torch=True)
        return torch.from_numpy(value)

    def _sum_chunk(self, z: Floats, value: Floats) -> None:
        """Make `value` (points,) log θ̃ for z (points, g), on the CPU and without graph.

        A compiled pass fills the table of the first list, and another one sums over the last list.
        """
        geometry, (first, last), N = self.tensors.geometry, self._lists, len(z)
        a, o = first.shape[1], geometry.n_osc
        half, x = 0.5 * np.diag(geometry.matrices[planning.G]), np.empty((last.shape[1], N))
        real, imaginary = np.empty((len(first), N)), np.empty((len(first) if o else 0, N))
        first_pass(
            *(z, geometry.matrices, o, self.phase == "I", geometry.constant),
            *(first, half[:a], value, x, real, imaginary),
        )
        Ea = torch.from_numpy(real), torch.from_numpy(imaginary) if o else None
        even, odd = (x if part is None else part.numpy() for part in self._fixed_coupling.times_first(Ea))
        last_pass(max(o - a, 0), x, last, half[a:], even, odd, value)

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        if order > 2:
            return self._list_sum.moments(z, Q, order)
        form, (s, centre, offset) = self.tensors.form(Q), self.tensors.recentre(z, Q)
        dtype = torch.float64 if self._exponent > MAX_EXPONENT_FLOAT32 else dtype_for(z, self.tensors)
        split = self.split(dtype, z.device)

        def series(rows: Tensor, *constants: Tensor) -> Derivatives:
            if order == 0:
                return (split_log_sum(rows, Coupling(*constants), split),)
            return split_cumulants(rows, Coupling(*constants), split, order)

        x = (s @ form.B.mT).to(dtype)
        coupling = couple(Form(*(matrix.to(dtype) for matrix in form)), split)
        width = (len(split.first) + len(split.last)) * (1 + order)
        log_sum, *derivatives = in_chunks(series, x, coupling, width)
        value = offset + 0.5 * ((s @ form.K) * s).sum(dim=1) + form.constant + log_sum
        return value, *to_z(s, centre, form, self.tensors.basis(z.device), derivatives)

    @cached_property
    def _lists(self) -> SplitLists:
        return choose_split(self.tensors.geometry.points, self.tensors.geometry.n_osc)

    @cached_property
    def _exponent(self) -> float:
        geometry = self.tensors.geometry
        return split_exponent(self._lists, self.tensors.fixed_form(CPU).G.numpy(), geometry.factor, geometry.n_osc)

    @cached_property
    def _fixed_coupling(self) -> "Coupling":
        with torch.inference_mode(False):
            return couple(self.tensors.fixed_form(CPU), self.split(torch.float64, CPU))

    def split(self, dtype: torch.dtype, device: torch.device) -> "Split":
        """The two lists as tensors."""
        first = self.tensors.constant("first", self._lists.first, device, dtype)
        last = self.tensors.constant("last", self._lists.last, device, dtype)
        curvature = self.tensors.fixed_form(device).G.diagonal().to(dtype)
        return Split(first, last, curvature, self.tensors.geometry.n_osc)


class Split(NamedTuple):
    """Two lists over the first and the last coordinates, whose product set covers the points that are needed."""

    first: Tensor  # (terms_a, a)
    last: Tensor  # (terms_b, g − a): one of each pair ±b of the oscillating coordinates
    curvature: Tensor  # (g,): the diagonal of G
    n_osc: int


Parts: TypeAlias = tuple[Tensor, Tensor | None]
"""Real and imaginary part; None if that is zero."""


class Coupling(NamedTuple):
    """C⁺ and C⁻, all parts (terms_b, terms_a), or empty if they are zero."""

    even: Tensor
    even_imaginary: Tensor
    odd: Tensor
    odd_imaginary: Tensor

    def times_first(self, Ea: Parts) -> Parts:
        """Re(C⁺E_a) and Im(C⁻E_a): the factors of Re E_b and i·Im E_b."""
        real = self.even @ Ea[0]
        if Ea[1] is None:
            return real, None
        if self.even_imaginary.numel():
            real = real - self.even_imaginary @ Ea[1]
        if not self.odd.numel():
            return real, None
        imaginary = self.odd @ Ea[1]
        return real, imaginary + self.odd_imaginary @ Ea[0] if self.odd_imaginary.numel() else imaginary

    def times_last(self, Eb: Parts) -> Parts:
        """Σ_b C_ba E_b over both signs of b: the factor of E_a."""
        real, imaginary = self.even.mT @ Eb[0], None
        if self.even_imaginary.numel():
            imaginary = self.even_imaginary.mT @ Eb[0]
        if Eb[1] is not None:
            odd = self.odd.mT @ Eb[1]
            imaginary = odd if imaginary is None else imaginary + odd
            if self.odd_imaginary.numel():
                real = real - self.odd_imaginary.mT @ Eb[1]
        return real, imaginary


def couple(form: Form, split: Split) -> Coupling:
    """The coupling of the two lists, computed once for all chunks of points."""
    real, imaginary = _entries(form, split, split.last)
    paired = max(split.n_osc - split.first.shape[1], 0)  # coordinates of b that oscillate
    if not paired:
        return Coupling(real, imaginary, real[:0], real[:0])
    signs = torch.ones_like(split.last[0])
    signs[:paired] = -1
    mirrored, mirrored_imaginary = _entries(form, split, split.last * signs)
    is_pair = (split.last[:, :paired] != 0).any(dim=1, keepdim=True)
    weight = 0.5 + 0.5 * is_pair.to(real.dtype)  # b = −b counts once
    return Coupling(
        weight * (real + mirrored),
        weight * (imaginary + mirrored_imaginary) if len(imaginary) else imaginary,
        real - mirrored,
        imaginary - mirrored_imaginary,
    )


def _entries(form: Form, split: Split, last: Tensor) -> tuple[Tensor, Tensor]:
    """exp(−½mᵀGm + i½mᵀΨm) for all pairs (terms_b, terms_a) without the factors exp(−½m_j²G_jj) of E_a and E_b.

    Points whose first coordinates oscillate count twice: the list has one of each pair ±m.
    """
    first, a, o = split.first, split.first.shape[1], split.n_osc

    def half_squares(matrix: Tensor) -> Tensor:
        cross = last @ matrix[a:, :a] @ first.mT
        return half_square(last, matrix[a:, a:])[:, None] + cross + half_square(first, matrix[:a, :a])

    is_positive = torch.arange(len(form.G), device=first.device) >= o
    multiplicity = 1 + (first[:, :o] != 0).any(dim=1).to(first.dtype)
    size = multiplicity * torch.exp(-half_squares(form.G - torch.diag(split.curvature * is_positive)))
    if not 0 < o < len(form.G):
        return size, size[:0]
    angle = half_squares(form.Psi)
    return size * angle.cos(), size * angle.sin()


def split_log_sum(x: Tensor, coupling: Coupling, split: Split) -> Tensor:
    """log Z (points,) for x (points, g)."""
    Ea, Eb = _tables(x, split)
    real, imaginary = coupling.times_first(Ea)
    products = real * Eb[0]
    if imaginary is not None and Eb[1] is not None:
        products = torch.addcmul(products, imaginary, Eb[1], value=-1)
    return (products.new_ones(len(products)) @ products).log()  # faster than a sum over the first dimension


def split_cumulants(x: Tensor, coupling: Coupling, split: Split, order: int) -> Derivatives:
    """log Z and its first `order` (≤ 2) derivatives in x, see `block.torch.list_cumulants`.

    E_b ∘ (C E_a) are the weights of the last coordinates, and E_a ∘ (Cᵀ E_b) those of the first ones. What couples
    the two takes E_b ∘ (C (m ∘ E_a)) for each first coordinate m.
    """
    a, o = split.first.shape[1], split.n_osc
    Ea, Eb = _tables(x, split)
    first, last = with_unit(split.first, min(o, a)), with_unit(split.last, max(o - a, 0))
    by_last = _multiply(Eb, coupling.times_first(Ea))
    by_first = _multiply(Ea, coupling.times_last(Eb))
    total = by_last[0].sum(dim=0)
    raw = [torch.cat([_average(by_first, first), _average(by_last, last)], dim=1)]
    if order > 1:
        tilted = [_multiply(Ea, _parts(first[:, i, None])) for i in range(a)]
        mixed = torch.stack([_average(_multiply(Eb, coupling.times_first(E)), last) for E in tilted], dim=1)
        ours, theirs = (
            _average(weights, _pairs(m)).reshape(len(x), m.shape[1], m.shape[1])
            for weights, m in ((by_first, first), (by_last, last))
        )
        raw.append(torch.cat([torch.cat([ours, mixed], dim=2), torch.cat([mixed.mT, theirs], dim=2)], dim=1))
    raw = [moment / total.reshape(-1, *[1] * (moment.ndim - 1)) for moment in raw]
    return total.log(), *cumulants(raw)


def _tables(x: Tensor, split: Split) -> tuple[Parts, Parts]:
    """E_a (terms_a, points) and E_b (terms_b, points)."""
    a, o, d = split.first.shape[1], split.n_osc, split.curvature
    Ea = exponentials(x[:, :a], split.first, d[:a], min(o, a))
    return Ea, exponentials(x[:, a:], split.last, d[a:], max(o - a, 0))


def _parts(m: Tensor) -> Parts:
    return (m.real, m.imag) if m.is_complex() else (m, None)


def _multiply(a: Parts, b: Parts) -> Parts:
    """The product of two tables, entry by entry."""
    if a[1] is None:
        return a[0] * b[0], None if b[1] is None else a[0] * b[1]
    if b[1] is None:
        return a[0] * b[0], a[1] * b[0]
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def _average(weights: Parts, m: Tensor) -> Tensor:
    """Re Σ_t weights_tn m_tk: (points, k)."""
    average = weights[0].mT @ real_part(m)
    return average - weights[1].mT @ m.imag if m.is_complex() and weights[1] is not None else average


def _pairs(m: Tensor) -> Tensor:
    """All products of two coordinates: (terms, k²)."""
    return (m[:, :, None] * m[:, None, :]).flatten(1)


def exponentials(x: Tensor, points: Tensor, curvature: Tensor, n_osc: int) -> Parts:
    """Π_j exp(m_j x_j − ½m_j² curvature_j), a table (terms, N), for points m (terms, k), x (N, k) and curvature (k,).

    The first n_osc coordinates have factors exp(i·m_j x_j) instead; without them the imaginary part is None. In double
    precision on the CPU, a compiled pass multiplies powers; otherwise every entry takes torch's exp, cos and sin.
    """
    real, imaginary = _Exponentials.apply(x, points, curvature, n_osc)
    return real, (imaginary if n_osc else None)


class _Exponentials(torch.autograd.Function):
    """The derivatives are the exponentials themselves, so nothing but the result is kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, points: Tensor, curvature: Tensor, n_osc: int) -> Any:
        is_compiled = kernels.AVAILABLE and x.dtype == torch.float64 and not x.is_cuda
        real, imaginary = (fill_table if is_compiled else _evaluate)(x, points, curvature, n_osc)
        ctx.save_for_backward(points, real, imaginary)
        ctx.n_osc = n_osc
        return real, imaginary

    @staticmethod
    def backward(ctx: Any, grad_real: Tensor, grad_imaginary: Tensor) -> Any:
        points, real, imaginary = ctx.saved_tensors
        o = ctx.n_osc
        by_size = grad_real * real
        if not o:
            return by_size.mT @ points, None, None, None
        by_angle = grad_imaginary * real - grad_real * imaginary
        if o == points.shape[1]:
            return by_angle.mT @ points, None, None, None
        by_size = by_size + grad_imaginary * imaginary
        return torch.cat([by_angle.mT @ points[:, :o], by_size.mT @ points[:, o:]], dim=1), None, None, None


def _evaluate(x: Tensor, points: Tensor, curvature: Tensor, o: int) -> tuple[Tensor, Tensor]:
    turned = points[:, :o] @ x[:, :o].mT
    if o == points.shape[1]:
        return turned.cos(), turned.sin()
    decay = 0.5 * points[:, o:] ** 2 @ curvature[o:]
    size = (points[:, o:] @ x[:, o:].mT - decay[:, None]).exp()
    return (size * turned.cos(), size * turned.sin()) if o else (size, size.new_empty(0, 0))
