"""Content identifiers: what a block is called, and whether bytes are that block.

Theory of operation: a CID is (version, codec, hash function, digest). Inside a process a leaf block
is its 32 raw digest bytes; a `Cid` appears where blocks of several codecs meet (tree nodes,
manifests, tensor index pages) and at the edges, as text. sbp2p's own blocks are CIDv1 with
BLAKE3-256 (`is_blake3`); other hash functions are read so that foreign CIDs can be shown and
compared, and verified where the function is known here (sha2-256, identity).

Error cases: bytes from a peer (`from_bytes`, `verify_block`) raise only RemoteProtocolError; text
comes from a person, so `Cid.parse` raises BadCidError, a ValueError.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from blake3 import blake3

from sbp2p_keys.errors import KeysError
from sbp2p_keys.multi import (
    BLAKE3,
    IDENTITY,
    SHA2_256,
    base58btc_decode,
    base58btc_encode,
    decode_uvarint,
    encode_uvarint,
    multibase_decode,
)
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from sbp2p_protocol.limits import CID_BYTES_MAX, CID_DIGEST_MAX, CID_TEXT_MAX

if TYPE_CHECKING:
    from sbp2p_keys.multi import BytesLike

__all__ = [
    "BLAKE3",
    "DAG_CBOR",
    "DAG_PB",
    "IDENTITY",
    "RAW",
    "SHA2_256",
    "BadCidError",
    "Cid",
    "hash_bytes",
    "raw_cid",
    "verify_block",
]

RAW: Final = 0x55
DAG_PB: Final = 0x70
DAG_CBOR: Final = 0x71

DIGEST_SIZE: Final = 32
_V0_PREFIX: Final = b"\x12\x20"
_RAW_BLAKE3_PREFIX: Final = bytes((1, RAW, BLAKE3, DIGEST_SIZE))
_BINARY_SIZE: Final = len(_RAW_BLAKE3_PREFIX) + DIGEST_SIZE


class BadCidError(ValueError):
    """Text that is not a CID."""


@dataclass(frozen=True, slots=True)
class Cid:
    """A content identifier; equal when version, codec, hash function and digest are equal."""

    version: int
    codec: int
    hash_code: int
    digest: bytes

    @classmethod
    def for_block(cls, codec: int, data: BytesLike, hash_code: int = BLAKE3) -> Self:
        """Hash `data` and name it: CIDv1 of `codec`."""
        return cls(1, codec, hash_code, hash_bytes(data, hash_code))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a CID from text, in any multibase; raises BadCidError."""
        if len(text) > CID_TEXT_MAX:
            raise BadCidError(f"a CID of {len(text)} characters (at most {CID_TEXT_MAX})")
        try:
            if len(text) == 46 and text.startswith("Qm"):
                return cls.from_bytes(base58btc_decode(text))
            cid = cls.from_bytes(multibase_decode(text))
        except (KeysError, RemoteProtocolError) as error:
            raise BadCidError(f"not a CID: {text[:80]!r} ({error})") from error
        if cid.version == 0:
            raise BadCidError(f"not a CID: {text[:80]!r} (version 0 takes no multibase prefix)")
        return cid

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read a binary CID that fills `data` exactly; raises RemoteProtocolError."""
        if len(data) == _BINARY_SIZE and data.startswith(_RAW_BLAKE3_PREFIX):
            return cls(1, RAW, BLAKE3, data[len(_RAW_BLAKE3_PREFIX) :])
        if len(data) > CID_BYTES_MAX:
            raise RemoteProtocolError(f"a CID of {len(data)} bytes (at most {CID_BYTES_MAX})")
        if data.startswith(_V0_PREFIX):
            if len(data) != len(_V0_PREFIX) + DIGEST_SIZE:
                raise RemoteProtocolError(f"a version 0 CID of {len(data)} bytes, not 34")
            return cls(0, DAG_PB, SHA2_256, data[len(_V0_PREFIX) :])
        try:
            version, at = decode_uvarint(data)
            if version != 1:
                raise RemoteProtocolError(f"unknown CID version {version}")
            codec, at = decode_uvarint(data, at)
            hash_code, at = decode_uvarint(data, at)
            size, at = decode_uvarint(data, at)
        except KeysError as error:
            raise RemoteProtocolError(f"malformed CID: {error}") from error
        if size > CID_DIGEST_MAX or size != len(data) - at:
            raise RemoteProtocolError(f"CID digest of {len(data) - at} bytes, {size} announced")
        return cls(1, codec, hash_code, data[at:])

    def to_bytes(self) -> bytes:
        """Return the binary form (for version 0, the bare multihash)."""
        if self.version == 0:
            return _V0_PREFIX + self.digest
        return b"".join(
            (
                b"\x01",
                encode_uvarint(self.codec),
                encode_uvarint(self.hash_code),
                encode_uvarint(len(self.digest)),
                self.digest,
            )
        )

    @property
    def is_blake3(self) -> bool:
        """Whether this names a block the way sbp2p names its own: CIDv1, 32-byte BLAKE3."""
        return self.version == 1 and self.hash_code == BLAKE3 and len(self.digest) == DIGEST_SIZE

    def __str__(self) -> str:
        if self.version == 0:
            return base58btc_encode(self.to_bytes())
        return "b" + base64.b32encode(self.to_bytes()).decode("ascii").rstrip("=").lower()

    def __repr__(self) -> str:
        return f"Cid({str(self)!r})"


def raw_cid(digest: bytes) -> Cid:
    """Return the CID of the leaf block with this 32-byte BLAKE3 digest."""
    return Cid(1, RAW, BLAKE3, digest)


def hash_bytes(data: BytesLike, hash_code: int = BLAKE3) -> bytes:
    """Return the digest of `data`; raises RemoteProtocolError for an unknown hash function."""
    if hash_code == BLAKE3:
        return blake3(data).digest()
    if hash_code == SHA2_256:
        return hashlib.sha256(data).digest()
    if hash_code == IDENTITY:
        return bytes(data)
    raise RemoteProtocolError(f"unknown hash function 0x{hash_code:x}")


def verify_block(cid: Cid, data: BytesLike) -> None:
    """Check that `data` is the block `cid` names; raises IntegrityError if it is not."""
    try:
        actual = hash_bytes(data, cid.hash_code)
    except RemoteProtocolError as error:
        raise IntegrityError(f"block {cid} cannot be verified: {error}") from error
    if actual != cid.digest:
        raise IntegrityError(f"block {cid} has other bytes than its hash says")
