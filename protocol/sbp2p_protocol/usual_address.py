"""Both forms of the usual multiaddr, IP, TCP or UDP, and peer id, without the `multiaddr` package.

Theory of operation: nearly every address is of this kind. The package reads it through codecs that
load other packages (35 ms of a cold start) and takes 0.2 ms for each, a hundred of which may come
with an answer of the DHT. Here a form is either plainly the usual one, or None is returned and the
package decides: nothing is refused here, and nothing is taken that it would refuse.

An IPv6 address is usual if its first group is not zero, or if it is `::` or `::1`: the rest are the
ranges that embed IPv4, whose text differs between libraries.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import TYPE_CHECKING, Final

from sbp2p_keys.errors import KeysError
from sbp2p_keys.identity import PeerId

if TYPE_CHECKING:
    from collections.abc import Sequence

Component = tuple[str, str | None]

_CODES: Final = {"ip4": b"\x04", "ip6": b"\x29", "tcp": b"\x06", "udp": b"\x91\x02"}
_SIZES: Final = {"ip4": 4, "ip6": 16, "tcp": 2, "udp": 2}
_P2P: Final = b"\xa5\x03"
_CACHED: Final = 1024
"""Peer ids whose other form is kept: each has several addresses, which come again and again."""
_LENGTH_MAX: Final = 0x7F
"""Longest value whose length is one byte; a peer id has 34 to 39."""


def encode_usual(components: Sequence[Component]) -> tuple[bytes, list[Component]] | None:
    """Return the binary form and the components as they are printed; None if not usual."""
    parts: list[bytes] = []
    printed: list[Component] = []
    for name, value in components:
        if value is None:
            return None
        found = _peer_to_bytes(value) if name == "p2p" else _to_bytes(name, value)
        if found is None:
            return None
        parts.append(found[0])
        printed.append((name, found[1]))
    return b"".join(parts), printed


def decode_usual(data: bytes) -> list[Component] | None:
    """Return the components of a binary form; None if it is not usual."""
    components: list[Component] = []
    offset = 0
    while offset < len(data):
        if data.startswith(_P2P, offset):
            end = offset + 3 + (data[offset + 2] if offset + 2 < len(data) else 0)
            value = _peer_to_text(data[offset + 3 : end])
            name = "p2p"
        else:
            name = _name_at(data, offset)
            start = offset + len(_CODES.get(name, b""))
            end = start + _SIZES.get(name, 0)
            value = _to_text(name, data[start:end])
        if value is None or end > len(data):
            return None
        components.append((name, value))
        offset = end
    return components


def _name_at(data: bytes, offset: int) -> str:
    for name, code in _CODES.items():
        if data.startswith(code, offset):
            return name
    return ""


def _to_bytes(name: str, value: str) -> tuple[bytes, str] | None:
    match name:
        case "ip4":
            numbers = [_number(part, 0xFF) for part in value.split(".", 4)]
            packed = bytes(each for each in numbers if each is not None)
            if len(numbers) != 4 or len(packed) != 4:
                return None
        case "ip6":
            return _ip6_to_bytes(value)
        case "tcp" | "udp":
            number = _number(value, 0xFFFF)
            if number is None:
                return None
            packed = number.to_bytes(2)
        case _:
            return None
    return _CODES[name] + packed, value


def _number(text: str, most: int) -> int | None:
    """Return a number that is written as it would be printed; None if it is not."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    number = int(text)
    return number if number <= most and str(number) == text else None


def _ip6_to_bytes(value: str) -> tuple[bytes, str] | None:
    if "%" in value:
        return None
    try:
        address = IPv6Address(value)
    except AddressValueError:
        return None
    if not _is_usual(address.packed):
        return None
    return _CODES["ip6"] + address.packed, address.compressed


def _is_usual(packed: bytes) -> bool:
    return packed[:2] != b"\0\0" or int.from_bytes(packed) <= 1


def _to_text(name: str, value: bytes) -> str | None:
    if len(value) != _SIZES.get(name):
        return None
    match name:
        case "ip4":
            return ".".join(map(str, value))
        case "ip6":
            return IPv6Address(value).compressed if _is_usual(value) else None
        case _:
            return str(int.from_bytes(value))


@lru_cache(_CACHED)
def _peer_to_bytes(value: str) -> tuple[bytes, str] | None:
    try:
        peer_id = PeerId.parse(value)
    except KeysError:
        return None
    multihash = peer_id.multihash
    if len(multihash) > _LENGTH_MAX or str(peer_id) != value:
        return None
    return _P2P + bytes([len(multihash)]) + multihash, value


@lru_cache(_CACHED)
def _peer_to_text(multihash: bytes) -> str | None:
    if not 0 < len(multihash) <= _LENGTH_MAX:
        return None
    try:
        return str(PeerId(multihash))
    except KeysError:
        return None
