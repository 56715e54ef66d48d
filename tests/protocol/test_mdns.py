from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.dns_message import DnsMessage, PtrRecord, Question, RecordKind, TxtRecord
from sbp2p_protocol.limits import (
    CANDIDATE_ADDRESSES_MAX,
    MDNS_PACKET_MAX,
    MDNS_PACKETS_PER_S,
    MDNS_PEERS_MAX,
)
from sbp2p_protocol.mdns import (
    SERVICE,
    SERVICES,
    FoundPeer,
    MdnsMachine,
    advertised,
    instance_name,
    service_of,
)
from sbp2p_protocol.multiaddr import Address, parse_address

PEERS = [PrivateKey.from_seed(bytes([number]) * 32).peer_id for number in range(20)]
ONE, TWO = PEERS[:2]
ASK = DnsMessage(False, (Question(SERVICE, RecordKind.PTR),))


def at(host: str, port: int = 4801) -> Address:
    return parse_address(f"/ip{6 if ':' in host else 4}/{host}/tcp/{port}")


ADDRESSES = advertised([at("10.0.0.1"), at("fd00::1")], ONE)


class Node:
    """A machine with its clock and addresses."""

    def __init__(
        self,
        peer_id: PeerId = ONE,
        addresses: tuple[Address, ...] = ADDRESSES,
        service: str = SERVICE,
        seed: int = 1,
    ) -> None:
        rng = random.Random(seed)  # noqa: S311
        self.instance = instance_name(rng)
        self.addresses = addresses
        self.machine = MdnsMachine(
            peer_id,
            service=service,
            instance=self.instance,
            query_s=300.0,
            ttl_s=360.0,
            rng=rng,
            now=0.0,
        )

    def until(self, end: float) -> list[tuple[float, DnsMessage]]:
        """Return what is sent up to a time, and when."""
        sent = []
        while (now := self.machine.next_deadline) <= end:
            sent += [(now, each) for each in self.machine.handle_timer(now, self.addresses)]
        return sent

    def answers_to(self, message: DnsMessage, now: float) -> list[tuple[float, DnsMessage]]:
        self.until(now)
        assert self.machine.receive(message, now) == []
        return [each for each in self.until(now + 2.0) if each[1].is_response]


def test_it_asks_often_at_first_and_then_now_and_then() -> None:
    sent = Node().until(3000.0)
    assert all(message == ASK for _, message in sent)
    times = [round(at) for at, _ in sent]
    assert times[:9] == [0, 1, 3, 7, 15, 31, 63, 127, 255]
    assert {later - earlier for earlier, later in pairwise(times[9:])} == {300}


def test_somebody_who_waits_has_it_asked_again() -> None:
    node = Node()
    node.until(1000.0)
    node.machine.ask_now(1000.0)
    times = [at - 1000.0 for at, _ in node.until(1010.0)]
    assert 0.02 <= times[0] <= 0.12
    assert [round(each) for each in times] == [0, 1, 3, 7]


def test_an_answer_names_the_peer_and_says_where_it_is() -> None:
    node = Node()
    ((when, answer),) = node.answers_to(ASK, 500.0)
    assert 500.02 <= when <= 500.12
    assert re.fullmatch(r"[a-z0-9]{40}", node.instance)
    name = f"{node.instance}.{SERVICE}"
    assert answer.answers == (PtrRecord(SERVICE, name, 360),)
    texts = [b"dnsaddr=" + address.text.encode() for address in ADDRESSES]
    assert answer.additional == (TxtRecord(name, tuple(texts), 360),)
    assert Node(TWO, seed=2).machine.receive(answer, 0.0) == [FoundPeer(ONE, ADDRESSES)]
    assert node.machine.receive(answer, 0.0) == []  # itself


def test_its_own_question_is_answered_too() -> None:
    node = Node()
    ((_, question),) = node.until(0.5)
    assert len(node.answers_to(question, 0.5)) == 1


