"""Outliers: honest thresholds, p-values, explanations of rows, tables with categories, gaps and dates."""

import warnings

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.stats import kstest, norm
from sklearn.datasets import load_iris

from estimators import quick
from rtbm import InvalidInputError, RTBMDensity, RTBMDensityCV, RTBMOutlierDetector, load, save
from rtbm.plotting import plot_explanation

ERRORS = 4.0
"""Shares may be this many standard errors from what is expected."""


def sources():
    """Functions that draw rows, from Gaussian to skewed."""
    mixing = np.random.default_rng(7).normal(size=(4, 4))
    return {
        "one column": lambda rng, n: rng.gamma(2.0, size=(n, 1)),
        "correlated": lambda rng, n: rng.normal(size=(n, 4)) @ mixing,
        "clusters": lambda rng, n: rng.normal(size=(n, 3)) + 4 * rng.integers(0, 2, (n, 1)),
        "heavy tails": lambda rng, n: rng.standard_t(3, size=(n, 3)),
    }


def assert_share(found, expected, n_train, n_new):
    """The threshold of n_train rows has an error too; their scores are those of folds, which adds some bias."""
    error = np.sqrt(expected * (1 - expected) * (1 / n_train + 1 / n_new))
    assert abs(found - expected) < ERRORS * error


@pytest.mark.parametrize("density", [None, "machine", "committee"])
@pytest.mark.parametrize("source", list(sources()))
def test_new_rows_are_flagged_as_often_as_asked(source, density):
    made = {
        None: None,
        "machine": quick(),
        "committee": RTBMDensityCV([{"n_hidden": 1, "n_init": 1}, {"n_hidden": 2, "n_init": 1}], cv=3, random_state=0),
    }[density]
    draw, rng = sources()[source], np.random.default_rng(1)
    train, new = draw(rng, 400), draw(rng, 4000)
    detector = RTBMOutlierDetector(made, contamination=0.05, random_state=0).fit(train)
    assert_share((detector.predict(new) == -1).mean(), 0.05, len(train), len(new))
    p = detector.p_values(new)
    for level in (0.02, 0.2, 0.5):
        assert_share((p <= level).mean(), level, len(train), len(new))


def test_rich_densities_of_few_rows_promise_nothing_false():
    rng = np.random.default_rng(0)
    few, many = rng.normal(size=(100, 5)), rng.normal(size=(4000, 5))
    rich = RTBMDensity(1, n_components=4, n_init=1, fallback=None, random_state=0)
    detector = RTBMOutlierDetector(rich, contamination=0.1).fit(few)
    assert (detector.predict(many) == -1).mean() < 0.1 + ERRORS * 0.03
    assert (detector.density_.score_samples(few) < detector.offset_).mean() < 0.1  # it has seen these


def test_p_values_are_ranks_among_held_out_scores():
    rng = np.random.default_rng(0)
    train, new = rng.normal(size=(200, 2)), rng.normal(size=(300, 2))
    weights = rng.integers(0, 3, 200)
    detector = RTBMOutlierDetector(quick(), random_state=0).fit(train, sample_weight=weights)
    scores, counts = detector.held_out_scores_, detector.held_out_counts_
    assert counts.sum() == weights.sum()
    expected = [(1 + counts[scores <= score].sum()) / (1 + counts.sum()) for score in detector.score_samples(new)]
    np.testing.assert_allclose(detector.p_values(new), expected)
    assert detector.p_values([[50.0, -50.0]])[0] == 1 / (1 + counts.sum())
    assert kstest(detector.p_values(new), "uniform").pvalue > 1e-4


def test_rows_that_are_not_fitted_have_scores_too():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1500, 2))
    detector = RTBMOutlierDetector(contamination=0.05, random_state=0).fit(X)
    assert detector.held_out_counts_.sum() == len(X)
    assert_share((detector.predict(rng.normal(size=(4000, 2))) == -1).mean(), 0.05, len(X), 4000)
    again = RTBMOutlierDetector(contamination=0.05, random_state=0).fit(X)
    assert again.offset_ == detector.offset_


