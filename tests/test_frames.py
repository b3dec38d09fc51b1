"""Data frames in and out of all estimators: names, index, missing values, and columns that are no numbers."""

import datetime
from decimal import Decimal

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils import get_tags

from estimators import ESTIMATORS
from rtbm import InvalidInputError, RTBMImputer, load, save
from rtbm.estimators.checks import to_numpy

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
    with pytest.raises(InvalidInputError, match="needs strings as names"):
        model.conditional(rows.iloc[:2, 1:2])


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
    "times of a day": lambda n: np.array([datetime.time(1)] * n, dtype=object),
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
    with pytest.raises(InvalidInputError, match=r"got (a \('x'\) in row 0, )?b \(Timedelta"):
        model.fit(odd, y)
    with pytest.raises(InvalidInputError, match=r"got feature 1 \('x'\)"):
        model.fit(frame.assign(a="x").to_numpy(dtype=object), y)
    model.fit(frame[["a", "b"]], y + 0.1 * frame["b"] if "regressor" in name else y)
    for method in ("transform", "predict", "score_samples", "predict_proba", "impute", "decision_function"):
        if hasattr(model, method):
            with pytest.raises(InvalidInputError, match=r"got b \('x'\)"):
                getattr(model, method)(frame[["a"]].assign(b="x"))


def test_durations_are_named_and_not_the_columns_of_categories(frame):
    rows = frame.assign(city=["Bern", "Oslo"] * 30, wait=pd.to_timedelta(frame["a"], unit="h"))
    for table in (rows, pytest.importorskip("polars").from_pandas(rows)):
        with pytest.raises(InvalidInputError, match=r"X: .* got wait \(.*\) in row 0\. .*durations into numbers"):
            ESTIMATORS["machine"]().fit(table)
    cells = np.array([[0.5, "Bern", pd.Timedelta(1)], [1.5, "Oslo", pd.Timedelta(2)]] * 30, dtype=object)
    with pytest.raises(InvalidInputError, match=r"X: .* got feature 2 \(Timedelta"):
        ESTIMATORS["machine"]().set_params(categorical_features=[1]).fit(cells)


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_all_estimators_name_the_column_and_the_row_of_infinite_numbers(frame, name):
    model, y = ESTIMATORS[name](), frame["c"] > 0
    y = y + 0.1 * frame["b"] if "regressor" in name else y
    rows = frame.assign(b=frame["b"].where(frame.index != 7, -np.inf))
    for table, column in ((rows, "b"), (rows.to_numpy(), "feature 2"), (rows.astype(object), "b")):
        with pytest.raises(InvalidInputError, match=rf"X: .* got {column} \(.*-inf.*\) in row 7\. Replace"):
            model.fit(table, y)
    model.fit(frame, y)
    for method in ("transform", "predict", "score_samples", "predict_proba", "impute", "decision_function", "explain"):
        if hasattr(model, method):
            with pytest.raises(InvalidInputError, match=r"X: .* got b \(.*-inf.*\) in row 7\."):
                getattr(model, method)(rows)


def test_infinite_numbers_beside_categories_and_in_targets_and_blocks_are_named(frame):
    rows = frame.assign(b=frame["b"].where(frame.index != 7, np.inf), city=["Bern", "Oslo"] * 30)
    with pytest.raises(InvalidInputError, match=r"X: .* got b \(.*inf.*\) in row 7\."):
        ESTIMATORS["machine"]().fit(rows)
    with pytest.raises(InvalidInputError, match=r"X: .* got b \(inf\) in row 7 of a block"):
        ESTIMATORS["machine"]().fit([rows[:20], rows[20:]])
    with pytest.raises(InvalidInputError, match=r"y: .* got y \(.*inf.*\) in row 7\."):
        ESTIMATORS["regressor"]().fit(frame, rows["b"])


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
    filled = found.impute(text)
    np.testing.assert_array_equal(filled.astype(float), expected.impute(gaps))
    assert (filled == text).to_numpy()[gaps.notna()].all()


def arrow(name):
    return lambda column: column.astype(f"{name}[pyarrow]")


DATES = {
    "zone": lambda days: days.dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
    "arrow": arrow("timestamp[us]"),
    "arrow with a zone": lambda days: arrow("timestamp[us, tz=Asia/Tokyo]")(days.dt.tz_localize("UTC")),
    "arrow without times": arrow("date32[day]"),
    "timestamps": lambda days: days.astype(object),
    "times of Python": lambda days: pd.Series(
        [None if pd.isna(day) else day.to_pydatetime() for day in days], dtype=object
    ),
    "zones of Python": lambda days: days.dt.tz_localize("UTC").astype(object),
    "days of Python": lambda days: days.dt.date,
}


