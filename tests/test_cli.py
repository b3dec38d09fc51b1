"""The command: what it writes and prints, and its exit codes."""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import rtbm
from rtbm import datasets
from rtbm.cli.app import Solver, app
from rtbm.training import SOLVERS

PLANE = datasets.three_gaussians.sample(200, seed=0)
QUICK = ("--starts", "1", "-q")


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def command(*arguments):
    """The command in a process of its own, as a user starts it."""
    return subprocess.run(
        [sys.executable, "-m", "rtbm", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def plane(tmp_path):
    path = tmp_path / "plane.csv"
    np.savetxt(path, PLANE, delimiter=",", header="x,y", comments="")
    return path


def test_all_solvers_can_be_chosen():
    assert tuple(Solver) == SOLVERS


def test_from_fit_to_picture(tmp_path, plane):
    model, picture = tmp_path / "m.rtbm", tmp_path / "m.png"
    shown = run("fit", plane, "--starts", 2, "-o", model, "--picture", picture)
    assert "2 (x, y)" in shown
    assert "log-likelihood" in shown
    assert picture.stat().st_size > 10_000
    assert "2 (x, y)" in run("info", model)
    fitted = rtbm.load(model)
    values = fitted.set_feature_names(None).score_samples(PLANE)
    assert float(run("score", model, plane)) == pytest.approx(values.mean(), rel=1e-9)
    run("score", model, plane, "-o", tmp_path / "scores.npy")
    assert np.allclose(np.load(tmp_path / "scores.npy")[:, 0], values)
    lines = run("sample", model, "-n", 3, "--seed", 5).splitlines()
    assert lines[0] == "x,y"
    assert np.array_equal([[float(c) for c in line.split(",")] for line in lines[1:]], fitted.sample(3, random_state=5))
    run("sample", model, "-n", 4, "-o", tmp_path / "draws.csv")
    assert "x,y" in (tmp_path / "draws.csv").read_text()
    run("plot", model, plane, "-o", tmp_path / "again.png")
    run("plot", model, "-o", tmp_path / "alone.svg")
    assert (tmp_path / "alone.svg").stat().st_size > 10_000


def test_without_data_the_gamma_sample_of_the_paper_is_fitted(tmp_path):
    run("fit", "-o", tmp_path / "m.rtbm", *QUICK)
    X = datasets.gamma.sample()
    assert rtbm.load(tmp_path / "m.rtbm").score(X) == pytest.approx(-2.3827, abs=2e-3)


def test_all_formats_and_a_choice_of_columns(tmp_path, plane):
    np.save(tmp_path / "plane.npy", PLANE)
    pq.write_table(pa.table({"x": PLANE[:, 0], "y": PLANE[:, 1], "who": ["a"] * 200}), tmp_path / "plane.parquet")
    (tmp_path / "bare.csv").write_text("\n".join(f"{x!r},{y!r}" for x, y in PLANE.tolist()))
    models = []
    for i, (name, *options) in enumerate(
        [("plane.csv",), ("plane.npy",), ("plane.parquet", "-c", "x,y"), ("bare.csv", "--no-header")]
    ):
        run("fit", tmp_path / name, *options, "-o", tmp_path / f"{i}.rtbm", *QUICK)
        models.append(rtbm.load(tmp_path / f"{i}.rtbm").set_feature_names(None).score_samples(PLANE))
    assert all(np.allclose(values, models[0], atol=1e-6) for values in models)
    run("fit", plane, "--columns", "y", "-o", tmp_path / "y.rtbm", *QUICK)
    assert rtbm.load(tmp_path / "y.rtbm").n_features_in_ == 1
    assert float(run("score", tmp_path / "y.rtbm", tmp_path / "plane.parquet")) < 0  # finds its column by name


def test_options_reach_the_estimator(tmp_path):
    path = tmp_path / "m.rtbm"
    run("fit", "--hidden", 4, "--diagonal", "--phase", "II", "--bounds", "0,", "--iterations", 500, "-o", path, *QUICK)
    model = rtbm.load(path)
    assert (model.hidden, model.phase, model.n_hidden, model.bounds) == ("diagonal", "II", 4, [0.0, None])
    assert "bounds" in run("info", path)
    run("fit", "--hidden", 1, "--components", 2, "--average", "--starts", 2, "--validation", 0.2, "-o", path, "-q")
    assert len(rtbm.load(path).distribution_.components) >= 2


def test_streams(tmp_path):
    np.save(tmp_path / "x.npy", datasets.gamma.sample(500))
    run("fit", tmp_path / "x.npy", "--stream", "--solver", "adam", "--iterations", 2, "-o", tmp_path / "m.rtbm", *QUICK)
    assert rtbm.load(tmp_path / "m.rtbm").summary_["solver"] == "adam"
    assert "needs a file" in run("fit", "--stream", code=2)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("fit", "none.csv"), 1, "no such file"),
        (("fit", "bad.csv"), 1, "line 3, column 'y' (2): 'oops'"),
        (("fit", "--hidden", "x"), 2, "must be a number or auto"),
        (("fit", "--hidden", "0"), 1, "n_hidden"),
        (("fit", "--solver", "sgd"), 2, "sgd"),
        (("fit", "--bounds", "1"), 2, "LOW,HIGH"),
        (("fit", "-o", "nowhere/m.rtbm"), 2, "no folder"),
        (("fit", "--bogus"), 2, "--bogus"),
        (("info", "bad.csv"), 1, "not a model file"),
        (("score", "bad.csv"), 2, "data"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_exit_codes_and_one_line_messages(tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.csv").write_text("x,y\n1,2\n3,oops\n")
    result = command(*arguments)
    assert result.returncode == code, result.stderr
    assert message.lower() in " ".join(result.stderr.lower().split())
    assert "Traceback" not in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]


def test_help_and_version():
    for name in ("fit", "score", "sample", "info", "plot"):
        assert name in run("--help")
        assert "Usage" in run(name, "--help")
    assert rtbm.__version__ in run("--version")
