"""The explorer: what it computes, and the page in a real browser."""

import bz2
import gzip
import io
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rtbm
from rtbm.explorer.fit import (
    FitOptions,
    Panels,
    command_line,
    conditional_curves,
    finish,
    mass_levels,
    picture_bytes,
    python_code,
)
from rtbm.explorer.fit import start_fit as start
from rtbm.explorer.machine import SIZES, draw_machine, make_machine, parameters, presets, values_of
from rtbm.explorer.network import learned_activations, paper_series, predicted, start_training, table_series
from rtbm.explorer.tables import TABLES, UPLOAD_MB, open_source, read_upload
from rtbm.explorer.theta import complex_plane, phase_colours, quadratic_form, real_plane
from rtbm.plotting import MarginalDensities

GAMMA = "the paper's gamma"


@pytest.mark.parametrize("name", list(presets()))
@pytest.mark.parametrize("kind", ["paper", "lattice"])
def test_sliders_give_back_the_machine_that_they_show(name, kind):
    machine = presets()[name]
    size = machine.n_visible, machine.n_hidden
    again = make_machine(size, kind, machine.phase, values_of(machine, kind))
    points = np.linspace(-3, 3, 14).reshape(-1, size[0])
    assert size in SIZES.values()
    assert len(parameters(size, kind)) == len(values_of(machine, kind))
    np.testing.assert_allclose(again.log_prob(points), machine.log_prob(points), atol=1e-9)


@pytest.mark.parametrize("name", list(presets()))
def test_pictures_of_a_machine_are_its_density(name):
    machine = presets()[name]
    picture = draw_machine(machine, 100)
    cell = np.prod([axis[1] - axis[0] for axis in picture.axes])
    assert abs(picture.p.sum() * cell - 1) < 1e-3
    assert abs(picture.shares.sum() - 1) < 1e-6
    assert picture.draws.shape == (100, machine.n_visible)
    assert {"log Z", "mean"} <= set(picture.numbers)


def test_the_same_density_in_the_other_phase():
    machine = next(iter(presets().values()))
    other = machine.to_phase("II")
    again = make_machine((1, 1), "paper", "II", values_of(other, "paper"))
    np.testing.assert_allclose(draw_machine(again).p, draw_machine(machine).p, atol=1e-9)


def test_a_value_outside_the_valid_region_names_the_condition():
    values = values_of(next(iter(presets().values())), "paper") | {"Q": 0.5}
    with pytest.raises(rtbm.InvalidInputError, match=r"Q − WᵀT⁻¹W .* must be positive definite"):
        make_machine((1, 1), "paper", "I", values)


@pytest.mark.parametrize("name", list(TABLES))
def test_tables_can_be_drawn(name):
    table = TABLES[name]()
    panels = Panels(table.rows)
    assert table.rows.shape[1] == len(table.columns)
    for i in panels.singles:
        heights, edges = panels.histogram(i)
        assert 0.95 < (heights * np.diff(edges)).sum() <= 1 + 1e-12


def test_a_fit_runs_to_its_end():
    table = TABLES[GAMMA]()
    options = FitOptions(tuple(table.columns), n_hidden=1)
    job = start(table, options)
    job.wait(60)
    model = finish(job.model, table, options)
    expected = rtbm.RTBMDensity(1, random_state=0).fit(table.rows)
    assert not job.error
    assert not job.was_stopped
    assert model.score(table.rows) == expected.score(table.rows)
    assert job.runs[0][0] > job.runs[-1][-1]


@pytest.mark.parametrize("is_committee", [False, True])
def test_a_stopped_fit_has_a_model(is_committee):
    table = TABLES["the paper's correlated mixture"]()
    options = FitOptions(tuple(table.columns), is_committee, n_hidden=3, n_components=4)
    job = start(table, options)
    while job.latest is None and job.is_running:
        time.sleep(0.01)
    job.stop()
    job.wait(60)
    model = finish(job.model, table, options)
    assert job.was_stopped
    assert not hasattr(model, "candidate_weights_")
    assert np.isfinite(model.score(table.rows))


def test_errors_of_a_fit_are_kept():
    table = TABLES[GAMMA]()
    job = start(table._replace(rows=np.ones((20, 1))), FitOptions(tuple(table.columns)))
    job.wait(60)
    assert "only one value" in job.error
    with pytest.raises(rtbm.InvalidInputError, match="choose one column"):
        start(table, FitOptions(()))


