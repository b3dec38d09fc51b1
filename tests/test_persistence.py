"""Saving and loading: nothing is lost, nothing is executed, nothing is half written."""

import contextlib
import copy
import hashlib
import json
import math
import os
import pickle
import struct
from functools import partial

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import Pipeline

import rtbm
from estimators import ESTIMATORS, METHODS, quick, table
from machines import dense, diagonal
from rtbm import (
    FileError,
    InvalidInputError,
    RTBMDensity,
    RTBMMixture,
    datasets,
    make_patch_classifier,
    nn,
)
from rtbm.distributions import CategoryColumn, Interval, MixedDistribution, NumberColumn, YeoJohnson

X = datasets.gamma.sample(200, seed=0)


@pytest.fixture(scope="module")
def model():
    return RTBMDensity(2, n_init=1, random_state=0).fit(X)


DISTRIBUTIONS = [
    *(make(2, 3, seed=1).to_phase(phase) for make in (dense, diagonal) for phase in ("I", "II")),
    RTBMMixture([0.3, 0.7], [dense(2, 1, seed=0), diagonal(2, 4, seed=1)]),
    rtbm.MappedDistribution(dense(2, 1), [Interval(0.0, math.inf), Interval(-3.0, 3.0)]),
]
MODULES = [
    nn.RTBM(1, 1, dtype=torch.float32),
    nn.RTBM(2, 3, coupling="diagonal", phase="II"),
    nn.MixtureOfRTBMs(2, 1, 2),
    *(
        nn.ThetaLayer(3, 2, coupling=coupling, phase="II", dropout=0.2, dtype=dtype).eval()
        for coupling in ("diagonal", "dense")
        for dtype in (torch.float32, torch.float64)
    ),
]


@pytest.mark.parametrize("distribution", [*DISTRIBUTIONS, *(d.to(dtype=torch.float32) for d in DISTRIBUTIONS[:5])])
def test_distributions_come_back_to_the_last_bit(tmp_path, distribution):
    rtbm.save(distribution, tmp_path / "distribution.rtbm")
    copy = rtbm.load(tmp_path / "distribution.rtbm")
    v = distribution.sample((20,), generator=torch.Generator().manual_seed(0))
    assert repr(copy) == repr(distribution)
    assert torch.equal(copy.log_prob(v), distribution.log_prob(v))
    if not isinstance(distribution, rtbm.MappedDistribution):
        assert torch.allclose(copy.hidden_mean(v), distribution.hidden_mean(v))


