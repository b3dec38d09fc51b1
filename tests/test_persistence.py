"""Saving and loading: nothing is lost, nothing is executed, nothing is half written."""

import json
import math
import os
import pickle
import struct

import numpy as np
import pytest
import safetensors.torch
import torch
from sklearn.datasets import load_iris
from sklearn.naive_bayes import GaussianNB

import rtbm
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
from rtbm.distributions import Interval
from rtbm.persistence import _fingerprint, read

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
    assert description["format"] == 3
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


def manipulated(path, change):
    """A file with other contents and the right checksum."""
    tensors, description = read(path)
    change(tensors, description)
    description["sha256"] = _fingerprint(tensors, description)
    safetensors.torch.save_file(tensors, path, {"rtbm": json.dumps(description)})


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
