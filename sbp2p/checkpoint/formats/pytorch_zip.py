"""The zip container of torch.save: which entries are storages, and where their bytes lie.

Rules. A file is read as a PyTorch archive when it starts with a local zip header, ends with an
end-of-central-directory record without a comment, and its directory names exactly one
`<prefix>/data.pkl`. Its storages are the STORED, unencrypted entries `<prefix>/data/<digits>`; the
offset of each comes from its local header, because the padding that aligns a storage is there.

The pickle is never opened, so a tensor's own name, dtype and shape stay unknown: the tensor index
gets one row per storage, named by its zip entry. A storage that is compressed, or a zip that is no
PyTorch archive, yields no span.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.formats.layout import (
    ByteSource,
    Layout,
    MalformedError,
    TensorSpan,
    require_disjoint,
    shown,
)
from sbp2p_protocol.limits import TENSORS_PER_FILE_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT: Final = "pytorch_zip"

STORAGE_DTYPE: Final = "STORAGE"
"""What the tensor index says of a storage: bytes, whose element type only the pickle knows."""

DIRECTORY_MAX: Final = 64 * 1024 * 1024
"""Bytes of central directory: about 100 per storage, so room for the limit on their number."""

_LOCAL: Final = struct.Struct("<4s5HIIIHH")
_ENTRY: Final = struct.Struct("<4s6HIIIHHHHHII")
_END: Final = struct.Struct("<4s4HIIH")
_END64: Final = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR64: Final = struct.Struct("<4sIQI")
_STORED: Final = 0
_ENCRYPTED: Final = 0x1 | 0x40 | 0x2000
_STORAGE_NAME: Final = re.compile(rb"data/[0-9]{1,18}")


@dataclass(frozen=True, slots=True)
class _Entry:
    name: bytes
    flags: int
    method: int
    size: int
    stored_size: int
    header: int


def parse(source: ByteSource) -> Layout | None:
    """Return the layout of a PyTorch archive, or None for anything that is not one."""
    if source.size < _LOCAL.size + _END.size or source.read(0, 4) != b"PK\x03\x04":
        return None
    begin, length, count = _directory(source)
    entries = list(_entries(source.read(begin, length), count))
    prefixes = [e.name[: -len(b"data.pkl")] for e in entries if e.name.endswith(b"/data.pkl")]
    if not prefixes:
        return None
    if len(prefixes) > 1:
        raise MalformedError("more than one data.pkl")
    tensors = [
        span
        for entry in entries
        if entry.name.startswith(prefixes[0])
        and _STORAGE_NAME.fullmatch(entry.name, len(prefixes[0]))
        if (span := _storage(source, entry)) is not None
    ]
    tensors.sort(key=lambda t: (t.offset, t.length))
    spans = tuple((t.offset, t.length) for t in tensors if t.length)
    require_disjoint(spans, begin)
    if any(t.offset > begin for t in tensors):  # an empty one; its place is in the tensor index
        raise MalformedError("an empty storage lies behind the data")
    return Layout(FORMAT, spans, tuple(tensors))


def _directory(source: ByteSource) -> tuple[int, int, int]:
    """Return (offset, length, entries) of the central directory, zip64 or not."""
    at = source.size - _END.size
    magic, disk, first, here, count, length, begin, comment = _END.unpack(source.read(at, 22))
    if magic != b"PK\x05\x06" or comment:
        raise MalformedError("starts like a zip file but does not end like one")
    if 0xFFFF in (disk, first, here, count) or 0xFFFFFFFF in (length, begin) or _has64(source, at):
        at -= _LOCATOR64.size
        magic, _, end64, _ = _LOCATOR64.unpack(source.read(at, _LOCATOR64.size))
        if magic != b"PK\x06\x07" or end64 > at:
            raise MalformedError("zip64 locator missing or out of place")
        record = _END64.unpack(source.read(end64, _END64.size))
        magic, size, _, _, disk, first, here, count, length, begin = record
        if magic != b"PK\x06\x06" or end64 + 12 + size != at:
            raise MalformedError("zip64 end record missing or out of place")
        at = end64
    if disk or first or here != count:
        raise MalformedError("zip file in several parts")
    if begin + length != at or length > DIRECTORY_MAX or count > length // _ENTRY.size:
        raise MalformedError("zip directory does not fit the file")
    return begin, length, count


def _has64(source: ByteSource, at: int) -> bool:
    # torch always writes the zip64 records, also when every number would fit without
    return at >= _LOCATOR64.size and source.read(at - _LOCATOR64.size, 4) == b"PK\x06\x07"


def _entries(directory: bytes, count: int) -> Iterator[_Entry]:
    if count > TENSORS_PER_FILE_MAX:
        raise MalformedError(f"more than {TENSORS_PER_FILE_MAX} entries")
    at = 0
    names: set[bytes] = set()
    for _ in range(count):
        if at + _ENTRY.size > len(directory):
            raise MalformedError("zip directory is cut short")
        record = _ENTRY.unpack_from(directory, at)
        magic, _, _, flags, method, _, _, _, stored, size, name_len, extra_len, comment_len = (
            record[:13]
        )
        name_at = at + _ENTRY.size
        extra_at = name_at + name_len
        at = extra_at + extra_len + comment_len
        if magic != b"PK\x01\x02" or at > len(directory):
            raise MalformedError("zip directory entry is damaged")
        name = directory[name_at:extra_at]
        if name in names:
            raise MalformedError(f"zip entry {shown(name)} occurs twice")
        names.add(name)
        extra = directory[extra_at : extra_at + extra_len]
        size, stored, header = _widen(extra, size, stored, record[16])
        yield _Entry(name, flags, method, size, stored, header)
    if at != len(directory):
        raise MalformedError("zip directory holds more than its entries")


def _widen(extra: bytes, size: int, stored: int, header: int) -> tuple[int, int, int]:
    """Take from the zip64 extra field each number that is all ones in the plain record."""
    values = [size, stored, header]
    wide = [i for i, value in enumerate(values) if value == 0xFFFFFFFF]
    at = 0
    while wide and at + 4 <= len(extra):
        tag, length = struct.unpack_from("<HH", extra, at)
        at += 4
        if tag == 1 and length >= 8 * len(wide) and at + length <= len(extra):
            for place, index in enumerate(wide):
                (values[index],) = struct.unpack_from("<Q", extra, at + 8 * place)
            return values[0], values[1], values[2]
        at += length
    if wide:
        raise MalformedError("zip64 sizes are missing")
    return size, stored, header


def _storage(source: ByteSource, entry: _Entry) -> TensorSpan | None:
    """Find the data of a stored entry through its local header; None when it is compressed."""
    if entry.method != _STORED:
        return None
    name = entry.name
    if entry.flags & _ENCRYPTED or entry.size != entry.stored_size or not name.isascii():
        raise MalformedError(f"storage {shown(name)} is encrypted or damaged")
    local = source.read(entry.header, _LOCAL.size + len(name))
    magic, _, _, method, _, _, _, _, _, name_len, extra_len = _LOCAL.unpack_from(local)
    if magic != b"PK\x03\x04" or method != _STORED or name_len != len(name):
        raise MalformedError(f"local header of {shown(name)} disagrees with the directory")
    if local[_LOCAL.size :] != name:
        raise MalformedError(f"local header of {shown(name)} has another name")
    offset = entry.header + _LOCAL.size + name_len + extra_len
    return TensorSpan(name.decode("ascii"), STORAGE_DTYPE, (entry.size,), offset, entry.size)
