from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_keys.signing import Signature, SignedDocument
from sbp2p_protocol.cid import DAG_CBOR, DAG_PB, SHA2_256, Cid, raw_cid
from sbp2p_protocol.dag_cbor import decode, encode
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.manifest import (
    COUNTER_MAX,
    MANIFEST_DOMAIN,
    Manifest,
    check_model_name,
    read_signed_manifest,
    sign_manifest,
    verify_manifest,
)

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "manifest.json"
VECTORS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))

KEY, OTHER = PrivateKey.from_seed(bytes(32)), PrivateKey.from_seed(bytes([1]) * 32)
ROOT = Cid(1, DAG_PB, 0x1E, bytes(32))
LINK = Cid(1, DAG_CBOR, 0x1E, bytes(32))
MANIFEST = Manifest(
    name="org/model",
    version=3,
    root=ROOT,
    tensors=LINK,
    parents=(LINK,),
    publisher=KEY.peer_id,
    created=1_700_000_000,
    meta={"license": "apache-2.0", "step": -5, "raw": b"\x00", "final": True},
)


# -- vectors ---------------------------------------------------------------------------------------


def from_vector(fields: dict[str, Any]) -> Manifest:
    tensors = fields["tensors"]
    meta = {
        k: bytes.fromhex(v["hex"]) if isinstance(v, dict) else v for k, v in fields["meta"].items()
    }
    return Manifest(
        name=fields["name"],
        version=fields["version"],
        root=Cid.parse(fields["root"]),
        tensors=None if tensors is None else Cid.parse(tensors),
        parents=tuple(map(Cid.parse, fields["parents"])),
        publisher=PeerId.parse(fields["publisher"]),
        created=fields["created"],
        meta=meta,
    )


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector(case: dict[str, Any]) -> None:
    manifest = from_vector(case["fields"])
    assert manifest.to_bytes().hex() == case["hex"]
    assert str(manifest.cid) == case["cid"]
    assert Manifest.from_bytes(bytes.fromhex(case["hex"])) == manifest


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=lambda case: case["name"])
def test_invalid_vector(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        Manifest.from_bytes(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", VECTORS["signed"], ids=lambda case: case["name"])
def test_signed_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    if case["valid"]:
        document, manifest = read_signed_manifest(data)
        assert str(manifest.cid) == case["manifest"]
        assert {str(signer) for signer in document.signers()} == set(case["signers"])
        assert document.to_bytes() == data
    else:
        with pytest.raises(RemoteProtocolError):
            read_signed_manifest(data)


@pytest.mark.parametrize("case", VECTORS["names"], ids=lambda case: repr(case["text"][:30]))
def test_name_vector(case: dict[str, Any]) -> None:
    assert (check_model_name(case["text"]) is None) == case["ok"]


def test_another_encoder_gives_the_same_bytes() -> None:
    def tag(cid: Cid) -> cbor2.CBORTag:
        return cbor2.CBORTag(42, b"\x00" + cid.to_bytes())

    fields = {
        "format": 1,
        "name": "org/model",
        "version": 3,
        "root": tag(ROOT),
        "tensors": tag(LINK),
        "parents": [tag(LINK)],
        "publisher": KEY.peer_id.to_bytes(),
        "created": 1_700_000_000,
        "meta": {"license": "apache-2.0", "step": -5, "raw": b"\x00", "final": True},
    }
    assert cbor2.dumps(fields, canonical=True) == MANIFEST.to_bytes()


# -- values ----------------------------------------------------------------------------------------


def test_round_trip_and_identity() -> None:
    again = Manifest.from_bytes(MANIFEST.to_bytes())
    assert again == MANIFEST
    assert hash(again) == hash(MANIFEST)
    assert MANIFEST.cid == Cid.for_block(DAG_CBOR, MANIFEST.to_bytes())


def test_later_changes_to_the_callers_map_do_not_reach_it() -> None:
    meta: dict[str, str | int | bytes | bool] = {"a": 1}
    manifest = replace(MANIFEST, meta=meta)
    meta["b"] = 2
    assert dict(manifest.meta) == {"a": 1}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 2},
        {"name": ""},
        {"name": "a/../b"},
        {"version": 0},
        {"version": COUNTER_MAX + 1},
        {"created": -1},
        {"root": LINK},
        {"root": Cid(1, DAG_PB, SHA2_256, bytes(32))},
        {"tensors": ROOT},
        {"parents": (raw_cid(bytes(32)),)},
        {"parents": (LINK, LINK)},
        {"parents": tuple(Cid(1, DAG_CBOR, 0x1E, bytes([n]) * 32) for n in range(65))},
        {"meta": {"": 1}},
        {"meta": {"k" * 65: 1}},
        {"meta": {"k": 2**63}},
        {"meta": {"k": "v" * 4097}},
        {"meta": {"k": b"v" * 4097}},
        {"meta": {"k": 1.5}},
        {"meta": {"k": None}},
        {"meta": {"k": "\ud800"}},
        {"meta": {str(n): n for n in range(65)}},
        {"meta": {str(n): "v" * 4096 for n in range(16)}},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_values_that_the_format_does_not_allow(changes: dict[str, Any]) -> None:
    with pytest.raises(LocalProtocolError):
        replace(MANIFEST, **changes)


_DECODED: Any = decode(MANIFEST.to_bytes())


@pytest.mark.parametrize("key", sorted(_DECODED))
@pytest.mark.parametrize(
    "value", [None, True, 2**63, -1, 1.0, "x" * 200, b"", [1], {"k": None}, {"k": [1]}, ROOT, []]
)
def test_any_value_under_any_key(key: str, value: object) -> None:
    allowed = {("parents", "[]"), ("tensors", "None")}
    changed = encode({**_DECODED, key: value})
    if (key, str(value)) in allowed or (key == "root" and value == ROOT):
        assert Manifest.from_bytes(changed).to_bytes() == changed
    else:
        with pytest.raises(RemoteProtocolError):
            Manifest.from_bytes(changed)


def test_keys_are_exact() -> None:
    fields: dict[str, Any] = dict(_DECODED)
    with pytest.raises(RemoteProtocolError, match="not a map"):
        Manifest.from_bytes(encode(fields | {"extra": 1}))
    del fields["meta"]
    with pytest.raises(RemoteProtocolError, match="not a map"):
        Manifest.from_bytes(encode(fields))


# -- signatures ------------------------------------------------------------------------------------


def test_a_version_keeps_its_cid_when_more_people_sign() -> None:
    document = sign_manifest(MANIFEST, KEY).sign(OTHER)
    read, manifest = read_signed_manifest(document.to_bytes())
    assert manifest == MANIFEST
    assert read.signers() == {KEY.peer_id, OTHER.peer_id}


def test_a_manifest_needs_its_publishers_signature() -> None:
    for document in (
        sign_manifest(MANIFEST, OTHER),
        SignedDocument(MANIFEST_DOMAIN, MANIFEST.to_bytes()),
    ):
        with pytest.raises(IntegrityError, match="not signed by its publisher"):
            verify_manifest(document)


def test_signatures_are_bound_to_payload_and_domain() -> None:
    document = sign_manifest(MANIFEST, KEY)
    with pytest.raises(IntegrityError):
        verify_manifest(replace(document, payload=replace(MANIFEST, version=4).to_bytes()))
    foreign = SignedDocument("sbp2p-catalog", MANIFEST.to_bytes()).sign(KEY)
    with pytest.raises(RemoteProtocolError, match="not a manifest"):
        verify_manifest(foreign)
    with pytest.raises(IntegrityError):
        verify_manifest(replace(foreign, domain=MANIFEST_DOMAIN))


def test_one_bad_signature_spoils_the_document() -> None:
    document = sign_manifest(MANIFEST, KEY)
    bad = Signature(OTHER.public_key, bytes(64))
    signatures = sorted([*document.signatures, bad], key=lambda item: item.public_key.peer_id)
    with pytest.raises(IntegrityError):
        verify_manifest(replace(document, signatures=tuple(signatures)))


# -- garbage ---------------------------------------------------------------------------------------


@given(st.binary(max_size=100))
def test_garbage_raises_only_the_remote_error(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        Manifest.from_bytes(data)
    with pytest.raises(RemoteProtocolError):
        read_signed_manifest(data)


@given(st.data())
def test_damage_is_refused(data: st.DataObject) -> None:
    signed = bytearray(sign_manifest(MANIFEST, KEY).to_bytes())
    at = data.draw(st.integers(0, len(signed) - 1))
    flip = data.draw(st.integers(1, 255))
    for candidate in (
        bytes(signed[:at]),
        bytes(signed[:at] + bytes([signed[at] ^ flip]) + signed[at + 1 :]),
    ):
        with pytest.raises(RemoteProtocolError):
            read_signed_manifest(candidate)


@given(st.text(max_size=140))
def test_a_good_name_survives_a_manifest(name: str) -> None:
    if check_model_name(name) is None:
        manifest = replace(MANIFEST, name=name)
        assert Manifest.from_bytes(manifest.to_bytes()).name == name
    else:
        with pytest.raises(LocalProtocolError):
            replace(MANIFEST, name=name)
