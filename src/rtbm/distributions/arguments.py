"""Checks on the parameters of machines and on the arguments of their methods."""

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rtbm.distributions.caching import ordinary_tensors
from rtbm.errors import InvalidInputError, NotPositiveDefiniteError
from rtbm.parameters import Free, Lattice, Natural, shapes_of
from rtbm.validation import (
    as_real,
    check_device,
    check_finite,
    check_positive_definite,
    check_same_device,
    check_shape,
    check_symmetric,
    check_vector,
    check_vectors,
)


def check_natural(T: Any, W: Any, Q: Any, b_v: Any, b_h: Any, phase: str) -> tuple[Natural, torch.dtype]:
    """Checked natural parameters as float64 copies, and their common dtype."""
    visible, hidden = _as_positive_definite(T, "T"), as_real(Q, "Q")
    if hidden.ndim != 1:
        _as_positive_definite(hidden, "Q")
    elif len(hidden) == 0 or not bool((hidden.detach() > 0).all()):
        raise NotPositiveDefiniteError(
            "Q as a vector is the diagonal of a positive definite matrix: its entries must be positive, got "
            f"{hidden.detach().tolist()}"
        )
    weights = check_shape(as_real(W, "W"), "W", (len(visible), len(hidden)))
    biases = [check_vector(as_real(b, n), n, len(m)) for b, n, m in ((b_v, "b_v", visible), (b_h, "b_h", hidden))]
    parts, dtype = _alike((visible, weights, hidden, *biases), Natural._fields[:-1])
    return Natural(*parts)._replace(phase=phase), dtype


def check_lattice(A: Any, a: Any, F: Any, mean: Any, covariance: Any) -> tuple[Lattice, torch.dtype]:
    """Checked lattice parameters as float64 copies, and their common dtype."""
    matrix, noise = _as_positive_definite(A, "A"), _as_positive_definite(covariance, "covariance")
    bias = check_vector(as_real(a, "a"), "a", len(matrix))
    weights = check_shape(as_real(F, "F"), "F", (len(noise), len(matrix)))
    origin = check_vector(as_real(mean, "mean"), "mean", len(noise))
    parts, dtype = _alike((matrix, bias, weights, origin, noise), Lattice._fields)
    return Lattice(*parts), dtype


def _as_positive_definite(value: Any, name: str) -> Tensor:
    return check_positive_definite(check_symmetric(as_real(value, name), name), name)


def check_free(free: Any) -> tuple[Free, torch.dtype]:
    """Checked free parameters of one machine as float64 copies, and their common dtype."""
    if not isinstance(free, Free):
        raise InvalidInputError(
            f"free must be an rtbm.parameters.Free, got a {type(free).__name__}: unpack(vector, n_visible, "
            "n_hidden) makes one of a vector"
        )
    names = free._fields[:-1]
    parts = [as_real(getattr(free, name), f"free.{name}") for name in names]
    if parts[2].ndim != 2:
        raise InvalidInputError(
            f"free.weights must have shape (n_visible, n_hidden), got {tuple(parts[2].shape)}: a distribution is one "
            "machine, take one of a batch"
        )
    n_visible, n_hidden = parts[2].shape
    for part, name, shape in zip(parts, names, shapes_of(n_visible, n_hidden, free.coupling), strict=True):
        check_shape(part, f"free.{name}", shape)
    copies, dtype = _alike(tuple(parts), names)
    return Free(*copies)._replace(coupling=free.coupling), dtype


def check_reached(machine: Lattice | Natural) -> None:
    """Check that the machine of free parameters is within the range of float64."""
    for part in machine:
        if isinstance(part, Tensor):
            check_finite(part, "the machine of these free parameters")
    for matrix in (machine.T,) if isinstance(machine, Natural) else (machine.A, machine.covariance):
        _, info = torch.linalg.cholesky_ex(matrix.detach())
        if int(info):
            low, high = (float(end) for end in matrix.detach().diagonal().aminmax())
            raise NotPositiveDefiniteError(
                "the free parameters have gone so far that a matrix of the machine is singular in float64: its "
                f"diagonal runs from {low:.3g} to {high:.3g}; take smaller steps, or regularise"
            )


def _alike(parts: tuple[Tensor, ...], names: tuple[str, ...]) -> tuple[Any, torch.dtype]:
    """Float64 copies of the parameters on their common device, and their common dtype."""
    for part, name in zip(parts[1:], names[1:], strict=True):
        check_same_device(parts[0], names[0], part, name)
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    with ordinary_tensors():
        return [part.double().clone() for part in parts], dtype


def dtype_of(value: Any, own: torch.dtype) -> torch.dtype:
    """The dtype of a result: that of the parameters, or float64 if the argument is a float64 tensor or array."""
    if isinstance(value, Tensor) and value.is_floating_point():
        return torch.promote_types(own, torch.float64 if value.dtype == torch.float64 else torch.float32)
    if isinstance(value, np.ndarray) and value.dtype == np.float64:
        return torch.float64
    return own


def check_points(
    value: Any, name: str, width: int, device: torch.device, *, missing: bool = False, infinite: bool = False
) -> Tensor:
    """Vectors (..., width) as a float64 tensor. Entries may be NaN with `missing`, and infinite with `infinite`."""
    tensor = check_vectors(as_real(value, name, finite=not (missing or infinite)), name, width)
    if missing and bool(tensor.detach().isinf().any()):
        raise InvalidInputError(f"{name} must not hold infinite entries; a missing entry is NaN")
    if infinite and bool(tensor.detach().isnan().any()):
        raise InvalidInputError(f"{name} must not hold NaN; an open side is infinite")
    return check_device(tensor, name, device).double()


