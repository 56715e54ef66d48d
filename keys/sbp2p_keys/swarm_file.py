"""What a member keeps of a private swarm, in one small file.

    {
      "format": "sbp2p-swarm/1",
      "owner": "PEER ID",
      "secret": "64 hexadecimal digits",
      "certificate": "base64",
      "revocations": "base64",
      "peers": ["/ip4/.../p2p/..."]
    }

It is what an owner hands to whom it invites, and what a node opens. The secret is the same for all
members, and keeps strangers from learning who listens; without a certificate it lets nobody in.
`revocations` is empty text while there is no list. The file is read as strictly as a trust store,
and because of the secret, only if nobody else can read it.

Errors: BadSwarmFileError and the other FileError leaves.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ._files import read_file, write_file
from .errors import BadPeerIdError, BadSwarmFileError, KeysError
from .identity import PeerId
from .limits import SWARM_FILE_ADDRESS_MAX, SWARM_FILE_MAX, SWARM_FILE_PEERS_MAX
from .membership import Certificate, Revocations, read_certificate, read_revocations

SECRET_BYTES: Final = 32
_FORMAT: Final = "sbp2p-swarm/1"
_MEMBERS: Final = {"format", "owner", "secret", "certificate", "revocations", "peers"}


@dataclass(frozen=True, slots=True)
class SwarmFile:
    """A member's place in a private swarm.

    Attributes:
        owner: of the swarm.
        secret: 32 bytes that all members share.
        certificate: the member's, signed by the owner.
        revocations: the newest signed list known, or nothing.
        peers: addresses of other members, as text.
    """

    owner: PeerId
    secret: bytes
    certificate: bytes
    revocations: bytes = b""
    peers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse with BadSwarmFileError what no file can hold, or no owner has signed."""
        if len(self.secret) != SECRET_BYTES:
            raise BadSwarmFileError(f"the secret has {len(self.secret)} bytes, not {SECRET_BYTES}")
        if len(self.peers) > SWARM_FILE_PEERS_MAX:
            raise BadSwarmFileError(f"more than {SWARM_FILE_PEERS_MAX} peers")
        if any(len(each) > SWARM_FILE_ADDRESS_MAX or not each.isprintable() for each in self.peers):
            raise BadSwarmFileError("a peer's address is too long, or is not printable")
        try:
            issuers = {self.read_certificate().issuer, self.read_revocations().owner}
        except KeysError as error:
            raise BadSwarmFileError(str(error)) from None
        if issuers != {self.owner}:
            raise BadSwarmFileError("it mixes documents of several swarms")

    def __repr__(self) -> str:
        return f"SwarmFile(owner={self.owner}, member={self.read_certificate().member})"

    def read_certificate(self) -> Certificate:
        """Return the member's certificate."""
        return read_certificate(self.certificate)

    def read_revocations(self) -> Revocations:
        """Return the newest list known; the empty one if there is none."""
        return read_revocations(self.revocations) if self.revocations else Revocations(self.owner)

    def to_bytes(self) -> bytes:
        """Return the file's contents."""
        value = {
            "format": _FORMAT,
            "owner": str(self.owner),
            "secret": self.secret.hex(),
            "certificate": base64.b64encode(self.certificate).decode(),
            "revocations": base64.b64encode(self.revocations).decode(),
            "peers": list(self.peers),
        }
        return json.dumps(value, indent=2).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> SwarmFile:
        """Read a file's contents; raises BadSwarmFileError."""
        if len(data) > SWARM_FILE_MAX:
            raise BadSwarmFileError(f"longer than {SWARM_FILE_MAX} bytes")
        try:
            value = json.loads(data.decode(), object_pairs_hook=_unique_keys)
        except BadSwarmFileError:
            raise
        except (ValueError, RecursionError) as error:
            raise BadSwarmFileError(f"not a swarm file: {error!s:.200}") from None
        if not isinstance(value, dict) or value.keys() != _MEMBERS:
            raise BadSwarmFileError("not a swarm file: members are missing or unknown")
        if value["format"] != _FORMAT:
            raise BadSwarmFileError(f"format is not {_FORMAT!r}")
        peers = value["peers"]
        if not isinstance(peers, list) or not all(isinstance(each, str) for each in peers):
            raise BadSwarmFileError("peers are no list of texts")
        try:
            owner = PeerId.parse(_text(value, "owner"))
            secret = bytes.fromhex(_text(value, "secret"))
        except (BadPeerIdError, ValueError) as error:
            raise BadSwarmFileError(f"{error!s:.200}") from None
        return cls(
            owner,
            secret,
            _base64(value, "certificate"),
            _base64(value, "revocations"),
            tuple(peers),
        )


def load_swarm_file(path: str | Path) -> SwarmFile:
    """Read a swarm file that only its owner can read.

    Raises:
        FileError: a leaf that names what is wrong.
    """
    path = Path(path)
    data = read_file(path, limit=SWARM_FILE_MAX, forbidden_mode=0o077, mode_advice="go-rwx")
    try:
        return SwarmFile.from_bytes(data)
    except BadSwarmFileError as error:
        raise BadSwarmFileError(f"{path}: {error}") from None


def save_swarm_file(path: str | Path, swarm: SwarmFile, *, overwrite: bool = True) -> None:
    """Write the file in one step, with mode 0600; raises the FileError leaves."""
    write_file(Path(path), swarm.to_bytes(), overwrite=overwrite)


def _text(value: dict[str, Any], name: str) -> str:
    text = value[name]
    if not isinstance(text, str):
        raise BadSwarmFileError(f"{name} is not text")
    return text


def _base64(value: dict[str, Any], name: str) -> bytes:
    try:
        return base64.b64decode(_text(value, name), validate=True)
    except ValueError as error:
        raise BadSwarmFileError(f"{name}: {error!s:.200}") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise BadSwarmFileError("an object says one thing twice")
    return value
