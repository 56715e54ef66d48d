"""perf: how fast bytes go up and down one stream (`/perf/1.0.0`).

The client writes how many bytes it wants back, as eight bytes big-endian, then the bytes it
uploads, and closes its side. The server reads to the end, sends that many bytes and closes. Nothing
else is framed; the bytes mean nothing.

A node serves this to everybody it lets in, so what runs cost is bounded: each by its bytes both
ways, and all together by a `PerfBudget` that fills up slowly. Who finds it empty is turned away and
has done nothing wrong.

Errors, all `RemoteProtocolError`: a stream that ends before the number, a download above
`PERF_DOWNLOAD_MAX`, an upload above `PERF_UPLOAD_MAX`, and, for the client, more or fewer bytes
than it asked for.
"""

from __future__ import annotations

from typing import Final

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import PERF_BUDGET, PERF_BUDGET_S, PERF_DOWNLOAD_MAX, PERF_UPLOAD_MAX

PERF_PROTOCOL: Final = "/perf/1.0.0"
HEADER_SIZE: Final = 8


def encode_perf_request(download_bytes: int) -> bytes:
    """Return what the client writes before its upload."""
    if not 0 <= download_bytes <= PERF_DOWNLOAD_MAX:
        raise LocalProtocolError(f"cannot ask for {download_bytes} bytes")
    return download_bytes.to_bytes(HEADER_SIZE, "big")


class PerfBudget:
    """Bytes that the runs of a node may still move; `PERF_BUDGET` come back in `PERF_BUDGET_S`."""

    __slots__ = ("_counted_at", "_left")

    def __init__(self, now: float) -> None:
        self._left = float(PERF_BUDGET)
        self._counted_at = now

    def take(self, count: int, now: float) -> bool:
        """Spend `count` bytes at `now` (seconds); false, and nothing is spent, if they are gone."""
        refill = (now - self._counted_at) * (PERF_BUDGET / PERF_BUDGET_S)
        self._left = min(float(PERF_BUDGET), self._left + refill)
        self._counted_at = now
        if count > self._left:
            return False
        self._left -= count
        return True


class PerfServer:
    """One run, seen from the side that serves it."""

    __slots__ = ("_header", "uploaded_bytes")

    def __init__(self) -> None:
        self._header = bytearray()
        self.uploaded_bytes = 0

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Take bytes of the stream, cut anywhere; only the first eight are looked at.

        Raises:
            RemoteProtocolError: The client wants more than is served, or sends more than is taken.
        """
        missing = HEADER_SIZE - len(self._header)
        if missing:
            self._header += data[:missing]
            if len(self._header) == HEADER_SIZE and self._wanted() > PERF_DOWNLOAD_MAX:
                raise RemoteProtocolError(f"perf: peer asks for {self._wanted()} bytes")
        self.uploaded_bytes += max(0, len(data) - missing)
        if self.uploaded_bytes > PERF_UPLOAD_MAX:
            raise RemoteProtocolError(f"perf: peer sends over {PERF_UPLOAD_MAX} bytes")

    def finish(self) -> int:
        """Return the bytes to send, now that the client has closed its side.

        Raises:
            RemoteProtocolError: The client said no number, or one that is not served.
        """
        if len(self._header) < HEADER_SIZE or self._wanted() > PERF_DOWNLOAD_MAX:
            raise RemoteProtocolError("perf: peer asked for nothing that can be served")
        return self._wanted()

    def _wanted(self) -> int:
        return int.from_bytes(self._header, "big")


class PerfClient:
    """One run, seen from the side that asked: counts the download."""

    __slots__ = ("downloaded_bytes", "wanted_bytes")

    def __init__(self, download_bytes: int) -> None:
        self.wanted_bytes = download_bytes
        self.downloaded_bytes = 0

    def receive_data(self, data: bytes | bytearray | memoryview) -> None:
        """Count bytes of the download.

        Raises:
            RemoteProtocolError: They are more than was asked for.
        """
        self.downloaded_bytes += len(data)
        if self.downloaded_bytes > self.wanted_bytes:
            raise RemoteProtocolError("perf: peer sends more than was asked for")

    def finish(self) -> None:
        """Check the size of the download at its end; raises RemoteProtocolError."""
        if self.downloaded_bytes != self.wanted_bytes:
            raise RemoteProtocolError(
                f"perf: {self.downloaded_bytes} bytes came back of {self.wanted_bytes}"
            )
