"""RTBMFeatures and the paper's classifier: patches, what comes out of them, the conventions of scikit-learn."""

import warnings

import joblib
import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_iris
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import get_tags

from rtbm import InvalidInputError, RTBMDensity, RTBMFeatures, make_patch_classifier
from rtbm.estimators.features.patches import make_patches
from rtbm.estimators.features.transformer import spread_out, typical_variances

pd = pytest.importorskip("pandas")


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


# Patches


def test_contiguous_patches_cover_all_features_once():
    patches = make_patches("contiguous", 3, 10, None, None, 0)
    assert [len(p) for p in patches] == [3, 3, 3, 1]
    assert np.array_equal(np.concatenate(patches), np.arange(10))


def test_blocks_are_blocks_of_the_image():
    patches = make_patches("blocks", 2, 20, (4, 5), None, 0)
    assert patches[0].tolist() == [0, 1, 5, 6]
    assert patches[2].tolist() == [4, 9]
    assert sorted(np.concatenate(patches)) == list(range(20))


def test_random_patches_use_features_equally_often():
    patches = make_patches("random", 3, 12, None, 12, 5)
    assert all(len(set(p)) == 3 for p in patches)
    assert np.array_equal(np.bincount(np.concatenate(patches)), np.full(12, 3))
    again = make_patches("random", 3, 12, None, 12, 5)
    assert all(np.array_equal(a, b) for a, b in zip(patches, again, strict=True))
    other = make_patches("random", 3, 12, None, 12, 6)
    assert not all(np.array_equal(a, b) for a, b in zip(patches, other, strict=True))


# Features


def test_features_are_the_expectations_of_densities_on_patches(iris):
    X, _ = iris
    features = RTBMFeatures(2, patch=[[0, 3], [2, 1]], random_state=3).fit(X)
    options = {"tol": features.tol, "n_init": 1, "fallback": None, "atoms": None, "rounded": None, "random_state": 0}
    alone = [RTBMDensity(2, **options).fit(X[:, part]) for part in ([0, 3], [2, 1])]
    assert np.allclose(
        features.transform(X), np.hstack([alone[0].transform(X[:, [0, 3]]), alone[1].transform(X[:, [2, 1]])])
    )
    both = RTBMFeatures(2, patch=[[0, 3], [2, 1]], features="both", random_state=3).fit(X)
    columns = pd.DataFrame(both.transform(X), columns=both.get_feature_names_out())
    assert np.allclose(columns["patch1_log_likelihood"], alone[1].score_samples(X[:, [2, 1]]))
    assert np.allclose(columns[["patch0_h0", "patch0_h1"]], alone[0].transform(X[:, [0, 3]]))


def test_phases_and_mixtures(iris):
    X, _ = iris
    one, two = (RTBMFeatures(2, phase=phase, random_state=0).fit(X).transform(X) for phase in ("I", "II"))
    assert one.shape == two.shape
    assert not np.allclose(one, two)
    mixture = RTBMFeatures(2, n_components=2, random_state=0).fit(X)
    assert mixture.transform(X).shape == (150, 8)
    assert len(mixture.get_feature_names_out()) == 8


def test_names_follow_a_data_frame_and_pandas_output(iris):
    X, y = iris
    frame = pd.DataFrame(X, columns=list("abcd"))
    features = RTBMFeatures(1, supervised=True, features="both", random_state=0).set_output(transform="pandas")
    out = features.fit_transform(frame, np.array(["x", "y", "z"])[y])
    assert list(out.columns[:4]) == ["patch0_x_h0", "patch0_x_log_likelihood", "patch0_y_h0", "patch0_y_log_likelihood"]


def test_constant_features_are_left_out_and_reported():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.full(60, 2.5), rng.normal(size=60), np.zeros(60), np.zeros(60), rng.normal(size=(60, 2))])
    features = RTBMFeatures(1, random_state=0).fit(X)
    assert [p.tolist() for p in features.patches_] == [[1], [4, 5]]
    assert features.transform(X).shape == (60, 2)
    with pytest.raises(InvalidInputError, match="only one value"):
        RTBMFeatures().fit(np.ones((10, 4)))


