"""Saving and loading: numbers as safetensors, all else as JSON beside them. Nothing in a file is ever executed.

A model is a tree. Its leaves are numbers, strings and arrays; its nodes are lists, dictionaries, and objects of the
classes in CLASSES. An estimator is saved by its parameters and its fitted attributes, a tuple by its fields, a module
by its options and tensors, and a distribution by the parameters that determine it without cancellation.
"""

import contextlib
import dataclasses
import functools
import hashlib
import importlib
import itertools
import json
import math
import os
import reprlib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import safetensors
import safetensors.torch
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from rtbm.common import Floats
from rtbm.distributions import (
    MappedDistribution,
    MixedDistribution,
    RTBMDistribution,
    RTBMMixture,
)
from rtbm.errors import FileError, InvalidInputError, RTBMError
from rtbm.paths import existing_file, write_whole
from rtbm.version import __version__

FORMAT = 4
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
Numbers = NDArray[np.number[Any]]
OTHER_HINTS: dict[str, dict[str, Any]] = {
    "LogisticRegression": {
        "n_features_in_": int,
        "classes_": np.ndarray,
        "coef_": Annotated[Numbers, "rows d"],
        "intercept_": Annotated[Numbers, "rows"],
    },
    "Pipeline": {"steps": list[tuple[str, BaseEstimator | str | None]]},
    "StandardScaler": {
        "n_features_in_": int,
        "mean_": Annotated[Numbers, "d"] | None,
        "var_": Annotated[Numbers, "d"] | None,
        "scale_": Annotated[Numbers, "d"] | None,
    },
}
"""The attributes of estimators of scikit-learn, which has no annotations."""
LATTICE_TENSORS = ("A", "a", "F", "mean", "covariance", "basis", "dual")
NATURAL_TENSORS = ("T", "W", "Q", "b_v", "b_h")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
STANDS_FOR: dict[Any, Any] = {float: int | float, Sequence: list | tuple}
"""The types of values, where an annotation names another one."""
FAILURES = (
    ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, RuntimeError, TypeError, ValueError,
)  # fmt: skip
"""What a file can make a constructor raise."""
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

    A file that is truncated, was edited or is of another kind is a FileError. It names the field of a model that has
    another type, size or value than it can have.
    """
    tensors, description = read(path)
    try:
        model = _decode(description["model"], tensors, "model")
        if _name_of(model) is None:
            raise FileError(f"model must be one, got {reprlib.repr(model)}")
        if isinstance(model, BaseEstimator):
            check_is_fitted(model)
        if hasattr(model, "steps"):
            _check_pipeline(model)
        return model
    except (FileError, LookupError, NotFittedError) as error:
        raise FileError(f"{path}: the file does not describe a model of this library: {error}") from None


def _check_pipeline(model: Any) -> None:
    """Check with one row that the steps of a pipeline fit together."""
    try:
        with contextlib.suppress(RTBMError), warnings.catch_warnings(action="ignore"):  # zeros may be out of reach
            first = next(step for _, step in model.steps if isinstance(step, BaseEstimator))
            getattr(model, "predict", bool)(np.zeros((1, first.n_features_in_)))
    except FAILURES as error:
        raise FileError(f"model.steps do not fit together: {error!r}") from None


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
        if tensor.numel():
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


def _decode(saved: Any, tensors: Tensors, place: str) -> Any:
    """The value that `_encode` was given. Errors name its place."""
    try:
        return _decode_node(saved, tensors, place)
    except FileError:  # of a part
        raise
    except FAILURES as error:
        raise FileError(f"{place}: {error if isinstance(error, RTBMError) else repr(error)}") from None


def _decode_node(saved: Any, tensors: Tensors, place: str) -> Any:
    def decoded(items: Any) -> dict[Any, Any]:
        return {key: _decode(part, tensors, f"{place}.{key}") for key, part in items}

    if isinstance(saved, list):
        return list(decoded(enumerate(saved)).values())
    if not isinstance(saved, dict):
        return saved
    if "class" in saved:
        return _restore(saved["class"], decoded((k, v) for k, v in saved.items() if k != "class"), place)
    ((kind, content),) = ((k, v) for k, v in saved.items() if k != "type")
    if kind == "labels":
        return _decode_labels(content, np.dtype(saved["type"]))
    leaves: dict[str, Any] = {
        "float": float,
        "dictionary": lambda items: decoded(items.items()),
        "pairs": decoded,
        "tuple": lambda items: tuple(decoded(enumerate(items)).values()),
        "dtype": DTYPES.__getitem__,
        "tensor": tensors.__getitem__,
        "array": lambda name: tensors[name].numpy(),
    }
    return leaves[kind](content)


def _decode_labels(content: Any, dtype: np.dtype) -> np.ndarray:
    labels = np.array(content, dtype=dtype)
    if dtype.kind not in "UO" or not all(isinstance(cell, str | int | float) for cell in labels.flat):
        raise InvalidInputError(f"labels must be strings or numbers, got {reprlib.repr(content)} of type {dtype}")
    return labels


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
        names = LATTICE_TENSORS if is_dense else NATURAL_TENSORS
        tensors = dict(zip(names, exact._evaluator.parameters, strict=True))
        if is_dense and torch.equal(tensors["basis"], torch.eye(value.n_hidden).to(tensors["basis"])):
            del tensors["basis"], tensors["dual"]
        return tensors | {"phase": value.phase, "tolerance": value.tolerance, "dtype": value.dtype}
    if isinstance(value, RTBMMixture):
        log_weights = value.to(dtype=torch.float64).logits
        return {"logits": log_weights, "components": list(value.components), "dtype": value.dtype}
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


def _restore(name: str, parts: dict[str, Any], place: str) -> Any:
    """The object of a known class that `_parts` was given."""
    if name not in CLASSES:
        raise KeyError(f"unknown class {name!r}")
    kind = _class(name)
    if issubclass(kind, BaseEstimator):
        model = _restore_estimator(kind, place=place, **parts)
    elif issubclass(kind, torch.nn.Module):
        model = _restore_module(kind, **parts)
    elif kind is RTBMDistribution:
        model = _restore_machine(**parts)
    elif kind is RTBMMixture:
        model = _restore_mixture(**parts)
    else:
        if not issubclass(kind, torch.distributions.Distribution):  # which check their arguments themselves
            _check_types(kind, parts, _hints(kind), place, {})
        model = kind(**parts)
    if hasattr(model, "_check_loaded") and parts.get("attributes") != {}:
        model._check_loaded()
    return model


def _restore_estimator(kind: Any, parameters: dict[str, Any], attributes: dict[str, Any], place: str) -> Any:
    """An estimator with these fitted attributes; without any, one that another estimator has as a parameter."""
    model = kind(**parameters)
    hints = _hints(kind) | OTHER_HINTS.get(kind.__name__, {})
    own = {name: hint for name, hint in hints.items() if name in parameters}
    _check_types(kind, parameters, own, f"{place}.parameters", {})
    if attributes:
        left_out = {*own, *getattr(kind, "_unsaved", ())}
        hints = {name: hint for name, hint in hints.items() if name not in left_out}
        hints.pop("feature_names_in_", None)  # which only tables with names have
        if "feature_names_in_" in attributes:
            hints["feature_names_in_"] = Annotated[np.ndarray, "d"]
        _check_types(kind, attributes, hints, f"{place}.attributes", {"d": attributes.get("n_features_in_", 0)})
        if not all(isinstance(name, str) for name in attributes.get("feature_names_in_", ())):
            raise InvalidInputError("feature_names_in_ must be strings")
    vars(model).update(attributes)
    if "coef_" in attributes and len(model.classes_) != max(len(model.coef_), 2):
        raise InvalidInputError(f"coef_ must have one row for two classes_, else one for each, got {len(model.coef_)}")
    return model


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _check_types(
    kind: Any, parts: Mapping[str, Any], hints: Mapping[str, Any], place: str, sizes: dict[str, int]
) -> None:
    """Check that the parts of an object of a class are what annotations say; those with a default may be absent."""
    for name, hint in hints.items():
        if name not in parts and not hasattr(kind, name):
            raise FileError(f"{place}.{name} is missing")
        wrong = _misfit(parts[name], hint, f"{place}.{name}", sizes) if name in parts else None
        if wrong:
            raise FileError(wrong)


def _misfit(value: Any, hint: Any, place: str, sizes: dict[str, int]) -> str | None:
    """What is wrong with a value that an annotation describes; None if nothing is.

    An annotation may be Annotated[type, ...] with the sizes of an array or a list, as in "n d", where a name stands for
    the same size in one object; with a range of integers; or with the TypedDict of a dictionary.
    """
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Annotated:
        return next(filter(None, (_misfit(value, part, place, sizes) for part in parts)), None)
    if kind in (Union, UnionType):
        found = [_misfit(value, part, place, sizes) for part in parts]
        return None if None in found else found[0]
    inner: list[tuple[Any, Any, Any]] = []
    if isinstance(kind, str):
        shape = value.shape if isinstance(value, Tensor | np.ndarray) else (len(value),)
        wanted = [
            int(name) if name.isdigit() else sizes.setdefault(name, size)
            for name, size in itertools.zip_longest(kind.split(), shape)
        ]
        return None if wanted == list(shape) else f"{place} must have the shape {tuple(wanted)}, got {tuple(shape)}"
    if isinstance(kind, range):
        return None if value in kind else f"{place} must be from {kind.start} to {kind.stop - 1}, got {value!r}"
    if kind is Literal:
        return None if value in parts else f"{place} must be one of {parts}, got {reprlib.repr(value)}"
    if is_typeddict(kind):
        inner = [(k, value.get(k), v) for k, v in _hints(kind).items()]
        inner = [part for part in inner if part[0] in value or part[0] in kind.__required_keys__]
    elif kind is not Any and not isinstance(value, STANDS_FOR.get(kind, kind)):
        return f"{place} must be of the type {getattr(kind, '__name__', kind)}, got {reprlib.repr(value)}"
    elif kind is np.ndarray and parts and not np.issubdtype(value.dtype, np.float64 if hint == Floats else np.number):
        return f"{place} must hold {'numbers of the type float64' if hint == Floats else 'numbers'}, got {value.dtype}"
    elif kind is tuple and parts[-1:] != (Ellipsis,):
        inner = list(zip(range(len(parts)), value, parts, strict=True))
    elif kind in (list, tuple, Sequence):
        inner = [(i, part, parts[0]) for i, part in enumerate(value)] if parts else []
    elif kind in (dict, Mapping):
        inner = [(k, part, parts[1]) for k, part in value.items()] if parts else []
    checked = (_misfit(part, own, f"{place}.{name}", sizes) for name, part, own in inner)
    return next(filter(None, checked), None)


def _restore_machine(phase: str, tolerance: float, dtype: torch.dtype, **tensors: Tensor) -> RTBMDistribution:
    if not all(tensor.dtype == torch.float64 and bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidInputError("the tensors of a machine must be finite and of float64")
    if "A" in tensors:
        basis = [tensors.pop(name) for name in LATTICE_TENSORS[5:] if name in tensors]
        machine = RTBMDistribution.from_lattice(**tensors, phase=phase, tolerance=tolerance)
        if basis:
            identity = torch.eye(machine.n_hidden, dtype=torch.float64)
            is_square = all(part.shape == identity.shape and torch.equal(part, part.round()) for part in basis)
            if len(basis) != 2 or not is_square or not torch.equal(basis[0].mT @ basis[1], identity):
                raise InvalidInputError("basis must be a matrix of integers, and dual its inverse transpose")
            own = machine._evaluator
            own = type(own).from_parameters([*own.parameters[:5], *basis], tolerance)
            machine = RTBMDistribution._make(own, phase, torch.float64)
    else:
        machine = RTBMDistribution(**tensors, phase="II", tolerance=tolerance).to_phase(phase)
    return machine.to(dtype=dtype)


def _restore_mixture(logits: Tensor, components: Any, dtype: torch.dtype) -> RTBMMixture:
    """A mixture with these logarithms of weights, whose last digits `from_logits` would change."""
    if logits.dtype != torch.float64 or not abs(float(logits.logsumexp(0))) < 1e-9:
        raise InvalidInputError(f"logits must be logarithms of probabilities with sum 1, in float64, got {logits}")
    return RTBMMixture._make(logits, components, dtype)


def _restore_module(kind: Any, options: dict[str, Any], tensors: Tensors, parts: dict[str, Any]) -> Any:
    """A module with these tensors, whose shapes are checked before anything is allocated."""
    if not all(isinstance(part, torch.nn.Module) for part in parts.values()):
        raise InvalidInputError("its parts must be modules")
    if kind is torch.nn.Sequential:
        return kind(*parts.values()).eval()
    if kind is torch.nn.ModuleList:
        return kind(parts.values())
    if "components" in parts:  # a mixture, whose machines may differ in size
        module = kind(len(parts["components"]), 1, 1, dtype=tensors["logits"].dtype, device="meta")
        module.components = parts["components"]
    else:
        dtypes = {tensor.dtype for tensor in tensors.values()}
        if len(dtypes) > 1:
            raise InvalidInputError(f"its tensors must have one dtype, got {dtypes}")
        module = kind(**options, **({"dtype": dtypes.pop(), "device": "meta"} if dtypes else {}))
    wanted = {name: parameter.shape for name, parameter in module.named_parameters(recurse=False)}
    if {name: tensor.shape for name, tensor in tensors.items()} != wanted:
        raise InvalidInputError("its tensors are not those of its layers")
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise InvalidInputError("its tensors must be finite")
    module.load_state_dict(dict(tensors), strict=False, assign=True)
    return module