def test_questions_in_a_row_get_one_answer_a_second() -> None:
    node = Node()
    for number in range(20):
        node.until(number / 10)
        node.machine.receive(ASK, number / 10)
    times = [at for at, message in node.until(10.0) if message.is_response]
    assert len(times) == 1  # the last of two or three: the others were sent on the way
    node = Node()
    sent: list[float] = []
    for number in range(100):
        sent += [at for at, message in node.until(number / 20) if message.is_response]
        node.machine.receive(ASK, number / 20)
    assert len(sent) in (4, 5)
    assert all(later - earlier >= 1.0 for earlier, later in pairwise(sent))


def test_who_knows_the_answer_gets_none() -> None:
    node = Node()
    known = PtrRecord(SERVICE, f"{node.instance}.{SERVICE}", 180)
    assert node.answers_to(DnsMessage(False, ASK.questions, (known,)), 500.0) == []
    fading = PtrRecord(SERVICE, f"{node.instance}.{SERVICE}", 179)
    assert len(node.answers_to(DnsMessage(False, ASK.questions, (fading,)), 600.0)) == 1
    other = PtrRecord(SERVICE, f"other.{SERVICE}", 360)
    assert len(node.answers_to(DnsMessage(False, ASK.questions, (other,)), 700.0)) == 1


def test_names_are_compared_as_dns_does() -> None:
    question = DnsMessage(False, (Question("_P2P._UDP.Local", RecordKind.PTR),))
    assert len(Node().answers_to(question, 500.0)) == 1


@pytest.mark.parametrize(
    "question",
    [
        Question("_ipp._tcp.local", RecordKind.PTR),
        Question(SERVICE, 1),
        Question(f"other.{SERVICE}", RecordKind.TXT),
        Question(service_of("mine"), RecordKind.PTR),
    ],
)
def test_other_questions_are_not_ours(question: Question) -> None:
    assert Node().answers_to(DnsMessage(False, (question,)), 500.0) == []


def test_services_are_listed_and_instances_described() -> None:
    node = Node()
    question = DnsMessage(False, (Question(SERVICES, RecordKind.PTR),))
    ((_, answer),) = node.answers_to(question, 500.0)
    assert answer.answers == (PtrRecord(SERVICES, SERVICE, 360),)
    question = DnsMessage(False, (Question(f"{node.instance}.{SERVICE}", RecordKind.TXT),))
    ((_, answer),) = node.answers_to(question, 600.0)
    assert len(answer.additional) == 1


def test_who_listens_nowhere_says_nothing() -> None:
    node = Node(addresses=())
    assert node.answers_to(ASK, 500.0) == []
    assert node.answers_to(DnsMessage(False, (Question(SERVICES, 12),)), 600.0) == []


def test_private_networks_do_not_see_each_other() -> None:
    mine, theirs = service_of("mine"), service_of("theirs")
    assert re.fullmatch(r"_p2p-[0-9a-f]{32}\._udp\.local", mine)
    assert len({mine, theirs, service_of("")}) == 3
    node = Node(service=mine)
    assert node.answers_to(ASK, 500.0) == []
    ((_, answer),) = node.answers_to(DnsMessage(False, (Question(mine, 12),)), 600.0)
    assert Node(TWO, service=mine).machine.receive(answer, 0.0) != []
    assert Node(TWO, service=theirs).machine.receive(answer, 0.0) == []
    assert Node(TWO).machine.receive(answer, 0.0) == []


def test_many_addresses_go_into_several_packets_each_complete() -> None:
    addresses = advertised([at(f"10.0.{number}.1") for number in range(60)], ONE)
    answers = [message for _, message in Node(addresses=addresses).answers_to(ASK, 500.0)]
    assert 3 <= len(answers) <= 6
    other = Node(TWO).machine
    found: set[Address] = set()
    for answer in answers:
        assert len(answer.encode()) <= MDNS_PACKET_MAX
        (peer,) = other.receive(answer, 0.0)
        assert peer.peer_id == ONE
        found.update(peer.addresses)
    assert len(found) >= 60 - len(answers) * max(0, 20 - CANDIDATE_ADDRESSES_MAX)


