"""Tests with other versions: `nox -s tests-3.13`, `nox -s oldest`. What CI runs on each machine."""

import nox

PARTS = ("tests/test_contract.py", "tests/test_density.py", "tests/test_parameters.py", "tests/test_persistence.py")
NEEDED = ("hatchling", "hypothesis", "mpmath", "pandas", "polars", "pytest", "pytest-xdist")
nox.options.sessions = ["tests"]


@nox.session(python=["3.11", "3.12", "3.13", "3.14", "3.15"])
def tests(session: nox.Session) -> None:
    """A quick part of the tests, with the newest dependencies that the Python has wheels of."""
    session.install("--only-binary", ":all:", ".", *NEEDED)
    session.run("python", "-m", "pytest", "-m", "not slow", *(session.posargs or PARTS))


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """The same with the oldest versions that pyproject.toml allows."""
    session.install("--only-binary", ":all:", "--constraint", "constraints-oldest.txt", ".", *NEEDED)
    session.run("python", "-m", "pytest", "-m", "not slow", *(session.posargs or PARTS))
