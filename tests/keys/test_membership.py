from __future__ import annotations

import stat
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import (
    BadMembershipError,
    BadSwarmFileError,
    FileError,
    FilePermissionsError,
    KeysError,
    MembershipProblem,
    NotAMemberError,
)
from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.limits import CERTIFICATE_MAX, REVOCATIONS_MAX, REVOKED_MEMBERS_MAX
from sbp2p_keys.membership import (
    CERTIFICATE_DOMAIN,
    DELEGATE_DOMAIN,
    EVERYTHING,
    Capability,
    Certificate,
    Revocations,
    check_member,
    network_id,
    read_certificate,
    read_revocations,
)
from sbp2p_keys.swarm_file import SwarmFile, load_swarm_file, save_swarm_file
from tests.keys.own_vectors import load_own_vectors

if TYPE_CHECKING:
    from pathlib import Path

VECTORS = load_own_vectors("membership")
OWNER, MEMBER, OTHER, DELEGATE = (PrivateKey.from_seed(bytes([n]) * 32) for n in range(1, 5))
NOW = 1_800_000_000
CERTIFICATE = Certificate(OWNER.peer_id, MEMBER.peer_id, NOW, NOW + 1000, 5)

numbers = st.integers(0, 2**53 - 1)
keys = st.binary(min_size=32, max_size=32).map(PrivateKey.from_seed)


def certificate_of(case: dict[str, Any]) -> Certificate:
    return Certificate(
        PeerId.parse(case["issuer"]),
        PeerId.parse(case["member"]),
        case["not_before"],
        case["expires"],
        case["serial"],
        Capability(case["capabilities"]),
    )


# -- vectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", VECTORS["certificates"])
def test_certificate_vectors(name: str) -> None:
    case = VECTORS["certificates"][name]
    certificate = certificate_of(case)
    key = PrivateKey.from_seed(bytes.fromhex(case["seed"]))
    assert certificate.sign(key, case["domain"]).hex() == case["document"]
    assert read_certificate(bytes.fromhex(case["document"]), case["domain"]) == certificate
    assert case["payload"] in case["document"]


@pytest.mark.parametrize("name", VECTORS["bad_certificates"])
def test_bad_certificate_vectors(name: str) -> None:
    with pytest.raises(KeysError):
        read_certificate(bytes.fromhex(VECTORS["bad_certificates"][name]))


@pytest.mark.parametrize("name", VECTORS["revocations"])
def test_revocation_vectors(name: str) -> None:
    case = VECTORS["revocations"][name]
    members = {PeerId.parse(text): serial for text, serial in case["members"].items()}
    revocations = Revocations(PeerId.parse(case["owner"]), case["number"], members)
    assert revocations.sign(OWNER).hex() == case["document"]
    assert read_revocations(bytes.fromhex(case["document"])) == revocations
    assert case["payload"] in case["document"]


@pytest.mark.parametrize("name", VECTORS["bad_revocations"])
def test_bad_revocation_vectors(name: str) -> None:
    with pytest.raises(KeysError):
        read_revocations(bytes.fromhex(VECTORS["bad_revocations"][name]))


@pytest.mark.parametrize("case", VECTORS["checks"], ids=lambda case: case["problem"] or "member")
def test_check_vectors(case: dict[str, Any]) -> None:
    def check() -> None:
        delegate = certificate_of(VECTORS["certificates"]["delegate"])
        revocations = Revocations(OWNER.peer_id)
        if case["revocations"] != "none":
            document = VECTORS["revocations"][case["revocations"]]["document"]
            revocations = read_revocations(bytes.fromhex(document))
        check_member(
            PeerId.parse(case["peer"]),
            certificate_of(VECTORS["certificates"][case["certificate"]]),
            delegate if case["delegate"] else None,
            revocations,
            case["now"],
        )

    if case["problem"] is None:
        check()
    else:
        with pytest.raises(NotAMemberError) as caught:
            check()
        assert caught.value.problem.value == case["problem"]


