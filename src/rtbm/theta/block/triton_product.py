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
from typing import NamedTuple

import torch
from torch import Tensor

from rtbm.theta.block.cost import CUDA_GRADIENT_SETUP, CUDA_PRODUCT_SETUP, CUDA_TABLES, ProductCost
from rtbm.theta.block.evaluator import CompiledEvaluator
from rtbm.theta.block.product import SplitProduct, couple
from rtbm.theta.block.triton import CudaPass, local_argument, mean_of
from rtbm.theta.derivatives import Derivatives, RecomputedLogTheta
from rtbm.theta.device import SINE_TERMS, TRITON_AVAILABLE, jit, launch, sine_cosine

if TRITON_AVAILABLE:
    import triton.language as tl

    _SINE_TERMS = tl.constexpr(SINE_TERMS)

MAX_CUDA_PRODUCT_SIZE = 10
"""Most coordinates of a block that the product serves, since all of them are unrolled."""
PREPARED_POINTS = 128  # points of a program that prepares arguments: a power of two
TABLE_TERMS, TABLE_POINTS = 8, 32
"""Terms and points of a table that a program has in hand: powers of two. Lists are filled up to a multiple of these
terms. Speed only: measured on an H200."""
TABLE_ENTRIES = 2**27  # entries of the tables in memory at a time: 1 GiB


class Prepared(NamedTuple):
    """Arguments z (N, g) in the reduced basis."""

    x: Tensor  # (N, g): local arguments in turns
    log_factor: Tensor  # (N,): log θ̃ − log S
    mean_offset: Tensor  # (N, g): what the mean has besides the derivatives of log S; empty if there is no graph


class Lists(NamedTuple):
    """The two lists and their coupling; entries that fill them up have the coupling zero."""

    first: Tensor  # (terms_a, coordinates)
    last: Tensor  # (terms_b, other coordinates)
    even: Tensor  # (terms_b, terms_a): C⁺
    odd: Tensor  # (terms_b, terms_a): C⁻


class Workspace(NamedTuple):
    """Some points, and memory for cosines and sines, or for products of these with the coupling."""

    rows: slice
    first: Tensor  # (2, terms_a, points)
    last: Tensor  # (2, terms_b, points)


