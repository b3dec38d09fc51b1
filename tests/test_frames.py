"""Data frames in and out of all estimators: names, index, missing values, and columns that are no numbers."""

import datetime

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags

from estimators import ESTIMATORS
from rtbm import InvalidInputError

pd = pytest.importorskip("pandas")

INDEXES = {
    "shuffled": np.random.default_rng(1).permutation(60),
    "text": [f"row {i}" for i in range(60)],
    "repeated": [7] * 60,
    "dates": pd.date_range("2020-01-01", periods=60),
    "two levels": pd.MultiIndex.from_product([range(6), range(10)]),
}


@pytest.fixture(scope="module")
def frame():
    x = np.random.default_rng(0).normal(size=(60, 3))
    return pd.DataFrame({"c": x[:, 0], "a": x[:, 0] + x[:, 1], "b": x[:, 2]})


@pytest.fixture(scope="module")
def density(frame):
    return ESTIMATORS["mixture"]().set_output(transform="pandas").fit(frame)


def with_gaps(frame, share=0.3):
    return frame.mask(np.random.default_rng(2).random(frame.shape) < share)


@pytest.mark.parametrize("method", ["mean", "sample"])
@pytest.mark.parametrize("name", list(INDEXES))
def test_imputed_frames_keep_index_and_names(density, frame, name, method):
    gaps = with_gaps(frame).set_axis(INDEXES[name])
    filled = density.impute(gaps, method=method)
    pd.testing.assert_index_equal(filled.index, gaps.index)
    pd.testing.assert_index_equal(filled.columns, gaps.columns)
    assert not filled.isna().to_numpy().any()
    pd.testing.assert_frame_equal(filled.where(gaps.notna()), gaps)


@pytest.mark.parametrize("name", ["machine", "mixture", "committee", "features"])
def test_transformed_frames_keep_the_index(frame, name):
    model = ESTIMATORS[name]().set_output(transform="pandas")
    rows = frame.set_axis(INDEXES["text"])
    model.fit(rows, rows["c"] > 0)
    found = model.transform(rows[::-1])
    pd.testing.assert_index_equal(found.index, rows.index[::-1])
    assert list(found.columns) == list(model.get_feature_names_out())


def test_draws_are_numbered_anew(density, frame):
    draws = density.sample(5, random_state=0)
    assert list(draws.columns) == list(frame.columns)
    assert list(draws.index) == list(range(5))
    assert list(density.marginal(["b", "c"]).sample(2).columns) == ["b", "c"]


@pytest.mark.parametrize("columns", [[0, 1, 2], [5, 3, 4], pd.MultiIndex.from_product([["u"], list("xyz")])])
def test_columns_whose_names_are_no_strings(frame, columns):
    rows = frame.set_axis(columns, axis=1)
    model = ESTIMATORS["machine"]().set_output(transform="pandas").fit(rows)
    filled = model.impute(with_gaps(rows).set_axis(INDEXES["shuffled"]))
    pd.testing.assert_index_equal(filled.columns, rows.columns)
    assert list(filled.index) == list(INDEXES["shuffled"])
    assert list(model.sample(2).columns) == [0, 1, 2]


def test_frames_of_polars(frame):
    pl = pytest.importorskip("polars")
    rows = pl.DataFrame(with_gaps(frame).to_dict("list"), nan_to_null=True)
    model = ESTIMATORS["machine"]().fit(rows)
    filled = model.impute(rows)
    assert filled.columns == model.sample(2).columns == ["c", "a", "b"]
    cells = rows.to_numpy()
    np.testing.assert_array_equal(filled.to_numpy(), ESTIMATORS["machine"]().fit(cells).impute(cells))
    np.testing.assert_array_equal(model.predict_mean(rows.drop("a"), "a"), model.predict_mean(rows, "a"))
    dated = rows.with_columns(d=pl.date_range(datetime.date(2020, 1, 1), datetime.date(2020, 2, 29), eager=True))
    assert model.fit(dated).sample(2)["d"].dtype == pl.Date
    with pytest.raises(InvalidInputError, match="only one value of d"):
        model.fit(rows.with_columns(d=pl.lit("x")))


def test_known_cells_of_constant_columns_are_kept(frame):
    rows = frame.assign(d=2.0)
    model = ESTIMATORS["machine"]().set_params(drop_constant=True).fit(rows)
    filled = model.impute(rows[:2].assign(a=np.nan, d=[7.0, np.nan]))
    assert filled["d"].tolist() == [7.0, 2.0]


BAD_COLUMNS = {
    "text": lambda n: ["x"] * n,
    "text that begins with a gap": lambda n: [None] + ["x"] * (n - 1),
    "categories": lambda n: pd.Categorical(["x"] * n),
    "nullable text": lambda n: pd.array([pd.NA] + ["x"] * (n - 1), dtype="string"),
    "periods": lambda n: pd.period_range("2020-01-01", periods=n, freq="D"),
    "durations": lambda n: pd.to_timedelta(np.arange(n), unit="s"),
    "Python's dates": lambda n: np.array([datetime.date(2020, 1, 1)] * n, dtype=object),
    "lists": lambda n: [[1, 2]] * n,
}


