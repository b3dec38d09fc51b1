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
    RTBMFeatures,
    RTBMMixture,
    datasets,
    make_patch_classifier,
    nn,
)
from rtbm.distributions import Interval
from rtbm.persistence import _fingerprint, read

pd = pytest.importorskip("pandas")

X = datasets.gamma.sample(200, seed=0)


@pytest.fixture(scope="module")
def model():
    return RTBMDensity(2, n_init=1, random_state=0).fit(X)


@pytest.mark.parametrize("phase", ["I", "II"])
@pytest.mark.parametrize("make", [dense, diagonal])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_distributions_come_back_to_the_last_bit(tmp_path, make, phase, dtype):
    machine = make(2, 3, seed=1).to_phase(phase).to(dtype=dtype)
    rtbm.save(machine, tmp_path / "machine.rtbm")
    copy = rtbm.load(tmp_path / "machine.rtbm")
    v = torch.randn(20, 2, dtype=dtype, generator=torch.Generator().manual_seed(0))
    assert repr(copy) == repr(machine)
    assert torch.equal(copy.log_prob(v), machine.log_prob(v))
    assert torch.allclose(copy.hidden_mean(v), machine.hidden_mean(v))


def test_mixtures_and_modules_come_back(tmp_path):
    mixture = RTBMMixture([0.3, 0.7], [dense(2, 1, seed=0), diagonal(2, 4, seed=1)])
    rtbm.save(mixture, tmp_path / "mixture.rtbm")
    v = torch.zeros(1, 2, dtype=torch.float64)
    assert torch.allclose(rtbm.load(tmp_path / "mixture.rtbm").log_prob(v), mixture.log_prob(v), atol=1e-14)
    small = nn.RTBM(1, 1, dtype=torch.float32)
    for module in (nn.RTBM(2, 3, coupling="diagonal", phase="II"), nn.MixtureOfRTBMs(2, 1, 2), small):
        rtbm.save(module, tmp_path / "module.rtbm")
        copy = rtbm.load(tmp_path / "module.rtbm")
        assert type(copy) is type(module)
        for (name, ours), (other, theirs) in zip(module.named_parameters(), copy.named_parameters(), strict=True):
            assert name == other
            assert torch.equal(ours, theirs)
    assert repr(copy) == repr(module)


def test_estimators_come_back_with_all_that_they_know(tmp_path, model):
    rows = np.column_stack([X, datasets.uniform.sample(200)])
    state = np.random.RandomState(0)
    named = RTBMDensity(1, n_components=2, bounds=[(0, None), None], n_init=1, random_state=state)
    named.fit(pd.DataFrame(rows, columns=["mass", "charge"]))
    for fitted, data in ((model, X), (named, pd.DataFrame(rows, columns=["mass", "charge"]))):
        rtbm.save(fitted, tmp_path / "model.rtbm")
        copy = rtbm.load(tmp_path / "model.rtbm")
        assert np.allclose(copy.score_samples(data), fitted.score_samples(data), atol=1e-13)
        assert np.allclose(copy.sample(5, random_state=1), fitted.sample(5, random_state=1))
        assert np.allclose(copy.transform(data), fitted.transform(data))
        assert copy.summary_ == fitted.summary_
        assert [r.objective for r in copy.history_] == [r.objective for r in fitted.history_]
        assert copy.n_parameters_ == fitted.n_parameters_
        assert copy.n_hidden == fitted.n_hidden
    assert list(copy.feature_names_in_) == ["mass", "charge"]
    assert copy.fit(rows).score(rows) > -10  # and it can be fitted again


