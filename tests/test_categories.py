"""Tables with categories: fits, frames in and out, gaps, unknown levels, committees, regression and outliers."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from rtbm import InvalidInputError, RTBMDensity, RTBMDensityCV, RTBMOutlierDetector, RTBMRegressor, load, save
from rtbm.training import SOLVERS, ArrayBlocks, Family, Likelihood, Prior, make_start
from rtbm.training.mixed import Discrete, MixedExpectation, MixedObjective, StateTables
from rtbm.training.objective import Expectation
from rtbm.training.rows import make_rows

PLACES = {"Rome": 0.0, "Oslo": 3.0, "Bern": -2.0}


def make_table(n=500, seed=0):
    """Temperatures of cities, a quantity that depends on them, and a flag that does not."""
    rng = np.random.default_rng(seed)
    city = rng.choice(list(PLACES), n, p=[0.5, 0.3, 0.2])
    x = np.array([PLACES[name] for name in city]) + rng.normal(size=n)
    return pd.DataFrame({"x": x, "city": city, "y": 0.5 * x + rng.normal(size=n), "flag": rng.random(n) < 0.3})


def with_gaps(table, share=0.1, seed=1):
    hidden = np.random.default_rng(seed).random(table.shape) < share
    return table.astype({"flag": object}).mask(hidden)


def quick(**options):
    return RTBMDensity(1, **{"n_components": 3, "n_init": 1, "random_state": 0, **options})


@pytest.fixture(scope="module")
def model():
    return quick().fit(with_gaps(make_table()))


def test_what_columns_were_taken_for(model):
    assert model.categories_ == [None, ["Bern", "Oslo", "Rome"], None, [False, True]]
    numbers = quick(categorical_features=None).fit(make_table()[["x", "y"]])
    assert numbers.categories_ == [None, None]
    codes = make_table().assign(city=lambda t: t["city"].map({"Bern": 0, "Oslo": 1, "Rome": 2}))
    by_list = quick(categorical_features=[1, 3]).fit(codes.to_numpy(dtype=float))
    assert by_list.categories_ == [None, [0.0, 1.0, 2.0], None, [0.0, 1.0]]


def test_the_fit_finds_what_is_there(model):
    fresh = make_table(4000, seed=2)
    means = model.conditional({"city": list(PLACES)}).mean[:, 0]
    assert np.allclose(means, list(PLACES.values()), atol=0.35)
    p = model.predict_proba(fresh, "flag")[:, 1]
    assert abs(p.mean() - 0.3) < 0.05
    found = model.predict_proba(fresh, "city").argmax(1)
    truth = np.array(model.categories_[1])[found] == fresh["city"]
    assert truth.mean() > 0.75  # the best rule has 0.83 by x and y
    assert model.score(fresh) > quick(n_components=1).fit(make_table()).score(fresh) + 0.3


def test_log_prob_is_that_of_the_distribution(model):
    rows = with_gaps(make_table(50, seed=3), 0.3)
    levels = {"city": {"Bern": 0, "Oslo": 1, "Rome": 2}, "flag": {False: 0, True: 1}}
    codes = rows.assign(**{name: rows[name].map(own) for name, own in levels.items()}).to_numpy(dtype=float)
    assert np.allclose(model.score_samples(rows), model.distribution_.log_prob(torch.from_numpy(codes)), atol=1e-9)
    total = sum(np.exp(model.score_samples(rows.assign(city=name))) for name in PLACES)
    assert np.allclose(total, np.exp(model.score_samples(rows.assign(city=None))), rtol=1e-9)


def test_conditionals_marginals_and_draws_keep_levels(model):
    given = model.conditional({"city": "Oslo", "x": 2.0})
    assert given.feature_names_in_.tolist() == ["y", "flag"]
    assert given.sample(2, random_state=0)["flag"].isin([False, True]).all()
    draws = model.sample(2000, random_state=0)
    assert draws["x"].dtype == np.float64
    assert set(draws["city"]) == set(PLACES)
    assert abs((draws["city"] == "Oslo").mean() - 0.3) < 0.05
    assert model.marginal(["city"]).score_samples([["Oslo"]]).shape == (1,)


def test_arrays_of_objects():
    cells = make_table(200).to_numpy(dtype=object)
    model = quick(categorical_features=[1, 3]).fit(cells)
    draws = model.sample(3, random_state=1)
    assert draws.shape == (3, 4)
    assert draws[0, 1] in PLACES
    assert model.predict_proba(cells, 1).shape == (200, 3)


def test_frames_of_polars():
    pl = pytest.importorskip("polars")
    table = pl.DataFrame(make_table(200).to_dict("list")).with_columns(pl.col("city").cast(pl.Categorical))
    model = quick(n_components=2).fit(table)
    assert sorted(model.categories_[1]) == sorted(PLACES)
    draws = model.sample(5, random_state=0)
    assert draws.schema == table.schema
    assert set(draws["city"]) <= set(PLACES)
    assert model.predict_proba(table.drop("city"), "city").shape == (200, 3)


def test_imputation_fills_in_levels(model):
    rows = with_gaps(make_table(40, seed=4), 0.4)
    for method in ("mean", "sample"):
        filled = model.impute(rows, method=method, random_state=0)
        assert not filled.isna().any().any()
        assert set(filled["city"]) <= set(PLACES)
        known = rows["city"].notna()
        assert (filled.loc[known, "city"] == rows.loc[known, "city"]).all()


def test_levels_that_the_fit_has_not_seen(model):
    rows = make_table(5).assign(city="Paris")
    with pytest.warns(UserWarning, match="column city has levels that were not there in the fit, 'Paris'"):
        scores = model.score_samples(rows)
    assert np.allclose(scores, model.score_samples(rows.assign(city=None)))
    with pytest.raises(InvalidInputError, match="'Paris'"):
        quick(handle_unknown="error").fit(make_table()).score_samples(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        quick(handle_unknown="ignore").fit(make_table()).score_samples(rows)
    with pytest.raises(InvalidInputError, match=r"values\['city'\] has levels .*'Paris'"):
        model.conditional({"city": "Paris"})


@pytest.mark.parametrize("form", ["pandas", "categories", "polars", "array"])
@pytest.mark.filterwarnings("ignore:X. column .* has levels")
def test_levels_that_the_fit_has_not_seen_are_left_alone(form):
    city, x = ["Paris", None, "Oslo"], [np.nan, 0.0, 1.0]
    table = make_table()[["x", "city"]]
    rows = pd.DataFrame({"x": x, "city": city}, index=[5, 5, 5])
    if form == "polars":
        pl = pytest.importorskip("polars")
        table, rows = pl.DataFrame(table.to_dict("list")), pl.DataFrame({"x": x, "city": city})
    elif form == "categories":
        rows["city"] = rows["city"].astype("category")
    elif form == "array":
        table, rows = table.to_numpy(), rows.to_numpy()
    filled = quick(categorical_features=[1]).fit(table).impute(rows)
    numbers, names = np.asarray(filled, dtype=object).T.tolist()
    assert names[::2] == ["Paris", "Oslo"]
    assert names[1] in PLACES
    assert numbers[1:] == [0.0, 1.0]
    assert np.isfinite(numbers[0])


@pytest.mark.filterwarnings("error")
def test_gaps_among_known_levels(model):
    found = model.conditional({"city": ["Rome", pd.NA, pd.NaT, np.nan, None]}).mean[:, 0]
    assert (found[1:] == found[1]).all()


def test_models_are_saved(model, tmp_path):
    save(model, tmp_path / "cities.rtbm")
    again = load(tmp_path / "cities.rtbm")
    rows = make_table(20, seed=5)
    assert np.array_equal(again.score_samples(rows), model.score_samples(rows))
    assert np.array_equal(again.predict_proba(rows, "city"), model.predict_proba(rows, "city"))
    with pytest.raises(InvalidInputError, match="cannot be saved"):
        save(model.conditional({"city": "Rome"}), tmp_path / "part.rtbm")


def test_numbers_of_columns_are_saved(tmp_path):
    table = make_table(120)
    regressor = RTBMRegressor(quick()).fit(table, np.random.default_rng(0).normal(size=len(table)))
    density = quick(atoms={0: [0.0]}, rounded={2: 0.5}).fit(table.round(1))
    for number, own in enumerate((regressor, density)):
        save(own, tmp_path / f"{number}.rtbm")
        again = load(tmp_path / f"{number}.rtbm")
        assert repr(again.get_params()) == repr(own.get_params())
    assert np.array_equal(load(tmp_path / "0.rtbm").predict(table), regressor.predict(table))


@pytest.fixture(scope="module")
def committee():
    tried = [{"n_hidden": 1, "n_init": 1, "n_components": k, "max_iter": 60, "tol": 1e-5} for k in (1, 3)]
    return RTBMDensityCV(tried, cv=3, combine="stack", random_state=0).fit(with_gaps(make_table(300)))


def test_committees(committee):
    fresh = make_table(2000, seed=6)
    assert committee.candidate_weights_[1] > 0.5
    assert committee.predict_proba(fresh, "city").shape == (2000, 3)
    assert committee.score(fresh) > -4.6
    assert committee.categories_[1] == ["Bern", "Oslo", "Rome"]


def test_a_level_that_one_fold_holds_alone():
    table = make_table(90)
    table.loc[0, "city"] = "Lima"
    model = RTBMDensityCV([{"n_hidden": 1, "n_init": 1, "max_iter": 20}], cv=3, random_state=0).fit(table)
    assert 0 < model.predict_proba(table[:1], "city")[0, 1] < 0.1


def test_margins_leave_categories_alone():
    table = make_table(300).assign(x=lambda t: np.exp(t["x"]))
    model = quick(margins="yeo-johnson").fit(table)
    plain = quick().fit(table)
    fresh = make_table(1000, seed=7).assign(x=lambda t: np.exp(t["x"]))
    assert model.score(fresh) > plain.score(fresh) + 0.3
    assert model.conditional({"city": ["Oslo"]}).mean[0, 0] > 5


def test_bounds_leave_categories_alone():
    table = make_table(200).assign(x=lambda t: np.exp(t["x"]))[["x", "city", "flag"]]
    one, each = (quick(bounds=b).fit(table) for b in ((0, None), [(0, None), None, None]))
    assert np.array_equal(one.score_samples(table), each.score_samples(table))
    assert (one.sample(100, random_state=0)["x"] > 0).all()


def test_rows_without_numbers():
    table = make_table(200)
    table.loc[:50, ["x", "y"]] = np.nan
    model = quick().fit(table)
    row = table[:1].assign(flag=None)
    place = model.categories_[1].index(row["city"].iloc[0])
    expected = np.log(model.predict_proba(row, "city")[0, place])
    assert model.score_samples(row)[0] == pytest.approx(expected, abs=1e-9)


def test_columns_in_another_order_are_refused(model):
    with pytest.raises(ValueError, match="in the same order"):
        model.score(make_table(5)[["city", "x", "y", "flag"]])


def test_regression_on_categories():
    table = make_table(400)
    y = table.pop("x") + 0.2 * table["y"]
    model = RTBMRegressor(quick(n_components=4)).fit(table, y)
    fresh = make_table(500, seed=8)
    truth = fresh.pop("x") + 0.2 * fresh["y"]
    assert model.score(fresh, truth) > 0.6
    assert model.predict_quantiles(with_gaps(fresh, 0.3)).shape == (500, 3)
    assert model.sample_y(fresh[:2], 3).shape == (2, 3)
    assert np.isfinite(model.log_prob(fresh, truth)).all()


def test_outliers_among_categories():
    table = make_table(300)
    detector = RTBMOutlierDetector(quick(), contamination=0.05).fit(table)
    usual = pd.DataFrame({"x": [3.0], "city": ["Oslo"], "y": [1.5], "flag": [False]})
    assert detector.predict(usual)[0] == 1
    assert detector.predict(usual.assign(city="Bern"))[0] == -1  # three degrees are no outlier, but in Bern they are


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda t: t, {"solver": "cma"}, 'solver="lbfgs" or "em"'),
        (lambda t: t, {"categorical_features": ["town"]}, "town"),
        (lambda t: t, {"categorical_features": "all"}, "auto"),
        (lambda t: t, {"handle_unknown": "drop"}, "handle_unknown"),
        (lambda t: t.assign(city="Rome"), {}, "only one value of city"),
        (
            lambda t: t.assign(city=[f"c{i}" for i in range(1500)]),
            {"categorical_features": ["city", "flag"]},
            "column city has 1500 levels",
        ),
        (lambda t: t.assign(city=["a", 1] * 750), {}, "column city has cells of several types"),
        (lambda t: t.assign(city=pd.Categorical([None] * 1500)), {}, "column city has nothing but gaps"),
    ],
)
def test_what_cannot_be(change, options, message):
    with pytest.raises(InvalidInputError, match=message):
        quick(**options).fit(change(make_table(1500)))


def test_tables_of_categories_alone():
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 600)
    cells = [np.where(rng.random(600) < 0.9, kind, 1 - kind) for _ in range(3)]
    table = pd.DataFrame({name: np.array(["no", "yes"])[own] for name, own in zip("abc", cells, strict=True)})
    table.loc[:20, "a"] = None
    model = quick(n_components=2, n_init=4).fit(table)
    p = model.predict_proba(pd.DataFrame({"a": ["yes"], "b": ["yes"]}), "c")[0, 1]
    assert p == pytest.approx(0.89, abs=0.06)  # two of three in ten say yes by mistake
    every = pd.DataFrame(
        [(a, b, c) for a in ("no", "yes") for b in ("no", "yes") for c in ("no", "yes")], columns=[*"abc"]
    )
    assert np.exp(model.score_samples(every)).sum() == pytest.approx(1.0, abs=1e-12)
    assert model.sample(3, random_state=0).isin(["no", "yes"]).all().all()
    tried = [{"n_hidden": 1, "n_components": k} for k in (1, 2)]
    committee = RTBMDensityCV(tried, cv=3, random_state=0).fit(table)
    assert committee.candidate_weights_[1] > 0.9
    assert committee.score(table) > quick(n_components=1).fit(table).score(table) + 0.1


def test_methods_for_numbers_alone_say_so(model):
    rows = make_table(3)
    for call in (lambda: model.transform(rows), lambda: model.predict_proba(rows)):
        with pytest.raises(InvalidInputError, match="categories"):
            call()
    with pytest.raises(AttributeError, match="categories"):
        _ = model.module_
    assert "module_" not in dir(model)
    with pytest.raises(InvalidInputError, match="predict_proba is for categories"):
        model.predict_mean(rows, "city")
    with pytest.raises(InvalidInputError, match="column of categories"):
        model.predict_proba(rows, "x")


def mixed_source(gaps, n=200, n_machines=3, scale=4.0):
    """Rows with a discrete column that has a state for each, so that its log probabilities are any offsets."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2)) * 2
    if gaps:
        x[rng.random((n, 2)) < 0.05] = np.nan
        x[:3] = np.nan
    family = Family(2, 1, n_components=n_machines)
    start = make_start(family, np.nan_to_num(x), np.ones(n), 0, 0, rng.integers(0, n_machines, n))
    offsets = rng.normal(size=(n, n_machines)) * scale
    places = Discrete(np.arange(n)[:, None], (n,)).places
    return family, start, ArrayBlocks(torch.from_numpy(x), torch.ones(n, dtype=torch.float64), places), offsets


