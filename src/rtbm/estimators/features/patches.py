"""How features are grouped: consecutive ones, blocks of pixels, random groups, or groups that are given."""

import math
from numbers import Integral
from typing import Any

import numpy as np

from rtbm.errors import InvalidInputError
from rtbm.validation import check_integer, check_parameter_count

PATCHES = ("contiguous", "blocks", "random")

Patch = np.ndarray
"""The numbers of some features."""


def make_patches(
    patch: Any, patch_size: Any, n_features: int, image_shape: Any, n_patches: int | None, seed: int
) -> list[Patch]:
    """The patches of `RTBMFeatures`.

    Examples
    --------
    >>> [p.tolist() for p in make_patches("contiguous", 2, 5, None, None, 0)]
    [[0, 1], [2, 3], [4]]
    >>> [p.tolist() for p in make_patches("blocks", (1, 2), 6, (2, 3), None, 0)]
    [[0, 1], [2], [3, 4], [5]]
    """
    check_options(patch, patch_size, image_shape, n_patches)
    if not isinstance(patch, str):
        return [_check_patch(part, i, n_features) for i, part in enumerate(patch)]
    if patch == "blocks":
        return _blocks(patch_size, n_features, image_shape)
    size = min(int(patch_size), n_features)
    if patch == "contiguous":
        return np.split(np.arange(n_features), range(size, n_features, size))
    return _random(size, n_features, n_patches, seed)


def check_options(patch: Any, patch_size: Any, image_shape: Any, n_patches: Any) -> None:
    """Check what can be checked without data."""
    if isinstance(patch, str) and patch not in PATCHES:
        raise InvalidInputError(
            f"patch must be one of {', '.join(map(repr, PATCHES))} or a list of lists of feature numbers, got {patch!r}"
        )
    if not isinstance(patch, str | list | tuple | np.ndarray) or len(patch) == 0:
        raise InvalidInputError(f"patch must be a name or a list of lists of feature numbers, got {patch!r}")
    if n_patches is not None:
        check_parameter_count(check_integer(n_patches, "n_patches", 1), f"n_patches={n_patches} machines")
        if not isinstance(patch, str) or patch != "random":
            raise InvalidInputError(f'n_patches is for patch="random", got patch={patch!r}: leave it at None')
    if isinstance(patch, str) and patch == "blocks":
        _pair(patch_size, "patch_size")
        if image_shape is None:
            raise InvalidInputError('patch="blocks" needs image_shape=(rows, columns), got None')
        _pair(image_shape, "image_shape")
    elif isinstance(patch, str):
        check_integer(patch_size, "patch_size", 1)


def _pair(value: Any, name: str) -> tuple[int, int]:
    """Two whole numbers, or one for both."""
    if isinstance(value, Integral) and name == "patch_size":
        value = (value, value)
    if not isinstance(value, list | tuple | np.ndarray) or len(value) != 2:
        raise InvalidInputError(f"{name} must be two integers (rows, columns), got {value!r}")
    return check_integer(value[0], name, 1), check_integer(value[1], name, 1)


def _blocks(patch_size: Any, n_features: int, image_shape: Any) -> list[Patch]:
    (height, width), (rows, columns) = _pair(patch_size, "patch_size"), _pair(image_shape, "image_shape")
    if rows * columns != n_features:
        raise InvalidInputError(
            f"image_shape={(rows, columns)} has {rows * columns} pixels, and X has {n_features} features"
        )
    pixels = np.arange(n_features).reshape(rows, columns)
    return [
        pixels[i : i + height, j : j + width].reshape(-1)
        for i in range(0, rows, height)
        for j in range(0, columns, width)
    ]


def _random(size: int, n_features: int, n_patches: int | None, seed: int) -> list[Patch]:
    """Random groups: every feature once, before any is taken again."""
    n_patches = math.ceil(n_features / size) if n_patches is None else n_patches
    rng = np.random.default_rng(seed)
    patches: list[Patch] = []
    while len(patches) < n_patches:
        order = rng.permutation(n_features)
        patches += [np.sort(part) for part in np.split(order, range(size, n_features, size))]
    return patches[:n_patches]


def _check_patch(patch: Any, number: int, n_features: int) -> Patch:
    indices = list(patch) if isinstance(patch, list | tuple | range | np.ndarray) else [None]
    valid = all(isinstance(i, Integral) and not isinstance(i, bool) and 0 <= int(i) < n_features for i in indices)
    if not indices or not valid or len(set(indices)) < len(indices):
        raise InvalidInputError(
            f"patch[{number}] must be a list of different feature numbers from 0 to {n_features - 1}, got {patch!r}"
        )
    return np.array(indices, dtype=np.int64)
