"""Records of rounds: one form, exact weights, and nothing that the format does not allow."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbp2p_protocol.cid import Cid, raw_cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import ROUND_CONTRIBUTIONS_MAX, ROUND_RECORD_MAX
from sbp2p_protocol.round_record import Contribution, Rejection, RoundRecord
from tests.protocol.topology_samples import peers, version

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "round_record.json"

PEERS = peers(6)
ONE = RoundRecord(
    namespace="org/digits",
    author=PEERS[0],
    round=7,
    method="trimmed-mean",
    options={"trim": 0.25, "seed": 3, "exact": True, "note": "as agreed", "key": b"\x00\xff"},
    topology="random-regular:4",
    contributions=(
        Contribution(PEERS[0], version(0), 7, Fraction(1, 2), 100),
        Contribution(PEERS[1], version(1), 7, Fraction(1, 3), 50),
        Contribution(PEERS[2], version(2), 5, Fraction(1, 6), 0),
    ),
    rejected=(Rejection(PEERS[3], version(3), "tensor 'w' holds NaN"),),
    missing=(PEERS[4], PEERS[5]),
    digest=bytes(range(32)),
)


# -- vectors ---------------------------------------------------------------------------------------


def _vectors() -> Any:
    return json.loads(_FILE.read_text(encoding="utf-8"))


def test_the_vector_is_read_and_written() -> None:
    found = _vectors()["record"]
    record = RoundRecord.from_bytes(bytes.fromhex(found["bytes"]))
    assert record == ONE
    assert ONE.to_bytes().hex() == found["bytes"]
    assert str(record.author) == found["author"]
    assert {str(peer): str(weight) for peer, weight in record.weights.items()} == found["weights"]


@pytest.mark.parametrize("name", _vectors()["refused"])
def test_refused_vectors(name: str) -> None:
    with pytest.raises(RemoteProtocolError):
        RoundRecord.from_bytes(bytes.fromhex(_vectors()["refused"][name]))


# -- what it holds ---------------------------------------------------------------------------------


def test_what_a_record_says() -> None:
    assert ONE.weights == {
        PEERS[0]: Fraction(1, 2),
        PEERS[1]: Fraction(1, 3),
        PEERS[2]: Fraction(1, 6),
    }
    assert ONE.denominator == 6
    assert set(ONE.parents) == {version(0), version(1), version(2)}
    assert RoundRecord.from_bytes(ONE.to_bytes()).options == ONE.options
    assert hash(ONE) == hash(RoundRecord.from_bytes(ONE.to_bytes()))


def test_the_order_given_means_nothing() -> None:
    turned = replace(ONE, contributions=ONE.contributions[::-1], missing=ONE.missing[::-1])
    assert turned == ONE
    assert turned.to_bytes() == ONE.to_bytes()


def test_a_round_in_which_nobody_contributed() -> None:
    empty = replace(ONE, contributions=(), rejected=(), missing=())
    assert RoundRecord.from_bytes(empty.to_bytes()) == empty
    assert empty.denominator == 1


@settings(max_examples=40)
@given(st.lists(st.integers(1, 2**200), min_size=1, max_size=6), st.data())
def test_any_weights_survive(parts: list[int], data: st.DataObject) -> None:
    total = sum(parts)
    record = replace(
        ONE,
        rejected=(),
        missing=(),
        contributions=tuple(
            Contribution(
                PEERS[at],
                version(at),
                data.draw(st.integers(0, 2**40)),
                Fraction(part, total),
                data.draw(st.integers(0, 2**40)),
            )
            for at, part in enumerate(parts)
        ),
    )
    again = RoundRecord.from_bytes(record.to_bytes())
    assert again == record
    assert sum(again.weights.values()) == 1


def test_a_full_record_fits() -> None:
    crowd = peers(40)
    count = ROUND_CONTRIBUTIONS_MAX
    assert len(ONE.to_bytes()) < 1200
    full = replace(
        ONE,
        contributions=tuple(
            Contribution(peer, version(at), 7, Fraction(1, 40)) for at, peer in enumerate(crowd)
        ),
        rejected=tuple(
            Rejection(crowd[at % 40], version(at, at), "x" * 256) for at in range(count)
        ),
        missing=(),
    )
    assert len(full.to_bytes()) < ROUND_RECORD_MAX
    with pytest.raises(LocalProtocolError, match=f"over {count}"):
        replace(full, rejected=(*full.rejected, Rejection(crowd[0], version(9, 9, 9), "x")))


# -- what is refused -------------------------------------------------------------------------------


def _contribution(**changes: Any) -> dict[str, Any]:
    first, *others = ONE.contributions
    return {"contributions": (replace(first, **changes), *others)}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 2}, "format 2"),
        ({"namespace": "a//b"}, "namespace"),
        ({"namespace": ""}, "namespace"),
        ({"round": -1}, "round -1"),
        ({"round": 2**41}, "out of range"),
        ({"method": ""}, "method"),
        ({"method": "a\nb"}, "method"),
        ({"method": "m" * 65}, "method"),
        ({"topology": "x" * 513}, "topology"),
        ({"digest": b"short"}, "a digest of 5 bytes"),
        ({"options": {"a": 2**63}}, "64 signed bits"),
        ({"options": {"a": None}}, "is a NoneType"),
        ({"options": {"": 1}}, "no name"),
        ({"options": {"a": "x" * 5000}}, "over 4096"),
        ({"options": {str(number): 1 for number in range(65)}}, "65 options"),
        ({"options": {"a": float("nan")}}, "NaN"),
        ({"missing": (PEERS[4], PEERS[4])}, "twice"),
        ({"missing": (PEERS[0],)}, "missing that contributed"),
        ({"missing": (PEERS[3],)}, "missing that contributed or was rejected"),
        ({"rejected": ONE.rejected * 2}, "the same rejection twice"),
        ({"rejected": (Rejection(PEERS[3], version(3), "a\nb"),)}, "not one line"),
        ({"rejected": (Rejection(PEERS[3], version(3), ""),)}, "not one line"),
        ({"rejected": (Rejection(PEERS[3], raw_cid(bytes(32)), "x"),)}, "not dag-cbor"),
        (_contribution(peer_id=PEERS[1]), "contributed twice"),
        (_contribution(weight=Fraction(0)), "not over 0"),
        (_contribution(weight=Fraction(-1, 2)), "not over 0"),
        (_contribution(weight=Fraction(1, 3)), "do not add up to 1"),
        (_contribution(weight=Fraction(1, 2**2049)), "over 256 bytes"),
        (_contribution(round=-1), "of round -1"),
        (_contribution(samples=-1), "-1 samples"),
        (_contribution(samples=2**41), "samples"),
    ],
)
def test_what_is_not_allowed_cannot_be_made(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(LocalProtocolError, match=r"^(round record: |dag-cbor )") as caught:
        replace(ONE, **changes)
    assert reason in str(caught.value)


def _changed(change: Any) -> bytes:
    value = decode(ONE.to_bytes())
    change(value)
    return encode(value)


def _set(key: str, value: Any) -> Any:
    def change(record: dict[str, Any]) -> None:
        record[key] = value

    return change


def _row(key: str, at: int, value: Any) -> Any:
    def change(record: dict[str, Any]) -> None:
        record[key][0][at] = value

    return change


def _turn(record: dict[str, Any]) -> None:
    record["contributions"].reverse()


def _double(record: dict[str, Any]) -> None:
    """Give weights over a denominator that is not the least."""
    record["denominator"] = b"\x0c"
    for row in record["contributions"]:
        row[4] = bytes((2 * row[4][0],))


REFUSED = {
    "a key more": _set("more", 1),
    "another format": _set("format", 2),
    "no author": _set("author", b""),
    "round is text": _set("round", "7"),
    "digest is text": _set("digest", "0" * 32),
    "options is a list": _set("options", []),
    "an option is null": _set("options", {"a": None}),
    "an option is a link": _set("options", {"a": version(1)}),
    "contributions is a map": _set("contributions", {}),
    "a contribution is short": _set("contributions", [[PEERS[0].to_bytes()]]),
    "a contribution is a number": _set("contributions", [1]),
    "a contributor is text": _row("contributions", 0, str(PEERS[0])),
    "a contributor is nobody": _row("contributions", 0, b"\x00"),
    "a cid is bytes": _row("contributions", 1, bytes(36)),
    "a round is a bool": _row("contributions", 2, True),
    "samples are a float": _row("contributions", 3, 1.0),
    "a weight is a number": _row("contributions", 4, 3),
    "a weight is 0": _row("contributions", 4, b""),
    "a weight begins with 0": _row("contributions", 4, b"\x00\x03"),
    "a weight is over 1": _row("contributions", 4, b"\x07"),
    "weights are not 1": _row("contributions", 4, b"\x02"),
    "denominator is 0": _set("denominator", b"\x00"),
    "denominator is long": _set("denominator", b"\x01" * 257),
    "another order": _turn,
    "another denominator": _double,
    "a rejection is short": _set("rejected", [[1]]),
    "a reason is bytes": _row("rejected", 2, b"x"),
    "a reason has lines": _row("rejected", 2, "a\u2028b"),
    "a missing peer is text": _set("missing", ["x"]),
    "too many are missing": _set("missing", [PEERS[4].to_bytes()] * 1025),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_allowed_is_not_read(name: str) -> None:
    data = _changed(REFUSED[name])
    with pytest.raises(RemoteProtocolError):
        RoundRecord.from_bytes(data)


@given(st.binary(max_size=200))
def test_garbage_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        RoundRecord.from_bytes(data)


def test_long_records_are_not_even_decoded() -> None:
    with pytest.raises(RemoteProtocolError, match="bytes"):
        RoundRecord.from_bytes(bytes(ROUND_RECORD_MAX + 1))


def test_every_field_is_in_the_bytes() -> None:
    value = decode(ONE.to_bytes())
    assert isinstance(value, dict)
    assert {field.name for field in fields(RoundRecord)} | {"denominator"} == set(value)
    assert isinstance(value["contributions"][0][1], Cid)  # type: ignore[index]
