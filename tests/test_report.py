"""The report: one page with everything in it, and it opens in a browser; and runs that go on where they were."""

import json
import shutil

import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

from browser import CHROMIUM, visit
from experiments import report, runner
from experiments.__main__ import Options, app, reproduce_experiments
from experiments.experiment import Experiment, Job, Picture, ResultTable
from experiments.runner import Parts, Run
from experiments.verdicts import Status, Verdict
from rtbm.errors import FileError, InvalidInputError
from runs import finish


def square(x: int) -> int:
    return x * x


def draw(outcome):
    figure, ax = plt.subplots()
    ax.plot(outcome["squares"])
    return figure


TOY = Experiment(
    title="Toy <experiment>",
    about="Squares by `square`, & more.",
    seeds=(3, 2),
    seconds=(30.0, 10.0),
    jobs=lambda seeds, quick: [Job(f"square of {i}", square, (i,)) for i in range(seeds)],
    collect=lambda results, seeds, quick: {"seeds": seeds, "quick": quick, "squares": list(results.values())},
    tables=lambda outcome: [ResultTable("Squares", ["x", "a", "b"], [["1 < 2", "3", "4"]], (2,))],
    verdicts=lambda outcome: [Verdict(Status.BEATEN, "It's <better>.")],
    pictures=(Picture("", "Nothing & all.", "Squares", draw), Picture("more", "", "More", draw)),
)


