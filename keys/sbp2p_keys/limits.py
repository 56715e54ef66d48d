"""Every bound on input of the keys layer, with its unit and its reason.

`sbp2p_protocol.limits` bounds the wire; this layer may not import it, so these stand here.
"""

from __future__ import annotations

from typing import Final

UVARINT_MAX_BYTES: Final = 9
"""Bytes in an unsigned varint: values below 2**63, as every multiformats reader agrees."""

BIG_BASE_TEXT_MAX: Final = 1024
"""Characters of base36 or base58 text: decoding costs the square of the length. Ids need 65."""

MULTIHASH_DIGEST_MAX: Final = 128
"""Bytes in a multihash digest: the longest identity CID that other implementations accept."""

INLINE_KEY_MAX: Final = 42
"""Bytes in a key protobuf that a peer id carries whole; longer ones are hashed (libp2p rule)."""

KEY_PROTOBUF_MAX: Final = 2048
"""Bytes in a public key protobuf: an RSA key of 8192 bits, the largest accepted, takes 1,064."""

RSA_BITS: Final = range(2048, 8193)
"""Modulus bits of an RSA key: go-libp2p's range. The longest takes 0.5 ms to verify with."""

RSA_EXPONENT_MAX: Final = 2**31 - 1
"""Public exponent of an RSA key: Go's bound. The largest doubles the cost of 65537, to 1 ms."""

SIGNATURE_MAX: Final = 1024
"""Bytes in one signature: RSA with 8192 bits, the longest."""

DOMAIN_MAX: Final = 64
"""ASCII characters in a domain string. The length is the first byte of what is signed: kept below
0x61, no signed buffer can be taken for one under libp2p's bare prefixes, which begin with a letter.
"""

ENVELOPE_MAX: Final = 64 * 1024
"""Bytes in a signed envelope. Peer records take some hundred; identify allows 8 KiB."""

DOCUMENT_MAX: Final = 4 * 1024 * 1024
"""Bytes in a signed document: a manifest with long lineage takes some KiB; catalogs take more."""

DOCUMENT_SIGNATURES_MAX: Final = 64
"""Signatures in a document: 0.15 ms each to verify, and at most 1 ms with the worst RSA key."""

KEY_FILE_MAX: Final = 16 * 1024
"""Bytes in a key file: an encrypted RSA key of 8192 bits (refused, but by name) takes 7 KiB."""

KEY_ROUNDS_MAX: Final = 10_000_000
"""PBKDF2 rounds in a key file: about 3 s. Ours have 600,000; the field allows 2**31, ten
minutes."""

TRUST_FILE_MAX: Final = 4 * 1024 * 1024
"""Bytes in a trust file: about 30,000 pins."""

TRUST_NAME_MAX: Final = 256
"""UTF-8 bytes in a model name that is pinned: what a manifest allows."""

TRUST_REASON_MAX: Final = 1024
"""UTF-8 bytes in the reason of a revocation: a sentence for people."""

CERTIFICATE_MAX: Final = 2048
"""Bytes in a membership certificate with its signature: 200 with Ed25519 keys, under 2 KiB with the
longest RSA signature and key. A stranger can make a node read as much."""

REVOKED_MEMBERS_MAX: Final = 10_000
"""Members in a revocation list: 450 KB, which every member keeps and is sent at most once."""

REVOCATIONS_MAX: Final = 1024 * 1024
"""Bytes in a signed revocation list: the most members with the longest ids fit."""

MEMBERSHIP_NUMBER_MAX: Final = 2**53 - 1
"""Times, serials and list numbers: what JSON shows exactly."""

SWARM_FILE_MAX: Final = 2 * 1024 * 1024
"""Bytes in a swarm file: a revocation list in base64, a certificate and some addresses."""

SWARM_FILE_PEERS_MAX: Final = 64
"""Addresses of members in a swarm file."""

SWARM_FILE_ADDRESS_MAX: Final = 512
"""Characters in each of them; the layer above knows what an address is."""