def test_conditional_curves_are_conditionals():
    table = TABLES["scikit-learn's iris"]()
    model = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(table.rows)
    curves = conditional_curves(MarginalDensities(model.distribution_), Panels(table.rows), 2, 4.0)
    assert sorted(curves) == [0, 1, 3]
    expected = model.distribution_.conditional({2: 4.0})
    for i, (v, p) in curves.items():
        np.testing.assert_allclose(p, expected.marginal(i - (i > 2)).log_prob(v[:, None]).exp(), atol=1e-5)


def test_pictures_of_many_columns_show_the_first():
    rows = TABLES["scikit-learn's wine"]().rows[:, :8]
    model = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(rows)
    assert picture_bytes(model, rows).startswith(b"\x89PNG")


def test_contours_enclose_their_mass():
    p = np.random.default_rng(0).gamma(2.0, size=5000)
    for mass, level in zip((0.99, 0.9, 0.5), mass_levels(p), strict=True):
        assert abs(p[p >= level].sum() / p.sum() - mass) < 1e-2


def test_code_does_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = TABLES[GAMMA]()
    options = FitOptions(tuple(table.columns), n_hidden=1)
    names = {}
    exec(python_code(table, options), names)
    assert names["model"].score(table.rows) == rtbm.RTBMDensity(1, random_state=0).fit(table.rows).score(table.rows)
    assert command_line(table, options) == (
        "rtbm fit gamma.csv --no-header --n-hidden 1 --n-components 1 --seed 0 --output model.rtbm"
    )
    iris = TABLES["scikit-learn's iris"]()
    names = {}
    exec(python_code(iris, FitOptions(tuple(iris.columns[:2]), n_hidden=1)), names)
    assert rtbm.load("model.rtbm").n_features_in_ == 2


def test_code_reads_a_file_as_it_was_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("x;height, in m;z\n" + "".join(f"{i},5;{i * i};{-(i**3)}\n" for i in range(20)))
    table = open_source("data.csv", header=None, separator=None, decimal=",").table
    options, names = FitOptions(tuple(table.columns[:2]), n_hidden=1), {}
    exec(python_code(table, options).rsplit("\nmodel", 1)[0], names)
    assert np.array_equal(names["X"], table.rows[:, :2])
    assert command_line(table, options).startswith(
        "rtbm fit data.csv --decimal=, --columns=x --columns='height, in m' --n-hidden 1"
    )


ODD_NAMES = ["-a", "--seed", "it's", 'say "x"', "back\\slash", "line\nbreak", "$(touch x)", "`touch x`", "a, b"]