def mixed(family, vector, log_tables):
    return MixedExpectation(Expectation.of(family.machines(vector)), log_tables)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_tables_multiply_densities(gaps, compiled, monkeypatch):
    monkeypatch.setattr("rtbm.theta.kernels.AVAILABLE", compiled)
    family, vector, source, offsets = mixed_source(gaps)
    likelihood = Likelihood(family, source)
    expected = likelihood.log_joint(vector) + torch.from_numpy(offsets)
    shares, weights = expected.softmax(1), source.weights
    evaluation = mixed(family, vector, offsets).evaluate(source)
    assert evaluation.log_likelihood == pytest.approx(float(weights @ expected.logsumexp(1)), abs=1e-9)
    assert np.allclose(evaluation.counts[:-1], weights[:, None] * shares, atol=1e-9)
    assert np.allclose(evaluation.counts[-1], weights @ shares, atol=1e-9)
    if not gaps:  # Σ ε of each machine, against sums over its points alone
        for k, machine in enumerate(family.split(vector)[0]):
            own = ArrayBlocks(source.x, weights * shares[:, k])
            alone, sums = Expectation.of(family.single().machines(machine)).evaluate(own).sums, evaluation.sums
            assert np.allclose(sums.square[k] / sums.shares[k], alone.square[0], atol=1e-8)
            assert np.allclose(sums.first[k] / sums.shares[k], alone.first[0], atol=1e-8)


