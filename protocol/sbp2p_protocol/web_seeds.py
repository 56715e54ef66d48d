"""HTTP web seeds: which URLs may be asked, for which ranges, and what counts as an answer.

Theory of operation. A web seed is a folder on a web server that holds a version's files under their
paths. A URL of one ends in `/`; a file's URL is that, and the path percent-encoded. Several wanted
blocks that lie close together in a file are asked for in one Range request (`plan_ranges`), and cut
out of its body again (`RangeCutter`). Nothing here is believed: each block is hashed by whoever
writes it.

URLs come from the signed manifest, in `meta["web_seeds"]`, separated by white space, or from the
user. Only http and https, no user names, queries or fragments, no way out of the folder. A host
from a manifest must have a public address (`is_public`), or a publisher could have its readers ask
the machines around them.

    status                    means
    206                       the range, if Content-Range says so
    200                       the whole file, if that was asked for; else it ignores ranges
    301, 302, 303, 307, 308   look there (`WebUrl.redirect`)
    408, 425, 429, 5xx        try again later
    anything else             it does not have the file

Error cases: RemoteProtocolError for URLs, headers and bodies that are none of this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urljoin, urlsplit

from .errors import RemoteProtocolError
from .limits import WEB_SEEDS_MAX, WEB_URL_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .blocktable import BlockTable

META_KEY: Final = "web_seeds"
"""The entry of a manifest's `meta` that holds the URLs."""

REDIRECTS: Final = frozenset((301, 302, 303, 307, 308))
_LATER: Final = frozenset((408, 425, 429, *range(500, 600)))
_PORTS: Final = {"http": 80, "https": 443}
_HOST: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?\.?\Z")
_NOT_URL: Final = re.compile(r"[^!-~]|[\"<>\\^`{|}]")
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19}|\*)\Z")
_LENGTH: Final = re.compile(r"[0-9]{1,19}\Z")
_NAT64: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class WebUrl:
    """An http or https URL in parts; `target` is the path, and maybe a query."""

    scheme: str
    host: str
    port: int
    target: str

    @property
    def netloc(self) -> str:
        """Host and port, as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """The URL as people write it."""
        return f"{self.scheme}://{self.netloc}{self.target}"

    def file(self, path: str) -> WebUrl:
        """Return the URL of a version's file under this one."""
        return WebUrl(self.scheme, self.host, self.port, self.target + quote(path, safe="/"))

    def redirect(self, location: str) -> WebUrl:
        """Return where a Location header points; raises RemoteProtocolError.

        A secure connection is not left for an open one.
        """
        _check_text(location)
        try:
            url = _parse(urljoin(self.text, location), query=True)
        except ValueError as error:
            raise RemoteProtocolError(f"a redirect to no URL: {error}") from None
        if self.scheme == "https" and url.scheme == "http":
            raise RemoteProtocolError("a redirect from https to http")
        return url


def parse_web_seed(text: str) -> WebUrl:
    """Read the URL of a web seed; raises RemoteProtocolError with the reason."""
    _check_text(text)
    try:
        url = _parse(text, query=False)
    except ValueError as error:
        raise RemoteProtocolError(f"not a URL: {error}") from None
    target = url.target if url.target.endswith("/") else url.target + "/"
    return WebUrl(url.scheme, url.host, url.port, target)


def _check_text(text: str) -> None:
    if not text or len(text) > WEB_URL_MAX:
        raise RemoteProtocolError(f"a URL of {len(text)} characters (1 to {WEB_URL_MAX})")
    if (bad := _NOT_URL.search(text)) is not None:
        raise RemoteProtocolError(f"a URL with {bad[0]!a}")
    if _BAD_PERCENT.search(text):
        raise RemoteProtocolError("a URL with a '%' that encodes nothing")


def _parse(text: str, *, query: bool) -> WebUrl:
    parts = urlsplit(text)
    if parts.scheme not in _PORTS:
        raise RemoteProtocolError(f"only http and https, not {parts.scheme[:20]!r}")
    if "@" in parts.netloc:
        raise RemoteProtocolError("a URL with a user name")
    if not query and ("?" in text or "#" in text):
        raise RemoteProtocolError("a URL with a query or a fragment")
    host = parts.hostname or ""
    if ":" in host:
        if "%" in host:
            raise RemoteProtocolError("an address with a zone")
        IPv6Address(host)
    elif _HOST.match(host) is None:
        raise RemoteProtocolError(f"{host[:80]!r} is no host name")
    port = parts.port if parts.port is not None else _PORTS[parts.scheme]
    if not port:
        raise RemoteProtocolError("port 0")
    if any(part in (".", "..") for part in parts.path.lower().replace("%2e", ".").split("/")):
        raise RemoteProtocolError("a path with '.' or '..'")
    target = parts.path or "/"
    if parts.query:
        target += "?" + parts.query
    return WebUrl(parts.scheme, host, port, target)


