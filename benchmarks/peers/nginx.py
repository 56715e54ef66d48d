"""nginx as a static file server on a free loopback port: the plain HTTP peer, with curl."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from benchmarks.processes import START_TIMEOUT_S, PeerMissingError, Usage, stop

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIG = """
daemon off;
worker_processes 1;
pid {work}/nginx.pid;
error_log stderr error;
events {{ worker_connections 64; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  client_body_temp_path {work}; proxy_temp_path {work}; fastcgi_temp_path {work};
  uwsgi_temp_path {work}; scgi_temp_path {work};
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def free_port() -> int:
    """Return a loopback TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_listening(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise SystemExit("nginx did not start listening")


@contextmanager
def serve(root: Path, work: Path) -> Iterator[tuple[str, Usage]]:
    """Serve `root` while the block runs; yield the base URL and the usage, filled in afterwards."""
    program = shutil.which("nginx")
    if program is None:
        raise PeerMissingError("nginx")
    port = free_port()
    work.mkdir(parents=True, exist_ok=True)
    config = work / "nginx.conf"
    config.write_text(_CONFIG.format(work=work, port=port, root=root), encoding="ascii")
    # nginx's workers drop to nobody, who cannot read a private checkout: stay who we are.
    command = [program, "-p", str(work), "-c", str(config), "-g", "user root;"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True)
    usage = Usage()
    try:
        _wait_until_listening(port)
        yield f"http://127.0.0.1:{port}", usage
    finally:
        stop(process, usage)
