"""IPNS records: the published ones, our own, every check in turn, order, evidence, garbage."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.cid import RAW, Cid
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.ipns import (
    SECOND_NS,
    SEQUENCE_MAX,
    format_time,
    ipfs_path,
    ipns_key,
    make_ipns_record,
    name_of_key,
    open_ipns_record,
    parse_time,
    read_ipns_record,
)
from sbp2p_protocol.limits import IPNS_RECORD_MAX, IPNS_VALUE_MAX
from tests.vectors import load_vectors

PUBLISHED = load_vectors("ipns_records")["records"]
_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "ipns.json"
OWN: list[dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))["records"]

KEY, OTHER = PrivateKey.from_seed(bytes(32)), PrivateKey.from_seed(b"\x01" * 32)
BLOCK = Cid(1, RAW, 0x1E, bytes(32))
NOW = 1_700_000_000.0
LATER = 1_800_000_000 * SECOND_NS


def make(value: bytes = b"/ipfs/x", sequence: int = 1, valid_until_ns: int = LATER) -> bytes:
    return make_ipns_record(
        KEY, value, sequence=sequence, valid_until_ns=valid_until_ns, ttl_ns=SECOND_NS
    )


# -- vectors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case["file"][63:90])
def test_published_record(case: dict[str, Any]) -> None:
    data, name = bytes.fromhex(case["hex"]), PeerId.parse(case["name"])
    if case["expect"] == "invalid":
        with pytest.raises(RemoteProtocolError):
            open_ipns_record(data, name, NOW)
        return
    record = open_ipns_record(data, name, NOW)
    assert record.value == case["value"].encode()
    assert format_time(record.valid_until_ns) == case["validity"].encode()
    assert (record.sequence, record.ttl_ns) == (case["sequence"], case["ttl_ns"])
    assert record.encoded == data


@pytest.mark.parametrize("case", OWN, ids=lambda case: case["name"])
def test_own_vector(case: dict[str, Any]) -> None:
    data, name = bytes.fromhex(case["hex"]), PeerId.parse(case["peer"])
    if not case["valid"]:
        with pytest.raises(RemoteProtocolError):
            open_ipns_record(data, name, NOW)
        return
    record = open_ipns_record(data, name, NOW)
    assert record.value == case["value"].encode()
    assert record.sequence == int(case["sequence"])
    assert record.ttl_ns == case["ttl_ns"]
    assert record.valid_until_ns == int(case["valid_until_ns"])
    assert format_time(record.valid_until_ns) == case["validity"].encode()


def test_the_first_own_vector_is_what_is_written_here() -> None:
    case = OWN[0]
    made = make_ipns_record(
        KEY,
        case["value"].encode(),
        sequence=case["sequence"],
        valid_until_ns=int(case["valid_until_ns"]),
        ttl_ns=case["ttl_ns"],
    )
    assert made.hex() == case["hex"]


# -- reading ---------------------------------------------------------------------------------------


def test_a_record_ends_at_its_validity() -> None:
    encoded = make(valid_until_ns=int(NOW) * SECOND_NS)
    record = read_ipns_record(encoded, KEY.peer_id)
    assert record.valid_until == NOW
    assert record.ttl_s == 1
    assert record.is_valid_at(NOW - 0.5)
    assert not record.is_valid_at(NOW)
    assert open_ipns_record(encoded, KEY.peer_id, NOW - 1) == record
    with pytest.raises(RemoteProtocolError, match="expired"):
        open_ipns_record(encoded, KEY.peer_id, NOW)


def test_somebody_elses_name_is_refused() -> None:
    with pytest.raises(IntegrityError):
        read_ipns_record(make(), OTHER.peer_id)


def test_what_is_too_long_is_not_parsed() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes"):
        read_ipns_record(bytes(IPNS_RECORD_MAX + 1), KEY.peer_id)


def test_every_changed_byte_is_noticed() -> None:
    encoded = make(ipfs_path(BLOCK))
    for at in range(len(encoded)):
        changed = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        with pytest.raises(RemoteProtocolError):
            read_ipns_record(changed, KEY.peer_id)


def test_a_value_is_a_cid_if_it_says_so() -> None:
    assert read_ipns_record(make(ipfs_path(BLOCK)), KEY.peer_id).cid == BLOCK
    for value in (b"/ipns/x", b"/ipfs/", b"/ipfs/\xff", b"/ipfs/" + str(BLOCK).encode() + b"/a"):
        assert read_ipns_record(make(value), KEY.peer_id).cid is None


# -- choosing --------------------------------------------------------------------------------------


def test_sequence_decides_then_validity_then_bytes() -> None:
    encoded = [
        make(sequence=1, valid_until_ns=LATER + 5),
        make(sequence=2, valid_until_ns=LATER),
        make(sequence=2, valid_until_ns=LATER + 1),
    ]
    records = [read_ipns_record(each, KEY.peer_id) for each in encoded]
    assert max(records, key=lambda record: record.order) == records[2]
    pair = [read_ipns_record(make(value), KEY.peer_id) for value in (b"/ipfs/a", b"/ipfs/b")]
    best = max(pair, key=lambda record: record.order)
    assert best.encoded == max(record.encoded for record in pair)


def test_two_values_under_one_sequence_are_evidence() -> None:
    first = read_ipns_record(make(b"/ipfs/a"), KEY.peer_id)
    assert first.contradicts(read_ipns_record(make(b"/ipfs/b"), KEY.peer_id))
    republished = read_ipns_record(make(b"/ipfs/a", valid_until_ns=LATER + 1), KEY.peer_id)
    assert not first.contradicts(republished)
    assert not first.contradicts(read_ipns_record(make(b"/ipfs/b", sequence=2), KEY.peer_id))


# -- names, times, values --------------------------------------------------------------------------


def test_a_key_names_whose_record_it_is() -> None:
    assert name_of_key(ipns_key(KEY.peer_id)) == KEY.peer_id
    for key in (b"", b"/ipns/", b"/pk/" + KEY.peer_id.to_bytes(), b"/ipns/x"):
        with pytest.raises(RemoteProtocolError):
            name_of_key(key)


@given(st.integers(0, 253_402_300_799 * SECOND_NS))
def test_times_are_read_as_they_were_written(nanoseconds: int) -> None:
    assert parse_time(format_time(nanoseconds)) == nanoseconds


@pytest.mark.parametrize(
    "text",
    ["", "2024-01-01", "2024-01-01T00:00:00", "2024-13-01T00:00:00Z", "2024-01-01T24:00:00Z",
     "2024-01-01T00:00:00.1234567890Z", "2024-01-01t00:00:00z", "0000-01-01T00:00:00Z",
     "2024-01-01T00:00:00Z\n", "\u0662024-01-01T00:00:00Z"],
)  # fmt: skip
def test_other_texts_are_no_times(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_time(text.encode())


@given(
    st.binary(min_size=1, max_size=100),
    st.integers(0, SEQUENCE_MAX),
    st.integers(0, 253_402_300_799 * SECOND_NS),
    st.integers(0, SEQUENCE_MAX),
)
def test_round_trip(value: bytes, sequence: int, until: int, ttl: int) -> None:
    encoded = make_ipns_record(KEY, value, sequence=sequence, valid_until_ns=until, ttl_ns=ttl)
    record = read_ipns_record(encoded, KEY.peer_id)
    assert (record.value, record.sequence) == (value, sequence)
    assert (record.valid_until_ns, record.ttl_ns) == (until, ttl)


def test_values_that_no_record_has_are_the_callers_mistake() -> None:
    for value, sequence, until in [
        (b"", 1, LATER),
        (bytes(IPNS_VALUE_MAX + 1), 1, LATER),
        (b"x", -1, LATER),
        (b"x", SEQUENCE_MAX + 1, LATER),
        (b"x", 1, -1),
        (b"x", 1, 2**63 * 100),
    ]:
        with pytest.raises(LocalProtocolError):
            make(value, sequence, until)


@given(st.binary(max_size=300))
def test_garbage_raises_only_remote_errors(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        read_ipns_record(data, KEY.peer_id)
    with suppress(RemoteProtocolError):
        name_of_key(data)
    with suppress(RemoteProtocolError):
        parse_time(data)
