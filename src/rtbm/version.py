"""The version of the installed library."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rtbm")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+unknown"
