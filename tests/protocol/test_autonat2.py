from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.autonat2 import (
    Data,
    DataRequest,
    DialOutcome,
    NonceMessage,
    NonceRequest,
    NonceResponse,
    RequestStatus,
    decode_dial_back,
    decode_message,
    decode_thanks,
    encode_dial_back,
    encode_message,
    encode_thanks,
)
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.limits import (
    AUTONAT_ADDRESSES_MAX,
    AUTONAT_DIAL_DATA_MAX,
    AUTONAT_TWO_MESSAGE_MAX,
)
from sbp2p_protocol.multiaddr import parse_address

HERE = parse_address("/ip4/1.2.3.4/tcp/4801")


def unframed(frame: bytes) -> bytes:
    reader = LengthPrefixedReader(AUTONAT_TWO_MESSAGE_MAX)
    reader.feed(frame)
    data = reader.next()
    assert data is not None
    return bytes(data)


@pytest.mark.parametrize(
    "message",
    [
        NonceRequest((HERE,), 0),
        NonceRequest((), 2**64 - 1),
        NonceResponse(RequestStatus.OK, 3, DialOutcome.OK),
        NonceResponse(RequestStatus.DIAL_REFUSED),
        DataRequest(1, 30_000),
        Data(4000),
    ],
)
def test_what_is_written_is_read(message: NonceMessage) -> None:
    assert decode_message(unframed(encode_message(message))) == message


def test_a_request_has_the_bytes_of_the_specification() -> None:
    data = unframed(encode_message(NonceRequest((HERE,), 0x0102030405060708)))
    body = b"\x0a\x08" + HERE.to_bytes() + b"\x11\x08\x07\x06\x05\x04\x03\x02\x01"
    assert data == b"\x0a" + bytes([len(body)]) + body
    nonce = unframed(encode_dial_back(0x0102030405060708))
    assert nonce == b"\x09\x08\x07\x06\x05\x04\x03\x02\x01"
    assert decode_dial_back(nonce) == 0x0102030405060708
    assert unframed(encode_thanks()) == b"\x08\x00"
    assert decode_thanks(b"\x08\x00")
    assert not decode_thanks(b"\x08\x01")


def test_addresses_keep_their_places() -> None:
    data = unframed(encode_message(NonceRequest((HERE,), 1)))
    strange = b"\x0a\x02\xff\x7f"
    body = strange + data[2:]
    read = decode_message(b"\x0a" + bytes([len(body)]) + body)
    assert read == NonceRequest((None, HERE), 1)
    many = encode_message(NonceRequest((HERE,) * 100, 1))
    read = decode_message(unframed(many))
    assert isinstance(read, NonceRequest)
    assert len(read.addresses) == AUTONAT_ADDRESSES_MAX


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\x12\x02\x08\x07", b"\x12\x05\x08\xc8\x01\x18\x05", b"\x2a\x00"]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_message(data)


def test_a_server_may_not_want_more_than_a_little() -> None:
    asked = encode_message(DataRequest(0, AUTONAT_DIAL_DATA_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="wants"):
        decode_message(unframed(asked))


@given(st.binary(max_size=200))
def test_garbage_raises_only_what_it_may(data: bytes) -> None:
    for read in (decode_message, decode_dial_back, decode_thanks):
        try:
            read(data)
        except RemoteProtocolError:
            continue