@pytest.mark.parametrize("kind", list(BAD_COLUMNS))
@pytest.mark.parametrize("alone", [False, True])
def test_columns_that_are_no_numbers_are_named(frame, kind, alone):
    rows = frame.assign(odd=BAD_COLUMNS[kind](len(frame)))
    with pytest.raises(InvalidInputError, match=r"X: .* got odd \(.*Leave such columns out"):
        ESTIMATORS["machine"]().set_params(categorical_features=None).fit(rows[["odd"]] if alone else rows)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_all_estimators_name_columns_that_are_no_numbers(frame, name):
    model, y = ESTIMATORS[name](), frame["c"] > 0
    if "categorical_features" in model.get_params():
        model.set_params(categorical_features=None)
    odd = frame.assign(a="x", b=pd.Timedelta(1))
    with pytest.raises(InvalidInputError, match=r"got a \('x'\), b \(Timedelta"):
        model.fit(odd, y)
    with pytest.raises(InvalidInputError, match=r"got feature 1 \('x'\)"):
        model.fit(frame.assign(a="x").to_numpy(dtype=object), y)
    model.fit(frame[["a", "b"]], y + 0.1 * frame["b"] if "regressor" in name else y)
    for method in ("transform", "predict", "score_samples", "predict_proba", "impute", "decision_function"):
        if hasattr(model, method):
            with pytest.raises(InvalidInputError, match=r"got b \('x'\)"):
                getattr(model, method)(frame[["a"]].assign(b="x"))


def test_targets_that_are_no_numbers_are_named(frame):
    for name in ("regressor", "theta regressor"):
        with pytest.raises(InvalidInputError, match=r"y: .* got price \('dear'\)"):
            ESTIMATORS[name]().fit(frame, pd.DataFrame({"price": ["dear"] * 60}))
        with pytest.raises(InvalidInputError, match=r"y: .* got y \(Timestamp"):
            ESTIMATORS[name]().fit(frame, pd.Series(pd.date_range("2020-01-01", periods=60)))


def test_arrays_of_dates_are_refused():
    days = np.arange(20).reshape(10, 2).astype("datetime64[ns]")
    for array in (days, days - days[0]):
        with pytest.raises(InvalidInputError, match="got feature 0"):
            ESTIMATORS["machine"]().fit(array)


def test_two_columns_of_one_name_are_refused(frame):
    with pytest.raises(InvalidInputError, match="X has several columns of the name a: rename"):
        ESTIMATORS["machine"]().fit(frame.set_axis(["a", "a", "b"], axis=1))


@pytest.mark.parametrize("dtype", ["Float64", "Int64", "object", "category"])
def test_missing_cells_of_all_types_are_nan(frame, dtype):
    plain = with_gaps((10 * frame).round())
    other = plain.convert_dtypes().astype(object) if dtype == "object" else plain.astype(dtype)
    model = ESTIMATORS["machine"]().set_params(categorical_features=None)
    expected, found = (clone(model).fit(rows) for rows in (plain, other))
    np.testing.assert_array_equal(found.score_samples(other), expected.score_samples(plain))


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_estimators_say_whether_they_take_gaps(frame, name):
    model, gaps = ESTIMATORS[name](), with_gaps(frame)
    y = frame["a"] + frame["b"] ** 2 if "regressor" in name else frame["c"] > 0
    model.fit(frame, y)
    methods = [m for m in ("transform", "predict", "score_samples", "predict_proba", "impute") if hasattr(model, m)]
    if get_tags(model).input_tags.allow_nan:
        whole = gaps.notna().all(axis=1).to_numpy()
        for fitted in (model, clone(model).fit(gaps, y)):
            for method in methods:
                found, expected = (np.asarray(getattr(fitted, method)(rows), dtype=float) for rows in (gaps, frame))
                np.testing.assert_allclose(found[whole], expected[whole], rtol=1e-6, atol=1e-9)
                assert not np.isnan(found).any()
    else:
        for method in (*methods, "fit"):
            with pytest.raises(InvalidInputError, match=r"X holds .* \(NaN\).* impute them first"):
                getattr(model, method)(gaps, *([y] if method == "fit" else []))


def test_frames_of_known_values(density, frame):
    known = frame[["b", "c"]].mask(frame > 1)
    objects = known.astype(object).where(known.notna(), pd.NA)
    np.testing.assert_array_equal(density.conditional(objects).mean, density.conditional(known).mean)
    with pytest.raises(InvalidInputError, match="values has several columns of the name b"):
        density.conditional(frame[["b", "b"]])


@pytest.mark.parametrize(
    ("name", "expected"), [("price", "price"), (5, "5"), (None, "target"), ("a", "target 0"), (("u", 1), "('u', 1)")]
)
def test_densities_of_regressors_name_their_targets(frame, name, expected):
    model = ESTIMATORS["regressor"]().fit(frame[["a", "b"]], frame["c"].rename(name))
    assert list(model.density_.feature_names_in_) == ["a", "b", expected]
    rows = frame[["a", "b"]].assign(**{expected: 0.0})
    np.testing.assert_allclose(model.density_.predict_mean(rows, expected), model.predict(frame[["a", "b"]]))


def test_strings_of_numbers_are_numbers(frame):
    gaps, text = frame.mask(frame > 1), frame.astype(str).mask(frame > 1, pd.NA)
    expected, found = (ESTIMATORS["machine"]().fit(rows) for rows in (gaps, text))
    np.testing.assert_array_equal(found.impute(text), expected.impute(gaps))
