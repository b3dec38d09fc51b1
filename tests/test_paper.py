"""The paper's experiments: they run, say what they measured, and their tests test what they say."""

import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

from rtbm import datasets
from rtbm.cli.app import app
from rtbm.paper import EXPERIMENTS, iris, timeseries


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
    assert set(EXPERIMENTS) == {"timeseries", "iris"}