@pytest.mark.parametrize("file", ["-it's $(touch x).csv", '-it\'s "$(touch x)".parquet'])
def test_code_and_command_do_the_same_whatever_the_names(tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)
    X = np.random.default_rng(0).normal(size=(30, len(ODD_NAMES) + 1))
    frame = pd.DataFrame(X, columns=[*ODD_NAMES, "last"])
    frame.to_csv(file, index=False) if file.endswith("csv") else frame.to_parquet(file)
    table = read_upload(file, Path(file).read_bytes())
    assert any("blanks replace control characters in names of columns: 'line break'" in note for note in table.notes)
    options = FitOptions(tuple(table.columns[:-1]), n_hidden=1)
    with pytest.warns(UserWarning, match="control characters"):
        exec(python_code(table, options), {})
    by_code = rtbm.load("model.rtbm")
    Path("model.rtbm").unlink()
    command = command_line(table, options).replace("rtbm", f"{shlex.quote(sys.executable)} -m rtbm", 1)
    run = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "warning: " in run.stderr
    assert "\x1b" not in run.stdout
    by_command = rtbm.load("model.rtbm")
    assert list(by_command.feature_names_in_) == [name.replace("\n", " ") for name in ODD_NAMES]
    assert by_command.set_feature_names(None).score(X[:, :-1]) == by_code.score(X[:, :-1])
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("columns.csv.gz", lambda: gzip.compress(b"," * 1_999_999 + b"\n" + b"," * 1_999_999)),
        ("quoted.csv.gz", lambda: gzip.compress(b'"\n",' * 1_000_000)),
        ("rows.csv.gz", lambda: gzip.compress(b"x\n" + b"1\n" * 10_000_000)),
        ("comments.csv.gz", lambda: gzip.compress(b"#\n" * 10_000_000)),
        ("blanks.txt.bz2", lambda: bz2.compress(b"1 " * 6_000_000)),
        ("one_cell.csv.bz2", lambda: bz2.compress(b"1" * 60_000_000)),
        ("numbers.parquet", lambda: parquet_bytes({"x": np.zeros(10_000_000)})),
        ("wide.parquet", lambda: parquet_bytes({f"{i}": [0.0] for i in range(1001)})),
    ],
)
def test_uploads_that_unfold_are_refused_before_they_take_memory(name, make):
    content = make()
    tracemalloc.start()
    with pytest.raises(rtbm.FileError, match=rf"^{name}: holds more than [\d,]+ (bytes|cells|columns)$"):
        read_upload(name, content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e8


@pytest.mark.parametrize("is_dictionary", [False, True])
def test_a_repeated_text_of_a_parquet_file_is_not_unfolded(is_dictionary):
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1_000_000, pa.int32()), ["-" * 10_000])
    content = io.BytesIO()
    schema = pa.schema({"text": words.type if is_dictionary else pa.large_string(), "x": pa.float64()})
    with pq.ParquetWriter(content, schema) as writer:
        for _ in range(200):  # else the texts, of 2 GB, would have to be in memory here
            part = words[:1000] if is_dictionary else words[:1000].cast(pa.large_string())
            writer.write_batch(pa.record_batch([part, np.arange(1000.0)], schema=schema))
    table = read_upload("text.parquet", content.getvalue())
    assert dict(table.left_out) == {"text": "text"}


def parquet_bytes(columns):
    content = io.BytesIO()
    pq.write_table(pa.table(columns), content)
    return content.getvalue()


def test_uploads_are_read_like_files_and_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    table = read_upload("../../etc/x.csv", "a,b,c\n1,2,u\n3,4,v\n")
    assert table.columns == ["a", "b"]
    assert dict(table.left_out) == {"c": "text"}
    with pytest.raises(rtbm.FileError, match=r"^bad.csv: line 3, column 'b' \(2\): 'oops' is not a finite number"):
        read_upload("bad.csv", b"a,b\n1,2\n3,oops\n")
    with pytest.raises(rtbm.FileError, match="the name must end in one of"):
        read_upload("code.py", b"print()")
    with pytest.raises(rtbm.FileError, match=r"^x \.csv: the name of the file holds control characters"):
        read_upload("x\x1b.csv", b"a\n1\n")
    with pytest.raises(rtbm.FileError, match=f"larger than {UPLOAD_MB} MB"):
        read_upload("big.csv", b" " * (UPLOAD_MB * 10**6 + 1))
    assert not list(tmp_path.iterdir())


def test_what_is_given_is_opened(tmp_path):
    model = rtbm.RTBMDensity(1, n_init=1, random_state=0).fit(rtbm.datasets.gamma.sample(200))
    rtbm.save(model, tmp_path / "model.rtbm")
    np.save(tmp_path / "x.npy", np.arange(6.0).reshape(3, 2))
    assert open_source(None).model is None
    assert open_source(tmp_path / "model.rtbm").model.score([[5.0]]) == model.score([[5.0]])
    assert open_source(tmp_path / "x.npy").table.rows.shape == (3, 2)
    assert open_source(model).model is model
    X = np.column_stack([np.random.default_rng(0).normal(size=(100, 2)), np.ones(100)])
    partly = rtbm.RTBMDensity(1, n_init=1, drop_constant=True, random_state=0).fit(X)
    assert open_source(partly).table.rows.shape[1] == open_source(partly).model.n_features_in_ == 2
    assert open_source([1.0, 2.0]).table.rows.shape == (2, 1)
    rtbm.save(model.distribution_, tmp_path / "machine.rtbm")
    with pytest.raises(rtbm.FileError, match="holds a RTBMDistribution"):
        open_source(tmp_path / "machine.rtbm")


