"""The command line: one file per command, everything heavy imported when a command runs.

`app` reads the arguments, `invocation` runs what they ask for and turns every way it can end into
an exit code, `console` and `progress` say what happened, `failure` puts errors into one line.
Nothing below imports trio, rich, cryptography or the node while the arguments are read: `--help`
has to be there at once.
"""

from __future__ import annotations

from .app import main

__all__ = ["main"]
