"""The paper's experiments: they run, say what they measured, and their tests test what they say."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

from rtbm import datasets
from rtbm.cli.app import PaperExperiment, app
from rtbm.paper import EXPERIMENTS, classification, digits, iris, jets, timeseries


def quiet(name: str) -> None:
    """Where progress would be shown."""


def test_the_signal_and_its_noise():
    t, y = datasets.time_series.sample(20_000, seed=3)
    noise = y - datasets.time_series.signal(t[:, 0])
    assert abs(noise.mean()) < 0.03
    assert abs(noise.var() - 1) < 0.05
    assert np.array_equal(y, datasets.time_series.sample(20_000, seed=3)[1])


def test_the_time_series_beats_the_paper_inside_and_stays_near_the_bound_beyond():
    record = timeseries._run_one(timeseries.BEST, 1, True)
    truth = timeseries._run_one(timeseries.TRUTH, 1, True)
    assert record["parameters"] == 38
    assert record["inside"] < timeseries.PAPER[0]
    assert record["beyond"] < 3 * truth["beyond"] + 0.05


def test_tables_and_verdicts_of_the_time_series(monkeypatch):
    kept = {name: timeseries.METHODS[name] for name in (timeseries.BEST, "tanh 5-3-2")}
    monkeypatch.setattr(timeseries, "METHODS", kept)
    finished = []
    outcome = timeseries.run(2, True, 1, finished.append)
    assert len(finished) == timeseries.steps(2, True) == 6
    (table,) = timeseries.tables(json.loads(json.dumps(outcome)))
    assert [row[0] for row in table.rows] == ["paper (one run)", timeseries.TRUTH, *kept]
    assert "reached or beaten" in timeseries.verdicts(outcome)[0]
    figure = timeseries.draw(outcome)
    assert len(figure.subfigs) == 2
    plt.close(figure)


def test_iris_shows_the_papers_curves(monkeypatch):
    monkeypatch.setattr(iris, "QUICK_ITERATIONS", 300)
    outcome = iris.run(6, True, None, quiet)
    assert outcome["marks"][0] == 0
    curves = outcome["curves"]["theta, squared_error"]
    assert np.shape(curves["test"]) == (len(outcome["marks"]), 6)
    assert np.mean(curves["train"][-1]) > np.mean(curves["train"][0]) + 0.3
    (table,) = iris.tables(json.loads(json.dumps(outcome)))
    assert len(table.rows) == 4
    assert len(iris.verdicts(outcome)) == 4
    assert "too few" in iris.verdicts(outcome | {"seeds": 3})[0]
    plt.close(iris.draw(outcome))


def test_both_kinds_of_units_see_the_same_splits_and_the_test_follows_the_mean():
    a, b = iris._split(4), iris._split(4)
    assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert (len(a[0]), len(a[1])) == (90, 60)
    rng = np.random.default_rng(0)
    tanh = rng.normal(size=100)
    plain, corrected = iris._p_values(tanh + 0.1 + 0.2 * rng.normal(size=100), tanh)
    assert plain < 1e-4 < 0.3 < corrected
    assert iris._p_values(tanh, tanh) == (1.0, 1.0)


def test_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(iris, "QUICK_ITERATIONS", 20)
    result = CliRunner().invoke(app, ["reproduce", "iris", "--quick", "--seeds", "2", "-o", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "new" / "iris.json").read_text())
    assert (report["experiment"], report["seeds"]) == ("iris", 2)
    assert (tmp_path / "new" / "iris.png").stat().st_size > 10_000
    assert "Precision after 20 iterations" in result.output


@pytest.mark.parametrize("arguments", [["--seeds", "1"], ["--jobs", "0"]])
def test_wrong_usage_of_the_command(arguments, tmp_path):
    result = CliRunner().invoke(app, ["reproduce", "iris", "-o", str(tmp_path), *arguments])
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_the_folder_is_tried_before_the_work(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["reproduce", "iris", "--quick", "-o", str(tmp_path / "file")])
    assert result.exit_code == 1
    assert "--output" in str(result.exception) + result.output


def test_all_experiments_are_named():
    assert set(EXPERIMENTS) == {"timeseries", "iris", "jets", "digits"} == set(PaperExperiment)


# Classifiers


def test_every_method_is_fed_something_that_is_made():
    for task in (jets.TASK, digits.TASK):
        assert {method.inputs for method in task.methods.values()} == set(task.inputs)
    assert {m.paper for m in jets.METHODS.values()} == {0.77, 0.79, 0.55, 0.83, None}


@pytest.mark.parametrize("module", [jets, digits])
def test_methods_run_on_the_same_splits(module):
    kept = [module.LOGISTIC, module.TREES]
    methods = {name: module.METHODS[name] for name in kept}
    inputs = {name: module.INPUTS[name] for name in {m.inputs for m in methods.values()}}
    task = module.TASK._replace(inputs=inputs, methods=methods, quick_train=300, n_test=200)
    seen = []
    outcome = classification.run(task, 2, True, 1, seen.append)
    assert len(seen) == 2 * len(inputs)
    assert json.loads(json.dumps(outcome)) == outcome
    assert set(outcome["records"]) == set(kept)
    assert all(len(records) == 2 for records in outcome["records"].values())
    again = classification.run(task, 2, True, 1, seen.append)
    for name in kept:
        assert np.array_equal(classification.values(outcome, name), classification.values(again, name))
        assert classification.values(outcome, name).mean() > 0.55


@pytest.mark.parametrize("module", [jets, digits])
def test_tables_verdicts_and_pictures_of_classifiers(module):
    rng = np.random.default_rng(0)
    records = {
        name: [{"precision": p, "accuracy": p, "auc": p, "seconds": 1.0} for p in 0.8 + 0.01 * rng.normal(size=6)]
        for name in module.METHODS
    }
    outcome = {"seeds": 6, "quick": False, "n_train": 500, "n_test": 250, "records": records}
    (table,) = module.EXPERIMENT.tables(outcome)
    assert [row[0] for row in table.rows] == list(module.METHODS)
    assert all("points of accuracy" in line or "paper" in line for line in module.verdicts(outcome))
    assert any("too few" in line for line in module.verdicts(outcome | {"seeds": 2}))
    plt.close(module.draw(outcome))


def test_differences_are_paired_and_their_error_knows_that_splits_share_data():
    scores = np.array([0.80, 0.82, 0.84, 0.86])
    records = {
        "a": [{"accuracy": s + d} for s, d in zip(scores, (0.01, 0.03, 0.01, 0.03), strict=True)],
        "b": [{"accuracy": s} for s in scores],
    }
    outcome = {"seeds": 6, "n_train": 500, "n_test": 250, "records": records}
    mean, error = classification.difference(outcome, "a", "b")
    assert np.isclose(mean, 0.02)
    assert np.isclose(error, np.sqrt((1 / 4 + 1 / 2) * np.var([0.01, 0.03, 0.01, 0.03], ddof=1)))
    assert "ahead of b by 2.0 ± 1.0" in classification.compare(outcome, "a", "b")
    assert "behind a by 2.0" in classification.compare(outcome, "b", "a")


def test_scores_of_a_classifier():
    class Known:
        def predict(self, X):
            return (X[:, 0] > 0.5).astype(int)

        def predict_proba(self, X):
            return np.column_stack([1 - X[:, 0], X[:, 0]])

    X, y = np.array([[0.1], [0.4], [0.6], [0.9]]), np.array([0, 1, 0, 1])
    assert classification.score(Known(), X, y) == {"precision": 0.5, "accuracy": 0.5, "auc": 0.75}
    assert np.array_equal(classification.OverMaximum().fit(X).transform(X), X / 0.9)
