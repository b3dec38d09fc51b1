"""Names of files and in files: which hold tables, whether they exist, how they are shown; and how files are written."""

import contextlib
import glob
import os
import re
import secrets
from pathlib import Path
from typing import Any

from rtbm.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".npy")
"""The endings of files that hold tables of numbers. The first three are text, and may be compressed."""
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""The endings that may follow those of text files, and Arrow's names of the compressions."""
UNFINISHED = ".unfinished-save"
"""The ending of a file that is being written. Leftovers of earlier versions with another ending would stay."""

CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer terminals and the direction of text, or that cannot be written in UTF-8."""


def printable(text: Any) -> str:
    r"""A text from a file, such as the name of a column, with a blank in place of each control character.

    Examples
    --------
    >>> printable("red \x1b[31m")
    'red  [31m'
    """
    return CONTROLS.sub(" ", str(text))


def table_kind(path: Path) -> str | None:
    """The ending, one of TABLE_SUFFIXES, that tells the format of a file; None if its name is not that of a table."""
    packed = path.suffix.lower() in COMPRESSIONS
    kind = (path.with_suffix("") if packed else path).suffix.lower()
    return kind if kind in (TABLE_SUFFIXES[:3] if packed else TABLE_SUFFIXES) else None


def existing_file(path: Any) -> Path:
    """The path of a file; a FileError if there is none."""
    path = Path(path)
    if not path.is_file():
        raise FileError(f"{path}: " + ("a folder, not a file" if path.is_dir() else "no such file"))
    return path


def existing_table(path: Any) -> Path:
    """The path of a file that may hold a table; a FileError if there is none, or if its ending tells no format."""
    path = Path(path)
    if table_kind(path) is None:
        raise FileError(
            f"{path}: the name must end in one of {', '.join(TABLE_SUFFIXES)}; the first three may be compressed, and "
            f"then end in one of {', '.join(COMPRESSIONS)}"
        )
    return existing_file(path)


def write_whole(path: Any, content: bytes) -> None:
    """Write a file in full or not at all: under another name in the same folder first. Links are followed.

    Unfinished files that killed processes left of the same name are removed, except on Windows.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else None
        _remove_unfinished(target)
        handle, name = _create(target, 0o666 if mode is None else mode)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            if mode is not None:
                os.chmod(name, mode)  # the umask may have removed some of its bits
            if fcntl is None:
                stream.close()  # Windows renames no open files; elsewhere the lock lasts until the file has its name
            os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
        raise


def _create(target: Path, mode: int) -> tuple[int, Path]:
    """Create a file beside the target, and lock it so that other saves know that a process is writing it."""
    while True:
        name = target.with_name(f".{target.name}.{secrets.token_hex(4)}{UNFINISHED}")
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
        _lock(handle, wait=True)
        if name.exists():
            return handle, name
        os.close(handle)  # another save removed it before it was locked


def _remove_unfinished(target: Path) -> None:
    """Remove unfinished files of saves to the target, unless a process is still writing them."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????{UNFINISHED}"):
        with contextlib.suppress(OSError), left.open("rb") as stream:
            if _lock(stream.fileno(), wait=False):
                left.unlink()


def _lock(handle: int, wait: bool) -> bool:
    """Lock an open file, and return whether that worked. Windows and some network drives have no such locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
