"""What every public estimator promises: weights, seeds, inputs, names, files and the conventions of scikit-learn."""

import copy
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import estimator_checks_generator

import rtbm
from estimators import ESTIMATORS, knowledge, outputs, table
from rtbm import InvalidInputError

WEIGHTED = {
    **ESTIMATORS,
    "machine by L-BFGS": lambda: rtbm.RTBMDensity(2, n_init=2, random_state=0),
    "machine by EM": lambda: rtbm.RTBMDensity(2, solver="em", n_init=2, random_state=0),
    "machine by CMA-ES": lambda: rtbm.RTBMDensity(2, solver="cma", max_iter=5, random_state=0),
    "machine with margins": lambda: rtbm.RTBMDensity(1, margins="learned", n_init=1, random_state=0),
    "machine with power margins": lambda: rtbm.RTBMDensity(1, margins="yeo-johnson", n_init=1, random_state=0),
    "machine with validation": lambda: rtbm.RTBMDensity(1, validation_fraction=0.2, fallback=None, random_state=0),
    "committee of two": lambda: rtbm.RTBMDensityCV(
        [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_components": 2, "n_init": 1, "max_iter": 15}],
        cv=3,
        random_state=0,
    ),
    "theta regressor by Adam": lambda: rtbm.ThetaNetRegressor(
        (3,), solver="adam", batch_size=32, max_iter=3, n_init=2, random_state=0
    ),
    "supervised features": lambda: rtbm.RTBMFeatures(1, supervised=True, features="both", random_state=0),
}
CHECKED = {
    "machine": rtbm.RTBMDensity(n_init=1, max_iter=30),
    "committee": rtbm.RTBMDensityCV([{"n_hidden": 1, "n_init": 1, "max_iter": 3}], cv=2, random_state=0),
    "features": rtbm.RTBMFeatures(1, max_iter=5),
    "supervised features": rtbm.RTBMFeatures(1, max_iter=5, supervised=True),
    "classifier": ESTIMATORS["classifier"](),
    "regressor": ESTIMATORS["regressor"](),
    "outlier detector": ESTIMATORS["outlier detector"](),
    "imputer": rtbm.RTBMImputer(rtbm.RTBMDensity(1, n_init=1, max_iter=10), random_state=0),
    "theta regressor": rtbm.ThetaNetRegressor((3,), n_init=2, max_iter=60),
    "theta classifier": rtbm.ThetaNetClassifier((4,), n_init=1, max_iter=60),
}
every_estimator = pytest.mark.parametrize("name", list(ESTIMATORS))


LEFT_OUT = {"check_array_api_input", "check_outliers_train", "check_outliers_fit_predict"}
"""Checks of scikit-learn that need SCIPY_ARRAY_API in the environment, or ask that `contamination` be the share of
training rows that are called outliers. Here it is the share of new rows."""


def conventions():
    """All checks of scikit-learn but for those."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            pytest.param(
                model, check, id=f"{name}-{check.func.__name__}", marks=[pytest.mark.slow][: name == "classifier"]
            )
            for name, estimator in CHECKED.items()
            for model, check in estimator_checks_generator(estimator)
            if check.func.__name__ not in LEFT_OUT
        ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), conventions())
def test_conventions_of_scikit_learn(estimator, check):
    check(estimator)


def assert_same(name, found, expected, rtol):
    """Bit for bit, but for probabilities of the classifier: its logistic regressions add up in another order."""
    assert found.keys() == expected.keys()
    for method, values in expected.items():
        if name == "classifier" and method == "predict_proba":
            np.testing.assert_allclose(found[method], values, rtol=rtol, atol=rtol / 100)
        else:
            np.testing.assert_array_equal(found[method], values)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "share_missing"),
    [(name, 0.0) for name in WEIGHTED]
    + [(name, 0.3) for name, make in WEIGHTED.items() if get_tags(make()).input_tags.allow_nan],
)
def test_weights_are_repetitions_and_zero_is_absence(name, share_missing):
    X, y = table(name)
    rng = np.random.default_rng(1)
    X = np.where(rng.random(X.shape) < share_missing, np.nan, X)
    weights = rng.integers(0, 4, len(X))
    repeated = np.repeat(np.arange(len(X)), weights)[rng.permutation(weights.sum())]
    kept = weights > 0
    expected = outputs(WEIGHTED[name]().fit(X[repeated], y[repeated]), X)
    assert_same(name, outputs(WEIGHTED[name]().fit(X, y, sample_weight=weights), X), expected, 1e-6)
    absent = WEIGHTED[name]().fit(X[kept], y[kept], sample_weight=weights[kept])
    assert_same(name, outputs(absent, X), expected, 1e-6)


def generators():
    """Everything of NumPy that random numbers come from."""
    return {
        "generator": np.random.default_rng(3),
        "bit generator": np.random.PCG64(3),
        "seed sequence": np.random.SeedSequence(3),
        "state": np.random.RandomState(3),
    }


SEVERAL_STARTS = {
    "mixture with validation": lambda: rtbm.RTBMDensity(
        1, n_components=2, n_init=4, validation_fraction=0.2, n_iter_no_change=5, fallback=None, random_state=0
    ),
    "committee of two": WEIGHTED["committee of two"],
    "mixtures of random patches": lambda: rtbm.RTBMFeatures(
        1, patch="random", patch_size=1, n_patches=3, n_components=2, random_state=0
    ),
    "theta regressor with validation": lambda: rtbm.ThetaNetRegressor(
        (3,), n_init=4, validation_fraction=0.2, max_iter=10, random_state=0
    ),
    "theta regressor with dropout": lambda: rtbm.ThetaNetRegressor(
        (3,), solver="adam", dropout=0.2, n_init=2, max_iter=3, random_state=0
    ),
    "theta regressor by CMA-ES": lambda: rtbm.ThetaNetRegressor(
        (3,), solver="cma", n_init=2, max_iter=3, random_state=0
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", [*ESTIMATORS, *SEVERAL_STARTS])
def test_the_seed_decides_everything(name):
    """An integer or a generator gives one result, in one process or two. Global generators are left alone."""
    X, y = table(name)
    before = torch.get_rng_state().numpy(), np.random.get_state()  # noqa: NPY002
    make = {**ESTIMATORS, **SEVERAL_STARTS}[name]
    for seed in (lambda: 0, lambda: np.random.default_rng(3)):
        first, second = (outputs(make().set_params(random_state=seed()).fit(X, y), X) for _ in range(2))
        for method, values in first.items():
            np.testing.assert_array_equal(second[method], values)
    np.testing.assert_equal((torch.get_rng_state().numpy(), np.random.get_state()), before)  # noqa: NPY002
    if name in SEVERAL_STARTS:
        one, parallel, other = (
            outputs(make().set_params(**o).fit(X, y), X) for o in ({}, {"n_jobs": 2}, {"random_state": 4})
        )
        for method, values in one.items():
            np.testing.assert_allclose(parallel[method], values, rtol=1e-12 if "patches" in name else 0, atol=0)
        assert not all(np.array_equal(other[method], values) for method, values in one.items())


@pytest.mark.parametrize("kind", list(generators()))
def test_draws_come_from_anything_of_numpy_and_advance_generators(kind):
    X, y = table("regressor")
    model, regressor = (ESTIMATORS[name]().fit(X, y) for name in ("machine", "regressor"))
    holes = np.where(np.arange(2) == 1, np.nan, X)
    for draw in (
        lambda source: model.sample(3, random_state=source),
        lambda source: model.impute(holes, "sample", random_state=source),
        lambda source: regressor.sample_y(X, 2, random_state=source),
    ):
        source = generators()[kind]
        first, second = draw(source), draw(source)
        np.testing.assert_array_equal(first, draw(generators()[kind]))
        assert np.array_equal(first, second) == (kind == "seed sequence")
    np.testing.assert_array_equal(model.sample(5), model.sample(5))
    assert not np.array_equal(model.sample(5, random_state=7), model.sample(5, random_state=8))


@pytest.mark.parametrize("seed", ["seven", -1, 1.5])
def test_other_seeds_are_refused(seed):
    for name in sorted(ESTIMATORS.keys() - {"regressor", "outlier detector", "imputer"}):  # these pass seeds on
        with pytest.raises(InvalidInputError, match=r"random_state must be .* Generator"):
            ESTIMATORS[name]().set_params(random_state=seed).fit(*table(name))


class OnDevice:
    """An array that, like those of GPUs, is handed over by DLPack, and refuses to be turned into one of NumPy."""

    def __init__(self, array):
        self._array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim

    def __len__(self):
        return len(self._array)

    def __array__(self, *arguments, **options):
        raise TypeError("Implicit conversion to a NumPy array is not allowed")

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("convert", [torch.from_numpy, OnDevice], ids=["torch", "DLPack"])
@every_estimator
def test_arrays_of_other_libraries_are_taken_as_those_of_numpy(name, convert):
    X, y = table(name)
    weights = np.arange(len(X)) % 3 + 1.0
    expected = outputs(ESTIMATORS[name]().fit(X, y, sample_weight=weights), X)
    target = convert(y) if "regressor" in name else y
    found = outputs(ESTIMATORS[name]().fit(convert(X), target, sample_weight=convert(weights)), convert(X))
    for method, values in expected.items():
        np.testing.assert_array_equal(found[method], values)


@pytest.mark.parametrize("convert", [torch.from_numpy, OnDevice], ids=["torch", "DLPack"])
def test_blocks_and_values_of_other_libraries_are_taken_too(convert):
    X, _ = table("machine")
    model = ESTIMATORS["machine"]().fit([X[:20], X[20:]])
    blocks = ESTIMATORS["machine"]().fit([convert(X[:20]), convert(X[20:])])
    np.testing.assert_array_equal(blocks.score_samples(convert(X)), model.score_samples(X))
    given = model.conditional({0: convert(X[:, 0])})
    np.testing.assert_array_equal(given.mean, model.conditional({0: X[:, 0]}).mean)


@every_estimator
def test_fit_returns_the_estimator_and_clones_keep_its_parameters(name):
    X, y = table(name)
    model = ESTIMATORS[name]()
    assert model.fit(X, y) is model
    cloned = clone(model)
    assert repr(cloned) == repr(model)
    with pytest.raises(NotFittedError):
        outputs(cloned, X)


@every_estimator
def test_inputs_are_read_and_never_written(name):
    X, y = table(name)
    weights = np.ones(len(X))
    for array in (X, y, weights):
        array.flags.writeable = False
    before = [array.copy() for array in (X, y, weights)]
    outputs(ESTIMATORS[name]().fit(X, y, sample_weight=weights), X)
    for array, old in zip((X, y, weights), before, strict=True):
        np.testing.assert_array_equal(array, old)


WRONG = {
    "infinity": (lambda X: np.where(X > 1, np.inf, X), "all numbers must be finite, got feature 0"),
    "one dimension": (lambda X: X[:, 0], "Expected 2D array, got 1D array"),
    "no rows": (lambda X: X[:0], r"Found array with 0 sample\(s\)"),
    "no columns": (lambda X: X[:, :0], r"Found array with 0 feature\(s\)"),
    "three dimensions": (lambda X: X[None], "Found array with dim 3"),
    "complex numbers": (lambda X: X * 1j, "Complex data not supported"),
}


@every_estimator
def test_wrong_inputs_are_refused_and_a_failed_fit_leaves_nothing_behind(name):
    X, y = table(name)
    model = ESTIMATORS[name]().fit(X, y)
    for change, message in WRONG.values():
        for method in outputs(model, X):
            with pytest.raises(ValueError, match=message):
                getattr(model, method)(change(X))
        failed = copy.deepcopy(model)
        with pytest.raises(ValueError, match=message):
            failed.fit(change(X), y[: len(change(X))])
        with pytest.raises(NotFittedError):
            outputs(failed, X)
    with pytest.raises(ValueError, match="Negative"):
        model.fit(X, y, sample_weight=np.where(np.arange(len(X)) > 2, 1, -1))


SETTINGS = {
    "machine": [
        ({"n_hidden": 0}, "n_hidden"),
        ({"n_hidden": "many"}, "n_hidden"),
        ({"n_components": 1.5}, "n_components"),
        ({"phase": "III"}, "phase"),
        ({"solver": "sgd"}, "solver"),
        ({"n_init": 0}, "n_init"),
        ({"max_iter": 0}, "max_iter"),
        ({"tol": -1.0}, "tol"),
        ({"regularization": -1}, "regularization"),
        ({"regularization": float("nan")}, "regularization"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"fallback": "normal"}, "fallback"),
    ],
    "committee": [
        ({"candidates": []}, "candidates must be None or a list"),
        ({"candidates": {"n_hidden": 2}}, "candidates must be None or a list"),
        ({"candidates": [{"hiden": 2}]}, "got {'hiden': 2}"),
        ({"candidates": [3]}, "got 3"),
        ({"candidates": [{"n_hidden": 1, "bounds": (0, None)}]}, "without .*bounds"),
        ({"cv": 1}, "cv"),
        ({"combine": "best"}, "combine"),
        ({"n_jobs": 0}, "n_jobs"),
        ({"cv": 300}, "600 rows"),
        ({"targets": "1"}, "targets must be"),
        ({"targets": [2]}, "targets must be"),
        ({"targets": [-1]}, "targets must be"),
        ({"targets": 1}, "targets must be"),
    ],
    "features": [
        ({"patch": "rings"}, "patch must be one of"),
        ({"patch": []}, "patch must be a name or a list"),
        ({"patch": [[0, 2]]}, r"patch\[0\] must be a list of different feature numbers from 0 to 1"),
        ({"patch": [[0, 1], [1, 1]]}, r"patch\[1\] must be"),
        ({"patch": [[]]}, r"patch\[0\] must be"),
        ({"patch": [0, 1]}, r"patch\[0\] must be"),
        ({"patch_size": 0}, "patch_size must be an integer of at least 1"),
        ({"patch": "blocks"}, "needs image_shape"),
        ({"patch": "blocks", "image_shape": (2, 3)}, "has 6 pixels, and X has 2 features"),
        ({"patch": "blocks", "image_shape": 4}, "image_shape must be two integers"),
        ({"patch": "blocks", "image_shape": (1, 2), "patch_size": (1, 2, 3)}, "patch_size must be two integers"),
        ({"n_patches": 3}, 'n_patches is for patch="random"'),
        ({"patch": "random", "n_patches": 0}, "n_patches must be an integer"),
        ({"features": "means"}, "features must be one of"),
        ({"supervised": "yes"}, "supervised must be True or False"),
        ({"n_hidden": 0}, "n_hidden must be an integer"),
        ({"tol": -1.0}, "tol must be a number"),
        ({"n_jobs": 0}, "n_jobs must be"),
    ],
    "classifier": [({"cv": 1}, "cv"), ({"n_jobs": 0}, "n_jobs"), ({"cv": 500}, "cv")],
    "theta regressor": [
        ({"hidden_layer_sizes": (0,)}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": None}, "hidden_layer_sizes"),
        ({"hidden_layer_sizes": (n for n in (2, 2))}, "hidden_layer_sizes"),
        ({"activation": "sigmoid"}, "activation"),
        ({"activation": ("theta", "theta")}, "activation"),
        ({"activation": None}, "activation"),
        ({"output_activation": "softmax"}, "output_activation"),
        ({"coupling": "sparse"}, "coupling"),
        ({"initialization": "xavier"}, "initialization"),
        ({"solver": "sgd"}, "solver"),
        ({"max_iter": 0}, "max_iter"),
        ({"n_init": 0}, "n_init"),
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": np.inf}, "alpha"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"dropout": 0.5}, "dropout needs solver='adam'"),
        ({"dropout": 1.5, "solver": "adam"}, "dropout"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"device": "gpu"}, "device"),
        ({"device": "meta"}, "device"),
        ({"n_jobs": 0}, "n_jobs"),
    ],
    "theta classifier": [({"loss": "hinge"}, "loss")],
}


@pytest.mark.parametrize(
    ("name", "options", "message"), [(name, *case) for name, cases in SETTINGS.items() for case in cases]
)
def test_wrong_settings_are_named(name, options, message):
    with pytest.raises(InvalidInputError, match=message):
        ESTIMATORS[name]().set_params(**options).fit(*table(name))


LATE = {
    "machine": lambda model, X, y: model.set_params(bounds=(100, None)).fit(np.hstack([X, X[:, :1] ** 2])),
    "committee": lambda model, X, y: model.set_params(cv=300).fit(X),
    "features": lambda model, X, y: model.fit(np.ones((10, 4))),
    "classifier": lambda model, X, y: model.fit(X, np.zeros(len(X))),
    "regressor": lambda model, X, y: model.fit(X, np.ones(len(X))),
    "outlier detector": lambda model, X, y: model.fit(np.ones((10, 4))),
    "imputer": lambda model, X, y: model.fit(np.ones((10, 4))),
    "theta classifier": lambda model, X, y: model.fit(X, np.zeros(len(X))),
}


OF_ROWS = ("columns_", "constants_")
"""What densities know of the rows alone."""


@pytest.mark.parametrize("name", LATE)
def test_a_fit_that_fails_after_the_checks_of_the_rows_leaves_nothing_behind(name):
    X, y = table(name)
    model = ESTIMATORS[name]().fit(X, y)
    with pytest.raises(InvalidInputError):
        LATE[name](model, X, y)
    with pytest.raises(NotFittedError):
        outputs(model, X)
    assert {attribute for attribute in vars(model) if attribute.endswith("_")} <= {"n_features_in_", *OF_ROWS}


@every_estimator
def test_names_of_columns_are_kept_and_other_names_are_refused(name):
    X, y = table(name)
    frame = pd.DataFrame(X, columns=["mass", "charge"])
    model = ESTIMATORS[name]().fit(frame, y)
    assert list(model.feature_names_in_) == ["mass", "charge"]
    expected = outputs(ESTIMATORS[name]().fit(X, y), X)
    for method, values in expected.items():
        np.testing.assert_array_equal(getattr(model, method)(frame), values)
        for wrong in (frame[["charge", "mass"]], frame.rename(columns={"mass": "weight"})):
            with pytest.raises(ValueError, match="feature names"):
                getattr(model, method)(wrong)


SAVED = {
    **WEIGHTED,
    "mixture with bounds": lambda: rtbm.RTBMDensity(
        np.int64(1), n_components=2, bounds=[(0, None), None], n_init=1, random_state=np.random.RandomState(0)
    ),
    "committee with bounds": lambda: rtbm.RTBMDensityCV(
        [{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_components": 2, "n_init": 1, "fallback": "gaussians"}],
        cv=2,
        bounds=[(0, None), None],
        random_state=0,
    ),
    "patch classifier": lambda: rtbm.make_patch_classifier(1, patch_size=1, random_state=0),
    "theta regressor with several layers": lambda: rtbm.ThetaNetRegressor(
        (3, 2), activation=("theta", "tanh"), output_activation="theta", n_init=np.int64(1), max_iter=5, random_state=0
    ),
    "theta regressor of two targets": lambda: rtbm.ThetaNetRegressor(
        (3,), solver="adam", dropout=0.1, n_init=1, max_iter=5, random_state=0
    ),
    "theta classifier with dense units": lambda: rtbm.ThetaNetClassifier(
        (2,), coupling="dense", n_init=1, max_iter=5, random_state=0
    ),
    "theta classifier of three classes": lambda: rtbm.ThetaNetClassifier(
        3, activation="theta-II", n_init=1, max_iter=5, random_state=0
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", SAVED)
def test_what_is_saved_comes_back(name, tmp_path):
    """All that an estimator answers, draws and knows about its fit, and its file; and it can be fitted again."""
    X, y = table(name)
    if "two targets" in name:
        y = np.column_stack([y, -y])
    if "three classes" in name:
        y = np.arange(len(y)) % 3
    with pytest.raises(InvalidInputError, match="fitted"):
        rtbm.save(SAVED[name](), tmp_path / "first.rtbm")
    assert not list(tmp_path.iterdir())
    frame = pd.DataFrame(X, columns=["mass", "charge"])
    model = SAVED[name]().fit(frame, y)
    rtbm.save(model, tmp_path / "first.rtbm")
    loaded = rtbm.load(tmp_path / "first.rtbm")
    assert type(loaded) is type(model)
    assert list(loaded.feature_names_in_) == ["mass", "charge"]
    unsaved = {"results_", "parameters"} if "with bounds" in name and "mixture" in name else {"results_"}
    known, found = knowledge(model), knowledge(loaded)
    assert {k: found[k] for k in found.keys() - unsaved} == {k: known[k] for k in known.keys() - unsaved}
    if hasattr(model, "sample"):
        np.testing.assert_array_equal(loaded.sample(5, random_state=1), model.sample(5, random_state=1))
    if hasattr(model, "transform"):
        assert list(loaded.get_feature_names_out()) == list(model.get_feature_names_out())
    assert_same(name, outputs(loaded, frame), outputs(model, frame), 1e-9)
    assert_same(name, outputs(pickle.loads(pickle.dumps(model)), frame), outputs(model, frame), 1e-9)
    rtbm.save(loaded, tmp_path / "second.rtbm")
    assert (tmp_path / "second.rtbm").read_bytes() == (tmp_path / "first.rtbm").read_bytes()
    again = outputs(loaded.fit(frame, y), frame)
    if "parameters" not in unsaved:  # a random state is not saved
        assert_same(name, again, outputs(model, frame), 1e-9)


@pytest.mark.parametrize("fitted", [False, True])
@every_estimator
def test_looking_at_an_estimator_never_raises(name, fitted):
    model = ESTIMATORS[name]()
    if fitted:
        model.fit(*table(name))
    assert type(model).__name__ in repr(model)
    assert "<" in model._repr_html_()
    assert "fit" in dir(model)
    assert vars(copy.deepcopy(model)).keys() == vars(model).keys()
    for attribute in dir(type(model)):
        hasattr(model, attribute)


@pytest.mark.parametrize("size", [10**20, 10**9])
def test_sizes_are_checked_before_anything_is_allocated(size):
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = X[:, 0] > 0
    for fit in (
        lambda: rtbm.RTBMDensity(size).fit(X),
        lambda: rtbm.RTBMDensity(1, n_components=size).fit(X),
        lambda: rtbm.RTBMDensity(size).fit([X, X]),
        lambda: rtbm.RTBMDensityCV([{"n_hidden": size}]).fit(X),
        lambda: rtbm.RTBMFeatures(n_hidden=size).fit(X),
        lambda: rtbm.RTBMFeatures(patch="random", n_patches=size).fit(X),
        lambda: rtbm.ThetaNetRegressor((3, size)).fit(X, X[:, 0]),
        lambda: rtbm.ThetaNetClassifier(size).fit(X, y),
    ):
        with pytest.raises(
            InvalidInputError, match=r"(n_\w+|hidden_layer_sizes).*(below 2\^63|at most 22|limit is 1e\+08)"
        ):
            fit()
