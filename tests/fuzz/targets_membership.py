"""Targets of private swarms: certificates, revocation lists, swarm files."""

from __future__ import annotations

from typing import Final

from sbp2p_keys.errors import KeysError, NotAMemberError
from sbp2p_keys.membership import (
    CERTIFICATE_DOMAIN,
    DELEGATE_DOMAIN,
    Revocations,
    check_member,
    read_certificate,
    read_revocations,
)
from sbp2p_keys.swarm_file import SwarmFile

from .corpus import KEYS, field_bytes, hex_bytes, texts, vectors
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import json_text, protobuf


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
