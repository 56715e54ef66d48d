from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.autonat import DialBackPolicy, DialRequest, DialResponse, DialStatus
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_MESSAGE_MAX,
    DIAL_BACK_ADDRESSES_MAX,
    OBSERVER_GROUPS_MAX,
)
from sbp2p_protocol.multiaddr import Address, parse_address
from sbp2p_protocol.reachability import Reachability, ReachabilityMachine

if TYPE_CHECKING:
    from collections.abc import Sequence

PEERS = [PrivateKey.from_seed(bytes([number]) * 32).peer_id for number in range(12)]
ONE, TWO = PEERS[:2]


def at(host: str, port: int = 4801) -> Address:
    return parse_address(f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}")


def unframed(frame: bytes) -> bytes:
    reader = LengthPrefixedReader(AUTONAT_MESSAGE_MAX)
    reader.feed(frame)
    data = reader.next()
    assert data is not None
    return bytes(data)


# -- the messages ----------------------------------------------------------------------------------


def test_a_request_has_the_bytes_of_the_specification() -> None:
    request = DialRequest(ONE, (at("1.2.3.4"),))
    info = b"\x0a\x26" + ONE.to_bytes() + b"\x12\x08" + bytes([4, 1, 2, 3, 4, 6, 0x12, 0xC1])
    dial = b"\x0a" + bytes([len(info)]) + info
    assert unframed(request.encode()) == b"\x08\x00\x12" + bytes([len(dial)]) + dial
    assert DialRequest.decode(unframed(request.encode())) == request


def test_an_answer_has_the_bytes_of_the_specification() -> None:
    answer = DialResponse(DialStatus.OK, "", at("1.2.3.4"))
    body = b"\x08\x00\x1a\x08" + bytes([4, 1, 2, 3, 4, 6, 0x12, 0xC1])
    assert unframed(answer.encode()) == b"\x08\x01\x1a" + bytes([len(body)]) + body
    refusal = DialResponse(DialStatus.DIAL_REFUSED, "no")
    for each in (answer, refusal):
        assert DialResponse.decode(unframed(each.encode())) == each


def test_what_is_too_much_is_left_out() -> None:
    request = DialRequest(ONE, tuple(at("1.2.3.4", port) for port in range(1, 100)))
    read = DialRequest.decode(unframed(request.encode()))
    assert read.addresses == request.addresses[:AUTONAT_ADDRESSES_MAX]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"\x08\x00",
        b"\x08\x01",
        b"\x08\x00\x12\x00",
        b"\x08\x00\x12\x04\x0a\x02\x0a\x00",
        b"\x08\x05\x12\x00",
        b"\x08\x01\x1a\x02\x08\x07",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    for kind in (DialRequest, DialResponse):
        with pytest.raises(RemoteProtocolError):
            kind.decode(data)


@given(st.binary(max_size=200))
def test_garbage_raises_only_what_it_may(data: bytes) -> None:
    for kind in (DialRequest, DialResponse):
        try:
            kind.decode(data)
        except RemoteProtocolError:
            continue


# -- whom to dial back -----------------------------------------------------------------------------


def policy(*, private: bool = False) -> DialBackPolicy:
    return DialBackPolicy(requests_max=3, total_max=30, allow_private=private)


def judge(
    server: DialBackPolicy,
    addresses: Sequence[Address],
    *,
    remote: Address | None = None,
    peer_id: PeerId = ONE,
    claims: PeerId | None = None,
    now: float = 0.0,
) -> list[Address] | DialStatus:
    request = DialRequest(claims or peer_id, tuple(addresses))
    verdict = server.judge(request, peer_id, remote or at("1.2.3.4", 50000), now)
    return verdict.status if isinstance(verdict, DialResponse) else list(verdict)


