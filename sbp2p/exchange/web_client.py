"""HTTP/1.1 over trio, as far as web seeds need it: one GET of one range, over kept connections.

Theory of operation: h11 speaks the protocol, this opens sockets and keeps time. A connection whose
answer was read to its end is kept for the next request to the same server; one that turns out to
have been closed meanwhile is replaced once. Redirects are followed, and remembered for the file, so
that the ranges of one file cost one redirect.

Where a name may lead to a private address is the caller's choice (`private`). The address that was
checked is the one that is connected to: a name that resolves differently a moment later gains
nothing. Proxies and cookies are not used.

Error cases: WebError, and it says whether to try again.
"""

from __future__ import annotations

import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import h11
import trio

from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.web_seeds import (
    REDIRECTS,
    check_answer,
    is_later,
    is_public,
    retry_after,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sbp2p.config import WebConfig
    from sbp2p_protocol.web_seeds import WebRange, WebUrl

_READ_BYTES: Final = 256 * 1024
_PIECE_BYTES: Final = 64 * 1024
"""Of a body, from which small chunks are joined: each piece costs some tasks' turns."""
_KEPT: Final = 8
"""Idle connections, to all servers together."""
_REMEMBERED: Final = 1024
"""Redirects; more and they are all forgotten."""


class WebError(Exception):
    """A request that came to nothing; `later` if the next may be better, after `wait_s`."""

    def __init__(self, reason: str, *, later: bool, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.later = later
        self.wait_s = wait_s


class WebClient:
    """Asks web servers for ranges of files; `aclose` it in the end."""

    def __init__(self, config: WebConfig) -> None:
        self._config = config
        self._kept: list[_Connection] = []
        self._moved: dict[WebUrl, WebUrl] = {}
        self._context: ssl.SSLContext | None = None

    async def aclose(self) -> None:
        """Close the connections that are kept."""
        while self._kept:
            await self._kept.pop().aclose()

    @asynccontextmanager
    async def open_range(
        self, url: WebUrl, asked: WebRange, file_bytes: int, *, private: bool
    ) -> AsyncIterator[WebBody]:
        """Ask for a range, and yield its body once the head says that it is one.

        Args:
            url: of the file.
            asked: the range.
            file_bytes: length of the file.
            private: whether the host of `url` may be in a private network. Other hosts, to which
                it redirects, may not.

        Raises:
            WebError: there is no such answer. Reading the body raises it, too.
        """
        held: _Connection | None = None
        begun = trio.current_time()
        limit_s = self._config.idle_timeout_s + asked.size / self._config.min_rate_bytes_s
        try:
            with _in_time(limit_s, "it is too slow"):
                connection, status, headers = await self._follow(url, asked, private)
                held = connection
                if is_later(status):
                    wait = retry_after(headers, self._config.retry_max_s)
                    raise WebError(f"status {status}", later=True, wait_s=wait)
                try:
                    check_answer(status, headers, asked, file_bytes)
                except RemoteProtocolError as error:
                    raise WebError(str(error), later=False) from error
            body = WebBody(connection, begun + limit_s)
            yield body
            if body.ended and connection.reusable and len(self._kept) < _KEPT:
                self._kept.append(connection)
                held = None
        except BaseException:
            self._moved.pop(url, None)
            raise
        finally:
            if held is not None:
                await held.aclose()

    async def _follow(
        self, url: WebUrl, asked: WebRange, private: bool
    ) -> tuple[_Connection, int, dict[str, str]]:
        here = self._moved.get(url, url)
        for _ in range(self._config.max_redirects + 1):
            may = private and here.host == url.host
            connection, status, headers = await self._ask(here, asked, may)
            if status not in REDIRECTS:
                if here != url:
                    if len(self._moved) >= _REMEMBERED:
                        self._moved.clear()
                    self._moved[url] = here
                return connection, status, headers
            await connection.aclose()
            try:
                here = here.redirect(headers.get("location", ""))
            except RemoteProtocolError as error:
                raise WebError(str(error), later=False) from error
        raise WebError(f"more than {self._config.max_redirects} redirects", later=False)

    async def _ask(
        self, url: WebUrl, asked: WebRange, private: bool
    ) -> tuple[_Connection, int, dict[str, str]]:
        request = h11.Request(
            method="GET",
            target=url.target,
            headers=[
                ("Host", url.netloc),
                ("Range", f"bytes={asked.start}-{asked.stop - 1}"),
                ("Accept-Encoding", "identity"),
                ("User-Agent", "sbp2p"),
            ],
        )
        key = (url.scheme, url.host, url.port, private)
        kept = next((each for each in self._kept if each.key == key), None)
        if kept is not None:
            self._kept.remove(kept)
            try:
                return await self._exchange(kept, request)
            except WebError:  # the server closed it meanwhile
                await kept.aclose()
            except BaseException:
                await kept.aclose()
                raise
        connection = await self._connect(url, private)
        try:
            return await self._exchange(connection, request)
        except BaseException:
            await connection.aclose()
            raise

    async def _exchange(
        self, connection: _Connection, request: h11.Request
    ) -> tuple[_Connection, int, dict[str, str]]:
        with _in_time(self._config.idle_timeout_s, "it does not answer"):
            await connection.send(request)
            response = await connection.receive()
        if not isinstance(response, h11.Response):
            raise WebError("it does not answer", later=True)
        headers: dict[str, str] = {}
        for name, value in response.headers:
            headers.setdefault(name.decode("ascii"), value.decode("latin-1"))
        return connection, response.status_code, headers

    # -- connecting -----------------------------------------------------------------------------

    async def _connect(self, url: WebUrl, private: bool) -> _Connection:
        with _in_time(self._config.connect_timeout_s, "its name is not found in time"):
            try:
                found = await trio.socket.getaddrinfo(
                    url.host, url.port, type=trio.socket.SOCK_STREAM
                )
            except (OSError, UnicodeError) as error:
                raise WebError(f"its name is not found: {_words(error)}", later=True) from error
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        allowed = [each for each in addresses if private or is_public(each)]
        if not allowed:
            raise WebError("its address is not a public one", later=False)
        failure = WebError("it has no address", later=True)
        for address in allowed:
            try:
                with _in_time(self._config.connect_timeout_s, "it cannot be connected to in time"):
                    stream = await self._open(url, address)
            except WebError as error:
                failure = error
            else:
                return _Connection(
                    stream, (url.scheme, url.host, url.port, private), self._config.idle_timeout_s
                )
        raise failure

    async def _open(self, url: WebUrl, address: str) -> trio.abc.Stream:
        try:
            plain = await trio.open_tcp_stream(address, url.port)
        except OSError as error:
            raise WebError(f"it cannot be connected to: {_words(error)}", later=True) from error
        if url.scheme == "http":
            return plain
        if self._context is None:
            self._context = ssl.create_default_context(cafile=self._config.ca_file)
        secure = trio.SSLStream(
            plain, self._context, server_hostname=url.host, https_compatible=True
        )
        try:
            await secure.do_handshake()
        except trio.BrokenResourceError as error:
            await trio.aclose_forcefully(secure)
            reason = error.__cause__
            bad = isinstance(reason, ssl.SSLCertVerificationError)
            text = reason.verify_message if isinstance(reason, ssl.SSLCertVerificationError) else ""
            raise WebError(f"TLS failed: {text or _words(reason)}", later=not bad) from error
        except BaseException:
            await trio.aclose_forcefully(secure)
            raise
        return secure


class _Connection:
    """One socket and the protocol on it."""

    def __init__(
        self, stream: trio.abc.Stream, key: tuple[str, str, int, bool], idle_s: float
    ) -> None:
        self.key = key
        self._stream = stream
        self._idle_s = idle_s
        self._machine = h11.Connection(h11.CLIENT)
        self._at_end = False

    @property
    def reusable(self) -> bool:
        """Whether another request can be sent; makes it possible."""
        machine = self._machine
        if machine.our_state is not h11.DONE or machine.their_state is not h11.DONE:
            return False
        machine.start_next_cycle()
        self._at_end = False
        return True

    async def aclose(self) -> None:
        """Close the socket, without a word."""
        await trio.aclose_forcefully(self._stream)

    async def send(self, request: h11.Request) -> None:
        """Send a request without a body; raises WebError."""
        try:
            data = self._machine.send(request)
            end = self._machine.send(h11.EndOfMessage())
            await self._stream.send_all((data or b"") + (end or b""))
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.LocalProtocolError):
            raise WebError("the connection was lost", later=True) from None

    async def receive(self) -> h11.Event:
        """Return the next event but data; raises WebError."""
        while (event := self._next()) is None:
            await self._read()
        return event

    async def receive_data(self) -> bytearray:
        """Return a piece of the body, or nothing at its end; raises WebError."""
        data = bytearray()
        while len(data) < _PIECE_BYTES:  # of a thousand tiny chunks, too
            event = self._next()
            if isinstance(event, h11.Data):
                data += event.data
            elif event is not None:
                self._at_end = True
                break
            elif data:
                break
            else:
                await self._read()
        return data

    def _next(self) -> h11.Event | None:
        """Return the next event, or None if more has to be read."""
        if self._at_end:
            return h11.EndOfMessage()
        while True:
            try:
                event = self._machine.next_event()
            except h11.RemoteProtocolError as error:
                ended = self._machine.trailing_data[1]
                reason = "the connection was lost" if ended else f"it is no HTTP: {error}"
                raise WebError(reason, later=ended) from error
            if isinstance(event, h11.ConnectionClosed):
                raise WebError("the connection was lost", later=True)
            if not isinstance(event, h11.Event):
                return None
            if not isinstance(event, h11.InformationalResponse):
                return event

    async def _read(self) -> None:
        try:
            with _in_time(self._idle_s, "it has gone silent"):
                self._machine.receive_data(await self._stream.receive_some(_READ_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise WebError("the connection was lost", later=True) from None


class WebBody:
    """The body of an answer, to be read to its end."""

    def __init__(self, connection: _Connection, deadline: float) -> None:
        self.ended = False
        self._connection = connection
        self._deadline = deadline

    async def receive(self) -> bytearray:
        """Return the next piece, or nothing at the end; raises WebError."""
        await trio.lowlevel.checkpoint()
        left = self._deadline - trio.current_time()
        with _in_time(max(0.0, left), "it is too slow"):
            data = await self._connection.receive_data()
        self.ended = not data
        return data

    def excuse(self, seconds: float) -> None:
        """Give the server more time: it was this side that did not read."""
        self._deadline += seconds


class _in_time:  # noqa: N801  (reads like the function that it stands for)
    """Raises WebError, to be tried later, when a block takes longer than `seconds`."""

    def __init__(self, seconds: float, reason: str) -> None:
        self._scope = trio.CancelScope(deadline=trio.current_time() + seconds)
        self._reason = reason

    def __enter__(self) -> None:
        self._scope.__enter__()

    def __exit__(self, *error: object) -> bool:
        caught = bool(self._scope.__exit__(*error))  # type: ignore[arg-type]
        if self._scope.cancelled_caught:
            raise WebError(self._reason, later=True)
        return caught


def _words(error: BaseException | None) -> str:
    text = getattr(error, "strerror", None)
    return str(text or error or type(error).__name__).lower()