def test_networks_are_followed_and_stopped():
    series = paper_series()
    job = start_training(series, (3,))
    while job.latest is None and job.is_running:
        time.sleep(0.01)
    module = job.latest.model()
    job.stop()
    job.wait(60)
    assert predicted(module, series.times).shape == series.times.shape
    assert series.times[-1] == 2 * series.t.max()
    assert [curves.E.shape[1] for curves in learned_activations(job.model.module_, series)] == [3, 1]
    np.testing.assert_allclose(predicted(job.model.module_, series.t), job.model.predict(series.t[:, None]))


def test_a_training_ends_with_the_same_network_whether_it_is_drawn_or_not():
    series = paper_series()
    job = start_training(series, (3,))
    while job.is_running:
        if job.latest is not None:
            predicted(job.latest.model(), series.times)
    expected = start_training(series, (3,))
    expected.wait()
    np.testing.assert_array_equal(*(predicted(done.model.module_, series.times) for done in (job, expected)))


def test_series_of_tables():
    table = TABLES["scikit-learn's iris"]()
    series = table_series(table, None, table.columns[0])
    assert series.t.tolist() == list(range(150))
    with pytest.raises(rtbm.InvalidInputError, match="10 rows or more"):
        table_series(table._replace(rows=table.rows[:3]), None, table.columns[0])


def test_theta_planes():
    Q = quadratic_form(4.0, 1.0, 3.0)
    plane = real_plane(Q, "I", 3.0)
    np.testing.assert_allclose(plane.values, plane.values[::-1, ::-1], atol=1e-9)  # θ̃ is even
    values = complex_plane(Q, np.zeros((2, 2)), 0j)
    np.testing.assert_allclose(values[:, 0], values[:, -1], atol=1e-9)  # θ has period 1, here 2
    assert phase_colours(values).shape == values.shape
    with pytest.raises(rtbm.NotPositiveDefiniteError):
        real_plane(quadratic_form(1.0, 2.0, 1.0), "I", 3.0)


def test_without_panel_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['panel'] = None\n"
        "import rtbm\n"
        "try:\n    rtbm.explore()\nexcept ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 'pip install ".[explore]" in a checkout' in run.stdout


@pytest.mark.slow
def test_notebooks_get_the_same_page():
    pytest.importorskip("panel", reason="needs Panel")
    code = "import rtbm; print([name for name in rtbm.explore([1.0, 2.0, 4.0, 3.0])._names])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['Machine', 'Fit', 'Network', 'Theta']"


# The page in a browser.


@pytest.fixture(scope="module")
def address():
    """The address of a server in a process of its own."""
    pytest.importorskip("panel", reason="needs Panel")
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "rtbm", "explore", "--no-browser", "--port", str(port)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert f"http://127.0.0.1:{port}" in server.stdout.readline()
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


@pytest.fixture
def page(chromium, address):
    """A page of its own session, which must log no errors and ask no other host."""
    with closing(chromium.new_context(viewport={"width": 400, "height": 900})) as context:
        made, errors, asked = context.new_page(), [], []
        made.set_default_timeout(20_000)
        made.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        made.on("pageerror", lambda error: errors.append(str(error)))
        made.on("request", lambda request: asked.append(request.url))
        made.goto(address)
        made.get_by_text("P(h), of phase I").or_(made.get_by_role("slider").first).first.wait_for()
        yield made
        assert not errors
        outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
        assert not outside
        assert made.evaluate("document.documentElement.scrollWidth") <= 400


ARRAYS = """() => {
  const found = {};
  for (const model of Bokeh.documents[0].all_models)
    if (model.type === "ColumnDataSource" && model.data.p && model.data.v) found[model.id] = Array.from(model.data.p);
  return found;
}"""
"""The curves of the page: the columns p of all sources that have v and p."""


def move(page, label, value):
    """Set a slider as a drag does."""
    page.evaluate(
        """([label, value]) => {
          for (const model of Bokeh.documents[0].all_models)
            if (model.title === label && model.start !== undefined) model.value = value;
        }""",
        [label, value],
    )


def wait_for_change(page, before):
    """Wait until a curve differs from what it was; the milliseconds that this took."""
    return page.evaluate(
        """async ([before, read]) => {
          const start = performance.now(), now = eval(read);
          while (performance.now() - start < 10000) {
            if (JSON.stringify(now()) !== JSON.stringify(before)) return performance.now() - start;
            await new Promise(requestAnimationFrame);
          }
          return -1;
        }""",
        [before, ARRAYS],
    )