def test_only_the_host_that_asks_is_dialled() -> None:
    addresses = [at("8.8.8.8"), at("1.2.3.4"), at("1.2.3.4").with_peer(ONE), at("10.0.0.1")]
    addresses += [at("::ffff:1.2.3.4", 5), parse_address("/dns4/example.org/tcp/1")]
    addresses += [parse_address("/ip4/1.2.3.4/udp/4001/quic-v1"), at("1.2.3.4", 0)]
    assert judge(policy(), addresses) == [at("1.2.3.4"), at("::ffff:1.2.3.4", 5)]
    assert judge(policy(), [at("8.8.8.8")]) is DialStatus.DIAL_REFUSED
    assert judge(policy(), []) is DialStatus.DIAL_REFUSED


def test_nobody_asks_for_somebody_else() -> None:
    assert judge(policy(), [at("1.2.3.4")], claims=TWO) is DialStatus.BAD_REQUEST


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "fd00::1", "192.168.1.9"])
def test_private_hosts_are_dialled_only_if_the_owner_says_so(host: str) -> None:
    assert judge(policy(), [at(host)], remote=at(host, 9)) is DialStatus.DIAL_REFUSED
    assert judge(policy(private=True), [at(host)], remote=at(host, 9)) == [at(host)]


def test_hosts_of_one_link_are_never_dialled() -> None:
    link = at("169.254.1.1")
    assert judge(policy(private=True), [link], remote=link) is DialStatus.DIAL_REFUSED


def test_one_request_makes_few_dials() -> None:
    found = judge(policy(), [at("1.2.3.4", port) for port in range(1, 17)])
    assert found == [at("1.2.3.4", port) for port in range(1, 1 + DIAL_BACK_ADDRESSES_MAX)]


def test_requests_are_limited_by_host_and_altogether() -> None:
    server = policy()
    for number in range(3):
        assert judge(server, [at("1.2.3.4")], peer_id=PEERS[number], now=float(number)) != 101
    assert judge(server, [at("1.2.3.4")], peer_id=PEERS[4], now=59.0) is DialStatus.DIAL_REFUSED
    assert judge(server, [at("1.2.3.4")], now=60.0) == [at("1.2.3.4")]
    for number in range(28):
        host = f"9.9.9.{number}"
        assert judge(server, [at(host)], remote=at(host, 1), now=61.0) == [at(host)]
    verdict = judge(server, [at("7.7.7.7")], remote=at("7.7.7.7", 1), now=61.0)
    assert verdict is DialStatus.DIAL_REFUSED


def test_memory_of_requests_is_bounded() -> None:
    server = DialBackPolicy(requests_max=3, total_max=10**6, allow_private=False)
    for number in range(OBSERVER_GROUPS_MAX + 100):
        host = f"9.9.{number // 250}.{number % 250}"
        assert judge(server, [at(host)], remote=at(host, 1)) == [at(host)]
    assert len(server._served) == OBSERVER_GROUPS_MAX


# -- what the answers come to ----------------------------------------------------------------------

OWN = [at("1.2.3.4")]
LAN = [at("10.0.0.5")]


def machine(addresses: Sequence[Address] = OWN) -> ReachabilityMachine:
    result = ReachabilityMachine(
        answers_min=4,
        ask_s=15.0,
        recheck_s=900.0,
        again_s=600.0,
        valid_s=7200.0,
        rng=random.Random(5),  # noqa: S311
    )
    result.addresses_changed(addresses, 0.0)
    return result


def state(asker: ReachabilityMachine) -> Reachability:
    """As a call, or mypy would think that nothing can have changed since it was looked at."""
    return asker.state


def answer(asker: ReachabilityMachine, number: int, reached: bool, now: float = 0.0) -> None:
    asker.answered(PEERS[number], at(f"9.9.9.{number}", 5), reached=reached, now=now)


def test_four_hosts_decide() -> None:
    asker = machine()
    for number in range(3):
        answer(asker, number, reached=True)
        answer(asker, number, reached=True)
    assert state(asker) is Reachability.UNKNOWN
    answer(asker, 3, reached=True)
    assert state(asker) is Reachability.REACHABLE
    assert asker.counts == (4, 0)
    for number in range(4):
        answer(asker, number, reached=False)
    assert state(asker) is Reachability.UNREACHABLE


