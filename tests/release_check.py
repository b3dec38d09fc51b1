"""What a release needs and a machine can check: equal builds, the metadata, and the wheel alone in a new environment.

It needs `build/release/wheels` for the dependencies. These are fetched the first time; later runs need no network.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
NEEDED_BY_TESTS = ("hypothesis", "mpmath", "pandas", "polars", "pytest", "pytest-xdist")
TESTED = ("test_contract.py", "test_density.py", "test_parameters.py", "test_persistence.py")
EPOCH = "1704067200"
"""The time of all files in the packages, so that two builds are equal."""


class CheckError(Exception):
    """A check that a release does not pass."""


def run(*command: str | Path, folder: Path = ROOT, **environment: str) -> str:
    """Run a command and return what it printed."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=folder, env=kept | environment, capture_output=True, text=True)
    if done.returncode:
        raise CheckError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def built(source: Path, target: Path) -> dict[str, str]:
    """Build sdist and wheel of a source tree, and return the hash of each by its name."""
    target.mkdir(parents=True)
    for kind in ("sdist", "wheel"):
        code = f"from hatchling.build import build_{kind}; build_{kind}({str(target)!r})"
        run(sys.executable, "-c", code, folder=source, SOURCE_DATE_EPOCH=EPOCH)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.iterdir())}


def check_builds() -> str:
    """Build from the checkout, and once more from its sdist: all files must be equal, byte for byte."""
    first = built(ROOT, BUILD / "dist")
    with tarfile.open(next((BUILD / "dist").glob("*.tar.gz"))) as archive:
        archive.extractall(BUILD / "source", filter="data")
    second = built(next((BUILD / "source").iterdir()), BUILD / "again")
    if first != second:
        raise CheckError(f"two builds differ: {first} and {second}")
    return "; ".join(f"{name} {digest[:12]}" for name, digest in first.items())


def metadata() -> tuple[Message, list[str]]:
    """The metadata of the wheel, and the names of its files."""
    with zipfile.ZipFile(next((BUILD / "dist").glob("*.whl"))) as wheel:
        names = wheel.namelist()
        return Parser().parsestr(wheel.read(next(n for n in names if n.endswith("METADATA"))).decode()), names


def check_metadata() -> str:
    """Author, licence, classifiers and contents."""
    from trove_classifiers import classifiers

    found, names = metadata()
    expected = {"Author": "The rtbm developers", "License-Expression": "MIT", "License-File": "LICENSE", "Name": "rtbm"}
    wrong = {key: found[key] for key, value in expected.items() if found[key] != value}
    own, urls = found.get_all("Classifier", []), found.get_all("Project-URL", [])
    unknown = [item for item in own if item not in classifiers]
    unknown += [url for url in urls if not re.search(r"https://[\w.-]+\.\w+/", url)]
    strange = [name for name in names if not name.startswith(("rtbm/", "rtbm-"))]
    if wrong or unknown or strange or not any(name.endswith("licenses/LICENSE") for name in names):
        raise CheckError(f"metadata: {wrong}, {unknown}; files that do not belong into the wheel: {strange}")
    run(sys.executable, "-m", "twine", "check", "--strict", *(BUILD / "dist").iterdir())
    return f"author, licence, {len(own)} classifiers, {len(urls)} urls, twine check --strict"


def check_version(tag: str | None) -> str:
    """One version in all files, and in the tag if there is one."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    found = {
        "wheel": metadata()[0]["Version"],
        "CITATION.cff": cited and cited.group(1),
        "codemeta.json": json.loads((ROOT / "codemeta.json").read_text())["version"],
    } | ({"tag": tag.removeprefix("v")} if tag else {})
    if set(found.values()) != {version}:
        raise CheckError(f"pyproject.toml has version {version}, but {found}")
    if tag and f"## {version}" not in (ROOT / "CHANGELOG.md").read_text():
        raise CheckError(f"CHANGELOG.md has no section {version}")
    return f"{version} in {', '.join(['pyproject.toml', *found])}"


def check_installed(tests: Sequence[str]) -> str:
    """The wheel alone in a new environment, and tests in a folder that has no source of the library."""
    python, wheels = BUILD / "venv" / "bin" / "python", BUILD / "wheels"
    constraints = ("--only-binary", ":all:", "--constraint", ROOT / "constraints.txt")
    wanted = (next((BUILD / "dist").glob("*.whl")), *NEEDED_BY_TESTS)
    run(sys.executable, "-m", "venv", BUILD / "venv")
    install = (python, "-m", "pip", "install", "--no-index", "--find-links", wheels, *constraints, *wanted)
    try:
        run(*install, PIP_EXTRA_INDEX_URL="")
    except CheckError:
        run(python, "-m", "pip", "download", "--dest", wheels, *constraints, *wanted)
        run(*install, PIP_EXTRA_INDEX_URL="")
    away = BUILD / "away"
    shutil.copytree(ROOT / "tests", away / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", away)
    place = run(python, "-c", "import rtbm; print(rtbm.__file__)", folder=away).strip()
    if not Path(place).is_relative_to(BUILD / "venv"):
        raise CheckError(f"the tests would import {place}")
    run(BUILD / "venv" / "bin" / "rtbm", "--help", folder=away)
    chosen = [f"tests/{name}" for name in tests]
    output = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *chosen, folder=away)
    return output.strip().splitlines()[-1]


def main() -> int:
    """Run all checks and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tag", help="the tag of the release, vX.Y.Z")
    parser.add_argument("--build-only", action="store_true", help="leave out the new environment")
    parser.add_argument("--tests", nargs="+", default=TESTED, help="files of tests for the wheel alone")
    options = parser.parse_args()
    for name in ("dist", "source", "again", "venv", "away"):
        shutil.rmtree(BUILD / name, ignore_errors=True)
    checks = {"equal builds": check_builds, "metadata": check_metadata, "version": lambda: check_version(options.tag)}
    if not options.build_only:
        checks["wheel alone"] = lambda: check_installed(options.tests)
    for name, check in checks.items():
        try:
            print(f"{name:13} {check()}", flush=True)
        except CheckError as problem:
            print(f"{name:13} FAILED: {problem}")
            return 1
    print(f"the packages are in {(BUILD / 'dist').relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