def test_tables_beyond_the_reach_of_skipped_states():
    family, vector, source, offsets = mixed_source(False, scale=120.0)  # may outweigh any distance between machines
    likelihood = Likelihood(family, source)
    expected = likelihood.log_joint(vector) + torch.from_numpy(offsets)
    found = mixed(family, vector, offsets).evaluate(source).log_likelihood
    assert found == pytest.approx(float(expected.logsumexp(1).mean()), abs=1e-7)


def test_em_never_rises_and_parts_add_up():
    family, start, source, _ = mixed_source(True)
    is_gap = np.random.default_rng(1).random((200, 1)) < 0.1
    states = np.where(is_gap, -1, (np.nan_to_num(source.x[:, :1]) > 0).astype(int))
    discrete = Discrete(states, (2,))
    whole = ArrayBlocks(source.x, torch.ones(200, dtype=torch.float64), discrete.places)
    objective = MixedObjective(family, whole, Prior(1.0, np.ones(2)), discrete.sizes)
    vector = StateTables.fit((2,), discrete.count_shares(np.ones((200, 3)))).vector(start)
    result = SOLVERS["em"](max_iter=100, tol=1e-8).minimise(objective, vector)
    values = np.array([record.objective for record in result.history])
    assert (np.diff(values) < 1e-7).all()
    machines, tables = StateTables.of_vector((2,), 3, result.vector)
    assert all(np.allclose(table.sum(1), 1, atol=1e-12) for table in tables.probabilities)

    class Halves:
        def add(self, function):
            halves = (slice(0, 77), slice(77, 200))
            weights = torch.full((200,), 1 / 200, dtype=torch.float64)
            return sum(function([make_rows(source.x[h], weights[h], discrete.places[h])]) for h in halves)

    one, two = (mixed(family, machines, tables.logs).evaluate(data) for data in (whole, Halves()))
    assert one.log_likelihood == pytest.approx(two.log_likelihood, abs=1e-12)
    assert np.allclose(one.counts, two.counts, rtol=0, atol=1e-12)
