"""Three parametrisations of an RTBM, and the maps between them.

*Natural*: the paper's T, W, Q, b_v, b_h, in phase I or II. A vector Q stands for a diagonal matrix.

*Lattice*: h ~ P(h) ∝ exp(−½hᵀAh − aᵀh) on the integers, v given h ~ N(mean + Fh, covariance). Any positive definite A
and covariance give a machine.

*Free*: real numbers without constraints, for optimisers. Every point is a machine, within the range of float64.

All maps are differentiable, and work on batches of machines (leading dimensions).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from rtbm.common import TWO_PI
from rtbm.errors import InvalidInputError
from rtbm.validation import check_choice

COUPLINGS = ("dense", "diagonal")
"""How Q couples the hidden units: all with all, or each with itself alone. State dicts store the index of a name, so
their order must not change."""


class Natural(NamedTuple):
    """The energy ½vᵀTv + ½hᵀQh + vᵀWh + b_vᵀv + b_hᵀh; in phase II, W and b_h stand for iW and ib_h."""

    T: Tensor  # (..., Nv, Nv)
    W: Tensor  # (..., Nv, Nh)
    Q: Tensor  # (..., Nh, Nh), or (..., Nh) if diagonal
    b_v: Tensor  # (..., Nv)
    b_h: Tensor  # (..., Nh)
    phase: str = "I"

    @property
    def is_diagonal(self) -> bool:
        """Whether Q is given by its diagonal."""
        return self.Q.ndim < self.W.ndim


class Lattice(NamedTuple):
    """h ~ P(h) ∝ exp(−½hᵀAh − aᵀh) on ℤ^Nh, and v given h ~ N(mean + Fh, covariance)."""

    A: Tensor  # (..., Nh, Nh)
    a: Tensor  # (..., Nh)
    F: Tensor  # (..., Nv, Nh)
    mean: Tensor  # (..., Nv)
    covariance: Tensor  # (..., Nv, Nv)


class Free(NamedTuple):
    """Parameters without constraints: from the lattice parameters for dense Q, from those of phase II for diagonal Q.

    Dense: the log-Cholesky vector of A, the centre −A⁻¹a, F, mean and the log-Cholesky vector of the covariance.
    Diagonal: log q, the phase at the mean in turns, W, and mean and log-Cholesky vector of the Gaussian factor.
    """

    hidden_scale: Tensor  # (..., Nh(Nh+1)/2), or (..., Nh) if diagonal
    hidden_centre: Tensor  # (..., Nh)
    weights: Tensor  # (..., Nv, Nh)
    visible_centre: Tensor  # (..., Nv)
    visible_scale: Tensor  # (..., Nv(Nv+1)/2)
    coupling: str = "dense"


Parameters = TypeVar("Parameters", Natural, Lattice, Free)


def map_tensors(parameters: Parameters, function: Callable[[Tensor], Tensor]) -> Parameters:
    """Apply a function to every tensor of natural, lattice or free parameters."""
    changed: dict[str, Any] = {k: function(x) for k, x in parameters._asdict().items() if isinstance(x, Tensor)}
    return parameters._replace(**changed)


def natural_to_lattice(natural: Natural) -> Lattice:
    """The lattice parameters of a machine in either phase.

    Phase I: A = Q − WᵀT⁻¹W, the Schur complement of T. Phase II: A = 4π²(Q + WᵀT⁻¹W)⁻¹, which takes no difference of
    matrices and so loses no digits.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> natural_to_lattice(Natural(one, one, 3 * one, one[0], one[0])).A
    tensor([[2.]], dtype=torch.float64)
    """
    T, W, _, b_v, b_h, phase = natural
    Q = dense_hidden(natural)
    if phase == "I":
        covariance, F = inverse(T), -solve(T, W)
        mean = -_times(covariance, b_v)
        return Lattice(symmetric(Q + W.mT @ F), b_h + _times(W.mT, mean), F, mean, covariance)
    H = solve(Q, W.mT)
    covariance = inverse(symmetric(T + W @ H))
    F, mean = TWO_PI * covariance @ H.mT, -_times(covariance, b_v + _times(H.mT, b_h))
    A = TWO_PI**2 * _inverse_of_sum(Q, W, T)
    return Lattice(A, _times(F.mT, b_v) - _times(A, b_h) / TWO_PI, F, mean, covariance)


def lattice_to_natural(lattice: Lattice, phase: str = "I") -> Natural:
    """The paper's parameters, in phase I or II, of a machine given by its lattice parameters.

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> lattice_to_natural(Lattice(one, one[0], 2 * one, 0 * one[0], one)).Q
    tensor([[5.]], dtype=torch.float64)
    """
    A, a, F, mean, covariance = lattice
    X = solve(covariance, F)
    Q = symmetric(A + F.mT @ X)
    if check_choice(phase, "phase", ("I", "II")) == "I":
        return Natural(inverse(covariance), -X, Q, -_solve_vector(covariance, mean), a + _times(X.mT, mean), "I")
    envelope_mean, envelope, centre = continuous_limit(lattice)
    T = inverse(envelope)
    H = solve(Q, X.mT)  # the centre of h given v is centre + H(v − envelope_mean)
    b_h = TWO_PI * (centre - _times(H, envelope_mean))
    return Natural(T, TWO_PI * H.mT, TWO_PI**2 * inverse(Q), -_times(T, envelope_mean), b_h, "II")


def change_phase(natural: Natural) -> Natural:
    """The machine of the other phase with the same density. A diagonal Q stays diagonal.

    With s = +1 from phase II to I, and −1 back::

        T' = T + s WQ⁻¹Wᵀ   W' = −2πWQ⁻¹   Q' = 4π²Q⁻¹   b_v' = b_v + s WQ⁻¹b_h   b_h' = −2πQ⁻¹b_h

    Examples
    --------
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> machine = Natural(one, one, 3 * one, one[0], one[0], "II")
    >>> torch.allclose(change_phase(change_phase(machine)).T, one)
    True
    """
    T, W, Q, b_v, b_h, phase = natural
    sign = 1.0 if phase == "II" else -1.0
    if natural.is_diagonal:
        X, x, dual = (W / Q[..., None, :]).mT, b_h / Q, TWO_PI**2 / Q
    else:
        X, x, dual = solve(Q, W.mT), _solve_vector(Q, b_h), TWO_PI**2 * inverse(Q)
    other = "I" if phase == "II" else "II"
    return Natural(symmetric(T + sign * W @ X), -TWO_PI * X.mT, dual, b_v + sign * _times(W, x), -TWO_PI * x, other)


def continuous_limit(lattice: Lattice) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (..., Nv) and covariance (..., Nv, Nv) of v, and mean (..., Nh) of h, if h were real instead of integer."""
    A, a, F, mean, covariance = lattice
    centre = -_solve_vector(A, a)
    return mean + _times(F, centre), symmetric(covariance + F @ solve(A, F.mT)), centre