def test_only_addresses_of_use_to_others_are_told() -> None:
    listening = [at("127.0.0.1"), at("::1"), at("10.0.0.1"), at("169.254.7.7"), at("2a00::5")]
    told = [each.host for each in advertised(listening, ONE)]
    assert told == ["10.0.0.1", "2a00::5"]
    assert advertised([at("127.0.0.1"), parse_address("/memory/5")], ONE) == ()


def txt(*texts: str, ttl_s: int = 360, name: str = f"x.{SERVICE}") -> DnsMessage:
    record = TxtRecord(name, tuple(each.encode() for each in texts), ttl_s)
    return DnsMessage(True, answers=(record,))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "dnsaddr=",
        "dnsaddr=nonsense",
        "dnsaddr=/ip4/10.0.0.1/tcp/1",
        f"dnsaddr=/ip4/127.0.0.1/tcp/1/p2p/{TWO}",
        f"dnsaddr=/ip4/10.0.0.1/tcp/1/p2p/{ONE}",
        f"dnsaddr=/ip4/10.0.0.1/tcp/1/p2p/{TWO}/p2p-circuit/p2p/{PEERS[3]}",
        f"dnsaddr=/ip4/10.0.0.1/udp/1/quic-v1/p2p/{TWO}",
        f"dnsaddr=/dns4/example.org/tcp/1/p2p/{TWO}",
        f"address=/ip4/10.0.0.1/tcp/1/p2p/{TWO}",
        "dnsaddr=" + "a" * 300,
    ],
)
def test_what_is_of_no_use_is_passed_over(text: str) -> None:
    good = f"dnsaddr=/ip4/10.0.0.2/tcp/2/p2p/{TWO}"
    (found,) = Node().machine.receive(txt(text, good), 0.0)
    assert [each.host for each in found.addresses] == ["10.0.0.2"]


def test_what_is_taken_back_or_not_about_the_service_is_not_found() -> None:
    good = f"dnsaddr=/ip4/10.0.0.2/tcp/2/p2p/{TWO}"
    assert Node().machine.receive(txt(good, ttl_s=0), 0.0) == []
    assert Node().machine.receive(txt(good, name="x._ipp._tcp.local"), 0.0) == []


def test_one_packet_names_few_peers() -> None:
    texts = [f"dnsaddr=/ip4/10.0.0.2/tcp/{n}/p2p/{peer}" for peer in PEERS[1:] for n in (1, 2)]
    assert len(Node().machine.receive(txt(*texts), 0.0)) == MDNS_PEERS_MAX
    texts = [f"dnsaddr=/ip4/10.0.0.2/tcp/{n}/p2p/{TWO}" for n in range(1, 100)]
    (found,) = Node().machine.receive(txt(*texts), 0.0)
    assert len(found.addresses) == CANDIDATE_ADDRESSES_MAX


def test_floods_and_other_traffic_are_not_read() -> None:
    machine = Node().machine
    asked = ASK.encode()
    assert not machine.admit(b"about printers", 0.0)
    assert sum(machine.admit(asked, 0.0) for _ in range(1000)) == MDNS_PACKETS_PER_S
    assert sum(machine.admit(asked, 0.1) for _ in range(1000)) == MDNS_PACKETS_PER_S // 10


def test_goodbye_takes_back_what_was_said() -> None:
    node = Node()
    assert node.machine.goodbye() == []
    node.answers_to(ASK, 500.0)
    (goodbye,) = node.machine.goodbye()
    assert goodbye.answers == (PtrRecord(SERVICE, f"{node.instance}.{SERVICE}", 0),)
