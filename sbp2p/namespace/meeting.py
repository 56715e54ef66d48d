"""The tasks of a namespace that lead members to each other; see members.py for the ways.

    addresses   what the user gave is dialled until it answers
    events      connected peers that speak the protocol are asked
    gossip      each member is told of the others, by signed records
    DHT         this node is announced under the namespace's key, and others are looked for
    LAN         whoever answers by multicast is asked

Error cases: none leaves; what fails is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio
from blake3 import blake3

from sbp2p import observe
from sbp2p.discovery import Origin
from sbp2p.errors import Sbp2pError
from sbp2p.exchange.gossip import BelievedRecords
from sbp2p.swarm.events import PeerIdentified
from sbp2p_keys.multi import BLAKE3, multihash_encode
from sbp2p_protocol.limits import NAMESPACE_RECORDS_BATCH
from sbp2p_protocol.namespace_messages import PROTOCOL_ID, Peers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.dht import Dht
    from sbp2p.discovery import Candidate
    from sbp2p_protocol.multiaddr import Address

    from .host import Host
    from .members import Members

_SETTLE_S: Final = 0.05
"""After a member has come, others that come with it are waited for before records go out."""
_PROVIDERS: Final = 20
_ENTRIES: Final = 8
"""Bootstrap and remembered peers that are dialled to enter the DHT."""


def namespace_key(name: str) -> bytes:
    """Return the key under which the DHT knows the members of a namespace."""
    return multihash_encode(BLAKE3, blake3(f"sbp2p-namespace:{name}".encode()).digest())


async def meet(host: Host, members: Members, peers: Sequence[Address]) -> None:
    """Lead members here, for ever."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.contacts.keep, nursery)
        nursery.start_soon(_watch, host, members)
        nursery.start_soon(_gossip, host, members)
        nursery.start_soon(_watch_candidates, host, members)
        if host.dht is not None:
            nursery.start_soon(_provide, host, host.dht, members.name)
            nursery.start_soon(_search, host, host.dht, members)
        for address in peers:
            if address.peer_id is not None:
                members.contacts.add(address.peer_id, [address], given=True)
            else:
                nursery.start_soon(_find_out, host, members, address)


async def _find_out(host: Host, members: Members, address: Address) -> None:
    """Dial an address that does not say who is there, until somebody is."""
    wait = host.config.retry_s
    while True:
        try:
            connection = await host.swarm.connect([address])
        except Sbp2pError as error:
            observe.report_not_found(f"a member at {address.text}", error)
        else:
            members.contacts.add(connection.peer_id, [address], given=True)
            return
        await trio.sleep(wait)
        wait = min(2 * wait, host.config.retry_max_s)


async def _watch(host: Host, members: Members) -> None:
    """Ask connected peers that speak the protocol: those that are here, and those that come."""
    while True:
        with host.swarm.subscribe() as events:
            for peer_id in host.swarm.peers():
                message = host.swarm.identified(peer_id)
                if message is not None and PROTOCOL_ID in message.protocols:
                    members.contacts.add(peer_id)
            async for event in events:
                if isinstance(event, PeerIdentified) and PROTOCOL_ID in event.message.protocols:
                    members.contacts.add(event.peer_id)
        await trio.sleep(host.config.retry_s)  # cut off, or the swarm ends


async def _gossip(host: Host, members: Members) -> None:
    believed = BelievedRecords(host.swarm)
    while True:
        for link, told, others in list(members.untold()):
            records = []
            for peer_id in others:
                record = believed.record_of(peer_id)
                if record is not None:
                    told.add(peer_id)
                    records.append(record)
            for start in range(0, len(records), NAMESPACE_RECORDS_BATCH):
                link.say(Peers(tuple(records[start : start + NAMESPACE_RECORDS_BATCH])))
        members.new_member = trio.Event()
        with trio.move_on_after(host.config.gossip_s):
            await members.new_member.wait()
            await trio.sleep(_SETTLE_S)


async def _watch_candidates(host: Host, members: Members) -> None:
    with host.discovery.subscribe() as candidates:
        for candidate in host.discovery.known(Origin.LAN):
            _consider(members, candidate)
        async for candidate in candidates:
            _consider(members, candidate)


def _consider(members: Members, candidate: Candidate) -> None:
    if candidate.origin is Origin.LAN:
        members.contacts.add(candidate.peer_id, candidate.addresses)


async def _provide(host: Host, dht: Dht, name: str) -> None:
    key = namespace_key(name)
    try:
        while True:
            await dht.wait_settled()
            servers = 0
            try:
                servers = await dht.provide(key)
            except Sbp2pError as error:
                observe.report_not_found(f"announcing namespace {name}", error)
            await trio.sleep(host.config.provide_s if servers else host.config.search_s)
    finally:
        dht.stop_providing([key])


def _enter(host: Host, dht: Dht, members: Members) -> None:
    """Have the bootstrap peers dialled while the DHT knows nobody: one of them may be a member."""
    if not dht.peers():
        for candidate in host.discovery.known(Origin.BOOTSTRAP, Origin.REMEMBERED)[:_ENTRIES]:
            members.contacts.add(candidate.peer_id, candidate.addresses)


async def _search(host: Host, dht: Dht, members: Members) -> None:
    key = namespace_key(members.name)
    wait = host.config.search_s / 10
    while True:
        _enter(host, dht, members)
        with trio.move_on_after(host.config.search_s):
            await dht.wait_settled()
        try:
            async with dht.find_providers(key, count=_PROVIDERS) as found:
                async for provider in found:
                    addresses = provider.addresses or await dht.find_peer(provider.peer_id)
                    members.contacts.add(provider.peer_id, addresses)
        except Sbp2pError as error:
            observe.report_not_found(f"members of namespace {members.name}", error)
        await trio.sleep(wait * host.rng.uniform(0.8, 1.2))
        wait = min(2 * wait, host.config.search_s)