class CudaProduct(CompiledEvaluator):
    """Values and gradients by this product. Moments, and graphs of gradients, go through torch's."""

    name = "cuda product"
    has_moments = False
    function = RecomputedLogTheta

    def __init__(self, cuda_pass: CudaPass, product: SplitProduct):
        super().__init__(product.tensors, product)
        self._pass, self._product = cuda_pass, product
        self._lists: dict[torch.device, Lists] = {}

    def supports(self, device: torch.device) -> bool:
        """Whether Triton is there, all coordinates oscillate and the coupling fits into memory."""
        g, geometry = self.tensors.g, self.tensors.geometry
        is_served = TRITON_AVAILABLE and 1 < g <= MAX_CUDA_PRODUCT_SIZE and geometry.n_osc == g
        return is_served and device.type == "cuda" and self._product.supports(device)

    def pays(self, n_points: int, device: torch.device) -> bool:
        """Batches of sums with many terms only."""
        return self._product.may_pay(n_points) and self.supports(device)

    def cost(self, n_points: int, device: torch.device, derivatives: bool) -> float:
        """Two short lists and a matrix product."""
        setup = CUDA_GRADIENT_SETUP if derivatives else CUDA_PRODUCT_SETUP
        return n_points * self._product.cost_of(CUDA_TABLES) + setup

    @property
    def flops(self) -> float:
        """Floating point operations of the matrix products for the value at a point."""
        return self._product.cost_of(ProductCost(point=0, entry=0, pair=4))

    def moments(self, z: Tensor, Q: Tensor, order: int) -> Derivatives:
        """See `Evaluator`."""
        return self._product.moments(z, Q, order) if order else super().moments(z, Q, 0)

    def fixed_moments(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ alone, without a graph: `has_moments` is false."""
        prepared = self._prepare(z, False)
        return (prepared.log_factor + self._log_sum(prepared.x, None),)

    def start(self, z: Tensor) -> Derivatives:
        """log θ̃ (N,), and what its gradients take: log S, its derivatives in the last coordinates, and `Prepared`."""
        prepared = self._prepare(z, True)
        slopes = torch.empty_like(prepared.x)
        log_sum = self._log_sum(prepared.x, slopes)
        return prepared.log_factor + log_sum, log_sum, slopes, *prepared

    def gradients(self, z: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradients of log θ̃ in z (N, g) and Q (g, g), for weights grad (N,)."""
        log_sum, slopes, x, _, mean_offset = kept
        lists, slopes = self._lists_on(x.device), slopes.clone()
        weight = grad.double() * (-log_sum).exp()
        sums = x.new_zeros(2, len(lists.last), len(lists.first))
        for rows, product, table in self._chunks(x):
            _fill_table(x[rows], lists.last, lists.first.shape[1], table)
            for coupling, entries, out in zip((lists.even, lists.odd), table, product, strict=True):
                torch.mm(coupling.mT, entries, out=out)
            _sum_table(x[rows], lists.first, 0, product, slopes[rows], weight=weight[rows])
            for total, entries, weighted in zip(sums, table, product, strict=True):
                total.addmm_(entries, weighted.mT)
        M = self.tensors.basis(x.device) @ self.tensors.fixed_form(x.device).B.mT
        mean, weights = torch.addmm(mean_offset, slopes, M.mT), grad[:, None].double()
        by_z, by_x = weights * mean, slopes.mT @ (weights * slopes)
        central = M @ (self._second(sums) - by_x) @ M.mT + weights.sum() * self._curvature(x.device)
        return by_z, (-0.5 if self.phase == "I" else 0.5) * (central + mean.mT @ by_z)

    def _prepare(self, z: Tensor, graph: bool) -> Prepared:
        """Basis change, nearest plane and the way to the local arguments."""
        (N, g), numbers = z.shape, self._pass.numbers(z.device)
        x, log_factor = z.new_empty(N, g, dtype=torch.float64), z.new_empty(N, dtype=torch.float64)
        mean_offset = z.new_empty(N if graph else 0, g, dtype=torch.float64)
        launch(
            *(_local_arguments, (-(-N // PREPARED_POINTS), 1, 1)),
            *(z.detach().contiguous(), x, log_factor, mean_offset, numbers, N),
            *(g, self.phase == "I", graph, PREPARED_POINTS),
        )
        return Prepared(x, log_factor, mean_offset)

    def _log_sum(self, x: Tensor, slopes: Tensor | None) -> Tensor:
        """log S (N,) for x (N, g) in turns. Its derivatives in the last coordinates are written to slopes (N, g)."""
        lists, result = self._lists_on(x.device), x.new_empty(len(x))
        for rows, table, product in self._chunks(x):
            _fill_table(x[rows], lists.first, 0, table)
            for coupling, entries, out in zip((lists.even, lists.odd), table, product, strict=True):
                torch.mm(coupling, entries, out=out)
            ours = None if slopes is None else slopes[rows]
            _sum_table(x[rows], lists.last, lists.first.shape[1], product, ours, log_sum=result[rows])
        return result

    def _second(self, sums: Tensor) -> Tensor:
        """Σ grad · second derivatives of S in x / S: (g, g), for sums (2, terms_b, terms_a) over all points."""
        first, last, even, odd = self._lists_on(sums.device)
        own = even * sums[0] - odd * sums[1]
        mixed = first.mT @ (even * sums[1] - odd * sums[0]).mT @ last
        ours, theirs = (m.mT @ (own.sum(dim=i)[:, None] * m) for i, m in enumerate((first, last)))
        return torch.cat([torch.cat([-ours, mixed], dim=1), torch.cat([mixed.mT, -theirs], dim=1)])

    def _curvature(self, device: torch.device) -> Tensor:
        U = self.tensors.basis(device)
        return U @ self.tensors.fixed_form(device).K @ U.mT

    def _chunks(self, x: Tensor) -> Iterator[Workspace]:
        """All points of x (N, g), in chunks that share the memory of their tables."""
        terms, programs = [len(m) for m in self._lists_on(x.device)[:2]], _programs(len(x))
        most = TABLE_ENTRIES // (2 * TABLE_POINTS * sum(terms))
        width = TABLE_POINTS * max(1, min(most, programs))
        memory = [x.new_empty(2, n, width) for n in terms]
        for begin in range(0, len(x), width):
            n = min(width, len(x) - begin)
            yield Workspace(slice(begin, begin + n), *(tables[..., :n] for tables in memory))

    def _lists_on(self, device: torch.device) -> Lists:
        if device not in self._lists:
            with torch.inference_mode(False):
                split = self._product.split(torch.float64, device)
                coupling = couple(self.tensors.fixed_form(device), split)
                added = [-len(m) % TABLE_TERMS for m in (split.first, split.last)]
                pad = torch.nn.functional.pad
                self._lists[device] = Lists(
                    *(pad(m, (0, 0, 0, n)) for m, n in zip((split.first, split.last), added, strict=True)),
                    *(pad(part, (0, added[0], 0, added[1])) for part in (coupling.even, coupling.odd)),
                )
        return self._lists[device]


def _programs(n_points: int) -> int:
    return -(-n_points // TABLE_POINTS)


def _fill_table(x: Tensor, points: Tensor, begin: int, table: Tensor) -> None:
    """Make `table` (2, terms, N) the cosines and sines of m·x for points m, whose coordinates are begin, … of x."""
    (N, g), (n_terms, size) = x.shape, points.shape
    launch(
        *(_fill, (_programs(N), 1, 1), x, table, points, N, n_terms, *table.stride()[:2]),
        *(g, begin, size, TABLE_TERMS, TABLE_POINTS),
    )


def _sum_table(
    x: Tensor,
    points: Tensor,
    begin: int,
    product: Tensor,
    slopes: Tensor | None,
    log_sum: Tensor | None = None,
    weight: Tensor | None = None,
) -> None:
    """Sum cos(m·x) product₀ − sin(m·x) product₁ over the points m, for products (2, terms, N).

    The logarithm of the sum is written to `log_sum` (N,), and its derivatives in the coordinates begin, … of x to
    `slopes` (N, g). With weights (N,), the weighted table of cosines and sines replaces the products.
    """
    (N, g), (n_terms, size) = x.shape, points.shape
    optional = [x if tensor is None else tensor for tensor in (slopes, log_sum, weight)]
    launch(
        *(_sum, (_programs(N), 1, 1), x, product, points, *optional, N, n_terms, *product.stride()[:2]),
        *(g, begin, size, slopes is not None, log_sum is not None, weight is not None, TABLE_TERMS, TABLE_POINTS),
    )


@jit
def _place(n_points, POINTS: "tl.constexpr"):
    """The points of a program, and which of them there are."""
    row = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    return row, row < n_points


@jit
def _local_arguments(
    z, x_result, factor_result, offset_result, numbers, n_points,
    G: "tl.constexpr", FIRST: "tl.constexpr", GRAPH: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """What `Prepared` holds."""
    row, inside = _place(n_points, POINTS)
    n0, x, log_factor = local_argument(z, row, inside, numbers, G, FIRST)
    tl.store(factor_result + row, log_factor, mask=inside)
    zero = ()
    for i in tl.static_range(G):
        tl.store(x_result + row * G + i, x[i], mask=inside)
        zero = zero + (x[0] * 0.0,)
    if GRAPH:
        mean = mean_of(n0, x, zero, numbers, G, FIRST)
        for i in tl.static_range(G):
            tl.store(offset_result + row * G + i, mean[i], mask=inside)


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
    local, product, points, slopes, log_sum, weights, n_points, n_terms, part, width,
    G: "tl.constexpr", BEGIN: "tl.constexpr", SIZE: "tl.constexpr", SLOPES: "tl.constexpr", VALUE: "tl.constexpr",
    REPLACE: "tl.constexpr", TERMS: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """See `_sum_table`; a part of the products has the stride `part`, and a term `width`."""
    row, inside = _place(n_points, POINTS)
    x = _coordinates(local, row, inside, G, BEGIN, SIZE)
    weight = x[0]
    if REPLACE:
        weight = tl.load(weights + row, mask=inside, other=0.0)[None, :]
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
        if SLOPES:
            turned = even * sine + odd * cosine
            added = ()
            for j in tl.static_range(SIZE):
                added = added + (first[j] - tl.load(m + j)[:, None] * turned,)
            first = added
        if REPLACE:
            tl.debug_barrier()  # all threads have read
            tl.store(product + place, weight * cosine, mask=inside[None, :])
            tl.store(product + part + place, weight * sine, mask=inside[None, :])
        place += TERMS * width
    S = tl.sum(total, axis=0)
    if SLOPES:
        for j in tl.static_range(SIZE):
            tl.store(slopes + row * G + BEGIN + j, tl.sum(first[j], axis=0) / S, mask=inside)
    if VALUE:
        tl.store(log_sum + row, tl.log(S), mask=inside)
