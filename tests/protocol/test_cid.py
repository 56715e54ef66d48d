from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.multi import multibase_encode
from sbp2p_protocol.cid import (
    DAG_CBOR,
    IDENTITY,
    RAW,
    SHA2_256,
    BadCidError,
    Cid,
    hash_bytes,
    raw_cid,
    verify_block,
)
from sbp2p_protocol.errors import IntegrityError, RemoteProtocolError
from tests.vectors import load_vectors

VECTORS = load_vectors("multihash_cid")


def test_blake3_matches_the_official_cases() -> None:
    for case in VECTORS["blake3"]["cases"]:
        data = bytes(i % 251 for i in range(case["input_len"]))
        assert hash_bytes(data).hex() == case["hash32"]


@pytest.mark.parametrize("name", ["raw_sha256_test", "derived_blake3_raw_test"])
def test_vector_of_a_raw_block(name: str) -> None:
    vector = VECTORS["cid"][name]
    data = vector["data_ascii"].encode()
    cid = Cid.from_bytes(bytes.fromhex(vector["cid_hex"]))
    verify_block(cid, data)
    assert str(cid) == vector["cid_base32"]
    assert Cid.parse(vector["cid_base32"]) == cid
    assert cid.to_bytes().hex() == vector["cid_hex"]
    assert Cid.for_block(RAW, data, cid.hash_code) == cid


def test_vectors_in_other_bases() -> None:
    example = VECTORS["cid"]["spec_human_readable_example"]
    assert Cid.parse(example["cid_base58"]).to_bytes().hex() == example["cid_hex"]
    base16 = VECTORS["cid"]["raw_sha256_test"]["cid_base16"]
    assert str(Cid.parse(base16)) == VECTORS["cid"]["raw_sha256_test"]["cid_base32"]


def test_identity_cids_hold_their_block() -> None:
    empty = Cid.parse(VECTORS["cid"]["empty_identity_raw"]["cid_base32"])
    assert empty == Cid(1, RAW, IDENTITY, b"")
    verify_block(empty, b"")
    long = Cid.parse(VECTORS["cid"]["identity_cid_128_bytes_accept"])
    assert len(long.digest) == 128
    with pytest.raises(IntegrityError):
        verify_block(empty, b"x")


def test_version_0_has_its_own_text_and_bytes() -> None:
    text = "QmUNLLsPACCz1vLxQVkXqqLX5R1X345qqfHbsf67hvA3Nn"
    cid = Cid.parse(text)
    assert (cid.version, cid.hash_code, str(cid)) == (0, SHA2_256, text)
    assert Cid.from_bytes(cid.to_bytes()) == cid
    assert len(cid.to_bytes()) == 34
    with pytest.raises(BadCidError, match="multibase"):
        Cid.parse(multibase_encode("b", cid.to_bytes()))


def test_raw_cid_is_the_cid_of_a_leaf() -> None:
    assert raw_cid(hash_bytes(b"leaf")) == Cid.for_block(RAW, b"leaf")
    assert raw_cid(bytes(32)).is_blake3
    assert not Cid(1, RAW, SHA2_256, bytes(32)).is_blake3


def test_wrong_bytes_are_an_integrity_error() -> None:
    with pytest.raises(IntegrityError):
        verify_block(Cid.for_block(DAG_CBOR, b"a"), b"b")
    with pytest.raises(IntegrityError, match="cannot be verified"):
        verify_block(Cid(1, RAW, 0x13, bytes(64)), b"b")
    with pytest.raises(IntegrityError):
        verify_block(Cid(1, RAW, 0x1E, hash_bytes(b"b")[:20]), b"b")


@pytest.mark.parametrize(
    "data",
    [
        "",
        "01",
        "0255122000",
        "1220" + "00" * 31,
        "1220" + "00" * 33,
        "01551e20" + "00" * 31,
        "01551e20" + "00" * 33,
        "01d5001e00",
        "0155118101" + "00" * 129,
    ],
)
def test_malformed_bytes_are_refused(data: str) -> None:
    with pytest.raises(RemoteProtocolError):
        Cid.from_bytes(bytes.fromhex(data))


@pytest.mark.parametrize("text", ["", "b", "Qm", "hello", "bafk", "b" * 5000, "Qm" + "0" * 44, "é"])
def test_malformed_text_is_a_value_error(text: str) -> None:
    with pytest.raises(BadCidError):
        Cid.parse(text)


@given(st.binary(max_size=200))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    try:
        cid = Cid.from_bytes(data)
    except RemoteProtocolError:
        return
    assert cid.to_bytes() == data


@given(st.text())
def test_garbage_text_raises_only_bad_cid(text: str) -> None:
    with contextlib.suppress(BadCidError):
        Cid.parse(text)