@pytest.mark.parametrize("kind", list(DATES))
@pytest.mark.filterwarnings("error")
def test_dates_of_all_kinds(frame, kind):
    if "arrow" in kind:
        pytest.importorskip("pyarrow")
    days = pd.Series(pd.Timestamp("2020-01-01") + pd.to_timedelta((100 * frame["a"]).round(), "D"))
    plain = frame[["b"]].assign(d=days.mask(frame["c"] > 1))
    other = plain.assign(d=DATES[kind](plain["d"]))
    expected, found = (ESTIMATORS["machine"]().fit(rows) for rows in (plain, other))
    np.testing.assert_array_equal(found.score_samples(other), expected.score_samples(plain))
    means = expected.conditional({"d": plain["d"]}).mean
    index = pd.Index(other["d"], dtype=other["d"].dtype)
    for known in (other[["d"]], {"d": other["d"]}, {"d": index}, {"d": list(other["d"])}):
        np.testing.assert_array_equal(found.conditional(known).mean, means)
    one = found.conditional({"d": other["d"].iloc[0]}).distribution_.mean
    assert one == expected.conditional({"d": plain["d"].iloc[0]}).distribution_.mean
    filled = found.impute(other)["d"]
    assert filled.dtype == other["d"].dtype
    assert not filled.isna().any()
    assert len({getattr(cell, "tzinfo", None) for cell in filled}) == 1
    pd.testing.assert_series_equal(filled[plain["d"].notna()], other["d"][plain["d"].notna()])
    assert type(found.sample(1)["d"].iloc[0]) in (type(filled.iloc[0]), pd.Timestamp)


def table_without_repeats(n=150):
    """Numbers, days and booleans of many dtypes, of which no number or day occurs twice."""
    rng = np.random.default_rng(0)
    days = pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.permutation(9999)[:n], "D")
    return pd.DataFrame(
        {
            "int": rng.permutation(100_000)[:n],
            "Int64": pd.array(rng.permutation(100_000)[:n], dtype="Int64"),
            "float": rng.normal(size=n).astype(np.float32),
            "Float32": pd.array(rng.normal(size=n), dtype="Float32"),
            "price": rng.permutation(100_000)[:n] / 100,
            "day": days,
            "flag": rng.random(n) < 0.5,
            "boolean": pd.array(rng.random(n) < 0.5, dtype="boolean"),
            "x": rng.normal(size=n),
        }
    )


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_draws_have_the_dtypes_and_decimals_of_tables_without_repeats(library):
    table = table_without_repeats()
    gaps = table[["x"]].reindex(columns=table.columns)
    if library == "polars":
        pl = pytest.importorskip("polars")
        table = pl.DataFrame({name: pl.Series(table[name].tolist()) for name in table.columns})
        table = table.with_columns(pl.col("day").cast(pl.Date), pl.col("float", "Float32").cast(pl.Float32))
        gaps = table.clear(n=len(table)).with_columns(table["x"])
    model = ESTIMATORS["mixture"]().fit(table)
    assert all(own is None for own in model.columns_.cells)
    imputer = RTBMImputer(model, method="sample", random_state=0).fit(table)
    for draws in (model.sample(50, random_state=0), model.impute(gaps, "sample"), imputer.transform(gaps)):
        assert list(draws.dtypes) == list(table.dtypes)
        assert (draws["price"].round(2) - draws["price"]).abs().max() < 1e-9
        days = np.array(draws["day"], dtype="datetime64[us]")
        np.testing.assert_array_equal(days, days.astype("datetime64[D]"))
    days = np.array(model.impute(gaps)["day"], dtype="datetime64[us]")  # means
    np.testing.assert_array_equal(days, days.astype("datetime64[D]"))


def test_draws_of_whole_numbers_stay_within_bounds():
    X = np.random.default_rng(0).permutation(np.arange(1.0, 121.0))[:, None]
    model = ESTIMATORS["mixture"]().set_params(bounds=(0, 120.5)).fit(X)
    draws = model.sample(3000, random_state=0)
    np.testing.assert_array_equal(draws, draws.round())
    assert np.isfinite(model.score_samples(draws)).all()
    free = ESTIMATORS["mixture"]().set_params(rounded=None).fit(X).sample(10, random_state=0)
    assert (free != free.round()).any()
    tiny = ESTIMATORS["mixture"]().fit(1e-11 * X * np.pi)
    assert len(np.unique(tiny.sample(50, random_state=0))) == 50


