"""Tables with categories, atoms and rounded columns in blocks: the fit of the same rows in memory."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import config_context

from rtbm import FileError, InvalidInputError, RTBMDensity
from test_sources import WORKER, two_processes

N = 21_000  # more than the rows of a sample


def make_table(n=N, seed=0):
    """Cities and a flag, a number with an atom, a rounded number and one more, with gaps in all of them."""
    rng = np.random.default_rng(seed)
    city = rng.integers(0, 3, n)
    place = np.array([0.0, 3.0, -2.0])[city]
    table = pd.DataFrame(
        {
            "x": place + rng.normal(size=n),
            "city": np.array(["Rome", "Oslo", "Bern"])[city],
            "income": np.where(rng.random(n) < 0.3, 0.0, np.exp(0.3 * place + 0.5 * rng.normal(size=n))),
            "age": (40 + 5 * place + 10 * rng.normal(size=n)).round(),
            "flag": rng.random(n) < 0.3,
        }
    )
    return table.astype({"flag": object}).mask(np.random.default_rng(1).random(table.shape) < 0.05)


def density(**options):
    return RTBMDensity(1, **{"n_components": 3, "n_init": 1, "max_iter": 40, "random_state": 0, **options})


TABLE = make_table()
FEW = TABLE[:300].reset_index(drop=True)


def parts_of(table, *edges):
    return [table[a:b] for a, b in zip((0, *edges), (*edges, len(table)), strict=True)]


@pytest.fixture(scope="module")
def whole():
    return density(margins="yeo-johnson").fit(TABLE)


def assert_same(one, two, rows=TABLE):
    assert one.categories_ == two.categories_
    assert one.columns_.atoms == two.columns_.atoms
    assert one.summary_["n_observations"] == two.summary_["n_observations"]
    assert np.allclose(one.score_samples(rows), two.score_samples(rows), rtol=0, atol=1e-8)


@pytest.mark.filterwarnings("ignore:the solver")
def test_frames_in_blocks_give_the_fit_of_the_frame(whole):
    assert whole.columns_.atoms == [[], [], [0.0], [], []]
    assert whole.columns_.cells[3].width == 1.0
    assert abs((whole.sample(3000, random_state=0)["city"] == "Oslo").mean() - 1 / 3) < 0.04
    parts = density(margins="yeo-johnson").fit(parts_of(TABLE, 5, 5, 9000))
    assert_same(parts, whole)
    assert list(parts.sample(2, random_state=0).columns) == list(TABLE.columns)


def test_few_rows_in_blocks_give_the_fit_of_the_frame():
    assert_same(density().fit(parts_of(FEW, 100)), density().fit(FEW), FEW)


def test_arrays_of_codes_and_weights_in_blocks():
    table = FEW.drop(columns="income")
    codes = table.assign(city=table["city"].map({"Bern": 0, "Oslo": 1, "Rome": 2}), flag=table["flag"].astype(float))
    rows, weights = codes.to_numpy(dtype=float), np.random.default_rng(2).integers(0, 3, len(FEW)).astype(float)
    options = {"categorical_features": {1: [0.0, 1.0, 2.0], 3: [0.0, 1.0]}, "rounded": None}
    whole = density(**options).fit(rows, sample_weight=weights)
    blocks = [(rows[:120], weights[:120]), (torch.from_numpy(rows[120:]), weights[120:])]
    found = {"categorical_features": [1, 3], "rounded": None}
    for parts in (density(**options).fit(blocks), density(**found).fit(blocks)):
        assert_same(parts, whole, rows)
    repeated = np.repeat(rows, weights.astype(int), axis=0)
    assert_same(density(**options).fit([repeated[:99], repeated[99:]]), whole, rows)


@pytest.mark.filterwarnings("ignore:the solver")
def test_weights_repeat_rows_of_large_tables():
    rows = TABLE[["x", "city"]].fillna({"city": "Bern"})
    half, weights = rows[: N // 2], np.full(N // 2, 2.0)
    twice, weighted = density().fit([half, half]), density().fit([(half, weights)])
    assert weighted.summary_["n_observations"] == twice.summary_["n_observations"]
    assert abs(weighted.score(half) - twice.score(half)) < 1e-3  # starts on all rows, and on a sample of twice as many


def test_categories_alone_in_blocks():
    states = TABLE[["city", "flag"]]
    whole, parts = density(tol=1e-4).fit(states), density(tol=1e-4).fit(parts_of(states, 7, 15_000))
    assert_same(parts, whole, states[:200])
    assert parts.summary_["log_likelihood"] == pytest.approx(parts.score(states.dropna(how="all")), abs=1e-9)


@pytest.mark.filterwarnings("ignore:the solver")
def test_blocks_are_read_anew_where_memory_is_short():
    rows = TABLE[["x", "city", "age"]]
    whole = density(rounded=["age"]).fit(rows)
    with config_context(working_memory=0):
        again = density(rounded=["age"]).fit(parts_of(rows, 10_000))
    assert_same(again, whole, rows[:500])


def test_bounds_and_given_atoms_in_blocks():
    table = FEW[["income", "city", "x"]]
    options = {"bounds": {"income": (0, None)}, "atoms": {"income": [0.0]}}
    assert_same(density(**options).fit(parts_of(table, 50)), density(**options).fit(table), table)


@pytest.mark.filterwarnings("ignore::rtbm.SpikeWarning")
@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda t: t.assign(city=7), {}, "levels that were not there in the fit, 7|cells of several types"),
        (lambda t: t.rename(columns={"city": "town"}), {}, "expected x, city, income, age, flag, got x, town"),
        (lambda t: t.assign(city=[f"c{i}" for i in range(len(t))]), {"categorical_features": ["town"]}, "town"),
        (lambda t: t.assign(x="warm"), {"categorical_features": ["city", "flag"]}, "warm"),
        (lambda t: t, {"validation_fraction": 0.2, "rounded": None}, "blocks|validation_fraction"),
    ],
)
def test_wrong_tables_are_explained(change, options, message):
    with pytest.raises(InvalidInputError, match=message):
        density(**options).fit([FEW[:100], change(FEW[100:])])


def test_codes_in_files_are_categories_and_text_that_is_not_named_is_left_out(tmp_path):
    table = FEW.assign(code=FEW["city"].map({"Bern": 0.0, "Oslo": 1.0, "Rome": 2.0}))[["x", "code", "city"]]
    table.to_parquet(tmp_path / "t.parquet")
    model = density(categorical_features=["code"]).fit(tmp_path / "t.parquet")
    assert model.categories_ == [None, [0.0, 1.0, 2.0]]
    assert model.summary_["left_out"] == {"city": "text"}
    numbers = table[["x", "code"]].to_numpy()
    assert_same(model.set_feature_names(None), density(categorical_features=[1]).fit(numbers), numbers)
    assert density(categorical_features=None).fit(tmp_path / "t.parquet").categories_ == [None, None]


@pytest.mark.filterwarnings("ignore:the solver")
@pytest.mark.parametrize("kind", ["string", "dictionary"])
def test_text_in_a_file_gives_the_fit_of_the_frame(tmp_path, monkeypatch, kind):
    monkeypatch.setattr("rtbm.training.blocks.BLOCK_ROWS", 5000)
    table = TABLE[["x", "city", "age"]].sort_values("city", ignore_index=True)
    day = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(len(table)) % 97, "D")
    table = table.assign(day=day, one="a", who=[f"p{i}" for i in range(len(table))])
    stored = table.astype({"city": "category"}) if kind == "dictionary" else table
    stored.to_parquet(tmp_path / "t.parquet", row_group_size=4000, index=False)
    options = {"rounded": ["age"], "max_iter": 10}
    model = density(**options).fit(tmp_path / "t.parquet")
    assert model.summary_["left_out"] == {"one": "text, one value", "who": "text, more than 1,000 different values"}
    rows = table[["x", "city", "age", "day"]]
    assert_same(model, density(**options).fit(rows), rows)
    few = rows.sample(400, random_state=0)
    few.to_parquet(tmp_path / "few.parquet", index=False)
    assert_same(density(**options).fit(tmp_path / "few.parquet"), density(**options).fit(few), few)


@pytest.mark.filterwarnings("ignore:the solver")
def test_labels_and_given_levels_in_a_file(tmp_path):
    codes = FEW["city"].map({"Bern": "007", "Oslo": "12", "Rome": "V7"})
    table = FEW[["x", "flag"]].assign(code=codes.sort_values().to_numpy())
    table.to_parquet(tmp_path / "t.parquet", row_group_size=60)
    for asked in (["code", "flag"], {"code": ["V7", "12", "007"], "flag": [False, True]}):
        model = density(categorical_features=asked).fit(tmp_path / "t.parquet")
        assert_same(model, density(categorical_features=asked).fit(table), table)
    with pytest.raises(FileError, match=r"row \d+, column 'code': 'V7' is not a finite number"):
        density().fit(tmp_path / "t.parquet")
    many = pd.DataFrame({"x": np.arange(1200.0), "name": [f"n{i}" for i in range(1200)]})
    many.to_parquet(tmp_path / "many.parquet")
    with pytest.raises(InvalidInputError, match="column name has 1200 levels, more than 1000"):
        density(categorical_features=["name"]).fit(tmp_path / "many.parquet")


@pytest.mark.filterwarnings("ignore")
def test_dask_frames_with_categories():
    frames = pytest.importorskip("dask.dataframe")
    table = FEW[["x", "city", "age"]].assign(kind=FEW["flag"].astype("category"), note="text")
    parts = frames.from_pandas(table, npartitions=3, sort=False)
    model = density(categorical_features=["city", "kind"]).fit(parts)
    assert_same(
        model,
        density(categorical_features=["city", "kind"]).fit(table.drop(columns="note")),
        table[:50].drop(columns="note"),
    )
    by_dtype = density().fit(parts)
    assert by_dtype.categories_ == [None, None, [False, True]]
    assert set(by_dtype.summary_["left_out"]) == {"city", "note"}


def test_too_many_levels_are_explained():
    many = pd.DataFrame({"x": np.arange(1200.0), "name": [f"n{i}" for i in range(1200)]})
    with pytest.raises(InvalidInputError, match="column name has 1200 levels, more than 1000"):
        density().fit(parts_of(many, 600))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["few", "all"])
def test_two_processes_find_what_one_finds(kind, tmp_path):
    two_processes(WORKER, kind, "table", tmp_path / "out")
    first, second = (np.load(tmp_path / f"out.{rank}.npy") for rank in (0, 1))
    assert np.array_equal(first, second)
    table = FEW if kind == "few" else TABLE
    assert np.allclose(first, density().fit([table]).score_samples(table), rtol=0, atol=1e-8)


@pytest.mark.slow
def test_an_error_in_one_process_is_an_error_in_both(tmp_path):
    two_processes(WORKER, "text", "table", tmp_path / "out", fails=True)
    for rank in (0, 1):
        assert "city" in (tmp_path / f"out.{rank}.txt").read_text()
