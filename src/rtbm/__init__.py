"""rtbm: Riemann-Theta Boltzmann Machines, from the theta function up.

The public names are the imports in `__init__.pyi`, which type checkers read too. A name is imported when it is first
used, so that `import rtbm` and `rtbm --help` do not wait for torch.
"""

import ast
import importlib
from pathlib import Path
from typing import Any

_IMPORTS = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
_MODULES = {alias.name: node.module for node in _IMPORTS if isinstance(node, ast.ImportFrom) for alias in node.names}
"""The module from which each public name is imported; `rtbm` itself for the public modules."""

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'rtbm' has no attribute {name!r}")
    if _MODULES[name] == "rtbm":
        return importlib.import_module(f"rtbm.{name}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
