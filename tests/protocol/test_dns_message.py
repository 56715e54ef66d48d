"""The codec alone, and beside dnspython, which is here because `multiaddr` needs it."""

from __future__ import annotations

import dns.exception
import dns.message
import dns.name
import dns.rdataclass
import dns.rdatatype
import dns.rrset
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.dns_message import DnsMessage, PtrRecord, Question, RecordKind, TxtRecord
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import MDNS_RECEIVED_MAX, MDNS_RECORDS_MAX

NAME = "abc._p2p._udp.local"
SERVICE = "_p2p._udp.local"

names = st.lists(
    st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=63),
    min_size=1,
    max_size=3,
).map(".".join)
strings = st.lists(st.binary(max_size=255), min_size=1, max_size=4).map(tuple)
ttls = st.integers(0, 2**31 - 1)
records = st.one_of(
    st.builds(PtrRecord, names, names, ttls), st.builds(TxtRecord, names, strings, ttls)
)
messages = st.builds(
    DnsMessage,
    st.booleans(),
    st.lists(st.builds(Question, names, st.sampled_from([12, 16, 1, 255])), max_size=3).map(tuple),
    st.lists(records, max_size=4).map(tuple),
    st.lists(records, max_size=4).map(tuple),
)


def test_a_question_has_the_bytes_of_the_standard() -> None:
    message = DnsMessage(False, (Question(SERVICE, RecordKind.PTR),))
    name = b"\x04_p2p\x04_udp\x05local\0"
    assert message.encode() == bytes(5) + b"\x01" + bytes(6) + name + b"\0\x0c\0\x01"


@given(messages)
def test_what_is_written_is_read(message: DnsMessage) -> None:
    data = message.encode()
    if len(data) <= MDNS_RECEIVED_MAX:
        assert DnsMessage.decode(data) == message


@given(messages)
def test_dnspython_reads_what_we_write(message: DnsMessage) -> None:
    read = dns.message.from_wire(message.encode(), one_rr_per_rrset=True)
    assert bool(read.flags & 0x8000) is message.is_response
    assert [each.name.to_text(omit_final_dot=True) for each in read.question] == [
        each.name for each in message.questions
    ]
    for section, ours in ((read.answer, message.answers), (read.additional, message.additional)):
        assert len(section) == len(ours)
        for rrset, record in zip(section, ours, strict=True):
            assert rrset.name.to_text(omit_final_dot=True) == record.name
            assert rrset.ttl == record.ttl_s
            (rdata,) = rrset
            if isinstance(record, PtrRecord):
                assert rdata.target.to_text(omit_final_dot=True) == record.target
            else:
                assert rdata.strings == record.strings


@given(messages)
def test_we_read_what_dnspython_writes_with_its_pointers(message: DnsMessage) -> None:
    out = dns.message.from_wire(message.encode(), one_rr_per_rrset=True)
    data = out.to_wire(max_size=65535)
    if len(data) <= MDNS_RECEIVED_MAX:
        assert len(data) <= len(message.encode())
        assert DnsMessage.decode(data) == message


def test_other_records_are_passed_over() -> None:
    out = dns.message.Message(id=0)
    out.flags = 0x8400
    for text in (
        "printer.local. 120 IN A 192.0.2.1",
        "printer.local. 120 IN AAAA 2001:db8::1",
        "x._ipp._tcp.local. 120 IN SRV 0 0 631 printer.local.",
        f"{SERVICE}. 360 IN PTR {NAME}.",
    ):
        name, ttl, kind, cls, *rest = text.split(maxsplit=4)[:1] + text.split()[1:]
        assert kind == "IN"
        out.answer.append(dns.rrset.from_text(name, int(ttl), kind, cls, " ".join(rest)))
    message = DnsMessage.decode(out.to_wire())
    assert message == DnsMessage(True, answers=(PtrRecord(SERVICE, NAME, 360),))


def _message(counts: tuple[int, int, int, int], body: bytes) -> bytes:
    return bytes(4) + b"".join(each.to_bytes(2, "big") for each in counts) + body


_ROOT = b"\0\0\x0c\0\x01\0\0\0\1"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(11),
        _message((1, 0, 0, 0), b""),
        _message((1, 0, 0, 0), b"\x05ab"),
        _message((1, 0, 0, 0), b"\xc0\x0c\0\1\0\1"),  # leads to itself
        _message((1, 0, 0, 0), b"\xc0\x20\0\1\0\1"),  # forward
        _message((1, 0, 0, 0), b"\1a\xc0\x0c\0\1\0\1"),  # round and round
        _message((1, 0, 0, 0), b"\x40" + b"a" * 64 + b"\0\0\1\0\1"),
        _message((1, 0, 0, 0), (b"\x3f" + b"a" * 63) * 4 + b"\0\0\1\0\1"),
        _message((0, 1, 0, 0), _ROOT + b"\xff\xff"),
        _message((0, MDNS_RECORDS_MAX + 1, 0, 0), b""),
        _message((0, 0, 0, 0), bytes(MDNS_RECEIVED_MAX)),
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        DnsMessage.decode(data)


@pytest.mark.parametrize(
    "body",
    [
        _ROOT + b"\0\3\1ab",  # a name that ends early
        _ROOT + b"\0\2\xc0\xff",  # one that leads nowhere
        b"\0\0\x10\0\1\0\0\0\1\0\2\5a",  # a string that is cut
    ],
)
def test_a_record_that_makes_no_sense_costs_only_itself(body: bytes) -> None:
    good = _ROOT + b"\0\3\1b\0"
    message = DnsMessage.decode(_message((0, 2, 0, 0), body + good))
    assert message.answers == (PtrRecord("", "b", 1),)


@pytest.mark.parametrize("name", ["a" * 64, "a..b", ".".join(["a" * 63] * 4)])
def test_names_that_cannot_be_are_not_written(name: str) -> None:
    with pytest.raises(LocalProtocolError):
        DnsMessage(False, (Question(name, 12),)).encode()
    with pytest.raises(LocalProtocolError):
        DnsMessage(True, answers=(TxtRecord("a", (bytes(256),), 1),)).encode()


@given(st.binary(max_size=300))
def test_garbage_raises_only_what_it_may(data: bytes) -> None:
    try:
        DnsMessage.decode(bytes(4) + data)
    except RemoteProtocolError:
        return


@given(messages, st.data())
def test_damaged_messages_are_read_as_dnspython_reads_them_or_not_at_all(
    message: DnsMessage, data: st.DataObject
) -> None:
    damaged = bytearray(message.encode())
    where = data.draw(st.integers(2, len(damaged) - 1))
    damaged[where] = data.draw(st.integers(0, 255))
    try:
        ours = DnsMessage.decode(bytes(damaged))
    except RemoteProtocolError:
        return
    try:
        theirs = dns.message.from_wire(bytes(damaged), one_rr_per_rrset=True, ignore_trailing=True)
    except (dns.exception.DNSException, ValueError):
        return  # it judges more: opcodes, other types, classes
    assert len(theirs.question) == len(ours.questions)
    read = [
        rrset for rrset in theirs.answer if rrset.rdtype in (dns.rdatatype.PTR, dns.rdatatype.TXT)
    ]
    assert len(ours.answers) <= len(read)