def test_outliers_among_the_training_rows_are_found():
    rng = np.random.default_rng(0)
    inliers, strange = rng.normal(size=(450, 3)), rng.uniform(-15, 15, size=(25, 3))
    detector = RTBMOutlierDetector(contamination="auto", random_state=0).fit(np.vstack([inliers, strange]))
    far = rng.uniform(-15, 15, size=(200, 3))
    far = far[np.abs(far).max(axis=1) > 6]
    assert (detector.predict(far) == -1).all()
    assert (detector.predict(rng.normal(size=(1000, 3))) == -1).mean() < 0.12
    low, high = (
        np.quantile(detector.held_out_scores_, q, weights=detector.held_out_counts_, method="inverted_cdf")
        for q in (0.25, 0.75)
    )
    assert detector.offset_ == pytest.approx(low - 1.5 * (high - low))


def test_decisions_follow_the_threshold():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2))
    detector = RTBMOutlierDetector(quick()).fit(X)
    np.testing.assert_array_equal(detector.predict(X) == -1, detector.decision_function(X) < 0)
    np.testing.assert_array_equal(detector.decision_function(X), detector.score_samples(X) - detector.offset_)
    assert (detector.held_out_scores_ < detector.offset_).sum() == 20


@pytest.mark.parametrize("contamination", [0.7, 0.0, True, "some", None])
def test_bad_contamination(contamination):
    with pytest.raises(InvalidInputError, match="contamination"):
        RTBMOutlierDetector(quick(), contamination=contamination).fit(np.random.default_rng(0).normal(size=(50, 2)))


def test_explanations_of_a_gaussian():
    """Conditionals of a fitted Gaussian given the usual cells, from its mean and covariance alone."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 3))
    detector = RTBMOutlierDetector(RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], margins=None, random_state=0)).fit(X)
    assert detector.density_.is_gaussian_
    rows = 2 * X[:5]
    found = detector.explain(rows, coverage=0.8)
    np.testing.assert_array_equal(found.culprit.any(axis=1), detector.predict(rows) == -1)
    distribution = detector.density_.distribution_
    mean, covariance = distribution.mean.numpy(), distribution.covariance_matrix.numpy()

    def tail(row, j, known):
        slope = np.linalg.solve(covariance[np.ix_(known, known)], covariance[known, j]) if known else np.zeros(0)
        centre = mean[j] + (row[known] - mean[known]) @ slope
        width = np.sqrt(covariance[j, j] - covariance[j, known] @ slope)
        return 2 * norm.sf(abs(row[j] - centre) / width), centre, width

    for i, row in enumerate(rows):
        for j in range(3):
            p, centre, width = tail(row, j, [k for k in range(3) if k != j and not found.culprit[i, k]])
            np.testing.assert_allclose(found.p_value[i, j], p, rtol=1e-4, atol=1e-9)
            np.testing.assert_allclose(found.alone[i, j], tail(row, j, [])[0], rtol=1e-4, atol=1e-9)
            np.testing.assert_allclose(found.expected[i, j], centre, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found.high[i, j], centre + norm.ppf(0.9) * width, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(found.low[i, j], centre + norm.ppf(0.1) * width, rtol=1e-4, atol=1e-4)


def tables_of_numbers():
    """Small tables: flowers, correlated and skewed columns, and clusters."""
    rng = np.random.default_rng(5)
    skewed = np.exp(2 + 0.3 * rng.normal(size=(200, 3)) @ rng.normal(size=(3, 3)))
    clusters = rng.normal(size=(200, 3)) + 20 * rng.integers(1, 3, size=(200, 1))
    return {"flowers": load_iris().data, "skewed": skewed, "clusters": clusters}


@pytest.mark.parametrize("table", list(tables_of_numbers()))
def test_a_wrong_cell_is_blamed(table):
    X = np.random.default_rng(0).permutation(tables_of_numbers()[table])
    detector = RTBMOutlierDetector(contamination=0.05, random_state=0).fit(X[:-30])
    usual = X[-30:][detector.predict(X[-30:]) == 1]
    rows = np.tile(usual, (3, 1))
    place = np.arange(len(rows)), np.arange(len(rows)) % X.shape[1]
    rows[place] *= np.repeat([10.0, 0.1, 1000.0], len(usual))
    is_outlier = detector.predict(rows) == -1
    found = detector.explain(rows)
    is_first = found.culprit[place] == 1
    assert is_outlier.mean() > 0.5
    assert is_first[is_outlier].mean() > 0.85
    np.testing.assert_array_equal(found.culprit.any(axis=1), is_outlier)
    is_only = is_first & (found.culprit.max(axis=1) == 1)
    rows[place] = np.nan  # what is expected does not depend on the wrong cell
    expected = detector.density_.impute(rows)
    np.testing.assert_allclose(found.expected[place][is_only], expected[place][is_only], rtol=1e-5)


def test_two_wrong_cells_are_both_blamed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)) + 3 * rng.normal(size=(300, 1))
    found = RTBMOutlierDetector(quick(), contamination=0.05).fit(X).explain([[30.0, 0.0, 0.0, -60.0]])
    assert found.culprit.tolist() == [[2, 0, 0, 1]]
    assert found.p_value[0, [1, 2]].min() > 0.05


def test_explanations_by_brute_force():
    """Tails of a mixture with maps of columns: the joint density, integrated along one column."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.gamma(2.0, size=300), rng.normal(size=300)])
    X[:, 1] += X[:, 0]
    detector = RTBMOutlierDetector(random_state=0).fit(X)
    row = np.array([[2.0, 0.5]])
    found = detector.explain(row)
    assert not found.culprit.any()
    grid = np.linspace(-15, 25, 200_001)
    p = np.exp(detector.score_samples(np.column_stack([np.full(len(grid), 2.0), grid])))
    below = p[grid <= 0.5].sum() / p.sum()
    assert found.p_value[0, 1] == pytest.approx(2 * min(below, 1 - below), rel=1e-2)
    assert found.expected[0, 1] == pytest.approx(p @ grid / p.sum(), rel=1e-3)
    ends = grid[np.searchsorted(np.cumsum(p) / p.sum(), [0.05, 0.95])]
    np.testing.assert_allclose([found.low[0, 1], found.high[0, 1]], ends, atol=2e-3)