@pytest.mark.parametrize("module", MODULES)
def test_modules_come_back(tmp_path, module):
    rtbm.save(module, tmp_path / "module.rtbm")
    copy = rtbm.load(tmp_path / "module.rtbm")
    assert type(copy) is type(module)
    assert repr(copy) == repr(module)
    for (name, ours), (other, theirs) in zip(module.named_parameters(), copy.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(ours, theirs)
    if isinstance(module, nn.ThetaLayer):
        v = torch.randn(4, 3, dtype=module.weight.dtype)
        assert torch.equal(copy.eval()(v), module(v))


def test_the_file_tells_about_itself(tmp_path, model):
    rtbm.save(model, tmp_path / "model.rtbm")
    with safetensors.safe_open(tmp_path / "model.rtbm", framework="pt") as file:
        description = json.loads(file.metadata()["rtbm"])
    assert description["format"] == 4
    assert description["library"] == rtbm.__version__
    assert description["model"]["class"] == "RTBMDensity"
    assert "lbfgs" in json.dumps(description["model"]["attributes"])


def damaged(content, kind):
    length = struct.unpack("<Q", content[:8])[0]
    if kind == "truncated":
        return content[: len(content) // 2]
    if kind == "empty":
        return b""
    if kind == "number":
        return content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    if kind == "text":
        return content.replace(b"lbfgs", b"lbfgt")
    if kind == "header":
        return content[:8] + b"{" * length + content[8 + length :]
    return pickle.dumps({"a": os.getcwd})


@pytest.mark.parametrize("kind", ["truncated", "empty", "number", "text", "header", "pickle"])
def test_damaged_files_are_refused(tmp_path, model, kind):
    rtbm.save(model, tmp_path / "model.rtbm")
    (tmp_path / "bad.rtbm").write_bytes(damaged((tmp_path / "model.rtbm").read_bytes(), kind))
    with pytest.raises(FileError, match=r"bad\.rtbm"):
        rtbm.load(tmp_path / "bad.rtbm")


def test_foreign_and_later_files_are_refused(tmp_path, model):
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(FileError, match="not one of this library"):
        rtbm.load(tmp_path / "other.safetensors")
    for number in (1, 2, 99):
        text = json.dumps({"format": number, "library": "0.0", "sha256": ""})
        safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "other.rtbm", {"rtbm": text})
        with pytest.raises(FileError, match=rf"format {number}, saved by rtbm 0\.0.*fit the model again"):
            rtbm.load(tmp_path / "other.rtbm")
    with pytest.raises(FileError, match="no such file"):
        rtbm.load(tmp_path / "none.rtbm")


def test_a_file_may_be_replaced_while_it_is_read(tmp_path, monkeypatch):
    path, machines = tmp_path / "model.rtbm", [dense(1, 1), dense(3, 4)]
    rtbm.save(machines[0], path)

    map_file = torch.UntypedStorage.from_file  # what safetensors.safe_open does after it has read the header

    def replace_and_map(*arguments, **options):
        rtbm.save(machines[1], path)
        return map_file(*arguments, **options)

    monkeypatch.setattr("torch.UntypedStorage.from_file", replace_and_map)
    assert repr(rtbm.load(path)) == repr(machines[0])


def read(path):
    """The tensors of a file, and its description."""
    with safetensors.safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, json.loads(file.metadata()["rtbm"])  # noqa: SIM118


def write(path, tensors, description):
    """A file with these contents and the right checksum."""
    description = {key: value for key, value in description.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes() if tensor.numel() else b"")
    text = json.dumps(description | {"sha256": digest.hexdigest()})
    safetensors.torch.save_file({name: tensor.clone() for name, tensor in tensors.items()}, path, {"rtbm": text})


def manipulated(path, change):
    """A file with other contents and the right checksum."""
    tensors, description = read(path)
    change(tensors, description)
    write(path, tensors, description)


def machine_of(description):
    return description["model"]["attributes"]["dictionary"]["_line_density"]


def attributes_of(description):
    return description["model"]["attributes"]["dictionary"]


@pytest.mark.parametrize(
    "change",
    [
        lambda t, d: machine_of(d).update(dtype={"dtype": "foo"}),
        lambda t, d: machine_of(d).update(phase="III"),
        lambda t, d: machine_of(d).pop("F"),
        lambda t, d: attributes_of(d).update(n_features_in_=7),
        lambda t, d: attributes_of(d).update(feature_names_in_=["a", "b"]),
        lambda t, d: attributes_of(d).pop("_bounds"),
        lambda t, d: attributes_of(d).update(_bounds={"class": "system"}),
        lambda t, d: d["model"]["parameters"]["dictionary"].update(unknown=1),
        lambda t, d: d["model"].update({"class": "os.system"}),
        lambda t, d: d.update(model=5),
        lambda t, d: t.update({name: -value for name, value in t.items() if name.endswith(".A")}),
        lambda t, d: t.update({name: value.bfloat16() for name, value in t.items() if name.endswith(".A")}),
        lambda t, d: t.update({name: math.nan * value for name, value in t.items() if name.endswith(".F")}),
        lambda t, d: t.clear(),
    ],
)
def test_files_that_describe_no_model_are_refused(tmp_path, model, change):
    rtbm.save(model, tmp_path / "model.rtbm")
    manipulated(tmp_path / "model.rtbm", change)
    with pytest.raises(FileError, match=r"model\.rtbm"):
        rtbm.load(tmp_path / "model.rtbm")


@pytest.mark.parametrize(
    "change",
    [
        lambda t, d: d["model"]["options"]["dictionary"].update(n_visible=10**9),
        lambda t, d: d["model"]["options"]["dictionary"].update(n_hidden=1),
        lambda t, d: d["model"]["tensors"]["dictionary"].pop("weights"),
        lambda t, d: d["model"]["tensors"]["dictionary"].update(extra=1.0),
    ],
)
def test_modules_of_other_sizes_are_refused(tmp_path, change):
    rtbm.save(nn.RTBM(1, 2), tmp_path / "module.rtbm")
    manipulated(tmp_path / "module.rtbm", change)
    with pytest.raises(FileError, match=r"module\.rtbm"):
        rtbm.load(tmp_path / "module.rtbm")


def test_numbers_of_numpy_are_kept(tmp_path):
    bounds = np.array([[0.0, 100.0]])
    fitted = RTBMDensity(np.int64(1), n_init=np.int32(1), tol=np.float32(1e-5), bounds=bounds, random_state=0).fit(X)
    rtbm.save(fitted, tmp_path / "model.rtbm")
    copy = rtbm.load(tmp_path / "model.rtbm")
    assert (copy.n_hidden, copy.n_init, copy.bounds) == (1, 1, [[0.0, 100.0]])
    assert copy.tol == pytest.approx(1e-5)
    assert np.array_equal(copy.fit(X).score_samples(X), fitted.score_samples(X))


def test_marginals_keep_their_number_of_parameters(tmp_path):
    plane = RTBMDensity(1, n_init=1, random_state=0).fit(datasets.correlated_mixture.sample(200))
    rtbm.save(plane.marginal([0]), tmp_path / "model.rtbm")
    assert rtbm.load(tmp_path / "model.rtbm").n_parameters_ == plane.marginal([0]).n_parameters_ == 5


def test_names_that_are_none(tmp_path, model):
    with pytest.raises(FileError, match="folder"):
        rtbm.load(tmp_path)
    for path in (None, 3, ""):
        with pytest.raises(InvalidInputError, match="path"):
            rtbm.save(model, path)
        with pytest.raises(InvalidInputError, match="path"):
            rtbm.load(path)


def test_saving_is_all_or_nothing(tmp_path, model, monkeypatch):
    path = tmp_path / "model.rtbm"
    rtbm.save(model, path)
    before = path.read_bytes()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FileError, match="No space left"):
        rtbm.save(model, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.rtbm"]
    with pytest.raises(FileError, match="cannot be written"):
        rtbm.save(model, tmp_path / "nowhere" / "model.rtbm")


def test_only_models_of_this_library_are_saved(tmp_path):
    with pytest.raises(InvalidInputError, match="model must be"):
        rtbm.save({"a": 1}, tmp_path / "model.rtbm")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_networks_are_saved_as_they_were_trained(tmp_path):
    model = rtbm.ThetaNetRegressor((2,), n_init=1, max_iter=2, random_state=0).fit(X, X[:, 0])
    model.set_params(coupling="dense", dropout=0.5)
    rtbm.save(model, tmp_path / "network.rtbm")
    assert np.array_equal(rtbm.load(tmp_path / "network.rtbm").predict(X), model.predict(X))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_labels_that_cannot_be_kept_are_refused(tmp_path):
    labels = np.array(["2020-01-01", "2021-01-01"], dtype="M8[D]")[(X[:, 0] > 7).astype(int)]
    model = rtbm.ThetaNetClassifier((2,), n_init=1, max_iter=2, random_state=0).fit(X, labels)
    with pytest.raises(InvalidInputError, match="labels"):
        rtbm.save(model, tmp_path / "network.rtbm")


def test_other_classifiers_are_refused(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = make_patch_classifier(1, classifier=GaussianNB(), random_state=0).fit(X, y)
    with pytest.raises(InvalidInputError, match=r"GaussianNB.*joblib"):
        rtbm.save(model, tmp_path / "m.rtbm")
    assert not list(tmp_path.iterdir())


def many_kinds(n=120):
    """A table of numbers with an atom, rounded numbers, a category, dates, and numbers with gaps."""
    rng = np.random.default_rng(0)
    x = rng.gamma(2.0, size=n)
    return pd.DataFrame(
        {
            "amount": np.where(rng.random(n) < 0.2, 0.0, x),
            "rounded": np.round(x + rng.normal(size=n), 1),
            "colour": rng.choice(["red", "green", "blue"], n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 400, n), unit="D"),
            "gaps": np.where(rng.random(n) < 0.1, np.nan, x + rng.normal(size=n)),
        }
    )


def saved_models():
    """A model of every kind that can be saved, with rows for it."""
    for name, make in ESTIMATORS.items():
        rows, target = table(name)
        yield name, make().fit(rows, target), rows
    rows, target = table("classifier")
    yield "pipeline", make_patch_classifier(1, random_state=0).fit(rows, target), rows
    yield "bounds", quick(2, bounds=(0, np.inf)).fit(X), X
    flat = np.column_stack([X, np.ones(len(X))])
    yield "constant", quick(drop_constant=True).fit(flat), flat
    plane = datasets.correlated_mixture.sample(100, seed=0)
    learned = quick(margins="learned", fallback=None).fit(plane)
    yield "learned", learned, plane
    yield "marginal", learned.marginal([0]), plane[:, :1]
    options = {"n_hidden": 1, "n_init": 1, "n_components": 2, "fallback": None, "max_iter": 20}
    frame = many_kinds()
    known = {"random_state": 0, "bounds": {"amount": (0, None)}, "categorical_features": ["colour"]}
    yield "kinds", rtbm.RTBMDensityCV([options], cv=2, **known).fit(frame), frame
    yield "imputer of kinds", rtbm.RTBMImputer(rtbm.RTBMDensity(**options, **known)).fit(frame), frame
    yield "forecaster", rtbm.RTBMForecaster(random_state=0).fit(np.cumsum(np.sin(np.arange(60.0)) + X[:60, 0])), None
    halves = torch.full((2, 2), 0.5, dtype=torch.float64)
    columns = [NumberColumn(YeoJohnson(0.5, 0.0, 1.0), [0.0], halves), CategoryColumn(halves)]
    yield "table", MixedDistribution([0.3, 0.7], [dense(1, 1), dense(1, 2)], columns), None
    for i, thing in enumerate([*DISTRIBUTIONS, *MODULES]):
        yield f"{type(thing).__name__} {i}", thing, None


OTHERS = (
    None, "other", [], {"tuple": []}, {"dictionary": {}}, {"labels": ["u"], "type": "<U1"},
    {"float": "nan"}, {"float": "inf"}, 10**12, 0.5, -1,
)  # fmt: skip


def fields(tree, path=()):
    """The paths of all fields of a description; of long lists the first and the last item."""
    items = list(tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ())
    for key, part in items if len(items) <= 3 or isinstance(tree, dict) else (items[0], items[-1]):
        yield (*path, key)
        yield from fields(part, (*path, key))


def part_of(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def edits(tensors, description):
    """Functions that change one field of a file, or one tensor, by what they do."""
    for path in fields(description["model"], ("model",)):
        value = part_of(description, path)
        others = [*OTHERS, *([value[:-1], value + value[-1:]] if isinstance(value, list) else [])]
        if isinstance(value, int | float):
            others += [-value, value + 1]
        yield f"{path} deleted", lambda t, d, path=path: part_of(d, path[:-1]).pop(path[-1])
        for other in others:
            if other != value:
                change = lambda t, d, path=path, other=other: part_of(d, path[:-1]).__setitem__(path[-1], other)  # noqa: E731
                yield f"{path} = {other}", change
    for name, tensor in sorted(tensors.items()):
        changed = {
            "shorter": tensor[:-1], "longer": torch.cat([tensor, tensor[-1:]]), "deeper": tensor[None],
            "NaN": tensor * math.nan, "∞": tensor / 0.0, "negative": -tensor.double(), "float32": tensor.float(),
            "integers": tensor.nan_to_num().long(),
        }  # fmt: skip
        for what, other in changed.items():
            yield f"{name} {what}", lambda t, d, name=name, other=other: t.update({name: other})


def uses(model, rows, folder):
    """Calls of what a model offers."""
    yield lambda: repr(model)
    yield lambda: rtbm.save(model, folder / "again.rtbm")
    if isinstance(model, nn.ThetaLayer):
        yield lambda: model(torch.zeros(2, model.in_features, dtype=model.weight.dtype))
    elif isinstance(model, torch.nn.Module):
        yield lambda: model().log_prob(torch.zeros(1, model().n_visible))
    elif isinstance(model, rtbm.RTBMForecaster):
        yield lambda: model.predict_interval(2)
    elif isinstance(model, torch.distributions.Distribution):
        yield lambda: model.log_prob(model.sample((3,)))
        yield lambda: model.mean
    else:
        methods = [*METHODS, "predict_interval", "sample_y", "p_values", "explain", "aic", "complete", "impute"]
        for name in methods:
            if hasattr(model, name) and not (name.startswith("predict_i") and hasattr(model, "impute")):
                yield partial(getattr(model, name), rows)
        if hasattr(model, "distribution_"):
            yield lambda: model.sample(2)
            yield lambda: model.marginal([0]).cdf([[0.5]])
        if hasattr(model, "distribution_") and model.n_features_in_ > 1:
            last = model.n_features_in_ - 1
            yield lambda: model.conditional({last: 0.5}).sample(2)
            yield lambda: model.conditional({last: [0.5, 0.6]}).mean
            yield lambda: model.predict_quantiles(rows, last)


def use(model, rows, folder):
    """Do all of it. Errors of this library are fine."""
    for call in uses(model, rows, folder):
        with contextlib.suppress(rtbm.RTBMError):
            call()


def failures_of(folder, every):
    """The edits after which `load` or the model fails with another error than those of this library."""
    failures, number = [], 0
    for name, model, rows in saved_models():
        rtbm.save(model, folder / "model.rtbm")
        tensors, description = read(folder / "model.rtbm")
        few = rows if rows is None else rows[:4]
        use(model, few, folder)
        for what, change in edits(tensors, description):
            number += 1
            if number % every:
                continue
            changed = dict(tensors), copy.deepcopy(description)
            change(*changed)
            write(folder / "edited.rtbm", *changed)
            try:
                use(rtbm.load(folder / "edited.rtbm"), few, folder)
            except (FileError, MemoryError):  # 10¹² paths are not the fault of a file
                pass
            except Exception as error:
                if "feature names" not in str(error).lower():  # of scikit-learn, which compares those of the rows
                    failures.append(f"{name}: {what}: {error!r}")
    return failures


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [401, pytest.param(97, marks=pytest.mark.slow)])
def test_edited_files_are_refused_or_work(tmp_path, every):
    assert not failures_of(tmp_path, every)  # every=1 takes up to an hour


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda a: a.update(n_parameters_=None), "n_parameters_"),
        (lambda a: a.update(history_=[3]), "history_.0"),
        (lambda a: a["_maps"][0].update(scale=-1.0), "scale"),
        (lambda a: a["columns_"].update(cells=[0.5]), "cells.0"),
        (lambda a: a["summary_"]["dictionary"].pop("n_iter"), "summary_.n_iter"),
    ],
)
def test_the_message_names_the_field(tmp_path, change, field):
    rtbm.save(quick(margins="yeo-johnson").fit(X), tmp_path / "model.rtbm")
    manipulated(tmp_path / "model.rtbm", lambda t, d: change(attributes_of(d)))
    with pytest.raises(FileError, match=rf"model\.rtbm.*{field}"):
        rtbm.load(tmp_path / "model.rtbm")