def web_seeds_of(meta: Mapping[str, object]) -> tuple[WebUrl, ...]:
    """Return the web seeds that a manifest names, each once; what is none is left out."""
    text = meta.get(META_KEY)
    found: dict[WebUrl, None] = {}
    if isinstance(text, str):
        for each in text.split()[:WEB_SEEDS_MAX]:
            try:
                found[parse_web_seed(each)] = None
            except RemoteProtocolError:
                continue
    return tuple(found)


def is_public(address: str) -> bool:
    """Return whether an IP address is one that anybody on the internet could be asked at."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address):
        inner: IPv4Address | None = ip.ipv4_mapped or ip.sixtofour
        if ip.teredo is not None:
            inner = ip.teredo[1]
        elif ip in _NAT64:
            inner = IPv4Address(int(ip) & 0xFFFF_FFFF)
        if inner is not None:
            ip = inner
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


# -- what to ask for -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WebRange:
    """One request: bytes `start` to `stop` of a file, and the (index, offset, length) blocks."""

    file: int
    start: int
    stop: int
    blocks: tuple[tuple[int, int, int], ...]

    @property
    def size(self) -> int:
        """Bytes asked for, those between the blocks included."""
        return self.stop - self.start


def plan_ranges(
    table: BlockTable, indices: Iterable[int], *, most_bytes: int, most_gap: int
) -> list[WebRange]:
    """Return requests for blocks, each block in one of them.

    Args:
        table: of the version.
        indices: the wanted blocks, each once.
        most_bytes: of one request, unless a single block is longer.
        most_gap: bytes between two blocks up to which they are asked for together.
    """
    places = sorted((*table.locations(index)[0], index) for index in indices)
    ranges: list[WebRange] = []
    open_blocks: list[tuple[int, int, int]] = []
    file = start = stop = -1
    for number, offset, index in places:
        end = offset + table.length(index)
        if number != file or offset - stop > most_gap or end - start > most_bytes:
            if open_blocks:
                ranges.append(WebRange(file, start, stop, tuple(open_blocks)))
            open_blocks, file, start = [], number, offset
        open_blocks.append((index, offset, end - offset))
        stop = end
    if open_blocks:
        ranges.append(WebRange(file, start, stop, tuple(open_blocks)))
    return ranges


# -- answers ---------------------------------------------------------------------------------------


def is_later(status: int) -> bool:
    """Return whether a status says that the same request may succeed later."""
    return status in _LATER


def retry_after(headers: Mapping[str, str], most_s: float) -> float:
    """Return the seconds that a server asks to wait, at most `most_s`; 0 if it does not say."""
    text = headers.get("retry-after", "")
    return min(float(text), most_s) if _LENGTH.match(text) else 0.0


def check_answer(status: int, headers: Mapping[str, str], asked: WebRange, file_bytes: int) -> None:
    """Check that a response's body will be the range that was asked for.

    Args:
        status: of the response; neither a redirect nor one that `is_later`.
        headers: names in lower case.
        asked: the range.
        file_bytes: length of the file.

    Raises:
        RemoteProtocolError: it is something else; the message says what.
    """
    if status == 200:
        if asked.size != file_bytes:
            raise RemoteProtocolError("it ignores ranges")
    elif status != 206:
        raise RemoteProtocolError(f"status {status}")
    else:
        found = _CONTENT_RANGE.match(headers.get("content-range", ""))
        if found is None:
            raise RemoteProtocolError("a part without Content-Range")
        if (int(found[1]), int(found[2]) + 1) != (asked.start, asked.stop):
            raise RemoteProtocolError("another range than was asked for")
        if found[3] != "*" and int(found[3]) != file_bytes:
            raise RemoteProtocolError(f"a file of {int(found[3])} bytes, not {file_bytes}")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise RemoteProtocolError("an encoded body")
    length = headers.get("content-length")
    if length is not None and (_LENGTH.match(length) is None or int(length) != asked.size):
        raise RemoteProtocolError(f"a body of {length[:20]!a} bytes, not {asked.size}")


class RangeCutter:
    """Cuts the blocks out of the body of one range, as it comes."""

    def __init__(self, asked: WebRange) -> None:
        self._blocks = asked.blocks
        self._next = 0
        self._at = asked.start
        self._stop = asked.stop
        self._held = bytearray()

    @property
    def missing(self) -> int:
        """Bytes that have not come."""
        return self._stop - self._at

    def feed(self, data: bytes | bytearray | memoryview) -> list[tuple[int, bytearray]]:
        """Take bytes of the body; returns the (index, bytes) blocks that they complete.

        Raises:
            RemoteProtocolError: more than was asked for.
        """
        view = memoryview(data)
        if len(view) > self.missing:
            raise RemoteProtocolError("a longer body than was asked for")
        done: list[tuple[int, bytearray]] = []
        while len(view):
            index, offset, length = self._blocks[self._next]
            gap = min(len(view), max(0, offset - self._at))
            take = min(len(view) - gap, length - len(self._held))
            self._held += view[gap : gap + take]
            self._at += gap + take
            view = view[gap + take :]
            if len(self._held) == length:
                done.append((index, self._held))
                self._held = bytearray()
                self._next += 1
        return done