def test_peers_of_one_host_are_one_answer() -> None:
    asker = machine()
    for peer in PEERS:
        asker.answered(peer, at("9.9.9.9"), reached=True, now=0.0)
    assert state(asker) is Reachability.UNKNOWN


def test_when_they_differ_nothing_changes() -> None:
    asker = machine()
    for number in range(8):
        answer(asker, number, reached=number % 2 == 0)
    assert state(asker) is Reachability.UNKNOWN
    for number in range(8):
        answer(asker, number, reached=True)
    for number in range(3):
        answer(asker, number, reached=False)
    assert state(asker) is Reachability.REACHABLE


def test_answers_grow_old() -> None:
    asker = machine()
    for number in range(4):
        answer(asker, number, reached=True)
    asker.choose([], 7199.0)
    assert state(asker) is Reachability.REACHABLE
    asker.choose([], 7200.0)
    assert state(asker) is Reachability.UNKNOWN


def test_other_addresses_are_another_question() -> None:
    asker = machine()
    for number in range(4):
        answer(asker, number, reached=False)
    asker.addresses_changed(OWN, 1.0)
    assert state(asker) is Reachability.UNREACHABLE
    asker.addresses_changed([*OWN, at("1.2.3.5")], 1.0)
    assert state(asker) is Reachability.UNKNOWN
    assert asker.next_ask == 1.0


def test_who_does_not_listen_is_unreachable_and_asks_nobody() -> None:
    asker = machine([])
    assert asker.choose([(ONE, at("9.9.9.9"))], 5.0) is None
    assert state(asker) is Reachability.UNREACHABLE
    assert asker.next_ask == float("inf")
    asker.addresses_changed(OWN, 6.0)
    assert asker.choose([(ONE, at("9.9.9.9"))], 6.0) == ONE


def test_one_arrival_decides_for_its_own_network_only() -> None:
    asker = machine(LAN)
    asker.arrived(ONE, at("10.0.0.6", 5), 0.0)
    assert state(asker) is Reachability.REACHABLE
    asker = machine(OWN)
    asker.arrived(ONE, at("10.0.0.6", 5), 0.0)
    assert state(asker) is Reachability.UNKNOWN
    for number in range(4):
        asker.arrived(PEERS[number], at(f"9.9.9.{number}", 5), 0.0)
    assert state(asker) is Reachability.REACHABLE


def test_questions_are_spread_and_no_host_is_asked_often() -> None:
    asker = machine()
    peers = [(PEERS[number], at(f"9.9.9.{number}", 5)) for number in range(3)]
    asked: list[tuple[float, PeerId]] = []
    now = 0.0
    while now < 590.0:
        if (peer := asker.choose(peers, now)) is not None:
            asked.append((now, peer))
        assert now + 11.0 <= asker.next_ask <= now + 19.0
        now = asker.next_ask
    assert sorted(peer.to_bytes() for _, peer in asked) == sorted(p.to_bytes() for p, _ in peers)
    for number in range(4):
        answer(asker, number, reached=True, now=now)
    later = now + 600.0
    assert asker.choose(peers, later) is not None
    assert asker.next_ask > later + 600.0
    answer(asker, 0, reached=False, now=later + 1)
    assert asker.next_ask == later + 16.0


@given(
    st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=60),
)
def test_nobody_is_called_reachable_on_the_word_of_three(told: list[tuple[int, bool]]) -> None:
    asker = machine()
    for number, reached in told:
        answer(asker, number, reached)
    newest = dict(told)
    yes = sum(newest.values())
    if asker.state is Reachability.REACHABLE:
        assert len(newest) >= 4
    if yes >= 4 and yes > 2 * (len(newest) - yes):
        assert state(asker) is Reachability.REACHABLE