def equal_after_loading(folder, model, answer):
    rtbm.save(model, folder / "trip.rtbm")
    copy = rtbm.load(folder / "trip.rtbm")
    rtbm.save(copy, folder / "trip.rtbm")
    return all(np.array_equal(answer(model), answer(other)) for other in (copy, rtbm.load(folder / "trip.rtbm")))


def test_mixtures_keep_their_weights(tmp_path):
    rng, machine = np.random.default_rng(0), dense(1, 1)
    for weights in [[1.0, 0.0], *rng.dirichlet(np.ones(4), 60)]:
        mixture = RTBMMixture(weights, [machine] * len(weights))
        assert equal_after_loading(tmp_path, mixture, lambda own: own.logits)
        assert equal_after_loading(tmp_path, mixture.to(dtype=torch.float32), lambda own: own.log_prob([[0.3]]))


def test_components_of_tables_keep_their_weights(tmp_path):
    rng = np.random.default_rng(0)
    columns = [CategoryColumn(torch.tensor([[0.5, 0.5], [0.1, 0.9], [0.7, 0.3]]))]
    for _ in range(200):
        rows = MixedDistribution(rng.dirichlet([5.0, 5.0, 5.0]), [], columns)
        assert equal_after_loading(tmp_path, rows, lambda own: own.weights)


