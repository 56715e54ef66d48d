"""Targets of naming and of what a DHT server keeps: records, catalogs, requests."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

from sbp2p_keys.signing import SignedDocument
from sbp2p_protocol.catalog import CATALOG_DOMAIN, Catalog, merged, read_signed_catalog
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.ipns import (
    format_time,
    ipns_key,
    make_ipns_record,
    name_of_key,
    parse_time,
    read_ipns_record,
)
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType
from sbp2p_protocol.kad_server import KadServer, Requester
from sbp2p_protocol.limits import IPNS_RECORD_MAX, KAD_SEND_MAX
from sbp2p_protocol.multiaddr import parse_address
from sbp2p_protocol.provider_records import ProviderRecords
from sbp2p_protocol.value_records import ValueRecords, best_value

from .corpus import KEYS, field_bytes, vectors
from .engine import Target
from .expect import Refused, attempt, expect, expect_equal
from .structure import cbor, protobuf

if TYPE_CHECKING:
    from sbp2p_keys.identity import PeerId

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


# -- what a server of the DHT is asked -------------------------------------------------------------


class _NoNeighbours:
    def closest(self, _key: bytes, _count: int) -> list[KadPeer]:
        return [KadPeer(KEYS[1].peer_id, (_ADDRESS,))]

    def find(self, peer_id: PeerId) -> KadPeer | None:
        return KadPeer(peer_id, (_ADDRESS,))


_ADDRESS: Final = parse_address("/ip4/10.1.2.3/tcp/4001")
_NOW: Final = 1_800_000_000.0


def _kad_server(data: bytes) -> None:
    """Answer one request, and ask for what it left behind."""
    request = attempt(RemoteProtocolError, KadMessage.decode, data)
    if isinstance(request, Refused):
        return
    values = ValueRecords()
    server = KadServer(
        KEYS[2].peer_id,
        providers=ProviderRecords(),
        values=values,
        neighbours=_NoNeighbours(),
        rng=Random(1),  # noqa: S311
        public=True,
    )
    requester = Requester(_PUBLISHER.peer_id, _ADDRESS)
    reply = attempt(RemoteProtocolError, server.answer, request, requester, _NOW)
    if isinstance(reply, Refused):
        expect(len(values) == 0, "what was refused was kept")
        return
    expect((reply is None) == (request.type is KadType.ADD_PROVIDER), "a reply to ADD_PROVIDER")
    if reply is not None:
        expect(len(reply.encode()) <= KAD_SEND_MAX, "a reply that is too long")
    for row in values.rows():
        expect_equal(best_value(row.key, [row.value], _NOW), row.value, "an invalid value was kept")


def _kad_requests() -> list[bytes]:
    key = ipns_key(_PUBLISHER.peer_id)
    value = make_ipns_record(_PUBLISHER, b"/x", sequence=1, valid_until_ns=2**62, ttl_ns=0)
    public_key = _PUBLISHER.public_key.to_protobuf()
    pk = b"/pk/" + _PUBLISHER.peer_id.to_bytes()
    provider = KadPeer(_PUBLISHER.peer_id, (_ADDRESS,))
    requests = [
        KadMessage(KadType.FIND_NODE, KEYS[1].peer_id.to_bytes()),
        KadMessage(KadType.GET_PROVIDERS, b"key"),
        KadMessage(KadType.ADD_PROVIDER, b"key", providers=(provider,)),
        KadMessage(KadType.GET_VALUE, key),
        KadMessage(KadType.PUT_VALUE, key, KadRecord(key, value)),
        KadMessage(KadType.PUT_VALUE, pk, KadRecord(pk, public_key)),
        KadMessage(KadType.PING),
    ]
    bodies = []
    for request in requests:
        reader = LengthPrefixedReader(KAD_SEND_MAX)
        reader.feed(request.encode())
        bodies.append(reader.next() or b"")
    return bodies


TARGETS: Final = (
    Target(
        name="kad_server",
        modules=("sbp2p_protocol.kad_server", "sbp2p_protocol.value_records"),
        check=_kad_server,
        seeds=_kad_requests,
        mutations=(protobuf,),
        test_runs=200,
    ),
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
