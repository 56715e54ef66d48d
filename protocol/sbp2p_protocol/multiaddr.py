"""Where a peer can be dialled: multiaddrs, strictly read.

Theory of operation. The usual address, IP, port and peer id, is read by `usual_address`. For the
rest, the `multiaddr` package knows the protocol table and each protocol's text and binary form, but
it reads leniently: it takes truncated values, doubled slashes, `/tcp/8_0` and the empty string, and
its errors come from several trees. An `Address` is only made once both forms agree: the binary form
is cut into components here and checked against what the text form gives back, so there is exactly
one `Address` for each place, and equal places compare equal.

    text form     /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW...
    binary form   varint code, then the value: of fixed size, or behind a varint length

Three liberties are taken with text, as other implementations do: one trailing slash is dropped,
`/ipfs/` is read as `/p2p/`, and IPv6 and peer ids may be written in any of their forms.

Errors: `BadAddressError` (a ValueError) for text, `RemoteProtocolError` for bytes. Bytes with a
protocol code that the table lacks are refused too; who only forwards addresses keeps them as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from multiaddr import Multiaddr
from multiaddr.codecs import codec_by_name
from multiaddr.exceptions import Error as MultiaddrError
from multiaddr.protocols import protocol_with_code, protocol_with_name

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.multi import decode_uvarint

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import ADDRESS_MAX
from .usual_address import Component, decode_usual, encode_usual

if TYPE_CHECKING:
    from collections.abc import Sequence

_HOSTS: Final = ("ip4", "ip6", "dns", "dns4", "dns6")
_FREE_FORM: Final = ("ip6", "certhash", "http-path")
"""Protocols whose values have several texts, all of which stand for the one that is printed."""

_UNREADABLE: Final = (MultiaddrError, ValueError, LookupError, TypeError, EOFError)
"""What the package raises on bad input, depending on how far it gets."""


class BadAddressError(LocalProtocolError, ValueError):
    """Text is not a multiaddr."""


@dataclass(frozen=True, slots=True)
class Address:
    """One multiaddr. Made by `parse_address` and `address_from_bytes`; equal when bytes are."""

    data: bytes
    text: str = field(compare=False)
    components: tuple[Component, ...] = field(compare=False, repr=False)
    """Protocol names and their values in text form; None for protocols without a value."""

    def __str__(self) -> str:
        return self.text

    def to_bytes(self) -> bytes:
        """Return the binary form."""
        return self.data

    @property
    def kind(self) -> str:
        """What leads to the peer first: ip4, ip6, dns, dns4, dns6, memory, or anything else."""
        return self._dialled()[0][0]

    @property
    def host(self) -> str:
        """The IP address or the name to look up; with its zone, if an IPv6 address has one."""
        kind, value = self._dialled()[0]
        if kind not in _HOSTS or value is None:
            return ""
        return f"{value}%{self._zone}" if kind == "ip6" and self._zone else value

    @property
    def port(self) -> int:
        """The TCP port, or the number of a memory address; 0 if there is neither."""
        for name, value in self._dialled()[:2]:
            if name in ("tcp", "memory") and value is not None:
                return int(value)
        return 0

    @property
    def peer_id(self) -> PeerId | None:
        """Who is to be found there: the id at the end, not that of a relay on the way."""
        name, value = self.components[-1]
        return PeerId.parse(value) if name == "p2p" and value is not None else None

    @property
    def is_dialable(self) -> bool:
        """Whether sbp2p has a transport for it: plain TCP or memory, nothing around it."""
        names = [name for name, _ in self._dialled()]
        if names[-1] == "p2p":
            names.pop()
        if not names or (self._zone and names[0] != "ip6"):
            return False
        return names == ["memory"] or (names[0] in _HOSTS and names[1:] == ["tcp"])

    def with_peer(self, peer_id: PeerId) -> Address:
        """Return this address with `peer_id` at its end, in place of any other."""
        return _from_components([*self._without_peer(), ("p2p", str(peer_id))])

    def without_peer(self) -> Address:
        """Return this address without the peer id at its end.

        Raises:
            BadAddressError: There is nothing but a peer id.
        """
        return _from_components(self._without_peer())

    def _without_peer(self) -> tuple[Component, ...]:
        return self.components[:-1] if self.components[-1][0] == "p2p" else self.components

    @property
    def _zone(self) -> str | None:
        """The network interface that an IPv6 address which follows is reached through."""
        name, value = self.components[0]
        return value if name == "ip6zone" and len(self.components) > 1 else None

    def _dialled(self) -> tuple[Component, ...]:
        return self.components[1:] if self._zone else self.components


def parse_address(text: str) -> Address:
    """Read a multiaddr from text.

    Raises:
        BadAddressError: It is none.
    """
    if not text.startswith("/") or len(text) > ADDRESS_MAX:
        raise BadAddressError(f"not a multiaddr, which begins with '/': {text[:64]!r}")
    try:
        return _from_components(_split_text(text))
    except KeysError as error:
        raise BadAddressError(f"bad peer id in {_shown(text)}: {error}") from None


def address_from_bytes(data: bytes) -> Address:
    """Read a multiaddr from its binary form.

    Raises:
        RemoteProtocolError: It is none, or it names a protocol that is not known here.
    """
    if not 0 < len(data) <= ADDRESS_MAX:
        raise RemoteProtocolError(f"multiaddr of {len(data)} bytes")
    usual = decode_usual(data)
    try:
        if usual is not None:
            return _checked_size(data, usual)
        _check_structure(data)
        address = _from_components(_split_text(str(Multiaddr(data))))
    except (*_UNREADABLE, BadAddressError):
        raise RemoteProtocolError(f"not a multiaddr: {data[:64].hex()}") from None
    if address.data != data:
        raise RemoteProtocolError(f"multiaddr is not canonical: {data[:64].hex()}")
    return address


def _from_components(components: Sequence[Component]) -> Address:
    usual = encode_usual(components)
    if components and usual is not None:
        return _checked_size(usual[0], usual[1])
    text = _join(components)
    try:
        data = Multiaddr(text).to_bytes()
        printed = str(Multiaddr(data))
        result = _split_text(printed)
    except _UNREADABLE as error:
        raise BadAddressError(f"not a multiaddr: {_shown(text)}: {_reason(error)}") from None
    same = len(result) == len(components) and all(map(_same, components, result))
    size = max(len(data), len(printed))
    # addresses end in logs and terminals, and peers make them
    if not components or not same or size > ADDRESS_MAX or not printed.isprintable():
        raise BadAddressError(f"not a multiaddr: {_shown(text)}")
    return Address(data, printed, tuple(result))


def _checked_size(data: bytes, components: Sequence[Component]) -> Address:
    printed = _join(components)
    if max(len(data), len(printed)) > ADDRESS_MAX:
        raise BadAddressError(f"not a multiaddr: {_shown(printed)}")
    return Address(data, printed, tuple(components))


def _split_text(text: str) -> list[Component]:
    """Cut text into components, peer ids in their usual form; values are not checked yet."""
    parts = text[1:].split("/")
    if len(parts) > 1 and not parts[-1]:
        parts.pop()
    components: list[Component] = []
    position = 0
    while position < len(parts):
        name = "p2p" if parts[position] == "ipfs" else parts[position]
        codec = _codec_of(name, text)
        position += 1
        if codec is None:
            components.append((name, None))
            continue
        taken = len(parts) if codec == "fspath" else position + 1
        value = "/".join(parts[position:taken])
        if not value:
            raise BadAddressError(f"{name} lacks its value in {_shown(text)}")
        components.append((name, str(PeerId.parse(value)) if name == "p2p" else value))
        position = taken
    return components


def _codec_of(name: str, text: str) -> str | None:
    try:
        codec: str | None = protocol_with_name(name).codec
    except MultiaddrError:
        raise BadAddressError(f"no protocol is called {_shown(name)}: {_shown(text)}") from None
    return codec


def _join(components: Sequence[Component]) -> str:
    return "".join(
        f"/{name}" if value is None else f"/{name}/{value}" for name, value in components
    )


def _same(given: Component, printed: Component) -> bool:
    return given == printed or (given[0] == printed[0] and given[0] in _FREE_FORM)


def _check_structure(data: bytes) -> None:
    """Raise unless `data` is whole components: the package does not notice a value cut short."""
    offset = 0
    while offset < len(data):
        code, offset = decode_uvarint(data, offset)
        codec = protocol_with_code(code).codec
        if codec is None:
            continue
        bits = codec_by_name(codec).SIZE
        if bits > 0:
            offset += bits // 8
        else:
            length, offset = decode_uvarint(data, offset)
            offset += length
    if offset != len(data):
        raise ValueError("multiaddr ends inside a value")


def _shown(text: str) -> str:
    return repr(text) if len(text) <= 128 else f"{text[:128]!r}..."


def _reason(error: BaseException) -> str:
    # the package puts the value in its message as it came, however long and whatever is in it
    return repr((getattr(error, "message", None) or str(error))[:128])[1:-1]