def constrain(free: Free) -> Lattice | Natural:
    """The machine of free parameters: lattice parameters (dense Q), or natural ones in phase II (diagonal Q).

    Examples
    --------
    >>> free = unpack(torch.zeros(5, dtype=torch.float64), 1, 1, "dense")
    >>> constrain(free).A, constrain(free).covariance
    (tensor([[1.]], dtype=torch.float64), tensor([[1.]], dtype=torch.float64))
    """
    hidden_scale, centre, weights, mean, visible_scale, coupling = free
    covariance = from_log_cholesky(visible_scale)
    if coupling == "dense":
        A = from_log_cholesky(hidden_scale)
        return Lattice(A, -_times(A, centre), weights, mean, covariance)
    T = inverse(covariance)
    b_h = TWO_PI * centre - _times(weights.mT, mean)
    return Natural(T, weights, hidden_scale.exp(), -_times(T, mean), b_h, "II")


def unconstrain(machine: Lattice | Natural) -> Free:
    """The free parameters of a machine: the inverse of `constrain`.

    Examples
    --------
    >>> free = unpack(torch.arange(5, dtype=torch.float64), 1, 1, "diagonal")
    >>> torch.allclose(pack(unconstrain(constrain(free))), pack(free))
    True
    """
    if isinstance(machine, Natural) and machine.is_diagonal:
        T, W, Q, b_v, b_h, _ = machine if machine.phase == "II" else change_phase(machine)
        covariance = inverse(T)
        mean = -_times(covariance, b_v)
        return Free(Q.log(), (b_h + _times(W.mT, mean)) / TWO_PI, W, mean, log_cholesky(covariance), "diagonal")
    A, a, F, mean, covariance = natural_to_lattice(machine) if isinstance(machine, Natural) else machine
    return Free(log_cholesky(A), -_solve_vector(A, a), F, mean, log_cholesky(covariance))