def people(n=300, seed=0):
    """Numbers with gaps, counts, dates and categories that depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    table = pd.DataFrame(
        {
            "x": x,
            "count": rng.integers(0, 15, n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(100 * rng.normal(size=n), unit="D"),
            "city": np.where(x + 0.3 * rng.normal(size=n) > 0, "Bern", "Oslo"),
        },
        index=[f"row {i}" for i in range(n)],
    )
    table.loc[table.index[::7], "x"] = np.nan
    return table


@pytest.fixture(scope="module")
def detector():
    return RTBMOutlierDetector(contamination=0.05, random_state=0).fit(people())


def test_explanations_of_frames(detector, tmp_path):
    rows = people().iloc[[7, 1]]
    rows.loc["row 1", ["x", "city"]] = [2.0, "Oslo"]
    found = detector.explain(rows)
    assert isinstance(found, pd.DataFrame)
    assert found.index.tolist() == ["row 7"] * 4 + ["row 1"] * 4
    assert found["column"].tolist() == [*rows.columns] * 2  # x is the only culprit
    gap = found.loc["row 7"].set_index("column").loc["x"]
    assert np.isnan(gap["p_value"])
    assert gap["low"] < gap["expected"] < gap["high"]
    strange = found.loc["row 1"].set_index("column")
    assert strange["culprit"].tolist() == [1, 0, 0, 0]
    assert strange.loc["x", "high"] < 2.0
    assert strange.loc["x", "p_value"] < strange.loc["x", "alone"]
    usual = rows.iloc[[1]].assign(x=np.nan)
    probabilities = detector.density_.predict_proba(usual, "city")[0]
    assert strange.loc["city", "p_value"] == pytest.approx(probabilities[probabilities <= probabilities[1]].sum())
    day = strange.loc["day"]
    assert day["low"] < day["expected"] < day["high"]
    assert isinstance(day["expected"], pd.Timestamp)
    own = detector.density_.cell_probability(usual, "count")[0]
    assert own < strange.loc["count", "p_value"] <= 1
    save(detector, tmp_path / "detector.rtbm")
    loaded = load(tmp_path / "detector.rtbm")
    pd.testing.assert_frame_equal(loaded.explain(rows), found)
    np.testing.assert_array_equal(loaded.p_values(rows), detector.p_values(rows))


def test_unseen_levels_are_outliers_and_culprits(detector):
    """Their probability is that of a level without rows in the prior, so a known level is likelier."""
    known = people().iloc[[1, 2]]
    rows = known.assign(city=["Bergen", known["city"].iloc[1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores, p = detector.score_samples(rows), detector.p_values(rows)
    gap = detector.score_samples(rows.assign(city=[None, known["city"].iloc[1]]))
    np.testing.assert_allclose(scores - gap, [-np.log(2 * (len(people()) + 1)), 0.0], atol=1e-9)
    assert scores[0] < detector.score_samples(known)[0]
    assert p[0] < 0.05
    assert detector.predict(rows)[0] == -1
    cell = detector.explain(rows.iloc[:1]).iloc[0]
    assert (cell["column"], cell["value"], cell["culprit"]) == ("city", "Bergen", 1)
    assert cell["p_value"] == cell["alone"] == pytest.approx(1 / (2 * (len(people()) + 1)))
    assert cell["expected"] in ("Bern", "Oslo")
    both = detector.explain(rows.iloc[:1].assign(x=-40.0))
    assert both["column"].tolist()[:2] == ["city", "x"]
    assert both["culprit"].tolist() == [1, 2, 0, 0]


def test_unseen_levels_may_be_errors():
    detector = RTBMOutlierDetector(quick(handle_unknown="error")).fit(people(100))
    for method in (detector.score_samples, detector.explain):
        with pytest.raises(InvalidInputError, match=r"city has levels that were not there.*Bergen"):
            method(people(100).iloc[:1].assign(city="Bergen"))


def test_explanations_of_frames_of_polars():
    table = pl.from_pandas(people(150))
    found = RTBMOutlierDetector(quick()).fit(table).explain(table[:2])
    assert isinstance(found, pl.DataFrame)
    assert found["row"].to_list() == [0] * 4 + [1] * 4
    assert found["column"].to_list() == table.columns * 2


def test_one_column_and_constant_columns():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=100), np.ones(100)])
    found = RTBMOutlierDetector(quick()).fit(X).explain(X[:3])
    assert not found.culprit[:, 1].any()
    np.testing.assert_allclose(found.p_value[:, 0], found.alone[:, 0])
    assert np.isnan(found.p_value[:, 1]).all()


def test_bad_rows_and_coverage(detector):
    with pytest.raises(InvalidInputError, match="coverage"):
        detector.explain(people().iloc[:1], coverage=1.5)
    with pytest.raises(InvalidInputError, match="one row"):
        plot_explanation(detector, people().iloc[:2])


def test_a_picture_of_a_row(detector):
    row = people().iloc[[1]].assign(x=2.0, city="Oslo")
    found = detector.explain(row)
    ax = plot_explanation(detector, row)
    assert [label.get_text().split(" = ")[0] for label in ax.get_yticklabels()] == [*found["column"]]
    given = [bar.get_width() for bar in ax.containers[1]]
    np.testing.assert_allclose(given, np.maximum(-np.log10(found["p_value"]), 0), atol=1e-12)
    plt.close("all")


@pytest.mark.parametrize("size", [1e12, 1e20, 1e50, 1e100, 1e200])
def test_values_far_out_are_outliers_and_no_errors(size):
    rng = np.random.default_rng(0)
    detector = RTBMOutlierDetector(random_state=0).fit(rng.normal(size=(200, 2)))
    rows = np.array([[size, 0.0], [size, np.nan], [0.0, 0.0]])
    assert detector.predict(rows).tolist() == [-1, -1, 1]
    assert detector.score_samples(rows)[2] == detector.score_samples(rows[2:])[0]


def test_numbers_beyond_the_cells_of_a_rounded_column_are_improbable():
    X = np.random.default_rng(0).integers(0, 30, (200, 2)).astype(float)
    detector = RTBMOutlierDetector(RTBMDensity(1, n_init=1, random_state=0)).fit(X)
    found = detector.explain([[1e6, 3.0], [-50.0, 3.0], [29.0, 3.0]])
    assert (found.p_value[:2, 0] < 1e-4).all()
    assert found.p_value[2, 0] > 0.01


def test_cells_beyond_a_bound_are_culprits_whatever_the_others_are():
    X = np.random.default_rng(0).lognormal(size=(150, 3))
    density = RTBMDensity(1, n_init=1, random_state=0, bounds=(0, None))
    detector = RTBMOutlierDetector(density).fit(X)
    assert detector.explain([[1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]]).culprit.tolist() == [[0, 1, 2], [1, 2, 3]]