def open_tab(page, name):
    page.get_by_text(name, exact=True).first.click()


@pytest.mark.slow
def test_a_slider_moves_the_curve_and_an_invalid_one_says_why(page):
    before = page.evaluate(ARRAYS)
    move(page, "W", 2.0)
    assert wait_for_change(page, before) >= 0
    before = page.evaluate(ARRAYS)
    move(page, "W", 8.0)
    page.locator(".message").get_by_text("must be positive definite").wait_for()
    assert page.evaluate(ARRAYS) == before
    move(page, "W", 1.0)
    assert wait_for_change(page, before) >= 0
    page.locator(".message").wait_for(state="detached")


@pytest.mark.slow
def test_a_fit_ends_and_its_model_can_be_loaded(page, tmp_path):
    open_tab(page, "Fit")
    page.get_by_role("button", name="Start").click()
    page.get_by_text("The fit has ended.").wait_for()
    page.get_by_text("mean log-likelihood").wait_for()
    page.get_by_text("rtbm fit gamma.csv --no-header --n-hidden 2").wait_for()
    for name in ("model.rtbm", "samples.csv", "model.png"):
        with page.expect_download() as download:
            page.get_by_text(name, exact=True).click()
        download.value.save_as(tmp_path / name)
    X = rtbm.datasets.gamma.sample()
    model = rtbm.load(tmp_path / "model.rtbm")
    assert model.score(X) == pytest.approx(rtbm.RTBMDensity(random_state=0).fit(X).score(X), abs=1e-6)
    assert len((tmp_path / "samples.csv").read_text().splitlines()) == 1000
    assert (tmp_path / "model.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_fit_can_be_stopped_and_other_sessions_do_not_notice(page, address, chromium):
    open_tab(page, "Fit")
    other = chromium.new_page()
    other.goto(address)
    open_tab(other, "Fit")
    page.get_by_label("Data").select_option("the paper's correlated mixture")
    move(page, "hidden units", 4)
    move(page, "machines in the mixture", 6)
    page.get_by_role("button", name="Start").click()
    page.get_by_text(re.compile(r"start \d+, step \d+")).wait_for()
    assert other.get_by_text(re.compile(r"start \d+, step \d+")).count() == 0
    assert other.get_by_role("button", name="Stop").is_disabled()
    other.close()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped: the model is the fit so far.").wait_for()
    page.get_by_text("Conditionals").wait_for()


@pytest.mark.slow
def test_files_are_read_and_bad_ones_get_their_message(page):
    open_tab(page, "Fit")
    box = page.locator("input[type=file]").first
    box.set_input_files({"name": "bad.csv", "mimeType": "text/csv", "buffer": b"a,b\n1,2\n3,oops\n"})
    page.get_by_text("bad.csv: line 3, column 'b' (2): 'oops' is not a finite number").wait_for()
    rows = "\n".join(f"{x},{x * x % 7}" for x in range(60))
    box.set_input_files({"name": "good.csv", "mimeType": "text/csv", "buffer": f"one,two\n{rows}\n".encode()})
    page.get_by_text("good.csv").first.wait_for()
    page.locator(".message").wait_for(state="detached")


EVIL = "<img src=x onerror='document.title=1'>"


@pytest.mark.slow
def test_names_in_tables_and_of_files_are_shown_as_text(page, tmp_path):
    open_tab(page, "Fit")
    box = page.locator("input[type=file]").first
    names = [f"x\n```\n{EVIL}", f"</pre><script>document.title=2</script>{EVIL}", f"$$\\href{{x}}{{{EVIL}}}$$"]
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 3)), columns=names)
    frame["text"] = EVIL
    file = {"name": f"{EVIL}.csv", "mimeType": "text/csv", "buffer": frame.to_csv(index=False).encode()}
    box.set_input_files(file)
    page.get_by_text("blanks replace control characters").wait_for()
    page.get_by_role("button", name="Start").click()
    page.get_by_text("The fit has ended.").wait_for()
    page.get_by_text("rtbm fit").wait_for()
    box.set_input_files(file | {"buffer": f"a,b\n1,2\n3,{EVIL} 4\n".encode()})
    page.get_by_text("is not a finite number").wait_for()
    open_tab(page, "Network")
    page.get_by_label("Hidden layers").wait_for()
    page.locator("input[type=file]").last.set_input_files(file)
    page.get_by_label("Values").wait_for()
    page.wait_for_timeout(300)
    assert page.title() == "rtbm explorer"
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.slow
def test_a_click_on_the_text_ticks_the_box(page):
    open_tab(page, "Fit")
    page.get_by_text("a committee, whose sizes cross-validation chooses").click()
    assert page.get_by_label("a committee").is_checked()
    page.get_by_role("button", name="Start").click()
    page.get_by_text(re.compile(r"start \d+, step \d+")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("rtbm fit gamma.csv --no-header --cv").wait_for()


@pytest.mark.slow
def test_the_picture_of_a_trained_network_is_that_of_the_result(page):
    open_tab(page, "Network")
    page.get_by_label("Hidden layers").select_option("3")
    page.get_by_role("button", name="Train").click()
    page.get_by_text("Trained.").wait_for(timeout=120_000)
    drawn = page.evaluate(
        """() => [...Bokeh.documents[0].all_models]
          .filter(model => model.type === "ColumnDataSource" && model.data.t && model.data.y)
          .map(model => Array.from(model.data.y))"""
    )
    job = start_training(paper_series(), (3,))
    job.wait()
    curve = predicted(job.model.module_, paper_series().times)
    assert any(len(y) == len(curve) and np.allclose(y, curve, atol=1e-6) for y in drawn)


@pytest.mark.slow
def test_networks_and_theta_functions_are_drawn(page):
    open_tab(page, "Network")
    page.get_by_label("Hidden layers").select_option("8, 4")
    page.get_by_role("button", name="Train").click()
    page.get_by_text(re.compile(r"start \d+, step \d+: loss")).wait_for()
    page.get_by_role("button", name="Stop").click()
    page.get_by_text("Stopped: the network is the best so far.").wait_for()
    open_tab(page, "Theta")
    page.get_by_text("Re Ω₁₁").wait_for()
    move(page, "Q₁₂", 8.0)
    page.locator(".message").get_by_text("must be positive definite").wait_for()


def status(address, path="/", host=None, origin=None, method="GET"):
    """The status of the answer to a request that no browser would make. A socket is asked for with `origin`."""
    lines = [f"{method} {path} HTTP/1.1", *([f"Host: {host}"] if host else [])]
    if origin:
        lines += [f"Origin: {origin}", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
        lines += ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    with socket.create_connection(address.removeprefix("http://").split(":"), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        return int(connection.recv(100).split()[1])


SCRIPT = "/static/js/bokeh.min.js"


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_this_machine_gets_page_script_and_socket(address, host):
    host += f":{address.split(':')[-1]}"
    assert [status(address, path, host) for path in ("/", SCRIPT)] == [200, 200]
    assert status(address, "/ws", host, f"http://{host}") == 101


@pytest.mark.slow
@pytest.mark.parametrize("host", ["Evil.example", "127.0.0.1.evil.example", "xlocalhost", "localhost.x"])
@pytest.mark.parametrize("has_port", [True, False])
def test_other_hosts_are_refused(address, host, has_port):
    """A name that resolves to 127.0.0.1 after its page was loaded has the browser ask this server (DNS rebinding)."""
    host += f":{address.split(':')[-1]}" if has_port else ""
    assert [status(address, path, host) for path in ("/", SCRIPT, "/favicon.ico", "/nowhere")] == [403] * 4
    assert status(address, "/", host, method="POST") == 403
    assert status(address, "/ws", host, f"http://{host}") == 403  # uploads come by the socket
    assert status(address, "/ws", host, address) == 403


@pytest.mark.slow
def test_requests_without_a_host_are_refused(address):
    assert [status(address, path) for path in ("/", SCRIPT)] == [400, 400]
    assert status(address, "/ws", origin=address) == 400


@pytest.mark.slow
def test_other_origins_are_refused(address):
    host = address.removeprefix("http://")
    assert status(address, "/ws", host, "http://example.org") == 403
    assert status(address, "/ws", host, f"http://example.org:{host.split(':')[1]}") == 403
    assert status(address, "/ws", host, address) == 101
