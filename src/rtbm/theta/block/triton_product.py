"""The split product on CUDA, for blocks whose coordinates all oscillate: tables by Triton, products by torch.

With the notation of `block.product` the sum is

    S = Σ_b cos(b·x) (C⁺ cos(a·x))_b − sin(b·x) (C⁻ sin(a·x))_b

One pass fills the table of the first list, torch multiplies it by C⁺ and C⁻, and another pass sums over the last list,
for S and its derivatives in the last coordinates. Those in the first coordinates follow with the lists swapped.
Gradients in Q follow from the sums over all points of cos(a·x) cos(b·x) and sin(a·x) sin(b·x), weighted by grad/S.
These are products of the two tables.
"""

# mypy: disable-error-code="assignment,attr-defined,misc"
# Tuples grow while Triton unrolls their loops.

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rtbm.theta.block.cost import CUDA_GRADIENTS, CUDA_PASSES, CUDA_TABLES, ProductCost
from rtbm.theta.block.evaluator import Evaluator
from rtbm.theta.block.product import SplitProduct
from rtbm.theta.block.triton import CudaPass, local_argument, mean_of
from rtbm.theta.derivatives import Derivatives, torch_gradients, wants_graph
from rtbm.theta.device import SINE_TERMS, TRITON_AVAILABLE, jit, launch, sine_cosine

if TRITON_AVAILABLE:
    import triton.language as tl

    _SINE_TERMS = tl.constexpr(SINE_TERMS)

MAX_PRODUCT_SIZE = 10
"""The product serves blocks of up to so many coordinates, since all of them are unrolled."""
PREPARED_POINTS = 128
"""Points of a program that prepares arguments. Speed only: measured on an H200."""
TERMS, POINTS = 8, 32
"""Terms and points that a program has in hand when it works on a table. Lists are filled up to a multiple of TERMS."""
TABLE_ENTRIES = 2**27
"""Entries of the tables in memory at a time: 1 GiB. With fewer, small matrix products take longer."""


class Prepared(NamedTuple):
    """Arguments z (N, g) in the reduced basis."""

    x: Tensor  # (N, g): local arguments in turns
    beside: Tensor  # (N,): what log θ̃ has beside log S
    centre: Tensor  # (N, g): what the mean has beside the derivatives of log S; empty if there is no graph


class Lists(NamedTuple):
    """The two lists and their coupling; entries that fill them up have the coupling zero."""

    first: Tensor  # (terms_a, coordinates)
    last: Tensor  # (terms_b, other coordinates)
    even: Tensor  # (terms_b, terms_a): C⁺
    odd: Tensor  # (terms_b, terms_a): C⁻


class Chunk(NamedTuple):
    """Some points, and memory for their tables of cosines and sines."""

    rows: slice
    first: Tensor  # (2, terms_a, points)
    last: Tensor  # (2, terms_b, points)


