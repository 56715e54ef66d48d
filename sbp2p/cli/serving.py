"""Listening and seeding: what `seed` and `get --seed` share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .text import format_bytes, format_count, format_rate, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sbp2p.node import Node, Version
    from sbp2p.observe import SwarmStatistics, Traffic
    from sbp2p.swarm import Gate
    from sbp2p_keys.identity import PeerId
    from sbp2p_protocol.multiaddr import Address

    from .console import Console

DEFAULT_PORT: Final = 4801
ANY_HOSTS: Final = ("/ip4/0.0.0.0", "/ip6/::")
_LOOPBACK: Final = ("127.", "::1")
_LINK_ADDRESSES: Final = 4
"""Addresses in a printed link: a machine can have dozens, and the line is to be pasted."""
STATS_INTERVAL_S: Final = 1.0
_ACCOUNTS_SHOWN: Final = 32
"""Peers, and versions, in one event: a line once a second should stay one."""
NOTE_INTERVAL_S: Final = 10.0
"""Between two lines about traffic for people."""


async def start_listening(console: Console, node: Node, addresses: Sequence[str]) -> None:
    """Listen on the given addresses, or on the default port of every interface, and say where.

    Raises:
        ConfigError: an address that was given cannot be listened on, or none of the defaults.
    """
    if addresses:
        for address in addresses:
            await listen_on(node, address)
    else:
        await _listen_by_default(console, node)
    if node.ephemeral:
        console.note("another process runs this node: serving under a peer id of its own")
    console.event(
        "listening", peer=str(node.peer_id), addresses=[str(each) for each in node.addresses]
    )
    for each in node.addresses:
        console.result(f"listening on {each}")


async def listen_on(node: Node, text: str) -> None:
    """Listen on an address given as text; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p_protocol.multiaddr import BadAddressError, parse_address

    try:
        address = parse_address(text)
    except BadAddressError as error:
        raise ConfigError(
            f"--listen {text!r}: {error}", hint="listen on /ip4/0.0.0.0/tcp/4801, for example"
        ) from error
    await node.swarm.listen(address)


async def _listen_by_default(console: Console, node: Node) -> None:
    from sbp2p.errors import ConfigError

    failures: list[ConfigError] = []
    for host in ANY_HOSTS:
        try:
            await listen_on(node, f"{host}/tcp/{DEFAULT_PORT}")
            continue
        except ConfigError:
            pass
        try:
            await listen_on(node, f"{host}/tcp/0")
        except ConfigError as error:  # a machine without IPv6, or without IPv4
            failures.append(error)
        else:
            console.note(f"port {DEFAULT_PORT} is taken on {host}: using a free one")
    if len(failures) == len(ANY_HOSTS):
        raise failures[0]


def link_addresses(addresses: Sequence[Address]) -> list[Address]:
    """Return the addresses that a link to give away should hold, best first."""
    public = [each for each in addresses if not each.host.startswith(_LOOPBACK)]
    return list(public or addresses)[:_LINK_ADDRESSES]


def announce(console: Console, node: Node, version: Version) -> None:
    """Say that a version is seeded, with the link to give away."""
    link = version.link(link_addresses(node.addresses))
    console.event(
        "seeding",
        link=link,
        cid=str(version.cid),
        name=version.name,
        version=version.version,
        publisher=str(version.publisher),
        path=str(version.path),
        size=version.size,
        files=version.files,
        complete=version.complete,
    )
    part = "" if version.complete else ", what is here of it"
    title = printable(f"{version.name} version {version.version}")
    console.result(f"seeding {title} ({format_bytes(version.size)}{part})")
    console.result(f"  {link}")


async def serve(console: Console, node: Node) -> int:
    """Serve until a signal comes, and report traffic."""
    import trio

    console.interrupts.is_expected = True
    console.note("serving until Ctrl-C")
    before: dict[str, Any] = {}
    noted_at, noted = trio.current_time(), 0
    while True:
        await trio.sleep(STATS_INTERVAL_S)
        statistics = node.statistics()
        fields = {**_fields(statistics), **moved(statistics.traffic)}
        if fields != before:
            console.event("stats", **fields)
            before = fields
        now = trio.current_time()
        if now - noted_at >= NOTE_INTERVAL_S:
            if statistics.bytes_sent != noted:
                rate = (statistics.bytes_sent - noted) / (now - noted_at)
                console.note(_line(statistics, rate))
            noted_at, noted = now, statistics.bytes_sent


def _fields(statistics: SwarmStatistics) -> dict[str, Any]:
    return {
        "peers": len({each.peer_id for each in statistics.connections}),
        "connections": len(statistics.connections),
        "bytes_sent": statistics.bytes_sent,
        "bytes_received": statistics.bytes_received,
    }


def _line(statistics: SwarmStatistics, rate: float) -> str:
    peers = len({each.peer_id for each in statistics.connections})
    sent = format_bytes(statistics.bytes_sent)
    return f"{format_count(peers, 'peer')}, {sent} sent, {format_rate(rate)}"


def moved(traffic: Sequence[Traffic]) -> dict[str, list[dict[str, Any]]]:
    """Return the payload of each peer and of each version, the busiest first."""
    by_peer: dict[str, list[int]] = {}
    by_root: dict[str, list[int]] = {}
    for each in traffic:
        counts = (each.bytes_sent, each.blocks_sent, each.bytes_received, each.blocks_received)
        for sums, key in ((by_peer, each.peer_id), (by_root, each.root)):
            if key is not None:
                account = sums.setdefault(str(key), [0, 0, 0, 0])
                account[:] = map(sum, zip(account, counts, strict=True))
    return {
        "by_peer": _busiest("peer", by_peer),
        "by_root": _busiest("root", by_root),
    }


def _busiest(what: str, sums: dict[str, list[int]]) -> list[dict[str, Any]]:
    busiest = sorted(sums.items(), key=lambda item: -(item[1][0] + item[1][2]))[:_ACCOUNTS_SHOWN]
    names = ("bytes_sent", "blocks_sent", "bytes_received", "blocks_received")
    return [{what: key, **dict(zip(names, sums, strict=True))} for key, sums in busiest]


def gate(allow: Sequence[str], deny: Sequence[str]) -> Gate:
    """Return the gate that the options describe; raises ConfigError."""
    from sbp2p.swarm import Gate

    allowed = frozenset(map(parse_peer, allow)) if allow else None
    return Gate(allowed, frozenset(map(parse_peer, deny)))


def parse_peer(text: str) -> PeerId:
    """Read a peer id; raises ConfigError."""
    from sbp2p.errors import ConfigError
    from sbp2p_keys.errors import KeysError
    from sbp2p_keys.identity import PeerId

    try:
        return PeerId.parse(text)
    except KeysError as error:
        raise ConfigError(
            f"{text!r} is not a peer id: {error}", hint="`sbp2p id` shows a node's own"
        ) from error
