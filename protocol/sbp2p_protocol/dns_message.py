"""DNS messages, as far as finding peers by multicast needs them: questions, PTR and TXT records.

Theory of operation. A message is a header of six 16-bit numbers (id, flags, and how many entries
each of four sections has), then the entries. A name is a row of labels that ends with an empty one
or with a pointer to an earlier place in the message. Written here are names in full; read are
pointers too, each of which must lead further back than the name that it is in, so reading ends.

Records of other types are passed over, and so are PTR and TXT records that make no sense inside:
on a local network everything speaks mDNS. The class is not looked at, in whose top bit mDNS keeps
flags of its own.

Why not a package: `dnspython` takes 0.1 s to load and 1 ms for a message, and loads `socket`, which
nothing in this layer does; the codec of `zeroconf` comes with an event loop and swallows errors.
The tests compare this one with dnspython.

Error cases: `RemoteProtocolError` for bytes that end too early, names that are too long or lead
nowhere, and messages above their bounds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Final, TypeAlias

from .errors import LocalProtocolError, RemoteProtocolError
from .limits import DNS_NAME_MAX, MDNS_RECEIVED_MAX, MDNS_RECORDS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEADER: Final = struct.Struct(">6H")
_QUESTION: Final = struct.Struct(">2H")
_RECORD: Final = struct.Struct(">2HIH")
_IN: Final = 1
_RESPONSE: Final = 0x8000
_AUTHORITATIVE: Final = 0x0400
_POINTER: Final = 0xC0
_LABEL_MAX: Final = 63


class RecordKind(IntEnum):
    """Types of DNS records that are looked at; ANY is for questions."""

    PTR = 12
    TXT = 16
    ANY = 255


@dataclass(frozen=True, slots=True)
class Question:
    """A question. Names have no final dot, and are as they were written."""

    name: str
    kind: int


@dataclass(frozen=True, slots=True)
class PtrRecord:
    """`name` leads to `target`. Its life is in seconds; 0 takes it back."""

    name: str
    target: str
    ttl_s: int


@dataclass(frozen=True, slots=True)
class TxtRecord:
    """Strings about `name`, each of at most 255 bytes."""

    name: str
    strings: tuple[bytes, ...]
    ttl_s: int


Record: TypeAlias = PtrRecord | TxtRecord


@dataclass(frozen=True, slots=True)
class DnsMessage:
    """One packet, as far as it is of interest here."""

    is_response: bool
    questions: tuple[Question, ...] = ()
    answers: tuple[Record, ...] = ()
    additional: tuple[Record, ...] = ()

    def encode(self) -> bytes:
        """Return the bytes of the message.

        Raises:
            LocalProtocolError: a name or a string is too long.
        """
        flags = _RESPONSE | _AUTHORITATIVE if self.is_response else 0
        counts = (len(self.questions), len(self.answers), 0, len(self.additional))
        parts = [_HEADER.pack(0, flags, *counts)]
        parts += [
            _encode_name(each.name) + _QUESTION.pack(each.kind, _IN) for each in self.questions
        ]
        parts += map(_encode_record, (*self.answers, *self.additional))
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> DnsMessage:
        """Read a message; raises RemoteProtocolError."""
        if len(data) > MDNS_RECEIVED_MAX:
            raise RemoteProtocolError(f"DNS message of {len(data)} bytes")
        reader = _Reader(data)
        _, flags, questions, answers, authorities, additional = reader.unpack(_HEADER)
        if questions + answers + authorities + additional > MDNS_RECORDS_MAX:
            raise RemoteProtocolError("DNS message with too many entries")
        asked = tuple(reader.question() for _ in range(questions))
        answered = tuple(reader.records(answers))
        list(reader.records(authorities))
        return cls(bool(flags & _RESPONSE), asked, answered, tuple(reader.records(additional)))


def _encode_name(name: str) -> bytes:
    labels = [label.encode("latin-1", "replace") for label in name.split(".")] if name else []
    size = sum(map(len, labels)) + len(labels) + 1
    if size > DNS_NAME_MAX or not all(0 < len(each) <= _LABEL_MAX for each in labels):
        raise LocalProtocolError(f"not a DNS name: {name[:80]!r}")
    return b"".join(bytes([len(each)]) + each for each in labels) + b"\0"


def _encode_record(record: Record) -> bytes:
    if isinstance(record, PtrRecord):
        kind, body = RecordKind.PTR, _encode_name(record.target)
    else:
        if any(len(each) > 255 for each in record.strings):
            raise LocalProtocolError("a string of more than 255 bytes in a TXT record")
        kind = RecordKind.TXT
        body = b"".join(bytes([len(each)]) + each for each in record.strings)
    return _encode_name(record.name) + _RECORD.pack(kind, _IN, record.ttl_s, len(body)) + body


class _Reader:
    """A place in a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._offset = 0

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        end = self._offset + layout.size
        if end > len(self._data):
            raise RemoteProtocolError("DNS message ends too early")
        values: tuple[int, ...] = layout.unpack_from(self._data, self._offset)
        self._offset = end
        return values

    def question(self) -> Question:
        name = self.name()
        kind, _ = self.unpack(_QUESTION)
        return Question(name, kind)

    def records(self, count: int) -> Iterator[Record]:
        """Read so many records, and yield those that are of interest."""
        for _ in range(count):
            name = self.name()
            kind, _, ttl_s, length = self.unpack(_RECORD)
            start, end = self._offset, self._offset + length
            if end > len(self._data):
                raise RemoteProtocolError("DNS record ends after its message")
            self._offset = end
            if kind == RecordKind.PTR and (target := self._target(start, end)) is not None:
                yield PtrRecord(name, target, ttl_s)
            elif kind == RecordKind.TXT and (strings := self._strings(start, end)) is not None:
                yield TxtRecord(name, strings, ttl_s)

    def name(self) -> str:
        name, self._offset = self._name_at(self._offset)
        return name

    def _target(self, start: int, end: int) -> str | None:
        try:
            name, stop = self._name_at(start)
        except RemoteProtocolError:
            return None
        return name if stop == end else None

    def _strings(self, start: int, end: int) -> tuple[bytes, ...] | None:
        found = []
        while start < end:
            stop = start + 1 + self._data[start]
            if stop > end:
                return None
            found.append(self._data[start + 1 : stop])
            start = stop
        return tuple(found)

    def _name_at(self, offset: int) -> tuple[str, int]:
        """Return the name that begins at `offset`, and where the bytes behind it begin."""
        data = self._data
        labels: list[str] = []
        size = 1
        behind: int | None = None
        earliest = offset  # where pointers may lead, up to there
        while True:
            if offset >= len(data):
                raise RemoteProtocolError("DNS name ends after its message")
            length = data[offset]
            if length == 0:
                return ".".join(labels), offset + 1 if behind is None else behind
            if length >= _POINTER:
                if offset + 1 >= len(data):
                    raise RemoteProtocolError("DNS name ends after its message")
                target = (length & ~_POINTER) << 8 | data[offset + 1]
                if target >= earliest:
                    raise RemoteProtocolError("DNS name that leads forward")
                behind = offset + 2 if behind is None else behind
                offset = earliest = target
                continue
            size += 1 + length
            if length > _LABEL_MAX or size > DNS_NAME_MAX or offset + 1 + length > len(data):
                raise RemoteProtocolError("DNS name that is too long")
            labels.append(data[offset + 1 : offset + 1 + length].decode("latin-1"))
            offset += 1 + length
