"""Targets of private swarms: certificates, revocation lists, swarm files."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sbp2p_keys.errors import KeysError, NotAMemberError
from sbp2p_keys.identity import PeerId
from sbp2p_keys.membership import (
    CERTIFICATE_DOMAIN,
    DELEGATE_DOMAIN,
    Revocations,
    check_member,
    read_certificate,
    read_revocations,
)
from sbp2p_keys.swarm_file import SwarmFile
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.membership import (
    Credentials,
    MembershipHandshake,
    RevocationList,
    RevocationsReader,
)

from .corpus import KEYS, field_bytes, hex_bytes, texts, vectors
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import json_text, protobuf

if TYPE_CHECKING:
    from collections.abc import Sequence

_NOW: Final = 1_800_000_100.0
"""When the certificates of the vectors hold."""


def _certificate(data: bytes) -> None:
    found = attempt(KeysError, read_certificate, data)
    delegate = attempt(KeysError, read_certificate, data, DELEGATE_DOMAIN)
    expect(isinstance(found, Refused) or isinstance(delegate, Refused), "two kinds of certificate")
    if isinstance(found, Refused):
        return
    for key in KEYS:
        if key.peer_id == found.issuer:
            expect_equal(found.sign(key, CERTIFICATE_DOMAIN), data, "signed again")
        attempt(
            NotAMemberError,
            check_member,
            key.peer_id,
            found,
            None,
            Revocations(found.issuer),
            float(found.not_before),
        )


def _revocations(data: bytes) -> None:
    found = attempt(KeysError, read_revocations, data)
    if isinstance(found, Refused):
        return
    for key in KEYS:
        if key.peer_id == found.owner:
            expect_equal(found.sign(key), data, "signed again")


def _swarm_file(data: bytes) -> None:
    found = attempt(KeysError, SwarmFile.from_bytes, data)
    if not isinstance(found, Refused):
        expect_equal(SwarmFile.from_bytes(found.to_bytes()), found, "read again")
        expect(found.secret.hex() not in repr(found), "the secret is shown")


def _handshake(data: bytes, *, initiator: bool) -> None:
    found = vectors("keys", "membership")
    certificate = bytes.fromhex(found["certificates"]["member"]["document"])
    peer = PeerId.parse(found["certificates"]["only_sends"]["member"])

    def run(pieces: Sequence[bytes]) -> object:
        machine = MembershipHandshake(
            initiator=initiator,
            peer=peer,
            credentials=Credentials(certificate),
            revocations=RevocationList(Revocations(read_certificate(certificate).issuer)),
        )
        try:
            for piece in pieces:
                machine.receive_data(piece, _NOW)
        except RemoteProtocolError:
            return None  # how much was said before depends on the cuts
        return machine.state, machine.revocations, machine.data_to_send()

    first = run([data])
    for at in (1, len(data) // 2, len(data) - 1):
        if 0 < at < len(data):
            expect_equal(run([data[:at], data[at:]]), first, "cut somewhere")


def _handshake_seeds() -> list[bytes]:
    found = vectors("keys", "membership")
    shown = bytes.fromhex(found["certificates"]["only_sends"]["document"])
    lent = bytes.fromhex(found["certificates"]["delegate"]["document"])
    listed = bytes.fromhex(found["revocations"]["empty"]["document"])
    lp = encode_length_prefixed
    return [
        lp(lp(shown) + lp(b"")) + lp(listed),
        lp(lp(shown) + lp(b"")) + lp(b""),
        lp(lp(shown) + lp(lent)) + lp(listed),
        lp(lp(shown) + lp(b"")),
    ]


def _list(data: bytes) -> None:
    reader = RevocationsReader()
    document = attempt(RemoteProtocolError, reader.receive_data, data)
    if isinstance(document, bytes):
        expect_equal(encode_length_prefixed(document), data, "sent again")


def _certificate_seeds() -> list[bytes]:
    found = vectors("keys", "membership")
    return [
        *field_bytes(found["certificates"], "document"),
        *hex_bytes(found["bad_certificates"]),
    ]


def _revocations_seeds() -> list[bytes]:
    found = vectors("keys", "membership")
    return [*field_bytes(found["revocations"], "document"), *hex_bytes(found["bad_revocations"])]


def _swarm_file_seeds() -> list[bytes]:
    found = vectors("keys", "membership")
    return [found["swarm_file"].encode(), *texts(found["bad_swarm_files"])]


TARGETS: Final = (
    Target(
        name="membership_listening",
        modules=("sbp2p_protocol.membership",),
        check=partial(_handshake, initiator=False),
        seeds=_handshake_seeds,
        max_size=4096,
        test_runs=100,
    ),
    Target(
        name="membership_dialling",
        modules=("sbp2p_protocol.membership",),
        check=partial(_handshake, initiator=True),
        seeds=_handshake_seeds,
        max_size=4096,
        test_runs=100,
    ),
    Target(
        name="membership_list",
        modules=("sbp2p_protocol.membership",),
        check=_list,
        seeds=lambda: [encode_length_prefixed(each) for each in _revocations_seeds()],
        max_size=4096,
        test_runs=100,
    ),
    Target(
        name="membership_certificate",
        modules=("sbp2p_keys.membership",),
        check=_certificate,
        seeds=_certificate_seeds,
        mutations=(protobuf,),
        max_size=2100,
        test_runs=150,
    ),
    Target(
        name="membership_revocations",
        modules=("sbp2p_keys.membership",),
        check=_revocations,
        seeds=_revocations_seeds,
        mutations=(protobuf,),
        max_size=8192,
        test_runs=150,
    ),
    Target(
        name="swarm_file",
        modules=("sbp2p_keys.swarm_file",),
        check=_swarm_file,
        seeds=_swarm_file_seeds,
        mutations=(json_text,),
        tokens=(b'"peers"', b'"secret"', b"=", b"[" * 2000),
        max_size=8192,
        test_runs=150,
    ),
)