def test_a_committee_comes_back(tmp_path):
    tried = [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_components": 2, "n_init": 1, "fallback": "gaussians"}]
    committee = rtbm.RTBMDensityCV(tried, cv=2, bounds=(0, None), random_state=0).fit(X)
    rtbm.save(committee, tmp_path / "committee.rtbm")
    copy = rtbm.load(tmp_path / "committee.rtbm")
    assert isinstance(copy, rtbm.RTBMDensityCV)
    assert np.allclose(copy.score_samples(X), committee.score_samples(X), atol=1e-13)
    assert np.array_equal(copy.candidate_weights_, committee.candidate_weights_)
    assert np.array_equal(copy.held_out_, committee.held_out_)
    assert copy.candidates_ == committee.candidates_
    assert copy.candidates == committee.candidates
    assert copy.summary_ == committee.summary_
    assert np.array_equal(copy.fit(X).candidate_weights_, committee.candidate_weights_)


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
def test_networks_come_back_with_all_that_they_know(tmp_path):
    frame = pd.DataFrame({"t": np.linspace(0, 10, 60), "x": np.arange(60) % 7})
    y = np.sin(frame["t"].to_numpy())
    options = {"n_init": np.int64(1), "max_iter": 5, "random_state": 0}
    networks = [
        rtbm.ThetaNetRegressor((3, 2), activation=("theta", "tanh"), output_activation="theta", **options).fit(
            frame, y
        ),
        rtbm.ThetaNetRegressor((3,), solver="adam", dropout=0.1, **options).fit(frame, np.column_stack([y, -y])),
        rtbm.ThetaNetClassifier((2,), coupling="dense", **options).fit(frame, np.where(y > 0, "up", "down")),
        rtbm.ThetaNetClassifier(3, activation="theta-II", **options).fit(frame, np.arange(60) % 3),
    ]
    for network in networks:
        rtbm.save(network, tmp_path / "network.rtbm")
        copy = rtbm.load(tmp_path / "network.rtbm")
        assert type(copy) is type(network)
        assert np.array_equal(copy.predict(frame), network.predict(frame))
        assert copy.summary_ == network.summary_
        assert copy.history_[0][:2] == network.history_[0][:2]
        assert list(copy.feature_names_in_) == ["t", "x"]
        assert str(copy.module_) == str(network.module_)
        if isinstance(network, rtbm.ThetaNetClassifier):
            assert copy.classes_.dtype == network.classes_.dtype
            assert np.array_equal(copy.predict_proba(frame), network.predict_proba(frame))


@pytest.mark.parametrize("hidden", ["diagonal", "dense"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layers_come_back(tmp_path, hidden, dtype):
    layer = nn.ThetaLayer(3, 2, coupling=hidden, phase="II", dropout=0.2, dtype=dtype)
    rtbm.save(layer, tmp_path / "layer.rtbm")
    copy = rtbm.load(tmp_path / "layer.rtbm")
    v = torch.randn(4, 3, dtype=dtype)
    assert torch.equal(copy.eval()(v), layer.eval()(v))
    assert repr(copy) == repr(layer)


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


@pytest.mark.parametrize(
    "model",
    [
        RTBMFeatures(1, patch_size=2, random_state=0),
        RTBMFeatures(1, patch_size=2, supervised=True, features="both", random_state=0),
        make_patch_classifier(1, patch_size=2, random_state=0),
    ],
)
def test_features_and_classifiers(tmp_path, model):
    X, y = load_iris(return_X_y=True)
    y = np.array(["a", "b", "c"])[y]
    model.fit(X[::3], y[::3])
    rtbm.save(model, tmp_path / "m.rtbm")
    copy = rtbm.load(tmp_path / "m.rtbm")
    assert type(copy) is type(model)
    if not isinstance(model, RTBMFeatures):
        np.testing.assert_allclose(copy.predict_proba(X), model.predict_proba(X), rtol=1e-12)
        assert np.array_equal(copy.predict(X), model.predict(X))
        return
    assert copy.get_params() == model.get_params()
    assert np.array_equal(copy.transform(X), model.transform(X))
    assert np.array_equal(copy.get_feature_names_out(), model.get_feature_names_out())
    if model.supervised:
        assert np.array_equal(copy.class_log_likelihood(X), model.class_log_likelihood(X))


def test_other_classifiers_are_refused(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = make_patch_classifier(1, classifier=GaussianNB(), random_state=0).fit(X, y)
    with pytest.raises(InvalidInputError, match=r"GaussianNB.*joblib"):
        rtbm.save(model, tmp_path / "m.rtbm")
    assert not list(tmp_path.iterdir())


def test_bounded_distributions(tmp_path):
    machine = rtbm.RTBMDistribution([[1.0]], [[0.5]], [[2.0]], [0.1], [0.2])
    rtbm.save(rtbm.MappedDistribution(machine, [Interval(0.0, np.inf)]), tmp_path / "m.rtbm")
    copy = rtbm.load(tmp_path / "m.rtbm")
    assert copy.log_prob([2.0]) == rtbm.MappedDistribution(machine, [Interval(0.0, np.inf)]).log_prob([2.0])
