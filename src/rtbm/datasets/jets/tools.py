"""Packages of the extra `jets`, which are imported where they are used."""

import importlib
from typing import Any

INSTALL = "install the extra with pip install 'rtbm[jets]'"


def import_tool(name: str) -> Any:
    """A package, or an error that tells how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"{name} is missing, which jets need: {INSTALL}") from error
