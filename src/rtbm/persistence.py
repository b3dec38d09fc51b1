"""Saving and loading: numbers as safetensors, all else as JSON beside them. Nothing in a file is ever executed.

A model is a tree. Its leaves are numbers, strings and arrays; its nodes are lists, dictionaries, and objects of the
classes in CLASSES. An estimator is saved by its parameters and its fitted attributes, a tuple by its fields, a module
by its options and tensors, and a distribution by the parameters that determine it without cancellation.
"""

import dataclasses
import functools
import hashlib
import importlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rtbm.distributions import (
    MappedDistribution,
    MixedDistribution,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.errors import FileError, InvalidInputError
from rtbm.paths import existing_file, write_whole
from rtbm.version import __version__

FORMAT = 3
"""The version of the file format. Files of other formats are refused."""
KEY = "rtbm"
CLASSES = {
    "RTBMDensity": "rtbm.estimators",
    "RTBMDensityCV": "rtbm.estimators",
    "RTBMFeatures": "rtbm.estimators",
    "RTBMClassifier": "rtbm.estimators",
    "RTBMRegressor": "rtbm.estimators",
    "RTBMOutlierDetector": "rtbm.estimators",
    "RTBMImputer": "rtbm.estimators",
    "RTBMForecaster": "rtbm.estimators",
    "ThetaNetRegressor": "rtbm.estimators",
    "ThetaNetClassifier": "rtbm.estimators",
    "Pipeline": "sklearn.pipeline",
    "StandardScaler": "sklearn.preprocessing",
    "LogisticRegression": "sklearn.linear_model",
    "RTBMDistribution": "rtbm.distributions",
    "RTBMMixture": "rtbm.distributions",
    "MappedDistribution": "rtbm.distributions",
    "MixedDistribution": "rtbm.distributions",
    "NumberColumn": "rtbm.distributions",
    "CategoryColumn": "rtbm.distributions",
    "ColumnMap": "rtbm.distributions",
    "Interval": "rtbm.distributions",
    "YeoJohnson": "rtbm.distributions",
    "LearnedMargin": "rtbm.distributions",
    "StraightTails": "rtbm.distributions",
    "RTBM": "rtbm.nn",
    "MixtureOfRTBMs": "rtbm.nn",
    "ThetaLayer": "rtbm.nn",
    "Linear": "torch.nn",
    "Tanh": "torch.nn",
    "ReLU": "torch.nn",
    "Dropout": "torch.nn",
    "Sequential": "torch.nn",
    "ModuleList": "torch.nn",
    "Bounds": "rtbm.estimators.density.bounds",
    "ColumnKinds": "rtbm.estimators.density.columns",
    "Cells": "rtbm.estimators.density.columns",
    "FrameFormat": "rtbm.estimators.density.frames",
    "Record": "rtbm.training",
    "ClassDensities": "rtbm.estimators.class_densities",
    "FoldDensities": "rtbm.estimators.classification",
    "JointDensity": "rtbm.estimators.class_densities",
    "ColumnDensities": "rtbm.training.columns",
    "Member": "rtbm.estimators.forecasting",
    "Structure": "rtbm.estimators.forecasting",
}
"""The classes that files may hold, and the modules that they are imported from. A new class is one more line."""
MODULE_OPTIONS: dict[str, tuple[str, ...]] = {
    "RTBM": ("n_visible", "n_hidden", "coupling", "phase", "tolerance"),
    "ThetaLayer": ("in_features", "out_features", "coupling", "phase", "dropout", "tolerance"),
    "Linear": ("in_features", "out_features"),
    "Dropout": ("p",),
}
"""The arguments of modules, which have attributes of the same names; modules that are not listed have none."""
LATTICE_TENSORS = ("A", "a", "F", "mean", "covariance")
NATURAL_TENSORS = ("T", "W", "Q", "b_v", "b_h")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LABEL_KINDS = "biufUO"
"""The kinds of NumPy arrays that can be saved: numbers, and strings."""

Tensors = dict[str, Tensor]


def save(model: Any, path: Any) -> None:
    """Save a fitted estimator, a distribution or a module to a file.

    The file is complete or not there at all: it is written under another name first. An existing file is replaced.

    Parameters
    ----------
    model : estimator, distribution or module
        What to save: any fitted estimator of this library, a machine, a mixture, or a module of `rtbm.nn`. `load` gives
        back the same, with the same parameters to the last bit.
    path : path
        By custom it ends in .rtbm or .safetensors.

    Examples
    --------
    >>> import tempfile, rtbm
    >>> machine = rtbm.RTBMDistribution([[0.5]], [[0.9]], [[2.0]], [0.0], [0.3])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rtbm.save(machine, f"{folder}/machine.rtbm")
    ...     copy = rtbm.load(f"{folder}/machine.rtbm")
    >>> bool(copy.log_prob([1.0]) == machine.log_prob([1.0]))
    True
    """
    if _name_of(model) is None:
        known = ", ".join(name for name, module in CLASSES.items() if module.startswith("rtbm"))
        raise InvalidInputError(
            f"model must be one of {known}, got a {type(model).__name__}: other estimators go with joblib.dump"
        )
    if isinstance(model, BaseEstimator):
        try:
            check_is_fitted(model)
        except NotFittedError:
            raise InvalidInputError("model must be fitted before it is saved: call fit first") from None
    tensors: Tensors = {}
    description = {"format": FORMAT, "library": __version__, "model": _encode(model, tensors, "model")}
    description["sha256"] = _fingerprint(tensors, description)
    write_whole(_path(path), safetensors.torch.save(tensors, {KEY: json.dumps(description)}))


def load(path: Any) -> Any:
    """Load what `save` has saved: an estimator, a distribution or a module, on the CPU.

    A file that is truncated, was edited or is of another kind is a FileError.
    """
    tensors, description = read(path)
    try:
        model = _decode(description["model"], tensors)
        if _name_of(model) is None:
            raise InvalidInputError("it holds no model")
        return model
    except (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the file does not describe a model of this library ({error!r})") from None


def read(path: Any) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of a file and its description, checked."""
    path = existing_file(_path(path))
    try:
        content = path.read_bytes()  # once: another process may replace the file
        tensors = safetensors.torch.load(content)
        metadata = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]).get("__metadata__") or {}
    except (safetensors.SafetensorError, OSError, LookupError, RuntimeError, ValueError) as error:
        raise FileError(f"{path}: truncated, or not a model file ({error})") from None
    if KEY not in metadata:
        raise FileError(f"{path}: a safetensors file, but not one of this library")
    try:
        description = json.loads(metadata[KEY])
        version, expected = description["format"], description.pop("sha256")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FileError(f"{path}: the description in the file is damaged") from None
    if version != FORMAT:
        raise FileError(
            f"{path}: format {version!r}, saved by rtbm {description.get('library')}; this is rtbm {__version__}, "
            f"which reads format {FORMAT} alone: fit the model again, or install the version that saved it"
        )
    if _fingerprint(tensors, description) != expected:
        raise FileError(f"{path}: the contents have been changed since the file was saved (checksum)")
    return tensors, description


def _path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise InvalidInputError(f"path must be the name of a file, got {path!r}")
    return Path(path)


def _fingerprint(tensors: Tensors, description: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _name_of(value: Any) -> str | None:
    """The name that files give the class of a value; None for other classes."""
    name = type(value).__name__
    return name if name in CLASSES and type(value) is _class(name) else None


@functools.cache
def _class(name: str) -> Any:
    return getattr(importlib.import_module(CLASSES[name]), name)


def _encode(value: Any, tensors: Tensors, place: str) -> Any:
    """A value as JSON holds it. Arrays and tensors go to `tensors`, under the name of their place."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, Tensor):
        tensors[place] = value.detach().cpu().contiguous().clone()
        return {"tensor": place}
    if isinstance(value, np.ndarray):
        return _encode_array(value, tensors, place)
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    name = _name_of(value)
    if name is not None:
        parts = _parts(value, name)
        return {"class": name} | {part: _encode(parts[part], tensors, f"{place}.{part}") for part in parts}
    if isinstance(value, list | tuple | range):
        items = [_encode(part, tensors, f"{place}.{i}") for i, part in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
        parts = {key: _encode(part, tensors, f"{place}.{key}") for key, part in value.items()}
        return {"dictionary": parts} if all(isinstance(key, str) for key in parts) else {"pairs": list(parts.items())}
    raise InvalidInputError(f"model has a {type(value).__name__} at {place}, which cannot be saved: use joblib.dump")


def _encode_array(value: np.ndarray, tensors: Tensors, place: str) -> Any:
    """An array of numbers as a tensor, and one of strings or labels as a list."""
    cells = value.ravel().tolist() if value.dtype.kind in "UO" else []
    if value.dtype.kind not in LABEL_KINDS or not all(isinstance(cell, str | int | float) for cell in cells):
        raise InvalidInputError(
            f"model has labels of type {value.dtype} at {place}, which cannot be saved: use strings or numbers"
        )
    if value.dtype.kind in "UO":
        return {"labels": value.tolist(), "type": value.dtype.str}
    tensors[place] = torch.from_numpy(np.array(value, order="C"))
    return {"array": place}


def _decode(saved: Any, tensors: Tensors) -> Any:
    """The value that `_encode` was given."""
    if isinstance(saved, list):
        return [_decode(part, tensors) for part in saved]
    if not isinstance(saved, dict):
        return saved
    if "class" in saved:
        return _restore(saved["class"], {k: _decode(v, tensors) for k, v in saved.items() if k != "class"})
    ((kind, content),) = ((k, v) for k, v in saved.items() if k != "type")
    if kind == "dictionary":
        return {key: _decode(part, tensors) for key, part in content.items()}
    if kind == "labels":
        return np.array(content, dtype=saved["type"])
    leaves: dict[str, Any] = {
        "float": float,
        "pairs": lambda items: {key: _decode(part, tensors) for key, part in items},
        "tuple": lambda items: tuple(_decode(item, tensors) for item in items),
        "dtype": DTYPES.__getitem__,
        "tensor": tensors.__getitem__,
        "array": lambda name: tensors[name].numpy(),
    }
    return leaves[kind](content)


def _parts(value: Any, name: str) -> dict[str, Any]:
    """What determines an object of a known class."""
    if isinstance(value, BaseEstimator):
        parameters = value.get_params(deep=False)
        known = {key: _plain(parameter) for key, parameter in parameters.items()}
        left_out = {*parameters, *getattr(value, "_unsaved", ())}
        return {"parameters": known, "attributes": {k: v for k, v in vars(value).items() if k not in left_out}}
    if isinstance(value, torch.nn.Module):
        options = {option: getattr(value, option) for option in MODULE_OPTIONS.get(name, ())}
        own = {"options": options, "tensors": dict(value.named_parameters(recurse=False))}
        return own | {"parts": dict(value.named_children())}
    if isinstance(value, RTBMDistribution):
        exact = value.to(dtype=torch.float64)
        is_dense = value.coupling == "dense"
        view = exact.lattice if is_dense else exact.to_phase("II").natural
        names = LATTICE_TENSORS if is_dense else NATURAL_TENSORS
        settings = {"phase": value.phase, "tolerance": value.tolerance, "dtype": value.dtype}
        return {key: getattr(view, key) for key in names} | settings
    if isinstance(value, RTBMMixture):
        return {"logits": value.logits, "components": list(value.components)}
    if isinstance(value, MappedDistribution):
        return {"base": value.base, "maps": value.maps}
    if isinstance(value, MixedDistribution):
        if value._known or value.n_visible < len(value._model.columns):
            raise InvalidInputError(
                "marginals and conditionals of rows with categories cannot be saved: save the whole"
            )
        return {"weights": value.weights, "machines": list(value.components), "columns": value.columns}
    if dataclasses.is_dataclass(value):
        return dict(vars(value))
    return value._asdict()


def _plain(parameter: Any) -> Any:
    """A parameter of an estimator. Random number generators and splitters cannot be kept, and become None."""
    if isinstance(parameter, torch.device):
        return str(parameter)
    if isinstance(parameter, np.ndarray):
        return parameter.tolist()
    leaves = str | bool | int | float | np.generic | list | tuple | range | Mapping | BaseEstimator
    return parameter if isinstance(parameter, leaves) else None


def _restore(name: str, parts: dict[str, Any]) -> Any:
    """The object of a known class that `_parts` was given."""
    if name not in CLASSES:
        raise KeyError(f"unknown class {name!r}")
    kind = _class(name)
    if issubclass(kind, BaseEstimator):
        model = kind(**parts["parameters"])
        vars(model).update(parts["attributes"])
        if hasattr(model, "_check_loaded"):
            model._check_loaded()
        return model
    if issubclass(kind, torch.nn.Module):
        return _restore_module(kind, **parts)
    if kind is RTBMDistribution:
        return _restore_machine(**parts)
    if kind is RTBMMixture:
        return RTBMMixture.from_logits(parts["logits"], parts["components"])
    return kind(**parts)


def _restore_machine(phase: str, tolerance: float, dtype: torch.dtype, **tensors: Tensor) -> RTBMDistribution:
    if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidInputError("the tensors of a machine must be finite and of float64")
    if set(tensors) == set(LATTICE_TENSORS):
        machine = RTBMDistribution.from_lattice(**tensors, phase=phase, tolerance=tolerance)
    else:
        machine = RTBMDistribution(**tensors, phase="II", tolerance=tolerance).to_phase(phase)
    return machine.to(dtype=dtype)


def _restore_module(kind: Any, options: dict[str, Any], tensors: Tensors, parts: dict[str, Any]) -> Any:
    """A module with these tensors, whose shapes are checked before anything is allocated."""
    if kind is torch.nn.Sequential:
        return kind(*parts.values()).eval()
    if kind is torch.nn.ModuleList:
        return kind(parts.values())
    if "components" in parts:  # a mixture, whose machines may differ in size
        module = kind(len(parts["components"]), 1, 1, dtype=tensors["logits"].dtype, device="meta")
        module.components = parts["components"]
    else:
        dtypes = {tensor.dtype for tensor in tensors.values()}
        module = kind(**options, **({"dtype": dtypes.pop(), "device": "meta"} if dtypes else {}))
    wanted = {name: parameter.shape for name, parameter in module.named_parameters(recurse=False)}
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise InvalidInputError("its tensors are not those of its layers")
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidInputError("its tensors must be finite")
    module.load_state_dict(dict(tensors), strict=False, assign=True)
    return module
