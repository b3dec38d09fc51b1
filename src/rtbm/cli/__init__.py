"""The command `rtbm`."""

from rtbm.cli.app import main

__all__ = ["main"]
