"""Checks of arguments. Every error names the argument, the value that was passed, and what to do."""

import math
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rtbm.errors import InvalidInputError, NotPositiveDefiniteError

Choice = TypeVar("Choice")
SMALLEST_TOLERANCE, LARGEST_TOLERANCE = 1e-15, 0.1
"""Limits of truncation tolerances: below, rounding errors dominate; above, results have no correct digit."""
MAX_PARAMETERS = 10**8
"""The largest number of parameters that is fitted. Solvers hold about 25 vectors of them: 20 GB."""
NAMED = 10
"""Messages name at most this many columns."""
_SYMMETRY, _SYMMETRY_FLOAT32 = 1e-10, 1e-5  # shares of the largest entry; rounding in X @ X.T stays far below


def as_real(value: Any, name: str, *, finite: bool = True) -> Tensor:
    """Return `value` as a float32 or float64 tensor (integers and lists become float64), checked to be finite."""
    tensor = _as_tensor(value, name)
    if tensor.is_complex():
        raise InvalidInputError(f"{name} must be real, got {tensor.dtype}: complex arguments are for riemann_theta")
    if tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.to(torch.float64)
    return check_finite(tensor, name) if finite else tensor


def as_complex(value: Any, name: str) -> Tensor:
    """Return `value` as a finite complex128 tensor."""
    return check_finite(_as_tensor(value, name).to(torch.complex128), name)


def check_finite(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds neither NaN nor infinity."""
    total = complex(tensor.detach().sum())
    if not (math.isfinite(total.real) and math.isfinite(total.imag)):  # cheap; look at the entries only if this fails
        bad = int((~torch.isfinite(tensor.detach())).sum())
        if bad:
            raise InvalidInputError(f"{name} must be finite, got {bad} NaN or infinite entries of {tensor.numel()}")
    return tensor


def check_vectors(value: Tensor, name: str, g: int) -> Tensor:
    """Check that the last dimension of a tensor is g."""
    if value.ndim == 0 or value.shape[-1] != g:
        hint = f": add a last dimension, {name}[..., None]" if g == 1 else ""
        raise InvalidInputError(f"{name} must have shape (..., {g}), got {tuple(value.shape)}{hint}")
    return value


def check_symmetric(matrix: Tensor, name: str) -> Tensor:
    """Check that a tensor is a square, non-empty, symmetric matrix."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InvalidInputError(f"{name} must be one square matrix (g, g) with g ≥ 1, got shape {tuple(matrix.shape)}")
    detached = matrix.detach()
    asymmetry = float((detached - detached.mT).abs().max())
    limit = _SYMMETRY_FLOAT32 if matrix.dtype == torch.float32 else _SYMMETRY
    if asymmetry > limit * float(detached.abs().max()):
        raise InvalidInputError(
            f"{name} must be symmetric, but entries differ from their mirror images by {asymmetry:.3g}: "
            f"pass ({name} + {name}.T) / 2 if that is what you mean"
        )
    return matrix


def check_positive_definite(matrix: Tensor, name: str) -> Tensor:
    """Check that a symmetric tensor is positive definite."""
    _, info = torch.linalg.cholesky_ex(matrix.detach().double())
    if int(info):
        smallest = float(torch.linalg.eigvalsh(matrix.detach().double())[0])
        raise NotPositiveDefiniteError(
            f"{name} must be positive definite, but its smallest eigenvalue is {smallest:.3g}: add to its "
            "diagonal or parametrise it by a Cholesky factor"
        )
    return matrix


def check_tolerance(tolerance: float) -> float:
    """Check that a truncation tolerance is between SMALLEST_TOLERANCE and LARGEST_TOLERANCE."""
    number = float(tolerance) if isinstance(tolerance, Real) else math.nan
    if not SMALLEST_TOLERANCE <= number <= LARGEST_TOLERANCE:
        raise InvalidInputError(
            f"tolerance must be between {SMALLEST_TOLERANCE:g} and {LARGEST_TOLERANCE:g}, got {tolerance!r}"
        )
    return number


def check_vector(vector: Tensor, name: str, g: int) -> Tensor:
    """Check that a tensor has shape (g,)."""
    if vector.shape != (g,):
        raise InvalidInputError(f"{name} must be one vector of shape ({g},), got shape {tuple(vector.shape)}")
    return vector


def check_shape(tensor: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Check that a tensor has exactly this shape."""
    if tensor.shape != shape:
        raise InvalidInputError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}")
    return tensor


def check_integers(tensor: Tensor, name: str) -> Tensor:
    """Check that a tensor holds whole numbers, of any dtype."""
    if not bool((tensor == tensor.round()).all()):
        raise InvalidInputError(f"{name} must hold integers: the distribution lives on the integer lattice")
    return tensor


def check_same_device(first: Tensor, first_name: str, second: Tensor, second_name: str) -> None:
    """Check that two tensors are on one device."""
    if first.device != second.device:
        raise InvalidInputError(
            f"{first_name} is on {first.device} and {second_name} on {second.device}: move one of them with .to(device)"
        )


def check_device(tensor: Tensor, name: str, device: torch.device) -> Tensor:
    """Check that an argument is on the device of the parameters."""
    if tensor.device != device:
        raise InvalidInputError(f"{name} is on {tensor.device} and the parameters on {device}: move one of them")
    return tensor


def check_integer(value: Any, name: str, smallest: int) -> int:
    """Check that `value` is a whole number of at least `smallest` that fits into 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < smallest:
        raise InvalidInputError(f"{name} must be an integer of at least {smallest}, got {value!r}")
    if int(value) >= 2**63:
        raise InvalidInputError(f"{name} must be an integer below 2^63, got {value!r}")
    return int(value)


def check_parameter_count(number: int, sizes: str) -> None:
    """Check that a model of these sizes can be fitted, before anything is allocated."""
    if number > MAX_PARAMETERS:
        raise InvalidInputError(
            f"{sizes} have {number:.3g} parameters or more, and the limit is {MAX_PARAMETERS:.0e}: use smaller sizes"
        )


def as_shape(sample_shape: Any) -> torch.Size:
    """A sample shape, given as a number or a sequence of numbers."""
    sizes = [sample_shape] if isinstance(sample_shape, Integral) else sample_shape
    try:
        return torch.Size([check_integer(size, "sample_shape", 0) for size in sizes])
    except TypeError:
        raise InvalidInputError(
            f"sample_shape must be an integer or a sequence of integers, got {sample_shape!r}"
        ) from None


def check_choice(value: Any, name: str, choices: tuple[Choice, ...]) -> Choice:
    """Check that `value` is one of `choices`."""
    if not isinstance(value, int | str) or value not in choices:
        raise InvalidInputError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return choices[choices.index(value)]


def listed(names: list[str]) -> str:
    """Names in a row; the first NAMED of a long list, and the number of the others."""
    others = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {others} more" if others > 0 else "")


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise InvalidInputError(f"{name} must be a dense tensor, got layout {value.layout}: call .to_dense()")
        return value
    try:
        array = np.asarray(value)  # torch would round Python numbers to float32
        if not array.flags.writeable or min(array.strides, default=0) < 0:
            array = array.copy()
        return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(value).__name__
        raise InvalidInputError(f"{name} must be a tensor or an array of numbers, got a {kind} ({error})") from None
