"""The split product on CUDA where all coordinates oscillate: tables by Triton, products by torch.

With the notation of `product.torch`, Z = Σ_b f_b ∘ (M f_a). One pass fills the table f_a; another one sums over b, for
Z and its derivatives in the last coordinates. Those in the first ones follow with the lists swapped.
"""

# mypy: disable-error-code="assignment,attr-defined,misc"
# Tuples grow while Triton unrolls their loops.

from collections.abc import Callable

import torch
from torch import Tensor

from rtbm.theta.chunks import GPU_ELEMENTS
from rtbm.theta.derivatives import Derivatives
from rtbm.theta.device import SINE_TERMS, TRITON_AVAILABLE, jit, launch, sine_cosine
from rtbm.theta.listed.triton import localise, mean_of, zeros
from rtbm.theta.product.torch import SplitProduct

if TRITON_AVAILABLE:
    import triton.language as tl

    _SINE_TERMS = tl.constexpr(SINE_TERMS)

LARGEST_SIZE = 10
"""Most coordinates of a block that the passes serve, since all of them are unrolled."""
TABLE_TERMS, TABLE_POINTS = 8, 32
"""Terms and points of a table that a program has in hand: powers of two. Speed only: measured on an H200."""
PROGRAM_POINTS = 128  # points of a program that localises arguments: a power of two


