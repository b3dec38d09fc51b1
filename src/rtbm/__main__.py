"""Run the command as `python -m rtbm`, for instance under torchrun."""

from rtbm.cli import main

main()
