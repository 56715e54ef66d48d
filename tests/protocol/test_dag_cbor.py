from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_protocol.cid import DAG_CBOR, RAW, SHA2_256, Cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import CBOR_DEPTH_MAX
from tests.vectors import load_vectors

VECTORS = load_vectors("dag_cbor")
INVALID: dict[str, str] = VECTORS["invalid_derived"] | {
    case["name"]: case["hex"] for case in VECTORS["negative_upstream"]
}

_scalars: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.binary(min_size=32, max_size=32).map(lambda digest: Cid(1, RAW, 0x1E, digest))
)
_values = st.recursive(
    _scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector_round_trips(case: dict[str, str]) -> None:
    data = bytes.fromhex(case["hex"])
    assert encode(decode(data)) == data
    assert str(Cid.for_block(DAG_CBOR, data, SHA2_256)) == case["cid"]


@pytest.mark.parametrize("name", INVALID)
def test_invalid_vector_is_refused(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(bytes.fromhex(INVALID[name]))


def test_keys_are_ordered_by_length_and_then_bytewise() -> None:
    assert encode({"b": 1, "aa": 2, "a": 3, "": 4}).hex() == "a460046161036162016261" + "6102"


def test_booleans_are_not_integers() -> None:
    assert [type(item) for item in decode(encode([True, 1, 1.0]))] == [bool, int, float]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "data",
    ["", "ff", "a1", "8201", "9bffffffffffffffff", "bb7fffffffffffffff", "5b0000ffffffffffff"],
)
def test_truncated_or_impossible_sizes_are_refused(data: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(bytes.fromhex(data))


@pytest.mark.parametrize("head", ["81", "a160", "d82a"])
def test_nesting_is_bounded(head: str) -> None:
    prefix = bytes.fromhex(head)
    with pytest.raises(RemoteProtocolError):
        decode(prefix * 100_000)
    deep: object = 0
    for _ in range(CBOR_DEPTH_MAX):
        deep = [deep]
    assert decode(encode(deep)) == deep
    with pytest.raises(LocalProtocolError):
        encode([deep])


def test_size_is_bounded() -> None:
    assert decode(encode(bytes(90)), max_size=92) == bytes(90)
    with pytest.raises(RemoteProtocolError, match="at most 91"):
        decode(encode(bytes(90)), max_size=91)


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, 2**64, -(2**64) - 1, {1: 2}, "\ud800", {1, 2}, object()]
)
def test_values_without_a_form_are_our_bug(value: object) -> None:
    with pytest.raises(LocalProtocolError):
        encode(value)


@given(_values)
def test_round_trip(value: object) -> None:
    assert decode(encode(value)) == value


@given(st.binary(max_size=64))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    try:
        value = decode(data)
    except RemoteProtocolError:
        return
    assert encode(value) == data


@given(_values, st.data())
def test_a_damaged_encoding_is_refused_or_canonical(value: object, data: st.DataObject) -> None:
    encoded = bytearray(encode(value))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= data.draw(st.integers(1, 255))
    for candidate in (bytes(encoded), bytes(encoded[:at])):
        try:
            decoded = decode(candidate)
        except RemoteProtocolError:
            continue
        assert encode(decoded) == candidate