def broadcast(first: Tensor, second: Tensor, names: str) -> tuple[Tensor, Tensor, torch.Size]:
    """Two tensors of vectors as rows with a common leading shape, and that shape."""
    try:
        shape = torch.broadcast_shapes(first.shape[:-1], second.shape[:-1])
    except RuntimeError:
        shapes = f"{tuple(first.shape[:-1])} and {tuple(second.shape[:-1])}"
        raise InvalidInputError(f"{names} must have leading shapes that broadcast, got {shapes}") from None
    rows = [x.expand(*shape, x.shape[-1]).reshape(-1, x.shape[-1]) for x in (first, second)]
    return rows[0], rows[1], shape


def broadcast_to_batch(x: Tensor, batch: torch.Size) -> torch.Size:
    """The shape draws + batch of values x (..., d) for each row of a batch."""
    message = f"value must broadcast to the batch {tuple(batch)}, got shape {tuple(x.shape)}"
    try:
        shape = torch.broadcast_shapes(x.shape[:-1], batch)
    except RuntimeError:
        raise InvalidInputError(message) from None
    if batch.numel() != 1 and shape[len(shape) - len(batch) :] != batch:
        raise InvalidInputError(message)
    return shape


def check_indices(indices: int | Iterable[int], n: int) -> list[int]:
    """Indices of coordinates as a list. Negative ones count from the end."""
    try:
        given = [indices] if np.ndim(indices) == 0 and not isinstance(indices, Iterable) else list(indices)  # type: ignore[arg-type]
        if any(isinstance(i, bool | np.bool_) for i in given):
            raise TypeError
        chosen = [operator.index(i) for i in given]
    except TypeError:
        raise InvalidInputError(f"indices must be integers, got {indices!r}") from None
    if any(not -n <= i < n for i in chosen):
        raise InvalidInputError(f"indices must be between 0 and {n - 1} for {n} visible units, got {chosen}")
    chosen = [i % n for i in chosen]
    if len(set(chosen)) < len(chosen):
        raise InvalidInputError(f"indices must not repeat, got {chosen}")
    return chosen


def check_known(values: Any, n: int, device: torch.device) -> tuple[list[int], list[int], Tensor]:
    """The known and the other indices of a conditional, and the known values (..., known)."""
    if not isinstance(values, Mapping):
        raise InvalidInputError(f"values must be a mapping {{index: value}}, got a {type(values).__name__}")
    known = check_indices(values.keys(), n)
    if len(known) == n:
        raise InvalidInputError("values must leave at least one coordinate free; log_prob(v) tells the density there")
    numbers = [as_real(value, f"values[{key}]", finite=False).double().to(device) for key, value in values.items()]
    for key, number in zip(values, numbers, strict=True):
        if bool(number.isinf().any()) or (number.ndim == 0 and bool(number.isnan())):
            raise InvalidInputError(f"values[{key}] must be finite, got {values[key]!r}")
    try:
        numbers = torch.broadcast_tensors(*numbers)
    except RuntimeError:
        shapes = {key: tuple(number.shape) for key, number in zip(values, numbers, strict=True)}
        raise InvalidInputError(f"values must broadcast to one shape, got {shapes}") from None
    rows = torch.stack(numbers, -1) if numbers else torch.zeros(0, dtype=torch.float64, device=device)
    return known, [i for i in range(n) if i not in known], rows


def refuse_rsample(self: Any, sample_shape: Any = ()) -> Tensor:
    """Not supported: draws have no derivatives, since hidden states are discrete."""
    raise NotImplementedError(
        "rsample: draws have no derivatives in the parameters, since they choose discrete hidden states. Use sample(); "
        "where derivatives are needed, icdf(torch.rand(n)) has them in one dimension, and in more the weights "
        "exp(log_prob(x) − log_prob(x).detach()) of draws x carry them"
    )


def check_map(M: Any, c: Any, n_visible: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The matrix (n, Nv) and shift (n,) of an affine map, in float64."""
    matrix = check_device(as_real(M, "M"), "M", device).double()
    if matrix.ndim != 2 or matrix.shape[1] != n_visible or not 1 <= matrix.shape[0] <= n_visible:
        raise InvalidInputError(
            f"M must have shape (n, {n_visible}) with 1 ≤ n ≤ {n_visible}, got {tuple(matrix.shape)}"
        )
    scaled = matrix.detach() / matrix.detach().norm(dim=1, keepdim=True).clamp(min=1e-300)  # units do not matter
    if int(torch.linalg.matrix_rank(scaled / scaled.norm(dim=0).clamp(min=1e-300))) < len(matrix):
        raise InvalidInputError("M must have full row rank: the image would have no density")
    if c is None:
        return matrix, matrix.new_zeros(len(matrix))
    return matrix, check_device(check_vector(as_real(c, "c"), "c", len(matrix)), "c", device).double()


def check_probabilities(value: Any, device: torch.device) -> Tensor:
    """Numbers (...) between 0 and 1, in float64."""
    p = check_device(as_real(value, "value", finite=False), "value", device).double()
    if not bool(((p.detach() >= 0) & (p.detach() <= 1)).all()):
        low, high = (float(end) for end in p.detach().aminmax()) if p.numel() else (math.nan, math.nan)
        raise InvalidInputError(f"value must hold probabilities between 0 and 1, got {low:.6g} to {high:.6g}")
    return p
