"""Names of files: which may hold tables, whether they are there, and how a file is written in full or not at all."""

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from rtbm.errors import FileError

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".npy")
"""The endings of files that hold tables of numbers."""


def existing_table(path: Any) -> Path:
    """The path of a file that may hold a table; a FileError if there is none, or if its ending tells no format."""
    path = Path(path)
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise FileError(f"{path}: the name must end in one of {', '.join(TABLE_SUFFIXES)}")
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    return path


def write_whole(path: Any, content: bytes) -> None:
    """Write a file in full or not at all: under another name first, in the same folder. Links are followed."""
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(name, mode)
        os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
