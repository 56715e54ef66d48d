"""The command line: one file per command, everything heavy imported when a command runs.

`app` reads the arguments, `invocation` runs what they ask for and turns every way it can end into
an exit code, `console` and `progress` say what happened, `failure` puts errors into one line.
Nothing imports trio, rich, cryptography or the node while the arguments are read: `--help` has to
be there at once.
"""

from __future__ import annotations

import gc
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and end it with the exit code."""
    # until a command runs there is nothing to unwind, and a traceback out of an import helps nobody
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Modules are not garbage: collecting while they load costs a tenth of the start. Once a command
    # runs (see session.py), what has been loaded is put aside and collecting goes on.
    gc.disable()
    from .app import main as run_app

    run_app()
