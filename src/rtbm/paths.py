"""Names of files: which may hold tables, whether they are there, and how a file is written in full or not at all."""

import contextlib
import glob
import os
import tempfile
from pathlib import Path
from typing import Any

from rtbm.errors import FileError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".parquet", ".npy")
"""The endings of files that hold tables of numbers."""
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""The endings that may follow .csv, .tsv and .txt, and the compression that each stands for."""
UNFINISHED = ".unfinished-save"
"""The ending of a file that is being written."""


def table_kind(path: Path) -> str | None:
    """The one of TABLE_SUFFIXES that tells the format of a file; None if its name is not that of a table."""
    packed = path.suffix.lower() in COMPRESSIONS
    kind = (path.with_suffix("") if packed else path).suffix.lower()
    return kind if kind in (TABLE_SUFFIXES[:3] if packed else TABLE_SUFFIXES) else None


def existing_table(path: Any) -> Path:
    """The path of a file that may hold a table; a FileError if there is none, or if its ending tells no format."""
    path = Path(path)
    if table_kind(path) is None:
        raise FileError(
            f"{path}: the name must end in one of {', '.join(TABLE_SUFFIXES)}; the first three may be compressed, and "
            f"then end in one of {', '.join(COMPRESSIONS)}"
        )
    if not path.is_file():
        raise FileError(f"{path}: no such file")
    return path


def write_whole(path: Any, content: bytes) -> None:
    """Write a file in full or not at all: under another name first, in the same folder. Links are followed.

    What killed processes have left of earlier saves to the same name is removed, except on Windows.
    """
    target = Path(os.path.realpath(path))
    try:
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
        _remove_unfinished(target)
        handle, name = _create(target)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            os.chmod(name, mode)
            if fcntl is None:
                stream.close()  # Windows renames no open files; elsewhere the lock lasts until the file has its name
            os.replace(name, target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(name)
        if isinstance(error, OSError):
            raise FileError(f"{path}: cannot be written ({error.strerror or error})") from None
        raise


def _create(target: Path) -> tuple[int, str]:
    """A new file beside the target, locked so that other saves know that a process is writing it."""
    while True:
        handle, name = tempfile.mkstemp(UNFINISHED, f".{target.name}.", target.parent)
        _lock(handle, wait=True)
        if os.path.exists(name):
            return handle, name
        os.close(handle)  # another save removed it before it was locked


def _remove_unfinished(target: Path) -> None:
    """Remove what saves to the target have left unfinished, if no process holds it."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.????????{UNFINISHED}"):
        with contextlib.suppress(OSError), left.open("rb") as stream:
            if _lock(stream.fileno(), wait=False):
                left.unlink()


def _lock(handle: int, wait: bool) -> bool:
    """Lock an open file; whether that worked. Windows and some network drives have no such locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