RECORD = {
    "outcome": {"seeds": 2, "quick": False, "squares": [0, 1]},
    "seconds": 500.0,
    "command": "python -m experiments toy",
    "seeds": "0 to 1",
    "versions": {"rtbm": "1"},
    "finished": "now",
}


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report that the command has written, of two experiments."""
    folder = tmp_path_factory.mktemp("paper")
    for name in ("iris", "conditionals"):
        arguments = [name, "--quick", "--seeds", "2", "-j", "1", "-o", str(folder)]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    return folder / report.PAGE


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [1200, 500])
@pytest.mark.slow
def test_the_page_opens_in_a_browser(page, width):
    seen = visit(page, width)
    assert seen.images == seen.loaded == 2
    assert seen.errors == []
    assert seen.outside == 0
    assert seen.overflow <= 0


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.slow
def test_the_browser_sees_what_is_wrong(tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<!doctype html><html><head></head><body><img src="data:image/png;base64,AAAA"><img src="gone.png">'
        '<div style="width: 3000px">x</div><script>console.error("no"); missing()</script></body></html>'
    )
    seen = visit(bad)
    assert (seen.images, seen.loaded, seen.outside) == (2, 0, 1)
    assert seen.overflow > 1000
    assert any("no" in line for line in seen.errors)
    assert any("missing" in line for line in seen.errors)


def test_the_page_says_how_numbers_came_about(page):
    text = page.read_text()
    for expected in (
        "python -m experiments iris --quick --seeds 2",
        "torch",
        "0 to 1",
        "beyond the paper",
        "In the paper",
    ):
        assert expected in text
    assert "http" not in text.replace("https://arxiv.org/abs/1712.07581", "")


def test_text_is_escaped_and_the_best_is_marked():
    text = report.render([report.Section("toy", TOY, RECORD, [b"png", b"png"])])
    assert "Toy &lt;experiment&gt;" in text
    assert "It&#x27;s &lt;better&gt;." in text
    assert "<code>square</code>, &amp; more" in text
    assert '<td class="best">4</td>' in text
    assert '<span class="badge beaten">beaten</span>' in text
    assert "8 min" in text
    assert "Nothing of the kind" in text


def test_documents_get_tables_verdicts_and_how_they_came_about():
    text = report.to_markdown(TOY, RECORD)
    assert "- **beaten**: It's <better>." in text
    assert "| x | a | b |\n|---|---|---|\n| 1 < 2 | 3 | **4** |" in text
    assert text.endswith("`python -m experiments toy`, seeds 0 to 1, 8 min of computing, now; rtbm 1.\n")


def test_results_of_other_code_are_left_out(page, monkeypatch):
    folder = page.parent
    assert [section.name for section in report.read_sections(folder)[0]] == ["iris", "conditionals"]
    monkeypatch.setattr(report, "fingerprint", lambda: "other")
    sections, stale = report.read_sections(folder)
    assert (sections, stale) == ([], ["iris", "conditionals"])


def test_sections_with_missing_or_damaged_files_are_told(page, tmp_path):
    folder = shutil.copytree(page.parent, tmp_path / "copy")
    (folder / "conditionals.png").unlink()
    (folder / "iris.json").write_text("[]")
    assert report.read_sections(folder) == ([], ["iris", "conditionals"])


def test_what_cannot_be_removed_or_written_is_told_before_the_work(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "parts").mkdir(parents=True)
    (tmp_path / "out" / "parts" / "iris-quick").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileError, match="--fresh"):
        reproduce_experiments(["iris"], Options(2, True, True, 1, tmp_path / "out"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "parts").write_text("")
    with pytest.raises(FileError, match="parts: not a folder"):
        reproduce_experiments(["iris"], Options(2, True, False, 1, tmp_path / "other"))


def test_few_seeds_are_not_a_failure():
    toy = TOY._replace(verdicts=lambda outcome: [Verdict(Status.NOT_REACHED, ""), Verdict(Status.BEATEN, "")])
    assert [verdict.status for verdict in toy.judge({"seeds": 4})] == [Status.TOO_FEW, Status.BEATEN]
    assert [verdict.status for verdict in toy.judge({"seeds": 5})] == [Status.NOT_REACHED, Status.BEATEN]


def test_finished_parts_are_not_run_again(tmp_path):
    parts = Parts(tmp_path / "parts")
    seen: list[str] = []
    assert finish(Run(TOY, 2, False, parts), seen.append)["squares"] == [0, 1]
    assert finish(Run(TOY, 3, False, parts), seen.append)["squares"] == [0, 1, 4]
    assert seen == ["square of 0", "square of 1", "square of 2"]
    assert Run(TOY, 3, False, parts).missing() == []
    outcome, seconds = Run(TOY, 3, False, parts).collect({})
    assert outcome["squares"] == [0, 1, 4]
    assert seconds >= 0


def test_parts_that_are_damaged_or_of_other_code_are_run_again(tmp_path, monkeypatch):
    run = Run(TOY, 3, False, Parts(tmp_path))
    finish(run)
    first, second, third = sorted(tmp_path.iterdir())
    first.write_text(first.read_text()[:20])
    second.write_text(json.dumps({"key": "another"}))
    assert len(run.missing()) == 2
    third.write_text(json.dumps({k: v for k, v in json.loads(third.read_text()).items() if k != "seconds"}))
    assert len(run.missing()) == 3
    finish(run)
    assert run.missing() == []
    monkeypatch.setattr(runner, "fingerprint", lambda: "other")
    assert len(run._replace(parts=Parts(tmp_path)).missing()) == 3


def test_an_interrupted_run_keeps_what_is_finished(tmp_path):
    def fail(x: int) -> int:
        if x == 2:
            raise KeyboardInterrupt
        return x

    def run(function):
        jobs = lambda seeds, quick: [Job(f"square of {i}", function, (i,)) for i in range(seeds)]  # noqa: E731
        return Run(TOY._replace(jobs=jobs), 3, False, Parts(tmp_path))

    with pytest.raises(KeyboardInterrupt):
        finish(run(fail))
    assert [job.key for job in run(square).missing()] == ["square of 2"]
    seen: list[str] = []
    assert finish(run(square), seen.append)["squares"] == [0, 1, 4]
    assert seen == ["square of 2"]


def test_how_long_it_will_take():
    assert Run(TOY, 3, False).expected_seconds(3, 1) == 30
    assert Run(TOY, 6, False).expected_seconds(3, 2) == 15
    assert Run(TOY, 2, True).expected_seconds(1, 1) == 5


def test_jobs_of_the_same_name_are_an_error():
    twice = TOY._replace(jobs=lambda seeds, quick: [Job("same", square, (1,))] * 2)
    with pytest.raises(InvalidInputError, match="different keys"):
        finish(Run(twice, 2, False))


def test_the_fingerprint_is_of_code_and_versions():
    assert len(runner.fingerprint()) == 64
    assert {"rtbm", "torch", "numpy", "scikit-learn"} < set(runner.versions())
