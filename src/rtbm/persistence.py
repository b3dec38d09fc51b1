"""Saving and loading: numbers as safetensors, all else as JSON beside them. Nothing in a file is ever executed."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors
import safetensors.torch
import torch
from sklearn.base import BaseEstimator, clone
from torch import Tensor

from rtbm import nn
from rtbm.common import Floats
from rtbm.distributions import BoundedDistribution, RTBMDistribution, RTBMMixture
from rtbm.errors import FileError, InvalidInputError
from rtbm.estimators import (
    RTBMClassifier,
    RTBMDensity,
    RTBMDensityCV,
    RTBMFeatures,
    RTBMOutlierDetector,
    RTBMPatchClassifier,
    RTBMRegressor,
    ThetaNetClassifier,
    ThetaNetRegressor,
)
from rtbm.estimators.class_densities import JOINT, ClassDensities, JointDensity
from rtbm.estimators.density.bounds import Bounds, make_bounds
from rtbm.estimators.density.fitted import FittedDensity
from rtbm.estimators.features.transformer import FEATURE_KINDS
from rtbm.estimators.networks.estimators import ThetaNet
from rtbm.nn.feedforward import make_network
from rtbm.parameters import Free, shapes_of
from rtbm.paths import existing_file, write_whole
from rtbm.training import Record
from rtbm.training.columns import ColumnDensities
from rtbm.training.networks import LOSSES
from rtbm.validation import check_choice, check_vector
from rtbm.version import __version__

FORMAT = 2
"""The version of the file format. Files of format 1 are read too, and those of later formats are refused."""
STACKED_ARRAYS = ("centre", "scale", "low", "high", "log_prior")
"""Arrays of an RTBMClassifier that files hold."""
KEY = "rtbm"
DTYPES = {"float32": torch.float32, "float64": torch.float64}
LAYER_OPTIONS = ("in_features", "out_features", "dropout")
LATTICE_TENSORS = ("A", "a", "F", "mean", "covariance")
NATURAL_TENSORS = ("T", "W", "Q", "b_v", "b_h")

Tensors = dict[str, Tensor]
Description = dict[str, Any]
Described = tuple[Tensors, Description]


class Kind(NamedTuple):
    """How models of one type are saved and loaded."""

    type: type
    describe: Callable[[Any], Described]
    """The tensors of a model, and all else as JSON."""
    restore: Callable[[Tensors, Description], Any]
    """The model of what `describe` gave."""


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


def read(path: Any) -> tuple[Tensors, dict[str, Any]]:
    """The tensors of a file and its description (format, library, kind, training summary, …), checked."""
    path = existing_file(_path(path))
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
    if version not in (1, FORMAT):
        raise FileError(
            f"{path}: format {version!r}, saved by rtbm {description.get('library')}; this is rtbm {__version__}, "
            f"which reads format {FORMAT}: install the version that saved it"
        )
    if _fingerprint(tensors, description) != expected:
        raise FileError(f"{path}: the contents have been changed since the file was saved (checksum)")
    return tensors, _from_format_1(description) if version == 1 else description


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


def _from_format_1(description: Description) -> Description:
    """A description with the names that parameters have had since format 2."""
    estimator = description.get("estimator")
    if estimator is None:
        return description
    renamed = {"hidden": "coupling", "n_folds": "cv", "output": "output_activation"}

    def rename(parameters: Description) -> Description:
        return {renamed.get(name, name): value for name, value in parameters.items() if name != "average"}

    parameters = rename(estimator["parameters"])
    if parameters.get("n_hidden") == "auto":
        parameters["n_hidden"] = estimator["summary"]["n_hidden"]
    if parameters.get("candidates"):
        parameters["candidates"] = [rename(candidate) for candidate in parameters["candidates"]]
    changed = {**estimator, "parameters": parameters}
    if "committee" in estimator:
        committee = dict(estimator["committee"])
        committee["candidate_weights_"] = committee.pop("weights_")
        changed["committee"] = committee
    return {**description, "estimator": changed}


def _describe(model: Any) -> Described:
    """The tensors and the description of a model of any kind."""
    for name, kind in KINDS.items():
        if type(model) is kind.type:
            if isinstance(model, BaseEstimator) and not model.__sklearn_is_fitted__():
                raise InvalidInputError("model must be fitted before it is saved: call fit first")
            tensors, description = kind.describe(model)
            return tensors, {"kind": name, **description}
    raise InvalidInputError(
        f"model must be one of {', '.join(KINDS)}, got a {type(model).__name__}: other estimators go with joblib.dump"
    )


def _restore(tensors: Tensors, description: Description) -> Any:
    """The model of any kind."""
    if description["kind"] not in KINDS:
        raise KeyError(f"unknown kind {description['kind']!r}")
    return KINDS[description["kind"]].restore(tensors, description)


def _describe_all(models: Sequence[Any]) -> tuple[Tensors, list[Description]]:
    """Several models: tensors whose names begin with their numbers, and their descriptions."""
    described = [_describe(model) for model in models]
    tensors = {f"{i}.{name}": tensor for i, (part, _) in enumerate(described) for name, tensor in part.items()}
    return tensors, [description for _, description in described]


def _restore_all(tensors: Tensors, descriptions: list[Description]) -> list[Any]:
    """The models of what `_describe_all` gave."""
    return [_restore(_part(tensors, f"{i}."), part) for i, part in enumerate(descriptions)]


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _settings(model: Any, dtype: torch.dtype) -> Description:
    """What machines, modules and layers have in common. Files call the coupling "hidden"."""
    known = {"hidden": model.coupling, "phase": model.phase, "tolerance": model.tolerance}
    return known | {"dtype": str(dtype).removeprefix("torch.")}


def _options(saved: Description) -> Description:
    """The arguments of a module that `_fill` fills, with the names that they have in this version."""
    options = {"coupling" if name == "hidden" else name: value for name, value in saved.items()}
    return options | {"dtype": DTYPES[saved["dtype"]], "device": "meta"}


def _fill(module: Any, tensors: Tensors) -> Any:
    """A module that was made on the device "meta", with these tensors as its parameters."""
    parameters = dict(module.named_parameters())
    if {k: t.shape for k, t in tensors.items()} != {k: p.shape for k, p in parameters.items()}:
        raise InvalidInputError("its tensors are not those of its layers")
    values = {name: tensor.to(parameters[name].dtype, copy=True) for name, tensor in tensors.items()}
    module.load_state_dict(values, strict=False, assign=True)
    return module


# Distributions


def _describe_machine(machine: RTBMDistribution) -> Described:
    """A machine by the parameters that determine its density without cancellation."""
    description = _settings(machine, machine.dtype)
    exact = machine.to(dtype=torch.float64)
    if machine.coupling == "dense":
        return dict(zip(LATTICE_TENSORS, exact.lattice, strict=True)), description
    return {name: getattr(exact.to_phase("II").natural, name) for name in NATURAL_TENSORS}, description


def _restore_machine(tensors: Tensors, description: Description) -> RTBMDistribution:
    phase, tolerance = description["phase"], description["tolerance"]
    if description["hidden"] == "dense":
        parts = (tensors[name] for name in LATTICE_TENSORS)
        machine = RTBMDistribution.from_lattice(*parts, phase=phase, tolerance=tolerance)
    else:
        machine = RTBMDistribution(*(tensors[name] for name in NATURAL_TENSORS), phase="II", tolerance=tolerance)
        machine = machine.to_phase(phase)
    return machine.to(dtype=DTYPES[description["dtype"]])


def _describe_mixture(mixture: RTBMMixture) -> Described:
    tensors, components = _describe_all(mixture.components)
    return {**tensors, "logits": mixture.logits}, {"components": components}


def _restore_mixture(tensors: Tensors, description: Description) -> RTBMMixture:
    return RTBMMixture.from_logits(tensors["logits"], _restore_all(tensors, description["components"]))


def _describe_bounded(distribution: BoundedDistribution) -> Described:
    tensors, base = _describe(distribution.base)
    low, high = (end.cpu().numpy() for end in (distribution.low, distribution.high))
    return tensors, {"base": base} | _ends(Bounds(low, high, low, high))


def _ends(bounds: Bounds) -> Description:
    low, high = zip(*bounds.pairs, strict=True)
    return {"low": list(low), "high": list(high)}


def _restore_bounded(tensors: Tensors, description: Description) -> BoundedDistribution:
    bounds = _restore_bounds(description, len(description["low"]))
    return BoundedDistribution(_restore(tensors, description["base"]), bounds.low, bounds.high)


def _restore_bounds(saved: Description, n_features: int) -> Bounds:
    bounds = make_bounds(list(zip(saved["low"], saved["high"], strict=True)), range(n_features))
    if "inside" not in saved:  # what values on a bound count as: files of earlier versions have none
        return bounds
    inner = _restore_bounds(saved["inside"], n_features)
    return bounds._replace(first=inner.low, last=inner.high)


# Modules


def _describe_module(module: nn.RTBM) -> Described:
    return dict(module.named_parameters()), {"machine": _sizes_of(module)}


def _sizes_of(module: Any) -> Description:
    sizes = {"n_visible": module.n_visible, "n_hidden": module.n_hidden}
    return sizes | _settings(module, module.weights.dtype)


def _restore_module(tensors: Tensors, description: Description) -> nn.RTBM:
    """A module with these tensors, whose shapes are checked before anything is allocated."""
    machine = description["machine"]
    sizes = machine["n_visible"], machine["n_hidden"], machine["hidden"]
    if [tuple(tensors[name].shape) for name in Free._fields[:-1]] != list(shapes_of(*sizes)):
        raise InvalidInputError(f"its tensors are not those of a machine of sizes {sizes}")
    return _fill(nn.RTBM(**_options(machine)), tensors)


def _describe_modules(mixture: nn.MixtureOfRTBMs) -> Described:
    return dict(mixture.named_parameters()), {"machines": [_sizes_of(component) for component in mixture.components]}


def _restore_modules(tensors: Tensors, description: Description) -> nn.MixtureOfRTBMs:
    parts = enumerate(description["machines"])
    machines = [_restore_module(_part(tensors, f"components.{i}."), {"machine": machine}) for i, machine in parts]
    mixture = nn.MixtureOfRTBMs(len(machines), 1, 1, dtype=tensors["logits"].dtype, device="meta")
    mixture.components = torch.nn.ModuleList(machines)
    return _fill(mixture, tensors)


def _describe_layer(layer: nn.ThetaLayer) -> Described:
    options = {name: getattr(layer, name) for name in LAYER_OPTIONS}
    settings = _settings(layer, layer.weight.dtype)
    dtype = settings.pop("dtype")
    return dict(layer.named_parameters()), {"options": options | settings, "dtype": dtype}


def _restore_layer(tensors: Tensors, description: Description) -> nn.ThetaLayer:
    return _fill(nn.ThetaLayer(**_options({**description["options"], "dtype": description["dtype"]})), tensors)


# Estimators: what all of them know


def _describe_estimator(model: Any) -> Description:
    names = getattr(model, "feature_names_in_", None)
    return {
        "parameters": {name: _plain(value) for name, value in model.get_params(deep=False).items()},
        "n_features": model.n_features_in_,
        "feature_names": None if names is None else [str(name) for name in names],
        "summary": getattr(model, "summary_", None),
        "history": [[None if math.isnan(x) else x for x in record] for record in getattr(model, "history_", [])],
    }


def _restore_estimator(model: Any, saved: Description) -> Any:
    """Set what `_describe_estimator` gave, but for the summary."""
    model.set_params(**saved["parameters"])
    n_features, names = saved["n_features"], saved["feature_names"]
    if names is not None and len(names) != n_features:
        raise InvalidInputError(f"it must have a name for each of its {n_features} features")
    model.n_features_in_ = n_features
    if names is not None:
        model.feature_names_in_ = np.asarray(names, dtype=object)
    if saved["history"]:
        records = saved["history"]
        model.history_ = [Record(step, *(math.nan if x is None else float(x) for x in rest)) for step, *rest in records]
    return model


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


def _describe_classes(classes: np.ndarray) -> Description:
    labels = classes.tolist()
    if classes.dtype.kind not in "biufUO" or not all(isinstance(label, str | int | float) for label in labels):
        raise InvalidInputError(
            f"model has labels of type {classes.dtype}, which cannot be saved: use strings or numbers"
        )
    return {"classes": labels, "dtype": classes.dtype.str}


def _restore_classes(known: Description, n_classes: int) -> np.ndarray:
    classes = np.array(known["classes"], dtype=known["dtype"])
    if len(classes) != n_classes:
        raise InvalidInputError(f"it must have {n_classes} classes like its model")
    return classes


# Densities


def _describe_density(model: FittedDensity) -> Described:
    tensors, density = _describe(model._line_density)
    known = _describe_estimator(model) | _ends(model._bounds)
    known["inside"] = _ends(model._bounds._replace(low=model._bounds.first, high=model._bounds.last))
    known["constants"] = [None if np.isnan(x) else float(x) for x in model.constants_]
    if isinstance(model, RTBMDensityCV):
        known["committee"] = {
            name: _plain(getattr(model, name)) for name in ("candidates_", "held_out_", "candidate_weights_")
        }
    return tensors, {"density": density, "estimator": known}


def _restore_density(tensors: Tensors, description: Description) -> FittedDensity:
    saved, distribution = description["estimator"], _restore(tensors, description["density"])
    model = _restore_estimator(RTBMDensityCV() if "committee" in saved else RTBMDensity(), saved)
    n = distribution.n_visible
    constants = saved.get("constants", [None] * n)  # files of earlier versions have none
    model.constants_ = np.array([np.nan if x is None else float(x) for x in constants])
    if len(model._kept) != n or saved["n_features"] != len(constants):
        raise InvalidInputError(f"it must have {n} features like its density")
    model._bounds = _restore_bounds(saved, n)
    model._set_distribution(distribution)
    model._set_summary(saved["summary"])
    if isinstance(model, RTBMDensityCV):
        committee = saved["committee"]
        model.candidates_ = list(committee["candidates_"])
        model.held_out_, model.candidate_weights_ = (
            check_vector(torch.tensor(committee[name], dtype=torch.float64), name, len(model.candidates_)).numpy()
            for name in ("held_out_", "candidate_weights_")
        )
    return model


# Networks


def _describe_network(model: ThetaNet) -> Described:
    known = {
        "sizes": list(model.layer_sizes_),
        "activations": list(model.layer_activations_),
        "hidden": model._coupling,
        "dropout": model._dropout,
    }
    if isinstance(model, ThetaNetClassifier):
        known |= _describe_classes(model.classes_) | {"loss": model._trained_loss}
    elif isinstance(model, ThetaNetRegressor):
        known["is_flat"] = model._is_flat
    return dict(model.module_.named_parameters()), {"estimator": _describe_estimator(model), "network": known}


def _restore_network(tensors: Tensors, description: Description) -> ThetaNet:
    saved, known = description["estimator"], description["network"]
    model = _restore_estimator(ThetaNetClassifier() if "classes" in known else ThetaNetRegressor(), saved)
    sizes, activations, coupling, dropout = (known[name] for name in ("sizes", "activations", "hidden", "dropout"))
    options: Any = {"coupling": coupling, "dropout": dropout, "dtype": torch.float64, "device": "meta"}
    network = _fill(make_network(saved["n_features"], sizes, activations, **options).eval(), tensors)
    model._set_network(network, sizes, activations, coupling, dropout)
    model._set_summary(saved["summary"])
    if isinstance(model, ThetaNetClassifier):
        model.classes_ = _restore_classes(known, max(2, sizes[-1]))
        model._trained_loss = check_choice(known["loss"], "loss", tuple(LOSSES))
    else:
        model._is_flat = bool(known["is_flat"])
    return model


# Features and classifiers on them


def _describe_features(model: RTBMFeatures) -> Described:
    tensors, densities = _describe_all([density for patch in model.densities_ for density in patch])
    known: Description = {"patches": _plain(model.patches_), "kind": model._kind, "n_iter": model.n_iter_}
    if hasattr(model, "classes_"):
        known |= _describe_classes(model.classes_)
    if hasattr(model, "_log_prior"):
        tensors["log_prior"] = torch.from_numpy(model._log_prior)
    if isinstance(model, RTBMPatchClassifier) and model._has_classifier:
        if not isinstance(model.classifier, str):
            raise InvalidInputError(
                f"model has the classifier {model.classifier!r}, which cannot be saved: use classifier='logistic' or "
                "'bayes', or joblib.dump"
            )
        logistic = {"coef": model.classifier_.coef_, "intercept": model.classifier_.intercept_}
        logistic |= {"centre": model._centre, "scale": model._scale}
        tensors |= {f"classifier.{name}": torch.from_numpy(value) for name, value in logistic.items()}
    return tensors, {"densities": densities, "estimator": _describe_estimator(model), "features": known}


def _restore_features(tensors: Tensors, description: Description) -> RTBMFeatures:
    known, saved = description["features"], description["estimator"]
    is_classifier = description["kind"] == "RTBMClassifier"
    model = _restore_estimator(RTBMPatchClassifier() if is_classifier else RTBMFeatures(), saved)
    densities = _restore_all(tensors, description["densities"])
    model.patches_ = [np.array(patch, dtype=np.int64) for patch in known["patches"]]
    each = len(densities) // max(len(model.patches_), 1)
    model.densities_ = [densities[i : i + each] for i in range(0, len(densities), each)]
    sizes = [[density.n_features_in_ for density in patch] for patch in model.densities_]
    if sizes != [[len(patch)] * each for patch in model.patches_]:
        raise InvalidInputError("its densities are not those of its patches")
    model._kind, model.n_iter_ = check_choice(known["kind"], "kind", FEATURE_KINDS), int(known["n_iter"])
    if "classes" in known:
        model.classes_ = _restore_classes(known, each if each > 1 else len(known["classes"]))
    if "log_prior" in tensors:
        model._log_prior = check_vector(tensors["log_prior"], "log_prior", each).numpy()
    if isinstance(model, RTBMPatchClassifier):
        model._has_classifier = "classifier.coef" in tensors
        if model._has_classifier:
            _restore_logistic(model, _part(tensors, "classifier."))
    return model


def _restore_logistic(model: RTBMPatchClassifier, tensors: Tensors) -> None:
    """Set the logistic regression of a classifier."""
    n_features, n_classes = len(model.get_feature_names_out()), len(model.classes_)
    rows = 1 if n_classes == 2 else n_classes
    shapes = {"coef": (rows, n_features), "intercept": (rows,), "centre": (n_features,), "scale": (n_features,)}
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != shapes:
        raise InvalidInputError("its classifier is not one of its features")
    values = {name: tensor.numpy() for name, tensor in tensors.items()}
    logistic = model._new_classifier()
    logistic.coef_, logistic.intercept_, logistic.classes_ = values["coef"], values["intercept"], model.classes_
    logistic.n_features_in_ = n_features
    model.classifier_, model._centre, model._scale = logistic, values["centre"], values["scale"]


# Predictions from densities


def _describe_predictor(model: RTBMRegressor | RTBMOutlierDetector) -> Described:
    tensors, density = _describe(model.density_)
    known: Description = {"has_density": model.density is not None}
    if isinstance(model, RTBMRegressor):
        known |= {"n_targets": model.n_targets_, "is_flat": model._is_flat}
    else:
        known["offset"] = model.offset_
    return tensors, {"fitted": density, "estimator": _describe_estimator(model), "predictor": known}


def _restore_predictor(tensors: Tensors, description: Description) -> RTBMRegressor | RTBMOutlierDetector:
    known, density = description["predictor"], _restore(tensors, description["fitted"])
    is_regressor = "n_targets" in known
    model = _restore_estimator(RTBMRegressor() if is_regressor else RTBMOutlierDetector(), description["estimator"])
    n_targets = int(known["n_targets"]) if is_regressor else 0
    if density.n_features_in_ != model.n_features_in_ + n_targets:
        raise InvalidInputError("its density is not one of its features and targets")
    model.density_ = density
    if known["has_density"]:
        model.density = clone(density)
    if is_regressor:
        model.n_targets_, model._is_flat = n_targets, bool(known["is_flat"])
    else:
        model.offset_ = float(known["offset"])
    return model


def _describe_stacked(model: RTBMClassifier) -> Described:
    found = [density for fold in model._densities for density in fold]
    tensors: Tensors = {}
    for i, density in enumerate(found):
        parts: dict[str, Any] = {"single": density.single} | {
            f"joint.{j}": joint for j, joint in enumerate(density.joint)
        }
        for name, part in parts.items():
            arrays = {} if part is None else part._asdict()
            tensors |= {f"density.{i}.{name}.{key}": torch.from_numpy(value) for key, value in arrays.items()}
    for name, (centre, scale, logistic) in model._logistic.items():
        parts = {"centre": centre, "scale": scale, "coef": logistic.coef_, "intercept": logistic.intercept_}
        tensors |= {f"{name}.{part}": torch.from_numpy(np.array(value)) for part, value in parts.items()}
    arrays = {name: getattr(model, f"_{name}") for name in STACKED_ARRAYS}
    tensors |= {f"limits.{name}": torch.from_numpy(value) for name, value in arrays.items()}
    known = _describe_classes(model.classes_)
    known |= {"weights": model.predictor_weights_, "held_out": model.held_out_, "logistic": list(model._logistic)}
    known["varies"] = [np.flatnonzero(density.varies).tolist() for density in found]
    return tensors, {"estimator": _describe_estimator(model), "stacked": known}


def _restore_stacked(tensors: Tensors, description: Description) -> RTBMClassifier:
    known = description["stacked"]
    model: RTBMClassifier = _restore_estimator(RTBMClassifier(), description["estimator"])
    model.classes_ = _restore_classes(known, len(known["classes"]))
    n_classes, n_features = len(model.classes_), model.n_features_in_
    if len(known["varies"]) % n_classes or len(known["varies"]) < 2 * n_classes:
        raise InvalidInputError("it must have densities of each class for each of two folds or more")
    for name in STACKED_ARRAYS:
        size = n_classes if name == "log_prior" else n_features
        setattr(model, f"_{name}", check_vector(tensors[f"limits.{name}"], name, size).numpy())
    model._logistic = {name: _restore_head(_part(tensors, f"{name}."), n_classes) for name in known["logistic"]}
    model.predictor_weights_, model.held_out_ = dict(known["weights"]), dict(known["held_out"])
    found = []
    for i, columns in enumerate(known["varies"]):
        varies = np.isin(np.arange(n_features), columns)
        single = _restore_arrays(ColumnDensities, _part(tensors, f"density.{i}.single."))
        joint = [_restore_arrays(JointDensity, _part(tensors, f"density.{i}.joint.{j}.")) for j in range(len(JOINT))]
        found.append(ClassDensities(varies, single, joint))
    model._densities = [found[i : i + n_classes] for i in range(0, len(found), n_classes)]
    model.predict(np.zeros((1, n_features)))  # shapes that do not fit end here
    return model


def _restore_arrays(kind: Any, tensors: Tensors) -> Any:
    """A tuple of arrays; None if there are none."""
    return kind(**{name: tensor.numpy() for name, tensor in tensors.items()}) if tensors else None


def _restore_head(tensors: Tensors, n_classes: int) -> tuple[Floats, Floats, Any]:
    from sklearn.linear_model import LogisticRegression

    values = {name: tensor.numpy() for name, tensor in tensors.items()}
    logistic = LogisticRegression()
    logistic.coef_, logistic.intercept_, logistic.classes_ = values["coef"], values["intercept"], np.arange(n_classes)
    logistic.n_features_in_ = values["coef"].shape[1]
    return values["centre"], values["scale"], logistic


KINDS: dict[str, Kind] = {
    "RTBMDensity": Kind(RTBMDensity, _describe_density, _restore_density),
    "RTBMDensityCV": Kind(RTBMDensityCV, _describe_density, _restore_density),
    "RTBMFeatures": Kind(RTBMFeatures, _describe_features, _restore_features),
    "RTBMClassifier": Kind(RTBMPatchClassifier, _describe_features, _restore_features),
    "RTBMClassifier of class densities": Kind(RTBMClassifier, _describe_stacked, _restore_stacked),
    "RTBMRegressor": Kind(RTBMRegressor, _describe_predictor, _restore_predictor),
    "RTBMOutlierDetector": Kind(RTBMOutlierDetector, _describe_predictor, _restore_predictor),
    "ThetaNetRegressor": Kind(ThetaNetRegressor, _describe_network, _restore_network),
    "ThetaNetClassifier": Kind(ThetaNetClassifier, _describe_network, _restore_network),
    "RTBMDistribution": Kind(RTBMDistribution, _describe_machine, _restore_machine),
    "RTBMMixture": Kind(RTBMMixture, _describe_mixture, _restore_mixture),
    "BoundedDistribution": Kind(BoundedDistribution, _describe_bounded, _restore_bounded),
    "nn.RTBM": Kind(nn.RTBM, _describe_module, _restore_module),
    "nn.RTBMMixture": Kind(nn.MixtureOfRTBMs, _describe_modules, _restore_modules),
    "nn.ThetaLayer": Kind(nn.ThetaLayer, _describe_layer, _restore_layer),
}
"""All kinds of models by the name that files give them. A new kind is one more line, and its two functions."""
