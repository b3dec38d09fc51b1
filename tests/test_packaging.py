"""What an installation brings, read from the metadata of the wheel that hatchling builds."""

import json
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
MACHINES = {"x86-64": ("linux", "x86_64"), "Arm": ("linux", "aarch64"), "macOS": ("darwin", "arm64")}
WITHOUT_WHEELS = {"x86-64": set(), "Arm": {"pythia8mc"}, "macOS": {"pythia8mc"}}
"""Packages that pip would compile from source."""
CONTRIBUTORS = {"dask", "distributed", "hypothesis", "mypy", "pandas", "pytest", "ruff", "sphinx", "zuko"}


@pytest.fixture(scope="module")
def metadata(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; build_wheel({str(folder)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("METADATA"))
        return Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module")
def requirements(metadata):
    return [Requirement(line) for line in metadata.get_all("Requires-Dist")]


def installed(requirements, extra, machine, python):
    """The names that pip would install."""
    platform, processor = MACHINES[machine]
    environment = {"extra": extra, "sys_platform": platform, "platform_machine": processor, "python_version": python}
    return {r.name for r in requirements if r.marker is None or r.marker.evaluate(environment)}


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13", "3.14", "3.15"])
@pytest.mark.parametrize("machine", list(MACHINES))
def test_nothing_but_the_generator_of_jets_needs_a_compiler(metadata, requirements, machine, python):
    extras = {"", *metadata.get_all("Provides-Extra")} - {"jets"}
    assert {"test", "docs", "bench"} <= extras
    for extra in extras:
        names = installed(requirements, extra, machine, python)
        assert "torch" in names
        assert not names & WITHOUT_WHEELS[machine], extra


def test_jets_are_generated_where_there_are_wheels(requirements):
    assert "pythia8mc" in installed(requirements, "test", "x86-64", "3.12")
    assert "pythia8mc" in installed(requirements, "jets", "Arm", "3.12")  # who asks for it by name gets it


def test_users_get_nothing_that_only_contributors_need(requirements):
    assert not installed(requirements, "", "Arm", "3.11") & CONTRIBUTORS
    assert "rtbm" not in {r.name for r in requirements}


def test_pip_takes_wheels_only():
    assert "--only-binary :all:" in (ROOT / "Makefile").read_text()


def test_commands_that_install_extras_work_in_a_checkout(metadata):
    found = [path for name in ("docs", "src", "benchmarks") for path in (ROOT / name).rglob("*")]
    texts = [path.read_text() for path in (ROOT / "README.md", *found) if path.suffix in (".md", ".py")]
    told = [command for text in texts for command in re.findall(r"pip install ['\"](.*?)\[(\w+)\]", text)]
    assert len(told) >= 5
    assert {folder for folder, _ in told} == {"."}  # no index has the package yet
    assert {extra for _, extra in told} <= set(metadata.get_all("Provides-Extra"))


def test_all_files_state_one_version(metadata):
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited is not None
    assert cited.group(1) == json.loads((ROOT / "codemeta.json").read_text())["version"] == metadata["Version"]


def test_the_oldest_versions_are_the_lower_ends_of_the_ranges(requirements):
    lines = (ROOT / "constraints-oldest.txt").read_text().splitlines()
    oldest = dict(line.split("==") for line in lines if not line.startswith("#"))
    needed = {r.name: r.specifier for r in requirements if r.marker is None}
    assert oldest.keys() == needed.keys()
    for name, version in oldest.items():
        (lower,) = (Version(part.version) for part in needed[name] if part.operator == ">=")
        assert Version(version) == lower


def test_ci_runs_the_versions_of_python_that_the_metadata_lists(metadata):
    listed = {line.rsplit(" ", 1)[1] for line in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", line)}
    workflow = (ROOT / ".github" / "workflows" / "tests.yml").read_text()
    matrix = re.search(r"python: \[(.*)\]", workflow)
    assert matrix is not None
    assert set(re.findall(r"3\.\d+", matrix.group(1))) == listed
