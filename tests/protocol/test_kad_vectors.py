"""The DHT's own vectors: places, messages, what is left out, what is refused, a sweep."""

from __future__ import annotations

import heapq
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sbp2p_keys.identity import PeerId
from sbp2p_protocol.errors import RemoteProtocolError
from sbp2p_protocol.framing import LengthPrefixedReader
from sbp2p_protocol.kad_keys import KadId, common_prefix_length, distance, kad_id, kad_id_of
from sbp2p_protocol.kad_messages import KadMessage, KadPeer, KadRecord, KadType
from sbp2p_protocol.kad_sweep import Sweep
from sbp2p_protocol.limits import KAD_SEND_MAX
from sbp2p_protocol.multiaddr import parse_address

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "protocol" / "vectors" / "kad.json").read_text()
)


def by_name(entry: dict[str, Any]) -> str:
    return str(entry["name"])


def peers(entries: list[dict[str, Any]]) -> tuple[KadPeer, ...]:
    return tuple(
        KadPeer(
            PeerId.from_bytes(bytes.fromhex(each["id"])),
            tuple(map(parse_address, each["addresses"])),
        )
        for each in entries
    )


def message(fields: dict[str, Any]) -> KadMessage:
    record = fields["record"]
    return KadMessage(
        KadType[fields["type"]],
        bytes.fromhex(fields["key"]),
        record
        and KadRecord(
            bytes.fromhex(record["key"]), bytes.fromhex(record["value"]), record["received"]
        ),
        peers(fields["closer"]),
        peers(fields["providers"]),
    )


@pytest.mark.parametrize("entry", VECTORS["places"], ids=lambda entry: entry["what"])
def test_places(entry: dict[str, str]) -> None:
    assert f"{kad_id(bytes.fromhex(entry['bytes'])):064x}" == entry["place"]


@pytest.mark.parametrize("entry", VECTORS["pairs"])
def test_distances(entry: dict[str, Any]) -> None:
    first, second = KadId(int(entry["a"], 16)), KadId(int(entry["b"], 16))
    assert f"{distance(first, second):064x}" == entry["distance"]
    assert common_prefix_length(first, second) == entry["shared_bits"]


@pytest.mark.parametrize("entry", VECTORS["messages"], ids=by_name)
def test_messages(entry: dict[str, Any]) -> None:
    reader = LengthPrefixedReader(KAD_SEND_MAX)
    reader.feed(bytes.fromhex(entry["frame"]))
    body = reader.next()
    assert body is not None
    assert KadMessage.decode(body) == message(entry["fields"])
    assert message(entry["fields"]).encode().hex() == entry["frame"]


@pytest.mark.parametrize("entry", VECTORS["left_out"], ids=by_name)
def test_what_is_left_out(entry: dict[str, Any]) -> None:
    assert KadMessage.decode(bytes.fromhex(entry["body"])) == message(entry["fields"])


@pytest.mark.parametrize("entry", VECTORS["errors"], ids=by_name)
def test_errors(entry: dict[str, str]) -> None:
    with pytest.raises(RemoteProtocolError):
        KadMessage.decode(bytes.fromhex(entry["body"]))


def test_the_sweep() -> None:
    servers = [KadPeer(PeerId.from_bytes(bytes.fromhex(s))) for s in VECTORS["sweep"]["servers"]]
    keys = [bytes.fromhex(key) for key in VECTORS["sweep"]["keys"]]
    told: dict[PeerId, set[bytes]] = {server.peer_id: set() for server in servers}
    sweep = Sweep(keys, Random(1))  # noqa: S311
    while (target := sweep.next_target()) is not None:
        place = kad_id(target)
        near = heapq.nsmallest(20, servers, key=lambda each: kad_id_of(each.peer_id) ^ place)
        for assignment in sweep.on_closest(near):
            told[assignment.server.peer_id].update(assignment.keys)
    for server, numbers in zip(servers, VECTORS["sweep"]["told"], strict=True):
        assert told[server.peer_id] == {keys[number] for number in numbers}
