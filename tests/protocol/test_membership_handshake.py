from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import MembershipProblem
from sbp2p_keys.limits import REVOCATIONS_MAX
from sbp2p_keys.membership import Revocations
from sbp2p_protocol.errors import CloseCode, RemoteProtocolError
from sbp2p_protocol.framing import encode_length_prefixed
from sbp2p_protocol.membership import (
    Credentials,
    MembershipHandshake,
    MembershipRefusedError,
    RevocationList,
    RevocationsReader,
)
from tests.runtime.membership_samples import NOW, OWNER, delegate, invite, key, revoking

if TYPE_CHECKING:
    from sbp2p_keys.identity import PrivateKey
    from sbp2p_keys.swarm_file import SwarmFile

A, B, C = key(1), key(2), key(3)


def side(
    mine: SwarmFile, peer: PrivateKey, *, initiator: bool, lent: bytes = b""
) -> MembershipHandshake:
    known = RevocationList(Revocations(mine.owner)).newer(mine.revocations)
    return MembershipHandshake(
        initiator=initiator,
        peer=peer.peer_id,
        credentials=Credentials(mine.certificate, lent),
        revocations=known,
    )


@dataclass
class Pair:
    """A dials B."""

    a: MembershipHandshake
    b: MembershipHandshake
    said: dict[str, int] = field(default_factory=lambda: {"a": 0, "b": 0})

    def run(self, step: int = 10_000) -> None:
        """Move bytes until nothing is left."""
        while True:
            moved = False
            for name, source, target in (("a", self.a, self.b), ("b", self.b, self.a)):
                data = source.data_to_send()
                self.said[name] += len(data)
                for at in range(0, len(data), step):
                    moved = True
                    target.receive_data(data[at : at + step], NOW)
            if not moved:
                return


def pair(a: SwarmFile, b: SwarmFile) -> Pair:
    return Pair(side(a, B, initiator=True), side(b, A, initiator=False))


@given(st.integers(1, 300))
def test_two_members(step: int) -> None:
    both = pair(invite(A), invite(B))
    both.run(step)
    assert both.a.done
    assert both.b.done
    assert both.a.shown is not None
    assert both.a.shown.certificate.member == B.peer_id


def problem_of(both: Pair) -> MembershipProblem:
    with pytest.raises(MembershipRefusedError) as caught:
        both.run()
    assert caught.value.close_code is CloseCode.NORMAL, "nobody is to blame"
    assert not (both.a.done and both.b.done)
    return caught.value.problem


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (invite(A, expires=NOW), MembershipProblem.EXPIRED),
        (invite(A, begins=NOW + 1), MembershipProblem.NOT_YET),
        (invite(A, owner=C), MembershipProblem.OTHER_SWARM),
        (invite(C), MembershipProblem.OTHER_MEMBER),
    ],
    ids=lambda value: value.value if isinstance(value, MembershipProblem) else "",
)
def test_the_listening_side_says_nothing_to_a_stranger(
    file: SwarmFile, problem: MembershipProblem
) -> None:
    both = pair(file, invite(B))
    assert problem_of(both) is problem
    assert both.said["b"] == 0
    assert both.b.data_to_send() == b""


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (invite(B, expires=NOW), MembershipProblem.EXPIRED),
        (invite(B, begins=NOW + 1), MembershipProblem.NOT_YET),
        (invite(C), MembershipProblem.OTHER_MEMBER),
    ],
    ids=lambda value: value.value if isinstance(value, MembershipProblem) else "",
)
def test_the_dialling_side_checks_too(file: SwarmFile, problem: MembershipProblem) -> None:
    assert problem_of(pair(invite(A), file)) is problem


def test_revoked_whoever_knows_it() -> None:
    listed = revoking(A)
    assert problem_of(pair(invite(A), invite(B, revocations=listed))) is MembershipProblem.REVOKED
    # the one that is out knows it itself: the other side learns of it in the handshake
    assert problem_of(pair(invite(A, revocations=listed), invite(B))) is MembershipProblem.REVOKED
    listed = revoking(B)
    assert problem_of(pair(invite(A), invite(B, revocations=listed))) is MembershipProblem.REVOKED
    assert problem_of(pair(invite(A, revocations=listed), invite(B))) is MembershipProblem.REVOKED


def test_both_go_by_the_newer_list() -> None:
    old, new = revoking(C, number=3), revoking(key(7), number=8)
    for one, other in ((old, new), (new, old), (new, None), (None, new)):
        both = pair(invite(A, revocations=one), invite(B, revocations=other))
        both.run()
        assert both.a.revocations.value == both.b.revocations.value == new


def test_a_lent_membership() -> None:
    a = MembershipHandshake(
        initiator=True,
        peer=B.peer_id,
        credentials=Credentials(invite(A).certificate, delegate(A, C)),
        revocations=RevocationList(Revocations(OWNER.peer_id)),
    )
    both = Pair(a, side(invite(B), C, initiator=False))
    both.run()
    assert both.b.done
    late = side(invite(A), B, initiator=True, lent=delegate(A, C, expires=NOW))
    assert problem_of(Pair(late, side(invite(B), C, initiator=False))) is MembershipProblem.EXPIRED


def test_lists_of_others_and_old_ones() -> None:
    known = RevocationList(Revocations(OWNER.peer_id))
    first = known.newer(revoking(A, number=4).sign(OWNER))
    assert first.value.number == 5
    assert first.newer(revoking(B, number=2).sign(OWNER)) is first
    assert first.newer(b"") is first
    assert first.newer(first.document) is first
    foreign = Revocations(C.peer_id, 99).sign(C)
    for bad in (foreign, b"x", first.document[:-1]):
        with pytest.raises(RemoteProtocolError):
            first.newer(bad)


@given(st.binary(max_size=300), st.booleans())
def test_garbage_breaks_the_handshake_and_nothing_else(data: bytes, initiator: bool) -> None:
    machine = side(invite(A), B, initiator=initiator)
    try:
        machine.receive_data(data, NOW)
        machine.receive_data(encode_length_prefixed(data), NOW)
    except RemoteProtocolError:
        pass
    assert not machine.done
    assert machine.shown is None


def test_a_list_to_read() -> None:
    document = revoking(A).sign(OWNER)
    reader = RevocationsReader()
    assert reader.receive_data(encode_length_prefixed(document)[:10]) is None
    assert reader.receive_data(encode_length_prefixed(document)[10:]) == document
    with pytest.raises(RemoteProtocolError, match="behind"):
        RevocationsReader().receive_data(encode_length_prefixed(document) + b"x")
    with pytest.raises(RemoteProtocolError):
        RevocationsReader().receive_data(b"\xff\xff\xff\x7f")
    assert len(document) < REVOCATIONS_MAX
