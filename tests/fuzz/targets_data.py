"""Targets of the data model: content ids, blocks, trees, manifests, indexes, links."""

from __future__ import annotations

import unicodedata
from pathlib import PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Final

from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol import dag_cbor
from sbp2p_protocol.bitmap import Bitmap, bitmap_size
from sbp2p_protocol.cid import BadCidError, Cid, verify_block
from sbp2p_protocol.dag_pb import decode_node, encode_node
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from sbp2p_protocol.limits import CID_TEXT_MAX, LINK_TEXT_MAX, MANIFEST_MAX
from sbp2p_protocol.link import BadLinkError, NameLink, parse_link
from sbp2p_protocol.manifest import MANIFEST_DOMAIN, Manifest, read_signed_manifest
from sbp2p_protocol.paths import check_path, check_siblings, collision_key, path_order

from .corpus import (
    DIGESTS,
    KEYS,
    MANIFEST_CID,
    TREE_ROOT,
    field_bytes,
    field_texts,
    hex_bytes,
    texts,
    vectors,
)
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal, text_of
from .structure import cbor, protobuf

if TYPE_CHECKING:
    from sbp2p_protocol.link import Link

# -- content ids -----------------------------------------------------------------------------------


def _check_cid(cid: Cid) -> None:
    expect_equal(Cid.from_bytes(cid.to_bytes()), cid, "binary form")
    expect_equal(Cid.parse(str(cid)), cid, "text form")
    verified = attempt(IntegrityError, verify_block, cid, b"no such block")
    expect(isinstance(verified, Refused) or cid.digest == b"no such block", "a block it is not")


def _cid(data: bytes) -> None:
    cid = attempt(RemoteProtocolError, Cid.from_bytes, data)
    if not isinstance(cid, Refused):
        expect_equal(cid.to_bytes(), data, "encoded again")
        _check_cid(cid)


def _cid_text(data: bytes) -> None:
    cid = attempt(BadCidError, Cid.parse, text_of(data))
    if not isinstance(cid, Refused):
        _check_cid(cid)


CIDS: Final = (
    TREE_ROOT,
    MANIFEST_CID,
    Cid(0, 0x70, 0x12, DIGESTS[2]),
    Cid(1, 0x55, 0, b"inline"),
    Cid(1, 2**63 - 1, 2**63 - 1, bytes(128)),
)

# -- blocks ----------------------------------------------------------------------------------------


def _dag_cbor(data: bytes) -> None:
    value = attempt(RemoteProtocolError, dag_cbor.decode, data)
    if not isinstance(value, Refused):
        expect_equal(dag_cbor.encode(value), data, "encoded again")


def _dag_cbor_seeds() -> list[bytes]:
    values: list[object] = [
        None,
        [True, False, -1, 2**64 - 1, -(2**64), 1.5, "text", b"bytes", TREE_ROOT],
        {
            "a": {"b": {"c": [[], {}, ""]}},
            "aa": 24,
            "z": [0, 23, 24, 255, 256, 65535, 65536, 2**32],
        },
        ["x" * 300, bytes(300), list(range(300))],
    ]
    deep: object = 0
    for _ in range(64):
        deep = [deep]
    return [dag_cbor.encode(value) for value in [*values, deep]]


def _dag_pb(data: bytes) -> None:
    node = attempt(RemoteProtocolError, decode_node, data)
    if not isinstance(node, Refused):
        expect_equal(encode_node(node), data, "encoded again")


def tree_nodes() -> list[bytes]:
    """Return every node of the vectors' trees, files and directories."""
    return [
        node for tree in vectors("protocol", "tree")["trees"] for node in hex_bytes(tree["nodes"])
    ]


def _bitmap(data: bytes) -> None:
    length = int.from_bytes(data[:2], "big")
    bits = attempt(RemoteProtocolError, Bitmap.from_bytes, data[2:], length)
    if isinstance(bits, Refused):
        return
    expect_equal(bits.to_bytes(), data[2:], "encoded again")
    found = list(bits)
    expect_equal(len(found), bits.count(), "set bits")
    expect(not found or found[-1] < length, "a bit beyond the length")
    expect_equal(Bitmap(length, found), bits, "the same set")
    expect(not bits.and_not(bits).any(), "a set without itself")


def _bitmap_seeds() -> list[bytes]:
    sizes = (0, 1, 7, 8, 9, 64, 4095)
    full = [size.to_bytes(2, "big") + Bitmap.full(size).to_bytes() for size in sizes]
    return [*full, *(size.to_bytes(2, "big") + bytes(bitmap_size(size)) for size in sizes)]


# -- names -----------------------------------------------------------------------------------------


def _path(data: bytes) -> None:
    path = text_of(data)
    if (reason := check_path(path)) is not None:
        expect(reason.isprintable() and len(reason) < 1500, f"a reason like {reason!r}")
        return
    path_order(path)
    names = path.split("/")
    for kind in (PurePosixPath, PureWindowsPath):
        pure = kind(path)
        expect_equal(list(pure.parts), names, f"{kind.__name__} has other parts")
        expect(not pure.is_absolute() and not pure.is_reserved(), "a path that means something")
        expect((kind("base") / path).is_relative_to("base"), "a path that leads out")
    for name in names:
        key = collision_key(name)
        expect_equal(collision_key(key), key, f"key of {name!r}")
        # in normal form: capitals of a letter with an iota below it depend on the order of marks;
        # a dotless i has the capital of another letter, and file systems keep the two apart
        capitals = unicodedata.normalize("NFD", name.replace("\u0131", "i")).upper()
        folded = [name.replace("\u0131", "i"), capitals]
        expect(check_siblings(folded) is not None, f"{name!r} in capitals")


