"""The Python in README and docs runs, and prints what the documents say."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GENERATED = ("gallery", "generated")
DOCUMENTS = [
    ROOT / "README.md",
    *(path for path in sorted((ROOT / "docs").rglob("*.md")) if not set(path.parts) & set(GENERATED)),
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