@pytest.mark.parametrize("seed", range(12))
def test_machines_of_phase_II_come_back_to_the_last_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    n_visible, n_hidden = 1 + seed % 3, 2 + seed % 2
    root = rng.normal(size=(n_hidden, n_hidden))
    machine = rtbm.RTBMDistribution(
        np.eye(n_visible) + 0.2,
        rng.normal(size=(n_visible, n_hidden)),
        root @ root.T + 0.3 * np.eye(n_hidden),
        rng.normal(size=n_visible),
        rng.normal(size=n_hidden),
        phase="II",
    )
    v = rng.normal(size=(40, n_visible))
    assert equal_after_loading(
        tmp_path, machine, lambda own: torch.cat([own.log_prob(v)[:, None], own.hidden_mean(v)], 1)
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(8))
def test_predictions_come_back_to_the_last_bit(tmp_path, seed):
    rng = np.random.default_rng(seed)
    d, rows = 1 + seed % 4, np.column_stack([rng.normal(size=(60, 1 + seed % 4)), rng.integers(0, 3, 60)])
    y = rows.sum(1) + rng.gamma(1.0, size=60)
    options = {"n_components": 1 + seed % 3, "max_iter": 5, "fallback": None, "phase": ("I", "II")[seed % 2]}
    density = quick(
        1 + seed % 3, **options, categorical_features=[d] if seed % 4 == 0 else None, rounded=None, atoms=None
    )
    model = rtbm.RTBMRegressor(density).fit(rows, y)
    for n in (1, 7, 60):
        assert equal_after_loading(tmp_path, model, lambda own, n=n: own.predict(rows[:n]))
        assert equal_after_loading(tmp_path, model, lambda own, n=n: own.predict_quantiles(rows[:n]))


