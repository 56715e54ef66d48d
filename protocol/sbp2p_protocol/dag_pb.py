"""Strict dag-pb: the protobuf nodes that file trees are made of, in their one byte form.

Theory of operation: a node is links, then data; a link is Hash, Name, Tsize, in that order. Absent
and empty fields are different blocks with different names, so both are told apart (None against
empty). The reader takes canonical bytes only (shortest varints, known fields, known order, valid
CIDs and UTF-8): `encode_node(decode_node(data)) == data` holds for everything that decodes.

The protobuf runtime is not used: it skips unknown fields, reorders known ones and forgets the
difference between absent and empty, and any of these changes a hash.

Error cases: `decode_node` raises RemoteProtocolError whatever the bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sbp2p_protocol.cid import Cid
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import NODE_BLOCK_MAX

_NODE_DATA: Final = 0x0A
_NODE_LINK: Final = 0x12
_LINK_HASH: Final = 0x0A
_LINK_NAME: Final = 0x12
_LINK_TSIZE: Final = 0x18


@dataclass(frozen=True, slots=True)
class PbLink:
    """A link: the block, its name and the bytes under it; None is an absent field."""

    cid: Cid
    name: str | None = None
    tsize: int | None = None


@dataclass(frozen=True, slots=True)
class PbNode:
    """A node; `data` None is an absent field."""

    links: tuple[PbLink, ...] = ()
    data: bytes | None = None


def encode_varint(value: int) -> bytes:
    """Encode an unsigned protobuf varint of up to 64 bits."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_varint(data: bytes, at: int) -> tuple[int, int]:
    """Read a shortest-form varint of up to 64 bits; returns (value, next offset)."""
    value = shift = 0
    for byte in data[at : at + 10]:
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift:
                raise RemoteProtocolError("protobuf varint is not in its shortest form")
            if value >> 64:
                raise RemoteProtocolError("protobuf varint over 64 bits")
            return value, at
        shift += 7
    raise RemoteProtocolError("truncated or endless protobuf varint")


def encode_node(node: PbNode) -> bytes:
    """Encode a node; the caller keeps it within NODE_BLOCK_MAX."""
    parts: list[bytes] = []
    for link in node.links:
        body = _encode_link(link)
        parts += (b"\x12", encode_varint(len(body)), body)
    if node.data is not None:
        parts += (b"\x0a", encode_varint(len(node.data)), node.data)
    return b"".join(parts)


def _encode_link(link: PbLink) -> bytes:
    cid = link.cid.to_bytes()
    parts = [b"\x0a", encode_varint(len(cid)), cid]
    if link.name is not None:
        name = link.name.encode("utf-8")
        parts += (b"\x12", encode_varint(len(name)), name)
    if link.tsize is not None:
        parts += (b"\x18", encode_varint(link.tsize))
    return b"".join(parts)


def decode_node(data: bytes) -> PbNode:
    """Decode a node that fills `data`; raises RemoteProtocolError unless it is canonical."""
    if len(data) > NODE_BLOCK_MAX:
        raise RemoteProtocolError(f"dag-pb node of {len(data)} bytes (at most {NODE_BLOCK_MAX})")
    links: list[PbLink] = []
    at = 0
    while at < len(data) and data[at] == _NODE_LINK:
        body, at = _field(data, at)
        links.append(_decode_link(body))
    payload = None
    if at < len(data) and data[at] == _NODE_DATA:
        payload, at = _field(data, at)
    if at != len(data):
        raise RemoteProtocolError("dag-pb node with unknown, repeated or misplaced fields")
    return PbNode(tuple(links), payload)


def _decode_link(body: bytes) -> PbLink:
    if body[:1] != b"\x0a":
        raise RemoteProtocolError("dag-pb link without a hash")
    raw, at = _field(body, 0)
    cid = Cid.from_bytes(raw)
    name = tsize = None
    if at < len(body) and body[at] == _LINK_NAME:
        raw, at = _field(body, at)
        try:
            name = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("dag-pb link name is not UTF-8") from error
    if at < len(body) and body[at] == _LINK_TSIZE:
        tsize, at = decode_varint(body, at + 1)
    if at != len(body):
        raise RemoteProtocolError("dag-pb link with unknown, repeated or misplaced fields")
    return PbLink(cid, name, tsize)


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the length-delimited field whose key is at `at`, and the offset after it."""
    # most lengths are one byte, and a big model has millions of them
    if at + 1 < len(data) and data[at + 1] < 0x80:
        size, start = data[at + 1], at + 2
    else:
        size, start = decode_varint(data, at + 1)
    end = start + size
    if end > len(data):
        raise RemoteProtocolError("truncated dag-pb field")
    return data[start:end], end