def test_dependent_features_are_no_trouble():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = RTBMFeatures(1, patch_size=3, random_state=0).fit_transform(np.hstack([x, 2 * x, -x]))
    assert np.isfinite(out).all()


def test_one_warning_for_all_machines(iris):
    with pytest.warns(ConvergenceWarning, match="2 of 2 machines used up") as caught:
        RTBMFeatures(2, max_iter=2, random_state=0).fit(iris[0])
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_fitting_anew_forgets(iris):
    X, y = iris
    features = RTBMFeatures(1, supervised=True, random_state=0).fit(X, y)
    assert features.class_log_likelihood(X).shape == (150, 3)
    features.set_params(supervised=False).fit(X)
    with pytest.raises(InvalidInputError, match="supervised=True"):
        features.class_log_likelihood(X)
    assert not hasattr(features, "classes_")


def test_parameters_set_after_the_fit_do_not_change_the_output(iris):
    X, _ = iris
    features = RTBMFeatures(2, random_state=0).fit(X)
    before = features.transform(X)
    features.set_params(features="both", n_hidden=5)
    assert np.array_equal(features.transform(X), before)
    assert len(features.get_feature_names_out()) == before.shape[1]


def test_progress_is_shown(iris, capsys):
    RTBMFeatures(1, verbose=1, random_state=0).fit(iris[0])
    assert "machine" in capsys.readouterr().err


# Missing entries


@pytest.fixture(scope="module")
def gaps(iris):
    X = np.where(np.random.default_rng(0).random(iris[0].shape) < 0.2, np.nan, iris[0])
    X[:3, :2] = np.nan
    return X


def test_missing_entries_of_patches_are_integrated_out(gaps):
    features = RTBMFeatures(2, features="both", random_state=0).fit(gaps)
    found = features.transform(gaps)
    assert np.isfinite(found).all()
    for i, (density,) in enumerate(features.densities_):
        part = gaps[:, features.patches_[i]]
        np.testing.assert_allclose(found[:, 3 * i : 3 * i + 2], density.transform(part), rtol=1e-12)
        np.testing.assert_allclose(found[:, 3 * i + 2], density.score_samples(part), rtol=1e-12)
    np.testing.assert_allclose(found[:3, 2], 0.0, atol=1e-13)  # Σ P(h), in rounding
    draws = features.densities_[0][0].sample(20_000, random_state=0)
    mean = features.densities_[0][0].transform(draws).mean(axis=0)
    np.testing.assert_allclose(found[0, :2], mean, atol=0.05)


def test_expectations_of_missing_entries_need_the_first_phase(iris, gaps):
    for fit, transform in ((gaps, iris[0]), (iris[0], gaps)):
        with pytest.raises(InvalidInputError, match='defined in phase "I" only'):
            RTBMFeatures(1, phase="II", random_state=0).fit(fit).transform(transform)
    features = RTBMFeatures(1, phase="II", features="log_likelihood", random_state=0).fit(gaps)
    assert np.isfinite(features.transform(gaps)).all()
    assert get_tags(features).input_tags.allow_nan
    assert not get_tags(RTBMFeatures(phase="II")).input_tags.allow_nan


@pytest.mark.parametrize("options", [{}, {"supervised": True}, {"supervised": True, "features": "both"}])
def test_patch_classifiers_take_missing_entries(iris, gaps, options):
    model = make_patch_classifier(2, random_state=0, **options).fit(gaps[::2], iris[1][::2])
    assert model.score(gaps[1::2], iris[1][1::2]) > 0.6
    assert np.isfinite(model.predict_proba(np.full((1, 4), np.nan))).all()