@pytest.mark.filterwarnings("ignore:X. identifiers")
def test_tables_with_identifiers_and_conditionals_of_ranges(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {"a": rng.normal(size=80), "k": rng.choice(list("xy"), 80), "name": [f"n{i}" for i in range(80)]}
    )
    classifier = rtbm.RTBMClassifier(random_state=0).fit(frame, rng.choice([0, 1], 80))
    rtbm.save(classifier, tmp_path / "m.rtbm")
    assert np.array_equal(rtbm.load(tmp_path / "m.rtbm").predict_proba(frame), classifier.predict_proba(frame))
    model = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(rng.normal(size=(60, 2))).conditional({0: (0, 1)})
    rtbm.save(model, tmp_path / "m.rtbm")
    assert np.array_equal(rtbm.load(tmp_path / "m.rtbm").sample(3, 0), model.sample(3, 0))


@pytest.mark.filterwarnings("ignore:the solver 'lbfgs' stopped")
def test_pipelines_may_begin_with_a_step_that_does_nothing(tmp_path):
    X = np.random.default_rng(0).normal(size=(50, 2))
    network = rtbm.ThetaNetRegressor((2,), max_iter=5, random_state=0)
    model = Pipeline([("nothing", "passthrough"), ("network", network)]).fit(X, X[:, 0])
    rtbm.save(model, tmp_path / "m.rtbm")
    assert np.array_equal(rtbm.load(tmp_path / "m.rtbm").predict(X), model.predict(X))