def _path_seeds() -> list[bytes]:
    names = [case["text"] for case in vectors("protocol", "manifest")["names"]]
    return [name.encode("utf-8", "surrogatepass") for name in names] + [b"a/b/c.bin", b"COM1.txt"]


_PATH_TOKENS: Final = tuple(
    text.encode()
    for text in (
        "/", "..", ".", "\\", ":", "CON", "nul.", "com\u00b9", "\u202e", "\u0000", " ", "\u00e9",
        "e\u0301", "\u1e9e", "\u0130", "\u03a9", "\u0345", "\ufb03", "\u2028", "LPT0", "$",
    )
)  # fmt: skip

# -- signed descriptions ---------------------------------------------------------------------------


def _manifest(data: bytes) -> None:
    manifest = attempt(RemoteProtocolError, Manifest.from_bytes, data)
    if not isinstance(manifest, Refused):
        expect_equal(manifest.to_bytes(), data, "encoded again")
        expect_equal(Manifest.from_bytes(manifest.to_bytes()), manifest, "read again")
    attempt(RemoteProtocolError, read_signed_manifest, data)
    signed = SignedDocument(MANIFEST_DOMAIN, data).sign(KEYS[0]).to_bytes()
    read = attempt(RemoteProtocolError, read_signed_manifest, signed)
    if not isinstance(read, Refused):
        expect_equal(read[1].publisher, KEYS[0].peer_id, "publisher")


def _manifest_seeds() -> list[bytes]:
    found = vectors("protocol", "manifest")
    full = Manifest(
        name="org/model",
        version=3,
        root=TREE_ROOT,
        tensors=MANIFEST_CID,
        parents=tuple(Cid(1, 0x71, 0x1E, digest) for digest in DIGESTS[2:5]),
        publisher=KEYS[0].peer_id,
        created=1_700_000_000,
        meta={"license": "apache-2.0", "step": 7, "raw": b"\0", "ok": True},
    )
    return [full.to_bytes(), *field_bytes(found, "hex")]


def _check_link(link: Link) -> None:
    text = str(link)
    expect(text.isascii() and text.isprintable(), f"canonical text {text!r}")
    # percent-encoding can make the canonical text longer than what was parsed, up to a bound
    if len(text) <= LINK_TEXT_MAX:
        expect_equal(parse_link(text), link, "parsed again")
        expect_equal(str(parse_link(text)), text, "canonical text")


def _link(data: bytes) -> None:
    link = attempt(BadLinkError, parse_link, text_of(data))
    if not isinstance(link, Refused):
        _check_link(link)


def _link_seeds() -> list[bytes]:
    found = vectors("protocol", "link")
    peer = f"/ip4/192.0.2.1/tcp/1/p2p/{KEYS[0].peer_id}"
    mine = (
        str(NameLink(KEYS[0].peer_id, "org/mod\u00e8le", 2**53 - 1)) + f"?peer={peer}&peer={peer}"
    )
    return [mine.encode(), *field_texts(found["valid"], "text"), *texts(found["invalid"])]


TARGETS: Final = (
    Target(
        name="cid",
        modules=("sbp2p_protocol.cid",),
        check=_cid,
        seeds=lambda: [cid.to_bytes() for cid in CIDS],
        max_size=200,
    ),
    Target(
        name="cid_text",
        modules=("sbp2p_protocol.cid",),
        check=_cid_text,
        seeds=lambda: [str(cid).encode() for cid in CIDS],
        max_size=CID_TEXT_MAX + 10,
    ),
    Target(
        name="dag_cbor",
        modules=("sbp2p_protocol.dag_cbor",),
        check=_dag_cbor,
        seeds=_dag_cbor_seeds,
        mutations=(cbor,),
        tokens=(b"\xd8\x2a", b"\xfb", b"\x81" * 65, b"\x9b", b"\xbf", b"\xff", b"\xf7", b"\x00"),
    ),
    Target(
        name="dag_pb",
        modules=("sbp2p_protocol.dag_pb",),
        check=_dag_pb,
        seeds=tree_nodes,
        mutations=(protobuf,),
    ),
    Target(
        name="bitmap",
        modules=("sbp2p_protocol.bitmap",),
        check=_bitmap,
        seeds=_bitmap_seeds,
        max_size=1024,
        test_runs=100,
    ),
    Target(
        name="path",
        modules=("sbp2p_protocol.paths",),
        check=_path,
        seeds=_path_seeds,
        tokens=_PATH_TOKENS,
        max_size=5000,
    ),
    Target(
        name="manifest",
        modules=("sbp2p_protocol.manifest", "sbp2p_protocol.fields"),
        check=_manifest,
        seeds=_manifest_seeds,
        mutations=(cbor,),
        max_size=MANIFEST_MAX + 100,
        test_runs=100,
    ),
    Target(
        name="link",
        modules=("sbp2p_protocol.link",),
        check=_link,
        seeds=_link_seeds,
        tokens=(b"sbp2p:", b"//", b"?peer=", b"&peer=", b"@", b"%2F", b"%", b"#", b"\xc3\xa9"),
    ),
)
