"""Targets of the checkpoint formats: files that somebody else made, seen by their structure alone.

Nothing in a file may make `inspect` raise. Where it finds a layout, the layout is one that can be
cut into blocks and read; where it does not, the note says why in one line.
"""

from __future__ import annotations

import io
import json
import struct
import zipfile
from functools import partial
from typing import TYPE_CHECKING, Final

from sbp2p.checkpoint.formats import (
    ByteSource,
    Inspection,
    Layout,
    gguf,
    inspect,
    pytorch_zip,
    safetensors,
)
from sbp2p.checkpoint.formats.layout import MalformedError
from sbp2p.checkpoint.reader import INDEX_MAX, INDEX_SUFFIX, TensorReader
from sbp2p.errors import CheckpointError
from sbp2p_protocol.cuts import cut_lengths
from sbp2p_protocol.errors import LocalProtocolError
from sbp2p_protocol.limits import BLOCK_MAX, MIB
from sbp2p_protocol.tensor_index import TensorEntry, build_tensor_index

from .corpus import write_scratch
from .engine import Target
from .expect import MESSAGE_MAX, attempt, error_text, expect, expect_equal
from .structure import json_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    Parser = Callable[[ByteSource], Layout | None]

# -- a file's structure ----------------------------------------------------------------------------