NUMBERS = np.random.default_rng(3).normal(size=60)
KNOWN_CELLS = {
    "numbers beyond 2^53": lambda: pd.Series((2**60 + 2**58 * NUMBERS).astype(np.int64) | 1, dtype="Int64"),
    "nanoseconds": lambda: pd.Series((1.6e18 + 1e15 * NUMBERS).astype("datetime64[ns]")),
    "decimals": lambda: pd.Series([Decimal(f"{cell:.2f}") for cell in NUMBERS]),
    "strings": lambda: pd.Series([f"{cell:.2f}" for cell in NUMBERS], dtype=object),
    "decimals of arrow": lambda: KNOWN_CELLS["decimals"]().astype(
        pd.ArrowDtype(__import__("pyarrow").decimal128(9, 2))
    ),
    "categories": lambda: pd.Series(pd.Categorical(NUMBERS > 0, categories=[True, False, "maybe"], ordered=True)),
    "text of arrow": lambda: pd.Series(np.where(NUMBERS > 0, "a", "b"), dtype="large_string[pyarrow]"),
    "booleans of arrow": lambda: pd.Series(NUMBERS > 0, dtype="bool[pyarrow]"),
}


@pytest.mark.parametrize("kind", list(KNOWN_CELLS))
@pytest.mark.parametrize("method", ["mean", "sample"])
def test_known_cells_are_left_alone(frame, kind, method):
    if "arrow" in kind:
        pytest.importorskip("pyarrow")
    whole, known = frame[["a"]].assign(odd=KNOWN_CELLS[kind]()), frame["c"] < 0.5
    rows = whole.assign(odd=whole["odd"].where(known))
    model = ESTIMATORS["mixture"]().fit(rows)
    assert (model.categories_[1] is None) == (kind not in ("categories", "text of arrow", "booleans of arrow"))
    filled = model.impute(rows, method)["odd"]
    pd.testing.assert_series_equal(filled[known].astype(object), whole["odd"][known].astype(object))
    assert not filled.isna().any()
    assert len(set(map(type, filled))) == 1
    assert filled.dtype == rows["odd"].dtype or "arrow" in kind
    pd.testing.assert_frame_equal(model.impute(whole), whole)
    if kind == "categories":
        assert model.sample(1)["odd"].dtype == rows["odd"].dtype


def polars_columns():
    pl = pytest.importorskip("polars")
    days = pl.Series([datetime.datetime(2020, 1, 1) + datetime.timedelta(days=round(100 * cell)) for cell in NUMBERS])
    ids = pl.Series((2**60 + 2**58 * NUMBERS).astype(np.int64) | 1)
    sizes = pl.Series(np.where(NUMBERS > 0, "S", "L"), dtype=pl.Enum(["S", "M", "L"]))
    zones = days.dt.replace_time_zone("Asia/Tokyo")
    decimals = pl.Series(NUMBERS).cast(pl.Decimal(10, 2))
    strings = decimals.cast(pl.String)
    return {
        "zones": zones,
        "ms": days.cast(pl.Datetime("ms")),
        "decimals": decimals,
        "ids": ids,
        "sizes": sizes,
        "strings": strings,
    }


@pytest.mark.parametrize("kind", ["zones", "ms", "decimals", "ids", "sizes", "strings"])
def test_columns_of_polars_keep_dtypes_and_known_cells(frame, kind, tmp_path):
    pl = pytest.importorskip("polars")
    whole, known = polars_columns()[kind], pl.Series((frame["c"] < 0.5).to_numpy())
    rows = pl.DataFrame(
        {"a": frame["a"].to_numpy(), "odd": whole.zip_with(known, pl.Series([None], dtype=whole.dtype))}
    )
    model = ESTIMATORS["mixture"]().fit(rows)
    save(model, tmp_path / "m")
    for method in ("mean", "sample"):
        filled = model.impute(rows, method)["odd"]
        assert filled.dtype == load(tmp_path / "m").sample(1)["odd"].dtype == whole.dtype
        assert not filled.has_nulls()
        assert filled.filter(known).equals(whole.filter(known))
    if kind == "sizes":
        assert model.categories_[1] == ["S", "M", "L"]


# Identifiers


def make_people(library):
    """A table with names, numbers that count the rows, and columns that say something."""
    rng, n = np.random.default_rng(0), 90
    x = rng.normal(size=n)
    names = [f"Person {max(i, 3)}" for i in range(n)]
    table = {"id": range(1, 1 + n), "name": names, "x": x, "city": rng.choice(["Oslo", "Rome"], n)}
    return pytest.importorskip(library).DataFrame(table), pd.Series(2 * x + 0.1 * rng.normal(size=n))