def count(n_visible: int, n_hidden: int, coupling: str = "dense") -> int:
    """The number of free parameters, which is also that of the paper's T, W, Q, b_v, b_h.

    Parameters
    ----------
    n_visible, n_hidden : int
        The numbers of units.
    coupling : "dense" or "diagonal", default="dense"
        The shape of Q.

    Examples
    --------
    >>> count(1, 2), count(1, 2, "diagonal")
    (9, 8)
    """
    return sum(math.prod(shape) for shape in shapes_of(n_visible, n_hidden, coupling))


def pack(free: Free) -> Tensor:
    """One vector (..., count) of the free parameters, in the order of their names."""
    batch = free.visible_centre.shape[:-1]
    return torch.cat([part.reshape(*batch, -1) for part in free[:-1]], dim=-1)


def unpack(vector: Tensor, n_visible: int, n_hidden: int, coupling: str = "dense") -> Free:
    """The free parameters in a vector (..., count): the inverse of `pack`.

    Parameters
    ----------
    vector : (..., count)
        The numbers, in the order of the fields of `Free`.
    n_visible, n_hidden : int
        The numbers of units.
    coupling : "dense" or "diagonal", default="dense"
        The shape of Q.

    Examples
    --------
    >>> unpack(torch.arange(5.0), 1, 1).weights
    tensor([[2.]])
    """
    shapes, expected = shapes_of(n_visible, n_hidden, coupling), count(n_visible, n_hidden, coupling)
    if vector.ndim == 0 or vector.shape[-1] != expected:
        raise InvalidInputError(
            f"vector must have shape (..., {expected}) for {n_visible} visible and {n_hidden} hidden units with "
            f"coupling={coupling!r}, got {tuple(vector.shape)}"
        )
    parts = vector.split([math.prod(shape) for shape in shapes], dim=-1)
    hidden_scale, hidden_centre, weights, visible_centre, visible_scale = (
        part.reshape(*vector.shape[:-1], *shape) for part, shape in zip(parts, shapes, strict=True)
    )
    return Free(hidden_scale, hidden_centre, weights, visible_centre, visible_scale, coupling)


def log_cholesky(matrix: Tensor) -> Tensor:
    """The lower triangle (..., n(n+1)/2) of the Cholesky factor, row by row, with the logarithm of its diagonal.

    Examples
    --------
    >>> log_cholesky(torch.tensor([[1.0, 2.0], [2.0, 5.0]]))
    tensor([0., 2., 0.])
    """
    factor = torch.linalg.cholesky(matrix)
    logarithms = factor.diagonal(dim1=-2, dim2=-1).log()
    lower = factor.tril(-1) + torch.diag_embed(logarithms)
    row, column = torch.tril_indices(*matrix.shape[-2:])
    return lower[..., row, column]


def from_log_cholesky(vector: Tensor) -> Tensor:
    """The positive definite matrix (..., n, n) of a log-Cholesky vector: the inverse of `log_cholesky`."""
    lower = triangle_of(vector)
    return lower @ lower.mT


def triangle_of(vector: Tensor) -> Tensor:
    """The Cholesky factor (..., n, n) of a log-Cholesky vector (..., n(n+1)/2)."""
    n = (math.isqrt(8 * vector.shape[-1] + 1) - 1) // 2
    row, column = torch.tril_indices(n, n)
    lower = vector.new_zeros(*vector.shape[:-1], n, n)
    lower[..., row, column] = torch.where((row == column).to(vector.device), vector.exp(), vector)
    return lower


