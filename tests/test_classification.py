"""RTBMClassifier: densities of classes and logistic regression, weighed by held-out rows."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris, load_wine, make_circles, make_classification
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rtbm
from rtbm import InvalidInputError, RTBMClassifier
from rtbm.estimators.class_densities import ClassDensities, class_tasks


def quick(**options):
    return RTBMClassifier(**{"cv": 2, "random_state": 0, **options})


def brier(model, X, y):
    return ((model.predict_proba(X) - np.eye(len(model.classes_))[y]) ** 2).sum(axis=1).mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_rings_need_densities(seed):
    X, y = make_circles(400, noise=0.1, factor=0.5, random_state=seed)
    model = quick().fit(X[:200], y[:200])
    logistic = LogisticRegression().fit(X[:200], y[:200])
    assert model.score(X[200:], y[200:]) > logistic.score(X[200:], y[200:]) + 0.3
    assert brier(model, X[200:], y[200:]) < 0.15


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_linear_problems_are_left_to_logistic_regression(seed):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(600, 6))
    y = (X @ rng.normal(size=6) + rng.logistic(size=600) > 0).astype(int)
    X, test, y, expected = train_test_split(X, y, test_size=0.5, random_state=seed)
    model = quick(cv=5).fit(X, y)
    logistic = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    assert brier(model, test, expected) < brier(logistic, test, expected) + 0.02
    assert sum(w for name, w in model.predictor_weights_.items() if "logistic" in name) > 0.5


def test_probabilities_and_weights_are_consistent():
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])
    model = quick().fit(X, names[y])
    probabilities = model.predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-9)
    np.testing.assert_array_equal(model.predict(X), names[probabilities.argmax(axis=1)])
    np.testing.assert_allclose(np.log(probabilities), model.predict_log_proba(X), rtol=1e-9, atol=1e-14)
    assert sum(model.predictor_weights_.values()) == pytest.approx(1.0)
    assert set(model.held_out_) == set(model.predictor_weights_)


@pytest.mark.parametrize("kind", ["fade", "many sizes", "one heavy row", "a light class", "the end of float64"])
def test_weights_of_all_sizes(kind):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    y = (X[:, 0] + 0.5 * rng.normal(size=200) > 0).astype(int)
    weights = {
        "fade": np.exp(-np.arange(200)[::-1] / 4),
        "many sizes": 10.0 ** rng.uniform(-300, 300, 200),
        "one heavy row": np.where(np.arange(200) == 5, 1e20, 1.0),
        "a light class": np.where(y == 0, 1.0, 1e-20),
        "the end of float64": np.full(200, 1e308),
    }
    probabilities = quick().fit(X, y, sample_weight=weights[kind]).predict_proba(X)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-9)


def test_a_class_with_one_row_and_a_constant_column():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=(60, 2)), np.ones(60)])
    y = np.array([0] * 30 + [1] * 29 + [2])
    X[30:, 0] += 3
    X[59, 1] += 9
    model = quick().fit(X, y)
    assert np.isfinite(model.predict_log_proba(X)).all()
    assert model.score(X, y) > 0.85


def test_rows_far_outside_and_more_features_than_rows():
    X, y = make_classification(30, 40, random_state=0)
    model = quick().fit(X, y)
    probabilities = model.predict_proba(np.vstack([X[:2], 1e12 * X[:2], -1e300 * np.ones((1, 40))]))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-9)


@pytest.fixture(scope="module")
def wine():
    X, y = load_wine(return_X_y=True)
    gaps = np.where(np.random.default_rng(0).random(X.shape) < 0.3, np.nan, X)
    return train_test_split(gaps, y, test_size=0.5, random_state=0, stratify=y)


def test_gaps_are_integrated_out(wine):
    X, test, y, expected = wine
    model = quick().fit(X, y)
    probabilities = model.predict_proba(test)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, rtol=1e-9)
    imputed = make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()).fit(X, y)
    assert model.score(test, expected) >= imputed.score(test, expected)
    assert brier(model, test, expected) < brier(imputed, test, expected)
    nothing = model.predict_proba(np.full((2, X.shape[1]), np.nan))
    np.testing.assert_array_equal(nothing[0], nothing[1])
    assert np.isfinite(np.log(nothing)).all()


def test_gaps_after_a_fit_without_any(wine):
    X, y = load_wine(return_X_y=True)
    model = quick().fit(X[::2], y[::2])
    assert model.score(np.vstack([wine[0], wine[1]]), np.concatenate([wine[2], wine[3]])) > 0.9


def test_joint_densities_of_classes_are_marginals_where_entries_are_missing():
    rng = np.random.default_rng(0)
    X = np.column_stack([x := rng.normal(size=(120, 2)), x.sum(axis=1) + 0.3 * rng.normal(size=120)])
    for rows in (X, np.where(rng.random(X.shape) < 0.2, np.nan, X)):
        (task,) = class_tasks(rows, np.zeros(120), np.ones(120))
        for density in ClassDensities.fit(*task, 0).joint:
            y, step = np.linspace(-12, 12, 2001, retstep=True)
            point = np.column_stack([np.full_like(y, 0.3), np.full_like(y, -0.2), y])
            whole = np.exp(density.log_prob(point)).sum() * step
            part = density.log_prob(np.array([[0.3, -0.2, np.nan], [np.nan, np.nan, np.nan]]))
            np.testing.assert_allclose(part, [np.log(whole), 0.0], atol=1e-6)


def test_a_feature_that_a_class_or_all_rows_lack(wine):
    X, test, y, _ = wine
    empty = [np.full((len(rows), 1), np.nan) for rows in (X, test)]
    model, wider = quick().fit(X, y), quick().fit(np.hstack([X, empty[0]]), y)
    np.testing.assert_allclose(model.predict_proba(test), wider.predict_proba(np.hstack([test, empty[1]])), atol=1e-6)
    X = np.where((y == 1)[:, None] & (np.arange(X.shape[1]) == 6), np.nan, X)
    model = quick().fit(X, y)
    assert np.isfinite(model.predict_log_proba(test)).all()
    assert model.score(test, wine[3]) > 0.85


def test_of_many_rows_with_gaps_joint_densities_see_a_sample(wine, monkeypatch):
    X, test, y, expected = wine
    monkeypatch.setattr("rtbm.estimators.class_densities.GAP_WORK", 10 * X.shape[1] ** 3)
    assert quick().fit(X, y).score(test, expected) > 0.85


def test_folds_may_be_given():
    X, y = load_iris(return_X_y=True)
    model = quick(cv=KFold(2, shuffle=True, random_state=0)).fit(X, y)
    assert model.score(X, y) > 0.9
    with pytest.raises(InvalidInputError, match="all rows of a class are in the test set"):
        quick(cv=KFold(3)).fit(X, y)  # the rows are sorted by class


def mixed_rows(n, seed):
    """Colours that depend on the class, alone or together with a number, with gaps, and labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    colour = np.where(rng.random(n) < 0.75, np.where(y == 1, "red", "blue"), "green")
    X = pd.DataFrame({"colour": colour, "x": rng.normal(size=n) + 0.5 * y, "noise": rng.choice(list("abc"), n)})
    return X.mask(rng.random(X.shape) < 0.1), y


def test_categories_predict_classes(tmp_path):
    X, y = mixed_rows(300, 0)
    model = RTBMClassifier(cv=3, random_state=0).fit(X, y)
    fresh, truth = mixed_rows(500, 1)
    assert model.categories_ == [["blue", "green", "red"], None, ["a", "b", "c"]]
    assert model.score(fresh, truth) > 0.78  # colours alone tell 0.84 of the classes where they are known
    assert model.score(fresh, truth) > RTBMClassifier(cv=3, random_state=0).fit(X[["x"]], y).score(fresh[["x"]], truth)
    rtbm.save(model, tmp_path / "colours.rtbm")
    assert np.array_equal(rtbm.load(tmp_path / "colours.rtbm").predict_proba(fresh), model.predict_proba(fresh))
    with pytest.warns(UserWarning, match="column colour has levels that were not there in the fit, 'pink'"):
        found = model.predict_proba(fresh.assign(colour="pink"))
    assert np.array_equal(found, model.predict_proba(fresh.assign(colour=None)))
    only = RTBMClassifier(cv=3, random_state=0).fit(X[["colour", "noise"]], y)
    assert only.score(fresh[["colour", "noise"]], truth) > 0.75
