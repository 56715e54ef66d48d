"""Why a link, a peer or an address does not work: each address tried by itself, then the peer.

| question | answered by |
|---|---|
| where is the peer said to be? | the link; for a peer id what is remembered, the LAN, the DHT |
| who is at each address? | a probe, which proves the id and leaves |
| does it let this node in? | a connection on which it says who it is |
| does it speak our protocols? | what it says in identify |
| does it have the version? | the exchange, asked of this peer alone |
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from sbp2p.errors import NotFoundError, Sbp2pError
from sbp2p.exchange import Source
from sbp2p.transport import DialError
from sbp2p_protocol.exchange_messages import PROTOCOL_ID
from sbp2p_protocol.link import ManifestLink, NameLink
from sbp2p_protocol.multiaddr import Address

from .diagnosis import Verdict, bad, ok, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.link import Link

    from .node import Node

_IDENTIFY_S = 3.0
"""For a peer to say who it is, or to hang up."""


async def check_target(node: Node, target: Link | PeerId | Address, wait_s: float) -> list[Verdict]:
    """Find out what keeps this node from what `target` names."""
    if isinstance(target, ManifestLink | NameLink):
        return await _check_link(node, target, wait_s)
    if isinstance(target, Address):
        return await _check_addresses(node, target.peer_id, [target], None, wait_s)
    return await _check_peer(node, target, wait_s)


async def _check_link(node: Node, link: Link, wait_s: float) -> list[Verdict]:
    by_peer: dict[PeerId, list[Address]] = {}
    for address in link.peers:
        if address.peer_id is not None:
            by_peer.setdefault(address.peer_id, []).append(address)
    verdicts: list[Verdict] = []
    if not by_peer:
        verdicts.append(ok("link", "names no addresses: peers are looked for"))
        if isinstance(link, NameLink):
            return [*verdicts, *await _check_peer(node, link.publisher, wait_s, link)]
    for peer_id, addresses in by_peer.items():
        verdicts += await _check_addresses(node, peer_id, addresses, link, wait_s)
    if isinstance(link, ManifestLink) and not by_peer:
        verdicts.append(await _search(node, link, wait_s))
    return verdicts


async def _search(node: Node, link: ManifestLink, wait_s: float) -> Verdict:
    """Look for anybody who has a version."""
    with trio.move_on_after(wait_s):
        async with node.finder.new_search(link) as search:
            if search.arrivals is not None:
                async for source in search.arrivals:
                    if await _has(node, source, link, wait_s) is None:
                        return ok("version", f"{source.peer_id} was found and has it")
    step = "ask the publisher for a link with ?peer=, or for a bootstrap address"
    return bad("version", f"nobody was found who has {link.manifest}", step)


async def _check_peer(
    node: Node, peer_id: PeerId, wait_s: float, link: Link | None = None
) -> list[Verdict]:
    known = [each for each in node.discovery.known() if each.peer_id == peer_id]
    addresses = list(known[0].addresses) if known else []
    if node.dht is not None and await node.finder.wait_for_dht():
        with trio.move_on_after(wait_s):
            found = await node.dht.find_peer(peer_id)
            addresses += [each.with_peer(peer_id) for each in found]
    if not addresses:
        step = "it may be offline, or in another network: ask for its address, and for a bootstrap"
        return [bad("peer", f"nobody knows where {peer_id} is", step)]
    where = f"{peer_id} is said to be at {len(set(addresses))} addresses"
    checks = await _check_addresses(node, peer_id, list(dict.fromkeys(addresses)), link, wait_s)
    return [ok("peer", where), *checks]


async def _check_addresses(
    node: Node,
    peer_id: PeerId | None,
    addresses: Sequence[Address],
    link: Link | None,
    wait_s: float,
) -> list[Verdict]:
    verdicts: list[Verdict] = []
    reached: list[tuple[Address, PeerId]] = []

    async def look(address: Address) -> None:
        verdict, found = await _check_address(node, address, peer_id, wait_s)
        verdicts.append(verdict)
        if found is not None:
            reached.append((address, found))

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(look, address)
    if reached:
        address, found = reached[0]
        verdicts += await _check_connection(node, found, [address], link, wait_s)
    return verdicts


async def _check_address(
    node: Node, address: Address, peer_id: PeerId | None, wait_s: float
) -> tuple[Verdict, PeerId | None]:
    started = trio.current_time()
    reason = f"no answer within {wait_s:g} s"
    with trio.move_on_after(wait_s):
        try:
            found = await node.swarm.probe(address, peer_id)
        except DialError as error:
            reason = "; ".join(each.reason for each in error.failures)
        else:
            milliseconds = 1000 * (trio.current_time() - started)
            text = f"{address.without_peer()}: {found} answered within {milliseconds:.0f} ms"
            return ok("address", text), found
    return bad("address", f"{address.without_peer()}: {reason}", _step(reason)), None


def _step(reason: str) -> str:
    """Say what to do about a dial that failed."""
    if "found 12D3" in reason or "wrong peer" in reason or "expected" in reason:
        return "another node has this address now: ask for a new link"
    if "refused" in reason:
        return "see that the other node is running, and that the port is right"
    if "no answer" in reason:
        return "see that no firewall is in the way, and that the address is right"
    if "no route" in reason or "cannot be resolved" in reason:
        return "it is not reachable from this network: another address is needed"
    return "ask whoever runs the other node"


async def _check_connection(
    node: Node, peer_id: PeerId, addresses: Sequence[Address], link: Link | None, wait_s: float
) -> list[Verdict]:
    with node.swarm.subscribe() as events:
        try:
            with trio.fail_after(wait_s):
                await node.swarm.connect(addresses, peer_id)
        except (Sbp2pError, trio.TooSlowError) as error:
            return [bad("connection", str(error) or "no answer", getattr(error, "hint", ""))]
        with trio.move_on_after(_IDENTIFY_S):
            while node.swarm.identified(peer_id) is None and node.swarm.connections(peer_id):
                await events.receive()
    said = node.swarm.identified(peer_id)
    if said is None and not node.swarm.connections(peer_id):
        step = f"it may serve only peers that it knows: tell its owner your id, {node.peer_id}"
        return [bad("connection", "it ended the connection at once, without a reason", step)]
    if said is None:
        step = "it is no libp2p node as others are; ask whoever runs it"
        return [warn("connection", "it does not say who it is", step)]
    verdicts = [ok("connection", f"it runs {said.agent_version or 'software without a name'}")]
    if PROTOCOL_ID not in said.protocols:
        step = "it is no sbp2p node, or one of another version"
        return [*verdicts, bad("protocols", f"it does not speak {PROTOCOL_ID}", step)]
    verdicts.append(ok("protocols", "it serves sbp2p's exchange"))
    if link is not None and isinstance(link, ManifestLink) and node.store.version(link.manifest):
        verdicts.append(ok("version", "this node has the version itself"))
    elif link is not None:
        failure = await _has(node, Source(peer_id, tuple(addresses)), link, wait_s)
        verdicts.append(failure or ok("version", "it has the version that the link names"))
    return verdicts


async def _has(node: Node, source: Source, link: Link, wait_s: float) -> Verdict | None:
    """Return why a peer does not have what a link names, or None if it has."""
    alone = (
        ManifestLink(link.manifest)
        if isinstance(link, ManifestLink)
        else NameLink(link.publisher, link.name, link.version)
    )
    try:
        with trio.fail_after(wait_s):
            await node.exchange.resolve(alone, sources=[source])
    except NotFoundError:
        step = "it may seed another version: ask it for its link"
        return bad("version", "it does not have the version that the link names", step)
    except Sbp2pError as error:
        return bad("version", str(error), error.hint)
    except trio.TooSlowError:
        return bad("version", "it did not say whether it has it", "it may be busy: try again")
    return None
