"""Saving and loading: numbers as safetensors, all else as JSON beside them. Nothing in a file is ever executed."""

import hashlib
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
from torch import Tensor

from rtbm import nn
from rtbm.distributions import RTBMDistribution, RTBMMixture
from rtbm.errors import FileError, InvalidInputError
from rtbm.estimators import RTBMDensity, RTBMDensityCV, ThetaNetClassifier, ThetaNetRegressor
from rtbm.estimators.bounds import make_bounds
from rtbm.nn.feedforward import make_network
from rtbm.parameters import Free, shapes_of
from rtbm.paths import write_whole
from rtbm.training import Record
from rtbm.training.networks import LOSSES
from rtbm.validation import check_choice, check_vector
from rtbm.version import __version__

FORMAT = 1
"""The version of the file format. Files of later versions are refused."""
KEY = "rtbm"
DTYPES = {"float32": torch.float32, "float64": torch.float64}

Network = ThetaNetRegressor | ThetaNetClassifier
EstimatedDensity = RTBMDensity | RTBMDensityCV
Model = EstimatedDensity | Network | RTBMDistribution | RTBMMixture | nn.RTBM | nn.MixtureOfRTBMs | nn.ThetaLayer
_DENSITIES: dict[str, type[EstimatedDensity]] = {"RTBMDensity": RTBMDensity, "RTBMDensityCV": RTBMDensityCV}
_NETWORKS: dict[str, type[Network]] = {"ThetaNetRegressor": ThetaNetRegressor, "ThetaNetClassifier": ThetaNetClassifier}
_COMMITTEE = ("candidates_", "held_out_", "weights_")
_LAYER = ("in_features", "out_features", "phase", "dropout", "tolerance")
_LATTICE = ("A", "a", "F", "mean", "covariance")
_NATURAL = ("T", "W", "Q", "b_v", "b_h")


def save(model: Model, path: Any) -> None:
    """Save a fitted estimator, a distribution or a module to a file.

    The file is complete or not there at all: it is written under another name first. An existing file is replaced.

    Parameters
    ----------
    model : estimator, distribution or module
        What to save: a fitted `RTBMDensity`, `RTBMDensityCV`, `ThetaNetRegressor` or `ThetaNetClassifier`, a machine or
        a mixture, or a module of `rtbm.nn`. `load` gives back the same, with the same parameters to the last bit.
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
    tensors, description = _describe(model)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    description = {"format": FORMAT, "library": __version__, **description}
    description["sha256"] = _fingerprint(tensors, description)
    write_whole(_path(path), safetensors.torch.save(tensors, {KEY: json.dumps(description)}))


def load(path: Any) -> Any:
    """Load what `save` has saved: an estimator, a distribution or a module, on the CPU.

    A file that is truncated, was edited or is of another kind is a FileError.
    """
    tensors, description = read(path)
    try:
        if not all(tensor.dtype in DTYPES.values() and bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise InvalidInputError("its tensors must be finite and of float32 or float64")
        return _restore(tensors, description)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise FileError(f"{path}: the file does not describe a model of this library ({error!r})") from None


def read(path: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file and its description (format, library, kind, training summary, …), checked."""
    path = _path(path)
    if not path.is_file():
        raise FileError(f"{path}: " + ("a folder, not a file" if path.is_dir() else "no such file"))
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
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
            f"which reads format {FORMAT}: install the version that saved it"
        )
    if _fingerprint(tensors, description) != expected:
        raise FileError(f"{path}: the contents have been changed since the file was saved (checksum)")
    return tensors, description


def _path(path: Any) -> Path:
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise InvalidInputError(f"path must be the name of a file, got {path!r}")
    return Path(path)


