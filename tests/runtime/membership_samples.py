"""Members of one private swarm, for tests."""

from __future__ import annotations

from sbp2p_keys.identity import PrivateKey
from sbp2p_keys.membership import (
    DELEGATE_DOMAIN,
    EVERYTHING,
    Capability,
    Certificate,
    Revocations,
)
from sbp2p_keys.swarm_file import SwarmFile

OWNER = PrivateKey.from_seed(b"o" * 32)
NOW = 1_800_000_000
SECRET = b"s" * 32


def key(number: int) -> PrivateKey:
    return PrivateKey.from_seed(bytes([100 + number]) * 32)


def invite(
    member: PrivateKey,
    *,
    owner: PrivateKey = OWNER,
    begins: int = NOW - 100,
    expires: int = NOW + 100_000,
    serial: int = 1,
    capabilities: Capability = EVERYTHING,
    revocations: Revocations | None = None,
    secret: bytes = SECRET,
) -> SwarmFile:
    """Return what an owner gives to a member."""
    certificate = Certificate(
        owner.peer_id, member.peer_id, begins, expires, serial, capabilities
    ).sign(owner)
    listed = revocations.sign(owner) if revocations is not None else b""
    return SwarmFile(owner.peer_id, secret, certificate, listed)


def delegate(member: PrivateKey, to: PrivateKey, expires: int = NOW + 1000) -> bytes:
    """Return the document by which a member lends its membership."""
    made = Certificate(member.peer_id, to.peer_id, NOW - 1, expires, 1)
    return made.sign(member, DELEGATE_DOMAIN)


def revoking(*members: PrivateKey, serial: int = 1, number: int = 0) -> Revocations:
    """Return a list that revokes these members, with a number of its own."""
    found = Revocations(OWNER.peer_id, number)
    for member in members:
        found = found.revoke(member.peer_id, serial)
    return found
