"""The command: what it writes and prints, and its exit codes."""

import datetime
import io
import subprocess
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn import config_context
from typer.testing import CliRunner

import rtbm
from machines import dense
from rtbm import datasets
from rtbm.cli import main
from rtbm.cli.app import SolverName, app
from rtbm.output import describe
from rtbm.training import SOLVERS

PLANE = datasets.three_gaussians.sample(200, seed=0)
QUICK = ("--starts", "1", "-q")


def run(*arguments, code=0, stdin=None):
    result = CliRunner().invoke(app, [str(a) for a in arguments], input=stdin)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.output


def unwrapped(shown):
    """The cells of a table without frames and line breaks."""
    return " ".join(shown.replace("│", " ").split())


def command(*arguments, stdin=b""):
    """The command as a user starts it, with what it prints on both streams, but in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("default")
        patch.setattr(sys, "argv", ["rtbm", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def process(*arguments):
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rtbm", *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def plane(tmp_path):
    path = tmp_path / "plane.csv"
    np.savetxt(path, PLANE, delimiter=",", header="x,y", comments="")
    return path


def test_all_solvers_can_be_chosen():
    assert get_args(SolverName) == tuple(SOLVERS)


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


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_model_is_written_before_the_picture(tmp_path, plane, monkeypatch):
    model = tmp_path / "m.rtbm"

    def draw(*_):
        assert model.is_file()
        raise rtbm.InvalidInputError("no picture")

    monkeypatch.setattr("rtbm.plotting.plot_model", draw)
    with pytest.raises(rtbm.InvalidInputError, match="no picture"):
        run("fit", plane, "-o", model, "--picture", tmp_path / "m.png", "--iterations", 1, *QUICK)
    assert rtbm.load(model).n_features_in_ == 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_words_agree_with_numbers(tmp_path, plane):
    model = tmp_path / "m.rtbm"
    quick = ("-o", model, "--starts", 1, "--iterations", 1)
    shown = unwrapped(run("fit", plane, "--hidden", 1, "--components", 2, *quick))
    for words in ("lbfgs, best of 1 start: 1 iteration, stopped by the limit", "fitting", "1/1"):
        assert words in shown
    assert "1 row: " in run("sample", model, "-n", 1, "-o", tmp_path / "s.csv")
    assert "log P of 200 rows: " in run("score", model, plane, "-o", tmp_path / "s.csv")


@pytest.mark.parametrize(
    ("members", "sizes", "words"),
    [
        ([[1, 0]], [1], "1 machine with 1 hidden unit (phase I)"),
        ([[2, 0], [1, 0]], [2, 2, 1], "mixture of 3 machines with 1 to 2 hidden units each (phase I)"),
        ([[1, 1]], [2], "1 Gaussian: 1 machine with 2 hidden units was no better"),
        ([[2, 1]], [1, 1], "1 Gaussian: 2 machines with 1 hidden unit each were no better"),
        ([[2, 2]], [1, 1], "mixture of 2 Gaussians: 2 machines with 1 hidden unit each were no better"),
        (
            [[2, 1], [1, 0]],
            [1, 1, 2],
            "mixture of 1 machine with 2 hidden units and 1 Gaussian (phase I)",
        ),
    ],
)
def test_models_are_described_by_what_they_are_made_of(members, sizes, words):
    machines = [dense(1, size) for size in sizes]
    whole = machines[0] if len(machines) == 1 else rtbm.RTBMMixture(np.full(len(sizes), 1 / len(sizes)), machines)
    assert describe(SimpleNamespace(distribution_=whole, summary_={"members": members})) == words


def test_gaussians_are_counted_as_gaussians(tmp_path):
    X = np.random.default_rng(0).normal(size=(200, 2)) + 6 * np.arange(2).repeat(100)[:, None]
    model = rtbm.RTBMDensity(1, n_components=2, n_init=1, fallback="gaussians", random_state=0).fit(X)
    rtbm.save(model, tmp_path / "m.rtbm")
    assert model.n_parameters_ == 2 * 5 + 1
    shown = unwrapped(run("info", tmp_path / "m.rtbm"))
    assert "mixture of 2 Gaussians: 2 machines with 1 hidden unit each were no better" in shown
    assert "11" in shown


def test_the_first_fit_says_that_it_compiles(tmp_path, plane, monkeypatch):
    numba = pytest.importorskip("numba", reason="nothing is compiled without numba")
    options = ("fit", plane, "--n-hidden", 1, "--starts", 1, "-o", tmp_path / "m.rtbm")
    fit, note = rtbm.RTBMDensity.fit, "compiling kernels that are not on disk yet"
    run(*options)  # whatever this one compiles, the next ones have it
    assert note not in command(*options).stderr

    def compile_and_fit(self, *arguments):
        numba.njit(lambda x: x + 1)(1)
        numba.njit(lambda x: x + 2)(1)
        return fit(self, *arguments)

    monkeypatch.setattr(rtbm.RTBMDensity, "fit", compile_and_fit)
    assert command(*options).stderr.count(note) == 1
    assert note not in command(*options, "-q").stderr


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


def test_the_summary_says_which_columns_are_left_out(tmp_path):
    frame, model = pd.DataFrame(PLANE, columns=["x", "y"]).assign(who="ann"), tmp_path / "m.rtbm"
    frame.to_csv(tmp_path / "frame.csv")
    frame.set_axis(frame.index * 1.5).to_parquet(tmp_path / "frame.parquet")
    stream = ("--stream",)
    for name, options in (("frame.csv", ()), ("frame.parquet", ()), ("frame.parquet", stream)):
        index = "Unnamed: 0" if name.endswith("csv") else "__index_level_0__"
        shown = " ".join(run("fit", tmp_path / name, *options, "--starts", 1, "-o", model).replace("│", " ").split())
        for text in ("2 (x, y)", f"{index} (index of a data frame)", "who (text, one value)"):
            assert text in shown
        for data in ("frame.csv", "frame.parquet"):
            expected = rtbm.load(model).set_feature_names(None).score(PLANE)
            assert float(run("score", model, tmp_path / data)) == pytest.approx(expected, rel=1e-9)
        run("plot", model, tmp_path / name, "-o", tmp_path / "m.png")
    shown = run("fit", tmp_path / "frame.csv", "-c", "y,Unnamed: 0", "--starts", 1, "-o", model)
    assert "2 (y, Unnamed: 0)" in shown
    assert "left out" not in shown
    assert "only one value of column 'who'" in command("fit", tmp_path / "frame.csv", "-c", "x,who").stderr


def test_the_summary_of_many_columns_is_short(tmp_path):
    file, names = tmp_path / "wide.csv", [f"c{i}" for i in range(150)]
    pd.DataFrame(np.random.default_rng(0).normal(size=(3, 150)), columns=names).to_csv(file, index=False)
    shown = unwrapped(command("fit", file, "--n-hidden", 1, "--output", tmp_path / "wide.rtbm").stdout)
    assert "c9 and 140 more" in shown
    assert "c9, c10" not in shown


def test_decimal_commas_separators_and_compression(tmp_path, plane):
    frame = pd.DataFrame(PLANE, columns=["x", "y"])
    frame.to_csv(tmp_path / "comma.csv.gz", index=False, sep=";", decimal=",")
    frame.to_csv(tmp_path / "bar.csv", index=False, sep="|", decimal=",")
    result = command("fit", tmp_path / "comma.csv.gz", "-o", tmp_path / "m.rtbm")
    assert result.returncode == 1
    assert "say --decimal ," in result.stderr
    run("fit", plane, "-o", tmp_path / "plain.rtbm", *QUICK)
    expected = run("score", tmp_path / "plain.rtbm", plane)
    for name, *options in (("comma.csv.gz", "--decimal", ","), ("bar.csv", "--decimal", ",", "--separator", "|")):
        run("fit", tmp_path / name, *options, "-o", tmp_path / "m.rtbm", *QUICK)
        assert run("score", tmp_path / "m.rtbm", tmp_path / name, *options) == expected
        run("plot", tmp_path / "m.rtbm", tmp_path / name, *options, "-o", tmp_path / "m.png")


def test_options_reach_the_estimator(tmp_path):
    path = tmp_path / "m.rtbm"
    run("fit", "--hidden", 3, "--phase", "II", "--bounds", "0,", "--iterations", 500, "-o", path, *QUICK)
    model = rtbm.load(path)
    assert (model.phase, model.n_hidden, model.bounds) == ("II", 3, (0.0, None))
    assert "above 0" in run("info", path)
    run("fit", "--n-hidden", 1, "--n-components", 2, "--starts", 2, "--validation", 0.2, "-o", path, "-q")
    assert len(rtbm.load(path).distribution_.components) == 2


def test_streams(tmp_path):
    np.save(tmp_path / "x.npy", datasets.gamma.sample(500))
    run("fit", tmp_path / "x.npy", "--stream", "--solver", "em", "-o", tmp_path / "m.rtbm", *QUICK)
    assert rtbm.load(tmp_path / "m.rtbm").summary_["solver"] == "em"


def test_large_files_are_read_in_blocks(tmp_path):
    np.save(tmp_path / "x.npy", datasets.gamma.sample(500))
    run("fit", tmp_path / "x.npy", "--stream", "-o", tmp_path / "asked.rtbm", *QUICK)
    with config_context(working_memory=0):
        run("fit", tmp_path / "x.npy", "-o", tmp_path / "large.rtbm", "--starts", 1)
    asked, large = (rtbm.load(tmp_path / name) for name in ("asked.rtbm", "large.rtbm"))
    assert large.summary_["log_likelihood"] == asked.summary_["log_likelihood"]
    with config_context(working_memory=0), pytest.raises(rtbm.InvalidInputError, match="drop_constant=True"):
        run("fit", tmp_path / "x.npy", "--drop-constant", "-o", tmp_path / "none.rtbm")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("fit", "none.csv"), 1, "no such file"),
        (("fit", "bad.csv"), 1, "line 3, column 'y' (2): 'oops'"),
        (("fit", "--hidden", "x"), 2, "--n-hidden"),
        (("fit", "--n-hidden", "0"), 2, "--n-hidden"),
        (("fit", "--n-hidden", "99999999999999999999"), 1, "n_hidden must be an integer below 2^63"),
        (("fit", "--n-hidden", "30"), 1, "n_hidden must be at most 22"),
        (("fit", "--n-components", "999999999"), 1, "limit is 1e+08"),
        (("fit", "--jobs", "0"), 1, "n_jobs must be"),
        (("fit", "--device", "nonsense"), 1, "device must be"),
        (("fit", "--seed", "9999999999"), 2, "--seed"),
        (("fit", "--validation", "2"), 2, "--validation"),
        (("fit", "--validation", "1"), 2, "must be between 0 and 1, got 1"),
        (("fit", "--stream"), 2, "needs a file and --solver lbfgs"),
        (("fit", "one.csv"), 1, "minimum of 2"),
        (("fit", "flat.csv"), 1, "only one value of column 'a'"),
        (("fit", "flat.csv", "--bounds", "2,"), 1, "in row 0 of column 'b'"),
        (("fit", "flat.csv", "-o", "flat.csv"), 2, "name of a data file"),
        (("fit", "flat.csv", "-o", "m.csv.gz"), 2, "name of a data file"),
        (("fit", "flat.csv", "--decimal", ";"), 2, "--decimal"),
        (("fit", "flat.csv", "--separator", "ab"), 1, "separator must be one character"),
        (("fit", "flat.csv", "-o", "."), 2, "folder"),
        (("fit", "flat.csv", "--picture", "p.txt"), 2, "must end in one of .png"),
        (("sample", "bad.csv", "-o", "bad.csv"), 2, "used already"),
        (("fit", "--solver", "sgd"), 2, "sgd"),
        (("fit", "--bounds", "1"), 2, "LOW:HIGH"),
        (("fit", "--bounds", "a=1"), 2, "COLUMN=LOW:HIGH"),
        (("fit", "flat.csv", "--bounds", "c=0:"), 2, "'c' is no column: use one of a, b"),
        (("fit", "flat.csv", "-c", "a,b=c"), 1, "no column 'b=c'; there are a, b"),
        (("fit", "flat.csv", "-o", "-"), 2, "only tables go to standard output"),
        (("fit", "flat.csv", "--picture", "-"), 2, "only tables go to standard output"),
        (("fit", "--bounds", "5,1"), 2, "LOW < HIGH"),
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
    (tmp_path / "one.csv").write_text("x\n1\n")
    (tmp_path / "flat.csv").write_text("a,b\n5,1\n5,2\n5,3\n")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    result = command(*arguments)
    assert result.returncode == code, result.stderr
    assert message.lower() in " ".join(result.stderr.lower().split())
    assert "Traceback" not in result.stderr
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def test_columns_with_units_in_brackets(tmp_path):
    path = tmp_path / "units.csv"
    np.savetxt(path, PLANE, delimiter=",", header="x [mm],y [/s]", comments="")
    shown = run("fit", path, "-o", tmp_path / "m.rtbm", "--starts", 1)
    assert "x [mm], y [/s]" in shown
    assert "x [mm], y [/s]" in run("info", tmp_path / "m.rtbm")


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    names = ["a\x1b[31m", "b\u202e\nc"]
    model = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(pd.DataFrame(PLANE, columns=names))
    rtbm.save(model, tmp_path / "m.rtbm")
    pd.DataFrame(PLANE, columns=names).to_parquet(tmp_path / "\x1b.parquet")
    result = process("info", tmp_path / "m.rtbm")
    assert "2 (a [31m, b  c)" in result.stdout
    with pytest.warns(UserWarning, match="blanks replace control characters"):
        assert float(run("score", tmp_path / "m.rtbm", tmp_path / "\x1b.parquet")) == pytest.approx(
            model.set_feature_names(None).score(PLANE)
        )
    failed = process("score", tmp_path / "m.rtbm", tmp_path / "\x1b.parquet", "--columns", "\x1b[1m")
    assert failed.returncode == 1
    shown = result.stdout + failed.stdout + failed.stderr + run("sample", tmp_path / "m.rtbm", "-n", 1)
    assert not set(shown) & set("\x1b\u202e")


def test_models_and_data_must_match(tmp_path, plane):
    run("fit", plane, "-o", tmp_path / "m.rtbm", *QUICK)
    np.save(tmp_path / "three.npy", np.zeros((5, 3)))
    result = command("score", tmp_path / "m.rtbm", tmp_path / "three.npy")
    assert result.returncode == 1
    assert "has 3 columns, and the model 2" in result.stderr
    rtbm.save(rtbm.load(tmp_path / "m.rtbm").distribution_, tmp_path / "d.rtbm")
    assert "needs a fitted RTBMDensity" in command("info", tmp_path / "d.rtbm").stderr


def test_help_and_version():
    listed = run("--help").split("Commands:")[1]
    for name in ("fit", "score", "sample", "predict", "impute", "quantile", "info", "plot", "explore"):
        assert name in listed
        assert "Usage" in run(name, "--help")
    assert rtbm.__version__ in run("--version")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_help_is_never_cut(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    for name in ("fit", "score", "explore"):
        text = run(name, "--help")
        assert "…" not in text
        assert "..." not in text
    assert "--n-hidden, --hidden" in run("fit", "--help")
    if width >= 80:
        assert "..." not in run("--help").split("Commands:")[1]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_info_knows_networks_and_other_commands_refuse_them(tmp_path):
    X = np.linspace(0, 5, 40)[:, None]
    network = rtbm.ThetaNetClassifier((3,), n_init=1, max_iter=2, random_state=0).fit(
        X, np.where(X[:, 0] > 2, "up", "down")
    )
    rtbm.save(network, tmp_path / "n.rtbm")
    text = run("info", tmp_path / "n.rtbm")
    for word in ("ThetaNetClassifier", "3 theta, 1 linear", "down, up", "lbfgs, best of 1 start: 2 iterations"):
        assert word in text
    assert "needs a fitted RTBMDensity" in command("sample", tmp_path / "n.rtbm").stderr


def test_constant_and_discrete_columns_are_named(tmp_path):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=60), np.full(60, 7.0), rng.integers(0, 2, 60), rng.normal(size=60)])
    data, model, picture = tmp_path / "data.csv", tmp_path / "model.rtbm", tmp_path / "model.png"
    np.savetxt(data, rows, delimiter=",", header="x,seven,sex,y", comments="")
    refused = command("fit", data, *QUICK, "--hidden", 1, "--output", model)
    assert refused.returncode == 1
    assert "only one value of column 'seven'" in refused.stderr
    assert "--drop-constant" in refused.stderr
    options = ("--starts", 1, "--hidden", 1, "--output", model, "--drop-constant", "--picture", picture)
    fitted = command("fit", data, *options)
    assert fitted.returncode == 0, fitted.stderr
    assert "seven (always 7)" in fitted.stdout
    assert "sex: rounded to 1" in unwrapped(fitted.stdout)
    assert picture.is_file()
    assert [line.split(",")[1] for line in run("sample", model, "-n", "3").splitlines()] == ["seven"] + ["7"] * 3
    given = run("sample", model, "-n", "2", "--given", "sex=1").splitlines()
    assert given[0] == "x,seven,sex,y"
    assert [line.split(",")[1:3] for line in given[1:]] == [["7", "1"]] * 2
    run("score", model, data)


def test_scores_leave_out_rows_without_numbers(tmp_path, plane):
    gaps, model = tmp_path / "gaps.csv", tmp_path / "model.rtbm"
    gaps.write_text(plane.read_text() + ",\n" * 5)
    run("fit", plane, *QUICK, "--hidden", 1, "--output", model)
    scored = command("score", model, gaps)
    assert scored.stdout == run("score", model, plane)
    assert "5 of 205 rows" in scored.stderr


def test_the_summary_suggests_bounds_where_draws_cross_zero(tmp_path):
    weights = np.random.default_rng(0).gamma(1.0, 2.0, size=(200, 1))
    table = tmp_path / "weights.csv"
    np.savetxt(table, np.hstack([weights, weights[::-1] - 5]), delimiter=",", header="weight,change", comments="")
    run("fit", table, *QUICK, "-o", tmp_path / "m.rtbm")
    assert "draws below 0 weight (" in unwrapped(run("info", tmp_path / "m.rtbm"))
    run("fit", table, *QUICK, "--bounds", "weight=0:", "-o", tmp_path / "m.rtbm")
    assert "draws below 0" not in unwrapped(run("info", tmp_path / "m.rtbm"))


def test_without_a_size_a_committee_is_fitted(tmp_path, plane):
    shown = unwrapped(run("fit", plane, "-o", tmp_path / "m.rtbm"))
    assert "5-fold cross-validation" in shown
    model = rtbm.load(tmp_path / "m.rtbm").set_feature_names(None)
    assert isinstance(model, rtbm.RTBMDensityCV)
    held_out = np.average(model.held_out_scores_, weights=model.held_out_counts_)
    assert held_out < model.score(PLANE)
    likelihoods = f"mean log-likelihood {held_out:.6f} (held-out rows), {model.score(PLANE):.6f} (training rows)"
    assert likelihoods in shown
    assert likelihoods in unwrapped(run("info", tmp_path / "m.rtbm"))
    assert "held-out rows" in model._repr_html_()
    run("fit", plane, "--no-cv", "-o", tmp_path / "m.rtbm", *QUICK)
    model = rtbm.load(tmp_path / "m.rtbm").set_feature_names(None)
    assert isinstance(model, rtbm.RTBMDensity)
    assert f"mean log-likelihood {model.score(PLANE):.6f} (training rows)" in unwrapped(
        run("info", tmp_path / "m.rtbm")
    )
    run("fit", plane, "--cv", "--n-hidden", 2, code=2)
    np.save(tmp_path / "few.npy", PLANE[:20])
    run("fit", tmp_path / "few.npy", "-o", tmp_path / "m.rtbm")
    assert isinstance(rtbm.load(tmp_path / "m.rtbm"), rtbm.RTBMDensity)


def test_predictions_imputations_and_quantiles_of_files(tmp_path, plane):
    path = tmp_path / "m.rtbm"
    run("fit", plane, "--n-hidden", 1, "-o", path, *QUICK)
    model = rtbm.load(path).set_feature_names(None)
    run("predict", path, plane, "--target", "y", "-o", tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[0] == "mean,std,quantile_0.05,quantile_0.5,quantile_0.95"
    table = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    np.testing.assert_allclose(table[:, 0], model.predict_mean(PLANE, 1))
    np.testing.assert_allclose(table[:, 2:], model.predict_quantiles(PLANE, 1))
    (tmp_path / "x.csv").write_text("x\n0.5\n\n1.5\n")  # without the target
    run("predict", path, tmp_path / "x.csv", "--target", "y", "--quantiles", "0.5", "-o", tmp_path / "p.npy")
    np.testing.assert_allclose(np.load(tmp_path / "p.npy")[0, 0], model.predict_mean([[0.5, np.nan]], 1)[0])
    (tmp_path / "gaps.csv").write_text("x,y\n0.5,\n,1.0\n1.0,2.0\n")
    shown = run("impute", path, tmp_path / "gaps.csv", "-o", tmp_path / "full.csv")
    assert "2 values filled in" in shown
    full = np.loadtxt(tmp_path / "full.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(full, model.impute([[0.5, np.nan], [np.nan, 1.0], [1.0, 2.0]]))
    values = [
        float(line) for line in run("quantile", path, 0.1, 0.9, "--feature", "y", "--given", "x=0.5").splitlines()
    ]
    np.testing.assert_allclose(values, model.conditional({0: 0.5}).quantile([0.1, 0.9]), rtol=1e-8)
    values = [float(line) for line in run("quantile", path, 0.5, "--feature", 0).splitlines()]
    np.testing.assert_allclose(values, model.marginal(0).quantile([0.5]), rtol=1e-8)
    three = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(np.column_stack([PLANE, PLANE[::-1, 0]]))
    rtbm.save(three.set_feature_names(["x", "y", "z"]), tmp_path / "three.rtbm")
    for feature, given in (("z", "x=0.5"), ("2", "0=0.5")):
        value = float(run("quantile", tmp_path / "three.rtbm", 0.1, "--feature", feature, "--given", given))
        assert value == pytest.approx(three.conditional({"x": 0.5}).marginal(["z"]).quantile([0.1])[0], rel=1e-8)
    drawn = run("sample", path, "-n", 2, "--given", "x=0.5", "--seed", 1).splitlines()
    assert drawn[0] == "x,y"
    assert [line.split(",")[0] for line in drawn[1:]] == ["0.5", "0.5"]


def test_bounds_of_single_columns(tmp_path):
    path, model = tmp_path / "people.csv", tmp_path / "m.rtbm"
    rng = np.random.default_rng(0)
    names = ["age, in years", "x=y:z", "height"]
    rows = np.column_stack([rng.uniform(0, 90, 60), rng.exponential(size=60), rng.normal(size=60)])
    pd.DataFrame(rows, columns=names).to_csv(path, index=False)
    pq.write_table(pa.table(list(rows.T), names=names), tmp_path / "people.parquet")
    options = ("--n-hidden", 1, "-o", model, *QUICK, "--bounds", "age, in years=0:120", "--bounds", "x=y:z=0:")
    for data, *more in ((path,), (tmp_path / "people.parquet", "--stream")):
        run("fit", data, *options, *more)
        assert rtbm.load(model).bounds == [(0, 120), (0, None), None]
    run("fit", path, *options, "--bounds", ":9")
    assert rtbm.load(model).bounds == [(0, 120), (0, None), (None, 9)]
    run("fit", path, "--n-hidden", 1, "-o", model, *QUICK, "-c", "x=y:z", "--bounds", "0=0:")
    assert rtbm.load(model).bounds == [(0, None)]


def test_columns_whose_names_hold_commas(tmp_path):
    path, model = tmp_path / "units.csv", tmp_path / "m.rtbm"
    pd.DataFrame(np.column_stack([PLANE, PLANE[::-1, 0]]), columns=["x, in m", "y", "z"]).to_csv(path, index=False)
    options = ("--n-hidden", 1, "-o", model, *QUICK)
    for chosen, names in [
        (("-c", "x, in m"), ["x, in m"]),
        (("-c", "z,y", "--columns", "x, in m"), ["z", "y", "x, in m"]),
    ]:
        run("fit", path, *chosen, *options)
        assert rtbm.load(model).feature_names_in_.tolist() == names
        assert float(run("score", model, path)) == float(run("score", model, path, *chosen))


def test_tables_go_through_standard_input_and_output(tmp_path, plane):
    model, text = tmp_path / "m.rtbm", plane.read_bytes()
    run("fit", "-", "--n-hidden", 1, "-o", model, *QUICK, stdin=text)
    fitted = rtbm.load(model)
    expected = run("score", model, plane)
    np.save(tmp_path / "plane.npy", PLANE)
    pd.DataFrame(PLANE, columns=["x", "y"]).to_parquet(tmp_path / "plane.parquet")
    for content in (text, *(tmp_path.joinpath(name).read_bytes() for name in ("plane.npy", "plane.parquet"))):
        assert run("score", model, "-", stdin=content) == expected
    scored = command("score", model, "-", "-o", "-", stdin=text)
    assert scored.stdout.splitlines()[0] == "log_prob"
    assert len(scored.stdout.splitlines()) == 201
    assert expected in scored.stderr
    assert run("sample", model, "-n", 3, "-o", "-") == run("sample", model, "-n", 3)
    gaps = run("impute", model, "-", "-o", "-", stdin=b"y,x\n1,\n")
    assert gaps.splitlines()[0] == "y,x"
    run("predict", model, "-", "--target", "y", "-o", tmp_path / "p.csv", stdin=b"x\n0.5\n")
    run("plot", model, "-", "-o", tmp_path / "p.png", stdin=text)
    assert fitted.n_features_in_ == 2
    bad = command("score", model, "-", stdin=b"x,y\n1,2\n3,oops\n")
    assert bad.returncode == 1
    assert bad.stderr == (
        "error: standard_input.csv: line 3, column 'y' (2): 'oops' is not a finite number; choose other columns, or "
        "leave the cell empty if it is missing\n"
    )
    assert command("fit", "-", "-o", model).stderr == "error: standard_input.csv: the file is empty\n"
    assert {path.name for path in tmp_path.iterdir()} == {
        "plane.csv", "plane.npy", "plane.parquet", "m.rtbm", "p.csv", "p.png"
    }  # fmt: skip


def test_rows_are_written_as_parquet(tmp_path, plane):
    model, drawn = tmp_path / "m.rtbm", tmp_path / "draws.parquet"
    run("fit", plane, "--n-hidden", 1, "-o", model, *QUICK)
    run("sample", model, "-n", 5, "-o", drawn)
    frame = pd.read_parquet(drawn)
    assert frame.columns.tolist() == ["x", "y"]
    assert np.array_equal(frame, rtbm.load(model).sample(5, random_state=0))
    run("score", model, drawn, "-o", tmp_path / "scores.parquet")
    assert pd.read_parquet(tmp_path / "scores.parquet").columns.tolist() == ["log_prob"]
    run("predict", model, drawn, "--target", "y", "-o", tmp_path / "p.PARQUET")
    assert pd.read_parquet(tmp_path / "p.PARQUET").shape == (5, 5)
    np.save(tmp_path / "bare.npy", PLANE)
    run("fit", tmp_path / "bare.npy", "--n-hidden", 1, "-o", model, *QUICK)
    run("sample", model, "-n", 5, "-o", drawn)
    assert pd.read_parquet(drawn).columns.tolist() == ["0", "1"]


def test_draws_are_of_the_types_of_the_file(tmp_path):
    rng, model = np.random.default_rng(0), tmp_path / "m.rtbm"
    frame = pd.DataFrame({
        "number": rng.permutation(100_000)[:150],
        "day": pd.Timestamp("1990-01-01") + pd.to_timedelta(rng.permutation(9999)[:150], "D"),
        "price": rng.permutation(100_000)[:150] / 100,
        "ok": [None, *(rng.random(149) < 0.5).tolist()],
        "x": rng.normal(size=150),
    })  # fmt: skip
    frame.assign(ok=frame.ok.map({True: "true", False: "False"})).to_csv(tmp_path / "d.csv", index=False)
    frame.to_parquet(tmp_path / "d.parquet")
    scores = []
    for name, *options in (("d.csv",), ("d.parquet",), ("d.parquet", "--stream")):
        run("fit", tmp_path / name, *options, "--n-hidden", 1, "--n-components", 2, "-o", model, *QUICK)
        assert rtbm.load(model).categories_ == [None, None, None, [False, True], None]
        assert "ok: 2 categories" in unwrapped(run("info", model))
        scores += [float(run("score", model, tmp_path / data)) for data in ("d.csv", "d.parquet")]
        for given in ((), ("--given", "ok=true", "--given", "number=7")):
            run("sample", model, "-n", 50, *given, "-o", tmp_path / "o.parquet")
            table = pq.read_table(tmp_path / "o.parquet")
            assert [str(own) for own in table.schema.types] == ["int64", "date32[day]", "double", "bool", "double"]
            price = np.array(table["price"])
            np.testing.assert_allclose(price, price.round(2), rtol=1e-12)
        assert set(table.select(["number", "ok"]).to_pylist()[0].values()) == {7, True}
        lines = run("sample", model, "-n", 2).splitlines()
        assert [line.split(",")[3] in ("True", "False") for line in lines[1:]] == [True] * 2
        filled = run("impute", model, "-", "--method", "sample", stdin=b"number,day,price,ok,x\n,,,,0\n1,,,true,\n")
        assert filled.splitlines()[1].split(",")[0].lstrip("-").isdecimal()
        assert filled.splitlines()[1].split(",")[3] in ("true", "false")
    np.testing.assert_allclose(scores, scores[0], rtol=1e-6)


@pytest.fixture(scope="module")
def people():
    """A table with names, categories, atoms, rounded numbers, dates, labels and gaps."""
    rng = np.random.default_rng(0)
    city, n = rng.choice(["Lima", "Oslo", "Rome"], 150), 150
    frame = pd.DataFrame({
        "who": [f"person {i}" for i in range(n)],
        "city": city,
        "x": rng.normal(size=n) + 4 * (city == "Rome"),
        "income": np.where(rng.random(n) < 0.3, 0, rng.lognormal(size=n)),
        "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.uniform(0, 400, n).round(3), "D"),
        "grade": rng.integers(1, 4, n),
    })  # fmt: skip
    frame.loc[3, "city"], frame.loc[4, "x"] = None, np.nan
    return frame


@pytest.fixture(scope="module")
def mixed(people, tmp_path_factory):
    """A folder with this table as CSV and Parquet, a model of it, and what the fit printed."""
    folder = tmp_path_factory.mktemp("mixed")
    people.to_csv(folder / "d.csv", index=False)
    people.assign(city=people.city.astype("category")).to_parquet(folder / "d.parquet")
    options = ("--n-hidden", 1, "--n-components", 2, "--starts", 1, "--categorical", "grade")
    shown = run("fit", folder / "d.csv", *options, "-o", folder / "m.rtbm", "--picture", folder / "m.png")
    return SimpleNamespace(folder=folder, csv=folder / "d.csv", model=folder / "m.rtbm", shown=unwrapped(shown))


def test_columns_of_text_are_categories_and_dates_are_days(people, mixed):
    for words in (
        "5 (city, x, income, day, grade)",
        "who (text, 150 different values)",
        "city: 3 categories, income: atom at 0, day: days since 1970, grade: 3 categories",
    ):
        assert words in mixed.shown
        assert words in unwrapped(run("info", mixed.model))
    model = rtbm.load(mixed.model).set_feature_names(None)
    assert model.categories_ == [["Lima", "Oslo", "Rome"], None, None, None, ["1", "2", "3"]]
    days = (people.day - pd.Timestamp("1970-01-01")) / pd.Timedelta(days=1)
    rows = people.drop(columns="who").assign(day=days, grade=people.grade.map(str)).astype(object).to_numpy()
    for name in ("d.csv", "d.parquet"):
        assert float(run("score", mixed.model, mixed.folder / name)) == pytest.approx(model.score(rows), rel=1e-9)
    content = mixed.csv.read_bytes()
    assert run("score", mixed.model, "-", stdin=content) == run("score", mixed.model, mixed.csv)
    assert (mixed.folder / "m.png").stat().st_size > 10_000
    run("plot", mixed.model, mixed.folder / "d.parquet", "-o", mixed.folder / "again.png")


def test_mixed_files_in_blocks_give_the_fit_in_memory(mixed):
    options = ("--n-hidden", 1, "--n-components", 2, "--starts", 1, "--categorical", "grade")
    model = mixed.folder / "blocks.rtbm"
    shown = unwrapped(run("fit", mixed.folder / "d.parquet", "--stream", *options, "-o", model))
    for words in (
        "5 (city, x, income, day, grade)",
        "who (text, 150 different values)",
        "city: 3 categories, income: atom at 0, day: days since 1970, grade: 3 categories",
    ):
        assert words in shown
    assert float(run("score", model, mixed.csv)) == pytest.approx(float(run("score", mixed.model, mixed.csv)), rel=1e-9)


def test_numbers_and_categories_are_predicted(people, mixed):
    run("predict", mixed.model, mixed.csv, "--target", "city", "-o", mixed.folder / "p.csv")
    table = pd.read_csv(mixed.folder / "p.csv")
    levels = ["Lima", "Oslo", "Rome"]
    assert table.columns.tolist() == ["prediction", *(f"probability_{level}" for level in levels)]
    probabilities = table.iloc[:, 1:].to_numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    assert (table.prediction == np.array(levels)[probabilities.argmax(axis=1)]).all()
    people.drop(columns="city").to_csv(mixed.folder / "none.csv", index=False)
    run("predict", mixed.model, mixed.folder / "none.csv", "--target", "city", "-o", mixed.folder / "p.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(mixed.folder / "p.parquet"), table, check_dtype=False)
    header = run("predict", mixed.model, mixed.csv, "--target", "x").splitlines()[0]
    assert header == "mean,std,quantile_0.05,quantile_0.5,quantile_0.95"
    run("predict", mixed.model, mixed.csv, "--target", "grade", "-o", mixed.folder / "p.csv")
    assert pd.read_csv(mixed.folder / "p.csv").shape == (150, 4)


def test_gaps_in_mixed_tables_are_filled(people, mixed):
    shown = run("impute", mixed.model, mixed.csv, "-o", mixed.folder / "f.parquet")
    assert "2 values filled in" in shown
    full = pd.read_parquet(mixed.folder / "f.parquet")
    assert full.columns.tolist() == people.columns.tolist()
    assert full.notna().all(axis=None)
    assert full.x.dtype == np.float64
    assert (full.day - people.day).abs().max() < pd.Timedelta(1, "us")
    assert set(full.city) == {"Lima", "Oslo", "Rome"}
    known = people.city.notna()
    assert (full.city[known] == people.city[known]).all()
    drawn = run("impute", mixed.model, "-", "--method", "sample", stdin=b"city,x,income,day,grade\nRome,,0,,\n")
    assert drawn.splitlines()[1].startswith("Rome,")


@pytest.mark.filterwarnings("ignore:X. identifiers")
def test_a_model_of_python_that_left_columns_out(people, tmp_path):
    table = people[["who", "x", "city"]].assign(one=7.0, y=people.x**2)
    model = rtbm.RTBMDensity(1, n_init=1, drop_constant=True, random_state=0).fit(table)
    rtbm.save(model, tmp_path / "m.rtbm")
    table.to_csv(tmp_path / "d.csv", index=False)
    assert float(run("score", tmp_path / "m.rtbm", tmp_path / "d.csv")) == pytest.approx(model.score(table), rel=1e-9)
    value = float(run("quantile", tmp_path / "m.rtbm", 0.5, "--feature", "y", "--given", "x=1"))
    expected = model.conditional({"x": 1.0}).marginal("y").quantile(0.5)
    assert value == pytest.approx(expected, rel=1e-9)


def test_a_given_value_far_outside_of_the_data_is_told(mixed):
    result = command("sample", mixed.model, "-n", 1, "--given", "x=99999", "--given", "city=Rome")
    assert result.returncode == 0
    assert "warning: values: x = 99999 is outside of the training data" in result.stderr
    assert "The answer is an extrapolation" in result.stderr


def test_levels_and_dates_are_given(mixed):
    drawn = run(
        "sample", mixed.model, "-n", 3, "--given", "city=Rome", "--given", "day=2020-03-01", "--given", "grade=2"
    )
    table = pd.read_csv(io.StringIO(drawn))
    assert table.columns.tolist() == ["city", "x", "income", "day", "grade"]
    assert table[["city", "day", "grade"]].drop_duplicates().to_numpy().tolist() == [["Rome", "2020-03-01", 2]]
    model = rtbm.load(mixed.model).conditional({"city": "Rome", "day": 18322.0, "grade": "2"})
    np.testing.assert_allclose(table[["x", "income"]], model.sample(3, random_state=0))
    value = float(run("quantile", mixed.model, 0.5, "--feature", "x", "--given", "city=Rome"))
    expected = rtbm.load(mixed.model).conditional({"city": "Rome"}).marginal("x").quantile([0.5])[0]
    assert value == pytest.approx(expected, rel=1e-8)
    draws = mixed.folder / "draws.parquet"
    run("sample", mixed.model, "-n", 4, "-o", draws)
    assert pa.types.is_string(pq.read_schema(draws).field("city").type)
    assert pa.types.is_float64(pq.read_schema(draws).field("x").type)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("sample", "M", "--given", "city=Paris"), 2, "city must be one of Lima, Oslo, Rome, got 'Paris'"),
        (("sample", "M", "--given", "x=much"), 2, "x must be a number, got 'much'"),
        (("sample", "M", "--given", "x=2020-03-01"), 2, "x must be a number, got '2020-03-01'"),
        (("sample", "M", "--given", "x=1_0"), 2, "x must be a number, got '1_0'"),
        (("sample", "M", "--given", "day=2020"), 2, "day must be a date such as 2020-03-01, got '2020'"),
        (("sample", "M", "-o", "draws.npy"), 1, "a .npy file holds numbers alone, and the table has text"),
        (("quantile", "M", "0.5", "--feature", "city"), 2, "categories have no quantiles"),
        (("score", "M", "text.csv"), 1, "'x' must hold numbers as in the fit, got text"),
        (("fit", "D", "--categorical", "z"), 2, "'z' is no column: use one of"),
        (("fit", "--categorical", "z"), 2, "there is no file to choose columns of"),
        (("fit", "many.csv", "-c", "who,x", "--no-cv"), 1, "column 'who' has 1100 levels, more than 1000"),
        (("fit", "codes.csv"), 1, "`rtbm fit --categorical code` takes its cells for labels"),
    ],
)
def test_mistakes_with_text_are_told(mixed, monkeypatch, arguments, code, message):
    monkeypatch.chdir(mixed.folder)
    (mixed.folder / "text.csv").write_text("city,x,income,day,grade\nRome,a,1,2020-01-01,1\n")
    (mixed.folder / "codes.csv").write_text("code,x\n250,1\nV27,2\n")
    (mixed.folder / "many.csv").write_text("who,x\n" + "".join(f"p{i},{i}\n" for i in range(1100)))
    result = command(*({"M": mixed.model, "D": mixed.csv}.get(argument, argument) for argument in arguments))
    assert result.returncode == code
    assert message in unwrapped(result.stderr)


def test_labels_may_mix_numbers_and_text(tmp_path):
    data, model = tmp_path / "codes.csv", tmp_path / "m.rtbm"
    codes = np.random.default_rng(0).choice(["250", "V27", "true"], 60)
    pd.DataFrame({"code": codes, "x": np.random.default_rng(1).normal(size=60)}).to_csv(data, index=False)
    run("fit", data, "--categorical", "code", "--n-hidden", 1, "-o", model, *QUICK)
    assert rtbm.load(model).categories_ == [["250", "V27", "true"], None]
    header = "code,x\n"
    for cell in ("250", "250.0", "true"):
        scored = command("score", model, "-", stdin=f"{header}{cell},0.5\n".encode())
        assert scored.stderr == ""
    scored = command("score", model, "-", stdin=f"{header}V99,0.5\n".encode())
    assert "column 'code' has levels that were not there in the fit, 'V99'" in scored.stderr


def test_labels_that_are_equal_as_numbers_stay_different(tmp_path):
    model, rng = tmp_path / "m.rtbm", np.random.default_rng(0)
    code = rng.choice(["1", "01", "K"], 90, p=[0.2, 0.2, 0.6])
    x = rng.normal(size=90) + 9 * (code == "01")
    for codes in (code, np.where(code == "K", "1.5", code)):  # in the second file all are numbers
        data = tmp_path / "codes.csv"
        pd.DataFrame({"g": codes, "x": x}).to_csv(data, index=False)
        run("fit", data, "--categorical", "g", "--n-hidden", 1, "-o", model, *QUICK)
        fitted = rtbm.load(model)
        assert fitted.categories_[0] == sorted(set(codes))
        rows = np.array([["1", 0.1], ["01", 9.2]], dtype=object)
        text = b"g,x\n1,0.1\n01,9.2\n"
        expected = fitted.set_feature_names(None).score_samples(rows)
        scores = command("score", model, "-", "-o", "-", stdin=text).stdout.splitlines()[1:]
        np.testing.assert_allclose([float(line) for line in scores], expected)
        assert run("impute", model, "-", stdin=text + b"01,\n").splitlines()[:3] == ["g,x", "1,0.1", "01,9.2"]
        pd.DataFrame({"g": [1], "x": [0.1]}).to_parquet(tmp_path / "numbers.parquet")
        assert float(run("score", model, tmp_path / "numbers.parquet")) == pytest.approx(expected[0])


def test_columns_that_are_chosen_in_another_order_keep_their_meaning(tmp_path, plane):
    model = tmp_path / "m.rtbm"
    run("fit", plane, "--n-hidden", 1, "-o", model, *QUICK)
    assert run("score", model, plane, "--columns", "y,x") == run("score", model, plane)


def test_imputation_changes_nothing_but_gaps(tmp_path):
    model, data, full = tmp_path / "m.rtbm", tmp_path / "data.csv", tmp_path / "full.parquet"
    rng = np.random.default_rng(0)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 99, 60), "D")
    frame = pd.DataFrame(
        {"who": [f"p{i}" for i in range(60)], "day": days.strftime("%Y-%m-%d"), "x": rng.normal(size=60)}
    )
    frame.assign(ok=rng.choice(["true", "false"], 60), n=rng.integers(0, 9, 60)).to_csv(data, index=False)
    run("fit", data, "--n-hidden", 1, "-o", model, *QUICK)
    lines = ["who,n,day,x,ok,note", "ann,3,2020-03-05,1.50,true,a b", "NA,,,,,", '"c, d",007,2020-03-06,0,false, b ']
    data.write_text("\n".join(lines))
    filled = run("impute", model, data).splitlines()
    assert [filled[0], filled[1], filled[3]] == [lines[0], lines[1], lines[3]]
    row = dict(zip(lines[0].split(","), filled[2].split(","), strict=True))
    assert (row["who"], row["note"], row["day"][:6]) == ("NA", "", "2020-0")
    assert row["ok"] in ("true", "false")
    assert "4 values filled in" in run("impute", model, data, "-o", full)
    assert pq.read_schema(full).field("x").type == pa.float64()
    assert pq.read_table(full)["who"].to_pylist() == ["ann", "NA", "c, d"]
    assert pq.read_table(full)["day"].to_pylist()[0].isoformat() == "2020-03-05"
    cells = {
        "day": [datetime.date(2020, 3, 5), None],
        "ok": [True, None],
        "n": [3, 4],
        "x": [0.5, 1.5],
        "z": [[1], [2]],
    }
    pq.write_table(pa.table(cells), tmp_path / "gaps.parquet")
    run("impute", model, tmp_path / "gaps.parquet", "-o", full)
    known, table = pq.read_table(full), pa.table(cells)
    assert known.schema.equals(table.schema)
    assert known.slice(0, 1).equals(table.slice(0, 1))
    assert known["day"].null_count == known["ok"].null_count == 0
    assert "4 values filled in, with the model's columns alone" in run(
        "impute", model, data, "-o", tmp_path / "full.npy"
    )
    assert np.load(tmp_path / "full.npy").shape == (3, 4)
    day = run("sample", model, "-n", 1).splitlines()[1].split(",")[0]
    assert datetime.date.fromisoformat(day).year in range(2018, 2023)


def test_a_picture_is_written_whole(tmp_path, plane, monkeypatch):
    model, picture = tmp_path / "m.rtbm", tmp_path / "m.png"
    rtbm.save(rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(PLANE), model)
    picture.write_bytes(b"old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(rtbm.FileError, match="No space left"):
        run("plot", model, "-o", picture)
    assert picture.read_bytes() == b"old"


def test_a_folder_that_cannot_be_written_is_found_before_the_fit(tmp_path, plane, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    assert "no file can be written into the folder" in unwrapped(run("fit", plane, "-o", tmp_path / "m.rtbm", code=2))


def test_the_target_of_a_prediction_is_not_read(tmp_path, plane):
    model = tmp_path / "m.rtbm"
    run("fit", plane, "--n-hidden", 1, "-o", model, *QUICK)
    answers = {run("predict", model, "-", "--target", "y", stdin=f"x,y\n0.5,{y}\n".encode()) for y in ("?", "1", "")}
    assert len(answers) == 1


def test_numbers_as_names_of_columns_are_told(tmp_path):
    data, model = tmp_path / "frame.csv", tmp_path / "m.rtbm"
    pd.DataFrame(PLANE).to_csv(data, index=False)
    fitted = command("fit", data, "--n-hidden", 1, "--starts", 1, "-o", model)
    assert "2 (0, 1)" in fitted.stdout
    assert fitted.stderr.count("the first row, 0, 1, is taken for names of columns; say --header, or --no-header") == 1
    assert rtbm.load(model).summary_["n_observations"] == 200
    scored = command("score", model, data)
    assert scored.stderr.count("taken for names") == 1
    assert float(scored.stdout) == pytest.approx(rtbm.load(model).set_feature_names(None).score(PLANE), rel=1e-9)
    for name in ("score", "impute", "plot", "predict"):
        more = ("-o", tmp_path / "o.png") if name == "plot" else ("--target", "0") if name == "predict" else ()
        assert command(name, model, data, "--header", *more).stderr == ""
    run("fit", data, "--no-header", "--n-hidden", 1, "-o", model, *QUICK)
    assert rtbm.load(model).summary_["n_observations"] == 201


def test_the_explorer_reads_before_it_serves(tmp_path, monkeypatch):
    pytest.importorskip("panel", reason="needs Panel")
    served = []
    monkeypatch.setattr("rtbm.explorer.app.run_server", lambda opened, *_: served.append(opened))
    for name in ("junk.rtbm", "junk.npy", "junk.parquet", "junk.csv.gz"):
        (tmp_path / name).write_bytes(b"junk" * 50)
    (tmp_path / "words.csv").write_text("a,b\nann,bob\n")
    rtbm.save(dense(1, 1), tmp_path / "machine.rtbm")
    for name in (*(path.name for path in tmp_path.iterdir()), "absent.rtbm", "absent.csv"):
        result = command("explore", tmp_path / name)
        assert result.returncode == 1, name
        assert name in result.stderr
    assert not served
    (tmp_path / "x.csv").write_text("1,5;2\n3;4\n")
    command("explore", tmp_path / "x.csv", "--decimal", ",", "--no-header", "--no-browser")
    assert served[0].table.rows.tolist() == [[1.5, 2], [3, 4]]
    command("explore")
    assert not served[1].is_given


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "M", "D", "--target", "z"), "--target: 'z' is no column: use one of x, y"),
        (("predict", "M", "D", "--target", "y", "--quantiles", "1.5"), "--quantiles: must be different probabilities"),
        (("predict", "M", "D", "--target", "y", "--quantiles", "0.5,0.5"), "different probabilities between 0 and 1"),
        (("sample", "M", "--given", "x"), "COLUMN=NUMBER"),
        (("sample", "M", "--given", "z=1"), "'z' is no column: use one of x, y"),
        (("sample", "M", "--given", "x=1", "--given", "0=2"), "the same column is given twice, got '0'"),
        (("fit", "D", "--bounds", "x=0:", "--bounds", "x=1:"), "the same column is given twice, got 'x'"),
        (("fit", "D", "--bounds", "0:", "--bounds", "1:"), "the same column is given twice"),
        (("fit", "-c", "x"), "there is no file to choose columns of"),
        (("quantile", "M", "0.5", "--feature", "x", "--given", "x=1"), "'x' has a given value"),
        (("quantile", "M", "0.5"), "choose one of the 2 columns"),
    ],
)
def test_bad_predictions(tmp_path, plane, arguments, message):
    path = tmp_path / "m.rtbm"
    rtbm.save(rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(PLANE).set_feature_names(["x", "y"]), path)
    given = [{"M": path, "D": plane}.get(argument, argument) for argument in arguments]
    result = CliRunner().invoke(app, [str(argument) for argument in given])
    assert result.exit_code == 2
    assert message in unwrapped(result.output)
