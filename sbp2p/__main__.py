"""Runs the command line: `python -m sbp2p`."""

from .cli import main

main()
