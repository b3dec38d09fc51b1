"""Checks on the parameters of a machine."""

import functools
from typing import Any

import torch
from torch import Tensor

from rtbm.errors import NotPositiveDefiniteError
from rtbm.parameters import Lattice, Natural
from rtbm.validation import (
    as_real,
    check_positive_definite,
    check_same_device,
    check_shape,
    check_symmetric,
    check_vector,
)


def check_natural(T: Any, W: Any, Q: Any, b_v: Any, b_h: Any, phase: str) -> tuple[Natural, torch.dtype]:
    """Checked natural parameters as float64 copies, and their common dtype."""
    visible = check_positive_definite(check_symmetric(as_real(T, "T"), "T"), "T")
    hidden = as_real(Q, "Q")
    if hidden.ndim != 1:
        check_positive_definite(check_symmetric(hidden, "Q"), "Q")
    elif len(hidden) == 0 or not bool((hidden.detach() > 0).all()):
        raise NotPositiveDefiniteError(
            "Q as a vector is the diagonal of a positive definite matrix: its entries must be positive, got "
            f"{hidden.detach().tolist()}"
        )
    n_visible, n_hidden = len(visible), len(hidden)
    weights = check_shape(as_real(W, "W"), "W", (n_visible, n_hidden))
    biases = check_vector(as_real(b_v, "b_v"), "b_v", n_visible), check_vector(as_real(b_h, "b_h"), "b_h", n_hidden)
    parts, dtype = _alike((visible, weights, hidden, *biases), ("T", "W", "Q", "b_v", "b_h"))
    return Natural(*parts)._replace(phase=phase), dtype


def check_lattice(A: Any, a: Any, F: Any, mean: Any, covariance: Any) -> tuple[Lattice, torch.dtype]:
    """Checked parameters of the lattice form as float64 copies, and their common dtype."""
    form = check_positive_definite(check_symmetric(as_real(A, "A"), "A"), "A")
    noise = check_positive_definite(check_symmetric(as_real(covariance, "covariance"), "covariance"), "covariance")
    n_visible, n_hidden = len(noise), len(form)
    bias = check_vector(as_real(a, "a"), "a", n_hidden)
    weights = check_shape(as_real(F, "F"), "F", (n_visible, n_hidden))
    origin = check_vector(as_real(mean, "mean"), "mean", n_visible)
    parts, dtype = _alike((form, bias, weights, origin, noise), ("A", "a", "F", "mean", "covariance"))
    return Lattice(*parts), dtype


def _alike(parts: tuple[Tensor, ...], names: tuple[str, ...]) -> tuple[Any, torch.dtype]:
    """Float64 copies of the parameters on their common device, and their common dtype."""
    for part, name in zip(parts[1:], names[1:], strict=True):
        check_same_device(parts[0], names[0], part, name)
    dtype = functools.reduce(torch.promote_types, (part.dtype for part in parts))
    with torch.inference_mode(False):
        return [part.double().clone() for part in parts], dtype