class CudaProduct(Evaluator):
    """Values and gradients by this product. Moments, and graphs of gradients, go through torch's."""

    name = "cuda product"

    def __init__(self, cuda_pass: CudaPass, product: SplitProduct):
        super().__init__(product.tensors)
        self._pass, self._product = cuda_pass, product
        self._lists: dict[torch.device, Lists] = {}

    def supports(self, device: torch.device) -> bool:
        """Whether Triton is there and all coordinates oscillate."""
        g, geometry = self.tensors.g, self.tensors.geometry
        return TRITON_AVAILABLE and device.type == "cuda" and 1 < g <= MAX_PRODUCT_SIZE and geometry.n_osc == g

    def pays(self, z: Tensor) -> bool:
        """Near arguments, batches of sums with many terms only."""
        return self.supports(z.device) and self._product.pays(z) and not self.tensors.is_far(z)

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """Two short lists and a matrix product."""
        return n_points * self._product.cost_of(CUDA_TABLES) + (CUDA_GRADIENTS if derivatives else CUDA_PASSES)

    @property
    def flops(self) -> float:
        """Floating point operations of the matrix products for the value at a point."""
        return self._product.cost_of(ProductCost(point=0, entry=0, pair=4))

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        return self._product.moments(z, Q, order) if order else (self.log_theta(z, Q),)

    def log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """See `Evaluator`."""
        if wants_graph(z, Q):
            return ProductLogTheta.apply(z, Q, self)
        prepared = self.prepare(z, False)
        return prepared.beside + self.log_sum(prepared.x, None)

    def torch_log_theta(self, z: Tensor, Q: Tensor) -> Tensor:
        """log θ̃ in plain torch."""
        return self._product.log_theta(z, Q)

    def prepare(self, z: Tensor, graph: bool) -> Prepared:
        """Basis change, nearest plane and the way to the local arguments."""
        (N, g), numbers = z.shape, self._pass.numbers(z.device)
        x, beside = z.new_empty(N, g, dtype=torch.float64), z.new_empty(N, dtype=torch.float64)
        centre = z.new_empty(N if graph else 0, g, dtype=torch.float64)
        launch(
            *(_prepare, (-(-N // PREPARED_POINTS), 1, 1)),
            *(z.detach().contiguous(), x, beside, centre, numbers, N),
            *(g, self.phase == "I", graph, PREPARED_POINTS),
        )
        return Prepared(x, beside, centre)

    def log_sum(self, x: Tensor, first: Tensor | None) -> Tensor:
        """log S (N,) for x (N, g) in turns. Its derivatives in the last coordinates are written to first (N, g)."""
        lists, result = self._lists_on(x.device), x.new_empty(len(x))
        for rows, table, product in self._chunks(x):
            _fill_table(x[rows], lists.first, 0, table)
            for coupling, entries, out in zip((lists.even, lists.odd), table, product, strict=True):
                torch.mm(coupling, entries, out=out)
            begin = lists.first.shape[1]
            _sum_table(x[rows], lists.last, begin, product, result[rows], None if first is None else first[rows])
        return result

    def gradients(self, prepared: Prepared, log_sum: Tensor, first: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of log θ̃ in z (N, g) and Q (g, g), for weights grad (N,); `first` is completed."""
        x, lists = prepared.x, self._lists_on(grad.device)
        weight = grad.double() * (-log_sum).exp()
        sums = x.new_zeros(2, len(lists.last), len(lists.first))
        for rows, product, table in self._chunks(x):
            _fill_table(x[rows], lists.last, lists.first.shape[1], table)
            for coupling, entries, out in zip((lists.even, lists.odd), table, product, strict=True):
                torch.mm(coupling.mT, entries, out=out)
            _sum_table(x[rows], lists.first, 0, product, weight[rows], first[rows], replace=True)
            for total, entries, weighted in zip(sums, table, product, strict=True):
                total.addmm_(entries, weighted.mT)
        M = self.tensors.basis(x.device) @ self.tensors.fixed_form(x.device).B.mT
        mean = torch.addmm(prepared.centre, first, M.mT)
        return grad[:, None] * mean, self._by_Q(grad, mean, first, sums)

    def _by_Q(self, grad: Tensor, mean: Tensor, first: Tensor, sums: Tensor) -> Tensor:
        """∓½ Σ grad (covariance + mean·meanᵀ), with the upper sign in phase I; sums (2, terms_b, terms_a)."""
        lists = self._lists_on(grad.device)
        form, U = self.tensors.fixed_form(grad.device), self.tensors.basis(grad.device)
        own = lists.even * sums[0] - lists.odd * sums[1]
        mixed = lists.first.mT @ (lists.even * sums[1] - lists.odd * sums[0]).mT @ lists.last
        pairs = (lists.first, own.sum(dim=0)), (lists.last, own.sum(dim=1))
        ours, theirs = (m.mT @ (weights[:, None] * m) for m, weights in pairs)
        second = torch.cat([torch.cat([-ours, mixed], dim=1), torch.cat([mixed.mT, -theirs], dim=1)])
        M, weighted = U @ form.B.mT, grad[:, None].double()
        central = M @ (second - first.mT @ (weighted * first)) @ M.mT + weighted.sum() * U @ form.K @ U.mT
        return (-0.5 if self.phase == "I" else 0.5) * (central + mean.mT @ (weighted * mean))

    def _chunks(self, x: Tensor) -> Iterator[Chunk]:
        """All points of x (N, g), in chunks that share the memory of their tables."""
        terms = [len(m) for m in self._lists_on(x.device)[:2]]
        width = min(max(1, TABLE_ENTRIES // (2 * POINTS * sum(terms))), _grid(len(x))[0]) * POINTS
        memory = [x.new_empty(2, n, width) for n in terms]
        for begin in range(0, len(x), width):
            n = min(width, len(x) - begin)
            yield Chunk(slice(begin, begin + n), *(tables[..., :n] for tables in memory))

    def _lists_on(self, device: torch.device) -> Lists:
        if device not in self._lists:
            split, coupling = self._product.split(torch.float64, device), self._product.fixed_coupling(device)
            added = [-len(m) % TERMS for m in (split.first, split.last)]
            pad = torch.nn.functional.pad
            self._lists[device] = Lists(
                *(pad(m, (0, 0, 0, n)) for m, n in zip((split.first, split.last), added, strict=True)),
                *(pad(part, (0, added[0], 0, added[1])) for part in (coupling.even, coupling.odd)),
            )
        return self._lists[device]


class ProductLogTheta(torch.autograd.Function):
    """log θ̃ by `CudaProduct`, with first derivatives; a graph of these goes through torch."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, Q: Tensor, compiled: CudaProduct) -> Tensor:
        """The value; local arguments, and half of the derivatives, are kept."""
        prepared = compiled.prepare(z, True)
        first = torch.empty_like(prepared.x)
        log_sum = compiled.log_sum(prepared.x, first)
        ctx.save_for_backward(z, Q, log_sum, first, *prepared)
        ctx.compiled = compiled
        return prepared.beside + log_sum

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        """The gradients in z and Q."""
        z, Q, log_sum, first, *prepared = ctx.saved_tensors
        if torch.is_grad_enabled():
            return torch_gradients(ctx, z, Q, grad)
        by_z, by_Q = ctx.compiled.gradients(Prepared(*prepared), log_sum, first, grad)
        return by_z.to(z.dtype), by_Q.to(Q.dtype), None


def _grid(n_points: int) -> tuple[int, int, int]:
    return -(-n_points // POINTS), 1, 1


def _fill_table(x: Tensor, points: Tensor, begin: int, table: Tensor) -> None:
    """Make `table` (2, terms, N) the cosines and sines of m·x for points m, whose coordinates are begin, … of x."""
    (N, g), (n_terms, size) = x.shape, points.shape
    launch(_fill, _grid(N), x, table, points, N, n_terms, *table.stride()[:2], g, begin, size, TERMS, POINTS)


def _sum_table(
    x: Tensor, points: Tensor, begin: int, product: Tensor, other: Tensor, first: Tensor | None, replace: bool = False
) -> None:
    """Sum cos(m·x) product₀ − sin(m·x) product₁ over the points m, for products (2, terms, N).

    The derivatives of its logarithm in the coordinates begin, … of x are written to `first`. The logarithm itself is
    written to `other` (N,); or, if the table is to `replace` the products, `other` holds its weights.
    """
    (N, g), (n_terms, size) = x.shape, points.shape
    launch(
        *(_sum, _grid(N)),
        *(x, product, other, x if first is None else first, points, N, n_terms, *product.stride()[:2]),
        *(g, begin, size, first is not None, replace, TERMS, POINTS),
    )


@jit
def _place(n_points, POINTS: "tl.constexpr"):
    """The points of a program, and which of them there are."""
    row = tl.program_id(0) * POINTS + tl.arange(0, POINTS).to(tl.int64)
    return row, row < n_points


@jit
def _prepare(
    z, x_result, beside_result, centre, numbers, n_points,
    G: "tl.constexpr", FIRST: "tl.constexpr", GRAPH: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """What `Prepared` holds."""
    row, inside = _place(n_points, POINTS)
    n0, x, beside = local_argument(z, row, inside, numbers, G, FIRST)
    tl.store(beside_result + row, beside, mask=inside)
    zero = ()
    for i in tl.static_range(G):
        tl.store(x_result + row * G + i, x[i], mask=inside)
        zero = zero + (x[0] * 0.0,)
    if GRAPH:
        mean = mean_of(n0, x, zero, numbers, G, FIRST)
        for i in tl.static_range(G):
            tl.store(centre + row * G + i, mean[i], mask=inside)


@jit
def _coordinates(local, row, inside, G: "tl.constexpr", BEGIN: "tl.constexpr", SIZE: "tl.constexpr"):
    """The coordinates BEGIN, …, BEGIN + SIZE − 1 of local arguments (points, g)."""
    x = ()
    for j in tl.static_range(SIZE):
        x = x + (tl.load(local + row * G + BEGIN + j, mask=inside, other=0.0)[None, :],)
    return x


@jit
def _sine_cosine(m, x, SIZE: "tl.constexpr"):
    """Sines and cosines (terms, points) of m·x."""
    turns = tl.load(m)[:, None] * x[0]
    for j in tl.static_range(1, SIZE):
        turns += tl.load(m + j)[:, None] * x[j]
    return sine_cosine(turns - tl.floor(turns + 0.5), _SINE_TERMS)


@jit
def _fill(
    local, table, points, n_points, n_terms, part, width,
    G: "tl.constexpr", BEGIN: "tl.constexpr", SIZE: "tl.constexpr", TERMS: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """See `_fill_table`; a part of the table has the stride `part`, and a term `width`."""
    row, inside = _place(n_points, POINTS)
    x = _coordinates(local, row, inside, G, BEGIN, SIZE)
    t = tl.arange(0, TERMS)
    place = t[:, None] * width + row[None, :]
    for start in range(0, n_terms, TERMS):
        sine, cosine = _sine_cosine(points + (start + t) * SIZE, x, SIZE)
        tl.store(table + place, cosine, mask=inside[None, :])
        tl.store(table + part + place, sine, mask=inside[None, :])
        place += TERMS * width


@jit
def _sum(
    local, product, other, first_result, points, n_points, n_terms, part, width,
    G: "tl.constexpr", BEGIN: "tl.constexpr", SIZE: "tl.constexpr", DERIVATIVES: "tl.constexpr",
    REPLACE: "tl.constexpr", TERMS: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """See `_sum_table`; a part of the products has the stride `part`, and a term `width`."""
    row, inside = _place(n_points, POINTS)
    x = _coordinates(local, row, inside, G, BEGIN, SIZE)
    weight = x[0]
    if REPLACE:
        weight = tl.load(other + row, mask=inside, other=0.0)[None, :]
    total = tl.zeros((TERMS, POINTS), dtype=tl.float64)
    first = ()
    for j in tl.static_range(SIZE):
        first = first + (total,)
    t = tl.arange(0, TERMS)
    place = t[:, None] * width + row[None, :]
    for start in range(0, n_terms, TERMS):
        m = points + (start + t) * SIZE
        sine, cosine = _sine_cosine(m, x, SIZE)
        even = tl.load(product + place, mask=inside[None, :], other=0.0)
        odd = tl.load(product + part + place, mask=inside[None, :], other=0.0)
        total += even * cosine - odd * sine
        if DERIVATIVES:
            turned = even * sine + odd * cosine
            added = ()
            for j in tl.static_range(SIZE):
                added = added + (first[j] - tl.load(m + j)[:, None] * turned,)
            first = added
        if REPLACE:
            tl.store(product + place, weight * cosine, mask=inside[None, :])
            tl.store(product + part + place, weight * sine, mask=inside[None, :])
        place += TERMS * width
    S = tl.sum(total, axis=0)
    if DERIVATIVES:
        for j in tl.static_range(SIZE):
            tl.store(first_result + row * G + BEGIN + j, tl.sum(first[j], axis=0) / S, mask=inside)
    if not REPLACE:
        tl.store(other + row, tl.log(S), mask=inside)
