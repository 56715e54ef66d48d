"""Targets of naming: IPNS records and signed catalogs."""

from __future__ import annotations

from typing import Final

from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol.catalog import CATALOG_DOMAIN, Catalog, merged, read_signed_catalog
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.ipns import (
    format_time,
    make_ipns_record,
    name_of_key,
    parse_time,
    read_ipns_record,
)
from sbp2p_protocol.limits import IPNS_RECORD_MAX

from .corpus import KEYS, field_bytes, vectors
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import cbor, protobuf

_PUBLISHER: Final = KEYS[0]


def _ipns(data: bytes) -> None:
    for key in (_PUBLISHER, KEYS[1]):
        record = attempt(RemoteProtocolError, read_ipns_record, data, key.peer_id)
        if isinstance(record, Refused):
            continue
        expect_equal(read_ipns_record(record.encoded, record.name), record, "read again")
        expect(not record.contradicts(record), "a record that contradicts itself")
        record.is_valid_at(record.valid_until)
    attempt(RemoteProtocolError, name_of_key, data)


def _ipns_seeds() -> list[bytes]:
    own = [
        make_ipns_record(
            _PUBLISHER, b"/ipfs/x", sequence=number, valid_until_ns=number, ttl_ns=number
        )
        for number in (0, 10**18)
    ]
    return own + field_bytes(vectors("protocol", "ipns"), "hex")


def _time(data: bytes) -> None:
    moment = attempt(RemoteProtocolError, parse_time, data)
    if not isinstance(moment, Refused) and moment >= 0:
        expect_equal(parse_time(format_time(moment)), moment, "written again")


def _catalog(data: bytes) -> None:
    """Read a payload, and the same signed: most mutants would fail at the signature alone."""
    catalog = attempt(RemoteProtocolError, Catalog.from_bytes, data)
    block = SignedDocument(CATALOG_DOMAIN, data).sign(_PUBLISHER).to_bytes()
    signed = attempt(RemoteProtocolError, read_signed_catalog, block, _PUBLISHER.peer_id)
    attempt(RemoteProtocolError, read_signed_catalog, data, _PUBLISHER.peer_id)
    if isinstance(catalog, Refused):
        expect(isinstance(signed, Refused), "a signature made a catalog of it")
        return
    expect_equal(catalog.to_bytes(), data, "encoded again")
    expect_equal(merged(catalog.models, catalog.models), dict(catalog.models), "merged with itself")


def _catalog_seeds() -> list[bytes]:
    found = vectors("protocol", "catalog")
    own = Catalog(publisher=_PUBLISHER.peer_id, sequence=1, models={}).to_bytes()
    return [own, *field_bytes([found["valid"], found["invalid"]], "hex")]


TARGETS: Final = (
    Target(
        name="ipns",
        modules=("sbp2p_protocol.ipns",),
        check=_ipns,
        seeds=_ipns_seeds,
        mutations=(protobuf,),
        max_size=IPNS_RECORD_MAX + 10,
        test_runs=200,
    ),
    Target(
        name="ipns_time",
        modules=("sbp2p_protocol.ipns",),
        check=_time,
        seeds=lambda: [b"2027-01-15T08:00:00.12Z", b"9999-12-31T23:59:59.999999999Z"],
        tokens=(b"Z", b".", b"0000", b"-", b":60"),
        max_size=64,
    ),
    Target(
        name="catalog",
        modules=("sbp2p_protocol.catalog",),
        check=_catalog,
        seeds=_catalog_seeds,
        mutations=(cbor,),
        test_runs=200,
    ),
)