LEFT_OUT = r"identifiers are left out: name \(text, 87 different values\), id \(whole numbers that count the rows\)"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_identifiers_are_left_out(library, tmp_path):
    people, _ = make_people(library)
    with pytest.warns(UserWarning, match=LEFT_OUT) as caught:
        model = ESTIMATORS["mixture"]().fit(people)
    assert len([w for w in caught if "identifiers" in str(w.message)]) == 1
    others = people[["x", "city"]]
    expected = ESTIMATORS["mixture"]().fit(others)
    np.testing.assert_array_equal(model.score_samples(people), expected.score_samples(others))
    draws = model.sample(20, random_state=0)
    draws = pd.DataFrame({name: list(draws[name]) for name in draws.columns})
    assert draws[["id", "name"]].isna().all(axis=None)
    assert draws[["x", "city"]].notna().all(axis=None)
    assert model.marginal(["x"]).n_features_in_ == 1
    with pytest.raises(InvalidInputError, match="feature name holds identifiers"):
        model.conditional({"name": "Person 7"})
    save(model, tmp_path / "m.rtbm")
    assert b"Person" not in (tmp_path / "m.rtbm").read_bytes()
    np.testing.assert_array_equal(load(tmp_path / "m.rtbm").score_samples(people), model.score_samples(people))


@pytest.mark.filterwarnings("ignore:X. identifiers")
@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_identifiers_stay_where_other_gaps_are_filled(library):
    people, _ = make_people(library)
    gaps = pd.DataFrame({name: list(people[name]) for name in people.columns})
    gaps.loc[5, ["name", "x"]] = None
    gaps = gaps if library == "pandas" else pytest.importorskip("polars").from_pandas(gaps)
    filled = ESTIMATORS["imputer"]().fit(people).transform(gaps)
    for name in ("id", "name"):
        assert filled[name].equals(gaps[name])
    assert np.isfinite(np.asarray(filled["x"])).all()


@pytest.mark.parametrize("name", ["regressor", "classifier", "imputer", "outlier detector", "committee"])
def test_all_estimators_of_tables_leave_identifiers_out(name):
    people, y = make_people("pandas")
    labels = y > 0 if name == "classifier" else y
    with pytest.warns(UserWarning, match=LEFT_OUT) as caught:
        model = ESTIMATORS[name]().fit(people, labels)
    assert len([w for w in caught if "identifiers" in str(w.message)]) == 1
    method = {"imputer": "transform", "committee": "score_samples"}.get(name, "predict")
    others = people[["x", "city"]]
    expected, found = ESTIMATORS[name]().fit(others, labels), getattr(model, method)(people)
    found = found[["x", "city"]] if name == "imputer" else found
    np.testing.assert_array_equal(found, getattr(expected, method)(others))
    if name == "committee":  # rows may lack identifiers
        np.testing.assert_array_equal(model.score_samples(others), found)


@pytest.mark.filterwarnings("error:X. identifiers")
def test_what_is_no_identifier():
    people, _ = make_people("pandas")
    kept = ESTIMATORS["machine"]().set_params(n_components=2, categorical_features=["name", "city"]).fit(people)
    assert [own and len(own) for own in kept.categories_] == [None, 87, None, 2]  # the user says what columns are
    assert ESTIMATORS["machine"]().fit(people[:20]).categories_[1] is not None  # a short table
    shuffled = people[["id", "x"]].sample(frac=1, random_state=0)
    for table in (people[["id"]], shuffled, people[["id", "x"]].to_numpy()):
        assert ESTIMATORS["machine"]().fit(table).categories_ == [None] * table.shape[1]
    numbers = pd.Series(range(90), name="number")
    assert ESTIMATORS["regressor"]().fit(people[["x", "city"]], numbers).predict(people[["x", "city"]]).shape == (90,)
    with pytest.raises(InvalidInputError, match="all columns hold identifiers, name: list columns of categories"):
        ESTIMATORS["machine"]().fit(people[["name"]])


def test_lazy_frames_are_to_be_collected():
    pl = pytest.importorskip("polars")
    with (
        pytest.raises(InvalidInputError, match=r"collect\(\) it first"),
        pytest.warns(pl.exceptions.PerformanceWarning),
    ):
        ESTIMATORS["machine"]().fit(pl.LazyFrame({"a": [1.0, 2.0]}))


def test_masked_cells_are_gaps(frame):
    gaps = with_gaps(frame).to_numpy()
    masked = np.ma.MaskedArray(np.where(np.isnan(gaps), -9999.0, gaps), np.isnan(gaps))
    expected, found = (ESTIMATORS["machine"]().fit(rows) for rows in (gaps, masked))
    np.testing.assert_array_equal(found.impute(masked), expected.impute(gaps))
    np.testing.assert_array_equal(found.conditional({0: masked[:, 0]}).mean, expected.conditional({0: gaps[:, 0]}).mean)
    assert to_numpy(np.ma.MaskedArray(["x", "y"], [False, True])).tolist() == ["x", None]
    assert to_numpy(np.ma.MaskedArray([1, 2])).dtype == np.int64
