"""A real web server on loopback with Range support, and everything that can be wrong with one."""

from __future__ import annotations

import re
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator, Mapping

_RANGE = re.compile(r"bytes=([0-9]+)-([0-9]+)\Z")


@dataclass
class WebServer:
    """What a server has and how it behaves; `fault` names what is wrong with it."""

    files: Mapping[str, bytes]
    prefix: str = "/org/repo/resolve/main/"
    fault: str = ""
    faults_left: int = 1_000_000
    """After so many faulty answers it behaves."""
    good_first: int = 0
    """So many answers are right before the first faulty one."""
    location: str = ""
    """For the fault `redirect`."""
    port: int = 0
    secure: bool = False
    requests: list[tuple[str, int, int]] = field(default_factory=list)
    """Path, first byte and the one behind the last, of each request."""
    now: int = 0
    most_at_once: int = 0
    connections: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        scheme = "https" if self.secure else "http"
        return f"{scheme}://127.0.0.1:{self.port}{self.prefix}"

    def next_fault(self) -> str:
        with self.lock:
            if not self.fault or self.faults_left <= 0:
                return ""
            if self.good_first > 0:
                self.good_first -= 1
                return ""
            self.faults_left -= 1
            return self.fault


@contextmanager
def serve_web(server: WebServer, context: ssl.SSLContext | None = None) -> Iterator[WebServer]:
    """Serve while the block lasts."""

    class Handler(_Handler):
        state = server

    with _Listener(("127.0.0.1", 0), Handler) as listener:
        if context is not None:
            listener.socket = context.wrap_socket(listener.socket, server_side=True)
            server.secure = True
        server.port = listener.server_address[1]
        thread = threading.Thread(target=listener.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The client may leave at any time."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: WebServer

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def setup(self) -> None:
        super().setup()
        with self.state.lock:
            self.state.connections += 1

    def do_GET(self) -> None:
        state = self.state
        with state.lock:
            state.now += 1
            state.most_at_once = max(state.most_at_once, state.now)
        try:
            with suppress(ConnectionError):
                self._get()
        finally:
            with state.lock:
                state.now -= 1

    def _get(self) -> None:
        state, fault = self.state, self.state.next_fault()
        path = unquote(self.path.partition("?")[0])
        found = _RANGE.match(self.headers.get("Range", ""))
        data = state.files.get(path.removeprefix(state.prefix))
        if data is None or found is None:
            self._send(404, b"nothing here")
            return
        start, stop = int(found[1]), min(int(found[2]) + 1, len(data))
        with state.lock:
            state.requests.append((path.removeprefix(state.prefix), start, stop))
        body = data[start:stop]
        span = f"bytes {start}-{stop - 1}/{len(data)}"
        if fault:
            getattr(self, "_" + fault.replace(" ", "_"))(data, start, stop, body, span)
        else:
            self._send(206, body, {"Content-Range": span})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    # -- faults ---------------------------------------------------------------------------------

    def _wrong_bytes(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self._send(206, bytes([body[0] ^ 1]) + body[1:], {"Content-Range": span})

    def _ignores_range(self, data: bytes, *_: object) -> None:
        self._send(200, data)

    def _other_range(self, data: bytes, start: int, stop: int, body: bytes, _s: str) -> None:
        self._send(206, body, {"Content-Range": f"bytes {start + 1}-{stop}/{len(data)}"})

    def _other_size(self, data: bytes, start: int, stop: int, body: bytes, _s: str) -> None:
        self._send(206, body, {"Content-Range": f"bytes {start}-{stop - 1}/{len(data) + 1}"})

    def _no_content_range(self, _d: bytes, _a: int, _b: int, body: bytes, _s: str) -> None:
        self._send(206, body)

    def _longer_length(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self._send(206, body + b"x", {"Content-Range": span})

    def _longer_chunks(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self._chunks(body + b"more", span, len(body) + 4)

    def _tiny_chunks(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self._chunks(body, span, 7)

    def _chunks(self, body: bytes, span: str, size: int) -> None:
        self.send_response(206)
        self.send_header("Content-Range", span)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        pieces = (body[at : at + size] for at in range(0, len(body), size))
        self.wfile.write(b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in pieces))
        self.wfile.write(b"0\r\n\r\n")

    def _cut_off(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self.send_response(206)
        self.send_header("Content-Range", span)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2])
        self.close_connection = True

    def _encoded(self, _d: bytes, _a: int, _b: int, body: bytes, span: str) -> None:
        self._send(206, body, {"Content-Range": span, "Content-Encoding": "gzip"})

    def _no_http(self, *_: object) -> None:
        self.wfile.write(b"SSH-2.0-server\r\n\r\n")
        self.close_connection = True

    def _endless_head(self, *_: object) -> None:
        self.send_response(206)
        for number in range(5000):
            self.send_header(f"X-{number}", "x" * 100)
        self.end_headers()
        self.close_connection = True

    def _not_found(self, *_: object) -> None:
        self._send(404, b"gone")

    def _forbidden(self, *_: object) -> None:
        self._send(403, b"no")

    def _unavailable(self, *_: object) -> None:
        self._send(503, b"later", {"Retry-After": "0"})

    def _lost(self, *_: object) -> None:
        self.close_connection = True

    def _silent(self, *_: object) -> None:
        time.sleep(2)  # noqa: TID251
        self.close_connection = True

    def _redirect(self, *_: object) -> None:
        name = self.path.rpartition("/")[2]
        self._send(302, b"there", {"Location": self.state.location.replace("NAME", name)})