def _format(parse: Parser, data: bytes) -> None:
    outcome = attempt(MalformedError, parse, ByteSource.from_bytes(data))
    # a disk may give fewer bytes than were asked for
    slow = ByteSource(len(data), lambda length, offset: data[offset : offset + min(length, 7)])
    expect_equal(attempt(MalformedError, parse, slow), outcome, "read in small pieces")
    # a file may shrink while it is read
    shrunk = ByteSource(len(data), lambda length, offset: data[offset : len(data) // 2][:length])
    attempt(MalformedError, parse, shrunk)
    _check_inspection(inspect(ByteSource.from_bytes(data)), len(data))
    if isinstance(outcome, Layout):
        _check_inspection(Inspection(outcome, outcome.note), len(data))


def _check_inspection(found: Inspection, size: int) -> None:
    expect(len(found.note) <= MESSAGE_MAX and (found.note.isprintable()), f"note {found.note!r}")
    end = 0
    for offset, length in found.spans:
        expect(offset >= end and length > 0, f"span {offset}+{length} after {end}")
        end = offset + length
    expect(end <= size, "a span beyond the file")
    lengths = list(cut_lengths(size, found.spans))
    expect_equal(sum(lengths), size, "blocks")
    expect(all(0 < length <= BLOCK_MAX for length in lengths), "a block's length")
    tensors = found.layout.tensors if found.layout is not None else None
    if not tensors:
        return
    for one in tensors:
        inside = 0 <= one.offset <= one.offset + one.length <= size
        expect(inside, f"tensor {one} of {size} bytes")
    entries = [
        TensorEntry(one.name, one.dtype, one.shape, "file", one.offset, one.length)
        for one in tensors
    ]
    attempt(LocalProtocolError, build_tensor_index, entries)


# -- reading it ------------------------------------------------------------------------------------


def _read(name: str, data: bytes) -> None:
    write_scratch("a.safetensors", safetensors_file())
    path = write_scratch(name, data)
    try:
        with TensorReader(path) as reader:
            for tensor in reader.names():
                expect_equal(len(reader.read(tensor).data), reader.span(tensor).length, "length")
    except CheckpointError as error:
        # the path is the caller's; what else is in the message is ours
        error_text(CheckpointError(str(error).replace(str(path.parent), "folder")))


# -- seeds -----------------------------------------------------------------------------------------


def safetensors_file() -> bytes:
    """Return a file with four tensors, one of them empty, and metadata."""
    header = {
        "__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
        "s": {"dtype": "I64", "shape": [], "data_offsets": [30, 38]},
        "e": {"dtype": "F4", "shape": [0, 9], "data_offsets": [38, 38]},
    }
    return _with_header(json.dumps(header).encode(), bytes(range(38)))


def _with_header(text: bytes, data: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def _safetensors_seeds() -> list[bytes]:
    metadata = _with_header(b'{"__metadata__":{"a":"\\u00e9"}}   ', b"")
    unknown = b'{"x":{"dtype":"NEW","shape":[1,2],"data_offsets":[0,5]}}'
    wrong = b'{"x":{"data_offsets":[0,5],"shape":[9],"dtype":"F32"}}'
    return [
        safetensors_file(),
        metadata,
        _with_header(b"{}", b""),
        _with_header(unknown, bytes(5)),
        _with_header(wrong, bytes(5)),
    ]


def _change_header(rng: Random, data: bytes) -> bytes:
    """Change the JSON of a safetensors file; its length is right again, the offsets may not be."""
    size = int.from_bytes(data[:8], "little")
    text = data[8 : 8 + size]
    return _with_header(json_text(rng, text), data[8 + size :])


def _zip_file(entries: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def _as_zip64(data: bytes) -> bytes:
    """Put the zip64 records before the end record, as torch does for every file."""
    fields = struct.unpack("<4s4HIIH", data[-22:])
    count, length, begin = fields[4], fields[5], fields[6]
    record = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, begin)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(data) - 22, 1)
    return data[:-22] + record + locator + data[-22:]


def _zip_seeds() -> list[bytes]:
    storages = {f"archive/data/{number}": bytes(100 * number) for number in range(3)}
    whole = {"archive/data.pkl": b"\x80\x02}q\x00.", "archive/byteorder": b"little", **storages}
    plain = _zip_file(whole)
    return [
        plain,
        _as_zip64(plain),
        _zip_file(whole, zipfile.ZIP_DEFLATED),
        _zip_file({"x/data.pkl": b"", "y/data.pkl": b""}),
        _zip_file({"readme.txt": b"hello"}),
    ]


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def gguf_file() -> bytes:
    """Return a file with metadata of many types and three tensors."""
    u32 = partial(struct.pack, "<I")
    pairs = [
        _text(b"general.alignment") + u32(4) + u32(32),
        _text(b"general.name") + u32(8) + _text(b"model"),
        _text(b"tokens") + u32(9) + u32(8) + struct.pack("<Q", 3) + _text(b"a") * 3,
        _text(b"scores") + u32(9) + u32(6) + struct.pack("<Q", 2) + bytes(8),
        _text(b"flag") + u32(7) + b"\x01",
    ]
    tensors = [
        _text(b"w") + u32(2) + struct.pack("<QQIQ", 32, 2, 2, 0),
        _text(b"v") + u32(1) + struct.pack("<QIQ", 8, 0, 64),
        _text(b"e") + u32(1) + struct.pack("<QIQ", 0, 0, 64),
        _text(b"s") + u32(0) + struct.pack("<IQ", 24, 96),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs))
    body = head + b"".join(pairs) + b"".join(tensors)
    return body + bytes(-len(body) % 32) + bytes(97)


def _gguf_seeds() -> list[bytes]:
    whole = gguf_file()
    return [
        whole,
        whole[:4] + b"\2" + whole[5:],
        b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
        whole[:90],
    ]


def _shard_seeds() -> list[bytes]:
    good = {"metadata": {"total_size": 38}, "weight_map": dict.fromkeys("wbse", "a.safetensors")}
    bad = [
        {"weight_map": {"w": "../a.safetensors"}},
        {"weight_map": {"w": "b.safetensors"}},
        {"weight_map": {}},
    ]
    return [json.dumps(index).encode() for index in (good, *bad)]


TARGETS: Final = (
    Target(
        name="safetensors",
        modules=("sbp2p.checkpoint.formats.safetensors", "sbp2p.checkpoint.formats.layout"),
        check=partial(_format, safetensors.parse),
        seeds=_safetensors_seeds,
        mutations=(_change_header,),
        tokens=(b'"__metadata__"', b'"shape"', b"\\ud800", b"[]", b"{}", b'"F64"', b"  "),
    ),
    Target(
        name="pytorch_zip",
        modules=("sbp2p.checkpoint.formats.pytorch_zip", "sbp2p.checkpoint.formats.layout"),
        check=partial(_format, pytorch_zip.parse),
        seeds=_zip_seeds,
        tokens=(b"PK\1\2", b"PK\3\4", b"PK\5\6", b"PK\6\6", b"PK\6\7", b"\1\0\x18\0", b"\xff" * 4),
    ),
    Target(
        name="gguf",
        modules=("sbp2p.checkpoint.formats.gguf", "sbp2p.checkpoint.formats.layout"),
        check=partial(_format, gguf.parse),
        seeds=_gguf_seeds,
        tokens=(_text(b"general.alignment"), struct.pack("<I", 9), struct.pack("<I", 8)),
    ),
    Target(
        name="tensor_file",
        modules=("sbp2p.checkpoint.reader",),
        check=partial(_read, "b.safetensors"),
        seeds=lambda: [*_safetensors_seeds(), *_zip_seeds(), *_gguf_seeds()],
        mutations=(_change_header,),
        test_runs=60,
    ),
    Target(
        name="shard_index",
        modules=("sbp2p.checkpoint.reader",),
        check=partial(_read, f"model{INDEX_SUFFIX}"),
        seeds=_shard_seeds,
        mutations=(json_text,),
        tokens=(b'"weight_map"', b'"a.safetensors"', b"[" * 3000, b"\\ud800", b"\\u0000"),
        max_size=8192,
        memory_max=INDEX_MAX + 4 * MIB,  # one read asks for the most that it would take
        test_runs=80,
    ),
)