def condition_natural(natural: Natural, known: list[int], others: list[int], values: Tensor) -> Natural:
    """v[others] given v[known] = values. T, W and Q are restricted to `others`, and the biases absorb the values."""
    T, W, Q, b_v, b_h, phase = natural
    bias = b_v[others] + T[others][:, known] @ values
    return Natural(T[others][:, others], W[others], Q, bias, b_h + W[known].mT @ values, phase)


def condition_lattice(lattice: Lattice, known: list[int], others: list[int], values: Tensor) -> Lattice:
    """v[others] given v[known] = values: a linear regression on v[known], and a sharper P(h)."""
    A, a, F, mean, covariance = lattice
    S = covariance[known][:, known]
    gain = solve(S, covariance[known][:, others]).mT  # (others, known)
    X, excess = solve(S, F[known]), values - mean[known]
    return Lattice(
        symmetric(A + F[known].mT @ X),
        a - X.mT @ excess,
        F[others] - gain @ F[known],
        mean[others] + gain @ excess,
        symmetric(covariance[others][:, others] - gain @ covariance[known][:, others]),
    )


def transform_natural(natural: Natural, M: Tensor, c: Tensor) -> Natural:
    """v' = Mv + c for a square, invertible M. Q is kept, so a diagonal machine stays diagonal."""
    T, W, Q, b_v, b_h, phase = natural
    T_new = symmetric(torch.linalg.solve(M.mT, torch.linalg.solve(M.mT, T).mT))
    W_new = torch.linalg.solve(M.mT, W)
    b_v_new = torch.linalg.solve(M.mT, b_v) - T_new @ c
    return Natural(T_new, W_new, Q, b_v_new, b_h - W_new.mT @ c, phase)


def transform_lattice(lattice: Lattice, M: Tensor, c: Tensor) -> Lattice:
    """v' = Mv + c for M (n, Nv) of full row rank: P(h) is kept."""
    A, a, F, mean, covariance = lattice
    return Lattice(A, a, M @ F, M @ mean + c, symmetric(M @ covariance @ M.mT))


def dense_hidden(natural: Natural) -> Tensor:
    """Q as a matrix."""
    return torch.diag_embed(natural.Q) if natural.is_diagonal else natural.Q


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of a matrix, which removes rounding noise."""
    return (matrix + matrix.mT) / 2


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """matrix⁻¹ right for a positive definite matrix (..., n, n) and right (..., n, k)."""
    return torch.cholesky_solve(right, torch.linalg.cholesky(matrix))


def inverse(matrix: Tensor) -> Tensor:
    """The inverse of a positive definite matrix, symmetric."""
    return symmetric(solve(matrix, torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)))


def _inverse_of_sum(Q: Tensor, W: Tensor, T: Tensor) -> Tensor:
    """(Q + WᵀT⁻¹W)⁻¹ for positive definite Q and T, from a triangular factor R of the sum.

    The sum is not formed: rounding in proportion to its largest eigenvalue would hide the smaller ones.
    """
    root = torch.linalg.solve_triangular(torch.linalg.cholesky(T), W, upper=False)
    R = torch.linalg.qr(torch.cat([torch.linalg.cholesky(Q).mT, root], dim=-2)).R
    identity = torch.eye(Q.shape[-1], dtype=Q.dtype, device=Q.device)
    R_inverse = torch.linalg.solve_triangular(R, identity, upper=True)
    return R_inverse @ R_inverse.mT


def shapes_of(n_visible: int, n_hidden: int, coupling: str = "dense") -> tuple[tuple[int, ...], ...]:
    """The shapes of the free parameters of one machine, in the order of their names."""
    check_choice(coupling, "coupling", COUPLINGS)
    n_scale = n_hidden * (n_hidden + 1) // 2 if coupling == "dense" else n_hidden
    return (n_scale,), (n_hidden,), (n_visible, n_hidden), (n_visible,), (n_visible * (n_visible + 1) // 2,)


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector[..., None])[..., 0]


def _solve_vector(matrix: Tensor, vector: Tensor) -> Tensor:
    return solve(matrix, vector[..., None])[..., 0]