def bayes(X, y, n_hidden=1, **options):
    """The labels by Bayes' rule, from densities of the classes, with their shares as prior."""
    features = RTBMFeatures(n_hidden, supervised=True, random_state=0, **options).fit(X, y)
    prior = np.log(np.bincount(np.unique(y, return_inverse=True)[1]))
    return lambda rows: features.classes_[(features.class_log_likelihood(rows) + prior).argmax(axis=1)]


def test_features_that_a_class_or_all_rows_lack(iris):
    X, y = np.column_stack([iris[0], np.full(150, np.nan)]), iris[1]
    X[y == 2, 2] = np.nan
    model = RTBMFeatures(1, patch_size=5, supervised=True, random_state=0).fit(X, y)
    assert model.patches_[0].tolist() == [0, 1, 2, 3]
    assert np.isfinite(model.class_log_likelihood(iris[0] @ np.eye(4, 5))).all()
    assert np.mean(bayes(X, y, patch_size=5)(X) == y) > 0.9


# Supervised densities and Bayes


def test_the_extra_observation_has_the_mean_of_the_class_and_the_given_variances():
    rng = np.random.default_rng(1)
    X, weights = rng.normal(size=(3, 3)), rng.uniform(0.5, 2, 3)
    variances = np.array([1.0, 4.0, 0.25])
    mean = weights @ X / weights.sum()
    rows, w = spread_out(X, weights, mean, variances)
    added, share = rows[3:], w[3:]
    assert np.isclose(share.sum(), weights.mean())
    assert np.allclose(share @ added / share.sum(), mean)
    assert np.allclose((share[:, None] * (added - mean)).T @ (added - mean) / share.sum(), np.diag(variances))


def test_typical_variances_ignore_constant_classes_and_one_outlier():
    X = np.array([[0.0, 1.0, 5.0], [0.0, 3.0, 5.0], [4.0, 0.0, 6.0], [8.0, 2.0, 6.0], [0.0, 1e9, 7.0], [2.0, 0.0, 7.0]])
    members = [np.isin(np.arange(6), pair) for pair in ((0, 1), (2, 3), (4, 5))]
    found = typical_variances(X, np.ones(6), members)
    assert np.allclose(found, [1.0, 1.0, 0.01 * X[:, 2].var()])


@pytest.mark.parametrize("far", [10.0, 1e3, 1e5])
def test_classes_far_apart_do_not_blur_each_other(far):
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], 60)
    X = np.column_stack([np.array([0, 1, far])[y] + 0.1 * rng.normal(size=180), rng.normal(size=180)])
    assert np.mean(bayes(X, y)(X) == y) > 0.99


def test_an_outlier_in_one_class_does_not_harm_the_others(iris):
    X, y = np.vstack([iris[0], [[1e6, -1e6, 1e6, 1e6]]]), np.append(iris[1], 0)
    others = y > 0
    assert np.mean(bayes(X, y, patch_size=4)(X[others]) == y[others]) > 0.95


def test_a_class_with_one_value_or_one_row_still_has_a_density():
    rng = np.random.default_rng(0)
    X = np.vstack([np.column_stack([np.zeros(40), rng.normal(size=40)]), rng.normal(3, 1, size=(40, 2)), [[9.0, 9.0]]])
    y = np.repeat(["flat", "round", "single"], [40, 40, 1])
    predict = bayes(X, y)
    assert np.mean(predict(X) == y) > 0.95
    assert predict([[9.0, 9.0]]) == "single"


def test_likelihoods_of_classes_are_those_of_their_densities(iris):
    X, y = iris
    model = RTBMFeatures(2, supervised=True, random_state=0).fit(X, y)
    by_hand = sum(
        np.stack([density.score_samples(X[:, part]) for density in densities], axis=1)
        for part, densities in zip(model.patches_, model.densities_, strict=True)
    )
    assert np.allclose(model.class_log_likelihood(X), by_hand)
    assert model.classes_.tolist() == [0, 1, 2]
    with pytest.raises(InvalidInputError, match="supervised=True"):
        RTBMFeatures(1, random_state=0).fit(X).class_log_likelihood(X)