def _fingerprint(tensors: dict[str, Tensor], description: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _describe(model: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description of a model."""
    if isinstance(model, EstimatedDensity | Network) and not model.__sklearn_is_fitted__():
        raise InvalidInputError("model must be fitted before it is saved: call fit first")
    if type(model) in _NETWORKS.values():
        description = {"kind": type(model).__name__, "estimator": _estimator(model), "network": _network(model)}
        return dict(model.module_.named_parameters()), description
    if isinstance(model, nn.ThetaLayer):
        options = {name: getattr(model, name) for name in _LAYER} | {"hidden": model.coupling}
        dtype = str(model.weight.dtype).removeprefix("torch.")
        return dict(model.named_parameters()), {"kind": "nn.ThetaLayer", "options": options, "dtype": dtype}
    if type(model) in _DENSITIES.values():
        tensors, density = _describe(model.distribution_)
        return tensors, {"kind": type(model).__name__, "density": density, "estimator": _estimator(model)}
    if isinstance(model, RTBMMixture):
        described = [_describe(component) for component in model.components]
        tensors = {f"{i}.{name}": tensor for i, (part, _) in enumerate(described) for name, tensor in part.items()}
        return tensors | {"logits": model.logits}, {"kind": "RTBMMixture", "components": [d for _, d in described]}
    if isinstance(model, RTBMDistribution):
        return _describe_machine(model)
    if isinstance(model, nn.RTBM):
        return dict(model.named_parameters()), {"kind": "nn.RTBM", "machine": _module(model)}
    if isinstance(model, nn.MixtureOfRTBMs):
        machines = [_module(component) for component in model.components if isinstance(component, nn.RTBM)]
        return dict(model.named_parameters()), {"kind": "nn.RTBMMixture", "machines": machines}
    raise InvalidInputError(
        "model must be an RTBMDensity, RTBMDensityCV, ThetaNetRegressor, ThetaNetClassifier, RTBMDistribution, "
        f"RTBMMixture, nn.RTBM, nn.MixtureOfRTBMs or nn.ThetaLayer, got a {type(model).__name__}: other estimators go "
        "with joblib.dump"
    )


def _describe_machine(machine: RTBMDistribution) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A machine by the parameters that determine its density without cancellation."""
    description = {
        "kind": "RTBMDistribution",
        "hidden": machine.coupling,
        "phase": machine.phase,
        "tolerance": machine.tolerance,
        "dtype": str(machine.dtype).removeprefix("torch."),
    }
    exact = machine.to(dtype=torch.float64)
    if machine.coupling == "dense":
        return dict(zip(_LATTICE, exact.lattice, strict=True)), description
    return {name: getattr(exact.to_phase("II").natural, name) for name in _NATURAL}, description


def _module(module: nn.RTBM) -> dict[str, Any]:
    return {
        "n_visible": module.n_visible,
        "n_hidden": module.n_hidden,
        "hidden": module.coupling,
        "phase": module.phase,
        "tolerance": module.tolerance,
        "dtype": str(module.weights.dtype).removeprefix("torch."),
    }


def _estimator(model: EstimatedDensity | Network) -> dict[str, Any]:
    """What an estimator knows beside its density or network."""
    parameters = {name: _plain(value) for name, value in model.get_params().items()}
    names = getattr(model, "feature_names_in_", None)
    known = {
        "parameters": parameters,
        "n_features": model.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
        "summary": model.summary_,
        "history": [[None if math.isnan(x) else x for x in record] for record in getattr(model, "history_", [])],
    }
    if isinstance(model, RTBMDensityCV):
        known["committee"] = {name: _plain(getattr(model, name)) for name in _COMMITTEE}
    if isinstance(model, EstimatedDensity):
        known["low"], known["high"] = (list(ends) for ends in zip(*model._bounds.pairs, strict=True))
        known["constants"] = [None if np.isnan(x) else float(x) for x in model.constants_]
    return known


def _network(model: Network) -> dict[str, Any]:
    """The layers of a trained network, and what its outputs mean."""
    known = {
        "sizes": list(model.layer_sizes_),
        "activations": list(model.layer_activations_),
        "hidden": model._hidden,
        "dropout": model._dropout,
    }
    if isinstance(model, ThetaNetClassifier):
        classes = model.classes_.tolist()
        if model.classes_.dtype.kind not in "biufUO" or not all(isinstance(c, str | int | float) for c in classes):
            raise InvalidInputError(
                f"model has labels of type {model.classes_.dtype}, which cannot be saved: use strings or numbers"
            )
        return known | {"classes": classes, "dtype": model.classes_.dtype.str, "loss": model._trained_loss}
    return known | {"is_flat": model._is_flat}


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; a random number generator cannot be kept, and becomes None."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | range):
        return [_plain(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    if isinstance(value, torch.device):
        return str(value)
    return value if isinstance(value, str | int | float | bool | None) else None


def _restore(tensors: dict[str, Tensor], description: dict[str, Any]) -> Any:
    kind = description["kind"]
    if kind in _DENSITIES:
        return _restore_density(_DENSITIES[kind], _restore(tensors, description["density"]), description["estimator"])
    if kind in _NETWORKS:
        return _restore_network(_NETWORKS[kind](), tensors, description)
    if kind == "nn.ThetaLayer":
        options = dict(description["options"])
        options["coupling"] = options.pop("hidden")
        layer = nn.ThetaLayer(**options, dtype=DTYPES[description["dtype"]])
        _load_parameters(layer, tensors)
        return layer
    if kind == "RTBMMixture":
        parts = [_restore(_part(tensors, f"{i}."), part) for i, part in enumerate(description["components"])]
        return RTBMMixture.from_logits(tensors["logits"], parts)
    if kind == "RTBMDistribution":
        return _restore_machine(tensors, description)
    if kind == "nn.RTBM":
        return _restore_module(description["machine"], tensors)
    if kind == "nn.RTBMMixture":
        return _restore_modules(description["machines"], tensors)
    raise KeyError(f"unknown kind {kind!r}")


def _load_parameters(module: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy tensors into a module whose parameters have their names and shapes."""
    parameters = _check_parameters(module, tensors)
    with torch.no_grad():
        for name, tensor in tensors.items():
            parameters[name].copy_(tensor)


def _check_parameters(module: torch.nn.Module, tensors: dict[str, Tensor]) -> dict[str, torch.nn.Parameter]:
    parameters = dict(module.named_parameters())
    if {k: t.shape for k, t in tensors.items()} != {k: p.shape for k, p in parameters.items()}:
        raise InvalidInputError("its tensors are not those of its layers")
    return parameters


def _restore_network(model: Network, tensors: dict[str, Tensor], description: dict[str, Any]) -> Network:
    saved, known = description["estimator"], description["network"]
    model.set_params(**saved["parameters"])
    model.n_features_in_ = saved["n_features"]
    if saved["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(saved["feature_names"], dtype=object)
    sizes, activations, hidden, dropout = (known[name] for name in ("sizes", "activations", "hidden", "dropout"))
    names = saved["feature_names"]
    if names is not None and len(names) != saved["n_features"]:
        raise InvalidInputError(f"it must have a name for each of its {saved['n_features']} features")
    arguments = (saved["n_features"], sizes, activations)
    options = {"coupling": hidden, "dropout": dropout, "dtype": torch.float64}
    _check_parameters(make_network(*arguments, **options, device="meta"), tensors)  # before anything is allocated
    network = make_network(*arguments, **options).eval()
    _load_parameters(network, tensors)
    model._set_network(network, sizes, activations, hidden, dropout)
    model._set_summary(saved["summary"])
    model.history_ = _history(saved)
    if isinstance(model, ThetaNetClassifier):
        model.classes_ = np.array(known["classes"], dtype=known["dtype"])
        if len(model.classes_) != max(2, sizes[-1]):
            raise InvalidInputError(f"it must have {max(2, sizes[-1])} classes like its network")
        model._trained_loss = check_choice(known["loss"], "loss", tuple(LOSSES))
    else:
        model._is_flat = bool(known["is_flat"])
    return model


def _history(saved: dict[str, Any]) -> list[Record]:
    return [Record(step, *(math.nan if x is None else float(x) for x in rest)) for step, *rest in saved["history"]]


def _restore_machine(tensors: dict[str, Tensor], description: dict[str, Any]) -> RTBMDistribution:
    phase, tolerance = description["phase"], description["tolerance"]
    if description["hidden"] == "dense":
        machine = RTBMDistribution.from_lattice(*(tensors[name] for name in _LATTICE), phase=phase, tolerance=tolerance)
    else:
        machine = RTBMDistribution(*(tensors[name] for name in _NATURAL), phase="II", tolerance=tolerance)
        machine = machine.to_phase(phase)
    return machine.to(dtype=DTYPES[description["dtype"]])


def _restore_module(machine: dict[str, Any], tensors: dict[str, Tensor]) -> nn.RTBM:
    """A module with the parameters of some tensors, whose shapes are checked before anything is allocated."""
    sizes = machine["n_visible"], machine["n_hidden"], machine["hidden"]
    shapes = dict(zip(Free._fields, shapes_of(*sizes), strict=False))
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise InvalidInputError(f"its tensors are not those of a machine of sizes {sizes}")
    options = {"coupling": machine["hidden"], "phase": machine["phase"], "tolerance": machine["tolerance"]}
    module = nn.RTBM(*sizes[:2], **options, dtype=DTYPES[machine["dtype"]])
    module.load_free(Free(**tensors, coupling=machine["hidden"]))
    return module


def _restore_modules(machines: list[dict[str, Any]], tensors: dict[str, Tensor]) -> nn.MixtureOfRTBMs:
    parts = [_restore_module(machine, _part(tensors, f"components.{i}.")) for i, machine in enumerate(machines)]
    if set(tensors) != {"logits"} | {f"components.{i}.{n}" for i in range(len(parts)) for n in Free._fields[:-1]}:
        raise InvalidInputError("its tensors are not those of its machines")
    mixture = nn.MixtureOfRTBMs(len(parts), 1, 1)
    mixture.components = torch.nn.ModuleList(parts)
    mixture.logits = torch.nn.Parameter(check_vector(tensors["logits"], "logits", len(parts)).clone())
    return mixture


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _restore_density(kind: type[EstimatedDensity], distribution: Any, saved: dict[str, Any]) -> EstimatedDensity:
    model = kind(**saved["parameters"])
    n = distribution.n_visible
    constants = saved.get("constants", [None] * n)  # files of earlier versions have none
    model.constants_ = np.array([np.nan if x is None else float(x) for x in constants])
    model.n_features_in_ = len(constants)
    model.set_feature_names(saved["feature_names"])
    pairs = list(zip(saved["low"], saved["high"], strict=True))
    if len(pairs) != n or len(model._kept) != n or saved["n_features"] != len(constants):
        raise InvalidInputError(f"it must have {n} features like its density")
    model._bounds = make_bounds(pairs, n)
    model._set_distribution(distribution)
    model._set_summary(saved["summary"])
    if isinstance(model, RTBMDensityCV):
        committee = saved["committee"]
        model.candidates_ = list(committee["candidates_"])
        model.held_out_, model.weights_ = (
            check_vector(torch.tensor(committee[name], dtype=torch.float64), name, len(model.candidates_)).numpy()
            for name in _COMMITTEE[1:]
        )
    else:
        model.history_ = _history(saved)
    return model