def test_network_id_vectors() -> None:
    for owner, network in VECTORS["network_ids"].items():
        assert network_id(PeerId.parse(owner)) == network


def test_swarm_file_vectors() -> None:
    text = VECTORS["swarm_file"]
    swarm = SwarmFile.from_bytes(text.encode())
    assert swarm.to_bytes().decode() == text
    assert swarm.read_certificate().member == MEMBER.peer_id
    assert swarm.secret.hex() not in repr(swarm)
    for bad in VECTORS["bad_swarm_files"]:
        with pytest.raises(BadSwarmFileError):
            SwarmFile.from_bytes(bad.encode())


# -- properties ------------------------------------------------------------------------------------


@given(keys, keys, numbers, numbers, st.integers(1, 2**53 - 1), st.integers(0, 2**32 - 1))
def test_certificates_come_back(
    issuer: PrivateKey, member: PrivateKey, one: int, other: int, serial: int, bits: int
) -> None:
    begin, end = min(one, other), max(one, other)
    if begin == end:
        return
    made = Certificate(issuer.peer_id, member.peer_id, begin, end, serial, Capability(bits))
    document = made.sign(issuer)
    assert read_certificate(document) == made
    assert len(document) <= CERTIFICATE_MAX
    with pytest.raises(KeysError):
        read_certificate(document, DELEGATE_DOMAIN)
    with pytest.raises(ValueError, match="would have to sign"):
        made.sign(member if member != issuer else OTHER)


@given(numbers, st.dictionaries(keys.map(lambda key: key.peer_id), st.integers(1, 2**53 - 1)))
def test_lists_come_back(number: int, members: dict[PeerId, int]) -> None:
    made = Revocations(OWNER.peer_id, number, members)
    assert read_revocations(made.sign(OWNER)) == made


@given(st.binary(max_size=400), st.integers(0, 600), st.integers(0, 255))
def test_garbage_is_refused(data: bytes, at: int, byte: int) -> None:
    document = CERTIFICATE.sign(OWNER)
    changed = document[: at % len(document)] + bytes([byte]) + document[at % len(document) + 1 :]
    for garbage in (data, changed, document + data):
        if garbage == document:
            continue
        with pytest.raises(KeysError):
            read_certificate(garbage)
        with pytest.raises(KeysError):
            read_revocations(garbage)


# -- rules -----------------------------------------------------------------------------------------


def problem(
    peer: PrivateKey,
    certificate: Certificate,
    delegate: Certificate | None = None,
    revocations: Revocations | None = None,
    now: float = NOW,
) -> MembershipProblem | None:
    revocations = revocations or Revocations(OWNER.peer_id)
    try:
        check_member(peer.peer_id, certificate, delegate, revocations, now)
    except NotAMemberError as error:
        return error.problem
    return None


def test_who_is_a_member() -> None:
    assert problem(MEMBER, CERTIFICATE) is None
    assert problem(MEMBER, CERTIFICATE, now=NOW - 0.5) is MembershipProblem.NOT_YET
    assert problem(MEMBER, CERTIFICATE, now=NOW + 999.9) is None
    assert problem(MEMBER, CERTIFICATE, now=NOW + 1000) is MembershipProblem.EXPIRED
    assert problem(OTHER, CERTIFICATE) is MembershipProblem.OTHER_MEMBER
    elsewhere = replace(CERTIFICATE, issuer=OTHER.peer_id)
    assert problem(MEMBER, elsewhere) is MembershipProblem.OTHER_SWARM


