from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.cid import DAG_PB, RAW, SHA2_256, Cid
from sbp2p_protocol.dag_pb import (
    PbLink,
    PbNode,
    decode_node,
    decode_varint,
    encode_node,
    encode_varint,
)
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.limits import NODE_BLOCK_MAX
from tests.vectors import load_vectors

VECTORS = load_vectors("dag_pb")

_links = st.builds(
    PbLink,
    st.binary(min_size=32, max_size=32).map(lambda digest: Cid(1, RAW, 0x1E, digest)),
    st.none() | st.text(),
    st.none() | st.integers(0, 2**64 - 1),
)
_nodes = st.builds(PbNode, st.lists(_links, max_size=5).map(tuple), st.none() | st.binary())


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector_round_trips(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["hex"])
    assert encode_node(decode_node(data)) == data
    assert str(Cid.for_block(DAG_PB, data, SHA2_256)) == case["cid"]


@pytest.mark.parametrize("case", VECTORS["negative_decode_upstream"], ids=lambda c: c["name"])
def test_negative_vector_is_refused(case: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_node(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize(
    "data",
    [
        "0a0112040a020102",  # data before a link
        "0a000a00",  # data twice
        "1a00",  # unknown field
        "0a8000",  # length not shortest
        "0a05",  # truncated
        "0a",
        "12",
        "120f0a0901550005000102030412007801",  # unknown field in a link
        "12120a0901550005000102030418001200",  # name after Tsize
        "120e0a090155000500010203041201ff",  # name not UTF-8
        "120d0a09015500050001020304188100",  # Tsize not shortest
        "0affffffffffffffffffff01",  # length over 64 bits
    ],
)
def test_other_forms_are_refused(data: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_node(bytes.fromhex(data))


def test_size_is_bounded() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        decode_node(encode_node(PbNode((), bytes(NODE_BLOCK_MAX))))


@given(st.integers(0, 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    data = encode_varint(value)
    assert decode_varint(data, 0) == (value, len(data))
    with pytest.raises(RemoteProtocolError):
        decode_varint(data[:-1], 0)


@given(_nodes)
def test_nodes_round_trip(node: PbNode) -> None:
    assert decode_node(encode_node(node)) == node


@given(st.binary(max_size=80))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    try:
        node = decode_node(data)
    except RemoteProtocolError:
        return
    assert encode_node(node) == data


@given(_nodes, st.data())
def test_a_damaged_node_is_refused_or_canonical(node: PbNode, data: st.DataObject) -> None:
    encoded = bytearray(encode_node(node) or b"\x00")
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    for candidate in (bytes(encoded), bytes(encoded[:at])):
        try:
            decoded = decode_node(candidate)
        except RemoteProtocolError:
            continue
        assert encode_node(decoded) == candidate
