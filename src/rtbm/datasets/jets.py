"""Jet images: is a jet a W boson that decayed to two quarks (label 1), or an ordinary quark or gluon (label 0)?

The paper's section 5 uses the images of Baldi et al. (arXiv:1603.09349). Those that come with the library are simulated
after the same recipe.
"""

import importlib
import os
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from rtbm.common import Floats
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import existing_file
from rtbm.validation import check_choice, check_integer

N_TRAIN = 5000
"""Number of training images at the beginning of the sample; the other 2500 are for testing. Published scores use it."""
SAMPLE = "jets.npz"


class JetImages(NamedTuple):
    """Jet images and their labels.

    Attributes
    ----------
    images : (n, 32, 32)
        Transverse momentum (GeV) in each pixel.
    labels : (n,)
        1 for a W boson, 0 for a quark or gluon.
    """

    images: Floats
    labels: np.ndarray

    @property
    def pixels(self) -> Floats:
        """The images as rows (n, 1024)."""
        return self.images.reshape(len(self.images), -1)


def load(part: str = "all") -> JetImages:
    """The 7,500 images that come with the library; `experiments/paper/jet_simulation.py` made them.

    Parameters
    ----------
    part : "train", "test" or "all"
        The first 5000, the last 2500, or all of them.

    Examples
    --------
    >>> train = load("train")
    >>> train.images.shape, train.pixels.shape, int(train.labels.sum())
    ((5000, 32, 32), (5000, 1024), 2507)
    """
    check_choice(part, "part", ("train", "test", "all"))
    with files("rtbm.datasets").joinpath(SAMPLE).open("rb") as file, np.load(file) as sample:
        images, labels = sample["images"].astype(np.float64), sample["labels"].astype(np.int64)
    chosen = {"train": slice(N_TRAIN), "test": slice(N_TRAIN, None), "all": slice(None)}[part]
    return JetImages(images[chosen], labels[chosen])


def import_tool(name: str) -> Any:
    """Import a package of the extra `jets`, or raise an error that says how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        message = f'{name} is missing, which jets need: pip install ".[jets]" in a checkout of rtbm'
        raise ImportError(message) from error


def read_hdf5(path: Any, start: int = 0, stop: int | None = None) -> JetImages:
    """Images of a file in the layout of the original set: `features` (N, 1, 32, 32) and `targets` (N, 1).

    Parameters
    ----------
    path : path
        An HDF5 file, which is read by h5py (the extra `jets`).
    start, stop : int
        Read images start to stop only; the original file has millions.
    """
    check_integer(start, "start", 0)
    if stop is not None:
        check_integer(stop, "stop", start + 1)
    if not isinstance(path, str | os.PathLike):
        raise InvalidInputError(f"path must be the name of a file, got {path!r}")
    try:
        with import_tool("h5py").File(existing_file(path), "r") as file:
            images, labels = _read(file, path, start, stop)
    except OSError as error:
        raise FileError(f"{path}: truncated, or not an HDF5 file ({error})") from None
    if not np.isfinite(images).all() or images.min() < 0 or not np.isin(labels, (0, 1)).all():
        raise FileError(f"{path}: features must be finite and not negative, and targets 0 or 1")
    return JetImages(images[:, 0].astype(np.float64), labels[:, 0].astype(np.int64))


def _read(file: Any, path: Any, start: int, stop: int | None) -> list[np.ndarray]:
    """Check the shapes and types of both data sets, then read some rows."""
    found = {name: _layout(file.get(name)) for name in ("features", "targets")}
    n = (found["features"] or ((0,), ""))[0][0]
    if found != {"features": ((n, 1, 32, 32), "number"), "targets": ((n, 1), "number")}:
        raise FileError(f"{path}: expected numbers features (N, 1, 32, 32) and targets (N, 1), got {found}")
    if start >= n:
        raise InvalidInputError(f"start must be below the number of images, {n}, got {start}")
    return [np.asarray(file[name][start:stop]) for name in found]


def _layout(item: Any) -> tuple[tuple[int, ...], str] | None:
    """The shape and type of a data set with at least one axis; None for anything else."""
    shape = getattr(item, "shape", None)
    return (tuple(shape), "number" if item.dtype.kind in "iufb" else str(item.dtype)) if shape else None
