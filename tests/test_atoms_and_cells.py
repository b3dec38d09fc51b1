"""Numbers with atoms, rounded numbers and dates: what columns are taken for, answers, draws, ranges and frames."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline

from rtbm import (
    InvalidInputError,
    RTBMDensity,
    RTBMDensityCV,
    RTBMImputer,
    RTBMOutlierDetector,
    SpikeWarning,
    load,
    save,
)
from rtbm.estimators.density.columns import ColumnKinds, find_atoms, find_cells


def quick(**options):
    return RTBMDensity(1, **{"n_components": 2, "n_init": 1, "random_state": 0, **options})


def make_table(n=400, seed=0):
    """Incomes, many of them 0, ages in years, days, a flag, and a number that depends on the age."""
    rng = np.random.default_rng(seed)
    works = rng.random(n) < 0.7
    age = rng.normal(40, 12, n).round().clip(18)
    return pd.DataFrame(
        {
            "income": np.where(works, np.exp(rng.normal(0, 0.5, n)), 0.0),
            "age": age.astype(int),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 500, n), unit="D"),
            "works": works,
            "x": 0.1 * age + rng.normal(size=n),
        },
        index=[f"row {i}" for i in range(n)],
    )


@pytest.fixture(scope="module")
def model():
    return quick().fit(make_table())


def test_what_columns_are_taken_for(model):
    assert model.columns_.atoms == [[0.0], [], [], [], []]
    assert [own and own.width for own in model.columns_.cells] == [None, 1.0, 1.0, None, None]
    assert model.categories_ == [None, None, None, [False, True], None]


@pytest.mark.parametrize(
    ("values", "atoms"),
    [
        (np.r_[np.zeros(30), np.linspace(1, 9, 70)], [0.0]),
        (np.r_[np.zeros(30), np.full(20, -1.0), np.linspace(1, 9, 50)], [-1.0, 0.0]),
        (np.r_[np.linspace(0, 49, 96), np.full(4, 50.0)], []),  # four of a hundred, but not ten times one
        (np.r_[np.linspace(0, 49, 300), np.full(12, 50.0)], [50.0]),
        (np.random.default_rng(0).poisson(1.0, 1000), []),
        (np.random.default_rng(0).integers(0, 2, 100), []),
        (np.random.default_rng(0).normal(50, 15, 2000).round(), []),
        (np.r_[np.zeros(50), np.ones(50)], []),
    ],
)
def test_which_values_are_atoms(values, atoms):
    assert find_atoms(values.astype(float), np.ones(len(values))) == atoms


@given(st.integers(0, 4), st.integers(1, 50), st.integers(0, 100))
@settings(max_examples=30)
def test_the_grid_of_rounded_numbers_is_found(decimals, step, seed):
    width = step / 10**decimals
    k = np.random.default_rng(seed).integers(-40, 40, 300)
    k[:2] = 0, 1
    cells = find_cells(k * width)
    assert cells is not None
    assert cells.width == pytest.approx(width, rel=1e-9)
    assert np.allclose(cells.nearest(k * width + 0.4 * width), np.clip(k, k.min(), k.max()) * width)


def test_what_is_not_rounded():
    rng = np.random.default_rng(0)
    assert find_cells(rng.normal(size=300)) is None
    assert find_cells(np.repeat(rng.normal(size=100), 3)) is None  # repeated, but on no grid
    assert find_cells(np.arange(300.0)) is None  # on a grid, but nothing repeats


def test_cells_of_few_values_meet_halfway():
    cells = find_cells(np.repeat([0.0, 1.0, 5.0, 10.0], 20))
    low, high = cells.ends(np.array([0.0, 1.0, 5.0, 10.0]))
    assert low.tolist() == [-np.inf, 0.5, 3.0, 7.5]
    assert high.tolist() == [0.5, 3.0, 7.5, np.inf]
    assert cells.nearest(np.array([-9.0, 2.9, 3.1, np.nan]))[:3].tolist() == [0.0, 1.0, 5.0]


def test_spread_values_stay_in_their_cells():
    columns = ColumnKinds([None], [[]], [find_cells(np.repeat(np.arange(12.0), 30))], [0])
    ends = np.array([0.0]), np.array([np.inf])
    rows, weights = columns.spread(np.repeat(np.arange(12.0), 30)[:, None], np.ones(360), ends, seed=0)
    assert weights.sum() == pytest.approx(360)
    assert np.array_equal(np.unique(np.rint(rows)), np.arange(12))
    assert rows.min() >= 0  # the bound
    inside = rows[np.rint(rows[:, 0]) == 5, 0]
    assert len(inside) == 30
    assert abs(inside - 5).max() <= 0.5
    assert np.histogram(inside, np.linspace(4.5, 5.5, 11))[0].tolist() == [3] * 10  # evenly


def test_weights_repeat_rows():
    table = make_table(150)
    twice = quick().fit(pd.concat([table, table]))
    weighted = quick().fit(table, sample_weight=np.full(150, 2.0))
    assert np.allclose(twice.score_samples(table), weighted.score_samples(table), atol=1e-9)


def test_atoms_are_probabilities(model):
    fresh = make_table(2000, seed=1)
    assert model.distribution_.marginal(0).category(0).probs[1] == pytest.approx(0.3, abs=0.07)
    zero = model.score_samples(fresh[:1].assign(income=0.0, works=None))
    given = model.score_samples(fresh[:1].assign(income=np.nan, works=None))
    share = model.conditional({name: fresh[name].iloc[:1] for name in ("age", "day", "x")}).category(0).probs[0, 1]
    assert zero - given == pytest.approx(float(share.log()), abs=1e-9)
    income = model.sample(4000, random_state=0)["income"]
    assert (income == 0).mean() == pytest.approx(float((make_table()["income"] == 0).mean()), abs=0.04)
    assert model.predict_proba(fresh.assign(income=0.0)[:1], "works")[0, 0] > 0.9


def test_cells_have_probabilities_with_sum_one(model):
    ages = np.arange(model.columns_.cells[1].low, model.columns_.cells[1].high + 1)
    row = make_table(1, seed=2)
    rows = row.loc[row.index.repeat(len(ages))].assign(age=ages)
    assert model.cell_probability(rows, "age").sum() == pytest.approx(1.0, abs=1e-9)
    alone = rows.assign(income=np.nan, day=pd.NaT, works=None)
    assert model.cell_probability(alone).sum() == pytest.approx(1.0, abs=1e-9)
    flag = model.cell_probability(row, "works")[0]
    assert flag == pytest.approx(model.predict_proba(row, "works")[0, int(row["works"].iloc[0])], abs=1e-12)
    with pytest.raises(InvalidInputError, match="target must be known in each row, and rounded"):
        model.cell_probability(row, "x")


@pytest.fixture(scope="module")
def visits():
    """Half of the people stayed away, the others came 2 to 17 times or so, and 99 stands for 'unknown'."""
    rng = np.random.default_rng(0)
    number = np.where(rng.random(800) < 0.5, 0.0, 1.0 + rng.poisson(8, 800))
    number[rng.random(800) < 0.1] = 99.0
    return quick().fit(pd.DataFrame({"number": number, "spent": 2.0 * number + rng.normal(size=800)}))


def test_atoms_beyond_the_cells_divide_the_open_ones(visits):
    cells, atoms = visits.columns_.cells[0], visits.columns_.atoms[0]
    assert atoms == [0.0, 99.0]
    values = np.array([0.0, *np.arange(cells.low, cells.high + 1), 99.0])
    alone = visits.marginal("number")
    found = alone.cell_probability(pd.DataFrame({"number": values}))
    assert found.sum() == pytest.approx(1.0, abs=1e-12)
    draws = alone.sample(20_000, random_state=0)["number"].to_numpy()
    assert np.allclose(found, [(draws == value).mean() for value in values], atol=0.015)  # 4 standard deviations
    given = visits.cell_probability(pd.DataFrame({"number": values, "spent": 10.0}), "number")
    assert given.sum() == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(("low", "high"), [(5, None), (None, 6), (0, 8), (8, 8), (0, 0), (50, None)])
def test_ranges_of_rounded_columns_are_whole_cells(visits, low, high):
    draws = visits.sample(40_000, random_state=0)
    inside = draws["number"].between(-np.inf if low is None else low, np.inf if high is None else high)
    expected = draws["spent"][inside]
    found = float(visits.conditional({"number": (low, high)}).distribution_.mean[0])
    assert abs(found - expected.mean()) < 5 * expected.std() / inside.sum() ** 0.5


def test_a_density_of_counts_has_no_spikes():
    rng = np.random.default_rng(0)
    counts = rng.poisson(3.0, (500, 1)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SpikeWarning)
        model = RTBMDensityCV([{"n_hidden": 2, "n_init": 1}], cv=3, random_state=0).fit(counts)
    values = np.unique(counts)[:, None]
    p = model.cell_probability(values)
    expected = (counts == values.T).mean(axis=0)
    assert abs(p - expected).max() < 0.06
    assert set(np.unique(model.sample(300, random_state=0))) <= set(values[:, 0])
    with pytest.warns(SpikeWarning):
        quick(rounded=None).fit(counts)


def test_values_on_a_bound_are_atoms():
    rng = np.random.default_rng(0)
    share = np.r_[np.zeros(10), rng.beta(2, 2, 300), np.ones(2)][:, None]
    X = np.hstack([share, rng.normal(size=share.shape)])
    model = quick(bounds=[(0, 1), None]).fit(X)
    assert model.columns_.atoms[0] == [0.0, 1.0]
    p = np.exp(model.marginal(0).score_samples([[0.0], [1.0]]))
    assert p == pytest.approx([10 / 312, 2 / 312], rel=0.3)
    assert np.isneginf(model.score_samples([[-0.1, 0.0]]))[0]
    draws = model.sample(2000, random_state=0)[:, 0]
    assert ((draws >= 0) & (draws <= 1)).all()
    assert (draws == 0).sum() > 20
    assert float(model.marginal(0).distribution_.cdf([[0.0]])) == pytest.approx(p[0], rel=1e-9)
    with pytest.warns(UserWarning, match=r"values lie on a bound|makes spikes") as caught:
        quick(bounds=[(0, 1), None], atoms=None).fit(X)
    assert any("values lie on a bound" in str(own.message) for own in caught)


def test_atoms_and_widths_that_a_user_gives():
    table = make_table(200)
    model = quick(atoms={"income": 0, "x": [1.0]}, rounded={"age": 5}).fit(
        table.assign(x=table["x"].where(table["age"] > 30, 1.0))
    )
    assert model.columns_.atoms == [[0.0], [], [], [], [1.0]]
    assert model.columns_.cells[1].width == 5.0
    assert model.columns_.cells[2] is None
    none = quick(atoms=None, rounded=None).fit(table[["age", "x"]])
    assert none.columns_ == ColumnKinds.plain(2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"atoms": {"town": [0]}}, "atoms must name columns of X"),
        ({"atoms": "zeros"}, "atoms must be"),
        ({"atoms": {"x": ["a"]}}, "atoms must be finite numbers for each column, got .* for x"),
        ({"rounded": {"x": None}}, "x needs the width of its cells"),
        ({"rounded": {"age": -1}}, "age needs the width"),
        ({"rounded": 3}, "rounded must be"),
        ({"atoms": {"income": [0.0]}, "solver": "cma"}, 'solver="lbfgs" or "em"'),
    ],
)
def test_what_cannot_be(options, message):
    with pytest.raises(InvalidInputError, match=message):
        quick(**options).fit(make_table(100)[["income", "age", "x"]])
    if "rounded" in options or options.get("atoms") == "zeros":
        with pytest.raises(InvalidInputError, match=message):
            RTBMDensityCV(random_state=0, **options).fit(make_table(100)[["income", "age", "x"]])


def test_ranges(model):
    draws = model.sample(40_000, random_state=0)
    inside = draws[(draws["age"] >= 30) & (draws["age"] <= 40) & draws["works"]]
    found = model.conditional({"age": (29.5, 40.5), "works": True})
    assert found.feature_names_in_.tolist() == ["income", "day", "x"]
    error = inside["x"].std() / len(inside) ** 0.5
    assert abs(float(found.distribution_.mean[2]) - inside["x"].mean()) < 4 * error
    assert set(found.sample(5, random_state=0).columns) == {"income", "day", "x"}
    late = model.conditional({"day": (pd.Timestamp("2020-12-31"), None), "age": (None, 40)})
    assert late.n_features_in_ == 3
    with pytest.raises(InvalidInputError, match="a tuple is a range"):
        model.conditional({"works": (0, 1)})
    with pytest.raises(InvalidInputError, match="with probability 0"):
        model.conditional({"age": (1e6, 2e6)})


def test_ranges_are_exact():
    model = RTBMDensity(1, n_components=3, n_init=1, random_state=0).fit(make_table()[["age", "x"]])
    given = model.conditional({"age": (30.0, 45.0)}).distribution_
    joint, points = model.distribution_, torch.linspace(0, 8, 9, dtype=torch.float64)[:, None]
    over = joint.conditional({1: points[:, 0]})
    age = joint.marginal(0)
    expected = joint.marginal(1).log_prob(points) + (over.cdf([[45.5]]) - over.cdf([[29.5]])).log()
    expected = expected - (age.cdf([[45.5]]) - age.cdf([[29.5]])).log()  # whole cells
    assert torch.allclose(given.log_prob(points), expected, atol=1e-8)


def test_frames_keep_index_and_dtypes(model):
    table = make_table(60, seed=3)
    gaps = table.astype({"age": float, "works": object}).mask(np.random.default_rng(4).random(table.shape) < 0.3)
    for method in ("mean", "sample"):
        filled = model.impute(gaps, method=method, random_state=0)
        pd.testing.assert_index_equal(filled.index, table.index)
        assert filled.columns.tolist() == table.columns.tolist()
        assert filled["day"].dtype.kind == "M"
        assert filled["works"].dtype == bool
        known = gaps["day"].notna()
        assert (filled.loc[known, "day"] == table.loc[known, "day"]).all()
        assert not filled.isna().any().any()
    assert (filled.dtypes == table.dtypes).all()  # draws of ages are whole
    draws = model.sample(5, random_state=0)
    assert (draws.dtypes == table.dtypes).all()
    assert isinstance(model.sample(5).to_numpy(), np.ndarray)


def test_models_are_saved(model, tmp_path):
    save(model, tmp_path / "model.rtbm")
    again, rows = load(tmp_path / "model.rtbm"), make_table(20, seed=5)
    assert again.columns_ == model.columns_
    assert np.array_equal(again.score_samples(rows), model.score_samples(rows))
    pd.testing.assert_frame_equal(again.sample(5, random_state=0), model.sample(5, random_state=0))


def test_committees():
    tried = [{"n_hidden": 1, "n_init": 1, "n_components": k, "max_iter": 40} for k in (1, 3)]
    model = RTBMDensityCV(tried, cv=3, random_state=0).fit(make_table(300))
    assert model.columns_.atoms[0] == [0.0]
    assert model.candidate_weights_[1] > 0.5  # income depends on the flag
    fresh = make_table(1000, seed=6)
    assert model.score(fresh) > quick(n_components=1).fit(make_table(300)).score(fresh)
    target = RTBMDensityCV(tried[1:], cv=2, targets=[0], random_state=0).fit(make_table(200))
    assert np.isfinite(target.held_out_).all()


def test_an_atom_that_one_fold_holds_alone():
    rng = np.random.default_rng(0)
    X = np.column_stack([np.r_[0.0, rng.gamma(2.0, size=89)], rng.normal(size=90)])
    model = RTBMDensityCV(
        [{"n_hidden": 1, "n_init": 1, "max_iter": 20}], cv=3, bounds=[(0, None), None], random_state=0
    )
    assert 0 < np.exp(model.fit(X).marginal(0).score_samples([[0.0]])[0]) < 0.1


def test_outliers_have_no_atoms():
    detector = RTBMOutlierDetector(RTBMDensityCV([{"n_hidden": 1, "n_init": 1}], cv=2, atoms=None, random_state=0))
    with pytest.warns(SpikeWarning, match="income"):
        detector.fit(make_table(400))
    assert detector.density_.columns_.atoms[0] == []


def test_imputers_complete_tables():
    table = make_table(200)
    gaps = table.astype({"age": float, "works": object}).mask(np.random.default_rng(1).random(table.shape) < 0.2)
    imputer = RTBMImputer(quick(n_components=3)).fit(gaps)
    tables = imputer.complete(gaps, n_draws=3, random_state=0)
    assert len(tables) == 3
    assert not tables[0].equals(tables[1])
    assert all(own["day"].dtype == table["day"].dtype for own in tables)
    assert all((own["age"] == own["age"].round()).all() for own in tables)
    pd.testing.assert_frame_equal(tables[2], imputer.complete(gaps, n_draws=3, random_state=0)[2])
    assert imputer.get_feature_names_out().tolist() == table.columns.tolist()
    numbers = gaps[["income", "age", "x"]]
    pipeline = make_pipeline(RTBMImputer(quick()), LinearRegression()).fit(numbers, table["x"])
    assert pipeline.score(numbers, table["x"]) > 0.8
    arrays = RTBMImputer(quick(), method="sample", random_state=0).fit(numbers.to_numpy())
    filled = arrays.transform(numbers.to_numpy())
    assert np.array_equal(filled, arrays.transform(numbers.to_numpy()))
    assert not np.isnan(filled).any()


def test_covariances_are_those_of_draws(model):
    d = model.distribution_
    draws = d.sample((200_000,), torch.Generator().manual_seed(0))
    numbers = [0, 1, 2, 4]
    found, seen = d.covariance_matrix, torch.from_numpy(np.cov(draws[:, numbers].T.numpy()))
    own = found[numbers][:, numbers]
    scale = own.diagonal().sqrt()
    assert bool(found[3].isnan().all())
    assert torch.allclose(own.diagonal(), d.variance[numbers], rtol=1e-8)
    assert bool(((own - seen).abs() / torch.outer(scale, scale) < 0.02).all())


def test_boxes_are_sums_over_parts(model):
    d = model.distribution_
    everything = torch.full((5,), torch.inf, dtype=torch.float64)
    low, high = -everything, everything.clone()
    assert float(d.box_probability(low, high)) == pytest.approx(1.0, abs=1e-12)
    high[0] = low[0] = 0.0
    at_zero = d.box_probability(low, high)
    assert float(at_zero) == pytest.approx(float(d.category(0).probs[1]), abs=1e-12)
    low[3] = high[3] = 1.0
    both = d.box_probability(low, high)
    low[3] = high[3] = 0.0
    assert float(both + d.box_probability(low, high)) == pytest.approx(float(at_zero), abs=1e-12)
    with pytest.raises(InvalidInputError, match="batch"):
        d.conditional({0: torch.tensor([0.0, 1.0])}).box_probability(low[1:], high[1:])
