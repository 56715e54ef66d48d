"""Catalogs: vectors, what is refused, merging, and what is left out of one that is too long."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbp2p_keys.identity import PeerId, PrivateKey
from sbp2p_protocol.catalog import (
    Catalog,
    CatalogEntry,
    Models,
    catalog_cid,
    make_catalog,
    merged,
    read_signed_catalog,
    sign_catalog,
)
from sbp2p_protocol.cid import DAG_CBOR, Cid, verify_block
from sbp2p_protocol.errors import IntegrityError, LocalProtocolError, RemoteProtocolError
from sbp2p_protocol.limits import CATALOG_MAX, CATALOG_OLDER_MAX

_FILE = Path(__file__).resolve().parents[2] / "protocol" / "vectors" / "catalog.json"
VECTORS: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
KEY, OTHER = PrivateKey.from_seed(bytes(32)), PrivateKey.from_seed(b"\x01" * 32)


def manifest(number: int) -> Cid:
    return Cid(1, DAG_CBOR, 0x1E, number.to_bytes(32, "big"))


def entries(*numbers: int) -> tuple[CatalogEntry, ...]:
    return tuple(CatalogEntry(number, manifest(number)) for number in numbers)


@pytest.mark.parametrize("case", VECTORS["valid"], ids=lambda case: case["name"])
def test_valid_vector(case: dict[str, Any]) -> None:
    models = {
        name: tuple(CatalogEntry(number, Cid.parse(cid)) for number, cid in versions)
        for name, versions in case["models"].items()
    }
    catalog = Catalog(publisher=KEY.peer_id, sequence=case["sequence"], models=models)
    assert catalog.to_bytes().hex() == case["hex"]
    assert Catalog.from_bytes(bytes.fromhex(case["hex"])) == catalog


@pytest.mark.parametrize("case", VECTORS["invalid"], ids=lambda case: case["name"])
def test_invalid_vector(case: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError):
        Catalog.from_bytes(bytes.fromhex(case["hex"]))


@pytest.mark.parametrize("case", VECTORS["signed"], ids=lambda case: case["name"])
def test_signed_vector(case: dict[str, Any]) -> None:
    block, publisher = bytes.fromhex(case["hex"]), PeerId.parse(case["publisher"])
    verify_block(Cid.parse(case["cid"]), block)
    assert str(catalog_cid(block)) == case["cid"]
    if case["valid"]:
        assert read_signed_catalog(block, publisher).publisher == publisher
    else:
        with pytest.raises(RemoteProtocolError):
            read_signed_catalog(block, publisher)


def test_versions_are_found_by_number() -> None:
    catalog = Catalog(publisher=KEY.peer_id, sequence=1, models={"m": entries(5, 3)})
    assert catalog.find("m") == CatalogEntry(5, manifest(5))
    assert catalog.find("m", 3) == CatalogEntry(3, manifest(3))
    assert catalog.find("m", 4) is None
    assert catalog.find("n") is None


def test_a_changed_byte_is_noticed() -> None:
    catalog = Catalog(publisher=KEY.peer_id, sequence=1, models={"m": entries(5, 3)})
    block = bytearray(sign_catalog(catalog, KEY))
    assert read_signed_catalog(bytes(block), KEY.peer_id) == catalog
    block[block.index(b"models") + 9] ^= 1
    with pytest.raises(IntegrityError):
        read_signed_catalog(bytes(block), KEY.peer_id)
    with pytest.raises(RemoteProtocolError):
        read_signed_catalog(bytes(CATALOG_MAX + 1), KEY.peer_id)


def test_values_that_no_catalog_has_are_the_callers_mistake() -> None:
    for models in ({"m": entries(1, 2)}, {"": entries(1)}, {"m": ()}):
        with pytest.raises(LocalProtocolError):
            Catalog(publisher=KEY.peer_id, sequence=1, models=models)


_MODELS = st.dictionaries(
    st.sampled_from(["a", "b", "org/c"]),
    st.lists(st.integers(1, 60), unique=True, max_size=40).map(
        lambda numbers: entries(*sorted(numbers, reverse=True))
    ),
)


@given(_MODELS, _MODELS)
def test_merging_keeps_the_newest_and_never_goes_back(first: Models, second: Models) -> None:
    both = merged(first, second)
    assert both == merged(second, first)
    for name, versions in both.items():
        numbers = {entry.version for source in (first, second) for entry in source.get(name, ())}
        expected = sorted(numbers, reverse=True)[: 1 + CATALOG_OLDER_MAX]
        assert [entry.version for entry in versions] == expected
    assert merged(both, first) == both


def test_of_two_manifests_with_one_number_the_first_source_has_the_right_one() -> None:
    mine = {"m": [CatalogEntry(1, manifest(1))]}
    theirs = {"m": [CatalogEntry(1, manifest(2))]}
    assert merged(mine, theirs) == {"m": (CatalogEntry(1, manifest(1)),)}


def test_older_versions_give_way_before_models_do() -> None:
    models = {
        f"model-{number}": tuple(
            CatalogEntry(40 - old, manifest(number * 100 + old))
            for old in range(1 + CATALOG_OLDER_MAX)
        )
        for number in range(1400)
    }
    catalog = make_catalog(KEY.peer_id, 1, models)
    assert len(sign_catalog(catalog, KEY)) <= CATALOG_MAX
    assert set(catalog.models) == set(models)
    assert {versions[0].version for versions in catalog.models.values()} == {40}
    assert max(map(len, catalog.models.values())) > 1
    too_many: dict[str, tuple[CatalogEntry, ...]] = {
        f"{number:0128}": (CatalogEntry(1, manifest(number)),) for number in range(6500)
    }
    with pytest.raises(LocalProtocolError, match="over"):
        make_catalog(KEY.peer_id, 1, too_many)


@given(st.binary(max_size=300))
def test_garbage_raises_only_remote_errors(data: bytes) -> None:
    with suppress(RemoteProtocolError):
        read_signed_catalog(data, KEY.peer_id)
    with suppress(RemoteProtocolError):
        Catalog.from_bytes(data)
