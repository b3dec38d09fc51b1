"""The Python in README and docs runs."""

import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
@pytest.mark.slow
def test_code_blocks_run_in_order(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"torch": torch, "data": torch.randn(20, 1, dtype=torch.float64)}
    for block in re.findall(r"```python\n(.*?)```", document.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(block.replace("range(200)", "range(2)"), document.name, "exec"), names)


def test_pictures_that_are_shown_exist() -> None:
    for document in DOCUMENTS:
        for picture in re.findall(r"!\[[^]]*]\(([^)]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / picture).is_file(), f"{document.name} shows {picture}"