def test_bayes_is_at_least_as_good_as_gaussians_on_digits():
    X, y = load_digits(return_X_y=True)
    centred = X - X.mean(axis=0)
    Z = centred @ np.linalg.svd(centred[:1000], full_matrices=False)[2][:12].T
    accuracy = np.mean(bayes(Z[:1000], y[:1000], patch_size=12)(Z[1000:]) == y[1000:])
    gaussian = QuadraticDiscriminantAnalysis().fit(Z[:1000], y[:1000])
    assert accuracy > gaussian.score(Z[1000:], y[1000:]) - 0.01 > 0.85


def test_densities_see_what_naive_gaussians_do_not():
    """Two classes of the same mean and covariance: a ring and a blob."""
    rng = np.random.default_rng(2)
    angle, n = rng.uniform(0, 2 * np.pi, 400), 400
    ring = 2 * np.column_stack([np.cos(angle), np.sin(angle)]) + 0.2 * rng.normal(size=(n, 2))
    X, y = np.vstack([ring, np.sqrt(2.04) * rng.normal(size=(n, 2))]), np.repeat([0, 1], n)
    train = rng.permutation(2 * n) < n
    accuracy = np.mean(bayes(X[train], y[train], 4)(X[~train]) == y[~train])
    naive = GaussianNB().fit(X[train], y[train]).score(X[~train], y[~train])
    assert naive < 0.6
    assert accuracy > naive + 0.1


# The classifier


def test_the_classifier_is_features_then_scaling_then_logistic_regression(iris):
    X, y = iris
    model = make_patch_classifier(3, random_state=1).fit(X, y)
    assert [type(step).__name__ for _, step in model.steps] == ["RTBMFeatures", "StandardScaler", "LogisticRegression"]
    assert model["features"].n_hidden == 3
    pipeline = make_pipeline(RTBMFeatures(3, random_state=1), StandardScaler(), LogisticRegression(max_iter=1000))
    assert np.array_equal(model.predict_proba(X), pipeline.fit(X, y).predict_proba(X))


def test_any_classifier_can_be_used(iris):
    X, y = iris
    labels = np.array(["setosa", "versicolor", "virginica"])[y]
    for classifier in (KNeighborsClassifier(), LinearSVC()):
        assert make_patch_classifier(4, classifier=classifier, random_state=0).fit(X, labels).score(X, labels) > 0.9


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch does not fork once it has started threads for a GPU")
def test_other_backends_of_joblib(iris):
    expected = RTBMFeatures(1, random_state=0).fit_transform(iris[0])
    with joblib.parallel_backend("multiprocessing", n_jobs=2):
        assert np.allclose(RTBMFeatures(1, n_jobs=2, random_state=0).fit_transform(iris[0]), expected)


def test_points_out_of_reach_are_named(iris):
    X, y = iris
    features = RTBMFeatures(2, random_state=0).fit(X)
    far = X[:5].copy()
    far[3, 2] = 1e300  # whose products leave float64
    with pytest.raises(InvalidInputError, match=r"X: row 3 holds 1e\+300 in patch 1"):
        features.transform(far)
    with pytest.raises(InvalidInputError, match="change the unit"):
        RTBMFeatures(1, supervised=True).fit(1e160 * X, y)


def test_one_class_is_an_error(iris):
    X, y = iris
    with pytest.raises(InvalidInputError, match="two classes or more, got one class: 0"):
        RTBMFeatures(supervised=True).fit(X, y, sample_weight=(y == 0).astype(float))


def test_grid_search_over_hidden_units(iris):
    X, y = iris
    search = GridSearchCV(make_patch_classifier(random_state=0), {"features__n_hidden": [1, 4]}, cv=3).fit(X, y)
    assert search.best_params_ == {"features__n_hidden": 4}
    assert search.best_score_ > 0.93
