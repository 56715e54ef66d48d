from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.errors import BadEncodingError, KeysError, TruncatedError
from sbp2p_keys.limits import BIG_BASE_TEXT_MAX
from sbp2p_keys.multi import (
    IDENTITY,
    SHA2_256,
    base58btc_decode,
    base58btc_encode,
    decode_uvarint,
    encode_uvarint,
    multibase_decode,
    multibase_encode,
    multihash_decode,
    multihash_encode,
)
from tests.vectors import load_vectors

CODES = "fFvVtTbBcCkKzmMuU"
BASE_NAMES = {
    "base16": "f",
    "base16upper": "F",
    "base32": "b",
    "base32upper": "B",
    "base32hex": "v",
    "base32hexupper": "V",
    "base32pad": "c",
    "base32padupper": "C",
    "base36": "k",
    "base36upper": "K",
    "base58btc": "z",
    "base64": "m",
    "base64pad": "M",
    "base64url": "u",
    "base64urlpad": "U",
}


# -- varint ----------------------------------------------------------------------------------------


def test_varint_vectors() -> None:
    vectors = load_vectors("varint")
    for text, encoded in vectors["valid"].items():
        assert encode_uvarint(int(text)).hex() == encoded
        assert decode_uvarint(bytes.fromhex(encoded)) == (int(text), len(encoded) // 2)
    for encoded in vectors["invalid"].values():
        with pytest.raises(BadEncodingError):
            decode_uvarint(bytes.fromhex(encoded))


@pytest.mark.parametrize("n", [-1, 2**63])
def test_varint_out_of_range_is_the_callers_mistake(n: int) -> None:
    with pytest.raises(ValueError, match="unsigned varint") as caught:
        encode_uvarint(n)
    assert not isinstance(caught.value, KeysError)


@given(st.integers(0, 2**63 - 1), st.binary(max_size=4), st.binary(max_size=4))
def test_varint_round_trip_at_any_offset(n: int, before: bytes, after: bytes) -> None:
    encoded = encode_uvarint(n)
    data = before + encoded + after
    assert decode_uvarint(memoryview(data), len(before)) == (n, len(before) + len(encoded))
    for cut in range(len(encoded)):
        with pytest.raises(TruncatedError):
            decode_uvarint(encoded[:cut])


@given(st.binary(max_size=12))
def test_varint_garbage(data: bytes) -> None:
    try:
        value, end = decode_uvarint(data)
    except BadEncodingError:
        return
    assert encode_uvarint(value) == data[:end]


# -- multibase -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["basic", "leading_zero", "two_leading_zeros"])
def test_multibase_vectors(table: str) -> None:
    plain = {
        "basic": b"yes mani !",
        "leading_zero": b"\0yes mani !",
        "two_leading_zeros": b"\0\0yes mani !",
    }[table]
    rows = load_vectors("multibase")[table]
    seen = 0
    for name, text in rows.items():
        if name not in BASE_NAMES:
            continue
        assert multibase_encode(BASE_NAMES[name], plain) == text
        assert multibase_decode(text) == plain
        seen += 1
    assert seen == 10


def test_multibase_vectors_in_any_case() -> None:
    rows = load_vectors("multibase")["case_insensitivity"]
    texts = [text for name, text in rows.items() if name in BASE_NAMES]
    assert len(texts) >= 5
    assert {multibase_decode(text) for text in texts} == {b"hello world"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9123",
        "Q",
        "\N{SNOWMAN}",
        "f0",  # half a byte
        "f0g",
        "f 00",
        "b1",  # not in the alphabet
        "bmb",  # unused bits that are not zero: a second encoding of what "bma" says
        "bm",  # no number of bytes has one character
        "cme",  # padding is missing
        "bme======",  # padding is too much
        "mYQ==",
        "MYQ",
        "MYR==",
        "m-_",  # the URL alphabet
        "u+/",
        "mYWJj\n",
        "mYW\0Jj",
        "z0",
        "zl",
        "k-1",
        "k_1",
        "k 1",
        "k\N{LATIN SMALL LETTER DOTLESS I}",  # str.upper() makes an ASCII I of it
        "b\N{LATIN SMALL LETTER LONG S}",
        "f\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH DIGIT ONE}",
        "z" + "1" * (BIG_BASE_TEXT_MAX + 1),
        "k" + "0" * (BIG_BASE_TEXT_MAX + 1),
    ],
)
def test_multibase_refuses(text: str) -> None:
    with pytest.raises(BadEncodingError):
        multibase_decode(text)


def test_unknown_base_for_encoding_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="multibase code"):
        multibase_encode("9", b"")


@given(st.sampled_from(CODES), st.binary(max_size=200))
def test_multibase_round_trip(code: str, data: bytes) -> None:
    text = multibase_encode(code, data)
    assert text[0] == code
    assert multibase_decode(text) == data
    if code in "fFvVtTbBcCkK":
        assert multibase_decode(code + text[1:].swapcase()) == data


@given(st.sampled_from(CODES), st.text(st.sampled_from(string.printable + "\xe9\u0131\uff11")))
def test_multibase_garbage_is_refused_or_canonical(code: str, body: str) -> None:
    try:
        data = multibase_decode(code + body)
    except BadEncodingError:
        return
    assert multibase_encode(code, data).lower() == (code + body).lower()


@given(st.text(max_size=40))
def test_any_text_raises_only_keys_errors(text: str) -> None:
    for decode in (multibase_decode, base58btc_decode):
        try:
            decode(text)
        except BadEncodingError:
            continue


@given(st.binary(max_size=100))
def test_base58btc_round_trip(data: bytes) -> None:
    assert base58btc_decode(base58btc_encode(data)) == data


# -- multihash -------------------------------------------------------------------------------------


def test_multihash_vectors() -> None:
    cases = load_vectors("multihash_cid")["multihash"]
    assert cases
    for case in cases:
        encoded = bytes.fromhex(case["multihash_hex"])
        code, digest = multihash_decode(encoded)
        assert multihash_encode(code, digest) == encoded
        if "bits" in case:
            assert len(digest) == int(case["bits"]) // 8


def test_multihash_vectors_name_their_algorithm() -> None:
    codes = {"sha2-256": SHA2_256, "identity": IDENTITY}
    for case in load_vectors("multihash_cid")["multihash"]:
        if case.get("alg") in codes:
            assert multihash_decode(bytes.fromhex(case["multihash_hex"]))[0] == codes[case["alg"]]


@given(st.integers(0, 2**32), st.binary(max_size=128))
def test_multihash_round_trip(code: int, digest: bytes) -> None:
    encoded = multihash_encode(code, digest)
    assert multihash_decode(encoded) == (code, digest)
    for cut in range(len(encoded)):
        with pytest.raises(TruncatedError):
            multihash_decode(encoded[:cut])
    with pytest.raises(BadEncodingError, match="behind"):
        multihash_decode(encoded + b"\0")


def test_multihash_digest_is_bounded_before_it_is_there() -> None:
    with pytest.raises(BadEncodingError, match="too long"):
        multihash_decode(b"\x12\x81\x01")


@given(st.binary(max_size=140))
def test_multihash_garbage(data: bytes) -> None:
    try:
        code, digest = multihash_decode(data)
    except BadEncodingError:
        return
    assert multihash_encode(code, digest) == data
