"""Web seeds from web servers that are not ours, if they are installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trio

from tests.runtime.exchange_lab import make_version, open_lab
from tests.runtime.store_samples import noise
from tests.runtime.test_web_seeds import QUICK, get, reader

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.interop

NGINX = shutil.which("nginx") or ("/usr/sbin/nginx" if shutil.which("/usr/sbin/nginx") else None)

_NGINX = """
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{}}
http {{
  access_log access.log; client_body_temp_path t; proxy_temp_path t; fastcgi_temp_path t;
  uwsgi_temp_path t; scgi_temp_path t;
  server {{
    listen 127.0.0.1:{port};
    gzip on; gzip_types *;
    root {root};
    location /moved/ {{ rewrite ^/moved/(.*)$ /files/$1 redirect; }}
  }}
}}
"""


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


@contextmanager
def running(*words: str, folder: Path) -> Iterator[None]:
    process = subprocess.Popen(
        words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def wait_listening(port: int) -> None:
    with trio.fail_after(10):
        while True:
            try:
                stream = await trio.open_tcp_stream("127.0.0.1", port)
            except OSError:
                await trio.sleep(0.02)
            else:
                await stream.aclose()
                return


FILES = {
    "config.json": b'{"layers": 2}' * 100,
    "sub folder/w#1%.bin": noise("weights", 40 * 4096 + 17),
    "tail": noise("tail", 5 * 4096),
}


def write(root: Path) -> None:
    for path, data in FILES.items():
        (root / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "files" / path).write_bytes(data)


@pytest.mark.skipif(NGINX is None, reason="no nginx here")
@pytest.mark.parametrize("prefix", ["files", "moved"])
async def test_nginx(tmp_path: Path, prefix: str) -> None:
    assert NGINX is not None
    version, port = make_version(FILES), free_port()
    write(tmp_path)
    (tmp_path / "conf").write_text(_NGINX.format(port=port, root=tmp_path))
    with running(NGINX, "-p", str(tmp_path), "-c", str(tmp_path / "conf"), folder=tmp_path):
        await wait_listening(port)
        async with open_lab(tmp_path) as lab:
            leech = await reader(lab, version)
            result = await get(leech, version, f"http://127.0.0.1:{port}/{prefix}/")
            version.assert_at(leech.out)
    assert result.web_seeds[0].dropped == ""


async def test_a_server_without_ranges_is_named(tmp_path: Path) -> None:
    """Python's own http.server ignores Range."""
    version, port = make_version(FILES), free_port()
    write(tmp_path)
    words = (sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1")
    with running(*words, folder=tmp_path):
        await wait_listening(port)
        async with open_lab(tmp_path, patience_s=0.1) as lab:
            leech = await reader(lab, version, QUICK)
            with pytest.raises(Exception, match="it ignores ranges"):
                await get(leech, version, f"http://127.0.0.1:{port}/files/")
