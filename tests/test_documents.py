"""The Python in README and docs runs, and prints what the documents say."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = ("gallery", "generated")
REPRODUCTION = ROOT / "docs" / "reproduction"
RESULTS = REPRODUCTION / "results"
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if not set(path.parts) & {*GENERATED, "results"}),
]


def blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "python")], ids=lambda path: path.stem)
@pytest.mark.slow
def test_code_blocks_run_in_order(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(document, "python"):
        exec(compile(block, document.name, "exec"), names)


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if blocks(d, "pycon")], ids=lambda path: path.stem)
@pytest.mark.slow
def test_sessions_print_what_they_show(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks(document, "pycon")), {}, document.stem, None, None)
    report: list[str] = []
    result = doctest.DocTestRunner().run(session, out=report.append)
    assert result.attempted
    assert not result.failed, "".join(report)


def test_files_that_documents_refer_to_exist() -> None:
    for document in DOCUMENTS:
        text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"]\(([^)#:]+)(?:#[^)]*)?\)", text):
            if not set(Path(target).parts) & set(GENERATED):  # those, make docs checks
                assert (document.parent / target).exists(), f"{document.name} refers to {target}"


def numbers(text: str) -> set[float]:
    """Numbers with decimals, exponents or per cent signs in a text, without mathematics, code and links."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|\$.*?\$|`.*?`|]\(.*?\)|arXiv:[\d.]+", " ", text, flags=re.DOTALL)
    found = re.findall(r"(?<![\w.])(\d+\.\d+(?:e[-+]?\d+)?|\d+e[-+]?\d+|\d+(?= ?%))(?![\w.]*\d)", text)
    return {float(number) for number in found}


def published(page: Path) -> set[float]:
    """The numbers of the runs whose results a page includes."""
    names = re.findall(r"{include} results/(\w+)\.md", page.read_text(encoding="utf-8"))
    return {n for name in names for n in numbers((RESULTS / f"{name}.md").read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", ["networks", "classifiers", "tables"])
def test_numbers_of_a_page_are_those_of_its_runs(name: str) -> None:
    page = REPRODUCTION / f"{name}.md"
    assert published(page)
    assert numbers(page.read_text(encoding="utf-8")) - published(page) == set()


@pytest.mark.parametrize(("page", "least"), [("README.md", 1), ("docs/promises.md", 4)])
def test_numbers_of_claims_are_those_of_the_runs(page: str, least: int) -> None:
    rows = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    linked = {line: re.findall(r"\((?:docs/)?reproduction/(\w+)\.md\)", line) for line in rows}
    assert sum(map(bool, linked.values())) >= least
    for line, pages in linked.items():
        if pages:
            known = {n for page in pages for n in published(REPRODUCTION / f"{page}.md")}
            assert numbers(line) - known == set(), line


def test_a_stranger_sees_what_it_is_at_the_top_of_the_readme() -> None:
    top = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:60])
    for sight in (
        "pip install",
        "```python",
        "first_fit.png",
        "`GaussianMixture` | `KernelDensity`",
        "held-out likelihood",
    ):
        assert sight in top


def test_published_runs_are_full_and_state_their_machine() -> None:
    texts = [path.read_text(encoding="utf-8") for path in RESULTS.glob("*.md")]
    assert len(texts) >= 10
    assert not any("--quick" in text for text in texts)
    assert len({re.search(r"(rtbm \S+), python \S+, machine \S+", text)[1] for text in texts}) == 1