def test_revoked_up_to_a_serial() -> None:
    first = Revocations(OWNER.peer_id)
    revoked = first.revoke(MEMBER.peer_id, 5)
    assert (first.number, revoked.number) == (0, 1)
    assert problem(MEMBER, CERTIFICATE, revocations=revoked) is MembershipProblem.REVOKED
    again = replace(CERTIFICATE, serial=6)
    assert problem(MEMBER, again, revocations=revoked) is None
    assert revoked.revoke(MEMBER.peer_id, 2).members == {MEMBER.peer_id: 5}, "never taken back"
    assert problem(OTHER, replace(CERTIFICATE, member=OTHER.peer_id), revocations=revoked) is None


def test_delegates() -> None:
    delegate = Certificate(MEMBER.peer_id, DELEGATE.peer_id, NOW, NOW + 10, 1)
    assert problem(DELEGATE, CERTIFICATE, delegate) is None
    assert problem(MEMBER, CERTIFICATE, delegate) is MembershipProblem.OTHER_MEMBER
    assert problem(DELEGATE, CERTIFICATE) is MembershipProblem.OTHER_MEMBER
    assert problem(DELEGATE, CERTIFICATE, delegate, now=NOW + 10) is MembershipProblem.EXPIRED
    foreign = replace(delegate, issuer=OTHER.peer_id)
    assert problem(DELEGATE, CERTIFICATE, foreign) is MembershipProblem.OTHER_MEMBER
    revoked = Revocations(OWNER.peer_id).revoke(MEMBER.peer_id, 5)
    assert problem(DELEGATE, CERTIFICATE, delegate, revoked) is MembershipProblem.REVOKED
    assert read_certificate(delegate.sign(MEMBER, DELEGATE_DOMAIN), DELEGATE_DOMAIN) == delegate


def test_what_cannot_be_made() -> None:
    for change in (
        {"serial": 0},
        {"expires": NOW},
        {"not_before": -1},
        {"expires": 2**53},
        {"capabilities": 2**32},
    ):
        with pytest.raises(BadMembershipError):
            replace(CERTIFICATE, **change)  # type: ignore[arg-type]
    with pytest.raises(BadMembershipError):
        Revocations(OWNER.peer_id, 1, {MEMBER.peer_id: 0})


def test_bounds() -> None:
    with pytest.raises(BadMembershipError, match="longer"):
        read_certificate(bytes(CERTIFICATE_MAX + 1))
    with pytest.raises(BadMembershipError, match="longer"):
        read_revocations(bytes(REVOCATIONS_MAX + 1))
    ids = [PeerId(b"\x12\x20" + number.to_bytes(32, "big")) for number in range(1, 10_002)]
    most = Revocations(OWNER.peer_id, 2**53 - 2, dict.fromkeys(ids[:-1], 2**53 - 1))
    assert len(most.members) == REVOKED_MEMBERS_MAX
    assert read_revocations(most.sign(OWNER)) == most
    with pytest.raises(BadMembershipError, match="more than"):
        most.revoke(ids[-1], 1)


def test_networks_differ() -> None:
    networks = {network_id(key.peer_id) for key in (OWNER, MEMBER, OTHER)}
    assert len(networks) == 3
    assert all(network.startswith("/sbp2p-") for network in networks)


# -- files -----------------------------------------------------------------------------------------


def test_swarm_file_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "mine.swarm"
    made = SwarmFile(OWNER.peer_id, bytes(32), CERTIFICATE.sign(OWNER))
    save_swarm_file(path, made)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_swarm_file(path) == made
    assert made.read_revocations() == Revocations(OWNER.peer_id)
    with pytest.raises(FileError):
        save_swarm_file(path, made, overwrite=False)
    path.chmod(0o640)
    with pytest.raises(FilePermissionsError):
        load_swarm_file(path)
    path.chmod(0o600)
    path.write_bytes(b"{}")
    with pytest.raises(BadSwarmFileError, match=r"mine\.swarm"):
        load_swarm_file(path)


def test_everything_is_both() -> None:
    assert EVERYTHING == Capability.RECEIVE | Capability.SEND
    assert len({CERTIFICATE_DOMAIN, DELEGATE_DOMAIN}) == 2