class TritonProduct:
    """log θ̃ of near arguments and its gradients; see `derivatives.CompiledSum`."""

    def __init__(self, product: SplitProduct, torch_log_theta: Callable[[Tensor, Tensor], Tensor]):
        self.product, self.lattice, self.torch_log_theta = product, product.lattice, torch_log_theta

    def start(self, z: Tensor, order: int) -> Derivatives:
        """log θ̃ (N,) for z (N, g); log Z, local arguments, and the mean without the derivatives of log Z."""
        (N, g), lattice = z.shape, self.lattice
        x, mean = (z.new_empty(N, g, dtype=torch.float64) for _ in range(2))
        value = x.new_empty(N)
        launch(
            *(_localise, (-(-N // PROGRAM_POINTS), 1, 1)),
            *(z.detach().contiguous(), x, value, mean, lattice.tensor("numbers", z.device), N),
            *(g, lattice.phase == "I", order > 0, PROGRAM_POINTS),
        )
        M = self.product.couple(lattice.fixed_form(z.device))
        log_Z = torch.cat([self._sum(rows, M, 1)[0] for rows in self._chunks(x)])
        return value + log_Z, log_Z, x, mean

    def gradients(self, z: Tensor, grad: Tensor, kept: list[Tensor]) -> tuple[Tensor, Tensor]:
        """See `derivatives.CompiledSum`. Σ grad·(second derivatives of Z)/Z follows from the product of the tables."""
        (log_Z, x, offset), g = kept, self.lattice.g
        first, last = self.product.lists(x.device)
        M, weights = self.product.couple(self.lattice.fixed_form(x.device)), grad.double()
        sums, slopes = torch.zeros_like(M), []
        for rows, share in zip(self._chunks(x), self._chunks(weights * (-log_Z).exp()), strict=True):
            slopes.append(torch.cat([self._sum(rows, M, part)[1] for part in range(2)], dim=1))
            f_a, f_b = (_table(x, points) for x, points in zip(self._cut(rows), (first, last), strict=True))
            for total, table_b, table_a in zip(sums, f_b, f_a, strict=True):  # a batch of products takes much longer
                total.addmm_(table_b * share, table_a.mT)
        own, mixed = (M * sums).sum(dim=0), first.mT @ (M * sums.flip(0)).sum(dim=0).mT @ last
        ours, theirs = (-m.mT @ (own.sum(dim=i)[:, None] * m) for i, m in enumerate((first, last)))
        by_x = torch.cat(slopes)
        second = torch.cat([torch.cat([ours, mixed], dim=1), torch.cat([mixed.mT, theirs], dim=1)])
        back, curvature = self.lattice.tensor("numbers", x.device)[6 * g * g : 8 * g * g].reshape(2, g, g)
        mean = offset + by_x @ back.mT
        by_z, central = weights[:, None] * mean, second - by_x.mT @ (weights[:, None] * by_x)
        total = back @ central @ back.mT + weights.sum() * curvature + mean.mT @ by_z
        return by_z, (-0.5 if self.lattice.phase == "I" else 0.5) * total

    def _sum(self, x: Tensor, M: Tensor, part: int) -> tuple[Tensor, Tensor]:
        """log Z, and its derivatives in the first (part 0) or last (part 1) of the coordinates of x."""
        (x_a, x_b), (first, last) = self._cut(x), self.product.lists(x.device)
        if part:
            return _sum(x_b, last, torch.bmm(M, _table(x_a, first)))
        return _sum(x_a, first, torch.bmm(M.mT, _table(x_b, last)))

    def _cut(self, x: Tensor) -> list[Tensor]:
        """The first and the last coordinates."""
        return [part.contiguous() for part in x.tensor_split([self.product.split.first.shape[1]], dim=1)]

    def _chunks(self, x: Tensor) -> tuple[Tensor, ...]:
        return x.split(max(1, GPU_ELEMENTS // (4 * self.product.split.entries)))


def _table(x: Tensor, points: Tensor) -> Tensor:
    """The cosines and sines (2, terms, N) of m·x for x (N, k) in turns and points m (terms, k)."""
    table = x.new_empty(2, len(points), len(x))
    _run(x, points, table, x, x, False)
    return table


def _sum(x: Tensor, points: Tensor, products: Tensor) -> tuple[Tensor, Tensor]:
    """log Σ cos(m·x) products₀ + sin(m·x) products₁ over the points m, (N,), and its derivatives in 2πx (N, k)."""
    slopes, value = torch.empty_like(x), x.new_empty(len(x))
    _run(x, points, products, slopes, value, True)
    return value, slopes


def _run(x: Tensor, points: Tensor, table: Tensor, slopes: Tensor, value: Tensor, sums: bool) -> None:
    (N, k), programs = x.shape, (-(-len(x) // TABLE_POINTS), 1, 1)
    launch(_pass, programs, x, points, table, slopes, value, N, len(points), k, sums, TABLE_TERMS, TABLE_POINTS)


@jit
def _pass(
    x, points, table, slopes, value, n_points, n_terms,
    K: "tl.constexpr", SUM: "tl.constexpr", TERMS: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """See `_table`, and if SUM, `_sum`."""
    row = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    inside = row < n_points
    turns_of = ()
    total = tl.zeros((TERMS, POINTS), dtype=tl.float64)
    first = ()
    for j in tl.static_range(K):
        turns_of = turns_of + (tl.load(x + row * K + j, mask=inside, other=0.0)[None, :],)
        first = first + (total,)
    for start in range(0, n_terms, TERMS):
        t = start + tl.arange(0, TERMS)
        m = ()
        turns = total * 0.0
        for j in tl.static_range(K):
            m = m + (tl.load(points + t * K + j, mask=t < n_terms, other=0.0)[:, None],)
            turns += m[j] * turns_of[j]
        sine, cosine = sine_cosine(turns - tl.floor(turns + 0.5), _SINE_TERMS)
        place = table + t.to(tl.int64)[:, None] * n_points + row[None, :]
        odd_place = place + n_terms.to(tl.int64) * n_points
        there = (t < n_terms)[:, None] & inside[None, :]
        if SUM:
            even = tl.load(place, mask=there, other=0.0)
            odd = tl.load(odd_place, mask=there, other=0.0)
            total += even * cosine + odd * sine
            turned = odd * cosine - even * sine
            added = ()
            for j in tl.static_range(K):
                added = added + (first[j] + m[j] * turned,)
            first = added
        else:
            tl.store(place, cosine, mask=there)
            tl.store(odd_place, sine, mask=there)
    if SUM:
        Z = tl.sum(total, axis=0)
        tl.store(value + row, tl.log(Z), mask=inside)
        for j in tl.static_range(K):
            tl.store(slopes + row * K + j, tl.sum(first[j], axis=0) / Z, mask=inside)


@jit
def _localise(
    z, x_result, value, mean_result, numbers, n_points,
    G: "tl.constexpr", FIRST: "tl.constexpr", MEAN: "tl.constexpr", POINTS: "tl.constexpr",
):  # fmt: skip
    """Local arguments, log θ̃ − log Z, and if MEAN, the mean without the derivatives of log Z."""
    row = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    inside = row < n_points
    n0, x, log_factor = localise(z, row, inside, numbers, G, FIRST)
    tl.store(value + row, log_factor, mask=inside)
    mean = mean_of(n0, x, zeros(x[0], G), numbers, G, FIRST)
    for i in tl.static_range(G):
        tl.store(x_result + row * G + i, x[i], mask=inside)
        if MEAN:
            tl.store(mean_result + row * G + i, mean[i], mask=inside)
